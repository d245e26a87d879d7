"""What was chosen for one role, in words: its layout and its micro-batch, with what was passed over.

Takes Choices, a site and a RolePlacement; gives Decisions without ids. Each alternative is compared with the devices to
itself, in its fastest way that fits. Decides nothing; decisions.py puts them in order.
"""

from __future__ import annotations

from msgspec.structs import replace

from flowrl.graph.graph import Kind, Role
from flowrl.machine.engines import KV_FRACTION
from flowrl.machine.traits import TRAITS
from flowrl.placement.choices import Choices
from flowrl.placement.cost.bound import busy_seconds
from flowrl.placement.cost.role import Site
from flowrl.placement.engine_shares import is_open
from flowrl.placement.layouts import change_text, layout_text, needs_text, reason_alone
from flowrl.placement.micro_batches import cut_ops, open_size
from flowrl.plan.plan import Decision, Memory, Pool, Rejected, RolePlacement


def layout_decision(
    choices: Choices, site: Site, pool: str, entry: RolePlacement, *, asked: bool, fits: bool
) -> Decision:
    """Why a role has its layout. `asked`: the flow says it. `fits`: its pool does."""
    menu, devices = choices.menu(entry.role, site), f"{site.count} × {site.group.device.name}"
    traits = TRAITS.get(choices.graph.role(entry.role).backend or "")
    free = traits is not None and site.count > 1 and bool(traits.searched or menu.over or len(menu.layouts) > 1)
    alone = len(menu.layouts) == 1
    text = f"{entry.role} on {devices}: {layout_text(entry.layout)}"
    if asked:
        reason = "asked_for"
    elif not free or (alone and not menu.over and not menu.untried):
        reason = "only_option"
    elif not fits:
        reason = "nearest_to_fitting"
    else:
        reason = "smallest_that_fits" if alone else "fastest"
    told = menu.told() if free and not asked else ""
    return Decision(
        id="",
        what=f"layout of {entry.role}",
        chosen=layout_text(entry.layout),
        reason=reason,
        text=f"{text}; of other layouts {told}" if told else text,
        rejected=choices.passed_over(entry.role, site, entry.layout) if free and not asked else (),
        override=f"placement.pools.{pool}.layouts.{entry.role}",
    )


def memory_decision(choices: Choices, role: Role, pool: Pool, entry: RolePlacement, *, fits: bool) -> Decision | None:
    """Why an engine has less memory than it usually takes; None where it has that, or the flow says it."""
    share = entry.memory_share
    if share is None or not is_open(role):
        return None
    costs, beside = choices.costs, [each for each in pool.roles if each.role != entry.role]
    site = costs.site(pool)
    usual = costs.pool_costs([*beside, replace(entry, memory_share=None)], site)
    short = costs.short(usual, site)
    staying = " and ".join(each.role for each in beside if not each.offloaded)
    why = f"what {staying or 'others'} leave{'s' if ' and ' not in staying else ''} it" if fits else "no share fits"
    return Decision(
        id="",
        what=f"memory of {entry.role}",
        chosen=f"{share:.2f} of a device",
        reason="needed_to_fit" if fits else "nearest_to_fitting",
        text=f"{entry.role} takes {share:.2f} of a device for weights and KV cache: {why}",
        rejected=() if short is None else (_usual(short),),
        override=f"roles.{entry.role}.engine.kv_fraction",
    )


def _usual(short: Memory) -> Rejected:
    return Rejected(option=f"{KV_FRACTION:.2f}", reason="does_not_fit", delta=needs_text(short))


def micro_batch_decision(choices: Choices, site: Site, entry: RolePlacement, *, fits: bool) -> Decision | None:
    """Why a role has its micro-batches; None where there was nothing to choose."""
    role = choices.graph.role(entry.role)
    written = open_size(choices.work, role, cut_ops(role, choices.costs.ops_of(role.name)))
    ways = dict.fromkeys(
        each.micro_batch_tokens for each in choices.ways(role, entry.layout, site) if each.recompute == entry.recompute
    )
    others = [size for size in ways if size != entry.micro_batch_tokens]
    if written is None or (entry.micro_batch_tokens is None and not others):
        return None
    rejected = tuple(_rejected(choices, site, entry, size, size or written) for size in others)
    size = entry.micro_batch_tokens or written
    reason, why = _reason(entry, written, rejected, fits=fits)
    key = "update.micro_batch_tokens" if role.kind is Kind.TRAINER else "micro_batch_tokens"
    return Decision(
        id="",
        what=f"micro-batch of {entry.role}",
        chosen=f"{size:,} tokens",
        reason=reason,
        text=f"{entry.role} works on {size:,} tokens at a time: {why}",
        rejected=rejected,
        override=f"roles.{entry.role}.{key}",
    )


def _reason(entry: RolePlacement, written: int, rejected: tuple[Rejected, ...], *, fits: bool) -> tuple[str, str]:
    if not fits:
        return "nearest_to_fitting", "no size fits"
    if entry.micro_batch_tokens is None:
        return "fits", "the default, and no other size makes a step shorter"
    default = next((each for each in rejected if each.option == f"{written:,} tokens"), None)
    if default is not None and default.reason == "does_not_fit":
        return "needed_to_fit", f"{written:,} do not fit"
    if entry.micro_batch_tokens > written:
        return "fastest", "layers are gathered less often"
    if default is not None and default.reason == "slower":
        return "fastest", "it is faster than the default, with less padding or a fuller pipeline"
    return "fastest", "the room that it frees saves more time than it takes"


def _rejected(choices: Choices, site: Site, entry: RolePlacement, size: int | None, tokens: int) -> Rejected:
    """Another size in place of the chosen one, both alone on the devices."""
    costs = choices.costs
    here = costs.role_cost(replace(entry, offloaded=False), site)
    there = costs.role_cost(replace(entry, offloaded=False, micro_batch_tokens=size), site)
    short = costs.short((there,), site)
    if short is not None:
        return Rejected(option=f"{tokens:,} tokens", reason="does_not_fit", delta=needs_text(short))
    more = busy_seconds(costs, there) / max(busy_seconds(costs, here), 1e-12) - 1.0
    delta = f"{change_text(more, 1)} time of its own"
    return Rejected(option=f"{tokens:,} tokens", reason=reason_alone(more), delta=delta)
