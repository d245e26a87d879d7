"""Wishes that exclude each other: told with both places, and never where some placement meets them."""

from __future__ import annotations

from itertools import product

import pytest
from msgspec.structs import replace

from flowrl.diag.diagnostic import Diagnostic, FlowError
from flowrl.placement.checks.wishes import contradictions
from tests.placement.flows import GRPO, PPO, with_placement
from tests.placement.told import Told, told_text

TOLD = told_text(PPO)
ROLES = ("actor_train", "actor_infer", "critic")


def faults(section: str) -> list[Diagnostic]:
    try:
        told_text(with_placement(GRPO, section))
    except FlowError as error:
        return list(error.diagnostics)
    return []


@pytest.mark.parametrize(
    ("section", "places"),
    [
        ("{pin: {actor_infer: all, actor_train: train}}", ["train", "all"]),
        ("{pin: {actor_infer: train, actor_train: rollout}}", ["rollout", "train"]),
        ("{pools: {a: {gpus: 8, roles: [actor_infer]}, b: {gpus: 8}}, pin: {actor_infer: b}}", ["b", "actor_infer"]),
        ("{pools: {a: {gpus: 8}}, apart: [[actor_infer, reward]]}", ["[actor_infer, reward]", "8"]),
        ("{pin: {actor_infer: all}, apart: [[actor_train, reward]]}", ["[actor_train, reward]", "all"]),
    ],
)
def test_both_places_are_shown(section: str, places: list[str]) -> None:
    (fault,) = faults(section)
    lines = with_placement(GRPO, section).splitlines()
    shown = [lines[s.line - 1][s.column - 1 : s.end_column - 1] for s in (label.span for label in fault.labels)]
    assert shown == places


def pins() -> list[dict[str, str]]:
    names = ("", "all", "rollout", "train", "own")
    every = (dict(zip(ROLES, way, strict=True)) for way in product(names, repeat=len(ROLES)))
    return [{role: pool for role, pool in pin.items() if pool} for pin in every]


def told(pin: dict[str, str]) -> list[Diagnostic]:
    return list(contradictions(TOLD.graph, replace(TOLD.request, pin=pin)))


def possible(pin: dict[str, str]) -> bool:
    """By what the pools of a plan are called, over all ways to put the roles into pools, `reference` wherever it helps:
    one pool is `all`; else `rollout` has the generator and `train` a trainer."""
    return any(_meets(pin, dict(zip((*ROLES, "reference"), way, strict=True))) for way in product(range(4), repeat=4))


def _meets(pin: dict[str, str], where: dict[str, int]) -> bool:
    names: dict[int, set[str]] = {}
    for role, pool in pin.items():
        names.setdefault(where[role], set()).add(pool)
    flat = [name for own in names.values() for name in own]
    if any(len(own) > 1 for own in names.values()) or len(flat) != len(set(flat)):
        return False
    if any((name == "all") != (len(set(where.values())) == 1) for name in flat):
        return False
    spot = {next(iter(own)): place for place, own in names.items()}
    has_generator = spot.get("rollout", where["actor_infer"]) == where["actor_infer"]
    trainers = (where["actor_train"], where["critic"])
    return has_generator and spot.get("train", trainers[0]) in trainers


@pytest.mark.parametrize("pin", [pin for pin in pins() if "own" not in pin.values()], ids=str)
def test_pins_are_refused_only_where_no_way_meets_them(pin: dict[str, str]) -> None:
    if told(pin):
        assert not possible(pin)


def test_pins_that_no_way_meets_are_refused() -> None:
    missed = [pin for pin in pins() if "own" not in pin.values() and not possible(pin) and not told(pin)]
    assert missed == []


def test_a_search_meets_the_pins_that_are_let_through() -> None:
    for pin in ({"reward": "rollout"}, {"reward": "train"}, {"actor_infer": "rollout", "reward": "train"}):
        section = f"{{pin: {{{', '.join(f'{role}: {pool}' for role, pool in pin.items())}}}}}"
        plan: Told = told_text(with_placement(GRPO, section))
        homes = {entry.role: pool.name for pool in plan.placement.pools for entry in pool.roles}
        assert {role: homes[role] for role in pin} == pin
