"""What a difference at some place of a plan does to a run: one table, of which the first row that fits counts.

A place that no row knows restarts what it belongs to: a field that is added later is told as the most that it can do,
until a row says less.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flowrl.plan.changes import Effect

ANY, REST = "*", "**"


@dataclass(frozen=True, slots=True)
class Row:
    """`pattern`: parts of a path; `*` stands for one part, `**` for any that follow."""

    pattern: tuple[str, ...]
    section: str
    effect: Effect
    reason: str
    new: str = "new"
    """Reason where what stands there is new, and with `gone` in its place where it is gone."""


def _row(pattern: str, section: str, effect: Effect, reason: str, new: str = "new") -> Row:
    return Row(tuple(pattern.split("/")), section, effect, reason, new)


def _fields(pattern: str, names: str, section: str, effect: Effect, reason: str) -> list[Row]:
    return [_row(f"{pattern}/{name}/{REST}", section, effect, reason) for name in names.split()]


_LIVE, _RESTART, _MOVE, _AGAIN = Effect.LIVE, Effect.RESTART, Effect.MOVE, Effect.RECOMPILE
UNSEEN = frozenset({"digests", "decisions", "search", "memory", "estimate", "diagnostics", "pools", "flowrl_plan"})
"""Of a plan or a stage: told by totals, by rows of their own, or (decisions) by what they decided."""

PLAN: Sequence[Row] = (
    _row("name", "run", _LIVE, "renamed"),
    _row("folder", "files", _RESTART, "other_folder"),
    _row("sources/*/digest", "files", _RESTART, "file_changed"),
    _row("sources/**", "files", _RESTART, "other_file", "file"),
    _row("run/**", "run", _LIVE, "run_key"),
    _row("cluster/groups/*", "cluster", _AGAIN, "figures", "group"),
    _row("cluster/groups/*/nodes", "cluster", _AGAIN, "size"),
    _row("cluster/groups/*/devices_per_node", "cluster", _AGAIN, "size"),
    _row("cluster/groups/*/device/name", "cluster", _MOVE, "other_device"),
    _row("cluster/groups/*/price_per_gpu_hour", "cluster", _AGAIN, "price"),
    _row("cluster/**", "cluster", _AGAIN, "figures"),
    _row("stages/*", "roles", _RESTART, "stage", "stage"),
    _row("stages/(order)", "run", _AGAIN, "order"),
)
"""By path in a plan."""

STAGE: Sequence[Row] = (
    _row("graph/name", "run", _LIVE, "renamed"),
    _row("graph/models/*", "roles", _RESTART, "other_weights", "model"),
    _row("graph/models/*/dtype", "engine", _RESTART, "dtype"),
    _row("graph/models/**", "roles", _RESTART, "other_weights"),
    _row("graph/roles/*", "roles", _RESTART, "other_role", "role"),
    _row("graph/roles/*/backend", "engine", _RESTART, "other_backend"),
    _row("graph/roles/*/engine/offload", "engine", _AGAIN, "asked_for"),
    _row("graph/roles/*/engine/recompute", "engine", _AGAIN, "asked_for"),
    _row("graph/roles/*/engine/**", "engine", _RESTART, "engine_argument"),
    _row("graph/roles/*/optimizer/name", "roles", _RESTART, "other_optimizer"),
    _row("graph/roles/*/optimizer", "roles", _RESTART, "other_optimizer", "optimizer"),
    _row("graph/roles/*/optimizer/**", "roles", _LIVE, "parameter"),
    _row("graph/roles/*/forward/**", "roles", _LIVE, "parameter"),
    _row("graph/roles/*/on_error", "roles", _LIVE, "parameter"),
    _row("graph/roles/*/shares", "roles", _MOVE, "shared_weights"),
    _row("graph/roles/*/frozen", "roles", _AGAIN, "rate"),
    _row("graph/roles/**", "roles", _RESTART, "other_role"),
    _row("graph/ops/*", "roles", _AGAIN, "other_op", "op"),
    *_fields(
        "graph/ops/*/params",
        "type loss estimator function env flavour template rule endpoint tag",
        "roles",
        _RESTART,
        "other_code",
    ),
    *_fields(
        "graph/ops/*/params",
        "source prompt response keep args seeds mix sources chosen rejected images on_long max_prompt_tokens order",
        "roles",
        _RESTART,
        "other_data",
    ),
    *_fields("graph/ops/*/params", "max_response_tokens max_context_tokens", "engine", _RESTART, "length"),
    *_fields("graph/ops/*/params", "updates epochs prompts samples_per_prompt", "step", _AGAIN, "batch"),
    _row("graph/ops/*/params/**", "roles", _LIVE, "parameter"),
    _row("graph/ops/**", "roles", _AGAIN, "rate"),
    _row("graph/edges/*", "edges", _AGAIN, "other_edge", "edge"),
    *_fields("graph/edges/*", "timeout_seconds on_timeout", "edges", _LIVE, "parameter"),
    _row("graph/edges/*/transport", "edges", _RESTART, "transport"),
    _row("graph/edges/*/tokens", "edges", _AGAIN, "lag"),
    _row("graph/edges/*/fields", "edges", _AGAIN, "fields"),
    _row("graph/edges/**", "edges", _AGAIN, "rate"),
    _row("syncs/*/transport", "edges", _RESTART, "transport"),
    _row("syncs/*/way", "edges", _AGAIN, "way"),
    _row("graph/removed/**", "roles", _AGAIN, "taken_away_by_a_pass", "pass"),
    _row("graph/passes", "program", _AGAIN, "passes"),
    *_fields("graph/step", "updates epochs refill", "step", _AGAIN, "batch"),
    _row("graph/step/**", "step", _LIVE, "batch"),
    _row("graph/schedule/**", "step", _AGAIN, "schedule"),
    _row("run/**", "run", _LIVE, "run_key"),
    _row("gate/**", "run", _LIVE, "gate"),
    _row("starts_from/**", "run", _RESTART, "other_weights"),
    _row("programs/streams/*", "program", _AGAIN, "stream", "stream"),
    _row("programs/streams/*/instructions/(order)", "program", _AGAIN, "order"),
    _row("programs/streams/*/instructions/*", "program", _AGAIN, "instruction", "instruction"),
    _row("programs/streams/*/instructions/**", "program", _AGAIN, "instruction"),
    _row("programs/channels/*", "program", _AGAIN, "channel", "channel"),
    _row("programs/channels/*/capacity", "program", _AGAIN, "capacity"),
    _row("programs/channels/*/initial_tokens", "program", _AGAIN, "lag"),
    _row("programs/channels/**", "program", _AGAIN, "channel"),
    _row("programs/**", "program", _AGAIN, "program"),
)
"""By path in a stage."""

POOL_FIELDS: Mapping[str, tuple[Effect, str]] = {
    "devices": (_MOVE, "other_devices"),
    "device": (_MOVE, "other_devices"),
    "slots": (_AGAIN, "slots"),
}
"""Of a pool that both plans have."""
PLACEMENT_FIELDS: Mapping[str, tuple[Effect, str]] = {
    "layout": (_MOVE, "resharded"),
    "offloaded": (_AGAIN, "residency"),
    "recompute": (_RESTART, "recompute"),
    "micro_batch_tokens": (_LIVE, "micro_batch"),
    "memory_share": (_RESTART, "engine_argument"),
}
"""Of a role's placement, wherever it is. A generator whose `offloaded` differs restarts: its engine is started so."""


def row_of(path: Sequence[str], rows: Sequence[Row]) -> Row | None:
    """The first row that fits; None where no row does."""
    return next((row for row in rows if _fits(row.pattern, path)), None)


def _fits(pattern: Sequence[str], path: Sequence[str]) -> bool:
    if pattern[-1] == REST:
        head = pattern[:-1]
        return len(path) >= len(head) and _fits_each(head, path[: len(head)])
    return len(pattern) == len(path) and _fits_each(pattern, path)


def _fits_each(pattern: Sequence[str], path: Sequence[str]) -> bool:
    return all(part in (ANY, own) for part, own in zip(pattern, path, strict=True))
