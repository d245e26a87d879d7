"""Clusters written short: `16xH100-80G`, `4x8xH20`, `3xcpu`, `local`. Takes the text, gives a Cluster.

`NxD` is N devices in usual nodes (8 to a node for the catalogue's GPUs): N up to a node's size is one node of N,
above it N must fill whole nodes, because which devices share a node decides what fits and how fast it is. `AxBxD` is
A nodes of B devices and takes any B. `Nxcpu` is N slots of one CPU host.
"""

from __future__ import annotations

import re
from typing import Any

from msgspec.structs import replace

from flowrl.diag.diagnostic import FlowError, Help, Respelt, diagnose
from flowrl.diag.near import near_names
from flowrl.diag.span import Span
from flowrl.machine.cluster import Cluster, NodeGroup
from flowrl.machine.devices import ALIASES, DEVICE_CARDS, DeviceCard, node_group
from flowrl.machine.local import local_cluster

_SHORTHAND = re.compile(r"(?:(?P<nodes>\d+)x)?(?P<count>\d+)x(?P<device>[A-Za-z][\w.-]*)")
_LARGEST = 1_000_000
MOST_DOUBLINGS = 4
MOST_DEVICES = 4096
"""Of a larger cluster that is proposed."""
MOST_PLANNED = 16_384


def parse_cluster(text: str, span: Span | None = None) -> Cluster:
    """The cluster that `text` names. `span` is where the user wrote it; None makes one for the flag `--cluster`.

    Raises FlowError FR0510 (not a shorthand), FR0511 (unknown device), FR0512 (does not fill whole nodes), FR0031.
    """
    span = span or Span("--cluster", 1, 1, 1, len(text) + 1)
    text = text.strip()
    if text == "local":
        return local_cluster()
    match = _SHORTHAND.fullmatch(text)
    if match is None or not 0 < int(match["count"]) <= _LARGEST or not 0 < int(match["nodes"] or 1) <= _LARGEST:
        raise FlowError(diagnose("FR0510", span, text=text))
    count, name = int(match["count"]), match["device"]
    card = device_card(name, span, text)
    if match["nodes"] is not None:
        nodes, per_node = int(match["nodes"]), count
    else:
        nodes, per_node = _usual_nodes(count, name, card, span)
    check_size(nodes * per_node, span)
    return Cluster(name=text, groups=(node_group(card, "nodes", nodes, per_node),))


def check_size(devices: int, span: Span | None) -> None:
    """Raises FlowError FR0031 for more devices than can be planned."""
    if devices > MOST_PLANNED:
        raise FlowError(diagnose("FR0031", span, devices=devices, limit=MOST_PLANNED))


def device_card(name: str, span: Span | None, written: str) -> DeviceCard:
    """The catalogue's entry, by name or alias. Raises FlowError FR0511 with near names and the corrected `written`."""
    known_as = ALIASES.get(name, name)
    if known_as in DEVICE_CARDS:
        return DEVICE_CARDS[known_as]
    sizes = [known for known in DEVICE_CARDS if known.lower().startswith(f"{name.lower()}-")]
    found = sizes or near_names(name, list(DEVICE_CARDS))[:1]
    fixed = " or ".join(f"`{written.replace(name, each)}`" for each in found)
    text = f"a device with a near name exists: {fixed}"
    helps = [Respelt(text=text, span=span, old=name, new=found[0])] if len(found) == 1 else []
    helps = helps or ([Help(text=text)] if found else [])
    known = ", ".join(DEVICE_CARDS)
    raise FlowError(diagnose("FR0511", span, name=name, known=known, helps=helps))


def _usual_nodes(count: int, name: str, card: DeviceCard, span: Span) -> tuple[int, int]:
    size = card.node_devices
    if card.device.is_cpu or count <= size:
        return 1, count
    if count % size == 0:
        return count // size, size
    below, above = count // size * size, -(-count // size) * size
    text = f"write `{below}x{name}` or `{above}x{name}`, or say the nodes: `1x{count}x{name}` is one node of {count}"
    facts: dict[str, Any] = {"count": count, "size": size, "rest": count % size}
    raise FlowError(diagnose("FR0512", span, name=name, helps=(Help(text=text, span=span),), **facts))


