"""Drawings of graphs: read back by following their lines, they give the edges they were made from."""

from __future__ import annotations

import networkx as nx
from hypothesis import event, given, settings
from hypothesis import strategies as st

from flowrl.report.drawing import draw

Arc = tuple[str, str]
UP, DOWN, LEFT, RIGHT = (-1, 0), (1, 0), (0, -1), (0, 1)
EXITS = {
    "─": (LEFT, RIGHT),
    "┬": (LEFT, RIGHT, DOWN),
    "┴": (LEFT, RIGHT, UP),
    "┼": (LEFT, RIGHT, UP, DOWN),
    "┐": (LEFT, DOWN),
    "┘": (LEFT, UP),
    "┤": (LEFT, UP, DOWN),
    "┌": (RIGHT, DOWN),
    "└": (RIGHT, UP),
    "├": (RIGHT, UP, DOWN),
    "│": (UP, DOWN),
}


def _read(lines: list[str], names: list[str]) -> set[Arc]:
    """Edges of a drawing of one band: from each name follow its line right, up and down, never left, to arrow heads."""
    width = max(map(len, lines)) + 2
    grid = [line.ljust(width) for line in lines]
    begins = {(row, column): name for row, line in enumerate(grid) for name in names for column in _places(line, name)}
    assert sorted(begins.values()) == sorted(names)
    arcs: set[Arc] = set()
    for (row, column), name in begins.items():
        first = (row, column + len(name) + 1)
        arcs |= {(name, begins[place]) for place in _heads(grid, first)}
    return arcs


def _places(line: str, name: str) -> list[int]:
    words = f" {line} "
    return [n for n in range(len(line)) if words[n : n + len(name) + 2] == f" {name} "]


def _heads(grid: list[str], first: tuple[int, int]) -> set[tuple[int, int]]:
    """Where labels begin that the line through `first` leads to."""
    seen: set[tuple[int, int]] = set()
    found: set[tuple[int, int]] = set()
    frontier = [first] if LEFT in EXITS.get(grid[first[0]][first[1]], ()) else []
    while frontier:
        row, column = frontier.pop()
        if (row, column) in seen:
            continue
        seen.add((row, column))
        for down, right in EXITS[grid[row][column]]:
            if (down, right) == LEFT:
                continue
            there = (row + down, column + right)
            mark = grid[there[0]][there[1]]
            if mark == "▶":
                found.add((there[0], there[1] + 2))
            elif (-down, -right) in EXITS.get(mark, ()):
                frontier.append(there)
    return found


@st.composite
def graphs(draw_: st.DrawFn) -> tuple[list[str], list[Arc]]:
    """Transitively reduced graphs in one piece; some are drawn, some are not."""
    names = [f"n{n}" + "x" * draw_(st.integers(0, 5)) for n in range(draw_(st.integers(2, 9)))]
    digraph: nx.DiGraph = nx.DiGraph()
    digraph.add_nodes_from(names)
    for place, target in enumerate(names[1:], 1):
        for source in draw_(st.sets(st.integers(0, place - 1), min_size=1, max_size=2)):
            digraph.add_edge(names[source], target)
    return names, sorted(nx.transitive_reduction(digraph).edges)


@settings(max_examples=400, deadline=None)
@given(graph=graphs())
def test_drawing_reads_back_as_the_graph(graph: tuple[list[str], list[Arc]]) -> None:
    names, arcs = graph
    lines = draw(names, arcs, {name: name for name in names}, 500)
    event("drawn" if lines is not None else "listed")
    if lines is not None:
        assert _read(lines, names) == set(arcs)


@settings(max_examples=200, deadline=None)
@given(graph=graphs(), width=st.integers(15, 40))
def test_drawing_in_bands_keeps_the_width_and_every_node(graph: tuple[list[str], list[Arc]], width: int) -> None:
    names, arcs = graph
    lines = draw(names, arcs, {name: name for name in names}, width)
    if lines is not None:
        assert max(map(len, lines)) <= width
        assert sorted(word for line in lines for word in line.split() if word in names) == sorted(names)


def test_fork_join_and_a_line_that_passes() -> None:
    arcs = [("data", "gen"), ("gen", "score"), ("gen", "logp"), ("score", "est"), ("est", "upd"), ("logp", "upd")]
    names = ["data", "gen", "score", "logp", "est", "upd"]
    assert draw(names, arcs, {name: name for name in names}, 80) == [
        "data ─▶ gen ┬▶ score ─▶ est ┬▶ upd",
        "            └▶ logp ────────┘",
    ]


def test_what_would_cross_is_not_drawn() -> None:
    arcs = [("a", "c"), ("a", "d"), ("b", "d")]
    assert draw(["a", "b", "c", "d"], arcs, {name: name for name in "abcd"}, 80) is None
