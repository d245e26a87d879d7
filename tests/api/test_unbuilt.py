"""Every construct that the runtime does not carry out: the flow checks and plans, and `run` refuses it at its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowrl import api
from flowrl.api.preflight import preflight
from flowrl.api.unbuilt import UNBUILT
from flowrl.diag.diagnostic import Diagnostic, FlowError
from flowrl.plan.io import dumps, loads

FLOW = """flowrl: 1
name: demo
cluster: {gpu: cpu, gpus_per_node: 3}
models:
  policy:
    source: {architecture: qwen2, tokenizer: characters, hidden_size: 32, layers: 2, heads: 4, ffn_size: 64,
             max_positions: 96}
data:
  train: {source: rows.jsonl, prompt: question, keep: [answer], max_prompt_tokens: 16}
  other: {source: rows.jsonl, prompt: question, keep: [answer], max_prompt_tokens: 16}
roles:
  actor_train: {model: policy, backend: fsdp, update: {loss: ppo}}
  actor_infer: {model: policy, backend: hf, generate: {max_response_tokens: 16}}
  reward: {function: "rewards.py:score"}
  advantage: {estimator: grpo}
edges:
  - data.train -> actor_infer.generate
  - actor_infer.generate -> reward.score
  - reward.score -> advantage.estimate
  - advantage.estimate -> actor_train.update
  - actor_train => actor_infer
step: {prompts: 8, samples_per_prompt: 4, updates: 2}
"""
FILES = {
    "rewards.py": "def score(response, answer):\n    return [0.0 for _ in response]\n",
    "compare.py": "def compare(prompt, response):\n    return [0.0 for _ in response]\n",
    "judge.py": "def parse(text):\n    return float(text)\n",
    "judge.j2": "{{ prompt }} {{ response }}\n",
    "room.py": "class Room:\n    def reset(self, answer):\n        return []\n",
    "shape.py": "def shape(response):\n    return [len(text) for text in response]\n\n\n"
    "def few(rewards):\n    return [True for _ in rewards]\n",
}

Edit = tuple[str, str]
SHAPE = """
    source: {architecture: qwen2, tokenizer: characters, hidden_size: 32, layers: 2, heads: 4, ffn_size: 64,
             max_positions: 96}"""
GPUS = ("gpu: cpu, gpus_per_node: 3", "gpu: H100-80G, gpus_per_node: 8")
REWARD = 'reward: {function: "rewards.py:score"}'
SCORED = "  - reward.score -> advantage.estimate"
SYNC = "- actor_train => actor_infer"
VALIDATED = "- actor_infer.generate@val -> reward.score@val"
TRAIN = "train: {source: rows.jsonl, prompt: question, keep: [answer], max_prompt_tokens: 16}"
ENGINE: tuple[Edit, ...] = (("hidden_size: 32", "hidden_size: 128"), ("backend: hf", "backend: vllm, engine: {}"))


def elsewhere(key: str) -> tuple[Edit, ...]:
    """A key of a trainer's engine that backend `fsdp` carries out, on another one."""
    return (
        ("backend: fsdp, update: {loss: ppo}", f"backend: megatron, engine: {{{key}}}, update: {{loss: ppo}}"),
        GPUS,
    )


