"""Whether the engine and the trainer agree on the tokens that the engine sampled. Pure; takes a step's metrics.

On-policy, both hold the same weights, so the log-probs of one token differ by rounding alone. A larger difference means
that the engine runs on other weights than the trainer's (a sync that did not reach it) or computes another model; the
gradient would then be of the wrong policy, and nothing else would show it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from flowrl.diag.diagnostic import FlowError, diagnose
from flowrl.graph.graph import Graph, Op, Role
from flowrl.graph.params import UpdateParams
from flowrl.plan.plan import StagePlan

LARGEST_IN_FLOAT32 = 1e-3
"""Nats, of any token. Seen between vLLM and transformers in float32: 4e-5 (SmolLM2-135M, 1,024 sampled tokens)."""
MEAN_IN_LOW_PRECISION = 0.2
"""Nats, over all tokens. Seen in bfloat16: mean 0.06, largest 0.28 (the same)."""


def require_agreement(stage: StagePlan, metrics: Mapping[str, float], step: int) -> None:
    """Raise FlowError FR0915 if a trainer's log-probs are not its engine's.

    Not asked where a difference is meant: at lag, where the loss has a correction for it, and where later minibatches
    of a step are compared with the rollout (`old_log_probs: rollout`), which the earlier ones have moved away from.
    """
    if stage.graph.schedule.max_lag > 0:
        return
    for role, update in _trained(stage.graph):
        what, limit = _measure(stage.graph, role)
        found = metrics.get(f"{role.name}.rollout_log_prob_diff_{what}")
        if found is None or found <= limit:
            continue
        raise FlowError(
            diagnose(
                "FR0915", update.span, role=role.name, step=step, found=f"{found:.3g}", what=what, limit=f"{limit:g}"
            )
        )


def _trained(graph: Graph) -> Iterator[tuple[Role, Op]]:
    for op in graph.ops:
        if not isinstance(op.params, UpdateParams) or op.params.corrections:
            continue
        if op.firings == 1 or op.params.old_log_probs != "rollout":
            yield graph.role(op.role), op


def _measure(graph: Graph, role: Role) -> tuple[str, float]:
    dtype = graph.model(role.model).dtype if role.model is not None else None
    return ("max", LARGEST_IN_FLOAT32) if dtype == "float32" else ("mean", MEAN_IN_LOW_PRECISION)
