"""Whether algorithms learn: each raises the reward on sums that none of them has trained on.

The task is two-digit addition from reasoning-gym, scored by its own verifier (examples/arithmetic.py). A quarter of all
sums, by a hash of the question, is held out of every training. A model of a million parameters is first taught until a
third of the held-out sums are right; from that one model every algorithm starts. The reward is the verifier's, of
greedy answers to 256 held-out sums, before the first step and at the last.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from flowrl.api.compile import compile_spec
from flowrl.api.preflight import preflight
from flowrl.runtime.export import export
from flowrl.runtime.run import RunOptions, run
from flowrl.runtime.session import SessionOptions
from flowrl.spec import loads

ROOT = Path(__file__).resolve().parents[2]
RISE = 0.2
"""What each must raise the held-out reward by."""
MAX_STEPS = 200
TASK = """
import zlib

from arithmetic import problems


def is_held_out(row):
    return zlib.crc32(row["question"].encode()) % 4 == 0


def train():
    return [row for row in problems(1, 6000) if not is_held_out(row)]


def held_out():
    rows = {row["question"]: row for row in problems(2, 3000) if is_held_out(row)}
    return list(rows.values())[:256]
"""
HEAD = """flowrl: 1
name: {name}
data:
  train: {{source: "task.py:train", prompt: question, response: response, keep: [entry], max_prompt_tokens: 8}}
  val: {{source: "task.py:held_out", prompt: question, keep: [entry], max_prompt_tokens: 8, order: sequential}}
"""
INLINE = """{architecture: qwen2, tokenizer: characters, hidden_size: 160, layers: 3, heads: 5, kv_heads: 5,
             ffn_size: 480, max_positions: 64, tie_embeddings: true}"""
VALIDATION = """  - {edge: data.val -> actor_infer.generate@val, every_steps: EVERY}
  - actor_infer.generate@val -> reward.score@val
"""
ASKED = "generate@val: {samples_per_prompt: 1, temperature: 0.0}"
WARM_MODELS = f"models: {{policy: {{source: {INLINE}, dtype: float32}}}}\n"
WARM = """roles:
  actor_train: {model: policy, backend: fsdp, optimizer: {name: adamw, lr: 1.0e-3, warmup_steps: 20},
                update: {loss: sft}}
  actor_infer: {model: policy, backend: hf, generate: {max_response_tokens: 5}, ASKED}
  reward: {function: "arithmetic.py:reward"}
edges:
  - data.train -> actor_train.update
  - actor_train => actor_infer
"""
WARM_TAIL = """step: {prompts: 128}
run: {steps: 600, seed: 0}
gate: {metric: reward.rewards@val, at_least: 0.33, when: first}
"""
MODELS = "models: {policy: {source: ./warm, dtype: float32}MODELS}\n"
ROLES = """use: PRESET
roles:
  actor_train: {optimizer: {name: adamw, lr: 5.0e-4, schedule: linear, warmup_steps: 10}}
  actor_infer: {backend: hf, generate: {max_response_tokens: 5, temperature: 1.0}, ASKED}
  reward: {function: "arithmetic.py:reward"}
MOREedges:
"""
TAIL = """step: STEP
run: {steps: MAX, seed: 0}
gate: {metric: reward.rewards@val, at_least: GOAL, when: first, otherwise: continue}
"""
STARPO = """  starpo: {kind: filter, rule: spread, unit: group, keep_top: 0.25, by: reward.rewards}
"""
STARPO_EDGES = """  - {edge: reward.score -> advantage.estimate, remove: true}
  - reward.score -> starpo.select
  - starpo.select -> advantage.estimate
