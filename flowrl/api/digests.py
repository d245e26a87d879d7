"""The digests of a plan, from what it is made of; and again later, to ask whether they still hold."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec.structs import replace

from flowrl import __version__
from flowrl.compiler.lower.placement import lower_placement
from flowrl.compiler.lower.run import lower_gate, lower_stage_run
from flowrl.graph.graph import Graph
from flowrl.graph.text import graph_digest
from flowrl.machine.profile import Profile
from flowrl.placement.request import PlacementRequest
from flowrl.plan.digests import catalogue_digest, digest, meaning
from flowrl.plan.plan import Source
from flowrl.spec.flow import FlowSpec


def flow_digest(spec: FlowSpec, graphs: Sequence[Graph]) -> str:
    """Of what every stage computes, how long it runs, and what it asks of placement."""
    return digest([_stage(spec, index, graph) for index, graph in enumerate(graphs)])


def _stage(spec: FlowSpec, index: int, graph: Graph) -> Any:
    run, gate = lower_stage_run(spec, index), lower_gate(spec, index)
    return spec.stages[index].name, graph_digest(graph), run, gate, asked(lower_placement(spec, index))


def asked(request: PlacementRequest) -> dict[str, Any]:
    """What a request asks, without where it is written and without the profile, which has a digest of its own."""
    bare = {id: replace(assumption, origin="") for id, assumption in request.assume.items()}
    plain = meaning(replace(request, origins={}, assume=bare))
    return {name: value for name, value in plain.items() if name not in ("origins", "profile")}


def profile_digest(profile: Profile | None) -> str:
    """Of the catalogues, and of the profile where it is not FlowRL's own."""
    return catalogue_digest() if profile is None else digest((catalogue_digest(), profile))


def code_digest(sources: Iterable[Source]) -> str:
    """Of FlowRL's version and the files with the user's functions."""
    return digest((__version__, [source for source in sources if source.role == "function"]))
