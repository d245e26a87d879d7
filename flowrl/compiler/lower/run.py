"""How long a stage runs, what it writes, and its gate: documents of the spec → values of the plan."""

from __future__ import annotations

from collections.abc import Mapping

from flowrl.compiler.lower.stage import Stage
from flowrl.diag.span import Span
from flowrl.plan.plan import Gate, StageRun
from flowrl.spec.flow import FlowSpec
from flowrl.spec.schema import RunDocument


def lower_stage_run(spec: FlowSpec, index: int) -> StageRun:
    """The run section of stage `index`."""
    stage = Stage(spec, index)
    return lower_run(stage.document.run, stage.written_keys("run", keys=("steps", "checkpoint_every_steps", "loggers")))


def lower_run(document: RunDocument, spans: Mapping[str, Span] | None = None) -> StageRun:
    """The run section of a stage, or of the whole flow."""
    return StageRun(
        spans=dict(spans or {}),
        steps=document.steps,
        seed=document.seed,
        checkpoint_every_steps=document.checkpoint_every_steps,
        keep=document.keep,
        loggers=document.loggers,
        samples_logged=document.samples_logged,
    )


def lower_gate(spec: FlowSpec, index: int) -> Gate | None:
    """The gate of stage `index`, if it has one."""
    stage = Stage(spec, index)
    document = stage.document.gate
    if document is None:
        return None
    return Gate(
        metric=document.metric,
        at_least=document.at_least,
        at_most=document.at_most,
        when=document.when,
        otherwise=document.otherwise,
        span=stage.written("gate", "metric"),
    )
