"""Ranks, calls and batches for tests of backends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import structs

from flowrl.backends.batch import Batch, Column, Ragged
from flowrl.backends.contract import Call, RankSetup
from flowrl.backends.registry import make_rank
from flowrl.graph.graph import Kind, Model, Op, Role
from flowrl.graph.params import (
    EngineParams,
    ForwardParams,
    GenerateParams,
    OpParams,
    OptimizerParams,
    UpdateParams,
)
from flowrl.graph.types import Granularity
from flowrl.plan.plan import Layout

_KINDS = {
    Kind.TRAINER: "actor_train",
    Kind.SCORER: "reference",
    Kind.GENERATOR: "actor_infer",
    Kind.REWARD: "reward",
    Kind.ESTIMATOR: "advantage",
}


def setup_of(
    kind: Kind,
    folder: Path | None,
    backend: str | None = None,
    *,
    head: str = "lm",
    dtype: str = "float32",
    optimizer: OptimizerParams | None = None,
    engine: EngineParams | None = None,
    lora: dict[str, Any] | None = None,
    **changes: Any,
) -> RankSetup:
    name = _KINDS[kind]
    role = Role(name=name, kind=kind, backend=backend, optimizer=optimizer, engine=engine or EngineParams())
    model = None if folder is None else Model(name="m", source=str(folder), head=head, dtype=dtype, lora=lora)
    placed = {"layout": Layout(), "max_tokens": 64} | changes
    return RankSetup(role=role, model=model, model_folder=folder, **placed)


def rank_of(kind: Kind, folder: Path | None, backend: str | None = None, **changes: Any) -> Any:
    return make_rank(setup_of(kind, folder, backend, **changes))


def call_of(method: str, params: OpParams, role: str = "actor_train", step: int = 1, **changes: Any) -> Call:
    op = Op(id=f"{role}.{method}", role=role, method=method, granularity=Granularity.SAMPLE, params=params)
    return Call(op=op, step=step, seed=0, **changes)


def forward(method: str = "log_probs", **params: Any) -> Call:
    return call_of(method, ForwardParams(**params))


def update(step: int = 1, **params: Any) -> Call:
    return call_of("update", UpdateParams(**({"loss": "ppo"} | params)), step=step, max_response_tokens=10)


def generate(samples: int = 1, label: str = "", seed: int = 0, **params: Any) -> Call:
    given = GenerateParams(**({"max_response_tokens": 8} | params))
    call = call_of("generate", given, role="actor_infer", samples_per_prompt=samples)
    return replace(call, op=structs.replace(call.op, id=call.op.id + label), seed=seed)


def prompts(texts: Sequence[str], ids: Sequence[int] | None = None) -> Batch:
    positions = np.asarray(range(len(texts)) if ids is None else ids, dtype=np.int64)
    return Batch(positions, positions, {"prompt": tuple(texts)})


def sample_rows(count: int, seed: int = 0, longest: int = 12, vocab: int = 90) -> Batch:
    """Token rows of unequal length with random columns, as an update reads them. Two samples a prompt."""
    random = np.random.default_rng(seed)
    lengths = random.integers(3, longest + 1, count).astype(np.int64)
    total = int(lengths.sum())
    mask = [np.arange(n) >= random.integers(1, n - 1) for n in lengths]
    columns: dict[str, Column] = {
        "tokens": Ragged(random.integers(3, vocab, total).astype(np.int32), lengths),
        "loss_mask": Ragged.of(mask, np.bool_),
        "advantages": Ragged(random.normal(size=total).astype(np.float32), lengths),
        "returns": Ragged(random.normal(size=total).astype(np.float32), lengths),
        "values": Ragged(random.normal(size=total).astype(np.float32), lengths),
        "ref_log_probs": Ragged((-4.5 + 0.3 * random.normal(size=total)).astype(np.float32), lengths),
        "old_log_probs": Ragged((-4.5 + 0.3 * random.normal(size=total)).astype(np.float32), lengths),
        "rollout_log_probs": Ragged((-4.5 + 0.3 * random.normal(size=total)).astype(np.float32), lengths),
    }
    ids = np.arange(count, dtype=np.int64)
    return Batch((ids // 2 << 16) + ids % 2, ids // 2, columns)
