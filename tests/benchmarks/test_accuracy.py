"""The accuracy benchmark on the published facts that the repository carries: the bars that hold with the shipped
profile, golden step times within a tolerance, and readers that no odd record breaks."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from math import exp, log
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.facts import microbatch, rank, rules, times
from benchmarks.facts.fit import Point, fit
from benchmarks.facts.flows import document_of
from benchmarks.facts.predict import Circles, plan, predict
from benchmarks.facts.records import Part, parts_of, read
from benchmarks.facts.refit import with_values
from benchmarks.facts.rules import UnusableError, fill, mean_response, measured_step
from benchmarks.facts.section import Facts, Section
from flowrl.machine.devices import DEVICE_CARDS
from flowrl.machine.profile import PROFILE, Profile, value_of, with_constants

FACTS = Facts()
GOLDEN = Path(__file__).parent / "step_times.json"
TOLERANCE = 0.10
"""Of a golden step time: what a change of the model may move without being looked at."""
RECORDS = {raw["id"]: raw for raw in FACTS.perf}


@lru_cache(maxsize=1)
def core() -> Section:
    return times.rows(FACTS, fitted=False, wanted=times.is_core)


def figure(name: str) -> Any:
    return core().summary[name]


def test_bars_that_hold_as_shipped() -> None:
    middle, ninth, ranks = figure("core: median, 90th percentile, rank correlation as shipped")
    assert middle <= times.MEDIAN_ON_ALL
    assert ninth <= times.NINTH_TENTH
    assert ranks >= times.RANKS


def test_golden_step_times(request: pytest.FixtureRequest) -> None:
    made = {row["id"]: round(row["shipped"], 1) for row in core().rows}
    if request.config.getoption("--update-goldens"):
        GOLDEN.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    kept = json.loads(GOLDEN.read_text(encoding="utf-8"))
    assert made.keys() == kept.keys()
    moved = {id: (kept[id], value) for id, value in made.items() if abs(value / kept[id] - 1) > TOLERANCE}
    assert not moved


def test_every_core_record_has_a_row_or_a_reason() -> None:
    asked = {id for id, raw in RECORDS.items() if raw["kind"] == "e2e_step" and times.is_core(read(raw))}
    assert asked == {row["id"] for row in core().rows} | {each["id"] for each in core().excluded}
    assert all(each["reason"] for each in core().excluded)


def test_memory_of_micro_batches() -> None:
    assert microbatch.rows(FACTS).summary["peak memory: median |error|"]["holds"]


# -- reading ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("disaggregated 8 train + 8 rollout", [(("train",), 8, None), (("rollout",), 8, None)]),
        ("disaggregated ~25% train + ~75% rollout", [(("train",), None, 0.25), (("rollout",), None, 0.75)]),
        ("2 hybrid trainer nodes + 2 standalone rollout nodes", [(("train",), 16, None), (("rollout",), 16, None)]),
        (
            "split: actor+ref on 8 nodes, critic+reward on 4 nodes",
            [(("actor", "ref"), 64, None), (("critic", "reward"), 32, None)],
        ),
        ("disaggregated vllm:d32 + train d16", [(("rollout",), 32, None), (("train",), 16, None)]),
        ("colocated sync", []),
    ],
)
def test_parts_of_placements(text: str, parts: list[tuple[tuple[str, ...], int | None, float | None]]) -> None:
    assert list(parts_of(text, None)) == [Part(roles, gpus, share) for roles, gpus, share in parts]


def test_a_standalone_ratio_names_the_roles_in_the_order_of_openrlhf() -> None:
    found = parts_of("standalone GPU ratio 1:1:2:2:2", 8)
    assert [part.roles[0] for part in found] == ["ref", "reward", "actor", "critic", "rollout"]
    assert [part.gpus for part in found] == [1, 1, 2, 2, 2]


def odd_values() -> Iterator[Any]:
    yield from (None, "", "unknown", "64/128", "16..256", [], {}, -1, 0, 3.5, ["a", 1], {"max": None, "mean": "?"})


@pytest.mark.parametrize(
    "id", [next(iter(RECORDS)), "nemo-v0.5-h100-dsv3-grpo-256g-on", "openrlhf-bench-7b-openrlhf-ray-vllm"]
)
def test_odd_fields_are_read_or_refused(id: str) -> None:
    for key in RECORDS[id]:
        for value in odd_values():
            record = read({**RECORDS[id], key: value})
            with suppress(UnusableError):
                measured_step(record, fill(record))


def test_records_of_another_folder(tmp_path: Path) -> None:
    (tmp_path / "perf_published.json").write_text(json.dumps([{"id": "x", "kind": "e2e_step"}, 3, None]))
    (tmp_path / "fsdp_memory.json").write_text("not json")
    facts = Facts(tmp_path)
    assert times.rows(facts, fitted=False).excluded == [{"id": "x", "reason": "no GPU type"}]
    assert (facts.tracker, facts.configs) == ([], [])


# -- rules ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["Qwen2.5-7B", "DeepSeek-R1-Distill-Qwen-7B"])
@pytest.mark.parametrize("most", [512, 8192, 32768])
def test_mean_response_is_that_of_a_cut_lognormal(name: str, most: int) -> None:
    kind = "reasoning" if "R1" in name else "other"
    drawn = np.random.default_rng(0).lognormal(log(rules.MEDIAN_TOKENS[kind]), rules.SPREAD[kind], 200_000)
    assert mean_response(name, most) == pytest.approx(float(np.minimum(drawn, most).mean()), rel=0.02)


def test_devices_of_a_node_share_a_published_rate_between_nodes() -> None:
    """HybridFlow, section 8.1: 16 machines of 8 devices, 200 Gb/s between machines, 8 updates an iteration."""
    record = read(next(raw for id, raw in RECORDS.items() if id.startswith("hybridflow-placement-13b-")))
    assert record.network(8) == 200e9 / 8 / 8
    cases = [(fill(record, count=count).updates, document_of(fill(record, count=count))) for count in (16, 64)]
    assert [updates for updates, _ in cases] == [8, 8]
    share = PROFILE.rates(DEVICE_CARDS["A100-80G"].device, "megatron").network
    for _, text in cases:
        assert text["cluster"]["links"]["network_bytes_per_second"] * share == pytest.approx(0.85 * 3.125e9)
    assert read(RECORDS["nemo-v0.5-h100-dsv3-grpo-256g-on"]).network(8) is None


def test_no_rule_names_a_record() -> None:
    texts = [path.read_text(encoding="utf-8") for path in Path(rules.__file__).parent.glob("*.py")]
    named = {id for id in RECORDS for text in texts if id in text}
    assert not named


# -- times for other constants ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("id", ["nemo-v0.5-h100-llama8b-grpo-16g-on", "nemo-v0.4-h100-qwen32b-grpo-64g-1off"])
def test_circles_give_what_the_simulation_gives(id: str) -> None:
    record = read(RECORDS[id])
    planned = plan(fill(record))
    circles = Circles(planned)
    for factor in (1.0, 0.8, 1.3):
        profile = with_constants(PROFILE, {"device.gpu.decode": 0.6 * factor, "device.gpu.train": 0.5 / factor})
        assert circles.exact(profile) == pytest.approx(predict(planned, profile).step)
        assert circles.quick(profile) == pytest.approx(predict(planned, profile).step)


def test_a_fit_finds_the_constants_that_made_the_data() -> None:
    """Times made by two known constants: the fit finds these, and so does every fit with a family left out."""
    truth = {"device.gpu.train": 0.5, "device.gpu.decode": 0.6}
    others = {c: value_of(PROFILE, c) for c in PROFILE.free if c not in truth}
    base = with_constants(PROFILE, {**truth, **others})
    free = {path: PROFILE.free[path] for path in truth}
    start = with_constants(
        Profile(**{n: getattr(base, n) for n in base.__struct_fields__} | {"free": free}), {"device.gpu.train": 0.7}
    )

    def time_of(profile: Profile, work: float, read: float) -> float:
        return work / value_of(profile, "device.gpu.train") + read / value_of(profile, "device.gpu.decode")

    def point(family: str, work: float, read: float) -> Point:
        def made(profile: Profile) -> float:
            return time_of(profile, work, read)

        return Point(family, frozenset(), made(base), 100.0, made, made)

    loads = [(10.0, 1.0), (1.0, 10.0), (5.0, 5.0), (2.0, 7.0), (9.0, 2.0), (1.0, 1.0)]
    found = fit(start, [point(f"family {i % 3}", *load) for i, load in enumerate(loads)])
    for path, value in truth.items():
        assert found.constants[path] == pytest.approx(value, rel=0.02)
    assert found.left_out == pytest.approx(found.predicted, rel=0.03)


def test_fitted_constants_are_written_in_place() -> None:
    text = 'origin = "assumed"\n\n[device.gpu]\ntrain = 0.5\n# said\n\n[free]\n"device.gpu.train" = [0.1, 1.0, 0.5]\n'
    assert with_values(text, {"device.gpu.train": 0.61234}, "fitted") == (
        'origin = "fitted"\n\n[device.gpu]\ntrain = 0.6123\n# said\n\n[free]\n"device.gpu.train" = [0.1, 1.0, 0.5]\n'
    )
    with pytest.raises(KeyError):
        with_values(text, {"device.gpu.nothing": 1.0}, "fitted")


def test_the_page_shows_the_constants_that_are_shipped() -> None:
    page = (Path(__file__).parents[2] / "docs" / "cost" / "accuracy.md").read_text(encoding="utf-8")
    shown = {
        name: float(value) for name, value in re.findall(r"^\| `([\w.@-]+)` \| ([\d.e+-]+) \|", page, re.MULTILINE)
    }
    assert shown == {path: float(f"{value_of(PROFILE, path):.4g}") for path in PROFILE.free}


@pytest.mark.parametrize(
    ("id", "draws", "partial"),
    [
        ("nemo-v0.5-h100-dsv3-dapo-512g-on", 3, False),
        ("nemo-v0.5-h100-dsv3-grpo-512g-1off", 1, True),
        ("nemo-v0.5-h100-dsv3-grpo-256g-on", 1, False),
        ("verl-1off-7b-fsdp2-4-12", 1, False),
    ],
)
def test_recipes_of_nemo_draw_for_dapo_and_update_in_flight(id: str, draws: int, partial: bool) -> None:
    """examples/configs/recipes/llm/performance of NVIDIA-NeMo/RL: batch_multiplier 3 and enforce_eager of dapo-*,
    in_flight_weight_updates of *-async-1off."""
    case = fill(read(RECORDS[id]))
    assert (case.draws, case.partial, case.eager) == (draws, partial, draws > 1)
    graph = plan(case).graph
    drawn = graph.step.refill.oversample if graph.step.refill else 1
    assert (drawn, graph.schedule.partial_rollout) == (draws, partial)


def test_a_comparison_that_the_data_answers_both_ways_is_disputed() -> None:
    one = rank.Comparison("scaling", "a", "b", (1.0, 2.0), (1.0, 2.0), ("x", "y"))
    other = rank.Comparison("scaling", "c", "d", (1.0, 2.0), (2.0, 1.0), ("y", "x"))
    assert rank.disputed([one, other]) == {("x", "y"), ("y", "x")}
    assert rank.disputed([one]) == set()
    assert (one.right, other.right) == (True, False)


def test_spearman_is_that_of_ranks() -> None:
    rows = [{"measured": float(i), "shipped": exp(i)} for i in range(6)]
    assert times.spearman(rows, "shipped") == pytest.approx(1.0)
    rows[0]["shipped"], rows[5]["shipped"] = rows[5]["shipped"], rows[0]["shipped"]
    # 1 - 6 * sum(d^2) / (n * (n^2 - 1)) with two ranks 5 apart
    assert times.spearman(rows, "shipped") == pytest.approx(1 - 6 * 50 / (6 * 35))
