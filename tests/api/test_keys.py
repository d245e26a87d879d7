"""Keys by their paths: what `flowrl explain KEY` finds."""

from __future__ import annotations

import pytest

from flowrl import api

SCHEMA = api.schema()


@pytest.mark.parametrize(
    ("asked", "path"),
    [
        ("step.refill", "step.refill"),
        ("step.refill.max_rounds", "step.refill.max_rounds"),
        ("stages.1.step.prompts", "stages.*.step.prompts"),
        ("roles.critic.update.loss", "roles.critic.update.loss"),
        ("roles.alice_train.update.loss", "roles.*.update.loss"),
        ("update.loss", "roles.*.update.loss"),
        ("kv_fraction", "roles.*.engine.kv_fraction"),
        ("edges.every_steps", "edges.*.every_steps"),
        ("generate@val.top_p", "roles.*.generate@*.top_p"),
        ("assume.actor_infer.generate.response_tokens", "assume.*.*.response_tokens"),
        ("placement.pools.rollout.layouts.actor_infer.tp", "placement.pools.*.layouts.*.tp"),
    ],
)
def test_path_is_found(asked: str, path: str) -> None:
    assert api.find_keys(SCHEMA, asked)[0].path == path


def test_what_is_told_of_a_key() -> None:
    (key,) = api.find_keys(SCHEMA, "step.epochs")
    assert (key.type, key.unit, key.default) == ("integer at least 1 and at most 100", None, "1")
    (key,) = api.find_keys(SCHEMA, "checkpoint_every_steps")
    assert key.unit == "steps"
    (key,) = api.find_keys(SCHEMA, "step.refill")
    assert (key.type, key.keys) == ("mapping", ("max_rounds", "oversample"))


def test_key_with_two_meanings_is_told_with_both() -> None:
    """The estimator's penalty goes into the reward, the trainer's into the loss."""
    assert len({key.doc for key in api.find_keys(SCHEMA, "kl")}) == 2


@pytest.mark.parametrize("asked", ["", ".", "no_such_key", "step.no_such", "actor_train.no_such"])
def test_unknown_key_is_not_found(asked: str) -> None:
    assert api.find_keys(SCHEMA, asked) == ()


def test_near_keys() -> None:
    assert api.near_keys(SCHEMA, "step.refil") == ["step.refill"]
    assert api.near_keys(SCHEMA, "zzz") == []


def test_keys_are_found_by_their_own_paths() -> None:
    from flowrl.api.keys import ANY, _paths

    paths = [path for path, _ in _paths(SCHEMA)]
    assert len(paths) > 300
    for path in paths[:: len(paths) // 60]:
        asked = ".".join("x" if part == ANY else part.replace("@LABEL", "@val") for part in path)
        assert api.find_keys(SCHEMA, asked), asked
