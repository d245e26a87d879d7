"""Failures that users of other frameworks reported: bug_reports.toml says what tells each of them here, and this test
holds it to that. What the plan's picture shows, or what is legal here, is asserted below."""

from __future__ import annotations

import tomllib
from collections import Counter
from typing import Any

import pytest

from flowrl import api
from flowrl.api.compile import check_spec, compile_spec
from flowrl.diag.catalogue import CODES
from flowrl.graph.params import GenerateParams
from flowrl.plan.plan import Plan
from flowrl.spec import loads
from tests.errors.cases import HERE, code_of
from tests.house.tree import ROOT

REPORTS: dict[str, dict[str, Any]] = tomllib.loads((HERE / "bug_reports.toml").read_text(encoding="utf-8"))

KINDS = Counter(
    async_hang=3,
    batch_divisibility=9,
    batch_semantics=2,
    checkpoint_save=2,
    config_ignored=3,
    config_missing=1,
    env_conflict=1,
    environment=1,
    head_divisibility=2,
    host_ram=3,
    late_validation=1,
    length=2,
    logprob_mismatch=2,
    lora=1,
    nccl_hang=5,
    not_enough_gpus=3,
    oom_init=1,
    oom_later_steps=1,
    oom_log_prob=3,
    oom_rollout_start=2,
    oom_update_actor=8,
    oom_weight_sync=4,
    placement_hang=3,
    reward_failure=1,
    staleness=1,
    tp_world=1,
    unsupported_hw=1,
    version=1,
    weight_sync_unsupported=1,
)
"""How many reports of each kind there are."""

OF_MEMORY_AND_COST = ("oom_", "host_ram", "checkpoint_save")
OF_THE_RUN = ("async_hang", "nccl_hang", "environment")
"""Kinds of which some are decided by nothing that a flow says."""

SMALL = """
flowrl: 1
name: demo
cluster: {gpu: H100-80G, nodes: 1, gpus_per_node: GPUS}
models: {policy: {source: Qwen/Qwen2.5-7B}}
data: {train: {source: train.jsonl, max_prompt_tokens: 512}}
roles:
  actor_train: {model: policy, backend: fsdp, update: {loss: reinforce}}
  actor_infer: {model: policy, backend: vllm, generate: {max_response_tokens: 512, temperature: 0.7, top_k: 40}MORE}
  reward: {function: "flowrl:overlong", args: {max_tokens: 512, buffer_tokens: 128}}
  advantage: {estimator: reinforce}
edges:
  - data.train -> actor_infer.generate
  - actor_infer.generate -> reward.score
  - reward.score -> advantage.estimate
  - advantage.estimate -> actor_train.update
  - actor_train => actor_infer
VALIDATION
step: {prompts: PROMPTS, updates: UPDATES}
schedule: {max_lag: LAG}
PLACEMENT
"""


def text(**values: object) -> str:
    known = {"GPUS": 8, "MORE": "", "VALIDATION": "", "PROMPTS": 512, "UPDATES": 1, "LAG": 0, "PLACEMENT": ""}
    flow = SMALL
    for name, value in {**known, **values}.items():
        flow = flow.replace(name, str(value))
    return flow


def plan_of(**values: object) -> Plan:
    return compile_spec(loads(text(**values)))


def test_no_report_is_left_out() -> None:
    assert Counter(report["kind"] for report in REPORTS.values()) == KINDS
    assert len(REPORTS) == 69
    assert all(id.endswith(f"#{report['issue']}") for id, report in REPORTS.items())


@pytest.mark.parametrize("id", sorted(REPORTS))
def test_report_is_answered_as_the_table_says(id: str) -> None:
    report = REPORTS[id]
    how, kind = report["how"], report["kind"]
    assert how in ("code", "plan", "legal", "run", "later")
    assert how != "later" or kind.startswith(OF_MEMORY_AND_COST), f"{id} is not about memory or cost"
    assert how != "run" or kind in OF_THE_RUN, f"{id} can be decided while planning"
    assert how != "code" or (report["code"] in CODES and report["cases"])
    assert how not in ("plan", "legal") or report["test"]
    assert how != "run" or CODES[report["code"]].exit_code in (1, 4, 5)


@pytest.mark.parametrize("id", sorted(id for id, report in REPORTS.items() if "cases" in report))
def test_cases_of_a_report_tell_its_code(id: str) -> None:
    report = REPORTS[id]
    told = {case: (HERE / case / "expected.txt").read_text(encoding="utf-8") for case in report["cases"]}
    assert f"[{report['code']}]" in told[report["cases"][0]]
    assert all(f"[{code_of(HERE / case)}]" in frame for case, frame in told.items())


