"""Mixes: what may stand in one, and what the record of one holds.

Takes a stage and the name of a data set, adds to the stage's problems. Each row of a mix is a row of one source: its
prompt, response, images and kept columns are the source's, and `tag` has the source's name.
"""

from __future__ import annotations

from collections.abc import Iterable

from flowrl.compiler.lower.stage import Stage
from flowrl.diag.diagnostic import Label, diagnose
from flowrl.graph.algorithms import find_cycle, reachable
from flowrl.graph.params import DataParams
from flowrl.graph.signatures import FIELDS
from flowrl.graph.types import Field, Unit

ROUNDING = 0.011
"""How far written shares may add up beside 1: three sources of 0.33."""
_OF_ALL = ("prompt", "response", "pair_sign")
"""Columns that every source of a mix makes, or none."""


def check_mixes(stage: Stage) -> None:
    """FR0204 for an unknown source, FR0230 for shares, FR0231 for a mix of itself."""
    data = stage.document.data
    pairs = {(name, other) for name, document in data.items() for other in document.mix or () if other in data}
    for name, document in data.items():
        if document.mix is None:
            continue
        for other in document.mix:
            if other not in data:
                known = [each for each in data if each != name]
                stage.refuse_name("FR0204", stage.key_span("data", name, "mix", other), other, known)
        _check_shares(stage, name, document.mix)
    while cycle := find_cycle(sorted({end for pair in pairs for end in pair}), pairs):
        name, following = cycle[0], (*cycle, cycle[0])[1]
        path = " draws from ".join(f"`{each}`" for each in (*cycle, cycle[0]))
        stage.refuse("FR0231", stage.key_span("data", name, "mix", following), path=path)
        pairs.discard((name, following))


def is_round(stage: Stage, name: str) -> bool:
    """Whether following the sources of data set `name` never ends."""
    data = stage.document.data
    pairs = [(mix, other) for mix, document in data.items() for other in document.mix or () if other in data]
    below = reachable([name], pairs)
    return find_cycle(below, [pair for pair in pairs if pair[0] in below]) is not None


def columns(params: DataParams) -> tuple[Field, ...]:
    """Everything that a row of the data set has. A set of seeds has ids and no text."""
    if params.sources:
        own = [field for source in params.sources.values() for field in columns(source)]
    else:
        own = _plain(params)
    if params.sources and params.tag is not None:
        own.append(Field(name=params.tag, unit=Unit.PROMPT, dtype="str"))
    own += [Field(name=column, unit=Unit.PROMPT, dtype="json") for column in params.keep]
    return tuple({field.name: field for field in reversed(own)}[name] for name in dict.fromkeys(f.name for f in own))


def kept(params: DataParams) -> tuple[str, ...]:
    """Columns that stay in the record under their own names, tags among them."""
    plain = _plain_names(params)
    return tuple(field.name for field in columns(params) if field.name not in plain)


def check_columns(stage: Stage, name: str, params: DataParams) -> None:
    """FR0205 for names that are taken, FR0228 for sources that differ; of the sources too."""
    own = _plain_names(params)
    taken = "is a field that this data set already makes"
    for place, column in enumerate(stage.document.data[name].keep):
        if column in own or column == params.tag:
            stage.refuse("FR0205", stage.span("data", name, "keep", place), name=column, taken=taken)
    if not params.sources:
        return
    _check_tag(stage, name, params)
    _check_alike(stage, name, params)
    for other, source in params.sources.items():
        check_columns(stage, other, source)


def _plain(params: DataParams) -> list[Field]:
    found = [FIELDS["prompt_id"]]
    if params.seeds is None:
        found.append(FIELDS["prompt"])
    if params.images is not None:
        found.append(FIELDS["images"])
    if params.response is not None or params.chosen is not None:
        found.append(FIELDS["response"])
    if params.chosen is not None:
        found.append(FIELDS["pair_sign"])
    return found


def _plain_names(params: DataParams) -> set[str]:
    if not params.sources:
        return {field.name for field in _plain(params)}
    return {name for source in params.sources.values() for name in _plain_names(source)}


def _names(params: DataParams) -> set[str]:
    return {field.name for field in columns(params)}


def _check_shares(stage: Stage, name: str, mix: dict[str, float]) -> None:
    total = sum(mix.values())
    if abs(total - 1) <= ROUNDING:
        return
    shares = ", ".join(f"{other}: {share / total:.4g}" for other, share in mix.items())
    fix = f"write `mix: {{{shares}}}`" if mix else "name one data set or more"
    stage.refuse("FR0230", stage.span("data", name, "mix"), name=name, total=f"{total:g}", fix=fix)


def _check_tag(stage: Stage, name: str, params: DataParams) -> None:
    clashing = [other for other, source in params.sources.items() if params.tag in _names(source)]
    if not clashing:
        return
    span = stage.key_span("data", clashing[0])
    also = [Label(span, f"`{clashing[0]}` has a column of that name")] if span is not None else []
    taken = f"is a column of `{clashing[0]}` already"
    problem = diagnose("FR0205", stage.span("data", name, "tag"), also=also, name=params.tag, taken=taken)
    stage.problems.append(problem)


def _check_alike(stage: Stage, name: str, params: DataParams) -> None:
    for field in _OF_ALL:
        having = [other for other, source in params.sources.items() if field in _names(source)]
        lacking = [other for other in params.sources if other not in having]
        if not having or not lacking:
            continue
        span = stage.key_span("data", name, "mix", lacking[0])
        stage.refuse("FR0228", span, having=having[0], lacking=lacking[0], field=field, fix=_fix(field, lacking[0]))
        return


def _fix(field: str, lacking: str) -> str:
    key = {"prompt": "source: …", "pair_sign": "chosen: …, rejected: …"}.get(field, f"{field}: …")
    return f"give every source one (`{lacking}: {{{key}}}`), or mix only sets of one kind"


def longest_prompt(own: DataParams, sources: Iterable[DataParams]) -> int | None:
    """The longest prompt of a mix: its own limit, else the longest of its sources, None where one has no limit."""
    limits = [source.max_prompt_tokens for source in sources]
    known = [limit for limit in limits if limit is not None]
    if own.max_prompt_tokens is not None:
        return own.max_prompt_tokens
    return max(known) if known and len(known) == len(limits) else None
