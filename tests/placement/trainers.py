"""Trainers for tests of training memory: a Placed role on any backend, layout and engine keys."""

from __future__ import annotations

from typing import Any

from flowrl.graph.graph import Kind, Role
from flowrl.graph.params import EngineParams, OptimizerParams
from flowrl.machine.devices import DEVICE_CARDS, node_group
from flowrl.machine.shape import ModelShape
from flowrl.machine.traits import TRAITS
from flowrl.placement.cost.ledger import Given, bytes_of
from flowrl.placement.cost.placed import Placed
from flowrl.placement.memory.training import Lines, update_lines
from flowrl.plan.plan import Layout, Pool, RolePlacement

GPU = "H100-80G"


def trainer(
    shape: ModelShape,
    backend: str = "fsdp",
    *,
    dp: int = 1,
    tp: int = 1,
    pp: int = 1,
    cp: int = 1,
    ep: int = 1,
    recompute: str = "none",
    optimizer: str = "adamw",
    adapter: int = 0,
    trains: bool = True,
    dtype_bytes: int = 2,
    **engine: Any,
) -> Placed:
    """A trainer, or a scorer, alone on dp * tp * pp * cp devices; other keys are those of its engine."""
    role = Role(
        name="actor_train",
        kind=Kind.TRAINER if trains else Kind.SCORER,
        model="policy",
        backend=backend,
        trainable=trains,
        optimizer=OptimizerParams(name=optimizer) if trains else None,
        engine=EngineParams(**engine),
    )
    layout = Layout(dp=dp, tp=tp, pp=pp, cp=cp, ep=ep)
    names = tuple(f"node0/{place}" for place in range(dp * tp * pp * cp))
    placement = RolePlacement(role=role.name, layout=layout, recompute=recompute)
    return Placed(
        role=role,
        pool=Pool(name="train", devices=names, device=GPU, roles=(placement,)),
        shape=shape,
        traits=TRAITS[backend],
        layout=layout,
        layout_origin="test",
        offloaded=False,
        recompute=recompute,
        group=node_group(DEVICE_CARDS[GPU], "nodes", 1, len(names)),
        dtype_bytes=dtype_bytes,
        dtype_origin="test",
        kv_origin="test",
        adapter=adapter,
    )


def by_name(lines: Lines) -> dict[str, float]:
    """Ledger line → its value."""
    return {line.what: line.value for line in lines}


def peak(placed: Placed, tokens: int = 8192, micro_batches: int = 2, stage: int = 0, *, held: bool = False) -> int:
    """Bytes of an update."""
    return bytes_of(update_lines(placed, Given(tokens, "test"), micro_batches, stage, held=held))
