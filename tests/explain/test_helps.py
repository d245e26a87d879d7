"""What would help: every figure is that of a plan made anew, and the sentence names what binds."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from msgspec.structs import replace

from flowrl.api.compile import compile_spec
from flowrl.api.helps import helps
from flowrl.explain.helps import Change, Helps, bound_by, changes, expected, grown, what_would_help
from flowrl.machine.shorthand import parse_cluster
from flowrl.plan.plan import Plan
from flowrl.report.helps import render_helps
from flowrl.spec import load, loads

POOLS = "{pools: {rollout: {gpus: 4, roles: [actor_infer]}, train: {gpus: 4, roles: [actor_train]}}}"
FLOW = """
flowrl: 1
name: helped
models: {policy: {source: Qwen/Qwen2.5-7B-Instruct}}
data: {train: {source: rows.jsonl, max_prompt_tokens: 1024}}
roles:
  actor_train: {model: policy, backend: fsdp, engine: {recompute: full}, update: {loss: ppo}}
  actor_infer: {model: policy, backend: vllm, generate: {max_response_tokens: 8192}}
  reward: {function: "flowrl:overlong", args: {max_tokens: 8192, buffer_tokens: 512, penalty: 1.0}}
  advantage: {estimator: grpo}
edges:
  - data.train -> actor_infer.generate
  - actor_infer.generate -> reward.score
  - reward.score -> advantage.estimate
  - advantage.estimate -> actor_train.update
  - actor_train => actor_infer
step: {prompts: 64, samples_per_prompt: 8, updates: 2}
cluster: {gpu: H100-80G, nodes: 1, gpus_per_node: 8}
placement: PLACEMENT
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    written = tmp_path_factory.mktemp("helps") / "flow.yaml"
    written.write_text(FLOW.replace("PLACEMENT", POOLS))
    return written


@pytest.fixture(scope="module")
def found(file: Path) -> tuple[Plan, Helps]:
    plan = compile_spec(load(file))
    (stage,) = helps(plan, file)
    return plan, stage


def test_what_is_saved_is_the_difference_to_a_plan_made_anew(file: Path, found: tuple[Plan, Helps]) -> None:
    plan, stage = found
    assert stage.step_seconds == expected(plan.stages[0].estimate)
    for help in stage.helps:
        cluster = None if help.change.grown is None else grown(plan.cluster, help.change.grown)
        other = compile_spec(load(file, help.change.sets), cluster)
        if help.verdict == "does_not_fit":
            assert other.verdict == "infeasible"
            continue
        after = expected(other.stages[0].estimate)
        assert help.step_seconds == after
        assert help.saved_seconds == pytest.approx(stage.step_seconds - after)
        assert help.saved_share == pytest.approx(1 - after / stage.step_seconds)


def test_what_saves_most_comes_first_and_is_in_the_sentence(found: tuple[Plan, Helps]) -> None:
    _, stage = found
    shares = [help.saved_share or 0.0 for help in stage.helps]
    assert all(after <= before + 0.0051 for before, after in pairwise(shares))
    best = stage.helps[0]
    assert best.saved_share is not None
    assert stage.text.endswith(f"; {best.change.what} would save {100 * best.saved_share:.0f} %")
    assert stage.text.startswith(f"bound by {' → '.join(stage.bound_by)}")


def test_the_circle_is_in_the_words_of_the_flow(found: tuple[Plan, Helps]) -> None:
    """On policy and split, everything waits for everything; the updates of a step are one."""
    plan, stage = found
    assert stage.bound_by[0] == "actor_infer.generate"
    assert "actor_train.update" in stage.bound_by
    assert len(set(stage.bound_by)) == len(stage.bound_by)
    assert set(stage.bound_by) <= {op.id for op in plan.stages[0].graph.ops} | {"actor_train => actor_infer"}


def test_changes_are_those_of_what_is_critical(found: tuple[Plan, Helps]) -> None:
    plan, stage = found
    sets = {each for help in stage.helps for each in help.change.sets}
    assert "schedule.max_lag=1" in sets
    assert "schedule.partial_rollout=true" in sets
    assert {each.split("=")[0] for each in sets if each.startswith("placement.pools")} == {
        "placement.pools.rollout.gpus",
        "placement.pools.train.gpus",
    }
    late = replace(plan.stages[0].graph.schedule, max_lag=2, partial_rollout=True)
    later = replace(plan.stages[0], graph=replace(plan.stages[0].graph, schedule=late))
    assert [c.sets for c in changes(later, plan.cluster, False) if "lag" in c.what] == [("schedule.max_lag=3",)]


def test_a_cluster_grows_by_a_node_or_a_device() -> None:
    one, many = parse_cluster("4xH100-80G"), parse_cluster("2x8xH100-80G")
    sizes = [(group.nodes, group.devices_per_node) for each in (one, many) for group in each.groups]
    assert sizes == [(1, 4), (2, 8)]
    larger = [grown(each, each.groups[0].name).groups[0] for each in (one, many)]
    assert [(group.nodes, group.devices_per_node) for group in larger] == [(1, 5), (3, 8)]


def test_what_is_refused_or_does_not_fit_is_told(found: tuple[Plan, Helps]) -> None:
    plan, _ = found

    def planner(change: Change) -> Plan | None:
        return None if change.grown else replace(plan, verdict="infeasible")

    (stage,) = what_would_help(plan, planner)
    assert {help.verdict for help in stage.helps} == {"refused", "does_not_fit"}
    assert stage.text.endswith("; nothing that was tried saves time")
    text = render_helps([stage])
    assert "does not fit" in text
    assert "is refused" in text


def test_the_same_plan_makes_no_difference(found: tuple[Plan, Helps]) -> None:
    plan, _ = found
    (stage,) = what_would_help(plan, lambda _: plan)
    assert {help.verdict for help in stage.helps} == {"same"}
    assert {help.saved_seconds for help in stage.helps} == {0.0}
    assert bound_by(plan.stages[0]) == stage.bound_by


def test_lines_are_no_wider_than_asked(found: tuple[Plan, Helps]) -> None:
    text = render_helps([found[1]], 80)
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "--set schedule.max_lag=1" in text


@pytest.mark.parametrize(
    ("placement", "schedule", "proposed"),
    [
        (POOLS, "", {"generation in up to 8 parts", "minibatches of what is done first"}),
        (POOLS, "schedule: {takes: 4}\n", {"minibatches of what is done first"}),
        (POOLS, "schedule: {takes: 4, minibatches: arrival}\n", set[str]()),
        ("colocated", "", set[str]()),
    ],
)
def test_parts_are_proposed_where_others_wait_for_them(placement: str, schedule: str, proposed: set[str]) -> None:
    plan = compile_spec(loads(FLOW.replace("PLACEMENT", placement) + schedule, folder="."))
    found = {change.what for change in changes(plan.stages[0], plan.cluster, explicit=False)}
    assert {what for what in found if "parts" in what or "done first" in what} == proposed
