"""Random steps: the recursion against the virtual clock, draws against the model of means, and what is published of
asynchronous training."""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from random import Random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from flowrl.api.compile import compile_spec
from flowrl.diag.diagnostic import InternalError
from flowrl.execution.expand import ratio_of
from flowrl.execution.random import STEPS, WARM_STEPS, distribution, draw_steps
from flowrl.execution.simulate import simulate
from flowrl.placement.cost.lengths import LengthTable, constant, lognormal
from flowrl.placement.time.draws import Draw, by_longest
from flowrl.plan.io import dumps
from flowrl.plan.plan import Estimate, Plan, RandomStep
from flowrl.program.check import check
from flowrl.program.program import Program
from flowrl.spec import loads
from tests.program.programs import make_program, programs

FLOW = """
flowrl: 1
name: tails
models: {{policy: {{source: Qwen/Qwen2.5-7B-Instruct}}}}
data: {{train: {{source: rows.jsonl, max_prompt_tokens: 1024}}}}
roles:
  actor_train: {{model: policy, backend: fsdp, update: {{loss: ppo, correction: {{name: tis, unit: token}}}}}}
  actor_infer: {{model: policy, backend: vllm, generate: {{max_response_tokens: 32768}}}}
  reward: {{function: "flowrl:overlong", args: {{max_tokens: 32768, buffer_tokens: 512, penalty: 1.0}}}}
  advantage: {{estimator: grpo}}
edges:
  - data.train -> actor_infer.generate
  - actor_infer.generate -> reward.score
  - reward.score -> advantage.estimate
  - advantage.estimate -> actor_train.update
  - actor_train => actor_infer
step: {{prompts: 64, samples_per_prompt: 8, updates: 1}}
schedule: {schedule}
assume: {{actor_infer.generate: {{response_tokens: {{mean: 4000, p99: {p99}}}}}}}
placement: {placement}
"""


@lru_cache
def planned(schedule: str, p99: int, gpus: int, rollout: int | None) -> Plan:
    """`rollout` GPUs generate and the others train; all do both, if it is None."""
    apart = f"{{rollout: {{gpus: {rollout}, roles: [actor_infer]}}, "
    placement = "colocated"
    if rollout is not None:
        placement = f"{{pools: {apart}train: {{gpus: {gpus - rollout}, roles: [actor_train]}}}}}}"
    text = FLOW.format(schedule=f"{{{schedule}}}", p99=p99, placement=placement)
    return compile_spec(loads(text, folder="."), f"{gpus // 8}x8xH100-80G")


def estimate(schedule: str, p99: int = 12000, gpus: int = 16, rollout: int | None = None) -> Estimate:
    return planned(schedule, p99, gpus, rollout).stages[0].estimate


def drawn(schedule: str, p99: int = 12000, gpus: int = 16, rollout: int | None = None) -> RandomStep:
    found = estimate(schedule, p99, gpus, rollout).random
    assert found is not None
    return found


spread = st.builds(Draw, st.floats(0, 3), st.floats(0, 5), st.floats(0, 0.5))


@settings(deadline=None, max_examples=40)
@given(program=programs(max_links=5), draws=st.lists(spread, min_size=9, max_size=9), seed=st.integers(0, 9))
def test_steps_that_follow_from_one_another_are_those_of_the_clock(
    program: Program, draws: list[Draw], seed: int
) -> None:
    """Additions and maxima, or with few slots the clock itself: every start is where the executor has it."""
    try:
        check(program)
    except InternalError:
        assume(False)
    by_id = {i.id: draw for i, draw in zip(program.instructions, draws, strict=False)}
    durations = {id: draw.mean for id, draw in by_id.items()}
    found = draw_steps(program, durations, by_id, 30, seed)
    trace = simulate(program, durations, 30, drawn=lambda id, step: found.seconds[id][step - 1])
    for span in trace.spans:
        assert found.starts[span.instruction][span.step - 1] == pytest.approx(span.start_seconds, abs=1e-9)


