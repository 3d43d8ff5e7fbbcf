#!/usr/bin/env python3
"""kvstreamd and kvstreamctl as programs: commands and exit codes, a replay over a daemon that is
killed again and again, a clean stop, bad configurations.

Usage: tools_test.py KVSTREAMD KVSTREAMCTL. Moments to kill at are numbers of lookups, drawn from a
seed, so that a kill lands in the middle of the work however fast the machine is.
"""

import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time
import unittest

KVSTREAMD, KVSTREAMCTL = sys.argv[1:3]
PATIENCE_S = 60


class Node:
    """A daemon on two directories of its own."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.socket = str(self.folder / "sock")
        for name in ("nvme", "pfs"):
            (self.folder / name).mkdir(exist_ok=True)
        self.config = self.folder / "kvstream.textproto"
        self.config.write_text(
            f'sockets {{ grpc: "{self.socket}" }}\n'
            f'tiers {{ name: "nvme" root: "{self.folder}/nvme" }}\n'
            f'tiers {{ name: "pfs" root: "{self.folder}/pfs" }}\n'
            # What is read is read from a tier.
            'cache { policy: NONE }\n'
            'pool { mib: 64 } limits { segment_kib: 1024 segment_kib_max: 4096 }\n'
            'metrics { listen: "127.0.0.1:0" } logging { level: "error" }\n')
        self.process = None

    def start(self):
        self.process = subprocess.Popen([KVSTREAMD, "--config", str(self.config)])
        self.wait(lambda: self.ctl("status", "--json").returncode == 0, "the daemon is ready")

    def ctl(self, *arguments):
        return subprocess.run([KVSTREAMCTL, "--socket", self.socket, *arguments],
                              capture_output=True, text=True, check=False, timeout=PATIENCE_S * 5)

    def wait(self, condition, what):
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            if time.monotonic() > deadline or self.process.poll() is not None:
                raise AssertionError(f"waited in vain until {what}")

    def status(self):
        result = self.ctl("status", "--json")
        return json.loads(result.stdout) if result.returncode == 0 else None

    def lookups(self):
        status = self.status()
        return int(status["operations"]["lookups"]) if status else 0

    def kill(self):
        self.process.kill()
        self.process.wait()

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=PATIENCE_S)


class ToolsTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="kvstream-tools-")
        self.addCleanup(folder.cleanup)
        self.node = Node(folder.name)
        self.node.start()
        self.addCleanup(lambda: self.node.process.poll() is None and self.node.kill())

    def test_put_get_and_lookup(self):
        source = self.node.folder / "source"
        source.write_bytes(os.urandom(300001))
        out = self.node.folder / "out"
        self.assertEqual(self.node.ctl("put", "--namespace", "n", "--key", "k",
                                       str(source)).returncode, 0)
        self.assertEqual(self.node.ctl("get", "--namespace", "n", "--key", "k", "--bytes",
                                       "300001", "--out", str(out)).returncode, 0)
        self.assertEqual(source.read_bytes(), out.read_bytes())
        found = self.node.ctl("lookup", "--namespace", "n", "--bytes", "300001", "--key", "k")
        self.assertEqual(found.returncode, 0, found.stderr)
        miss = self.node.ctl("get", "--namespace", "n", "--key", "other", "--bytes", "300001",
                             "--out", str(out))
        self.assertEqual(miss.returncode, 1)

    def test_exit_codes_of_wrong_use(self):
        self.assertEqual(self.node.ctl("status", "--unknown").returncode, 2)
        self.assertEqual(self.node.ctl("replay").returncode, 2)
        self.assertEqual(self.node.ctl("nonsense").returncode, 2)
        self.assertEqual(self.node.ctl("--help").returncode, 0)
        self.assertEqual(self.node.ctl("replay", "--help").returncode, 0)
        self.assertEqual(self.node.stop(), 0)
        self.assertEqual(self.node.ctl("status").returncode, 3)
        self.assertEqual(self.node.ctl("replay", "--generate", "1").returncode, 3)

    def test_a_tier_goes_out_and_comes_back(self):
        out = self.node.ctl("tier", "pfs", "out")
        self.assertEqual((out.returncode, out.stdout), (0, "tier pfs: out\n"))
        status = self.node.status()
        self.assertEqual(status["tiers"][1]["state"], "TIER_STATE_OUT")
        self.assertIn("tier pfs is out of service: taken out by an operator",
                      status["conditions"])
        back = self.node.ctl("tier", "pfs", "in", "--json")
        self.assertEqual(json.loads(back.stdout), {"tier": "pfs", "state": "ok"})
        unknown = self.node.ctl("tier", "tape", "out")
        self.assertEqual(unknown.returncode, 1)
        self.assertIn("there are nvme, pfs", unknown.stderr)
        self.assertEqual(self.node.ctl("tier", "pfs").returncode, 2)
        self.assertEqual(self.node.ctl("tier", "pfs", "sideways").returncode, 2)

    def test_watch_prints_a_line_each_time(self):
        lines = self.node.ctl("watch", "--interval", "100", "--count", "3", "--json")
        self.assertEqual(lines.returncode, 0, lines.stderr)
        self.assertEqual([json.loads(line)["ready"] for line in lines.stdout.splitlines()],
                         [True, True, True])
        text = self.node.ctl("watch", "--interval", "100", "--count", "2")
        rows = [line.split() for line in text.stdout.splitlines() if "!" not in line]
        self.assertEqual(len(rows), 3)
        self.assertEqual(rows[0][:3], ["UP", "STATE", "RUNNING"])
        self.assertEqual(self.node.ctl("watch", "--interval", "99").returncode, 2)

    def test_the_log_level_changes(self):
        changed = self.node.ctl("log-level", "debug")
        self.assertEqual((changed.returncode, changed.stdout),
                         (0, "log level: debug, before error\n"))
        refused = self.node.ctl("log-level", "loud")
        self.assertEqual(refused.returncode, 2)
        self.assertIn("trace, debug, info, warn or error", refused.stderr)
        self.assertEqual(self.node.ctl("log-level", "error").returncode, 0)

    def test_tool_and_daemon_have_one_version(self):
        daemon = subprocess.run([KVSTREAMD, "--version"], capture_output=True, text=True,
                                check=True).stdout.split()[1]
        self.assertEqual(self.node.ctl("--version").stdout, f"kvstreamctl {daemon}\n")

    def test_drain_then_stop(self):
        self.assertEqual(self.node.ctl("replay", "--generate", "10").returncode, 0)
        drained = self.node.ctl("drain", "--timeout-ms", "60000")
        self.assertEqual((drained.returncode, drained.stdout), (0, "drained\n"))
        status = self.node.status()
        self.assertFalse(status["ready"])
        self.assertTrue(status["draining"])
        self.assertEqual(status["pool"]["staged_bytes"], "0")
        self.assertEqual(self.node.ctl("replay", "--generate", "1",
                                       "--reconnect-seconds", "0").returncode, 3)
        self.assertEqual(self.node.ctl("drain").returncode, 0)
        self.assertEqual(self.node.stop(), 0)
        for arguments in (("drain",), ("watch",), ("tier", "pfs", "out"), ("log-level", "info")):
            self.assertEqual(self.node.ctl(*arguments).returncode, 3)

    def test_completion_knows_every_command_and_option(self):
        def complete(*words):
            script = (f'source <("{KVSTREAMCTL}" completion bash); COMP_WORDS=("$@"); '
                      'COMP_CWORD=$(($# - 1)); _kvstreamctl; printf "%s\\n" "${COMPREPLY[@]}"')
            result = subprocess.run(["bash", "-c", script, "bash", "kvstreamctl", *words],
                                    capture_output=True, text=True, check=True)
            return result.stdout.split()

        listed = self.node.ctl("--help").stdout.split("Commands:\n")[1].split("\n\n")[0]
        commands = [line.split()[0] for line in listed.splitlines()]
        self.assertIn("completion", commands)
        self.assertEqual(complete("")[:len(commands)], commands)
        for command in commands:
            help_lines = self.node.ctl(command, "--help").stdout.splitlines()
            options = {line.split()[0] for line in help_lines if line.startswith("  --")}
            self.assertEqual(set(complete(command, "--")), options)
        self.assertEqual(complete("ti"), ["tier"])
        self.assertEqual(complete("--socket", "status", "tier", "pfs", "o"), ["out"])
        self.assertEqual(complete("log-level", "w"), ["warn"])
        self.assertEqual(complete("get", "--out", ""), [])

    def test_a_replay_hits_all_that_an_unbounded_cache_would(self):
        for arguments in (("--chunk-bytes", "64KiB"),
                          ("--chunk-bytes", "100001", "--segment-bytes", "16KiB", "--own-buffer"),
                          ("--chunk-bytes", "1MiB", "--segment-bytes", "256KiB", "--batch", "5")):
            result = self.node.ctl("replay", "--generate", "60", "--json", *arguments)
            self.assertEqual(result.returncode, 0, result.stderr)
            report = json.loads(result.stdout)
            self.assertEqual(report["wrong_bytes"], 0)
            self.assertEqual(report["hits"], report["possible_hits"])
            self.assertGreater(report["hits"], 0)
            self.assertEqual(report["chunks_dropped"], 0)
            self.assertGreater(report["tier_nvme_bytes_read"], 0)
            self.assertGreater(report["tier_pfs_bytes_read"], 0)

    def test_a_replay_outlives_a_daemon_that_is_killed_ten_times(self):
        replay = subprocess.Popen(
            [KVSTREAMCTL, "--socket", self.node.socket, "replay", "--generate", "1500",
             "--chunk-bytes", "64KiB", "--json"], stdout=subprocess.PIPE, text=True)
        chance = random.Random(20261129)
        for _ in range(10):
            moment = chance.randrange(1, 120)
            self.node.wait(lambda at=moment: self.node.lookups() >= at or replay.poll() is not None,
                           "the replay works")
            self.node.kill()
            self.node.start()
        report = json.loads(replay.communicate(timeout=PATIENCE_S * 5)[0])
        self.assertEqual(replay.returncode, 0)
        self.assertEqual(report["wrong_bytes"], 0)
        self.assertEqual(report["requests"], 1500)
        self.assertGreaterEqual(report["restarts"], 5)
        self.assertGreater(report["hits"], 0)
        self.assertEqual(self.node.stop(), 0)

    def test_sigterm_drains_what_is_staged(self):
        self.assertEqual(self.node.ctl("replay", "--generate", "20", "--chunk-bytes",
                                       "1MiB").returncode, 0)
        self.assertEqual(self.node.stop(), 0)
        counts = [len(list((self.node.folder / tier).glob("v1/*/*/*/*.kv")))
                  for tier in ("nvme", "pfs")]
        self.assertGreater(counts[0], 0)
        self.assertEqual(counts[0], counts[1])
        leftovers = [p for tier in ("nvme", "pfs")
                     for p in (self.node.folder / tier).rglob(".tmp-*")]
        self.assertEqual(leftovers, [])

    def test_a_scrub_repairs_and_says_what_it_could_not(self):
        self.assertEqual(self.node.ctl("replay", "--generate", "5", "--chunk-bytes",
                                       "64KiB").returncode, 0)
        self.node.wait(lambda: self.node.status()["pool"]["staged_bytes"] == "0", "all is written")
        files = [sorted((self.node.folder / tier).glob("v1/*/*/*/*.kv"))
                 for tier in ("nvme", "pfs")]
        count = len(files[0])
        self.assertGreater(count, 1)
        for path in files[0][:2]:
            damaged = bytearray(path.read_bytes())
            damaged[5000] ^= 1
            path.write_bytes(damaged)
        files[1][0].unlink()
        scrub = self.node.ctl("scrub", "--tier", "nvme", "--mib-per-s", "16384", "--json")
        self.assertEqual(scrub.returncode, 1, scrub.stderr)
        last = json.loads(scrub.stdout.splitlines()[-1])
        self.assertEqual((int(last["files"]), int(last["damaged"]), int(last["repaired"])),
                         (count, 2, 1))
        self.assertTrue(last["done"])
        again = self.node.ctl("scrub", "--mib-per-s", "16384")
        self.assertEqual(again.returncode, 0, again.stderr)
        self.assertIn(f"tier nvme: done, {count - 1} files", again.stdout)
        self.assertIn("0 damaged", again.stdout)
        self.assertEqual(self.node.ctl("scrub", "--tier", "tape").returncode, 1)
        self.assertEqual(self.node.ctl("scrub", "nvme").returncode, 2)

    def test_namespaces_are_listed_evicted_and_warmed(self):
        source = self.node.folder / "source"
        source.write_bytes(os.urandom(100001))
        for name, key in (("n", "a"), ("n", "b"), ("other", "a")):
            self.assertEqual(self.node.ctl("put", "--namespace", name, "--key", key,
                                           str(source)).returncode, 0)
        self.node.wait(lambda: self.node.status()["pool"]["staged_bytes"] == "0", "all is written")
        listed = self.node.ctl("ls")
        self.assertEqual(listed.returncode, 0, listed.stderr)
        ids = {line.split()[-1].removeprefix("kvstreamctl/"): line.split()[0]
               for line in listed.stdout.splitlines() if "kvstreamctl/" in line}
        self.assertEqual(set(ids), {"n", "other"})
        entries = json.loads(self.node.ctl("ls", "--json").stdout)["namespaces"]
        self.assertEqual(sorted(int(entry["chunks"]) for entry in entries), [1, 2])

        lookup = self.node.ctl("lookup", "--namespace", "n", "--bytes", "100001", "a", "b")
        keys = [line.split()[1] for line in lookup.stdout.splitlines()[1:3]]
        warmed = subprocess.run(
            [KVSTREAMCTL, "--socket", self.node.socket, "warm", "--namespace-id", ids["n"], "-",
             "--json"], input="\n".join([*keys, "00" * 16]), capture_output=True, text=True,
            check=False, timeout=PATIENCE_S)
        self.assertEqual(warmed.returncode, 0, warmed.stderr)
        self.assertEqual(json.loads(warmed.stdout),
                         {"keys": 3, "chunks": 2, "bytes": 200002, "missing": 1})

        self.assertEqual(self.node.ctl("evict").returncode, 2)
        self.assertEqual(self.node.ctl("evict", "--prefix", keys[0]).returncode, 2)
        self.assertEqual(self.node.ctl("evict", "--namespace-id", "xy").returncode, 2)
        empty = self.node.ctl("evict", "--namespace-id", "", "--older-than", "1")
        self.assertEqual(empty.returncode, 2)
        trial = self.node.ctl("evict", "--namespace-id", ids["n"], "--dry-run")
        self.assertIn("would evict 2 chunks", trial.stdout)
        # The lookup has told that the second comes after the first.
        one = self.node.ctl("evict", "--namespace-id", ids["n"], "--prefix", keys[1], "--json")
        self.assertEqual(one.returncode, 0, one.stderr)
        self.assertEqual(int(json.loads(one.stdout)["chunks"]), 1)
        rest = self.node.ctl("evict", "--all", "--older-than", "86400")
        self.assertIn("evicted 0 chunks", rest.stdout)
        self.assertEqual(self.node.ctl("evict", "--all").returncode, 0)
        self.node.wait(lambda: not list(self.node.folder.glob("*/v1/*/*/*/*.kv")),
                       "what was evicted is deleted")

    def test_fsck_reads_what_lies_there_without_a_daemon(self):
        self.assertEqual(self.node.ctl("replay", "--generate", "5", "--chunk-bytes",
                                       "64KiB").returncode, 0)
        self.assertEqual(self.node.stop(), 0)
        root = self.node.folder / "nvme"
        files = sorted(root.glob("v1/*/*/*/*.kv"))
        sound = self.node.ctl("fsck", str(root), "--json")
        self.assertEqual(sound.returncode, 0, sound.stderr)
        report = json.loads(sound.stdout)
        self.assertEqual((report["files"], report["damaged"], report["foreign"]),
                         (len(files), 0, 0))
        self.assertGreater(report["snapshots"], 0)
        damaged = bytearray(files[0].read_bytes())
        damaged[5000] ^= 1
        files[0].write_bytes(damaged)
        found = self.node.ctl("fsck", str(root))
        self.assertEqual(found.returncode, 1)
        self.assertIn(str(files[0]), found.stderr)
        self.assertIn("1 damaged", found.stdout)
        self.assertEqual(self.node.ctl("fsck", "--headers-only", str(root)).returncode, 0)
        self.assertEqual(self.node.ctl("fsck").returncode, 2)
        self.assertEqual(self.node.ctl("fsck", str(root / "nothing")).returncode, 1)

    def test_bad_configurations_are_refused_by_name(self):
        bad = self.node.folder / "bad.textproto"
        bad.write_text('sockets { grpc: "relative" }\npool { mib: 1 bytez: 3 }\n')
        result = subprocess.run([KVSTREAMD, "--config", str(bad), "--check_config"],
                                capture_output=True, text=True, check=False)
        self.assertEqual(result.returncode, 2)
        self.assertIn("bytez", result.stderr)
        good = subprocess.run([KVSTREAMD, "--config", str(self.node.config), "--check_config"],
                              capture_output=True, text=True, check=False)
        self.assertEqual(good.returncode, 0, good.stderr)
        second = subprocess.run([KVSTREAMD, "--config", str(self.node.config)],
                                capture_output=True, text=True, check=False)
        self.assertEqual(second.returncode, 1)
        self.assertRegex(second.stderr, "another kvstreamd uses .*: process "
                         rf"{self.node.process.pid} \(state [SRD]\) holds .*required: false")
        self.assertIsNotNone(self.node.status())


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v"])
