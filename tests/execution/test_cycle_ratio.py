"""The maximum cycle ratio against every circle of small graphs, and against what the virtual clock takes."""

from __future__ import annotations

from fractions import Fraction

import networkx as nx
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from flowrl.diag.diagnostic import InternalError
from flowrl.execution.cycle_ratio import Arc, maximum_cycle_ratio
from flowrl.execution.expand import expanded, ratio_of
from flowrl.execution.simulate import simulate
from flowrl.execution.steady import steady
from flowrl.program.check import check
from flowrl.program.program import Program
from tests.program.programs import make_program, programs

arcs = st.lists(
    st.builds(Arc, st.sampled_from("abcde"), st.sampled_from("abcde"), st.integers(0, 9), st.integers(0, 3)),
    max_size=12,
)


def _ratios(given: list[Arc]) -> list[Fraction | None]:
    """Of every circle, one arc a node so that parallel arcs stay apart; None for one without tokens."""
    graph = nx.DiGraph()
    for place, arc in enumerate(given):
        graph.add_edge(arc.source, place)
        graph.add_edge(place, arc.target)
    found: list[Fraction | None] = []
    for circle in nx.simple_cycles(graph):
        own = [given[node] for node in circle if isinstance(node, int)]
        tokens = sum(arc.tokens for arc in own)
        found.append(sum((Fraction(arc.seconds) for arc in own), Fraction(0)) / tokens if tokens else None)
    return found


@settings(deadline=None, max_examples=200)
@given(arcs)
def test_the_ratio_is_that_of_the_worst_circle(given: list[Arc]) -> None:
    ratios = _ratios(given)
    if None in ratios:
        with pytest.raises(ValueError, match="without tokens"):
            maximum_cycle_ratio(given)
        return
    ratio, circle = maximum_cycle_ratio(given)
    worst = max((each for each in ratios if each is not None), default=Fraction(0))
    assert ratio == float(worst)
    assert bool(circle) == (worst > 0)
    if circle:
        own = [arc for arc in given if arc.source in circle and arc.target in circle]
        assert worst in _ratios(own)


@settings(deadline=None, max_examples=100)
@given(arcs, st.lists(st.floats(0.0, 9.0, allow_nan=False), min_size=12, max_size=12))
def test_seconds_that_are_not_whole(given: list[Arc], seconds: list[float]) -> None:
    given = [Arc(a.source, a.target, s * (a.seconds > 2), a.tokens) for a, s in zip(given, seconds, strict=False)]
    ratios = _ratios(given)
    assume(None not in ratios)
    worst = max((each for each in ratios if each is not None), default=Fraction(0))
    assert maximum_cycle_ratio(given)[0] == pytest.approx(float(worst), rel=1e-11, abs=1e-11)


def test_a_circle_of_halves() -> None:
    """a → b → a with two tokens takes (3 + 4) / 2; the loop of c, with one, takes 3."""
    found = maximum_cycle_ratio([Arc("a", "b", 3.0, 0), Arc("b", "a", 4.0, 2), Arc("c", "c", 3.0, 1)])
    assert found == (3.5, ("a", "b"))


def test_a_circle_that_rounding_makes_longer_hides_no_other() -> None:
    """The loop of b takes 1.69 s; at its half, which the circle of a and b has, rounding alone lengthens that one."""
    program = make_program([["a"], ["b"], ["c"]], [("b", "a", 2, 1), ("a", "c", 1, 0)])
    assert ratio_of(program, {"a": 0.0, "b": 1.6883994290107478, "c": 0.0}) == (1.6883994290107478, ("b",))


def test_no_circle_takes_no_time() -> None:
    assert maximum_cycle_ratio([Arc("a", "b", 3.0, 0)]) == (0.0, ())


seconds = st.lists(st.floats(0.0, 9.0, allow_nan=False), min_size=9, max_size=9)
STEPS = 120


def _starts(program: Program, durations: dict[str, float]) -> list[list[float]]:
    """Of each instruction, step after step."""
    starts: dict[str, list[float]] = {}
    for span in simulate(program, durations, STEPS).spans:
        starts.setdefault(span.instruction, []).append(span.start_seconds)
    return list(starts.values())


def _repeats(starts: list[list[float]]) -> tuple[int, float] | None:
    """The smallest K after which the last 36 steps of all instructions come again, and the seconds by which."""
    for period in range(1, 13):
        shifts = [own[step] - own[step - period] for own in starts for step in range(STEPS - 36, STEPS)]
        if max(shifts) - min(shifts) <= 1e-9 * max(own[-1] for own in starts):
            return period, shifts[0]
    return None


@settings(deadline=None, max_examples=60)
@given(program=programs(max_links=5), seconds=seconds)
def test_the_simulated_period_is_the_ratio(program: Program, seconds: list[float]) -> None:
    """(T(N + K) - T(N)) / K, after the transient, with K the periodicity. A transient of nearly equal circles may last
    longer than is simulated, and parts that nothing ties together keep their own pace: then the last start is where the
    ratio says, give or take the seconds of one step."""
    try:
        check(program)
    except InternalError:
        assume(False)
    assume(all(stream.slots >= len(stream.lanes) for stream in program.streams))
    durations = {i.id: s for i, s in zip(program.instructions, seconds, strict=False)}
    ratio, _ = ratio_of(program, durations)
    starts = _starts(program, durations)
    found = _repeats(starts)
    if found is not None:
        assert found[1] / found[0] == pytest.approx(ratio, rel=1e-9, abs=1e-9)
    last, whole = max(own[-1] for own in starts), sum(durations.values())
    assert abs(last - ratio * (STEPS - 1)) <= whole + 1e-9
    assert steady(program, durations).step_seconds == pytest.approx(ratio, rel=1e-12)


def test_slots_are_no_arcs() -> None:
    """Three roles of 2 s each that share two slots and are tied to nothing else: 3 s a step, which no circle says."""
    program = make_program([["a", "b", "c"]], [], slots=[2])
    durations = dict.fromkeys("abc", 2.0)
    graph = expanded(program, durations)
    assert (graph.crowded, graph.least_seconds) == (("p0",), 3.0)
    assert maximum_cycle_ratio(graph.arcs)[0] == 2.0
    assert ratio_of(program, durations) == (3.0, ())
    assert steady(program, durations).step_seconds == pytest.approx(3.0)
