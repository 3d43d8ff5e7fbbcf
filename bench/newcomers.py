#!/usr/bin/env python3
"""How long a small step takes beside a large one, against its time alone.

On emulated tiers (as kvstream-bench route), or on directories of your own with --dirs: small steps
one after the other, first alone, then while a large step is read. Output: one JSON object a round,
and a table. The window of each tier shrinks to routing.ahead_ms while the large step runs, so its
first seconds are the worst.
"""

import contextlib
import json
import statistics
import threading

import route
from bench_daemon import MIB

SMALL_CHUNKS = 4


def quantile(values, q):
    return sorted(values)[min(len(values) - 1, int(q * len(values)))]


def measure(rig, args, number):
    shape = ("--chunk-bytes", args.chunk_bytes, "--segment-bytes", args.segment_bytes)
    chunk = int(args.chunk_bytes.removesuffix("MiB")) * MIB
    first = rig.step_bytes // chunk
    small_options = ("--bytes", str(SMALL_CHUNKS * chunk), "--first", str(first), *shape)
    with contextlib.ExitStack() as stack:
        daemon = rig.daemon(stack, "completion")
        daemon.step(*rig.step_options(), "--store")
        daemon.step(*small_options, "--store")
        begun, times, beside = threading.Event(), {}, []
        large = daemon.paced(*rig.step_options(), on_begin=lambda _: begun.set())
        small = daemon.paced(*small_options)
        next(large)
        next(small)
        if rig.emulated:
            for tier, rate in enumerate(args.rates):
                rig.emulated.set_rate(tier, rate)
        alone = [next(small)["seconds"] for _ in range(50)]
        # The client prepares its buffer before it begins.
        reader = threading.Thread(target=lambda: times.update(next(large)))
        reader.start()
        begun.wait()
        while reader.is_alive():
            beside.append(next(small)["seconds"])
        reader.join()
        beside.pop()  # It saw the large step's end.
        large.close()
        small.close()
        if rig.emulated:
            rig.emulated.lift()
    milliseconds = lambda seconds: round(seconds * 1000, 1)
    row = {"bench": "newcomers", "round": number, "large_chunks": first,
           "large_seconds": round(times["seconds"], 3), "steps_alone": len(alone),
           "steps_beside": len(beside), "alone_p50_ms": milliseconds(statistics.median(alone)),
           "alone_p99_ms": milliseconds(quantile(alone, 0.99)),
           "beside_p50_ms": milliseconds(statistics.median(beside)),
           "beside_p99_ms": milliseconds(quantile(beside, 0.99))}
    print(json.dumps(row), flush=True)
    return row


def main():
    args = route.parse("kvstream-bench newcomers", __doc__)
    with contextlib.ExitStack() as stack:
        rig = route.Rig(stack, args)
        rows = [measure(rig, args, number) for number in range(args.rounds)]
    print(f"\n{'':>8} {'p50 ms':>8} {'p99 ms':>8}")
    for name in ("alone", "beside"):
        median = lambda field: statistics.median(row[field] for row in rows)
        print(f"{name:>8} {median(name + '_p50_ms'):>8.1f} {median(name + '_p99_ms'):>8.1f}")


if __name__ == "__main__":
    main()
