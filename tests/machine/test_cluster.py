"""Clusters: shorthands, this machine, the device catalogue."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import flowrl.machine
from flowrl.compiler.lower.cluster import lower_cluster
from flowrl.diag.diagnostic import FlowError
from flowrl.machine.devices import ALIASES, DEVICE_CARDS, DEVICES
from flowrl.machine.local import local_cluster
from flowrl.machine.shorthand import larger_clusters, parse_cluster
from flowrl.spec.sections import ClusterDocument

CATALOGUE = Path(flowrl.machine.__file__).parent / "catalogue" / "devices.toml"


@pytest.mark.parametrize(
    ("text", "nodes", "per_node"),
    [
        ("16xH100-80G", 2, 8),
        ("8xH100-80G", 1, 8),
        ("4xH100-80G", 1, 4),
        ("1xL4", 1, 1),
        ("4x8xH20", 4, 8),
        ("2x6xA100-80G", 2, 6),
        ("1x12xH100-80G", 1, 12),
        ("3xcpu", 1, 3),
        (" 16xH100-80G ", 2, 8),
    ],
)
def test_shorthands(text: str, nodes: int, per_node: int) -> None:
    (group,) = parse_cluster(text).groups
    assert (group.nodes, group.devices_per_node) == (nodes, per_node)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "FR0510"),
        ("H100-80G", "FR0510"),
        ("0xH100-80G", "FR0510"),
        ("-8xH100-80G", "FR0510"),
        ("2x0xH100-80G", "FR0510"),
        ("99999999999xH100-80G", "FR0510"),
        ("8 x H100-80G", "FR0510"),
        ("8xH100", "FR0511"),
        ("8xh100-80g", "FR0511"),
        ("12xH100-80G", "FR0512"),
    ],
)
def test_faults_of_shorthands(text: str, code: str) -> None:
    with pytest.raises(FlowError) as caught:
        parse_cluster(text)
    assert caught.value.diagnostics[0].code == code


def test_help_of_a_shorthand_names_what_is_near() -> None:
    with pytest.raises(FlowError) as caught:
        parse_cluster("16xH100-80GB")
    assert "16xH100-80G" in caught.value.diagnostics[0].helps[0].text
    both = "`16xH100-80G` or `16xH100-PCIe-80G` or `16xH100-NVL-94G`"
    for text, names in (("16xH100", both), ("8xV100", "`8xV100-32G` or `8xV100-16G`"), ("4xMI300", "`4xMI300X`")):
        with pytest.raises(FlowError) as caught:
            parse_cluster(text)
        assert caught.value.diagnostics[0].helps[0].text.endswith(names)
    with pytest.raises(FlowError) as caught:
        parse_cluster("20xH100-80G")
    text = caught.value.diagnostics[0].helps[0].text
    assert "16xH100-80G" in text
    assert "24xH100-80G" in text


def attempt(text: str) -> int | str:
    """Number of devices, or the code of the fault."""
    try:
        return parse_cluster(text).device_count
    except FlowError as error:
        return error.diagnostics[0].code


@given(st.integers(1, 512), st.sampled_from(sorted(DEVICES)))
def test_a_shorthand_keeps_the_number_of_devices_or_is_refused(count: int, name: str) -> None:
    found = attempt(f"{count}x{name}")
    size = {"GB200": 4, "Ascend-910C": 16}.get(name, 8)
    assert found == (count if count <= size or count % size == 0 or name == "cpu" else "FR0512")


@given(st.text(max_size=30))
def test_any_text_is_a_cluster_or_a_diagnostic(text: str) -> None:
    assert isinstance(attempt(text), int) or attempt(text) in ("FR0510", "FR0511", "FR0512")


def test_larger_clusters_fill_a_node_first_and_are_written_so_that_they_parse() -> None:
    found = larger_clusters(parse_cluster("2xH100-80G"))
    assert [text for text, _ in found] == ["1x4xH100-80G", "1x8xH100-80G", "2x8xH100-80G", "4x8xH100-80G"]
    assert all(parse_cluster(text).groups == grown.groups for text, grown in found)
    assert larger_clusters(parse_cluster("3xcpu")) == []


def test_local_is_this_machine() -> None:
    (group,) = local_cluster().groups
    assert group.devices_per_node == len(os.sched_getaffinity(0))
    assert 0 < group.host_memory_bytes <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert group.device.is_cpu


FIGURES = {"memory_mib", "bf16_tflops", "memory_gbps", "link_gbps", "host_gbps", "network_gbps"}
FIGURES |= {"link_us", "network_us", "node_memory_gbps", "disk_gbps"}
OPTIONAL = {"fp8_tflops", "link_domain"}


def test_each_figure_of_the_catalogue_has_a_source() -> None:
    for name, entry in tomllib.loads(CATALOGUE.read_text(encoding="utf-8")).items():
        told = FIGURES | (OPTIONAL & set(entry))
        assert set(entry["sources"]) == told | {"node"}, name
        assert told <= set(entry), name
        assert all(entry["sources"].values()), name


SOLD = {"A100-40G": 40, "A100-80G": 80, "A100-PCIe-40G": 40, "A100-PCIe-80G": 80, "A800": 80, "H100-80G": 80}
SOLD |= {"H100-PCIe-80G": 80, "H100-NVL-94G": 94, "H800": 80, "H200": 141, "H20": 96, "H20-141G": 141, "B200": 180}
SOLD |= {"B300": 288}
SOLD |= {"GB200": 186, "MI300X": 192, "L40S": 48, "L20": 48, "L4": 24, "A10": 24, "A40": 48, "A6000": 48}
SOLD |= {"RTX4090": 24, "V100-32G": 32, "V100-16G": 16, "Ascend-910B": 64, "Ascend-910C": 64}


def test_marketing_figures_agree_with_the_catalogue() -> None:
    """Memory in GB as sold, within 12 %: a slip of units or of a digit would show."""
    for name, gigabytes in SOLD.items():
        assert DEVICES[name].memory_bytes / 1e9 == pytest.approx(gigabytes, rel=0.12)
    assert set(SOLD) | {"cpu"} == set(DEVICE_CARDS)


def test_figures_agree_with_each_other() -> None:
    """Rates of one chip under several names; 8 bits twice as fast as 16; memory faster than links, links than the
    network; a hop inside a node shorter than one between nodes."""
    for name, device in DEVICES.items():
        card = DEVICE_CARDS[name]
        assert device.memory_bytes_per_second > device.link_bytes_per_second or device.is_cpu
        assert device.link_bytes_per_second > card.network_bytes_per_second, name
        assert 0 < device.link_seconds < card.network_seconds < 1e-3, name
        assert device.memory_bytes_per_second * 16 > card.node_memory_bytes_per_second > card.disk_bytes_per_second
        if device.fp8_flops_per_second is not None:
            assert device.fp8_flops_per_second == pytest.approx(2 * device.bf16_flops_per_second, rel=0.03), name
    hopper = [DEVICES[name].bf16_flops_per_second for name in ("H100-80G", "H800", "H200")]
    ampere = [DEVICES[name].bf16_flops_per_second for name in DEVICES if name.startswith(("A100", "A800"))]
    assert len(set(hopper)) == len(set(ampere)) == 1


def test_aliases_name_one_device() -> None:
    """What `nvidia-smi -L` prints after the maker, with dashes for blanks."""
    for text, name in (("8xA100-SXM4-80GB", "A100-80G"), ("8xH100-80GB-HBM3", "H100-80G"), ("8xH20-96G", "H20")):
        (group,) = parse_cluster(text).groups
        assert group.device.name == name
    assert not set(ALIASES) & set(DEVICE_CARDS)
    assert sum(len(card.aliases) for card in DEVICE_CARDS.values()) == len(ALIASES)
    assert not {alias.lower() for alias in ALIASES} & {name.lower() for name in DEVICE_CARDS}


def test_a_rack_is_one_link_domain() -> None:
    (rack,) = parse_cluster("18x4xGB200").groups
    (pair,) = parse_cluster("2x8xH100-80G").groups
    assert (rack.linked_devices, pair.linked_devices) == (72, 8)
    assert rack.nodes * rack.devices_per_node == 72


def test_groups_of_a_file_keep_their_links_and_network() -> None:
    document = ClusterDocument.model_validate(
        {
            "groups": {
                "train": {"gpu": "H100-80G", "nodes": 2, "gpus_per_node": 8},
                "rollout": {"gpu": "H20-96G", "nodes": 4, "gpus_per_node": 8, "price_per_gpu_hour": 1.5},
            },
            "links": {"network_bytes_per_second": 12.5e9},
            "price_per_gpu_hour": 2.5,
        }
    )
    train, rollout = lower_cluster(document).groups
    assert (train.device.name, rollout.device.name) == ("H100-80G", "H20")
    assert (train.network_bytes_per_second, rollout.network_bytes_per_second) == (12.5e9, 12.5e9)
    assert (train.device.link_bytes_per_second, rollout.device.link_bytes_per_second) == (450e9, 450e9)
    assert (train.network_seconds, rollout.device.link_seconds) == (14e-6, 3.4e-6)
    assert (train.price_per_gpu_hour, rollout.price_per_gpu_hour) == (2.5, 1.5)
