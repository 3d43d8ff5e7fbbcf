#!/usr/bin/env python3
"""What loads and stores of GPU memory reach, with an engine beside them, on this machine's GPU.

A daemon of its own over two directories; the engine is another process, which multiplies matrices
(4096 squared, bf16) meanwhile. For each length of fragment: chunks in the staging pool to shuffled
blocks and back, against contiguous copies of 16 MiB in the same rounds, and the engine's speed
against its speed undisturbed, median and range of the rounds. Then single chunks of 1 MiB out of
the pool, and chunks on the tiers into GPU memory against host memory. Output: a JSON object for
each measurement, and tables.
"""

import argparse
import contextlib
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

from bench_daemon import BUILD, Daemon, run

FRAGMENTS_KIB = (4, 8, 16, 32, 64, 256, 1024, 2048)


def daemon(stack, args, tiers_out):
    """A daemon whose pool keeps what is stored, when no tier takes it."""
    folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(dir=args.dir)))
    tiers = []
    for name in ("nvme", "pfs"):
        (folder / name).mkdir()
        tiers.append((name, folder / name))
    config = (f"pool {{ mib: {args.pool_mib} reads_percent: 25 "
              f"copy_threads: {args.copy_threads} }}\n"
              f"gpu {{ mode: REQUIRED direct_kib_min: {args.direct_kib_min} "
              f"direct_store_kib_min: {args.direct_store_kib_min} }}\n"
              "writes { watermark_percent: 100 }\ndrain_ms: 100\n")
    made = Daemon(stack, BUILD, folder, tiers[:1] if not tiers_out else tiers, "window_mib: 64",
                  config)
    for name, _ in tiers if tiers_out else []:
        run(str(BUILD / "client/kvstreamctl"), "--socket", str(made.socket), "tier", name, "out")
    return made


def measure(made, what, *options):
    done = subprocess.run([str(BUILD / "bench/kvstream-gpu-bench"), what, "--socket",
                           str(made.socket), *(str(option) for option in options)],
                          text=True, capture_output=True, check=False)
    if done.returncode != 0:
        sys.exit(done.stderr + done.stdout)
    row = json.loads(done.stdout)
    print(json.dumps({"bench": "gpu", **row}), flush=True)
    return row


def ratio(values, of, percent=False):
    """Median and range of values, each over that of `of` of its round."""
    values = [value / base for value, base in zip(values, of)]
    scale, digits = (100, 1) if percent else (1, 3)
    form = f"{{:.{digits}f}} ({{:.{digits}f}} .. {{:.{digits}f}})"
    return form.format(*(scale * f(values) for f in (statistics.median, min, max)))


def paged(args):
    rows = []
    for fragment in args.fragments_kib:
        with contextlib.ExitStack() as stack:
            rows.append(measure(daemon(stack, args, True), "paged", "--fragment-kib", fragment,
                                "--rounds", args.rounds, "--round-ms", args.round_ms,
                                "--copy-blocks", args.copy_blocks,
                                "--copy-threads", args.copy_kernel_threads))
    print("\n| fragment | way | loads, GB/s | of contiguous | engine, % | way | stores, GB/s | "
          "of contiguous | engine, % |\n|---|---|---|---|---|---|---|---|---|")
    for row in rows:
        undisturbed = row["gemm_undisturbed"]
        print(f"| {row['fragment_kib']} KiB | {row['way']} | "
              f"{statistics.median(row['loads']):.1f} | "
              f"{ratio(row['loads'], row['contiguous_in'])} | "
              f"{ratio(row['gemm_loads'], undisturbed, True)} | {row['store_way']} | "
              f"{statistics.median(row['stores']):.1f} | "
              f"{ratio(row['stores'], row['contiguous_out'])} | "
              f"{ratio(row['gemm_stores'], undisturbed, True)} |")
    for way, key in (("in", "contiguous_in"), ("out", "contiguous_out")):
        values = [value for row in rows for value in row[key]]
        engine = [value / base for row in rows for value, base in
                  zip(row["gemm_" + key], row["gemm_undisturbed"])]
        print(f"contiguous {way}: {statistics.median(values):.1f} GB/s "
              f"({min(values):.1f} .. {max(values):.1f}), engine "
              f"{ratio(engine, [1] * len(engine), True)} %")


def small(args):
    with contextlib.ExitStack() as stack:
        made = daemon(stack, args, True)
        rows = [measure(made, "small", "--fragment-kib", fragment, "--rounds", args.rounds)
                for fragment in (4, 512)]
    print("\n| one chunk of 1 MiB in the pool | p50, us | p99, us |\n|---|---|---|")
    for row in rows:
        print(f"| {row['fragment_kib']} KiB fragments, {row['way']} | {row['p50_us']} | "
              f"{row['p99_us']} |")


def tiers(args):
    with contextlib.ExitStack() as stack:
        made = daemon(stack, args, False)
        row = measure(made, "tiers", "--fragment-kib", 256, "--rounds", args.rounds, "--chunks",
                      args.tier_chunks)
    print(f"\none tier to GPU memory: {statistics.median(row['gpu']):.2f} GB/s, to host memory "
          f"{statistics.median(row['host']):.2f}; ratio {ratio(row['gpu'], row['host'])}")


def main():
    parser = argparse.ArgumentParser(prog="kvstream-bench gpu", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("paged", "small", "tiers"), action="append")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--round-ms", type=int, default=1000)
    parser.add_argument("--fragments-kib", type=lambda text: [int(n) for n in text.split(",")],
                        default=FRAGMENTS_KIB)
    parser.add_argument("--pool-mib", type=int, default=16384)
    parser.add_argument("--copy-threads", type=int, default=8, help="of the daemon")
    parser.add_argument("--copy-blocks", type=int, default=264, help="of a scatter's kernel")
    parser.add_argument("--copy-kernel-threads", type=int, default=512)
    parser.add_argument("--direct-kib-min", type=int, default=64)
    parser.add_argument("--direct-store-kib-min", type=int, default=256)
    parser.add_argument("--tier-chunks", type=int, default=64)
    parser.add_argument("--dir", default=None, help="where the tiers are; else the system's")
    args = parser.parse_args()
    for name, part in (("paged", paged), ("small", small), ("tiers", tiers)):
        if not args.only or name in args.only:
            part(args)


if __name__ == "__main__":
    main()
