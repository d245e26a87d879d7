"""balance_rates: the batch algebra of a step."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from flowrl.diag.diagnostic import Diagnostic, FlowError, Help, InternalError, Label, diagnose
from flowrl.graph.graph import Edge, EdgeKind, Graph, Input, Op
from flowrl.graph.params import DataParams, EstimateParams, FilterParams, UpdateParams
from flowrl.graph.rates import crossing_inputs, step_rates, updates_per_step
from flowrl.graph.rows import Rows, share_of, trained_ops
from flowrl.graph.sdf import Balance, Conflict, balance
from flowrl.graph.signatures import ESTIMATORS, LOSSES
from flowrl.graph.sizes import dividing, is_whole, nearest_divisors, nearest_legal, nearest_shares


def balance_rates(graph: Graph) -> Graph:
    """Solve the balance equations: how often each op fires a step, and on how many rows.

    before: step prompts=128 · actor_train.update updates=4 epochs=2
    after:  actor_train.update firings=8 (32 prompts each) · data.train prompts=128
            or FR0303 with the arithmetic and the nearest sizes that divide

    Requires: bound inputs. Ensures: the firings are the repetition vector of `step_rates`, which has no conflict;
    groups have the samples their estimator needs and stay whole; no minibatch depends on how many rows a filter leaves;
    a data set feeds the step's prompts where it is trained on, else all its rows.
    """
    rows = Rows(graph)
    problems = [problem for op in graph.ops for problem in _of_op(graph, rows, op)]
    if not any(problem.code == "FR0313" for problem in problems):  # rows below such a filter are not known
        rates = step_rates(graph, rows)
        solved = balance(rates.actors, rates.channels)
        problems += _of_conflicts(graph, rows, solved)
        if not problems:
            return _balanced(graph, {op.id: solved.repetitions[rates.actor_of[op.id]] for op in graph.ops})
    raise FlowError(problems)


def _balanced(graph: Graph, firings: dict[str, int]) -> Graph:
    trained = trained_ops(graph)

    def fed(op: Op) -> Op:
        if op.firings != firings[op.id]:
            op = replace(op, firings=firings[op.id])
        if not isinstance(op.params, DataParams):
            return op
        return replace(op, params=replace(op.params, prompts=graph.step.prompts if op.id in trained else None))

    return replace(graph, ops=tuple(map(fed, graph.ops)))


def _of_op(graph: Graph, rows: Rows, op: Op) -> Iterator[Diagnostic]:
    found = (_small_group(graph, rows, op), _part_of_a_row(graph, rows, op))
    yield from (problem for problem in found if problem is not None)
    if isinstance(op.params, UpdateParams):
        yield from _of_filters(graph, rows, op, op.params)


def _small_group(graph: Graph, rows: Rows, op: Op) -> Diagnostic | None:
    if isinstance(op.params, EstimateParams):
        name, least = op.params.estimator, ESTIMATORS[op.params.estimator].smallest_group
    elif op.method == "compare":
        name, least = "compare", 2
    elif isinstance(op.params, FilterParams) and op.params.rule in ("zero_spread", "spread"):
        name, least = f"rule: {op.params.rule}", 2
    else:
        return None
    samples = rows.samples_per_prompt(op)
    if samples >= least:
        return _left_too_small(rows, op, name, least)
    span = graph.step.spans.get("samples_per_prompt") or op.spans.get("estimator") or op.span
    return diagnose("FR0304", span, op=op.id, name=name, least=least, samples=samples)


def _left_too_small(rows: Rows, op: Op, name: str, least: int) -> Diagnostic | None:
    """FR0304 at the filter above that leaves fewer samples of each prompt than the op compares."""
    width = rows.samples_per_prompt(op)
    for each in rows.filters(op):
        params = each.params
        if not isinstance(params, FilterParams) or params.keep_top is None or params.within != "group":
            continue
        left = share_of(params.keep_top, width) if params.unit == "sample" else width
        if 0 < left < least:
            helps = [Help(text=f"let `{each.role}` keep more: `keep_top: {least / width:.4g}` is {least} of {width}")]
            span = each.spans.get("keep_top") or each.span
            return diagnose("FR0304", span, helps=helps, op=op.id, name=name, least=least, samples=int(left))
    return None


def _part_of_a_row(graph: Graph, rows: Rows, op: Op) -> Diagnostic | None:
    """A fixed share that is no whole count, or none at all."""
    params = op.params
    if not isinstance(params, FilterParams) or params.keep_top is None or rows.refilled(op):
        return None
    prompts, samples = rows.nominal(op)
    count, what = (prompts, "groups") if params.unit == "group" else (samples, "samples")
    in_group = params.unit == "sample" and params.within == "group" and prompts > 0
    if in_group:
        count, what = samples // prompts, "samples of a prompt"
    left = share_of(params.keep_top, count)
    if rows.bounds(op).fixed is None or count == 0 or is_whole(params.keep_top, count):
        return None
    share, width = params.keep_top, 1 if params.unit == "group" or in_group else samples // prompts
    sizes = nearest_legal(lambda n: is_whole(share, n * width), count // width)
    legal = [f"keep_top {_either(nearest_shares(share, count))}"]
    if in_group or prompts == graph.step.prompts:
        key = "samples_per_prompt" if in_group else "prompts"
        legal += [f"{key} {_either(sizes)}"] if sizes else []
    span = op.spans.get("keep_top") or op.span
    product = f"{float(left):.6g}"
    return diagnose(
        "FR0313",
        span,
        share=f"{params.keep_top:g}",
        count=count,
        what=what,
        product=product,
        legal="; or ".join(legal),
    )


def _of_filters(graph: Graph, rows: Rows, op: Op, params: UpdateParams) -> Iterator[Diagnostic]:
    """What filters above an update must not do to its minibatches."""
    filters = [(f, f.params) for f in rows.filters(op) if isinstance(f.params, FilterParams)]
    random = [f for f, p in filters if p.keep_top is None or (p.unit == "sample" and p.within == "step")]
    if params.updates > 1 and rows.prompts(op).fixed is None:
        span = op.spans.get("updates") or graph.step.spans.get("updates") or op.span
        dropping = random[0].role if random else "when_stale: drop"
        instead = f"let `{dropping}` have `action: mask`" if random else "set `when_stale: wait`"
        yield diagnose("FR0314", span, op=op.id, updates=params.updates, dropping=dropping, instead=instead)
    if not LOSSES[params.loss].whole_groups:
        return
    paired = next((o for o in graph.ops if o.id in {i.source for i in op.inputs if i.slot == "pair_sign"}), None)
    before = {f.id for f in rows.filters(paired)} if paired is not None else set[str]()
    for each, own in filters:
        if own.unit == "sample" and each.id not in before:
            span = each.spans.get("unit") or each.span
            yield diagnose("FR0315", span, filter=each.role, op=op.id, loss=params.loss)


def _of_conflicts(graph: Graph, rows: Rows, solved: Balance) -> Iterator[Diagnostic]:
    """One diagnostic for each update, weights edge or input that the equations leave no number of firings."""
    told: set[tuple[str, str]] = set()
    for conflict in solved.conflicts:
        for key, problem in _told(graph, rows, conflict):
            if key not in told:
                told.add(key)
                yield problem


def _told(graph: Graph, rows: Rows, conflict: Conflict) -> Iterator[tuple[tuple[str, str], Diagnostic]]:
    channel = conflict.other[-1]
    edge = next((e for e in (*graph.edges, *graph.declared) if e.id == channel.name), None)
    if edge is not None and edge.kind is EdgeKind.WEIGHTS:
        yield ("publish", edge.id), _unpublished(graph, edge)
        return
    target = graph.op(edge.target) if edge is not None else None
    if target is not None and isinstance(target.params, UpdateParams):
        if rows.prompts(target).fixed is not None:  # else FR0314 says so
            told = _indivisible(graph, rows, target, target.params)
            yield ("divide", f"{told.labels[0]}" if told.labels else target.id), told
        return
    crossing = [i for i in crossing_inputs(rows, target) if edge and i.source == edge.source] if target else []
    if target is None or not crossing:
        ways = f"{conflict.known_firings} and {conflict.other_firings} firings"
        raise InternalError(f"`{channel.name}`: {ways} of {conflict.end} for one of {conflict.start}")
    for input in crossing:
        yield ("cross", f"{target.id} {input.slot}"), _mismatched(graph, rows, target, input)


def _mismatched(graph: Graph, rows: Rows, op: Op, input: Input) -> Diagnostic:
    """A field that `inputs:` takes from another call of generate, and not one row of it for each prompt."""
    producer = input.source or ""
    samples = rows.samples_per_prompt(graph.op(producer))
    return diagnose("FR0308", input.span or op.span, op=op.id, slot=input.slot, producer=producer, samples=samples)


def _indivisible(graph: Graph, rows: Rows, op: Op, params: UpdateParams) -> Diagnostic:
    """`updates` minibatches of equal size do not make up the prompts, less what filters with a fixed share take."""
    step, updates = graph.step, params.updates
    prompts = rows.nominal(op)[0]
    quotient, rest = divmod(prompts, updates)
    span = op.spans.get("updates") or step.spans.get("updates") or step.spans.get("prompts") or op.span
    given = step.spans.get("prompts")
    apart = given is not None and span is not None and given.file != span.file
    return diagnose(
        "FR0303",
        span,
        also=[Label(given, f"{step.prompts} prompts")] if given is not None and apart else [],
        op=op.id,
        prompts=prompts,
        left="" if prompts == step.prompts else f" (of {step.prompts}, after filters)",
        updates=updates,
        quotient=quotient,
        rest=rest,
        near_prompts=_either(nearest_legal(dividing(rows, op, updates), step.prompts)),
        near_updates=_either(nearest_divisors(prompts, updates)),
    )


def _unpublished(graph: Graph, edge: Edge) -> Diagnostic:
    assert edge.every_updates is not None
    updates = updates_per_step(graph, edge.source)
    quotient, rest = divmod(updates, edge.every_updates)
    return diagnose(
        "FR0312",
        edge.span,
        source=edge.source,
        updates=updates,
        every=edge.every_updates,
        quotient=quotient,
        rest=rest,
        near_every=_either(nearest_divisors(updates, edge.every_updates)),
    )


def _either(numbers: tuple[int | str, ...]) -> str:
    return " or ".join(str(number) for number in numbers)
