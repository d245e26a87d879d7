"""The eleven jobs of examples/flows plan on the clusters they name: who is where, what overlaps, what fits, how old.

The facts are those of the jobs' own text and of arithmetic by hand, not what the planner once printed.
"""

from __future__ import annotations

from functools import cache

import pytest

from flowrl import api
from flowrl.graph.graph import Kind
from flowrl.machine.devices import DEVICES
from flowrl.machine.models import CARDS
from flowrl.machine.profile import PROFILE
from flowrl.plan.plan import Plan, StagePlan
from flowrl.program.program import ChannelKind
from tests.house.tree import ROOT

JOBS = {file.name[:2]: file for file in sorted((ROOT / "examples" / "flows").glob("*.yaml"))}
GIB = 2**30


@cache
def plan_of(job: str) -> Plan:
    return api.plan(JOBS[job])


def stage_of(job: str) -> StagePlan:
    return plan_of(job).stages[-1]


def homes(stage: StagePlan) -> dict[str, str]:
    """Pool by role."""
    return {entry.role: pool.name for pool in stage.pools for entry in pool.roles}


def seconds(stage: StagePlan, op: str) -> float:
    """Of its run, or of its session and all that is taken of it."""
    of_op = {i.id for i in stage.programs.instructions if i.op == op and i.firings == 1}
    return sum(took for id, took in stage.estimate.durations.items() if id in of_op or id == f"run {op}")


def span(stage: StagePlan, op: str) -> tuple[float, float]:
    (found,) = (each for each in stage.estimate.timeline if each.instruction == f"run {op}")
    return found.start_seconds, found.start_seconds + found.seconds


def bytes_held(stage: StagePlan, phase: str, role: str, what: str) -> float:
    found = [m for m in stage.memory if m.phase == phase]
    return max(line.value for m in found for line in m.lines if (line.role, line.what) == (role, what))


@pytest.mark.parametrize("job", JOBS)
def test_a_job_plans(job: str) -> None:
    """Every role has one pool, devices are given once, memory is within the device, and every phase adds up."""
    plan = plan_of(job)
    assert plan.verdict == "fits"
    for stage in plan.stages:
        placed = [entry.role for pool in stage.pools for entry in pool.roles]
        assert sorted(placed) == sorted(role.name for role in stage.graph.roles)
        devices = [device for pool in stage.pools for device in pool.devices]
        assert len(devices) == len(set(devices)) <= plan.cluster.device_count
        assert all(entry.layout.devices == len(p.devices) for p in stage.pools if p.devices for entry in p.roles)
        assert all(entry.peak_bytes <= entry.limit_bytes for entry in stage.memory)
        assert all(entry.peak_bytes == sum(line.value for line in entry.lines) for entry in stage.memory)
        assert 0 < stage.estimate.step_seconds < float("inf")


@pytest.mark.parametrize("job", JOBS)
def test_what_has_no_model_lives_on_the_host(job: str) -> None:
    for stage in plan_of(job).stages:
        home = homes(stage)
        for role in stage.graph.roles:
            on_host = role.model is None and role.engine.gpu_bytes is None
            assert (home[role.name] == "host") is on_host, role.name


@pytest.mark.parametrize("job", JOBS)
def test_lag_is_what_the_job_says(job: str) -> None:
    for stage in plan_of(job).stages:
        channels = [c for c in stage.programs.channels if c.kind is ChannelKind.WEIGHTS]
        assert all(c.initial_tokens == 1 + stage.graph.schedule.max_lag for c in channels)
    assert stage_of("04").graph.schedule.max_lag == 2


def test_colocated_roles_take_turns() -> None:
    stage = stage_of("01")
    assert {homes(stage)[role] for role in ("actor_train", "actor_infer", "reference")} == {"all"}
    assert span(stage, "actor_infer.generate")[1] <= span(stage, "reference.log_probs")[0]


