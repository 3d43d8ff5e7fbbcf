#!/usr/bin/env python3
"""Two nodes on a real distributed file system: GlusterFS, with a client for each.

Usage: gluster_test.py KVSTREAMD KVSTREAMCTL MIXED_LOAD [TEST...]. Needs root and Debian's
glusterfs-server; skips aloud without. tests/run.sh --pfs runs it.
"""

import json
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from gluster import Gluster  # noqa: E402
from real_node import PATIENCE_S, MixedLoad, Node, wait  # noqa: E402

KVSTREAMD, KVSTREAMCTL, MIXED_LOAD = sys.argv[1:4]
SKIPPED = 77
KEYS = list(range(1, 201))


class GlusterTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="kvstream-gluster-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.gluster = Gluster(self.folder / "gluster")
        self.addCleanup(self.gluster.end)
        self.gluster.start()
        self.nodes = [self.start(name) for name in ("first", "second")]
        self.loads = [MixedLoad(MIXED_LOAD, node) for node in self.nodes]

    def start(self, name):
        folder = self.folder / name
        folder.mkdir()
        self.gluster.mount(folder / "pfs")
        node = Node(KVSTREAMD, KVSTREAMCTL, folder,
                    pfs=f'shared: true required: false mount_point: "{folder}/pfs"')
        self.addCleanup(node.end)
        # Cleaned up before the daemon is waited for: what hangs in it ends.
        self.addCleanup(self.gluster.end)
        node.start()
        return node

    def tier(self, node):
        return node.status()["tiers"][1]

    def hints(self, node):
        return int(self.tier(node).get("hints", 0))

    def replay(self, node, requests, seed):
        replay = node.replay("--generate", str(requests), "--chunk-bytes", "256KiB",
                             "--segment-bytes", "64KiB", "--batch", "4", "--seed", str(seed))
        self.addCleanup(replay.stdout.close)
        self.addCleanup(replay.kill)
        return replay

    def report_of(self, replay):
        report = json.loads(replay.communicate(timeout=5 * PATIENCE_S)[0])
        self.assertEqual(replay.returncode, 0)
        self.assertEqual(report["wrong_bytes"], 0, report["first_wrong"])
        return report

    def begin_load(self, load, seed):
        process = load.load(seed, len(KEYS))
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.kill)
        return process

    def rounds(self, process, count):
        for _ in range(count):
            line = process.stdout.readline()
            self.assertTrue(line.startswith("round"), f"the load has ended: {line}")

    def test_the_same_keys_at_once_are_one_copy_and_a_hit_on_both(self):
        reports = [self.report_of(replay) for replay in
                   [self.replay(node, 60, seed=1) for node in self.nodes]]
        for report in reports:
            self.assertEqual(report["chunks_dropped"], 0)
            self.assertGreater(report["hits"], 0)
        for node in self.nodes:
            wait(lambda n=node: n.metrics()["kvstreamd_staged_bytes"] == 0, "all is written")
        written, existed = (sum(int(self.tier(node).get(name, 0)) for node in self.nodes)
                            for name in ("chunks_written", "chunks_existed"))
        files = len(self.gluster.files("v1/*/*/*/*.kv"))
        self.assertEqual(written, files, "each chunk was written by one of them")
        self.assertGreater(existed + sum(self.hints(node) for node in self.nodes), 0)

    def test_what_one_node_stores_is_a_hit_on_the_other_within_five_seconds(self):
        # Past the first seconds, in which it is settled who leads.
        self.loads[0].ask("store", [1000])
        wait(lambda: self.hints(self.nodes[1]) >= 1, "they hear of each other")
        took = []
        for at in range(0, len(KEYS), 40):
            keys = KEYS[at:at + 40]
            self.assertEqual(self.loads[0].ask("store", keys), (40, 0))
            published = time.monotonic()
            wait(lambda known=at + 41: self.hints(self.nodes[1]) >= known, "it has heard of them")
            took.append(time.monotonic() - published)
            self.assertEqual(self.loads[1].ask("read", keys), (40, 0))
        print("a hit on the other node after", ", ".join(f"{t:.1f}" for t in took), "s")
        self.assertEqual(len(self.nodes[1].files("nvme")), 0, "it came from the other's files")
        # The first one gone, a hit on a third node that comes later.
        self.assertEqual(self.nodes[0].stop(), 0)
        third = self.start("third")
        wait(lambda: self.hints(third) > len(KEYS), "it has heard of all")
        self.assertEqual(MixedLoad(MIXED_LOAD, third).ask("read", KEYS), (len(KEYS), 0))

    def test_a_brick_that_is_killed_under_load_costs_no_wrong_byte(self):
        self.assertEqual(self.loads[0].ask("store", KEYS), (len(KEYS), 0))
        running = [self.begin_load(load, seed) for seed, load in enumerate(self.loads)]
        for process in running:
            self.rounds(process, 10)
        self.gluster.kill_brick("a")
        for process in running:
            self.rounds(process, 30)
        # Of what the other node has written, half is out of reach; of its own, all is on NVMe.
        self.assertEqual(self.loads[0].ask("read", KEYS), (len(KEYS), 0))
        right, missing = self.loads[1].ask("read", KEYS)
        self.assertEqual(right + missing, len(KEYS))
        self.gluster.restart_bricks()
        for process in running:
            self.rounds(process, 10)
            process.kill()
            process.wait(timeout=PATIENCE_S)
        for node in self.nodes:
            wait(lambda n=node: self.tier(n)["state"] in ("TIER_STATE_OK", "TIER_STATE_DEGRADED"),
                 "the tier is back", 3 * PATIENCE_S)
        # And is written to again.
        fresh = list(range(5001, 5021))
        self.assertEqual(self.loads[1].ask("store", fresh), (20, 0))
        self.assertEqual(self.loads[1].ask("read", fresh), (20, 0))

    def test_a_client_that_dies_and_is_mounted_anew_is_taken_back(self):
        self.assertEqual(self.loads[1].ask("store", KEYS), (len(KEYS), 0))
        wait(lambda: self.hints(self.nodes[0]) >= len(KEYS), "the first has heard of them")
        load = self.begin_load(self.loads[0], seed=7)
        self.rounds(load, 10)
        root = self.nodes[0].folder / "pfs"
        self.gluster.kill_mount(root)
        self.rounds(load, 10)
        wait(lambda: self.tier(self.nodes[0])["state"] == "TIER_STATE_OUT", "the tier is out",
             3 * PATIENCE_S)
        self.gluster.mount(root)
        wait(lambda: int(self.tier(self.nodes[0]).get("remounts", 0)) == 1, "it is taken back",
             3 * PATIENCE_S)
        self.rounds(load, 10)
        load.kill()
        load.wait(timeout=PATIENCE_S)
        wait(lambda: self.hints(self.nodes[0]) > 0, "it hears of the other's files again")
        right, missing = self.loads[0].ask("read", KEYS)
        self.assertEqual(right + missing, len(KEYS))
        self.assertGreater(right, 0)


if __name__ == "__main__":
    if cause := Gluster.missing():
        print(f"SKIPPED: {cause}")
        sys.exit(SKIPPED)
    unittest.main(argv=[sys.argv[0], *sys.argv[4:]], verbosity=2)
