"""An SVG of what compare.py measured: a bar for each contender's cold reads, one panel for each
pair of rates, with a line at what both tiers deliver."""

import statistics

WIDTH, LEFT, BAR, GAP, TOP = 620, 300, 20, 8, 40
COLOURS = {"kvstream": "#1b7f3b"}
OTHER = "#2b5fa8"


def panel(rows, rates, descriptions, y0):
    """Its lines, and its height."""
    values = {}
    for row in rows:
        if not row["contender"].startswith("l2"):
            values.setdefault(row["contender"], []).append(row["mib_s"])
    most = sum(rates) * 1.06
    x = lambda value: LEFT + value / most * (WIDTH - LEFT - 20)
    height = TOP + len(values) * (BAR + GAP) + 20
    bottom = y0 + height - 20
    out = [f'<text x="{LEFT}" y="{y0 + 16}" font-weight="bold">tiers of {rates[0]} and {rates[1]} '
           'MiB/s</text>']
    for i, (name, each) in enumerate(values.items()):
        y = y0 + TOP + i * (BAR + GAP)
        middle = statistics.median(each)
        out += [f'<text x="{LEFT - 8}" y="{y + 14}" text-anchor="end">{descriptions[name]}</text>',
                f'<rect x="{LEFT}" y="{y}" width="{x(middle) - LEFT:.1f}" height="{BAR}" '
                f'fill="{COLOURS.get(name, OTHER)}"/>',
                f'<line x1="{x(min(each)):.1f}" x2="{x(max(each)):.1f}" y1="{y + BAR / 2}" '
                f'y2="{y + BAR / 2}" stroke="black"/>',
                f'<text x="{LEFT + 6}" y="{y + 14}" fill="white">{middle:.0f} MiB/s</text>']
    for value, words in ((rates[0], "fast tier"), (sum(rates), "both")):
        out.append(f'<line x1="{x(value):.1f}" x2="{x(value):.1f}" y1="{y0 + TOP - 6}" '
                   f'y2="{bottom}" stroke="#b3541e" stroke-dasharray="4 3"/>'
                   f'<text x="{x(value):.1f}" y="{y0 + TOP - 10}" text-anchor="end" '
                   f'fill="#b3541e">{words}</text>')
    return out, height


def svg(rows, descriptions):
    """All panels, one below the other."""
    body, y0 = [], 0
    for rates in dict.fromkeys(tuple(row["rates_mib_s"]) for row in rows):
        lines, height = panel([row for row in rows if tuple(row["rates_mib_s"]) == rates], rates,
                              descriptions, y0)
        body += lines
        y0 += height
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{y0}" '
            'font-family="sans-serif" font-size="11">\n'
            '<rect width="100%" height="100%" fill="white"/>\n' + "\n".join(body) + "\n</svg>\n")