DENOISER = (
    (SHAPE, " {source: black-forest-labs/FLUX.1-dev, head: denoiser}"),
    (
        "backend: hf, generate: {max_response_tokens: 16}",
        "backend: diffusers, generate: {height: 256, width: 256, eta: 0.3}",
    ),
    GPUS,
)
EDITS: dict[str, tuple[Edit, ...]] = {
    "rewards of a turn or token that no function gives": (
        (
            REWARD,
            'reward: {judge: {template: judge.j2, parse: "judge.py:parse", endpoint: "https://judge/v1"}, unit: token}',
        ),
        ("estimator: grpo", "estimator: reinforce"),
    ),
    "`on_error` of this kind of role": (("estimator: grpo", "estimator: grpo, on_error: drop"),),
    "pp or ep of a vLLM engine": (
        *ENGINE,
        ("gpus_per_node: 3", "gpus_per_node: 4"),
        (
            "step: {",
            "placement:\n  pools:\n    rollout: {gpus: 2, roles: [actor_infer], layouts: {actor_infer: {pp: 2}}}\n"
            "    train: {gpus: 2, roles: [actor_train]}\nstep: {",
        ),
    ),
    "`engine.sleep_level: 2`": (*ENGINE, ("engine: {}", "engine: {sleep_level: 2}")),
    "`engine.weights_dtype: fp8`": (*ENGINE, ("engine: {}", "engine: {weights_dtype: fp8}")),
    "`engine.kv_dtype: fp8` on a CPU": (*ENGINE, ("engine: {}", "engine: {kv_dtype: fp8}")),
    "`engine.max_sequences` of a generator that is no engine": (
        ("backend: hf", "backend: hf, engine: {max_sequences: 8}"),
    ),
    "`engine.packing` of this backend": elsewhere("packing: true"),
    "`engine.extra` of a role without a model": (("estimator: grpo", "estimator: grpo, engine: {extra: {a: 1}}"),),
    "`engine.zero_stage` of this backend": elsewhere("zero_stage: 2"),
    "`engine.shard_devices` of this backend": elsewhere("shard_devices: 1"),
    "`engine.optimizer_offload`": (("update: {loss: ppo}", "engine: {optimizer_offload: 0.5}, update: {loss: ppo}"),),
    "`engine.parameter_offload` of this backend": elsewhere("parameter_offload: true"),
    "`engine.compute_dtype: fp8`": (GPUS, ("update: {loss: ppo}", "engine: {compute_dtype: fp8}, update: {loss: ppo}")),
    "`engine.activation_offload`": (
        ("update: {loss: ppo}", "engine: {activation_offload: true}, update: {loss: ppo}"),
    ),
    "`load: broadcast`": (("update: {loss: ppo}", "engine: {load: broadcast}, update: {loss: ppo}"),),
    "`cross_entropy: kernel` and `fused`": (
        ("update: {loss: ppo}", "engine: {cross_entropy: fused}, update: {loss: ppo}"),
    ),
    "`engine.cross_entropy` of this backend": elsewhere("cross_entropy: chunked"),
    "`gradient_dtype: bfloat16` of this backend": elsewhere("gradient_dtype: bfloat16"),
    "`engine.master_dtype` of this backend": elsewhere("master_dtype: bfloat16"),
    "`optimizer: {name: adamw_8bit}`": (("update: {loss: ppo}", "optimizer: {name: adamw_8bit}, update: {loss: ppo}"),),
    "a layout of fsdp with cp or ep": (
        (
            "step:",
            "placement: {pools: {train: {gpus: 2, roles: [actor_train], layouts: {actor_train: {cp: 2}}}, "
            "rollout: {gpus: 1, roles: [actor_infer]}}}\nstep:",
        ),
    ),
    "a layout of megatron with cp or ep": (
        ("backend: fsdp", "backend: megatron"),
        (
            "step:",
            "placement: {pools: {train: {gpus: 2, roles: [actor_train], layouts: {actor_train: {cp: 2}}}, "
            "rollout: {gpus: 1, roles: [actor_infer]}}}\nstep:",
        ),
    ),
    "a key of megatron's `engine` with this value": (
        ("backend: fsdp,", "backend: megatron, engine: {packing: true},"),
    ),
    "LoRA on megatron": (
        ("backend: fsdp,", "backend: megatron,"),
        ("max_positions: 96}", "max_positions: 96}\n    lora: {rank: 4, alpha: 8}"),
    ),
    "a scorer of a denoiser": (
        *DENOISER,
        ("estimator: grpo", "estimator: grpo, kl: {coef: 0.1, form: k1}"),
        ("  advantage:", "  reference: {model: policy, backend: fsdp}\n  advantage:"),
        (
            SYNC,
            f"- actor_infer.generate -> reference.log_probs\n  - reference.log_probs -> advantage.estimate\n  {SYNC}",
        ),
    ),
    "LoRA of a denoiser": (
        (SHAPE, " {source: black-forest-labs/FLUX.1-dev, head: denoiser, lora: {rank: 4, alpha: 8}}"),
        *DENOISER[1:],
    ),
    "this update of a denoiser": (*DENOISER, ("update: {loss: ppo}", "update: {loss: gspo}")),
    "images of this backend or head, or for a judge": (
        (SHAPE, " {source: Qwen/Qwen2.5-VL-3B-Instruct}"),
        ("backend: hf", "backend: vllm"),
        GPUS,
        (
            "keep: [answer], max_prompt_tokens: 16}\n  other",
            "images: answer, keep: [answer], max_prompt_tokens: 16}\n  other",
        ),
    ),
    "images of a partial rollout": (
        (SHAPE, " {source: Qwen/Qwen2.5-VL-3B-Instruct}"),
        ("step:", "schedule: {max_lag: 1, partial_rollout: true}\nstep:"),
        GPUS,
        (
            "keep: [answer], max_prompt_tokens: 16}\n  other",
            "images: answer, keep: [answer], max_prompt_tokens: 16}\n  other",
        ),
    ),
    "a transport of one's own": ((SYNC, "- {edge: actor_train => actor_infer, transport: disk}"),),
    "`on_timeout: retry` where the other end keeps state or hands on in parts": (
        (SYNC, "- {edge: actor_train => actor_infer, timeout_seconds: 60, on_timeout: retry}"),
    ),
    "`on_timeout: drop` where the other end keeps state, hands on in parts or is read by prompt": (
        (SYNC, "- {edge: actor_train => actor_infer, timeout_seconds: 60, on_timeout: drop}"),
    ),
    "partial rollout of this generator": (
        ("step:", "schedule: {max_lag: 1, partial_rollout: true}\nstep:"),
        (SYNC, f"- {{edge: data.other -> actor_infer.generate@val, every_steps: 2}}\n  {VALIDATED}\n  {SYNC}"),
    ),
    "the logger `wandb`": (("step:", "run: {loggers: [wandb]}\nstep:"),),
    "the logger `mlflow`": (("step:", "run: {loggers: [tensorboard, mlflow]}\nstep:"),),
}
"""How FLOW is edited to say each construct."""


