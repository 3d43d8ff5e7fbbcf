#!/usr/bin/env python3
"""What the Python client adds to a step of many chunks, against the C++ client.

Both read the same chunks from one daemon, in turn, so that the machine is the same for both: a
round is a step by each, and its ratio is Python's time over C++'s. The time is from before the
message is built until the operation has ended, as kvstream-bench step takes it; bytes are verified
outside of it. The daemon reads its tiers or, with --cache, its memory. Output: one JSON object a
round, and a table with the median ratio and its quartiles.

Run it with a Python that has the package: build/release/python/venv/bin/python.
"""

import argparse
import contextlib
import json
import pathlib
import statistics
import struct
import tempfile
import time

import numpy as np

import bench_daemon
import kvstreamd

KIB = 1 << 10
PAGE_BYTES = 4096
SEGMENT_BYTES = bench_daemon.MIB
# As kvstream-bench step says them: the same namespace, keys and bytes.
MODEL, FINGERPRINT = "kvstream-bench", b"step"
WORD_FACTOR = np.uint64(0x9E3779B97F4A7C15)


class PythonSteps:
    """The Python client's side of kvstream-bench step."""

    def __init__(self, stack, socket, chunks, chunk_bytes):
        self.chunks, self.chunk_bytes = chunks, chunk_bytes
        self.client = stack.enter_context(kvstreamd.Client(socket, client_name="bench"))
        self.namespace = self.client.register_namespace(kvstreamd.NamespaceDescription(
            model=MODEL, weights_fingerprint=FINGERPRINT, kv_dtype="bytes", layout="opaque",
            chunk_tokens=256, segment_bytes=SEGMENT_BYTES,
            groups=[kvstreamd.Group(chunk_bytes=chunk_bytes)]))
        self.buffer = self.client.create_host_buffer(chunks * chunk_bytes)
        self.words = self.buffer.numpy(np.uint64, (chunks, chunk_bytes // PAGE_BYTES,
                                                   PAGE_BYTES // 8))[:, :, 0]
        number = np.arange(chunks, dtype=np.uint64)[:, None] << np.uint64(32)
        self.expected = (number | np.arange(chunk_bytes // PAGE_BYTES, dtype=np.uint64))
        self.expected *= WORD_FACTOR
        self.read()

    def read(self):
        """The seconds of one step."""
        self.buffer.array[:] = 0xAB
        began = time.perf_counter()
        chunks = [kvstreamd.ChunkAt(struct.pack("<Q", chunk) + b"b" * 8,
                                    self.buffer.at(chunk * self.chunk_bytes))
                  for chunk in range(self.chunks)]
        self.client.read_step([kvstreamd.ReadRequest(namespace=self.namespace, request_id=0,
                                                     chunks=chunks)]).result()
        seconds = time.perf_counter() - began
        if not np.array_equal(self.words, self.expected):
            raise SystemExit("python_client: wrong bytes")
        return seconds


def measure(args, chunk_kib):
    """Rows of one chunk size."""
    chunk_bytes = chunk_kib * KIB
    shape = ("--bytes", str(args.chunks * chunk_bytes), "--chunk-bytes", str(chunk_bytes),
             "--segment-bytes", str(SEGMENT_BYTES))
    rows = []
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(dir=args.dir)))
        tiers = [(name, folder / name) for name in ("fast", "slow")]
        for _, root in tiers:
            root.mkdir()
        pool_mib = args.chunks * chunk_kib // KIB * 2 + 256
        daemon = bench_daemon.Daemon(
            stack, args.build, folder, tiers, config=f"pool {{ mib: {pool_mib} }}",
            cache="ARC" if args.cache else "NONE")
        daemon.step(*shape, "--store")
        cpp = daemon.paced(*shape)
        next(cpp)
        stack.callback(cpp.close)
        python = PythonSteps(stack, str(daemon.socket), args.chunks, chunk_bytes)
        for number in range(args.rounds):
            # Who goes first alternates: the second finds what the first has warmed.
            times = {}
            for name in ("cpp", "python") if number % 2 else ("python", "cpp"):
                times[name] = python.read() if name == "python" else next(cpp)["seconds"]
            rows.append({"bench": "python_client", "round": number, "chunks": args.chunks,
                         "chunk_kib": chunk_kib, "cache": args.cache,
                         "cpp_ms": round(times["cpp"] * 1000, 2),
                         "python_ms": round(times["python"] * 1000, 2),
                         "ratio": round(times["python"] / times["cpp"], 4)})
            print(json.dumps(rows[-1]), flush=True)
    return rows


def main():
    parser = argparse.ArgumentParser(prog="python_client.py", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chunks", type=int, default=1000, help="of a step")
    parser.add_argument("--chunk-kib", type=int, nargs="+", default=[64, 256, 1024])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--cache", action="store_true", help="read from the daemon's memory")
    parser.add_argument("--dir", help="where the tiers' folders are made")
    parser.add_argument("--build", type=pathlib.Path, default=bench_daemon.BUILD)
    args = parser.parse_args()
    groups = [measure(args, chunk_kib) for chunk_kib in args.chunk_kib]
    print(f"\n{'chunk KiB':>9} {'C++ ms':>8} {'Python ms':>9} {'ratio':>6}  quartiles")
    for rows in groups:
        median = lambda field: statistics.median(row[field] for row in rows)
        low, _, high = statistics.quantiles([row["ratio"] for row in rows], n=4)
        print(f"{rows[0]['chunk_kib']:>9} {median('cpp_ms'):>8.1f} {median('python_ms'):>9.1f} "
              f"{median('ratio'):>6.3f}  {low:.3f}..{high:.3f}")


if __name__ == "__main__":
    main()
