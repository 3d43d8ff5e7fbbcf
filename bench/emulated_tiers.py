"""Tiers of known rate: ext4 on loop devices whose reads the block layer throttles (cgroup v1)."""

import fcntl
import json
import os
import pathlib
import struct
import subprocess
import sys

from bench_daemon import MIB, loop_tier, run

BLKIO = pathlib.Path("/sys/fs/cgroup/blkio")
# FS_IOC_SHUTDOWN and its flag for "without writing the journal": all that follows fails with EIO.
SHUTDOWN, NO_LOG_FLUSH = 0x8004587D, 2


def fio_read(roots, group, io_kib, depth, seconds):
    """MiB/s that fio gets from each of the directories' chunk files, all read at the same time."""
    readers = []
    for root in roots:
        command = ["fio", "--name=raw", "--rw=read", "--direct=1", "--ioengine=io_uring",
                   f"--bs={io_kib}k", f"--iodepth={depth}", "--output-format=json", "--time_based",
                   f"--runtime={seconds}", f"--opendir={root}/v1",
                   "--file_service_type=sequential"]
        reader = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        if group:
            (group / "cgroup.procs").write_text(str(reader.pid))
        readers.append(reader)
    return [round(fio_rate(reader), 1) for reader in readers]


def fio_rate(reader):
    """MiB/s of a fio that writes its JSON to a pipe, once it has ended."""
    out = reader.communicate()[0]
    return json.loads(out[out.index("{"):])["jobs"][0]["read"]["bw_bytes"] / MIB


class EmulatedTiers:
    """Two of them, made and removed with `stack`. Rates are MiB/s by tier; 0: no limit."""

    def __init__(self, stack, folder, size, sparse):
        if os.geteuid() != 0 or not BLKIO.is_dir():
            sys.exit(f"emulated tiers need root and a cgroup v1 blkio controller at {BLKIO}; "
                     "--dirs measures directories of your own without them")
        self.group = BLKIO / folder.name
        self.group.mkdir()
        stack.callback(self.group.rmdir)
        tiers = [loop_tier(stack, folder, name, size, sparse) for name in ("fast", "slow")]
        self.roots = [mount for mount, _ in tiers]
        self._numbers = [number for _, number in tiers]

    def set_rate(self, tier, mib):
        bps = max(1, int(mib * MIB)) if mib is not None else 0
        (self.group / "blkio.throttle.read_bps_device").write_text(
            f"{self._numbers[tier]} {bps}\n")

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
