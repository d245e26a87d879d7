"""What a failed run says: exception of a rank, a stall or a full disk → diagnostics that point back to the flow."""

from __future__ import annotations

import errno
import traceback
from collections.abc import Sequence
from pathlib import Path

from msgspec import structs

from flowrl.diag.diagnostic import FlowError, InternalError, diagnose
from flowrl.diag.span import Span
from flowrl.plan.plan import StagePlan
from flowrl.program.program import Instruction, InstructionKind
from flowrl.runtime.launchers.contract import Completion

_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO)
KEPT = "everything finished before this, earlier checkpoints too, is still there"


def failure(stage: StagePlan, completion: Completion, run_folder: Path) -> FlowError | InternalError:
    """The error of a completion: its own diagnostics where the cause is known, else FR0902 at the op's span with the
    rank's last words."""
    error, firing = completion.error, completion.work.firing
    assert error is not None
    if isinstance(error, FlowError | InternalError):
        return error
    if firing.instruction.kind is InstructionKind.SAVE and (reason := full_disk(error)):
        return cannot_write(completion.work.folder or run_folder, reason)
    facts = {
        "instruction": firing.instruction.id,
        "step": firing.step,
        "error": last_line(error),
        "folder": run_folder,
    }
    where = f"pool {firing.instruction.pool}, role {firing.instruction.role}"
    rank = getattr(error, "rank", None)
    notes = [where if rank is None else f"{where}, rank {rank}", *_where_raised(error)]
    return FlowError(diagnose("FR0902", span_of(stage, firing.instruction), notes=notes, **facts))


def stalled(
    stage: StagePlan,
    running: Sequence[Instruction],
    waiting: Sequence[str],
    seconds: float,
    step: int,
    run_folder: Path,
) -> FlowError:
    """FR0903: what runs without end, and who waits for it."""
    notes = [f"pool {i.pool}: `{i.id}` runs" for i in running] + list(waiting)
    span = span_of(stage, running[0]) if running else None
    facts = {"seconds": f"{seconds:,.0f}", "step": step, "stage": stage.name, "folder": run_folder}
    return FlowError(diagnose("FR0903", span, notes=notes, **facts))


def cannot_write(path: Path, reason: str) -> FlowError:
    return FlowError(diagnose("FR0905", path=path, reason=reason, kept=KEPT))


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


def with_note(error: FlowError, note: str) -> FlowError:
    """The error, its first diagnostic with one more line."""
    first, *rest = error.diagnostics
    return type(error)((structs.replace(first, notes=(*first.notes, note)), *rest))


def last_line(error: BaseException) -> str:
    """`Type: last line of the message`, as the backend said it."""
    lines = str(error).strip().splitlines()
    name = type(error).__name__
    return f"{name}: {lines[-1].strip()}" if lines else name


def _where_raised(error: BaseException) -> list[str]:
    told = getattr(error, "where", None)
    if told is not None:  # it comes from another process, which has kept its traceback
        return [told]
    frames = traceback.extract_tb(error.__traceback__)
    return [f"raised in {frames[-1].name}, {Path(frames[-1].filename).name}:{frames[-1].lineno}"] if frames else []
