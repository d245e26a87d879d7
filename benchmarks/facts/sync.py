"""Published hand-overs of weights against the sync of their plan: records of kind weight_sync, and times of a refit,
an update of weights or a resharding that other records measure.

Takes the facts, gives one row a record. What a record does not say is filled by RULES, the same for all; a record
without a model, a device or a number of devices is excluded. Versions before the last one are told, not compared: they
measure an implementation and no hardware.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from statistics import median
from typing import Any

from msgspec.structs import replace

from benchmarks.facts.names import card_by_loose_name
from benchmarks.facts.records import Record, read
from benchmarks.facts.section import DATA, Facts, Section
from flowrl.api.compile import check_spec
from flowrl.compiler.lower.cluster import lower_cluster
from flowrl.compiler.lower.placement import lower_placement
from flowrl.diag.diagnostic import FlowError
from flowrl.machine.models import CARDS
from flowrl.machine.profile import PROFILE, Profile, with_generation
from flowrl.placement.cost.placed import Placed, placed_roles
from flowrl.placement.shapes import shapes_of
from flowrl.placement.sync.cuts import Cut
from flowrl.placement.sync.edge import Links, Sync, sync_links, sync_of
from flowrl.placement.sync.volumes import strided
from flowrl.plan.plan import Layout, Pool, RolePlacement
from flowrl.spec.pipeline import loads

RULES: Mapping[str, str] = {
    "way": "shard to shard where the record says so or is HybridFlow's engine (its ranks grouped by stride); else "
    "whole tensors: gathered on the spot if colocated, broadcast if not",
    "layout": "of a mapping `A1xB2 -> C4`, as it says, its devices the product of its sizes; else the trainer has ep 8 "
    "for experts, tp 8 for megatron on whole nodes, and engines the least tp whose shard is under 60 % of a device",
    "devices": "as the record or its mapping says; of `T8 P8 -> Tg8` without a number, those that hold one copy",
    "generation": "tensor by tensor where the record says so or speaks of a plain NCCL broadcast, else the present one",
    "measured": "the middle of a range; of several versions the last one that is no total and no bound",
    "wake": "a colocated time of whole tensors has the engine's waking in it, 1 s, which a plan counts apart",
}
"""What fills a record."""
WAKE_SECONDS = 1.0

TIMES = re.compile(r"refit|reshard|update_weights|weight_sync|hybridflow_s$|transition_s$")
OLD = re.compile(r"before|naive|off$|total|bound|stated|baseline|prepared|after_?[12]$|tensor-by-tensor")
"""Names of versions, totals and bounds that are told and not compared."""


class UnusableError(Exception):
    """Why a record cannot be modelled."""


@dataclass(frozen=True)
class Ends:
    """Both ends of a hand-over."""

    train: Mapping[str, int]
    rollout: Mapping[str, int]
    trainers: int
    receivers: int
    together: bool
    filled: list[str] = field(default_factory=list[str])


def rows(facts: Facts, profile: Profile = PROFILE) -> Section:
    """One row a record."""
    found: list[dict[str, Any]] = []
    excluded: list[dict[str, str]] = []
    for raw in facts.perf:
        record = read(raw)
        try:
            measured = _measured(record)
            if measured is None:
                continue
            found.append(_row(record, measured, profile))
        except FlowError as error:
            excluded.append({"id": record.id, "reason": error.diagnostics[0].headline})
        except (UnusableError, ArithmeticError, TypeError, ValueError, KeyError) as error:
            excluded.append({"id": record.id, "reason": str(error)})
    return Section("weight sync", found, excluded, _summary(found, len(excluded)), _text(found))


def _summary(found: list[dict[str, Any]], left_out: int) -> dict[str, Any]:
    errors = [abs(row["error"]) for row in found]
    told = [abs(row["error"]) for row in found if not row["filled"]]
    return {
        "rows": len(found),
        "excluded": left_out,
        "median_error": round(median(errors), 3) if errors else None,
        "median_error_nothing_filled": round(median(told), 3) if told else None,
        "within_factor_2": round(sum(0.5 <= 1 + row["error"] <= 2 for row in found) / max(1, len(found)), 3),
    }


# -- what was measured ------------------------------------------------------------------------------------------------


def _measured(record: Record) -> tuple[float, str] | None:
    """Seconds, and the versions that are not compared, in words; None if the record measures no hand-over."""
    found = [(name, value) for name, value in _leaves(record.measured, "") if TIMES.search(name)]
    if record.kind != "weight_sync" and not found:
        return None
    fit = [(name, value) for name, value in found if not OLD.search(name)]
    if not fit:
        raise UnusableError("measures no finished version of a hand-over in seconds")
    others = ", ".join(f"{name.strip('/')} {value}" for name, value in found if (name, value) != fit[-1])
    return _seconds(fit[-1][1]), others


def _leaves(value: object, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _leaves(inner, f"{path}/{name}")
    else:
        yield path, value


def _seconds(value: object) -> float:
    numbers = [float(each) for each in re.findall(r"\d+(?:\.\d+)?", str(value))]
    if not numbers:
        raise UnusableError(f"measures {value!r}")
    return sum(numbers[:2]) / len(numbers[:2])


# -- who is at both ends ----------------------------------------------------------------------------------------------


def _ends(record: Record, name: str, model: str, backend: str) -> Ends:
    text = f"{record.placement} {record.raw.get('parallelism') or ''}"
    pair = re.search(r"((?:[A-Z]{2}\d+x?)+) ?-> ?((?:[A-Z]{2}\d+x?)+)", text)
    if pair:
        left, right = (_sizes(side) for side in pair.groups())
        return Ends(left, right, prod(left.values()), prod(right.values()), "colocated" in text)
    size = re.search(r"(\d+)B$", name)
    named = re.search(rf"{size[1]}B': 'T(\d+) P(\d+) -> Tg(\d+)", text) if size else None
    if named:
        tp, pp, tg = map(int, named.groups())
        return Ends({"tp": tp, "pp": pp}, {"tp": tg}, tp * pp, tp * pp, together=True, filled=["devices"])
    counts = re.search(r"(\d+) (?:train|trainer)\w* \+ (\d+) (?:rollout|gen)\w*", text)
    together = "colocated" in text and "non-colocated" not in text
    if counts is None and not together:
        raise UnusableError("does not say which devices train and which generate")
    if counts is None and record.count is None:
        raise UnusableError("no number of devices")
    trainers, receivers = map(int, counts.groups()) if counts else (record.count or 0, record.count or 0)
    train, rollout, filled = dict(record.train), dict(record.rollout), []
    if not train:
        train, filled = _train_layout(model, backend, trainers), ["train"]
    if not rollout:
        rollout, filled = {"tp": _least_tp(model, record.gpu or "", receivers)}, [*filled, "rollout"]
    return Ends(train, rollout, trainers, receivers, together, filled)


def _sizes(side: str) -> dict[str, int]:
    return {name.lower(): int(size) for name, size in re.findall(r"([A-Z]{2})(\d+)", side)}


def _train_layout(model: str, backend: str, devices: int) -> dict[str, int]:
    if backend != "megatron":
        return {}
    ep = 8 if CARDS[model].experts and devices % 8 == 0 else 1
    return {"ep": ep} if ep > 1 else {"tp": 8 if devices % 8 == 0 else 1}


def _least_tp(model: str, gpu: str, devices: int) -> int:
    memory = lower_cluster(f"8x{gpu}").groups[0].device.memory_bytes
    sizes = (tp for tp in (1, 2, 4, 8, 16, 32) if devices % tp == 0)
    return next((tp for tp in sizes if 2 * CARDS[model].parameters / tp < 0.6 * memory), devices)


# -- what the plan says -----------------------------------------------------------------------------------------------


def _row(record: Record, measured: tuple[float, str], profile: Profile) -> dict[str, Any]:
    name = record.models.get("actor") or next(iter(record.models.values()), "")
    # A range of sizes is a record of its largest, which is what its figures are of.
    model = card_by_loose_name(re.sub(r"-\d+B\.\.(\d+B)", r"-\1", name))
    model = model or card_by_loose_name(_SHORT.get(name.lower(), ""))
    if model is None:
        raise UnusableError(f"names no model that is known: {name!r}")
    if record.gpu is None:
        raise UnusableError(f"names no device that is known: {record.gpu_said!r}")
    backend = next((each for each in ("megatron", "deepspeed") if each in record.train_backend.lower()), "fsdp")
    ends = _ends(record, name, model, backend)
    way = _way(record, ends)
    said = f"{record.notes} {record.placement} {record.raw.get('source')}".lower()
    old = re.search(r"nccl broadcast|tensor.by.tensor", said)
    profile = with_generation(profile, {"sync": "tensors"}) if old else profile
    sync, links = plan(model, record, ends, backend, way, profile)
    predicted = sync.seconds + (WAKE_SECONDS if ends.together and way == "gather" else 0.0)
    return {
        "id": record.id,
        "model": model,
        "gpu": record.gpu,
        "way": sync.way,
        "devices": f"{ends.trainers}{' = ' if ends.together else ' -> '}{ends.receivers}",
        "train": dict(ends.train),
        "rollout": dict(ends.rollout),
        "measured_s": measured[0],
        "predicted_s": round(predicted, 3),
        "error": round(predicted / measured[0] - 1, 3),
        "filled": [*(["gpu"] if record.gpu_from_notes else []), *ends.filled],
        "told": measured[1],
        "lines": {line.what: round(line.value, 4) for line in (*sync.send, *sync.receive)},
        "bytes": {line.what: int(line.value) for line in links.moved},
    }


_SHORT = {"30b": "Qwen3-30B-A3B", "dsv3": "DeepSeek-V3"}
"""Names of one system's tables, whose sizes are those of its other tables."""


