"""Frames: whose tokens a column per token belongs to. All such columns that an op reads are as long as one response, so
they are of one call of generate. Takes bound ops, gives diagnostics; ops that run user code may read any."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from flowrl.diag.diagnostic import Diagnostic, diagnose
from flowrl.graph.algorithms import toposort
from flowrl.graph.graph import Input, Op
from flowrl.graph.params import CallParams, GenerateParams, ScoreParams
from flowrl.graph.types import Unit

TOKENS = ("tokens", "latents")


def misaligned(ops: Sequence[Op]) -> Iterator[Diagnostic]:
    """FR0351 for each op of ours that reads columns of the tokens of two calls of generate."""
    known = {op.id: op for op in ops}
    pairs = [(i.source, op.id) for op in ops for i in op.inputs if i.source in known]
    frames: dict[str, str | None] = {}
    for id in toposort(known, pairs):
        op = known[id]
        read = [(i, frame) for i in op.inputs if (frame := _frame(known, frames, i)) is not None]
        frames[id] = id if isinstance(op.params, GenerateParams) else _own(op, read)
        other = next(((i, frame) for i, frame in read if frame != read[0][1]), None)
        if other is not None and not isinstance(op.params, CallParams | ScoreParams):
            yield _clash(op, read[0], other)


def _frame(known: Mapping[str, Op], frames: Mapping[str, str | None], input: Input) -> str | None:
    """The call of generate whose tokens the column is aligned with; None for coarser columns and tokens of texts."""
    source = known.get(input.source or "")
    column = next((f for f in source.outputs if f.name == input.field), None) if source is not None else None
    return frames[source.id] if source is not None and column is not None and column.unit is Unit.TOKEN else None


def _own(op: Op, read: Sequence[tuple[Input, str]]) -> str | None:
    """Of what an op writes: that of the tokens that it reads, else of all its columns where they agree."""
    of_tokens = [frame for input, frame in read if input.slot in TOKENS]
    found = dict.fromkeys(of_tokens or [frame for _, frame in read])
    return next(iter(found)) if len(found) == 1 else None


def _clash(op: Op, first: tuple[Input, str], other: tuple[Input, str]) -> Diagnostic:
    span = other[0].span or first[0].span or op.span
    return diagnose("FR0351", span, op=op.id, slot=other[0].slot, there=other[1], first=first[0].slot, here=first[1])
