"""Whoever asks only whether a flow fits gets the answer that the whole search gives."""

from __future__ import annotations

from functools import lru_cache

import pytest

from flowrl.compiler.lower.cluster import lower_cluster
from flowrl.compiler.lower.graph import lower_stage
from flowrl.compiler.lower.placement import lower_placement
from flowrl.compiler.passes.pipeline import run_passes
from flowrl.diag.diagnostic import FlowError
from flowrl.placement.place import place
from flowrl.placement.shapes import shapes_of
from flowrl.spec import loads
from flowrl.spec.presets import preset_names
from tests.placement.plans import Case
from tests.spec.preset_flows import EXAMPLES, minimal

CLUSTERS = ("1x1xA100-40G", "1x2xH100-80G", "1x4xH100-80G")
"""The small ones fit few flows, the large one most."""
PLACEMENTS = ("", "placement: disaggregated\n")


@lru_cache(maxsize=1)
def case_of(preset: str, placement: str) -> Case:
    spec = loads(minimal(preset) + placement, folder=EXAMPLES)
    graph, _ = run_passes(lower_stage(spec, 0))
    cluster = lower_cluster(CLUSTERS[0])
    return Case((preset, placement), graph, cluster, lower_placement(spec, 0), shapes_of(graph, EXAMPLES))


def verdict(here: Case, cluster: str, *, any_that_fits: bool) -> object:
    """Whether it fits, or the codes of a request that no sizes can meet."""
    try:
        found = place(here.graph, lower_cluster(cluster), here.request, here.shapes, any_that_fits=any_that_fits)
    except FlowError as error:
        return [each.code for each in error.diagnostics]
    return found.fits


@pytest.mark.parametrize("preset", preset_names())
def test_the_verdict_is_that_of_the_whole_search(preset: str) -> None:
    for placement in PLACEMENTS:
        here = case_of(preset, placement)
        for cluster in CLUSTERS:
            assert verdict(here, cluster, any_that_fits=True) == verdict(here, cluster, any_that_fits=False)


def test_the_clusters_tell_flows_apart() -> None:
    found = {str(verdict(case_of("ppo", ""), cluster, any_that_fits=True)) for cluster in CLUSTERS}
    assert {"True", "False"} <= found
