"""Who may have another tokenizer than the generator: what scores samples by their text, and nobody else."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowrl import api

QWEN, LLAMA = "Qwen/Qwen2.5-7B-Instruct", "meta-llama/Llama-3.1-8B-Instruct"
FLOW = """
flowrl: 1
name: two-tokenizers
cluster: {{gpu: H100-80G, nodes: 2, gpus_per_node: 8}}
models:
  policy: {{source: Qwen/Qwen2.5-7B-Instruct}}
  other: {{source: {source}, head: {head}}}
data: {{train: {{source: rows.jsonl, prompt: question, max_prompt_tokens: 64}}}}
roles:
  actor_train: {{model: policy, backend: fsdp, update: {{loss: ppo{kl}}}}}
  actor_infer: {{model: policy, backend: vllm, generate: {{max_response_tokens: 64}}}}
{roles}
edges:
  - data.train -> actor_infer.generate
  - actor_infer.generate -> reward.score
  - reward.score -> advantage.estimate
  - advantage.estimate -> actor_train.update
  - actor_train => actor_infer
{edges}
step: {{prompts: 64, samples_per_prompt: 4}}
"""
GRPO = "  advantage: {estimator: grpo}"
FUNCTION = '  reward: {function: "rewards.py:score"}'
REFERENCE = (
    f"  reference: {{model: other, backend: fsdp}}\n{FUNCTION}\n{GRPO}",
    "  - actor_infer.generate -> reference.log_probs\n  - reference.log_probs -> actor_train.update",
)
CRITIC = (
    f"  critic: {{model: other, backend: fsdp, update: {{loss: value}}}}\n{FUNCTION}\n  advantage: {{estimator: gae}}",
    "  - actor_infer.generate -> critic.values\n  - critic.values -> advantage.estimate\n"
    "  - advantage.estimate -> critic.update",
)
REWARD = (f"  reward: {{model: other, backend: fsdp}}\n{GRPO}", "")
PROCESS = ("  reward: {model: other, backend: fsdp, unit: token}\n  advantage: {estimator: reinforce}", "")


@pytest.mark.parametrize(
    ("parts", "head", "source", "fits"),
    [
        (REFERENCE, "lm", "Qwen/Qwen2.5-0.5B-Instruct", True),  # one tokenizer, 128 rows less of padding
        (REFERENCE, "lm", LLAMA, False),
        (CRITIC, "scalar", QWEN, True),
        (CRITIC, "scalar", LLAMA, False),
        (REWARD, "scalar", LLAMA, True),
        (PROCESS, "scalar", LLAMA, False),
        (PROCESS, "scalar", QWEN, True),
    ],
)
def test_values_of_tokens_need_the_tokenizer_of_the_generator(
    tmp_path: Path, parts: tuple[str, str], head: str, source: str, fits: bool
) -> None:
    (tmp_path / "rewards.py").write_text("def score(response):\n    return [0.0] * len(response)\n")
    kl = ", kl: {coef: 0.1}" if parts is REFERENCE else ""
    text = FLOW.format(source=source, head=head, kl=kl, roles=parts[0], edges=parts[1])
    (tmp_path / "flow.yaml").write_text(text)
    found = [d.code for d in api.check(tmp_path / "flow.yaml").diagnostics if d.severity == "error"]
    assert found == ([] if fits else ["FR0353"])


def test_weights_go_between_models_of_one_shape(tmp_path: Path) -> None:
    (tmp_path / "rewards.py").write_text("def score(response):\n    return [0.0] * len(response)\n")
    for source, expected in (("Qwen/Qwen2.5-7B", []), ("Qwen/Qwen2.5-3B-Instruct", ["FR0352"])):
        text = FLOW.format(source=source, head="lm", kl="", roles=f"{FUNCTION}\n{GRPO}", edges="")
        (tmp_path / "flow.yaml").write_text(text.replace("actor_infer: {model: policy", "actor_infer: {model: other"))
        found = [d.code for d in api.check(tmp_path / "flow.yaml").diagnostics if d.severity == "error"]
        assert found == expected
