"""What backend `megatron` refuses before anything is built: none of it needs Megatron Core."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from flowrl.backends.contract import RankSetup
from flowrl.backends.registry import make_rank
from flowrl.backends.trainers.megatron import library
from flowrl.backends.trainers.megatron.model import read_config
from flowrl.diag.diagnostic import FlowError
from flowrl.graph.graph import Model
from flowrl.graph.params import EngineParams
from flowrl.plan.plan import Layout
from tests.backends.placed import placed
from tests.backends.tiny import make_tiny
from tests.conftest import Told

MEGATRON = {"backend: fsdp": "backend: megatron"}


def setup_of(folder: Path, model_folder: Path | None = None) -> RankSetup:
    graph = placed(folder, MEGATRON)
    return RankSetup(
        role=graph.role("actor_train"), model=graph.model("policy"), model_folder=model_folder, layout=Layout()
    )


def test_without_megatron_core(tmp_path: Path, told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(library, "version", absent)
    with pytest.raises(FlowError) as caught:
        make_rank(setup_of(tmp_path))
    told(caught.value, "FR0880")


def test_another_release(tmp_path: Path, told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "version", lambda name: "0.16.1")
    monkeypatch.setattr(library, "core", lambda: None)
    with pytest.raises(FlowError) as caught:
        make_rank(setup_of(tmp_path))
    told(caught.value, "FR0880", "release")


def test_what_is_installed_is_what_is_asked_for() -> None:
    makefile = (Path(__file__).parents[3] / "Makefile").read_text(encoding="utf-8")
    assert f"MEGATRON := megatron-core=={library.VERSION}\n" in makefile


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"model_type": "gemma2"}, "its architecture is `gemma2`"),
        ({"hidden_act": "gelu"}, "gated by `gelu`"),
        ({"model_type": "llama", "attention_bias": True}, "biases"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}}, "scaled by `yarn`"),
        ({"model_type": "mistral", "sliding_window": 16, "use_sliding_window": True}, "slides over 16 tokens"),
    ],
)
def test_a_model_of_another_kind(tmp_path: Path, facts: dict[str, Any], reason: str) -> None:
    setup = setup_of(tmp_path, _model_with(tmp_path, facts))
    with pytest.raises(FlowError) as caught:
        read_config(setup)
    found = caught.value.diagnostics[0]
    assert found.code == "FR0881"
    assert reason in str(found.labels)


def test_the_frame_of_a_model_of_another_kind(tmp_path: Path, told: Told) -> None:
    with pytest.raises(FlowError) as caught:
        read_config(setup_of(tmp_path, _model_with(tmp_path, {"model_type": "gemma2"})))
    told(caught.value, "FR0881")


@pytest.mark.parametrize(
    "change",
    [
        {"layout": Layout(cp=2)},
        {"layout": Layout(ep=2)},
        {"engine": EngineParams(packing=True)},
        {"model": Model(name="m", source="x", dtype="float16")},
        {"model": Model(name="m", source="x", lora={"rank": 8})},
        {"model": Model(name="m", source="x", head="denoiser")},
    ],
    ids=["cp", "ep", "packing", "float16", "lora", "denoiser"],
)
def test_what_is_not_built(tmp_path: Path, change: dict[str, Any]) -> None:
    setup = setup_of(tmp_path, tmp_path)
    if "engine" in change:
        change = {"role": structs.replace(setup.role, engine=change["engine"])}
    with pytest.raises(FlowError) as caught:
        read_config(replace(setup, **change))
    assert caught.value.diagnostics[0].code == "FR0801"


def _model_with(folder: Path, facts: dict[str, Any]) -> Path:
    out = make_tiny(folder / "m")
    config = json.loads((out / "config.json").read_text())
    config.pop("layer_types", None)  # with them transformers takes a mistral for another one
    (out / "config.json").write_text(json.dumps(config | facts))
    return out
