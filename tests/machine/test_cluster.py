"""Clusters: shorthands, this machine, the device catalogue."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import flowrl.machine
from flowrl.diag.diagnostic import FlowError
from flowrl.machine.devices import DEVICE_CARDS, DEVICES
from flowrl.machine.local import local_cluster
from flowrl.machine.shorthand import larger_clusters, parse_cluster

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
    for text, names in (("16xH100", "`16xH100-80G`"), ("8xA100", "`8xA100-40G` or `8xA100-80G`")):
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
    assert found == (count if count <= 8 or count % 8 == 0 or name == "cpu" else "FR0512")


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


def test_each_figure_of_the_catalogue_has_a_source() -> None:
    figures = {"memory_mib", "bf16_tflops", "memory_gbps", "link_gbps", "host_gbps", "network_gbps"}
    for name, entry in tomllib.loads(CATALOGUE.read_text(encoding="utf-8")).items():
        assert set(entry["sources"]) == figures | {"node"}, name
        assert all(entry["sources"].values()), name


def test_marketing_figures_agree_with_the_catalogue() -> None:
    """Memory in GB as sold, within 12 %: a slip of units or of a digit would show."""
    sold = {"A100-40G": 40, "A100-80G": 80, "H100-80G": 80, "H800": 80, "H200": 141, "H20": 96, "B200": 180}
    sold |= {"L40S": 48, "L4": 24, "A10": 24, "RTX4090": 24, "V100-32G": 32}
    for name, gigabytes in sold.items():
        assert DEVICES[name].memory_bytes / 1e9 == pytest.approx(gigabytes, rel=0.12)
    assert set(sold) | {"cpu"} == set(DEVICE_CARDS)