@settings(deadline=None, max_examples=40)
@given(
    count=st.floats(1, 3000),
    mean=st.floats(200, 3000),
    sigma=st.floats(0.0, 1.6),
    weights=st.tuples(st.floats(0.01, 1.0), st.floats(0.0001, 0.01), st.floats(0.0, 1e-5)),
)
def test_a_draw_has_the_mean_of_the_model(
    count: float, mean: float, sigma: float, weights: tuple[float, float, float]
) -> None:
    """Of a step that grows with the responses that live, the seconds over all longest responses are those of the
    expected numbers alive: each cell of time with the chance that anything lives there."""
    table = lognormal(mean, 8000.0, sigma)
    fixed, each, aged = weights

    def step(alive: float, t: float) -> float:
        return fixed + (each + aged * t) * alive

    draw = by_longest(table.alive, table.width, count, count, step, leaves=True)
    chances = [1 - (1 - share) ** count for share in table.alive]
    middles = [(cell + 0.5) * table.width for cell in range(len(chances))]
    cells = zip(table.alive, chances, middles, strict=True)
    expected = sum(table.width * (c * fixed + (each + aged * t) * s * count) for s, c, t in cells)
    assert draw.mean == pytest.approx(expected, rel=2e-3)


def test_a_longest_response_is_drawn_by_its_order_statistic() -> None:
    """Of 100 responses; one step takes a second, so a draw is the longest response."""
    table = lognormal(1000.0, 20000.0, 1.0)
    draw, random = by_longest(table.alive, table.width, 100, 100, lambda alive, t: 1.0, leaves=True), Random(3)
    many = sorted(draw.drawn(random) for _ in range(4000))
    assert sum(many) / len(many) == pytest.approx(table.longest_of(100), rel=0.02)
    for share in (0.1, 0.5, 0.9):
        longest = many[int(share * len(many))]
        cell = min(range(64), key=lambda cell: abs((1 - table.alive[cell]) ** 100 - share))
        assert longest == pytest.approx(cell * table.width, abs=3 * table.width)


def test_lengths_that_are_all_the_same_draw_the_same() -> None:
    table: LengthTable = constant(640.0)
    draw = by_longest(table.alive, table.width, 50, 50, lambda alive, t: 0.5, leaves=True)
    assert {draw.drawn(Random(seed)) for seed in range(5)} == {320.0}


def test_the_mean_of_draws_is_the_plan_where_nothing_races() -> None:
    """Colocated at lag 0 everything adds up, so the mean step is that of the means; it spreads all the same."""
    found = estimate("max_lag: 0", p99=30000)
    random = drawn("max_lag: 0", p99=30000)
    assert random.mean_seconds == pytest.approx(found.step_seconds, rel=1e-6)
    assert random.p50_seconds < random.p90_seconds < random.p99_seconds
    assert random.p99_seconds > 1.01 * random.mean_seconds


def test_the_step_of_the_means_is_a_lower_bound() -> None:
    """Two pools of 10 s that hand rows on, each with a spread: now the one and now the other is waited for."""
    program = make_program([["g"], ["u"]], [("g", "u", 2, 0), ("u", "g", 3, 2)])
    draws = {"g": Draw(0.0, 10.0, 0.3), "u": Draw(0.0, 10.0, 0.3)}
    durations = {"g": 10.0, "u": 10.0}
    assert ratio_of(program, durations)[0] == 10.0
    means = []
    for lag in (1, 2, 4, 8):
        late = make_program([["g"], ["u"]], [("g", "u", 2 + lag, 0), ("u", "g", 2 + lag, 1 + lag)])
        means.append(distribution(late, durations, draws, steps=4000, max_lag=lag).mean_seconds)
    assert all(after < before for before, after in pairwise(means))
    assert means[0] > 11.0
    assert means[0] - means[2] > 4 * (means[2] - means[3])  # what is gained beyond 4 is little
    assert means[-1] > 10.0


def test_the_same_seed_gives_the_same_bytes() -> None:
    plan = planned("max_lag: 1", 12000, 16, 8)
    planned.cache_clear()
    assert dumps(plan) == dumps(planned("max_lag: 1", 12000, 16, 8))
    program, draws = make_program([["a"]], []), {"a": Draw(0.0, 1.0, 0.5)}
    one, other = (draw_steps(program, {"a": 1.0}, draws, 50, seed).seconds for seed in (1, 2))
    assert one != other
    assert sum(one["a"][WARM_STEPS:]) == pytest.approx(50 - WARM_STEPS)


