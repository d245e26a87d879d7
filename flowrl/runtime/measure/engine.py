"""An engine measured in a process of its own: `python -m flowrl.runtime.measure.engine BACKEND DTYPE PACE`.

Prints as its last line a JSON object: `steps`, of [hidden, layers, batch, seconds of steps, seconds of calls for one
token], and `weights`, seconds of taking up weights.
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
    from flowrl.runtime.measure.handover import taken_up

    with TemporaryDirectory(prefix="flowrl-measure-") as folder:
        found = steps_of(Path(folder), backend, "cpu", 1, dtype, lambda: None, quick=pace == "quick")
        weights = taken_up(Path(folder), backend, dtype)
    rows = [
        [each.small.hidden, each.small.layers, each.batch, each.times.seconds, each.first.seconds] for each in found
    ]
    sys.stdout.write("\n" + json.dumps({"steps": rows, "weights": weights.seconds}) + "\n")


if __name__ == "__main__":
    main()
