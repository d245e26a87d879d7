"""`env:` → what makes an environment: `FILE.py:CLASS` of the flow's folder, `flowrl:NAME`, or `LIBRARY:ID`.

Libraries are imported when a flow names them, in the process where their environments play. A name that nothing stands
behind is told before the first step: FR0860 a package that is not installed, FR0861 a name that it does not know.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from flowrl.backends.user_code import load_function
from flowrl.diag.diagnostic import FlowError, diagnose
from flowrl.diag.near import near_names
from flowrl.diag.span import Span

OWN: dict[str, str] = {
    "bandit": "flowrl.backends.envs.bandit:Bandit",
    "sokoban": "flowrl.backends.envs.sokoban:Sokoban",
    "frozen_lake": "flowrl.backends.envs.frozen_lake:FrozenLake",
}
"""Those that ship with FlowRL, `flowrl:NAME`."""

LIBRARIES: dict[str, tuple[str, str]] = {
    "gymnasium": ("gymnasium", "flowrl.backends.envs.of_gymnasium"),
    "gem": ("gem", "flowrl.backends.envs.of_gem"),
    "reasoning_gym": ("reasoning_gym", "flowrl.backends.envs.of_reasoning_gym"),
}
"""Library → the package that it needs, and our adapter: `maker(id)` gives what makes it and `names()` what there is."""


def is_own(name: str) -> bool:
    return name.startswith("flowrl:")


def maker_of(name: str, folder: Path, span: Span | None = None) -> Callable[..., Any]:
    """What makes the environment `name` of its arguments. Raises FlowError FR0820, FR0821, FR0860 or FR0861."""
    library, _, id = name.partition(":")
    if library == "flowrl":
        return _own(name, id, span)
    if library not in LIBRARIES:
        if name.rpartition(":")[0].endswith(".py"):
            return load_function(name, folder, span)
        raise _unknown(name, library, (*LIBRARIES, "flowrl"), span)
    package, adapter = LIBRARIES[library]
    if find_spec(package) is None:
        raise FlowError(diagnose("FR0860", span, env=name, package=package))
    module = importlib.import_module(adapter)
    known = tuple(module.names())
    if id not in known:
        raise _unknown(name, id, known, span)
    return module.maker(id)


def _own(name: str, id: str, span: Span | None) -> Callable[..., Any]:
    if id not in OWN:
        raise _unknown(name, id, OWN, span)
    module, _, attribute = OWN[id].partition(":")
    return getattr(importlib.import_module(module), attribute)


def _unknown(name: str, wanted: str, known: Iterable[str], span: Span | None) -> FlowError:
    names = list(known)
    near = near_names(wanted, names)[:3] or sorted(names)[:8]
    return FlowError(diagnose("FR0861", span, env=name, known=", ".join(f"`{each}`" for each in near)))