def _way(record: Record, ends: Ends) -> str:
    said = f"{record.raw.get('source')} {record.notes} {record.placement}".lower()
    if re.search(r"xfer|nccl-reshard|shard-to-shard|3d-hybridengine", said):
        return "shards"
    return "gather" if ends.together else "broadcast"


def plan(
    model: str, record: Record, ends: Ends, backend: str, way: str, profile: Profile = PROFILE
) -> tuple[Sync, Links]:
    """Seconds and bytes that the plan of a record's trainer and engine has."""
    source, target = _placed(model, record, ends, backend, profile)
    if way == "shards" and ends.together:
        tp, pp = ends.train.get("tp", 1), ends.train.get("pp", 1)
        order = strided(Cut("megatron", ends.trainers, tp, pp), ends.rollout.get("tp", 1), ends.rollout.get("pp", 1))
        target = _on(target, tuple(source.pool.devices[each] for each in order))
    transport = "cuda_ipc" if ends.together else "nccl"
    return sync_of(source, target, transport, way), sync_links(source, target, transport, way)


def _on(placed: Placed, devices: tuple[str, ...]) -> Placed:
    return dataclasses.replace(placed, pool=replace(placed.pool, devices=devices))


def _placed(model: str, record: Record, ends: Ends, backend: str, profile: Profile) -> tuple[Placed, Placed]:
    engine = "sglang" if "sglang" in f"{record.rollout_backend} {record.system}".lower() else "vllm"
    spec = loads(json.dumps(_document(model, backend, engine)), folder=str(DATA))
    checked = check_spec(spec)
    if not checked.graphs:
        raise FlowError(checked.diagnostics)
    graph = checked.graphs[0]
    everyone = ends.trainers if ends.together else ends.trainers + ends.receivers
    cluster = _cluster(record, everyone)
    per_node = cluster.groups[0].devices_per_node
    devices = [f"node{at // per_node}/{at % per_node}" for at in range(everyone)]
    apart = 0 if ends.together else ends.trainers
    request = replace(lower_placement(spec, 0), profile=profile)
    shapes = shapes_of(graph, spec.folder, {})
    found: list[Placed] = []
    for role, sizes, own in (
        ("actor_train", ends.train, devices[: ends.trainers]),
        ("actor_infer", ends.rollout, devices[apart : apart + ends.receivers]),
    ):
        layout = _layout(sizes, len(own))
        entry = RolePlacement(role=role, layout=layout)
        pool = Pool(name=role, devices=tuple(own), device=cluster.groups[0].device.name, roles=(entry,))
        found.extend(placed_roles(graph, pool, shapes, cluster, request))
    return found[0], found[1]


