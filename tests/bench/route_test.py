#!/usr/bin/env python3
"""kvstream-bench: its steps through a daemon, the arithmetic of route (bounds, schedules, the
config of each policy), and kvstream-sim's command line.

Usage: route_test.py KVSTREAMD BENCH_FOLDER
"""

import contextlib
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

KVSTREAMD, BENCH = sys.argv[1:3]
sys.path.insert(0, BENCH)

import bench_daemon  # noqa: E402
import route  # noqa: E402
import route_plot  # noqa: E402
from route_scenarios import SCENARIOS, bound_seconds, changes_of  # noqa: E402


class BoundTest(unittest.TestCase):
    def test_steady_rates(self):
        self.assertAlmostEqual(bound_seconds([3, 1], [], 40), 10)

    def test_a_rate_that_changes_counts_from_then_on(self):
        self.assertAlmostEqual(bound_seconds([3, 1], [(5, 1, 0.5)], 40), 5 + 20 / 3.5)
        self.assertAlmostEqual(bound_seconds([3, 1], [(5, 1, 0.5), (6, 1, 1)], 40), 10.125)

    def test_what_is_in_force_at_the_begin_counts_from_the_begin(self):
        self.assertAlmostEqual(bound_seconds([3, 1], [(0.0, 1, 0.5)], 35), 10)

    def test_changes_after_the_end_do_not_count(self):
        self.assertAlmostEqual(bound_seconds([3, 1], [(10, 1, 0), (11, 0, 0.001)], 40), 10)

    def test_a_tier_that_hangs_leaves_the_other(self):
        self.assertAlmostEqual(bound_seconds([3, 1], [(4, 1, 0)], 40), 4 + 24 / 3)


class ScheduleTest(unittest.TestCase):
    def test_the_same_for_the_same_seed_and_in_order(self):
        for scenario in SCENARIOS:
            for seed in range(20):
                tier, changes = changes_of(scenario, seed, 20)
                self.assertEqual((tier, changes), changes_of(scenario, seed, 20))
                times = [at for at, _ in changes]
                self.assertEqual(times, sorted(times))
                self.assertTrue(all(at >= 0 and 0 <= factor <= 1 for at, factor in changes))
                # A block throttle follows a few changes a second.
                self.assertTrue(all(b - a >= 0.4 for a, b in zip(times[1:], times[2:])), scenario)

    def test_bursts_differ_by_seed(self):
        self.assertNotEqual(changes_of("pfs-bursty", 1, 20), changes_of("pfs-bursty", 2, 20))


class PolicyTest(unittest.TestCase):
    def test_the_daemon_takes_the_config_of_every_policy(self):
        policies = ["completion", "request-at-a-time", "single:fast", "fixed:70", "published:4",
                    *route.ABLATIONS]
        for policy in policies:
            with tempfile.NamedTemporaryFile("w", suffix=".textproto") as file:
                file.write('sockets { grpc: "/tmp/x.sock" }\n'
                           'tiers { name: "fast" root: "/tmp" }\n' + route.routing(policy))
                file.flush()
                check = subprocess.run([KVSTREAMD, "--check_config", "--config", file.name],
                                       capture_output=True, text=True, check=False)
                self.assertEqual(check.returncode, 0, policy + ": " + check.stderr)


class PlotTest(unittest.TestCase):
    def test_it_draws_every_scenario_and_policy(self):
        rows = [{"scenario": s, "policy": p, "above_bound_pct": 5.0}
                for s in ("quiet", "pfs-bursty") for p in ("completion", "fixed:70", "fixed:80")]
        svg = route_plot.svg(rows)
        self.assertEqual(svg.count("completion 5.0 %"), 2)
        self.assertEqual(svg.count("<circle"), 4)


class StepTest(unittest.TestCase):
    def test_a_step_of_many_requests_is_stored_and_read_whole(self):
        with contextlib.ExitStack() as stack:
            folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
            roots = [folder / "fast", folder / "slow"]
            for root in roots:
                root.mkdir()
            daemon = bench_daemon.Daemon(
                stack, pathlib.Path(BENCH).parent, folder, list(zip(("fast", "slow"), roots)),
                config="pool { mib: 64 }\nlimits { segment_kib: 1024 segment_kib_max: 1024 }")
            shape = ("--bytes", "24MiB", "--chunk-bytes", "1MiB", "--segment-bytes", "256KiB")
            daemon.step(*shape, "--store")
            for requests in ("1", "5", "24"):
                row = daemon.step(*shape, "--requests", requests)
                self.assertEqual(row["bytes"], 24 << 20)
            steps = daemon.paced(*shape, "--requests", "7")
            next(steps)
            self.assertEqual(next(steps)["bytes"], 24 << 20)
            steps.close()


class SimTest(unittest.TestCase):
    SIM = pathlib.Path(BENCH) / "kvstream-sim"
    SMALL = ("--workload documents --documents 8 --document-tokens 2048 --questions 2 "
             "--arrival offline").split()

    def run_sim(self, *options):
        return subprocess.run([self.SIM, *options], capture_output=True, text=True, check=False)

    def test_it_says_one_object_and_always_the_same(self):
        first = self.run_sim(*self.SMALL)
        self.assertEqual(first.returncode, 0, first.stderr)
        self.assertEqual(json.loads(first.stdout)["requests"], 16)
        self.assertEqual(self.run_sim(*self.SMALL).stdout, first.stdout)
        self.assertIsNone(json.loads(self.run_sim(*self.SMALL, "--nodes", "2").stdout)
                          ["above_bound_pct"], "what other nodes take is not known")

    def test_the_last_of_contradicting_options_holds(self):
        plain = self.run_sim(*self.SMALL).stdout
        for before in ("single", "memory", "fixed:75", "published:4"):
            self.assertEqual(self.run_sim(*self.SMALL, "--policy", before, "--policy",
                                          "completion").stdout, plain)

    def test_what_means_nothing_is_refused_by_name(self):
        for options, name in ((["--policy", "fixed:100"], "--policy"),
                              (["--policy", "best"], "--policy"),
                              (["--copies", "fraction:2"], "--copies"),
                              (["--running-max", "0"], "--running-max"),
                              (["--pfs-latency-p99-ms", "1"], "99th percentile"),
                              (["--rate", "fast"], "--rate"), (["--model", "9b"], "model"),
                              (["--workload", "trace"], "trace.path"), (["extra"], "extra")):
            done = self.run_sim(*options)
            self.assertEqual(done.returncode, 2, options)
            self.assertIn(name, done.stderr)


class HelpTest(unittest.TestCase):
    def test_every_command_tells_what_it_does(self):
        bench = pathlib.Path(BENCH) / "kvstream-bench"
        for command in ("route", "tiers", "newcomers", "deferral", "eviction", "data_path",
                        "simulation"):
            shown = subprocess.run([bench, command, "--help"], capture_output=True, text=True,
                                   check=True)
            self.assertIn("usage:", shown.stdout)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
