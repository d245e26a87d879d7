"""What a run does when a rank's process is gone: what to submit again, when to roll back, when to give up.

Takes completions; gives Work for a role whose ranks were made anew, `RollBackError` where a trainer is lost, and FR0920
when ranks die faster than steps complete. Pure: no launcher, no clock, no files.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace

import msgspec
import numpy as np
from msgspec import structs

from flowrl.backends.batch import IntArray
from flowrl.diag.diagnostic import FlowError, diagnose
from flowrl.diag.span import Span
from flowrl.graph import state
from flowrl.graph.graph import Kind, Op
from flowrl.plan.plan import StagePlan
from flowrl.program.program import MOVES, InstructionKind
from flowrl.program.sessions import sessions_that_go_on
from flowrl.runtime.launchers.contract import Completion, Work

REPLACEMENTS = 3
"""Times that ranks of one role are replaced, or a stage is rolled back for it, without a new whole step in between."""

_HALTS = (InstructionKind.PAUSE, InstructionKind.RESUME)


class Loss(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of faults.jsonl: a rank that was lost, and what was done about it."""

    stage: str
    step: int
    """The first step that was not whole when it was noticed."""
    role: str
    rank: int | None = None
    doing: str
    """Id of the instruction that it failed."""
    reason: str
    rolled_back_to: int | None = None
    """Of a role that keeps state: the step whose checkpoint the stage went on from; 0 is the stage's start."""
    again: int = 0
    """Firings under way that were submitted again."""
    seconds: float = 0.0
    """Until everything was submitted again, or the stage could go on."""


class RollBackError(Exception):
    """Raised out of a driver: what was lost cannot be made anew where it was, so the stage starts from its newest
    checkpoint. `error` is what the run says if it may not."""

    def __init__(self, loss: Loss, error: Exception) -> None:
        super().__init__(f"{loss.role} was lost at {loss.doing}")
        self.loss, self.error = loss, error


@dataclass(slots=True)
class Losses:
    """Counts what was lost since the last new whole step, over all attempts of a stage."""

    most: int = REPLACEMENTS
    _furthest: tuple[str, int] = ("", 0)
    _since: list[Loss] = field(default_factory=list[Loss])

    def whole(self, stage: str, step: int) -> None:
        """A step is whole. Only one that no attempt has reached before counts as a new one."""
        if stage != self._furthest[0] or step > self._furthest[1]:
            self._furthest = (stage, step)
            self._since.clear()

    def add(self, loss: Loss, span: Span | None, error: Exception) -> None:
        """Take note of a loss. Raises FlowError FR0920, which names all of them, if its role has been lost too often;
        `error` where nothing is to be replaced."""
        if self.most == 0:
            raise error
        self._since.append(loss)
        mine = [each for each in self._since if each.role == loss.role]
        if len(mine) <= self.most:
            return
        notes = [f"step {each.step}, {_who(each)}, at `{each.doing}`: {each.reason}" for each in mine]
        facts = {"role": loss.role, "times": self.most, "stage": loss.stage, "step": self._furthest[1]}
        raise FlowError(diagnose("FR0920", span, notes=notes, **facts)) from error


