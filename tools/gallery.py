"""Writes docs/gallery.md: real plans as they are told, and their pictures beside it.

    python tools/gallery.py            # write the page and its pictures
    python tools/gallery.py --check    # exit 1 and name what is not as written
    python tools/gallery.py --run RUN  # also keep what `flowrl report RUN` says, of a run of examples/quickstart.yaml

What a run measured is kept as it was, in docs/gallery/quickstart-run.txt: another machine measures other times.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from flowrl import api
from flowrl.plan.diff import diff
from flowrl.plan.plan import Plan
from flowrl.report.svg import render_svg
from flowrl.report.text import render_plan

ROOT = Path(__file__).resolve().parents[1]
FOLDER = Path("docs/gallery")
PAGE = Path("docs/gallery.md")
RAN = FOLDER / "quickstart-run.txt"
WIDTH = 100
FLOWS: Mapping[str, str] = {
    "grpo-7b": "GRPO of a 7B model on eight GPUs",
    "ppo-70b": "PPO of a 70B model on 64 GPUs",
    "async-30b-moe": "Asynchronous GRPO of a 30B mixture of experts on 128 GPUs, two versions behind",
}
HEAD = """# A gallery of plans

Made by `tools/gallery.py` from the flows in [gallery/](gallery/), and checked against the code. Each picture is
`--format svg` of its plan; `--format html` gives a page for a browser ([views](views.md)).
"""


@cache
def planned(name: str, cluster: str | None = None, sets: tuple[str, ...] = ()) -> Plan:
    """The plan of a flow of the gallery, with paths as from the repository's root."""
    return api.plan(FOLDER / f"{name}.yaml", sets, cluster)


def files() -> dict[Path, str]:
    """What the gallery consists of, by its path from the root; run from there."""
    made = {FOLDER / f"{name}.svg": render_svg(planned(name)) for name in FLOWS}
    return {**made, PAGE: "\n".join(_page())}


def _page() -> Iterator[str]:
    yield HEAD
    for name, title in FLOWS.items():
        yield f"## {title}\n\n![The dataflow of {name}](gallery/{name}.svg)\n"
        yield _told(f"flowrl plan {FOLDER / name}.yaml", render_plan(planned(name), WIDTH))
    yield "## One that does not fit\n\nIt says first what would fit, each edit planned before it is proposed.\n"
    few = planned("ppo-70b", "16xH100-80G")
    yield _told(f"flowrl plan {FOLDER}/ppo-70b.yaml --cluster 16xH100-80G", render_plan(few, WIDTH), lines=24)
    yield "## What a change changes\n"
    wider = planned("grpo-7b", None, ("step.prompts=256",))
    told = api.render_diff(diff(planned("grpo-7b"), wider, ("plan.json", f"{FOLDER}/grpo-7b.yaml")), WIDTH)
    yield _told(f"flowrl plan {FOLDER}/grpo-7b.yaml --set step.prompts=256 --against plan.json", told)
    yield "## Which cluster for the money\n"
    found = api.sweep(FOLDER / "grpo-7b.yaml", gpus=("8,16,32",), gpu=("H100-80G,H20",))
    yield _told(f"flowrl sweep {FOLDER}/grpo-7b.yaml --gpus 8,16,32 --gpu H100-80G,H20", api.render_sweep(found, WIDTH))
    yield "## The quickstart after its run\n\nEstimated and measured on two cores of a shared machine.\n"
    yield _told("flowrl report runs/quickstart", (ROOT / RAN).read_text(encoding="utf-8"))


def _told(command: str, text: str, lines: int | None = None) -> str:
    kept = text.rstrip("\n").split("\n")
    shown = kept if lines is None or len(kept) <= lines else [*kept[:lines], " …"]
    return "\n".join(["```text", f"$ {command}", "", *shown, "```", ""])


def stale() -> list[Path]:
    """What is not as it would be written now."""
    return [path for path, text in files().items() if not _is(path, text)]


def _is(path: Path, text: str) -> bool:
    return (ROOT / path).is_file() and (ROOT / path).read_text(encoding="utf-8") == text


def keep_run(run: Path) -> None:
    """The run's folder and time are nobody's business."""
    found = api.report_run(run)
    text = api.render_ran(found, WIDTH).replace(str(run), "runs/quickstart")
    (ROOT / RAN).write_text(text, encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description="Write the gallery of plans.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if something is not as written")
    parser.add_argument("--run", type=Path, metavar="RUN", help="a run of the quickstart to keep")
    options = parser.parse_args()
    if options.run is not None:
        keep_run(options.run)
    if options.check:
        found = stale()
        sys.stdout.writelines(f"stale: {path} (python tools/gallery.py writes it)\n" for path in found)
        return 1 if found else 0
    for path, text in files().items():
        (ROOT / path).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
