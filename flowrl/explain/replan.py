"""Plan × plan → Replan: what moves from one to the other, what that takes, and when it has paid off. Pure.

Takes both plans and, of the second, the shapes of its models and what its placement was asked. Bytes and seconds come
from placement/sync/moving.py; here is which role goes which way, and the sums.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from flowrl.diag.diagnostic import Diagnostic, diagnose
from flowrl.explain.moves import (
    ANEW,
    BREAK_EVEN,
    CHECKPOINT,
    COST_AFTER,
    COST_BEFORE,
    DEVICES,
    FILES,
    GONE,
    MOVED,
    MOVING,
    NEVER,
    NOTHING,
    PAYS,
    PRICE_AFTER,
    PRICE_BEFORE,
    SAVED,
    SHARED,
    STAYS,
    STEP_AFTER,
    STEP_BEFORE,
    STORED,
    STORED_BREAK_EVEN,
    SYNC,
    Home,
    Replan,
    RoleMove,
    StageMove,
)
from flowrl.graph.graph import EdgeKind, Graph, Kind
from flowrl.machine.cluster import Cluster
from flowrl.machine.shape import ModelShape
from flowrl.placement.cost.ledger import Given, Inputs, line
from flowrl.placement.cost.placed import Placed, placed_roles
from flowrl.placement.cost.price import PER_STEP
from flowrl.placement.request import PlacementRequest
from flowrl.placement.sync.moving import IN_PLACE, by_checkpoint, by_device, from_files, shared_devices
from flowrl.plan.places import layout_text
from flowrl.plan.plan import Digests, LedgerLine, Plan, Pool, StagePlan

LEAST_SAVED = 1e-9
"""Of a step: less is a rounding."""


@dataclass(frozen=True, slots=True)
class Known:
    """Of a stage of the new plan, what no plan file holds."""

    shapes: Mapping[str, ModelShape]
    request: PlacementRequest


def replan(before: Plan, after: Plan, known: Mapping[str, Known], names: tuple[str, str]) -> Replan:
    """What moves from `before` to `after`, for a run in any of the stages that both have. `known` by stage."""
    shared = shared_devices(before.cluster, after.cluster)
    old = {stage.name: stage for stage in before.stages}
    digests = [name for name in Digests.__struct_fields__ if _digest(before, name) != _digest(after, name)]
    stages = tuple(
        _Stage(old[new.name], new, (before.cluster, after.cluster), known[new.name], shared).move()
        for new in after.stages
        if new.name in old
    )
    return Replan(
        before=names[0],
        after=names[1],
        cluster_before=before.cluster.name,
        cluster_after=after.cluster.name,
        moved_digests=tuple(digests),
        shared_devices=len(shared),
        stages=stages,
        verdict_before=before.verdict,
        diagnostics=tuple(_other_flow(names[0], digests)),
    )


def _other_flow(kept: str, digests: Sequence[str]) -> Iterator[Diagnostic]:
    """FR0745: a cluster alone may differ."""
    others = [name for name in digests if name != "cluster"]
    if others:
        moved, differ = (
            f"the digest{'s' if others[1:] else ''} {', '.join(others)}",
            "differ" if others[1:] else "differs",
        )
        yield diagnose("FR0745", file=kept, moved=moved, differ=differ)


def _digest(plan: Plan, name: str) -> object:
    return getattr(plan.digests, name)


class _Stage:
    """One stage of both plans."""

    def __init__(
        self, old: StagePlan, new: StagePlan, clusters: tuple[Cluster, Cluster], known: Known, shared: frozenset[str]
    ) -> None:
        self.old, self.new, self.shared = old, new, shared
        self.homes, self.new_homes = _homes(old), _homes(new)
        kept = _same_models(old.graph, new.graph)
        self.was = _placed(old, clusters[0], known, kept)
        self.now = _placed(new, clusters[1], known, frozenset(known.shapes))
        ends = (edge.target.split(".")[0] for edge in new.graph.edges if edge.kind is EdgeKind.WEIGHTS)
        self.synced = frozenset(ends)

    def move(self) -> StageMove:
        """Roles in the order of the new plan's pools, then those that are gone."""
        names = dict.fromkeys((*self.new_homes, *self.homes))
        roles = tuple(self._role(name) for name in names)
        lines = _sums(self.old, self.new, roles)
        values = {each.what: each.value for each in lines}
        pays = BREAK_EVEN in values
        verdict = NOTHING if values[MOVED] == 0 and values[MOVING] == 0 else PAYS if pays else NEVER
        return StageMove(
            name=self.new.name,
            roles=roles,
            lines=lines,
            steps=self.new.run.steps,
            verdict=verdict,
            break_even=int(values[BREAK_EVEN]) if pays else None,
        )

    def _role(self, name: str) -> RoleMove:
        way, lines, instead = self._way(name)
        return RoleMove(
            role=name,
            before=self.homes.get(name),
            after=self.new_homes.get(name),
            way=way,
            lines=(*lines, *_moved_line(name, lines)),
            instead=instead,
        )

    def _way(self, name: str) -> tuple[str, tuple[LedgerLine, ...], tuple[LedgerLine, ...]]:
        """How the role's state comes to its new place, with the lines of it, and those of the other way."""
        old, new = self.was.get(name), self.now.get(name)
        if name not in self.new_homes:
            return GONE, (), ()
        if new is None or new.shape is None:
            return ANEW, (), ()
        if new.shared:
            return SHARED, (), ()
        if name in self.synced and new.role.kind is Kind.GENERATOR:
            return SYNC, (), ()
        files = from_files(new)
        if old is None or old.shared:
            return FILES, files, ()
        stored = by_checkpoint(old, new) if new.role.trainable else files
        if not self.shared:
            return (CHECKPOINT if new.role.trainable else FILES), stored, ()
        lines = by_device(old, new, self.shared)
        if all(each.what.endswith(IN_PLACE) for each in lines if each.unit == "bytes"):
            return STAYS, lines, ()
        return DEVICES, lines, stored


