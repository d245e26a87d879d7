"""Whether the plans are the best there are, and how soon they are found: every demand on the search, measured.

    python benchmarks/search.py                                 # all sections; exits 1 if a bar is missed
    python benchmarks/search.py --section oracle --quick        # a few instances: seconds
    python benchmarks/search.py --section oracle --case 1-21    # one instance again
    python benchmarks/search.py --json                          # {sections: [{name, lines, rows, bars}]}

One core, seconds of the processor. Progress goes to stderr.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from functools import partial
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from benchmarks.searching.outcome import run_sections  # noqa: E402

SECTIONS: Mapping[str, str] = {
    "oracle": "optimum",
    "speed": "speed",
    "peers": "peers",
    "rankings": "rankings",
    "chains": "chains",
    "cycles": "cycles",
    "tails": "tails",
}
"""Name → module of benchmarks/searching with `section(quick=…) -> Outcome`, in the order they are run."""


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure what the search is judged by.")
    parser.add_argument("--json", action="store_true", help="print the sections as JSON")
    parser.add_argument("--section", action="append", choices=list(SECTIONS), help="one of them; may be repeated")
    parser.add_argument("--quick", action="store_true", help="a few cases of each: for a first look")
    parser.add_argument("--case", action="append", default=[], help="of the oracle: only this instance, SEED-NUMBER")
    options = parser.parse_args()
    names = ["oracle"] if options.case else [name for name in SECTIONS if name in (options.section or SECTIONS)]
    given = {"quick": options.quick} | ({"cases": tuple(options.case)} if options.case else {})
    sections = {
        name: partial(import_module(f"benchmarks.searching.{SECTIONS[name]}").section, **given) for name in names
    }
    return run_sections(sections, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
