"""What tests of the programs share: a kvstreamd of the test's own with two tiers, and a file system
in user space under one of them that can hang, die and come back.

Only processes that were started here are signalled, by their ids.
"""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import time
import urllib.request

PATIENCE_S = 60
# A status answers at once while the daemon lives; as often is often enough.
POLL_S = 0.01
# In the metrics, with no client there.
OF_CLIENTS = ("sessions", "host_buffers", "host_buffer_bytes", "unmapping_bytes", "leases",
              "leased_chunks", "unhandled_events", "operations_running", "pool_used_bytes",
              "staged_bytes", "streams", "calls_waiting", "lookup_keys_waiting")


# Before a child's command: a test that is killed leaves nothing behind. A program instead of a
# function between fork and exec, which may deadlock where the parent has threads, as gRPC's. The
# kernel goes by the thread that started the child: start one from a thread that outlives it.
DIE_WITH_PARENT = ("setpriv", "--pdeathsig", "KILL")


def wait(condition, what, patience_s=PATIENCE_S):
    """Until the condition holds; its value."""
    deadline = time.monotonic() + patience_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"waited in vain until {what}")
        time.sleep(POLL_S)


def freeze(process):
    """Stops a child; returns once each of its threads stands still."""
    process.send_signal(signal.SIGSTOP)
    # The signal is sent, not yet taken.
    wait(lambda: _stands_still(process.pid), "the process is stopped")


def _stands_still(pid):
    try:
        return all(re.search(r"\) [Tt] ", (thread / "stat").read_text(encoding="utf-8"))
                   for thread in pathlib.Path(f"/proc/{pid}/task").iterdir())
    except FileNotFoundError:
        return False  # A thread has ended meanwhile.


class Node:
    """A daemon on the folders `nvme` and `pfs` of a folder. `tier` is added to both tiers of its
    config, `pfs` to the second, `config` to the whole. Without a DRAM cache, so that what is read
    is read from a tier."""

    def __init__(self, daemon, ctl, folder, tier="", pfs="", config="pool { mib: 64 }",
                 cache="NONE"):
        self.program, self.tool = daemon, ctl
        self.folder = pathlib.Path(folder)
        self.socket = str(self.folder / "sock")
        self.log = self.folder / "log"
        self.config = self.folder / "kvstream.textproto"
        self.process = None
        for name in ("nvme", "pfs"):
            (self.folder / name).mkdir(exist_ok=True)
        self.config.write_text(
            f'sockets {{ grpc: "{self.socket}" }}\n'
            f'tiers {{ name: "nvme" root: "{self.folder}/nvme" {tier} }}\n'
            f'tiers {{ name: "pfs" root: "{self.folder}/pfs" {tier} {pfs} }}\n'
            f'limits {{ segment_kib: 1024 segment_kib_max: 4096 }}\n{config}\n'
            f'cache {{ policy: {cache} }}\n'
            'metrics { listen: "127.0.0.1:0" } logging { level: "info" }\n', encoding="utf-8")

    def start(self, prefix=(), patience_s=PATIENCE_S):
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen([*DIE_WITH_PARENT, *prefix, self.program, "--config",
                                             str(self.config)], stderr=log)
        wait(lambda: self.status() or self.process.poll() is not None, "the daemon is ready",
             patience_s)
        if self.process.poll() is not None:
            raise AssertionError(f"the daemon ended with {self.process.returncode}:\n"
                                 + self.log.read_text(encoding="utf-8")[-2000:])

    def ctl(self, *arguments):
        return subprocess.run([self.tool, "--socket", self.socket, *arguments],
                              capture_output=True, text=True, check=False, timeout=5 * PATIENCE_S)

    def replay(self, *arguments):
        """A replay that runs; its report is JSON on stdout."""
        return subprocess.Popen([*DIE_WITH_PARENT, self.tool, "--socket", self.socket, "--json",
                                 "replay", *arguments], stdout=subprocess.PIPE, text=True)

    def status(self):
        result = self.ctl("status", "--json")
        return json.loads(result.stdout) if result.returncode == 0 else None

    def metrics(self):
        """{'name{labels}': value} of what Prometheus would scrape."""
        with urllib.request.urlopen(f"http://{self.status()['metrics_address']}/metrics",
                                    timeout=PATIENCE_S) as answer:
            lines = answer.read().decode().splitlines()
        rows = [line.rsplit(" ", 1) for line in lines if line and line[0] != "#"]
        return {name: float(value) for name, value in rows}

    def warnings(self, words):
        """The log's warnings with these words."""
        return [line for line in self.log.read_text(encoding="utf-8").splitlines()
                if " warning " in line and words in line]

    def left(self):
        """What must be nothing once no client is there, and is not."""
        metrics = self.metrics()
        held = {name: metrics[f"kvstreamd_{name}"] for name in OF_CLIENTS}
        return {name: value for name, value in held.items() if value}

    def settled(self):
        """Waits until nothing of clients is left; what the process holds then."""
        wait(lambda: not self.left(), "nothing of the clients is left", 2 * PATIENCE_S)
        # gRPC closes connections, and ends threads, a moment after their clients are gone.
        numbers = [process_numbers(self.process.pid)]
        wait(lambda: numbers.append(process_numbers(self.process.pid))
             or len(numbers) > 20 and numbers[-1] == numbers[-20], "the process is quiet")
        return numbers[-1]

    def files(self, tier, pattern="*.kv"):
        return sorted((self.folder / tier).glob(f"v1/*/*/*/{pattern}"))

    def running(self):
        return self.process is not None and self.process.poll() is None

    def kill(self):
        self.process.kill()
        return self.process.wait(timeout=PATIENCE_S)

    def terminate(self):
        self.process.send_signal(signal.SIGTERM)

    def stop(self):
        self.terminate()
        return self.process.wait(timeout=PATIENCE_S)

    def end(self):
        """For the clean-up."""
        if self.running():
            self.kill()