def _homes(stage: StagePlan) -> dict[str, Home]:
    return {
        entry.role: Home(
            pool=pool.name,
            layout=layout_text(entry.layout),
            devices=len(pool.devices),
            device=pool.device,
            first=pool.devices[0],
            last=pool.devices[-1],
        )
        for pool in stage.pools
        if pool.devices
        for entry in pool.roles
    }


def _same_models(old: Graph, new: Graph) -> frozenset[str]:
    """Models that are the same weights in both flows."""
    mine, theirs = ({m.name: (m.source, m.inline, m.head) for m in graph.models} for graph in (old, new))
    return frozenset(name for name, what in mine.items() if theirs.get(name) == what)


def _placed(stage: StagePlan, cluster: Cluster, known: Known, models: frozenset[str]) -> dict[str, Placed]:
    """The roles of a plan whose model is one of `models`, or that have none."""
    found: dict[str, Placed] = {}
    for pool in (each for each in stage.pools if each.devices):
        own = tuple(entry for entry in pool.roles if _has(stage.graph, entry.role, models))
        kept: Pool = replace(pool, roles=own)
        for each in placed_roles(stage.graph, kept, known.shapes, cluster, known.request, stage.decisions):
            found[each.role.name] = each
    return found


def _has(graph: Graph, role: str, models: frozenset[str]) -> bool:
    model = graph.role(role).model
    return model is None or model in models


# -- sums -------------------------------------------------------------------------------------------------------------


def _moved_line(role: str, lines: Sequence[LedgerLine]) -> list[LedgerLine]:
    """What moves of a role, of all kinds and over all links."""
    own = [each for each in lines if each.unit == "bytes" and not each.what.endswith(IN_PLACE)]
    return [_total(f"moved of {role}", None, "bytes", own)] if own else []


def _total(what: str, role: str | None, unit: str, parts: Sequence[LedgerLine]) -> LedgerLine:
    inputs = {f"x{at}": Given(each.value, each.what) for at, each in enumerate(parts)}
    return line(what, role, unit, " + ".join(inputs) or "0", inputs)


def _sums(old: StagePlan, new: StagePlan, roles: Sequence[RoleMove]) -> tuple[LedgerLine, ...]:
    own = [each for role in roles for each in role.lines]
    moved = [each for each in own if each.what.startswith("moved of ")]
    seconds = [each for each in own if each.unit == "seconds" and each.value]
    stored = [each for role in roles for each in (role.instead or role.lines) if each.unit == "seconds" and each.value]
    found = [_total(MOVED, None, "bytes", moved), _total(MOVING, None, "seconds", seconds)]
    found += [_total(STORED, None, "seconds", stored)] if any(role.instead for role in roles) else []
    before, after = _step(STEP_BEFORE, old), _step(STEP_AFTER, new)
    inputs = {"a": Given(before.value, STEP_BEFORE), "b": Given(after.value, STEP_AFTER)}
    takes = [each for each in found if each.what in (MOVING, STORED)]
    found += [before, after, line(SAVED, None, "seconds", "a - b", inputs)]
    if before.value - after.value > LEAST_SAVED * before.value:
        for each in takes:
            what = BREAK_EVEN if each.what == MOVING else STORED_BREAK_EVEN
            given = {**inputs, "m": Given(each.value, each.what)}
            found.append(line(what, None, "steps", "ceil(m/(a - b))", given))
    found += [_cost(COST_BEFORE, STEP_BEFORE, old), _cost(COST_AFTER, STEP_AFTER, new)]
    return (*found, *_prices(old, new))


def _step(what: str, stage: StagePlan) -> LedgerLine:
    return line(what, None, "seconds", "s", {"s": Given(stage.estimate.step_seconds, "the plan's step")})


def _cost(what: str, step: str, stage: StagePlan) -> LedgerLine:
    devices = sum(len(pool.devices) for pool in stage.pools)
    inputs: Inputs = {"n": Given(devices, "devices in pools"), "s": Given(stage.estimate.step_seconds, step)}
    return line(what, None, "GPU-seconds", "n*s", inputs)


def _prices(old: StagePlan, new: StagePlan) -> list[LedgerLine]:
    """Where both plans have them."""
    found: list[LedgerLine] = []
    for what, stage in ((PRICE_BEFORE, old), (PRICE_AFTER, new)):
        own = [each.value for each in stage.estimate.lines if each.what == PER_STEP]
        found += [line(what, None, "price", "p", {"p": Given(own[0], "price per step of the plan")})] if own else []
    return found if len(found) == 2 else []
