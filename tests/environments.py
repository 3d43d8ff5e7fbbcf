#!/usr/bin/env python3
"""Runs a real daemon and a replay in the environments that operators have, and prints a table of
what the daemon made of each: file systems, block sizes, sandboxes, limits.

Usage: environments.py KVSTREAMD KVSTREAMCTL [REGEX]

Needs root. REGEX picks rows by their name. A row that this machine cannot make is skipped, with the
reason. Exit code 1 when a replay fails or reads a wrong byte. kernel.io_uring_disabled is set for
the moment that one daemon starts and vm.nr_hugepages while each row runs; both are restored.
"""

import contextlib
import ctypes
import json
import os
import pathlib
import re
import resource
import signal
import struct
import subprocess
import sys
import tempfile
import time

PATIENCE_S = 60
IMAGE_BYTES = 400 << 20
NOBODY = 65534
IO_URING_SETUP = 425
HUGE_PAGES = pathlib.Path("/proc/sys/vm/nr_hugepages")
MEMORY_GROUPS = pathlib.Path("/sys/fs/cgroup/memory")
IO_URING_DISABLED = pathlib.Path("/proc/sys/kernel/io_uring_disabled")
COLUMNS = ("environment", "engine", "direct", "alignment", "registered", "replay exit",
           "wrong bytes", "hits of possible", "conditions")


class Skip(Exception):
    """The machine cannot make this environment."""


