"""One published measurement, its fields read and normalised. Takes a raw record of perf_published.json, gives a Record.

Reads what the record says, in its fields or in the words of its notes, and nothing more: what is missing stays None
(rules.py fills it). Spellings are loose: `"64/128"`, `"16..256"`, `{"max": 2048}`, `"staleness_threshold=0.5"`. Never
raises for an odd record.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from flowrl.machine.devices import DEVICE_CARDS

AXES = ("tp", "pp", "cp", "ep")
ROLES = {
    "actor": "actor",
    "policy": "actor",
    "ref": "ref",
    "reference": "ref",
    "critic": "critic",
    "value": "critic",
    "reward": "reward",
    "rm": "reward",
    "cost": "cost",
    "judge": "judge",
}
"""How records call the parts → ours."""

DEVICE_WORDS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (r"GB200", ("GB200",)),
    (r"GB300", ("GB300",)),
    (r"(?<!G)B200", ("B200",)),
    (r"H200", ("H200",)),
    (r"H20\b", ("H20", "H20-96G")),
    (r"H100", ("H100-80G", "H100-SXM")),
    (r"H800", ("H800", "H800-80G")),
    (r"A100\D{0,6}40", ("A100-40G",)),
    (r"A100", ("A100-80G",)),
    (r"A800", ("A800", "A800-80G")),
    (r"A6000", ("A6000", "RTX-A6000", "A6000-48G")),
    (r"L40S", ("L40S",)),
    (r"L20\b", ("L20",)),
    (r"L4\b", ("L4",)),
    (r"A10\b", ("A10",)),
    (r"4090", ("RTX4090",)),
    (r"V100", ("V100-32G",)),
    (r"MI300X", ("MI300X",)),
    (r"910C|Ascend.?A3", ("Ascend-910C", "Ascend910C", "910C", "Ascend-A3")),
    (r"910B", ("Ascend-910B", "Ascend910B", "910B")),
)
"""Words that name a device → names of the catalogue, the first that it has."""


@dataclass(frozen=True)
class Length:
    """Tokens: what a record says of a prompt, a response or both. `fixed`: every sample is as long as the most."""

    most: int | None = None
    mean: float | None = None
    fixed: bool = False


@dataclass(frozen=True)
class Part:
    """Devices of their own for some roles: how many, or which share of all."""

    roles: tuple[str, ...]
    gpus: int | None = None
    share: float | None = None


@dataclass(frozen=True)
class Record:
    id: str
    kind: str
    system: str
    algorithm: str
    models: Mapping[str, str]
    gpu: str | None
    """Name in the device catalogue."""
    gpu_said: str
    """As written; of a record without one, the words of its notes."""
    gpu_from_notes: bool
    counts: tuple[int, ...]
    """Devices; several where the record speaks of several clusters."""
    per_node: int | None
    placement: str
    parts: tuple[Part, ...]
    """Empty: all roles share all devices, or the record does not say."""
    train: Mapping[str, int]
    rollout: Mapping[str, int]
    shard_devices: int | None
    prompts: int | None
    samples: int | None
    rollout_samples: int | None
    """Samples of a step, where the record gives their number and not that of the prompts."""
    updates: int | None
    prompt: Length
    response: Length
    total: Length
    lag: float | None
    partial: bool
    train_backend: str
    rollout_backend: str
    dtype: str
    measured: Mapping[str, Any]
    notes: str
    raw: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def count(self) -> int | None:
        return self.counts[0] if len(self.counts) == 1 else None

    @property
    def engine(self) -> str:
        """The system without its version and its mode: `verl v0.3.0.post1` → verl."""
        return re.split(r"[\s(/]", self.system.strip() or "unknown", maxsplit=1)[0].lower()

    @property
    def family(self) -> str:
        """System and hardware: what is left out together."""
        return f"{self.engine} {self.gpu or self.gpu_said or '?'}"

    def network(self, per_node: int) -> float | None:
        """Bytes a second of a device to other nodes, where the record gives the rate between nodes: the devices of a
        node share it. None: not said."""
        found = re.search(r"(\d+) Gbps inter-node", str(self.raw.get("interconnect") or ""))
        return float(found[1]) / 8 * 1e9 / per_node if found else None

    def number(self, key: str) -> float | None:
        """A measured figure, if it is one."""
        return number(self.measured.get(key))


LARGEST = 1e15
"""What is beyond it, not a number or infinite is no figure of a record."""


def number(value: object) -> float | None:
    """A number, or the first one in a text (`"25.84%"` is 25.84); None for anything else."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int | float):
        return float(value) if abs(value) < LARGEST else None
    found = re.search(r"-?\d[\d,]*(?:\.\d+)?", value) if isinstance(value, str) else None
    return number(float(found[0].replace(",", ""))) if found else None


def _whole(value: object) -> int | None:
    found = number(value)
    return None if found is None or found < 1 else round(found)