def _layout(sizes: Mapping[str, int], devices: int) -> Layout:
    axes = {axis: sizes.get(axis, 1) for axis in ("tp", "pp", "cp", "ep")}
    dp, over = divmod(devices, axes["tp"] * axes["pp"] * axes["cp"])
    if over:
        raise UnusableError(f"a layout of {dict(sizes)} does not fit {devices} devices")
    return Layout(dp=dp, **axes)


def _cluster(record: Record, devices: int) -> Any:
    cluster = lower_cluster(f"{devices}x{record.gpu}")
    rate = record.network(cluster.groups[0].devices_per_node)
    if rate is None:
        return cluster
    return replace(cluster, groups=(replace(cluster.groups[0], network_bytes_per_second=rate),))


def _document(model: str, backend: str, engine: str) -> dict[str, Any]:
    return {
        "flowrl": 1,
        "name": "record",
        "models": {"policy": {"source": model}},
        "data": {"train": {"source": "rows.jsonl", "max_prompt_tokens": 128}},
        "roles": {
            "actor_train": {"model": "policy", "backend": backend, "update": {"loss": "ppo"}},
            "actor_infer": {"model": "policy", "backend": engine, "generate": {"max_response_tokens": 128}},
            "reward": {
                "function": "flowrl:overlong",
                "args": {"max_tokens": 128, "buffer_tokens": 16, "penalty": 1.0},
            },
            "advantage": {"estimator": "grpo"},
        },
        "edges": [
            "data.train -> actor_infer.generate",
            "actor_infer.generate -> reward.score",
            "reward.score -> advantage.estimate",
            "advantage.estimate -> actor_train.update",
            "actor_train => actor_infer",
        ],
        "step": {"prompts": 8, "samples_per_prompt": 8},
    }


def _text(found: list[dict[str, Any]]) -> str:
    told = [f"rule of {name}: {rule}" for name, rule in RULES.items()]
    head = f"{'record':44} {'gpu':10} {'way':10} {'devices':>12} {'measured':>9} {'planned':>9} {'error':>7}  filled"
    body = [
        f"{row['id'][:44]:44} {row['gpu']:10} {row['way']:10} {row['devices']:>12} {row['measured_s']:9.2f} "
        f"{row['predicted_s']:9.2f} {row['error']:+7.0%}  {', '.join(row['filled'])}"
        for row in found
    ]
    return "\n".join([*told, "", head, *body])
