"""Published rankings: what of the other system's way of working the comparison needs."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.facts.records import read
from benchmarks.facts.rules import fill
from benchmarks.facts.section import Facts
from benchmarks.searching import rankings


def test_rlinf_trains_the_first_part_of_a_minibatch_while_the_rest_is_generated() -> None:
    """RLinf's run_forward_backward_iterator: after the last take only its own rows are left to train. Those of the last
    minibatch that came before have the shorter responses, less than half of it: what waiting for all of it costs."""
    (raw,) = (each for each in Facts().perf if each["id"] == "rlinf-rank-ppo-7b")
    said = {"prompt_len": {"max": 2048}, "response_len": {"max": 10240}, "samples_per_prompt": 1}
    said |= {"train_backend": "Megatron-LM", "placement": "colocated", "max_staleness": 0}
    case = replace(fill(read(raw | said), count=16), at_once=rankings.AT_ONCE)
    roles = [role for pool in case.pools for role in pool.roles if role not in rankings.NOT_OF_RLINF]
    (pools,) = rankings._spatial(roles, 16)
    late = rankings._seconds(replace(case, pools=pools), rankings._inferring, rankings.TAKES)
    found = rankings._spread(case, [pools])
    assert isinstance(late, float)
    assert isinstance(found, float)
    update = rankings.predict(rankings.plan(replace(case, pools=pools), rankings._inferring)).phases["train"] / 2
    minibatch = update / case.updates  # of rows of mean length, of one trainer: the last ones are longer
    assert minibatch / 4 < late - found < minibatch
