"""The section of heavy tails: what random response lengths do to plans, as published.

Steps are drawn (execution/random.py) on plans of a GRPO flow whose responses have one mean and longer and longer tails.
What must come out: the gain of running asynchronously grows with the tail and with the GPUs (AReaL, arXiv 2505.24298;
StreamRL, arXiv 2504.15930), too few GPUs for rollouts starve the trainer, and lag beyond 2 to 4 gives little (AReaL's
ablation; verl's fully asynchronous runs).
"""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from typing import Any

from benchmarks.searching.outcome import Outcome, Progress
from flowrl.compiler.emit.program import emit
from flowrl.compiler.lower.cluster import lower_stage_cluster
from flowrl.compiler.lower.graph import lower_stage
from flowrl.compiler.lower.placement import lower_placement
from flowrl.compiler.passes.pipeline import run_passes
from flowrl.execution.random import distribution
from flowrl.placement.place import place
from flowrl.placement.shapes import shapes_of
from flowrl.placement.time.draws import draws_of
from flowrl.placement.time.instructions import duration_lines, seconds_of
from flowrl.plan.plan import StageRun
from flowrl.spec.pipeline import loads

MEAN, MOST = 2000, 32768
TAILS = (2500, 4000, 7000, 12000)
"""99th percentiles of the length of a response."""
GPUS = (32, 64, 128)
"""On 16 the roles of a synchronous step do not fit together, which would be compared instead."""
LAGS = (0, 1, 2, 4, 8, 16)
ROLLOUT = (1, 2, 4, 8, 16, 32)
"""GPUs for rollouts, of 64."""
STEPS, QUICK_STEPS = 400, 60
SLACK = 0.02
"""By which a drawn mean may miss."""
LITTLE = 0.05


@dataclass(frozen=True)
class Drawn:
    seconds: float
    trainer_busy: float
    fits: bool


def section(*, quick: bool = False) -> Outcome:
    outcome, steps = Outcome("tails"), QUICK_STEPS if quick else STEPS
    progress = Progress("tails")
    _gains(outcome, TAILS[::3] if quick else TAILS, GPUS[::2] if quick else GPUS, steps)
    progress.tell(1, 3)
    _starved(outcome, ROLLOUT[::4] if quick else ROLLOUT, steps)
    progress.tell(2, 3)
    _lags(outcome, LAGS, steps)
    progress.tell(3, 3)
    return outcome


def _gains(outcome: Outcome, tails: tuple[int, ...], gpus: tuple[int, ...], steps: int) -> None:
    gains: dict[tuple[int, int], float] = {}
    outcome.lines.append(
        "gain of lag 4 with partial rollouts over lag 0, each on its best plan; by GPUs and p99 tokens"
    )
    outcome.lines.append(f"{'':<10}" + "".join(f"{tail:>10,}" for tail in tails))
    for count in gpus:
        for tail in tails:
            both = [drawn(_flow(count, tail, lag), steps) for lag in (0, 4)]
            gains[count, tail] = both[0].seconds / both[1].seconds - 1
            outcome.rows.append({"gpus": count, "p99": tail, "sync": both[0].seconds, "async": both[1].seconds})
        outcome.lines.append(f"{count:<10}" + "".join(f"{gains[count, tail]:>+10.0%}" for tail in tails))
    by_tail = all(gains[c, b] >= gains[c, a] - SLACK for c in gpus for a, b in itertools.pairwise(tails))
    by_gpus = all(gains[b, t] >= gains[a, t] - SLACK for t in tails for a, b in itertools.pairwise(gpus))
    ends = f"{gains[gpus[0], tails[0]]:+.0%} to {gains[gpus[-1], tails[-1]]:+.0%}"
    outcome.bar("gain of asynchrony with the tail", ends, "grows at each number of GPUs", by_tail)
    outcome.bar("gain of asynchrony with GPUs", ends, "grows at each tail", by_gpus)


