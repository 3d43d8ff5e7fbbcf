"""What the plots share: an SVG of panels side by side, each with percent upwards and a few marked
places along its lower edge."""

WIDTH, HEIGHT, LEFT, TOP = 300, 220, 46, 30


class Panel:
    """The panel `number` of a plot, from `low` to `high` along and from 0 to `top` percent upwards.
    What is drawn later lies over what was drawn before."""

    def __init__(self, number, title, low, high, top):
        self._x0, self._low, self._high, self._top = number * WIDTH, low, high, top
        self.lines = [f'<text x="{self._x0 + LEFT}" y="18" font-weight="bold">{title}</text>']
        for pct in (top * k // 4 for k in range(5)):
            self.across(pct, "#ddd", 1)
            self.lines[-1] += (f'<text x="{self._x0 + LEFT - 6}" y="{self.y(pct) + 4}" '
                               f'text-anchor="end">{pct} %</text>')

    def x(self, at):
        return self._x0 + LEFT + (at - self._low) / (self._high - self._low) * (WIDTH - LEFT - 20)

    def y(self, pct):
        return TOP + (1 - max(pct, 0) / self._top) * (HEIGHT - TOP - 40)

    def across(self, pct, colour, width=2):
        """A line from edge to edge."""
        stroke = f'stroke="{colour}"' + (f' stroke-width="{width}"' if width > 1 else "")
        self.lines.append(f'<line x1="{self.x(self._low)}" x2="{self.x(self._high)}" '
                          f'y1="{self.y(pct)}" y2="{self.y(pct)}" {stroke}/>')

    def curve(self, points, colour):
        """`points`: pairs of place and percent."""
        at = [(self.x(place), self.y(pct)) for place, pct in points]
        self.lines.append(f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="'
                          + " ".join(f"{x:.1f},{y:.1f}" for x, y in at) + '"/>')
        self.lines += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>'
                       for x, y in at]

    def label(self, row, text, colour, y=TOP):
        """A line of the legend at the right edge, `row` of them below `y`."""
        self.lines.append(f'<text x="{self.x(self._high)}" y="{y + 12 * row}" text-anchor="end" '
                          f'fill="{colour}">{text}</text>')

    def places(self, marked, meaning):
        self.lines += [f'<text x="{self.x(at)}" y="{HEIGHT - 22}" text-anchor="middle">{at}</text>'
                       for at in marked]
        self.lines.append(f'<text x="{self._x0 + WIDTH / 2 + 10}" y="{HEIGHT - 6}" '
                          f'text-anchor="middle">{meaning}</text>')


def svg(panels):
    body = [line for panel in panels for line in panel.lines]
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH * len(panels)}" '
            f'height="{HEIGHT}" font-family="sans-serif" font-size="11">\n'
            '<rect width="100%" height="100%" fill="white"/>\n' + "\n".join(body) + "\n</svg>\n")
