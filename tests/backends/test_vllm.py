"""The real vLLM engine (CPU build): what it samples, what it says it sampled from, and whose weights it uses.

Log-probs are compared with a transformers forward in float32, an updated engine with a fresh one.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec import structs

from flowrl.backends.contract import TensorSpec
from flowrl.diag.diagnostic import FlowError, InternalError
from flowrl.graph.params import EngineParams
from flowrl.plan.plan import Layout
from tests.backends.engines import (
    LONG,
    call_of,
    forward_log_probs,
    laid_out,
    make_folders,
    prompt_rows,
    rows_of,
    setup_of,
)

pytest.importorskip("vllm")

from flowrl.backends.generators.vllm import VllmGenerator
from flowrl.backends.generators.vllm_settings import faults, read_config

pytestmark = pytest.mark.vllm


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return make_folders(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def engine(folders: dict[str, Path]) -> Iterator[VllmGenerator]:
    made = VllmGenerator(setup_of(folders["a-True"]))
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
    rows = rows_of(engine.call(call_of(**params), prompt_rows()))
    masks = rows.ragged("loss_mask").rows()
    for tokens, mask, said in zip(
        rows.ragged("tokens").rows(), masks, rows.ragged("rollout_log_probs").rows(), strict=True
    ):
        start = int(np.argmax(mask))
        assert not mask[:start].any()
        assert mask[start:].all()
        assert (said[:start] == 0).all()
        wanted = forward_log_probs(folders["a-True"], tokens, params["temperature"] or 1.0)
        np.testing.assert_allclose(said[start:], wanted[start - 1 :], atol=1e-4)


def test_greedy_takes_the_likeliest_token(engine: VllmGenerator, folders: dict[str, Path]) -> None:
    from transformers import AutoModelForCausalLM

    rows = rows_of(engine.call(call_of(samples=1, temperature=0.0), prompt_rows()))
    model = AutoModelForCausalLM.from_pretrained(folders["a-True"], dtype=torch.float32)
    for tokens, mask in zip(rows.ragged("tokens").rows(), rows.ragged("loss_mask").rows(), strict=True):
        start = int(np.argmax(mask))
        with torch.no_grad():
            likeliest = model(torch.from_numpy(tokens.astype(np.int64))[None]).logits[0].argmax(-1).numpy()
        assert tokens[start:].tolist() == likeliest[start - 1 : -1].tolist()


def test_columns_are_those_of_a_generator(engine: VllmGenerator) -> None:
    result = engine.call(call_of(samples=3), prompt_rows([1, 2]))
    rows = rows_of(result)
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
    whole = rows_of(engine.call(call_of(samples=4), prompt_rows()))
    for ids in ([2], [0, 3], [1, 2]):
        part = rows_of(engine.call(call_of(samples=4), prompt_rows(ids)))
        places = np.flatnonzero(np.isin(whole.prompt_ids, ids))
        same = whole.select(places)
        assert part.ids.tolist() == same.ids.tolist()
        assert part.ragged("tokens").values.tolist() == same.ragged("tokens").values.tolist()
    other = rows_of(engine.call(dataclasses.replace(call_of(samples=4), seed=4), prompt_rows()))
    assert other.ragged("tokens").values.tolist() != whole.ragged("tokens").values.tolist()
    distinct = {tuple(row.tolist()) for row in whole.select(range(4)).ragged("tokens").rows()}
    assert len(distinct) == 4


def test_no_rows_give_no_rows(engine: VllmGenerator) -> None:
    result = engine.call(call_of(), prompt_rows([]))
    rows = rows_of(result)
    assert len(rows) == 0
    assert rows.ragged("tokens").values.dtype == np.int32
    assert result.metrics == {}


def test_a_stop_string_ends_a_response_and_stays_in_it(engine: VllmGenerator) -> None:
    free = rows_of(engine.call(call_of(samples=1), prompt_rows([2])))
    text = str(free.objects("response")[0])
    assert len(text) > 4
    rows = rows_of(engine.call(call_of(samples=1, stop=(text[2:4],)), prompt_rows([2])))
    assert rows.objects("response") == (text[: text.index(text[2:4]) + 2],)
    assert rows.array("finish_reason").tolist() == [0]
    again = rows_of(engine.call(call_of(samples=1), prompt_rows([2])))
    assert again.objects("response") == (text,)


def test_a_prompt_that_leaves_no_room_is_refused_and_the_engine_stays(engine: VllmGenerator) -> None:
    with pytest.raises(FlowError) as error:
        engine.call(call_of(max_context_tokens=len(LONG)), prompt_rows())
    assert error.value.diagnostics[0].code == "FR0849"
    rows = rows_of(engine.call(call_of(samples=1, max_context_tokens=len(LONG) + 2), prompt_rows([2])))
    assert rows.ragged("tokens").lengths.max() <= len(LONG) + 2


@pytest.mark.parametrize("by_prompt", [False, True])
def test_what_is_taken_in_parts_is_what_a_call_gives(engine: VllmGenerator, by_prompt: bool) -> None:
    whole = rows_of(engine.call(call_of(samples=4), prompt_rows()))
    of_id = dict(zip(whole.ids.tolist(), whole.ragged("tokens").rows(), strict=True))
    engine.open(call_of(samples=4), prompt_rows())
    parts = [rows_of(engine.take(number, 2, by_prompt=by_prompt)) for number in (1, 2)]
    assert len(parts[0]) == len(whole) // 2
    assert sorted(i for part in parts for i in part.ids.tolist()) == whole.ids.tolist()
    for part in parts:
        assert part.ids.tolist() == sorted(part.ids.tolist())
        assert not by_prompt or set(np.unique(part.prompt_ids, return_counts=True)[1].tolist()) == {4}
        for id, row in zip(part.ids.tolist(), part.ragged("tokens").rows(), strict=True):
            np.testing.assert_array_equal(row, of_id[id])


def test_the_cache_leaves_and_comes_back(engine: VllmGenerator) -> None:
    before = rows_of(engine.call(call_of(), prompt_rows()))
    engine.offload()
    engine.offload()
    with pytest.raises(InternalError, match="off its devices"):
        engine.call(call_of(), prompt_rows())
    engine.load()
    engine.load()
    after = rows_of(engine.call(call_of(), prompt_rows()))
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
    manifest, buffer = laid_out(new)
    updated = VllmGenerator(setup_of(old, tied=tied))
    before = rows_of(updated.call(call_of(), prompt_rows()))
    updated.read_weights(manifest, buffer, 1)
    buffer[:] = 255  # the engine must have copies of its own
    after = rows_of(updated.call(call_of(), prompt_rows()))
    updated.close()
    fresh = VllmGenerator(setup_of(new, tied=tied))
    wanted = rows_of(fresh.call(call_of(), prompt_rows()))
    fresh.close()
    assert after.ragged("tokens").values.tolist() == wanted.ragged("tokens").values.tolist()
    assert after.ragged("tokens").values.tolist() != before.ragged("tokens").values.tolist()
    np.testing.assert_allclose(
        after.ragged("rollout_log_probs").values, wanted.ragged("rollout_log_probs").values, atol=1e-5
    )
    assert set(before.ragged("weight_version").values.tolist()) == {0}
    assert set(after.ragged("weight_version").values.tolist()) == {1}


def test_an_engine_updated_off_its_devices_comes_back_with_the_new_weights(folders: dict[str, Path]) -> None:
    generator = VllmGenerator(setup_of(folders["a-True"]))
    old = rows_of(generator.call(call_of(), prompt_rows()))
    generator.offload()
    generator.read_weights(*laid_out(folders["b-True"]), 1)
    generator.load()
    new = rows_of(generator.call(call_of(), prompt_rows()))
    assert new.ragged("tokens").values.tolist() != old.ragged("tokens").values.tolist()
    generator.read_weights(*laid_out(folders["a-True"]), 2)
    back = rows_of(generator.call(call_of(), prompt_rows()))
    assert back.ragged("tokens").values.tolist() == old.ragged("tokens").values.tolist()
    manifest, buffer = laid_out(folders["b-True"])
    kept = [spec for spec in manifest if "layers.1.mlp" not in spec.name]
    with pytest.raises(FlowError) as error:
        generator.read_weights(kept, buffer, 3)
    assert error.value.diagnostics[0].code == "FR0851"
    assert "layers.1.mlp" in str(error.value.diagnostics[0].notes)
    with pytest.raises(InternalError, match="the update to version 3"):
        generator.call(call_of(), prompt_rows())
    generator.close()
    generator.close()


def test_a_failed_update_is_fatal_and_said(folders: dict[str, Path]) -> None:
    generator = VllmGenerator(setup_of(folders["a-False"], tied=False))
    manifest, buffer = laid_out(folders["b-False"])
    odd = [*manifest, TensorSpec("model.layers.7.nothing.weight", "float32", (1,), 0, 4)]
    with pytest.raises(FlowError) as error:
        generator.read_weights(odd, buffer, 5)
    assert error.value.diagnostics[0].code == "FR0850"
    assert error.value.diagnostics[0].exit_code == 5
    with pytest.raises(InternalError, match="the update to version 5"):
        generator.call(call_of(), prompt_rows())
    generator.close()


def test_what_vllm_refuses_at_start_is_told(folders: dict[str, Path]) -> None:
    setup = setup_of(folders["a-True"])
    engine = EngineParams(extra={"quantization": "nonsense"})
    with pytest.raises(FlowError) as error:
        VllmGenerator(setup_of(folders["a-True"], role=structs.replace(setup.role, engine=engine)))
    assert error.value.diagnostics[0].code == "FR0848"
    assert any("nonsense" in note for note in error.value.diagnostics[0].notes)


def test_the_smallest_cache_that_is_accepted_is_enough(folders: dict[str, Path]) -> None:
    """FR0845 names the bytes; with exactly those the longest sample runs, and two of them one after the other."""
    role = setup_of(folders["a-True"]).role
    tight = structs.replace(role, engine=EngineParams(extra={"kv_cache_memory_bytes": 1}))
    found = faults(setup_of(folders["a-True"], role=tight), read_config(folders["a-True"]))
    need = int(found[0].notes[0].split("needs ")[1].replace(",", ""))
    exact = structs.replace(role, engine=EngineParams(extra={"kv_cache_memory_bytes": need}))
    generator = VllmGenerator(setup_of(folders["a-True"], role=exact))
    rows = rows_of(generator.call(call_of(max_response_tokens=31, temperature=1.0), prompt_rows([2])))
    generator.close()
    assert rows.ragged("tokens").lengths.max() <= 96
    assert len(rows) == 2


@pytest.mark.slow
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
    whole = VllmGenerator(setup_of(folders["a-True"]))
    tokens = [rows_of(whole.call(call_of(), prompt_rows())).ragged("tokens").values.tolist()]
    whole.read_weights(*laid_out(folders["b-True"]), 1)
    tokens.append(rows_of(whole.call(call_of(), prompt_rows())).ragged("tokens").values.tolist())
    whole.close()
    assert made[0] == tokens


def _part_of_an_engine(rank: int, port: int, first: Path, second: Path, results: Any) -> None:
    setup = setup_of(first, rank=rank, world_size=2, store_port=port, layout=Layout(tp=2))
    generator = VllmGenerator(setup)
    made: list[list[int] | None] = []
    for version in (0, 1):
        if version:
            generator.read_weights(*laid_out(second), version)
        batch = generator.call(call_of(), prompt_rows()).batch
        made.append(None if batch is None else batch.ragged("tokens").values.tolist())
    results.put((rank, made))
    generator.close()
