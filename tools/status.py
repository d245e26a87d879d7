"""docs/status.md: what each kind of role, loss, estimator and data source can do now, from the tables that a run asks.

Takes the registries of backends and algorithms, the names of the language, and the list of what is not built; knows no
page but its own (tools/pages.py writes it).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from flowrl.algos.names import implemented
from flowrl.api.unbuilt import UNBUILT
from flowrl.backends.data_files import SOURCES
from flowrl.backends.registry import BACKENDS, PLANNED
from flowrl.graph.graph import Kind
from flowrl.graph.signatures import ESTIMATORS, LOSSES, OPS

HEAD = """# What runs today

Made from the tables that `flowrl run` asks before it starts. Whatever the language can say can be checked, planned and
simulated; what is named here as not built is refused by a run with FR0801, at its place in the flow. Which presets and
examples run is measured: `python benchmarks/flows.py` runs them all, small, and prints loss and reward of each step.
"""
RUNS, NOT = "runs", "not built"


def status() -> str:
    return "\n".join((HEAD, _backends(), _losses(), _estimators(), _names(), _data(), _unbuilt()))


def _backends() -> str:
    rows: list[Sequence[str]] = []
    for kind in Kind:
        built = sorted(name for known, name in BACKENDS if known is kind)
        planned = sorted(set(PLANNED.get(kind, ())) - set(built))
        ops = ", ".join(sorted({f"`{each.method}`" for each in OPS if each.kind is kind and not each.inner}))
        rows.append((f"{kind}", ops or "`data.NAME`", _list(built), _list(planned)))
    return "## Kinds of role and their backends\n\n" + _table(("kind", "ops", "runs on", "not built"), rows)


def _losses() -> str:
    known = implemented()["loss"]
    rows = (
        (f"`{name}`", each.head, _list(each.reads), "pairs" if each.whole_groups else "tokens", _state(name in known))
        for name, each in LOSSES.items()
    )
    return "## Losses\n\n" + _table(("loss", "head", "reads", "is of", "state"), rows)


def _estimators() -> str:
    known = implemented()["estimator"]
    rows = (
        (f"`{name}`", _list(each.reads), _list(each.writes), each.normalize, _state(name in known))
        for name, each in ESTIMATORS.items()
    )
    return "## Estimators\n\n" + _table(("estimator", "reads", "writes", "`normalize`", "state"), rows)


def _names() -> str:
    words = {"aggregate": "`update.aggregate`", "correction": "`update.correction`", "kl": "forms of a KL"}
    rows = ((words[key], _list(sorted(names))) for key, names in implemented().items() if key in words)
    return "## Other names\n\n" + _table(("of", "run"), rows)


def _data() -> str:
    rows = ((what, needs or "nothing more") for what, needs in SOURCES.items())
    return "## Data sources\n\n" + _table(("`source`", "needs"), rows)


def _unbuilt() -> str:
    told = "## Said by the language, not built\n\n"
    return told + _table(("what", "what runs"), ((row.what, row.known) for row in UNBUILT))


def _state(runs: bool) -> str:
    return RUNS if runs else NOT


def _list(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "–"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)
