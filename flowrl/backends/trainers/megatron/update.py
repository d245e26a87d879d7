"""One optimizer update of a minibatch that lies on all replicas in micro-batches (fsdp/update.py says of what).

The loss is taken on the last stage; the other stages learn the metrics from it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from flowrl.backends.batch import Batch
from flowrl.backends.contract import Call, Metrics
from flowrl.backends.trainers.fsdp.micro_batches import MicroBatch
from flowrl.backends.trainers.fsdp.update import Begun, Prepared, Sums, begin, metrics_of, not_finite, part_of_loss
from flowrl.backends.trainers.megatron import forward
from flowrl.backends.trainers.megatron.forward import Asked, Made
from flowrl.backends.trainers.megatron.model_rank import MegatronRank
from flowrl.diag.diagnostic import InternalError
from flowrl.graph.params import UpdateParams
from flowrl.graph.signatures import LOSSES


def update(rank: MegatronRank, rate: float, call: Call, params: UpdateParams, batch: Batch) -> Metrics:
    """Move the parameters once; gives the metrics of the whole minibatch, equal on every rank.

    A minibatch without a token moves nothing. Raises FlowError FR0830, with the parameters untouched, if the gradient
    is not finite.
    """
    optimizer = rank.optimizer
    if optimizer is None:
        raise InternalError(f"`{rank.setup.role.name}` has no optimizer")
    begun = begin(rank, call, params, batch)
    if not begun.whole:
        return {"skipped": (1.0, 1.0)}
    sums = Sums()
    optimizer.zero()
    for still in (True, False):
        _run(rank, begun.of(still=still), params, begun, sums, backward=not still)
    norm = optimizer.finish()
    metrics = rank.groups.from_last(metrics_of(rank, sums, begun) if rank.groups.is_last else None)
    if not math.isfinite(norm):
        optimizer.zero()
        raise not_finite(rank, call, norm, metrics)
    optimizer.step(rate)
    return {**metrics, "grad_norm": (norm, 1.0), "lr": (rate, 1.0)}


def _run(
    rank: MegatronRank, parts: Sequence[Prepared], params: UpdateParams, begun: Begun, sums: Sums, *, backward: bool
) -> None:
    def then(number: int, made: Made) -> Any:
        current, *entropy = made
        return part_of_loss(parts[number], current, entropy[0] if entropy else None, params, begun, sums)

    micros = [part.micro for part in parts]
    forward.run(rank.stages, micros, lambda micro: asked_of(micro, params), then, backward=backward)


def asked_of(micro: MicroBatch, params: UpdateParams) -> Asked:
    """What the loss is of: values, scores of whole responses, or log-probs, with the entropy where it is of use."""
    signature = LOSSES[params.loss]
    if signature.head == "scalar":
        return Asked("last_scores" if signature.whole_groups else "values")
    if "ref_top_tokens" in signature.reads:
        return Asked("log_probs", params.temperature, tokens=micro.columns["ref_top_tokens"].long())
    return Asked("log_probs", params.temperature, params.entropy_coef != 0 or signature.ratio)
