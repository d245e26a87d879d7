"""The installed packages of backends against the versions that FlowRL works with. Imports none of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version

from flowrl.diag.diagnostic import Diagnostic, diagnose
from flowrl.graph.graph import Graph
from flowrl.machine.engines import WORKS_WITH

Installed = Callable[[str], str | None]


def version_faults(graph: Graph, installed: Installed | None = None) -> Iterator[Diagnostic]:
    """FR0440 for each role whose backend's package is installed in another version. A package that is missing is told
    when its backend starts."""
    asked = installed or _installed
    for role in graph.roles:
        works = WORKS_WITH.get(role.backend or "")
        found = None if works is None else next(((n, v) for n in works.packages if (v := asked(n)) is not None), None)
        if works is None or found is None or found[1].partition("+")[0] == works.version:
            continue
        package, there = found
        span = role.spans.get("backend") or role.span
        yield diagnose("FR0440", span, package=package, found=there, wanted=works.version, reason=works.reason)


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