def larger_clusters(cluster: Cluster) -> list[tuple[str, Cluster]]:
    """Twice, four times, … the devices of a cluster of one kind of GPU, and how it is written: first a usual node is
    filled, then nodes are added."""
    if len(cluster.groups) != 1 or cluster.groups[0].device.is_cpu:
        return []
    (group,) = cluster.groups
    nodes, each = group.nodes, group.devices_per_node
    card = DEVICE_CARDS.get(group.device.name)
    usual = each if card is None else card.node_devices
    found: list[tuple[str, Cluster]] = []
    for _ in range(MOST_DOUBLINGS):
        nodes, each = (nodes, min(2 * each, usual)) if nodes == 1 and each < usual else (2 * nodes, each)
        if nodes * each > MOST_DEVICES:
            break
        found.append(resized(cluster, group, nodes, each))
    return found


def larger_by(cluster: Cluster, group: NodeGroup) -> list[tuple[str, Cluster]]:
    """Ever larger forms of a cluster, and how each is written: a single node of GPUs is filled to its usual size, by
    twice as many, then nodes are added to `group`, one by one, up to 16 times as many."""
    if group.device.is_cpu:
        return []
    card = DEVICE_CARDS.get(group.device.name)
    each, usual = group.devices_per_node, group.devices_per_node if card is None else card.node_devices
    found: list[tuple[str, Cluster]] = []
    while group.nodes == 1 and len(cluster.groups) == 1 and each < usual:
        each = min(2 * each, usual)
        found.append(resized(cluster, group, 1, each))
    most = min(2**MOST_DOUBLINGS * group.nodes, MOST_DEVICES // each)
    return found + [resized(cluster, group, nodes, each) for nodes in range(group.nodes + 1, most + 1)]


def roomier(cluster: Cluster) -> list[tuple[str, Cluster]]:
    """The same nodes with devices of more memory that are no slower, of the catalogue and the same maker, least memory
    first; nothing for a cluster that no shorthand names."""
    if len(cluster.groups) != 1 or cluster.groups[0].device.is_cpu:
        return []
    (group,) = cluster.groups
    card, nodes, each = DEVICE_CARDS.get(group.device.name), group.nodes, group.devices_per_node
    if card is None or group != node_group(card, group.name, nodes, each):
        return []
    cards = sorted(DEVICE_CARDS.values(), key=lambda other: (other.device.memory_bytes, other.device.name))
    larger = [other for other in cards if _may_replace(other, card)]
    made = [(other, node_group(other, group.name, nodes, each)) for other in larger]
    return [(f"{nodes}x{each}x{other.device.name}", replace(cluster, groups=(grown,))) for other, grown in made]


def _may_replace(other: DeviceCard, card: DeviceCard) -> bool:
    """AMD's devices are called MI…."""
    one, new = card.device, other.device
    same_maker = one.name.startswith("MI") == new.name.startswith("MI")
    no_slower = new.bf16_flops_per_second >= one.bf16_flops_per_second
    return not new.is_cpu and same_maker and no_slower and new.memory_bytes > one.memory_bytes


def resized(cluster: Cluster, group: NodeGroup, nodes: int, each: int) -> tuple[str, Cluster]:
    """A cluster with other nodes in one of its groups, and how that is written."""
    changed = replace(group, nodes=nodes, devices_per_node=each)
    made = replace(cluster, groups=tuple(changed if own is group else own for own in cluster.groups))
    name = group.device.name
    if len(cluster.groups) > 1:
        return f"{{groups: {{{group.name}: {{nodes: {nodes}, …}}, …}}}}", made
    card = DEVICE_CARDS.get(name)
    as_listed = card is not None and group == node_group(card, group.name, group.nodes, group.devices_per_node)
    text = f"{nodes}x{each}x{name}" if as_listed else f"{{gpu: {name}, nodes: {nodes}, gpus_per_node: {each}, …}}"
    return text, made
