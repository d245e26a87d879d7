"""A plan whose flow, cluster, profile, code or files have moved is refused, by name, with what a fresh plan changes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from msgspec.structs import replace

from flowrl import api
from flowrl.api.stale import fresh_folder
from flowrl.diag.diagnostic import Diagnostic, FlowError
from flowrl.machine.profile import PROFILE, write_profile
from flowrl.plan.plan import Plan
from tests.conftest import Told

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a flow, its functions, a cluster and a profile, and the plan that was made from them."""
    for name in ("ppo.yaml", "arithmetic.py"):
        shutil.copy(EXAMPLES / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    Path("profile.toml").write_text(write_profile(PROFILE))
    _keep(api.plan("ppo.yaml", sets=["run.steps=7"], cluster="2xcpu", profile="profile.toml"))
    return tmp_path


def _keep(plan: Plan) -> None:
    Path("plan.json").write_bytes(api.dumps(plan))


def _plan() -> Plan:
    return api.loads(Path("plan.json").read_bytes())


def refused() -> tuple[Diagnostic, ...]:
    with pytest.raises(FlowError) as caught:
        fresh_folder(_plan(), Path("plan.json"))
    return caught.value.diagnostics


def edited(old: str, new: str, name: str = "ppo.yaml") -> None:
    text = Path(name).read_text()
    assert old in text
    Path(name).write_text(text.replace(old, new, 1))


def test_a_plan_whose_all_is_as_it_was(job: Path) -> None:
    assert fresh_folder(_plan(), Path("plan.json")).resolve() == job


def test_the_flags_of_the_plan_are_those_of_its_command(job: Path) -> None:
    flags = _plan().flags
    assert (flags.sets, flags.cluster, flags.profile) == (("run.steps=7",), "2xcpu", "profile.toml")


@pytest.mark.parametrize("comment", ["# more words\n", "\n\n"])
def test_comments_and_blank_lines_move_nothing(job: Path, comment: str) -> None:
    Path("ppo.yaml").write_text(comment + Path("ppo.yaml").read_text())
    fresh_folder(_plan(), Path("plan.json"))


@pytest.mark.parametrize("gone", ["ppo.yaml", "profile.toml"])
def test_what_a_run_does_not_read_may_be_gone(job: Path, gone: str) -> None:
    Path(gone).unlink()
    fresh_folder(_plan(), Path("plan.json"))


def test_a_flow_that_says_something_else(job: Path, told: Told) -> None:
    edited("prompts: 32", "prompts: 64")
    with pytest.raises(FlowError) as caught:
        api.run("plan.json", runs=job / "runs")
    assert not (job / "runs").exists()
    told(caught.value, "FR0730", "")
    text = "\n".join(caught.value.diagnostics[0].notes)
    assert "flow: `ppo.yaml` says something else now" in text
    assert "step.prompts: 32 → 64" in text
    assert "flowrl plan ppo.yaml --set run.steps=7 --cluster 2xcpu" in caught.value.diagnostics[0].helps[0].text


def test_another_wish_for_placement(job: Path) -> None:
    edited("name: ppo\n", "name: ppo\nplacement: colocated\n")
    (diagnostic,) = refused()
    assert diagnostic.notes[0].startswith("`flow` moved")
    assert "digests that moved: flow" in "\n".join(diagnostic.notes) or "no change" in "\n".join(diagnostic.notes)


def test_a_flow_with_faults(job: Path) -> None:
    edited("prompts: 32", "promts: 32")
    (diagnostic,) = refused()
    assert "flow: `ppo.yaml` has faults now: unknown key" in "\n".join(diagnostic.notes)
    assert "a fresh plan can't be made: unknown key" in diagnostic.notes[-1]


def test_a_cluster_file(job: Path) -> None:
    Path("cluster.yaml").write_text("gpu: H100-80G\nnodes: 1\ngpus_per_node: 8\n")
    _keep(api.plan("ppo.yaml", cluster="cluster.yaml"))
    fresh_folder(_plan(), Path("plan.json"))
    edited("gpus_per_node: 8", "gpus_per_node: 4", "cluster.yaml")
    (diagnostic,) = refused()
    text = "\n".join(diagnostic.notes)
    assert diagnostic.notes[0].startswith("`cluster` moved")
    assert "cluster: 1x8xH100-80G is 1x4xH100-80G now" in text
    assert "devices_per_node: 8 → 4" in text
    Path("cluster.yaml").unlink()
    fresh_folder(_plan(), Path("plan.json"))


def test_a_price_of_the_cluster(job: Path) -> None:
    edited("name: ppo\n", "name: ppo\ncluster: {gpu: H100-80G, gpus_per_node: 8, price_per_gpu_hour: 2.0}\n")
    _keep(api.plan("ppo.yaml"))
    edited("hour: 2.0", "hour: 3.0")
    (diagnostic,) = refused()
    text = "\n".join(diagnostic.notes)
    assert "cluster: 1x8xH100-80G has other devices or figures now" in text
    assert "price_per_gpu_hour: 2.0 → 3.0 (price" in text
    assert "+50.0%" in text.partition("price per hour")[2]


def test_a_cluster_in_the_flow(job: Path) -> None:
    edited("name: ppo\n", "name: ppo\ncluster: 2xcpu\n")
    _keep(api.plan("ppo.yaml"))
    edited("cluster: 2xcpu", "cluster: 3xcpu")
    (diagnostic,) = refused()
    assert "cluster: 2xcpu is 3xcpu now" in "\n".join(diagnostic.notes)


def test_a_profile(job: Path) -> None:
    rates = replace(PROFILE, fixed=replace(PROFILE.fixed, sync_seconds=PROFILE.fixed.sync_seconds * 2))
    Path("profile.toml").write_text(write_profile(rates))
    (diagnostic,) = refused()
    text = "\n".join(diagnostic.notes)
    assert "profile: `profile.toml` or the catalogues hold other figures" in text
    assert "digests that moved: profile" in text


def handed_to_run(monkeypatch: pytest.MonkeyPatch, *args: str, **flags: str) -> Plan:
    """The plan that `run` is about to run; nothing is."""
    seen: list[Plan] = []
    monkeypatch.setattr(api, "run_plan", lambda plan, **_: seen.append(plan))
    api.run(*args, **flags)  # type: ignore[arg-type]
    return seen[0]


def test_a_run_plans_with_the_profile_that_it_is_given(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice the seconds of a sync in the profile: the plan that is run is the one that `plan` makes with it."""
    rates = replace(PROFILE, fixed=replace(PROFILE.fixed, sync_seconds=PROFILE.fixed.sync_seconds * 2))
    Path("slow.toml").write_text(write_profile(rates))
    made = handed_to_run(monkeypatch, "ppo.yaml", cluster="2xcpu", profile="slow.toml")
    assert api.dumps(made) == api.dumps(api.plan("ppo.yaml", cluster="2xcpu", profile="slow.toml"))
    usual = handed_to_run(monkeypatch, "ppo.yaml", cluster="2xcpu")
    assert made.digests.profile != usual.digests.profile
    assert made.stages[0].estimate.step_seconds > usual.stages[0].estimate.step_seconds
    assert (made.flags.profile, usual.flags.profile) == ("slow.toml", None)


def test_a_plan_made_with_a_profile_is_run_while_the_profile_is_as_it_was(
    job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert handed_to_run(monkeypatch, "plan.json").flags.profile == "profile.toml"
    Path("profile.toml").write_text(Path("profile.toml").read_text() + "\n# a comment\n")
    assert handed_to_run(monkeypatch, "plan.json").flags.profile == "profile.toml"
    rates = replace(PROFILE, fixed=replace(PROFILE.fixed, sync_seconds=PROFILE.fixed.sync_seconds * 2))
    Path("profile.toml").write_text(write_profile(rates))
    with pytest.raises(FlowError, match="FR0730"):
        handed_to_run(monkeypatch, "plan.json")


def test_a_profile_that_is_none_is_refused_before_a_run(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("none.toml").write_text("x = 1\n")
    with pytest.raises(FlowError, match="FR0525"):
        handed_to_run(monkeypatch, "ppo.yaml", profile="none.toml")


def test_the_catalogues(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _keep(api.plan("ppo.yaml", cluster="2xcpu"))
    monkeypatch.setattr("flowrl.api.digests.catalogue_digest", lambda: "other")
    (diagnostic,) = refused()
    assert "profile: the catalogues of this FlowRL hold other figures" in "\n".join(diagnostic.notes)


def test_another_flowrl(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flowrl.api.digests.__version__", "9.9")
    (diagnostic,) = refused()
    assert "code: the plan was made by another version of FlowRL" in "\n".join(diagnostic.notes)


def test_a_function_is_named_with_what_it_changes(job: Path) -> None:
    Path("arithmetic.py").write_text(Path("arithmetic.py").read_text() + "# changed\n")
    (diagnostic,) = refused()
    assert diagnostic.code == "FR0707"
    assert "function file `arithmetic.py` has changed" in diagnostic.notes[0]
    assert "± function arithmetic.py" in diagnostic.notes[-1]


def test_a_function_and_the_flow(job: Path) -> None:
    Path("arithmetic.py").write_text(Path("arithmetic.py").read_text() + "# changed\n")
    edited("prompts: 32", "prompts: 64")
    assert [each.code for each in refused()] == ["FR0707", "FR0730"]


def test_a_function_that_is_gone_is_one_fault(job: Path) -> None:
    Path("arithmetic.py").unlink()
    assert [each.code for each in refused()] == ["FR0707"]
