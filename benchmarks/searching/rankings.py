"""The section of rankings: published comparisons of placements, and whether the same placements planned by us rank so.

HybridFlow (arXiv 2409.19256, sections 8.2 to 8.4) and RLinf (arXiv 2509.15965, section 5), as read in the notes on
published performance. Each placement is a flow with explicit pools, built from the record's figures as
benchmarks/facts does; a row gives both predicted times.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from msgspec import structs

from benchmarks.facts.predict import Edit, plan, predict
from benchmarks.facts.records import read
from benchmarks.facts.rules import Case, Pool, UnusableError, fill
from benchmarks.facts.section import Facts
from benchmarks.searching.outcome import Outcome, Progress
from flowrl.api.parts import emit_stage
from flowrl.plan.plan import StageRun

LIKE = "hybridflow-placement-13b-16-64"
"""The record whose figures the others of HybridFlow's figure 12 have too."""
GENERATION = {"hybridflow-gentp-7b-16": 2, "hybridflow-gentp-13b-16": 4}
PPO_ROLES = ("actor_train", "actor_infer", "critic", "reference", "reward")
SYSTEMS = {"PPO": "ppo", "ReMax": "remax", "Safe-RLHF": "safe-rlhf"}
QUICK = 4


@dataclass(frozen=True)
class Row:
    item: str
    faster: str
    slower: str
    times: tuple[float, float] | None
    note: str = ""

    @property
    def right(self) -> bool | None:
        return None if self.times is None else self.times[0] < self.times[1]

    @property
    def text(self) -> str:
        verdict = {True: "right", False: "WRONG", None: "not modelled"}[self.right]
        seconds = "" if self.times is None else f"{self.times[0]:9.1f} s {self.times[1]:9.1f} s"
        return (
            f"  {verdict:<13}{seconds:<24}{self.item}: {self.faster} < {self.slower}{self.note and f' ({self.note})'}"
        )


def section(*, quick: bool = False) -> Outcome:
    outcome, rows, progress = Outcome("rankings"), list[Row](), Progress("rankings")
    for row in _all({raw["id"]: raw for raw in Facts().perf}):
        rows.append(row)
        progress.tell(len(rows), QUICK if quick else 80)
        if quick and len(rows) == QUICK:
            break
    judged = [row for row in rows if row.right is not None]
    wrong = [row for row in judged if not row.right]
    outcome.lines += [row.text for row in rows]
    for item in dict.fromkeys(row.item.split(",")[0] for row in rows):
        own = [row for row in judged if row.item.split(",")[0] == item]
        outcome.lines.append(f"{item}: {sum(bool(row.right) for row in own)} of {len(own)} right")
    outcome.rows += [
        {"item": r.item, "faster": r.faster, "slower": r.slower, "times": r.times, "right": r.right, "note": r.note}
        for r in rows
    ]
    outcome.bar("published comparisons contradicted", f"{len(wrong)} of {len(judged)}", "0", not wrong)
    return outcome


def _all(raw: Mapping[str, dict[str, Any]]) -> Iterator[Row]:
    """All of items 1 to 5, then RLinf's."""
    same = {size: dict.fromkeys(("actor", "critic", "ref", "reward"), f"Llama-{size}") for size in ("13B", "34B")}
    large = {"actor": "Llama-13B", "ref": "Llama-13B", "critic": "Llama-70B", "reward": "Llama-70B"}
    best = {
        "1. 13B x4": (same["13B"], {16: "colocate", 32: "colocate", 64: "colocate", 96: "split", 128: "standalone"}),
        "2. 34B x4": (same["34B"], {16: "colocate", 32: "colocate", 64: "colocate", 96: "split", 128: "split"}),
        "3. 13B with 70B": (
            large,
            {16: "colocate", 32: "colocate", 64: "colocate", 96: "split", 128: "critic apart"},
        ),
    }
    for item, (models, winners) in best.items():
        for count, winner in winners.items():
            yield from _ranked(f"{item}, {count} GPUs", raw[LIKE] | {"models": models}, count, winner)
    for id, tp in GENERATION.items():
        yield from _generation(f"4. generation of {id.split('-')[2]}", raw[id], tp)
    for name, id in SYSTEMS.items():
        yield from _apart(f"5. 7B at 128 GPUs, {name}", raw[f"hybridflow-{id}-7b-128-vs-openrlhf"])
    yield from _rlinf(raw)


