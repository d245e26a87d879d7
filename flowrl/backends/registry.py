"""Which class is which backend: (kind, backend) → `module:Class`, read without importing torch or any backend.

Third parties add rows by the entry-point group `flowrl.backends`, each named `KIND.BACKEND` and pointing to a class
made from a RankSetup. A backend is imported when its first rank is made, in the process that will hold it.
"""

from __future__ import annotations

import importlib
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from flowrl.diag.diagnostic import FlowError, diagnose
from flowrl.graph.graph import Kind, Role

if TYPE_CHECKING:
    from flowrl.backends.contract import RankSetup  # which needs numpy; planning asks this table without it

BACKENDS: dict[tuple[Kind, str], str] = {
    (Kind.DATA, "data"): "flowrl.backends.data:Data",
    (Kind.TRAINER, "fsdp"): "flowrl.backends.trainers.fsdp.trainer:FsdpTrainer",
    (Kind.TRAINER, "megatron"): "flowrl.backends.trainers.megatron.trainer:MegatronTrainer",
    (Kind.SCORER, "fsdp"): "flowrl.backends.trainers.fsdp.scorer:FsdpScorer",
    (Kind.SCORER, "hf"): "flowrl.backends.scorers.hf:HfScorer",
    (Kind.SCORER, "vllm"): "flowrl.backends.scorers.vllm:VllmScorer",
    (Kind.SCORER, "megatron"): "flowrl.backends.trainers.megatron.scorer:MegatronScorer",
    (Kind.GENERATOR, "hf"): "flowrl.backends.generators.hf:HfGenerator",
    (Kind.GENERATOR, "vllm"): "flowrl.backends.generators.vllm:VllmGenerator",
    (Kind.GENERATOR, "diffusers"): "flowrl.backends.generators.denoise:DenoiseGenerator",
    (Kind.REWARD, "function"): "flowrl.backends.rewards.host:host_reward",
    (Kind.REWARD, "fsdp"): "flowrl.backends.rewards.model:ModelReward",
    (Kind.REWARD, "hf"): "flowrl.backends.rewards.host:asked_reward",
    (Kind.REWARD, "vllm"): "flowrl.backends.rewards.host:asked_reward",
    (Kind.ESTIMATOR, "torch"): "flowrl.backends.estimators.estimator:Estimator",
    (Kind.FILTER, "function"): "flowrl.backends.filters.rule:RuleFilter",
    (Kind.FUNCTION, "function"): "flowrl.backends.functions.function:FunctionRank",
    (Kind.ENV, "function"): "flowrl.backends.envs.environment:Environment",
}

PLANNED: dict[Kind, tuple[str, ...]] = {
    Kind.TRAINER: ("deepspeed",),
    Kind.SCORER: ("deepspeed",),
    Kind.GENERATOR: ("sglang", "tensorrt_llm", "deepspeed"),
    Kind.REWARD: ("megatron", "deepspeed"),
}
"""Backends that the language names and nobody has built: FR0801, not FR0802."""

WITHOUT_BACKEND: dict[Kind, str] = {
    Kind.DATA: "data",
    Kind.REWARD: "function",
    Kind.ESTIMATOR: "torch",
    Kind.FILTER: "function",
    Kind.ENV: "function",
    Kind.FUNCTION: "function",
}
"""What a role without `backend:` runs on. A reward with a model runs on `fsdp`."""

ENTRY_POINTS = "flowrl.backends"


def make_rank(setup: RankSetup) -> Any:
    """The rank of `setup.role`: the class behind its backend, made from the setup.

    Raises FlowError FR0801 for a backend that is not built yet, FR0802 for one that nobody knows.
    """
    module, _, name = locate(setup.role).partition(":")
    return getattr(importlib.import_module(module), name)(setup)


def locate(role: Role) -> str:
    """`module:Class` of the role's backend; imports nothing of it."""
    backend = backend_of(role)
    known = BACKENDS | _third_party()
    place = known.get((role.kind, backend))
    if place is not None:
        return place
    names = ", ".join(f"`{name}`" for kind, name in sorted(known) if kind is role.kind) or "nothing yet"
    span = role.spans.get("backend", role.span)
    if backend in PLANNED.get(role.kind, ()):
        what = f"`{role.name}`: a {role.kind} on backend `{backend}`"
        raise FlowError(diagnose("FR0801", span, what=what, known=names))
    raise FlowError(diagnose("FR0802", span, backend=backend, kind=role.kind, known=names))


def backend_of(role: Role) -> str:
    """The backend that a role names, or the one that its kind has without a name."""
    if role.backend is not None:
        return role.backend
    if role.kind is Kind.REWARD and role.model is not None:
        return "fsdp"
    return WITHOUT_BACKEND.get(role.kind, "fsdp")


def built(kind: Kind) -> frozenset[str]:
    """Names of the backends of a kind that can run, third parties' included. Imports no torch."""
    return frozenset(name for known, name in BACKENDS | _third_party() if known == kind)


def _third_party() -> dict[tuple[Kind, str], str]:
    found: dict[tuple[Kind, str], str] = {}
    for point in entry_points(group=ENTRY_POINTS):
        kind, _, name = point.name.partition(".")
        if name and kind in set(Kind):
            found[Kind(kind), name] = point.value
    return found
