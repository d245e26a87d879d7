"""What a search says that it searched: of more than 16 devices of a group not every size of a pool is tried."""

from __future__ import annotations

import pytest

from flowrl.compiler.lower.cluster import lower_cluster
from flowrl.placement.search.sizes import sizes_of, space_of


@pytest.mark.parametrize(
    ("cluster", "said", "is_every"),
    [
        ("8xH100-80G", "all sizes", True),
        ("16xH100-80G", "all sizes", True),
        ("64xH20", "sizes in whole nodes and parts of one", False),
        ("4096xH100-80G", "sizes thinned", False),
    ],
)
def test_all_sizes_are_said_only_where_all_are_tried(cluster: str, said: str, is_every: bool) -> None:
    groups = lower_cluster(cluster).groups
    assert space_of(groups) == said
    every = range(1, groups[0].nodes * groups[0].devices_per_node + 1)
    assert (sizes_of(groups[0]) == tuple(every)) == is_every
