"""The front doors: YAML and Python → FlowSpec. The only place that knows YAML, Jinja2 or pydantic."""

from flowrl.spec.flow import FlowSpec, Origin, OriginKind
from flowrl.spec.pipeline import load, loads

__all__ = ["FlowSpec", "Origin", "OriginKind", "load", "loads"]