"""
ALGORITHMS: Mapping[str, Mapping[str, str]] = {
    "grpo": {"PRESET": "grpo", "STEP": "{prompts: 64, samples_per_prompt: 8, updates: 1}"},
    "ppo": {
        "PRESET": "ppo",
        "MODELS": ", value: {source: ./warm, dtype: float32, head: scalar}",
        "MORE": "  critic: {optimizer: {name: adamw, lr: 1.0e-3}}\n    ",
        "STEP": "{prompts: 128, samples_per_prompt: 4, updates: 1}",
    },
    "rloo": {"PRESET": "rloo", "STEP": "{prompts: 64, samples_per_prompt: 8, updates: 1}"},
    "dapo": {
        "PRESET": "dapo",
        "VARS": "vars: {max_response_tokens: 5, overlong_buffer_tokens: 1}\n",
        "STEP": "{prompts: 48, samples_per_prompt: 8, updates: 1, refill: {max_rounds: 10, oversample: 1.5}}",
    },
    "starpo_s": {
        "PRESET": "dr_grpo",
        "MORE": f"{STARPO}    ",
        "EDGES": STARPO_EDGES,
        "STEP": "{prompts: 128, samples_per_prompt: 8, updates: 1}",
    },
}
"""What stands in the text of each flow: presets with a model, a task and a learning rate for its size. StarPO-S (Wang
et al. 2025, arXiv:2504.20073) filters groups by their spread, has no KL and clips higher."""


def run_algorithm(name: str, warm: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    parts = ALGORITHMS[name]
    goal = min(0.99, warm["held_out"] + RISE + 0.05)
    stage = ROLES + parts.get("EDGES", "") + VALIDATION.replace("EVERY", "10") + TAIL
    text = _flow(HEAD.format(name=name.replace("_", "-")) + parts.get("VARS", "") + MODELS, stage)
    for word in ("MODELS", "MORE", "PRESET", "STEP"):
        text = text.replace(word, parts.get(word, ""))
    text = text.replace("MAX", f"{MAX_STEPS}").replace("GOAL", f"{goal:.4f}")
    start = time.process_time()
    values = _held_out(_run(text, folder))
    best = values[-1]
    return {
        "case": f"learn {name}",
        "before": warm["held_out"],
        "after": best,
        "rise": round(best - warm["held_out"], 4),
        "held_out": values,
        "seconds": round(time.process_time() - start, 1),
    }


def run_all(names: Iterable[str], kept: dict[str, dict[str, Any]], folder: Path) -> None:
    """Fill `kept` with rows; the warm model lies in `folder` and is made once."""
    for file in ("arithmetic.py",):
        shutil.copy(ROOT / "examples" / file, folder)
    (folder / "task.py").write_text(TASK)
    if not (folder / "warm" / "config.json").is_file():
        stage = WARM + VALIDATION.replace("EVERY", "20") + WARM_TAIL
        result = _run(_flow(HEAD.format(name="warm") + WARM_MODELS, stage), folder)
        export(result, None, folder / "warm")
        (folder / "warm.json").write_text(json.dumps({"held_out": _held_out(result)[-1]}))
    warm = json.loads((folder / "warm.json").read_text())
    for name in names:
        if f"learn {name}" not in kept:
            sys.stderr.write(f"learn {name}, from {warm['held_out']:.3f}\n")
            kept[f"learn {name}"] = run_algorithm(name, warm, folder)


def _flow(top: str, stage: str) -> str:
    """One stage, since only a stage has a gate."""
    text = stage.replace("ASKED", ASKED)
    return f"{top}stages:\n  - name: main\n{''.join(f'    {line}' for line in text.splitlines(keepends=True))}"


def _run(text: str, folder: Path) -> Path:
    plan = compile_spec(loads(text, "flow.yaml", str(folder)))
    preflight(plan)
    session = SessionOptions(progress=False, threads=1)
    return run(plan, RunOptions(runs=folder / "runs", launcher="inline", folder=folder, session=session)).folder


def _held_out(run_folder: Path) -> list[float]:
    lines = [json.loads(line) for line in (run_folder / "metrics.jsonl").read_text().splitlines()]
    return [round(line["reward.rewards@val"], 4) for line in lines if "reward.rewards@val" in line]


def holds(row: Mapping[str, Any]) -> bool:
    return bool(row["rise"] >= RISE)


def lines(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    head = f"{'algorithm':16} {'before':>7} {'after':>7} {'rise':>7}   held-out reward every 10 steps"
    return [head, *(_line(row) for row in rows)]


def _line(row: Mapping[str, Any]) -> str:
    series = " ".join(f"{value:.2f}" for value in row["held_out"])
    name = str(row["case"]).partition(" ")[2]
    return f"{name:16} {row['before']:>7.3f} {row['after']:>7.3f} {row['rise']:>+7.3f}   {series}"
