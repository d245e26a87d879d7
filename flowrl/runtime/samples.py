"""samples.jsonl: a few prompts a step with response, reward and weight version: the first thing anyone looks at.

Takes completions and a way to look at single rows; gives lines. One sample, the first, of each of the first prompts.
What it is shown does not grow with the length of sequences: sums of token columns, and of long texts both ends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from flowrl.backends.batch import SAMPLE_ID_BITS, Batch, Column, Ragged
from flowrl.graph.graph import Graph, Op
from flowrl.program.program import InstructionKind
from flowrl.runtime.launchers.contract import Completion, Part
from flowrl.runtime.rewards import reward_roles
from flowrl.runtime.state import StageState

Peek = Callable[[Part, Sequence[str], Sequence[int]], Batch]
Line = dict[str, object]


class SampleLog:
    def __init__(self, graph: Graph, state: StageState, peek: Peek, prompts: int) -> None:
        self._graph = graph
        self._state = state
        self._peek = peek
        self._prompts = prompts
        self._lines: dict[tuple[int, str], dict[int, Line]] = {}
        self._roles = reward_roles(graph)

    def see(self, completion: Completion) -> None:
        """Look at a completed firing: a generate call opens lines, a reward fills them in."""
        instruction = completion.work.firing.instruction
        if self._prompts == 0 or instruction.op is None:
            return
        op = self._graph.op(instruction.op)
        if op.method == "generate" and completion.parts:
            self._open(op, completion)
        if any(field.name == "rewards" for field in op.outputs):
            self._fill(op, completion)

    def take(self, step: int) -> list[Line]:
        """The lines of a step, by call and sample id; they are forgotten here."""
        keys = sorted(key for key in self._lines if key[0] == step)
        return [self._settled(line) for key in keys for _, line in sorted(self._lines.pop(key).items())]

    def _settled(self, line: Line) -> Line:
        """With its rewards in the graph's order, whichever came first: of those that an estimator reads the first is
        the line's; others only where no environment has given one. A filter's rows have none of what comes after it."""
        given = line.get("rewards")
        if not isinstance(given, dict):
            return line
        first = next((role for role, is_read in self._roles.items() if is_read and role in given), None)
        if first is None and line["reward"] is None:
            first = next(role for role in self._roles if role in given)
        reward = line["reward"] if first is None else given[first]
        return {**line, "reward": reward, "rewards": {role: given[role] for role in self._roles if role in given}}

    def _open(self, op: Op, completion: Completion) -> None:
        step = completion.work.firing.step
        ids = sorted(i for part in completion.parts for i in part.ids.tolist() if not i % 2**SAMPLE_ID_BITS)
        first, shown = self._first_prompts(completion), len(self._lines.get((step, op.id), ()))
        ids = [i for i in ids if first is None or i >> SAMPLE_ID_BITS in first][: self._prompts - shown]
        prompts = self._prompt_texts(completion, [i >> SAMPLE_ID_BITS for i in ids])
        lines = self._lines.setdefault((step, op.id), {})
        for part in completion.parts:
            rows = self._peek(part, ["response", "loss_mask", "weight_version", "rewards"], ids)
            for place, id in enumerate(rows.ids.tolist()):
                lines[id] = {
                    **({} if op.label is None else {"label": op.label}),
                    "prompt_id": id >> SAMPLE_ID_BITS,
                    "prompt": prompts.get(id >> SAMPLE_ID_BITS),
                    "response": _cell(rows.columns.get("response"), place),
                    **_tokens(rows.columns.get("loss_mask"), place),
                    "reward": _cell(rows.columns.get("rewards"), place),  # an environment's
                    "version": self._state.made_with(op, step, id),
                    **_versions(rows, place),
                }

    def _first_prompts(self, completion: Completion) -> set[int] | None:
        """Where rows come in parts, whichever are first: the prompts of the step that are shown. None: all."""
        bound = next((i for i in completion.work.inputs if i.slot == "prompt"), None)
        kind, gathers = completion.work.firing.instruction.kind, completion.work.gathers
        if kind is not InstructionKind.TAKE or bound is None or gathers is not None:
            return None
        return set(sorted(i for part in bound.record.parts for i in part.ids.tolist())[: self._prompts])

    def _prompt_texts(self, completion: Completion, prompt_ids: Sequence[int]) -> dict[int, object]:
        bound = next((i for i in completion.work.inputs if i.slot == "prompt"), None)
        found: dict[int, object] = {}
        for part in () if bound is None else bound.record.parts:
            assert bound is not None
            ids = prompt_ids if bound.by_prompt else [i << SAMPLE_ID_BITS for i in prompt_ids]  # or a reset's
            rows = self._peek(part, [bound.field], ids)
            prompts = rows.prompt_ids.tolist()
            found |= {i: _cell(rows.columns.get(bound.field), place) for place, i in enumerate(prompts)}
        return found

    def _fill(self, op: Op, completion: Completion) -> None:
        space = self._state.records.space(op)
        lines = {} if space is None else self._lines.get((completion.work.firing.step, space), {})
        for part in completion.parts if lines else ():
            rows = self._peek(part, ["rewards"], list(lines))
            for place, id in enumerate(rows.ids.tolist()):
                reward = _cell(rows.columns.get("rewards"), place)
                lines[id].setdefault("rewards", {})[op.role] = reward  # type: ignore[union-attr,index]


def single_reward(line: Line) -> Line:
    """Without `rewards` by role where there is only one."""
    rewards = line.get("rewards")
    keep = isinstance(rewards, dict) and len(rewards) > 1
    return {k: v for k, v in line.items() if keep or k != "rewards"}


def _tokens(column: Column | None, place: int) -> Line:
    """Tokens that the policy wrote: what `assume: … samples` of a later plan reads."""
    return {"response_tokens": int(column[place])} if isinstance(column, np.ndarray) else {}


def _versions(rows: Batch, place: int) -> Line:
    """Where a response went on under newer weights: [version, tokens] of each stretch of it."""
    runs = rows.columns.get("weight_version")
    stretches = runs[place] if isinstance(runs, tuple) else []
    return {"versions": stretches} if isinstance(stretches, list) and len(stretches) > 1 else {}


def _cell(column: Column | None, place: int) -> object:
    """One value for JSON; a ragged one (rewards of turns or tokens) is its sum already, an image is its size."""
    if column is None or isinstance(column, Ragged):
        return None
    value = column[place]
    if isinstance(size := getattr(value, "size", None), tuple):
        return f"image of {size[0]} x {size[1]}"
    return value.item() if isinstance(value, np.generic) else value
