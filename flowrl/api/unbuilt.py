"""What the language can say and no part of the runtime carries out yet: one literal table, read by `preflight`.

A row finds its construct in a StagePlan, so that a plan.json is refused as its flow would be. Whoever builds a feature
deletes its row and the row's test. Names of backends, losses and estimators are not here: their own tables say what
there is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from flowrl.backends.trainers.megatron.plain import odd_keys
from flowrl.diag.span import Span
from flowrl.graph.graph import Edge, Kind, Model, Op, Role
from flowrl.graph.params import EngineParams, FilterParams, ScoreParams, UpdateParams
from flowrl.graph.types import Unit
from flowrl.plan.plan import Pool, RolePlacement, StagePlan
from flowrl.program.sessions import sessions_that_go_on

Place = tuple[str, Span | None]
"""Whose it is, and where it is written."""
Find = Callable[[StagePlan], Iterable[Place]]


@dataclass(frozen=True, slots=True)
class Unbuilt:
    """A construct, what works in its place, and where a plan has it."""

    what: str
    known: str
    find: Find
    whole: bool = False
    """Whether the role cannot run at all, so that its backend need not be asked for."""


def roles(is_meant: Callable[[Role], bool]) -> Find:
    return lambda stage: ((role.name, role.span) for role in stage.graph.roles if is_meant(role))


def engines(is_meant: Callable[[EngineParams], bool], but: str = "") -> Find:
    """`but`: a backend that carries it out."""
    return roles(lambda role: is_meant(role.engine) and role.backend != but)


def placed(is_meant: Callable[[Role, Pool, RolePlacement], bool]) -> Find:
    def find(stage: StagePlan) -> Iterator[Place]:
        known = {role.name: role for role in stage.graph.roles}
        for pool in stage.pools:
            for entry in pool.roles:
                if entry.role in known and is_meant(known[entry.role], pool, entry):
                    yield entry.role, known[entry.role].span

    return find


def ops(is_meant: Callable[[Op], bool], key: str = "") -> Find:
    """`key`: the parameter whose place is shown, where it is written."""
    return lambda stage: ((op.id, op.spans.get(key, op.span)) for op in stage.graph.ops if is_meant(op))


def filters(is_meant: Callable[[FilterParams], bool]) -> Find:
    return ops(lambda op: isinstance(op.params, FilterParams) and is_meant(op.params))


def edges(is_meant: Callable[[Edge], bool]) -> Find:
    """Of those that are written: a derived one has the attributes of one of them."""
    return lambda stage: ((e.id, e.span) for e in stage.graph.declared if not e.derived and is_meant(e))


def models(is_meant: Callable[[Model], bool], key: str = "") -> Find:
    return lambda stage: ((m.name, m.spans.get(key, m.span)) for m in stage.graph.models if is_meant(m))


def step(is_meant: Callable[[StagePlan], bool], key: str) -> Find:
    return lambda stage: [(stage.name, stage.graph.step.spans.get(key))] if is_meant(stage) else []


def schedule(is_meant: Callable[[StagePlan], bool], key: str) -> Find:
    return lambda stage: [(stage.name, stage.graph.schedule.spans.get(key))] if is_meant(stage) else []


def logger(name: str) -> Find:
    return lambda stage: [(stage.name, stage.run.spans.get("loggers"))] if name in stage.run.loggers else []


def _sees(op: Op) -> bool:
    return any(slot.slot == "images" for slot in op.inputs)


def _blind(stage: StagePlan) -> Iterator[Place]:
    """Roles that read images on a backend, or with a head, that has no way to show them to a model; and judges."""
    for role in stage.graph.roles:
        seeing = [op for op in stage.graph.ops if op.role == role.name and _sees(op)]
        head = "lm" if role.model is None else stage.graph.model(role.model).head
        if seeing and (role.kind is Kind.REWARD or role.backend in ("vllm", "megatron") or head != "lm"):
            yield role.name, seeing[0].span


def _denoisers(is_meant: Callable[[Role], bool]) -> Find:
    def find(stage: StagePlan) -> Iterator[Place]:
        for role in stage.graph.roles:
            if role.model and stage.graph.model(role.model).head == "denoiser" and is_meant(role):
                yield role.name, role.span

    return find


def _updates_of_denoisers(stage: StagePlan) -> Iterator[Place]:
    """Those in which a sample's steps do not stand each for itself."""
    own = {name for name, _ in _denoisers(lambda role: True)(stage)}
    for op in (op for op in stage.graph.ops if op.role in own and isinstance(op.params, UpdateParams)):
        assert isinstance(op.params, UpdateParams)
        if op.params.aggregate != "token_mean" or op.params.loss not in ("ppo", "cispo", "reinforce"):
            yield op.id, op.span


