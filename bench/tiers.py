#!/usr/bin/env python3
"""What each tier delivers alone and what both deliver together: raw, as fio reads the same files
with the same requests in flight, and through the daemon. The short form of kvstream-bench route,
with its options but --policies, --scenarios and --plot. Output: one JSON object a line, and a
table.
"""

import contextlib
import json
import statistics

import route
from bench_daemon import MIB
from emulated_tiers import fio_read

CASES = {"fast": ("single:fast", [0]), "slow": ("single:slow", [1]), "both": ("completion", [0, 1])}


def measure(rig, args, number, name):
    """The raw row and the daemon's, one right after the other."""
    policy, tiers = CASES[name]
    with contextlib.ExitStack() as stack:
        daemon = rig.daemon(stack, policy)
        daemon.step(*rig.step_options(), "--store")
        steps = daemon.paced(*rig.step_options())
        next(steps)
        if rig.emulated:
            for tier, rate in enumerate(args.rates):
                rig.emulated.set_rate(tier, rate)
        raw = sum(fio_read([rig.roots[t] for t in tiers], rig.emulated and rig.emulated.group,
                           args.io_kib, args.window_mib * 1024 // args.io_kib, args.raw_seconds))
        row = next(steps)
        steps.close()
        if rig.emulated:
            rig.emulated.lift()
    rate = row["bytes"] / MIB / row["seconds"]
    row = {"bench": "tiers", "case": name, "round": number, "raw_mib_s": round(raw, 1),
           "daemon_mib_s": round(rate, 1), "of_raw": round(rate / raw, 4)}
    print(json.dumps(row), flush=True)
    return row


def main():
    args = route.parse("kvstream-bench tiers", __doc__)
    rows = []
    with contextlib.ExitStack() as stack:
        rig = route.Rig(stack, args)
        for number in range(args.rounds):
            rows += [measure(rig, args, number, name) for name in CASES]
    print(f"\n{'tiers':>6} {'raw MiB/s':>10} {'daemon MiB/s':>13} {'of raw':>7}  spread")
    for name in CASES:
        group = [row for row in rows if row["case"] == name]
        median = lambda field: statistics.median(row[field] for row in group)
        ratios = [row["of_raw"] for row in group]
        print(f"{name:>6} {median('raw_mib_s'):>10.1f} {median('daemon_mib_s'):>13.1f} "
              f"{median('of_raw'):>7.3f}  {min(ratios):.3f}..{max(ratios):.3f}")


if __name__ == "__main__":
    main()