class Tracks:
    """For each role what it has done that a rank made anew must do again: weights it has taken, a session it has open,
    episodes that it has reset and not played, whether it is halted, and whether it is off its devices."""

    def __init__(self, stage: StagePlan) -> None:
        self._graph, self._together = stage.graph, stage.programs.together
        self._resets: dict[tuple[str, str | None], Work] = {}
        """By role and label."""
        self._weights: dict[str, Work] = {}
        """Weights edge → the newest version taken."""
        self._open: dict[str, Work] = {}
        """Op → its session, until the last take."""
        self._given: dict[str, list[IntArray]] = {}
        self._halted: dict[str, Work] = {}
        self._moved: dict[str, Work] = {}
        self._moves = {(i.role, i.kind): i for i in stage.programs.instructions if i.kind in MOVES}

    def see(self, completion: Completion) -> None:
        """Take in a completion without error."""
        work, instruction = completion.work, completion.work.firing.instruction
        if instruction.kind is InstructionKind.RECEIVE_WEIGHTS and instruction.edge is not None:
            self._weights[instruction.edge] = work
        elif instruction.kind in MOVES:
            self._moved[instruction.role] = work
        elif instruction.kind in _HALTS:
            self._halted[instruction.role] = work
        elif instruction.op is not None:
            self._see_session(completion, instruction.op)
            self._see_episodes(work, self._graph.op(instruction.op))

    def begun_again(self, role: str, flying: Iterable[Work]) -> list[Work]:
        """Of what is under way, what the loss of a rank of `role` ends: its own, and what plays with that."""
        all_ = list(flying)
        mine = {work.firing.instruction.id for work in all_ if _of(work, role)}
        mine = mine.union(*(self._together.get(id, ()) for id in mine))
        return [work for work in all_ if work.firing.instruction.id in mine]

    def opened(self, role: str) -> bool:
        """Whether the role has a session with rows to give."""
        return any(work.firing.instruction.role == role for work in self._open.values())

    def holds_weights(self, role: str) -> bool:
        """Whether the role holds other weights than those it started with."""
        return any(work.firing.instruction.role == role for work in self._weights.values())

    def replay(self, role: str, flying: Iterable[Work]) -> tuple[Work, ...]:
        """What brings new ranks of `role` to where the lost ones stood, in order; `flying` is what was under way and
        will be submitted after it."""
        mine = [work for work in flying if work.firing.instruction.role == role]
        newer = {work.firing.instruction.edge for work in mine if _kind(work) is InstructionKind.RECEIVE_WEIGHTS}
        ends = {work.firing.instruction.op for work in mine if _kind(work) is InstructionKind.CLOSE}
        weights = [work for edge, work in sorted(self._weights.items()) if edge not in newer and _of(work, role)]
        opened = [
            replace(work, given=_joined(self._given[op]))
            for op, work in sorted(self._open.items())
            if op not in ends and _of(work, role)
        ]
        halted = self._halted.get(role)
        halts = [halted] if opened and halted is not None and _kind(halted) is InstructionKind.PAUSE else []
        resets = [work for work in self._resets.values() if _of(work, role)]
        works = [*weights, *opened, *resets, *halts, *self._away(role)]
        return tuple(replace(work, again=True) for work in works)

    def _away(self, role: str) -> list[Work]:
        """New ranks are on their devices, all of them."""
        moved = self._moved.get(role)
        if moved is None or _kind(moved) in (InstructionKind.LOAD, InstructionKind.WAKE_CACHE):
            return []
        offload = self._moves.get((role, InstructionKind.OFFLOAD))
        if _kind(moved) is InstructionKind.OFFLOAD or offload is None:
            return [moved]
        return [Work(structs.replace(moved.firing, instruction=offload)), moved]

    def _see_episodes(self, work: Work, op: Op) -> None:
        if self._graph.role(op.role).kind is Kind.ENV:
            self._resets.pop((op.role, op.label), None)
            if op.method == "reset":
                self._resets[op.role, op.label] = work

    def _see_session(self, completion: Completion, op: str) -> None:
        kind, instruction = _kind(completion.work), completion.work.firing.instruction
        if kind is InstructionKind.OPEN:
            self._open[op], self._given[op] = completion.work, []
            self._halted.pop(instruction.role, None)
        elif kind is InstructionKind.TAKE and op in self._open:
            self._given[op] += [part.ids for part in completion.parts]
        last = kind is InstructionKind.TAKE and instruction.firing + 1 == instruction.firings
        if last or kind is InstructionKind.CLOSE:
            self._open.pop(op, None)


def keeps_state(stage: StagePlan, role: str) -> bool:
    """Whether a lost rank of the role takes something with it that only a checkpoint has: what a role keeps, or a
    session that goes on from step to step, whose prompts begin anew."""
    goes_on = any(stage.graph.op(op).role == role for op in sessions_that_go_on(stage.programs))
    return goes_on or state.keeps_state(stage.graph.role(role), stage.graph.ops)


def made_anew(stage: StagePlan, tracks: Tracks, flying: Iterable[Work], initial: Collection[str]) -> frozenset[str]:
    """Roles without state that a roll-back cannot leave as they are: those in a session, and those that hold newer
    weights than their first ones if `initial`, edges on which the first ones wait, has one of theirs."""
    programs = stage.programs.instructions
    receivers = {i.role for i in programs if i.kind is InstructionKind.RECEIVE_WEIGHTS and i.edge in initial}
    opening = {work.firing.instruction.role for work in flying if _kind(work) is InstructionKind.OPEN}
    taking = {work.firing.instruction.role for work in flying if _kind(work) is InstructionKind.RECEIVE_WEIGHTS}
    roles = {role.name for role in stage.graph.roles}
    return frozenset(
        role
        for role in roles
        if role in opening
        or tracks.opened(role)
        or (role in receivers and (role in taking or tracks.holds_weights(role)))
    )


def _kind(work: Work) -> InstructionKind:
    return work.firing.instruction.kind


def _of(work: Work, role: str) -> bool:
    return work.firing.instruction.role == role


def _joined(given: list[IntArray]) -> IntArray | None:
    return np.sort(np.concatenate(given)) if given else None


def _who(loss: Loss) -> str:
    return f"`{loss.role}`" if loss.rank is None else f"`{loss.role}`, rank {loss.rank}"
