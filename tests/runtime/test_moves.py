"""Moves of a role: a backend that wakes in two parts does, one that cannot wakes whole in the first."""

from __future__ import annotations

from typing import Any

import pytest

from flowrl.diag.diagnostic import InternalError
from flowrl.program.program import InstructionKind
from flowrl.runtime.setups import role_setups
from flowrl.runtime.worker import RoleWorker
from tests.runtime.plans import grpo_graph, make_plan, stage_plan


class Whole:
    def __init__(self, _: Any) -> None:
        self.called: list[str] = []

    def load(self) -> None:
        self.called.append("load")

    def offload(self) -> None:
        self.called.append("offload")


class Staged(Whole):
    def wake_weights(self) -> None:
        self.called.append("wake_weights")

    def wake_cache(self) -> None:
        self.called.append("wake_cache")


WAKE = (InstructionKind.WAKE_WEIGHTS, InstructionKind.WAKE_CACHE)


@pytest.mark.parametrize(
    ("rank", "kinds", "called"),
    [
        (Staged, WAKE, ["wake_weights", "wake_cache"]),
        (Whole, WAKE, ["load"]),
        (Staged, (InstructionKind.LOAD, InstructionKind.OFFLOAD), ["load", "offload"]),
    ],
)
def test_what_a_move_calls(rank: type[Whole], kinds: tuple[InstructionKind, ...], called: list[str]) -> None:
    worker, made = _worker(rank)
    for kind in kinds:
        worker.move(kind)
    assert made[0].called == called


def test_a_role_that_cannot_move_says_so() -> None:
    worker, _ = _worker(object)
    with pytest.raises(InternalError, match="was asked to load, which its backend cannot do"):
        worker.move(InstructionKind.LOAD)


def _worker(rank: Any) -> tuple[RoleWorker, list[Any]]:
    stage = stage_plan(grpo_graph())
    setup = next(s for s in role_setups(make_plan(stage), stage, {}) if s.role == "actor_infer").ranks[0]
    made: list[Any] = []

    def make(_: Any) -> Any:
        made.append(rank(_) if rank is not object else object())
        return made[0]

    return RoleWorker(setup, make), made
