"""fuse_forwards, share_weights, order_filters on flows as a user writes them, and the verifier's rules for them."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from flowrl.compiler.passes.pipeline import PASSES, Pass, run_passes
from flowrl.diag.diagnostic import InternalError
from flowrl.graph.graph import EdgeKind, Graph
from flowrl.graph.rows import Rows
from tests.compiler.flows import PPO, compiled, inputs, lowered

ANCHORED = PPO.replace(
    "reference: {model: policy, backend: fsdp}",
    "reference: {model: policy, backend: fsdp}\n  anchor: {kind: scorer, model: policy, backend: fsdp}",
)
ANCHORED = ANCHORED.replace(
    "reference.log_probs, critic.values, actor_train.log_probs\n",
    "reference.log_probs, anchor.log_probs, critic.values, actor_train.log_probs\n",
)
ANCHORED = ANCHORED.replace(
    "- advantage.estimate -> actor_train.update",
    "- anchor.log_probs -> actor_train.update\n  - advantage.estimate -> actor_train.update",
)
ANCHORED = ANCHORED.replace(
    "actor_train: {model: policy, backend: fsdp, update: {loss: ppo}}",
    "actor_train: {model: policy, backend: fsdp, update: {loss: ppo, kl: {coef: 0.1}}, "
    "inputs: {ref_log_probs: anchor.ref_log_probs}}",
)


def test_two_frozen_scorers_of_one_model_are_one_forward() -> None:
    graph = compiled(ANCHORED)
    reasons = {r.id: r.reason for r in graph.removed}
    assert reasons == {"reference.log_probs": "fused_forward", "reference": "fused_forward"}
    for op in ("advantage.estimate", "actor_train.update"):
        assert inputs(graph, op)["ref_log_probs"] == "anchor.log_probs.ref_log_probs"
    # Every declared edge of the removed op is an origin of an edge of the one that stays.
    kept = {id for e in graph.edges for id in e.origin}
    assert {e.id for e in graph.declared} <= kept


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("anchor: {kind: scorer, model: policy, backend: fsdp}", "anchor: {kind: scorer, model: policy, backend: hf}"),
        (
            "anchor: {kind: scorer, model: policy, backend: fsdp}",
            "anchor: {kind: scorer, model: policy, backend: fsdp, micro_batch_tokens: 64}",
        ),
        ("  - actor_train => actor_infer", "  - actor_train => actor_infer\n  - actor_train => anchor"),
        ("models: {policy:", "models: {other: {source: other/model}, policy:"),
    ],
)
def test_what_differs_is_computed_twice(old: str, new: str) -> None:
    assert old in ANCHORED
    text = ANCHORED.replace(old, new)
    if "other/model" in new:
        text = text.replace("anchor: {kind: scorer, model: policy", "anchor: {kind: scorer, model: other")
    graph = compiled(text)
    assert {"reference.log_probs", "anchor.log_probs"} <= {op.id for op in graph.ops}


def test_two_calls_of_a_trainer_on_the_same_rows_are_one_forward() -> None:
    text = PPO.replace(
        "actor_train.log_probs\n", "actor_train.log_probs, actor_train.log_probs@again, style.score\n", 1
    )
    text = text.replace(
        "  - advantage.estimate ->", "  - actor_train.log_probs@again -> style.score\n  - advantage.estimate ->", 1
    )
    chosen = "inputs: {entry: actor_train@again.entropy}"
    style = f'  style: {{kind: reward, function: "arithmetic.py:reward", {chosen}}}\n'
    text = text.replace("  advantage:", f"{style}  advantage:")
    graph = compiled(text)
    assert {r.id: r.reason for r in graph.removed} == {"actor_train.log_probs@again": "fused_forward"}
    assert inputs(graph, "style.score")["entry"] == "actor_train.log_probs.entropy"
    state = {e.id for e in graph.edges if e.kind is EdgeKind.STATE}
    assert not any("again" in id for id in state)


LORA = PPO.replace("policy: {source: some/model}", "policy: {source: some/model, lora: {rank: 8, alpha: 16}}")


def _shares(text: str) -> str | None:
    return compiled(text).role("reference").shares


def test_a_reference_of_adapters_is_the_base_of_their_trainer() -> None:
    assert _shares(LORA) == "actor_train"
    assert _shares(PPO) is None
    plain = LORA.replace("models: {", "models: {base: {source: some/model}, ")
    assert _shares(plain.replace("reference: {model: policy", "reference: {model: base")) == "actor_train"
    assert (
        _shares(LORA.replace("reference: {model: policy, backend: fsdp}", "reference: {model: policy, backend: vllm}"))
        is None
    )
    assert _shares(LORA.replace("- actor_train => actor_infer", "- actor_train => actor_infer, reference")) is None
    other = plain.replace("base: {source: some/model}", "base: {source: some/other}")
    assert _shares(other.replace("reference: {model: policy", "reference: {model: base")) is None


FILTERED = (
    PPO.replace("updates: 2", "updates: 1")
    .replace("  advantage:", "  sift: {kind: filter, rule: zero_spread}\n  advantage:")
    .replace(
        "  - reward.score, reference",
        "  - reward.score -> sift.select\n  - sift.select -> advantage.estimate\n  - reward.score, reference",
    )
)


def test_a_dropped_row_leaves_on_every_path() -> None:
    graph = compiled(FILTERED)
    rows = Rows(graph)
    governed = {op.id: [each.id for each in rows.governing(op)] for op in graph.ops}
    # Drawn below it: the estimate and what follows. The critic's update is of its space, so it sees no dropped row.
    assert {id for id, filters in governed.items() if filters} == {
        "advantage.estimate",
        "actor_train.update",
        "critic.update",
    }
    verdicts = [(e.source, e.target) for e in graph.edges if e.kind is EdgeKind.STATE and e.fields == ("keep",)]
    assert verdicts == [("sift.select", "advantage.estimate")]
    beside = FILTERED.replace(
        "advantage.estimate -> actor_train.update, critic.update", "advantage.estimate -> actor_train.update"
    )
    beside = beside.replace("  - actor_train =>", "  - other.estimate -> critic.update\n  - actor_train =>")
    beside = beside.replace("  advantage:", "  other: {kind: estimator, estimator: gae}\n  advantage:", 1)
    beside = beside.replace(
        "  - reward.score -> sift", "  - reward.score, critic.values -> other.estimate\n  - reward.score -> sift"
    )
    graph = compiled(beside)
    assert [each.id for each in Rows(graph).governing(graph.op("critic.update"))] == ["sift.select"]
    assert Rows(graph).governing(graph.op("other.estimate")) == ()
    targets = {e.target for e in graph.edges if e.kind is EdgeKind.STATE and e.fields == ("keep",)}
    assert targets == {"advantage.estimate", "critic.update"}


def test_a_mask_decides_as_a_drop_does_and_leaves_all_rows() -> None:
    graph = compiled(FILTERED.replace("rule: zero_spread", "rule: zero_spread, action: mask"))
    rows = Rows(graph)
    assert [each.id for each in rows.governing(graph.op("actor_train.update"))] == ["sift.select"]
    assert rows.filters(graph.op("actor_train.update")) == ()


def _unfused(graph: Graph) -> Graph:
    twin = replace(graph.op("anchor.log_probs"), id="anchor.log_probs@twin", label="twin")
    edges = [
        replace(e, id=f"{e.source} -> {twin.id}", target=twin.id) for e in graph.edges if e.target == "anchor.log_probs"
    ]
    return replace(graph, ops=(*graph.ops, twin), edges=(*graph.edges, *edges))


def _unordered(graph: Graph) -> Graph:
    return replace(graph, edges=tuple(e for e in graph.edges if e.fields != ("keep",)))


def _unshared(graph: Graph) -> Graph:
    return replace(graph, roles=tuple(replace(role, shares=None) for role in graph.roles))


@pytest.mark.parametrize(
    ("text", "broken", "told"),
    [
        (ANCHORED, _unfused, "compute the same"),
        (FILTERED, _unordered, "nothing orders sift.select before"),
        (LORA, _unshared, "reference shares the weights of None"),
    ],
)
def test_the_verifier_sees_what_these_passes_ensure(text: str, broken: object, told: str) -> None:
    before_the_last = PASSES[:-1]
    with pytest.raises(InternalError, match=told):
        run_passes(lowered(text), passes=[*before_the_last, Pass(broken)])  # type: ignore[arg-type]
