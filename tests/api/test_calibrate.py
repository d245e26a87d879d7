"""Calibration of run folders whose traces were made with known constants: they are found again."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from flowrl import api
from flowrl.api.calibrate import calibrate
from flowrl.api.compile import compile_spec
from flowrl.diag.diagnostic import FlowError
from flowrl.execution.chrome import chrome
from flowrl.execution.trace import Trace, TraceSpan
from flowrl.machine.profile import PROFILE, value_of, with_constants
from flowrl.plan.plan import Plan
from flowrl.runtime.runfile import RunFile, RunStatus, write_run_file
from flowrl.spec import loads
from tests.conftest import Told

FLOW = """
flowrl: 1
name: fitted
cluster: {gpu: cpu, nodes: 1, gpus_per_node: 1}
models:
  policy:
    source: {architecture: qwen2, tokenizer: characters, hidden_size: 160, layers: 3, heads: 5, kv_heads: 5,
             ffn_size: 480, max_positions: 512, tie_embeddings: true}
    dtype: float32
data: {train: {source: train.jsonl, max_prompt_tokens: 32}}
roles:
  actor_train: {model: policy, backend: fsdp, update: {loss: ppo}}
  actor_infer: {model: policy, backend: hf, generate: {max_response_tokens: 64}}
  reward: {function: "flowrl:overlong", args: {max_tokens: 64, buffer_tokens: 16}}
  advantage: {estimator: grpo}
edges:
  - data.train -> actor_infer.generate
  - actor_infer.generate -> reward.score
  - reward.score -> advantage.estimate
  - advantage.estimate -> actor_train.update
  - actor_train => actor_infer
