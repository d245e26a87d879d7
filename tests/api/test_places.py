"""A plan file is run with the files it was made from, wherever it is run from; or it is refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from flowrl import api
from flowrl.api.places import folder_of
from flowrl.diag.diagnostic import FlowError
from flowrl.plan.plan import Plan

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder `job` with a flow, its functions and its plan, which was made from the folder above."""
    folder = tmp_path / "job"
    folder.mkdir()
    for name in ("ppo.yaml", "arithmetic.py"):
        shutil.copy(EXAMPLES / name, folder / name)
    monkeypatch.chdir(tmp_path)
    (folder / "plan.json").write_bytes(api.dumps(api.plan("job/ppo.yaml")))
    return folder


def _plan(job: Path) -> Plan:
    return api.loads((job / "plan.json").read_bytes(), "plan.json")


def test_from_where_it_was_made(job: Path) -> None:
    assert folder_of(_plan(job), Path("job/plan.json")) == Path("job")


@pytest.mark.parametrize("elsewhere", ["job", "other"])
def test_from_elsewhere(job: Path, elsewhere: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / elsewhere).mkdir(exist_ok=True)
    monkeypatch.chdir(tmp_path / elsewhere)
    assert folder_of(_plan(job), job / "plan.json").resolve() == job


def test_the_flows_own_file_may_change(job: Path) -> None:
    (job / "ppo.yaml").unlink()
    assert folder_of(_plan(job), job / "plan.json").resolve() == job


@pytest.mark.parametrize(("change", "told"), [("edit", "has changed"), ("unlink", "is not there")])
def test_a_changed_or_missing_function_is_refused(job: Path, change: str, told: str, tmp_path: Path) -> None:
    file = job / "arithmetic.py"
    if change == "edit":
        file.write_text(file.read_text() + "# changed\n")
    else:
        file.unlink()
    with pytest.raises(FlowError, match="FR0707") as refused:
        api.run(job / "plan.json", runs=tmp_path / "runs")
    assert [told in d.notes[0] for d in refused.value.diagnostics] == [True]
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("flags", [{"sets": ["run.steps=1"]}, {"cluster": "2xcpu"}])
def test_flags_do_not_change_a_plan(job: Path, flags: dict[str, object]) -> None:
    with pytest.raises(FlowError, match="FR0708"):
        api.run(job / "plan.json", **flags)  # type: ignore[arg-type]


def test_a_plan_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(FlowError, match="FR0706"):
        api.run(tmp_path / "nowhere.json")
