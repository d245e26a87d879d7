"""A small directed graph as box-drawing characters, in columns from left to right, in bands where it is too wide.

Knows nothing of flows. Two lines that meet in a junction are joined; where a line only passes over another, the upright
one is drawn through: `─│─`. Lines that go on in the next band carry a number if there are several. What cannot be drawn
exactly, or does not fit, gives None, and the caller lists.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from flowrl.report.layers import layers
from flowrl.report.tracks import Net, Routed, route

_Arc = tuple[str, str]


@dataclass(frozen=True, slots=True)
class _Cell:
    """A node, or the place where an edge passes a column (no lines of text)."""

    name: str
    text: tuple[str, ...]
    top: int
    height: int

    @property
    def width(self) -> int:
        return max(map(len, self.text), default=0)


@dataclass(frozen=True, slots=True)
class _Bundle:
    """Cells of one column that lead, all to all, to cells of the next."""

    sources: tuple[str, ...]
    targets: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Entry:
    """Where a bundle enters a cell: several of them enter on lines of their own and are joined before its arrow."""

    cell: _Cell
    line: int


@dataclass(frozen=True, slots=True)
class _Grid:
    columns: tuple[tuple[_Cell, ...], ...]
    bundles: tuple[tuple[_Bundle, ...], ...]
    """Between each column and the next."""

    def exits(self, place: int, bundle: _Bundle) -> tuple[int, ...]:
        """Lines on which the bundle leaves its column."""
        return tuple(cell.top for cell in self.columns[place] if cell.name in bundle.sources)

    def entries(self, place: int, bundle: _Bundle) -> tuple[_Entry, ...]:
        """Where the bundle enters the column after `place`."""
        found: list[_Entry] = []
        for cell in self.columns[place + 1]:
            entering = [each for each in self.bundles[place] if cell.name in each.targets]
            if bundle in entering:
                found.append(_Entry(cell, cell.top + entering.index(bundle)))
        return tuple(found)


@dataclass(frozen=True, slots=True)
class _Block:
    """Text of equal width, by line number; lines that are missing are blank."""

    width: int
    lines: Mapping[int, str]

    def line(self, number: int) -> str:
        return self.lines.get(number, " " * self.width)


def draw(
    nodes: Sequence[str], edges: Sequence[_Arc], labels: Mapping[str, str | tuple[str, ...]], width: int
) -> list[str] | None:
    """Lines of at most `width` columns, or None. `nodes` in the order in which they should stand in a column; `edges`
    without cycles; a label may have several lines."""
    placed, arcs = layers(nodes, edges)
    grid = _grid(placed, arcs, labels)
    whole = _blocks(grid)
    bands = None if whole is None else _bands(grid, whole, width)
    if bands is None:
        return None
    return [line.rstrip() for band in bands for line in _text(band) if line.strip()]


def _grid(placed: Sequence[Sequence[str]], arcs: Iterable[_Arc], labels: Mapping[str, str | tuple[str, ...]]) -> _Grid:
    """Lines for every cell, column after column: each as high as its highest source, as far as there is room."""
    targets: dict[str, tuple[str, ...]] = {}
    for source, target in sorted(arcs):
        targets[source] = (*targets.get(source, ()), target)
    tops: dict[str, int] = {}
    columns: list[tuple[_Cell, ...]] = []
    bundles: list[tuple[_Bundle, ...]] = []
    before: tuple[_Bundle, ...] = ()
    for names in placed:
        column: list[_Cell] = []
        free = 0
        for name in names:
            entering = [each for each in before if name in each.targets]
            label = labels.get(name, ())
            text = (label,) if isinstance(label, str) else label
            height = max(len(text), len(entering), 1)
            wanted = min((tops[source] for each in entering for source in each.sources), default=0)
            top = max(free, wanted)
            column.append(_Cell(name, text, top, height))
            tops[name] = top
            free = top + height
        columns.append(tuple(column))
        before = _bundled(names, targets)
        bundles.append(before)
    return _Grid(_lowered(columns, targets), tuple(bundles[:-1]))


def _lowered(
    columns: Sequence[tuple[_Cell, ...]], targets: Mapping[str, tuple[str, ...]]
) -> tuple[tuple[_Cell, ...], ...]:
    """Each cell down to the highest of its targets, as far as there is room: straight lines cross least."""
    tops: dict[str, int] = {}
    made: list[tuple[_Cell, ...]] = []
    for column in reversed(columns):
        cells: list[_Cell] = []
        floor: int | None = None
        for cell in reversed(column):
            wanted = max(cell.top, min((tops[name] for name in targets.get(cell.name, ())), default=cell.top))
            top = wanted if floor is None else max(cell.top, min(wanted, floor - cell.height))
            cells.append(replace(cell, top=top))
            tops[cell.name] = floor = top
        made.append(tuple(reversed(cells)))
    return tuple(reversed(made))


def _bundled(names: Sequence[str], targets: Mapping[str, tuple[str, ...]]) -> tuple[_Bundle, ...]:
    """Cells with the very same targets share their lines."""
    sources: dict[tuple[str, ...], tuple[str, ...]] = {}
    for name in names:
        if name in targets:
            sources[targets[name]] = (*sources.get(targets[name], ()), name)
    return tuple(_Bundle(names, ends) for ends, names in sources.items())


def _blocks(grid: _Grid) -> list[_Block] | None:
    """The gaps between the columns, None if lines would have to run over each other."""
    blocks: list[_Block] = []
    for place, bundles in enumerate(grid.bundles):
        entries = [grid.entries(place, bundle) for bundle in bundles]
        nets = [
            Net(grid.exits(place, bundle), tuple(entry.line for entry in into))
            for bundle, into in zip(bundles, entries, strict=True)
        ]
        routed = route(nets)
        if routed is None:
            return None
        blocks.append(_gap(routed, _stems(grid.columns[place], bundles), [e for each in entries for e in each]))
    return blocks


def _stems(column: Sequence[_Cell], bundles: Sequence[_Bundle]) -> dict[int, str]:
    """Between a cell and its junction: the line goes through, or a blank keeps a full label from touching it."""
    width = max(cell.width for cell in column)
    leaving = {name for bundle in bundles for name in bundle.sources}
    return {
        cell.top: " " if cell.text and len(cell.text[0]) == width else "─" for cell in column if cell.name in leaving
    }


def _gap(routed: Routed, stems: Mapping[int, str], entries: Sequence[_Entry]) -> _Block:
    """Stem, tracks, the joints of cells that several lines enter, arrow heads."""
    has_joints = any(entry.line != entry.cell.top for entry in entries)
    heads = {entry.line: _head(entry, entries, has_joints) for entry in entries}
    return _stemmed(routed, stems, heads, 2 + has_joints)


def _stemmed(routed: Routed, stems: Mapping[int, str], heads: Mapping[int, str], width: int) -> _Block:
    """Tracks with what stands left and right of them. A line that starts by passing over another one gets a longer
    stem, so that it can be seen to come from its label."""
    is_long = any(stem == " " and routed.lines[number][0] == "│" for number, stem in stems.items())
    lines: dict[int, str] = {}
    for number in {*routed.lines, *heads}:
        stem = stems.get(number, "")
        before = stem + "─" if stem and is_long else stem.ljust(1 + is_long)
        tracks = routed.lines.get(number, " " * routed.width)
        lines[number] = before + tracks + heads.get(number, " " * width)
    return _Block(1 + is_long + routed.width + width, lines)


def _head(entry: _Entry, entries: Sequence[_Entry], has_joints: bool) -> str:
    last = max(each.line for each in entries if each.cell is entry.cell)
    if entry.line == entry.cell.top:
        joint = "" if not has_joints else "┬" if last > entry.line else "─"
        return joint + ("▶ " if entry.cell.text else "──")
    return ("┘" if entry.line == last else "┤") + "  "


def _column(column: Sequence[_Cell], leaving: Iterable[str]) -> _Block:
    """A column's labels, each with the line out of it, and the lines that pass."""
    width = max(cell.width for cell in column)
    goes_on = set(leaving)
    lines: dict[int, str] = {}
    for cell in column:
        if not cell.text:
            lines[cell.top] = "─" * width
        for offset, text in enumerate(cell.text):
            spare = width - len(text)
            runs = offset == 0 and cell.name in goes_on and spare > 0
            lines[cell.top + offset] = text + (" " + "─" * (spare - 1) if runs else " " * spare)
    return _Block(width, lines)


