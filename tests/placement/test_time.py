"""Time: decode against a simulation sample by sample, instructions of a program, monotony, published step times."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from flowrl.compiler.emit.program import emit
from flowrl.machine.models import CARDS
from flowrl.placement.cost.ledger import evaluate
from flowrl.placement.time.decode import Engine, decode_seconds, step_seconds, survival
from flowrl.placement.time.instructions import duration_lines, durations
from flowrl.placement.time.step import step_seconds as seconds_of_step
from flowrl.plan.plan import StageRun
from flowrl.program.program import InstructionKind, Program
from tests.placement.flows import GRPO, PPO, with_placement
from tests.placement.told import Told, told_text

ENGINE = Engine(
    flops_per_second=4e14,
    memory_bytes_per_second=2e12,
    link_bytes_per_second=3e11,
    step_seconds=2e-3,
    most_sequences=1e9,
    cache_tokens=1e12,
)
SHAPE = CARDS["Qwen/Qwen2.5-7B"]


@pytest.mark.parametrize(("mean", "most"), [(500, 1000), (200, 4096), (3000, 4096), (64, 64)])
def test_the_length_distribution_has_the_mean_it_is_given(mean: float, most: float) -> None:
    """The integral of the share that lives on is the mean."""
    cells = 20_000
    width = most / cells
    assert sum(survival((i + 0.5) * width, mean, most) * width for i in range(cells)) == pytest.approx(mean, rel=1e-3)


@pytest.mark.parametrize(("mean", "most", "rows"), [(500, 1000, 64), (200, 2000, 256), (900, 1000, 8)])
def test_decode_is_what_a_simulation_of_each_sample_gives(mean: float, most: int, rows: int) -> None:
    """Lengths drawn from the distribution, one step at a time, averaged over 40 draws."""
    rng = random.Random(0)
    power = most / mean - 1.0
    totals: list[float] = []
    for _ in range(40):
        lengths = sorted(most * (1.0 - rng.random() ** (1.0 / power)) for _ in range(rows))
        total, done = 0.0, 0
        for step in range(most):
            while done < rows and lengths[done] <= step:
                done += 1
            if done == rows:
                break
            total += step_seconds(SHAPE, ENGINE, 1, 2, rows - done, 100 + step)
        totals.append(total)
    modelled = decode_seconds(SHAPE, ENGINE, 1, 2, rows, 100, mean, most)
    assert modelled == pytest.approx(sum(totals) / len(totals), rel=0.05)


def test_a_decode_step_by_hand() -> None:
    """One sequence: all weights are read once, 15.2 GB over 2 TB/s, and 57,344 bytes of cache a token."""
    expected = (SHAPE.parameters * 2 + 1000 * 57_344) / 2e12 + 2e-3
    assert step_seconds(SHAPE, ENGINE, 1, 2, 1, 1000) == pytest.approx(expected, rel=1e-9)


def test_a_mixture_reads_only_the_experts_it_meets() -> None:
    """8 of 128 experts for one sequence, nearly all of them for 512."""
    shape = CARDS["Qwen/Qwen3-30B-A3B"]
    free = Engine(**{**{name: getattr(ENGINE, name) for name in Engine.__dataclass_fields__}, "step_seconds": 0.0})
    one = step_seconds(shape, free, 1, 2, 1, 0) * 2e12 / 2
    assert one == pytest.approx(shape.active_parameters, rel=1e-6)
    many = step_seconds(shape, free, 1, 2, 512, 0) * 2e12 / 2
    assert many == pytest.approx(shape.parameters, rel=1e-3)


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


def test_training_by_hand() -> None:
    """512 samples of 1,536 mean tokens in a minibatch over 16 ranks; 6 + 2 (recomputed) operations a parameter."""
    told = told_text(GRPO)
    run = next(each for each in program_of(told).instructions if each.op == "actor_train.update")
    line = duration_lines(
        told.graph, told.placement.pools, program_of(told), told.shapes, told.cluster, request=told.request
    )[run.id][0]
    tokens = 128 / 2 * 8 * (512 + 1024) / 16
    matrices = SHAPE.parameters - 152_064 * 3584
    attention = 28 * 3584 * 1536
    rate = 0.42 * 989.4e12
    micro_batches = -(-tokens // 16384)
    expected = tokens * 8 * (matrices + attention) / rate + micro_batches * 28 * 3e-4
    assert line.value == pytest.approx(expected, rel=1e-6)


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
    tokens = ("{mean: 500, p99: 2048}", "{mean: 500, p99: 1000}", "{mean: 100, p99: 1000}")
    flows = (f"{GRPO}assume: {{actor_infer.generate: {{response_tokens: {each}}}}}\n" for each in tokens)
    seconds = [timed(told_text(flow))["run actor_infer.generate"] for flow in (GRPO, *flows)]
    assert seconds == sorted(seconds, reverse=True)
    assert len(set(seconds)) == 4


PUBLISHED = """
flowrl: 1
name: published
cluster: CLUSTER
models: {policy: {source: MODEL}}
data: {train: {source: rows.jsonl, max_prompt_tokens: 256}}
roles:
  actor_train: {model: policy, backend: TRAINER, engine: {recompute: full},
                update: {loss: ppo, kl: {coef: 0.01}, micro_batch_tokens: 8192}, log_probs: {micro_batch_tokens: 8192}}
  actor_infer: {model: policy, backend: vllm, generate: {max_response_tokens: 3840}}
  reference: {model: policy, backend: TRAINER, micro_batch_tokens: 8192}
  reward: {function: "flowrl:overlong", args: {max_tokens: 2048, buffer_tokens: 512, penalty: 1.0}}
  advantage: {estimator: grpo}
