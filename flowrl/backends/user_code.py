"""Functions that the user wrote: `FILE.py:NAME` in the flow's folder, or `flowrl:NAME` for those that ship with FlowRL.

Takes the name as the flow spells it, gives the function. A file is run once per process, however many roles name it.
Only the runtime comes here: checking and planning read the file's syntax and run nothing.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import threading
import traceback
from collections.abc import Callable
from enum import StrEnum
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any

from flowrl.diag.diagnostic import Diagnostic, FlowError, InternalError, diagnose
from flowrl.diag.near import near_names
from flowrl.diag.span import Span

BUILTIN_PREFIX = "flowrl:"
BUILTINS = "flowrl.backends.rewards.builtin"


class Fault(StrEnum):
    """What went wrong in a user's function."""

    RAISED = "raised"
    SLOW = "slow"
    ENDED = "ended"
    """Its process has ended."""
    MEMORY = "memory"
    """Its process held more than its share."""


class UserCodeError(Exception):
    """A user's function failed; `told` says how in one line, `printed` what it printed last. The caller names role and
    row."""

    def __init__(self, told: str, fault: Fault = Fault.RAISED, printed: str = "") -> None:
        super().__init__(told)
        self.told = told
        self.fault = fault
        self.printed = printed


def load_function(name: str, folder: Path, span: Span | None = None) -> Callable[..., Any]:
    """The function that `name` stands for. Raises FlowError FR0820 if there is none, FR0821 if its file raises."""
    place, _, attribute = name.rpartition(":")
    module = importlib.import_module(BUILTINS) if name.startswith(BUILTIN_PREFIX) else _load(place, folder, name, span)
    function = getattr(module, attribute, None)
    if callable(function) and not attribute.startswith("_"):
        return function
    known = [
        n for n, value in vars(module).items() if inspect.isfunction(value) and value.__module__ == module.__name__
    ]
    near = near_names(attribute, known)
    listed = f"one with a near name: `{near[0]}`" if near else f"its functions: {', '.join(known) or 'none'}"
    raise FlowError(_not_found(name, f"{place} has no function `{attribute}`; {listed}", span))


def call_function(function: Callable[..., Any], timeout_seconds: float | None, **arguments: object) -> Any:
    """Call the function, awaiting it if it is async. Raises UserCodeError if it raises or takes too long.

    A plain function that takes too long is left behind in its thread: Python has no way to end it. Rewards run in a
    process of their own (user_process), which can be ended.
    """
    if timeout_seconds is None and not _in_event_loop():
        return _call(function, arguments)
    outcome: list[Any] = []
    failure: list[UserCodeError] = []

    def work() -> None:
        try:
            outcome.append(_call(function, arguments))
        except UserCodeError as error:
            failure.append(error)

    thread = threading.Thread(target=work, daemon=True, name="user function")
    thread.start()
    thread.join(timeout_seconds)
    if thread.is_alive():
        raise UserCodeError(f"not done after {timeout_seconds:g} s", Fault.SLOW)
    if failure:
        raise failure[0]
    return outcome[0]


def told(error: BaseException, running: Path | None = None) -> str:
    """`ZeroDivisionError: division by zero (rewards.py:12)`: the exception and the user's line that it came from.

    `running` is a file that is being run for the first time.
    """
    last = "".join(traceback.format_exception_only(error)).strip().splitlines()[-1]
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f"{last} ({Path(error.filename).name}:{error.lineno})"
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if Path(f.filename) in _files or Path(f.filename) == running]
    return f"{last} ({Path(own[-1].filename).name}:{own[-1].lineno})" if own else last


_files: dict[Path, ModuleType] = {}
"""Files that this process has run."""


def _call(function: Callable[..., Any], arguments: dict[str, object]) -> Any:
    try:
        value = function(**arguments)
        return _awaited(value) if inspect.isawaitable(value) else value
    except (Exception, SystemExit) as error:  # not what interrupts the run
        raise UserCodeError(told(error)) from error


def _in_event_loop() -> bool:
    """Whether this thread already runs a loop (an async worker): another one cannot start in it."""
    if "asyncio" not in sys.modules:  # which takes as long to import as all else here
        return False
    import asyncio

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _awaited(value: Any) -> Any:
    import asyncio

    async def wait() -> Any:
        return await value

    return asyncio.run(wait())


def _load(place: str, folder: Path, name: str, span: Span | None) -> ModuleType:
    path = (folder / place).resolve()
    if not place.endswith(".py"):
        raise FlowError(_not_found(name, "the part before `:` is no Python file", span))
    if path not in _files:
        if not path.is_file():
            raise FlowError(_not_found(name, f"there is no file {path}", span))
        _files[path] = _run_file(path, place, span)
    return _files[path]


def _run_file(path: Path, place: str, span: Span | None) -> ModuleType:
    # Files of one name in two folders must not meet, so the module's name holds the path; its stem keeps tracebacks,
    # pickles and multiprocessing readable.
    module_name = f"flowrl_user_{path.stem}_{sha256(str(path).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise InternalError(f"Python has no loader for {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # so that the file may import its neighbours, also later
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # not what interrupts the run
        del sys.modules[module_name]
        raise FlowError(diagnose("FR0821", span, file=place, error=told(error, path))) from error
    return module


def _not_found(name: str, reason: str, span: Span | None) -> Diagnostic:
    return diagnose("FR0820", span, function=name, reason=reason)