def read(raw: Mapping[str, Any]) -> Record:
    """The record, normalised."""
    notes = str(raw.get("notes") or "")
    said, placement = raw.get("gpu"), str(raw.get("placement") or "")
    gpu = device_of(str(said or ""))
    named = device_of(notes) if gpu is None and not said else None
    parallel = _mapping(raw.get("parallelism"))
    train, rollout = _layouts(parallel)
    counts = _counts(raw, parallel)
    response = _length(raw.get("response_len"))
    stale, measured = raw.get("max_staleness"), _mapping(raw.get("measured"))
    return Record(
        id=str(raw.get("id") or "?"),
        kind=str(raw.get("kind") or "?"),
        system=str(raw.get("system") or ""),
        algorithm=str(raw.get("algorithm") or ""),
        models=_models(raw.get("models")),
        gpu=gpu or named,
        gpu_said=str(said or ""),
        gpu_from_notes=gpu is None and named is not None,
        counts=counts,
        per_node=_whole(raw.get("gpus_per_node")),
        placement=placement,
        parts=parts_of(placement, counts[0] if len(counts) == 1 else None),
        train=train,
        rollout=rollout,
        shard_devices=_whole(_mapping(parallel.get("train")).get("fsdp_size")),
        prompts=_whole(raw.get("global_batch_prompts")) or noted(notes, r"global batch (\d+) pairs"),
        samples=_whole(raw.get("samples_per_prompt")),
        rollout_samples=noted(notes, r"G-GBS (\d+)"),
        updates=_updates(notes, _whole(raw.get("global_batch_prompts"))),
        prompt=_length(raw.get("prompt_len")),
        response=response,
        total=_total(raw.get("response_len")),
        lag=_lag(stale, placement),
        partial=bool(re.search(r"partial|interruptible|fully async", f"{placement} {stale}", re.IGNORECASE)),
        train_backend=str(raw.get("train_backend") or ""),
        rollout_backend=str(raw.get("rollout_backend") or ""),
        dtype=str(raw.get("dtype") or ""),
        measured=measured,
        notes=notes,
        raw=raw,
    )


def device_of(text: str) -> str | None:
    """The catalogue's name of the first device that the text names; None if it names none or the catalogue lacks it."""
    places = ((re.search(words, text, re.IGNORECASE), names) for words, names in DEVICE_WORDS)
    found = [(match.start(), order, names) for order, (match, names) in enumerate(places) if match]
    names = min(found)[2] if found else ()
    return next((name for name in names if name in DEVICE_CARDS), None)


def _mapping(value: object) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _models(value: object) -> dict[str, str]:
    if isinstance(value, str):
        return {"actor": value}
    return {ROLES[str(k).lower()]: str(v) for k, v in _mapping(value).items() if str(k).lower() in ROLES and v}


def _layouts(parallel: Mapping[str, Any]) -> tuple[dict[str, int], dict[str, int]]:
    """Axes larger than zero of training and of generation; axes written on their own are both's. `sp` of FSDP is the
    sequence parallelism of Ulysses: our cp."""
    shared = _axes(parallel)
    return shared | _axes(_mapping(parallel.get("train"))), shared | _axes(_mapping(parallel.get("rollout")))


def _axes(said: Mapping[str, Any]) -> dict[str, int]:
    named = {("cp" if str(k).lower() == "sp" else str(k).lower()): _whole(v) for k, v in said.items()}
    return {axis: size for axis in AXES if (size := named.get(axis)) is not None}


def _counts(raw: Mapping[str, Any], parallel: Mapping[str, Any]) -> tuple[int, ...]:
    """`"64/128"` is two clusters; `"16-64"` and `"16..256"` are the doublings between; nodes times devices of one."""
    said = raw.get("num_gpus")
    if isinstance(said, int | float) and not isinstance(said, bool):
        whole = _whole(said)
        return (whole,) if whole else ()
    if isinstance(said, str):
        numbers = [int(each) for each in re.findall(r"\d{1,7}", said) if int(each)]
        if len(numbers) == 2 and re.search(r"\d\s*(?:\.\.|-|–)\s*\d", said):
            return tuple(_doublings(*numbers))
        return tuple(numbers)
    nodes = _whole(parallel.get("nodes"))
    return (nodes * (_whole(raw.get("gpus_per_node")) or 8),) if nodes else ()


def _doublings(first: int, last: int) -> list[int]:
    found = [first]
    while found[-1] * 2 <= last:
        found.append(found[-1] * 2)
    return found


def _length(said: object) -> Length:
    if isinstance(said, dict):
        most, mean = _whole(said.get("max") or said.get("seq_len")), number(said.get("mean"))
        if said.get("max_total_seq"):
            return Length()
        return Length(most, mean, fixed=bool(said.get("seq_len")))
    most = _whole(said)
    return Length(most, None if most is None else float(most), fixed=most is not None)


def _total(said: object) -> Length:
    """Of prompt and response together."""
    if not isinstance(said, dict) or not said.get("max_total_seq"):
        return Length()
    return Length(_whole(said.get("max_total_seq")), number(said.get("mean")))


def noted(notes: str, pattern: str) -> int | None:
    """The whole number that the pattern's group finds in the notes."""
    found = re.search(pattern, notes, re.IGNORECASE)
    return int(found[1].replace(",", "")) if found else None


