"""The section of chains: two stages, the second fed by the first, on 2, 4 and 8 devices, 189 cases of each kind.

RLinf's planner never gives the last stage of a chain a single device, and so misses 16 of 189 such cases by its own
cost model (a sweep of two-component chains on as many devices). Here the first stage writes and the second trains on it
or grades it; plain enumeration of every split and every choice (the oracle) says what is best, and the search must find
it wherever that is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.searching.instances import Instance, lowered
from benchmarks.searching.optimum import SAME, Found, compared
from benchmarks.searching.outcome import Outcome, Progress

DEVICES = (2, 4, 8)
TOKENS = (256, 512, 1024, 2048, 3072, 4096, 6144, 8192, 16384)
JUDGES = (
    "Qwen/Qwen2.5-0.5B",
    "Qwen/Qwen2.5-1.5B",
    "Qwen/Qwen2.5-3B",
    "Qwen/Qwen3-4B",
    "Qwen/Qwen2.5-7B",
    "Qwen/Qwen3-8B",
    "Qwen/Qwen2.5-14B",
)
PROMPTS = (2, 4, 8, 16, 32, 64, 128)
"""Of a step: the fewer, the longer generation takes for what is trained on."""
EVERY = 1000
"""More choices than a role has."""
MISSED = 16
"""Of 189, by RLinf's planner: here must be as many cases of the sort, so that finding all of them says something."""
QUICK = 12
"""Every so many cases one is taken."""


def section(*, quick: bool = False) -> Outcome:
    outcome = Outcome("chains")
    for kind in ("trainer", "judge"):
        every = list(cases(kind))[:: QUICK if quick else 1]
        progress, found = Progress(f"chains to a {kind}"), list[Found]()
        for number, case in enumerate(every, 1):
            found.append(compared(case))
            progress.tell(number, len(every))
        _tell(outcome, kind, found, quick=quick)
    return outcome


def cases(kind: str) -> Iterator[Instance]:
    for devices in DEVICES:
        for tokens in TOKENS:
            for last in range(len(PROMPTS)):
                document = _trained(tokens, PROMPTS[last]) if kind == "trainer" else _graded(tokens, JUDGES[last])
                document["cluster"] = {"gpu": "H100-80G", "nodes": 1, "gpus_per_node": devices}
                yield lowered(f"{kind} {devices} {tokens} {last}", document, EVERY)


def _trained(tokens: int, prompts: int) -> dict[str, Any]:
    """Generation runs a step ahead of the trainer, so that both work at once."""
    return _common(tokens) | {
        "roles": {
            "actor_infer": _writer(tokens),
            "actor_train": {"model": "policy", "backend": "fsdp", "update": {"loss": "ppo"}},
            "reward": {"function": "flowrl:overlong", "args": {"max_tokens": 256, "buffer_tokens": 64, "penalty": 1.0}},
            "advantage": {"estimator": "grpo"},
        },
        "edges": [
            "data.train -> actor_infer.generate",
            "actor_infer.generate -> reward.score",
            "reward.score -> advantage.estimate",
            "advantage.estimate -> actor_train.update",
            "actor_train => actor_infer",
        ],
        "step": {"prompts": prompts, "samples_per_prompt": 8},
        "schedule": {"max_lag": 1},
    }


def _graded(tokens: int, judge: str) -> dict[str, Any]:
    common = _common(tokens)
    return common | {
        "models": common["models"] | {"judge": {"source": judge, "head": "scalar"}},
        "roles": {
            "actor_infer": {"kind": "generator", "frozen": True, **_writer(tokens)},
            "reward": {"kind": "reward", "model": "judge", "backend": "fsdp"},
        },
        "edges": ["data.train -> actor_infer.generate", "actor_infer.generate -> reward.score"],
        "step": {"prompts": 64, "samples_per_prompt": 8},
    }


def _common(tokens: int) -> dict[str, Any]:
    return {
        "flowrl": 1,
        "name": "chain",
        "models": {"policy": {"source": "Qwen/Qwen2.5-1.5B"}},
        "data": {"train": {"source": "rows.jsonl", "max_prompt_tokens": 512}},
        "assume": {"actor_infer.generate": {"response_tokens": tokens // 2}},
    }


def _writer(tokens: int) -> dict[str, Any]:
    return {"model": "policy", "backend": "vllm", "generate": {"max_response_tokens": tokens}}


def _tell(outcome: Outcome, kind: str, found: list[Found], *, quick: bool) -> None:
    last = "actor_train" if kind == "trainer" else "reward"
    one = [each for each in found if has_one(each, last)]
    missed = [each for each in one if each.gap > SAME or each.faults]
    wrong = [each for each in found if each.gap > SAME or each.faults]
    outcome.lines.append(
        f"writer -> {kind}: {len(found)} cases; in {len(one)} the best split gives the {kind} one device, "
        f"{len(one) - len(missed)} of them found; in {sum(_together(each) for each in found)} both share all devices"
    )
    for each in wrong[:5]:
        outcome.lines.append(f"  {each.instance.name}: {each.ours} s, best {each.best} s; {'; '.join(each.faults)}")
    outcome.rows += [
        {"case": each.instance.name, "ours": each.ours, "best": each.best, "one": each in one} for each in found
    ]
    outcome.bar(f"to a {kind}: best splits with one device missed", len(missed), "0", not missed)
    outcome.bar(f"to a {kind}: other best placements missed", len(wrong) - len(missed), "0", len(wrong) == len(missed))
    if not quick:
        outcome.bar(f"to a {kind}: cases of the sort", len(one), f">= {MISSED}", len(one) >= MISSED)


def has_one(found: Found, last: str) -> bool:
    way = found.answer.best
    if way is None or len(way.blocks) < 2:
        return False
    return any(last in roles and count == 1 for roles, (_, count) in zip(way.blocks, way.homes, strict=True))


def _together(found: Found) -> bool:
    way = found.answer.best
    return way is not None and len(way.blocks) == 1
