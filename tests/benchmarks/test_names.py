"""Loose names of models → cards: names as papers, tickets and configurations write them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.facts.names import card_by_loose_name

DATA = Path(__file__).resolve().parents[2] / "benchmarks" / "facts" / "data"
MODEL_KEYS = ("model", "actor", "critic", "ref", "reward", "max_actor_model", "models_tried")


@pytest.mark.parametrize(
    ("text", "card"),
    [
        ("Qwen2.5-Math-7B", "Qwen/Qwen2.5-Math-7B"),
        ("Qwen2.5-Instruct-72B", "Qwen/Qwen2.5-72B"),
        ("Qwen-2.5 7B", "Qwen/Qwen2.5-7B"),
        ("Qwen3-4B(4b)", "Qwen/Qwen3-4B"),
        ("30b (Qwen3-30B-A3B)", "Qwen/Qwen3-30B-A3B"),
        ("Qwen3 MoE 30B", "Qwen/Qwen3-30B-A3B"),
        ("Qwen3.5 MoE A17B", "Qwen/Qwen3.5-397B-A17B"),
        ("LLaMA-70B", "meta-llama/Llama-2-70b-hf"),
        ("LLaMA-33B", "huggyllama/llama-30b"),
        ("Llama-34B", "codellama/CodeLlama-34b-hf"),
        ("Llama-8B", "meta-llama/Llama-3.1-8B"),
        ("Llama-405B", "meta-llama/Llama-3.1-405B"),
        ("LLaMA2-7B", "meta-llama/Llama-2-7b-hf"),
        ("Llama3-70B (from RM)", "meta-llama/Meta-Llama-3-70B"),
        ("Llama 3.2 3B", "meta-llama/Llama-3.2-3B"),
        ("R1-Distill-Qwen-1.5B", "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B"),
        ("R1-Distill-8B", "deepseek-ai/DeepSeek-R1-Distill-Llama-8B"),
        ("DeepSeek-V3 671B", "deepseek-ai/DeepSeek-V3"),
        ("DeepSeek-V3/R1 671B", "deepseek-ai/DeepSeek-V3"),
        ("dsv3", "deepseek-ai/DeepSeek-V3"),
        ("Moonlight (16B-A3B)", "moonshotai/Moonlight-16B-A3B"),
        ("Kimi-K2-Instruct ~1T", "moonshotai/Kimi-K2-Base"),
        ("GLM-4.7 355B-A32B", "zai-org/GLM-4.7"),
        ("GLM-4.5 Air", "zai-org/GLM-4.5-Air"),
        ("OPT-13.2B", "facebook/opt-13b"),
        ("Nemotron-Nano-3", "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16"),
        ("gemma-2-2b-it", "google/gemma-2-2b-it"),
    ],
)
def test_names_of_models(text: str, card: str) -> None:
    assert card_by_loose_name(text) == card


@pytest.mark.parametrize(
    "text",
    [
        *("7B", "30b", "VLM", "large MoE", "", "remote LLM service", "Llama-7B..70B", "16B MoE / 30B MoE"),
        *("Qwen2.5-3B class (see page)", "Qwen2.5-VL family sizes", "Qwen2.5 1.5B@128 GPUs, 7B@64 GPUs"),
        *("Qwen2.5 R1-distill 1.5B/7B/32B", "Qwen2.5", "Qwen3-9000B", "Qwen3-30B-A22B", "Qwen-7B"),
    ],
)
def test_what_names_no_model_or_several(text: str) -> None:
    assert card_by_loose_name(text) is None


def names_in(value: Any, key: str = "") -> set[str]:
    if isinstance(value, dict):
        return set().union(*(names_in(each, name) for name, each in value.items()))
    if isinstance(value, list):
        return set().union(*(names_in(each, key) for each in value))
    return {value} if isinstance(value, str) and key in MODEL_KEYS else set()


def test_every_name_of_the_facts_has_a_card_or_is_listed_here() -> None:
    """What names no single model, or one without a public configuration (BailingMoe v2.5)."""
    names = set().union(*(names_in(json.loads(path.read_text())) for path in sorted(DATA.glob("*.json"))))
    unnamed = {
        *("7B", "14B", "72B", "30b", "1.5B LRM", "16B MoE / 30B MoE", "Llama-7B..70B", "VLM", "large MoE"),
        *("Qwen2.5 1.5B@128 GPUs, 7B@64 GPUs", "Qwen2.5 R1-distill 1.5B/7B/32B", "Qwen2.5-3B class (see page)"),
        *("Qwen2.5-VL family sizes", "BailingMoe v2.5 (Lightning/MLA hybrid MoE)", "remote LLM service"),
    }
    assert len(names) > 90
    assert {name for name in names if card_by_loose_name(name) is None} == unnamed
