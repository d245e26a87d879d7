"""The files that a plan was made from or will read, with their digests. Reads bytes; imports and executes nothing."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from flowrl.graph.graph import Graph
from flowrl.graph.params import AskParams, CallParams, DataParams, EnvParams, FilterParams, OpParams, ScoreParams
from flowrl.plan.digests import digest_file
from flowrl.plan.plan import Source
from flowrl.spec.flow import FlowSpec


def sources_of(spec: FlowSpec, graphs: Iterable[Graph]) -> tuple[Source, ...]:
    """Flow, included, data, function and model files, by role and path; each once."""
    folder = Path(spec.folder)
    found: dict[tuple[str, str], Source] = {}
    for role, path in (*_flow_files(spec), *(pair for graph in graphs for pair in _graph_files(graph))):
        found.setdefault((role, path), Source(path=path, role=role, digest=digest_file(folder / path)))
    return tuple(found[key] for key in sorted(found))


def _flow_files(spec: FlowSpec) -> list[tuple[str, str]]:
    own = [("flow", Path(spec.file).name)] if (Path(spec.folder) / Path(spec.file).name).is_file() else []
    return own + [("include", os.path.relpath(file, spec.folder)) for file in spec.includes]


def _graph_files(graph: Graph) -> list[tuple[str, str]]:
    found = [pair for op in graph.ops for pair in _op_files(op.params)]
    for model in graph.models:
        config = f"{model.source}/config.json"
        if model.inline is None and not model.source.startswith("stages."):
            found.append(("model", config))
    return found


def _op_files(params: OpParams | None) -> Iterator[tuple[str, str]]:
    """Data, the user's functions and environments (`FILE.py:NAME`), and templates."""
    if isinstance(params, DataParams):
        yield from [_data_file(params.source)] if params.source else []
        yield from [("template", params.template)] if params.template is not None else []
        for source in params.sources.values():
            yield from _op_files(source)
    functions: list[str | None] = []
    if isinstance(params, ScoreParams | FilterParams | CallParams):
        functions.append(params.function)
    if isinstance(params, EnvParams):
        functions.append(params.env)
    if isinstance(params, AskParams):
        yield "template", params.template
    for function in functions:
        file = "" if function is None else function.rpartition(":")[0]
        if file.endswith(".py"):
            yield "function", file


def _data_file(source: str) -> tuple[str, str]:
    path, colon, _ = source.rpartition(":")
    return ("function", path) if colon and path.endswith(".py") else ("data", source)
