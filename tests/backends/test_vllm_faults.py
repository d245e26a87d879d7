"""What a vLLM engine would refuse, told before it starts. No engine runs here."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from flowrl.backends.contract import RankSetup
from flowrl.diag.diagnostic import FlowError, InternalError
from flowrl.graph.params import EngineParams
from flowrl.machine.engines import KV_FRACTION
from flowrl.plan.plan import Layout
from tests.backends.engines import LONG, call_of, make_folders, prompt_rows, setup_of
from tests.backends.placed import ANY_LENGTH, at_its_place, placed
from tests.conftest import Told

pytest.importorskip("vllm")

from flowrl.backends.generators import vllm as backend
from flowrl.backends.generators import vllm_settings
from flowrl.backends.generators.vllm import VllmGenerator
from flowrl.backends.generators.vllm_settings import engine_arguments, faults, read_config

pytestmark = pytest.mark.vllm


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return make_folders(tmp_path_factory.mktemp("models"))


def written(folder: Path, model_folder: Path, extra: dict[str, object] | None = None, **changes: Any) -> RankSetup:
    """The rank of a generator as the flow has it, with the flow's places."""
    engine = f", engine: {{extra: {json.dumps(extra)}}}" if extra else ""
    graph = placed(folder, {"backend: hf": f"backend: vllm{engine}"})
    return setup_of(model_folder, **({"role": graph.role("actor_infer"), "model": graph.model("policy")} | changes))


def found_in(setup: RankSetup) -> list[Any]:
    assert setup.model_folder is not None
    return faults(setup, read_config(setup.model_folder))


SIX_HEADS = {"num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 32}


@pytest.mark.parametrize(
    ("code", "name", "changes", "config"),
    [
        ("FR0840", "folder", {"max_tokens": 97}, {}),
        ("FR0841", "attention", {"layout": Layout(tp=3)}, {}),
        ("FR0841", "kv", {"layout": Layout(tp=3)}, SIX_HEADS),
        ("FR0842", "pp", {"layout": Layout(pp=2)}, {}),
        ("FR0842", "cp", {"layout": Layout(cp=2)}, {}),
        ("FR0853", "folder", {}, {"num_attention_heads": 4, "num_key_value_heads": 2}),
    ],
)
def test_a_fault_is_known_before_the_start(
    folders: dict[str, Path],
    tmp_path: Path,
    code: str,
    name: str,
    changes: dict[str, object],
    config: dict[str, int],
    told: Told,
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(folders["a-True"], folder)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | config))
    told(found_in(written(tmp_path, folder, **changes)), code, name)


