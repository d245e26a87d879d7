import asyncio
import time
from pathlib import Path

import pytest

from flowrl.backends.user_code import UserCodeError, call_function, load_function
from flowrl.diag.diagnostic import FlowError

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
    assert caught.value.timed_out


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("gone.py:f", "there is no file"),
        ("mine.py:doubel", "near name: `double`"),
        ("mine.py:zzzzzz", "its functions: double, later, broken, count"),
        ("mine.txt:f", "no Python file"),
        ("flowrl:overlnog", "near name: `overlong`"),
    ],
)
def test_what_is_not_there(folder: Path, name: str, words: str) -> None:
    with pytest.raises(FlowError) as caught:
        load_function(name, folder)
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code == "FR0820"
    assert words in diagnostic.notes[0]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("x = 1\nraise ValueError('no')\n", "ValueError: no (bad.py:2)"),
        ("import nowhere_at_all\n", "ModuleNotFoundError: No module named 'nowhere_at_all' (bad.py:1)"),
        ("def f(:\n", "SyntaxError: invalid syntax (bad.py:1)"),
        ("import sys\nsys.exit(3)\n", "SystemExit: 3 (bad.py:2)"),
    ],
)
def test_a_file_that_raises(tmp_path: Path, text: str, line: str) -> None:
    (tmp_path / "bad.py").write_text(text)
    with pytest.raises(FlowError) as caught:
        load_function("bad.py:f", tmp_path)
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code == "FR0821"
    assert diagnostic.notes[0] == f"`bad.py` raised {line}"
