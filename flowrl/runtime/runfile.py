"""A run's folder and its run.json: what state the run is in, who runs it, where the flow's relative paths start."""

from __future__ import annotations

import os
import socket
import time
from enum import StrEnum
from pathlib import Path

import msgspec
from msgspec import structs

from flowrl.diag.diagnostic import FlowError, diagnose
from flowrl.plan.io import bounded_bytes, loads
from flowrl.plan.plan import Plan
from flowrl.runtime.faults import cannot_write

RUN, PLAN, FLOW, TRACE = "run.json", "plan.json", "flow.yaml", "trace.json"
_NOTHING_BEGAN = "the run has not begun"


class RunStatus(StrEnum):
    RUNNING = "running"
    FINISHED = "finished"
    INTERRUPTED = "interrupted"
    FAILED = "failed"


class RunFile(msgspec.Struct, frozen=True, kw_only=True):
    """run.json. `folder` is absolute: where relative paths of the flow start."""

    name: str
    state: RunStatus
    folder: str
    launcher: str
    stage: str | None = None
    step: int = 0
    """The last whole step of `stage`."""
    pid: int = 0
    host: str = ""
    pid_started: str = ""
    """The kernel's start time of the process, so that another process with its number is not taken for it."""
    started: str = ""
    """Local time with its offset, ISO 8601."""
    resumed: int = 0
    """How often the run was taken up again."""
    code: str | None = None
    """Code of what ended a failed run."""


def make_run_folder(runs: Path, name: str) -> Path:
    """`runs/NAME-YYYYmmdd-HHMMSS`, new. Raises FlowError FR0905 if it cannot be made."""
    stem = runs / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    for number in range(1, 1000):
        folder = stem if number == 1 else stem.with_name(f"{stem.name}-{number}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            if runs.exists() and not runs.is_dir():
                raise cannot_write(runs, "is a file, not a folder", _NOTHING_BEGAN) from None
            continue
        except OSError as error:
            raise cannot_write(folder, error.strerror or str(error), _NOTHING_BEGAN) from error
        return folder.resolve()
    raise cannot_write(stem, "1,000 runs of this name began in this second", _NOTHING_BEGAN)


def owned(file: RunFile) -> RunFile:
    """The run file, saying that this process runs it now."""
    return structs.replace(
        file,
        state=RunStatus.RUNNING,
        pid=os.getpid(),
        host=socket.gethostname(),
        pid_started=_started(os.getpid()),
        started=file.started or time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        code=None,
    )


def write_run_file(run_folder: Path, file: RunFile) -> None:
    part = run_folder / f"{RUN}.part"
    part.write_bytes(msgspec.json.format(msgspec.json.encode(file), indent=2) + b"\n")
    part.replace(run_folder / RUN)


def read_run_file(run_folder: Path) -> RunFile:
    """Raises FlowError FR0907 if the folder is not a run's."""
    path = run_folder / RUN
    try:
        return msgspec.json.decode(path.read_bytes(), type=RunFile)
    except OSError as error:
        reason = f"{RUN}: {error.strerror}"
        raise FlowError(diagnose("FR0907", folder=run_folder, reason=reason)) from error
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise FlowError(diagnose("FR0907", folder=run_folder, reason=f"{RUN}: {error}")) from error


def load_run(run_folder: Path) -> tuple[Plan, RunFile]:
    """A run's plan, its `folder` absolute, and its run.json. Raises FlowError FR0907 if the folder is not a run's."""
    file = read_run_file(run_folder)
    path = run_folder / PLAN
    try:
        plan = loads(bounded_bytes(path), str(path))
    except OSError as error:
        reason = f"{PLAN}: {error.strerror}"
        raise FlowError(diagnose("FR0907", folder=run_folder, reason=reason)) from error
    return structs.replace(plan, folder=file.folder), file


def require_left(run_folder: Path, file: RunFile) -> None:
    """Raises FlowError FR0911 if the process that runs it is still there."""
    if file.state is not RunStatus.RUNNING or file.host != socket.gethostname() or file.pid == os.getpid():
        return
    if _started(file.pid) and _started(file.pid) == file.pid_started:
        raise FlowError(diagnose("FR0911", pid=file.pid, folder=run_folder))


def _started(pid: int) -> str:
    """Field 22 of /proc/PID/stat (proc(5)); empty if there is no such process or no /proc."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
    return stat.rpartition(")")[2].split()[19]
