"""One optimizer update of a minibatch that lies on all ranks in micro-batches.

The denominators of the loss are summed over micro-batches and ranks before the first backward pass, so the loss and its
gradient are those of the whole minibatch however it was cut. FSDP2 averages gradients over ranks; each rank therefore
multiplies its loss by their number.

Rows whose advantages are all zero (a group whose rewards are equal) move nothing: where the loss is a multiple of the
advantages they are run forward for the metrics and not backward, a third of the work, with the same gradient.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from flowrl.algos.aggregate import denominator, numerator
from flowrl.algos.objective import corrected_mask, counted_mask, objective
from flowrl.algos.pairs import GROUP
from flowrl.algos.ragged import masked_sum
from flowrl.backends.batch import Batch, Ragged
from flowrl.backends.contract import Call, Metrics
from flowrl.backends.trainers.fsdp import forward
from flowrl.backends.trainers.fsdp.group import largest, most, total
from flowrl.backends.trainers.fsdp.micro_batches import MicroBatch, cut
from flowrl.backends.trainers.fsdp.model_rank import DIFFERENCE_MAX, DIFFERENCE_MEAN, ModelRank, Sharing
from flowrl.backends.trainers.fsdp.packing import padding_saved
from flowrl.diag.diagnostic import FlowError, diagnose
from flowrl.graph.params import UpdateParams
from flowrl.graph.signatures import LOSSES, update_reads

_NOT_COLUMNS = {"tokens", "loss_mask", "prompt", "response", "images"}


@dataclass(frozen=True, slots=True)
class Prepared:
    """A micro-batch with what is known of it before its forward pass."""

    micro: MicroBatch
    mask: Tensor
    """What the loss counts: tokens, or the rows where losses of pairs stand."""
    weight: Tensor | None
    still: bool = False
    """Whether no row of it has a gradient."""


@dataclass(frozen=True, slots=True)
class Begun:
    """A minibatch with what is known of it before its first forward pass."""

    parts: list[Prepared]
    whole: float
    """The loss's denominator, over all ranks; 0 if it has no token."""
    rollout: str | None
    """The slot with the generator's own log-probs, if the old policy is read from them."""

    def of(self, *, still: bool) -> list[Prepared]:
        return [part for part in self.parts if part.still == still]


@dataclass(slots=True)
class Sums:
    """Numerators of the metrics on this rank, float64."""

    loss: float = 0.0
    tokens: int = 0
    farthest: float = 0.0
    """Largest difference between the generator's log-probs and the trainer's."""
    of_tokens: dict[str, float] = field(default_factory=dict[str, float])

    def add(self, loss: Tensor, metrics: dict[str, Tensor], mask: Tensor) -> None:
        self.loss += float(loss)
        self.tokens += int(mask.sum())
        for name, values in metrics.items():
            self.of_tokens[name] = self.of_tokens.get(name, 0.0) + float(masked_sum(values, mask).double().sum())


def update(
    rank: ModelRank, optimizer: torch.optim.Optimizer, rate: float, call: Call, params: UpdateParams, batch: Batch
) -> Metrics:
    """Move the parameters once; gives the metrics of the whole minibatch, equal on every rank.

    A minibatch without a token (all rejected, or all rows dropped) moves nothing. Raises FlowError FR0830, with the
    parameters untouched, if the gradient is not finite.
    """
    begun = begin(rank, call, params, batch)
    if not begun.whole:
        return {"skipped": (1.0, 1.0)}
    optimizer.zero_grad(set_to_none=True)
    sums = Sums()
    with rank.reading():
        for part in begun.of(still=True):
            _forward(rank, part, params, begun, sums)
    moving = begun.of(still=False)
    for place, part in enumerate(moving, start=1):
        rank.reduces(place == len(moving))
        (_forward(rank, part, params, begun, sums) * rank.copies).backward()
    norm = _clip(rank, rank.setup.role.optimizer.max_grad_norm if rank.setup.role.optimizer else None)
    metrics = metrics_of(rank, sums, begun)
    if not np.isfinite(norm):
        optimizer.zero_grad(set_to_none=True)
        raise not_finite(rank, call, norm, metrics)
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return {**metrics, **_packing_metrics(rank, params, batch), "grad_norm": (norm, 1.0), "lr": (rate, 1.0)}


