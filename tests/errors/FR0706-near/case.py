from pathlib import Path

from flowrl.diag.diagnostic import Diagnostic
from flowrl.plan.io import read


def diagnostics() -> tuple[Diagnostic, ...]:
    Path("plan.json").write_text("{}", encoding="utf-8")
    read(Path("pln.json"))
    return ()
