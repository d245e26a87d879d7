"""What differs in where roles live: pools, their devices, and each role's layout, residency and recomputation."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from flowrl.graph.graph import Kind
from flowrl.plan.changes import Change, Effect
from flowrl.plan.digests import meaning
from flowrl.plan.effects import PLACEMENT_FIELDS, POOL_FIELDS
from flowrl.plan.plan import Layout, Pool, RolePlacement, StagePlan

_NAMES = {"layout": "layout of", "offloaded": "offload of", "recompute": "recompute of", "memory_share": "memory of"}


def placement_changes(before: StagePlan, after: StagePlan) -> Iterator[Change]:
    """Pools first, then the roles in the order of the second plan's pools."""
    mine, theirs = ({pool.name: pool for pool in stage.pools} for stage in (before, after))
    decided = {decision.what: decision.id for decision in after.decisions}
    for name in dict.fromkeys((*mine, *theirs)):
        yield from _pool(name, mine.get(name), theirs.get(name), decided.get("pools"))
    if [name for name in mine if name in theirs] != [name for name in theirs if name in mine]:
        yield _told("pools", Effect.RECOMPILE, "order", ", ".join(mine), ", ".join(theirs))
    homes, new_homes = _homes(before), _homes(after)
    for role in dict.fromkeys((*new_homes, *homes)):
        here, there = homes.get(role), new_homes.get(role)
        for change in _role(after, role, here, there):
            yield _with_decision(change, decided, role)


def _homes(stage: StagePlan) -> dict[str, tuple[Pool, RolePlacement]]:
    return {entry.role: (pool, entry) for pool in stage.pools for entry in pool.roles}


def _told(
    what: str,
    effect: Effect,
    reason: str,
    before: str | None,
    after: str | None,
    pool: str | None = None,
    decision: str | None = None,
) -> Change:
    return Change(
        section="pools",
        effect=effect,
        what=what,
        reason=reason,
        before=before,
        after=after,
        pool=pool,
        decision=decision,
    )


def _pool(name: str, here: Pool | None, there: Pool | None, decision: str | None) -> Iterator[Change]:
    if here is None or there is None:
        pool = there or here
        assert pool is not None
        roles = f"{devices_text(pool)}: {', '.join(entry.role for entry in pool.roles)}"
        is_new = here is None
        effect, reason = (Effect.NEW, "new_pool") if is_new else (Effect.GONE, "gone_pool")
        before, after = (None, roles) if is_new else (roles, None)
        yield _told(f"pool {name}", effect, reason, before, after, name, decision if is_new else None)
        return
    for field in (each for each in Pool.__struct_fields__ if each not in ("name", "roles")):
        if getattr(here, field) == getattr(there, field) or (field == "device" and here.devices != there.devices):
            continue
        effect, reason = POOL_FIELDS.get(field, (Effect.RESTART, "other"))
        is_devices = field in ("devices", "device")
        one, other = ((devices_text(pool) if is_devices else str(getattr(pool, field))) for pool in (here, there))
        yield _told(f"{field} of {name}", effect, reason, one, other, name, decision if is_devices else None)
    orders = [[entry.role for entry in pool.roles] for pool in (here, there)]
    common = [[role for role in order if role in orders[0] and role in orders[1]] for order in orders]
    if common[0] != common[1]:
        one, other = (", ".join(order) for order in orders)
        yield _told(f"roles of {name}", Effect.RECOMPILE, "order", one, other, name)


def devices_text(pool: Pool) -> str:
    """`8 × H100-80G, node0/0 .. node0/7`; of the host its slots."""
    if not pool.devices:
        return f"{pool.slots} slots"
    first, last = pool.devices[0], pool.devices[-1]
    return f"{len(pool.devices)} × {pool.device}, {first if first == last else f'{first} .. {last}'}"


def _role(
    after: StagePlan, role: str, here: tuple[Pool, RolePlacement] | None, there: tuple[Pool, RolePlacement] | None
) -> Iterator[Change]:
    if here is None or there is None:
        pool, entry = there or here or (None, None)
        assert pool is not None
        assert entry is not None
        where = f"{pool.name}, {layout_text(entry.layout)}"
        if here is None:
            yield _told(f"place of {role}", Effect.NEW, "new_place", None, where, pool.name)
        else:
            yield _told(f"place of {role}", Effect.GONE, "gone_place", where, None, pool.name)
        return
    (was, old), (now, new) = here, there
    if was.name != now.name:
        yield _told(f"place of {role}", Effect.MOVE, "moved", was.name, now.name, now.name)
    for field in (each for each in RolePlacement.__struct_fields__ if each != "role"):
        one, other = getattr(old, field), getattr(new, field)
        if one == other:
            continue
        effect, reason = PLACEMENT_FIELDS.get(field, (Effect.RESTART, "other"))
        if field == "offloaded" and _is_engine(after, role):
            effect = Effect.RESTART
        what = f"{_NAMES.get(field, f'{field} of')} {role}"
        yield _told(what, effect, reason, _text(one), _text(other), now.name)


def _is_engine(stage: StagePlan, role: str) -> bool:
    return any(each.name == role and each.kind is Kind.GENERATOR for each in stage.graph.roles)


def _text(value: object) -> str:
    if isinstance(value, Layout):
        return layout_text(value)
    if isinstance(value, bool):
        return "leaves its devices" if value else "stays on its devices"
    return "as its ops say" if value is None else str(meaning(value))


def layout_text(layout: Layout) -> str:
    """`dp4 tp2`: dp, and the other axes that are larger than 1."""
    axes = [name for name in Layout.__struct_fields__ if name == "dp" or getattr(layout, name) > 1]
    return " ".join(f"{name}{getattr(layout, name)}" for name in axes)


def _with_decision(change: Change, decided: dict[str, str], role: str) -> Change:
    own = decided.get(change.what) or (decided.get("pools") if change.what == f"place of {role}" else None)
    return replace(change, decision=own)
