"""For each preset the least that a flow must give, written by hand."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from flowrl.compiler.lower.graph import lower_stage
from flowrl.compiler.passes.pipeline import run_passes
from flowrl.graph.graph import Graph, Op
from flowrl.spec import loads

EXAMPLES = str(Path(__file__).resolve().parents[2] / "examples")

POLICY = "policy: {source: Qwen/Qwen2.5-7B-Instruct}"
SCALAR = "{source: Qwen/Qwen2.5-7B-Instruct, head: scalar}"
REWARD = 'reward: {function: "arithmetic.py:reward"}'
ROWS = "source: train.jsonl, prompt: question"

SCORED = ((POLICY,), f"{ROWS}, keep: [entry]", REWARD)
"""Models, what stands in data.train, roles."""

GIVEN: Mapping[str, tuple[tuple[str, ...], str, str]] = {
    **dict.fromkeys(
        (
            "cispo", "dapo", "dr_grpo", "grpo", "gspo", "opo", "raft", "reinforce", "reinforce_pp",
            "reinforce_pp_baseline", "remax", "rloo", "topr",
        ),
        SCORED,
    ),
    "ppo": ((POLICY, f"value: {SCALAR}"), f"{ROWS}, keep: [entry]", REWARD),
    "online_dpo": ((POLICY,), f"{ROWS}, keep: [entry]", REWARD),
    "safe_rlhf": (
        (POLICY, *(f"{name}: {SCALAR}" for name in ("value", "cost_value", "reward_model", "cost_model"))),
        ROWS,
        "",
    ),
    "on_policy_distill": ((POLICY, "teacher: {source: Qwen/Qwen2.5-72B-Instruct}"), ROWS, ""),
    "sft": ((POLICY,), f"{ROWS}, response: answer", ""),
    "rm": ((f"reward_model: {SCALAR}",), f"{ROWS}, chosen: better, rejected: worse", ""),
}  # fmt: skip


def minimal(preset: str, without: str = "") -> str:
    """A flow that uses the preset and gives what it must; `without` is a model or `reward` that is left out."""
    models, data, roles = GIVEN[preset]
    kept = [model for model in models if model.partition(":")[0] != without]
    roles = "" if without == "reward" else roles
    lines = [
        "flowrl: 1",
        "name: demo",
        f"use: {preset}",
        f"models: {{{', '.join(kept)}}}",
        f"data: {{train: {{{data}}}}}",
    ]
    return "\n".join([*lines, *([f"roles: {{{roles}}}"] if roles else [])]) + "\n"


def compiled(preset: str, extra: str = "") -> Graph:
    """The preset's graph after all passes; none of them may warn."""
    graph, warnings = run_passes(lower_stage(loads(minimal(preset) + extra, folder=EXAMPLES), 0))
    assert not warnings
    return graph


def sources(op: Op) -> dict[str, str | None]:
    """Slot → the op that fills it."""
    return {input.slot: input.source for input in op.inputs}
