"""The keeper of a sandbox: the process that the rank starts for one sample. It puts up the walls, runs the tests one by
one and says how each ended, a line of JSON a test; the code never has a way to that.

Behind walls it is two processes: this one, and the first of the new process namespace, with which all others end. It
imports the standard library only, and holds what the rank has told it and nothing else of the run.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from flowrl.backends.sandbox import system, walls
from flowrl.backends.sandbox.limits import Isolation, Limits
from flowrl.backends.sandbox.watch import NoWallsError, Seen, Watch


def main() -> None:
    """Read what the rank says from stdin, answer on stdout."""
    system.die_with_parent()
    asked = json.loads(sys.stdin.buffer.read())
    limits = Limits(**{**asked["limits"], "isolation": Isolation(asked["limits"]["isolation"])})
    run = partial(_run, limits, asked["python"], asked["prefix"], asked["code"], asked["tests"])
    try:
        if limits.isolation is Isolation.NAMESPACES:
            as_nobody = walls.enter()
            _in_first_process(partial(run, as_nobody))
        else:
            run(False)
    except (OSError, NoWallsError) as error:
        _say({"refused": f"{error}"})


def _in_first_process(run: Any) -> None:
    """Run in a child, the first process of the new namespace, and end with it; it ends when this one does."""
    child = os.fork()
    if not child:
        try:
            system.die_with_parent()
            run()
        except (OSError, NoWallsError) as error:
            _say({"refused": f"{error}"})
        finally:
            os._exit(0)

    def end(number: int, frame: object) -> None:
        os.kill(child, signal.SIGKILL)

    signal.signal(signal.SIGTERM, end)
    os.waitpid(child, 0)


def _run(limits: Limits, python: str, prefix: str, code: str, tests: Sequence[Mapping[str, str]], nobody: bool) -> None:
    behind_walls = limits.isolation is Isolation.NAMESPACES
    confine = partial(walls.confine, limits, as_nobody=nobody)
    if behind_walls:
        walls.build_root(limits, prefix)
        for seen in _seen(Watch(limits, "/tmp", python, confine), code, tests):
            _say(seen)
        return
    system.adopt_orphans()
    signal.signal(signal.SIGTERM, _leave)
    import shutil  # each sample would pay for them
    import tempfile

    folder = tempfile.mkdtemp(prefix="flowrl-sandbox-")
    try:
        for seen in _seen(Watch(limits, folder, python, confine), code, tests):
            _say(seen)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _leave(number: int, frame: object) -> None:
    raise SystemExit(1)


def _seen(watch: Watch, code: str, tests: Sequence[Mapping[str, str]]) -> Iterator[Mapping[str, object]]:
    for test in tests:
        seen: Seen = watch.run(code, test)
        output = base64.b64encode(seen.output).decode()
        yield {"status": seen.status, "said": seen.said, "ended": seen.ended, "output": output}


def _say(line: Mapping[str, object]) -> None:
    with suppress(BrokenPipeError):
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()
