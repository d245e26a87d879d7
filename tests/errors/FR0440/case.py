"""As if vLLM 0.4.3 were installed."""

from pathlib import Path

from flowrl.api.versions import version_faults
from flowrl.compiler.lower.graph import lower_stage
from flowrl.diag.diagnostic import Diagnostic
from flowrl.spec import load


def diagnostics() -> tuple[Diagnostic, ...]:
    graph = lower_stage(load(Path("flow.yaml")), 0)
    return tuple(version_faults(graph, {"vllm": "0.4.3"}.get))
