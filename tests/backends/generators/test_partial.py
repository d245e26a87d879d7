"""Partial rollouts of real engines: a session that is paused between two tokens, gets new weights and goes on.

With the same weights it makes what an undisturbed one makes; with new ones the rest is what a fresh model makes of the
tokens so far, and every token's log-prob is that of the weights that made it.
"""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from flowrl.backends.batch import Batch, join
from flowrl.backends.contract import LENGTH, Gather
from flowrl.backends.generators.hf import HfGenerator
from flowrl.backends.models import materialise
from tests.backends.engines import call_of, forward_log_probs, laid_out, prompt_rows, rows_of, setup_of, tiny_model

TEMPERATURE = 0.7
TOKENS = 24
CONTEXT = 80
"""Two of the prompts leave less room than TOKENS, so that they are done first."""
PROMPTS = range(4)


def _hf(folder: Path) -> Any:
    return HfGenerator(setup_of(folder))


def _vllm(folder: Path) -> Any:
    from flowrl.backends.generators.vllm import VllmGenerator

    return VllmGenerator(setup_of(folder))


ENGINES = {"hf": _hf, "vllm": _vllm}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two models of other weights, twice as large as they are made: sharp, and still good to 1e-4 in float32."""
    root = tmp_path_factory.mktemp("models")
    made = {name: materialise(tiny_model(True), Path(), root / name, seed) for seed, name in enumerate(("a", "b"))}
    for folder in made.values():
        weights = {name: 2 * tensor for name, tensor in load_file(folder / "model.safetensors").items()}
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return made


@pytest.fixture(scope="module", params=[pytest.param("hf"), pytest.param("vllm", marks=pytest.mark.vllm)])
def engine(request: pytest.FixtureRequest, folders: dict[str, Path]) -> Iterator[Any]:
    if request.param == "vllm" and importlib.util.find_spec("vllm") is None:
        pytest.skip("vllm is not installed")
    made = ENGINES[request.param](folders["a"])
    yield made
    made.close()


def _reads(engine: Any, folder: Path, version: int) -> None:
    engine.pause()
    engine.read_weights(*laid_out(folder), version)
    engine.resume()


def _in_two(engine: Any, between: Callable[[], None], **params: object) -> tuple[Batch, Batch]:
    """Two of the four prompts, whichever are done first, and after `between` the others."""
    call = call_of(max_response_tokens=TOKENS, max_context_tokens=CONTEXT, temperature=TEMPERATURE, **params)
    engine.join(call, prompt_rows(PROMPTS), afresh=True)
    first = rows_of(engine.gather(Gather(prompts=2, later=2)))
    between()
    return first, rows_of(engine.gather(Gather(prompts=2)))


def _whole(engine: Any, **params: object) -> Batch:
    return rows_of(
        engine.call(
            call_of(max_response_tokens=TOKENS, max_context_tokens=CONTEXT, temperature=TEMPERATURE, **params),
            prompt_rows(),
        )
    )


def _assert_same(one: Batch, other: Batch) -> None:
    assert one.ids.tolist() == other.ids.tolist()
    for name in ("tokens", "loss_mask"):
        assert np.array_equal(one.ragged(name).values, other.ragged(name).values)
    assert np.array_equal(one.array("finish_reason"), other.array("finish_reason"))
    assert one.objects("response") == other.objects("response")
    logs = [batch.ragged("rollout_log_probs").values for batch in (one, other)]
    assert np.allclose(*logs, atol=1e-4)


@pytest.mark.parametrize("stop", [(), ("1", "47")], ids=["", "stop strings"])
def test_with_the_same_weights_a_paused_session_makes_what_an_undisturbed_one_makes(
    engine: Any, folders: dict[str, Path], stop: tuple[str, ...]
) -> None:
    _reads(engine, folders["a"], 0)
    parts = _in_two(engine, lambda: _reads(engine, folders["a"], 1), stop=stop)
    assert all(len(part) == 4 for part in parts)
    assert int((parts[1].ragged("weight_version").values == 0).sum()) > 0, "nothing was under way"
    _assert_same(join(parts), _whole(engine, stop=stop))


def test_with_new_weights_what_was_made_stays_and_the_rest_is_a_fresh_models(
    engine: Any, folders: dict[str, Path]
) -> None:
    _reads(engine, folders["a"], 3)
    undisturbed = _whole(engine)
    _, rest = _in_two(engine, lambda: _reads(engine, folders["b"], 4))
    tokens, versions = rest.ragged("tokens").rows(), rest.ragged("weight_version").rows()
    before = dict(zip(undisturbed.ids.tolist(), undisturbed.ragged("tokens").rows(), strict=True))
    mixed = 0
    for row, id in enumerate(rest.ids.tolist()):
        mask = rest.ragged("loss_mask").rows()[row].astype(bool)
        tags = versions[row][mask].tolist()
        assert tags == sorted(tags)
        assert set(tags) <= {3, 4}
        made = int((versions[row] == 3).sum())
        mixed += len(set(tags)) == 2
        assert np.array_equal(tokens[row][:made], before[id][:made]), "a kept token has changed"
        assert (int(rest.array("finish_reason")[row]) == LENGTH) is (len(tags) == TOKENS)
        found = rest.ragged("rollout_log_probs").rows()[row]
        for folder, version in (("a", 3), ("b", 4)):
            wanted = forward_log_probs(folders[folder], tokens[row], TEMPERATURE)
            mine = np.flatnonzero(mask & (versions[row] == version))
            assert np.allclose(found[mine], wanted[mine - 1], atol=1e-4)
    assert mixed, "no response went on under the new weights"


def test_greedily_the_rest_is_what_a_fresh_engine_makes_of_the_same_beginning(
    engine: Any, folders: dict[str, Path]
) -> None:
    """The beginning is given to it as the prompt; without sampling nothing else decides."""
    _reads(engine, folders["a"], 0)
    call = call_of(samples=1, max_response_tokens=TOKENS, max_context_tokens=CONTEXT, temperature=0.0)
    engine.join(call, prompt_rows(PROMPTS), afresh=True)
    engine.gather(Gather(prompts=1, later=3))
    _reads(engine, folders["b"], 1)
    rest = rows_of(engine.gather(Gather(prompts=3)))
    fresh = HfGenerator(setup_of(folders["b"]))
    for row in range(len(rest)):
        mask, tags = rest.ragged("loss_mask").rows()[row].astype(bool), rest.ragged("weight_version").rows()[row]
        made = rest.ragged("tokens").rows()[row]
        beginning = made[: int((tags == 0).sum())]
        left = int(mask.sum()) - (len(beginning) - int((~mask).sum()))
        if left == 0:
            continue
        text = fresh._codec.decode(beginning)
        params = dataclasses.replace(call, op=call_of(samples=1, max_response_tokens=left, temperature=0.0).op)
        one = Batch(np.asarray([row]), np.asarray([row]), {"prompt": (text,)})
        again = rows_of(fresh.call(params, one))
        assert np.array_equal(again.ragged("tokens").values, made)


def test_what_is_too_old_is_dropped_and_counts_among_what_is_given(engine: Any, folders: dict[str, Path]) -> None:
    _reads(engine, folders["a"], 0)
    call = call_of(max_response_tokens=TOKENS, max_context_tokens=CONTEXT, temperature=TEMPERATURE)
    engine.join(call, prompt_rows((0, 2)), afresh=True)
    first = engine.gather(Gather(prompts=1, later=1))
    _reads(engine, folders["b"], 1)
    engine.join(call, prompt_rows((1, 3)), afresh=False)
    second = engine.gather(Gather(prompts=2, oldest=1))
    assert len(second.dropped) == 1
    assert {*first.batch.prompt_ids.tolist(), *second.dropped} == {0, 2}
    assert len(set(second.batch.prompt_ids.tolist())) == 1
    assert set(second.batch.ragged("weight_version").values.tolist()) == {1}
    last = rows_of(engine.gather(Gather(prompts=1)))
    assert {*second.batch.prompt_ids.tolist(), *last.prompt_ids.tolist()} == {1, 3}


def test_what_is_due_is_waited_for(engine: Any, folders: dict[str, Path]) -> None:
    """The prompt that is done last, asked for first."""
    _reads(engine, folders["a"], 0)
    call = call_of(max_response_tokens=TOKENS, max_context_tokens=CONTEXT, temperature=TEMPERATURE)
    engine.join(call, prompt_rows(PROMPTS), afresh=True)
    order = [rows_of(engine.gather(Gather(prompts=1, later=9))).prompt_ids[0] for _ in PROMPTS]
    engine.join(call, prompt_rows(PROMPTS), afresh=True)
    (last,) = set(rows_of(engine.gather(Gather(prompts=1, due=(int(order[-1]),)))).prompt_ids.tolist())
    assert last == order[-1]
