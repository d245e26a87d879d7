"""Views of flows and runs: the page of a flow, a notebook's picture, and the trace for Perfetto."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from html import unescape
from pathlib import Path

import msgspec
import pytest

from flowrl import api, load
from flowrl.cli.main import main
from flowrl.execution.chrome import chrome
from flowrl.execution.trace import Trace, TraceSpan
from flowrl.plan.io import dumps
from flowrl.report.view import View
from flowrl.runtime.runfile import RunFile, RunStatus, write_run_file

EXAMPLES = Path(__file__).parents[2] / "examples"


def _view(page: str) -> View:
    found = re.search(r'<script type="application/json" id="view">(.*?)</script>', page, re.S)
    assert found is not None
    return msgspec.json.decode(found.group(1), type=View)


def test_the_page_of_a_flow_has_its_source_and_every_pass() -> None:
    flow = EXAMPLES / "ppo.yaml"
    view = _view(api.draw_plan(api.plan(flow), "html", flow))
    assert [source.text for source in view.sources] == [flow.read_text(encoding="utf-8")]
    assert [graph.name for graph in view.stages[0].graphs] == list(api.STOPS)
    lines = view.sources[0].text.splitlines()
    for role in ("actor_train", "actor_infer", "critic"):
        place = view.stages[0].places[role]
        assert place.file == view.sources[0].path
        assert lines[place.line - 1].strip().startswith(f"{role}:")


def test_the_page_of_a_plan_file_has_no_source(tmp_path: Path) -> None:
    flow = EXAMPLES / "ppo.yaml"
    file = tmp_path / "plan.json"
    file.write_bytes(dumps(api.plan(flow)))
    view = _view(api.draw_plan(api.plan_of(file), "html", file))
    assert view.sources == ()
    assert len(view.stages[0].graphs) == 1


@pytest.mark.parametrize("form", ["html", "markdown", "mermaid", "dot", "svg"])
def test_every_form_comes_from_the_command_line(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    flow = EXAMPLES / "ppo.yaml"
    with pytest.raises(SystemExit) as left:
        main(["plan", str(flow), "--format", form])
    assert left.value.code == 0
    out = capsys.readouterr().out
    assert out.rstrip("\n") == api.draw_plan(api.plan(flow), form, flow).rstrip("\n")


def test_notebooks_get_the_page_of_a_plan_and_the_picture_of_a_flow() -> None:
    flow = load(EXAMPLES / "ppo.yaml")
    planned = flow.plan()
    frame = planned._repr_html_()
    inner = re.search(r'srcdoc="([^"]*)"', frame)
    assert inner is not None
    assert _view(unescape(inner.group(1))).name == planned.plan.name
    picture = ElementTree.fromstring(flow._repr_html_())
    boxes = [each for each in picture.iter("{http://www.w3.org/2000/svg}rect") if each.get("class") == "op"]
    assert len(boxes) == len(planned.plan.stages[0].graph.ops)


def test_a_trace_for_perfetto_has_the_run_and_the_planned_step(tmp_path: Path) -> None:
    plan = api.plan(EXAMPLES / "ppo.yaml")
    (tmp_path / "plan.json").write_bytes(dumps(plan))
    write_run_file(tmp_path, RunFile(name=plan.name, state=RunStatus.FINISHED, folder=str(EXAMPLES), launcher="inline"))
    first = plan.stages[0].programs.instructions[0]
    span = TraceSpan(instruction=first.id, pool=first.pool, role=first.role, step=1, start_seconds=1.0, seconds=0.5)
    (tmp_path / "trace.json").write_text(json.dumps(chrome(Trace(spans=(span,), simulated=False))))
    written = json.loads(api.perfetto(tmp_path))
    names = {e["pid"]: e["args"]["name"] for e in written["traceEvents"] if e.get("name") == "process_name"}
    assert names[1] == f"pool {first.pool}"
    assert len(names) == len(set(names.values())) > 1
    planned = [e for e in written["traceEvents"] if e["ph"] == "X" and names[e["pid"]].startswith("planned ")]
    timeline = {span.instruction: span for span in plan.stages[0].estimate.timeline}
    assert sorted(e["name"] for e in planned) == sorted(timeline)
    for event in planned:
        assert event["dur"] == pytest.approx(1e6 * timeline[event["name"]].seconds)
    report = api.report_run(tmp_path)
    assert [row.instruction for row in report.stages[0].rows] == [first.id]
    assert report.stages[0].rows[0].measured_seconds == 0.5
    assert _view(api.run_page(tmp_path)).stages[0].name == plan.stages[0].name
