"""DESIGN section 3, "Preserved": no pass loses an input or a declared edge without a coded reason."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from flowrl.compiler.passes.pipeline import run_passes
from flowrl.graph.graph import Edge, Graph
from flowrl.graph.text import graph_digest, parse_graph, print_graph, without_spans
from tests.compiler.flows import GRPO, PPO, compiled, inputs
from tests.graph.graphs import flows, paths, visible

REASONS = {
    "unread_at_zero_kl",
    "unread",
    "nothing_read",
    "fused_forward",
    "log_probs_not_needed",
    "removed_by_user",
}


def _between(pairs: list[tuple[str, str]], nodes: list[str], start: str, end: str) -> set[str]:
    """Edges on some way from `start` to `end`."""
    ways = paths(pairs, nodes)
    return {f"{a} -> {b}" for a, b in pairs if (a == start or (start, a) in ways) and (b == end or (b, end) in ways)}


def _expected(flow: Graph) -> tuple[dict[tuple[str, str], str], set[str], set[str]]:
    """By paths alone: the producer of every input of an op that stays, the ops that go, the edges that stay."""
    pairs = [(e.source, e.target) for e in flow.declared]
    nodes = [op.id for op in flow.ops]
    ways = paths(pairs, nodes)
    bound = {(op.id, i.slot): visible(op.id, i.field, flow.ops, ways)[0] for op in flow.ops for i in op.inputs}
    live = {op.id for op in flow.ops if op.method == "score"}
    while more := {producer for (reader, _), producer in bound.items() if reader in live} - live:
        live |= more
    alive = [pair for pair in pairs if set(pair) <= live]
    kept: set[str] = set()
    for (reader, _), producer in bound.items():
        if reader in live:
            kept |= _between(alive, nodes, producer, reader) or _between(pairs, nodes, producer, reader)
    return {key: value for key, value in bound.items() if key[0] in live}, set(nodes) - live, kept


@given(flows())
@settings(max_examples=25, deadline=None)
def test_random_flows_keep_what_is_read(flow: Graph) -> None:
    bound, gone, kept = _expected(flow)
    done, _ = run_passes(flow)
    assert {(op.id, i.slot): i.source for op in done.ops for i in op.inputs} == bound
    assert {op.id for op in flow.ops} - {op.id for op in done.ops} == gone
    brought = {(e.target, slot): e.source for e in done.edges for slot in e.fields}
    assert brought == bound
    declared = {e.id for e in flow.declared}
    removed = {r.id: r.reason for r in done.removed}
    assert {id for e in done.edges for id in e.origin} == kept
    assert declared - kept == declared & set(removed)
    assert gone <= set(removed)
    assert set(removed.values()) <= REASONS


@given(flows(most=15), st.randoms(use_true_random=False))
@settings(max_examples=25, deadline=None)
def test_order_of_writing_changes_nothing(flow: Graph, random: object) -> None:
    def shuffled(items: tuple[object, ...]) -> tuple[object, ...]:
        mixed = list(items)
        random.shuffle(mixed)  # type: ignore[attr-defined]
        return tuple(mixed)

    mixed = replace(flow, ops=shuffled(flow.ops), roles=shuffled(flow.roles), declared=shuffled(flow.declared))
    one, other = run_passes(flow)[0], run_passes(mixed)[0]
    assert print_graph(one) == print_graph(other)
    assert graph_digest(one) == graph_digest(other)


@given(flows(most=15))
@settings(max_examples=25, deadline=None)
def test_text_of_every_stage_reads_back(flow: Graph) -> None:
    done, _ = run_passes(flow)
    for graph in (flow, done):
        assert parse_graph(print_graph(graph)) == without_spans(graph)


def _origin(graph: Graph, id: str) -> set[str]:
    return set(next(e for e in graph.edges if e.id == id and e.fields).origin)


def test_ppo_diamond_keeps_all_inputs_of_its_joins() -> None:
    graph = compiled(PPO)
    assert inputs(graph, "advantage.estimate") == {
        "rewards": "reward.score.rewards",
        "values": "critic.values.values",
        "loss_mask": "actor_infer.generate.loss_mask",
        "old_log_probs": "actor_train.log_probs.old_log_probs",
        "ref_log_probs": "reference.log_probs.ref_log_probs",
    }
    assert inputs(graph, "critic.update") == {
        "tokens": "actor_infer.generate.tokens",
        "loss_mask": "actor_infer.generate.loss_mask",
        "values": "critic.values.values",
        "returns": "advantage.estimate.returns",
    }
    assert inputs(graph, "actor_train.update") == {
        "tokens": "actor_infer.generate.tokens",
        "loss_mask": "actor_infer.generate.loss_mask",
        "advantages": "advantage.estimate.advantages",
        "old_log_probs": "actor_train.log_probs.old_log_probs",
    }
    assert not graph.removed
    assert {id for e in graph.edges for id in e.origin} == {e.id for e in graph.declared}
    assert _origin(graph, "critic.values -> critic.update") == {
        "critic.values -> advantage.estimate",
        "advantage.estimate -> critic.update",
    }


def test_grpo_diamond_keeps_both_ways() -> None:
    text = GRPO.replace("update: {loss: ppo}", "update: {loss: ppo, kl: {coef: 0.01}}").replace(
        "  advantage: {", "  reference: {model: policy, backend: fsdp}\n  advantage: {"
    )
    text = text.replace("-> reward.score\n", "-> reward.score, reference.log_probs\n").replace(
        "- advantage.estimate ->", "- advantage.estimate, reference.log_probs ->"
    )
    graph = compiled(text)
    assert inputs(graph, "actor_train.update") == {
        "tokens": "actor_infer.generate.tokens",
        "loss_mask": "actor_infer.generate.loss_mask",
        "advantages": "advantage.estimate.advantages",
        "old_log_probs": "actor_infer.generate.rollout_log_probs",
        "ref_log_probs": "reference.log_probs.ref_log_probs",
    }
    assert not graph.removed
    assert _origin(graph, "actor_infer.generate -> actor_train.update") == {
        "actor_infer.generate -> reward.score",
        "actor_infer.generate -> reference.log_probs",
        "reward.score -> advantage.estimate",
        "advantage.estimate -> actor_train.update",
        "reference.log_probs -> actor_train.update",
    }


def test_edge_streams_at_the_coarser_end() -> None:
    graph = compiled(PPO)
    found: dict[str, Edge] = {e.id: e for e in graph.edges if e.fields}
    assert found["actor_infer.generate -> reward.score"].granularity == "sample"
    assert found["reward.score -> advantage.estimate"].granularity == "step"
    assert found["advantage.estimate -> critic.update"].granularity == "step"
    assert found["actor_infer.generate -> critic.update"].granularity == "minibatch"
