#!/usr/bin/env python3
"""Works a daemon hard for a while and expects it to be at the end what it was at the start.

Several replays at once, of generated traces that repeat, so that the store stops growing after the
first pass; some end well, some are killed in the middle of their work. After a first pass and at
the end, with nobody connected, the daemon's resident memory, descriptors, threads, used pool,
sessions, leases, buffers and the files on its tiers are compared. Usage:

  soak.py KVSTREAMD KVSTREAMCTL [--seconds N] [--seed N] [--rss-slack-mib N]
"""

import argparse
import json
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time

PATIENCE_S = 120
WORKERS = 4
TRACES = 6
# gRPC keeps as many threads as it had calls at once, in the end.
THREADS_SLACK = 16


class Node:
    def __init__(self, args, folder):
        self.args = args
        self.folder = pathlib.Path(folder)
        self.socket = self.folder / "sock"
        for name in ("nvme", "pfs"):
            (self.folder / name).mkdir()
        config = self.folder / "kvstream.textproto"
        config.write_text(
            f'sockets {{ grpc: "{self.socket}" }}\n'
            f'tiers {{ name: "nvme" root: "{self.folder}/nvme" open_files: 64 }}\n'
            f'tiers {{ name: "pfs" root: "{self.folder}/pfs" open_files: 64 }}\n'
            'pool { mib: 64 } limits { segment_kib: 1024 segment_kib_max: 4096 }\n'
            'metrics { listen: "" } logging { level: "error" }\n')
        self.daemon = subprocess.Popen([args.kvstreamd, "--config", str(config)])
        self.wait(lambda: self.status() is not None, "the daemon is ready")

    def wait(self, condition, what):
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            if self.daemon.poll() is not None:
                sys.exit(f"soak: the daemon ended with {self.daemon.returncode}")
            if time.monotonic() > deadline:
                sys.exit(f"soak: waited in vain until {what}: {self.numbers()}")
            time.sleep(0.05)

    def status(self):
        done = subprocess.run([self.args.kvstreamctl, "--socket", str(self.socket), "--json",
                               "status"], capture_output=True, text=True, check=False)
        return json.loads(done.stdout) if done.returncode == 0 else None

    def numbers(self):
        """What must not grow."""
        process = pathlib.Path(f"/proc/{self.daemon.pid}")
        status = self.status()
        fields = dict(line.split(":", 1) for line in
                      (process / "status").read_text().splitlines())
        files = [path for path in self.folder.rglob("*") if "v1" in path.parts and path.is_file()]
        return {"rss_mib": int(fields["VmRSS"].split()[0]) // 1024,
                "descriptors": len(list((process / "fd").iterdir())),
                "threads": int(fields["Threads"]),
                "pool_used": int(status["pool"].get("used_bytes", 0)),
                "staged": int(status["pool"].get("staged_bytes", 0)),
                "sessions": int(status["sessions"].get("open", 0)),
                "host_buffers": int(status["sessions"].get("host_buffers", 0)),
                "leases": int(status["sessions"].get("leases", 0)),
                "operations": int(status["operations"].get("running", 0)),
                "files": len(files),
                "files_not_chunks": sum(path.suffix != ".kv" for path in files)}

    def settled(self):
        """The numbers once nothing is connected, running or being written."""
        busy = ("pool_used", "staged", "sessions", "host_buffers", "leases", "operations",
                "files_not_chunks")
        self.wait(lambda: not any(self.numbers()[name] for name in busy), "the daemon is idle")
        numbers = self.numbers()
        # gRPC closes connections and ends threads a moment after their clients are gone.
        for _ in range(100):
            time.sleep(0.1)
            before, numbers = numbers, self.numbers()
            if before == numbers:
                break
        return numbers

    def replay(self, seed):
        return subprocess.Popen(
            [self.args.kvstreamctl, "--socket", str(self.socket), "--json", "replay", "--generate",
             "120", "--seed", str(seed), "--chunk-bytes", "256KiB", "--batch", str(seed % 3 + 1)],
            stdout=subprocess.PIPE, text=True)

    def stop(self):
        self.daemon.send_signal(signal.SIGTERM)
        if self.daemon.wait(timeout=PATIENCE_S) != 0:
            sys.exit(f"soak: the daemon's exit code is {self.daemon.returncode}")


def check(replay, killed):
    out, _ = replay.communicate()
    if killed and replay.returncode == -signal.SIGKILL:
        return 0
    if replay.returncode != 0:
        sys.exit(f"soak: a replay ended with {replay.returncode}: {out}")
    return 1


def work(node, rng, seconds):
    """Replays until the time is over; every fourth is killed at a random moment of its work."""
    whole = 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        replays = [(node.replay(rng.randrange(TRACES)), rng.random() < 0.25)
                   for _ in range(WORKERS)]
        time.sleep(rng.uniform(0.05, 1.0))
        for replay, doomed in replays:
            if doomed:
                replay.kill()
        whole += sum(check(replay, doomed) for replay, doomed in replays)
    return whole


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kvstreamd")
    parser.add_argument("kvstreamctl")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=1)
    # Allocators keep what they once had: their arenas, one a thread.
    parser.add_argument("--rss-slack-mib", type=int, default=48)
    args = parser.parse_args()
    rng = random.Random(args.seed)
    with tempfile.TemporaryDirectory(prefix="kvstream-soak-") as folder:
        node = Node(args, folder)
        try:
            for seed in range(TRACES):
                check(node.replay(seed), killed=False)
            work(node, rng, min(10, args.seconds / 3))
            first = node.settled()
            whole = work(node, rng, args.seconds)
            last = node.settled()
        finally:
            node.stop()
    print(json.dumps({"seed": args.seed, "seconds": args.seconds, "whole_replays": whole,
                      "first": first, "last": last}))
    slack = {"rss_mib": args.rss_slack_mib, "threads": THREADS_SLACK}
    grown = {name: (first[name], last[name]) for name in first
             if last[name] > first[name] + slack.get(name, 0)
             or name == "files" and last[name] != first[name]}
    if grown:
        sys.exit(f"soak: grown (first, last): {grown}")


if __name__ == "__main__":
    main()
