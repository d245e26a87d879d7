"""Answers of why-not: each is what planning with the wish comes to, and what it blames adds up."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path

import pytest

from flowrl import api
from flowrl.api.compile import compile_spec
from flowrl.explain.why_not import WhyNot
from flowrl.report.why_not import render_why_not
from flowrl.spec import loads
from tests.placement.flows import PPO

FILES = {"rows.jsonl": '{"prompt": "a"}\n'}


@pytest.fixture(scope="module")
def flow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("why")
    for name, text in FILES.items():
        (folder / name).write_text(text)
    (folder / "ppo.yaml").write_text(PPO)
    return folder / "ppo.yaml"


@lru_cache(maxsize=32)
def ask(flow: Path, question: str, *sets: str) -> WhyNot:
    return api.why_not(flow, question, sets)


def homes(answer: WhyNot) -> dict[str, str]:
    """Role → pool, from the pools that were planned for the question."""
    found: dict[str, str] = {}
    for pool in answer.pools:
        name, _, roles = pool.split(": ")
        found |= {role.split()[0]: name for role in roles.split(", ")}
    return found


def test_what_is_planned(flow: Path) -> None:
    plan = compile_spec(loads(PPO))
    pool = next(pool for pool in plan.stages[0].pools if pool.devices)
    role = pool.roles[0].role
    answer = ask(flow, f"{role} on {pool.name}")
    assert answer.verdict == "planned"
    assert answer.step_seconds == plan.stages[0].estimate.step_seconds
    assert "it is what is planned" in render_why_not(answer)


@pytest.mark.parametrize(
    "question",
    ["critic apart", "critic with actor_infer", "disaggregated", "colocated", "actor_infer tp4", "critic stays"],
)
def test_blame_adds_up_to_the_difference(flow: Path, question: str) -> None:
    """The step is the seconds of its circle over its tokens, which is one in a plan without lag."""
    answer = ask(flow, question)
    if answer.verdict in ("planned", "infeasible"):
        return
    assert answer.asked_step_seconds is not None
    by = sum(each.seconds - each.before_seconds for each in answer.blame)
    assert by == pytest.approx(answer.asked_step_seconds - answer.step_seconds, rel=1e-6, abs=1e-6)
    assert answer.verdict == ("slower" if by > 1e-3 * answer.step_seconds else answer.verdict)


def test_roles_are_where_the_question_has_them(flow: Path) -> None:
    apart = homes(ask(flow, "critic and actor_infer apart"))
    assert apart["critic"] != apart["actor_infer"]
    alone = homes(ask(flow, "critic apart"))
    assert [role for role, pool in alone.items() if pool == alone["critic"]] == ["critic"]
    together = homes(ask(flow, "disaggregated, reference with actor_infer"))
    assert together["reference"] == together["actor_infer"] != together["actor_train"]


def test_pool_sizes_are_as_asked_or_the_best_that_were_found(flow: Path) -> None:
    fixed = ask(flow, "rollout 4 gpus")
    assert [pool.split(": ")[1].split()[0] for pool in fixed.pools if pool.startswith("rollout:")] == ["4"]
    free = ask(flow, "disaggregated, actor_infer tp2")
    tried = [ask(flow, f"rollout {count} gpus, actor_infer tp2").asked_step_seconds for count in (4, 8, 12)]
    assert free.asked_step_seconds is not None
    assert all(other is None or free.asked_step_seconds <= other * 1.0001 for other in tried)


def test_layouts_and_recomputation(flow: Path) -> None:
    (pool,) = [p for p in ask(flow, "actor_infer tp4").pools if "actor_infer" in p]
    assert re.search(r"actor_infer dp\d+ tp4", pool)
    answer = ask(flow, "recompute selective of critic")
    assert any("recompute selective" in pool for pool in answer.pools)


def test_what_does_not_fit_names_the_line_that_binds(flow: Path) -> None:
    answer = ask(flow, "recompute none of actor_train", "roles.actor_train.update.micro_batch_tokens=131072")
    assert answer.verdict == "infeasible"
    binding = answer.binding
    assert binding is not None
    assert (binding.role, binding.phase) == ("actor_train", "actor_train.update")
    assert binding.peak_bytes > binding.limit_bytes
    assert 0 < binding.line_bytes <= binding.peak_bytes
    text = render_why_not(answer)
    assert "it DOES NOT FIT" in text
    assert f"{binding.what} of actor_train" in " ".join(text.split())
    assert answer.helps


def test_what_is_impossible_says_why(flow: Path) -> None:
    answer = ask(flow, "actor_infer tp3")
    assert answer.verdict == "impossible"
    assert answer.reason is not None
    assert answer.reason.startswith("FR0411")
    assert "no placement can be so" in render_why_not(answer)


def test_what_is_to_be_written_gives_the_same_step(flow: Path, tmp_path: Path) -> None:
    answer = ask(flow, "disaggregated, critic with actor_infer")
    assert answer.write[0] == "placement:"
    text = f"{PPO}\n" + "\n".join(answer.write) + "\n"
    plan = compile_spec(loads(text))
    assert plan.stages[0].estimate.step_seconds == pytest.approx(answer.asked_step_seconds)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_text_stays_within_its_width(flow: Path, width: int) -> None:
    for question in ("critic apart", "actor_infer tp3", "disaggregated, critic with actor_infer"):
        lines = render_why_not(ask(flow, question), width).splitlines()
        assert max(map(len, lines)) <= width
        assert "…" not in "".join(lines)


def test_what_a_run_would_refuse_of_it_is_told(flow: Path) -> None:
    """A layout that is planned and that no backend carries out yet is no advice to follow today."""
    answer = ask(flow, "actor_infer pp2")
    assert len(answer.refused) == 1
    assert answer.refused[0].startswith("FR0801: ")
    assert "pp or ep of a vLLM engine" in answer.refused[0]
    assert "RUN" in render_why_not(answer)
    assert ask(flow, "actor_infer tp4").refused == ()
    assert "RUN" not in render_why_not(ask(flow, "actor_infer tp4"))


def test_a_plan_with_generators_beside_trainers_is_not_disaggregated(flow: Path) -> None:
    """Whatever else has a pool of its own."""
    for question in ("disaggregated", "disaggregated, critic apart"):
        pools = homes(ask(flow, question))
        assert {role for role, pool in pools.items() if pool == pools["actor_infer"]} == {"actor_infer"}