def run(*command):
    """Output of a command; Skip with its complaint when it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise Skip(f"no {error.filename}") from error
    if done.returncode != 0:
        complaint = done.stderr.strip() or f"exit code {done.returncode}"
        raise Skip(f"{command[0]}: {complaint.splitlines()[-1]}")
    return done.stdout.strip()


class Place:
    """Where a daemon of a row runs: `root` holds its tiers, the rest says how it is started."""

    def __init__(self, folder):
        self.folder = folder
        self.root = folder / "root"
        self.root.mkdir()
        self.prefix = []
        self.before_exec = lambda: None
        self.while_starting = contextlib.nullcontext()
        # Part of the message with which the daemon must refuse to start.
        self.refused_for = None
        self.undo = contextlib.ExitStack()

    def mount(self, *arguments):
        run("mount", *arguments, str(self.root))
        self.undo.callback(run, "umount", str(self.root))


def image(place):
    path = place.folder / "image"
    with open(path, "wb") as file:
        file.truncate(IMAGE_BYTES)
    return path


def loop_device(place, block):
    device = run("losetup", "--find", "--show", "--sector-size", str(block), "--direct-io=on",
                 str(image(place)))
    place.undo.callback(run, "losetup", "--detach", device)
    told = pathlib.Path("/sys/block", os.path.basename(device), "queue/logical_block_size")
    if int(told.read_text(encoding="ascii")) != block:
        raise Skip(f"the loop driver gives no {block}-byte blocks")
    return device


def ext4(block):
    def make(place):
        device = loop_device(place, block)
        run("mkfs.ext4", "-q", "-F", "-b", "4096", device)
        place.mount(device)
    return make


def xfs(block):
    def make(place):
        device = loop_device(place, block)
        run("mkfs.xfs", "-q", "-f", "-s", f"size={block}", "-b", f"size={block}", device)
        place.mount(device)
    return make


def tmpfs(place):
    place.mount("-t", "tmpfs", "-o", "size=1g", "tmpfs")


def overlay(place):
    for name in ("lower", "upper", "work"):
        (place.folder / name).mkdir()
    place.mount("-t", "overlay", "-o", ",".join(
        f"{option}dir={place.folder}/{option}" for option in ("lower", "upper", "work")), "overlay")


def bindfs(place):
    (place.folder / "below").mkdir()
    run("bindfs", str(place.folder / "below"), str(place.root))
    place.undo.callback(run, "umount", str(place.root))


def fuse2fs(place):
    path = image(place)
    run("mkfs.ext4", "-q", "-F", str(path))
    run("fuse2fs", "-o", "fakeroot", str(path), str(place.root))
    place.undo.callback(run, "umount", str(place.root))


@contextlib.contextmanager
def io_uring_disabled():
    before = IO_URING_DISABLED.read_text(encoding="ascii")
    try:
        IO_URING_DISABLED.write_text("2", encoding="ascii")
        yield
    finally:
        IO_URING_DISABLED.write_text(before, encoding="ascii")


def sysctl(place):
    if not IO_URING_DISABLED.exists():
        raise Skip("this kernel has no kernel.io_uring_disabled")
    place.while_starting = io_uring_disabled()


def refuse_io_uring():
    """io_uring_setup answers EPERM to this process and its children, as under a seccomp profile."""
    load, equal, answer = 0x20, 0x15, 0x06
    steps = [(load, 0, 0, 0), (equal, 0, 1, IO_URING_SETUP), (answer, 0, 0, 0x00050001),
             (answer, 0, 0, 0x7fff0000)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    program = struct.pack("HxxxxxxQ", len(steps), ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(38, 1, 0, 0, 0) != 0 or libc.prctl(22, 2, program) != 0:
        raise OSError(ctypes.get_errno(), "seccomp")


def seccomp(place):
    place.before_exec = refuse_io_uring


def locked_memory(place):
    place.prefix = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups",
                    "--inh-caps=-all", "--bounding-set=-all"]
    place.before_exec = lambda: resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 65536))


def open_files(place):
    place.before_exec = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))


@contextlib.contextmanager
def huge_pages(count):
    """Reserves so many huge pages, as far as the machine has them."""
    before = HUGE_PAGES.read_text(encoding="ascii")
    try:
        HUGE_PAGES.write_text(str(count), encoding="ascii")
        yield
    finally:
        HUGE_PAGES.write_text(before, encoding="ascii")


def no_huge_pages(place):
    place.undo.enter_context(huge_pages(0))


def little_memory(place):
    if not MEMORY_GROUPS.is_dir():
        raise Skip("this machine has no memory controller of cgroup version 1")
    group = MEMORY_GROUPS / place.folder.name
    group.mkdir()
    place.undo.callback(group.rmdir)
    (group / "memory.limit_in_bytes").write_text(str(128 << 20), encoding="ascii")
    place.before_exec = lambda: (group / "cgroup.procs").write_text(str(os.getpid()))
    place.refused_for = "pool.mib"


ROWS = (
    ("as it is", lambda place: None),
    ("ext4, 512-byte blocks", ext4(512)),
    ("ext4, 4 KiB blocks", ext4(4096)),
    ("xfs, 4 KiB blocks", xfs(4096)),
    ("xfs, 16 KiB blocks", xfs(16384)),
    ("xfs, 32 KiB blocks", xfs(32768)),
    ("xfs, 64 KiB blocks", xfs(65536)),
    ("tmpfs", tmpfs),
    ("overlayfs", overlay),
    ("FUSE, bindfs", bindfs),
    ("FUSE, fuse2fs", fuse2fs),
    ("kernel.io_uring_disabled=2", sysctl),
    ("io_uring_setup refused by seccomp", seccomp),
    ("RLIMIT_MEMLOCK 64 KiB, no capabilities", locked_memory),
    ("RLIMIT_NOFILE 64", open_files),
    ("no huge pages", no_huge_pages),
    ("128 MiB of memory for the cgroup", little_memory),
)


class Node:
    """A daemon in a place."""

    def __init__(self, daemon, ctl, place):
        self.command = [*place.prefix, daemon, "--config", str(place.folder / "config")]
        self.place = place
        self.tool = [ctl, "--socket", str(place.folder / "sock")]
        tiers = ""
        for name in ("nvme", "pfs"):
            root = place.root / name
            root.mkdir(exist_ok=True)
            tiers += f'tiers {{ name: "{name}" root: "{root}" }}\n'
            if place.prefix:
                os.chown(root, NOBODY, NOBODY)
        place.folder.chmod(0o777)
        (place.folder / "config").write_text(
            f'sockets {{ grpc: "{place.folder}/sock" }}\n{tiers}'
            'pool { mib: 32 } limits { segment_kib: 1024 segment_kib_max: 4096 }\n'
            'metrics { listen: "" } logging { level: "error" }\n', encoding="utf-8")
        self.process = None

    def ctl(self, *arguments):
        done = subprocess.run([*self.tool, *arguments, "--json"], capture_output=True, text=True,
                              check=False, timeout=5 * PATIENCE_S)
        return done.returncode, json.loads(done.stdout) if done.stdout.strip() else {}

    def start(self):
        with self.place.while_starting:
            self.process = subprocess.Popen(self.command, stderr=subprocess.PIPE, text=True,
                                            preexec_fn=self.place.before_exec)
            deadline = time.monotonic() + PATIENCE_S
            while self.ctl("status")[0] != 0:
                if self.process.poll() is not None:
                    raise RuntimeError(self.process.stderr.read().strip())
                if time.monotonic() > deadline:
                    raise RuntimeError("not ready in time")

    def stop(self):
        if self.process is None or self.process.poll() is not None:
            return
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def measure(daemon, ctl, place):
    """The columns after the name."""
    node = Node(daemon, ctl, place)
    try:
        node.start()
        replay = ("replay", "--generate", "60", "--chunk-bytes", "256KiB", "--segment-bytes",
                  "64KiB")
        code, report = node.ctl(*replay)
        # A daemon that the first left without something must not refuse the next.
        code = code or node.ctl(*replay, "--seed", "2")[0]
        status = node.ctl("status")[1]
    finally:
        node.stop()
    tier = status["tiers"][0]
    yes = {True: "yes", False: "no"}
    # JSON leaves out what is false or 0.
    return (tier["io_engine"], yes[tier.get("direct", False)], str(tier.get("alignment", 0)),
            yes[tier.get("registered_buffers", False)], str(code),
            str(report.get("wrong_bytes", "?")),
            f'{report.get("hits", "?")} of {report.get("possible_hits", "?")}',
            "; ".join(status.get("conditions", [])) or "none")


def row(daemon, ctl, name, make):
    """(columns, whether it is as it must be)."""
    # Below a directory that every user may pass, on the file system of temporary files.
    with tempfile.TemporaryDirectory(prefix="kvstream-environment-") as folder:
        place = Place(pathlib.Path(folder))
        with place.undo:
            try:
                make(place)
                cells = measure(daemon, ctl, place)
            except Skip as reason:
                return (name, f"skipped: {reason}"), True
            except RuntimeError as reason:
                expected = place.refused_for and place.refused_for in str(reason)
                return (name, f"does not start: {reason}"), bool(expected)
    return (name, *cells), cells[4:6] == ("0", "0")


def main():
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    if os.geteuid() != 0:
        sys.exit("environments.py: needs root")
    daemon, ctl = (os.path.abspath(path) for path in sys.argv[1:3])
    wanted = re.compile(sys.argv[3] if len(sys.argv) == 4 else "")
    print("| " + " | ".join(COLUMNS) + " |\n|" + "---|" * len(COLUMNS), flush=True)
    good = True
    for name, make in ROWS:
        if not wanted.search(name):
            continue
        # Enough for the pool, so that each row shows its own condition alone.
        with huge_pages(32):
            cells, as_it_must_be = row(daemon, ctl, name, make)
        good = good and as_it_must_be
        print("| " + " | ".join(cells + ("",) * (len(COLUMNS) - len(cells))) + " |", flush=True)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
