#!/usr/bin/env python3
"""Works a daemon hard while everything goes wrong around it, and expects no wrong byte, and at the
end what was there at the start.

Usage: fault_soak.py KVSTREAMD KVSTREAMCTL MIXED_LOAD [--minutes M | --seconds N] [--seed N]
       [--rss-slack-mib N]

Faults: the second tier's file system hangs, dies and is mounted anew (and the daemon restarted,
which needs that), bytes of files flip, files vanish, tiers go out and in by an operator, clients
die. In the first quarter of the time each kind once; the daemon is not restarted after that, so
that what leaks adds up. Without root or bindfs the second tier is a plain folder, said aloud.
"""

import argparse
import collections
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from real_node import MixedLoad, Node, UserFileSystem, grown, wait  # noqa: E402

KEYS = 1200
LOADS = 3
# The reads that meet what is left of the damage, each of which mends it.
PASSES = 12


class Soak:
    def __init__(self, args, folder):
        self.chance = random.Random(args.seed)
        self.seconds = args.minutes * 60 if args.minutes else args.seconds
        self.node = Node(args.kvstreamd, args.kvstreamctl, folder, tier="open_files: 64",
                         pfs="required: false window_mib: 8 quarantine_mib: 1",
                         config="pool { mib: 64 } drain_ms: 5000")
        self.mixed = MixedLoad(args.mixed_load, self.node)
        self.file_system = UserFileSystem(self.node.folder / "below", self.node.folder / "pfs")
        self.reason = UserFileSystem.missing()
        if self.reason:
            print(f"SKIPPED: a file system that hangs and dies: {self.reason}")
        self.loads = []
        self.restarts = False  # Now: loads may lose their session.
        self.seen = collections.Counter()

    def begin(self):
        if not self.reason:
            self.file_system.mount()
        self.node.start()

    def tend(self):
        """Replaces loads that have ended; none may have met a wrong byte, nor lost its session."""
        for load in list(self.loads):
            if load.poll() is None:
                continue
            self.loads.remove(load)
            if load.returncode == self.mixed.WRONG_BYTE or load.returncode and not self.restarts:
                raise AssertionError(f"a load ended with {load.returncode}")
            self.seen["loads"] += 1
        while len(self.loads) < LOADS and not self.restarts:
            load = self.mixed.load(self.chance.randrange(1 << 32), KEYS,
                                   self.chance.randrange(20, 400), stdout=subprocess.DEVNULL)
            self.loads.append(load)

    def work(self, seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.tend()
            time.sleep(0.02)

    def files(self, count):
        """Of both tiers, beneath what serves them."""
        roots = (self.node.folder / "nvme", self.tier_folder())
        files = sorted(path for root in roots for path in root.glob("v1/*/*/*/*.kv"))
        return self.chance.sample(files, min(count, len(files)))

    def tier_folder(self):
        return self.node.folder / "pfs" if self.reason else self.file_system.below

    def hang(self):
        self.file_system.hang()
        # Now and then for so long that writes are noticed, too.
        self.work(35 if self.seconds > 300 and self.chance.random() < 0.1
                  else self.chance.uniform(0.2, 4))
        self.file_system.resume()

    def die(self):
        self.file_system.kill()
        self.work(self.chance.uniform(0.5, 3))
        self.restarts = True
        if self.node.stop() != 0:
            raise AssertionError(f"the daemon ended with {self.node.process.returncode}")
        for load in self.loads:
            load.wait()
        self.tend()
        self.restarts = False
        self.file_system.detach()
        self.file_system.mount()
        self.node.start()

    def damage(self):
        for path in self.files(self.chance.randrange(1, 8)):
            try:
                with open(path, "r+b") as file:
                    at = self.chance.randrange(os.fstat(file.fileno()).st_size)
                    file.seek(at)
                    byte = file.read(1)[0] ^ (1 << self.chance.randrange(8))
                    file.seek(at)
                    file.write(bytes([byte]))
            except FileNotFoundError:
                continue  # Set aside meanwhile.
            self.seen["flipped"] += 1

    def remove(self):
        for path in self.files(self.chance.randrange(1, 8)):
            path.unlink(missing_ok=True)
            self.seen["removed"] += 1

    def operator(self):
        tier = self.chance.choice(("nvme", "pfs"))
        for state in ("out", "in"):
            done = self.node.ctl("tier", tier, state)
            if done.returncode != 0:
                raise AssertionError(f"tier {tier} {state}: {done.stderr}")
            self.work(self.chance.uniform(0.1, 1.5))

    def client(self):
        load = self.loads.pop(self.chance.randrange(len(self.loads)))
        load.kill()
        load.wait()

    def do(self, kind):
        self.work(self.chance.uniform(0.1, 1))
        getattr(self, kind)()
        self.seen[kind] += 1

    def kinds(self):
        return ["damage", "remove", "operator", "client"] + ([] if self.reason else ["hang"])

    def run(self):
        """What the process held after the first faults, and at the end."""
        began = time.monotonic()
        self.tend()
        first_kinds = self.kinds() + ([] if self.reason else ["die"])
        self.chance.shuffle(first_kinds)
        for kind in first_kinds:
            self.do(kind)
        while time.monotonic() < began + self.seconds / 4:
            self.do(self.chance.choice(first_kinds))
        first = self.rest()
        while time.monotonic() < began + self.seconds:
            self.do(self.chance.choice(self.kinds()))
        return first, self.rest()

    def rest(self):
        """Lets the loads end and the daemon settle; mends what was damaged, and expects all keys to
        be right then."""
        self.restarts, loads = True, self.loads
        self.loads = []
        for load in loads:
            load.terminate()
            load.wait()
        self.restarts = False
        for tier in ("nvme", "pfs"):
            self.node.ctl("tier", tier, "in")
        wait(lambda: all(tier["state"] in ("TIER_STATE_OK", "TIER_STATE_DEGRADED")
                         for tier in self.node.status()["tiers"]), "both tiers are back", 150)
        everything = range(1, KEYS + 1)
        for _ in range(PASSES):
            done = (self.mixed.ask("store", everything), self.mixed.ask("read", everything))
            if done == ((KEYS, 0), (KEYS, 0)):
                break
            self.seen["passes_again"] += 1
        else:
            raise AssertionError(f"keys are missing for good: {done}")
        numbers = self.node.settled()
        self.check_files()
        return numbers

    def check_files(self):
        """The index is what was stored, on some tier each, and nothing else lies about."""
        folders = {"nvme": self.node.folder / "nvme", "pfs": self.tier_folder()}
        files = {tier: [path.name for path in (folder / "v1").rglob("*")
                        if path.is_file() and path.suffix != ".kvindex"]
                 for tier, folder in folders.items()}
        chunks = {tier: {name for name in names if name.endswith(".kv")}
                  for tier, names in files.items()}
        if len(chunks["nvme"] | chunks["pfs"]) != KEYS:
            raise AssertionError(f"{len(chunks['nvme'] | chunks['pfs'])} names for {KEYS} keys")
        known = int(self.node.status()["index"]["chunks"])
        if known != KEYS:
            raise AssertionError(f"{known} chunks in the index for {KEYS} keys")
        self.seen["left_nvme"] = len(files["nvme"]) - len(chunks["nvme"])
        self.seen["left_pfs"] = len(files["pfs"]) - len(chunks["pfs"])
        # A file system that dies keeps the temporaries of its last moment: nobody removes them.
        if self.seen["left_nvme"] or self.seen["left_pfs"] and not self.seen["die"]:
            raise AssertionError(f"files that are no chunks: {dict(self.seen)}")

    def end(self):
        for load in self.loads:
            load.kill()
            load.wait()
        self.file_system.end()
        self.node.end()


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kvstreamd")
    parser.add_argument("kvstreamctl")
    parser.add_argument("mixed_load")
    parser.add_argument("--minutes", type=float, default=0)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--seed", type=int, default=20261130)
    parser.add_argument("--rss-slack-mib", type=int, default=48)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kvstream-fault-soak-") as folder:
        soak = Soak(args, folder)
        try:
            soak.begin()
            first, last = soak.run()
            metrics = soak.node.metrics()
            if soak.node.stop() != 0:
                raise AssertionError(f"the daemon ended with {soak.node.process.returncode}")
        except AssertionError:
            print(soak.node.log.read_text(encoding="utf-8")[-4000:], file=sys.stderr)
            raise
        finally:
            print(json.dumps({"seed": args.seed, "seconds": soak.seconds, **soak.seen}))
            soak.end()
    print(json.dumps({"first": first, "last": last, **{
        name: value for name, value in metrics.items() if value and any(word in name for word in (
            "corrupt", "missing_files", "outages", "set_aside", "failed_", "lost", "dropped"))}}))
    more = grown(first, last, args.rss_slack_mib)
    if more:
        sys.exit(f"fault_soak: grown (first, last): {more}")


if __name__ == "__main__":
    main()
