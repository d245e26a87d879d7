"""Real ranks of small models, and the calls that a step makes of them: what is measured is what runs.

Takes a machine and sizes; gives ranks, calls and rows. The models are random and lie in a folder of the caller's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from flowrl.backends.batch import Batch, Column, Ragged
from flowrl.backends.contract import Call, RankSetup
from flowrl.backends.models import materialise
from flowrl.backends.registry import make_rank
from flowrl.graph.graph import Kind, Model, Op, Role
from flowrl.graph.params import EngineParams, ForwardParams, GenerateParams, OpParams, OptimizerParams, UpdateParams
from flowrl.graph.types import Granularity
from flowrl.plan.plan import Layout
from flowrl.runtime.measure.machine import NAMES, Machine
from flowrl.runtime.measure.models import HEAD, Small

MOST_TOKENS = 512


def trainer(small: Small, machine: Machine, folder: Path) -> Any:
    """A rank of `fsdp` alone."""
    role = Role(name="trainer", kind=Kind.TRAINER, backend="fsdp", trainable=True, optimizer=OptimizerParams(lr=1e-6))
    return make_rank(setup_of(role, small, folder, str(machine.device), machine.cores, NAMES[machine.dtypes[0]]))


def generator(small: Small, folder: Path, backend: str, device: str, threads: int, dtype: str) -> Any:
    """An engine of its own."""
    engine = EngineParams(kv_fraction=0.05)
    role = Role(name="generator", kind=Kind.GENERATOR, backend=backend, engine=engine)
    return make_rank(setup_of(role, small, folder, device, threads, dtype))


def setup_of(role: Role, small: Small, folder: Path, device: str, threads: int, dtype: str) -> RankSetup:
    heads = max(1, small.hidden // HEAD)
    inline = {
        "architecture": "qwen2",
        "tokenizer": "characters",
        "hidden_size": small.hidden,
        "layers": small.layers,
        "heads": heads,
        "kv_heads": heads,
        "ffn_size": small.ffn,
        "max_positions": MOST_TOKENS,
        "tie_embeddings": True,
    }
    model = Model(name="small", source="inline", dtype=dtype, inline=inline)
    made = materialise(model, folder, folder / f"{small.hidden}x{small.layers}", 0)
    return RankSetup(
        role=role,
        model=model,
        model_folder=made,
        layout=Layout(),
        device=device,
        threads=threads,
        max_tokens=MOST_TOKENS,
    )


def rows_of(count: int, tokens: int) -> Batch:
    """Rows of equal length, the second half of each a response, as an update reads them."""
    random, total = np.random.default_rng(0), count * tokens
    lengths = np.full(count, tokens, dtype=np.int64)
    columns: dict[str, Column] = {
        "tokens": Ragged(random.integers(3, 90, total).astype(np.int32), lengths),
        "loss_mask": Ragged(np.tile(np.arange(tokens) >= tokens // 2, count), lengths),
        "advantages": Ragged(random.normal(size=total).astype(np.float32), lengths),
        "old_log_probs": Ragged((-4.5 + 0.1 * random.normal(size=total)).astype(np.float32), lengths),
    }
    ids = np.arange(count, dtype=np.int64)
    return Batch(ids, ids, columns)


def prompts_of(count: int) -> Batch:
    ids = np.arange(count, dtype=np.int64)
    return Batch(ids, ids, {"prompt": tuple(f"{10 + row % 90}+{10 + 7 * row % 90}=" for row in range(count))})


def update() -> Call:
    return _call("trainer", "update", UpdateParams(loss="ppo"))


def log_probs() -> Call:
    return _call("trainer", "log_probs", ForwardParams())


def generate(tokens: int) -> Call:
    return _call("generator", "generate", GenerateParams(max_response_tokens=tokens))


def _call(role: str, method: str, params: OpParams) -> Call:
    op = Op(id=f"{role}.{method}", role=role, method=method, granularity=Granularity.SAMPLE, params=params)
    return Call(op=op, step=1, seed=0)
