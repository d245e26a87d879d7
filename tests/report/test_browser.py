"""The page in a real Chromium: it draws, answers mouse and keys, asks for nothing, and axe finds nothing to object to.

Skipped, by name, where no Chromium is installed (`apt-get install chromium`); FLOWRL_CHROMIUM names another.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flowrl import api
from flowrl.plan.plan import Plan
from flowrl.report.html.page import render_page
from flowrl.report.text import render_plan
from flowrl.report.view import SourceText, plan_view
from tests.report import plans

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = os.environ.get("FLOWRL_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed"),
    # Playwright's own event loop and sockets, closed by it.
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning"),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--font-render-hinting=none"]
        )
        yield started
        started.close()


class Opened:
    """A page with what it said and asked for."""

    def __init__(self, browser: Any, file: Path, fragment: str = "", dark: bool = False, width: int = 1400) -> None:
        scheme = "dark" if dark else "light"
        self.page = browser.new_page(
            viewport={"width": width, "height": 900}, color_scheme=scheme, reduced_motion="reduce"
        )
        self.said: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(f"{file.as_uri()}{fragment}")

    def count(self, selector: str) -> int:
        return self.page.locator(selector).count()


def _file(folder: Path, plan: Plan, sources: tuple[SourceText, ...] = ()) -> Path:
    file = folder / f"{plan.name}.html"
    passes = {stage.name: [("lowered", stage.graph), ("canonicalize", stage.graph)] for stage in plan.stages}
    file.write_text(render_page(plan_view(plan, passes, sources), render_plan(plan)), encoding="utf-8")
    return file


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("make", [plans.colocated, plans.split, plans.two_stages, plans.infeasible])
def test_a_page_draws_says_nothing_asks_for_nothing_and_is_accessible(
    browser: Any, tmp_path: Path, make: Any, dark: bool
) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed")
    plan = make()
    file = _file(tmp_path, plan)
    opened = Opened(browser, file, dark=dark)
    stage = plan.stages[0]
    assert opened.count("g.op") == len(stage.graph.ops)
    assert opened.count("g.bar:not([data-again])") == sum(span.seconds > 0 for span in stage.estimate.timeline)
    assert opened.count(".map i") == sum(g.nodes * g.devices_per_node for g in plan.cluster.groups)
    assert opened.count(".decisions > li") == len(stage.decisions)
    found = axe.Axe().run(opened.page)
    assert [(each["id"], each["nodes"][0]["html"]) for each in found.response["violations"]] == []
    assert opened.said == []
    assert opened.asked == [file.as_uri()]


def test_boxes_do_not_overlap_and_lie_within_their_pictures(browser: Any, tmp_path: Path) -> None:
    opened = Opened(browser, _file(tmp_path, plans.split()))
    boxes = [opened.page.locator("g.op").nth(n).bounding_box() for n in range(opened.count("g.op"))]
    frame = opened.page.locator(".graph svg").bounding_box()
    for place, a in enumerate(boxes):
        assert frame["x"] - 1 <= a["x"]
        assert a["x"] + a["width"] <= frame["x"] + frame["width"] + 1
        for b in boxes[place + 1 :]:
            apart_x = a["x"] + a["width"] <= b["x"] + 1 or b["x"] + b["width"] <= a["x"] + 1
            apart_y = a["y"] + a["height"] <= b["y"] + 1 or b["y"] + b["height"] <= a["y"] + 1
            assert apart_x or apart_y
    # The bar of an instruction is as long as its share of the step says, on the scale of the axis.
    stage = plans.split().stages[0]
    width = 1000 - 10 - 190
    for span in stage.estimate.timeline:
        bars = opened.page.locator(f"g.bar[data-keys^='[\"{span.instruction}\"'] rect")
        drawn = sum(float(bars.nth(n).get_attribute("width")) for n in range(bars.count()))
        if span.seconds > 0.01 * stage.estimate.step_seconds:
            assert drawn == pytest.approx(width * span.seconds / stage.estimate.step_seconds, rel=1e-3)


PINNED = "* { font-family: 'DejaVu Sans' !important; } pre, code { font-family: 'DejaVu Sans Mono' !important; }"
MOST_OFF = 0.02
"""Share of pixels that may differ: versions of Chromium smooth edges differently."""


@pytest.mark.parametrize("dark", [False, True])
def test_the_page_looks_as_it_did(browser: Any, tmp_path: Path, dark: bool, request: pytest.FixtureRequest) -> None:
    images = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    chops = pytest.importorskip("PIL.ImageChops")
    if shutil.which("fc-list") is None or "DejaVu Sans" not in subprocess.check_output(["fc-list"], text=True):
        pytest.skip("the pinned font, DejaVu Sans, is not installed")
    golden = Path(__file__).with_name("golden") / f"colocated-{'dark' if dark else 'light'}.png"
    opened = Opened(browser, _file(tmp_path, plans.colocated()), dark=dark)
    opened.page.add_style_tag(content=PINNED)
    shot = tmp_path / "shot.png"
    opened.page.screenshot(path=shot, full_page=True)
    if request.config.getoption("--update-goldens"):
        images.open(shot).convert("P", palette=images.Palette.ADAPTIVE, colors=64).save(golden, optimize=True)
    made, kept = (images.open(file).convert("RGB") for file in (shot, golden))
    assert made.size == kept.size
    differs = chops.difference(made, kept).convert("L").point(lambda value: 255 if value > 48 else 0)
    assert differs.histogram()[255] / (made.width * made.height) <= MOST_OFF


def test_what_is_chosen_is_marked_everywhere_and_kept_in_the_link(browser: Any, tmp_path: Path) -> None:
    file = _file(tmp_path, plans.colocated())
    opened = Opened(browser, file)
    page = opened.page
    page.locator('g.op[data-box="actor_train.update"]').click()
    assert page.locator("#inspector h3").inner_text().startswith("actor_train.update")
    assert opened.count("g.bar.chosen") == 4
    assert opened.count("g.phase.chosen") == 4
    assert "id=actor_train.update" in page.url
    again = Opened(browser, file, page.url[page.url.index("#") :])
    assert again.page.locator("#inspector h3").inner_text().startswith("actor_train.update")
    page.keyboard.press("Escape")
    assert opened.count(".chosen[data-keys]") == 0
    assert "id=" not in page.url


def test_keys_reach_everything_that_the_mouse_does(browser: Any, tmp_path: Path) -> None:
    opened = Opened(browser, _file(tmp_path, plans.colocated()))
    page = opened.page
    page.locator("g.op").first.focus()
    page.keyboard.press("ArrowRight")
    second = page.locator("g.op").nth(1).get_attribute("data-box")
    assert page.evaluate("document.activeElement.dataset.box") == second
    page.keyboard.press("Enter")
    assert page.locator("#inspector h3").inner_text().startswith(second)
    slider = page.locator("input.passes")
    slider.focus()
    page.keyboard.press("Home")
    assert "as written" in page.locator(".slider output").inner_text()
    page.keyboard.press("End")
    assert "canonicalize" in page.locator(".slider output").inner_text()


def test_lines_of_the_flow_are_marked_and_lead_back(browser: Any, tmp_path: Path) -> None:
    flow = Path(__file__).parents[2] / "examples" / "ppo.yaml"
    file = tmp_path / "ppo.html"
    plan = api.plan(flow)
    file.write_text(api.draw_plan(plan, "html", flow), encoding="utf-8")
    opened = Opened(browser, file)
    page = opened.page
    page.locator('.pools .role:text-is("critic")').click()
    marked = page.locator(".line.at").first.inner_text()
    assert marked.lstrip().startswith("critic:")
    page.keyboard.press("Escape")
    page.locator(".line.known", has_text="actor_infer:").first.click()
    assert page.locator("#inspector h3").inner_text().startswith("actor_infer")
    slider = page.locator("input.passes")
    for place in range(int(slider.get_attribute("max")) + 1):
        slider.fill(str(place))
    assert opened.count("g.op") == len(plan.stages[0].graph.ops)
    assert opened.said == []


def test_a_narrow_screen_and_paper_lose_nothing(browser: Any, tmp_path: Path) -> None:
    opened = Opened(browser, _file(tmp_path, plans.two_stages()), width=420)
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= 420
    opened.page.emulate_media(media="print")
    assert not opened.page.locator("aside").is_visible()
    assert opened.page.locator("#why").is_visible()
    assert len(opened.page.pdf()) > 10_000


def test_without_scripts_the_plan_is_there_as_text(browser: Any, tmp_path: Path) -> None:
    file = _file(tmp_path, plans.colocated())
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(file.as_uri())
    assert "WHERE" in page.locator("pre").inner_text()
    context.close()
