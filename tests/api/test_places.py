"""A plan file is run with the files it was made from, wherever it is run from; or it is refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from flowrl import api
from flowrl.api.places import folder_of
from flowrl.diag.diagnostic import FlowError
from flowrl.plan.plan import Plan
from tests.conftest import Told

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


@pytest.mark.parametrize("change", ["changed", "gone"])
def test_a_changed_or_missing_function_is_refused(job: Path, change: str, told: Told, tmp_path: Path) -> None:
    file = job / "arithmetic.py"
    if change == "changed":
        file.write_text(file.read_text() + "# changed\n")
    else:
        file.unlink()
    with pytest.raises(FlowError) as refused:
        api.run(job / "plan.json", runs=tmp_path / "runs")
    told(refused.value, "FR0707", change)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("name", "flags"),
    [
        ("set", {"sets": ["run.steps=1"]}),
        ("cluster", {"cluster": "2xcpu"}),
        ("profile", {"profile": "profile.toml"}),
    ],
)
def test_flags_do_not_change_a_plan(job: Path, name: str, flags: dict[str, object], told: Told) -> None:
    with pytest.raises(FlowError) as refused:
        api.run(job / "plan.json", **flags)  # type: ignore[arg-type]
    told(refused.value, "FR0708", name)


def test_a_plan_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(FlowError, match="FR0706"):
        api.run(tmp_path / "nowhere.json")