def _packing_metrics(rank: ModelRank, params: UpdateParams, batch: Batch) -> Metrics:
    """What packing saves: the share of places that would be padding within the same budget of tokens."""
    if not rank.setup.role.engine.packing:
        return {}
    lengths = batch.ragged("tokens").lengths
    saved = padding_saved(lengths, cut(lengths, params.micro_batch_tokens))
    own = torch.tensor([saved * len(lengths), len(lengths)], dtype=torch.float64, device=rank.setup.device)
    weighted, rows = total(own, rank.mesh).tolist()
    return {"padding_saved": (weighted / max(rows, 1.0), rows)}


def begin(rank: Sharing, call: Call, params: UpdateParams, batch: Batch) -> Begun:
    """All of an update that needs no model. A collective: the denominator is that of all ranks."""
    rollout = _rollout_slot(call, batch)
    columns = [i.slot for i in update_reads(params) if i.slot in batch.columns and i.slot not in _NOT_COLUMNS]
    if LOSSES[params.loss].whole_groups:
        batch, columns = _with_groups(batch), [*columns, GROUP]
    parts = _prepared(rank, batch, columns, params)
    return Begun(parts, _denominator(rank, parts, params, call), rollout)


def _prepared(rank: Sharing, batch: Batch, columns: list[str], params: UpdateParams) -> list[Prepared]:
    """The micro-batches, those without a gradient apart. If no rank has any other, none is: the optimizer moves by its
    moments then, too."""
    still = without_gradient(batch, params)
    if still is None or not most(int(np.count_nonzero(~still)), rank.mesh):
        whole = LOSSES[params.loss].whole_groups
        return [_prepare(m, params) for m in rank.cut(batch, params.micro_batch_tokens, columns, by_prompt=whole)]
    return [
        _prepare(micro, params, still=is_still)
        for is_still, rows in ((True, np.flatnonzero(still)), (False, np.flatnonzero(~still)))
        for micro in rank.cut(batch.select(rows), params.micro_batch_tokens, columns)
    ]


def _with_groups(batch: Batch) -> Batch:
    """With the number of each row's prompt among those of the batch, which float32 holds exactly."""
    numbers = np.unique(batch.prompt_ids, return_inverse=True)[1].astype(np.float32)
    return Batch(batch.ids, batch.prompt_ids, {**batch.columns, GROUP: numbers})


def without_gradient(batch: Batch, params: UpdateParams) -> npt.NDArray[np.bool_] | None:
    """bool [rows]: rows whose loss is a constant, being a multiple of advantages that are all zero. None where the loss
    has other terms, so that every row may move something."""
    regularised = params.entropy_coef != 0 or (params.kl is not None and params.kl.coef != 0)
    if regularised or "advantages" not in LOSSES[params.loss].reads:
        return None
    advantages = batch.columns["advantages"]
    if not isinstance(advantages, Ragged):
        return np.asarray(advantages) == 0
    return np.asarray([not np.any(row) for row in advantages.rows()], dtype=np.bool_)


def _prepare(micro: MicroBatch, params: UpdateParams, *, still: bool = False) -> Prepared:
    weight, mask = corrected_mask(micro.mask, micro.columns, params)
    return Prepared(micro, counted_mask(mask, micro.columns, params), weight, still)


def _denominator(rank: Sharing, prepared: list[Prepared], params: UpdateParams, call: Call) -> float:
    fixed = call.max_response_tokens or rank.setup.max_tokens
    own = sum((denominator(p.mask, params.aggregate, fixed) for p in prepared), torch.zeros((), dtype=torch.float64))
    return float(total(own.to(rank.setup.device), rank.mesh))


def _forward(rank: ModelRank, part: Prepared, params: UpdateParams, begun: Begun, sums: Sums) -> Tensor:
    current, entropy = _current(rank, part.micro, params)
    return part_of_loss(part, current, entropy, params, begun, sums)


