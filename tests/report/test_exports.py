"""Exports read back: Mermaid and DOT give the arrows of the graph, SVG is XML, tables of Markdown have even rows."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from flowrl.plan.plan import Plan
from flowrl.report.exports import render_dot, render_mermaid
from flowrl.report.html.page import render_page
from flowrl.report.markdown import render_markdown
from flowrl.report.svg import render_svg
from flowrl.report.view import View, plan_view
from tests.report import plans

PLANS = {"colocated": plans.colocated, "split": plans.split, "two_stages": plans.two_stages, "bad": plans.infeasible}
ODD = 'a "quoted" </script> <b> & | name'


def _arrows(plan: Plan) -> list[tuple[str, str, str]]:
    stages = plan_view(plan).stages
    return sorted((a.source, a.target, a.kind) for stage in stages for a in stage.graphs[-1].arrows)


@pytest.mark.parametrize("name", PLANS)
def test_mermaid_has_the_arrows_of_the_graph(name: str) -> None:
    plan = PLANS[name]()
    text = render_mermaid(plan)
    names = dict(re.findall(r"^ *(\w+)\[\"(.*?)(?: ×\d+)?(?:<br/>.*)?\"\]$", text, re.M))
    kinds = {"-->": "data", "==>": "weights", "<-->": "interaction"}
    found = re.findall(r"^ *(\w+) (-->|==>|<-->)(?:\|\"[^\"]*\"\|)? (\w+)$", text, re.M)
    stages = [(f"s{place}", "-->", f"s{place + 1}") for place in range(len(plan.stages) - 1)]
    assert [each for each in found if each in stages] == stages
    found = [each for each in found if each not in stages]
    assert sorted((names[a], names[b], kinds[kind]) for a, kind, b in found) == _arrows(plan)
    assert text.count("subgraph ") == len(re.findall(r"^ *end$", text, re.M))


def test_mermaid_draws_the_stages_downwards_in_their_order() -> None:
    text = render_mermaid(plans.two_stages())
    assert text.startswith("flowchart TB\n")
    assert text.endswith("\n  s0 --> s1\n")
    assert re.findall(r'subgraph (s\d)\["[^"]*"\]\n +direction TB', text) == ["s0", "s1"]


@pytest.mark.parametrize(("make", "way"), [(plans.colocated, "TB"), (plans.crowded, "LR")])
def test_mermaid_goes_across_only_where_many_ops_stand_beside_each_other(make: Callable[[], Plan], way: str) -> None:
    assert render_mermaid(make()).startswith(f"flowchart {way}\n")


@pytest.mark.parametrize("name", PLANS)
def test_graphviz_draws_the_dot(name: str) -> None:
    dot = shutil.which("dot")
    if dot is None:
        pytest.skip("Graphviz is not installed")
    plan = replace(PLANS[name](), name=ODD)
    drawn = subprocess.run([dot, "-Tsvg"], input=render_dot(plan), capture_output=True, text=True, check=True)
    assert drawn.stderr == ""
    assert drawn.stdout.count('class="node"') == sum(len(stage.graph.ops) for stage in plan.stages)


MERMAID = os.environ.get("FLOWRL_MERMAID")
"""The file mermaid.min.js of the npm package `mermaid`."""
CHROMIUM = os.environ.get("FLOWRL_CHROMIUM") or shutil.which("chromium")


@pytest.mark.skipif(
    MERMAID is None or CHROMIUM is None, reason="FLOWRL_MERMAID names no mermaid.min.js, or no Chromium"
)
def test_mermaid_itself_draws_every_op_and_the_stages_below_each_other() -> None:
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    assert MERMAID is not None
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        page.set_content("<div id='out'></div>")
        page.add_script_tag(path=Path(MERMAID))
        page.evaluate("mermaid.initialize({startOnLoad: false, securityLevel: 'strict'})")
        for make in (*PLANS.values(), plans.crowded):
            plan = make()
            page.evaluate(
                "async text => { out.innerHTML = (await mermaid.render('drawn', text)).svg }", render_mermaid(plan)
            )
            assert page.locator("#out g.node").count() == sum(len(stage.graph.ops) for stage in plan.stages)
            if len(plan.stages) > 1:
                tops = [page.locator(f"#out [id$='s{place}'].cluster").bounding_box()["y"] for place in range(2)]
                assert tops == sorted(tops)
        browser.close()


@pytest.mark.parametrize("name", PLANS)
def test_dot_has_the_arrows_of_the_graph(name: str) -> None:
    plan = PLANS[name]()
    several = len(plan.stages) > 1
    text = render_dot(plan)
    found = []
    for source, target, marks in re.findall(r'"([^"]+)" -> "([^"]+)" \[(.*)\];', text):
        kind = "weights" if "dashed" in marks else "interaction" if "dotted" in marks else "data"
        ends = [end.split(".", 1)[1] if several else end for end in (source, target)]
        found.append((*ends, kind))
    assert sorted(found) == _arrows(plan)
    assert text.count("{") == text.count("}")


@pytest.mark.parametrize("name", PLANS)
def test_svg_draws_every_op_and_arrow_inside_its_frame(name: str) -> None:
    plan = PLANS[name]()
    root = ElementTree.fromstring(render_svg(plan))
    space = "{http://www.w3.org/2000/svg}"
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    boxes = [each for each in root.iter(f"{space}rect") if each.get("class") == "op"]
    assert len(boxes) == sum(len(stage.graph.ops) for stage in plan.stages)
    for box in boxes:
        assert 0 <= float(box.attrib["x"]) <= width - float(box.attrib["width"])
        assert 0 <= float(box.attrib["y"]) <= height - float(box.attrib["height"])
    ways = [each for each in root.iter(f"{space}path") if each.get("marker-end")]
    assert len(ways) == len(_arrows(plan))
    for way in ways:
        numbers = [float(number) for number in re.findall(r"-?\d+\.\d", way.attrib["d"])]
        assert all(0 <= x <= width for x in numbers[::2])
        assert all(0 <= y <= height for y in numbers[1::2])


@pytest.mark.parametrize("name", PLANS)
def test_rows_of_markdown_tables_are_as_wide_as_their_heads(name: str) -> None:
    plan = replace(PLANS[name](), name=ODD)
    text = render_markdown(plan)
    wide = 0
    for line in text.splitlines():
        cells = len(re.findall(r"(?<!\\)\|", line)) if line.startswith("|") else 0
        assert not cells or not wide or cells == wide
        wide = cells
    assert text.count("```") == 2
    assert "<b>" not in text


def _view(page: str) -> View:
    found = re.search(r'<script type="application/json" id="view">(.*?)</script>', page, re.S)
    assert found is not None
    return msgspec.json.decode(found.group(1), type=View)


@pytest.mark.parametrize("name", PLANS)
def test_a_page_holds_its_view_and_asks_for_nothing(name: str) -> None:
    plan = PLANS[name]()
    page = render_page(plan_view(plan), "the <plan> as text")
    assert _view(page) == plan_view(plan)
    assert len(page.encode()) < 2_000_000
    asked = re.findall(r"""(?:src|href)=["']?([^"' >]+)|url\((?!#)([^)]*)\)|@import""", page)
    assert [each for each in asked if each != ("data:,", "") and "${" not in "".join(each)] == []
    assert "default-src 'none'" in page
    assert "the &lt;plan&gt; as text" in page


def test_names_cannot_leave_the_data_of_a_page() -> None:
    plan = replace(plans.colocated(), name=ODD)
    page = render_page(plan_view(plan), "text")
    assert _view(page).name == ODD
    assert page.count("</script>") == 2
    assert "<title>a &quot;quoted&quot; &lt;/script&gt;" in page
    assert "<b>" not in page.partition("<body>")[2].partition("</noscript>")[0]
