"""Keys that change nothing where they stand: each key of a flow is read, or told here.

Takes a stage, whose names are right; keeps the problems and warnings in it. What a preset wrote is left alone: the user
may have replaced what it was for. Which rows a key has depends on names only (loss, head, rule, flavour); what depends
on sizes is told by passes and by placement.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, cast

from flowrl.compiler.lower.assumptions import unread_assumptions, warn_assumptions
from flowrl.compiler.lower.edges import head_of, in_turns
from flowrl.compiler.lower.params import DENOISER_KEYS, OF_RATIOS, OF_SOME_LOSSES
from flowrl.compiler.lower.stage import Stage
from flowrl.diag.diagnostic import Diagnostic, diagnose
from flowrl.graph.graph import Kind
from flowrl.graph.signatures import LOSSES, methods
from flowrl.machine.traits import ENGINES
from flowrl.spec import schema
from flowrl.spec.flow import FlowSpec
from flowrl.spec.schema import RoleDocument

Path = tuple[str | int, ...]
Idle = tuple[Path, str]
"""Where a key stands that changes nothing, and why it does not."""

MATHS, MACHINERY = "FR0240", "FR0241"
"""A key of the maths without effect means another flow than the one written: an error. One of the machinery: a
warning."""

OF_TOKENS = ("max_response_tokens", "max_turn_tokens", "max_context_tokens", "temperature", "top_p", "top_k", "stop")
OF_RANGES = ("keep_top", "min", "max")
BATCH_BACKENDS = ("hf", "deepspeed")
"""Generators whose cache grows with the batch: they have no budget of memory, but a most of sequences."""
BUDGET_KEYS = ("kv_fraction", "max_batch_tokens", "max_model_tokens", "cuda_graphs", "sleep_level", "kv_dtype")

SHARDING_BACKENDS = ("fsdp", "deepspeed", "megatron")
SHARDING_KEYS = ("zero_stage", "shard_devices", "parameter_offload", "cross_entropy", "load", "compute_dtype")
MEGATRON_KEYS = ("sequence_parallel", "expert_tensor_parallel")
TRAINER_KEYS = ("optimizer_offload", "activation_offload", "gradient_dtype", "master_dtype")


def check_effects(stage: Stage, calls: Iterable[str]) -> None:
    """Keep FR0240 for every key of the maths that the user wrote and nothing reads, and FR0244 for an assumption about
    no op. `calls` are the ids of the ops that edges name."""
    _check_assumptions(stage, calls)
    for path, why in (*_of_roles(stage, _MATHS), *_of_data(stage)):
        if _written(stage, path):
            stage.refuse(MATHS, stage.key_span(*path), key=path[-1], why=why)


def warn_effects(stage: Stage) -> tuple[Diagnostic, ...]:
    """FR0241 for every key of the machinery that the user wrote and nothing reads, FR0245 for an assumption that cannot
    hold."""
    found = (*_of_roles(stage, _MACHINERY), *_of_run(stage), *_of_schedule(stage), *_of_edges(stage))
    found = (*found, *unread_assumptions(stage))
    unread = (
        diagnose(MACHINERY, stage.key_span(*path), key=path[-1], why=why)
        for path, why in found
        if _written(stage, path)
    )
    return (*unread, *warn_assumptions(stage))


def idle(spec: FlowSpec) -> frozenset[Path]:
    """Where keys of the document change nothing, whether anybody wrote them or not."""
    return frozenset(path for index in range(len(spec.stages)) for path in _idle_in(Stage(spec, index)))


def _idle_in(stage: Stage) -> Iterator[Path]:
    prefix: Path = ("stages", stage.index) if stage.spec.document.stages else ()
    found = (*_of_roles(stage, _MATHS), *_of_data(stage), *_of_roles(stage, _MACHINERY), *_of_run(stage))
    return ((*prefix, *path) for path, _ in (*found, *_of_schedule(stage)))


def _check_assumptions(stage: Stage, calls: Iterable[str]) -> None:
    """An op may also be one that a pass adds, so any that a role can have is known."""
    able = (
        f"{name}.{method}"
        for name, role in stage.document.roles.items()
        for method in methods(Kind(role.kind), head_of(stage, role))
    )
    known = {*calls, *able}
    for name in stage.document.assume:
        if name not in known:
            stage.refuse_name("FR0244", stage.key_span("assume", name), name, known)


def _written(stage: Stage, path: Path) -> bool:
    """Whether the user wrote a value at `path`, and not the one that stands for none."""
    if not stage.spec.is_given(*stage.spec.stage_path(stage.index, *path)):
        return False
    return _value(stage.document, path) not in (None, False)


def _value(document: Any, path: Path) -> Any:
    for key in path:
        if isinstance(document, Mapping):
            document = cast("Mapping[Any, Any]", document).get(key)
        elif isinstance(key, int):
            document = document[key]
        else:
            document = getattr(document, key, True)
    return document


def _of_roles(stage: Stage, table: Mapping[str, Callable[[Stage, str, Any], Iterator[Idle]]]) -> Iterator[Idle]:
    for name, role in stage.document.roles.items():
        for kind in (role.kind, "any"):
            if kind in table:
                for path, why in table[kind](stage, name, role):
                    yield ("roles", name, *path), why


# -- maths ------------------------------------------------------------------------------------------------------------


def _trainer(stage: Stage, name: str, role: schema.TrainerRole) -> Iterator[Idle]:
    loss = LOSSES.get(role.update.loss)
    if loss is None:
        return
    has = f"`{name}` has the loss `{role.update.loss}`"
    for key in OF_SOME_LOSSES:
        if key not in loss.keys:
            owners = ", ".join(other for other, each in LOSSES.items() if key in each.keys)
            yield ("update", key), f"`{key}` is read by {owners}, and {has}"
    if not loss.ratio:
        owners = ", ".join(other for other, each in LOSSES.items() if each.ratio)
        for key in OF_RATIOS:
            yield ("update", key), f"`{key}` is read by the losses of a policy ({owners}), and {has}"
    if "old_log_probs" in role.inputs and role.update.old_log_probs != "auto":
        yield ("update", "old_log_probs"), f"`inputs:` of `{name}` chooses {role.inputs['old_log_probs']}"
    if not loss.kl:
        yield ("update", "kl"), f"{has}, which has no KL of its own beside it"
    if not loss.aggregate:
        yield ("update", "aggregate"), f"{has}, which is one number for each pair, not for each token"
    head = head_of(stage, role)
    if head != "denoiser":
        yield ("update", "action_share"), f"it is a share of denoising steps, and the model of `{name}` writes text"
    unused = "log_probs" if head == "scalar" else "values"
    yield (unused,), f"the model of `{name}` has `head: {head}`, so `{name}` has no op `{unused}`"


def _generator(stage: Stage, name: str, role: schema.GeneratorRole) -> Iterator[Idle]:
    is_denoiser = head_of(stage, role) == "denoiser"
    keys = OF_TOKENS if is_denoiser else DENOISER_KEYS
    what = "denoises, and makes no tokens" if is_denoiser else "writes tokens, and does not denoise"
    for block in ("generate", *(f"generate@{label}" for label in role.labelled)):
        for key in keys:
            yield (block, key), f"the model of `{name}` {what}"
        if not in_turns(stage, name) and not _misdrawn_turns(stage):
            yield (block, "max_turn_tokens"), f"no `<->` couples `{name}` with an environment, so it takes no turns"


def _reward(stage: Stage, name: str, role: schema.RewardRole) -> Iterator[Idle]:
    judge = role.judge
    asks = judge is not None and (judge.endpoint is not None or role.model is not None)
    if role.flavour not in ("function", "judge"):
        yield ("timeout_seconds",), f"it is of one call of a function or judge, and `{name}` has `{role.flavour}`"
    if not asks:
        yield ("generate",), f"it is how the model of a judge answers, and `{name}` asks none"
    if judge is not None and judge.endpoint is not None:
        yield ("model",), f"the judge of `{name}` asks {judge.endpoint}"


def _filter(stage: Stage, name: str, role: schema.FilterRole) -> Iterator[Idle]:
    rule = f"`{name}` has `rule: {role.rule}`"
    if role.keep_top is None or role.unit == "group":
        yield ("within",), f"it says among which samples `keep_top` ranks, and `{name}` ranks no samples"
    if (column := (role.by or "").rpartition(".")[2]) in role.inputs:
        yield ("by",), f"`inputs:` of `{name}` chooses {role.inputs[column]}"
    if role.rule != "function":
        yield ("function",), f"{rule}, which is no function"
    if role.rule in ("truncated", "function"):
        yield ("by",), f"{rule}, which looks at {'finish_reason' if role.rule == 'truncated' else 'its parameters'}"
    if role.rule in ("zero_spread", "truncated", "function"):
        for key in OF_RANGES:
            yield (key,), f"{rule}, which has no range"


_MATHS: Mapping[str, Callable[[Stage, str, Any], Iterator[Idle]]] = {
    "trainer": _trainer,
    "generator": _generator,
    "reward": _reward,
    "filter": _filter,
}


def _of_data(stage: Stage) -> Iterator[Idle]:
    for name, data in stage.document.data.items():
        for key, why in _of_set(data):
            yield ("data", name, key), why


def _of_set(data: schema.DataDocument) -> Iterator[tuple[str, str]]:
    if data.mix is None:
        yield "tag", "it receives the name of a source, and only a `mix` has several"
    if data.max_prompt_tokens is None and data.mix is None:
        yield "on_long", "without `max_prompt_tokens` no prompt is long"
    if data.seeds is not None:
        for key in ("prompt", "response", "chosen", "rejected", "images", "keep", "template", "max_prompt_tokens"):
            yield key, "numbered seeds have no columns and no text"
    if data.mix is not None:
        for key in ("prompt", "response", "chosen", "rejected", "images", "template"):
            yield key, "each source of a `mix` has its own"
        return
    if data.chosen is None:
        yield "rejected", "a pair has `chosen` beside it"
    if data.rejected is None:
        yield "chosen", "a pair has `rejected` beside it"
    if data.mix is None and data.order == "interleave":
        yield "order", "only the sources of a `mix` are interleaved"


# -- machinery --------------------------------------------------------------------------------------------------------


def _engine(stage: Stage, name: str, role: RoleDocument) -> Iterator[Idle]:
    model = getattr(role, "model", None)
    if model is None:
        yield ("backend",), f"`{name}` runs no model"
    if role.backend not in ENGINES:
        why = f"it is for an engine with a KV cache ({', '.join(ENGINES)})"
        yield from ((("engine", key), why) for key in (*BUDGET_KEYS, "weights_dtype"))
    if role.backend not in ENGINES and not (role.backend in BATCH_BACKENDS and role.kind == "generator"):
        yield ("engine", "max_sequences"), f"`{name}` decodes nothing"
    if not isinstance(role, schema.TrainerRole):
        yield ("engine", "recompute"), f"it trades compute for memory in a backward pass, and `{name}` has none"
    if isinstance(role, schema.GeneratorRole):
        yield ("engine", "packing"), f"`{name}` generates: its engine batches tokens by itself"
    yield from _sharding(name, role)
    if model is not None:
        yield ("engine", "gpu_bytes"), f"it is what a function uses; the memory of `{name}` follows from its model"
    elif role.engine.gpu_bytes is None:
        yield ("engine", "offload"), f"`{name}` holds no device"


def _sharding(name: str, role: RoleDocument) -> Iterator[Idle]:
    """Keys of trainers, and of scorers and reward models that are sharded as they are."""
    if role.backend not in SHARDING_BACKENDS or isinstance(role, schema.GeneratorRole):
        why = f"it is for a model that is trained or scores ({', '.join(SHARDING_BACKENDS)})"
        yield from ((("engine", key), why) for key in (*SHARDING_KEYS, *MEGATRON_KEYS, *TRAINER_KEYS))
        return
    if role.backend == "megatron":
        yield ("engine", "zero_stage"), "megatron's distributed optimizer cuts optimizer states, as stage 1 does"
        yield ("engine", "parameter_offload"), "megatron works with weights on the device; `offload` moves them off it"
    else:
        yield ("engine", "sequence_parallel"), f"{role.backend} does not cut a layer's work by tokens"
        yield ("engine", "expert_tensor_parallel"), f"{role.backend} does not cut experts by tp"
    if role.backend == "deepspeed":
        yield ("engine", "compute_dtype"), "deepspeed multiplies in the dtype of the model"
    if not isinstance(role, schema.TrainerRole):
        yield from ((("engine", key), f"`{name}` is not trained") for key in TRAINER_KEYS)


def _scored(stage: Stage, name: str, role: schema.RewardRole) -> Iterator[Idle]:
    if role.model is None:
        yield ("micro_batch_tokens",), f"it is of a forward of a reward model, and `{name}` runs no model"


_MACHINERY: Mapping[str, Callable[[Stage, str, Any], Iterator[Idle]]] = {"any": _engine, "reward": _scored}


def _of_run(stage: Stage) -> Iterator[Idle]:
    if stage.document.run.checkpoint_every_steps is None:
        yield ("run", "keep"), "without `checkpoint_every_steps` there is one checkpoint, at the end"


def _of_schedule(stage: Stage) -> Iterator[Idle]:
    lags = [stage.document.schedule.max_lag, *(edge.max_lag or 0 for edge in stage.document.edges)]
    if not any(lags) and stage.document.schedule.when_stale != "wait":
        yield ("schedule", "when_stale"), "at `max_lag: 0` no sample is stale"
    if stage.document.schedule.takes == 1 and stage.document.schedule.minibatches != "fixed":
        yield ("schedule", "minibatches"), "with `takes: 1` all prompts arrive at once"


def _of_edges(stage: Stage) -> Iterator[Idle]:
    for place, edge in enumerate(stage.document.edges):
        if edge.timeout_seconds is None:
            yield ("edges", place, "on_timeout"), "without `timeout_seconds` the wait has no end"


# -- edges ------------------------------------------------------------------------------------------------------------


def _misdrawn_turns(stage: Stage) -> bool:
    """Whether another arrow than `<->` stands at an environment's step: FR0331 tells that, and it is the cause."""
    worlds = {f"{name}.step" for name, role in stage.document.roles.items() if isinstance(role, schema.EnvRole)}
    drawn = (end for edge in stage.document.edges if edge.arrow == "->" for end in (*edge.sources, *edge.targets))
    return any(end.partition("@")[0] in worlds for end in drawn)
