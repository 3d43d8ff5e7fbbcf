#!/usr/bin/env python3
"""An SVG of the hit rates that kvstream-bench cache counted: by capacity, one panel a trace, a line
for each policy and one for the most that any could have.

Takes the lines of figures.jsonl whose bench is "cache": those of kvstream-bench cache with the
trace's name beside them.
"""

import argparse
import json
import pathlib

import plot

HERE = pathlib.Path(__file__).resolve().parent
POLICIES = {"belady": ("at most (Belady)", "#888"), "arc": ("ARC", "#1b7f3b"),
            "lru": ("LRU", "#2b5fa8"), "s3-fifo": ("S3-FIFO", "#b3541e")}
# Their first row stands above the lower edge by as many rows as there are.
LEGEND_TOP = plot.HEIGHT - 50 - 12 * (len(POLICIES) - 1)


def panel(rows, trace, number):
    rates = {(r["policy"], r["percent"]): 100 * r["rate"] for r in rows if r["trace"] == trace}
    capacities = sorted({percent for _, percent in rates})
    out = plot.Panel(number, trace, 0, capacities[-1], 100)
    for row, (policy, (name, colour)) in enumerate(POLICIES.items()):
        out.curve([(c, rates[policy, c]) for c in capacities], colour)
        out.label(row, name, colour, LEGEND_TOP)
    out.places(capacities, "capacity, percent of the unique chunks")
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--figures", type=pathlib.Path, default=HERE / "figures.jsonl")
    parser.add_argument("--plot", type=pathlib.Path, default=HERE / "cache.svg")
    args = parser.parse_args()
    lines = args.figures.read_text(encoding="utf-8").splitlines()
    rows = [row for row in map(json.loads, lines) if row["bench"] == "cache"]
    traces = dict.fromkeys(row["trace"] for row in rows)
    args.plot.write_text(plot.svg([panel(rows, t, i) for i, t in enumerate(traces)]),
                         encoding="utf-8")


if __name__ == "__main__":
    main()
