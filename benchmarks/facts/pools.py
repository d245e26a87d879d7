"""Who of a flow stands on which devices: the parts that a record names → pools. Takes a Record, gives Pools; knows no
lengths and no batches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.facts.records import Part, Record


class UnusableError(Exception):
    """Why a record cannot be modelled."""


@dataclass(frozen=True)
class Pool:
    name: str
    gpus: int
    roles: tuple[str, ...]


def roles_of(models: Mapping[str, str], algorithm: str) -> tuple[str, ...]:
    """Roles of the flow that need devices."""
    roles = ["actor_train", "actor_infer"]
    if "ref" in models or algorithm in ("remax", "safe_rlhf"):
        roles.append("reference")
    if "critic" in models:
        roles.append("critic")
    if "reward" in models:
        roles.append("reward")
    if algorithm == "safe_rlhf":
        roles += ["cost", "cost_critic"]
    return tuple(roles)


_OF_PART = {
    "rollout": ("actor_infer",),
    "actor": ("actor_train",),
    "ref": ("reference",),
    "critic": ("critic", "cost_critic"),
    "reward": ("reward", "cost"),
    "fwd": (),
}


def pools_of(record: Record, devices: int, roles: tuple[str, ...], filled: list[str]) -> tuple[Pool, ...]:
    """The pools of a record on `devices` devices; a gap that is closed is named in `filled`. Raises UnusableError."""
    parts = record.parts
    if not parts:
        return (Pool("all", devices, roles),)
    sizes = _sizes(parts, devices, filled)
    taken = {role for part in parts for word in part.roles for role in _OF_PART.get(word, ())}
    pools: list[Pool] = []
    for part, gpus in zip(parts, sizes, strict=True):
        mine = [role for word in part.roles for role in _OF_PART.get(word, ()) if role in roles]
        if "train" in part.roles:
            mine += [role for role in roles if role not in taken and role not in mine]
        if "actor" in part.roles and "actor_infer" not in taken:
            mine.append("actor_infer")
        if mine and gpus > 0:
            pools.append(Pool("_".join(part.roles), gpus, tuple(mine)))
    placed = {role for pool in pools for role in pool.roles}
    rest = tuple(role for role in roles if role not in placed)
    if rest and pools:
        last = pools[-1]
        pools[-1] = Pool(last.name, last.gpus, (*last.roles, *rest))
    if len(pools) == 1:
        return (Pool("all", devices, roles),)
    return tuple(pools)


def _sizes(parts: tuple[Part, ...], devices: int, filled: list[str]) -> list[int]:
    if all(part.gpus for part in parts):
        said = [part.gpus or 0 for part in parts]
        if sum(said) > devices:
            raise UnusableError(f"its parts have {sum(said)} of {devices} devices")
        return said
    if all(part.share for part in parts):
        node = 8 if devices % 8 == 0 and devices >= 16 else 1
        first = [max(node, round(devices * (part.share or 0) / node) * node) for part in parts[:-1]]
        return [*first, devices - sum(first)]
    filled.append("split")
    each = devices // len(parts)
    return [each] * len(parts)
