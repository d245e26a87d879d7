"""balance_rates: the batch algebra of a step."""

from __future__ import annotations

from msgspec.structs import replace

from flowrl.diag.diagnostic import Diagnostic, FlowError, diagnose
from flowrl.graph.algorithms import reachable
from flowrl.graph.graph import EdgeKind, Graph, Op, Step
from flowrl.graph.params import DataParams, EstimateParams, UpdateParams
from flowrl.graph.rates import samples_per_prompt
from flowrl.graph.signatures import ESTIMATORS


def balance_rates(graph: Graph) -> Graph:
    """Solve the balance equations: how often each op fires a step, and on how many rows.

    before: step prompts=128 · actor_train.update updates=4 epochs=2
    after:  actor_train.update firings=8 (32 prompts each) · data.train prompts=128
            or FR0303 with the arithmetic and the nearest sizes that divide

    Requires: bound inputs. Ensures: updates divides prompts at every update and firings = updates·epochs; groups have
    the samples their estimator needs; a data set feeds the step's prompts where it is trained on, else all its rows.
    """
    problems = [problem for op in graph.ops for problem in _problems(graph, op)]
    if problems:
        raise FlowError(problems)
    trained = _trained(graph)
    return replace(graph, ops=tuple(_balanced(op, graph.step, op.id in trained) for op in graph.ops))


def nearest_divisors(number: int, near: int) -> tuple[int, ...]:
    """The greatest divisor of `number` below `near` and the least above it, where there is one."""
    divisors = [d for d in range(1, number + 1) if number % d == 0]
    below = [d for d in divisors if d < near]
    above = [d for d in divisors if d > near]
    return (*below[-1:], *above[:1])


def nearest_multiples(factor: int, near: int) -> tuple[int, ...]:
    """The greatest positive multiple of `factor` below `near` and the least above it."""
    below = near - near % factor
    return (*((below,) if below else ()), below + factor)


def _trained(graph: Graph) -> frozenset[str]:
    """Ops whose rows an update takes."""
    back = [(edge.target, edge.source) for edge in graph.edges if edge.kind in (EdgeKind.DATA, EdgeKind.INTERACTION)]
    return reachable((op.id for op in graph.ops if op.method == "update"), back)


def _balanced(op: Op, step: Step, trained: bool) -> Op:
    if isinstance(op.params, UpdateParams):
        return replace(op, firings=op.params.updates * op.params.epochs)
    if isinstance(op.params, DataParams):
        return replace(op, params=replace(op.params, prompts=step.prompts if trained else None))
    return op


def _problems(graph: Graph, op: Op) -> list[Diagnostic]:
    found = [_indivisible(graph.step, op), _small_group(graph, op), *_mismatched(graph, op)]
    return [problem for problem in found if problem is not None]


def _indivisible(step: Step, op: Op) -> Diagnostic | None:
    if not isinstance(op.params, UpdateParams) or step.prompts % op.params.updates == 0:
        return None
    updates = op.params.updates
    quotient, rest = divmod(step.prompts, updates)
    return diagnose(
        "FR0303",
        op.spans.get("updates") or step.spans.get("updates") or step.spans.get("prompts") or op.span,
        op=op.id,
        prompts=step.prompts,
        updates=updates,
        quotient=quotient,
        rest=rest,
        near_prompts=_either(nearest_multiples(updates, step.prompts)),
        near_updates=_either(nearest_divisors(step.prompts, updates)),
    )


def _either(numbers: tuple[int, ...]) -> str:
    return " or ".join(str(number) for number in numbers)


def _small_group(graph: Graph, op: Op) -> Diagnostic | None:
    if isinstance(op.params, EstimateParams):
        name, least = op.params.estimator, ESTIMATORS[op.params.estimator].smallest_group
    elif op.method == "compare":
        name, least = "compare", 2
    else:
        return None
    samples = samples_per_prompt(graph, op)
    if samples >= least:
        return None
    span = graph.step.spans.get("samples_per_prompt") or op.spans.get("estimator") or op.span
    return diagnose("FR0304", span, op=op.id, name=name, least=least, samples=samples)


def _mismatched(graph: Graph, op: Op) -> list[Diagnostic]:
    """Inputs that `inputs:` takes from another call of generate: by prompt, so one row each."""
    into = (edge for edge in graph.edges if edge.target == op.id and edge.kind is EdgeKind.DATA)
    crossing = {edge.source for edge in into if edge.derived}
    found: list[Diagnostic] = []
    for input in op.inputs:
        if input.chosen is None or input.source is None or input.source not in crossing:
            continue
        samples = samples_per_prompt(graph, graph.op(input.source))
        if samples != 1:
            span = input.span or op.span
            found.append(diagnose("FR0308", span, op=op.id, slot=input.slot, producer=input.source, samples=samples))
    return found