def test_written_pools_and_layouts_are_kept() -> None:
    ppo, late = stage_of("02"), stage_of("04")
    pools = {pool.name: pool for pool in (*ppo.pools, *late.pools) if pool.devices}
    assert [len(pool.devices) for pool in ppo.pools if pool.devices] == [16, 16]
    assert [len(pool.devices) for pool in late.pools if pool.devices] == [96, 32]
    layouts = {entry.role: entry.layout for pool in late.pools for entry in pool.roles}
    assert (layouts["actor_infer"].tp, layouts["actor_infer"].dp) == (4, 24)
    assert (layouts["actor_train"].tp, layouts["actor_train"].pp, layouts["actor_train"].dp) == (4, 2, 4)
    assert {entry.role for entry in pools["train"].roles} <= {"actor_train", "reference", "critic", "reward"}


def test_on_policy_pools_wait_for_each_other_and_lagging_ones_do_not() -> None:
    """With lag 0 the step is at least rollout plus training; with lag it comes down to the busier pool."""
    ppo, late = stage_of("02"), stage_of("04")
    updates = [seconds(ppo, f"actor_train.update {n}/4") for n in range(1, 5)]
    assert ppo.estimate.step_seconds >= seconds(ppo, "actor_infer.generate") + sum(updates)
    train = sum(seconds(late, op) for op in ("actor_train.log_probs", "reference.log_probs", "actor_train.update"))
    assert late.estimate.step_seconds < seconds(late, "actor_infer.generate") + train
    assert max(late.estimate.busy.values()) == pytest.approx(1.0, abs=0.02)


def test_refill_draws_what_the_filter_drops() -> None:
    """512 prompts of which 40 % are kept take 512 / 0.4 = 1,280 prompts of 16 samples, up to the tenth round."""
    stage = stage_of("03")
    drawn, needed = 0.0, 512.0
    for _ in range(10):
        drawn, needed = drawn + 1.5 * needed, needed - 0.4 * 1.5 * needed
    score = seconds(stage, "correct.score") / seconds(stage, "reward.score")
    assert score == pytest.approx(drawn * 16 / (512 * 16), rel=1e-3)
    assert drawn == pytest.approx(512 / 0.4, rel=1e-3)


