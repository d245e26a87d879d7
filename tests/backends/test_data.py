import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowrl.backends.contract import RankSetup
from flowrl.backends.data import Data
from flowrl.diag.diagnostic import FlowError
from flowrl.graph.graph import Kind, Op, Role
from flowrl.graph.params import DataParams
from flowrl.graph.types import Granularity
from flowrl.plan.plan import Layout
from tests.backends.placed import TRAIN, placed
from tests.conftest import Told

SIZE = 7


def make(folder: Path, seed: int = 0, **params: object) -> Data:
    given_params = DataParams(**({"source": "rows.jsonl", "prompt": "q", "keep": ("a",)} | params))  # type: ignore[arg-type]
    op = Op(id="data.train", role="data.train", method="train", granularity=Granularity.PROMPT, params=given_params)
    return Data(data_setup(op, folder, seed))


def data_setup(op: Op, folder: Path, seed: int = 0) -> RankSetup:
    role = Role(name="data.train", kind=Kind.DATA)
    return RankSetup(role=role, model=None, model_folder=None, layout=Layout(), folder=folder, seed=seed, ops=(op,))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    lines = [json.dumps({"q": f"q{i}", "a": i, "r": f"r{i}"}) for i in range(SIZE)]
    (folder / "rows.jsonl").write_text("\n".join(lines) + "\n\n")
    (folder / "rows.py").write_text(
        "def rows(size):\n    return [{'q': str(i), 'a': i} for i in range(size)]\n"
        "def raises():\n    return 1 / 0\ndef number():\n    return 3\ndef numbers():\n    return [3]\n"
        "def none():\n    return []\ndef nothing():\n    return None\n"
    )
    return folder


@given(st.integers(0, 40), st.integers(1, 30))
def test_any_window_is_a_window_of_one_endless_order(folder: Path, start: int, count: int) -> None:
    whole = make(folder).rows(0, 80)
    part = make(folder).rows(start, count)
    assert part.ids.tolist() == part.prompt_ids.tolist() == list(range(start, start + count))
    assert part.objects("prompt") == whole.objects("prompt")[start : start + count]
    assert part.objects("a") == whole.objects("a")[start : start + count]


def test_each_epoch_holds_every_row_once_in_another_order(folder: Path) -> None:
    data = make(folder)
    epochs = [data.rows(epoch * SIZE, None).objects("a") for epoch in range(4)]
    assert all(sorted(epoch) == list(range(SIZE)) for epoch in epochs)  # type: ignore[type-var]
    assert len(set(epochs)) > 1
    assert make(folder, seed=1).rows(0, None).objects("a") != epochs[0]


def test_sequential(folder: Path) -> None:
    batch = make(folder, order="sequential", response="r").rows(5, 4)
    assert batch.objects("a") == (5, 6, 0, 1)
    assert batch.objects("response") == ("r5", "r6", "r0", "r1")
    assert np.array_equal(batch.array("prompt_id"), batch.ids)


def test_rows_of_a_function(folder: Path) -> None:
    data = make(folder, source="rows.py:rows", args={"size": 3}, order="sequential")
    assert data.size == 3
    assert data.rows(0, None).objects("prompt") == ("0", "1", "2")


def test_a_line_separator_inside_a_string_is_text(folder: Path) -> None:
    (folder / "odd.jsonl").write_text(json.dumps({"q": "a\u2028b", "a": 1}, ensure_ascii=False))
    assert make(folder, source="odd.jsonl").rows(0, 1).objects("prompt") == ("a\u2028b",)


@pytest.mark.parametrize(
    ("params", "text", "code", "name"),
    [
        ({"source": "gone.jsonl"}, "", "FR0810", ""),
        ({}, '{"q": 1, "a": 2}\n{"q": }\n', "FR0811", "comma"),
        ({}, "[1]\n", "FR0811", "list"),
        ({}, '{"q": 1, "a": 2}\n{"q": 1}\n', "FR0812", "keep"),
        ({}, '{"a": 1}\n', "FR0812", "prompt"),
        ({}, "\n", "FR0813", "blank"),
        ({"source": "rows.py:none"}, "", "FR0813", "function"),
        ({"source": "rows.py:raises"}, "", "FR0814", ""),
        ({"source": "rows.py:number"}, "", "FR0815", "number"),
        ({"source": "rows.py:numbers"}, "", "FR0815", "list"),
        ({"source": "rows.py:nothing"}, "", "FR0815", "none"),
        ({"on_long": "drop", "max_prompt_tokens": 5}, '{"q": "1+1=", "a": 2}\n', "FR0816", ""),
        ({"template": "prompt.j2"}, '{"q": "1+1=", "a": 2}\n', "FR0879", ""),
    ],
)
def test_bad_data(
    folder: Path, tmp_path: Path, params: dict[str, object], text: str, code: str, name: str, told: Told
) -> None:
    for file in folder.glob("*.py"):
        shutil.copy(file, tmp_path)
    (tmp_path / "prompt.j2").write_text("{{ prompt }} for {{ name }}")
    (tmp_path / "bad.jsonl").write_text(text)
    written = {"source": "bad.jsonl", "prompt": "q", "keep": ["a"]} | params
    graph = placed(tmp_path, {TRAIN: f"train: {json.dumps(written)}"})
    with pytest.raises(FlowError) as caught:
        Data(data_setup(graph.op("data.train"), tmp_path)).rows(0, 1)
    told(caught.value, code, name)


def test_an_order_that_is_not_built(folder: Path) -> None:
    """The compiler refuses it before, at its key."""
    with pytest.raises(FlowError, match=r"FR0801.*\n.*`order: interleave`"):
        make(folder, order="interleave")


def test_a_function_that_is_gone_since_the_check(tmp_path: Path, told: Told) -> None:
    file = tmp_path / "rows.py"
    file.write_text("def rows():\n    return []\n")
    op = placed(tmp_path, {TRAIN: "train: {source: rows.py:rows, prompt: q}"}).op("data.train")
    file.write_text("def row():\n    return []\n")
    with pytest.raises(FlowError) as caught:
        Data(data_setup(op, tmp_path))
    told(caught.value, "FR0820", "data")
