"""Minibatches share out the prompts that a filter of a fixed rate leaves, not all that the step drew."""

from __future__ import annotations

from pathlib import Path

from flowrl import api

SOKOBAN = Path("examples/flows/06-sokoban-gigpo.yaml")


def test_minibatches_share_out_the_groups_that_stay() -> None:
    """8 groups of which the top quarter stays are 2 prompts: two minibatches of one prompt each."""
    plan = api.plan(SOKOBAN, sets=["step.updates=2"], cluster="8xH100-80G")
    updates = [i for i in plan.stages[0].programs.instructions if i.op == "actor_train.update"]
    assert [(i.rows.start, i.rows.stop) for i in updates] == [(0, 1), (1, 2)]
