"""check_lengths: whether turns, responses, prompts and contexts can be as long as the flow says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from flowrl.diag.diagnostic import Diagnostic, FlowError, diagnose
from flowrl.graph.graph import EdgeKind, Graph, Op
from flowrl.graph.params import DataParams, EnvParams, GenerateParams


def check_lengths(graph: Graph) -> Graph:
    """Refuse lengths of which one can never be reached; the graph itself is unchanged.

    before: generate max_response_tokens=4096 max_context_tokens=2048
    after:  FR0242: prompt and response together end at 2,048

    Requires: bound inputs. Ensures: of every call of generate, turn ≤ response ≤ context, and the longest prompt leaves
    room for a response.
    """
    problems = [problem for op in graph.ops for problem in _contradictions(graph, op)]
    if problems:
        raise FlowError(problems)
    return graph


def warn_episodes(graph: Graph) -> tuple[Diagnostic, ...]:
    """FR0243 for each generator whose turns together are longer than its episode."""
    return tuple(d for op in graph.ops if (d := _cut_off(graph, op)) is not None)


def _contradictions(graph: Graph, op: Op) -> Iterator[Diagnostic]:
    params = op.params
    if not isinstance(params, GenerateParams):
        return
    response, turn, context = params.max_response_tokens, params.max_turn_tokens, params.max_context_tokens
    if turn is not None and turn > response > 0:
        yield diagnose(
            "FR0242",
            op.spans.get("max_turn_tokens") or op.span,
            problem=f"a turn of `{op.id}` may have {turn:,} tokens, its whole episode {response:,}",
            why=f"max_turn_tokens {turn:,} > max_response_tokens {response:,}, which all turns share",
            fix=f"set `max_turn_tokens: {response}` or less, or `max_response_tokens: {turn}` or more",
        )
    if context is None:
        return
    span = op.spans.get("max_context_tokens") or op.span
    data, prompt = _longest_prompt(graph, op) or ("", 1)
    if response > context:
        yield diagnose(
            "FR0242",
            span,
            problem=f"a response of `{op.id}` may have {response:,} tokens, prompt and response {context:,}",
            why=f"max_response_tokens {response:,} > max_context_tokens {context:,}",
            fix=f"set `max_context_tokens: {response + prompt}`" + _or_less("max_response_tokens", context - prompt),
        )
    elif data and prompt >= context:
        yield diagnose(
            "FR0242",
            span,
            problem=f"a prompt of `{data}` may have {prompt:,} tokens, and `{op.id}` takes {context:,} in all",
            why=f"max_context_tokens {context:,} - max_prompt_tokens {prompt:,} leaves no token for a response",
            fix=f"set `max_context_tokens: {response + prompt}`" + _or_less("max_prompt_tokens", context - 1),
        )


def _or_less(key: str, most: int) -> str:
    """A second edit, where a length is left for it."""
    return f", or `{key}: {most}` or less" if most > 0 else ""


def _longest_prompt(graph: Graph, op: Op) -> tuple[str, int] | None:
    """The data set with the longest prompts that `op` reads directly, if all of them say how long."""
    sources = {i.source for i in op.inputs}
    sets = [o for o in graph.ops if o.id in sources and isinstance(o.params, DataParams)]
    found = [(o.id, o.params.max_prompt_tokens) for o in sets if isinstance(o.params, DataParams)]
    known = [(id, tokens) for id, tokens in found if tokens is not None]
    return max(known, key=lambda each: each[1], default=None)


def _cut_off(graph: Graph, op: Op) -> Diagnostic | None:
    params = op.params
    if not isinstance(params, GenerateParams) or params.max_turn_tokens is None or params.max_turn_tokens < 1:
        return None
    turns = max((env.max_turns for env in _envs(graph, op)), default=0)
    turn, response = params.max_turn_tokens, params.max_response_tokens
    if turns * turn <= response or turn > response:
        return None
    fit = response // turn
    facts: dict[str, Any] = {"turns": turns, "turn": turn, "all": turns * turn, "response": response, "fit": fit}
    span = op.spans.get("max_turn_tokens") or op.span
    return diagnose("FR0243", span, op=op.id, short=max(1, response // turns), s="" if fit == 1 else "s", **facts)


def _envs(graph: Graph, op: Op) -> Iterator[EnvParams]:
    turns = (e for e in graph.declared if e.kind is EdgeKind.INTERACTION and op.id in (e.source, e.target))
    ends = {e.target if e.source == op.id else e.source for e in turns}
    yield from (o.params for o in graph.ops if o.id in ends and isinstance(o.params, EnvParams))
