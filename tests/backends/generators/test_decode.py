"""Many prompts: rounds of bounded cache, and rows that leave the batch early."""

from pathlib import Path

import pytest

from flowrl.backends.generators import hf
from flowrl.diag.diagnostic import FlowError
from flowrl.graph.graph import Kind
from tests.backends.ranks import generate, prompts, rank_of
from tests.backends.tiny import make_tiny


def test_rounds_of_bounded_cache_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rank = rank_of(Kind.GENERATOR, make_tiny(tmp_path / "m"), "hf")
    batch = prompts([f"{i}+{i}=" for i in range(20)])
    whole = rank.call(generate(4), batch).batch
    monkeypatch.setattr(hf, "CACHE_BYTES", 2**16)
    parts = list(rank._parts(rank._codec.encode_prompts(batch.objects("prompt")), generate().op.params, 4))
    assert len(parts) > 3
    again = rank.call(generate(4), batch).batch
    for name in ("tokens", "loss_mask"):
        assert again.ragged(name).values.tolist() == whole.ragged(name).values.tolist()


def test_rows_end_at_different_places(tmp_path: Path) -> None:
    """With a third of the letters as stop strings most rows leave early; the others must not notice."""
    rank = rank_of(Kind.GENERATOR, make_tiny(tmp_path / "m"), "hf")
    batch = prompts([f"{i}+{i}=" for i in range(20)])
    free = rank.call(generate(4, max_response_tokens=16), batch).batch
    stops = tuple("abcdefghijABCDEFGHIJ0123456789")
    early = rank.call(generate(4, max_response_tokens=16, stop=stops), batch).batch
    lengths = set()
    for whole, text in zip(free.objects("response"), early.objects("response"), strict=True):
        ends = [whole.index(s) + 1 for s in stops if s in whole]
        assert text == whole[: min(ends, default=len(whole))]
        lengths.add(len(text))
    assert len(lengths) > 5


def test_samples_longer_than_the_models_positions_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FlowError) as caught:
        rank_of(Kind.GENERATOR, make_tiny(tmp_path / "m", max_positions=63), "hf")
    assert caught.value.diagnostics[0].code == "FR0840"
