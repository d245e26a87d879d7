"""What a failed run says: exception of a rank, a stall or a full disk → diagnostics that point back to the flow."""

from __future__ import annotations

import errno
import traceback
from collections.abc import Sequence
from pathlib import Path

from msgspec import structs

from flowrl.diag.diagnostic import Diagnostic, FlowError, Help, InternalError, Label, diagnose
from flowrl.diag.span import Span
from flowrl.execution.contract import Firing
from flowrl.plan.plan import StagePlan
from flowrl.program.program import Instruction, InstructionKind
from flowrl.runtime.launchers.contract import Completion

_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO)
KEPT = "everything finished before this, earlier checkpoints too, is still there"
LINES_SAID = 12
"""Most lines of an exception that a frame has."""
SAID = "\n  "
"""Before each line of what a backend said."""


def failure(stage: StagePlan, completion: Completion, run_folder: Path) -> FlowError | InternalError:
    """The error of a completion: its own diagnostics where the cause is known, those without a place at the op's, else
    FR0902 at the op's span with what the rank said."""
    error, firing = completion.error, completion.work.firing
    assert error is not None
    if isinstance(error, InternalError):
        return error
    if isinstance(error, FlowError):
        return placed(error, span_of(stage, firing.instruction))
    if firing.instruction.kind is InstructionKind.SAVE and (reason := full_disk(error)):
        return cannot_write(completion.work.folder or run_folder, reason)
    facts = {
        "instruction": firing.instruction.id,
        "step": firing.step,
        "folder": run_folder,
    }
    notes = [_where_it_ran(firing.instruction, error), said(error)]
    return FlowError(diagnose("FR0902", span_of(stage, firing.instruction), notes=notes, **facts))


def stalled(
    stage: StagePlan,
    running: Sequence[Instruction],
    waiting: Sequence[str],
    seconds: float,
    step: int,
    run_folder: Path,
    last: Firing | None = None,
) -> FlowError:
    """FR0903: what runs without end, who waits for it, and what was the last to complete."""
    notes = [f"pool {i.pool}: `{i.id}` runs" for i in running] + list(waiting)
    notes += [] if last is None else [f"the last to complete was `{last.instruction.id}` in step {last.step}"]
    span = span_of(stage, running[0]) if running else None
    facts = {"seconds": f"{seconds:,.0f}", "step": step, "stage": stage.name, "folder": run_folder}
    return FlowError(diagnose("FR0903", span, notes=notes, **facts))


def cannot_write(path: Path, reason: str, kept: str = KEPT, help: str | None = None) -> FlowError:
    """FR0905; `kept` says what is left all the same, `help` what to do if it is not the run's folder."""
    helps = () if help is None else (Help(text=help),)
    return FlowError(diagnose("FR0905", helps=helps, path=path, reason=reason, kept=kept))


def full_disk(error: BaseException) -> str | None:
    """Why `error` says that a file could not be written; None if it says something else. Libraries that write files
    from other languages pass the system's words on as text."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    text = str(error)
    words = ("No space left on device", "Disk quota exceeded", "Permission denied", "Read-only file system")
    return next((word for word in words if word in text), None)


def span_of(stage: StagePlan, instruction: Instruction) -> Span | None:
    """Where the flow speaks of what an instruction does: its op, its edge or its role."""
    graph = stage.graph
    op = next((op for op in graph.ops if op.id == instruction.op), None)
    edge = next((edge for edge in (*graph.edges, *graph.declared) if edge.id == instruction.edge), None)
    role = next((role for role in graph.roles if role.name == instruction.role), None)
    return next((x.span for x in (op, edge, role) if x is not None and x.span is not None), None)


def span_of_role(stage: StagePlan, role: str) -> Span | None:
    """Where the flow has the role, if it is known."""
    return next((each.span for each in stage.graph.roles if each.name == role), None)


def placed(error: FlowError, span: Span | None) -> FlowError:
    """The error, its diagnostics that have no place put at `span`: what their first line says is said there."""
    if span is None or all(diagnostic.labels for diagnostic in error.diagnostics):
        return error
    return type(error)(d if d.labels else _put_at(d, span) for d in error.diagnostics)


def with_note(error: FlowError, note: str) -> FlowError:
    """The error, its first diagnostic with one more line: the last one, but for what a backend said."""
    first, *rest = error.diagnostics
    told = len(first.notes) - any(SAID in each for each in first.notes[-1:])
    notes = (*first.notes[:told], note, *first.notes[told:])
    return type(error)((structs.replace(first, notes=notes), *rest))


def said(error: BaseException) -> str:
    """Where the exception was raised and, under it and indented, its words: the first and the last of many lines."""
    where = getattr(error, "where", None)  # of one that comes from another process, which has kept its traceback
    frames = traceback.extract_tb(error.__traceback__)
    if where is None and frames:
        where = f"raised in {frames[-1].name}, {Path(frames[-1].filename).name}:{frames[-1].lineno}"
    words = f"{type(error).__name__}: {str(error).strip()}".removesuffix(": ")
    lines = [line.rstrip() for line in words.splitlines()]
    if len(lines) > LINES_SAID:
        lines = [*lines[: LINES_SAID // 2], "…", *lines[-LINES_SAID // 2 :]]
    return "".join([where or "it said", *(SAID + line for line in lines)])


def _put_at(diagnostic: Diagnostic, span: Span) -> Diagnostic:
    first, *rest = diagnostic.notes or ("",)
    return structs.replace(diagnostic, labels=(Label(span, first),), notes=tuple(rest))


def _where_it_ran(instruction: Instruction, error: BaseException) -> str:
    parts = [f"pool {instruction.pool}", f"role {instruction.role}"]
    parts += [f"{name} {getattr(error, name)}" for name in ("rank", "host") if getattr(error, name, None) is not None]
    return ", ".join(parts)
