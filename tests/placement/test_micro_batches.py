"""Micro-batches that placement may choose: where they are open, which sizes are tried, what they cost."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowrl.api.compile import compile_spec
from flowrl.graph.params import UpdateParams
from flowrl.placement.choices import Choices
from flowrl.placement.cost.role import RoleCost
from flowrl.placement.micro_batches import Sizes, sizes_of
from flowrl.placement.request import LayoutRequest
from flowrl.plan.plan import Layout, RolePlacement
from flowrl.spec import loads
from tests.placement.flows import GRPO, with_placement
from tests.placement.test_choices import MEGATRON, OPEN, OPEN_PPO, choices_of, site_of

UPDATE = "update: {loss: ppo"
SIZES = (4096, 8192, 16384, 32768, 65536)


def sizes(choices: Choices, role: str, layout: Layout) -> Sizes:
    return sizes_of(choices.work, choices.graph.role(role), choices.costs.ops_of(role), layout)


def cost(choices: Choices, role: str, layout: Layout, size: int | None, recompute: str = "none") -> RoleCost:
    entry = RolePlacement(role=role, layout=layout, recompute=recompute, micro_batch_tokens=size)
    return choices.costs.role_cost(entry, site_of(choices, layout.devices))


@pytest.mark.parametrize(
    ("flow", "is_open"),
    [
        (OPEN, True),
        (OPEN.replace(UPDATE, f"{UPDATE}, micro_batch_tokens: 16384"), False),
        (OPEN.replace(UPDATE, f"log_probs: {{micro_batch_tokens: 16384}}, {UPDATE}"), False),
    ],
)
def test_a_size_that_the_flow_writes_stays_for_all_ops_of_the_role(flow: str, is_open: bool) -> None:
    """The last: on policy the ratio of both passes is 1 only if they are cut alike."""
    choices = choices_of(flow, "2x8xH100-80G")
    assert bool(sizes(choices, "actor_train", Layout(dp=16)).grown) == is_open
    found = {each.micro_batch_tokens for each in choices.of("actor_train", site_of(choices))}
    assert (found != {None}) == is_open


def test_a_scorers_own_key_settles_it() -> None:
    here = OPEN_PPO.replace("reference: {model", "reference: {micro_batch_tokens: 8192, model")
    choices = choices_of(here, "2x8xH100-80G")
    assert sizes(choices, "reference", Layout(dp=16)) == Sizes()
    assert sizes(choices, "critic", Layout(dp=16)).grown
    assert sizes(choices, "actor_infer", Layout(dp=16)) == Sizes()


def test_sizes_that_cut_nothing_otherwise_are_left_out() -> None:
    """Rows have at most 1,024 + 2,048 tokens. A rank of 512 has one of the 512 rows of an update and two of all 1,024:
    they are 6,144 tokens, which 8,192 hold as 16,384 do."""
    choices = choices_of(GRPO, "64x8xH100-80G")
    assert sizes(choices, "actor_train", Layout(dp=512)).shrunk == (4096,)
    assert sizes(choices, "actor_train", Layout(dp=512)).grown == ()
    assert sizes(choices, "actor_train", Layout(dp=1)).shrunk == (8192, 4096)
    assert sizes(choices, "actor_train", Layout(dp=1)).grown == (32768, 65536)
    long = choices_of(GRPO.replace("max_response_tokens: 2048", "max_response_tokens: 11000"), "2x8xH100-80G")
    assert sizes(long, "actor_train", Layout(dp=1)).shrunk == (8192,)
    assert sizes(long, "actor_train", Layout(dp=1)).grown == (32768, 65536)


def test_the_role_holds_as_much_as_if_the_flow_had_written_the_size() -> None:
    for size in SIZES:
        chosen = cost(choices_of(MEGATRON, "2x8xH100-80G"), "actor_train", Layout(dp=2, tp=4, pp=2), size)
        keys = f"log_probs: {{micro_batch_tokens: {size}}}, {UPDATE}, micro_batch_tokens: {size}"
        written = choices_of(MEGATRON.replace(UPDATE, keys), "2x8xH100-80G")
        said = cost(written, "actor_train", Layout(dp=2, tp=4, pp=2), None)
        assert [dict(stage) for stage in chosen.work] == [dict(stage) for stage in said.work]
        for op in written.costs.ops_of("actor_train"):
            assert chosen.seconds[op.id] == said.seconds[op.id]


@settings(max_examples=40, deadline=None)
@given(
    flow=st.sampled_from([OPEN, OPEN_PPO, OPEN.replace("backend: fsdp, upd", "backend: deepspeed, upd")]),
    dp=st.sampled_from([1, 2, 8, 16]),
    recompute=st.sampled_from(["none", "full"]),
)
def test_larger_micro_batches_hold_more(flow: str, dp: int, recompute: str) -> None:
    """As long as a rank has several: the last one's gradients need no room of their own."""
    choices = choices_of(flow, "2x8xH100-80G")
    costs = [cost(choices, "actor_train", Layout(dp=dp), size, recompute) for size in SIZES]
    for op in choices.costs.ops_of("actor_train"):
        longest = choices.work.lengths(op).most
        whole = -(-choices.work.rows(op).count // dp) * longest
        held = [each.at_work(op, 0) for each, size in zip(costs, SIZES, strict=True) if longest <= size < whole]
        assert held == sorted(held)
        assert len(held) < 3 or held[0] < held[-1]


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_stages_of_a_pipeline_hold_more_of_larger_micro_batches(recompute: str) -> None:
    choices = choices_of(MEGATRON, "2x8xH100-80G")
    layout = Layout(dp=2, tp=2, pp=4)
    update = next(op for op in choices.costs.ops_of("actor_train") if isinstance(op.params, UpdateParams))
    for stage in range(4):
        held = [cost(choices, "actor_train", layout, size, recompute).at_work(update, stage) for size in SIZES]
        assert held == sorted(held)


def test_a_short_pipeline_is_filled_with_smaller_ones_and_a_long_one_is_not() -> None:
    """An update of 64 rows of 1,536 tokens has 6 micro-batches of 16,384, which 4 stages want 16 of; one of 4,096 rows
    has 384."""
    for prompts, tried in ((16, {None, 8192, 4096}), (1024, {None})):
        choices = choices_of(MEGATRON.replace("prompts: 128", f"prompts: {prompts}"), "8xB200")
        found = choices.of("actor_train", site_of(choices), LayoutRequest(tp=2, pp=4))
        assert {each.micro_batch_tokens for each in found if each.recompute == found[-1].recompute} == tried


def test_larger_ones_spare_gathers_of_layers_on_a_slow_network() -> None:
    """Without padding: one weight is gathered twice for each micro-batch, whatever its size."""
    packed = OPEN.replace("backend: fsdp, upd", "backend: fsdp, engine: {packing: true}, upd")
    choices = choices_of(packed, "8x1xL40S")
    seconds = [cost(choices, "actor_train", Layout(dp=8), size).seconds["actor_train.update"] for size in SIZES]
    assert seconds == sorted(seconds, reverse=True)


def test_what_fits_with_a_size_that_is_written_fits_with_none() -> None:
    """The trainer alone fits with half the default size; beside what the others leave, only with a quarter."""
    flow = (
        OPEN_PPO.replace("Qwen/Qwen2.5-7B", "meta-llama/Llama-3.1-70B")
        .replace("max_response_tokens: 2048", "max_response_tokens: 1024")
        .replace("samples_per_prompt: 8", "samples_per_prompt: 4")
    )
    pools = "{train: {gpus: 24, roles: [actor_infer, actor_train, reference]}, critic: {gpus: 24, roles: [critic]}}"
    flow = with_placement(flow, f"{{pools: {pools}}}")
    sized = "log_probs: {micro_batch_tokens: 4096}, update: {micro_batch_tokens: 4096, loss: ppo"
    written = flow.replace("update: {loss: ppo", sized)
    seconds: list[float] = []
    for each in (written, flow):
        plan = compile_spec(loads(each, folder="."), "48xH100-80G")
        assert plan.verdict == "fits"
        seconds.append(plan.stages[0].estimate.step_seconds)
    assert seconds[1] <= seconds[0]