def refusals(folder: Path, edits: tuple[Edit, ...]) -> tuple[Diagnostic, ...]:
    """What a run of the plan file of the edited flow is told before anything starts."""
    text = FLOW
    for old, new in edits:
        assert old in text, old
        text = text.replace(old, new, 1)
    for name, content in FILES.items():
        (folder / name).write_text(content)
    (folder / "flow.yaml").write_text(text)
    plan = loads(dumps(api.plan(folder / "flow.yaml")))
    try:
        preflight(plan)
    except FlowError as error:
        return error.diagnostics
    return ()


def test_the_flow_without_edits_runs(tmp_path: Path) -> None:
    assert not refusals(tmp_path, ())


def test_every_row_of_the_table_has_an_edit() -> None:
    assert [row.what for row in UNBUILT] == list(dict.fromkeys(row.what for row in UNBUILT))
    assert {row.what for row in UNBUILT} == set(EDITS)


@pytest.mark.parametrize("what", EDITS)
def test_a_construct_that_is_not_built_is_refused_by_run(what: str, tmp_path: Path) -> None:
    found = [each for each in refusals(tmp_path, EDITS[what]) if f": {what} is part of" in each.labels[0].text]
    assert found
    for each in found:
        assert each.code == "FR0801"
        assert each.labels[0].span.line > 0
