#!/usr/bin/env python3
"""The daemon and a stand-in for an engine, each a process of its own, on a real GPU.

Every KV layout there and back, bit by bit, straight and through a landing buffer; memory of every
kind; two ranks at once; workers that are killed idle, in mid-read and in mid-store, with the GPU's
memory back afterwards. Exit code 77, and the reason, where there is no GPU.
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

PATIENCE_S = 60
SKIPPED = 77
LAYOUTS = ("split paired packed LBHNC LBNHC LHBNC BLHNC BLNHC BHLNC mla mamba cross-layer interior "
           "two-tensors").split()
# Runs of 64 KiB and more in every layout that has one run for a head.
LARGE = ["--layers", "2", "--blocks", "32", "--tokens", "256", "--heads", "2", "--head-dim", "128",
         "--chunk-blocks", "2"]
CYCLES = 20


class Failure(Exception):
    """Something was not as it should be."""


class Daemon:
    """kvstreamd over two directories, until the end of the with statement."""

    def __init__(self, programs, directory):
        self.programs = programs
        self.directory = pathlib.Path(directory)
        self.socket = self.directory / "kvstreamd.sock"
        for tier in ("nvme", "pfs"):
            (self.directory / tier).mkdir()
        config = self.directory / "kvstream.textproto"
        config.write_text(
            f'sockets {{ grpc: "{self.socket}" }}\n'
            f'tiers {{ name: "nvme" root: "{self.directory}/nvme" }}\n'
            f'tiers {{ name: "pfs" root: "{self.directory}/pfs" shared: true }}\n'
            "pool { mib: 1024 copy_threads: 4 } cache { policy: NONE }\n"
            "gpu { mode: AUTO landing_ack_ms: 2000 }\n"
            'metrics { listen: "" }\n')
        self.log = open(self.directory / "log", "w", encoding="utf-8")
        self.process = subprocess.Popen([programs["kvstreamd"], "--config", config],
                                        stderr=self.log, stdout=self.log)

    def __enter__(self):
        self.wait_until(lambda: self.socket.exists() and self.status() is not None, "it serves")
        return self

    def __exit__(self, *unused):
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(PATIENCE_S)
        self.log.close()
        if code != 0:
            raise Failure(f"kvstreamd ended with {code}:\n" + self.tail())

    def tail(self):
        return "\n".join((self.directory / "log").read_text().splitlines()[-20:])

    def status(self):
        if self.process.poll() is not None:
            raise Failure("kvstreamd ended:\n" + self.tail())
        run = subprocess.run([self.programs["kvstreamctl"], "--socket", self.socket, "--json",
                              "status"], capture_output=True, text=True, check=False)
        return json.loads(run.stdout) if run.returncode == 0 else None

    def wait_until(self, condition, what):
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            if time.monotonic() > deadline:
                raise Failure(f"waited in vain until {what}:\n" + self.tail())
            time.sleep(0.02)

    def wait_let_go(self):
        """Nothing of a worker is left."""
        def let_go():
            status = self.status()
            return (number(status, "sessions", "open") == 0
                    and all(number(gpu, "mapped_bytes") == 0 and number(gpu, "queued_bytes") == 0
                            for gpu in status["gpus"]))
        self.wait_until(let_go, "the daemon has let go of the workers")


def number(message, *path):
    """A field of a message in JSON; absent means 0."""
    for name in path:
        message = message.get(name, 0) if isinstance(message, dict) else 0
    return int(message)


def engine_command(daemon, scenario, *flags):
    return [daemon.programs["mini_engine"], "--socket", str(daemon.socket), *flags, scenario]


def run(daemon, scenario, *flags):
    """Runs a scenario to its end; returns what it printed."""
    done = subprocess.run(engine_command(daemon, scenario, *flags), capture_output=True, text=True,
                          timeout=300, check=False)
    lines = done.stdout.splitlines()
    if done.returncode != 0 or not lines or lines[-1] != "ok":
        raise Failure(f"{scenario} {' '.join(flags)}: {done.stdout[-2000:]}{done.stderr[-2000:]}\n"
                      + daemon.tail())
    return done.stdout


def round_trips(daemon):
    for layout in LAYOUTS:
        for name, flags in (("small", []), ("small, straight", ["--landing-parts", "0"]),
                            ("small parts", ["--landing-part-bytes", "20000"]),
                            ("large", LARGE)):
            seed = str(random.randrange(1 << 40))
            out = run(daemon, "roundtrip", "--layout", layout, "--seed", seed, "--rounds", "3",
                      *flags)
            way = "landing" if ", landing," in out else "direct"
            wanted = {"small": "landing", "small parts": "landing",
                      "small, straight": "direct"}.get(name, way)
            if way != wanted:
                raise Failure(f"{layout}, {name}: {way}, not {wanted}")
            print(f"ok  round trip  {layout:12} {name:16} {way}")
    daemon.wait_let_go()


def memory_kinds(daemon):
    run(daemon, "vmm", "--seed", "71")
    run(daemon, "vmm", "--seed", "72", *LARGE, "--layout", "cross-layer")
    run(daemon, "expandable", "--seed", "73")
    daemon.wait_let_go()
    print("ok  VMM memory by the handoff socket; expandable segments are refused by name")


def two_ranks(daemon):
    """Two workers at once on one GPU: of different chunks, and of the same."""
    for seeds in (("81", "82"), ("83", "83")):
        ranks = [subprocess.Popen(engine_command(daemon, "roundtrip", "--seed", seed, "--rounds",
                                                 "10", "--layout", layout),
                                  stdout=subprocess.PIPE, text=True)
                 for seed, layout in zip(seeds, ("split", "split"))]
        for rank in ranks:
            out, _ = rank.communicate(timeout=300)
            if rank.returncode != 0:
                raise Failure(f"two ranks: {out[-2000:]}")
    daemon.wait_let_go()
    print("ok  two ranks at once")


def used_memory():
    """MiB in use on the first GPU, whoever uses it."""
    out = subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits",
                          "-i", "0"], capture_output=True, text=True, check=True).stdout
    return int(out.split()[0])


def kills(daemon):
    daemon.wait_let_go()
    before = used_memory()
    for scenario, ready in (("hold", "holding"), ("read-loop", "reading"),
                            ("store-loop", "storing")):
        for cycle in range(CYCLES):
            flags = ["--seed", str(random.randrange(1 << 40)), "--blocks", "256"]
            if cycle % 2 == 1:
                flags += LARGE
            worker = subprocess.Popen(engine_command(daemon, scenario, *flags),
                                      stdout=subprocess.PIPE, text=True)
            lines = []
            for line in worker.stdout:
                lines.append(line)
                if line.startswith(("failed", ready)):
                    break
            if scenario != "hold":
                time.sleep(random.uniform(0.0, 0.4))
            if worker.poll() is not None:
                raise Failure(f"{scenario} ended by itself: {''.join(lines)}")
            worker.kill()
            worker.wait()
        daemon.wait_let_go()
        print(f"ok  {CYCLES} workers killed: {scenario}")
    run(daemon, "roundtrip", "--seed", "91")
    daemon.wait_let_go()
    after = used_memory()
    if after > before:
        raise Failure(f"GPU memory in use: {before} MiB before the kills, {after} MiB after")
    print(f"ok  GPU memory in use: {before} MiB before the kills, {after} MiB after")


def bit_exact(daemon):
    """What the daemon says of all that."""
    status = daemon.status()
    for tier in status["tiers"]:
        if number(tier, "corrupt_reads") or number(tier, "read_errors"):
            raise Failure(f"tier {tier['name']}: {tier}")
    if not status.get("ready") or not all(gpu.get("usable") for gpu in status["gpus"]):
        raise Failure(f"not ready: {status.get('conditions')}")
    from_tiers = sum(number(tier, "bytes_read") for tier in status["tiers"])
    if not from_tiers:
        raise Failure("nothing was read from the tiers")
    print(f"ok  {from_tiers >> 20} MiB read from the tiers, "
          f"{number(status['gpus'][0], 'bytes_in') >> 20} MiB in and "
          f"{number(status['gpus'][0], 'bytes_out') >> 20} MiB out on {status['gpus'][0]['name']}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for program in ("kvstreamd", "kvstreamctl", "mini_engine"):
        parser.add_argument(program)
    programs = vars(parser.parse_args())
    if not pathlib.Path(programs["mini_engine"]).exists():
        print("SKIPPED: built without nvcc")
        return SKIPPED
    random.seed(20261130)
    with tempfile.TemporaryDirectory(prefix="kvstream-gpu-") as directory:
        try:
            with Daemon(programs, directory) as daemon:
                if not daemon.status().get("gpus"):
                    print("SKIPPED: " + daemon.status().get("gpu_reason", ""))
                    return SKIPPED
                round_trips(daemon)
                memory_kinds(daemon)
                two_ranks(daemon)
                kills(daemon)
                bit_exact(daemon)
        except Failure as failure:
            print(f"FAILED: {failure}")
            return 1
    print("all GPU tests passed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