edges:
  - data.train -> actor_infer.generate
  - actor_infer.generate -> reward.score, reference.log_probs, actor_train.log_probs
  - reward.score -> advantage.estimate
  - advantage.estimate, reference.log_probs, actor_train.log_probs -> actor_train.update
  - actor_train => actor_infer
step: {prompts: 64, samples_per_prompt: 32, updates: 4}
assume: {actor_infer.generate: {response_tokens: TOKENS}}
placement: {pools: {all: {gpus: GPUS, roles: [actor_train, actor_infer, reference], layouts: LAYOUTS}}}
"""


@pytest.mark.parametrize(
    ("cluster", "model", "trainer", "layouts", "tokens", "measured"),
    [
        ("16xH100-80G", "meta-llama/Llama-3.1-8B", "fsdp", "{actor_infer: {tp: 1}}", 900, 97.7),
        (
            "32xH100-80G",
            "Qwen/Qwen3-32B",
            "megatron",
            "{actor_infer: {tp: 4}, actor_train: {tp: 4, pp: 4}, reference: {tp: 4, pp: 4}}",
            3050,
            393.0,
        ),
    ],
)
def test_published_steps_of_dense_models(
    cluster: str, model: str, trainer: str, layouts: str, tokens: int, measured: float
) -> None:
    """NeMo-RL v0.4 performance summary, GRPO on H100, on-policy, 64 prompts of 32 samples, colocated.

    Seen: 32 % and 26 % too fast. The mean length is the published one less 160 tokens of prompt; what the table
    does not say (lengths of prompts) is assumed, so this holds the order of magnitude and no more. The mixture
    Qwen3-30B-A3B of the same table (225 s) comes out 62 % too fast: dispatch to experts is not modelled.
    """
    words = {"CLUSTER": cluster, "MODEL": model, "TRAINER": trainer, "LAYOUTS": layouts, "TOKENS": str(tokens)}
    flow = PUBLISHED.replace("GPUS", cluster.split("x")[0])
    for word, value in words.items():
        flow = flow.replace(word, value)
    told = told_text(flow)
    found = seconds_of_step(told.graph, told.placement.pools, told.shapes, told.cluster, told.request)
    assert found == pytest.approx(measured, rel=0.35)
