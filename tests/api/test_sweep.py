"""Sweeps: each point is the plan of its own command line, faults are rows, and the front is what nothing beats."""

from __future__ import annotations

import csv
import json
import re
from itertools import product
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowrl import api
from flowrl.api.sweep import MOST_POINTS, SweepMoment
from flowrl.diag.diagnostic import FlowError
from flowrl.explain.sweep import FITS, GPU_SECONDS, Sweep, pareto
from flowrl.machine.devices import DEVICE_CARDS, node_group
from flowrl.machine.resize import resized, shorthand_of
from flowrl.machine.shorthand import parse_cluster
from flowrl.placement.cost.ledger import evaluate
from tests.conftest import Told

FLOW = """
flowrl: 1
name: small
cluster: {cluster}
models: {{policy: {{source: Qwen/Qwen2.5-0.5B}}}}
data: {{train: {{source: "rows.py:rows", prompt: question, max_prompt_tokens: 256}}}}
roles:
  actor_train: {{model: policy, backend: fsdp, update: {{loss: ppo}}}}
  actor_infer: {{model: policy, backend: vllm, generate: {{max_response_tokens: 512}}}}
  reward: {{function: "flowrl:overlong", args: {{max_tokens: 512, buffer_tokens: 128}}}}
  advantage: {{estimator: grpo}}
edges:
  - data.train -> actor_infer.generate
  - actor_infer.generate -> reward.score
  - reward.score -> advantage.estimate
  - advantage.estimate -> actor_train.update
  - actor_train => actor_infer
step: {{prompts: 32, samples_per_prompt: 4}}
run: {{steps: 10}}
"""
MIXED = "{groups: {old: {gpu: A100-80G, nodes: 1, gpus_per_node: 8}, new: {gpu: H100-80G, nodes: 1, gpus_per_node: 8}}}"


def flow(folder: Path, cluster: str = "8xH100-80G") -> str:
    (folder / "rows.py").write_text("def rows():\n    return [{'question': 'a'}]\n", encoding="utf-8")
    file = folder / "flow.yaml"
    file.write_text(FLOW.format(cluster=cluster), encoding="utf-8")
    return str(file)


def test_a_point_is_the_plan_of_its_command_line(tmp_path: Path) -> None:
    file = flow(tmp_path)
    found = api.sweep(file, ["4"], ["H100-80G,H20"], ["step.prompts=16,64", "run.steps=7"])
    assert len(found.points) == 4
    assert found.fixed == ("run.steps=7",)
    order = [tuple(point.settings.values()) for point in found.points]
    assert order == list(product(("H100-80G", "H20"), ("4",), ("16", "64")))
    for point in found.points:
        kind, count, prompts = point.settings.values()
        plan = api.plan(file, [f"step.prompts={prompts}", "run.steps=7"], cluster=f"{count}x{kind}")
        (stage,) = plan.stages
        assert point.verdict == plan.verdict == FITS
        assert point.cluster == f"{count}x{kind}"
        assert point.step_seconds == stage.estimate.step_seconds
        assert point.samples_per_second == pytest.approx(stage.estimate.samples_per_second)
        assert point.used == sum(len(pool.devices) for pool in stage.pools)
        assert point.used is not None
        assert point.gpu_seconds == pytest.approx(point.used * stage.estimate.step_seconds)
        assert point.tightest == max(m.peak_bytes / m.limit_bytes for m in stage.memory if m.pool != "host")
        assert point.price is None
        assert {line.what for line in point.lines} == {"step", "samples", GPU_SECONDS}
        assert all(evaluate(line.formula, line.inputs) == pytest.approx(line.value) for line in point.lines)


def test_prices_are_those_of_the_plan(tmp_path: Path) -> None:
    """16 GPUs at 3.6 an hour for s seconds cost 16 · 3.6 · s / 3600."""
    found = api.sweep(flow(tmp_path), ["16"], ["H20"], prices=["H20=3.6"])
    (point,) = found.points
    assert found.cost == "price"
    assert point.price is not None
    assert point.used is not None
    assert point.step_seconds is not None
    assert point.price == pytest.approx(point.used * 0.001 * point.step_seconds)


def test_what_does_not_fit_or_is_refused_is_a_row(tmp_path: Path) -> None:
    file = flow(tmp_path)
    sets = ["models.policy.source=Qwen/Qwen2.5-0.5B,Qwen/Qwen2.5-72B", "step.prompts=32,none"]
    found = api.sweep(file, ["1,12"], [], sets)
    codes = [point.codes for point in found.points]
    assert codes[0] == ()
    assert "FR0501" in codes[2]
    assert found.points[2].verdict == "infeasible"
    assert (found.points[2].tightest or 0) > 1
    assert found.points[1].verdict == found.points[3].verdict == "refused"
    assert all(point.codes == ("FR0512",) for point in found.points[4::2])
    assert [point.front for point in found.points] == [True] + [False] * 7
    text = api.render_sweep(found, 160)
    assert "FR0501 does not fit: the fullest device at" in text
    assert "FR0512 devices do not fill whole nodes · 12 devices, 8 to a node" in text


