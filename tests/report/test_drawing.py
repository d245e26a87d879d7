"""Drawings of graphs: read back by following their lines, they give the edges they were made from."""

from __future__ import annotations

import networkx as nx
from hypothesis import event, given, settings
from hypothesis import strategies as st

from flowrl.report.drawing import draw

Arc = tuple[str, str]
Place = tuple[int, int]
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


class Sheet:
    """A drawing under a reader's finger: along a line right, up and down, never left, straight over what it passes."""

    def __init__(self, lines: list[str], names: list[str]) -> None:
        width = max(map(len, lines)) + 3
        self.grid = [f" {line}".ljust(width) for line in lines]
        words = [(row, column, word) for row, line in enumerate(self.grid) for column, word in _words(line)]
        self.names = {(row, column): word for row, column, word in words if word in names}
        assert sorted(self.names.values()) == sorted(names)
        tagged = [(row, column, word) for row, column, word in words if word.isdecimal()]
        self.ends = {(row, column): tag for row, column, tag in tagged if self.grid[row][column - 2] == "▶"}
        self.begins = {tag: (row, column) for row, column, tag in tagged if (row, column) not in self.ends}
        assert sorted(self.ends.values()) == sorted(self.begins)

    def arcs(self) -> set[Arc]:
        return {
            (name, target)
            for (row, column), name in self.names.items()
            for target in self._led((row, column + len(name) + 1))
        }

    def _led(self, first: Place) -> set[str]:
        """Names that the line through `first` leads to, also in later bands."""
        found: set[str] = set()
        for row, column in self._heads(first):
            if (row, column) in self.names:
                found.add(self.names[row, column])
            elif (row, column) in self.ends:
                tag = self.ends[row, column]
                found |= self._led((self.begins[tag][0], self.begins[tag][1] + len(tag) + 1))
            else:
                assert not self.grid[row][column:].strip(), "an arrow to nothing"
                found |= self._led(self._next_band(row))
        return found

    def _next_band(self, row: int) -> Place:
        """Where the next line that comes out of nowhere starts."""
        starts = [n for n in range(row + 1, len(self.grid)) if LEFT in EXITS.get(self.grid[n][2], ())]
        return starts[0], 2

    def _heads(self, first: Place) -> set[Place]:
        """Where labels begin that the line through `first` leads to."""
        seen: set[tuple[Place, Place]] = set()
        found: set[Place] = set()
        frontier = [(first, RIGHT)] if LEFT in EXITS.get(self.grid[first[0]][first[1]], ()) else []
        while frontier:
            (row, column), way = frontier.pop()
            if ((row, column), way) in seen:
                continue
            seen.add(((row, column), way))
            exits = EXITS[self.grid[row][column]]
            back = (-way[0], -way[1])
            over = back not in exits
            for down, right in [way] if over else [e for e in exits if e not in (LEFT, back)]:
                there = (row + down, column + right)
                mark = self.grid[there[0]][there[1]]
                if mark == "▶":
                    found.add((there[0], there[1] + 2))
                else:
                    assert mark in EXITS, "a line into nothing"
                    assert (-down, -right) in EXITS[mark] or (mark == "│" and (down, right) == RIGHT)
                    frontier.append((there, (down, right)))
        return found


def _words(line: str) -> list[tuple[int, str]]:
    found: list[tuple[int, str]] = []
    column = 0
    for word in line.split(" "):
        if word:
            found.append((column, word))
        column += len(word) + 1
    return found


@st.composite
def graphs(draw_: st.DrawFn) -> tuple[list[str], list[Arc]]:
    """Transitively reduced graphs, some in several pieces."""
    names = [f"n{n}" + "x" * draw_(st.integers(0, 5)) for n in range(draw_(st.integers(2, 12)))]
    digraph: nx.DiGraph = nx.DiGraph()
    digraph.add_nodes_from(names)
    for place, target in enumerate(names[1:], 1):
        for source in draw_(st.sets(st.integers(0, place - 1), max_size=3)):
            digraph.add_edge(names[source], target)
    return names, sorted(nx.transitive_reduction(digraph).edges)


@settings(max_examples=400)
@given(graph=graphs())
def test_drawing_reads_back_as_the_graph(graph: tuple[list[str], list[Arc]]) -> None:
    names, arcs = graph
    lines = draw(names, arcs, {name: name for name in names}, 500)
    event("drawn" if lines is not None else "listed")
    if lines is not None:
        assert Sheet(lines, names).arcs() == set(arcs)


@settings(max_examples=400)
@given(graph=graphs(), width=st.integers(15, 40))
def test_drawing_in_bands_keeps_the_width_and_reads_back(graph: tuple[list[str], list[Arc]], width: int) -> None:
    names, arcs = graph
    lines = draw(names, arcs, {name: name for name in names}, width)
    event("drawn" if lines is not None else "listed")
    if lines is not None:
        assert max(map(len, lines)) <= width
        assert Sheet(lines, names).arcs() == set(arcs)


def drawn(arcs: list[Arc], width: int = 80, **labels: tuple[str, ...]) -> list[str] | None:
    names = list(dict.fromkeys(name for arc in arcs for name in arc))
    return draw(names, arcs, {name: labels.get(name, name) for name in names}, width)


def test_fork_join_and_a_line_that_passes() -> None:
    arcs = [("data", "gen"), ("gen", "score"), ("gen", "logp"), ("score", "est"), ("est", "upd"), ("logp", "upd")]
    assert drawn(arcs) == [
        "data ─▶ gen ┬▶ score ─▶ est ┬▶ upd",
        "            └▶ logp ────────┘",
    ]


def test_lines_that_are_not_joined_pass_over_each_other() -> None:
    """Two debaters, each with a reference of its own, and one judge of both."""
    arcs = [("alice", "alice_ref"), ("alice", "judge"), ("bob", "judge"), ("bob", "bob_ref")]
    assert drawn(arcs) == [
        "alice ─┬─▶ alice_ref",
        "bob ──┐└┬▶ judge",
        "      ├─┘",
        "      └──▶ bob_ref",
    ]


def test_label_of_two_lines_and_numbered_lines_between_bands() -> None:
    arcs = [("reset", "alice"), ("reset", "bob"), ("alice", "to_alice"), ("bob", "to_bob"), ("to_bob", "adv")]
    assert drawn(arcs, 24, bob=("bob", "<-> env")) == [
        "reset ┬▶ alice ───▶ 1",
        "      └▶ bob ─────▶ 2",
        "         <-> env",
        " 1 ─▶ to_alice",
        " 2 ─▶ to_bob ───▶ adv",
    ]


def test_what_is_wider_than_the_page_is_not_drawn() -> None:
    assert drawn([("a" * 20, "b")], 20) is None