@pytest.mark.parametrize(
    ("code", "name", "extra"),
    [
        ("FR0844", "logprobs", {"logprobs_mode": "raw_logits"}),
        ("FR0845", "", {"kv_cache_memory_bytes": 1000}),
        ("FR0852", "", {"kv_cache_memory_bytes": 1 << 50}),
    ],
)
def test_engine_keys_are_checked_before_the_start(
    folders: dict[str, Path],
    tmp_path: Path,
    code: str,
    name: str,
    extra: dict[str, object],
    told: Told,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(vllm_settings, "_free_bytes", lambda: 8 << 30)
    told(found_in(written(tmp_path, folders["a-True"], extra)), code, name)


@pytest.mark.parametrize(("name", "extra"), [("near", {"kv_cache_memory_byte": 1}), ("far", {"zzzzzz": True})])
def test_a_key_that_vllm_does_not_know_is_told_with_near_ones(
    folders: dict[str, Path], tmp_path: Path, name: str, extra: dict[str, object], told: Told
) -> None:
    with pytest.raises(FlowError) as error:
        VllmGenerator(written(tmp_path, folders["a-True"], extra))
    told(error.value, "FR0846", name)


def test_a_missing_vllm_is_told_with_what_to_install(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: Told
) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(FlowError) as error:
        VllmGenerator(written(tmp_path, folders["a-True"]))
    told(error.value, "FR0847")


def test_a_scalar_head_is_refused(folders: dict[str, Path], tmp_path: Path, told: Told) -> None:
    """The compiler refuses one at the edge; a plan made before a folder has changed meets it here."""
    setup = written(tmp_path, folders["a-True"])
    assert setup.model is not None
    told(found_in(replace(setup, model=structs.replace(setup.model, head="scalar"))), "FR0843")


def test_what_vllm_says_as_it_does_not_start_is_told(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: Told
) -> None:
    """test_vllm.py starts the real one; here the words of an engine core that runs out of memory."""

    def refuse(*_: object, **__: object) -> object:
        raise RuntimeError("Engine core initialization failed.\n\nNot enough memory for the KV cache: 0.5 GiB.")

    monkeypatch.setattr("vllm.LLMEngine.from_engine_args", refuse)
    with pytest.raises(FlowError) as error:
        VllmGenerator(written(tmp_path, folders["a-True"]))
    told(error.value, "FR0848")


class Standin:
    """An engine that takes no weights: it fails, or says which parameters nothing came for."""

    def __init__(self, missing: Sequence[str] | Exception = ()) -> None:
        self._missing = missing

    def collective_rpc(self, method: str, args: tuple[object, ...]) -> list[Sequence[str]]:
        if isinstance(self._missing, Exception):
            raise self._missing
        return [self._missing]


def with_standin(monkeypatch: pytest.MonkeyPatch, setup: RankSetup, engine: Standin) -> VllmGenerator:
    monkeypatch.setattr(backend, "start_engine", lambda *_: engine)
    return VllmGenerator(setup)


def test_a_prompt_that_leaves_no_room_is_told(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: Told
) -> None:
    generator = with_standin(monkeypatch, written(tmp_path, folders["a-True"]), Standin())
    narrow = f"generate: {{max_response_tokens: 16, max_context_tokens: {len(LONG)}}}"
    call = at_its_place(
        call_of(max_context_tokens=len(LONG)),
        tmp_path,
        {"backend: hf": "backend: vllm", "generate: {max_response_tokens: 16}": narrow} | ANY_LENGTH,
    )
    with pytest.raises(FlowError) as error:
        generator.call(call, prompt_rows())
    told(error.value, "FR0849")


FAILED = RuntimeError("worker failed\nKeyError: 'model.layers.7.nothing.weight'")
UNSET = [f"model.layers.1.mlp.{name}_proj.weight" for name in ("gate", "up", "down")]


@pytest.mark.parametrize(("code", "missing"), [("FR0850", FAILED), ("FR0851", UNSET)])
def test_weights_that_do_not_arrive_are_told(
    folders: dict[str, Path],
    tmp_path: Path,
    code: str,
    missing: Sequence[str] | Exception,
    monkeypatch: pytest.MonkeyPatch,
    told: Told,
) -> None:
    generator = with_standin(monkeypatch, written(tmp_path, folders["a-True"]), Standin(missing))
    with pytest.raises(FlowError) as error:
        generator.read_weights([], np.zeros(0, dtype=np.uint8), 5)
    told(error.value, code)
    with pytest.raises(InternalError, match="the update to version 5"):
        generator.call(call_of(), prompt_rows())


def test_cpu_settings_stay_off_gpus(folders: dict[str, Path]) -> None:
    """Only the arguments: no engine was started on a GPU."""
    arguments = engine_arguments(setup_of(folders["a-True"], device="cuda"))
    assert not {"block_size", "kv_cache_memory_bytes"} & set(arguments)
    assert arguments["enforce_eager"] is False
    assert arguments["gpu_memory_utilization"] == KV_FRACTION
    assert arguments["enable_sleep_mode"] is True


def test_the_keys_of_the_engine_are_passed_on(folders: dict[str, Path]) -> None:
    """Under vLLM's own names; what a CPU has of its own stays (eager, a cache of whole sequences)."""
    keys = {
        "max_sequences": 4,
        "max_batch_tokens": 128,
        "max_model_tokens": 64,
        "cuda_graphs": False,
        "kv_dtype": "fp8",
    }
    setup = setup_of(folders["a-True"])
    role = structs.replace(setup.role, engine=EngineParams(kv_fraction=0.5, **keys))  # type: ignore[arg-type]
    on_gpu, on_cpu = (
        engine_arguments(setup_of(folders["a-True"], role=role, device=device)) for device in ("cuda:0", "cpu")
    )
    wanted = {"max_num_seqs": 4, "max_num_batched_tokens": 128, "max_model_len": 64}
    assert wanted.items() <= on_gpu.items()
    assert wanted.items() <= on_cpu.items()
    assert {"enforce_eager": True, "kv_cache_dtype": "fp8", "gpu_memory_utilization": 0.5}.items() <= on_gpu.items()
    one = vllm_settings.cache_bytes(setup, read_config(folders["a-True"]), 64, 1)
    four = vllm_settings.cache_bytes(setup, read_config(folders["a-True"]), 64, 4)
    assert one < on_cpu["kv_cache_memory_bytes"] == four
    plain = engine_arguments(setup_of(folders["a-True"], device="cuda:0"))
    assert not {"max_num_seqs", "max_num_batched_tokens"} & set(plain), "vLLM's own for the device"
    assert plain["kv_cache_dtype"] == "auto"
