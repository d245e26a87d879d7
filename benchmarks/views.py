"""How long it takes to draw a plan: every view of a plan for 1,024 GPUs, in processor time of this process.

    python benchmarks/views.py [--json] [--cluster 1024xH100-80G] [--flow FILE]

The bar: each view under one second. The ratio names what the drawing is of making the plan itself.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from flowrl import api  # noqa: E402
from flowrl.api.views import FORMATS  # noqa: E402

MOST_SECONDS = 1.0
MOST_PAGE_BYTES = 2_000_000
REPEATS = 3


def main() -> int:
    parser = argparse.ArgumentParser(description="Time the views of a plan.")
    parser.add_argument("--flow", type=Path, default=ROOT / "examples" / "ppo_7b.yaml")
    parser.add_argument("--cluster", default="1024xH100-80G")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    planned = _timed(lambda: api.plan(options.flow, cluster=options.cluster), repeats=1)
    plan = api.plan(options.flow, cluster=options.cluster)
    views: dict[str, Callable[[], str]] = {
        "text": lambda: api.render(plan),
        "json": lambda: api.dumps(plan).decode(),
        "html": lambda: api.draw_plan(plan, "html", options.flow),
        **{name: (lambda draw=draw: draw(plan)) for name, draw in FORMATS.items()},
    }
    rows = [
        {
            "view": name,
            "seconds": _timed(draw, REPEATS),
            "of_planning": _timed(draw, 1) / planned,
            "bytes": len(draw().encode()),
        }
        for name, draw in views.items()
    ]
    holds = all(row["seconds"] < MOST_SECONDS for row in rows)
    holds &= next(row["bytes"] for row in rows if row["view"] == "html") < MOST_PAGE_BYTES
    if options.json:
        sys.stdout.write(json.dumps({"planning_seconds": planned, "rows": rows, "holds": holds}, indent=1) + "\n")
    else:
        sys.stdout.write(f"{options.flow.name} on {options.cluster}: planned in {planned:.2f} s\n")
        for row in rows:
            told = f"{row['seconds'] * 1000:8.1f} ms  {row['of_planning']:6.1%} of planning  {row['bytes']:>10,} bytes"
            sys.stdout.write(f"{row['view']:<10}{told}\n")
        sys.stdout.write(f"{'ok' if holds else 'MISSED'}: each under {MOST_SECONDS:g} s, the page under 2 MB\n")
    return 0 if holds else 1


def _timed(call: Callable[[], object], repeats: int) -> float:
    """The least processor time of some calls."""
    taken: list[float] = []
    for _ in range(repeats):
        start = time.process_time()
        call()
        taken.append(time.process_time() - start)
    return min(taken)


if __name__ == "__main__":
    sys.exit(main())
