"""Time: decode against a simulation sample by sample, instructions of a program, monotony, published step times."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from flowrl.compiler.emit.program import emit
from flowrl.machine.models import CARDS
from flowrl.machine.profile import PROFILE, with_constants
from flowrl.placement.cost.ledger import evaluate
from flowrl.placement.cost.workload import Workload
from flowrl.placement.time.instructions import duration_lines, durations
from flowrl.placement.time.interval import interval_lines
from flowrl.placement.time.step import step_seconds as seconds_of_step
from flowrl.plan.plan import StageRun
from flowrl.program.program import InstructionKind, Program
from tests.placement.flows import GRPO, PPO, with_placement
from tests.placement.told import Told, told_text

SHAPE = CARDS["Qwen/Qwen2.5-7B"]


def program_of(told: Told) -> Program:
    return emit(told.graph, told.placement.pools, StageRun(steps=2, checkpoint_every_steps=1))


def timed(told: Told) -> dict[str, float]:
    return durations(
        told.graph, told.placement.pools, program_of(told), told.shapes, told.cluster, request=told.request
    )


@pytest.mark.parametrize("flow", [GRPO, PPO, with_placement(PPO, "disaggregated"), PPO.replace("vllm", "hf")])
def test_every_instruction_has_a_time_that_its_lines_add_up_to(flow: str) -> None:
    told = told_text(flow)
    program = program_of(told)
    seconds = timed(told)
    lines = duration_lines(told.graph, told.placement.pools, program, told.shapes, told.cluster, request=told.request)
    assert set(seconds) == {instruction.id for instruction in program.instructions}
    for instruction in program.instructions:
        own = lines[instruction.id]
        assert sum(line.value for line in own) == seconds[instruction.id] >= 0
        assert all(evaluate(line.formula, line.inputs) == pytest.approx(line.value) for line in own)
        if instruction.kind is InstructionKind.RUN:
            assert seconds[instruction.id] > 0


@settings(deadline=None, max_examples=15)
@given(st.integers(1, 16), st.integers(1, 4))
def test_more_samples_never_take_less(samples: int, factor: int) -> None:
    told = told_text(with_placement(GRPO, "disaggregated"))

    def with_samples(count: int) -> float:
        step = replace(told.graph.step, samples_per_prompt=count)
        graph = replace(told.graph, step=step)
        return seconds_of_step(graph, told.placement.pools, told.shapes, told.cluster, told.request)

    assert with_samples(samples) <= with_samples(samples * factor)


def test_assumed_lengths_shorten_generation() -> None:
    tokens = ("{mean: 500, p99: 2048}", "{mean: 500, p99: 1000}", "{mean: 100, p99: 500}")
    flows = (f"{GRPO}assume: {{actor_infer.generate: {{response_tokens: {each}}}}}\n" for each in tokens)
    seconds = [timed(told_text(flow))["run actor_infer.generate"] for flow in (GRPO, *flows)]
    assert seconds == sorted(seconds, reverse=True)
    assert len(set(seconds)) == 4


def test_a_validation_is_as_long_as_its_data_set_is_said_to_be() -> None:
    """Its prompts are as many as a step's unless `assume` says more, and so is what is read and scored of it."""
    val = """  - {edge: data.val -> actor_infer.generate@val, every_steps: 2}
  - actor_infer.generate@val -> reward.score@val
"""
    flow = PPO.replace("edges:\n", "edges:\n" + val, 1).replace("data: {", "data: {val: {source: val.jsonl}, ", 1)
    said = "assume: {{actor_infer.generate@val: {{prompts: {}}}}}\n"
    prompts = told_text(flow).graph.step.prompts
    plain, same, more = (
        timed(told_text(flow + each)) for each in ("", said.format(prompts), said.format(10 * prompts))
    )
    assert plain == same
    moved = {name for name in plain if more[name] != plain[name]}
    assert moved == {"run data.val", "run actor_infer.generate@val", "run reward.score@val"}
    assert more["run reward.score@val"] == pytest.approx(10 * plain["run reward.score@val"])
    assert more["run actor_infer.generate@val"] > plain["run actor_infer.generate@val"]


def test_measured_lengths_are_read_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the responses have 100 tokens, half 900: the mean is 500, and no step is made beyond 900."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "samples.jsonl").write_text('{"response_tokens": 100}\n{"response_tokens": 900}\n' * 50)
    told = told_text(f"{GRPO}assume: {{actor_infer.generate: {{response_tokens: {{samples: samples.jsonl}}}}}}\n")
    work = Workload(told.graph, told.shapes, told.request)
    lengths = work.lengths(told.graph.op("actor_infer.generate"))
    assert (lengths.response_mean.value, lengths.response_tail.value) == (500, 900)
    assert lengths.responses.longest_of(64) == pytest.approx(900, rel=0.01)
    constant = told_text(f"{GRPO}assume: {{actor_infer.generate: {{response_tokens: 2048}}}}\n")
    assert timed(told)["run actor_infer.generate"] < 0.6 * timed(constant)["run actor_infer.generate"]


