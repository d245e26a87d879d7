"""What benchmarks/flows.py runs: every preset and every flow of examples/flows, each put into a folder of its own."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.flowing.stand_ins import COMPARE, SCORE, stand_in, stand_in_judge
from benchmarks.flowing.worlds import stand_in_worlds

ROOT = Path(__file__).resolve().parents[2]
FLOWS = ROOT / "examples" / "flows"
PRESETS = ROOT / "flowrl" / "presets"
POLICY = "Qwen/Qwen2.5-7B-Instruct"
GIVEN: Mapping[str, str] = {"columns": "keep: [answer]", "reward": 'function: "rewards.py:score"'}
NO_REWARD: Mapping[str, str] = {"columns": "keep: [answer]"}
GIVES: Mapping[str, Mapping[str, str]] = {
    "ppo": GIVEN | {"models": f", value: {{source: {POLICY}, head: scalar}}"},
    "sft": {"columns": "response: answer"},
    "rm": {
        "columns": "chosen: answer, rejected: wrong",
        "models": f", reward_model: {{source: {POLICY}, head: scalar}}",
    },
    "on_policy_distill": NO_REWARD | {"models": ", teacher: {source: Qwen/Qwen2.5-32B-Instruct}"},
    "online_dpo": GIVEN | {"reward": 'function: "rewards.py:compare"'},
    "safe_rlhf": NO_REWARD
    | {
        "models": "".join(
            f", {name}: {{source: {POLICY}, head: scalar}}"
            for name in ("value", "cost_value", "reward_model", "cost_model")
        )
    },
}
"""What a preset's header says that the user gives, where it differs from GIVEN."""


@dataclass(frozen=True)
class Case:
    kind: str
    """preset or flow."""
    name: str

    @property
    def key(self) -> str:
        return f"{self.kind} {self.name}"


def cases() -> tuple[Case, ...]:
    presets = sorted(file.stem for file in PRESETS.glob("*.yaml"))
    flows = sorted(file.stem for file in FLOWS.glob("*.yaml"))
    return (*(Case("preset", name) for name in presets), *(Case("flow", name) for name in flows))


def put(case: Case, folder: Path) -> Path:
    """The flow's file in `folder`, with all that it reads."""
    if case.kind == "flow":
        for file in FLOWS.iterdir():
            if file.is_file():
                shutil.copy(file, folder)
        stand_in_worlds(folder / f"{case.name}.yaml")
        stand_in_judge(folder / f"{case.name}.yaml")
        stand_in(folder / f"{case.name}.yaml")
        return folder / f"{case.name}.yaml"
    given = GIVES.get(case.name, GIVEN)
    roles = f"roles: {{reward: {{{given['reward']}}}}}\n" if "reward" in given else ""
    (folder / "rewards.py").write_text(SCORE + COMPARE)
    file = folder / "flow.yaml"
    file.write_text(
        f"flowrl: 1\nname: {case.name}\nuse: {case.name}\ncluster: 8xH100-80G\n"
        f"models: {{policy: {{source: {POLICY}}}{given.get('models', '')}}}\n"
        f"data: {{train: {{source: rows.jsonl, prompt: question, {given['columns']}, max_prompt_tokens: 1024}}}}\n"
        f"{roles}"
    )
    stand_in(file)
    return file
