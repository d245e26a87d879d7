"""Data sets that edges name → ops of the roles `data.NAME`."""

from __future__ import annotations

from flowrl.compiler.lower.edges import CallSite
from flowrl.compiler.lower.params import data_params
from flowrl.compiler.lower.stage import Stage
from flowrl.compiler.lower.user_functions import check_call, is_function, signature_of
from flowrl.diag.diagnostic import Diagnostic
from flowrl.graph.graph import Op
from flowrl.graph.params import DataParams
from flowrl.graph.signatures import FIELDS
from flowrl.graph.types import Field, Granularity, Unit


def lower_data(stage: Stage, site: CallSite) -> Op | None:
    """One data set as an op; None where its source function is at fault."""
    name = site.name.method
    data = stage.document.data[name]
    for other in data.mix or ():
        if other not in stage.document.data or other == name:
            others = [known for known in stage.document.data if known != name]
            stage.refuse_name("FR0204", stage.key_span("data", name, "mix", other), other, others)
    params = data_params(stage, name, data)
    if not _source_readable(stage, name, params):
        return None
    own = _own_columns(params)
    _check_kept(stage, name, params, {field.name for field in own})
    kept = tuple(Field(name=column, unit=Unit.PROMPT, dtype="json") for column in params.keep)
    return Op(
        id=site.name.text,
        role=site.name.text,
        method=name,
        granularity=Granularity.PROMPT,
        outputs=(*own, *kept),
        params=params,
        span=stage.key_span("data", name) or site.span,
        spans=stage.written_keys("data", name, keys=("source", "keep", "prompt", "response")),
    )


def _own_columns(params: DataParams) -> tuple[Field, ...]:
    """The columns beside the kept ones. A set of seeds has ids and no text."""
    columns = [FIELDS["prompt_id"]]
    if params.seeds is None:
        columns.append(FIELDS["prompt"])
    if params.images is not None:
        columns.append(FIELDS["images"])
    if params.response is not None or params.chosen is not None:
        columns.append(FIELDS["response"])
    if params.chosen is not None:
        columns.append(FIELDS["pair_sign"])
    if params.tag is not None:
        columns.append(Field(name=params.tag, unit=Unit.PROMPT, dtype="str"))
    return tuple(columns)


def _check_kept(stage: Stage, name: str, params: DataParams, own: set[str]) -> None:
    for place, column in enumerate(params.keep):
        if column in own:
            taken = "is a field that this data set already makes"
            stage.refuse("FR0205", stage.span("data", name, "keep", place), name=column, taken=taken)


def _source_readable(stage: Stage, name: str, params: DataParams) -> bool:
    """Whether a source function is there and takes the arguments given. Data files are looked at by the run."""
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