@pytest.mark.parametrize("id", sorted(id for id, report in REPORTS.items() if "test" in report))
def test_test_of_a_report_is_there(id: str) -> None:
    file, _, name = REPORTS[id]["test"].partition("::")
    assert f"def {name}(" in (ROOT / file).read_text(encoding="utf-8")


# -- legal here -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("gpus", "prompts"), [(6, 512), (7, 256)])
def test_uneven_rows_are_legal(gpus: int, prompts: int) -> None:
    """A rank may have one row more than another, and micro-batches are cut by tokens: nothing is refused, and an idle
    share of a percent is not worth a warning."""
    plan = plan_of(GPUS=gpus, PROMPTS=prompts, PLACEMENT="placement: colocated")
    assert prompts % gpus
    assert plan.verdict == "fits"
    assert {d.code for d in plan.diagnostics} <= {"FR0612"}
    (pool,) = (pool for pool in plan.stages[0].pools if pool.devices)
    assert {entry.role: entry.layout.dp for entry in pool.roles}["actor_train"] == gpus


# -- shown by the plan ------------------------------------------------------------------------------------------------


def test_plan_says_units_and_updates() -> None:
    """Prompts and samples are named, the optimizer's updates counted, the minibatch given in prompts."""
    flow = text(PROMPTS=64, UPDATES=4).replace("step: {prompts: 64,", "step: {prompts: 64, samples_per_prompt: 8,")
    page = api.render(compile_spec(loads(flow)))
    assert "100 steps of 64 prompts × 8 samples · 4 updates a step of 64/4 prompts" in page
    assert "actor_train.update ×4" in page


def test_plan_says_the_layout_of_each_role() -> None:
    pools = (
        "placement: {pools: {rollout: {gpus: 4, roles: [actor_infer], layouts: {actor_infer: {tp: 2}}}, "
        "train: {gpus: 4, roles: [actor_train]}}}"
    )
    lines = api.render(plan_of(PLACEMENT=pools)).splitlines()
    assert any(line.split() == ["actor_infer", "vllm", "dp2", "tp2"] for line in lines)
    assert any(line.split() == ["actor_train", "fsdp", "dp4"] for line in lines)


def test_values_know_where_they_came_from(tmp_path: Any) -> None:
    (tmp_path / "flow.yaml").write_text(text(), encoding="utf-8")
    lines = api.expand(tmp_path / "flow.yaml", ["step.prompts=64"], origins=True).splitlines()
    origin = {line.split("#")[0].strip(): line.partition("#")[2].strip() for line in lines}
    assert origin["temperature: 0.7"].endswith("flow.yaml:9")
    assert origin["max_grad_norm: 1.0"] == "default"
    assert origin["prompts: 64"].startswith("--set")


def test_validation_takes_its_keys_from_training() -> None:
    """A labelled call needs no keys of its own: those that it leaves out are those of `generate`, or defaults."""
    validation = "  - data.train -> actor_infer.generate@val\n  - actor_infer.generate@val -> reward.score@val"
    graphs = check_spec(loads(text(VALIDATION=validation, MORE=", generate@val: {temperature: 0.0}"))).graphs
    params = graphs[0].op("actor_infer.generate@val").params
    assert isinstance(params, GenerateParams)
    assert (params.temperature, params.top_p, params.top_k, params.max_response_tokens) == (0.0, 1.0, 40, 512)


@pytest.mark.parametrize(("lag", "told"), [(0, "on-policy (lag 0)"), (1, "samples up to 1 version old")])
def test_plan_says_the_lag(lag: int, told: str) -> None:
    assert f"actor_train => actor_infer  weights every step; {told}" in api.render(plan_of(LAG=lag))


def test_plan_says_who_takes_part_in_a_weight_update() -> None:
    """Members of the group are the ranks of both ends, each with its node."""
    pools = "placement: {pools: {rollout: {gpus: 2, roles: [actor_infer]}, train: {gpus: 6, roles: [actor_train]}}}"
    plan = plan_of(PLACEMENT=pools)
    stage = plan.stages[0]
    home = {entry.role: pool.devices for pool in stage.pools for entry in pool.roles}
    edge = next(edge for edge in stage.edges if edge.kind == "weights")
    assert home[edge.source] == tuple(f"node0/{place}" for place in range(2, 8))
    assert home[edge.target] == ("node0/0", "node0/1")
    assert "rollout  ██░░░░░░  2 × H100-80G" in api.render(plan)
