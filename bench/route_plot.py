"""An SVG of what route.py measured: time over bound by fixed split, one panel a scenario, with the
lines of the policies that have no split across it."""

import statistics

import plot

COLOURS = {"completion": "#1b7f3b", "published": "#b3541e", "fixed": "#2b5fa8"}


def median(rows, scenario, policy):
    values = [r["above_bound_pct"] for r in rows
              if (r["scenario"], r["policy"]) == (scenario, policy)]
    return statistics.median(values) if values else None


def panel(rows, scenario, number, top):
    """`top`: percent at the upper edge."""
    splits = sorted({int(r["policy"].partition(":")[2]) for r in rows
                     if r["policy"].startswith("fixed:")})
    low, high = (splits[0], splits[-1]) if len(splits) > 1 else (0, 100)
    out = plot.Panel(number, scenario, low, high, top)
    medians = {split: median(rows, scenario, f"fixed:{split}") for split in splits}
    out.curve([(split, pct) for split, pct in medians.items() if pct is not None],
              COLOURS["fixed"])
    lines = [p for p in dict.fromkeys(r["policy"] for r in rows)
             if p.partition(":")[0] in ("completion", "published")]
    for row, policy in enumerate(lines):
        value = median(rows, scenario, policy)
        colour = COLOURS[policy.partition(":")[0]]
        out.across(value, colour)
        out.label(row, f"{policy} {value:.1f} %", colour)
    out.places(splits, "percent from the first tier (fixed split)")
    return out


def svg(rows):
    scenarios = list(dict.fromkeys(row["scenario"] for row in rows))
    highest = max(median(rows, r["scenario"], r["policy"]) for r in rows)
    top = max(20, -(-int(highest + 1) // 20) * 20)
    return plot.svg([panel(rows, s, i, top) for i, s in enumerate(scenarios)])
