import json
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

SIZE = 7


def make(folder: Path, seed: int = 0, **params: object) -> Data:
    given_params = DataParams(**({"source": "rows.jsonl", "prompt": "q", "keep": ("a",)} | params))  # type: ignore[arg-type]
    op = Op(id="data.train", role="data.train", method="train", granularity=Granularity.PROMPT, params=given_params)
    role = Role(name="data.train", kind=Kind.DATA)
    setup = RankSetup(role=role, model=None, model_folder=None, layout=Layout(), folder=folder, seed=seed, ops=(op,))
    return Data(setup)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    lines = [json.dumps({"q": f"q{i}", "a": i, "r": f"r{i}"}) for i in range(SIZE)]
    (folder / "rows.jsonl").write_text("\n".join(lines) + "\n\n")
    (folder / "rows.py").write_text(
        "def rows(size):\n    return [{'q': str(i), 'a': i} for i in range(size)]\n"
        "def raises():\n    return 1 / 0\ndef number():\n    return 3\ndef numbers():\n    return [3]\n"
        "def none():\n    return []\n"
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
    ("params", "text", "code", "words"),
    [
        ({"source": "gone.jsonl"}, "", "FR0810", "gone.jsonl"),
        ({}, '{"q": 1, "a": 2}\n{"q": }\n', "FR0811", "line 2: Expecting value at column 7"),
        ({}, "[1]\n", "FR0811", "line 1: a list, not an object"),
        ({}, '{"q": 1, "a": 2}\n{"q": 1}\n', "FR0812", "row 2 of `bad.jsonl` has no column `a`"),
        ({}, "\n", "FR0813", "gives no rows"),
        ({"source": "rows.py:none"}, "", "FR0813", "gives no rows"),
        ({"source": "rows.py:raises"}, "", "FR0814", "ZeroDivisionError: division by zero (rows.py:4)"),
        ({"source": "rows.py:number"}, "", "FR0815", "returned a int"),
        ({"source": "rows.py:numbers"}, "", "FR0815", "a list with a int"),
        ({"source": "rows.py:row"}, "", "FR0820", "near name: `rows`"),
        ({"order": "interleave"}, "", "FR0801", "interleave"),
        ({"on_long": "drop", "max_prompt_tokens": 5}, "", "FR0816", "on_long: drop"),
    ],
)
def test_bad_data(folder: Path, params: dict[str, object], text: str, code: str, words: str) -> None:
    (folder / "bad.jsonl").write_text(text)
    with pytest.raises(FlowError) as caught:
        make(folder, **({"source": "bad.jsonl"} | params))
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code == code
    assert words in diagnostic.notes[0]
