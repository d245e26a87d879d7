"""The scorer `vllm`: log-probs of given tokens, and the likeliest tokens at each place: prompt log-probs of an engine.

Takes token rows; gives ref_log_probs and, with `top_k` K, ref_top_log_probs and ref_top_tokens (LANGUAGE.md). One
object is one rank: one engine, or one tensor-parallel part of one. Written for vLLM 0.32, whose prompt log-probs are of
the logits as they are, at temperature 1: another temperature is refused.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from msgspec import structs

from flowrl.backends.batch import Batch, Column, Ragged
from flowrl.backends.contract import Bytes, Call, RankSetup, Result, TensorSpec
from flowrl.backends.generators.vllm_settings import (
    CPU_CACHE_LIMIT_BYTES,
    cache_bytes,
    engine_arguments,
    is_cpu,
    read_config,
)
from flowrl.backends.generators.vllm_start import last_line, name_ranks, start_engine, stop_engine
from flowrl.backends.trainers.fsdp.scorer import top_k
from flowrl.backends.trainers.fsdp.texts import Texts
from flowrl.diag.diagnostic import FlowError, InternalError, diagnose
from flowrl.graph.params import ForwardParams

Row = tuple[list[float], list[list[float]], list[list[int]]]
"""Of each token its log-prob, and the log-probs and ids of the likeliest ones in its place."""


class VllmScorer:
    """See the module. Raises FlowError FR0840 to FR0852 for what a flow or an installation has wrong."""

    def __init__(self, setup: RankSetup) -> None:
        assert setup.model is not None
        setup = replace(setup, model=structs.replace(setup.model, lora=None))
        self._setup = setup
        self._texts = Texts(setup)
        self._count = max((top_k(op) or 0 for op in setup.ops), default=0)
        self._away = False
        self._store = name_ranks(setup) if setup.layout.tp > 1 else None
        self._engine: Any = start_engine(setup, scoring_arguments(setup, self._count))

    def call(self, call: Call, batch: Batch) -> Result:
        """log_probs: tokens, loss_mask → ref_log_probs, with `top_k` K also ref_top_log_probs and ref_top_tokens, of
        the tokens under the mask and 0 elsewhere. Ranks of one engine beyond its first give no rows."""
        if call.op.method != "log_probs" or not isinstance(call.op.params, ForwardParams):
            raise InternalError(f"a scorer on vllm has no op {call.op.id}")
        if call.op.params.temperature != 1.0:
            what = (
                f"log-probs at temperature {call.op.params.temperature:g} of scorer `{self._setup.role.name}` on vllm"
            )
            known = "temperature 1, or the backends `fsdp` and `hf`"
            raise FlowError(diagnose("FR0801", call.op.span, what=what, known=known))
        if self._away:
            raise InternalError("the engine is off its devices")
        rows = self._texts.with_tokens(call, batch)
        count = top_k(call.op) or 0
        tokens = [row.tolist() for row in rows.ragged("tokens").rows()]
        scored = self._scored(tokens, count)
        if self._setup.rank % self._setup.layout.tp:
            return Result(None, {})
        return Result(Batch(batch.ids, batch.prompt_ids, _columns(scored, rows.ragged("loss_mask"), count)), {})

    def read_weights(self, manifest: Sequence[TensorSpec], buffer: Bytes, version: int) -> None:
        """As WeightTarget. Raises FlowError FR0850 or FR0851; the engine is unusable after either."""
        name, rank, span = self._setup.role.name, self._setup.rank, self._setup.role.span
        try:
            missing = self._engine.collective_rpc("flowrl_read_weights", args=(manifest, buffer))[0]
        except Exception as error:
            reason = last_line(error)
            raise FlowError(diagnose("FR0850", span, role=name, rank=rank, version=version, reason=reason)) from error
        if missing:
            raise FlowError(diagnose("FR0851", span, role=name, version=version, missing=", ".join(missing[:5])))

    def load(self) -> None:
        if self._away:
            if is_cpu(self._setup.device):
                self._engine.collective_rpc("flowrl_make_cache")
            else:
                self._engine.wake_up()
        self._away = False

    def offload(self) -> None:
        """CPU: free the KV cache. GPU: vLLM's sleep, level 1."""
        if not self._away:
            if is_cpu(self._setup.device):
                self._engine.collective_rpc("flowrl_free_cache")
            else:
                self._engine.sleep(level=1)
        self._away = True

    def close(self) -> None:
        """Stop the engine and free its memory. May be called twice."""
        if self._engine is not None:
            stop_engine(self._engine)
            self._engine = None
            gc.collect()

    def _scored(self, rows: Sequence[list[int]], count: int) -> list[Row]:
        from vllm import SamplingParams

        # An engine scores what it is prompted with only on the way to a token of its own, which is thrown away.
        sampling = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=count, detokenize=False)
        for number, row in enumerate(rows):
            self._engine.add_request(str(number), {"prompt_token_ids": row}, sampling)
        found: dict[int, Row] = {}
        while self._engine.has_unfinished_requests():
            for output in self._engine.step():
                if output.finished:
                    number = int(output.request_id)
                    found[number] = _row(rows[number], output.prompt_logprobs, count)
        return [found[number] for number in range(len(rows))]