def _starved(outcome: Outcome, counts: tuple[int, ...], steps: int) -> None:
    shares: list[float] = []
    for count in counts:
        found = drawn(_flow(64, TAILS[-1], 2, rollout=count), steps)
        shares.append(found.trainer_busy)
        outcome.rows.append({"rollout": count, "step": found.seconds, "trainer_busy": found.trainer_busy})
    told = ", ".join(f"{share:.0%} with {count}" for count, share in zip(counts, shares, strict=True))
    outcome.lines.append(f"the trainer works, of 64 GPUs with so many for rollouts: {told}")
    rises = all(after >= before - SLACK for before, after in itertools.pairwise(shares))
    outcome.bar("trainer's share with rollout GPUs", told, "rises, from below 50%", rises and shares[0] < 0.5)


def _lags(outcome: Outcome, lags: tuple[int, ...], steps: int) -> None:
    seconds = [drawn(_flow(64, TAILS[-1], lag, rollout=8), steps).seconds for lag in lags]
    outcome.rows += [{"lag": lag, "step": each} for lag, each in zip(lags, seconds, strict=True)]
    told = ", ".join(f"{each:.1f} s at {lag}" for lag, each in zip(lags, seconds, strict=True))
    outcome.lines.append(f"a step, 8 of 64 GPUs for rollouts, by lag: {told}")
    at = dict(zip(lags, seconds, strict=True))
    outcome.bar("gain of lag 1", f"{at[0] / at[1] - 1:+.1%}", f">= {LITTLE:.0%}", at[0] / at[1] - 1 >= LITTLE)
    rest = at[4] / min(at[lag] for lag in lags if lag > 4) - 1
    outcome.bar("gain of more lag than 4", f"{rest:+.1%}", f"<= {LITTLE:.0%}", rest <= LITTLE)


def drawn(document: dict[str, Any], steps: int) -> Drawn:
    """Random steps of the best plan of a flow."""
    spec = loads(json.dumps(document), folder=".")
    graph, _ = run_passes(lower_stage(spec, 0))
    cluster, request, shapes = lower_stage_cluster(spec, 0), lower_placement(spec, 0), shapes_of(graph, spec.folder)
    placement = place(graph, cluster, request, shapes)
    pools, decisions = placement.pools, placement.decisions
    program = emit(graph, pools, StageRun(steps=2), placement.memory, fits=placement.fits)
    lines = duration_lines(graph, pools, program, shapes, cluster, request=request, decisions=decisions)
    draws = draws_of(graph, pools, program, shapes, cluster, lines, request=request, decisions=decisions)
    found = distribution(program, seconds_of(lines), draws, steps=steps, max_lag=graph.schedule.max_lag)
    trains = next(pool.name for pool in pools if any(entry.role == "actor_train" for entry in pool.roles))
    return Drawn(found.mean_seconds, found.busy[trains], placement.fits)


def _flow(gpus: int, tail: int, lag: int, rollout: int | None = None) -> dict[str, Any]:
    apart = {
        "pools": {
            "rollout": {"gpus": rollout, "roles": ["actor_infer"]},
            "train": {"gpus": gpus - (rollout or 0), "roles": ["actor_train"]},
        }
    }
    return {
        "flowrl": 1,
        "name": "tails",
        "cluster": {"gpu": "H100-80G", "nodes": gpus // 8, "gpus_per_node": 8},
        "models": {"policy": {"source": "Qwen/Qwen2.5-7B"}},
        "data": {"train": {"source": "rows.jsonl", "max_prompt_tokens": 1024}},
        "roles": {
            "actor_train": {"model": "policy", "backend": "fsdp", "update": {"loss": "ppo"}},
            "actor_infer": {"model": "policy", "backend": "vllm", "generate": {"max_response_tokens": MOST}},
            "reward": {"function": "flowrl:overlong", "args": {"max_tokens": 512, "buffer_tokens": 64, "penalty": 1.0}},
            "advantage": {"estimator": "grpo"},
        },
        "edges": [
            "data.train -> actor_infer.generate",
            "actor_infer.generate -> reward.score",
            "reward.score -> advantage.estimate",
            "advantage.estimate -> actor_train.update",
            "actor_train => actor_infer",
        ],
        "step": {"prompts": 256, "samples_per_prompt": 8, "updates": 1},
        "schedule": {"max_lag": lag, "partial_rollout": lag > 0},
        "assume": {"actor_infer.generate": {"response_tokens": {"mean": MEAN, "p99": tail}}},
        **({"placement": apart} if rollout is not None else {}),
    }
