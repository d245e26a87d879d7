"""Time and memory of what is neither a plain trainer nor a plain generator: environments, filters, judges, adapters,
shared weights, denoisers, partial rollouts. Each figure against arithmetic by hand or a bound that must hold."""

from __future__ import annotations

import heapq
import math
import random
from pathlib import Path
from statistics import fmean

import pytest
from msgspec.structs import replace

from flowrl.compiler.emit.program import emit
from flowrl.graph.graph import Op
from flowrl.machine.adapter import adapter_parameters
from flowrl.machine.models import CARDS
from flowrl.machine.shape import ModelShape
from flowrl.placement.cost.workload import Workload
from flowrl.placement.memory.pool import memory
from flowrl.placement.time.instructions import duration_lines
from flowrl.plan.plan import LedgerLine, Memory, StageRun
from tests.placement.flows import GRPO, PPO, with_placement
from tests.placement.told import Told, told_text

JUDGED = """
flowrl: 1
name: judged
cluster: {gpu: H100-80G, nodes: 1, gpus_per_node: 8}
models: {policy: {source: Qwen/Qwen2.5-7B}}
data: {train: {source: rows.jsonl, max_prompt_tokens: 1024}}
roles:
  actor_train: {model: policy, backend: fsdp, update: {loss: ppo}}
  actor_infer: {model: policy, backend: vllm, generate: {max_response_tokens: 1024}}
  reward: {REWARD}
  advantage: {estimator: grpo}
edges:
  - data.train -> actor_infer.generate
  - actor_infer.generate -> reward.score
  - reward.score -> advantage.estimate
  - advantage.estimate -> actor_train.update
  - actor_train => actor_infer
step: {prompts: 64, samples_per_prompt: 8}
"""
ENV = """
flowrl: 1
name: game
cluster: {gpu: H100-80G, nodes: 1, gpus_per_node: 8}
models: {policy: {source: Qwen/Qwen2.5-3B}}
data: {train: {seeds: 1000}}
roles:
  actor_train: {model: policy, backend: fsdp, update: {loss: ppo}}
  actor_infer: {model: policy, backend: vllm, generate: {max_response_tokens: 2048, max_turn_tokens: 256}}
  game: {kind: env, env: "gem:game:Sokoban-v0", max_turns: 10, parallel: 32}
  advantage: {estimator: grpo}
edges:
  - data.train -> game.reset
  - actor_infer.generate <-> game.step
  - actor_infer.generate -> advantage.estimate
  - advantage.estimate -> actor_train.update
  - actor_train => actor_infer
step: {prompts: 16, samples_per_prompt: 8}
"""


def lines_of(told: Told) -> dict[str, tuple[LedgerLine, ...]]:
    program = emit(told.graph, told.placement.pools, StageRun(steps=10))
    return duration_lines(told.graph, told.placement.pools, program, told.shapes, told.cluster, request=told.request)


def seconds_of(told: Told, op: str) -> float:
    return sum(line.value for line in lines_of(told)[f"run {op}"])


def phase_of(entries: tuple[Memory, ...], phase: str) -> Memory:
    return next(entry for entry in entries if entry.phase == phase)


def held(entry: Memory, role: str) -> dict[str, float]:
    return {line.what: line.value for line in entry.lines if line.role == role}


def work_of(told: Told) -> Workload:
    return Workload(told.graph, told.shapes, told.request)


def op_of(told: Told, id: str) -> Op:
    return told.graph.op(id)


# -- environments -----------------------------------------------------------------------------------------------------


def test_an_environment_adds_at_least_the_turns_of_one_episode() -> None:
    """Five turns of 3 s never hide behind the same episode's own tokens."""
    plain = told_text(ENV + "assume: {game.step: {seconds: 0, turns: 5}}\n")
    slow = told_text(ENV + "assume: {game.step: {seconds: 0.5, turns: 5}}\n")
    added = seconds_of(slow, "actor_infer.generate") - seconds_of(plain, "actor_infer.generate")
    assert added == pytest.approx(5 * 0.5)