def scoring_arguments(setup: RankSetup, count: int) -> dict[str, Any]:
    """As of an engine that generates, with room for the one token that it must write, and log-probs of raw logits."""
    arguments = engine_arguments(setup)
    tokens = arguments["max_model_len"] + 1
    arguments |= {
        "max_model_len": tokens,
        "hf_overrides": {"max_position_embeddings": max(tokens, _positions(setup))},
        "logprobs_mode": "raw_logprobs",
        "max_logprobs": max(1, count),
        "enable_prefix_caching": False,
    }
    if is_cpu(setup.device) and "kv_cache_memory_bytes" not in setup.role.engine.extra:
        assert setup.model_folder is not None
        config = read_config(setup.model_folder)
        one, all_ = (cache_bytes(setup, config, tokens, rows) for rows in (1, arguments["max_num_seqs"]))
        arguments["kv_cache_memory_bytes"] = max(one, min(all_, CPU_CACHE_LIMIT_BYTES))
    return arguments


def _positions(setup: RankSetup) -> int:
    assert setup.model_folder is not None
    return int(read_config(setup.model_folder).get("max_position_embeddings", 0))


def _row(tokens: Sequence[int], made: Sequence[Any], count: int) -> Row:
    """`made` has for each token but the first, which is None, its own log-prob and those of the likeliest, by id."""
    own, likely, ids = [0.0], [[0.0] * count], [[0] * count]
    for token, entry in zip(tokens[1:], made[1:], strict=True):
        own.append(float(entry[token].logprob))
        best = sorted((one.rank, id, float(one.logprob)) for id, one in entry.items())[:count]
        likely.append([log_prob for _, _, log_prob in best])
        ids.append([id for _, id, _ in best])
    return own, likely, ids


def _columns(rows: Sequence[Row], mask: Ragged, count: int) -> dict[str, Column]:
    inside = mask.values.astype(np.bool_)
    own = Ragged.of([np.asarray(row[0]) for row in rows], np.float32)
    columns: dict[str, Column] = {"ref_log_probs": Ragged(np.where(inside, own.values, 0), mask.lengths)}
    if count:
        for place, (name, kind) in enumerate(
            (("ref_top_log_probs", np.float32), ("ref_top_tokens", np.int32)), start=1
        ):
            made = Ragged.of([np.asarray(row[place]).reshape(-1, count) for row in rows], kind)
            columns[name] = Ragged(np.where(inside[:, None], made.values, 0).astype(kind), mask.lengths)
    return columns
