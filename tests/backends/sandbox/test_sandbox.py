"""The sandbox: code comes to its limit or to a wall, nothing of it is left, and what is right passes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flowrl.backends.sandbox.limits import Ended, Isolation, Limits
from flowrl.backends.sandbox.probe import weaknesses
from flowrl.backends.sandbox.sandbox import Outcome, Sandbox, SandboxError, Test
from tests.backends.sandbox.hostile import COMES_TO, OUTSIDE

MIB = 1 << 20
TIGHT = Limits(seconds=0.7, memory_bytes=96 * MIB, disk_bytes=8 * MIB, files=512)


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """No process and no open file more than before."""
    files = set(os.listdir("/proc/self/fd"))
    yield
    assert not inside()
    assert len(os.listdir("/proc/self/fd")) <= len(files)


def inside() -> list[str]:
    """Processes of sandboxes: keepers and what runs under them, whoever their parents are now."""
    found: list[str] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and entry.name != str(os.getpid()):
            try:
                words = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if b"sandbox.keeper" in words or b"response.py" in words:
                found.append(entry.name)
    return found


def run(code: str, *tests: Test, limits: Limits = TIGHT) -> Outcome:
    return Sandbox(limits).run(code, tests or (Test(text=""),))


def asserts(*texts: str) -> tuple[Test, ...]:
    return tuple(Test(text=text) for text in texts)


def test_each_test_counts_for_itself() -> None:
    outcome = run("def add(a, b):\n    return a + b", *asserts("assert add(1, 2) == 3", "assert add(1, 2) == 4", "add"))
    assert outcome == Outcome((True, False, True))
    assert outcome.share == pytest.approx(2 / 3)


def test_input_and_output_are_compared_outside() -> None:
    double = "print(int(input()) * 2)"
    outcome = run(double, Test(input="4\n", output="8"), Test(input="5\n", output="11"), Test(input="x", output=""))
    assert outcome.passed == (True, False, False)
    seen = "import gc, os\nprint(any('5731' in str(o) for o in gc.get_objects()), os.listdir('/proc/self/fd'))"
    assert run(seen, Test(input="", output="5731")).passed == (False,)


@pytest.mark.parametrize("code", ["import sys; sys.exit(0)", "import os; os._exit(0)", "raise SystemExit", "x ="])
def test_a_program_that_ends_early_has_not_passed(code: str) -> None:
    assert run(code, *asserts("assert False")).passed == (False,)


@pytest.mark.parametrize("name", COMES_TO)
def test_code_comes_to_its_limit(name: str) -> None:
    code, ended = COMES_TO[name]
    assert run(code, *asserts("pass")) == Outcome((False,), ended)


def test_a_limit_of_one_test_leaves_the_others() -> None:
    tests = asserts("pass", "held = []\nwhile True:\n    held.append(bytearray(1 << 20))", "pass")
    assert run("", *tests) == Outcome((True, False, True), Ended.MEMORY)


def test_code_meets_walls(tmp_path: Path) -> None:
    """All attempts of OUTSIDE in one sandbox, each a test: it must raise OSError, and raises another error if not."""
    flow = tmp_path / "flow.yaml"
    flow.write_text("secret: 1")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        texts = [text.format(flow=str(flow), port=port) if "{" in text else text for text in OUTSIDE.values()]
        attempts = [
            f"try:\n{_indented(text)}\nexcept OSError:\n    pass\nelse:\n    raise ValueError" for text in texts
        ]
        outcome = run("", *asserts(*attempts), limits=TIGHT._replace(seconds=30))
    assert dict(zip(OUTSIDE, outcome.passed, strict=True)) == dict.fromkeys(OUTSIDE, True)


def _indented(text: str) -> str:
    return "\n".join("    " + line for line in text.splitlines())


def test_secrets_of_the_run_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOWRL_JUDGE_KEY", "secret-5731")
    code = (
        "import os, glob\nseen = str(dict(os.environ))\nfor path in glob.glob('/proc/*/environ'):\n    try:\n"
        "        seen += open(path).read()\n    except OSError:\n        pass\n"
    )
    assert run(code, *asserts("assert 'secret-5731' not in seen and 'PATH' in seen")).passed == (True,)


def test_daemons_do_not_outlive_their_test() -> None:
    daemon = (
        "import os, time\nif not os.fork():\n    os.setsid()\n    os.environ.clear()\n    if not os.fork():\n"
        "        time.sleep(600)"
    )
    assert run(daemon, *asserts("pass", "pass")).passed == (True, True)


def test_code_that_closes_everything_or_kills_everyone() -> None:
    assert run("import os\nos.closerange(0, 64)", *asserts("pass")).passed == (False,)
    assert run("import os\nfor n in (0, 1, 2): os.close(n)", *asserts("pass")).passed == (True,)
    kills = (
        "import os, signal\nfor pid in (1, os.getppid(), -1):\n    try:\n        os.kill(pid, signal.SIGKILL)\n"
        "    except OSError:\n        pass\n"
    )
    assert run(kills, *asserts("pass", "pass")).ended is None


def test_names_from_outside_do_not_help() -> None:
    """A word of success that was guessed, and one of another test."""
    forged = "import os\nos.write(5, b'0' * 32)\nos._exit(0)"
    assert run(forged, *asserts("assert False")).passed == (False,)


def test_a_rank_that_is_killed_takes_its_sandboxes_with_it() -> None:
    code = (
        "from flowrl.backends.sandbox.sandbox import Sandbox, Test\n"
        "from flowrl.backends.sandbox.limits import Limits\n"
        f"Sandbox(Limits(seconds=60, memory_bytes={96 * MIB})).run('import time; time.sleep(600)', [Test(text='')])\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], cwd=Path(__file__).parents[3]) as rank:
        _until(lambda: any(b"response.py" in _words(pid) for pid in inside()))
        rank.kill()
    _until(lambda: not inside())


def test_close_ends_what_runs() -> None:
    box = Sandbox(TIGHT._replace(seconds=60))
    thread = threading.Thread(target=lambda: box.run("import time; time.sleep(600)", asserts("")))
    thread.start()
    _until(lambda: any(b"response.py" in _words(pid) for pid in inside()))
    box.close()
    thread.join(20)
    assert not thread.is_alive()


def _words(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_the_walls_stand_here(tmp_path: Path) -> None:
    (tmp_path / "flow.yaml").write_text("secret: 1")
    generous = Limits(seconds=20, memory_bytes=256 * MIB)
    assert weaknesses(Sandbox(generous), tmp_path) == []


def test_the_probe_sees_missing_walls(tmp_path: Path) -> None:
    """`isolation: limits` has none, and the probe says so."""
    (tmp_path / "flow.yaml").write_text("secret: 1")
    open_box = Sandbox(Limits(seconds=20, memory_bytes=256 * MIB, isolation=Isolation.LIMITS))
    found = weaknesses(open_box, tmp_path)
    assert f"files of the host are read: {tmp_path}/flow.yaml" in found
    assert "processes of the host are seen" in found
    assert sorted(path.name for path in tmp_path.iterdir()) == ["flow.yaml"]


@pytest.mark.parametrize("name", ["fork bomb", "memory hog", "endless loop", "100 MB of output"])
def test_limits_hold_without_walls(name: str) -> None:
    code, ended = COMES_TO[name]
    limits = TIGHT._replace(isolation=Isolation.LIMITS)
    assert run(code, *asserts("pass"), limits=limits) == Outcome((False,), ended)


def test_nothing_is_left_without_walls(tmp_path: Path) -> None:
    limits = TIGHT._replace(isolation=Isolation.LIMITS)
    daemon = "import os, time\nif not os.fork():\n    os.setsid()\n    if not os.fork():\n        time.sleep(600)"
    here = "import os\nopen('left', 'w').close()\nprint(os.getcwd())"
    assert run(daemon, *asserts("pass"), limits=limits).passed == (True,)
    folder = Sandbox(limits).said(here, "").strip()
    assert folder
    assert not Path(folder).exists()


def test_a_program_that_cannot_be_started_is_no_score() -> None:
    box = Sandbox(TIGHT, python="/nowhere/python")
    with pytest.raises(SandboxError, match="No such file"):
        box.run("pass", asserts(""))
