from pathlib import Path

from msgspec.structs import replace

from flowrl.diag.diagnostic import Diagnostic
from flowrl.plan.io import dumps, read
from flowrl.plan.plan import StageRun
from tests.plan.test_io import PLAN


def diagnostics() -> tuple[Diagnostic, ...]:
    text = dumps(replace(PLAN, stages=(), run=StageRun(steps=2))).decode()
    Path("plan.json").write_text(text.replace('"verdict": "fits"', '"verdict": "infeasible"'), encoding="utf-8")
    read(Path("plan.json"))
    return ()
