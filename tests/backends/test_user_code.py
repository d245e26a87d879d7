import asyncio
import time
from pathlib import Path

import pytest
from msgspec import structs

from flowrl.backends.user_code import Fault, UserCodeError, call_function, load_function
from flowrl.diag.diagnostic import FlowError
from flowrl.diag.span import Span
from tests.backends.placed import FUNCTION, placed
from tests.conftest import Told

FILE = """
import neighbour
runs = []
runs.append(1)

def double(x):
    return [2 * v + neighbour.ZERO for v in x]

async def later(x):
    return double(x)

def broken(x):
    return [1 / v for v in x]

def count():
    return len(runs)

class Scorer:
    def __call__(self, x):
        return x

scorer = Scorer()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(FILE)
    (tmp_path / "neighbour.py").write_text("ZERO = 0\n")
    return tmp_path


def test_a_file_is_run_once_and_may_import_its_neighbours(folder: Path) -> None:
    assert call_function(load_function("mine.py:double", folder), None, x=[1, 2]) == [2, 4]
    assert call_function(load_function("mine.py:count", folder), None) == 1
    assert call_function(load_function("mine.py:scorer", folder), None, x=3) == 3


def test_files_of_one_name_do_not_meet(folder: Path) -> None:
    other = folder / "sub"
    other.mkdir()
    (other / "mine.py").write_text("def double(x):\n    return 'other'\n")
    assert load_function("sub/mine.py:double", folder)(1) == "other"
    assert load_function("mine.py:double", folder)([1]) == [2]


def test_async_functions_are_awaited(folder: Path) -> None:
    later = load_function("mine.py:later", folder)
    assert call_function(later, None, x=[1]) == call_function(later, 5.0, x=[1]) == [2]


def test_async_functions_inside_a_running_loop(folder: Path) -> None:
    async def worker() -> object:
        return call_function(load_function("mine.py:later", folder), None, x=[1])

    assert asyncio.run(worker()) == [2]


def test_what_it_raises_is_told_with_the_users_line(folder: Path) -> None:
    for timeout in (None, 5.0):
        with pytest.raises(UserCodeError) as caught:
            call_function(load_function("mine.py:broken", folder), timeout, x=[0])
        assert caught.value.told == "ZeroDivisionError: division by zero (mine.py:13)"


def test_too_slow() -> None:
    with pytest.raises(UserCodeError) as caught:
        call_function(lambda: time.sleep(1), 0.02)
    assert caught.value.fault is Fault.SLOW


@pytest.mark.parametrize(
    ("name", "case"),
    [
        ("gone.py:f", "file"),
        ("mine.py:doubel", "near"),
        ("mine.py:zzzzzz", "far"),
        ("mine.txt:f", "python"),
        ("flowrl:overlnog", "builtin"),
    ],
)
def test_what_is_not_there(folder: Path, name: str, case: str, told: Told) -> None:
    """`check` tells the same as FR0211; this is what a file says that has changed since, or makes names as it runs."""
    span = place(folder, name)
    with pytest.raises(FlowError) as caught:
        load_function(name, folder, span)
    told(caught.value, "FR0820", case)


@pytest.mark.parametrize(
    ("text", "case"),
    [
        ("x = 1\nraise ValueError('no')\n", "raise"),
        ("import nowhere_at_all\n", "import"),
        ("def f(:\n", "syntax"),
        ("import sys\nsys.exit(3)\n", "exit"),
    ],
)
def test_a_file_that_raises(tmp_path: Path, text: str, case: str, told: Told) -> None:
    (tmp_path / "bad.py").write_text(text)
    span = place(tmp_path, "bad.py:f")
    with pytest.raises(FlowError) as caught:
        load_function("bad.py:f", tmp_path, span)
    told(caught.value, "FR0821", case)


def place(folder: Path, function: str) -> Span:
    """Where a flow names a reward's function. The compiler would refuse most of these names before a run loads them."""
    span = placed(folder).op("reward.score").spans["function"]
    flow = folder / "flow.yaml"
    flow.write_text(flow.read_text().replace(FUNCTION, f'"{function}"'))
    return structs.replace(span, end_column=span.column + len(function) + 2)
