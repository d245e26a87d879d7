"""What an update minimises: a loss of the table, with corrections, an entropy bonus and a KL. Pure."""

from __future__ import annotations

import torch
from torch import Tensor

from flowrl.algos.corrections import correct
from flowrl.algos.kl import KL
from flowrl.algos.losses import LOSSES
from flowrl.algos.pairs import counted
from flowrl.algos.terms import Columns, Terms
from flowrl.graph import signatures
from flowrl.graph.params import UpdateParams


def counted_mask(mask: Tensor, columns: Columns, params: UpdateParams) -> Tensor:
    """bool, of the loss's shape: the tokens that a loss counts, which are those of `mask`; of a loss on pairs the rows
    [rows] where the pairs' losses stand."""
    return counted(columns) if signatures.LOSSES[params.loss].whole_groups else mask


def corrected_mask(mask: Tensor, columns: Columns, params: UpdateParams) -> tuple[Tensor | None, Tensor]:
    """Weights (None: all 1) and the mask that is left, before any forward pass, so that denominators are known.

    Reads old_log_probs and rollout_log_probs if the update has corrections. All [rows, tokens].
    """
    if not params.corrections:
        return None, mask
    return correct(columns["old_log_probs"], columns["rollout_log_probs"], mask, params.corrections)


def objective(
    current: Tensor,
    entropy: Tensor | None,
    mask: Tensor,
    weight: Tensor | None,
    columns: Columns,
    params: UpdateParams,
) -> Terms:
    """weight x loss - entropy_coef x entropy + kl.coef x KL(current || reference), per token: [rows, tokens]; of a loss
    on pairs the loss alone, [rows].

    `current` is log-probs (for distill those of the teacher's K likeliest tokens, [rows, tokens, K]), values or, for
    bradley_terry, scores [rows]. `mask` and `weight` are `corrected_mask`'s. A correction weighs
    the loss alone: the entropy and the KL are of the current policy.
    """
    terms = LOSSES[params.loss](current, mask, columns, params)
    loss = terms.loss if weight is None else terms.loss * weight
    metrics = dict(terms.metrics)
    if weight is not None:
        metrics["correction_weight"] = weight
    if entropy is not None:
        metrics["entropy"] = entropy.detach()
        loss = loss - params.entropy_coef * torch.where(mask, entropy, torch.zeros_like(entropy))
    if params.kl is not None and params.kl.coef != 0:
        reference = torch.where(mask, columns["ref_log_probs"], torch.zeros_like(current))
        divergence = KL[params.kl.form](torch.where(mask, current, torch.zeros_like(current)), reference)
        metrics["kl_ref"] = divergence.detach()
        loss = loss + params.kl.coef * divergence
    return Terms(loss, metrics)
