"""Measured against planned step times as an SVG, drawn by hand: no plotting library is needed, a browser shows it.

Takes rows of the section of step times, gives the text of the picture. Deterministic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from math import floor, log10
from typing import Any

SIZE, LEFT, TOP, LEGEND = 640, 70, 40, 300
COLOURS = ("#1b6ca8", "#d1495b", "#3f7d20", "#8e5ea2", "#e08e0b", "#00798c", "#6b4f3a", "#5c5c5c", "#b5179e", "#2a2a72")
TICKS = (10, 30, 100, 300, 1000, 3000, 10000)
BAND = 0.30


def picture(rows: Sequence[Mapping[str, Any]], key: str, title: str) -> str:
    """A point a row, by family; filled circles for rows that the bars are for. The band is ±30 %, in logarithms."""
    shown = [row for row in rows if row.get(key)]
    values = [float(row[name]) for row in shown for name in ("measured", key)]
    low, high = 10 ** floor(log10(min(values, default=1.0))), max(values, default=10.0) * 1.2
    families = sorted({str(row["family"]) for row in shown})
    colour = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(families)}

    def at(value: float) -> float:
        return SIZE * log10(value / low) / log10(high / low)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + SIZE + LEGEND} {TOP + SIZE + 60}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="100%" height="100%" fill="white"/><text x="{LEFT}" y="22" font-size="15">{escape(title)}</text>',
        f'<g transform="translate({LEFT},{TOP})">',
        _band(at, low, high),
        *_axes(at, low, high),
    ]
    for row in shown:
        x, y = at(float(row["measured"])), SIZE - at(float(row[key]))
        fill = colour[str(row["family"])] if row["core"] else "none"
        parts.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{fill}" fill-opacity="0.75" '
            f'stroke="{colour[str(row["family"])]}"><title>{escape(str(row["id"]))}: measured {row["measured"]:.0f} s, '
            f"planned {row[key]:.0f} s</title></circle>"
        )
    parts.append("</g>")
    for index, name in enumerate(families):
        y = TOP + 10 + 18 * index
        parts.append(f'<circle cx="{LEFT + SIZE + 20}" cy="{y}" r="5" fill="{colour[name]}"/>')
        parts.append(f'<text x="{LEFT + SIZE + 32}" y="{y + 4}">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _band(at: Any, low: float, high: float) -> str:
    """What lies between a prediction 30 % too small and 30 % too large, cut at the frame."""
    shift = at(low * (1 + BAND))
    down = -at(low * (1 - BAND))
    points = [(0, SIZE), (0, SIZE - shift), (SIZE - shift, 0), (SIZE, 0), (SIZE, down), (down, SIZE)]
    text = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polygon points="{text}" fill="#e8eef4"/><path d="M0,{SIZE} L{SIZE},0" stroke="#9ab" fill="none"/>'


def _axes(at: Any, low: float, high: float) -> list[str]:
    parts = [f'<rect width="{SIZE}" height="{SIZE}" fill="none" stroke="#333"/>']
    for tick in (t for t in TICKS if low <= t <= high):
        place = at(tick)
        parts.append(f'<path d="M{place:.1f},{SIZE} v6 M0,{SIZE - place:.1f} h-6" stroke="#333"/>')
        parts.append(f'<text x="{place:.1f}" y="{SIZE + 20}" text-anchor="middle">{tick}</text>')
        parts.append(f'<text x="-10" y="{SIZE - place + 4:.1f}" text-anchor="end">{tick}</text>')
    parts.append(f'<text x="{SIZE / 2}" y="{SIZE + 42}" text-anchor="middle">measured step, seconds</text>')
    parts.append(
        f'<text transform="translate(-48,{SIZE / 2}) rotate(-90)" text-anchor="middle">planned step, seconds</text>'
    )
    return parts
