"""How many rows one firing of an op is expected to have, with where each figure comes from. No hardware, no lengths.

Fixed counts are those of the balance equations (graph/rows.py). What the data decides is expected: `keep` of
`assume.FILTER.select` is the share that a filter keeps (all, if it says nothing), `share` of `assume.REWARD.score` that
of the samples which a router sends to a reward (that of its source in a mixture, else an equal one).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, cast

from flowrl.graph.graph import Graph, Op
from flowrl.graph.judges import asks_pairs, judge_method, judge_of
from flowrl.graph.params import AskParams, DataParams, FilterParams, ScoreParams, UpdateParams
from flowrl.graph.rows import rows_of
from flowrl.graph.types import Granularity
from flowrl.placement.cost.ledger import Given
from flowrl.placement.request import Assumption, PlacementRequest


@dataclass(frozen=True, slots=True)
class Rows:
    """Of one firing of an op: `prompts` prompts with `samples` samples each (1 where it works on prompts)."""

    prompts: Given
    samples: Given

    @property
    def count(self) -> int:
        return ceil(self.prompts.value * self.samples.value - 1e-9)


class Counts:
    """Row counts of the ops of one graph. Pure; made once and asked often."""

    def __init__(self, graph: Graph, request: PlacementRequest) -> None:
        self.graph, self.request = graph, request
        self._rows = rows_of(graph)
        self._shares = _route_shares(graph)

    def rows(self, op: Op) -> Rows:
        """A validation set's size is not known before it is read: `step.prompts` stands for it, or `assume`."""
        if asks_pairs(op):
            each = self._rows.samples_per_prompt(op)
            pairs = Given(each * (each - 1) // 2, f"pairs of {each} samples")
            return Rows(self._prompts(op), pairs)
        prompts, samples = self._prompts(op), self._samples(op)
        share = self._share(op)
        if share is not None:
            prompts = Given(prompts.value * share.value, f"{prompts.origin}; {share.origin}")
        if isinstance(op.params, UpdateParams):
            updates = max(1, op.params.updates)
            where = self.request.origin("roles", op.role, "update", "updates")
            where = where if where != "default" else self.request.origin("step", "updates")
            prompts = Given(max(1, prompts.value / updates), f"{prompts.origin} / {updates} updates, {where}")
        return Rows(prompts, samples)

    def space(self, op: Op) -> frozenset[str]:
        """The calls of generate, or the data sets, whose rows the op works on."""
        return self._rows.space(op)

    def assumed(self, op: Op) -> Assumption | None:
        """What `assume:` says of the op, or of its role's op without a label; of a judge's inner call, of the judge."""
        said = self.request.assume
        return said.get(judge_of(op)) or said.get(f"{op.role}.{judge_method(op.method)}")

    def _samples(self, op: Op) -> Given:
        if op.granularity is Granularity.PROMPT:
            return Given(1, "one row a prompt")
        origin = self.request.origin("step", "samples_per_prompt")
        for id in sorted(self._rows.space(op)):
            call = self.graph.op(id)
            if call.label is not None:
                origin = self.request.origin("roles", call.role, f"generate@{call.label}", "samples_per_prompt")
        bounds, prompts = self._rows.bounds(op), self._rows.prompts(op)
        each = self._rows.samples_per_prompt(op)
        if bounds.fixed and prompts.fixed and bounds.fixed < each * prompts.fixed:
            return Given(bounds.fixed / prompts.fixed, f"{bounds.fixed} rows of {prompts.fixed} prompts are left")
        return Given(each, origin)

    def _prompts(self, op: Op) -> Given:
        """A step's prompts, less what filters above are expected to drop, more what refill is expected to draw."""
        step, origin = self.graph.step, self.request.origin("step", "prompts")
        prompts = self._rows.prompts(op)
        if prompts.most is None:
            return self._validated(op) or Given(step.prompts, origin)
        if prompts.fixed == step.prompts:
            return Given(step.prompts, origin)
        if prompts.fixed is not None:
            return Given(prompts.fixed, f"fixed by filters of {step.prompts} prompts, {origin}")
        above = self._rows.filters(op)
        kept, kept_origin = self._kept(above)
        drawn = Given(step.prompts, origin)
        if step.refill is not None:
            drawn = self._drawn()
        count = min(max(kept * drawn.value, prompts.least), prompts.most)
        return Given(count, f"{drawn.origin}; kept {kept:.0%}: {kept_origin}" if above else drawn.origin)

    def _validated(self, op: Op) -> Given | None:
        """What `assume` says of the prompts of a validation: at the op, at the call that makes its rows, or, of a data
        set, at a call that reads it alone."""
        calls = [each.id for each in self.graph.ops if each.label and self._rows.data_sets(each) == frozenset((op.id,))]
        said = ((id, self.request.assume.get(id)) for id in (op.id, *sorted(self._rows.space(op)), *calls))
        found = ((id, each) for id, each in said if each is not None and each.prompts is not None)
        return next((Given(float(each.prompts or 0), f"prompts of {id}, {each.origin}") for id, each in found), None)

    def _kept(self, filters: Sequence[Op]) -> tuple[float, str]:
        share, origins = 1.0, list[str]()
        for each in filters:
            assert isinstance(each.params, FilterParams)
            said = self.assumed(each)
            if each.params.keep_top is not None:
                own, where = each.params.keep_top, f"keep_top of {each.role}"
            elif said is not None and said.keep is not None:
                own, where = said.keep, said.origin
            else:
                own, where = 1.0, f"rule: {each.id} keeps all unless `assume` says less"
            share *= own
            origins.append(where)
        return share, "; ".join(origins)

    def _drawn(self) -> Given:
        """Round by round, `oversample` prompts for each that is still needed."""
        step = self.graph.step
        assert step.refill is not None
        dropping = [o for o in self.graph.ops if isinstance(o.params, FilterParams) and o.params.action == "drop"]
        kept, origin = self._kept(dropping)
        drawn, needed, rounds = 0.0, float(step.prompts), 0
        while needed > 1e-6 * step.prompts and rounds < step.refill.max_rounds:
            draw = needed * step.refill.oversample
            drawn, needed, rounds = drawn + draw, max(0.0, needed - draw * kept), rounds + 1
        return Given(drawn, f"drawn in {rounds} rounds of refill, {kept:.0%} kept: {origin}")

    def _share(self, op: Op) -> Given | None:
        """Of a routed reward."""
        if op.role not in self._shares or not isinstance(op.params, ScoreParams | AskParams):
            return None
        said = self.assumed(op)
        if said is not None and said.share is not None:
            return Given(said.share, f"share {said.share:.0%}, {said.origin}")
        share, origin = self._shares[op.role]
        return Given(share, f"share {share:.0%}, {origin}")


def _route_shares(graph: Graph) -> Mapping[str, tuple[float, str]]:
    """Share of samples that a router sends to each reward, and how it is known."""
    found: dict[str, tuple[float, str]] = {}
    for op in graph.ops:
        router = op.params.extra.get("router") if isinstance(op.params, ScoreParams) else None
        if not isinstance(router, dict):
            continue
        block = cast("dict[str, Any]", router)
        routes: dict[str, str] = block["routes"]
        values = {value: role for key, role in routes.items() for value in (v.strip() for v in key.split(","))}
        mixed = _mixed(graph, str(block["by"]))
        names = list(dict.fromkeys(routes.values()))
        if mixed:
            total = sum(mixed.values())
            rest = next((role for value, role in values.items() if value == "*"), None)
            sums = dict.fromkeys(names, 0.0)
            for value, share in mixed.items():
                role = values.get(value, rest)
                if role is not None:
                    sums[role] += share / total
            found |= {role: (share, "shares of the mixture") for role, share in sums.items()}
        else:
            found |= dict.fromkeys(names, (1.0 / len(names), "rule: equal shares"))
    return found


def _mixed(graph: Graph, column: str) -> Mapping[str, float]:
    """The mixture whose tag is `column`."""
    sets = (op.params for op in graph.ops if isinstance(op.params, DataParams))
    found = [data.mix for data in sets if data.tag == column and data.mix]
    return found[0] if found else {}
