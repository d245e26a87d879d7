"""The api from end to end: the plan of the examples, its determinism, and the two front doors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from flowrl import api
from flowrl.api.flow import Flow, load_flow
from flowrl.diag.diagnostic import FlowError
from flowrl.machine.profile import PROFILE, value_of, with_constants, write_profile
from flowrl.plan.plan import Plan

EXAMPLES = Path(__file__).parents[2] / "examples"
TOP_LEVEL = {
    "flowrl_plan", "name", "digests", "verdict", "cluster", "sources", "run", "stages", "diagnostics",
}  # fmt: skip
OF_A_STAGE = {"name", "graph", "pools", "edges", "programs", "memory", "estimate", "decisions", "gate", "starts_from"}


@pytest.fixture(scope="module")
def ppo() -> Plan:
    return api.plan(EXAMPLES / "ppo.yaml", cluster="16xH100-80G")


def test_the_plan_has_what_the_issue_of_its_form_lists(ppo: Plan) -> None:
    found = json.loads(api.dumps(ppo))
    assert found.keys() >= TOP_LEVEL
    assert [stage.keys() >= OF_A_STAGE for stage in found["stages"]] == [True]
    stage = found["stages"][0]
    assert all({"from", "to", "kind", "fields", "origin"} <= edge.keys() for edge in stage["edges"])
    assert all({"name", "devices", "roles"} <= pool.keys() for pool in stage["pools"])
    assert all({"pool", "device", "phase", "peak_bytes", "limit_bytes", "lines"} <= m.keys() for m in stage["memory"])
    assert sum(group["nodes"] * group["devices_per_node"] for group in found["cluster"]["groups"]) == 16


def test_every_declared_edge_is_the_origin_of_an_edge_or_removed_with_a_reason(ppo: Plan) -> None:
    for stage in ppo.stages:
        carried = {origin for edge in stage.edges for origin in edge.origin}
        removed = {removal.id for removal in stage.graph.removed}
        assert {edge.id for edge in stage.graph.declared} <= carried | removed


def test_memory_lines_add_up(ppo: Plan) -> None:
    for memory in ppo.stages[0].memory:
        assert sum(line.value for line in memory.lines) == pytest.approx(memory.peak_bytes, abs=len(memory.lines))


@pytest.mark.parametrize(
    ("assumed", "mean"),
    [({}, 512.0), ({"actor_infer.generate": {"response_tokens": 300}}, 300.0)],
    ids=["rule", "assume"],
)
def test_throughput_counts_the_mean_response_that_the_times_are_made_from(assumed: object, mean: float) -> None:
    """Without `assume:` the mean is half of the most, in the time of generation and in the tokens a second alike."""
    sets = ["roles.actor_infer.generate.max_response_tokens=1024", f"assume={json.dumps(assumed)}"]
    estimate = api.plan(EXAMPLES / "ppo_7b.yaml", sets=sets).stages[0].estimate
    assert estimate.tokens_per_second == pytest.approx(mean * estimate.samples_per_second)


def test_the_same_flow_gives_the_same_bytes_in_any_process(ppo: Plan) -> None:
    code = (
        "import sys; from flowrl import api; "
        f"sys.stdout.buffer.write(api.dumps(api.plan({str(EXAMPLES / 'ppo.yaml')!r}, cluster='16xH100-80G')))"
    )
    for seed in ("1", "2"):
        made = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, check=True, env={**os.environ, "PYTHONHASHSEED": seed}
        )
        assert made.stdout == api.dumps(ppo)


def test_what_changes_only_the_text_leaves_the_flows_digest(ppo: Plan, tmp_path: Path) -> None:
    text = (EXAMPLES / "ppo.yaml").read_text()
    (tmp_path / "arithmetic.py").write_text((EXAMPLES / "arithmetic.py").read_text())
    moved = tmp_path / "other.yaml"
    moved.write_text("# a comment\n" + text.replace(", actor_train.log_probs", ""))
    assert api.plan(moved, cluster="16xH100-80G").digests.flow == ppo.digests.flow
    moved.write_text(text.replace("lam: 0.95", "lam: 0.9"))
    assert api.plan(moved, cluster="16xH100-80G").digests.flow != ppo.digests.flow


def test_a_changed_reward_function_moves_the_code_digest_only(ppo: Plan, tmp_path: Path) -> None:
    (tmp_path / "ppo.yaml").write_text((EXAMPLES / "ppo.yaml").read_text())
    (tmp_path / "arithmetic.py").write_text((EXAMPLES / "arithmetic.py").read_text() + "\n# changed\n")
    digests = api.plan(tmp_path / "ppo.yaml", cluster="16xH100-80G").digests
    assert digests.code != ppo.digests.code
    assert (digests.flow, digests.cluster, digests.profile) == (
        ppo.digests.flow,
        ppo.digests.cluster,
        ppo.digests.profile,
    )


def test_a_profile_of_a_file_is_what_the_plan_is_made_with(ppo: Plan, tmp_path: Path) -> None:
    """With a slower controller a step takes longer; the digest tells the plans apart."""
    slow = with_constants(PROFILE, {"fixed.op_seconds": value_of(PROFILE, "fixed.op_seconds") + 10})
    (tmp_path / "slow.toml").write_text(write_profile(slow))
    made = api.plan(EXAMPLES / "ppo.yaml", cluster="16xH100-80G", profile=tmp_path / "slow.toml")
    assert made.digests.profile != ppo.digests.profile
    assert made.digests.flow == ppo.digests.flow
    assert made.stages[0].estimate.step_seconds > ppo.stages[0].estimate.step_seconds


def test_check_and_plan_import_no_user_code(tmp_path: Path) -> None:
    """The function's file would leave a mark if it were run."""
    mark = tmp_path / "mark"
    source = (EXAMPLES / "arithmetic.py").read_text()
    (tmp_path / "arithmetic.py").write_text(f"open({str(mark)!r}, 'w').close()\n{source}")
    (tmp_path / "ppo.yaml").write_text((EXAMPLES / "ppo.yaml").read_text())
    assert not api.check(tmp_path / "ppo.yaml").diagnostics
    api.plan(tmp_path / "ppo.yaml")
    assert not mark.exists()


