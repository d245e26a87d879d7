"""FlowRL: a declarative compiler for the dataflow of LLM reinforcement learning.

`Flow` builds a flow in Python and `load` reads one from YAML; both are imported on first use, so that a worker, which
imports flowrl.runtime, never loads the planner (docs/adr/0006).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from flowrl.api.flow import Flow
    from flowrl.api.flow import load_flow as load

__all__ = ["Flow", "__version__", "load"]


def __getattr__(name: str) -> Any:
    if name == "Flow":
        from flowrl.api.flow import Flow

        return Flow
    if name == "load":
        from flowrl.api.flow import load_flow

        return load_flow
    raise AttributeError(f"module `flowrl` has no attribute `{name}`")