_Band = list[_Block]
_MOST_TAGS = 9


def _bands(grid: _Grid, gaps: Sequence[_Block], width: int) -> list[_Band] | None:
    """Ranges of columns that fit, as blocks side by side. Lines that go on from one band to the next are numbered where
    they would not be plain without. None if it does not fit."""
    for numbered in (False, True):
        stops = _stops(grid, gaps, width, numbered)
        if stops is None:
            return None
        if numbered or _goes_without_numbers(grid, stops):
            break
    if sum(len(grid.bundles[stop - 1]) for stop in stops[:-1]) > _MOST_TAGS and numbered:
        return None
    bands: list[_Band] = []
    tag = 1
    for start, stop in zip((0, *stops[:-1]), stops, strict=True):
        band = _band(grid, gaps, (start, stop), tag if numbered else None)
        if band is None:
            return None
        bands.append(band)
        tag += len(grid.bundles[start - 1]) if start else 0
    return bands


def _goes_without_numbers(grid: _Grid, stops: Sequence[int]) -> bool:
    """Whether one line goes on from each band to the next, and none goes out above the one that came in."""
    if any(len(grid.bundles[stop - 1]) > 1 for stop in stops[:-1]):
        return False
    comes_in = [grid.entries(stop - 1, bundle)[0].line for stop in stops[:-2] for bundle in grid.bundles[stop - 1]]
    goes_out = [grid.exits(stop - 1, bundle)[0] for stop in stops[1:-1] for bundle in grid.bundles[stop - 1]]
    return all(line <= after for line, after in zip(comes_in, goes_out, strict=True))