def _updates(notes: str, prompts: int | None) -> int | None:
    """Optimizer updates of a step, as the notes say it: a number of them, or the size of a mini-batch."""
    said = noted(notes, r"(\d+) (?:PPO updates per iteration|optimizer steps)")
    if said is not None:
        return said
    whole, part = noted(notes, r"G-GBS (\d+)"), noted(notes, r"T-GBS (\d+)")
    if whole and part:
        return max(1, whole // part)
    part = noted(notes, r"mini[-_ ]?batch(?:[-_ ]size)? (\d+)") or noted(notes, r"\bmini (\d+)")
    part = part or noted(notes, r"train batch (\d+)")
    times = noted(notes, r"mini-batch \d+ prompts x (\d+) per sync")
    if times:
        return times
    return max(1, prompts // part) if prompts and part else None


def _lag(said: object, placement: str) -> float | None:
    """Steps by which generation may run ahead. A threshold below 1 is a share of a step. None: not said."""
    if isinstance(said, int | float) and not isinstance(said, bool):
        return float(said)
    if isinstance(said, str):
        threshold = re.search(r"threshold\s*=\s*([\d.]+)", said)
        default = re.search(r"default (\d+)", said)
        if threshold or default:
            return float((threshold or default)[1].rstrip("."))  # pyright: ignore[reportOptionalSubscript]
        return number(said)
    text = placement.lower()
    if "async" in text or "one-step" in text or "1off" in text:
        return None
    return 0.0 if "sync" in text else None


# -- who has devices of their own -------------------------------------------------------------------------------------

_TRAIN, _ROLLOUT = ("train",), ("rollout",)


def parts_of(text: str, count: int | None) -> tuple[Part, ...]:
    """Parts of the cluster that a placement names, in its words. `train` stands for all that is not generation; with
    names of roles (actor, ref, critic, reward) for these."""
    low = text.lower()
    shares = _shares(low)
    if shares:
        return shares
    nodes = _node_parts(low)
    if nodes:
        return nodes
    ratio = re.search(r"ratio ((?:\d+:)+\d+)", low)
    if ratio:
        return _ratio_parts([int(each) for each in ratio[1].split(":")])
    named = _counted(low)
    if named:
        return named
    if "standalone" in low:
        return (Part(_ROLLOUT), Part(("actor",)), Part(("critic",)), Part(("ref", "reward")))
    if re.search(r"disaggregated|non-colocated|spatial|\bsplit\b", low) and "temporal" not in low:
        return (Part(_TRAIN), Part(_ROLLOUT))
    return ()


def _shares(low: str) -> tuple[Part, ...]:
    found = re.search(r"(\d+)\s*% train\w* \+ ~?(\d+)\s*% (?:rollout|gen)", low)
    if not found:
        return ()
    return (Part(_TRAIN, share=int(found[1]) / 100), Part(_ROLLOUT, share=int(found[2]) / 100))


def _node_parts(low: str) -> tuple[Part, ...]:
    """`actor+ref on 8 nodes, critic+reward on 4 nodes` and `2 hybrid trainer nodes + 2 standalone rollout nodes`."""
    named = re.findall(r"([a-z]+(?:\s*\+\s*[a-z]+)*) on (\d+) nodes?", low)
    if named:
        return tuple(Part(tuple(re.split(r"\s*\+\s*", roles)), gpus=int(nodes) * 8) for roles, nodes in named)
    kinds = re.findall(r"(\d+) (?:\w+ )?(train|rollout)\w* nodes?", low)
    return tuple(Part((kind,), gpus=int(nodes) * 8) for nodes, kind in kinds) if len(kinds) > 1 else ()


def _ratio_parts(sizes: list[int]) -> tuple[Part, ...]:
    """OpenRLHF's order: reference, reward, actor, critic, engines (the last one may be missing)."""
    names = (("ref",), ("reward",), ("actor",), ("critic",), _ROLLOUT)
    return tuple(Part(roles, gpus=size) for roles, size in zip(names, sizes, strict=False))


_COUNTED = re.compile(r"(?P<n>\d+) (?P<a>rollout|train\w*|ref|fwd)|vllm:d(?P<v>\d+)|train d(?P<t>\d+)", re.IGNORECASE)


def _counted(low: str) -> tuple[Part, ...]:
    """`8 train + 8 rollout`, `50 rollout - 2 ref - 2 fwd - 8 trainer`, `vllm:d32 + train d16`."""
    found: list[Part] = []
    for match in _COUNTED.finditer(low):
        if match["v"] or match["t"]:
            found.append(Part(_ROLLOUT if match["v"] else _TRAIN, gpus=int(match["v"] or match["t"])))
            continue
        word = match["a"].lower()
        roles = _TRAIN if word.startswith("train") else _ROLLOUT if word == "rollout" else (word,)
        found.append(Part(roles, gpus=int(match["n"])))
    kinds = {part.roles for part in found}
    return tuple(found) if {_TRAIN, _ROLLOUT} <= kinds else ()
