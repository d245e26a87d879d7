"""How much work a step is: tokens of each op's rows and how many rows, with where each figure comes from. No hardware.

Lengths that the flow does not fix follow three printed rules: a mean is a share of the most that the profile states
(`assume:` overrides it), lengths are lognormal around it and cut off at the most, and a prompt without
`max_prompt_tokens` has at most 1,024 tokens, or what the model's positions leave beside the response.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import log, sqrt

from flowrl.graph.graph import EdgeKind, Graph, Op
from flowrl.graph.interactions import interactions
from flowrl.graph.judges import asks_pairs, inner_of, reads_answers
from flowrl.graph.params import AskParams, DataParams, EnvParams, ForwardParams, GenerateParams, UpdateParams
from flowrl.machine.shape import ModelShape
from flowrl.placement.cost.counts import Counts, Rows
from flowrl.placement.cost.denoiser import denoise_passes, image_lengths
from flowrl.placement.cost.ledger import Given
from flowrl.placement.cost.lengths import LengthTable, constant, empirical, lognormal, mean_and_p99
from flowrl.placement.request import Assumption, PlacementRequest
from flowrl.plan.plan import LedgerLine

UNKNOWN_PROMPT_TOKENS = 1024
MEAN_SHARE = 0.5
JUDGE_TOKENS = 512
"""Of a judge's answer that has no limit of its own. Assumed."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens of a row. The most bounds memory, the mean makes time."""

    prompt_most: Given
    prompt_mean: Given
    response_most: Given
    response_mean: Given
    response_tail: Given
    """The longest that is likely: `assume:`'s 99th percentile, else the most."""
    context: int | None = None
    """`max_context_tokens`, which prompt and response together do not exceed."""
    table: LengthTable | None = None
    """Of responses; None: all are as long as the mean."""

    @property
    def responses(self) -> LengthTable:
        return self.table or constant(max(1.0, float(self.response_mean.value)))

    @property
    def weighted(self) -> float:
        """Mean tokens of the row that a token is in: prompt, and E[L²]/E[L] of the response by its part of the row."""
        prompt, table = float(self.prompt_mean.value), self.responses
        whole = prompt + table.mean
        return (prompt * prompt + 2 * prompt * table.mean + table.square) / max(whole, 1e-9)

    def busiest(self, rows: float, ranks: int) -> float:
        """Tokens of the busiest of `ranks` ranks over the mean, each with `rows` rows that chance sent to it: the
        highest of so many sums, sqrt(2 ln ranks) standard deviations above their mean, and no more than one rank's."""
        table = self.responses
        deviation = max(0.0, table.square - table.mean * table.mean) ** 0.5
        spread = deviation / max(self.mean, 1e-9) / max(1.0, rows) ** 0.5
        return min(1.0 + spread * sqrt(2 * log(ranks)) if ranks > 1 else 1.0, float(ranks))

    def padding(self, parts: int) -> float:
        """Padded tokens over real ones where rows are sorted by length, cut into `parts` and padded in each."""
        prompt, table = float(self.prompt_mean.value), self.responses
        return (prompt + table.padded(parts)) / max(prompt + table.mean, 1e-9)

    @property
    def most(self) -> int:
        both = int(self.prompt_most.value + self.response_most.value)
        return both if self.context is None else min(both, self.context)

    @property
    def mean(self) -> float:
        return float(self.prompt_mean.value + self.response_mean.value)


