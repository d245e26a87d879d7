"""Data sets that edges name → ops of the roles `data.NAME`."""

from __future__ import annotations

from flowrl.compiler.lower.edges import CallSite
from flowrl.compiler.lower.mixes import check_columns, columns, is_round
from flowrl.compiler.lower.params import data_params
from flowrl.compiler.lower.stage import Stage
from flowrl.compiler.lower.user_files import check_template
from flowrl.compiler.lower.user_functions import check_call, is_function, signature_of
from flowrl.diag.diagnostic import Diagnostic
from flowrl.diag.span import Span
from flowrl.graph.graph import Op
from flowrl.graph.params import DataParams
from flowrl.graph.types import Granularity

_SHOWN = ("source", "keep", "prompt", "response", "chosen", "rejected", "template", "on_long")
"""Keys at whose places a run says what is wrong with the data."""


def lower_data(stage: Stage, site: CallSite) -> Op | None:
    """One data set as an op; None where its source function is at fault."""
    name = site.name.method
    if is_round(stage, name):
        return None
    params = data_params(stage, name)
    check_columns(stage, name, params)
    if not _sources_readable(stage, name, params):
        return None
    return Op(
        id=site.name.text,
        role=site.name.text,
        method=name,
        granularity=Granularity.PROMPT,
        outputs=columns(params),
        params=params,
        span=stage.key_span("data", name) or site.span,
        spans=_spans(stage, name, params),
    )


def _spans(stage: Stage, name: str, params: DataParams) -> dict[str, Span]:
    sources = ((f"mix.{other}", stage.key_span("data", name, "mix", other)) for other in params.sources)
    written = stage.written_keys("data", name, keys=_SHOWN)
    return written | {key: span for key, span in sources if span is not None}


def _sources_readable(stage: Stage, name: str, params: DataParams) -> bool:
    """Every fault is told, so each is looked at."""
    found = [_source_readable(stage, name, params)]
    found += [_sources_readable(stage, other, source) for other, source in params.sources.items()]
    return all(found)


def _source_readable(stage: Stage, name: str, params: DataParams) -> bool:
    """Whether a source function is there and takes the arguments given. Data files are looked at by the run."""
    if params.template is not None:
        check_template(stage, params.template, "data", name, "template")
    if not is_function(params.source):
        return True
    span = stage.span("data", name, "source")
    signature = signature_of(params.source, stage.folder, span)
    if isinstance(signature, Diagnostic):
        stage.problems.append(signature)
        return False
    function = params.source.rpartition(":")[2]
    problem = check_call(signature, params.args, function, stage.written("data", name, "args") or span)
    if problem is not None:
        stage.problems.append(problem)
    return problem is None
