"""What a run costs beside its work, and how true its plan was: every demand on the runtime, measured.

    python benchmarks/runtime.py                                # all sections; exits 1 if a bar is missed
    python benchmarks/runtime.py --section dispatch --quick     # a few steps: seconds
    python benchmarks/runtime.py --section peers --peers DIR    # beside TRL and verl, whose environments are in DIR
    python benchmarks/runtime.py --json                         # {sections: [{name, lines, rows, bars}]}

Real seconds of two cores, on a machine that does nothing else; what is compared is measured in turns in one run.
Progress goes to stderr.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from benchmarks.searching.outcome import Outcome, run_sections  # noqa: E402

SECTIONS: Mapping[str, str] = {
    "dispatch": "dispatch",
    "controller": "controller",
    "weights": "weights",
    "lag": "lag",
    "peers": "peers",
    "prediction": "prediction",
}
"""Name → module of benchmarks/running with `section(quick=…) -> Outcome`, in the order they are run."""


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure what the runtime is judged by.")
    parser.add_argument("--json", action="store_true", help="print the sections as JSON")
    parser.add_argument("--section", action="append", choices=list(SECTIONS), help="one of them; may be repeated")
    parser.add_argument("--quick", action="store_true", help="a few steps of each: for a first look")
    parser.add_argument("--peers", type=Path, help="where the environments of TRL and verl are (README.md)")
    options = parser.parse_args()
    sections: dict[str, Callable[[], Outcome]] = {}
    for name in [name for name in SECTIONS if name in (options.section or SECTIONS)]:
        given = {"quick": options.quick} | ({"peers": options.peers} if name == "peers" else {})
        sections[name] = partial(import_module(f"benchmarks.running.{SECTIONS[name]}").section, **given)
    return run_sections(sections, as_json=options.json, is_wall=True)


if __name__ == "__main__":
    sys.exit(main())
