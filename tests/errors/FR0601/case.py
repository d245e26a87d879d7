"""Partial rollouts are refused earlier as not supported yet, so this case compiles without that check."""

from __future__ import annotations

from flowrl.compiler.lower.graph import lower_stage
from flowrl.compiler.passes.pipeline import run_passes
from flowrl.diag.diagnostic import Diagnostic
from flowrl.spec import load


def diagnostics() -> tuple[Diagnostic, ...]:
    return run_passes(lower_stage(load("flow.yaml", check_supported=False), 0))[1]
