#!/usr/bin/env python3
"""Clients that are killed in the middle of reads and stores, again and again, leave nothing in the
daemon: no byte of the pool, session, lease, buffer, descriptor or mapping.

Usage: client_death_test.py KVSTREAMD KVSTREAMCTL MIXED_LOAD [--deaths N] [--seed N]
       [--rss-slack-mib N]

Compares what the daemon says and what /proc says of it, idle, after the first deaths and after the
last. The keys are few, so that the store does not grow.
"""

import argparse
import json
import pathlib
import random
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from real_node import PATIENCE_S, Node, die_with_parent, process_numbers, wait  # noqa: E402

KEYS = 300
AT_ONCE = 3
WARM_UP = 9
# gRPC keeps as many threads as it had calls at once, and a few descriptors that they wait on.
SLACK = {"threads": 16}
NOTHING = ("sessions", "host_buffers", "host_buffer_bytes", "unmapping_bytes", "leases",
           "leased_chunks", "unhandled_events", "operations_running", "pool_used_bytes",
           "staged_bytes", "streams", "calls_waiting", "lookup_keys_waiting")


class Deaths:
    def __init__(self, args, folder):
        self.args = args
        self.chance = random.Random(args.seed)
        self.node = Node(args.kvstreamd, args.kvstreamctl, folder)
        self.node.start()

    def whole(self, what):
        """Stores or reads all keys, none of them wrong or missing."""
        done = subprocess.run([self.args.mixed_load, what, self.node.socket], text=True,
                              input=" ".join(map(str, range(1, KEYS + 1))), check=False,
                              stdout=subprocess.PIPE, timeout=PATIENCE_S)
        if done.returncode != 0 or done.stdout.split() != [str(KEYS), "0"]:
            raise AssertionError(f"{what}: {done.returncode} {done.stdout}")

    def kill(self, count):
        """So many clients, each after some rounds and at any moment of the next."""
        while count > 0:
            victims = [subprocess.Popen(
                [self.args.mixed_load, "load", self.node.socket,
                 str(self.chance.randrange(1 << 32)), "1", str(KEYS), str(1 << 40)], text=True,
                stdout=subprocess.PIPE, preexec_fn=die_with_parent)
                for _ in range(min(AT_ONCE, count))]
            for victim in victims:
                for _ in range(self.chance.randrange(1, 6)):
                    if not victim.stdout.readline().startswith("round "):
                        raise AssertionError(f"a client ended with {victim.wait()}")
                until = time.monotonic() + self.chance.uniform(0, 0.01)
                while time.monotonic() < until:
                    pass
                victim.kill()
                victim.communicate()
            count -= len(victims)

    def left(self):
        """What should be nothing with no client there, and is not."""
        metrics = self.node.metrics()
        held = {name: metrics[f"kvstreamd_{name}"] for name in NOTHING}
        return {name: value for name, value in held.items() if value}

    def settled(self):
        wait(lambda: not self.left(), "nothing of the clients is left")
        # gRPC closes connections, and ends threads, a moment after their clients are gone.
        numbers = [process_numbers(self.node.process.pid)]
        wait(lambda: numbers.append(process_numbers(self.node.process.pid))
             or len(numbers) > 20 and numbers[-1] == numbers[-20], "the process is quiet")
        return numbers[-1]


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kvstreamd")
    parser.add_argument("kvstreamctl")
    parser.add_argument("mixed_load")
    parser.add_argument("--deaths", type=int, default=30)
    parser.add_argument("--seed", type=int, default=20261130)
    parser.add_argument("--rss-slack-mib", type=int, default=48)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kvstream-deaths-") as folder:
        deaths = Deaths(args, folder)
        try:
            deaths.whole("store")
            deaths.kill(WARM_UP)
            first = deaths.settled()
            deaths.kill(args.deaths)
            last = deaths.settled()
            deaths.whole("read")
            files = {tier: (len(deaths.node.files(tier)), len(deaths.node.files(tier, ".*")))
                     for tier in ("nvme", "pfs")}
            if deaths.node.stop() != 0:
                raise AssertionError(f"the daemon ended with {deaths.node.process.returncode}")
        finally:
            deaths.node.end()
    print(json.dumps({"deaths": args.deaths, "first": first, "last": last, "files": files}))
    slack = {"rss_mib": args.rss_slack_mib, **SLACK}
    grown = {name: (first[name], last[name]) for name in first
             if last[name] > first[name] + slack.get(name, 0)}
    if grown:
        sys.exit(f"client_death_test: grown (first, last): {grown}")
    if files != {"nvme": (KEYS, 0), "pfs": (KEYS, 0)}:
        sys.exit(f"client_death_test: files are not those of the keys: {files}")


if __name__ == "__main__":
    main()
