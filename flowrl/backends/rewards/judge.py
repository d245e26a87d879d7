"""The reward of flavour `judge`: a model is asked about each response, or about each pair of a group, and a function of
the user's reads its answers. Runs in the host pool where the model is served elsewhere, else on the model's devices.

`ask` and `ask_pairs` fill the template and give the answers; `score` and `compare` make rewards of them. A request that
got no answer is a row without a reward: `on_error` says what then. Of a pair a fair half is shown in reverse, for
models favour the answer that stands first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flowrl.backends.batch import SAMPLE_ID_BITS, Batch, IntArray
from flowrl.backends.contract import Call, Metrics, RankSetup, Result
from flowrl.backends.rewards.endpoint import Answer, Endpoint, EndpointError
from flowrl.backends.rewards.function import FunctionReward
from flowrl.backends.rewards.judge_model import GENERATORS, JudgeModel, generate_params
from flowrl.backends.rewards.judge_template import JudgeTemplate
from flowrl.backends.rewards.places import parameters_of
from flowrl.backends.rewards.settled import ABORT, row_name, settled
from flowrl.backends.seeds import sample_seed
from flowrl.diag.diagnostic import FlowError, InternalError, diagnose
from flowrl.graph.graph import Op
from flowrl.graph.params import AskParams, ScoreParams

MOVES = frozenset({"load", "offload", "wake_weights", "wake_cache", "read_weights"})
"""What a judge with a model of its own does as its engine does."""


class JudgeReward:
    """One rank."""

    def __init__(self, setup: RankSetup) -> None:
        self._setup = setup
        self._model: JudgeModel | None = None
        self._endpoints: dict[str, Endpoint] = {}
        role, asks = setup.role, [op for op in setup.ops if isinstance(op.params, AskParams)]
        self._templates = {op.id: JudgeTemplate(_asked(op).template, setup.folder, role.name, role.span) for op in asks}
        for op in asks:
            self._open_endpoint(op)
        self._reads = FunctionReward(setup)
        try:
            if role.model is not None and any(_asked(op).endpoint is None for op in asks):
                self._model = _own_model(setup)
        except BaseException:
            self._reads.close()
            raise

    def __getattr__(self, name: str) -> Any:
        if name in MOVES and self._model is not None:
            return getattr(self._model.engine, name)
        raise AttributeError(name)

    def call(self, call: Call, batch: Batch) -> Result:
        """ask: prompt, response → `judge_answer` (str, or None) · ask_pairs: the same → `judge_answers`, of each row
        the answers about all pairs of its group · score, compare: these → `rewards` float32 [rows]."""
        steps = {"ask": self._ask, "ask_pairs": self._ask_pairs, "score": self._score, "compare": self._compare}
        return steps[call.op.method](call, batch)

    def close(self) -> None:
        self._reads.close()
        if self._model is not None:
            self._model.engine.close()
        for endpoint in self._endpoints.values():
            endpoint.close()

    def _open_endpoint(self, op: Op) -> None:
        asked, role = _asked(op), self._setup.role
        if asked.endpoint is None:
            return
        try:
            endpoint = Endpoint(asked.endpoint, role.name, asked.parallel, asked.timeout_seconds)
        except EndpointError as error:
            fix = "name the address up to `/chat/completions`: `https://HOST/v1`"
            problem = f"its endpoint {error}"
            raise FlowError(diagnose("FR0874", role.span, role=role.name, problem=problem, fix=fix)) from error
        self._endpoints[op.id] = endpoint

    def _ask(self, call: Call, batch: Batch) -> Result:
        template = self._templates[call.op.id]
        rows = zip(batch.objects("prompt"), batch.objects("response"), strict=True)
        requests = [template.filled(prompt, response=response) for prompt, response in rows]
        made = self._answers(call, requests, batch.ids, batch.prompt_ids)
        if made is None:
            return Result(None, {})
        answers, metrics = made
        return Result(Batch(batch.ids, batch.prompt_ids, {"judge_answer": tuple(answers)}), metrics)

    def _ask_pairs(self, call: Call, batch: Batch) -> Result:
        template, pairs = self._templates[call.op.id], pairs_of(batch.prompt_ids)
        prompts, responses = batch.objects("prompt"), batch.objects("response")
        requests = [
            template.filled(prompts[pair.first], first=responses[pair.first], second=responses[pair.second])
            for pair in pairs
        ]
        ids = np.asarray([pair.id for pair in pairs], dtype=np.int64)
        made = self._answers(call, requests, ids, ids >> SAMPLE_ID_BITS)
        if made is None:
            return Result(None, {})
        answers, metrics = made
        of_prompt: dict[int, list[str | None]] = {}
        for pair, answer in zip(pairs, answers, strict=True):
            of_prompt.setdefault(pair.id >> SAMPLE_ID_BITS, []).append(answer)
        column = tuple(of_prompt.get(prompt, []) for prompt in batch.prompt_ids.tolist())
        return Result(Batch(batch.ids, batch.prompt_ids, {"judge_answers": column}), metrics)

    def _answers(
        self, call: Call, requests: Sequence[str], ids: IntArray, prompt_ids: IntArray
    ) -> tuple[list[str | None], Metrics] | None:
        """The answer to each request; None of those that got none. Nothing on a rank that gives no rows."""
        endpoint = self._endpoints.get(call.op.id)
        if endpoint is None:
            if self._model is None:
                raise InternalError(f"`{call.op.id}` has neither a model nor an endpoint")
            texts = self._model.ask(call, requests, ids, prompt_ids)
            return None if texts is None else (list(texts), {})
        seeds = [sample_seed(call.seed, call.op.id, id) for id in ids.tolist()]
        answers = endpoint.ask(requests, _served_sampling(_asked(call.op)), seeds)
        self._require(answers, Batch(ids, prompt_ids))
        rows = float(len(answers))
        retries = sum(answer.retries for answer in answers)
        return [a.text for a in answers], ({"retries": (retries / rows, rows)} if rows else {})

    def _require(self, answers: Sequence[Answer], rows: Batch) -> None:
        wrong = next((place for place, answer in enumerate(answers) if answer.text is None), None)
        role = self._setup.role
        if wrong is None or role.on_error != ABORT:
            return
        problem = f"its endpoint {answers[wrong].fault}, asked about {row_name(rows, wrong)}"
        fix = "see that the endpoint answers, or write `on_error: default` (score 0) or `on_error: drop` on the role"
        raise FlowError(diagnose("FR0874", role.span, role=role.name, problem=problem, fix=fix))

    def _score(self, call: Call, batch: Batch) -> Result:
        if self._setup.rank % self._setup.layout.tp:
            return Result(None, {})
        answers = batch.objects("judge_answer")
        return settled(batch, self._read(call, batch, answers), self._setup.role.on_error)

    def _compare(self, call: Call, batch: Batch) -> Result:
        """The share of its pairs that each sample wins; all of a group have none where one of its pairs has none."""
        if self._setup.rank % self._setup.layout.tp:
            return Result(None, {})
        pairs, lists = pairs_of(batch.prompt_ids), batch.objects("judge_answers")
        answers = [answer for place in _firsts(batch.prompt_ids) for answer in _list(lists[place])]
        ids = np.asarray([pair.id for pair in pairs], dtype=np.int64)
        won = self._read(call, Batch(ids, ids >> SAMPLE_ID_BITS), answers)
        return settled(batch, shares_of(pairs, won, len(batch)), self._setup.role.on_error)

    def _read(self, call: Call, rows: Batch, answers: Sequence[object]) -> npt.NDArray[np.float32]:
        """What the user's function makes of the answers that there are."""
        params = call.op.params
        assert isinstance(params, ScoreParams)
        assert params.function is not None
        there = [place for place, answer in enumerate(answers) if answer is not None]
        name = first_parameter(params.function, self._setup.folder)
        asked = rows.select(there)
        asked = Batch(asked.ids, asked.prompt_ids, {name: tuple(answers[place] for place in there)})
        found = np.full(len(rows), np.nan, dtype=np.float32)
        found[there] = self._reads.scores(call, asked)
        return found


