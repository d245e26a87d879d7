"""An inline launcher whose ranks are lost where a test says so, and fakes that notice what a new rank was not told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from flowrl.backends.batch import Batch
from flowrl.backends.contract import Call, RankSetup, Result
from flowrl.diag.diagnostic import diagnose
from flowrl.graph.graph import Kind
from flowrl.runtime.launchers.contract import Completion, LostRank, RankLostError, Work
from flowrl.runtime.launchers.inline import InlineLauncher
from flowrl.runtime.session import SessionOptions
from tests.runtime.fakes import FakeGenerator, make_fake

Loses = Callable[[Work], bool]
BEFORE, AFTER = "before", "after"


class Gone:
    """A rank whose process is no more."""

    def close(self) -> None:
        return

    def __getattr__(self, name: str) -> object:
        raise AssertionError(f"{name} was asked of a rank that is gone")


class Losing(InlineLauncher):
    """Loses the rank of a piece of work before it is done, or after it is and before anyone hears of it."""

    def __init__(self, loses: Loses, when: str, make_rank: Callable[[RankSetup], object], at_start: int = 0) -> None:
        super().__init__(1, make_rank)
        self._loses, self._when, self._at_start = loses, when, at_start
        self.revived: list[str] = []
        self.rewound = 0

    def submit(self, work: Work) -> None:
        if work.again or not self._loses(work):
            super().submit(work)
            return
        if self._when == AFTER:
            super().submit(work)
            self._completed.pop()
        role = work.firing.instruction.role
        self._workers[role]._rank = Gone()
        self._completed.append(Completion(work, error=death(role), lost=LostRank(role, 0, "killed")))

    def revive(self, role: str) -> None:
        self.revived.append(role)
        if len(self.revived) <= self._at_start:
            raise death(role)
        super().revive(role)

    def rewind(self, restore: Path | None, anew: object) -> None:
        self.rewound += 1
        super().rewind(restore, ())


def death(role: str) -> RankLostError:
    told = diagnose("FR0955", who=f"`{role}`, rank 0", doing="something", reason="killed")
    return RankLostError(told, LostRank(role, 0, "killed at its start"))


class Careful(FakeGenerator):
    """Works only while it is on its devices, with weights and cache."""

    def __init__(self, setup: RankSetup) -> None:
        super().__init__(setup)
        self.away: set[str] = set()

    def call(self, call: Call, batch: Batch) -> Result:
        assert not self.away, "it is not on its devices"
        return super().call(call, batch)

    def offload(self) -> None:
        assert not self.away, "it is away already"
        self.away = {"weights", "cache"}

    def load(self) -> None:
        self.away.clear()

    def wake_weights(self) -> None:
        self.away.discard("weights")

    def wake_cache(self) -> None:
        assert "weights" not in self.away
        self.away.discard("cache")


def careful(setup: RankSetup) -> object:
    return Careful(setup) if setup.role.kind is Kind.GENERATOR else make_fake(setup)


def losing(launcher: Losing, **more: object) -> SessionOptions:
    options = SessionOptions(progress=False, threads=1, make_launcher=lambda kind, threads: launcher)
    return replace(options, **more)  # type: ignore[arg-type]
