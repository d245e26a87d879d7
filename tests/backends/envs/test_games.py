"""The environments that ship with FlowRL: rules by hand, and by search that every room and lake can be solved."""

from __future__ import annotations

import random
from collections import deque
from typing import Any

import pytest

from flowrl.backends.envs.bandit import Bandit
from flowrl.backends.envs.frozen_lake import FrozenLake
from flowrl.backends.envs.moves import moves_in
from flowrl.backends.envs.sokoban import Sokoban


def drawing(observation: str) -> list[str]:
    return [line for line in observation.splitlines() if line and set(line) <= set("#_OX*PSG")]


def solved_sokoban(rows: list[str]) -> str | None:
    """The shortest way by breadth-first search over what is drawn, as letters."""
    cells = {(r, c): mark for r, line in enumerate(rows) for c, mark in enumerate(line)}
    walls = {cell for cell, mark in cells.items() if mark == "#"}
    targets = frozenset(cell for cell, mark in cells.items() if mark in "OS*")
    start = (
        next(cell for cell, mark in cells.items() if mark in "PS"),
        frozenset(cell for cell, mark in cells.items() if mark in "X*"),
    )
    ahead, seen = deque([(start, "")]), {start}
    while ahead:
        (player, boxes), way = ahead.popleft()
        if boxes == targets:
            return way
        for letter, (dr, dc) in {"u": (-1, 0), "d": (1, 0), "l": (0, -1), "r": (0, 1)}.items():
            there, behind = (player[0] + dr, player[1] + dc), (player[0] + 2 * dr, player[1] + 2 * dc)
            if there in walls or (there in boxes and behind in walls | boxes):
                continue
            moved = (there, boxes - {there} | {behind} if there in boxes else boxes)
            if moved not in seen:
                seen.add(moved)
                ahead.append((moved, way + letter))
    return None


@pytest.mark.parametrize("boxes", [1, 2])
def test_every_room_can_be_solved_and_pays_as_it_should(boxes: int) -> None:
    env = Sokoban(boxes=boxes, moves_per_turn=200)
    for seed in range(10):
        rows = drawing(env.reset(seed=seed)[0])
        way = solved_sokoban(rows)
        assert way
        _, reward, done, truncated, info = env.step(way)
        assert (done, truncated, info["success"]) == (True, False, True)
        # A shortest way may push a box over a target, which comes on and goes off again: +1 - 1.
        assert reward == pytest.approx(10 + boxes - 0.1 * len(way))


def test_a_room_belongs_to_its_seed() -> None:
    first, again, other = (Sokoban().reset(seed=seed)[0] for seed in (5, 5, 6))
    assert first == again
    assert first != other


def test_walls_and_second_boxes_do_not_move() -> None:
    env = Sokoban()
    env.reset(seed=0)
    before = env._drawn()
    for move in ("up",) * 12:
        _, reward, *_ = env.step(move)
    after = env._drawn()
    _, reward, done, _, _ = env.step("up")
    assert (env._drawn(), done) == (after, False)
    assert reward == pytest.approx(-0.1)
    assert before.count("#") == after.count("#")


def test_every_lake_can_be_crossed() -> None:
    env = FrozenLake(slip=0.0, moves_per_turn=50, holes=0.4)
    for seed in range(20):
        rows = drawing(env.reset(seed=seed)[0])
        assert rows[0][0] == "P"
        assert rows[3][3] == "G"
        way = crossing(rows)
        assert way
        _, reward, done, _, info = env.step(way)
        assert (reward, done, info["success"]) == (1.0, True, True)


def crossing(rows: list[str]) -> str | None:
    ahead, seen = deque([((0, 0), "")]), {(0, 0)}
    while ahead:
        (r, c), way = ahead.popleft()
        if rows[r][c] == "G":
            return way
        for letter, (dr, dc) in {"u": (-1, 0), "d": (1, 0), "l": (0, -1), "r": (0, 1)}.items():
            there = (r + dr, c + dc)
            if 0 <= there[0] < 4 and 0 <= there[1] < 4 and rows[there[0]][there[1]] != "O" and there not in seen:
                seen.add(there)
                ahead.append((there, way + letter))
    return None


def test_a_hole_ends_the_episode() -> None:
    env = FrozenLake(slip=0.0, holes=0.6, moves_per_turn=1)
    for seed in range(50):
        rows = drawing(env.reset(seed=seed)[0])
        if rows[0][1] == "O":
            _, reward, done, _, info = env.step("right")
            assert (reward, done, info["success"]) == (0.0, True, False)
            return
    pytest.fail("no lake has a hole beside the start")


def test_ice_slips_aside_two_times_in_three() -> None:
    env = FrozenLake(size=9, holes=0.0)
    env.reset(seed=1, options={"sample_seed": 11})
    went = {"ahead": 0, "aside": 0}
    for _ in range(900):
        env._player = (4, 4)
        env.step("right")
        went["ahead" if env._player == (4, 5) else "aside"] += 1
        assert env._player in {(4, 5), (3, 4), (5, 4)}
    assert went["aside"] / 900 == pytest.approx(2 / 3, abs=0.06)


def test_luck_is_the_samples_own() -> None:
    def played(sample_seed: int) -> list[tuple[int, int]]:
        env = FrozenLake(size=9, holes=0.0)
        env.reset(seed=1, options={"sample_seed": sample_seed})
        places = []
        for move in ("right", "down") * 6:
            env.step(move)
            places.append(env._player)
        return places

    assert played(3) == played(3)
    assert len({tuple(played(seed)) for seed in range(8)}) > 1


def test_arms_pay_what_they_pay() -> None:
    env = Bandit()
    paid: dict[str, list[float]] = {"phoenix": [], "dragon": [], "neither": []}
    order = set()
    for sample in range(2000):
        text, _ = env.reset(seed=sample, options={"sample_seed": sample * 7 + 1})
        order.add(text)
        for arm, rewards in paid.items():
            env._luck = random.Random(sample)
            _, reward, done, _, _ = env.step(f"I take the {arm}")
            rewards.append(reward)
            assert done
    assert len(order) == 2
    assert set(paid["phoenix"]) == {0.1}
    assert set(paid["neither"]) == {0.0}
    assert set(paid["dragon"]) == {0.0, 1.0}
    assert sum(paid["dragon"]) / 2000 == pytest.approx(0.25, abs=0.03)


@pytest.mark.parametrize(
    ("text", "moves"),
    [
        ("rrd", "rrd"),
        ("I go right, then Down.", "rd"),
        ("up <answer>left || right</answer> down", "lr"),
        ("R\nU", "ru"),
        ("dune", ""),
        ("", ""),
        ("uuuuuuuu", "uuuuu"),
    ],
)
def test_moves_are_read(text: str, moves: str) -> None:
    steps: dict[str, Any] = {"u": (-1, 0), "d": (1, 0), "l": (0, -1), "r": (0, 1)}
    assert moves_in(text, 5) == [steps[move] for move in moves]


def test_any_text_plays_where_it_is_wished() -> None:
    steps = {"u": (-1, 0), "d": (1, 0), "l": (0, -1), "r": (0, 1)}
    assert moves_in("@AB", 2, any_text=True) == [steps["u"], steps["d"]]  # codes 64 and 65
    env = FrozenLake(slip=0.0, holes=0.0, moves_per_turn=9, any_text=True)
    env.reset(seed=0)
    assert env.step("CCCAAA")[1] == 1.0  # right three times, down three times
