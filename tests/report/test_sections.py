"""The sections of a page: bars against hand-made schedules, maps, ledgers, decisions."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from flowrl.machine.cluster import Cluster
from flowrl.plan.plan import Decision, Layout, Pool, StagePlan, TimelineSpan
from flowrl.report.dataflow import dataflow
from flowrl.report.decided import render_decided
from flowrl.report.fits import fits, tightest_by_device
from flowrl.report.numbers import count, gib, percent, rate, seconds
from flowrl.report.page import shorten
from flowrl.report.when import when
from flowrl.report.where import device_map, layout
from flowrl.report.why import why
from tests.report import plans


def _with_timeline(*spans: tuple[str, float, float]) -> StagePlan:
    stage = plans.split().stages[0]
    pools = {i.id: i.pool for i in stage.programs.instructions}
    timeline = tuple(
        TimelineSpan(instruction=id, pool=pools[id], start_seconds=start, seconds=length) for id, start, length in spans
    )
    return replace(stage, estimate=replace(stage.estimate, step_seconds=10.0, timeline=timeline, critical=()))


def _bars(stage: StagePlan, width: int = 97) -> dict[str, str]:
    """Role → its bar, from the lines of WHEN."""
    names = max(len(role.name) for role in stage.graph.roles)
    room = min(max((width - names - 3) // 2, 16), 60)
    bars: dict[str, str] = {}
    for line in when(stage, width):
        role = line[2 : 2 + names].strip()
        if role in {r.name for r in stage.graph.roles}:
            bars[role] = line[names + 3 : names + 3 + room].ljust(room)
    return bars


def test_bars_are_as_long_as_their_share() -> None:
    stage = _with_timeline(
        ("run actor_infer.generate", 0.0, 5.0),
        ("run actor_train.update", 5.0, 2.5),
        ("run critic.update", 7.5, 2.5),
    )
    bars = _bars(stage, width=97)
    room = len(bars["actor_infer"])
    assert bars["actor_infer"].count("█") == pytest.approx(room / 2, abs=1)
    assert bars["actor_train"].count("█") == pytest.approx(room / 4, abs=1)
    assert bars["critic"].rstrip() == bars["critic"]
    assert bars["actor_train"].index("█") == pytest.approx(room / 2, abs=1)


def test_what_runs_on_into_the_next_step_comes_in_on_the_left() -> None:
    bar = _bars(_with_timeline(("run actor_infer.generate", 8.0, 4.0)))["actor_infer"]
    assert bar.startswith("█")
    assert bar.endswith("█")
    assert bar.count("█") == pytest.approx(0.4 * len(bar), abs=2)


def test_short_work_leaves_a_mark_and_moves_look_different() -> None:
    bars = _bars(
        _with_timeline(
            ("run actor_infer.generate", 0.0, 0.001),
            ("send_weights actor_train => actor_infer", 2.0, 3.0),
        )
    )
    assert bars["actor_infer"].strip() == "▌"
    assert set(bars["actor_train"].strip()) == {"▒"}


def test_repeated_work_is_told_once() -> None:
    stage = plans.colocated().stages[0]
    page = "\n".join(when(stage, 91))
    assert "4 × update 2.12 s" in page
    assert page.count("update 2.12 s") == 1


def test_step_without_time_has_no_picture() -> None:
    stage = _with_timeline()
    assert when(replace(stage, estimate=replace(stage.estimate, step_seconds=0.0)), 91) == []


def _cluster(nodes: int, each: int, groups: int = 1) -> Cluster:
    group = plans.h100_cluster().groups[0]
    made = tuple(replace(group, name=f"g{n}", nodes=nodes, devices_per_node=each) for n in range(groups))
    return Cluster(name="by hand", groups=made)


def _pool(*devices: str) -> Pool:
    return Pool(name="p", devices=devices, device="H100-80G", roles=())


def test_maps_of_devices() -> None:
    assert device_map(_pool("node0/1", "node1/0", "node1/1"), _cluster(2, 2), 5) == "░█ ██"
    assert device_map(_pool("node0/1", "node1/0", "node1/1"), _cluster(2, 2), 4) == "▌█"
    assert device_map(_pool("g1/node0/0"), _cluster(1, 2, groups=2), 5) == "░░ █░"
    many = [f"node{node}/{place}" for node in range(10) for place in range(8)][: 8 * 3 + 1]
    assert device_map(_pool(*many), _cluster(10, 8), 80) == "███▌░░░░░░"


def test_layouts() -> None:
    assert layout(Layout(dp=4, tp=2)) == "dp4 tp2"
    assert layout(Layout(tp=8, pp=2)) == "tp8 pp2"
    assert layout(Layout()) == "one device"


def test_tightest_phase_of_each_device_is_told() -> None:
    stage = plans.colocated().stages[0]
    assert [m.phase for m in tightest_by_device(stage.memory)] == ["actor_train.update", "offloaded state"]
    lines = fits(stage, 91)
    assert lines[0].endswith("59.9 of 80.0 GiB in actor_train.update")
    assert "optimizer states of critic 3.25" in lines[2]


def test_devices_are_named_where_a_pool_has_several() -> None:
    stage = plans.colocated().stages[0]
    two = tuple(replace(stage.memory[1], device=f"node{n}/0 .. node{n}/7") for n in range(2))
    assert [line.rpartition(" on ")[2] for line in fits(replace(stage, memory=two), 91)[::3]] == [
        "node0/0 .. node0/7",
        "node1/0 .. node1/7",
    ]


def _decision(id: str, what: str, reason: str = "needed_to_fit") -> Decision:
    return Decision(id=id, what=what, chosen="yes", reason=reason, text="because yes")


def test_equal_decisions_are_told_together_and_forced_ones_left_out() -> None:
    decisions = (
        _decision("D1", "pools", "only_option"),
        _decision("D2", "layout of a", "only_option"),
        _decision("D3", "offload of a"),
        _decision("D4", "offload of b"),
    )
    assert why(decisions, 91) == [
        "D1  because yes (only option)",
        "D3  offload of a (D3), b (D4): yes (needed to fit)",
        "the other decisions: -v",
    ]
    assert why((), 91) == []


def test_dataflow_of_a_supervised_stage_is_one_line() -> None:
    assert dataflow(plans.two_stages().stages[0].graph, 91) == ["data.train ─▶ actor_train.update"]


def test_numbers() -> None:
    assert [seconds(v) for v in (0.0, 0.00012, 0.0056, 0.41, 7.25, 33.04, 999.0, 1644.0, 18720.0)] == [
        "0 s",
        "0.12 ms",
        "5.6 ms",
        "410 ms",
        "7.25 s",
        "33.0 s",
        "999.0 s",
        "27.4 min",
        "5.2 h",
    ]
    assert [gib(v * 2**30) for v in (0.42, 9.994, 71.26)] == ["0.42", "9.99", "71.3"]
    assert [rate(v) for v in (0.421, 31.04, 15900.4)] == ["0.42", "31.0", "15,900"]
    assert (percent(0.934), count(1024)) == ("93 %", "1,024")


def test_no_number_is_cut_in_two() -> None:
    assert shorten("wake weights 4.78 s", 17) == "wake weights …"
    assert shorten("wake weights 4.78 s", 18) == "wake weights 4.78…"
    assert shorten("wake weights", 6) == "wake …"


def test_every_decision_is_told_with_all_that_it_rejected() -> None:
    stage = plans.colocated().stages[0]
    told = " ".join(" ".join(line.split()) for line in why(stage.decisions, 80, every=True))
    for decision in stage.decisions:
        assert f"{decision.id} " in told
        assert all(f"not {each.option}: {each.reason.replace('_', ' ')}" in told for each in decision.rejected)


def test_what_a_plan_decided_stands_behind_the_key_that_overrides_it() -> None:
    plan = plans.colocated()
    lines = render_decided(plan).splitlines()
    for decision in plan.stages[0].decisions:
        key = decision.override or decision.what
        assert f"# {key}: {decision.chosen}  # {decision.id}, {decision.reason.replace('_', ' ')}" in lines
