"""The files that a plan was made from or will read, with their digests. Reads bytes; imports and executes nothing."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from flowrl.graph.graph import Graph
from flowrl.graph.params import DataParams, ScoreParams
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
    found: list[tuple[str, str]] = []
    for op in graph.ops:
        if isinstance(op.params, DataParams) and op.params.source:
            found.append(_data_file(op.params.source))
        if isinstance(op.params, ScoreParams) and op.params.function and not op.params.function.startswith("flowrl:"):
            found.append(("function", op.params.function.rpartition(":")[0]))
    for model in graph.models:
        config = f"{model.source}/config.json"
        if model.inline is None and not model.source.startswith("stages."):
            found.append(("model", config))
    return found


def _data_file(source: str) -> tuple[str, str]:
    path, colon, _ = source.rpartition(":")
    return ("function", path) if colon and path.endswith(".py") else ("data", source)
