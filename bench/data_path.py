#!/usr/bin/env python3
"""What the daemon's own data path costs: GB/s and CPU seconds per GB of reading a step and of
storing one, by stage, with all cores and with one.

Starts kvstreamd on two directories (on a tmpfs by default, so that no disk is the limit), stores a
step and reads it back in rounds, and takes each thread's CPU time from /proc before and after.
Threads are named after their stage: tierN-read and tierN-write move bytes between a tier and the
staging pool (on a tmpfs that is a copy by the CPU, which a device would do by DMA), copy verifies
and copies to the host buffer, engine decides, the rest is gRPC and the handoff. A store goes to
both tiers. GB are 10^9 bytes of the step. Output: one JSON object a line, then a table.
"""

import argparse
import contextlib
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import tempfile

from bench_daemon import BUILD, MIB, Daemon, loop_tier, run

STAGES = (("tier read", re.compile(r"tier\d+-read.*")), ("tier write", re.compile(r"tier\d+-.*")),
          ("verify and copy", re.compile(r"copy")), ("engine", re.compile(r"engine")),
          ("deliver", re.compile(r".*")))


def cpu_seconds(pid):
    """A process' tasks, up to now: stage and CPU seconds of each."""
    tasks = pathlib.Path(f"/proc/{pid}/task")
    seconds = {}
    for task in tasks.iterdir():
        try:
            name = (task / "comm").read_text().strip()
            # A worker of io_uring's is named after the thread whose ring it serves.
            if name.startswith("iou-wrk-"):
                name = (tasks / name.removeprefix("iou-wrk-") / "comm").read_text().strip()
            spent = int((task / "schedstat").read_text().split()[0]) / 1e9
        except (FileNotFoundError, ProcessLookupError):
            continue  # It has just ended.
        seconds[task.name] = (next(stage for stage, pattern in STAGES if pattern.fullmatch(name)),
                              spent)
    return seconds


def spent_between(before, after, gb):
    """CPU seconds per GB by stage. Tasks that have ended are left out: idle workers do."""
    stages = dict.fromkeys((name for name, _ in STAGES), 0.0)
    for task, (stage, seconds) in after.items():
        stages[stage] += (seconds - before.get(task, (stage, 0.0))[1]) / gb
    return {stage: round(seconds, 4) for stage, seconds in stages.items()}


def make_root(stack, folder, name, args):
    if args.loop:
        return loop_tier(stack, folder, name, (args.gib * 1024 * 9 // 8 + 256) * MIB, True)[0]
    (folder / name).mkdir()
    return folder / name


def measure(args, cores):
    prefix = ("taskset", "--cpu-list", cores) if cores else ()
    pool = f"pool {{ mib: {args.pool_mib} copy_threads: {args.copy_threads} }}"
    rows = []
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(tempfile.mkdtemp(prefix="kvstream-bench-", dir=args.dir))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        tiers = [(name, make_root(stack, folder, name, args)) for name in ("a", "b")]
        daemon = Daemon(stack, args.build, folder, tiers,
                        f"window_mib: {args.window_mib} open_files: 4096", pool, prefix)
        status = json.loads(run(str(args.build / "client/kvstreamctl"), "--socket",
                                str(daemon.socket), "--json", "status"))
        tier = status["tiers"][0]
        size = ("--bytes", f"{args.gib}GiB", "--chunk-bytes", args.chunk_bytes,
                "--segment-bytes", args.segment_bytes)
        stores = daemon.paced(*size, "--store", prefix=prefix)
        next(stores)
        reads = None
        for number in range(args.rounds + 1):
            store = number == 0
            if number == 1:
                stores.close()
                reads = daemon.paced(*size, prefix=prefix)
                next(reads)
            before = cpu_seconds(daemon.process.pid)
            row = next(stores if store else reads)
            after = cpu_seconds(daemon.process.pid)
            stages = spent_between(before, after, row["bytes"] / 1e9)
            row = {"bench": "data_path", "operation": "store" if store else "read_step",
                   "round": number, "cores": cores or "all", "io_engine": tier["io_engine"],
                   "direct": tier.get("direct", False),
                   "gb_s": round(row["bytes"] / 1e9 / row["seconds"], 3),
                   "cpu_s_gb": round(sum(stages.values()), 4), "stages_cpu_s_gb": stages}
            print(json.dumps(row), flush=True)
            rows.append(row)
        reads.close()
    return rows


def print_table(rows):
    names = [name for name, _ in STAGES]
    print(f"\n{'operation':10} {'cores':>6} {'GB/s':>6} {'CPU s/GB':>9}  "
          + "  ".join(f"{name:>15}" for name in names))
    groups = {}
    for row in rows:
        groups.setdefault((row["operation"], row["cores"]), []).append(row)
    for (operation, cores), group in groups.items():
        median = lambda pick: statistics.median(pick(row) for row in group)
        print(f"{operation:10} {cores:>6} {median(lambda r: r['gb_s']):>6.2f} "
              f"{median(lambda r: r['cpu_s_gb']):>9.3f}  "
              + "  ".join(f"{median(lambda r: r['stages_cpu_s_gb'][name]):>15.4f}"
                          for name in names))


def main():
    parser = argparse.ArgumentParser(prog="kvstream-bench data_path", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=BUILD)
    parser.add_argument("--dir", default="/dev/shm", help="where the tiers lie")
    parser.add_argument("--loop", action="store_true",
                        help="tiers on ext4 on loop devices there (root): block devices, whose "
                        "copying is not the daemon's")
    parser.add_argument("--gib", type=int, default=3, help="bytes of the step, GiB")
    parser.add_argument("--rounds", type=int, default=5, help="reads of the step")
    parser.add_argument("--chunk-bytes", default="16MiB")
    parser.add_argument("--segment-bytes", default="4MiB")
    parser.add_argument("--window-mib", type=int, default=32)
    parser.add_argument("--pool-mib", type=int, default=512)
    parser.add_argument("--copy-threads", type=int, default=2)
    args = parser.parse_args()
    rows = measure(args, None)
    if os.cpu_count() > 1:
        rows += measure(args, "0")
    print_table(rows)


if __name__ == "__main__":
    main()
