"""Environments of other libraries, each played through: what is seen, what is an action, what it earns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flowrl.backends.envs.names import LIBRARIES, maker_of
from flowrl.backends.envs.protocol import Start, start, step


def made(name: str, **args: Any) -> Any:
    return maker_of(name, Path())(**args)


def test_the_lake_of_gymnasium_is_crossed() -> None:
    """Its own map: down, down, right, right, down, right leads around the holes."""
    env = made("gymnasium:FrozenLake-v1", is_slippery=False)
    first = start(env, Start(0, 1, 2, {}))
    assert first.observation == "Answer with an action: a number from 0 to 3.\n[S]FFF\nFHFH\nFFFH\nHFFG\n"
    seen = [step(env, f"I choose {action}.") for action in (1, 1, 2, 2, 1, 2)]
    assert [each.rewards[""] for each in seen] == [0, 0, 0, 0, 0, 1]
    assert [each.terminated for each in seen] == [False] * 5 + [True]
    assert "SFFF\n[F]HFH\nFFFH\nHFFG\n" in str(seen[0].observation)
    again = start(env, Start(1, 9, 2, {}))
    assert again.state_key == first.state_key  # the same state, whatever was asked with it


def test_what_is_no_action_changes_nothing() -> None:
    env = made("gymnasium:FrozenLake-v1", is_slippery=False)
    start(env, Start(0, 1, 2, {}))
    for text in ("north", "7", ""):
        seen = step(env, text)
        assert str(seen.observation).startswith("That is no action.")
        assert not seen.done
    assert "[F]HFH" in str(step(env, "1").observation)


def test_numbers_of_gymnasium_are_written_out() -> None:
    env = made("gymnasium:CartPole-v1")
    first = start(env, Start(0, 1, 2, {}))
    assert start(env, Start(0, 1, 3, {})) == first  # a seed is a state
    assert start(env, Start(0, 2, 3, {})) != first
    assert step(env, "1").rewards == {"": 1.0}
    env = made("gymnasium:Pendulum-v1")
    start(env, Start(0, 1, 2, {}))
    assert step(env, "[0.5]").rewards[""] < 0
    assert str(step(env, "[50]").observation).startswith("That is no action.")


def test_a_task_of_reasoning_gym_has_its_own_verifier() -> None:
    env = made("reasoning_gym:chain_sum", min_terms=2, max_terms=2, min_digits=1, max_digits=1)
    asked = str(start(env, Start(0, 5, 2, {})).observation)
    left, sign, right = asked.split(":")[1].replace("=", "").split()
    answer = int(left) + int(right) if sign == "+" else int(left) - int(right)
    right_one = step(env, f"So it is <answer> {answer} </answer>")
    assert (right_one.rewards, right_one.terminated, right_one.success) == ({"": 1.0}, True, True)
    start(env, Start(0, 5, 2, {}))
    assert step(env, str(answer)).success is True
    start(env, Start(0, 5, 2, {}))
    assert step(env, str(answer + 1)).rewards[""] < 1.0


def test_a_game_of_gem() -> None:
    """Guess a number by halves: it says higher or lower until it is found."""
    env = made("gem:game:GuessTheNumber-v0-easy")
    first = str(start(env, Start(0, 3, 2, {})).observation)
    assert "number" in first
    low, high = 1, 10
    for _ in range(4):
        guess = (low + high) // 2
        seen = step(env, f"\\boxed{{{guess}}}")
        if seen.done:
            break
        low, high = (guess + 1, high) if "higher" in str(seen.observation) else (low, guess - 1)
    assert seen.terminated
    assert seen.rewards[""] == 1.0


@pytest.mark.parametrize("library", sorted(LIBRARIES))
def test_names_are_the_librarys_own(library: str) -> None:
    import importlib

    assert len(list(importlib.import_module(LIBRARIES[library][1]).names())) > 50


def test_gem_shows_its_board_and_knows_a_state_by_it() -> None:
    """Up and down again is the state before, though GEM counts turns in what it says; an id without a level is easy."""
    env = made("gem:game:Sokoban-v0", boxes=1)
    first = start(env, Start(0, 3, 2, {}))
    board = str(first.observation).split("board layout:\n")[1]
    assert board.count("X") == 1
    up, down = step(env, "\\boxed{up}"), step(env, "\\boxed{down}")
    assert down.state_key == first.state_key
    assert up.state_key != first.state_key
    assert str(down.observation).split("board layout:\n")[1] == board
