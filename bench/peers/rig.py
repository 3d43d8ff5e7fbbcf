"""What compare.py measures on: two tiers of known rates, and contenders as processes of their
own."""

import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
# pylint: disable=wrong-import-position
from bench_daemon import MIB, Daemon
from emulated_tiers import BLKIO, EmulatedTiers

# Threads of each fs_native adapter, as LMCache's documents say for fast storage, and direct I/O.
FS_WORKERS = 32


class Rig:
    """Tiers "fast" and "slow" and a kvstreamd on them; all that is started is in the cgroup."""

    def __init__(self, stack, args):
        self.args = args
        self._stack = stack
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="kvstream-peers-", dir=args.dir))
        stack.callback(shutil.rmtree, self.folder, ignore_errors=True)
        # Sparse, and so large that the daemon never makes room: the peers' files are on them, too.
        size = (args.objects * args.object_mib * 16 + 16384) * MIB
        self.emulated = EmulatedTiers(stack, self.folder, size, True)
        self.roots = self.emulated.roots
        for root in self.roots:
            for name in ("kvstreamd", "lmcache", "bench", "disk", "vllm", "mooncake"):
                (root / name).mkdir()
        self.daemon = self._daemon(stack)

    def _daemon(self, stack):
        tier = "io_kib: 512 window_mib: 32 open_files: 4096"
        tiers = [(name, root / "kvstreamd") for name, root in zip(("fast", "slow"), self.roots)]
        daemon = Daemon(stack, self.args.build, self.folder, tiers, tier, "pool { mib: 1024 }")
        self.emulated.join(daemon.process.pid)
        return daemon

    def throttle(self, rates):
        """Reads and writes; MiB/s, None lifts."""
        for tier, rate in enumerate(rates):
            for direction in ("read", "write"):
                self.emulated.set_rate(tier, rate, direction)

    def lift(self):
        self.throttle((None, None))

    def settle(self):
        """Until the daemon has written all it has, and nobody's pages are in memory."""
        deadline = time.monotonic() + 300
        while self.staged_bytes():
            if time.monotonic() > deadline:
                sys.exit("the daemon does not write what it has")
            time.sleep(0.2)
        os.sync()
        pathlib.Path("/proc/sys/vm/drop_caches").write_text("3")

    def check_copies(self):
        """That every chunk is on both tiers: a busy one may give second copies up."""
        files = {tier["name"]: int(tier["chunk_files"]) for tier in self.status()["tiers"]}
        if len(set(files.values())) != 1:
            sys.exit(f"chunks are not on both tiers: {files}")

    def check_evictions(self):
        """That no copy was given up to make room; of timed stores second ones may be, for time."""
        evicted = {tier["name"]: int(tier["files_evicted"]) for tier in self.status()["tiers"]}
        if any(evicted.values()):
            sys.exit(f"tiers gave up files: {evicted}")

    def staged_bytes(self):
        return int(self.status()["pool"]["staged_bytes"])

    def status(self):
        ran = subprocess.run([str(self.args.build / "client/kvstreamctl"), "--socket",
                              str(self.daemon.socket), "status", "--json"], check=True,
                             capture_output=True, text=True)
        return json.loads(ran.stdout)

    def start(self, command, **options):
        """A process in the cgroup from its first instruction on, which dies with this one."""
        # Mooncake reads its own from there alone; io_uring is what its documents call faster.
        mooncake = {"MOONCAKE_OFFLOAD_FILE_STORAGE_PATH": str(self.roots[0] / "mooncake"),
                    "MOONCAKE_OFFLOAD_USE_URING": "1"}
        environment = {**os.environ, **mooncake, "LMCACHE_TRACK_USAGE": "false",
                       "KVSTREAMD_SOCKET": str(self.daemon.socket)}
        process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", *map(str, command)], text=True, env=environment,
            preexec_fn=lambda: (self.emulated.group / "cgroup.procs").write_text("0"), **options)
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        return process

    def reader(self, python, kind, **options):
        return Reader(self, [python, HERE / "readers.py", kind, self.args.objects,
                             self.args.object_mib * MIB, json.dumps(options)])

    def mooncake_options(self, python):
        """Of its reader, once its master runs: its files, on the fast tier, and memory that the
        objects just fit."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.start([pathlib.Path(python).parent / "mooncake_master", f"--rpc_port={port}",
                    "--metrics_port=0", "--enable_offload=true"],
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(2)
        total = self.args.objects * self.args.object_mib * MIB
        return {"master": f"127.0.0.1:{port}", "path": str(self.roots[0] / "mooncake"),
                "memory_bytes": total * 5 // 4, "extra": self.args.objects * 3 // 2}

    def plugin(self, **params):
        """The adapter of README.md; large enough for what is in flight."""
        return {"type": "native_plugin", "module_path": "kvstreamd.lmcache",
                "class_name": "KVStreamConnector",
                "adapter_params": {"weights_fingerprint": "bench", "load_deadline_ms": 60000,
                                   "store_deadline_ms": 120000, "store_admission_ms": 60000,
                                   **params}}

    def files(self, tier, folder="lmcache"):
        """LMCache's own adapter for files, as its documents advise for speed."""
        return {"type": "fs_native", "base_path": str(self.roots[tier] / folder),
                "num_workers": FS_WORKERS, "use_odirect": True}

    def bench_l2(self, python, adapter, operation, rates, count):
        """MiB/s that `lmcache bench l2` says of `count` objects."""
        keys = 32
        command = [python, "-m", "lmcache.cli.main", "bench", "l2", "--l2-adapter",
                   json.dumps(adapter), "--only", operation, "--num-keys", keys, "--in-flight",
                   count // keys, "--data-size-kb", self.args.object_mib * 1024,
                   "--l1-align-bytes", 4096, "--rounds", 1, "--warmup-rounds", 0]
        self.throttle(rates)
        process = self.start(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        text = process.communicate()[0]
        self.lift()
        found = re.search(r"Throughput avg \(MB/s\):\s+([\d.]+)", text)
        success = re.search(r"Total success:\s+(\d+)", text)
        # Of stores it counts submissions.
        if not found or int(success[1]) not in (count // keys * keys, count // keys):
            sys.exit(f"lmcache bench l2 failed:\n{text}")
        return float(found[1])


class Reader:
    """A readers.py that has stored."""

    def __init__(self, rig, command):
        self._rig = rig
        self._process = rig.start(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                  stderr=subprocess.DEVNULL)
        if self._process.stdout.readline() != "ready\n":
            sys.exit(f"{command} did not start")

    def read(self, rates):
        """MiB/s of one read of all objects."""
        self._rig.settle()
        self._rig.throttle(rates)
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        self._rig.lift()
        if not line:
            sys.exit(f"{self._process.args} failed")
        row = json.loads(line)
        expected = self._rig.args.objects * self._rig.args.object_mib * MIB
        if row["bytes"] != expected:
            sys.exit(f"{self._process.args} read {row['bytes']} of {expected} bytes")
        return row["bytes"] / MIB / row["seconds"]

    def end(self):
        self._process.stdin.close()
        self._process.wait(timeout=60)
