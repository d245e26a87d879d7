"""A run goes on in another layout, by another plan of its flow: what it comes to differs by rounding only."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec import structs

from flowrl.api.compile import compile_spec
from flowrl.diag.diagnostic import FlowError
from flowrl.plan.plan import Plan, StageRun
from flowrl.runtime.launchers.ray import RayLauncher
from flowrl.runtime.resume import resume
from flowrl.runtime.run import RunOptions, run
from flowrl.runtime.runfile import RunStatus
from flowrl.runtime.session import SessionOptions
from flowrl.spec import load
from tests.conftest import Told
from tests.runtime.plans import colocated, grpo_graph, make_plan, split, stage_plan
from tests.runtime.runs import at, logs_of, resume_fakes, run_fakes, run_killed, with_fakes
from tests.runtime.tiny_flow import EXAMPLES

RUN = StageRun(steps=5, checkpoint_every_steps=2, loggers=(), samples_logged=2)
GRAPH = grpo_graph(max_lag=1)
SPLIT, TOGETHER = (make_plan(stage_plan(GRAPH, pools(GRAPH), RUN)) for pools in (split, colocated))


def test_a_run_goes_on_by_another_plan_of_its_flow(tmp_path: Path) -> None:
    whole = run_fakes(SPLIT, tmp_path / "whole")
    folder = run_killed(SPLIT, tmp_path / "part", at("run actor_train.update", 3))
    assert folder is not None
    former = (folder / "plan.json").read_bytes()
    resume(folder, session=with_fakes(), plan=TOGETHER)
    assert logs_of(folder) == logs_of(whole.folder)
    assert (folder / "plan-1.json").read_bytes() == former
    assert (folder / "plan.json").read_bytes() != former


def test_checkpoints_of_either_plan_are_the_runs(tmp_path: Path) -> None:
    """Its newest checkpoint is still the former plan's when it is resumed once more."""
    whole = run_fakes(SPLIT, tmp_path / "whole")
    folder = run_killed(SPLIT, tmp_path / "part", at("run actor_train.update", 4))
    assert folder is not None
    with pytest.raises(FlowError):
        resume(folder, launcher="ray", session=SessionOptions(progress=False, make_launcher=_refuse), plan=TOGETHER)
    assert resume_fakes(folder).state is RunStatus.FINISHED
    assert logs_of(folder) == logs_of(whole.folder)


def _refuse(kind: str, threads: int) -> RayLauncher:
    from flowrl.diag.diagnostic import diagnose

    raise FlowError(diagnose("FR0953", address="nowhere", reason="a test"))


def test_a_plan_of_another_flow_is_refused(tmp_path: Path, told: Told) -> None:
    folder = run_killed(SPLIT, tmp_path / "part", at("run actor_train.update", 3))
    assert folder is not None
    graph = structs.replace(GRAPH, step=structs.replace(GRAPH.step, prompts=8))
    for other in (
        make_plan(stage_plan(graph, split(graph), RUN)),
        make_plan(stage_plan(GRAPH, split(GRAPH), structs.replace(RUN, steps=6))),
    ):
        with pytest.raises(FlowError) as raised:
            resume(folder, session=with_fakes(), plan=other)
        assert raised.value.diagnostics[0].code == "FR0921"
    told(raised.value, "FR0921")
    assert not list(folder.glob("plan-*.json"))


STEPS = 4
SMALL = (
    *(f"models.{model}.source.{key}" for model in ("policy", "value") for key in ("hidden_size=32", "layers=1")),
    *(f"models.{model}.source.{key}" for model in ("policy", "value") for key in ("heads=2", "kv_heads=2")),
    "step.prompts=4",
    "step.samples_per_prompt=2",
    "step.updates=1",
    f"run.steps={STEPS}",
    "run.checkpoint_every_steps=2",
    "roles.actor_train.optimizer={name: sgd, lr: 1.0e-2}",
    "roles.critic.optimizer={name: sgd, lr: 1.0e-2}",
    "cluster=3xcpu",
)


def _ppo(train_gpus: int) -> Plan:
    pools = (
        "{rollout: {gpus: 1, roles: [actor_infer, critic, reference]},"
        f" train: {{gpus: {train_gpus}, roles: [actor_train]}}}}"
    )
    return compile_spec(load(EXAMPLES / "ppo.yaml", (*SMALL, f"placement.pools={pools}")))


def _stopped_at_step_3(plan: Plan, runs: Path, launcher: str) -> Path:
    """The run's folder as it is when step 3 is the next one: a run of which the checkpoint of step 2 is the newest."""
    session = SessionOptions(progress=False, threads=1)
    folder = run(plan, RunOptions(runs=runs, launcher=launcher, session=session)).folder
    for newer in folder.glob("checkpoints/*/step-000004"):
        newer.rename(newer.with_name("gone"))
    file = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(file | {"state": "failed"}))
    return folder


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning:ray")
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1)])
def test_on_another_number_of_trainer_ranks_it_differs_by_rounding(tmp_path: Path, before: int, after: int) -> None:
    pytest.importorskip("ray")
    layouts = [entry.layout.dp for n in (before, after) for pool in _ppo(n).stages[0].pools for entry in pool.roles]
    assert max(layouts) == 2
    folder = _stopped_at_step_3(_ppo(before), tmp_path, "ray" if before > 1 else "inline")
    kept = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    session = SessionOptions(progress=False, threads=1)
    resume(folder, session=session, plan=_ppo(after))
    found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert len(found) == len(kept) == STEPS
    for mine, theirs in zip(found[2:], kept[2:], strict=True):
        for name in ("actor_train.loss", "actor_train.grad_norm", "critic.loss", "reward.rewards"):
            assert mine[name] == pytest.approx(theirs[name], rel=1e-5, abs=1e-5)
