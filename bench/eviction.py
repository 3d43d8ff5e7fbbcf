#!/usr/bin/env python3
"""What eviction costs reads while stores fill a tier.

One tier, on an ext4 on a loop device whose reads and direct writes the block layer throttles (root,
e2fsprogs, cgroup v1), or with --tier on a directory of your own, not throttled. It has old chunks,
and the chunks of a step, stored after them. That step is read again and again beside a store, whose
writes wait for no reads: on a tier with room for all of it, on one whose capacity is what is there,
so that each write has to wait for a deletion, and with room once more, which shows what two runs of
the same differ by. All of them read and write the same bytes, on directories emptied before. What
is read counts from after the first read, and only while the store goes on; every read is checked,
and the step is read once more after the store, so that none of it has been evicted. Output: one
JSON object a line, and a table.
"""

import argparse
import contextlib
import json
import os
import pathlib
import shutil
import statistics
import sys
import tempfile
import threading
import time

from bench_daemon import BUILD, MIB, Daemon, run
from emulated_tiers import EmulatedTiers

CASES = ("room", "full", "room again")
# First chunks: of what is old, of what is stored beside the reads.
OLD, NEW = 1_000_000, 2_000_000


def old_mib(args):
    """More than the store pushes out: the rest of the old goes before the step's chunks do."""
    return args.store_mib * 9 // 8


class Rig:
    """The tier's directory, and its throttle if it has one."""

    def __init__(self, stack, args):
        self.args = args
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="kvstream-bench-", dir=args.dir))
        stack.callback(shutil.rmtree, self.folder, ignore_errors=True)
        self.emulated = None
        if args.tier:
            self.root = pathlib.Path(tempfile.mkdtemp(prefix="kvstream-bench-", dir=args.tier))
            stack.callback(shutil.rmtree, self.root, ignore_errors=True)
        else:
            size = (args.step_mib + old_mib(args) + args.store_mib) * 9 // 8 // 4 * 4 + 256
            self.emulated = EmulatedTiers(stack, self.folder, size * MIB, False, ["only"])
            self.root = self.emulated.roots[0]

    def daemon(self, stack, case):
        args = self.args
        shutil.rmtree(self.root / "v1", ignore_errors=True)
        # Beyond it are the files' headers, so that it is reached before the store begins.
        capacity = f"capacity_mib: {args.step_mib + old_mib(args)}" if case == "full" else ""
        daemon = Daemon(stack, args.build, self.folder, [("only", self.root)],
                        f"open_files: 4096 write_window_mib: {args.write_window_mib} {capacity}",
                        f"pool {{ mib: {args.pool_mib} }}\nwrites {{ max_defer_ms: 0 }}")
        if self.emulated:
            self.emulated.join(daemon.process.pid)
        return daemon

    def throttle(self, rates):
        if self.emulated:
            for direction, rate in zip(("read", "write"), rates):
                self.emulated.set_rate(0, rate, direction)


def tier_now(args, daemon):
    """Its counters, and when."""
    status = json.loads(run(str(args.build / "client/kvstreamctl"), "--socket", str(daemon.socket),
                            "status", "--json"))
    return {"time": time.monotonic(), **{name: int(status["tiers"][0].get(name, 0)) for name in
            ("bytes_written", "files_evicted", "bytes_evicted", "corrupt_reads")}}


def read_beside_store(rig, daemon, step, store):
    """Seconds of each read and of the whole store, and the tier's counters around the reads."""
    args = rig.args
    reads, stores = daemon.paced(*step), daemon.paced(*store)
    next(reads)
    next(stores)
    # Else the journal's writes of what was filled before would fall into the time.
    os.sync()
    rig.throttle(args.rates)
    stored = {}
    writer = threading.Thread(target=lambda: stored.update(next(stores)))
    writer.start()
    next(reads)
    before = tier_now(args, daemon)
    seconds = [next(reads)["seconds"] for _ in range(args.reads)]
    after = tier_now(args, daemon)
    if not writer.is_alive():
        sys.exit("eviction: the store ended before the reads: give it more --store-mib")
    writer.join()
    rig.throttle((None, None))
    next(reads)
    stores.close()
    reads.close()
    return seconds, stored["seconds"], before, after


