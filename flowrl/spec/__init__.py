"""The front doors: YAML and Python → FlowSpec. The only place that knows YAML, Jinja2 or pydantic."""

from flowrl.spec.builder import FlowBuilder, StageBuilder
from flowrl.spec.flow import FlowSpec, Origin, OriginKind
from flowrl.spec.json_schema import json_schema
from flowrl.spec.pipeline import load, loads
from flowrl.spec.write import to_yaml

__all__ = ["FlowBuilder", "FlowSpec", "Origin", "OriginKind", "StageBuilder", "json_schema", "load", "loads", "to_yaml"]
