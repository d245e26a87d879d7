"""lower_stage: one stage of a FlowSpec → the Graph that the passes work on.

An op exists because an edge names it. Every name is checked here, all problems of a stage are told together; what an
input is bound to is left to infer_types. Loads no user code.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from flowrl.compiler.lower.data import lower_data
from flowrl.compiler.lower.edge_checks import check_interactions, check_weights
from flowrl.compiler.lower.edges import CallSite, check_updates, head_of, lower_edges
from flowrl.compiler.lower.effects import check_effects
from flowrl.compiler.lower.gates import check_gate
from flowrl.compiler.lower.mixes import check_mixes
from flowrl.compiler.lower.ops import check_inputs, lower_op, with_starts
from flowrl.compiler.lower.params import engine_params, forward_params, optimizer_params
from flowrl.compiler.lower.periods import with_periods
from flowrl.compiler.lower.routes import check_rewards, routed, without_untaken
from flowrl.compiler.lower.stage import Stage
from flowrl.compiler.lower.texts import with_texts
from flowrl.diag.diagnostic import FlowError, Help, Label, diagnose
from flowrl.diag.near import near_names
from flowrl.diag.span import Span
from flowrl.graph.graph import Graph, Kind, Model, Op, Refill, Role, Schedule, Step
from flowrl.spec.flow import FlowSpec
from flowrl.spec.schema import GeneratorRole, RefillDocument, RoleDocument, ShapeDocument, TrainerRole

DATA = "data"
"""The section's name; the schema lets no role take it."""


def lower_stage(spec: FlowSpec, index: int) -> Graph:
    """The graph of stage `index`: typed, named and periodic, not yet bound.

    Raises FlowError with every unknown or doubled name, unreadable user function and misplaced weights edge in it.
    """
    stage = Stage(spec, index)
    _check_roles(stage)
    check_mixes(stage)
    written, sites = lower_edges(stage)
    check_rewards(stage)
    declared = routed(stage, written, sites)
    _check_labels(stage, sites)
    check_updates(stage, sites.values())
    if not stage.problems:  # an unknown name alone would make other edges look wrong
        check_interactions(stage, written)
        check_weights(stage, written)
    ops = [op for site in sites.values() if (op := _lower(stage, site)) is not None]
    ops = without_untaken(with_starts(stage, ops, declared), declared)
    check_inputs(stage, ops)
    check_effects(stage, sites)
    check_gate(stage, ops)
    if stage.problems:
        raise FlowError(dict.fromkeys(stage.problems))
    document = stage.document
    return Graph(
        name=document.name,
        models=_models(stage),
        roles=(*_data_roles(ops, stage), *_roles(stage)),
        ops=with_periods(with_texts(ops, declared), declared),
        declared=declared,
        step=Step(
            prompts=document.step.prompts,
            samples_per_prompt=document.step.samples_per_prompt,
            updates=document.step.updates,
            epochs=document.step.epochs,
            refill=_refill(document.step.refill),
            spans=stage.written_keys("step", keys=("prompts", "samples_per_prompt", "updates", "epochs", "refill")),
        ),
        schedule=Schedule(
            max_lag=document.schedule.max_lag,
            partial_rollout=document.schedule.partial_rollout,
            when_stale=document.schedule.when_stale,
            takes=document.schedule.takes,
            minibatches=document.schedule.minibatches,
            spans=stage.written_keys(
                "schedule", keys=("max_lag", "partial_rollout", "when_stale", "takes", "minibatches")
            ),
        ),
    )


def _lower(stage: Stage, site: CallSite) -> Op | None:
    return lower_data(stage, site) if site.name.role == DATA else lower_op(stage, site)


def _check_roles(stage: Stage) -> None:
    for name, role in stage.document.roles.items():
        model = _model_of(role)
        if model is not None and model not in stage.document.models:
            stage.refuse_name("FR0203", stage.span("roles", name, "model"), model, stage.document.models)


