"""How much work a step is: rows and tokens of each op, with where each figure comes from. No hardware.

Lengths that the flow does not fix follow two printed rules: a mean is half of the most (`assume:` overrides it), and a
prompt without `max_prompt_tokens` has at most 1,024 tokens, or what the model's positions leave beside the response.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from flowrl.graph.graph import EdgeKind, Graph, Kind, Op
from flowrl.graph.params import DataParams, ForwardParams, GenerateParams, UpdateParams
from flowrl.machine.shape import ModelShape
from flowrl.placement.ledger import Given
from flowrl.placement.request import PlacementRequest

UNKNOWN_PROMPT_TOKENS = 1024
MEAN_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class Rows:
    """Of one firing of an op: `prompts` prompts with `samples` samples each (1 where it works on prompts)."""

    prompts: Given
    samples: Given

    @property
    def count(self) -> int:
        return int(self.prompts.value * self.samples.value)


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
        used = {role.model for role in graph.roles if role.model is not None}
        positions = [shape.max_positions for name, shape in shapes.items() if name in used]
        self._positions = min(positions, default=UNKNOWN_PROMPT_TOKENS)
        self._generate = {op.label: op for op in graph.ops if isinstance(op.params, GenerateParams)}
        self._sources: dict[str, list[str]] = {}
        for edge in graph.edges:
            if edge.kind is EdgeKind.DATA:
                self._sources.setdefault(edge.target, []).append(edge.source)

    def rows(self, op: Op) -> Rows:
        """Of one firing. A validation set's size is not known before it is read: `step.prompts` stands for it."""
        step, origin = self.graph.step, self.request.origin
        prompts = Given(step.prompts, origin("step", "prompts"))
        if isinstance(op.params, UpdateParams):
            updates = max(1, op.params.updates)
            where = origin("roles", op.role, "update", "updates")
            where = where if where != "default" else origin("step", "updates")
            prompts = Given(max(1, step.prompts // updates), f"step.prompts / {updates} updates, {where}")
        samples = Given(step.samples_per_prompt, origin("step", "samples_per_prompt"))
        generate = self._generate.get(op.label)
        if op.label is not None and generate is not None and isinstance(generate.params, GenerateParams):
            where = origin("roles", generate.role, f"generate@{op.label}", "samples_per_prompt")
            samples = Given(generate.params.samples_per_prompt, where)
        if self.graph.role(op.role).kind is Kind.DATA:
            samples = Given(1, "one row a prompt")
        return Rows(prompts=prompts, samples=samples)

    def lengths(self, op: Op) -> Lengths:
        """Of the rows that `op` reads."""
        generate = op if isinstance(op.params, GenerateParams) else self._generate.get(op.label)
        data = self._data(op)
        if generate is None or not isinstance(generate.params, GenerateParams):
            return self._lengths_of_data(data, op)
        params, key = generate.params, "generate" if generate.label is None else f"generate@{generate.label}"
        most = Given(params.max_response_tokens, self._response_origin(generate.role, key))
        prompt = self._prompt_most(data, params.max_response_tokens)
        assumed = self.request.assume.get(generate.id) or self.request.assume.get(f"{generate.role}.generate")
        mean = Given(MEAN_SHARE * most.value, f"rule: half of max_response_tokens ({most.origin})")
        if assumed is not None and assumed.response_tokens is not None:
            mean = Given(min(assumed.response_tokens, most.value), assumed.origin)
        tail = most
        if assumed is not None and assumed.response_tokens_p99 is not None:
            tail = Given(min(max(assumed.response_tokens_p99, mean.value), most.value), assumed.origin)
        return Lengths(prompt, _half(prompt), most, mean, tail, params.max_context_tokens)

    def seconds(self, op: Op) -> Given | None:
        """What `assume:` says of the latency of one call."""
        assumed = self.request.assume.get(op.id) or self.request.assume.get(f"{op.role}.{op.method}")
        return None if assumed is None or assumed.seconds is None else Given(assumed.seconds, assumed.origin)

    def _response_origin(self, role: str, key: str) -> str:
        found = self.request.origin("roles", role, key, "max_response_tokens")
        return found if found != "default" else self.request.origin("roles", role, "generate", "max_response_tokens")

    def _data(self, op: Op) -> tuple[str, DataParams] | None:
        """The nearest data set upstream of an op, else the first one."""
        seen, queue = {op.id}, [op.id]
        by_id = {each.id: each for each in self.graph.ops}
        while queue:
            here = by_id.get(queue.pop(0))
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
        """A given response (supervised) has no limit of its own: what fits the positions and one micro-batch."""
        limit = self._positions
        if isinstance(op.params, UpdateParams | ForwardParams):
            limit = min(limit, op.params.micro_batch_tokens)
        prompt = self._prompt_most(data, limit // 2)
        most = Given(
            max(1, limit - int(prompt.value)), "rule: the model's positions and one micro-batch, less the prompt"
        )
        return Lengths(prompt, _half(prompt), most, _half(most), most)


def _half(most: Given) -> Given:
    return Given(MEAN_SHARE * most.value, f"rule: half of the most ({most.origin})")
