"""What edges of a flow say, carried out: several versions a step, weights to a scorer and a reward, chosen fields."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import structs

from flowrl.api.compile import compile_spec
from flowrl.compiler.emit.program import emit
from flowrl.runtime.resume import resume
from flowrl.runtime.run import RunOptions, run
from flowrl.runtime.session import SessionOptions
from flowrl.spec import load
from tests.runtime.filtered_flow import plan_of, ranks
from tests.runtime.invariant_flows import INFER, OVER, REWARD, TRAIN
from tests.runtime.runs import Killed, KilledAt, at, lines_of, logs_of, run_fakes, with_fakes
from tests.runtime.tiny_flow import QUIET

ALL = ranks(lambda prompt: True)
MASK = "{kind: filter, rule: zero_spread, action: mask, by: reward.rewards}"
SYNC = "{edge: actor_train => actor_infer, every_updates: 1, max_lag: LAG}"
STEP = "prompts: 4, samples_per_prompt: 2, updates: 2"


@pytest.mark.parametrize(("lag", "made_with"), [(0, [0, 2, 4, 6]), (1, [0, 1, 3, 5]), (3, [0, 0, 1, 3])])
@pytest.mark.parametrize("pools", ["one: [actor_train, actor_infer]", "a: [actor_train]; b: [actor_infer]"])
def test_a_version_after_every_update(tmp_path: Path, lag: int, made_with: list[int], pools: str) -> None:
    """Two versions a step: step s works with version 2 (s - 1) - max_lag, or the first one."""
    sync = SYNC.replace("LAG", str(lag))
    plan = plan_of(tmp_path, STEP, steps=4, sync=sync, pools=pools, informative=MASK)
    ledger = lines_of(run_fakes(plan, tmp_path / "runs", with_fakes(ALL)).folder / "ledger.jsonl")
    assert [line["made_with"] for line in ledger] == made_with
    assert [line["version"] for line in ledger] == [0, 2, 4, 6]


def test_versions_of_a_step_are_in_checkpoints(tmp_path: Path) -> None:
    """Killed in step 4, where versions of steps 2 and 3 wait: it goes on with those that would have come."""
    sync = SYNC.replace("LAG", "3")
    plan = plan_of(tmp_path, STEP, steps=5, sync=sync, pools="a: [actor_train]; b: [actor_infer]", informative=MASK)
    (stage,) = plan.stages
    saving = structs.replace(stage.run, checkpoint_every_steps=1)
    stage = structs.replace(stage, run=saving, programs=emit(stage.graph, stage.pools, saving))
    plan = structs.replace(plan, stages=(stage,))
    whole = run_fakes(plan, tmp_path / "whole", with_fakes(ALL)).folder
    dies = at("run actor_train.update 2/2", 4)
    folders: list[Path] = []
    session = SessionOptions(progress=False, make_launcher=lambda kind, threads: KilledAt(dies, ALL))
    with pytest.raises(Killed):
        run(plan, RunOptions(runs=tmp_path / "killed", session=session, on_folder=folders.append))
    resume(folders[0], session=with_fakes(ALL))
    assert logs_of(folders[0]) == logs_of(whole)


def test_a_reference_that_follows(tmp_path: Path) -> None:
    """A reference that gets the policy's weights every step has its log-probs: no KL at all. One that gets them every
    second step has none in the steps in which they have just come."""
    kls: dict[int, list[float]] = {}
    for every in (1, 2):
        path = tmp_path / f"every-{every}.yaml"
        edge = f"{{edge: actor_train => reference, every_steps: {every}}}"
        path.write_text(
            f"flowrl: 1\nname: follows\nuse: grpo\nroles: {{{INFER}, {TRAIN}, {REWARD}}}\n"
            f"edges:\n  - {edge}\nstep: {{prompts: 4, samples_per_prompt: 3, updates: 1}}\n{OVER}"
        )
        folder = run(compile_spec(load(path)), RunOptions(runs=tmp_path, launcher="inline", session=QUIET)).folder
        kls[every] = [line["actor_train.kl_ref"] for line in lines_of(folder / "metrics.jsonl")]
    assert kls[1] == pytest.approx([0.0] * 4, abs=1e-6)
    assert [kl > 1e-6 for kl in kls[2]] == [False, False, True, False]


def test_chosen_fields_decide_whose_column_it_is(tmp_path: Path) -> None:
    """Two rewards reach the estimator; one edge lets only another column pass, so the other's rewards are meant."""
    text = f"""flowrl: 1
name: chosen
use: grpo
roles:
  {INFER}
  {TRAIN}
  {REWARD}
  length: {{kind: reward, function: "flowrl:overlong", args: {{max_tokens: 6, buffer_tokens: 3}}}}
edges:
  - actor_infer.generate -> length.score
  - {{edge: length.score -> advantage.estimate, fields: [tokens]}}
step: {{prompts: 4, samples_per_prompt: 3, updates: 1}}
{OVER}"""
    (tmp_path / "flow.yaml").write_text(text)
    plan = compile_spec(load(tmp_path / "flow.yaml"))
    estimate = plan.stages[0].graph.op("advantage.estimate")
    assert {i.source for i in estimate.inputs if i.slot == "rewards"} == {"reward.score"}
    folder = run(plan, RunOptions(runs=tmp_path, launcher="inline", session=QUIET)).folder
    assert len(lines_of(folder / "metrics.jsonl")) == 4


def test_a_reward_model_that_is_trained(tmp_path: Path) -> None:
    """A trainer of the reward's own model sends its weights to the reward: what it scores changes with them."""
    flow = f"""flowrl: 1
name: trained
use: ppo
roles:
  {INFER}
  {TRAIN}
  {REWARD}
  critic: {{optimizer: {{lr: 1.0e-1}}}}
  judge: {{kind: reward, model: value, backend: fsdp}}
edges:
  - actor_infer.generate -> judge.score
  - critic => judge
step: {{prompts: 4, samples_per_prompt: 3, updates: 1}}
{OVER}"""
    (tmp_path / "flow.yaml").write_text(flow)
    plan = compile_spec(load(tmp_path / "flow.yaml"))
    folder = run(plan, RunOptions(runs=tmp_path, launcher="inline", session=QUIET)).folder
    rewards = [line["judge.rewards"] for line in lines_of(folder / "metrics.jsonl")]
    assert len(set(rewards)) == 4
