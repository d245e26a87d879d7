"""Every preset, given what its header asks for, plans for 7B on eight H100, and says what a run would refuse."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowrl import api
from flowrl.api.preflight import preflight
from flowrl.diag.diagnostic import FlowError
from flowrl.plan.io import dumps, loads
from tests.house.tree import PACKAGE

PRESETS = sorted(file.stem for file in PACKAGE.joinpath("presets").glob("*.yaml"))
POLICY = "Qwen/Qwen2.5-7B-Instruct"
SCORED = {"policy": "", "reward": 'function: "rewards.py:score"', "columns": "keep: [answer]"}
GIVEN: dict[str, dict[str, str]] = {
    "ppo": SCORED | {"models": f", value: {{source: {POLICY}, head: scalar}}"},
    "sft": {"columns": "response: answer"},
    "rm": {
        "columns": "chosen: answer, rejected: wrong",
        "models": f", reward_model: {{source: {POLICY}, head: scalar}}",
    },
    "on_policy_distill": {"columns": "keep: [answer]", "models": ", teacher: {source: Qwen/Qwen2.5-32B-Instruct}"},
    "online_dpo": SCORED | {"reward": 'function: "rewards.py:compare"'},
    "safe_rlhf": {
        "columns": "keep: [answer]",
        "models": "".join(
            f", {name}: {{source: {POLICY}, head: scalar}}"
            for name in ("value", "cost_value", "reward_model", "cost_model")
        ),
    },
}
"""What a preset's header says that the user gives, where it differs from SCORED."""


def write(preset: str, folder: Path) -> Path:
    given = GIVEN.get(preset, SCORED)
    roles = f"roles: {{reward: {{{given['reward']}}}}}\n" if "reward" in given else ""
    (folder / "rewards.py").write_text(
        "def score(response, answer):\n    return [0.0 for _ in response]\n\n\n"
        "def compare(prompt, response):\n    return [0.0 for _ in response]\n"
    )
    (folder / "flow.yaml").write_text(
        f"flowrl: 1\nname: {preset}\nuse: {preset}\ncluster: 8xH100-80G\n"
        f"models: {{policy: {{source: {POLICY}}}{given.get('models', '')}}}\n"
        f"data: {{train: {{source: rows.jsonl, prompt: question, {given['columns']}, max_prompt_tokens: 1024}}}}\n"
        f"{roles}"
    )
    return folder / "flow.yaml"


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_plans_for_7b_on_eight_devices(preset: str, tmp_path: Path) -> None:
    plan = api.plan(write(preset, tmp_path))
    (stage,) = plan.stages
    placed = [entry.role for pool in stage.pools for entry in pool.roles]
    assert sorted(placed) == sorted(role.name for role in stage.graph.roles)
    assert stage.estimate.step_seconds > 0
    fits = all(entry.peak_bytes <= entry.limit_bytes for entry in stage.memory)
    assert fits is (plan.verdict == "fits")
    assert fits or all(diagnostic.code == "FR0501" for diagnostic in plan.diagnostics if diagnostic.exit_code == 4)
    assert loads(dumps(plan)) == plan
    assert refused(plan) == set()


def refused(plan: api.Plan) -> set[str]:
    """What a run of the plan says is not built."""
    try:
        preflight(plan)
    except FlowError as error:
        texts = (f"{each.code} {each.labels[0].text}" for each in error.diagnostics)
        return {text.removeprefix("FR0801 ").partition(": ")[2].partition(" is part of")[0] for text in texts}
    return set()
