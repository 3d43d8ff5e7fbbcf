"""Tiers of known rate: ext4 on loop devices whose reads the block layer throttles (cgroup v1)."""

import fcntl
import json
import os
import pathlib
import signal
import struct
import subprocess
import sys
import time

from bench_daemon import MIB, loop_tier, run

BLKIO = pathlib.Path("/sys/fs/cgroup/blkio")
# FS_IOC_SHUTDOWN and its flag for "without writing the journal": all that follows fails with EIO.
SHUTDOWN, NO_LOG_FLUSH = 0x8004587D, 2


def fio_reader(root, group, io_kib, depth, seconds):
    """A fio that reads the directory's chunk files, in the cgroup from its first instruction on."""
    command = ["fio", "--name=raw", "--rw=read", "--direct=1", "--ioengine=io_uring",
               f"--bs={io_kib}k", f"--iodepth={depth}", "--output-format=json", "--time_based",
               f"--runtime={seconds}", f"--opendir={root}/v1", "--file_service_type=sequential"]
    enter = (lambda: (group / "cgroup.procs").write_text("0")) if group else None
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=enter)


def fio_read(roots, group, io_kib, depth, seconds):
    """MiB/s that fio gets from each of the directories, all read at the same time."""
    readers = [fio_reader(root, group, io_kib, depth, seconds) for root in roots]
    return [round(fio_rate(reader), 1) for reader in readers]


def bytes_read(pid):
    """That a process and its children have read from devices so far."""
    total = 0
    children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    for process in [str(pid), *children]:
        for line in pathlib.Path(f"/proc/{process}/io").read_text().splitlines():
            total += int(line.split()[1]) if line.startswith("read_bytes") else 0
    return total


def fio_rate(process, mode="read"):
    """MiB/s of a fio that writes its JSON to a pipe, once it has ended."""
    out = process.communicate()[0]
    return json.loads(out[out.index("{"):])["jobs"][0][mode]["bw_bytes"] / MIB


class StoppableMount:
    """A FUSE over a directory, whose process can be stopped: then nothing on it answers. Made and
    removed with `stack`; its process reads within the cgroup."""

    def __init__(self, stack, folder, root, group):
        self.root = folder / "stoppable"
        self.root.mkdir(exist_ok=True)
        # Direct reads stay direct: else the page cache would answer.
        self._process = subprocess.Popen(
            ["bindfs", "-f", "--forward-odirect=4096", str(root), str(self.root)],
            preexec_fn=lambda: (group / "cgroup.procs").write_text("0"))
        stack.callback(self._remove)
        for _ in range(200):
            if os.path.ismount(self.root):
                return
            time.sleep(0.05)
        sys.exit("bindfs did not mount")

    def stop(self):
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self):
        self._process.send_signal(signal.SIGCONT)

    def _remove(self):
        self.go_on()
        run("umount", "--lazy", str(self.root))
        self._process.wait(timeout=60)


class EmulatedTiers:
    """Two of them, made and removed with `stack`. Rates are MiB/s; None lifts the limit."""

    def __init__(self, stack, folder, size, sparse):
        if os.geteuid() != 0 or not BLKIO.is_dir():
            sys.exit(f"emulated tiers need root and a cgroup v1 blkio controller at {BLKIO}; "
                     "--dirs measures directories of your own without them")
        self.group = BLKIO / folder.name
        self.group.mkdir()
        stack.callback(self.group.rmdir)
        tiers = [loop_tier(stack, folder, name, size, sparse) for name in ("fast", "slow")]
        self.roots = [mount for mount, _ in tiers]
        # Of their devices, as the cgroup names them.
        self.numbers = [number for _, number in tiers]

    def set_rate(self, tier, mib):
        bps = int(mib * MIB) if mib is not None else 0
        (self.group / "blkio.throttle.read_bps_device").write_text(
            f"{self.numbers[tier]} {bps}\n")

    def lift(self):
        for tier in range(len(self.roots)):
            self.set_rate(tier, None)

    def join(self, pid):
        (self.group / "cgroup.procs").write_text(str(pid))

    def kill(self, tier):
        """From here on everything on it fails, until `revive`."""
        fd = os.open(self.roots[tier], os.O_RDONLY)
        fcntl.ioctl(fd, SHUTDOWN, struct.pack("I", NO_LOG_FLUSH))
        os.close(fd)

    def revive(self, tier):
        """REQUIRES: nobody has a file open on it."""
        mount = str(self.roots[tier])
        device = run("findmnt", "-n", "-o", "SOURCE", mount).strip()
        run("umount", mount)
        run("mount", device, mount)