def test_a_faulty_flow_is_refused_once(tmp_path: Path) -> None:
    file = flow(tmp_path)
    told: list[SweepMoment] = []
    with pytest.raises(FlowError) as error:
        api.sweep(file, ["8,16"], [], ["step.promts=1,2"], tell=told.append)
    assert [each.code for each in error.value.diagnostics] == ["FR0103"]
    assert told == []


def test_steps_of_other_sizes_are_compared_by_the_sample(tmp_path: Path) -> None:
    found = api.sweep(flow(tmp_path), ["8"], [], ["step.prompts=32,256"])
    small, large = found.points
    assert found.per == "sample"
    assert small.samples == pytest.approx(128)
    assert large.samples == pytest.approx(1024)
    assert (large.step_seconds or 0) > (small.step_seconds or 0)
    assert (large.samples_per_second or 0) > (small.samples_per_second or 0)
    assert not small.front
    assert large.front


def test_a_group_of_a_mixed_cluster_is_swept_alone(tmp_path: Path) -> None:
    file = flow(tmp_path, MIXED)
    found = api.sweep(file, ["new=8,16"], ["old=H20"], prices=["H100-80G=2"])
    assert [point.devices for point in found.points] == [16, 24]
    assert list(found.axes) == ["gpu of old", "gpus of new"]


def test_stages_are_weighed_by_their_steps(tmp_path: Path) -> None:
    """Two stages of 10 and 30 steps: the mean over 40."""
    text = FLOW.format(cluster="8xH100-80G")
    head, _, body = text.partition("data: ")
    shared = head + "data: " + body.partition("\n")[0]
    rest = "\n".join("    " + line for line in body.partition("\n")[2].splitlines())
    stages = [rest.replace("steps: 10", f"steps: {steps}").strip() for steps in (10, 30)]
    staged = f"{shared}\nstages:\n  - name: a\n    {stages[0]}\n  - name: b\n    {stages[1]}\n"
    file = Path(flow(tmp_path))
    file.write_text(staged.replace("prompts: 32", "prompts: 64", 1), encoding="utf-8")
    (point,) = api.sweep(file, ["8"]).points
    plan = api.plan(file, cluster="8xH100-80G")
    one, other = (stage.estimate.step_seconds for stage in plan.stages)
    assert one != other
    assert point.step_seconds == pytest.approx((10 * one + 30 * other) / 40)
    assert point.samples_per_second == pytest.approx((10 * 256 + 30 * 128) / (10 * one + 30 * other))
    assert all(evaluate(line.formula, line.inputs) == pytest.approx(line.value) for line in point.lines)


def test_ctrl_c_keeps_what_is_done(tmp_path: Path) -> None:
    def stop(moment: SweepMoment) -> None:
        if moment.done == 2:
            raise KeyboardInterrupt

    found = api.sweep(flow(tmp_path), ["4,8,16"], tell=stop)
    assert found.interrupted
    assert len(found.points) == 2
    assert "2 of 3 points" in api.render_sweep(found)


def test_moments_count_up(tmp_path: Path) -> None:
    told: list[SweepMoment] = []
    api.sweep(flow(tmp_path), ["4,8"], tell=told.append)
    assert [(each.phase, each.done, each.phases) for each in told] == [("gpus 4", 0, 2), ("gpus 8", 1, 2), ("", 2, 2)]
    assert told[0].left_seconds is None


FAULTS = {
    "FR0740": ({"gpus": ["8,x"]}, "8xH100-80G", {"--gpus": "8,x"}),
    "FR0740-zero": ({"gpus": ["8,0"]}, "8xH100-80G", {"--gpus": "8,0"}),
    "FR0740-price": ({"prices": ["H20=1"]}, "8xH100-80G", {"--price": "H20=1"}),
    "FR0741": ({"gpu": ["H20,A800"]}, MIXED, {"--gpu": "H20,A800"}),
    "FR0742": ({"gpus": ["nwe=8,16"]}, MIXED, {"--gpus": "nwe=8,16"}),
    "FR0743": ({"gpus": ["8,16"]}, "4xcpu", {"--gpus": "8,16"}),
    "FR0744": (
        {"gpus": [",".join(str(each) for each in range(1, 51))], "sets": ["run.seed=" + ",".join("123456789")] * 1}
        | {"gpu": ["H20,A800,H800"]},
        "8xH100-80G",
        {},
    ),
    "FR0511-sweep": ({"gpu": ["H2O"]}, "8xH100-80G", {"--gpu": "H2O"}),
}


@pytest.mark.parametrize("case", FAULTS)
def test_faults_before_the_first_point(case: str, tmp_path: Path, told: Told) -> None:
    """FR0740 to FR0744."""
    flags, cluster, texts = FAULTS[case]
    with pytest.raises(FlowError) as error:
        api.sweep(flow(tmp_path, cluster), **flags)  # type: ignore[arg-type]
    code, _, name = case.partition("-")
    told(error.value, code, name, texts)


def test_the_limit_is_a_product() -> None:
    assert MOST_POINTS < 50 * 9 * 3


PAIRS = st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6)), max_size=12)


