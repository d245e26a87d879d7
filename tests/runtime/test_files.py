"""The files of a run: lines that are cut back, the ledger's chain of digests, checkpoints, run.json."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowrl.diag.diagnostic import FlowError, InternalError
from flowrl.runtime import runfile
from flowrl.runtime.checkpoint import Checkpoints, CheckpointState, at_step, newest, steps_of, write_through
from flowrl.runtime.jsonl import JsonLines, cut_back, read_lines
from flowrl.runtime.launchers import choose
from flowrl.runtime.ledger import Ledger, LedgerEntry, digest_of, runs
from flowrl.runtime.runfile import RunFile, RunStatus, make_run_folder, owned, read_run_file, write_run_file
from tests.conftest import Told
from tests.runtime.plans import grpo_graph, make_plan, split, stage_plan


def test_lines_are_cut_back_to_a_step_of_a_stage(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    lines = JsonLines(path)
    lines.add({"stage": stage, "step": step, "x": float("nan")} for stage in ("a", "b") for step in (1, 2, 3))
    lines.close()
    with path.open("ab") as file:
        file.write(b'{"stage":"b","st')
    cut_back(path, ["a", "b"], "b", 1)
    assert [(line["stage"], line["step"]) for line in read_lines(path)] == [("a", 1), ("a", 2), ("a", 3), ("b", 1)]
    assert json.loads(path.read_text().splitlines()[0])["x"] is None
    cut_back(path, ["a", "b"], "a", 0)
    assert path.read_bytes() == b""


def test_a_line_in_the_middle_that_is_broken_is_told(tmp_path: Path, told: Told) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"stage":"a","step":1}\nbroken\n{"stage":"a","step":2}\n')
    with pytest.raises(FlowError) as raised:
        list(read_lines(path))
    told(raised.value, "FR0908", "line")


@given(st.sets(st.integers(0, 60)))
def test_runs_cover_exactly_the_ids(ids: set[int]) -> None:
    found = runs(ids)
    assert [i for start, stop in found for i in range(start, stop)] == sorted(ids)
    assert all(stop < start for (_, stop), (start, _) in pairwise(found))


def _entry(step: int, first: int, stage: str = "grpo") -> LedgerEntry:
    return LedgerEntry(
        stage=stage, step=step, data="data.train", prompts=((first, first + 4),), samples=8, made_with=0, version=0
    )


def test_the_ledger_refuses_a_prompt_for_the_second_time(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ledger.add([_entry(1, 0)])
    ledger.add([_entry(1, 0, stage="another")])
    with pytest.raises(InternalError, match="comes a second time"):
        ledger.add([_entry(2, 3)])
    ledger.close()


def test_the_ledgers_digest_is_a_chain_over_its_lines(tmp_path: Path) -> None:
    """The same by hand: sha256 of the digest so far and the line with its keys sorted."""
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path)
    ledger.add([_entry(1, 0)])
    ledger.add([_entry(2, 4)])
    expected = ""
    for step, first in ((1, 0), (2, 4)):
        line = msgspec.to_builtins(_entry(step, first))
        text = json.dumps(line, sort_keys=True, separators=(",", ":"))
        expected = hashlib.sha256((expected + text).encode()).hexdigest()
    assert ledger.digest == digest_of(path) == expected
    ledger.close()
    again = Ledger(path)
    assert again.digest == expected
    with pytest.raises(InternalError):
        again.add([_entry(3, 7)])
    again.close()


def _state(step: int) -> CheckpointState:
    return CheckpointState(stage="grpo", step=step, cursors={"data.train": 4}, waiting={}, fresh=(), ledger="", plan="")


def test_a_checkpoint_is_seen_when_it_is_whole(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, "grpo", keep=2)
    for step in (1, 2, 10):
        (checkpoints.begin(step) / "weights").write_text(str(step))
        assert checkpoints.begin(step).exists(), "asked for again it is the same folder, not emptied"
        assert not checkpoints.has(step)
        checkpoints.finish(_state(step))
    assert steps_of(tmp_path, "grpo") == [2, 10]
    checkpoints.begin(11)
    found = newest(tmp_path, ["sft", "grpo"])
    assert found is not None
    assert (found.state.step, (found.folder / "weights").read_text()) == (10, "10")
    assert at_step(tmp_path, ["grpo"], 1) is None
    checkpoints.drop()
    assert sorted(p.name for p in (tmp_path / "checkpoints" / "grpo").iterdir()) == ["step-000002", "step-000010"]


def test_a_rank_syncs_all_while_another_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """safetensors writes to a name of its own and renames: a name that was listed is gone, the rest is synced."""
    for name in ("rank-0.json", "rank-1.safetensors.tmp", "rank-1.json"):
        (tmp_path / name).write_text("{}")
    opened: list[str] = []

    def rename_first(path: Path, flags: int) -> int:
        if (other := tmp_path / "rank-1.safetensors.tmp").exists():
            other.rename(tmp_path / "rank-1.safetensors")
        handle = original(path, flags)
        opened.append(path.name)
        return handle

    original = os.open
    monkeypatch.setattr(os, "open", rename_first)
    write_through(tmp_path)
    assert opened == ["rank-1.json", "rank-0.json", tmp_path.name]


def test_run_folders_of_one_second_do_not_meet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runfile.time, "strftime", lambda _: "20260101-120000")
    names = [make_run_folder(tmp_path, "ppo").name for _ in range(2)]
    assert names == ["ppo-20260101-120000", "ppo-20260101-120000-2"]


def test_a_run_that_another_process_runs_is_not_touched(tmp_path: Path, told: Told) -> None:
    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        file = RunFile(name="ppo", state=RunStatus.RUNNING, folder="/", launcher="inline")
        file = msgspec.structs.replace(owned(file), pid=other.pid, pid_started=_started(other.pid))
        write_run_file(tmp_path, file)
        assert read_run_file(tmp_path) == file
        with pytest.raises(FlowError) as raised:
            runfile.require_left(tmp_path, file)
        told(raised.value, "FR0911")
    finally:
        other.communicate(b"\n")
    runfile.require_left(tmp_path, file)
    runfile.require_left(tmp_path, msgspec.structs.replace(file, pid=os.getppid()))


def _started(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]


def test_inline_is_chosen_where_every_role_has_one_rank_on_the_cpu() -> None:
    graph = grpo_graph()
    assert choose.choose(make_plan(stage_plan(graph))) == "inline"
    assert choose.choose(make_plan(stage_plan(graph, split(graph)))) == "inline"
    assert choose.choose(make_plan(stage_plan(graph, split(graph, train_dp=2)))) == "ray"
    assert choose.choose(make_plan(stage_plan(graph, split(graph, train_dp=2))), "inline") == "inline"


def test_ray_that_is_not_installed_is_told(monkeypatch: pytest.MonkeyPatch, told: Told) -> None:
    monkeypatch.setattr(choose, "find_spec", lambda _: None)
    with pytest.raises(FlowError) as raised:
        choose.make_launcher("ray", 1)
    told(raised.value, "FR0913")
