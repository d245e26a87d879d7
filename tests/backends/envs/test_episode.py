"""Whose turn it is, what turns earn and when an episode is over, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from flowrl.backends.envs.episode import Episode, columns_of
from flowrl.backends.envs.protocol import Seen, Start, key_of, start, step
from flowrl.backends.user_code import UserCodeError


def seen(text: str, reward: float | dict[str, float] = 0.0, **more: object) -> Seen:
    rewards = reward if isinstance(reward, dict) else {"": reward}
    return Seen(observation=text, rewards=rewards, state_key=key_of(text), **more)  # type: ignore[arg-type]


def test_one_agent_earns_what_its_turns_earn() -> None:
    episode = Episode(7, ("a",), 5)
    assert episode.begin(seen("one")) == "a"
    assert episode.take("x", seen("two", 1.5)) == "a"
    assert episode.take("y", seen("end", -0.25, terminated=True)) is None
    row = columns_of([episode], "a")
    assert row.ids.tolist() == [7]
    assert row.ragged("turn_rewards").values.tolist() == [1.5, -0.25]
    assert row.ragged("turn_rewards").lengths.tolist() == [2]
    assert row.ragged("done").values.tolist() == [False, True]
    assert row.ragged("state_key").values.tolist() == [key_of("one"), key_of("two")]
    assert row.array("rewards").tolist() == [1.25]
    assert row.array("success").tolist() == [False]  # an end of its own, with nothing gained by it
    assert [line["text"] for line in row.objects("transcript")[0]] == ["x", "y"]  # type: ignore[attr-defined]


def test_two_agents_take_turns_and_one_may_earn_by_the_others() -> None:
    episode = Episode(1, ("a", "b"), 2)
    assert episode.begin(seen("q")) == "a"
    assert episode.take("one", seen("q1", {"": 1.0, "b": 10.0})) == "b"  # b has said nothing yet: it is owed
    assert episode.take("two", seen("q2", {"": 2.0, "a": 100.0})) == "a"
    assert episode.take("three", seen("q3", 4.0)) == "b"
    assert episode.take("four", seen("q4", 8.0)) is None  # a is next, and has had its two turns
    assert columns_of([episode], "a").ragged("turn_rewards").values.tolist() == [101.0, 4.0]
    assert columns_of([episode], "b").ragged("turn_rewards").values.tolist() == [12.0, 8.0]
    assert episode.cut
    assert not any(columns_of([episode], "b").ragged("done").values)


def test_the_environment_says_whose_turn_it_is() -> None:
    episode = Episode(1, ("a", "b"), 9)
    assert episode.begin(seen("q", agent="b")) == "b"
    assert episode.take("one", seen("q1", agent="b")) == "b"
    with pytest.raises(UserCodeError, match="names the agent `c`"):
        episode.take("two", seen("q2", agent="c"))


def test_an_agent_that_never_spoke_has_no_turns() -> None:
    episode = Episode(1, ("a", "b"), 3)
    episode.begin(seen("q"))
    episode.take("one", seen("q1", 1.0, terminated=True, success=True))
    row = columns_of([episode], "b")
    assert row.ragged("turn_rewards").lengths.tolist() == [0]
    assert row.array("rewards").tolist() == [0.0]
    assert row.array("success").tolist() == [True]
    assert np.asarray(row.ragged("state_key").values).dtype == np.int64


class Plain:
    """Columns by name, no info, one `done`."""

    def reset(self, seed: int, answer: str) -> str:
        return f"{seed} {answer}"

    def step(self, action: str) -> tuple[object, float, bool, dict[str, object]]:
        return 42, 0.5, action == "stop", {"state_key": 9, "success": True}


def test_environments_of_a_plainer_form() -> None:
    env = Plain()
    first = start(env, Start(0, 3, 4, {"prompt": "p", "answer": "four"}))
    assert first.observation == "3 four"
    after = step(env, "stop")
    assert (after.observation, after.rewards, after.terminated) == ("42", {"": 0.5}, True)
    assert (after.state_key, after.success, after.truncated) == (9, True, False)


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (None, "returned None in place of observation"),
        (("x", "much", False, False, {}), "returned 'much' as a reward"),
        (("x", float("nan"), False, False, {}), "returned nan as a reward"),
        (("x", 0.0, False, False, 3), "in place of `info`"),
        (([{"role": "user", "content": [1]}], 0.0, False, {}), "no message"),
    ],
)
def test_answers_of_another_form_are_refused(answer: object, told: str) -> None:
    class Odd:
        def step(self, action: str) -> object:
            return answer

    with pytest.raises(UserCodeError, match=told):
        step(Odd(), "x")
