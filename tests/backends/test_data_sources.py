"""Data sets beyond one jsonl file: pairs, mixes, limits, templates, parquet, folders that `datasets` saved, the hub."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowrl.backends.contract import RankSetup
from flowrl.backends.data import Data
from flowrl.backends.data_mix import INTERLEAVE, SEQUENTIAL, counts_of, draws
from flowrl.backends.text import Codec, Written
from flowrl.diag.diagnostic import FlowError
from flowrl.graph.graph import Kind, Op, Role
from flowrl.graph.params import DataParams
from flowrl.graph.types import Granularity
from flowrl.plan.plan import Layout
from tests.backends.placed import TRAIN, placed
from tests.backends.test_data import data_setup
from tests.backends.tiny import make_tiny
from tests.conftest import Told


def source(name: str, **params: object) -> DataParams:
    return DataParams(**({"source": f"{name}.jsonl", "prompt": "q", "order": "sequential"} | params))  # type: ignore[arg-type]


def setup_of(folder: Path, params: DataParams, model: Path | None = None) -> RankSetup:
    op = Op(id="data.train", role="data.train", method="train", granularity=Granularity.PROMPT, params=params)
    return replace(data_setup(op, folder), model_folder=model)


def make(folder: Path, params: DataParams, model: Path | None = None) -> Data:
    return Data(setup_of(folder, params, model))


def mix(order: str, **shares: float) -> DataParams:
    sources = {name: source(name, keep=("a",) if name == "math" else ()) for name in shares}
    return DataParams(source="", mix=shares, sources=sources, order=order, tag="from")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sources")
    for name, size in (("math", 6), ("code", 4)):
        rows = [{"q": f"{name}{i}" + "x" * i, "a": i, "good": f"g{i}", "bad": f"b{i}"} for i in range(size)]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_a_pair_is_two_samples_of_a_prompt(folder: Path) -> None:
    batch = make(folder, source("math", chosen="good", rejected="bad", keep=("a",))).rows(4, 3)
    assert batch.prompt_ids.tolist() == [4, 4, 5, 5, 6, 6]
    assert batch.ids.tolist() == [p * 2**16 + side for p in (4, 5, 6) for side in (0, 1)]
    assert batch.objects("response") == ("g4", "b4", "g5", "b5", "g0", "b0")
    assert batch.array("pair_sign").tolist() == [1, -1] * 3
    assert batch.objects("a") == (4, 4, 5, 5, 0, 0)


@given(st.lists(st.tuples(st.integers(1, 40), st.floats(0.02, 1.0)), min_size=1, max_size=4))
@settings(max_examples=60, deadline=None)
def test_shares_of_a_mix_hold_in_every_prefix(parts: list[tuple[int, float]]) -> None:
    """Every source is seen whole in an epoch; the counts are within one of its share; interleaved, no prefix is further
    than one draw of each source from it (the bound of the quota that a fair order keeps)."""
    sizes, shares = [size for size, _ in parts], [share for _, share in parts]
    counts = counts_of(sizes, shares)
    whole = sum(counts)
    of = draws(sizes, shares, INTERLEAVE)
    assert len(of.source) == whole
    for number, (size, share) in enumerate(parts):
        assert counts[number] >= size
        assert abs(counts[number] - whole * share / sum(shares)) < 1 + 1e-6
        mine = of.source == number
        assert of.rank[mine].tolist() == list(range(counts[number]))
        ahead = np.cumsum(mine) - counts[number] / whole * np.arange(1, whole + 1)
        assert np.abs(ahead).max() < len(parts)
    assert draws(sizes, shares, SEQUENTIAL).source.tolist() == sorted(of.source.tolist())


@pytest.mark.parametrize("order", ["shuffle", "sequential", "interleave"])
def test_a_mix_draws_by_share_and_tags_its_rows(folder: Path, order: str) -> None:
    data = make(folder, mix(order, math=0.75, code=0.25))
    assert data.size == 16  # all 4 of code at a quarter
    epochs = [data.rows(epoch * 16, 16) for epoch in range(3)]
    for number, epoch in enumerate(epochs):
        tags = epoch.objects("from")
        assert Counter(tags) == {"math": 12, "code": 4}
        prompts = [str(p) for p, tag in zip(epoch.objects("prompt"), tags, strict=True) if tag == "math"]
        drawn = sorted(int(p.removeprefix("math").rstrip("x")) for p in prompts)
        assert drawn == sorted([*range(6)] * 2), number
        assert all((a is None) == (tag == "code") for a, tag in zip(epoch.objects("a"), tags, strict=True))
    orders = {epoch.objects("from") for epoch in epochs}
    assert len(orders) == (3 if order == "shuffle" else 1)
    if order == "sequential":
        assert epochs[0].objects("from") == ("math",) * 12 + ("code",) * 4
    if order == "interleave":
        assert all(Counter(epochs[0].objects("from")[i : i + 4])["code"] == 1 for i in range(0, 16, 4))


@given(start=st.integers(0, 60), count=st.integers(1, 20))
@settings(max_examples=20, deadline=None)
def test_any_window_of_a_mix_is_a_window_of_one_order(folder: Path, start: int, count: int) -> None:
    whole = make(folder, mix("shuffle", math=0.5, code=0.5)).rows(0, 80)
    part = make(folder, mix("shuffle", math=0.5, code=0.5)).rows(start, count)
    assert part.objects("prompt") == whole.objects("prompt")[start : start + count]


def test_a_mix_of_a_mix(folder: Path) -> None:
    inner = mix("interleave", math=0.5, code=0.5)
    outer = DataParams(source="", mix={"both": 0.5, "code": 0.5}, sources={"both": inner, "code": source("code")})
    tags = make(folder, outer).rows(0, 24).objects("from")
    assert Counter(tags) == {None: 12, "math": 6, "code": 6}


def test_numbered_prompts(folder: Path) -> None:
    params = DataParams(source="", seeds=5)
    data = make(folder, params)
    batch = data.rows(0, 10)
    assert sorted(batch.columns) == ["prompt_id"]
    numbers = batch.array("prompt_id").tolist()
    assert len(set(numbers)) == 5
    assert sorted(numbers[:5]) == sorted(numbers[5:])
    assert 0 <= min(numbers) <= max(numbers) < 2**31
    other = Op(id="data.val", role="data.val", method="val", granularity=Granularity.PROMPT, params=params)
    assert not set(numbers) & set(Data(data_setup(other, folder)).rows(0, 5).array("prompt_id").tolist())
    assert batch.ids.tolist() == list(range(10))


def test_long_prompts_are_dropped_and_counted(folder: Path, tmp_path: Path) -> None:
    """Characters are tokens here: math0 … math5xxxxx have 5 to 10."""
    model = make_tiny(tmp_path / "model")
    short = source("math", on_long="drop", max_prompt_tokens=7)
    data = make(folder, short, model)
    assert (data.size, data.dropped) == (3, 3)
    assert data.rows(0, None).objects("prompt") == ("math0", "math1x", "math2xx")
    limited = DataParams(
        **{**_fields(mix("sequential", math=0.5, code=0.5)), "on_long": "drop", "max_prompt_tokens": 7}
    )  # type: ignore[arg-type]
    both = make(folder, limited, model)
    assert both.dropped == 3 + 1
    assert max(len(str(prompt)) for prompt in both.rows(0, None).objects("prompt")) == 7


def _fields(params: DataParams) -> dict[str, object]:
    return {name: getattr(params, name) for name in params.__struct_fields__}


def test_no_prompt_is_short_enough(tmp_path: Path, told: Told) -> None:
    (tmp_path / "rows.jsonl").write_text('{"question": "12345678"}\n')
    graph = placed(
        tmp_path, {TRAIN: "train: {source: rows.jsonl, prompt: question, max_prompt_tokens: 4, on_long: drop}"}
    )
    setup = replace(data_setup(graph.op("data.train"), tmp_path), model_folder=make_tiny(tmp_path / "model"))
    with pytest.raises(FlowError) as caught:
        Data(setup)
    told(caught.value, "FR0878")


def test_a_template_of_ones_own_takes_the_place_of_the_chat_template(folder: Path, tmp_path: Path) -> None:
    (folder / "ask.j2").write_text("Q: {{ prompt }} ({{ a }})\nA:")
    batch = make(folder, source("math", template="ask.j2")).rows(0, 2)
    assert batch.objects("prompt") == ("Q: math0 (0)\nA:", "Q: math1x (1)\nA:")
    model = make_tiny(tmp_path / "chat")
    settings_file = model / "tokenizer_config.json"
    chat = {"chat_template": "{% for m in messages %}<{{ m.content }}>{% endfor %}"}
    settings_file.write_text(json.dumps(json.loads(settings_file.read_text()) | chat))
    codec = Codec(model)
    plain, written = codec.encode_prompts(["1+1", Written("1+1")])
    assert (codec.decode(plain), codec.decode(written)) == ("<1+1>", "1+1")


def test_parquet_and_saved_folders(tmp_path: Path) -> None:
    rows = [{"q": f"q{i}", "a": i} for i in range(5)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    assert make(tmp_path, source("rows", source="rows.parquet", keep=("a",))).rows(0, None).objects("a") == (
        0,
        1,
        2,
        3,
        4,
    )
    # As `datasets` 4 saves a DatasetDict: Arrow streams, named by state.json.
    saved = tmp_path / "saved" / "test"
    saved.mkdir(parents=True)
    (tmp_path / "saved" / "dataset_dict.json").write_text('{"splits": ["test"]}')
    for part, some in enumerate((rows[:3], rows[3:])):
        table = pa.Table.from_pylist(some)
        with pa.OSFile(str(saved / f"data-{part}.arrow"), "wb") as out, pa.ipc.new_stream(out, table.schema) as writer:
            writer.write_table(table)
    files = [{"filename": f"data-{part}.arrow"} for part in range(2)]
    (saved / "state.json").write_text(json.dumps({"_data_files": files}))
    data = make(tmp_path, source("rows", source="saved", args={"split": "test"}))
    assert data.rows(0, None).objects("prompt") == ("q0", "q1", "q2", "q3", "q4")


def test_a_hub_id_is_read_from_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = tmp_path / "hub" / "main"
    snapshot.mkdir(parents=True)
    for split, size in (("train", 3), ("test", 2)):
        table = pa.Table.from_pylist([{"q": f"{split}{i}"} for i in range(size)])
        pq.write_table(table, snapshot / f"{split}-00000-of-00001.parquet")
    asked = []

    def download(name: str, **how: object) -> str:
        asked.append((name, how["repo_type"]))
        return str(tmp_path / "hub")

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    assert make(tmp_path, source("x", source="openai/gsm8k")).rows(0, None).objects("prompt") == (
        "train0",
        "train1",
        "train2",
    )
    params = source("x", source="openai/gsm8k", args={"split": "test", "name": "main"})
    assert make(tmp_path, params).rows(0, None).objects("prompt") == ("test0", "test1")
    assert asked == [("openai/gsm8k", "dataset")] * 2


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("train: {source: folder, prompt: question, args: {split: dev}}", "FR0876"),
        ("train: {source: broken.parquet, prompt: question}", "FR0877"),
    ],
)
def test_what_cannot_be_read(tmp_path: Path, text: str, code: str, told: Told) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "train.jsonl").write_text('{"question": "1+1"}\n')
    (tmp_path / "broken.parquet").write_bytes(b"no parquet")
    with pytest.raises(FlowError) as caught:
        Data(data_setup(placed(tmp_path, {TRAIN: text}).op("data.train"), tmp_path))
    told(caught.value, code)


def test_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: Told) -> None:
    pq.write_table(pa.Table.from_pylist([{"question": "1"}]), tmp_path / "rows.parquet")
    op = placed(tmp_path, {TRAIN: "train: {source: rows.parquet, prompt: question}"}).op("data.train")
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(FlowError) as caught:
        Data(data_setup(op, tmp_path))
    told(caught.value, "FR0875")


def test_the_role_is_of_data() -> None:
    assert setup_of(Path("."), source("math")).role == Role(name="data.train", kind=Kind.DATA)
    assert setup_of(Path("."), source("math")).layout == Layout()
