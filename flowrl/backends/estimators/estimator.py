"""The backend of estimator roles: columns of a batch → algos.estimators → columns aligned with `tokens`.

Takes the rows of whole groups (or of the whole step, where the estimator whitens over it), keeps nothing.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from flowrl.algos.estimators import ESTIMATORS, Estimates, Samples, estimate
from flowrl.algos.ragged import pad, unpad
from flowrl.algos.turns import on_last_tokens
from flowrl.backends.batch import Batch, Column, Ragged
from flowrl.backends.contract import Call, Metrics, RankSetup, Result
from flowrl.diag.diagnostic import FlowError, InternalError, diagnose
from flowrl.graph.params import EstimateParams

_OF_TURNS = {"turn_rewards": "turn_rewards", "state_key": "state_keys"}
_OPTIONAL = ("values", "baseline_rewards", "old_log_probs", "ref_log_probs")


class Estimator:
    """One rank."""

    def __init__(self, setup: RankSetup) -> None:
        self._setup = setup
        for op in setup.ops:
            if isinstance(op.params, EstimateParams) and op.params.estimator not in ESTIMATORS:
                known = ", ".join(f"`{name}`" for name in sorted(ESTIMATORS))
                raise FlowError(diagnose("FR0801", op.span, what=f"`estimator: {op.params.estimator}`", known=known))

    def call(self, call: Call, batch: Batch) -> Result:
        """estimate: rewards, loss_mask and what the estimator names → advantages (and returns), float32 per token; of
        best_worst pair_sign, int8, of the two rows of each group that it picks."""
        if call.op.method != "estimate" or not isinstance(call.op.params, EstimateParams):
            raise InternalError(f"an estimator has no op {call.op.id}")
        torch.set_num_threads(self._setup.threads)
        if not len(batch):
            return Result(Batch(batch.ids, batch.prompt_ids, _empty(call)), {})
        samples = _samples(batch)
        made = estimate(samples, call.op.params)
        keep = made.pop("keep", None)
        whole = Batch(batch.ids, batch.prompt_ids, _columns(call, made, batch))
        rows = whole if keep is None else whole.select(np.flatnonzero(keep.numpy()))
        return Result(rows, _metrics(samples))

    def close(self) -> None:
        """Nothing to end."""


def _samples(batch: Batch) -> Samples:
    mask_column = _mask(batch)
    lengths = torch.from_numpy(mask_column.lengths)
    mask = pad(torch.from_numpy(mask_column.values.astype(np.bool_)), lengths)
    optional = {name: _tensor(batch.columns[name], lengths) for name in _OPTIONAL if name in batch.columns}
    # An estimator that reads no rewards gets zeros: they are not its business.
    rewards = (
        _rewards(batch.columns["rewards"], mask, lengths) if "rewards" in batch.columns else torch.zeros(len(batch))
    )
    turns = {field: _turns(batch.ragged(name)) for name, field in _OF_TURNS.items() if name in batch.columns}
    return Samples(rewards, mask, torch.from_numpy(batch.prompt_ids), **optional, **turns)


def _rewards(column: Column, mask: Tensor, lengths: Tensor) -> Tensor:
    """Rewards of samples, or process rewards by token: those of turns stand on the last tokens of their turns. A turn
    column has fewer values than the row has tokens, for something stands before each turn."""
    if isinstance(column, Ragged) and not np.array_equal(column.lengths, lengths.numpy()):
        return on_last_tokens(_turns(column), mask)
    return _tensor(column, lengths)


def _turns(column: Ragged) -> Tensor:
    """A turn column, flat."""
    values = column.values
    return torch.from_numpy(values.astype(np.float32) if values.dtype.kind == "f" else values.astype(np.int64))


def _mask(batch: Batch) -> Ragged:
    """An estimator that reads no mask is of whole samples: one place stands for each."""
    if "loss_mask" in batch.columns:
        return batch.ragged("loss_mask")
    return Ragged(np.ones(len(batch), dtype=np.bool_), np.ones(len(batch), dtype=np.int64))


def _tensor(column: Column, lengths: Tensor) -> Tensor:
    if isinstance(column, Ragged):
        return pad(torch.from_numpy(column.values.astype(np.float32)), lengths)
    return torch.from_numpy(np.asarray(column, dtype=np.float32))


def _columns(call: Call, made: Estimates, batch: Batch) -> dict[str, Column]:
    """The outputs that the op names (all, if it names none)."""
    wanted = {field.name for field in call.op.outputs} or set(made)
    mask = _mask(batch)
    return {name: _column(values, mask) for name, values in made.items() if name in wanted}


def _column(values: Tensor, mask: Ragged) -> Column:
    if values.dim() == 1:
        return values.numpy().astype(np.int8)
    return Ragged(unpad(values, torch.from_numpy(mask.lengths)).numpy().astype(np.float32), mask.lengths)


def _empty(call: Call) -> dict[str, Column]:
    names = [field.name for field in call.op.outputs] or ["advantages"]
    signs = np.zeros(0, dtype=np.int8)
    return {name: signs if name == "pair_sign" else Ragged.of([], np.float32) for name in names}


def _metrics(samples: Samples) -> Metrics:
    """`zero_spread`: the share of groups whose rewards are all equal, which teach a group estimator nothing."""
    if samples.rewards.dim() != 1:
        return {}
    _, inverse, sizes = samples.prompts.unique(return_inverse=True, return_counts=True)
    low = torch.full((len(sizes),), torch.inf).scatter_reduce(0, inverse, samples.rewards, "amin")
    high = torch.full((len(sizes),), -torch.inf).scatter_reduce(0, inverse, samples.rewards, "amax")
    several = sizes > 1
    count = float(several.sum())
    return {"zero_spread": (float((low == high)[several].float().mean()), count)} if count else {}