class Workload:
    """Rows and lengths of the ops of one graph. Pure; made once and asked often."""

    def __init__(self, graph: Graph, shapes: Mapping[str, ModelShape], request: PlacementRequest) -> None:
        self.graph = graph
        self.request = request
        self.shapes = shapes
        used = {role.model for role in graph.roles if role.model is not None}
        positions = [s.max_positions for name, s in shapes.items() if name in used and s.max_positions]
        self._positions = min(positions, default=UNKNOWN_PROMPT_TOKENS)
        self._counts = Counts(graph, request)
        self._ops = {op.id: op for op in graph.ops}
        self._interactions = interactions(graph)
        self.lines: dict[tuple[object, ...], dict[tuple[object, ...], list[LedgerLine]]] = {}
        """Ledger lines of roles at work, kept by memory/role.py for the candidates of one search."""
        self._rows: dict[str, Rows] = {}
        self._lengths: dict[str, Lengths] = {}
        self._passes: dict[str, Given | None] = {}
        self._sources: dict[str, list[str]] = {}
        for edge in graph.edges:
            if edge.kind is EdgeKind.DATA:
                self._sources.setdefault(edge.target, []).append(edge.source)

    def rows(self, op: Op) -> Rows:
        """Of one firing, as expected."""
        found = self._rows.get(op.id)
        if found is None:
            found = self._rows[op.id] = self._counts.rows(op)
        return found

    def writes_text(self, op: Op) -> bool:
        """Whether an engine decodes in the op: generate, or the inner call of a judge with a model of its own."""
        return isinstance(op.params, GenerateParams) or (
            isinstance(op.params, AskParams) and self._model(op) is not None
        )

    def lengths(self, op: Op) -> Lengths:
        """Of the rows that `op` reads, or of a judge's calls. A denoiser's are its steps: see `passes`."""
        found = self._lengths.get(op.id)
        if found is None:
            found = self._lengths[op.id] = self._lengths_of(op)
        return found

    def _lengths_of(self, op: Op) -> Lengths:
        if isinstance(op.params, AskParams):
            return self._asked(op, op.params)
        if reads_answers(op):
            return self.lengths(self._ops[inner_of(op)])
        generate = self._generate(op)
        data = self._data(op)
        if generate is None:
            return self._lengths_of_data(data, op)
        params, key = generate.params, "generate" if generate.label is None else f"generate@{generate.label}"
        assert isinstance(params, GenerateParams)
        image = image_lengths(params, self._shape(generate), key)
        if image is not None:
            return Lengths(*image)
        most = Given(params.max_response_tokens, self._response_origin(generate.role, key))
        prompt = self._prompt_most(data, params.max_response_tokens)
        assumed = self._counts.assumed(generate)
        mean, tail, table = self._responses(most, assumed)
        return Lengths(prompt, _half(prompt), most, mean, tail, params.max_context_tokens, table)

    def _responses(self, most: Given, assumed: Assumption | None) -> tuple[Given, Given, LengthTable]:
        """Mean, likely longest and distribution of responses of at most `most` tokens."""
        rule = self.request.profile.lengths
        mean = Given(
            rule.mean_share * most.value, f"rule: {rule.mean_share:.0%} of max_response_tokens ({most.origin})"
        )
        if assumed is not None and assumed.response_tokens is not None:
            mean = Given(min(assumed.response_tokens, most.value), assumed.origin)
        longest, middle = max(1.0, float(most.value)), max(1.0, float(mean.value))
        if assumed is not None and assumed.response_lengths:
            table = empirical(tuple(min(each, longest) for each in assumed.response_lengths))
            which = f"of {len(assumed.response_lengths):,} {assumed.response_rule or 'measured responses'}"
            mean = Given(table.mean, f"mean {which}, {assumed.origin}")
            return mean, Given(table.most, f"longest {which}, {assumed.origin}"), table
        if assumed is None or assumed.response_tokens_p99 is None:
            return mean, most, lognormal(middle, longest, rule.spread)
        tail = Given(min(max(assumed.response_tokens_p99, mean.value), most.value), assumed.origin)
        return mean, tail, mean_and_p99(middle, float(tail.value), longest)

    def passes(self, op: Op) -> Given | None:
        """Of a denoiser: forward passes of one sample in the op; None for a model of tokens."""
        if op.id not in self._passes:
            generate = self._generate(op)
            if generate is None or not isinstance(generate.params, GenerateParams):
                self._passes[op.id] = None
            else:
                self._passes[op.id] = denoise_passes(generate.params, op, self._shape(generate))
        return self._passes[op.id]

    def interaction(self, op: Op) -> tuple[Op, ...]:
        """The ops that must be live with `op`, itself among them; empty if there is none."""
        return next((tuple(self._ops[id] for id in group) for group in self._interactions if op.id in group), ())

    def turns(self, op: Op) -> Given:
        """Mean turns of an episode of an environment's step, as assumed of it or of a generator that it talks to."""
        for each in (op, *self.interaction(op)):
            said = self._counts.assumed(each)
            if said is not None and said.turns is not None:
                return Given(said.turns, said.origin)
        most = op.params.max_turns if isinstance(op.params, EnvParams) else 1
        return Given(max(1.0, MEAN_SHARE * most), f"rule: half of max_turns {most}")

    def _generate(self, op: Op) -> Op | None:
        """The call of generate whose rows `op` works on: its own, the one it reads, else the longest of its space."""
        if isinstance(op.params, GenerateParams):
            return op
        read = [self._ops[i.source] for i in op.inputs if i.source is not None]
        calls = [o for o in read if isinstance(o.params, GenerateParams)]
        calls = calls or [self._ops[id] for id in sorted(self._counts.space(op))]
        made = [(o.params.max_response_tokens, o) for o in calls if isinstance(o.params, GenerateParams)]
        return max(made, key=lambda each: each[0])[1] if made else None

    def _asked(self, op: Op, params: AskParams) -> Lengths:
        """A judge's model reads the prompt with its response, or both responses of a pair. The template is not
        counted."""
        generate, data = self._generate(op), self._data(op)
        read = self.lengths(generate) if generate is not None else self._lengths_of_data(data, op)
        count = 2 if asks_pairs(op) else 1
        how = f"prompt and {count} response{'s' if count > 1 else ''}; the judge's template is not counted"
        most = read.prompt_most.value + count * read.response_most.value
        mean = read.prompt_mean.value + count * read.response_mean.value
        sampling = params.sampling
        longest = sampling.get("max_response_tokens")
        answer = Given(longest or JUDGE_TOKENS, f"roles.{op.role}.generate" if longest else "rule: a judge's answer")
        said = self._counts.assumed(op)
        half = _half(answer)
        if said is not None and said.response_tokens is not None:
            half = Given(min(said.response_tokens, answer.value), said.origin)
        return Lengths(Given(most, how), Given(mean, how), answer, half, answer, sampling.get("max_context_tokens"))

    def _model(self, op: Op) -> str | None:
        return self.graph.role(op.role).model

    def _shape(self, op: Op) -> ModelShape | None:
        return self.shapes.get(self._model(op) or "")

    def seconds(self, op: Op) -> Given | None:
        """What `assume:` says of the latency of one call."""
        assumed = None if reads_answers(op) else self._counts.assumed(op)  # a judge's are of its inner call
        return None if assumed is None or assumed.seconds is None else Given(assumed.seconds, assumed.origin)

    def longest_call(self, op: Op, calls: float) -> Given | None:
        """Expected seconds of the longest of `calls` calls, where `assume:` gives their 99th percentile: lognormal."""
        assumed = None if reads_answers(op) else self._counts.assumed(op)
        if assumed is None or assumed.seconds is None or assumed.seconds_p99 is None:
            return None
        mean, p99 = max(assumed.seconds, 1e-9), assumed.seconds_p99
        longest = mean_and_p99(mean, p99, 10 * max(p99, mean)).longest_of(calls)
        return Given(longest, f"longest of {calls:,.0f}, 99 % within {p99:g} s, {assumed.origin}")

    def _response_origin(self, role: str, key: str) -> str:
        found = self.request.origin("roles", role, key, "max_response_tokens")
        return found if found != "default" else self.request.origin("roles", role, "generate", "max_response_tokens")

    def _data(self, op: Op) -> tuple[str, DataParams] | None:
        """The nearest data set upstream of an op, else the first one."""
        seen, queue = {op.id}, [op.id]
        while queue:
            here = self._ops.get(queue.pop(0))
            if here is not None and isinstance(here.params, DataParams):
                return here.id, here.params
            fresh = [source for source in self._sources.get(here.id if here else "", []) if source not in seen]
            seen.update(fresh)
            queue.extend(fresh)
        return next(((each.id, each.params) for each in self.graph.ops if isinstance(each.params, DataParams)), None)

    def _prompt_most(self, data: tuple[str, DataParams] | None, response: int) -> Given:
        if data is not None and data[1].max_prompt_tokens is not None:
            return Given(data[1].max_prompt_tokens, self.request.origin(*data[0].split("."), "max_prompt_tokens"))
        room = max(1, min(UNKNOWN_PROMPT_TOKENS, self._positions - response))
        name = data[0] if data is not None else "the prompt"
        return Given(room, f"rule: {name} has no max_prompt_tokens")

    def _lengths_of_data(self, data: tuple[str, DataParams] | None, op: Op) -> Lengths:
        """A given response (supervised) has no limit of its own: what fits the positions and one micro-batch. It has
        half of that unless `assume` says how many tokens."""
        limit = self._positions
        if isinstance(op.params, UpdateParams | ForwardParams):
            limit = min(limit, op.params.micro_batch_tokens)
        prompt = self._prompt_most(data, limit // 2)
        most = Given(
            max(1, limit - int(prompt.value)), "rule: the model's positions and one micro-batch, less the prompt"
        )
        said = self._counts.assumed(op)
        if said is not None and said.response_tokens is not None:
            mean, tail, table = self._responses(most, said)
            return Lengths(prompt, _half(prompt), most, mean, tail, None, table)
        return Lengths(prompt, _half(prompt), most, _half(most), most)


def _half(most: Given) -> Given:
    return Given(MEAN_SHARE * most.value, f"rule: half of the most ({most.origin})")
