"""Images that cannot be read or placed: each ends in a diagnostic of its own, as soon as it can be known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flowrl.backends.data import Data
from flowrl.backends.text import Codec
from flowrl.diag.diagnostic import FlowError
from tests.backends.placed import TRAIN, placed
from tests.backends.seeing import make_tiny_seeing, png
from tests.backends.test_data import data_setup
from tests.backends.tiny import make_tiny
from tests.conftest import Told


@pytest.fixture(scope="module")
def codec(tmp_path_factory: pytest.TempPathFactory) -> Codec:
    return Codec(make_tiny_seeing(tmp_path_factory.mktemp("seeing") / "m"))


def data_of(folder: Path, cells: list[Any], **written: Any) -> Data:
    """The data set of rows with these images, in a file below `folder`."""
    (folder / "d").mkdir(exist_ok=True)
    (folder / "d" / "rows.jsonl").write_text("".join(json.dumps({"q": "a", "shot": cell}) + "\n" for cell in cells))
    train = {"source": "d/rows.jsonl", "prompt": "q", "images": "shot", "order": "sequential"} | written
    graph = placed(folder, {TRAIN: f"train: {json.dumps(train)}"})
    return Data(data_setup(graph.op("data.train"), folder))


def test_paths_start_where_the_data_lie(tmp_path: Path) -> None:
    (tmp_path / "d" / "s").mkdir(parents=True)
    files = {name: png(seed) for seed, name in enumerate(("s/a.png", "b.png"))}
    for name, content in files.items():
        (tmp_path / "d" / name).write_bytes(content)
    data = data_of(tmp_path, ["s/a.png", ["b.png", {"path": "s/a.png", "bytes": None}], None])
    a, b = files.values()
    assert data.rows(0, 3).columns["images"] == ((a,), (b, a), ())


def test_bytes_in_parquet(tmp_path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    rows = [{"q": "a", "shot": png(0)}, {"q": "b", "shot": png(1)}]
    (tmp_path / "d").mkdir()
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "d" / "rows.parquet")
    data = data_of(tmp_path, [], source="d/rows.parquet")
    assert data.rows(0, 2).columns["images"] == ((png(0),), (png(1),))


@pytest.mark.parametrize(
    ("cell", "name"),
    [("gone.png", "gone"), ("words.png", "words"), (7, "number")],
)
def test_an_image_that_is_none_is_told_before_the_run(tmp_path: Path, cell: object, name: str, told: Told) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "words.png").write_text("no image")
    (tmp_path / "d" / "good.png").write_bytes(png(0))
    with pytest.raises(FlowError) as caught:
        data_of(tmp_path, ["good.png", cell])
    told(caught.value, "FR0865", name)


def encode(codec: Codec, folder: Path, prompt: object, *images: bytes, **limits: Any) -> None:
    span = placed(folder).op("actor_infer.generate").span
    codec.encode_prompts([prompt], [3], images=[images], span=span, **limits)


def test_half_an_image_is_told_where_it_is_read(codec: Codec, tmp_path: Path, told: Told) -> None:
    with pytest.raises(FlowError) as caught:
        encode(codec, tmp_path, "See.", png(0)[:2000])
    told(caught.value, "FR0865", "half")


@pytest.mark.parametrize(
    ("prompt", "images", "name"),
    [
        ("<image> and <image>", 1, ""),
        ([{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "?"}]}], 2, "parts"),
        ("What does <|image_pad|> mean?", 1, "token"),
    ],
)
def test_as_many_places_as_images(
    codec: Codec, tmp_path: Path, prompt: object, images: int, name: str, told: Told
) -> None:
    with pytest.raises(FlowError) as caught:
        encode(codec, tmp_path, prompt, *[png(0)] * images)
    told(caught.value, "FR0866", name)


def test_a_model_without_an_encoder(tmp_path: Path, told: Told) -> None:
    folder = make_tiny(tmp_path / "m")
    codec = Codec(folder, placed(tmp_path).model("policy").span)
    with pytest.raises(FlowError) as caught:
        codec.vision  # noqa: B018
    told(caught.value, "FR0867")


def test_truncation_keeps_images_whole(codec: Codec, tmp_path: Path, told: Told) -> None:
    (whole,) = codec.encode_prompts(["words before <image> end"], images=[(png(0),)])
    (short,) = codec.encode_prompts(
        ["words before <image> end"], images=[(png(0),)], max_tokens=len(whole) - 6, on_long="truncate"
    )
    assert short.tolist() == whole[6:].tolist()
    with pytest.raises(FlowError) as caught:
        encode(codec, tmp_path, "words before <image> end", png(0), max_tokens=20, on_long="truncate")
    told(caught.value, "FR0868")


def test_image_tokens_count_as_tokens_of_the_prompt(codec: Codec) -> None:
    (whole,) = codec.encode_prompts(["<image> end"], images=[(png(0),)])
    with pytest.raises(FlowError, match="FR0806"):
        codec.encode_prompts(["<image> end"], images=[(png(0),)], max_tokens=len(whole) - 1)