def test_the_interval_of_a_step_is_a_factor_on_both_sides() -> None:
    low, high = interval_lines(100.0, with_constants(PROFILE, {"error": 0.6}))
    assert (low.value, high.value) == (pytest.approx(62.5), pytest.approx(160.0))


PUBLISHED = """
flowrl: 1
name: published
cluster: CLUSTER
models: {policy: {source: MODEL}}
data: {train: {source: rows.jsonl, max_prompt_tokens: 256}}
roles:
  actor_train: {model: policy, backend: TRAINER, engine: {recompute: full, packing: true},
                update: {loss: ppo, micro_batch_tokens: 8192}, log_probs: {micro_batch_tokens: 8192}}
  actor_infer: {model: policy, backend: vllm, generate: {max_response_tokens: 3840}}
  reward: {function: "flowrl:overlong", args: {max_tokens: 2048, buffer_tokens: 512, penalty: 1.0}}
  advantage: {estimator: grpo}
edges:
  - data.train -> actor_infer.generate
  - actor_infer.generate -> reward.score, actor_train.log_probs
  - reward.score -> advantage.estimate
  - advantage.estimate, actor_train.log_probs -> actor_train.update
  - actor_train => actor_infer
step: {prompts: 64, samples_per_prompt: 32, updates: 4}
assume: {actor_infer.generate: {response_tokens: TOKENS}}
placement: {pools: {all: {gpus: GPUS, roles: [actor_train, actor_infer], layouts: LAYOUTS}}}
"""


@pytest.mark.parametrize(
    ("cluster", "model", "trainer", "layouts", "tokens", "measured"),
    [
        (
            "16xH100-80G",
            "meta-llama/Llama-3.1-8B",
            "megatron",
            "{actor_infer: {tp: 1}, actor_train: {pp: 2}}",
            900,
            97.7,
        ),
        (
            "32xH100-80G",
            "Qwen/Qwen3-32B",
            "megatron",
            "{actor_infer: {tp: 4}, actor_train: {tp: 4, pp: 4}}",
            3050,
            393.0,
        ),
        (
            "32xH100-80G",
            "Qwen/Qwen3-30B-A3B",
            "megatron",
            "{actor_infer: {tp: 4}, actor_train: {tp: 2, ep: 8}}",
            3000,
            225.0,
        ),
    ],
)
def test_published_steps(cluster: str, model: str, trainer: str, layouts: str, tokens: int, measured: float) -> None:
    """NeMo-RL v0.4 performance summary, GRPO on H100, on-policy, 64 prompts of 32 samples, colocated, with its
    layouts: generation, the policy's log-probs and training. The mean length is the published one less 160 tokens of
    prompt, which the table does not say. benchmarks/accuracy.py compares all records; this is to notice when a formula
    breaks."""
    words = {"CLUSTER": cluster, "MODEL": model, "TRAINER": trainer, "LAYOUTS": layouts, "TOKENS": str(tokens)}
    flow = PUBLISHED.replace("GPUS", cluster.split("x")[0])
    for word, value in words.items():
        flow = flow.replace(word, value)
    told = told_text(flow)
    found = seconds_of_step(told.graph, told.placement.pools, told.shapes, told.cluster, told.request)
    assert found == pytest.approx(measured, rel=0.3)


SFT = """
flowrl: 1
name: sft
cluster: {gpu: H100-80G, nodes: 1, gpus_per_node: 8}
models: {policy: {source: Qwen/Qwen2.5-7B}}
data: {train: {source: rows.jsonl, response: response, max_prompt_tokens: 1000}}
roles: {actor_train: {model: policy, backend: fsdp, update: {loss: sft, micro_batch_tokens: 4096}}}
edges: [data.train -> actor_train.update]
step: {prompts: 128}
"""


def test_given_responses_are_as_long_as_they_are_said_to_be() -> None:
    """Half of what a micro-batch of 4,096 leaves beside a prompt of 1,000, unless `assume` says."""
    rule, half, short = (
        timed(told_text(SFT + each))["run actor_train.update"]
        for each in (
            "",
            "assume: {actor_train.update: {response_tokens: {mean: 1548, p99: 1548}}}\n",
            "assume: {actor_train.update: {response_tokens: {mean: 100, p99: 100}}}\n",
        )
    )
    assert half == pytest.approx(rule, rel=0.1)
    assert 0.2 * rule < short < 0.45 * rule  # 600 tokens a row in place of 2,048