def test_each_route_gets_its_share_of_the_mixture() -> None:
    """2,048 samples: half to a rule, 30 % to 256 sandboxes at once, 20 % to a judge on the GPUs."""
    stage = stage_of("05")
    assert homes(stage)["chat_judge"] != "host"
    assert seconds(stage, "math_rule.score") == pytest.approx(1024 * 2e-4)
    assert seconds(stage, "code_box.score") == pytest.approx(-(-615 // 256) * 1.0)
    # a fifth of the samples is asked about, which takes the judge's model; 410 answers are read without it
    assert seconds(stage, "chat_judge.score") == pytest.approx(410 * 2e-4)
    assert seconds(stage, "chat_judge.ask") > seconds(stage, "chat_judge.score")
    weights = bytes_held(stage, "start chat_judge", "chat_judge", "weights")
    layout = next(e.layout for p in stage.pools for e in p.roles if e.role == "chat_judge")
    # a device holds its part of the matrices and all of the norms: two of 5,120 in each of 64 layers
    parts = CARDS["Qwen/Qwen2.5-32B-Instruct"].parameters / layout.tp + 2 * 64 * 5120 * (1 - 1 / layout.tp)
    assert weights == pytest.approx(2 * parts, rel=1e-6)


@pytest.mark.parametrize(
    ("job", "members"),
    [
        ("06", {"actor_infer.generate", "sokoban.step"}),
        ("07", {"alice_infer.generate", "bob_infer.generate", "debate.step"}),
        ("09", {"actor_infer.generate", "phone.step"}),
    ],
)
def test_a_generator_and_its_environment_are_live_at_once(job: str, members: set[str]) -> None:
    stage = stage_of(job)
    assert {frozenset(group) for group in stage.programs.together.values()} == {frozenset(f"run {m}" for m in members)}
    assert len({span(stage, member) for member in members}) == 1
    pools = [homes(stage)[member.split(".")[0]] for member in members]
    assert len(set(pools)) == len(pools)


def test_two_policies_generate_side_by_side_and_train_side_by_side() -> None:
    """Both train at once then, each in a pool of the other two or of its own: the search takes what is faster."""
    home = homes(stage_of("07"))
    assert home["alice_infer"] != home["bob_infer"]
    assert home["alice_train"] != home["bob_train"]


def test_an_adapter_is_all_that_is_trained_and_sent() -> None:
    """Rank 32 beside the seven matrices of 28 layers: 32 * 28 * (7 * 3584 + 2 * 3584 + 2 * 512 + 3 * 18944)."""
    stage = stage_of("08")
    adapter = 32 * 28 * (7 * 3584 + 2 * 3584 + 2 * 512 + 3 * 18944)
    states = bytes_held(stage, "load actor_train", "actor_train", "adapter optimizer states")
    assert states == pytest.approx(8 * adapter / 16, rel=1e-6)
    received = "receive_weights actor_train => actor_infer"
    assert bytes_held(stage, received, "actor_infer", "adapter being received") == pytest.approx(2 * adapter, rel=1e-6)
    layout = next(e.layout for p in stage.pools for e in p.roles if e.role == "teacher")
    weights = bytes_held(stage, "start teacher", "teacher", "weights")
    # a device holds its part of the matrices and all of the norms: two of 8,192 in each of 80 layers
    parts = CARDS["Qwen/Qwen2.5-72B-Instruct"].parameters / layout.tp + 2 * 80 * 8192 * (1 - 1 / layout.tp)
    assert weights == pytest.approx(2 * parts, rel=1e-6)


def test_three_stages_hand_their_model_on() -> None:
    plan = plan_of("09")
    assert [stage.name for stage in plan.stages] == ["sft", "action", "task"]
    assert [stage.starts_from for stage in plan.stages] == [
        {},
        {"policy": "sft.actor_train"},
        {"policy": "action.actor_train"},
    ]
    held = [bytes_held(stage, "load actor_train", "actor_train", "master weights") for stage in plan.stages]
    assert held == [pytest.approx(4 * 3_754_622_976 / 32, rel=1e-6)] * 3
    assert homes(plan.stages[2])["reward"] == "host"
    # 16 * 8 episodes asked of a served judge, 32 at once, 2 s a call if nothing is assumed
    assert seconds(plan.stages[2], "reward.ask") == pytest.approx(16 * 8 / 32 * 2.0)


def test_a_judge_compares_each_pair_once() -> None:
    """Two samples a prompt are one pair: 128 calls of a judge of 32B, whose answers are 16 tokens at most."""
    stage = stage_of("10")
    asks = stage.graph.op("reward.ask_pairs")
    assert stage.graph.role("reward").kind is Kind.REWARD
    assert (asks.granularity, asks.derived) == ("group", True)
    assert homes(stage)["reward"] == "all"
    assert 0 < seconds(stage, "reward.ask_pairs") < seconds(stage, "actor_infer.generate")
    # 256 rewards are made of the answers, which takes no device
    assert seconds(stage, "reward.compare") == pytest.approx(256 * 2e-4)


def test_a_denoiser_paints_and_is_trained() -> None:
    """16 passes of 45 * 45 patches and 512 text tokens; 24 of 16 * 24 samples lie on a device."""
    stage = stage_of("11")
    shape = CARDS["black-forest-labs/FLUX.1-dev"]
    assert bytes_held(stage, "load actor_infer", "actor_infer", "weights") == 2 * shape.parameters
    tokens, rows = 45 * 45 + 512, 32 * 12 // 16
    attention = 4 * 57 * 3072 * tokens
    work = rows * 16 * tokens * (2 * 57 * 12 * 3072**2 + attention)
    achieved = PROFILE.rates(DEVICES["H100-80G"], "diffusers").forward
    assert seconds(stage, "actor_infer.generate") == pytest.approx(work / (achieved * 989.4e12), rel=0.01)
    assert homes(stage)["reward"] == homes(stage)["actor_infer"]
    functions = bytes_held(stage, "reward.score", "reward", "function")
    assert functions == 6_000_000_000