def test_python_and_yaml_are_one_flow(tmp_path: Path) -> None:
    (tmp_path / "arithmetic.py").write_text((EXAMPLES / "arithmetic.py").read_text())
    flow = Flow("grpo", folder=str(tmp_path))
    policy = flow.model("policy", "Qwen/Qwen2.5-7B-Instruct")
    infer = flow.generator("actor_infer", policy, backend="vllm", max_response_tokens=1024)
    actor = flow.trainer("actor_train", policy, backend="fsdp", loss="ppo", optimizer={"name": "adamw", "lr": 1e-6})
    problems = flow.data("train", "arithmetic.py:problems", args={"seed": 1, "size": 100}, prompt="question",
                         keep=["entry"], max_prompt_tokens=64)  # fmt: skip
    scored = flow.reward("reward", "arithmetic.py:reward").score(infer.generate(problems))
    actor.update(flow.estimator("advantage", "grpo").estimate(scored))
    actor >> infer  # pyright: ignore[reportUnusedExpression]
    flow.step(prompts=64, samples_per_prompt=8)
    file = tmp_path / "grpo.yaml"
    file.write_text(flow.to_yaml())
    made, read = flow.plan("16xH100-80G").plan, load_flow(file).plan("16xH100-80G").plan
    assert made.verdict == "fits"
    assert made.digests == read.digests
    assert made.stages[0].programs == read.stages[0].programs


def test_a_run_refuses_what_is_not_built_before_it_starts(tmp_path: Path) -> None:
    with pytest.raises(FlowError, match="FR0801") as refused:
        api.run(EXAMPLES / "quickstart.yaml", sets=["stages.1.run.loggers=[wandb]"], runs=tmp_path / "runs")
    assert len(refused.value.diagnostics) == 1
    assert not (tmp_path / "runs").exists()


def test_a_run_refuses_a_plan_that_does_not_fit(tmp_path: Path) -> None:
    with pytest.raises(FlowError, match="FR0501"):
        api.run(
            EXAMPLES / "ppo_7b.yaml",
            sets=["roles.actor_train.update.micro_batch_tokens=1000000"],
            runs=tmp_path / "runs",
        )
    assert not (tmp_path / "runs").exists()


def test_faults_of_several_stages_are_told_at_once(tmp_path: Path) -> None:
    text = (EXAMPLES / "quickstart.yaml").read_text()
    (tmp_path / "arithmetic.py").write_text((EXAMPLES / "arithmetic.py").read_text())
    text = text.replace("update: {loss: sft}", "update: {loss: stf}").replace("estimator: grpo", "estimator: gpro")
    (tmp_path / "flow.yaml").write_text(text)
    found = api.check(tmp_path / "flow.yaml").diagnostics
    assert len(found) == 2
    assert all(d.labels and d.helps for d in found)


def test_check_of_a_flow_in_python_goes_as_far_as_a_plan() -> None:
    flow = Flow("demo")
    actor = flow.trainer("actor_train", flow.model("policy", "Qwen/Qwen2.5-7B"), backend="fsdp", loss="sft")
    actor.update(flow.data("train", "train.jsonl", response="answer", max_prompt_tokens=64))
    flow.step(prompts=8)
    assert not flow.check("8xH100-80G").diagnostics
    assert [told.code for told in flow.check("1xL4").diagnostics] == ["FR0501"]
    assert [told.code for told in flow.check("8xH100").diagnostics] == ["FR0511"]