@dataclass(frozen=True, slots=True)
class Pair:
    """Places of two rows of a group, in the order in which they are shown; `id` is unlike that of any other pair."""

    first: int
    second: int
    id: int


def pairs_of(prompt_ids: IntArray) -> list[Pair]:
    """All pairs of rows with one prompt, group after group. Every other one is shown in reverse, and of groups with one
    pair every other group's."""
    groups: dict[int, list[int]] = {}
    for place, prompt in enumerate(prompt_ids.tolist()):
        groups.setdefault(prompt, []).append(place)
    found: list[Pair] = []
    for prompt, places in groups.items():
        for number, (one, other) in enumerate(combinations(places, 2)):
            first, second = (one, other) if (prompt + number) % 2 == 0 else (other, one)
            found.append(Pair(first, second, (prompt << SAMPLE_ID_BITS) + number))
    return found


def shares_of(pairs: Sequence[Pair], won: npt.NDArray[np.float32], rows: int) -> npt.NDArray[np.float32]:
    """`won`: of each pair what its first has won, from 0 to 1; the second has the rest. The mean over a row's pairs;
    NaN for a row in none."""
    sums, counts = np.zeros(rows, dtype=np.float64), np.zeros(rows, dtype=np.float64)
    for pair, share in zip(pairs, won.tolist(), strict=True):
        sums[pair.first] += share
        sums[pair.second] += 1.0 - share
        counts[[pair.first, pair.second]] += 1.0
    with np.errstate(invalid="ignore"):
        return (sums / counts).astype(np.float32)


def first_parameter(function: str, folder: Path) -> str:
    """The name that a function of the user's gives its first parameter."""
    return next(iter(parameters_of(function, folder) or ()), "reply")


def _firsts(prompt_ids: IntArray) -> list[int]:
    """Of each group the place of its first row, in the order of groups in `pairs_of`."""
    return [prompt_ids.tolist().index(prompt) for prompt in dict.fromkeys(prompt_ids.tolist())]


def _list(value: object) -> Sequence[object]:
    return value if isinstance(value, list | tuple) else ()


def _asked(op: Op) -> AskParams:
    assert isinstance(op.params, AskParams)
    return op.params


def _served_sampling(asked: AskParams) -> dict[str, Any]:
    """The keys of the request; an endpoint has limits of its own for what the flow does not say."""
    params = generate_params(asked.sampling)
    found: dict[str, Any] = {"temperature": params.temperature, "top_p": params.top_p}
    if "max_response_tokens" in asked.sampling:
        found["max_tokens"] = params.max_response_tokens
    return found | ({"stop": list(params.stop)} if params.stop else {})


def _own_model(setup: RankSetup) -> JudgeModel:
    role = setup.role
    if role.backend not in GENERATORS:
        what, known = (
            f"`{role.name}`: a judge on backend `{role.backend or 'fsdp'}`",
            ", ".join(f"`{b}`" for b in GENERATORS),
        )
        raise FlowError(diagnose("FR0801", role.spans.get("backend", role.span), what=what, known=known))
    return JudgeModel(setup)