def grown(first, last, rss_slack_mib):
    """What a process holds more of; gRPC keeps as many threads as it had calls at once."""
    slack = {"rss_mib": rss_slack_mib, "threads": 16}
    return {name: (first[name], last[name]) for name in first
            if last[name] > first[name] + slack.get(name, 0)}


class MixedLoad:
    """The program of tests/e2e/mixed_load.cc, against one daemon."""

    WRONG_BYTE = 3

    def __init__(self, program, node):
        self.program, self.node = program, node

    def begin(self, *arguments, **options):
        return subprocess.Popen([*DIE_WITH_PARENT, self.program, *map(str, arguments)], text=True,
                                **{"stdout": subprocess.PIPE, **options})

    def load(self, seed, keys, rounds=1 << 40, **options):
        """Of keys 1 .. `keys`."""
        return self.begin("load", self.node.socket, seed, 1, keys, rounds, **options)

    @staticmethod
    def journal(line):
        """Keys that a line of a load says to be durable."""
        words = line.split()
        return set(map(int, words[2:])) if words and words[0] == "round" else set()

    def ask(self, what, keys):
        """(right, missing) of a store or a read of these keys."""
        asked = self.begin(what, self.node.socket, stdin=subprocess.PIPE)
        out, _ = asked.communicate(" ".join(map(str, keys)), timeout=5 * PATIENCE_S)
        if asked.returncode != 0:
            raise AssertionError(f"{what} ended with {asked.returncode}: {out}")
        return tuple(map(int, out.split()[-2:]))


def process_numbers(pid):
    """What a process holds; descriptors of chunks' files are a cache's."""
    process = pathlib.Path(f"/proc/{pid}")
    fields = dict(line.split(":", 1) for line in
                  (process / "status").read_text(encoding="utf-8").splitlines())
    links = []
    for entry in (process / "fd").iterdir():
        try:
            links.append(os.readlink(entry))
        except FileNotFoundError:
            pass  # Closed meanwhile.
    # Without the kernel's workers for io_uring, which end some seconds after their work.
    threads = 0
    for thread in (process / "task").iterdir():
        try:
            threads += not (thread / "comm").read_text(encoding="utf-8").startswith("iou-")
        except (FileNotFoundError, ProcessLookupError):
            pass  # Ended meanwhile.
    maps = (process / "maps").read_text(encoding="utf-8").splitlines()
    return {"rss_mib": int(fields["VmRSS"].split()[0]) // 1024,
            "threads": threads,
            "descriptors": len([link for link in links if "/v1/" not in link]),
            "memory_maps": len([line for line in maps if "memfd:" in line])}


class UserFileSystem:
    """bindfs over `below` at `root`, its server a child of this process: stopped it hangs, killed
    every call fails with ENOTCONN."""

    def __init__(self, below, root):
        self.below, self.root = pathlib.Path(below), pathlib.Path(root)
        self.server = None
        for folder in (self.below, self.root):
            folder.mkdir(exist_ok=True)

    @staticmethod
    def missing():
        """Why this machine cannot have one; empty when it can."""
        if os.geteuid() != 0:
            return "needs root"
        if shutil.which("bindfs") is None:
            return "needs bindfs"
        return "" if os.path.exists("/dev/fuse") else "needs /dev/fuse"

    def mount(self, *options):
        self.server = subprocess.Popen([*DIE_WITH_PARENT, "bindfs", "-f", *options,
                                        str(self.below), str(self.root)])
        wait(lambda: self._mounts() or self.server.poll() is not None, "bindfs has mounted")
        if self.server.poll() is not None:
            raise AssertionError(f"bindfs ended with {self.server.returncode}")

    def _mounts(self):
        """Numbers of the connections that are mounted at the root, without touching it."""
        rows = [line.split() for line in
                pathlib.Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()]
        return [row[2].split(":")[1] for row in rows if row[4] == str(self.root)]

    def hang(self):
        freeze(self.server)

    def resume(self):
        self.server.send_signal(signal.SIGCONT)

    def kill(self):
        """The end of the server is the end of the connection: nothing stays hung."""
        for number in self._mounts():
            abort = pathlib.Path(f"/sys/fs/fuse/connections/{number}/abort")
            if abort.exists():
                abort.write_text("1", encoding="ascii")
        self.server.kill()
        self.server.wait(timeout=PATIENCE_S)

    def detach(self):
        """Leaves the bare mount point; who has it open keeps it."""
        subprocess.run(["umount", "--lazy", str(self.root)], check=True, timeout=PATIENCE_S)

    def end(self):
        """For the clean-up."""
        if self.server is not None and self.server.poll() is None:
            self.kill()
        while self._mounts():
            self.detach()
