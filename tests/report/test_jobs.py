"""The eleven jobs of examples/flows: each is drawn as in its golden, which was read beside its YAML, and its graph
after every pass is read back from its text."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowrl import api
from flowrl.graph.text import parse_graph, without_spans
from flowrl.spec import FlowSpec, load
from tests.conftest import Golden

ROOT = Path(__file__).parents[2]
FLOWS = sorted((ROOT / "examples" / "flows").glob("*.yaml"))
GOLDEN = Path(__file__).with_name("golden") / "jobs"
WIDTH = 100


@pytest.fixture(scope="module", params=FLOWS, ids=lambda file: file.stem)
def job(request: pytest.FixtureRequest) -> Path:
    return request.param


@pytest.fixture(scope="module")
def spec(job: Path) -> FlowSpec:
    return load(job)


def test_there_are_eleven() -> None:
    assert len(FLOWS) == 11


def test_drawing_is_as_in_the_golden(job: Path, spec: FlowSpec, golden: Golden) -> None:
    text = api.draw(api.graphs_after(spec), spec.document.name, WIDTH)
    golden(GOLDEN / f"{job.stem}.txt", text)


def test_drawing_shows_every_op_within_any_width(spec: FlowSpec) -> None:
    graphs = api.graphs_after(spec)
    for width in (60, 80, 120):
        for ascii in (False, True):
            text = api.draw(graphs, spec.document.name, width, ascii=ascii)
            assert max(map(len, text.splitlines())) <= width
            assert text.isascii() or not ascii
            assert all(op.id in text for graph in graphs for op in graph.ops)


def test_graph_after_every_pass_is_read_back(spec: FlowSpec) -> None:
    for stop in api.STOPS:
        graphs = api.graphs_after(spec, stop)
        parts = api.canonical(graphs).split("# stage ") if len(graphs) > 1 else [api.canonical(graphs)]
        read = [parse_graph(part.partition("\n")[2] if len(graphs) > 1 else part) for part in parts if part]
        assert read == [without_spans(graph) for graph in graphs]
