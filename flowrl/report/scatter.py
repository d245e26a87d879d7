"""A sweep as a plot: seconds against cost, a mark a point, the front as a stair. One SVG that needs nothing else.

Takes a Sweep, gives text. Both axes are logarithmic, so that twice as fast is as far everywhere. Kinds of GPUs differ
in the form of their marks too, and labels give way to each other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from flowrl.explain.sweep import FITS, MONEY, PER_SAMPLE, Point, Sweep, weighed
from flowrl.report.numbers import seconds

WIDTH, HEIGHT = 860, 560
LEFT, RIGHT, TOP, BOTTOM = 78, 24, 64, 62
LETTER, LINE = 7.0, 14.0
"""Of a label, in units of the drawing."""
COLORS = ("#2563c9", "#c2410c", "#15803d", "#7e22ce", "#a16207", "#be185d")
SAMPLES = 1000
"""Of which seconds and cost are shown where steps differ."""
STYLE = """
svg{font-family:ui-sans-serif,system-ui,Helvetica,Arial,sans-serif;font-size:12px}
.page{fill:#ffffff}.text{fill:#1f2937}.faint{fill:#6b7280}.grid{stroke:#e5e7eb}.axis{stroke:#9ca3af}
.stair{stroke:#9ca3af;fill:none;stroke-dasharray:5 4}.title{font-size:15px;font-weight:600}
.halo{stroke:#ffffff;stroke-width:3px;paint-order:stroke}
@media (prefers-color-scheme:dark){.page{fill:#111827}.text{fill:#e5e7eb}.faint{fill:#9ca3af}
.grid{stroke:#1f2937}.halo{stroke:#111827}}
""".strip()


@dataclass(frozen=True, slots=True)
class _Dot:
    point: Point
    x: float
    y: float
    series: int
    label: str


@dataclass(frozen=True, slots=True)
class _Scale:
    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        share = (math.log(value) - math.log(self.low)) / (math.log(self.high) - math.log(self.low))
        return self.start + share * (self.end - self.start)


def plot_sweep(found: Sweep) -> str:
    """The plot as SVG. Points that do not fit are listed below the title, for they have no place."""
    fitting = [point for point in found.points if point.verdict == FITS]
    body = list(_plotted(found, fitting)) if fitting else [_text(LEFT, HEIGHT / 2, "no point fits", "text")]
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'role="img" aria-label="{escape(found.name)}: seconds against cost">',
        f"<style>{STYLE}</style>",
        f'<rect class="page" width="{WIDTH}" height="{HEIGHT}"/>',
        _text(LEFT, 26, f"{found.name}: {len(found.points)} points, {len(fitting)} fit", "text title"),
        *body,
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _plotted(found: Sweep, fitting: Sequence[Point]) -> Iterator[str]:
    factor = SAMPLES if found.per == PER_SAMPLE else 1
    pairs = [weighed(point, found.cost, found.per) for point in fitting]
    times, costs = [pair[0] * factor for pair in pairs], [pair[1] * factor for pair in pairs]
    across = _scale(costs, LEFT, WIDTH - RIGHT)
    up = _scale(times, HEIGHT - BOTTOM, TOP)
    named, series = _names(found)
    dots = [
        _Dot(point, across.at(cost), up.at(spent), series.index(_kind(point, named)), _label(point, found, named))
        for point, spent, cost in zip(fitting, times, costs, strict=True)
    ]
    unit = f"{SAMPLES:,} samples" if found.per == PER_SAMPLE else "a step"
    money = "price" if found.cost == MONEY else "GPU-seconds"
    yield from _grid(across, up)
    yield _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 14, f"{money} of {unit}", "text", "middle")
    yield _text(20, (TOP + HEIGHT - BOTTOM) / 2, f"seconds of {unit}", "text", "middle", turned=True)
    yield _stair([dot for dot in dots if dot.point.front])
    yield from (_mark(dot) for dot in dots)
    yield from _labels(dots)
    yield from _key(series if named else [], any(dot.point.front for dot in dots))


def _scale(values: Sequence[float], start: float, end: float) -> _Scale:
    """A tenth of room on either side, and at least a factor of 1.5 in all."""
    low, high = max(min(values), 1e-12), max(max(values), 1e-12)
    room = max((high / low) ** 0.1, (1.5 / min(1.5, high / low)) ** 0.5, 1.08)
    return _Scale(low / room, high * room, start, end)


def _names(found: Sweep) -> tuple[str, list[str]]:
    """The axis that has a colour, and its values: kinds of GPUs, else none."""
    kind = next((name for name in found.axes if name.partition(" ")[0] == "gpu"), "")
    return kind, list(found.axes[kind]) if kind else [""]


def _kind(point: Point, named: str) -> str:
    return point.settings.get(named, "")


def _label(point: Point, found: Sweep, named: str) -> str:
    """The settings that the colour does not tell."""
    told = [(name, value) for name, value in point.settings.items() if name != named and len(found.axes[name]) > 1]
    if not told:
        return point.cluster or "" if not named or len(found.axes) > 1 else ""
    return ", ".join(
        f"{value} GPUs" if name == "gpus" else f"{name.rpartition('.')[2]} {value}" for name, value in told
    )


def _grid(across: _Scale, up: _Scale) -> Iterator[str]:
    for value in _ticks(across):
        x = across.at(value)
        yield f'<line class="grid" x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{HEIGHT - BOTTOM}"/>'
        yield _text(x, HEIGHT - BOTTOM + 18, _short(value), "faint", "middle")
    for value in _ticks(up):
        y = up.at(value)
        yield f'<line class="grid" x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}"/>'
        yield _text(LEFT - 8, y + 4, seconds(value), "faint", "end")
    yield f'<path class="axis" fill="none" d="M{LEFT} {TOP}V{HEIGHT - BOTTOM}H{WIDTH - RIGHT}"/>'


def _ticks(scale: _Scale) -> list[float]:
    """Round figures inside: 1, 2 and 5 of each power of ten, all digits where the range is short."""
    digits = (1, 2, 5) if scale.high / scale.low > 6 else (1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9)
    powers = range(math.floor(math.log10(scale.low)), math.ceil(math.log10(scale.high)) + 1)
    values = [digit * 10.0**power for power in powers for digit in digits]
    return [value for value in values if scale.low <= value <= scale.high]


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:g}"


def _stair(front: Sequence[_Dot]) -> str:
    """From one point of the front to the next: what is left and below of it no point reaches."""
    steps = sorted(front, key=lambda dot: (dot.x, dot.y))
    if len(steps) < 2:
        return ""
    path = f"M{steps[0].x:.1f} {steps[0].y:.1f}" + "".join(f"H{dot.x:.1f}V{dot.y:.1f}" for dot in steps[1:])
    return f'<path class="stair" d="{path}"/>'


def _mark(dot: _Dot) -> str:
    """Full on the front, hollow beside it; another form for each kind."""
    color = COLORS[dot.series % len(COLORS)]
    fill = color if dot.point.front else "none"
    told = escape(
        f"{', '.join(f'{k} {v}' for k, v in dot.point.settings.items())}: {seconds(dot.point.step_seconds or 0)} a step"
    )
    look = f'fill="{fill}" stroke="{color}" stroke-width="2"'
    x, y = dot.x, dot.y
    shapes = (
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5.5" {look}>',
        f'<rect x="{x - 5:.1f}" y="{y - 5:.1f}" width="10" height="10" {look}>',
        f'<path d="M{x:.1f} {y - 6.5:.1f}L{x + 6:.1f} {y + 5:.1f}H{x - 6:.1f}Z" {look}>',
        f'<path d="M{x:.1f} {y - 7:.1f}L{x + 6.5:.1f} {y:.1f}L{x:.1f} {y + 7:.1f}L{x - 6.5:.1f} {y:.1f}Z" {look}>',
    )
    opened = shapes[dot.series % len(shapes)]
    return f"{opened}<title>{told}</title></{opened[1:].partition(' ')[0]}>"


Box = tuple[float, float, float, float]


def _labels(dots: Sequence[_Dot]) -> Iterator[str]:
    """Labels of the front first, each in the first place around its mark that is free; the last resort is above."""
    taken: list[Box] = [(dot.x - 7, dot.y - 7, dot.x + 7, dot.y + 7) for dot in dots]
    for dot in sorted(dots, key=lambda each: not each.point.front):
        if not dot.label:
            continue
        size = len(dot.label) * LETTER
        places = list(_places(dot, size))
        free = [box for box in places if _inside(box) and not any(_meets(box, other) for other in taken)]
        if not free and not dot.point.front:
            continue  # its mark has a title, and the table has it all
        box = free[0] if free else places[0]
        taken.append(box)
        yield _text(box[0], box[3] - 3, dot.label, "text halo" if dot.point.front else "faint halo")


def _places(dot: _Dot, size: float) -> Iterator[Box]:
    """On the front below to the left first, where no point is and the stair is not; else right, left, above, below and
    the corners."""
    corners = ((9.0, -13.0), (9.0, 13.0), (-9 - size, -13.0))
    sides = ((10.0, 0.0), (-10 - size, 0.0), (-size / 2, -16.0), (-size / 2, 16.0), *corners)
    below = (-9 - size, 13.0)
    for dx, dy in (below, *sides) if dot.point.front else (*sides, below):
        left, middle = dot.x + dx, dot.y + dy
        yield left, middle - LINE / 2, left + size, middle + LINE / 2


def _inside(box: Box) -> bool:
    return box[0] >= LEFT and box[2] <= WIDTH - 4 and box[1] >= TOP - 10 and box[3] <= HEIGHT - BOTTOM


def _meets(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _key(series: Sequence[str], has_front: bool) -> Iterator[str]:
    x = float(LEFT)
    blank = Point(settings={}, cluster=None, devices=None, verdict=FITS)
    for at, name in enumerate(series):
        yield _mark(_Dot(blank, x + 6, 46, at, ""))
        yield _text(x + 18, 50, name, "text")
        x += 34 + len(name) * LETTER * 1.1
    if has_front:
        yield _text(x + (10 if series else 0), 50, "filled: nothing is both as fast and as cheap", "faint")


def _text(x: float, y: float, text: str, kind: str, anchor: str = "start", turned: bool = False) -> str:
    turn = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if turned else ""
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{turn}>{escape(text)}</text>'
