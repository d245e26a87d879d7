"""Updates that begin before the last part of generation: which do, in which order, and why others wait."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from flowrl.compiler.emit.program import emit
from flowrl.compiler.emit.sessions import MOST_TAKES, Parts, late_updates
from flowrl.diag.diagnostic import InternalError
from flowrl.execution.steady import steady
from flowrl.graph.graph import Graph
from flowrl.plan.plan import Pool, StageRun
from flowrl.program.check import check
from flowrl.program.program import ChannelKind, Instruction, InstructionKind, Program
from tests.compiler.emit.graphs import GPU_ROLES, host_pool, make_pool, one_pool
from tests.compiler.flows import GRPO, PPO, compiled

RUN = StageRun(steps=4, checkpoint_every_steps=2)
ROLLOUT = GRPO.replace("updates: 1", "updates: 4").replace("loss: ppo", "loss: ppo, old_log_probs: rollout")


def apart(*trains: str) -> tuple[Pool, ...]:
    """Engines on one pool, what trains or scores on another, everything else on the host."""
    host = make_pool("host", ("reward", "advantage", "best"), devices=0, slots=8)
    return (make_pool("rollout", ["actor_infer"]), make_pool("train", trains), host)


def arriving(graph: Graph, takes: int) -> Graph:
    return replace(graph, schedule=replace(graph.schedule, takes=takes, minibatches="arrival"))


def stream(program: Program, pool: str, *kinds: InstructionKind) -> list[str]:
    found = next(s for s in program.streams if s.pool == pool)
    return [i.id.removeprefix("run ") for i in found.instructions if i.kind in kinds]


def reasons(text: str, pools: Sequence[Pool], takes: int = 4) -> dict[str, str]:
    graph = compiled(text)
    return late_updates(graph, emit(graph, pools, RUN).streams, Parts(takes))


def test_each_part_is_trained_on_before_the_next_is_scored() -> None:
    """A lane that scores and trains goes through one part after the other; a part of two minibatches is trained twice,
    a minibatch of two parts once."""
    text = ROLLOUT.replace("-> reward.score\n", "-> reward.score, reference.log_probs\n", 1)
    text = text.replace("roles:\n", "roles:\n  reference: {model: policy, backend: fsdp}\n")
    text = text.replace("- reward.score ->", "- reward.score, reference.log_probs ->")
    text = text.replace("estimator: grpo", "estimator: grpo, kl: {coef: 0.1}")
    pools = apart("actor_train", "reference")
    run = InstructionKind.RUN
    halves = emit(arriving(compiled(text), 2), pools, RUN)
    assert stream(halves, "train", run) == [
        "reference.log_probs 1/2",
        *("actor_train.update 1/4", "actor_train.update 2/4"),
        "reference.log_probs 2/2",
        *("actor_train.update 3/4", "actor_train.update 4/4"),
    ]
    eighths = emit(arriving(compiled(text), 8), pools, RUN)
    assert stream(eighths, "train", run)[:6] == [
        *("reference.log_probs 1/8", "reference.log_probs 2/8", "actor_train.update 1/4"),
        *("reference.log_probs 3/8", "reference.log_probs 4/8", "actor_train.update 2/4"),
    ]


def test_a_second_pass_begins_when_the_first_is_over() -> None:
    text = ROLLOUT.replace("updates: 4", "updates: 2, epochs: 2")
    program = emit(arriving(compiled(text), 4), apart("actor_train"), RUN)
    updates = [i for i in program.instructions if i.op == "actor_train.update"]
    assert [i.id for i in updates] == [f"run actor_train.update {n}/4" for n in (1, 2, 3, 4)]
    assert [(i.rows.start, i.rows.stop, i.rows.arrived) for i in updates] == [(0, 4, True), (4, 8, True)] * 2


def test_training_overlaps_generation() -> None:
    """Twelve seconds of generation in four parts, four updates of three: the last one ends three after the last part,
    and without arrival all four follow it. A part of the reward takes one: 12 + 1 + 3, not 12 + 1 + 12."""
    graph = compiled(ROLLOUT)
    pools = apart("actor_train")
    seconds = {"take": 3.0, "run reward.score": 1.0, "run actor_train.update": 3.0}

    def taken(program: Program) -> float:
        each = {
            i.id: next((s for name, s in seconds.items() if i.id.startswith(name)), 0.0) for i in program.instructions
        }
        return steady(program, each).step_seconds

    assert taken(emit(arriving(graph, 4), pools, RUN)) == pytest.approx(16.0)
    fixed = replace(graph, schedule=replace(graph.schedule, takes=4))
    assert taken(emit(fixed, pools, RUN)) == pytest.approx(25.0)


def test_why_updates_wait() -> None:
    ppo = PPO.replace("updates: 2", "updates: 4")
    four = apart("actor_train", "critic", "reference")
    assert reasons(ROLLOUT, apart("actor_train")) == {}
    assert reasons(GRPO, apart("actor_train")) == {"actor_train.update": "one minibatch is the whole step"}
    assert reasons(ROLLOUT, apart("actor_train"), takes=3) == {}, "eight prompts have two equal parts, not three"
    assert reasons(ppo, four) == dict.fromkeys(
        ("actor_train.update", "critic.update"), "advantage.estimate works on all rows at once"
    ), "gae whitens over the step"
    plain = ppo.replace("estimator: gae", "estimator: gae, normalize: none")
    assert reasons(plain, four) == {
        "actor_train.update": "actor_train.log_probs reads its weights before they change",
        "critic.update": "critic.values reads its weights before they change",
    }
    sampled = plain.replace("loss: ppo", "loss: ppo, old_log_probs: rollout").replace(", actor_train.log_probs", "")
    sampled = sampled.replace("gae, normalize: none, kl: {coef: 0.01}", "gae, normalize: none")
    assert reasons(sampled, four) == {"critic.update": "critic.values reads its weights before they change"}
    assert reasons(ROLLOUT, (make_pool("all", ("actor_infer", "actor_train")), host_pool())) == {
        "actor_train.update": "actor_train works on the devices of actor_infer"
    }
    assert reasons(
        ROLLOUT, (make_pool("all", ("actor_infer", "actor_train"), offloaded=("actor_train",)), host_pool())
    ) == {"actor_train.update": "actor_train leaves its devices while others work"}


def test_parts_and_minibatches_share_their_borders() -> None:
    text = ROLLOUT.replace("prompts: 8", "prompts: 12")
    said = "4 minibatches and 3 parts do not share their borders"
    assert reasons(text, apart("actor_train"), takes=3) == {"actor_train.update": said}


@pytest.mark.parametrize("action", ["drop", "mask"])
def test_what_a_filter_leaves_is_known_when_all_are_done(action: str) -> None:
    keys = f"rule: threshold, keep_top: 0.5, by: reward.rewards, action: {action}"
    text = ROLLOUT.replace("roles:\n", f"roles:\n  best: {{kind: filter, {keys}}}\n", 1)
    text = text.replace("- reward.score -> advantage", "- reward.score -> best.select\n  - best.select -> advantage")
    said = "which rows are left is known when all are done"
    assert reasons(text, apart("actor_train")) == {"actor_train.update": said}


def test_an_update_that_waits_keeps_its_prompts() -> None:
    text = PPO.replace("estimator: gae", "estimator: gae, normalize: none")
    program = emit(arriving(compiled(text), 4), apart("actor_train", "critic", "reference"), RUN)
    updates = [i for i in program.instructions if i.op in ("actor_train.update", "critic.update")]
    assert updates
    assert not any(i.rows.arrived for i in updates)


def test_the_checker_wants_every_part_that_a_minibatch_is_made_of() -> None:
    program = emit(arriving(compiled(ROLLOUT), 8), apart("actor_train"), RUN)
    update = "run actor_train.update 2/4"
    lost = next(c for c in program.channels if c.target == update and c.source == "take actor_infer.generate 3/8")

    def cut(i: Instruction) -> Instruction:
        kept = (tuple(id for id in ids if id != lost.id) for ids in (i.receives, i.sends))
        return replace(i, **dict(zip(("receives", "sends"), kept, strict=True)))

    broken = Program(
        streams=tuple(replace(s, instructions=tuple(map(cut, s.instructions))) for s in program.streams),
        channels=tuple(c for c in program.channels if c.id != lost.id),
    )
    with pytest.raises(InternalError, match=f"`{update}` trains on prompts of parts of `actor_infer.generate`"):
        check(broken)


@settings(max_examples=40, deadline=None)
@given(
    flow=st.sampled_from((ROLLOUT, PPO.replace("gae,", "gae, normalize: none,"))),
    together=st.booleans(),
    takes=st.integers(2, MOST_TAKES),
    lag=st.integers(0, 2),
    updates=st.sampled_from((2, 4, 8)),
    epochs=st.integers(1, 2),
)
def test_drawn_flows_train_on_every_row_once_a_pass(
    flow: str, together: bool, takes: int, lag: int, updates: int, epochs: int
) -> None:
    """Live (emit checks it); each pass takes all rows; an update has a channel from each part of a source that its rows
    are in, and from no other."""
    text = flow.replace("updates: 4", f"updates: {updates}").replace("updates: 2", f"updates: {updates}")
    text = text.replace(f"updates: {updates}", f"updates: {updates}, epochs: {epochs}")
    graph = arriving(compiled(text + f"schedule: {{max_lag: {lag}}}\n"), takes)
    roles = [role for role in GPU_ROLES if role in {r.name for r in graph.roles} and role != "actor_infer"]
    program = emit(graph, one_pool() if together and flow is not ROLLOUT else apart(*roles), RUN)
    by_id = {i.id: i for i in program.instructions}
    arrived = [i for i in program.instructions if i.rows.arrived]
    event(f"{len(arrived)} early")
    for op in dict.fromkeys(i.op for i in arrived):
        own = [i for i in arrived if i.op == op]
        borders = [0, *(i.rows.stop for i in own[:updates])]
        assert [i.rows.start for i in own] == [n * 8 // updates for n in range(updates)] * epochs
        assert borders[-1] == 8
    for channel in program.channels:
        target, source = by_id[channel.target], by_id[channel.source]
        if target.rows.arrived and channel.kind is ChannelKind.DATA and source.firings > 1:
            stop = 8 if source.rows.stop is None else source.rows.stop
            assert source.rows.start < (target.rows.stop or 8)
            assert target.rows.start < stop
