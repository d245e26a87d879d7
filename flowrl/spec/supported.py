"""What the language has and no room carries out yet. It parses, and is refused here at its place (FR0109).

A table: whoever adds a feature deletes its row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from flowrl.diag.diagnostic import Diagnostic, diagnose
from flowrl.spec.tree import MappingNode, Node, ScalarNode, walk


@dataclass(frozen=True, slots=True)
class Row:
    """A path, `*` for any one key, and the values that are meant; None means any."""

    path: str
    what: str
    values: tuple[Any, ...] | None = None


NOT_YET: tuple[Row, ...] = (
    Row("roles/*/kind", "kind `{value}`", ("filter", "env", "function")),
    Row("roles/*/judge", "a reward by a judge"),
    Row("roles/*/sandbox", "a reward by a sandbox"),
    Row("roles/*/router", "a routed reward"),
    Row("roles/*/combine", "a combined reward"),
    Row("roles/*/unit", "rewards of a {value}", ("turn", "token")),
    Row("roles/*/top_k", "the top K log-probs of a scorer"),
    Row("roles/*/step_weight", "step-level advantages"),
    Row("roles/*/engine/gpu_bytes", "a function that uses a GPU"),
    Row("roles/*/generate*/max_turn_tokens", "turns of a generator"),
    Row("roles/*/generate*/denoise_steps", "a denoiser"),
    Row("roles/*/generate*/eta", "a denoiser"),
    Row("roles/*/generate*/height", "a denoiser"),
    Row("roles/*/generate*/width", "a denoiser"),
    Row("roles/*/generate*/noise_per", "a denoiser"),
    Row("roles/*/update/action_share", "a denoiser"),
    Row("models/*/lora", "LoRA"),
    Row("models/*/head", "a model with head `{value}`", ("denoiser",)),
    Row("data/*/mix", "a mixture of data sets"),
    Row("data/*/seeds", "numbered prompts"),
    Row("data/*/tag", "a mixture of data sets"),
    Row("data/*/chosen", "pairs of responses"),
    Row("data/*/rejected", "pairs of responses"),
    Row("data/*/images", "images"),
    Row("data/*/template", "a prompt template of one's own"),
    Row("data/*/order", "order `{value}`", ("interleave",)),
    Row("edges/*/arrow", "an interaction edge", ("<->",)),
    Row("edges/*/fields", "a choice of the fields that travel"),
    Row("edges/*/transport", "a transport of one's own"),
    Row("edges/*/timeout_seconds", "a timeout of an edge"),
    Row("edges/*/on_timeout", "a timeout of an edge"),
    Row("step/refill", "refill"),
    Row("cluster/price_per_gpu_hour", "prices"),
    Row("cluster/groups/*/price_per_gpu_hour", "prices"),
    Row("schedule/partial_rollout", "partial rollout", (True,)),
    Row("schedule/when_stale", "dropping stale samples", ("drop",)),
    Row("placement/objective", "an objective of one's own"),
    Row("run/loggers/*", "the logger `{value}`", ("wandb", "mlflow")),
    Row("assume/*/turns", "turns"),
    Row("assume/*/keep", "a filter"),
    Row("assume/*/share", "a routed reward"),
)


def unsupported(root: MappingNode) -> Iterator[Diagnostic]:
    """FR0109 for everything below `root` that the table names. `root` is a flow or a stage."""
    for path, node in walk(root):
        text = "/".join(str(key) for key in path)
        for row in NOT_YET:
            if fnmatchcase(text, row.path) and len(path) == row.path.count("/") + 1 and _is_meant(row, node):
                value = node.value if isinstance(node, ScalarNode) else ""
                yield diagnose("FR0109", node.span, what=row.what.format(value=value))


def _is_meant(row: Row, node: Node) -> bool:
    if row.values is None:
        return not (isinstance(node, ScalarNode) and node.value is None)
    return isinstance(node, ScalarNode) and any(node.value is v or node.value == v for v in row.values)
