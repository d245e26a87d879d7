"""A disk that is full at any write: FR0905, whole checkpoints before it, and a run that goes on once there is room."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from flowrl.diag.diagnostic import FlowError
from flowrl.plan.plan import StageRun
from flowrl.runtime import checkpoint
from flowrl.runtime.checkpoint import steps_of
from flowrl.runtime.jsonl import JsonLines
from flowrl.runtime.runfile import RunStatus
from tests.runtime.plans import grpo_graph, make_plan, split, stage_plan
from tests.runtime.runs import logs_of, resume_fakes, run_fakes, trained_state

RUN = StageRun(steps=4, checkpoint_every_steps=2, loggers=(), samples_logged=1)
GRAPH = grpo_graph(max_lag=1, val_every=None)
PLAN = make_plan(stage_plan(GRAPH, split(GRAPH), RUN))


class Disk:
    """Counts writes below a folder; from the `full`-th on there is no room."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder, self.writes, self.full = folder, 0, 10**9
        for name in ("write_bytes", "write_text"):
            patch.setattr(Path, name, self._path(getattr(Path, name)))
        patch.setattr(JsonLines, "add", self._lines(JsonLines.add))
        patch.setattr(checkpoint, "_fsync", self._fsync(checkpoint._fsync))

    def write(self, path: Path) -> None:
        if self.folder in Path(path).parents:
            self.writes += 1
            if self.writes > self.full:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    def _path(self, original: object) -> object:
        def write(path: Path, *arguments: object, **named: object) -> object:
            self.write(path)
            return original(path, *arguments, **named)  # type: ignore[operator]

        return write

    def _fsync(self, original: object) -> object:
        def sync(path: Path) -> None:
            self.write(path)
            original(path)  # type: ignore[operator]

        return sync

    def _lines(self, original: object) -> object:
        def add(lines: JsonLines, new: Iterable[Mapping[str, object]]) -> None:
            """Some of a line may still have found room."""
            try:
                self.write(lines.path)
            except OSError:
                lines._file.write(b'{"stage":"grpo","st')
                lines._file.flush()
                raise
            original(lines, new)  # type: ignore[operator]

        return add


def test_a_disk_that_is_full_at_any_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run_fakes(PLAN, tmp_path / "whole").folder
    disk = Disk(tmp_path / "counted", monkeypatch)
    run_fakes(PLAN, tmp_path / "counted")
    writes = disk.writes
    assert writes > 30
    last = writes - 2  # trace.json and run.json of a run that is over: it has finished without them
    for full in range(3, last, 2):  # 0 to 2: the plan and run.json, of a run that has not begun
        disk.folder, disk.writes, disk.full = tmp_path / str(full), 0, full
        with pytest.raises(FlowError) as raised:
            run_fakes(PLAN, tmp_path / str(full))
        assert {d.code for d in raised.value.diagnostics} == {"FR0905"}, f"write {full}"
        disk.full = 10**9
        (folder,) = (tmp_path / str(full)).iterdir()
        for step in steps_of(folder, "grpo"):
            assert trained_state(folder, "grpo", step) == trained_state(whole, "grpo", step)
        assert resume_fakes(folder).state is RunStatus.FINISHED
        assert logs_of(folder) == logs_of(whole), f"write {full}"
        assert trained_state(folder, "grpo", 4) == trained_state(whole, "grpo", 4)


CHILD = """
import resource, sys
from pathlib import Path
from flowrl.diag.diagnostic import FlowError
from flowrl.runtime.run import RunOptions, run
from tests.runtime.tiny_flow import QUIET, tiny_quickstart
plan = tiny_quickstart()
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
try:
    run(plan, RunOptions(runs=Path(sys.argv[1]), session=QUIET))
except FlowError as error:
    print(error.diagnostics[0].code, error.diagnostics[0].labels or error.diagnostics[0].notes)
"""


def test_a_real_trainer_that_finds_no_room(tmp_path: Path) -> None:
    """No file may be larger than 100 kB, by the kernel's word: the model fits, a checkpoint with its optimizer not."""
    assert hasattr(resource, "RLIMIT_FSIZE")
    command = [sys.executable, "-c", CHILD, str(tmp_path), "100000"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.startswith("FR0905"), done.stdout + done.stderr
    (folder,) = tmp_path.iterdir()
    assert list(folder.glob("checkpoints/*/step-*")) == []
    assert list(folder.glob("checkpoints/*/.step-*")) == []
