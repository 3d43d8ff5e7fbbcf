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
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from real_node import MixedLoad, Node, grown  # noqa: E402

KEYS = 300
AT_ONCE = 3
WARM_UP = 9


class Deaths:
    def __init__(self, args, folder):
        self.args = args
        self.chance = random.Random(args.seed)
        self.node = Node(args.kvstreamd, args.kvstreamctl, folder)
        self.load = MixedLoad(args.mixed_load, self.node)
        self.node.start()

    def whole(self, what):
        """Stores or reads all keys, none of them wrong or missing."""
        done = self.load.ask(what, range(1, KEYS + 1))
        if done != (KEYS, 0):
            raise AssertionError(f"{what}: {done}")

    def kill(self, count):
        """So many clients, each after some rounds and at any moment of the next."""
        while count > 0:
            victims = [self.load.load(self.chance.randrange(1 << 32), KEYS)
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
            first = deaths.node.settled()
            deaths.kill(args.deaths)
            last = deaths.node.settled()
            deaths.whole("read")
            files = {tier: (len(deaths.node.files(tier)), len(deaths.node.files(tier, ".*")))
                     for tier in ("nvme", "pfs")}
            if deaths.node.stop() != 0:
                raise AssertionError(f"the daemon ended with {deaths.node.process.returncode}")
        finally:
            deaths.node.end()
    print(json.dumps({"deaths": args.deaths, "first": first, "last": last, "files": files}))
    more = grown(first, last, args.rss_slack_mib)
    if more:
        sys.exit(f"client_death_test: grown (first, last): {more}")
    if files != {"nvme": (KEYS, 0), "pfs": (KEYS, 0)}:
        sys.exit(f"client_death_test: files are not those of the keys: {files}")


if __name__ == "__main__":
    main()
