"""A small directed graph as box-drawing characters, in columns from left to right, in bands where it is too wide.

Knows nothing of flows. Draws only what comes out exact: between two columns, whatever is joined must be joined all to
all, without crossings. For other graphs, and for what does not fit, `draw` gives None and the caller lists.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import networkx as nx

_UP, _DOWN, _LEFT, _RIGHT = 1, 2, 4, 8
_LINES = {
    _LEFT | _RIGHT: "─",
    _LEFT | _RIGHT | _DOWN: "┬",
    _LEFT | _RIGHT | _UP: "┴",
    _LEFT | _RIGHT | _UP | _DOWN: "┼",
    _LEFT | _DOWN: "┐",
    _LEFT | _UP: "┘",
    _LEFT | _UP | _DOWN: "┤",
    _RIGHT | _DOWN: "┌",
    _RIGHT | _UP: "└",
    _RIGHT | _UP | _DOWN: "├",
    _UP | _DOWN: "│",
}
_Arc = tuple[str, str]
_GAP = 4
"""Columns between two labels: a blank, a junction, an arrow head, a blank."""


@dataclass(frozen=True, slots=True)
class _Cell:
    """A node, or the place where an edge passes a column (label None)."""

    name: str
    label: str | None
    row: int


@dataclass(frozen=True, slots=True)
class _Join:
    """Rows of one column that lead, all to all, to rows of the next."""

    left: tuple[int, ...]
    right: tuple[int, ...]

    @property
    def top(self) -> int:
        return min(self.left + self.right)

    @property
    def bottom(self) -> int:
        return max(self.left + self.right)

    def junction(self, row: int) -> int:
        bits = _LEFT * (row in self.left) | _RIGHT * (row in self.right)
        if self.top <= row <= self.bottom:
            bits |= _UP * (row > self.top) | _DOWN * (row < self.bottom)
        return bits


@dataclass(slots=True)
class _Column:
    cells: list[_Cell] = field(default_factory=list["_Cell"])
    joins: list[_Join] = field(default_factory=list["_Join"])
    """To the next column."""

    @property
    def width(self) -> int:
        return max(len(cell.label or "") for cell in self.cells)

    @property
    def may_break(self) -> bool:
        """Whether the drawing may go on below after this column: everything goes on from one join."""
        return len(self.joins) == 1


def draw(nodes: Sequence[str], edges: Sequence[_Arc], labels: Mapping[str, str], width: int) -> list[str] | None:
    """Lines of at most `width` columns, or None. `nodes` in the order in which they should stand in a column; `edges`
    without cycles."""
    layers, arcs = _layered(nodes, edges)
    columns = _placed(layers, arcs, labels)
    bands = None if columns is None else _bands(columns, width)
    if columns is None or bands is None:
        return None
    lines: list[str] = []
    for start, stop in bands:
        lines += _band(columns, start, stop)
    return lines


def _layered(nodes: Sequence[str], edges: Sequence[_Arc]) -> tuple[list[list[str]], list[_Arc]]:
    """Nodes by their longest way from a source; an edge that passes layers is cut into steps, one a layer."""
    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.add_nodes_from(nodes)
    graph.add_edges_from(edges)
    depth: dict[str, int] = {}
    for node in nx.topological_sort(graph):
        depth[node] = max((depth[before] + 1 for before in graph.predecessors(node)), default=0)
    layers: list[list[str]] = [[n for n in nodes if depth[n] == d] for d in range(max(depth.values()) + 1)]
    arcs: list[_Arc] = []
    for source, target in edges:
        passed = [f"{source}>{target}#{d}" for d in range(depth[source] + 1, depth[target])]
        for d, name in enumerate(passed, depth[source] + 1):
            layers[d].append(name)
        stops = [source, *passed, target]
        arcs += list(pairwise(stops))
    return layers, arcs


def _placed(layers: list[list[str]], arcs: list[_Arc], labels: Mapping[str, str]) -> list[_Column] | None:
    """Rows for every cell, column after column; None where lines would cross or join what is not joined."""
    rows = {name: row for row, name in enumerate(layers[0])}
    columns: list[_Column] = []
    for place, layer in enumerate(layers):
        columns.append(_Column([_Cell(n, labels.get(n), rows[n]) for n in sorted(layer, key=rows.__getitem__)]))
        if place + 1 == len(layers):
            break
        joins = _joins(layer, layers[place + 1], arcs, rows)
        if joins is None:
            return None
        columns[-1].joins = joins
    return columns


def _joins(layer: list[str], following: list[str], arcs: list[_Arc], rows: dict[str, int]) -> list[_Join] | None:
    """The joins between two layers, top to bottom; gives the following layer its rows."""
    free, taken = 0, 0
    found: list[_Join] = []
    seen: set[str] = set()
    for name in sorted(layer, key=rows.__getitem__):
        if name in seen:
            continue
        targets = [t for t in following if (name, t) in arcs]
        sources = [s for s in layer if any((s, t) in arcs for t in targets)]
        seen.update(sources)
        if not targets:
            continue
        if any((s, t) in arcs for s in sources for t in following if t not in targets):
            return None
        if any((s, t) not in arcs for s in sources for t in targets):
            return None
        left = sorted(rows[s] for s in sources)
        if left[0] < free or left != list(range(left[0], left[0] + len(left))):
            return None
        top = max(left[0], taken)
        for offset, target in enumerate(targets):
            rows[target] = top + offset
        join = _Join(tuple(left), tuple(range(top, top + len(targets))))
        free = taken = join.bottom + 1
        found.append(join)
    return found


def _bands(columns: list[_Column], width: int) -> list[tuple[int, int]] | None:
    """Ranges of columns that fit, as many as possible in each; None if a column is too wide or no break is allowed."""
    bands: list[tuple[int, int]] = []
    start = 0
    while start < len(columns):
        fitting = [
            stop
            for stop in range(start + 1, len(columns) + 1)
            if _band_width(columns, start, stop) <= width and (stop == len(columns) or columns[stop - 1].may_break)
        ]
        if not fitting:
            return None
        bands.append((start, fitting[-1]))
        start = fitting[-1]
    return bands


def _band_width(columns: list[_Column], start: int, stop: int) -> int:
    before = 0 if start == 0 else _GAP
    after = 0 if stop == len(columns) else _GAP
    return before + sum(column.width for column in columns[start:stop]) + _GAP * (stop - start - 1) + after


def _band(columns: list[_Column], start: int, stop: int) -> list[str]:
    height = 1 + max(cell.row for column in columns[start:stop] for cell in column.cells)
    lines = [""] * height
    if start > 0:
        (join,) = columns[start - 1].joins
        into = [_Join((join.right[0],), join.right)]
        lines = [_gap(into, row, " ", columns[start]) for row in range(height)]
    for place in range(start, stop):
        column = columns[place]
        for row in range(height):
            lines[row] += _cell(column, row)
        if place + 1 == len(columns):
            break
        if place + 1 < stop:
            joins, following = column.joins, columns[place + 1]
        else:
            joins, following = [_Join(join.left, (join.top,)) for join in column.joins], None
        for row in range(height):
            lines[row] += _gap(joins, row, _stem(column, row), following)
    return [line.rstrip() for line in lines if line.strip()]


def _cell_at(column: _Column, row: int) -> _Cell | None:
    return next((cell for cell in column.cells if cell.row == row), None)


def _cell(column: _Column, row: int) -> str:
    """A column's part of a row: a label and the line out of it, or a line that passes."""
    cell = _cell_at(column, row)
    if cell is None:
        return " " * column.width
    if cell.label is None:
        return "─" * column.width
    spare = column.width - len(cell.label)
    goes_on = any(row in join.left for join in column.joins)
    return cell.label + (" " + "─" * (spare - 1) if goes_on and spare else " " * spare)


def _stem(column: _Column, row: int) -> str:
    """Between a cell and its junction: the line goes through, or a blank keeps a full label from touching it."""
    goes_on = any(row in join.left for join in column.joins)
    cell = _cell_at(column, row)
    full = cell is not None and cell.label is not None and len(cell.label) == column.width
    return "─" if goes_on and not full else " "


def _gap(joins: list[_Join], row: int, stem: str, following: _Column | None) -> str:
    bits = next((bits for join in joins if (bits := join.junction(row))), 0)
    if not bits & _RIGHT:
        head = "  "
    elif following is not None and (cell := _cell_at(following, row)) is not None and cell.label is None:
        head = "──"
    else:
        head = "▶ "
    return stem + _LINES.get(bits, " ") + head