def _ranked(item: str, raw: dict[str, Any], count: int, winner: str) -> Iterator[Row]:
    case = fill(read(raw), count=count)
    times = {name: _seconds(replace(case, pools=pools)) for name, pools in _placements(case).items()}
    for name in times:
        if name != winner:
            yield _row(item, winner, name, times)


def _row(item: str, winner: str, other: str, times: Mapping[str, float | str]) -> Row:
    first, second = times[winner], times[other]
    if isinstance(first, str) or isinstance(second, str):
        return Row(item, winner, other, None, first if isinstance(first, str) else str(second))
    return Row(item, winner, other, (first, second))


def _seconds(case: Case, edit: Edit = lambda document: document, takes: int = 1) -> float | str:
    """Of a step; the reason where no flow can be made of the case. Where roles stay on their devices by rule and do not
    fit so, they may leave. `takes`: in how many parts generation may be handed on within a step, with minibatches of
    what arrives."""
    try:
        planned = plan(case, edit)
        if case.resident and not planned.fits:
            planned = plan(replace(case, resident=False), edit)
    except UnusableError as reason:
        return str(reason)
    if takes > 1:
        schedule = structs.replace(planned.graph.schedule, takes=takes, minibatches="arrival")
        graph = structs.replace(planned.graph, schedule=schedule)
        given = (planned.placement, StageRun(steps=2), planned.shapes, planned.request, planned.cluster)
        planned = replace(planned, graph=graph, program=emit_stage(graph, *given)[0])
    return predict(planned).step


