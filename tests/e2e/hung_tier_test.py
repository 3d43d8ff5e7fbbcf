#!/usr/bin/env python3
"""A tier on a file system in user space that stops answering, dies, or is unmounted, under load.

Usage: hung_tier_test.py KVSTREAMD KVSTREAMCTL IO_URING|THREADS [TEST...]. Needs root, bindfs and
/dev/fuse; skips aloud without.
"""

import json
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from real_node import PATIENCE_S, Node, UserFileSystem, wait  # noqa: E402

KVSTREAMD, KVSTREAMCTL, ENGINE = sys.argv[1:4]
DRAIN_S = 3
# What a stop takes beyond its drain time, at most: sessions, streams, two tiers' lanes.
STOP_S = 15
# What a start may spend on a tier that does not answer: its stat, its lock, its root.
SLOW_START_S = 45
# Writes hang after 30 s of silence; a failure is remembered for 60.
NOTICE_S = 60
FORGET_S = 120


class HungTierTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="kvstream-hung-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.file_system = UserFileSystem(self.folder / "below", self.folder / "pfs")
        self.addCleanup(self.file_system.end)

    def start(self, *options, pfs=""):
        self.file_system.mount(*options)
        # A quarantine that a few lost reads fill, and a pool that hung writes cannot.
        self.node = Node(
            KVSTREAMD, KVSTREAMCTL, self.folder, tier=f"io_engine: {ENGINE}",
            pfs=f"required: false window_mib: 4 quarantine_mib: 1 write_window_mib: 4 {pfs}",
            config=f"pool {{ mib: 64 }} drain_ms: {DRAIN_S * 1000}")
        self.addCleanup(self.node.end)
        # Cleaned up before the daemon is waited for: what hangs in it ends.
        self.addCleanup(self.file_system.end)
        self.node.start()

    def replay(self, requests, seed=1):
        replay = self.node.replay("--generate", str(requests), "--chunk-bytes", "64KiB",
                                  "--segment-bytes", "16KiB", "--batch", "4", "--seed", str(seed))
        self.addCleanup(replay.stdout.close)
        self.addCleanup(replay.kill)
        return replay

    def after_lookups(self, count):
        wait(lambda: int(self.node.status()["operations"]["lookups"]) >= count, "the replay works")

    def ends_whole(self, replay):
        """Nothing wrong, and all served that a cache without bounds would have."""
        report = json.loads(replay.communicate(timeout=5 * PATIENCE_S)[0])
        self.assertEqual(replay.returncode, 0)
        self.assertEqual(report["wrong_bytes"], 0, report["first_wrong"])
        self.assertEqual(report["chunks_dropped"], 0)
        self.assertEqual(report["restarts"], 0)
        self.assertEqual(report["hits"], report["possible_hits"])
        self.assertGreater(report["hits"], 0)
        return report

    def tier(self):
        """The second one: its state and what the status says of it."""
        status = self.node.status()
        return (status["tiers"][1]["state"],
                [line for line in status["conditions"] if line.startswith("tier pfs ")])

    def wait_for(self, words):
        wait(lambda: any(words in line for line in self.tier()[1]), f"the status says: {words}",
             NOTICE_S)

    def metric(self, name):
        return self.node.metrics()[f'kvstreamd_tier_{name}{{tier="pfs"}}']

    def test_a_file_system_that_hangs_costs_its_tier_alone_until_it_comes_back(self):
        self.start()
        replay = self.replay(400)
        self.after_lookups(100)
        self.file_system.hang()
        self.ends_whole(replay)
        # Its reads are out too where they fill the quarantine, which a few lost ones do not.
        self.wait_for("takes no writes: they do not end")
        self.assertIn(self.tier()[0], ("TIER_STATE_OUT", "TIER_STATE_DEGRADED"))
        self.assertTrue(self.node.status()["ready"])
        for name in ("writes_out", "writes_hang"):
            self.assertEqual(self.metric(name), 1, name)
        self.assertEqual(len(self.node.warnings("writes do not end takes no more of them")), 1)
        # All that came while it hung is on the other.
        self.ends_whole(self.replay(20, seed=2))
        self.file_system.resume()
        wait(lambda: not self.tier()[1], "the tier is back", NOTICE_S)
        self.assertEqual(self.metric("out"), 0)
        self.assertEqual(self.metric("writes_out"), 0)
        before = len(self.node.files("pfs"))
        self.ends_whole(self.replay(20, seed=3))
        wait(lambda: len(self.node.files("pfs")) > before, "it is written to again")
        wait(lambda: self.tier()[0] == "TIER_STATE_OK", "the failure is forgotten", FORGET_S)
        self.assertEqual(self.node.stop(), 0)

    def test_a_stop_beside_a_file_system_that_hangs_is_over_in_time_and_the_next_start_works(self):
        self.stop_while_it_hangs()
        first = self.node.process
        self.addCleanup(first.wait)
        self.addCleanup(self.file_system.end)
        self.node.start(patience_s=SLOW_START_S)
        self.assertTrue(any("did not open" in line for line in self.tier()[1]))
        self.ends_whole(self.replay(20, seed=2))

    def leader_state(self):
        try:
            stat = pathlib.Path(f"/proc/{self.node.process.pid}/stat").read_text(encoding="utf-8")
        except FileNotFoundError:
            return ""
        return stat.rsplit(") ", 1)[1][0]

    def stop_while_it_hangs(self):
        # Each write takes a while in the server, so that some are in its hands when it stops.
        self.start("--write-rate=2M")
        replay = self.replay(100)
        self.after_lookups(20)
        self.file_system.hang()
        self.ends_whole(replay)
        began = time.monotonic()
        self.node.terminate()
        wait(lambda: not self.node.running() or self.leader_state() == "Z",
             "the daemon has stopped", DRAIN_S + STOP_S)
        took = time.monotonic() - began
        # Dead and not gone: a call that the file system has begun ends when that says so.
        try:
            self.node.process.wait(timeout=2)
            state = "gone"
        except subprocess.TimeoutExpired:
            state = "held in the kernel"
        print(f"stopped after {took:.1f} s, {state}", file=sys.stderr)

    def test_a_file_system_that_dies_costs_its_tier_alone(self):
        self.start()
        replay = self.replay(250)
        self.after_lookups(50)
        self.file_system.kill()
        self.ends_whole(replay)
        self.wait_for("takes no writes: they fail")
        self.assertGreater(self.metric("write_errors_total"), 0)
        self.assertEqual(self.metric("writes_out"), 1)
        self.assertEqual(len(self.node.warnings("writes fail takes no more of them")), 1)
        self.assertTrue(self.node.status()["ready"])
        self.ends_whole(self.replay(20, seed=2))
        # Mounted anew at its place it is another file system, which only a restart takes.
        self.file_system.detach()
        self.file_system.mount()
        before = self.metric("probes_total")
        wait(lambda: self.metric("probes_total") > before + 1, "it was tried again", NOTICE_S)
        self.assertIn(self.tier()[0], ("TIER_STATE_OUT", "TIER_STATE_PROBING",
                                       "TIER_STATE_DEGRADED"))
        self.wait_for("another file system is mounted there by now: restart")
        self.assertEqual(len(self.node.warnings("tried again in vain, and will be: tier=pfs")), 1)
        self.ends_whole(self.replay(20, seed=3))
        self.assertEqual(self.node.stop(), 0)
        self.node.start()
        self.assertEqual(self.tier(), ("TIER_STATE_OK", []))
        before = len(self.node.files("pfs"))
        self.ends_whole(self.replay(20, seed=4))
        wait(lambda: len(self.node.files("pfs")) > before, "it is written to again")
        self.assertEqual(self.node.stop(), 0)

    def test_a_file_system_that_is_mounted_anew_at_its_mount_point_is_taken_without_a_restart(self):
        self.start(pfs=f'shared: true mount_point: "{self.file_system.root}"')
        replay = self.replay(100)
        self.after_lookups(50)
        self.file_system.kill()
        self.ends_whole(replay)
        self.wait_for("takes no writes: they fail")
        self.file_system.detach()
        before = self.metric("probes_total")
        wait(lambda: self.metric("probes_total") > before + 1, "it was tried again", NOTICE_S)
        self.assertTrue(self.tier()[1])
        self.assertEqual(list(self.file_system.root.iterdir()), [])
        self.file_system.mount()
        wait(lambda: not self.tier()[1], "the tier is back", NOTICE_S)
        self.assertEqual(len(self.node.warnings("tier mounted anew")), 1)
        self.assertEqual(self.metric("remounts_total"), 1)
        before = len(self.node.files("pfs"))
        self.ends_whole(self.replay(20, seed=2))
        wait(lambda: len(self.node.files("pfs")) > before, "it is written to again")
        self.assertEqual(self.node.stop(), 0)

    def test_nothing_is_written_into_the_mount_point_of_a_file_system_that_was_unmounted(self):
        self.start()
        replay = self.replay(250)
        self.after_lookups(50)
        self.file_system.detach()
        seen = len(list(self.file_system.below.rglob("*.kv")))
        self.ends_whole(replay)
        wait(lambda: self.node.status()["pool"]["staged_bytes"] == "0", "all is written")
        self.assertEqual(list(self.file_system.root.iterdir()), [])
        # Who has the root open keeps the file system.
        self.assertGreater(len(list(self.file_system.below.rglob("*.kv"))), seen)
        self.assertEqual(self.tier(), ("TIER_STATE_OK", []))
        self.assertEqual(self.node.stop(), 0)
        self.assertEqual(list(self.file_system.root.iterdir()), [])
        self.file_system.server.wait(timeout=PATIENCE_S)


if __name__ == "__main__":
    REASON = UserFileSystem.missing()
    if REASON:
        sys.exit(print(f"SKIPPED: {REASON}"))
    unittest.main(argv=[sys.argv[0], "-v", *sys.argv[4:]])
