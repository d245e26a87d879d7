"""The graphs from siiRL whose joins lose inputs there: every input of every join is kept here, by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowrl.graph.graph import EdgeKind
from tests.compiler.flows import compiled, inputs

HERE = Path(__file__).parent / "joins"
GENERATED = "actor_infer.generate"
OF_ALL = {
    "rewards": "reward.score.rewards",
    "loss_mask": f"{GENERATED}.loss_mask",
    "old_log_probs": "actor_train.log_probs.old_log_probs",
    "ref_log_probs": "reference.log_probs.ref_log_probs",
}
TRAINED = {
    "tokens": f"{GENERATED}.tokens",
    "loss_mask": f"{GENERATED}.loss_mask",
    "advantages": "advantage.estimate.advantages",
    "old_log_probs": "actor_train.log_probs.old_log_probs",
}
CRITIC = {
    "tokens": f"{GENERATED}.tokens",
    "loss_mask": f"{GENERATED}.loss_mask",
    "values": "critic.values.values",
    "returns": "advantage.estimate.returns",
}
JOINS = {
    "grpo": {"advantage.estimate": OF_ALL, "actor_train.update": TRAINED},
    "ppo": {
        "advantage.estimate": OF_ALL | {"values": "critic.values.values"},
        "actor_train.update": TRAINED,
        "critic.update": CRITIC,
    },
}


@pytest.mark.parametrize("name", sorted(JOINS))
def test_joins_keep_every_input(name: str) -> None:
    graph = compiled((HERE / f"{name}.yaml").read_text(encoding="utf-8"))
    for op, expected in JOINS[name].items():
        assert inputs(graph, op) == expected
        brought = {
            slot: e.source for e in graph.edges if e.kind is EdgeKind.DATA and e.target == op for slot in e.fields
        }
        assert brought == {slot: column.rpartition(".")[0] for slot, column in expected.items()}
    assert not graph.removed
    assert {id for e in graph.edges for id in e.origin} == {e.id for e in graph.declared}
    drawn = {e.source for e in graph.declared if e.target == "advantage.estimate"}
    assert drawn <= {e.source for e in graph.edges if e.target == "advantage.estimate"}
