"""What `algos` has, by name and without torch, so that planning can say what no run could compute.

A test checks these names against the tables of the functions. graph/signatures.py holds the names of the language;
what stands there and not here is not built yet.
"""

from __future__ import annotations

LOSSES: frozenset[str] = frozenset(
    {"ppo", "gspo", "cispo", "topr", "reinforce", "value", "sft", "dpo", "distill", "bradley_terry"}
)
ESTIMATORS: frozenset[str] = frozenset(
    {
        "grpo",
        "dr_grpo",
        "rloo",
        "opo",
        "raft",
        "reinforce_pp_baseline",
        "gae",
        "gigpo",
        "bi_level_gae",
        "reinforce",
        "reinforce_pp",
        "remax",
        "reverse_kl",
        "best_worst",
    }
)
CORRECTIONS: frozenset[str] = frozenset({"tis", "mis", "reject"})
AGGREGATES: frozenset[str] = frozenset({"token_mean", "sequence_mean", "sequence_sum_fixed"})
KL_FORMS: frozenset[str] = frozenset({"k1", "k2", "k3"})


def implemented() -> dict[str, frozenset[str]]:
    """Names that can run, by the parameter that holds them."""
    return {
        "loss": LOSSES,
        "estimator": ESTIMATORS,
        "correction": CORRECTIONS,
        "aggregate": AGGREGATES,
        "kl": KL_FORMS,
    }
