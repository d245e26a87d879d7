"""Checkpoints in a run's folder: `checkpoints/STAGE/step-000060/` with ROLE/ (its ranks' files) and state.json.

A checkpoint is written to a folder with another name and renamed once all of it is on the disk, so each that can be
seen is whole. Knows folders and the driver's counts; what a role writes is its own business.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from flowrl.diag.diagnostic import FlowError, diagnose

_NAME = re.compile(r"step-(\d{6,})")


class CheckpointState(msgspec.Struct, frozen=True, kw_only=True):
    """state.json: where the run stands after `step` steps of `stage`."""

    stage: str
    step: int
    cursors: Mapping[str, int]
    """Data op → the place in its order where the next prompts start."""
    waiting: Mapping[str, tuple[int, ...]]
    """Weights edge → the versions that wait on it, oldest first; the newest is the last one published."""
    fresh: tuple[str, ...]
    """Weights edges whose newest version is the weights in this checkpoint. Other versions that wait lie under
    weights/EDGE/."""
    carried: Mapping[str, tuple[int, ...]] = {}
    """Call of generate whose session goes on → prompts that it had and had not given: they begin anew."""
    ledger: str
    """Digest of ledger.jsonl up to here."""
    plan: str
    """sha256 of plan.json."""


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    folder: Path
    state: CheckpointState


class Checkpoints:
    """Writes the checkpoints of one stage; keeps the newest `keep` (None: all)."""

    def __init__(self, run_folder: Path, stage: str, keep: int | None) -> None:
        self._folder = run_folder / "checkpoints" / stage
        self._keep = keep
        self._begun: set[int] = set()

    def folder(self, step: int) -> Path:
        return self._folder / f"step-{step:06d}"

    def has(self, step: int) -> bool:
        return (self.folder(step) / "state.json").exists()

    def begin(self, step: int) -> Path:
        """The folder to write step `step` to; empty the first time it is asked for."""
        part = self._part(step)
        if step not in self._begun:
            self._begun.add(step)
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir(parents=True)
        return part

    def begun(self, step: int) -> bool:
        """Whether something of step `step` has been written that is not finished yet."""
        return step in self._begun

    def finish(self, state: CheckpointState) -> Path:
        """Everything of this step is written: make it visible, then drop what need not be kept."""
        part, whole = self._part(state.step), self.folder(state.step)
        (part / "state.json").write_bytes(msgspec.json.format(msgspec.json.encode(state, order="sorted"), indent=2))
        write_through(part)
        shutil.rmtree(whole, ignore_errors=True)
        part.rename(whole)
        self._begun.discard(state.step)
        for old in _steps_in(self._folder)[: -self._keep] if self._keep else []:
            shutil.rmtree(self.folder(old), ignore_errors=True)
        return whole

    def drop(self) -> None:
        """Take away what was begun and will not be finished."""
        for step in self._begun:
            shutil.rmtree(self._part(step), ignore_errors=True)
        self._begun.clear()

    def _part(self, step: int) -> Path:
        return self._folder / f".step-{step:06d}.part"


def weights_file(folder: Path, edge: str, version: int) -> Path:
    """Where the checkpoint `folder` keeps a weight version that waits on an edge: its buffer's bytes."""
    return folder / "weights" / re.sub(r"[^A-Za-z0-9_.-]+", "-", edge) / f"version-{version:06d}.bin"


def kept_weights(folder: Path, edge: str) -> list[tuple[int, Path]]:
    """The versions that the checkpoint `folder` keeps for an edge, each with its file; ascending."""
    files = sorted(weights_file(folder, edge, 0).parent.glob("version-*.bin"))
    return [(int(file.stem.removeprefix("version-")), file) for file in files]


def newest(run_folder: Path, stages: Sequence[str]) -> Checkpoint | None:
    """The last whole checkpoint of the last stage that has one."""
    for stage in reversed(stages):
        folder = run_folder / "checkpoints" / stage
        for step in reversed(_steps_in(folder)):
            return load(folder / f"step-{step:06d}")
    return None


def at_step(run_folder: Path, stages: Sequence[str], step: int) -> Checkpoint | None:
    """The checkpoint of `step` in the last stage that has one."""
    for stage in reversed(stages):
        folder = run_folder / "checkpoints" / stage
        if step in _steps_in(folder):
            return load(folder / f"step-{step:06d}")
    return None


def steps_of(run_folder: Path, stage: str) -> list[int]:
    """Steps of which the stage has a whole checkpoint, ascending."""
    return _steps_in(run_folder / "checkpoints" / stage)


def load(folder: Path) -> Checkpoint:
    """Raises FlowError FR0908 if state.json is not one of ours."""
    path = folder / "state.json"
    try:
        return Checkpoint(folder=folder, state=msgspec.json.decode(path.read_bytes(), type=CheckpointState))
    except (msgspec.DecodeError, msgspec.ValidationError) as fault:
        raise FlowError(diagnose("FR0908", path=path, reason=str(fault))) from fault


def _steps_in(folder: Path) -> list[int]:
    matches = (_NAME.fullmatch(entry.name) for entry in folder.glob("step-*") if (entry / "state.json").exists())
    return sorted(int(match[1]) for match in matches if match)


def write_through(folder: Path) -> None:
    """Write everything under `folder`, names too, through to the disk. A rank does it with what it wrote, as a sync on
    another host does not vouch for that."""
    for path in sorted(folder.rglob("*"), reverse=True):
        # What another rank is just writing may have had another name a moment ago; that rank syncs it.
        with suppress(FileNotFoundError):
            _fsync(path)
    _fsync(folder)


def _fsync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