def measure(rig, number, case):
    args = rig.args
    shape = ("--chunk-bytes", args.chunk_bytes, "--segment-bytes", args.segment_bytes)
    step = ("--bytes", f"{args.step_mib}MiB", *shape)
    fill = lambda mib, first: ("--bytes", f"{mib}MiB", "--first", str(first), *shape, "--store")
    with contextlib.ExitStack() as stack:
        daemon = rig.daemon(stack, case)
        daemon.step(*fill(old_mib(args), OLD))
        daemon.step(*step, "--store")
        seconds, stored, before, after = read_beside_store(rig, daemon, step,
                                                          fill(args.store_mib, NEW))
        total = tier_now(args, daemon)
    took = after["time"] - before["time"]
    mib = lambda name: (after[name] - before[name]) / MIB
    row = {"bench": "eviction", "tier": "own" if args.tier else "emulated",
           "chunk_bytes": args.chunk_bytes, "write_window_mib": args.write_window_mib,
           "step_mib": args.step_mib, "store_mib": args.store_mib, "case": case, "round": number,
           "step_seconds": [round(s, 3) for s in seconds],
           "read_mib_s": round(args.reads * args.step_mib / sum(seconds), 1),
           "write_mib_s": round(mib("bytes_written") / took, 1),
           "evicted_mib_s": round(mib("bytes_evicted") / took, 1),
           "files_evicted": total["files_evicted"], "corrupt_reads": total["corrupt_reads"],
           "store_seconds": round(stored, 3)}
    print(json.dumps(row), flush=True)
    if (row["files_evicted"] > 0) != (case == "full"):
        sys.exit("eviction: it evicted where it had room, or did not where it had none")
    return row


def print_table(rows):
    at = {(row["round"], row["case"]): row for row in rows}

    def of_room(row, name):
        """Of the mean of both runs with room in its round; the second of those, of the first."""
        room, again = at[row["round"], "room"][name], at[row["round"], "room again"][name]
        return row[name] / (room if row["case"] == "room again" else (room + again) / 2)

    print(f"\n{'tier':>10} {'reads MiB/s':>12} {'of room':>8}  spread        {'step s':>7} "
          f"{'longest':>8} {'writes MiB/s':>13} {'of room':>8}  spread        evicted MiB/s")
    for case in CASES:
        group = [row for row in rows if row["case"] == case]
        median = lambda name: statistics.median(row[name] for row in group)
        steps = [seconds for row in group for seconds in row["step_seconds"]]
        cells = []
        for name in ("read_mib_s", "write_mib_s"):
            ratios = [of_room(row, name) for row in group] if case != "room" else [1.0]
            cells.append(f"{statistics.median(ratios):>8.3f}  {min(ratios):.3f}..{max(ratios):.3f}")
        print(f"{case:>10} {median('read_mib_s'):>12.1f} {cells[0]}  "
              f"{statistics.median(steps):>7.3f} {max(steps):>8.3f} "
              f"{median('write_mib_s'):>13.1f} {cells[1]}  {median('evicted_mib_s'):>13.1f}")


def main():
    parser = argparse.ArgumentParser(prog="kvstream-bench eviction", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=BUILD)
    parser.add_argument("--dir", default="/var/tmp", help="where the emulated tier's image lies")
    parser.add_argument("--tier", type=pathlib.Path, metavar="DIRECTORY",
                        help="a directory of your own, not throttled")
    parser.add_argument("--rates", type=lambda t: [float(r) for r in t.split(",")],
                        default=[300.0, 200.0], metavar="READ,WRITE",
                        help="of the emulated tier, MiB/s (default 300,200)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--reads", type=int, default=5, help="of the step, in each case")
    parser.add_argument("--step-mib", type=int, default=512)
    parser.add_argument("--store-mib", type=int, default=3072,
                        help="of the store, which has to last longer than the reads; as much and "
                        "an eighth more is old")
    parser.add_argument("--chunk-bytes", default="16MiB")
    parser.add_argument("--segment-bytes", default="4MiB")
    parser.add_argument("--write-window-mib", type=int, default=32, help="writes in flight")
    parser.add_argument("--pool-mib", type=int, default=1024)
    args = parser.parse_args()
    with contextlib.ExitStack() as stack:
        rig = Rig(stack, args)
        rows = [measure(rig, number, case) for number in range(args.rounds) for case in CASES]
    print_table(rows)


if __name__ == "__main__":
    main()