step: {prompts: 32, samples_per_prompt: 8}
run: {steps: 20}
"""
TRUE = {"device.cpu.train": 0.2, "device.cpu.forward": 0.35, "device.cpu.host": 0.1, "fixed.sync_seconds": 0.004}
MEAN, TAIL = 48.0, 63.0
NOTHING = ("traffic", "layer_seconds", "micro_batch_seconds", "row_seconds", "decode_traffic")
CPU = {**PROFILE.device["cpu"], "train": 0.7, "forward": 0.7, **dict.fromkeys(NOTHING, 0.0)}
BASE = replace(PROFILE, device={"gpu": PROFILE.device["gpu"], "cpu": CPU})
"""Without launches, rows and traffic: from the one duration of an op nobody tells what adds up in it."""


def plan_with(values: dict[str, float], assume: str = "") -> Plan:
    return compile_spec(loads(FLOW + assume), profile=with_constants(BASE, values))


def run_folder(folder: Path, steps: int) -> Path:
    """As a run leaves it, on a machine of the constants TRUE with lengths of MEAN, three percent of noise."""
    said = f"assume: {{actor_infer.generate: {{response_tokens: {{mean: {MEAN}, p99: {TAIL}}}}}}}\n"
    truth = plan_with(TRUE, said).stages[0].estimate.durations
    (folder / "plan.json").write_bytes(api.dumps(plan_with({})))
    write_run_file(folder, RunFile(name="fitted", state=RunStatus.FINISHED, folder=str(folder), launcher="inline"))
    noise, spans = random.Random(0), list[TraceSpan]()
    for step in range(1, steps + 1):
        for id, seconds in truth.items():
            slow = 10.0 if step == 1 else noise.lognormvariate(0.0, 0.03)
            spans.append(
                TraceSpan(instruction=id, pool="all", role="r", step=step, start_seconds=0.0, seconds=slow * seconds)
            )
    (folder / "trace.json").write_text(json.dumps(chrome(Trace(spans=tuple(spans), simulated=False))))
    lines: list[dict[str, Any]] = [
        {
            "stage": "main",
            "step": step,
            "actor_infer.response_tokens": MEAN,
            "actor_infer.response_tokens_p99": TAIL,
        }
        for step in range(1, steps + 1)
    ]
    stage = plan_with({}).stages[0].name
    text = "".join(json.dumps({**line, "stage": stage}) + "\n" for line in lines)
    (folder / "metrics.jsonl").write_text(text)
    return folder


def test_constants_that_made_a_trace_are_found_again(tmp_path: Path) -> None:
    found, made = calibrate(run_folder(tmp_path, 20), BASE)
    assert value_of(made, "device.cpu.train") == pytest.approx(0.2, rel=0.05)
    assert value_of(made, "device.cpu.forward") == pytest.approx(0.35, rel=0.25)
    moved = {each.path for each in found.moved}
    assert "device.gpu.train" not in moved
    assert found.error_before > 0.4
    assert found.error_after < 0.05
    assert made.error == pytest.approx(max(found.error_after, 0.05), rel=1e-3)
    assert made.measured["device.cpu.train"].how == "refitted to a run of fitted, 20 steps"


def test_lengths_and_functions_are_suggested_and_a_plan_takes_them(tmp_path: Path) -> None:
    found, _ = calibrate(run_folder(tmp_path, 12), BASE)
    assert found.assume["actor_infer.generate"] == {"response_tokens": {"mean": MEAN, "p99": TAIL}}
    assert found.assume["reward.score"]["seconds"] == pytest.approx(2e-4, rel=0.1)
    text = api.render_calibration(found)
    said = text[text.index("assume:  #") :]
    assert compile_spec(loads(FLOW + said)).verdict == "fits"


def test_errors_are_of_the_half_that_was_held_out(tmp_path: Path) -> None:
    """A held-out half that is twice as slow as the fitted one is met with an error of a half."""
    folder = run_folder(tmp_path, 21)
    trace = json.loads((folder / "trace.json").read_text())
    for event in trace["traceEvents"]:
        if event["ph"] == "X" and event["args"]["step"] % 2 == 1:
            event["dur"] *= 2.0
    (folder / "trace.json").write_text(json.dumps(trace))
    found, _ = calibrate(folder, BASE)
    update = next(row for row in found.rows if row.name == "actor_train.update")
    assert update.error_after == pytest.approx(0.5, abs=0.05)


def test_rows_are_of_what_the_trace_has(tmp_path: Path) -> None:
    folder = run_folder(tmp_path, 12)
    found, _ = calibrate(folder, BASE)
    durations = plan_with({}).stages[0].estimate.durations
    rows = {row.name: row for row in found.rows}
    assert rows["actor_infer.generate"].before == pytest.approx(durations["run actor_infer.generate"])
    assert rows["actor_infer.generate"].repeats == 11  # without the first step
    assert rows["actor_infer.generate"].measured < rows["actor_infer.generate"].p90 * 1.0001


def test_nothing_is_fitted_to_rows_whose_tokens_only_a_rule_says(tmp_path: Path) -> None:
    """A supervised update: the responses of a data set have no length of their own, so its seconds move nothing."""
    flow = FLOW[: FLOW.index("roles:")].replace("max_prompt_tokens: 32", "response: answer, max_prompt_tokens: 32")
    flow += """roles:
  actor_train: {model: policy, backend: fsdp, update: {loss: sft}}
edges: [data.train -> actor_train.update]
step: {prompts: 32}
run: {steps: 20}
"""
    plan = compile_spec(loads(flow))
    folder = run_folder(tmp_path, 8)
    (folder / "plan.json").write_bytes(api.dumps(plan))
    spans = [
        TraceSpan(instruction=id, pool="all", role="r", step=step, start_seconds=0.0, seconds=seconds / 7)
        for step in range(1, 9)
        for id, seconds in plan.stages[0].estimate.durations.items()
    ]
    (folder / "trace.json").write_text(json.dumps(chrome(Trace(spans=tuple(spans), simulated=False))))
    found, made = calibrate(folder)
    update = next(row for row in found.rows if row.name == "actor_train.update")
    assert update.is_ruled
    assert update.error_before == pytest.approx(6.0)
    assert value_of(made, "device.cpu.train") == value_of(PROFILE, "device.cpu.train")
    assert "actor_train.update ~" in api.render_calibration(found)


def test_too_few_steps_and_no_trace_are_told(tmp_path: Path, told: Told) -> None:
    folder = run_folder(tmp_path, 3)
    with pytest.raises(FlowError) as few:
        calibrate(folder)
    told(few.value, "FR0723")
    (folder / "trace.json").unlink()
    with pytest.raises(FlowError) as none:
        calibrate(folder)
    told(none.value, "FR0723", "none")
