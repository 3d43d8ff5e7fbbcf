#!/usr/bin/env python3
"""One step, read by kvstreamd from two tiers of known rate, against the time that both could take
together.

Makes two ext4 file systems on loop devices, starts kvstreamd on them in a block-throttled cgroup,
stores the step once unthrottled, then reads it back in rounds at the given rates. Before each
round fio reads the tiers at the same rates, block size and depth, each alone and both at once, so
that one sees whether the machine's own disk delivers the set rates. Needs root, fio, e2fsprogs and
a cgroup v1 blkio controller; everything it makes is removed at the end. Output: one JSON object a
line, then a table.
"""

import argparse
import contextlib
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

from bench_daemon import MIB, ROOT, Daemon, loop_tier

BLKIO = pathlib.Path("/sys/fs/cgroup/blkio")


def throttle(group, devices, rates_mib):
    """Read limits in MiB/s by tier; 0 lifts the limit."""
    for (_, number), rate in zip(devices, rates_mib):
        (group / "blkio.throttle.read_bps_device").write_text(f"{number} {rate * MIB}\n")


def start_daemon(stack, group, folder, devices, args):
    daemon = Daemon(stack, args.build, folder,
                    [(name, mount) for name, (mount, _) in zip(("fast", "slow"), devices)],
                    f"io_kib: {args.io_kib} window_mib: {args.window_mib} open_files: 4096",
                    f"pool {{ mib: {args.pool_mib} }}")
    (group / "cgroup.procs").write_text(str(daemon.process.pid))
    return daemon


def step(args, daemon, *more):
    return daemon.step("--bytes", f"{args.gib}GiB", "--chunk-bytes", args.chunk_bytes,
                       "--segment-bytes", args.segment_bytes, *more)


def raw_rates(group, mounts, args):
    """MiB/s that fio gets from each of the tiers, all read at the same time."""
    readers = []
    for mount in mounts:
        command = ["fio", "--name=raw", "--rw=read", "--direct=1", "--ioengine=io_uring",
                   f"--bs={args.io_kib}k", f"--iodepth={args.window_mib * 1024 // args.io_kib}",
                   "--output-format=json", "--time_based", f"--runtime={args.raw_seconds}",
                   f"--opendir={mount}/v1", "--file_service_type=sequential"]
        reader = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        (group / "cgroup.procs").write_text(str(reader.pid))
        readers.append(reader)
    rates = []
    for reader in readers:
        out = reader.communicate()[0]
        read = json.loads(out[out.index("{"):])["jobs"][0]["read"]
        rates.append(round(read["bw_bytes"] / MIB, 1))
    return rates


def measure(args):
    results = []
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(tempfile.mkdtemp(prefix="kvstream-bench-", dir=args.dir))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        group = BLKIO / folder.name
        group.mkdir()
        stack.callback(group.rmdir)
        size = (args.gib * 1024 * 9 // 8 + 256) * MIB
        devices = [loop_tier(stack, folder, name, size, args.sparse) for name in ("fast", "slow")]
        daemon = start_daemon(stack, group, folder, devices, args)
        step(args, daemon, "--store")
        for number in range(args.rounds):
            throttle(group, devices, args.rates)
            mounts = [mount for mount, _ in devices]
            alone = [raw_rates(group, [mount], args)[0] for mount in mounts]
            raw = raw_rates(group, mounts, args)
            row = step(args, daemon)
            throttle(group, devices, (0, 0))
            bound = row["bytes"] / MIB / sum(args.rates)
            row.update(bench="step", round=number, raw_mib_s=raw, raw_alone_mib_s=alone,
                       rates_mib_s=list(args.rates), bound_seconds=round(bound, 3),
                       above_bound_pct=round((row["seconds"] / bound - 1) * 100, 2),
                       above_raw_pct=round(
                           (row["seconds"] * sum(raw) * MIB / row["bytes"] - 1) * 100, 2))
            print(json.dumps(row), flush=True)
            results.append(row)
    return results


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/release")
    parser.add_argument("--dir", default="/var/tmp", help="where the images go")
    parser.add_argument("--sparse", action="store_true",
                        help="do not allocate the images beforehand; for --dir on a tmpfs")
    parser.add_argument("--gib", type=int, default=6, help="bytes of the step, GiB")
    parser.add_argument("--rates", type=lambda s: tuple(int(r) for r in s.split(",")),
                        default=(900, 300), help="MiB/s of the fast and the slow tier")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--chunk-bytes", default="16MiB")
    parser.add_argument("--segment-bytes", default="4MiB")
    parser.add_argument("--io-kib", type=int, default=512)
    parser.add_argument("--window-mib", type=int, default=32)
    parser.add_argument("--pool-mib", type=int, default=1024)
    parser.add_argument("--raw-seconds", type=int, default=4)
    args = parser.parse_args()
    if os.geteuid() != 0 or not BLKIO.is_dir():
        sys.exit("throttled_step.py: needs root and a cgroup v1 blkio controller at " + str(BLKIO))
    results = measure(args)
    if any(row["above_bound_pct"] < -0.5 for row in results):
        sys.exit("a step faster than the bound by more than 0.5 %: the measurement is wrong")
    print(f"\n{'round':>5} {'seconds':>8} {'bound':>7} {'above %':>8} {'above raw %':>12}  "
          "raw MiB/s: both at once, each alone")
    for row in results:
        print(f"{row['round']:>5} {row['seconds']:>8.3f} {row['bound_seconds']:>7.3f} "
              f"{row['above_bound_pct']:>8.2f} {row['above_raw_pct']:>12.2f}  "
              f"{row['raw_mib_s']} {row['raw_alone_mib_s']}")
    for name, what in (("above_bound_pct", "the bound of the set rates"),
                       ("above_raw_pct", "raw reads of both at once")):
        above = [row[name] for row in results]
        print(f"median {statistics.median(above):.2f} % above {what}, "
              f"{min(above):.2f} .. {max(above):.2f}")


if __name__ == "__main__":
    main()
