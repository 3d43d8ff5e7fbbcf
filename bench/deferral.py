#!/usr/bin/env python3
"""What writes cost reads on one device, and what deferring them buys.

On a directory of a real device (--dir; emulated tiers show nothing: unthrottled writes do not slow
throttled reads). First raw, with fio: reads alone, writes alone, both at once. Then a daemon with
one tier reads a step alone, beside a store that waits for reads (writes.max_defer_ms as configured
by default), and beside one that does not (max_defer_ms: 0), in interleaved rounds. The store fits
what may be staged, so with deferral it is written after the step. A device differs from minute to
minute, so look at the ratio to the step alone in the same round. Output: one JSON object a line,
and a table.
"""

import argparse
import contextlib
import json
import pathlib
import shutil
import statistics
import subprocess
import tempfile
import threading

from bench_daemon import BUILD, MIB, Daemon
from emulated_tiers import fio_rate

CASES = {"alone": 2000, "deferred": 2000, "not deferred": 0}


def fio(folder, mode, args):
    return subprocess.Popen(
        ["fio", "--name=" + mode, "--rw=" + mode, "--direct=1", "--ioengine=io_uring", "--bs=512k",
         "--iodepth=32", f"--size={args.gib}G", "--time_based", f"--runtime={args.raw_seconds}",
         "--output-format=json", f"--filename={folder / (mode + '.fio')}"],
        stdout=subprocess.PIPE, text=True)


def raw(folder, args):
    rates = {}
    for name, modes in (("lay out", ["write"]), ("read", ["read"]), ("write", ["write"]),
                        ("both", ["read", "write"])):
        jobs = [fio(folder, mode, args) for mode in modes]
        for mode, job in zip(modes, jobs):
            rates[name, mode] = round(fio_rate(job, mode), 1)
    for mode in ("read", "write"):
        (folder / (mode + ".fio")).unlink()
    row = {"bench": "deferral", "case": "raw", "read_mib_s": rates["read", "read"],
           "write_mib_s": rates["write", "write"], "both_read_mib_s": rates["both", "read"],
           "both_write_mib_s": rates["both", "write"]}
    print(json.dumps(row), flush=True)
    return row


def measure(folder, args, number, case):
    root = folder / "tier"
    root.mkdir(exist_ok=True)
    shape = ("--chunk-bytes", "16MiB", "--segment-bytes", "4MiB")
    step = ("--bytes", f"{args.gib}GiB", *shape)
    with contextlib.ExitStack() as stack:
        daemon = Daemon(stack, args.build, folder, [("only", root)], "open_files: 4096",
                        f"pool {{ mib: {args.pool_mib} }}\n"
                        f"writes {{ max_defer_ms: {CASES[case]} watermark_percent: 100 }}")
        daemon.step(*step, "--store")
        stored = {}
        stores = None
        if case != "alone":
            first = (number + 1) * 100_000 + list(CASES).index(case) * 10_000
            stores = daemon.paced("--bytes", f"{args.store_mib}MiB", "--first", str(first), *shape,
                                  "--store")
            next(stores)
        writer = threading.Thread(target=lambda: stored.update(next(stores)))
        reads = daemon.paced(*step, on_begin=lambda _: stores and writer.start())
        next(reads)
        row = next(reads)
        if stores:
            writer.join()
            stores.close()
        reads.close()
    row = {"bench": "deferral", "case": case, "round": number, "seconds": row["seconds"],
           "gb_s": round(row["bytes"] / 1e9 / row["seconds"], 3),
           "store_seconds": stored.get("seconds")}
    print(json.dumps(row), flush=True)
    return row


def print_table(rows):
    alone = {row["round"]: row["seconds"] for row in rows if row["case"] == "alone"}
    print(f"\n{'store beside it':>16} {'step seconds':>13}  spread        of alone  spread        "
          "store seconds")
    for case in CASES:
        group = [row for row in rows if row["case"] == case]
        seconds = [row["seconds"] for row in group]
        ratios = [row["seconds"] / alone[row["round"]] for row in group]
        store = [row["store_seconds"] for row in group if row["store_seconds"]]
        print(f"{case:>16} {statistics.median(seconds):>13.3f}  "
              f"{min(seconds):.3f}..{max(seconds):.3f}  "
              f"{statistics.median(ratios):>8.3f}  {min(ratios):.3f}..{max(ratios):.3f}"
              + (f"  {statistics.median(store):>13.3f}" if store else ""))


def main():
    parser = argparse.ArgumentParser(prog="kvstream-bench deferral", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=BUILD)
    parser.add_argument("--dir", default="/var/tmp", help="on the device to measure")
    parser.add_argument("--gib", type=int, default=2, help="bytes of the step, GiB")
    parser.add_argument("--store-mib", type=int, default=2048, help="bytes of the store, MiB")
    parser.add_argument("--pool-mib", type=int, default=5120)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--raw-seconds", type=int, default=5)
    args = parser.parse_args()
    if args.store_mib * MIB > args.pool_mib * MIB // 2:
        parser.error("the store does not fit the half of the pool that writes may use")
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(tempfile.mkdtemp(prefix="kvstream-bench-", dir=args.dir))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        raw(folder, args)
        rows = [measure(folder, args, number, case)
                for number in range(args.rounds) for case in CASES]
    print_table(rows)


if __name__ == "__main__":
    main()
