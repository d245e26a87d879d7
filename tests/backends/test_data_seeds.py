"""Numbered prompts: their seeds belong to the data set and the number, whatever the run, the epoch or the order."""

from __future__ import annotations

from typing import Any

from flowrl.backends.contract import RankSetup
from flowrl.backends.registry import make_rank
from flowrl.graph.graph import Kind, Op, Role
from flowrl.graph.params import DataParams
from flowrl.graph.types import Granularity
from flowrl.plan.plan import Layout


def numbered(name: str = "data.train", seed: int = 0, **params: Any) -> Any:
    known = DataParams(source="", prompt="prompt", **{"seeds": 10, **params})
    op = Op(id=name, role=name, method=name[5:], granularity=Granularity.PROMPT, params=known)
    return make_rank(RankSetup(Role(name=name, kind=Kind.DATA), None, None, Layout(), seed=seed, ops=(op,)))


def seeds(data: Any, start: int = 0, count: int | None = None) -> list[int]:
    return data.rows(start, count).array("prompt_id").tolist()


def test_every_epoch_has_the_same_seeds_in_an_order_of_its_own() -> None:
    data = numbered()
    first, second = seeds(data), seeds(data, 10)
    assert len(set(first)) == 10
    assert sorted(first) == sorted(second)
    assert first != second
    assert seeds(data, 8, 4) == first[8:] + second[:2]
    assert data.size == 10


def test_another_run_has_another_order_of_the_same() -> None:
    assert sorted(seeds(numbered(seed=1))) == sorted(seeds(numbered(seed=2)))
    assert seeds(numbered(seed=1)) != seeds(numbered(seed=2))
    assert seeds(numbered(seed=1, order="sequential")) == seeds(numbered(seed=2, order="sequential"))


def test_sets_of_other_names_share_nothing() -> None:
    train, held_out = numbered(seeds=3000, order="sequential"), numbered("data.val", seeds=3000, order="sequential")
    assert not set(seeds(train)) & set(seeds(held_out))
    assert all(0 <= seed < 2**31 for seed in seeds(train))


def test_ids_are_places_in_the_endless_order() -> None:
    batch = numbered().rows(25, 3)
    assert batch.ids.tolist() == [25, 26, 27]
    assert batch.prompt_ids.tolist() == [25, 26, 27]
    assert set(batch.columns) == {"prompt_id"}