def test_few_environments_bound_an_interaction() -> None:
    """128 episodes of 5 turns of 20 s in 32 environments: four rounds of 100 s, whatever decoding takes."""
    slow = told_text(ENV + "assume: {game.step: {seconds: 20, turns: 5}}\n")
    assert seconds_of(slow, "actor_infer.generate") == pytest.approx(4 * 5 * 20)
    assert seconds_of(slow, "game.step") == pytest.approx(seconds_of(slow, "actor_infer.generate"))


def test_turns_are_half_of_the_most_unless_assumed() -> None:
    told = told_text(ENV)
    assert work_of(told).turns(op_of(told, "game.step")).value == 5
    assert work_of(told).turns(op_of(told, "game.step")).origin == "rule: half of max_turns 10"


# -- rows -------------------------------------------------------------------------------------------------------------

FILTERED = (
    GRPO.replace("  advantage:", "  few: {kind: filter, rule: zero_spread, by: reward.rewards}\n  advantage:")
    .replace(
        "  - reward.score -> advantage.estimate", "  - reward.score -> few.select\n  - few.select -> advantage.estimate"
    )
    .replace("updates: 2", "updates: 1")
)


def rows_of(told: Told, op: str) -> int:
    return work_of(told).rows(op_of(told, op)).count


def test_a_filter_keeps_all_unless_assumed() -> None:
    told = told_text(FILTERED)
    assert rows_of(told, "actor_train.update") == 128 * 8
    assumed = told_text(FILTERED + "assume: {few.select: {keep: 0.25}}\n")
    assert rows_of(assumed, "actor_train.update") == 128 * 8 // 4
    assert rows_of(assumed, "few.select") == 128 * 8


def test_refill_below_the_filter_trains_on_the_steps_prompts() -> None:
    text = FILTERED.replace("updates: 1}", "updates: 1, refill: {max_rounds: 2, oversample: 2.0}}")
    told = told_text(text + "assume: {few.select: {keep: 0.25}}\n")
    assert rows_of(told, "actor_train.update") == 128 * 8
    assert rows_of(told, "actor_infer.generate") == (2 * 128 + 2 * 64) * 8


def test_a_share_that_stays_is_counted_exactly() -> None:
    text = FILTERED.replace("rule: zero_spread", "rule: spread, keep_top: 0.5")
    told = told_text(text)
    assert rows_of(told, "actor_train.update") == 64 * 8


# -- judges -----------------------------------------------------------------------------------------------------------


def judged(reward: str, extra: str = "") -> Told:
    models = "models: {policy: {source: Qwen/Qwen2.5-7B}, judge_lm: {source: Qwen/Qwen2.5-32B-Instruct}}"
    text = JUDGED.replace("{REWARD}", reward).replace("models: {policy: {source: Qwen/Qwen2.5-7B}}", models)
    return told_text(text + extra)


SERVED = '{judge: {template: judge.j2, parse: "j.py:score", endpoint: "https://judge/v1", parallel: 16}}'
OWN = (
    '{judge: {template: judge.j2, parse: "j.py:score"}, model: judge_lm, backend: vllm, '
    "generate: {max_response_tokens: 128}}"
)


def test_a_served_judge_is_asked_so_many_times_at_once(folder: Path) -> None:
    told = judged(SERVED, "assume: {reward.score: {seconds: 3}}\n")
    assert seconds_of(told, "reward.ask") == pytest.approx(64 * 8 / 16 * 3)
    assert seconds_of(told, "reward.score") == pytest.approx(64 * 8 * 2e-4)  # reading the answers, one by one
    assert all(entry.role != "reward" for pool in told.placement.pools if pool.devices for entry in pool.roles)


