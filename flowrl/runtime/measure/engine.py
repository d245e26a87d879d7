"""An engine measured in a process of its own: `python -m flowrl.runtime.measure.engine BACKEND DTYPE PACE`.

Prints a JSON list of [hidden, layers, batch, seconds of steps, seconds of calls for one token] as its last line.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from flowrl.backends.generators.vllm_settings import environment


def main() -> None:
    backend, dtype, pace = sys.argv[1:4]
    os.environ.update(environment("cpu", 1))
    from flowrl.runtime.measure.decoding import steps_of

    with TemporaryDirectory(prefix="flowrl-measure-") as folder:
        found = steps_of(Path(folder), backend, "cpu", 1, dtype, lambda: None, quick=pace == "quick")
    rows = [
        [each.small.hidden, each.small.layers, each.batch, each.times.seconds, each.first.seconds] for each in found
    ]
    sys.stdout.write("\n" + json.dumps(rows) + "\n")


if __name__ == "__main__":
    main()