@given(PAIRS)
def test_the_front_is_what_nothing_beats(pairs: list[tuple[int, int]]) -> None:
    def beats(one: tuple[int, int], other: tuple[int, int]) -> bool:
        return one[0] <= other[0] and one[1] <= other[1] and one != other

    assert pareto(pairs) == [not any(beats(other, pair) for other in pairs) for pair in pairs]


@given(st.sampled_from([1, 2, 3, 4, 8, 16, 24, 64, 72, 144]), st.sampled_from([*DEVICE_CARDS]))
def test_a_size_is_what_its_shorthand_says(count: int, name: str) -> None:
    """With devices of the catalogue in usual nodes."""
    base = node_group(DEVICE_CARDS["H100-80G"], "nodes", 2, 8)
    if count > DEVICE_CARDS[name].node_devices and count % DEVICE_CARDS[name].node_devices and name != "cpu":
        for make in (lambda: resized(base, DEVICE_CARDS[name], count), lambda: parse_cluster(f"{count}x{name}")):
            with pytest.raises(FlowError, match="FR0512"):
                make()
        return
    wanted = parse_cluster(f"{count}x{name}").groups
    made = resized(base, DEVICE_CARDS[name], count)
    assert (made,) == wanted
    assert shorthand_of(made) == f"{count}x{name}"


def test_nodes_of_the_flow_stay_nodes() -> None:
    fours = node_group(DEVICE_CARDS["H100-80G"], "nodes", 3, 4)
    made = resized(fours, None, 20)
    assert (made.nodes, made.devices_per_node) == (5, 4)
    assert shorthand_of(made) == "5x4xH100-80G"
    assert resized(fours, None, 2).devices_per_node == 2
    assert resized(fours, None, None) == fours


# -- table, CSV, plot -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    folder = tmp_path_factory.mktemp("swept")
    return api.sweep(flow(folder), ["2,4,8,12"], ["H100-80G,H20"])


def test_every_number_of_the_text_is_in_the_json(swept: Sweep) -> None:
    points = json.loads(api.sweep_json(swept))["points"]
    rows = [line for line in api.render_sweep(swept, 140).splitlines() if re.match(r" [* ]  (H100|H20)", line)]
    assert len(rows) == len(points) == 8
    for row, point in zip(rows, points, strict=True):
        assert row.startswith(" *") == point["front"]
        if point["verdict"] != FITS:
            assert point["codes"][0] in row
            continue
        cells = row.split()
        assert point["bound"]["what"] in cells
        seconds = float(cells[cells.index("s") - 1]) if "s" in cells else float(cells[cells.index("ms") - 1]) / 1000
        assert seconds == pytest.approx(point["step_seconds"], rel=0.01)


@pytest.mark.parametrize("width", [60, 100, 140])
def test_text_keeps_its_width(swept: Sweep, width: int) -> None:
    assert max(map(len, api.render_sweep(swept, width).splitlines())) <= width
    assert api.render_sweep(swept, width, ascii=True).isascii()


def test_csv_has_a_line_a_point(swept: Sweep) -> None:
    rows = list(csv.DictReader(api.sweep_csv(swept).splitlines()))
    assert len(rows) == len(swept.points)
    for row, point in zip(rows, swept.points, strict=True):
        assert [row[name] for name in swept.axes] == list(point.settings.values())
        assert row["front"] == ("yes" if point.front else "no")
        if point.step_seconds is not None:
            assert float(row["step_seconds"]) == pytest.approx(point.step_seconds, rel=1e-5)
            assert row["reason"] == ""


def test_the_plot_stands_alone(swept: Sweep) -> None:
    """One file, a mark for each point that fits, all within the drawing, labels of the front apart from each other."""
    text = api.plot_sweep(swept)
    root = ElementTree.fromstring(text)
    assert not re.search(r"href|url\(|<script|<image", text)
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    titles = [each for each in root.iter() if each.tag.endswith("title") and each.text and " a step" in each.text]
    fitting = [point for point in swept.points if point.verdict == FITS]
    assert len(titles) == len(fitting) + 2  # and the key of both kinds
    labels = [each for each in root.iter() if "halo" in each.attrib.get("class", "")]
    boxes = [(float(each.attrib["x"]), float(each.attrib["y"]), 7 * len(each.text or "")) for each in labels]
    for x, y, wide in boxes:
        assert 0 <= x <= x + wide <= width
        assert 0 <= y <= height
    front = [box for box, label in zip(boxes, labels, strict=True) if label.attrib["class"].startswith("text")]
    assert len(front) == sum(point.front for point in swept.points)
    for at, (x, y, wide) in enumerate(front):
        for other_x, other_y, other in front[at + 1 :]:
            assert x + wide <= other_x or other_x + other <= x or abs(y - other_y) >= 13


def test_a_sweep_is_the_same_each_time(tmp_path: Path) -> None:
    file = flow(tmp_path)
    one, other = (api.sweep(file, ["4"], ["H20,H100-80G"]) for _ in range(2))
    assert api.sweep_json(one) == api.sweep_json(other)
    assert api.plot_sweep(one) == api.plot_sweep(other)
