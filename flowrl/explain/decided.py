"""What stands behind a decision: what its codes mean, what to write to have it otherwise, and how far the search went.

Takes a stage of a plan and one of its decisions; gives text. Every code that placement gives has words here
(tests/explain/test_decided.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from flowrl.plan.plan import Decision, Layout, Pool, SearchReport, StagePlan

REASONS: Mapping[str, str] = {
    "asked_for": "the flow asks for it",
    "only_option": "there was no other option",
    "fastest": "of what fits, it gives the shortest step",
    "fewest_gpu_seconds": "of what fits, it takes the fewest GPU-seconds a step",
    "cheapest": "of what fits, it costs least a step",
    "fewest_gpus": "of what fits, it takes the fewest GPUs",
    "fits": "it fits, so nothing has to give way",
    "smallest_that_fits": "of what fits, it cuts the model least",
    "needed_to_fit": "without it something does not fit",
    "nearest_to_fitting": "nothing fits, and this is nearest to it",
    "does_not_fit": "it needs more memory than there is",
    "slower": "it fits, and a step takes longer",
    "costs_more": "it fits, and it costs more of what the flow minimises",
    "too_slow": "it fits, and a step takes longer than the flow allows",
    "no_shorter_step": "it is faster on its own, and no step that was looked at with it is shorter",
    "not_preferred": "it is no better, and the first of equals is taken",
    "ranks_without_rows": "some rank would have no row to work on",
}


def words(reason: str) -> str:
    """A code in words; the code itself with spaces, of one that has none."""
    return REASONS.get(reason, reason.replace("_", " "))


def to_write(stage: StagePlan, decision: Decision) -> tuple[str, ...]:
    """Lines of a flow that settle the same thing by hand: another option where there is one, else the chosen one."""
    key = decision.override
    if key is None:
        return ()
    if key == "placement":
        return tuple(_pools(stage))
    layouts = re.fullmatch(r"placement\.pools\.(.+)\.layouts\.([^.]+)", key)
    if layouts:
        return tuple(_pools(stage, layouts[1], {layouts[2]: _other_layout(decision)}))
    value = _other(decision)
    return () if value is None else (f"{key}: {value}",)


def _pools(stage: StagePlan, only: str | None = None, cuts: Mapping[str, str] | None = None) -> Iterator[str]:
    """`placement.pools` with the pools of the plan; layouts for those of `cuts`, by role."""
    yield "placement:"
    yield "  pools:"
    for pool in (each for each in stage.pools if each.devices):
        yield f"    {pool.name}:"
        yield f"      gpus: {len(pool.devices)}"
        if group := _group(pool):
            yield f"      group: {group}"
        yield f"      roles: [{', '.join(entry.role for entry in pool.roles)}]"
        if cuts and pool.name == only:
            yield f"      layouts: {{{', '.join(f'{role}: {cut}' for role, cut in cuts.items())}}}"


def _group(pool: Pool) -> str | None:
    """Of a cluster with several: devices are then called GROUP/nodeN/M."""
    parts = pool.devices[0].split("/")
    return parts[0] if len(parts) > 2 else None


def _other_layout(decision: Decision) -> str:
    """`{tp: 2, pp: 2}` of the first layout that was passed over; of the chosen one if none was."""
    options = [each.option for each in decision.rejected if re.match(r"dp\d+", each.option)]
    return layout_keys(options[0] if options else decision.chosen)


def layout_keys(text: str) -> str:
    """`dp4 tp2 …` → `{tp: 2}`: dp follows from the devices."""
    sizes = dict(re.findall(r"\b(tp|pp|cp|ep)(\d+)", text))
    known = [name for name in Layout.__struct_fields__ if name in sizes]
    return f"{{{', '.join(f'{name}: {sizes[name]}' for name in known) or 'tp: 1'}}}"


def _other(decision: Decision) -> str | None:
    """Of a key with one value: the first that was passed over, else the opposite of what was chosen."""
    kind = decision.what.partition(" of ")[0]
    if kind == "offload":
        return "true" if decision.chosen.startswith("stays") else "false"
    if kind == "recompute":
        passed = next((each.option for each in decision.rejected), None)
        return passed or ("none" if decision.chosen == "full" else "full")
    number = next((found for each in decision.rejected if (found := re.match(r"[\d,]+", each.option))), None)
    return None if number is None else number.group().replace(",", "")


def search_notes(report: SearchReport) -> tuple[str, ...]:
    """What the search says of itself: how much it looked at, and how near to the best its result is."""
    if not report.looked_at:
        return ()
    looked = (
        f"searched {report.space or 'all that the flow allows'}: {report.looked_at:,} bounds and choices worked out"
    )
    if report.exhaustive:
        return (looked, "proven: no placement of this space is better")
    if report.gap > 0:
        return (looked, f"not proven: at most {report.gap:.2%} over the best of this space (bound {report.bound:.6g})")
    return (looked, "not proven: the search was cut short")
