"""Answers are worked out once for graphs of the same parts, and anew for any other."""

from __future__ import annotations

from msgspec.structs import replace

from flowrl.graph.graph import Graph, Step
from flowrl.graph.once import KEPT, once

GRAPH = Graph(name="one", models=(), roles=(), ops=(), declared=(), step=Step(prompts=4, samples_per_prompt=1))


def test_the_same_parts_have_one_answer() -> None:
    asked: list[int] = []
    prompts = once(lambda graph: asked.append(graph.step.prompts) or graph.step.prompts)
    assert [prompts(GRAPH), prompts(replace(GRAPH, passes=("refuse_cycles",))), prompts(GRAPH)] == [4, 4, 4]
    assert asked == [4]


def test_a_changed_part_or_lowered_weights_are_asked_again() -> None:
    asked: list[Graph] = []
    seen = once(lambda graph: asked.append(graph))
    other = replace(GRAPH, step=Step(prompts=8, samples_per_prompt=1))
    lowered = replace(GRAPH, passes=("insert_weight_sync",))
    for graph in (GRAPH, other, lowered, GRAPH):
        seen(graph)
    assert asked == [GRAPH, other, lowered]


def test_old_graphs_are_forgotten() -> None:
    asked: list[int] = []
    prompts = once(lambda graph: asked.append(graph.step.prompts))
    graphs = [replace(GRAPH, step=Step(prompts=n, samples_per_prompt=1)) for n in range(1, KEPT + 2)]
    for graph in (*graphs, graphs[0]):
        prompts(graph)
    assert asked == [*range(1, KEPT + 2), 1]
