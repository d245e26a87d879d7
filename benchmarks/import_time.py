"""How long `import flowrl`, the api and `flowrl --help` take, each in a new process; the median of some runs.

    python benchmarks/import_time.py

Exits 1 if the median of a line is over its limit. A benchmark, not a unit test: a busy machine makes it slower.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

RUNS = 9
LIMIT_SECONDS = {
    "import flowrl": 0.30,
    "import flowrl.api": 0.60,
    "from flowrl.cli.main import main; main(['--help'])": 0.15,
}


def seconds(code: str) -> float:
    """Wall-clock seconds of a new interpreter that runs `code`."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def main() -> int:
    bare = statistics.median(seconds("pass") for _ in range(RUNS))
    sys.stdout.write(f"{bare:6.3f} s          the interpreter alone (not subtracted)\n")
    over = 0
    for code, limit in LIMIT_SECONDS.items():
        median = statistics.median(seconds(code) for _ in range(RUNS))
        over += median > limit
        sys.stdout.write(f"{median:6.3f} s of {limit:.2f}  {code}\n")
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