def _placements(case: Case) -> dict[str, tuple[Pool, ...]]:
    """HybridFlow's: colocate; split (actor and reference beside critic and reward); standalone (half, a quarter, two
    eighths); and, on 128 GPUs, its own for item 3: the critic on half of the devices."""
    count, roles = case.count, [role for pool in case.pools for role in pool.roles]
    actor = tuple(role for role in ("actor_train", "actor_infer") if role in roles)
    found = {
        "colocate": (Pool("all", count, tuple(roles)),),
        "split": _two(roles, (*actor, "reference"), count // 2),
        "standalone": (
            Pool("actor", count // 2, actor),
            Pool("critic", count // 4, ("critic",)),
            Pool("reference", count // 8, ("reference",)),
            Pool("reward", count // 8, ("reward",)),
        ),
    }
    if len(set(case.models.values())) > 1 and count >= 128:
        found["critic apart"] = _two(roles, (*actor, "reference", "reward"), count // 2)
    return found


def _two(roles: list[str], first: tuple[str, ...], count: int) -> tuple[Pool, ...]:
    rest = tuple(role for role in roles if role not in first)
    return Pool("first", count, first), Pool("second", count, rest)


def _generation(item: str, raw: dict[str, Any], best: int) -> Iterator[Row]:
    """Seconds of generation by its cut, what trains staying on the devices; tp 8 is the slowest."""
    case, times = fill(read(raw)), dict[str, float | str]()
    for tp in (1, 2, 4, 8):
        try:
            planned = plan(replace(case, rollout={"tp": tp}, resident=True))
            times[f"tp {tp}"] = predict(planned).phases.get("gen", 0.0)
        except UnusableError as reason:
            times[f"tp {tp}"] = str(reason)
    for name in times:
        if name != f"tp {best}":
            yield _row(item, f"tp {best}", name, times)
    for name in times:
        if name not in (f"tp {best}", "tp 8"):
            yield _row(item, name, "tp 8", times)


def _apart(item: str, raw: dict[str, Any]) -> Iterator[Row]:
    """HybridFlow, which takes the best of its placements, before OpenRLHF's groups of equal size, one for each model
    and one for engines."""
    case = fill(read(raw))
    roles = [role for pool in case.pools for role in pool.roles]
    size = 1 << (case.count // len(roles)).bit_length() - 1
    apart = tuple(Pool(role, size, (role,)) for role in roles)
    own = _placements(case)
    if "critic" not in roles or len(roles) > len(PPO_ROLES):
        del own["standalone"]
    seconds = [_seconds(replace(case, pools=pools)) for pools in own.values() if all(pool.roles for pool in pools)]
    times = {
        "HybridFlow": min((each for each in seconds if not isinstance(each, str)), default=str(seconds[0])),
        f"OpenRLHF, {len(roles)} groups of {size}": _seconds(replace(case, pools=apart)),
    }
    first, second = times
    yield _row(item, first, second, times)


# -- RLinf ------------------------------------------------------------------------------------------------------------
# What RLinf's flows are is read in RLinf/RLinf@a3816b59: examples/reasoning/main_grpo.py (in disaggregated mode workers
# of their own, with weights of their own, compute log-probs and values), examples/reasoning/config/math/*.yaml (neither
# a reference nor a reward model; old log-probs recomputed for PPO and not for 7B and larger models of GRPO) and
# rlinf/workers/megatron_worker.py, run_training_pipeline (minibatches are made of what arrives, and normalised so) and
# run_forward_backward_iterator (a minibatch is trained micro-batch by micro-batch while the rest of it is generated).


TAKES = 8
AT_ONCE = 64
"""max_running_requests of RLinf's files; for 30B-A3B the record says others."""
NOT_OF_RLINF = ("reference", "reward")


def _rlinf(raw: Mapping[str, dict[str, Any]]) -> Iterator[Row]:
    """Temporal is colocated, spatial a pool for each model, which works on parts of a batch as they come. The batch of
    PPO is said nowhere but for its one sample a prompt: the rule of benchmarks/facts fills it."""
    like = raw["rlinf-verl-7b-64"]
    bare = raw["rlinf-rank-ppo-7b"] | {"gpu": "H100-80G", "train_backend": "Megatron-LM", "parallelism": {}}
    math = bare | {"algorithm": "GRPO", "models": like["models"], "response_len": like["response_len"]}
    math |= {"prompt_len": like["prompt_len"], "global_batch_prompts": 512, "samples_per_prompt": 16}
    for count in (64, 128, 256):
        yield from _modes(f"RLinf GRPO 7B 28k, {count} GPUs", math, count, temporal=True)
    bare |= {"samples_per_prompt": 1}
    for size in ("1.5B", "7B", "14B"):
        models = dict.fromkeys(("actor", "critic", "ref", "reward"), f"Qwen2.5-{size}")
        chat = bare | {"models": models, "prompt_len": {"max": 2048}, "response_len": {"max": 10240}}
        for count in (16, 64, 256):
            yield from _modes(f"RLinf PPO {size} 12k, {count} GPUs", chat, count, temporal=False)
    mixture = dict.fromkeys(("actor", "ref"), "Qwen3-30B-A3B")
    long = math | {"models": mixture, "response_len": {"max": 19456}, "global_batch_prompts": 1536}
    for count, temporal in ((32, False), (64, False), (128, True)):
        yield from _modes(f"RLinf GRPO 30B-A3B 20k, {count} GPUs", long, count, temporal=temporal, at_once=(128, 256))


def _modes(
    item: str, raw: dict[str, Any], count: int, *, temporal: bool, at_once: tuple[int, int] = (AT_ONCE, AT_ONCE)
) -> Iterator[Row]:
    """`at_once`: sequences that an engine decodes at once, colocated and apart."""
    try:
        case = fill(read(raw | {"num_gpus": count, "placement": "colocated", "max_staleness": 0}), count=count)
    except UnusableError as reason:
        yield Row(item, "temporal" if temporal else "spatial", "spatial" if temporal else "temporal", None, str(reason))
        return
    roles = [role for pool in case.pools for role in pool.roles if role not in NOT_OF_RLINF]
    case = replace(case, old_log_probs="recompute" if "critic" in roles else "rollout")
    colocated, spread = (replace(case, at_once=each) for each in at_once)
    together = _seconds(replace(colocated, pools=(Pool("all", count, tuple(roles)),)), _plain)
    apart = _spread(spread, _spatial(roles, count))
    first, second = ("temporal", "spatial") if temporal else ("spatial", "temporal")
    yield _row(item, first, second, {"temporal": together, "spatial": apart})


def _spread(case: Case, ways: Iterable[tuple[Pool, ...]]) -> float | str:
    """Of the fastest way. RLinf adds up the gradients of a minibatch over what arrives, and a program starts a
    minibatch when all of it has: so it is timed with RLinf's minibatches, which start too late, and with one for each
    take, which pay for more steps of the optimizer than RLinf makes. Both are too slow; the faster is nearer."""
    times = [
        _seconds(replace(case, pools=pools, updates=updates), _inferring, TAKES)
        for pools in ways
        for updates in (case.updates, TAKES)
    ]
    return min((each for each in times if not isinstance(each, str)), default=str(times[0]))


def _spatial(roles: list[str], count: int) -> Iterator[tuple[Pool, ...]]:
    """4:1:1:1:1 with a critic: engines, inference of actor and critic, both trainers. Without one engines on a quarter,
    a half or three quarters."""
    if "critic" in roles:
        rest = ("inference", "critic_inference", "actor_train", "critic")
        yield Pool("rollout", count // 2, ("actor_infer",)), *(Pool(role, count // 8, (role,)) for role in rest)
        return
    for share in (count // 4, count // 2, count * 3 // 4):
        rest = tuple(role for role in roles if role != "actor_infer")
        yield Pool("rollout", share, ("actor_infer",)), Pool("train", count - share, rest)


def _plain(document: dict[str, Any]) -> dict[str, Any]:
    """Without a KL penalty, which only a reference could give."""
    if "critic" not in document["roles"]:
        return document
    generate, reads = "actor_infer.generate", "critic.values, actor_train.log_probs"
    document["roles"]["advantage"] = {"estimator": "gae", "gamma": 1.0, "lam": 1.0}
    document["edges"] = [
        f"data.train -> {generate}",
        f"{generate} -> reward.score, {reads}",
        f"reward.score, {reads} -> advantage.estimate",
        "advantage.estimate -> actor_train.update, critic.update",
        "actor_train => actor_infer",
    ]
    return document


def _inferring(document: dict[str, Any]) -> dict[str, Any]:
    """With old log-probs and values by roles of their own, which receive the weights once a step. Advantages are
    normalised in each minibatch, which takes no time on devices: left out."""
    document = _plain(document)
    roles = document["roles"]
    if "critic" not in roles:
        return document
    for name, trainer in (("inference", "actor_train"), ("critic_inference", "critic")):
        kept = {key: roles[trainer]["engine"][key] for key in ("packing",)}
        roles[name] = {"kind": "scorer", "model": roles[trainer]["model"], "engine": kept}
        roles[name]["backend"] = roles[trainer]["backend"]
    roles["advantage"]["normalize"] = "none"
    roles["actor_train"]["inputs"] = {"old_log_probs": "inference.ref_log_probs"}
    roles["actor_train"]["update"].pop("old_log_probs")
    roles["actor_train"].pop("log_probs")
    reads = "inference.log_probs, critic_inference.values"
    document["edges"] = [
        "data.train -> actor_infer.generate",
        f"actor_infer.generate -> reward.score, {reads}",
        f"reward.score, {reads} -> advantage.estimate",
        "advantage.estimate -> actor_train.update, critic.update",
        *("actor_train => actor_infer", "actor_train => inference", "critic => critic_inference"),
    ]
    return document
