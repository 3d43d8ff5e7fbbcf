"""An SVG of what route.py measured: time over bound by fixed split, one panel a scenario, with the
lines of the policies that have no split across it."""

import statistics

WIDTH, HEIGHT, LEFT, TOP = 300, 220, 46, 30
COLOURS = {"completion": "#1b7f3b", "published": "#b3541e", "fixed": "#2b5fa8"}


def median(rows, scenario, policy):
    values = [r["above_bound_pct"] for r in rows
              if (r["scenario"], r["policy"]) == (scenario, policy)]
    return statistics.median(values) if values else None


def panel(rows, scenario, x0, top):
    """`top`: percent at the upper edge."""
    splits = sorted({int(r["policy"].partition(":")[2]) for r in rows
                     if r["policy"].startswith("fixed:")})
    low, high = (splits[0], splits[-1]) if len(splits) > 1 else (0, 100)
    x = lambda split: x0 + LEFT + (split - low) / (high - low) * (WIDTH - LEFT - 20)
    y = lambda pct: TOP + (1 - max(pct, 0) / top) * (HEIGHT - TOP - 40)
    out = [f'<text x="{x0 + LEFT}" y="18" font-weight="bold">{scenario}</text>']
    for pct in (top * k // 4 for k in range(5)):
        out.append(f'<line x1="{x(low)}" x2="{x(high)}" y1="{y(pct)}" y2="{y(pct)}" '
                   f'stroke="#ddd"/><text x="{x0 + LEFT - 6}" y="{y(pct) + 4}" '
                   f'text-anchor="end">{pct} %</text>')
    medians = {split: median(rows, scenario, f"fixed:{split}") for split in splits}
    points = [(x(split), y(pct)) for split, pct in medians.items() if pct is not None]
    out.append(f'<polyline fill="none" stroke="{COLOURS["fixed"]}" stroke-width="2" points="'
               + " ".join(f"{a:.1f},{b:.1f}" for a, b in points) + '"/>')
    out += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3" fill="{COLOURS["fixed"]}"/>'
            for a, b in points]
    for split in splits:
        out.append(f'<text x="{x(split)}" y="{HEIGHT - 22}" text-anchor="middle">{split}</text>')
    lines = [p for p in dict.fromkeys(r["policy"] for r in rows)
             if p.partition(":")[0] in ("completion", "published")]
    for row, policy in enumerate(lines):
        value = median(rows, scenario, policy)
        colour = COLOURS[policy.partition(":")[0]]
        out.append(f'<line x1="{x(low)}" x2="{x(high)}" y1="{y(value)}" y2="{y(value)}" '
                   f'stroke="{colour}" stroke-width="2"/><text x="{x(high)}" '
                   f'y="{TOP + 12 * row}" text-anchor="end" fill="{colour}">{policy} '
                   f'{value:.1f} %</text>')
    out.append(f'<text x="{x0 + WIDTH / 2 + 10}" y="{HEIGHT - 6}" text-anchor="middle">'
               'percent from the first tier (fixed split)</text>')
    return out


def svg(rows):
    scenarios = list(dict.fromkeys(row["scenario"] for row in rows))
    highest = max(median(rows, r["scenario"], r["policy"]) for r in rows)
    top = max(20, -(-int(highest + 1) // 20) * 20)
    body = [line for i, s in enumerate(scenarios) for line in panel(rows, s, i * WIDTH, top)]
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH * len(scenarios)}" '
            f'height="{HEIGHT}" font-family="sans-serif" font-size="11">\n'
            '<rect width="100%" height="100%" fill="white"/>\n' + "\n".join(body) + "\n</svg>\n")