def test_the_last_calls_of_a_judge_wait_for_the_longest_of_them(folder: Path) -> None:
    """Against 512 calls on 16 slots one by one, each to the slot that is free first: lognormal of mean 3 s, of which
    99 % are answered within 15."""
    told = judged(SERVED, "assume: {reward.score: {seconds: {mean: 3, p99: 15}}}\n")
    rng, spread = random.Random(0), 2.3263 - math.sqrt(2.3263**2 - 2 * math.log(5))

    def once() -> float:
        free = [0.0] * 16
        for _ in range(512):
            heapq.heapreplace(free, free[0] + math.exp(rng.gauss(math.log(3) - spread**2 / 2, spread)))
        return max(free)

    assert seconds_of(told, "reward.ask") == pytest.approx(fmean(once() for _ in range(200)), rel=0.06)


def test_a_judge_of_ones_own_is_an_engine_that_reads_prompt_and_response(folder: Path) -> None:
    told = judged(OWN)
    lengths = work_of(told).lengths(op_of(told, "reward.ask"))
    assert (lengths.prompt_most.value, lengths.response_most.value) == (1024 + 1024, 128)
    assert phase_of(told.placement.memory, "start reward").peak_bytes > 0
    longer = judged(OWN.replace("128", "1024"))
    assert seconds_of(longer, "reward.ask") > seconds_of(told, "reward.ask")
    assert seconds_of(longer, "reward.score") == seconds_of(told, "reward.score") == pytest.approx(64 * 8 * 2e-4)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "j.py").write_text("def score(text):\n    return float(text)\n")
    (tmp_path / "judge.j2").write_text("{{ prompt }} {{ response }}\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


# -- adapters and shared weights --------------------------------------------------------------------------------------

PLAIN, RANK_16 = "{source: Qwen/Qwen2.5-7B}", "{source: Qwen/Qwen2.5-7B, lora: {rank: 16, alpha: 32}}"
LORA = GRPO.replace(f"policy: {PLAIN}", f"policy: {RANK_16}")


def test_adapter_parameters_are_those_of_each_matrix() -> None:
    """By a second count: every weight matrix of a layer as (rows, columns), from the model's own numbers."""
    shape = CARDS["Qwen/Qwen2.5-7B"]
    q, k = (3584, 3584), (512, 3584)
    matrices = [q, k, k, q, (18944, 3584), (18944, 3584), (3584, 18944)]
    assert adapter_parameters(shape, {"rank": 16}) == 28 * sum(16 * (a + b) for a, b in matrices)
    assert adapter_parameters(shape, {"rank": 16, "targets": ["q_proj"]}) == 28 * 16 * sum(q)


def test_a_denoisers_adapter_counts_its_own_matrices() -> None:
    """One stream of a double block has q, k, v, out of h x h and a feed-forward of h x 4h and 4h x h; a single block q,
    k, v of h x h, h x 4h, and 5h x h."""
    shape, h = CARDS["black-forest-labs/FLUX.1-dev"], 3072
    double = 2 * (4 * 2 * h + 2 * 5 * h)
    single = 3 * 2 * h + 5 * h + 6 * h
    assert adapter_parameters(shape, {"rank": 1}) == 19 * double + 38 * single


def test_a_frozen_base_has_no_gradients_and_no_states() -> None:
    same = ("update: {loss: ppo}", "update: {loss: ppo, micro_batch_tokens: 16384}")
    plain, lora = (told_text(with_placement(flow.replace(*same), "colocated")) for flow in (GRPO, LORA))
    whole = held(phase_of(plain.placement.memory, "actor_train.update"), "actor_train")
    own = held(phase_of(lora.placement.memory, "actor_train.update"), "actor_train")
    ranks = 16
    shape: ModelShape = CARDS["Qwen/Qwen2.5-7B"]
    assert own["weights"] == pytest.approx(2 * shape.parameters / ranks, rel=1e-6)
    assert sum(own.values()) < sum(whole.values())
    assert "master weights" not in own
    assert seconds_of(lora, "actor_train.update 1/2") < seconds_of(plain, "actor_train.update 1/2")


def test_an_adapter_is_sent_in_place_of_the_weights() -> None:
    plain, lora = told_text(GRPO), told_text(LORA)
    transfer = "receive_weights actor_train => actor_infer"
    moved = {told.graph.name: sum(line.value for line in lines_of(told)[transfer]) for told in (plain,)}
    assert sum(line.value for line in lines_of(lora)[transfer]) < moved["grpo"]
    decided = [each for each in lora.placement.decisions if each.what == "weights of actor_train => actor_infer"]
    assert [each.chosen for each in decided] == ["adapter"]


def test_weights_that_a_trainer_of_the_pool_has_are_held_once() -> None:
    told = told_text(with_placement(PPO.replace(f"policy: {PLAIN}", f"policy: {RANK_16}"), "colocated"))

    def reference(shares: str | None, offloaded: bool) -> float:
        roles = tuple(replace(r, shares=shares) if r.name == "reference" else r for r in told.graph.roles)
        pools = tuple(
            replace(p, roles=tuple(replace(e, offloaded=offloaded and e.role == "actor_train") for e in p.roles))
            for p in told.placement.pools
        )
        entries = memory(replace(told.graph, roles=roles), pools, told.shapes, told.cluster, request=told.request)
        return held(phase_of(entries, "critic.update"), "reference").get("weights", 0.0)

    own = reference(None, offloaded=False)
    assert own > 0
    assert reference("actor_train", offloaded=False) == 0
    assert reference("actor_train", offloaded=True) == own


# -- denoisers, partial rollouts --------------------------------------------------------------------------------------

PAINTED = """
flowrl: 1
name: painted
cluster: {gpu: H100-80G, nodes: 2, gpus_per_node: 8}
models: {policy: {source: black-forest-labs/FLUX.1-dev, head: denoiser}}
data: {train: {source: rows.jsonl, max_prompt_tokens: 512}}
roles:
  actor_train: {model: policy, backend: fsdp, update: {loss: ppo, action_share: 0.5}}
  actor_infer: {model: policy, backend: diffusers, generate: {denoise_steps: 10, height: 512, width: 512}}
  reward: {function: "flowrl:overlong", args: {max_tokens: 10, buffer_tokens: 2}}
  advantage: {estimator: grpo}
edges:
  - data.train -> actor_infer.generate
  - actor_infer.generate -> reward.score
  - reward.score -> advantage.estimate
  - advantage.estimate -> actor_train.update
  - actor_train => actor_infer
step: {prompts: 32, samples_per_prompt: 8, updates: 2}
"""


def test_a_denoiser_trains_on_the_share_of_its_steps() -> None:
    told = told_text(PAINTED)
    work = work_of(told)
    assert [work.passes(op_of(told, id)).value for id in ("actor_infer.generate", "actor_train.update")] == [10, 5]  # type: ignore[union-attr]
    assert work.lengths(op_of(told, "actor_train.update")).most == 32 * 32 + 512
    more = told_text(PAINTED.replace("denoise_steps: 10", "denoise_steps: 20"))
    assert seconds_of(more, "actor_infer.generate") == pytest.approx(2 * seconds_of(told, "actor_infer.generate"))


def test_a_sampler_holds_the_whole_model_and_its_companions() -> None:
    told = told_text(PAINTED)
    lines = held(phase_of(told.placement.memory, "actor_infer.generate"), "actor_infer")
    assert lines["weights"] == 2 * 11_901_408_320
    assert lines["text encoders and image decoder"] == 2 * (4_762_310_656 + 123_060_480 + 83_819_683)


def test_a_partial_rollout_does_not_wait_for_its_tail() -> None:
    """No slower than the whole batch, and no faster than its tokens at the largest batch allow."""
    late = GRPO + "schedule: {max_lag: 1}\n"
    whole = told_text(late)
    carried = told_text(late.replace("max_lag: 1}", "max_lag: 1, partial_rollout: true}"))
    decode = {line.what: line.value for line in lines_of(carried)["take actor_infer.generate 1/1"]}
    before = {line.what: line.value for line in lines_of(whole)["run actor_infer.generate"]}
    assert 0 < decode["decode, tail carried over"] < before["decode"]