def _check_labels(stage: Stage, sites: dict[str, CallSite]) -> None:
    """Parameters of `generate@LABEL` belong to a call that an edge makes."""
    for name, role in stage.document.roles.items():
        if not isinstance(role, GeneratorRole):
            continue
        for label in role.labelled:
            op = f"{name}.generate@{label}"
            if op not in sites:
                called = _misspelt_call(name, label, role.labelled, sites)
                also = [Label(called.span, f"`{called.name.text}` has a near name")] if called and called.span else []
                helps = [_relabelled(stage, called, label)] if called else []
                span = stage.key_span("roles", name, f"generate@{label}")
                stage.problems.append(diagnose("FR0221", span, also=also, helps=helps, op=op))


def _misspelt_call(role: str, label: str, labels: Iterable[str], sites: Mapping[str, CallSite]) -> CallSite | None:
    """The call of the role that has no parameters of its own and a label near the given one."""
    calls = {s.name.label: s for s in sites.values() if s.name.role == role and s.name.method == "generate"}
    near = near_names(label, [each for each in calls if each is not None and each not in labels])
    return calls[near[0]] if near else None


def _relabelled(stage: Stage, site: CallSite, label: str) -> Help:
    called = f"{site.name.role}.{site.name.method}@{site.name.label}"
    meant = f"{site.name.role}.{site.name.method}@{label}"
    return stage.edit(f"name the call as its parameters do: `{meant}`", site.span, called, meant)


def _refill(refill: RefillDocument | None) -> Refill | None:
    return None if refill is None else Refill(max_rounds=refill.max_rounds, oversample=float(refill.oversample))


def _model_of(role: RoleDocument) -> str | None:
    return getattr(role, "model", None)


def _models(stage: Stage) -> tuple[Model, ...]:
    """The models that a role of the stage uses."""
    used = {_model_of(role) for role in stage.document.roles.values()}
    return tuple(_model(stage, name) for name in stage.document.models if name in used)


def _model(stage: Stage, name: str) -> Model:
    model = stage.document.models[name]
    shape = model.source if isinstance(model.source, ShapeDocument) else None
    return Model(
        name=name,
        source="inline" if isinstance(model.source, ShapeDocument) else model.source,
        head=model.head,
        dtype=model.dtype,
        inline=None if shape is None else shape.model_dump(exclude_none=True),
        lora=None if model.lora is None else model.lora.model_dump(),
        span=stage.key_span("models", name) if shape is not None else _source_span(stage, name),
        spans=stage.written_keys("models", name, keys=("head", "dtype", "lora")),
    )


def _source_span(stage: Stage, name: str) -> Span | None:
    """Of the source, which is what a fault of a model is about; of the model where nobody wrote one."""
    return stage.written("models", name, "source") or stage.key_span("models", name)


def _data_roles(ops: Iterable[Op], stage: Stage) -> tuple[Role, ...]:
    sets = [op for op in ops if op.role == f"{DATA}.{op.method}"]
    return tuple(Role(name=op.role, kind=Kind.DATA, span=stage.key_span(DATA, op.method)) for op in sets)


def _roles(stage: Stage) -> tuple[Role, ...]:
    return tuple(_role(stage, name, role) for name, role in stage.document.roles.items())


def _role(stage: Stage, name: str, role: RoleDocument) -> Role:
    is_trainer = isinstance(role, TrainerRole)
    method = "values" if head_of(stage, role) == "scalar" else "log_probs"
    return Role(
        name=name,
        kind=Kind(role.kind),
        model=_model_of(role),
        backend=role.backend,
        trainable=False,
        optimizer=optimizer_params(role) if is_trainer else None,
        engine=engine_params(role),
        on_error=role.on_error,
        frozen=isinstance(role, GeneratorRole) and role.frozen,
        forward=forward_params(role, method) if is_trainer else None,
        span=stage.key_span("roles", name),
        spans=_role_spans(stage, name, role),
    )


def _role_spans(stage: Stage, name: str, role: RoleDocument) -> dict[str, Span]:
    """Of its backend, of limits of its engine and of each key that it passes on to it: `engine.KEY`."""
    passed = {key: stage.key_span("roles", name, "engine", "extra", key) for key in engine_params(role).extra}
    passed |= stage.written_keys(
        "roles", name, "engine", keys=("max_batch_tokens", "max_model_tokens", "shard_devices")
    )
    written = stage.written_keys("roles", name, keys=("backend",))
    return written | {f"engine.{key}": span for key, span in passed.items() if span is not None}
