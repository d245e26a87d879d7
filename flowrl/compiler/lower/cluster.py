"""The cluster section → Cluster: a shorthand, or a mapping of nodes. Figures come from the device catalogue.

Takes a document of the spec and where its parts stand; gives a Cluster.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from flowrl.diag.span import Span
from flowrl.machine.cluster import Cluster, NodeGroup
from flowrl.machine.devices import node_group
from flowrl.machine.shorthand import check_size, device_card, parse_cluster
from flowrl.spec.flow import FlowSpec
from flowrl.spec.schema import ClusterDocument, LinksDocument

SpanOf = Callable[..., Span | None]


def lower_cluster(cluster: str | ClusterDocument, *, name: str = "cluster", span_of: SpanOf | None = None) -> Cluster:
    """The cluster that a flow, a file or the flag `--cluster` describes.

    `name` is what a mapping is called in the plan: the file it came from. `span_of("groups", NAME, "gpu")` says where
    a value stands; without it a fault is told as one of the flag. Raises FlowError FR0510 to FR0512 and FR0031.
    """
    if isinstance(cluster, str):
        return parse_cluster(cluster, span_of() if span_of is not None else None)
    span_of = span_of or _nowhere
    entries = cluster.groups.values()
    flat = cluster.nodes * (cluster.gpus_per_node or 0)
    check_size(flat + sum(entry.nodes * entry.gpus_per_node for entry in entries), span_of())
    if cluster.gpu is not None and cluster.gpus_per_node is not None:
        group = _group("nodes", cluster.gpu, cluster.nodes, cluster.gpus_per_node, span_of("gpu"))
        text = f"{cluster.nodes}x{cluster.gpus_per_node}x{cluster.gpu}"
        priced = replace(group, price_per_gpu_hour=cluster.price_per_gpu_hour)
        return Cluster(name=text, groups=(_linked(priced, cluster.links),))
    groups: list[NodeGroup] = []
    for key, entry in cluster.groups.items():
        group = _group(key, entry.gpu, entry.nodes, entry.gpus_per_node, span_of("groups", key, "gpu"))
        price = cluster.price_per_gpu_hour if entry.price_per_gpu_hour is None else entry.price_per_gpu_hour
        groups.append(_linked(replace(group, price_per_gpu_hour=price), cluster.links))
    return Cluster(name=name, groups=tuple(groups))


def lower_stage_cluster(spec: FlowSpec, index: int) -> Cluster:
    """The cluster of stage `index` of a flow."""

    def span_of(*path: str) -> Span | None:
        return spec.span(*spec.stage_path(index, "cluster", *path))

    return lower_cluster(spec.stages[index].cluster, name=spec.file, span_of=span_of)


def _nowhere(*path: str) -> None:
    return None


def _group(name: str, gpu: str, nodes: int, per_node: int, span: Span | None) -> NodeGroup:
    return node_group(device_card(gpu, span, gpu), name, nodes, per_node)


def _linked(group: NodeGroup, links: LinksDocument) -> NodeGroup:
    inside, between = links.node_bytes_per_second, links.network_bytes_per_second
    device = group.device if inside is None else replace(group.device, link_bytes_per_second=inside)
    network = group.network_bytes_per_second if between is None else between
    return replace(group, device=device, network_bytes_per_second=network)
