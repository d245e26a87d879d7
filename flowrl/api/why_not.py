"""Answers `why not so?` of a flow: plans it, plans it again with the question's wishes, and says what that costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from flowrl.api.compile import Placed, check_spec, compile_stage, placed_stages
from flowrl.api.parts import emit_stage, step_in_parts
from flowrl.api.preflight import refused
from flowrl.api.profile import load_profile
from flowrl.diag.diagnostic import FlowError
from flowrl.explain.question import Wish, parse
from flowrl.explain.why_not import WhyNot, answered, impossible, is_planned, planned
from flowrl.explain.wished import CONVENTIONAL, Situation, to_write, wished
from flowrl.graph.graph import Kind
from flowrl.machine.cluster import Cluster
from flowrl.placement.place import place
from flowrl.placement.request import Mode
from flowrl.spec import load
from flowrl.spec.flow import FlowSpec


def why_not(
    file: str | Path,
    question: str,
    sets: Sequence[str] = (),
    cluster: str | None = None,
    profile: str | Path | None = None,
) -> WhyNot:
    """Why the plan of a flow is not as `question` has it (docs/why-not.md has the grammar).

    Raises FlowError: every fault of the flow; FR0731 to FR0733 for the question.
    """
    spec = load(file, sets)
    checked = check_spec(spec)
    if len(checked.graphs) < len(spec.stages):
        raise FlowError(checked.diagnostics)
    rates = None if profile is None else load_profile(profile)
    machine, placed = placed_stages(spec, checked, cluster, rates)
    index, wishes = _stage_of(placed, question)
    return _answer(spec, index, placed[index], machine, question, wishes)


def _stage_of(placed: Sequence[Placed], question: str) -> tuple[int, tuple[Wish, ...]]:
    """The first stage that has all names of the question. Where none has, the last one's fault is told."""
    fault: FlowError | None = None
    for index, each in enumerate(placed):
        try:
            return index, parse(question, *_names(each))
        except FlowError as error:
            fault = error
    assert fault is not None
    raise fault


def _names(placed: Placed) -> tuple[list[str], list[str]]:
    """Roles on devices, and pools: those of the plan, and of a plan that may choose those of the other modes."""
    pools = [pool for pool in placed.placement.pools if pool.devices]
    roles = [entry.role for pool in pools for entry in pool.roles]
    may_choose = placed.request.mode is not Mode.POOLS
    return roles, list(dict.fromkeys((*(pool.name for pool in pools), *(CONVENTIONAL if may_choose else ()))))


def _answer(
    spec: FlowSpec, index: int, placed: Placed, cluster: Cluster, question: str, wishes: Sequence[Wish]
) -> WhyNot:
    stage = compile_stage(spec, index, placed, cluster)
    generators = {role.name for role in placed.graph.roles if role.kind is Kind.GENERATOR}
    if all(is_planned(wish, stage.pools, generators) for wish in wishes):
        return planned(question, stage)
    at = Situation(placed.graph, cluster, placed.request)
    try:
        asked = wished(wishes, at, stage.pools, placed.shapes)
        in_parts = step_in_parts(asked.graph, placed.run, placed.shapes, asked.request, cluster)
        placement = place(asked.graph, cluster, asked.request, placed.shapes, in_parts)
    except FlowError as error:
        return impossible(question, stage, error)
    program, placement = emit_stage(asked.graph, placement, placed.run, placed.shapes, asked.request, cluster)
    other = replace(placed, graph=asked.graph, request=asked.request, placement=placement, program=program)
    stage_asked = compile_stage(spec, index, other, cluster)
    write = to_write(wishes, placed.request, asked.request)
    answer = answered(question, stage, stage_asked, placement.diagnostics, write)
    known = refused(stage)
    return msgspec.structs.replace(answer, refused=tuple(each for each in refused(stage_asked) if each not in known))