def _stops(grid: _Grid, gaps: Sequence[_Block], width: int, numbered: bool) -> tuple[int, ...] | None:
    """The column after each band: as few bands as can be, broken where the fewest lines go on, the first ones as full
    as can be."""
    best: dict[int, tuple[tuple[int, int, list[int]], tuple[int, ...]]] = {0: ((0, 0, []), ())}
    for stop in range(1, len(grid.columns) + 1):
        for start in range(stop):
            if start not in best or _band_width(grid, gaps, (start, stop), numbered) > width:
                continue
            (bands, lines, _), before = best[start]
            going_on = 0 if stop == len(grid.columns) else len(grid.bundles[stop - 1])
            cost = (bands + 1, lines + going_on, [-each for each in before])
            if stop not in best or cost < best[stop][0]:
                best[stop] = (cost, (*before, stop))
    return best[len(grid.columns)][1] if len(grid.columns) in best else None


def _band_width(grid: _Grid, gaps: Sequence[_Block], band: tuple[int, int], numbered: bool) -> int:
    """An upper bound: a break takes at most what the gap takes, and its number."""
    start, stop = band
    inside = sum(max(cell.width for cell in column) for column in grid.columns[start:stop])
    before = gaps[start - 1].width + 2 * numbered if start else 0
    after = gaps[stop - 1].width + numbered if stop < len(grid.columns) else 0
    return before + inside + sum(gap.width for gap in gaps[start : stop - 1]) + after


def _band(grid: _Grid, gaps: Sequence[_Block], band: tuple[int, int], tag: int | None) -> _Band | None:
    """The blocks of the columns from `band[0]` up to `band[1]`; `tag` is the first number of the lines that come in."""
    start, stop = band
    blocks: list[_Block | None] = []
    if start:
        blocks.append(_resumed(grid, start - 1, tag))
    for place in range(start, stop):
        leaving = [] if place + 1 == len(grid.columns) else [n for b in grid.bundles[place] for n in b.sources]
        blocks.append(_column(grid.columns[place], leaving))
        if place + 1 < stop:
            blocks.append(gaps[place])
    if stop < len(grid.columns):
        taken = len(grid.bundles[start - 1]) if start else 0
        blocks.append(_broken(grid, stop - 1, None if tag is None else tag + taken))
    made = [block for block in blocks if block is not None]
    return made if len(made) == len(blocks) else None


def _broken(grid: _Grid, place: int, tag: int | None) -> _Block | None:
    """The end of a band: each bundle gathered into one arrow, numbered from `tag`."""
    bundles = grid.bundles[place]
    exits = [grid.exits(place, bundle) for bundle in bundles]
    routed = route([Net(lines, lines[:1]) for lines in exits])
    if routed is None:
        return None
    heads = {lines[0]: "▶ " if tag is None else f"▶ {tag + n}" for n, lines in enumerate(exits)}
    return _stemmed(routed, _stems(grid.columns[place], bundles), heads, 2 + (tag is not None))


def _resumed(grid: _Grid, place: int, tag: int | None) -> _Block | None:
    """The beginning of a band: each bundle's arrow, spread to the cells that it leads to."""
    bundles = grid.bundles[place]
    entries = [grid.entries(place, bundle) for bundle in bundles]
    routed = route([Net((into[0].line,), tuple(entry.line for entry in into)) for into in entries])
    if routed is None:
        return None
    gap = _gap(routed, {into[0].line: " " for into in entries}, [e for each in entries for e in each])
    if tag is None:
        return gap
    tags = {into[0].line: f" {tag + n}" for n, into in enumerate(entries)}
    lines = {number: tags.get(number, "  ") + gap.line(number) for number in {*tags, *gap.lines}}
    return _Block(2 + gap.width, lines)


def _text(band: _Band) -> list[str]:
    numbers = sorted({number for block in band for number in block.lines})
    lines = ["".join(block.line(number) for block in band) for number in numbers]
    return [line for line in lines if not set(line) <= {" ", "│"}]  # a row whose cells stand in other bands