def _gives_samples_only(op: Op) -> bool:
    """Whether a reward that scores whole samples is asked for rewards of their turns or tokens."""
    whole = isinstance(op.params, ScoreParams) and op.params.flavour in ("model", "judge", "sandbox")
    return whole and any(field.name == "rewards" and field.unit is not Unit.SAMPLE for field in op.outputs)


def _unwaited(policy: str) -> Find:
    """Timed edges whose policy cannot be carried out."""

    def find(stage: StagePlan) -> Iterator[Place]:
        from flowrl.runtime.waits import refused  # which needs numpy; only what is run comes here

        return ((f"{edge.id}", edge.span) for edge, asked, _ in refused(stage) if asked == policy)

    return find


UNBUILT: tuple[Unbuilt, ...] = (
    # roles
    Unbuilt("rewards of a turn or token that no function gives", "`function`", ops(_gives_samples_only)),
    Unbuilt(
        "`on_error` of this kind of role",
        "`on_error` of a reward or of an environment",
        roles(lambda r: r.on_error != "abort" and r.kind not in (Kind.ENV, Kind.REWARD)),
    ),
    # engines
    Unbuilt(
        "pp or ep of a vLLM engine",
        "`tp`, and more engines (dp)",
        placed(lambda role, pool, entry: role.backend == "vllm" and max(entry.layout.pp, entry.layout.ep) > 1),
    ),
    Unbuilt("`engine.sleep_level: 2`", "`sleep_level: 1`", engines(lambda e: e.sleep_level != 1)),
    Unbuilt(
        "`engine.weights_dtype: fp8`", "weights of the model's dtype", engines(lambda e: e.weights_dtype != "auto")
    ),
    Unbuilt(
        "`engine.kv_dtype: fp8` on a CPU",
        "a cache of the model's dtype",
        placed(lambda role, pool, entry: role.engine.kv_dtype != "auto" and pool.device == "cpu"),
    ),
    Unbuilt(
        "`engine.max_sequences` of a generator that is no engine",
        "all sequences of a call at once",
        roles(lambda r: r.engine.max_sequences is not None and r.backend == "hf"),
    ),
    Unbuilt("`engine.packing` of this backend", "`packing: false`", engines(lambda e: e.packing, but="fsdp")),
    Unbuilt(
        "`engine.extra` of a role without a model",
        "`engine.extra` of roles with a model",
        roles(lambda r: bool(r.engine.extra) and r.model is None),
    ),
    Unbuilt(
        "`engine.zero_stage` of this backend", "stage 3", engines(lambda e: e.zero_stage not in (None, 3), but="fsdp")
    ),
    Unbuilt(
        "`engine.shard_devices` of this backend",
        "shards over all ranks",
        engines(lambda e: e.shard_devices is not None, but="fsdp"),
    ),
    Unbuilt("`engine.optimizer_offload`", "`offload` between ops", engines(lambda e: e.optimizer_offload > 0)),
    Unbuilt(
        "`engine.parameter_offload` of this backend",
        "`offload` between ops",
        engines(lambda e: e.parameter_offload, but="fsdp"),
    ),
    Unbuilt("`engine.activation_offload`", "`recompute: full`", engines(lambda e: e.activation_offload)),
    Unbuilt("`load: broadcast`", "`parts`", engines(lambda e: e.load != "parts")),
    Unbuilt(
        "`cross_entropy: kernel` and `fused`",
        "`whole`, `in_place`, `chunked`",
        engines(lambda e: e.cross_entropy in ("kernel", "fused")),
    ),
    Unbuilt(
        "`engine.cross_entropy` of this backend", "`whole`", engines(lambda e: e.cross_entropy != "whole", but="fsdp")
    ),
    Unbuilt(
        "`gradient_dtype: bfloat16` of this backend",
        "`float32`",
        engines(lambda e: e.gradient_dtype != "float32", but="fsdp"),
    ),
    Unbuilt(
        "`engine.master_dtype` of this backend",
        "`float32`",
        engines(lambda e: e.master_dtype not in (None, "float32"), but="fsdp"),
    ),
    Unbuilt("`engine.compute_dtype: fp8`", "the model's dtype", engines(lambda e: e.compute_dtype != "auto")),
    Unbuilt(
        "`optimizer: {name: adamw_8bit}`",
        "`adamw`, `sgd`",
        roles(lambda r: r.optimizer is not None and r.optimizer.name == "adamw_8bit"),
    ),
    Unbuilt(
        "a layout of fsdp with cp or ep",
        "dp and tp",
        placed(lambda role, pool, e: role.backend == "fsdp" and max(e.layout.cp, e.layout.ep) > 1),
    ),
    Unbuilt(
        "a layout of megatron with cp or ep",
        "tp, pp and dp",
        placed(lambda role, pool, e: role.backend == "megatron" and max(e.layout.cp, e.layout.ep) > 1),
    ),
    Unbuilt(
        "a key of megatron's `engine` with this value",
        "`recompute`, `sequence_parallel`, `offload`",
        roles(lambda role: role.backend == "megatron" and bool(odd_keys(role.engine))),
    ),
    Unbuilt(
        "LoRA on megatron",
        "`backend: fsdp`",
        lambda stage: (
            (role.name, role.span)
            for role in stage.graph.roles
            if role.backend == "megatron" and role.model and stage.graph.model(role.model).lora is not None
        ),
    ),
    # models
    Unbuilt("a scorer of a denoiser", "GRPO without a KL", _denoisers(lambda role: role.kind is Kind.SCORER)),
    Unbuilt(
        "LoRA of a denoiser", "all its weights", models(lambda m: m.head == "denoiser" and m.lora is not None, "lora")
    ),
    Unbuilt("this update of a denoiser", "`ppo`, `cispo` or `reinforce` with `token_mean`", _updates_of_denoisers),
    # data
    Unbuilt("images of this backend or head, or for a judge", "policies on `hf` and `fsdp`, `head: lm`", _blind),
    Unbuilt(
        "images of a partial rollout",
        "whole responses",
        schedule(lambda s: s.graph.schedule.partial_rollout and any(map(_sees, s.graph.ops)), "partial_rollout"),
    ),
    # edges
    Unbuilt("a transport of one's own", "shared memory", edges(lambda e: e.transport is not None)),
    Unbuilt(
        "`on_timeout: retry` where the other end keeps state or hands on in parts",
        "`abort`, or `retry` of rows of a data set, generator, scorer, reward or estimator",
        _unwaited("retry"),
    ),
    Unbuilt(
        "`on_timeout: drop` where the other end keeps state, hands on in parts or is read by prompt",
        "`abort`, or `drop` of rows that are read by sample",
        _unwaited("drop"),
    ),
    # step, schedule, run
    Unbuilt(
        "partial rollout of this generator",
        "a generator that stays on its devices, with one call, whose prompts nothing else works on",
        schedule(lambda s: s.graph.schedule.partial_rollout and not sessions_that_go_on(s.programs), "partial_rollout"),
    ),
    Unbuilt("the logger `wandb`", "`tensorboard`", logger("wandb")),
    Unbuilt("the logger `mlflow`", "`tensorboard`", logger("mlflow")),
)
"""A construct that a row finds is refused with FR0801, at its place, before anything starts."""
