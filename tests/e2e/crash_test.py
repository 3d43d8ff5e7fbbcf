#!/usr/bin/env python3
"""kvstreamd killed at random moments of a mixed load, and at chosen system calls of a publication.

Usage: crash_test.py KVSTREAMD KVSTREAMCTL MIXED_LOAD [--rounds N] [--seed N] [--engine NAME]

The client keeps a journal of the keys whose stores were said to be durable. After each restart
every file that lies on a tier is found, every key of the journal reads whole, and no half-written
file has a chunk's name. The chosen moments (in a write, before and after the link) need strace and
skip aloud without. Prints what it has seen as JSON; temporaries that dead daemons left are counted:
they are too young to be removed.
"""

import argparse
import json
import os
import pathlib
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from real_node import DIE_WITH_PARENT, PATIENCE_S, MixedLoad, Node, wait  # noqa: E402

KEYS = 1500
LOADS = 2
BLOCK = 4096
# The calls of a publication; the probe of a tier makes them too.
POINTS = {"in a write": "pwrite64", "before the link": "linkat", "after the link": "unlinkat"}


def whole(path):
    """A chunk's file has its full length under its name from the first moment."""
    with open(path, "rb") as file:
        header = file.read(BLOCK)
        size = os.fstat(file.fileno()).st_size
    if len(header) < BLOCK or header[:8] != b"KVSTREAM":
        return False
    payload = struct.unpack_from("<Q", header, 24)[0]
    return size == BLOCK + -(-payload // BLOCK) * BLOCK


class Crashes:
    def __init__(self, args, folder):
        self.args = args
        self.chance = random.Random(args.seed)
        self.node = Node(args.kvstreamd, args.kvstreamctl, folder,
                         tier=f"io_engine: {args.engine} io_threads: 2")
        self.mixed = MixedLoad(args.mixed_load, self.node)
        self.durable = set()
        self.seen = {"rounds": 0, "durable": 0, "found": 0, "read": 0, "killed_by_strace": {}}

    def fail(self, what):
        raise AssertionError(f"round {self.seen['rounds']}: {what}")

    def load(self, until):
        """Loads until the daemon is dead; returns the keys that were durable before. `until`
        kills it after so many rounds; None where something else does."""
        loads = [self.mixed.load(self.chance.randrange(1 << 32), KEYS) for _ in range(LOADS)]
        durable, rounds = set(), 0
        for line in loads[0].stdout:
            durable |= self.mixed.journal(line)
            rounds += 1
            if rounds == until:
                self.node.kill()
        self.node.process.wait(timeout=PATIENCE_S)
        for load in loads:
            out, _ = load.communicate(timeout=PATIENCE_S)
            if load is not loads[0]:
                durable = durable.union(*map(self.mixed.journal, out.splitlines()))
            # A session that is lost at any moment, never a wrong byte.
            if load.returncode == self.mixed.WRONG_BYTE:
                self.fail(f"a wrong byte: {out}")
        return durable

    def check(self):
        """The daemon was restarted: what it must still know."""
        wait(lambda: not any(tier.get("restoring") for tier in self.node.status()["tiers"]),
             "all files are found")
        keys = sorted(self.chance.sample(sorted(self.durable), min(len(self.durable), 64)))
        if self.mixed.ask("read", keys) != (len(keys), 0):
            self.fail("not all that was said to be durable reads")
        metrics = self.node.metrics()
        if sum(value for name, value in metrics.items() if "corrupt_reads" in name):
            self.fail("a file was found damaged")
        for tier in ("nvme", "pfs"):
            files = self.node.files(tier)
            found = metrics[f'kvstreamd_tier_chunk_files{{tier="{tier}"}}']
            if found != len(files):
                self.fail(f"{found} files of {len(files)} of tier {tier} were found")
            for path in files:
                if not whole(path):
                    self.fail(f"{path} is not whole")
            self.seen["found"] += len(files)
        self.seen["read"] += len(keys)

    def round(self):
        self.node.start()
        if self.durable:
            self.check()
        self.durable |= self.load(self.chance.randrange(1, 25))
        self.seen["rounds"] += 1

    def round_at(self, point):
        """Killed at the n-th such call of one of its threads, in the probe of a tier or later."""
        call = POINTS[point]
        nth = self.chance.randrange(1, 30)
        with open(self.node.log, "ab") as log:
            self.node.process = subprocess.Popen(
                [*DIE_WITH_PARENT, "strace", "-f", "-qq", "-o", os.devnull, "-e", f"trace={call}",
                 "-e", f"inject={call}:signal=SIGKILL:when={nth}", self.node.program, "--config",
                 str(self.node.config)], stderr=log)
        wait(lambda: self.node.status() or not self.node.running(), "the daemon is ready")
        if self.node.running():
            self.durable |= self.load(None)
        code = self.node.process.wait(timeout=PATIENCE_S)
        if code not in (-signal.SIGKILL, 128 + signal.SIGKILL):
            self.fail(f"strace did not kill it {point}: {code}")
        killed = self.seen["killed_by_strace"]
        killed[point] = killed.get(point, 0) + 1
        self.node.start()
        if self.durable:
            self.check()
        self.node.kill()

    def report(self):
        self.seen["durable"] = len(self.durable)
        for tier in ("nvme", "pfs"):
            self.seen[f"files_{tier}"] = len(self.node.files(tier))
            self.seen[f"temporaries_{tier}"] = len(self.node.files(tier, ".tmp-*"))
        return self.seen


def can_trace():
    """Why not; empty when it can."""
    if shutil.which("strace") is None:
        return "needs strace"
    tried = subprocess.run(["strace", "-f", "-qq", "-o", os.devnull, "-e", "inject=linkat:retval=0",
                            "true"], capture_output=True, text=True, check=False)
    return tried.stderr.strip() if tried.returncode else ""


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kvstreamd")
    parser.add_argument("kvstreamctl")
    parser.add_argument("mixed_load")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=20261130)
    parser.add_argument("--engine", default="AUTO", choices=("AUTO", "IO_URING", "THREADS"))
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kvstream-crash-") as folder:
        crashes = Crashes(args, folder)
        try:
            for _ in range(args.rounds):
                crashes.round()
            # With io_uring the calls go through the ring.
            reason = can_trace() if args.engine == "THREADS" else "threads only"
            if reason:
                print(f"SKIPPED: kills at chosen calls: {reason}")
            for number in range(0 if reason else max(3, args.rounds // 4)):
                crashes.round_at(list(POINTS)[number % len(POINTS)])
        finally:
            crashes.node.end()
            print(json.dumps(crashes.report()))


if __name__ == "__main__":
    main()