def part_of_loss(
    part: Prepared, current: Tensor, entropy: Tensor | None, params: UpdateParams, begun: Begun, sums: Sums
) -> Tensor:
    """This micro-batch's part of the minibatch's loss, which is noted in `sums`. `current`: what the model says."""
    mask = part.micro.mask if LOSSES[params.loss].whole_groups else part.mask
    terms = objective(current, entropy, mask, part.weight, part.micro.columns, params)
    loss = numerator(terms.loss, part.mask, params.aggregate) / begun.whole
    metrics = dict(terms.metrics)
    if begun.rollout is not None:
        metrics[DIFFERENCE_MEAN] = (current.detach() - part.micro.columns[begun.rollout]).abs()
        farthest = metrics[DIFFERENCE_MEAN].masked_fill(~part.mask, 0.0).max()
        sums.farthest = max(sums.farthest, float(farthest))
    sums.add(loss.detach(), metrics, part.mask)
    return loss


def _current(rank: ModelRank, micro: MicroBatch, params: UpdateParams) -> tuple[Tensor, Tensor | None]:
    """What the loss is of: values, scores of whole responses, or log-probs, with the entropy where it is of use."""
    signature = LOSSES[params.loss]
    if signature.head == "scalar":
        return (forward.last_scores if signature.whole_groups else forward.values)(rank.module, micro), None
    if "ref_top_tokens" in signature.reads:
        tokens = micro.columns["ref_top_tokens"].long()
        return forward.of_tokens(rank.module, micro, params.temperature, tokens), None
    # sft has no use for the entropy, which costs a pass over the vocabulary.
    with_entropy = params.entropy_coef != 0 or signature.ratio
    return rank.token_log_probs(micro, params.temperature, with_entropy=with_entropy)


def _rollout_slot(call: Call, batch: Batch) -> str | None:
    """The slot with the generator's own log-probs where the old policy is read from them. There is one update a step
    then, so the parameters are still those that the samples were made with and any difference is the engines'."""
    names = (i.slot for i in call.op.inputs if i.slot == "old_log_probs" and i.field == "rollout_log_probs")
    return next((name for name in names if name in batch.columns), None)


def _clip(rank: ModelRank, most: float | None) -> float:
    """Scale the gradient down to norm `most`, over all parameters and ranks; gives its norm before."""
    if rank.setup.layout.tp > 1:
        return _clip_apart(rank.trained(), most)
    parameters = list(rank.module.parameters())
    norm = torch.nn.utils.clip_grad_norm_(parameters, float("inf") if most is None else most)
    return float(norm.full_tensor() if isinstance(norm, DTensor) else norm)


def _clip_apart(parameters: list[torch.nn.Parameter], most: float | None) -> float:
    """With tensor parallelism parameters lie on different meshes, whose norms torch cannot join: each kind by itself,
    then together."""
    kinds: dict[tuple[int, str], list[DTensor]] = {}
    for parameter in parameters:
        grad = parameter.grad
        if grad is not None:
            assert isinstance(grad, DTensor)
            kinds.setdefault((grad.device_mesh.ndim, str(grad.placements)), []).append(grad)
    squares = 0.0
    for grads in kinds.values():
        norm = torch.nn.utils.get_total_norm(list[Tensor](grads))
        squares += float(norm.full_tensor() if isinstance(norm, DTensor) else norm) ** 2
    norm = squares**0.5
    if most is not None and norm > most:
        for grads in kinds.values():
            for grad in grads:
                grad.to_local().mul_(most / (norm + 1e-6))
    return norm


def not_finite(rank: Sharing, call: Call, norm: float, metrics: Metrics) -> FlowError:
    facts = {"role": rank.setup.role.name, "step": call.step, "loss": f"{metrics['loss'][0]:g}"}
    return FlowError(diagnose("FR0830", call.op.span, norm=f"{norm:g}", **facts))


def metrics_of(rank: Sharing, sums: Sums, begun: Begun) -> dict[str, tuple[float, float]]:
    """Those of all ranks. A collective."""
    names = sorted(sums.of_tokens)
    own = [sums.loss, float(sums.tokens), *(sums.of_tokens[name] for name in names)]
    loss, tokens, *rest = total(torch.tensor(own, dtype=torch.float64, device=rank.setup.device), rank.mesh).tolist()
    of_tokens = {name: (value / max(tokens, 1.0), tokens) for name, value in zip(names, rest, strict=True)}
    farthest = {} if begun.rollout is None else {DIFFERENCE_MAX: (largest(sums.farthest, rank.mesh), 1.0)}
    return {"loss": (loss, 1.0)} | of_tokens | farthest
