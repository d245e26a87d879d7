"""Records against a definition by paths: which producer a column has, and which declared edges bring it."""

from __future__ import annotations

from hypothesis import given, settings

from flowrl.graph.graph import Graph
from flowrl.graph.records import records
from tests.graph.graphs import call, flows, graph, paths, source, visible


@given(flows(most=20))
@settings(max_examples=60, deadline=None)
def test_scope_is_what_paths_say(flow: Graph) -> None:
    found = records(flow.ops, flow.roles, flow.declared)
    pairs = [(e.source, e.target) for e in flow.declared]
    ways = paths(pairs, [op.id for op in flow.ops])
    columns = {f.name for op in flow.ops for f in op.outputs}
    for op in flow.ops:
        for column in columns:
            expected = set(visible(op.id, column, flow.ops, ways))
            assert found.scope[op.id].get(column, frozenset()) == expected


@given(flows(most=20))
@settings(max_examples=60, deadline=None)
def test_origin_is_every_edge_on_a_path(flow: Graph) -> None:
    found = records(flow.ops, flow.roles, flow.declared)
    pairs = [(e.source, e.target) for e in flow.declared]
    ways = paths(pairs, [op.id for op in flow.ops])
    for op in flow.ops:
        for column, producers in found.scope[op.id].items():
            for producer in producers:
                on_a_path = {
                    f"{a} -> {b}"
                    for a, b in pairs
                    if (a == producer or (producer, a) in ways) and (b == op.id or (b, op.id) in ways)
                }
                assert set(found.origin(producer, column, op.id)) == on_a_path


def test_a_rewritten_column_hides_the_older_one_but_a_direct_edge_keeps_it_in_the_record() -> None:
    ops = [source("x"), call("a.call", ["x"], ["x"]), call("b.call", ["x"], ["y"])]
    flow = graph(ops, [("data.train", "a.call"), ("data.train", "b.call"), ("a.call", "b.call")])
    found = records(flow.ops, flow.roles, flow.declared)
    assert found.scope["b.call"]["x"] == {"a.call"}
    assert found.origin("a.call", "x", "b.call") == ("a.call -> b.call",)
    assert set(found.origin("data.train", "x", "b.call")) == {
        "a.call -> b.call",
        "data.train -> a.call",
        "data.train -> b.call",
    }


def test_two_unordered_producers_are_both_in_scope() -> None:
    ops = [source("x"), call("a.call", ["x"], ["y"]), call("b.call", ["x"], ["y"]), call("c.call")]
    pairs = [("data.train", "a.call"), ("data.train", "b.call"), ("a.call", "c.call"), ("b.call", "c.call")]
    flow = graph(ops, pairs)
    assert records(flow.ops, flow.roles, flow.declared).scope["c.call"]["y"] == {"a.call", "b.call"}
