"""A function's process: what it does to itself stays there, and it is gone when its rank is."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from array import array
from collections.abc import Iterator
from pathlib import Path

import pytest

from flowrl.backends.user_code import Fault, UserCodeError
from flowrl.backends.user_process.messages import Packed
from flowrl.backends.user_process.process import Limits, UserProcess, share_of_memory
from flowrl.backends.user_process.tree import marked
from tests.backends.user_process.hostile import HOSTILE

MIB = 1 << 20
ROWS = {"response": Packed("", values=["a", "bb"])}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "hostile.py").write_text(HOSTILE)
    return tmp_path


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """No process and no open file more than before."""
    files, others = set(os.listdir("/proc/self/fd")), set(children(os.getpid()))
    yield
    assert set(children(os.getpid())) <= others
    assert len(os.listdir("/proc/self/fd")) <= len(files)


def children(parent: int) -> list[int]:
    """Direct children, zombies too."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                after = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(after[1]) == parent:
                found.append(int(entry.name))
    return found


def process(folder: Path, name: str, mib: int = 256) -> UserProcess:
    return UserProcess(f"hostile.py:{name}", folder, None, Limits(mib * MIB))


def call(of: UserProcess, timeout: float | None = None, **args: object) -> list[float]:
    return list(array("d", of.call(timeout, 2, ROWS, args).scores))


def fails(folder: Path, name: str, timeout: float | None = None, mib: int = 256) -> UserCodeError:
    of = process(folder, name, mib)
    try:
        with pytest.raises(UserCodeError) as caught:
            call(of, timeout)
        return caught.value
    finally:
        of.close()


def test_it_stays_between_calls_and_is_another_process(folder: Path) -> None:
    of = process(folder, "pid")
    first, second = call(of)[0], call(of)[0]
    of.close()
    assert first == second != os.getpid()
    assert of.restarts == 0


def test_a_call_costs_less_than_two_milliseconds(folder: Path) -> None:
    of = process(folder, "fine")
    seconds: list[float] = []
    for _ in range(100):
        began = time.perf_counter()
        call(of)
        seconds.append(time.perf_counter() - began)
    of.close()
    assert min(seconds) < 0.002


@pytest.mark.parametrize("name", ["forever", "deaf"])
def test_one_that_hangs_is_ended(folder: Path, name: str) -> None:
    began = time.monotonic()
    error = fails(folder, name, timeout=0.2)
    assert error.fault is Fault.SLOW
    assert time.monotonic() - began < 30


@pytest.mark.parametrize(
    ("name", "told"),
    [("leaves", "ended its process with status 3"), ("closes", "status 1"), ("writes", "socket")],
)
def test_one_that_ends_its_process(folder: Path, name: str, told: str) -> None:
    error = fails(folder, name)
    assert error.fault is Fault.ENDED
    assert told in error.told


def test_a_segfault_is_told_with_the_line_and_what_was_printed(folder: Path) -> None:
    of = process(folder, "segfault")
    with pytest.raises(UserCodeError) as caught:
        of.call(None, 1, {"response": Packed("", values=["bad"])}, {})
    assert "SIGSEGV" in caught.value.told
    assert "about to read nothing" in caught.value.printed
    assert "hostile.py" in caught.value.printed
    assert call(of) == [1.0, 1.0]
    assert of.restarts == 1
    of.close()


def test_one_that_takes_all_memory_is_ended_at_its_share(folder: Path) -> None:
    error = fails(folder, "hog", timeout=60, mib=128)
    assert error.fault is Fault.MEMORY
    assert error.told == "held more than its share of 0.1 GiB"


def test_one_that_leaks_is_started_again_between_calls(folder: Path) -> None:
    of = process(folder, "leak")  # 24 MiB a call; half of its share are 128
    counts = [call(of)[0] for _ in range(20)]
    of.close()
    assert counts[:5] == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert max(counts) <= 6
    assert of.restarts >= 3


def test_what_it_prints_is_no_answer_and_the_last_of_it_is_kept(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    error = fails(folder, "loud")
    assert error.told.startswith("RuntimeError: too loud (hostile.py:")
    assert error.printed.splitlines()[-1] == "last words"
    assert len(error.printed) <= 4096
    assert len(capsys.readouterr().err) < 1 << 17  # of 100 MiB


def test_what_it_starts_ends_with_it(folder: Path) -> None:
    of = process(folder, "forks")
    call(of)
    mark = of._process._mark  # pyright: ignore
    assert len(marked(mark)) == 4
    of.close()
    assert marked(mark) == []


def test_numbers_that_are_none(folder: Path) -> None:
    of = process(folder, "odd")
    scored = of.call(None, 2, ROWS, {})
    of.close()
    assert scored.odd == (0, "a Odd")


def test_threads_take_turns(folder: Path) -> None:
    of = process(folder, "fine")
    found: list[list[float]] = []
    threads = [threading.Thread(target=lambda: found.extend(call(of) for _ in range(20))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    of.close()
    assert found == [[1.0, 2.0]] * 80


def test_an_interrupt_ends_the_process_and_the_next_call_has_a_new_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = process(folder, "fine")
    assert of._process is not None  # pyright: ignore

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(of._process, "_wait", interrupted)  # pyright: ignore
    with pytest.raises(KeyboardInterrupt):
        call(of)
    assert call(of) == [1.0, 2.0]
    of.close()


@pytest.mark.parametrize("name", ["fine", "forever", "deaf"])
def test_it_ends_with_its_rank(folder: Path, name: str) -> None:
    """A rank that is killed leaves no process, whether the function runs or waits."""
    script = (
        "import sys, threading; from pathlib import Path\n"
        "from tests.backends.user_process.test_process import call, process\n"
        f"of = process(Path(sys.argv[1]), {name!r})\n"
        "print(of._process._mark, flush=True)\n"
        "call(of)\n"
        "sys.stdin.read()\n"
    )
    rank = subprocess.Popen(
        [sys.executable, "-c", script, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert rank.stdin is not None
    assert rank.stdout is not None
    mark = rank.stdout.readline().strip()
    time.sleep(0.2)
    assert marked(mark)
    rank.kill()
    rank.wait()
    rank.stdin.close()
    rank.stdout.close()
    deadline = time.monotonic() + 10
    while marked(mark) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert marked(mark) == []


def test_a_breakpoint_stops_at_the_terminal_and_not_the_clock(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = os.openpty()
    monkeypatch.setattr("flowrl.backends.user_process.process._terminal", lambda: os.dup(theirs))
    of = process(folder, "stops")
    said: list[bytes] = []

    def debug() -> None:
        while b"(Pdb)" not in b"".join(said):
            said.append(os.read(ours, 4096))
        time.sleep(0.6)  # longer than the call may take
        os.write(ours, b"secret = secret + 1\n")
        os.write(ours, b"c\n")

    thread = threading.Thread(target=debug)
    thread.start()
    assert call(of, timeout=0.5) == [42.0, 42.0]
    thread.join()
    of.close()
    os.close(ours)
    os.close(theirs)


def test_without_a_terminal_a_breakpoint_says_so(folder: Path) -> None:
    assert "needs the terminal" in fails(folder, "stops").told


def test_the_share_of_a_rank() -> None:
    assert share_of_memory(1) >= 4 * share_of_memory(10**6) or share_of_memory(1) == 1 << 30
    assert share_of_memory(10**6) == 1 << 30
