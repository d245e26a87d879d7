"""Memory verdicts on the published facts that the repository carries: the bars, and the records that are wrong."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import pytest

from benchmarks.facts import bounds, peers_roll, verdicts
from benchmarks.facts.causes import cause_classes, names_cause
from benchmarks.facts.jobs import Cut, Job, Party, UnreadableError, generation_of, packed_tokens, passes_of
from benchmarks.facts.peers import card_in, job_of
from benchmarks.facts.reports import report_of
from benchmarks.facts.section import Facts, Section

FACTS = Facts()
WRONG = {
    "verl-ppo-32b-32gpu": "a critic of 32B whose activations are kept: 110 GiB of them by the rule of mean lengths",
    "verl-tune-70b-32h800": "fits with the short answers of its data set, not with full micro-batches",
    "OpenRLHF#776": "its cause is not known, and its shards, a layer and logits take 25 of 80 GiB",
}
"""Records of the lists with bars that the planner gets wrong, and why."""


@lru_cache(maxsize=1)
def section() -> Section:
    """Without the steps that ran, which have no bar and take a while."""
    found = verdicts.Found([], [])
    verdicts.judge_works(FACTS, found)
    verdicts.judge_oom(FACTS, found)
    return Section("verdicts", found.rows, found.excluded, verdicts.summary_of(found.rows))


def rows(name: str) -> list[dict[str, Any]]:
    return [row for row in section().rows if row["list"] == name]


def test_the_bars_hold() -> None:
    for name in verdicts.BARS:
        assert section().summary[name]["holds"], (name, section().summary)


def test_what_is_wrong_is_known() -> None:
    """A regression and an improvement both show."""
    assert set(section().summary["wrong"]) == set(WRONG)


def test_every_record_has_a_verdict_or_a_reason() -> None:
    told = {row["id"].split(" ")[0] for row in section().rows} | {each["id"] for each in section().excluded}
    assert {record["id"] for record in FACTS.configs} <= told
    assert {record["id"] for record in FACTS.reports if record["kind"].startswith("oom")} <= told
    assert all(each["reason"] for each in section().excluded)


def test_most_published_configurations_are_judged() -> None:
    assert len(rows(verdicts.WORKS)) >= 50
    assert len(rows(verdicts.BOUND)) >= len(rows(verdicts.WORKS))


def test_what_is_refused_is_refused_for_the_cause_given() -> None:
    named = [row["named_cause"] for row in rows(verdicts.OOM) if row.get("named_cause") is not None]
    assert len(named) >= 3
    assert all(named)


def test_no_plan_is_below_the_bound() -> None:
    """What a device holds at least by the independent bound, the planner counts too."""
    works = rows(verdicts.WORKS)
    assert section().summary["works: planned below the bound"] == []
    assert sum(row["bound_gib"] > 0.2 * row["peak_gib"] for row in works) > len(works) / 2


# -- the independent bound --------------------------------------------------------------------------------------------


def job(**changes: Any) -> Job:
    trainer = Party(
        name="actor_train",
        kind="trainer",
        backend="fsdp",
        model="Qwen2.5-7B",
        pool="all",
        update_tokens=16384,
        engine={"offload": False},
    )
    known: dict[str, Any] = {
        "id": "made up",
        "gpu": "H100-80G",
        "gpu_origin": "record",
        "nodes": 1,
        "gpus_per_node": 8,
        "pools": {"all": 8},
        "parties": (trainer,),
        "prompt_tokens": 512,
        "response_tokens": 1536,
    }
    return Job(**known | changes)


def test_the_bound_is_what_can_be_worked_out_by_hand() -> None:
    """0.9 * 7e9 parameters * 16 bytes / 8 devices, and one row of 2,048 tokens a device... of the 16 it has."""
    rows_here = 128 // 8
    tokens = min(16384, rows_here * 2048)
    by_hand = 0.9 * 7e9 * 16 / 8 + 2 * tokens * 151_000
    assert bounds.least(job())[0] == pytest.approx(by_hand)


def test_the_bound_grows_with_what_it_is_made_of() -> None:
    need = bounds.least(job())[0]
    fewer = job(pools={"all": 4}, gpus_per_node=4)
    assert bounds.least(fewer)[0] > need
    larger = bounds.larger_budget(job())
    assert larger is not None
    assert bounds.least(larger[0])[0] > 81_559 * 2**20
    smaller = bounds.smaller_card(job(pools={"all": 1}, nodes=1, gpus_per_node=1))
    assert smaller is not None
    assert smaller[0].gpu == "H20"


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("Qwen/Qwen3-30B-A3B-Base", 30),
        ("OpenRLHF/Llama-3-8b-sft-mixture", 8),
        ("Qwen2.5-0.5B", 0.5),
        ("GLM-4.7 355B-A32B", 355),
        ("DeepSeek-R1", None),
    ],
)
def test_a_name_says_its_size(name: str, size: float | None) -> None:
    assert bounds.billions(name) == size


# -- readers ----------------------------------------------------------------------------------------------------------


def config(framework: str, **settings: Any) -> dict[str, Any]:
    named = {key.replace("__", "."): value for key, value in settings.items()}
    return {"id": "x", "framework": framework, "model": "Qwen/Qwen2.5-7B", "params_b": 7.6, "settings": named}


def test_verl_reads_budgets_of_a_device() -> None:
    record = config(
        "verl",
        data__max_prompt_length=1024,
        data__max_response_length=1024,
        data__train_batch_size=256,
        actor_rollout_ref__actor__use_dynamic_bsz=True,
        actor_rollout_ref__actor__ppo_max_token_len_per_gpu=8192,
        actor_rollout_ref__actor__ppo_mini_batch_size=256,
        actor_rollout_ref__actor__ulysses_sequence_parallel_size=2,
        trainer__n_gpus_per_node=8,
        trainer__nnodes=1,
    )
    actor = job_of(record).party("actor_train")
    assert actor is not None
    assert actor.cut == Cut(cp=2)
    assert actor.update_tokens == 16384
    assert actor.engine["offload"] is False


def test_roll_roles_that_overlap_share_a_pool() -> None:
    assert peers_roll.devices("list(range(0,4)) + [8, 9]") == {0, 1, 2, 3, 8, 9}
    record = next(each for each in FACTS.configs if each["id"] == "roll-7b-separate")
    assert job_of(record).pools == {"actor_train": 8, "actor_infer": 4}


def test_areal_reads_allocations() -> None:
    record = next(each for each in FACTS.configs if each["id"] == "areal-megatron-lora-moe")
    read = job_of(record)
    assert read.pools == {"train": 6, "rollout": 2}
    assert [party.cut for party in read.parties] == [Cut(pp=6), Cut(tp=2)]


def test_odd_records_are_reasons_and_no_errors() -> None:
    for record in ({}, {"framework": "verl"}, config("verl"), config("elsewhere"), config("ROLL", prompt_length=1)):
        with pytest.raises(UnreadableError):
            job_of(record)
    for report in ({"id": "x"}, {"id": "x", "facts": {"a": 1}}, {"id": "x", "facts": {"model": None, "gpus": []}}):
        with pytest.raises(UnreadableError):
            report_of(report, FACTS.configs)


def test_a_report_is_read_by_the_names_of_its_facts() -> None:
    facts = {"gpus": "4 x A40-48GB", "model": "Llama-3-8b", "zero_stage": 2, "adam_offload": True, "micro": 1}
    report = {"id": "OpenRLHF#1", "repo": "OpenRLHF/OpenRLHF", "symptom": "PPO OOM", "kind": "oom_update_actor"}
    read = report_of(report | {"facts": facts | {"prompt": 1024, "gen": 512}}, [])
    assert read.has_facts
    assert (read.job.gpu, read.job.pools, read.job.longest) == ("A40", {"all": 4}, 1536)
    assert {party.name for party in read.job.parties} == {
        "actor_train",
        "actor_infer",
        "critic",
        "reference",
        "reward",
    }


def test_rules_that_fill() -> None:
    assert card_in("64 x H20-96GB") == "H20"
    assert card_in("80GB (from file name)") == "H100-80G"
    assert card_in("an abacus") is None
    assert generation_of("vllm0.8.3") == "0.8"
    assert generation_of("engine upgrade (0.17 -> 0.20)") == "0.20"
    assert generation_of("an engine's share 0.9, vllm_gpu_memory_utilization 0.8") is None
    assert generation_of("sglang") is None
    assert passes_of(rows=1024, minibatch=300, prompts=128) == 2
    assert packed_tokens(1, "Qwen2.5-7B", 512, 1024) == 1536
    assert 16 * 300 < packed_tokens(16, "Qwen2.5-7B", 512, 1024) < 16 * 1536


def test_causes_are_classes_of_lines() -> None:
    assert cause_classes({"cause": "full-sequence logits (vocab 152k)"}) == {"logits"}
    assert cause_classes({"cause": "four models resident, ZeRO-2"}) == {"states"}
    assert cause_classes({"cause": None, "kind": "oom_update_actor"}) == frozenset()
    lines = [("actor_train logits", 40.0), ("actor_train weights", 20.0)]
    assert names_cause({"logits"}, lines, over_gib=30.0)
    assert not names_cause({"states"}, lines, over_gib=30.0)
