"""The flow plans; `run` refuses the plan before anything starts."""

from __future__ import annotations

from flowrl import api
from flowrl.api.preflight import preflight
from flowrl.diag.diagnostic import Diagnostic


def diagnostics() -> tuple[Diagnostic, ...]:
    preflight(api.plan("flow.yaml"))
    return ()