def gain(p99: int, gpus: int) -> float:
    """Of the best split with a lag of 2 and partial rollouts over the best that is on policy."""
    splits = (gpus // 2, gpus * 3 // 4)
    sync = min(drawn("max_lag: 0", p99, gpus, rollout).mean_seconds for rollout in (None, *splits))
    late = min(drawn("max_lag: 2, partial_rollout: true", p99, gpus, n).mean_seconds for n in splits)
    return sync / late


def test_asynchronous_training_gains_more_with_longer_tails_and_more_gpus() -> None:
    """As published of AReaL (arXiv:2505.24298) and of Laminar (arXiv:2510.12633): nobody waits for the longest
    response, whose share of the step grows with the tail and as everything else is shared by more."""
    by_tail = [gain(p99, 32) for p99 in (5000, 12000, 30000)]
    by_size = [gain(12000, gpus) for gpus in (16, 32, 64)]
    assert all(1.05 * fewer < more for fewer, more in pairwise(by_tail))
    assert all(fewer < more for fewer, more in pairwise(by_size))
    assert by_size[-1] > 1.2 * by_size[0]


def test_too_few_rollout_gpus_starve_the_trainer() -> None:
    found = [drawn("max_lag: 1", rollout=rollout) for rollout in (1, 4, 12)]
    for fewer, more in pairwise(found):
        assert fewer.mean_seconds > more.mean_seconds
        assert fewer.busy["train"] < more.busy["train"]
        assert fewer.bubbles["train"] > more.bubbles["train"]
    assert found[0].busy["rollout"] > 0.99 > 0.2 > found[0].busy["train"]


def test_lag_beyond_two_to_four_gives_little() -> None:
    means = {lag: drawn(f"max_lag: {lag}", p99=30000, gpus=32, rollout=24).mean_seconds for lag in (0, 1, 2, 4, 8)}
    assert means[0] > means[1] * 1.05
    assert means[2] == pytest.approx(means[4], rel=0.02)
    assert means[4] == pytest.approx(means[8], rel=0.01)


def test_samples_are_as_old_as_the_program_makes_them() -> None:
    """Whole rollouts: always max_lag. Partial ones: by when a response began; those beyond max_lag are dropped."""
    assert drawn("max_lag: 0").lag == 0.0
    assert drawn("max_lag: 2", rollout=8).lag == 2.0
    kept = drawn("max_lag: 4, partial_rollout: true", rollout=4)
    tight = drawn("max_lag: 1, partial_rollout: true, when_stale: drop", rollout=4)
    assert 1.0 < kept.lag < 4.0
    assert (kept.dropped, tight.dropped) == (0.0, tight.stale)
    assert 0.0 <= kept.stale < tight.stale < 1.0
    assert tight.lag <= 1.0


def test_a_queue_holds_what_little_says() -> None:
    """A reader that is slower than its source, behind room for 2: one is being read, so 1 lies there, all the time."""
    program = make_program([["a"], ["b"]], [("a", "b", 2, 0)])
    found = distribution(program, {"a": 1.0, "b": 4.0}, {"a": Draw(0.0, 1.0, 0.01)}, steps=200)
    assert found.queues == {}  # an order channel carries no rows
    assert found.mean_seconds == pytest.approx(4.0)
    assert found.busy == pytest.approx({"p0": 0.25, "p1": 1.0})
    assert found.bubbles["p0"] == pytest.approx(3.0)


def test_a_plan_draws_as_many_steps_as_it_says() -> None:
    random = drawn("max_lag: 1", rollout=8)
    lines = {line.what: line for line in estimate("max_lag: 1", rollout=8).lines}
    assert random.steps == STEPS
    assert lines["step, mean of draws"].value == random.mean_seconds
    assert lines["step, 99 of 100 within"].value == random.p99_seconds
    waits = random.queues["actor_infer.generate -> actor_train.update"]
    assert 0.0 <= waits <= 3.0
