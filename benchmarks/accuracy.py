"""How FlowRL's cost model agrees with what is published: every record of the facts planned and compared.

    python benchmarks/accuracy.py                          # all sections, with fits that leave each family out
    python benchmarks/accuracy.py --no-fit                 # with the shipped profile only: quick
    python benchmarks/accuracy.py --facts DIR --json       # other records of the same files and shapes; as JSON
    python benchmarks/accuracy.py --only times --refit     # write the fitted constants into the shipped profile
    python benchmarks/accuracy.py --docs                   # then write what docs/cost/accuracy.md shows of them

Sections are modules of benchmarks/facts with `rows(facts) -> Section`. Exits 0 whatever holds: tests judge.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from benchmarks.facts import microbatch, page, phases, rank, sync, times, tracker, verdicts  # noqa: E402
from benchmarks.facts.refit import PROFILE_FILE, write_constants  # noqa: E402
from benchmarks.facts.rules_told import RULES  # noqa: E402
from benchmarks.facts.section import DATA, Facts, Section  # noqa: E402
from benchmarks.facts.table import WIDTH, step_times, text_of  # noqa: E402
from flowrl.machine.profile import PROFILE  # noqa: E402

DOCS = ROOT / "docs" / "cost"
SECTIONS: Mapping[str, Callable[[Facts], Section]] = {
    "times": times.rows,
    "rank": rank.rows,
    "phases": phases.rows,
    "microbatch": microbatch.rows,
    "tracker": tracker.rows,
    "verdicts": verdicts.rows,
    "sync": sync.rows,
}
"""In the order they are printed."""


def sections(facts: Facts, names: Sequence[str], *, fitted: bool) -> list[Section]:
    """The sections of `names`."""
    return [times.rows(facts, fitted=fitted) if name == "times" else SECTIONS[name](facts) for name in names]


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare the cost model with published records.")
    parser.add_argument("--facts", type=Path, default=DATA, help="folder with perf_published.json and the other files")
    parser.add_argument("--json", action="store_true", help="print {sections, summary} as JSON")
    parser.add_argument("--no-fit", action="store_true", help="predict with the shipped profile only")
    parser.add_argument("--only", action="append", choices=list(SECTIONS), help="a section; may be given several times")
    parser.add_argument("--refit", action="store_true", help="write the fitted constants into catalogue/profile.toml")
    parser.add_argument(
        "--docs", action="store_true", help="write tables, constants, pictures of docs/cost/accuracy.md"
    )
    options = parser.parse_args()
    if options.docs and (options.only or options.no_fit or options.refit or options.facts != DATA):
        parser.error("--docs is of the shipped profile and the repository's facts: first --refit, then --docs alone")
    wanted = page.SECTIONS if options.docs else options.only
    names = [name for name in SECTIONS if not wanted or name in wanted]
    made = sections(Facts(options.facts), names, fitted=not options.no_fit)
    steps = next((each for each in made if each.name == "step times"), None)
    if options.refit and steps is not None:
        write_constants(PROFILE_FILE, steps)
    if options.docs:
        page.write_page(DOCS, made, PROFILE)
        return
    if options.json:
        whole = {
            "sections": {each.name: {"rows": each.rows, "excluded": each.excluded} for each in made},
            "rules": dict(RULES),
            "summary": {each.name: each.summary for each in made},
        }
        print(json.dumps(whole, indent=1))  # noqa: T201
        return
    print("\n\n".join(_text(each) for each in made))  # noqa: T201


def _text(section: Section) -> str:
    if section.name != "step times":
        return text_of(section)
    told = "\n".join(f"rule of {name}: {rule}" for name, rule in RULES.items())
    return text_of(
        Section(
            section.name, section.rows, section.excluded, section.summary, f"{_wrap(told)}\n{step_times(section.rows)}"
        )
    )


def _wrap(text: str) -> str:
    import textwrap

    return "\n".join(
        part for line in text.splitlines() for part in textwrap.wrap(line, WIDTH, subsequent_indent="    ")
    )


if __name__ == "__main__":
    main()
