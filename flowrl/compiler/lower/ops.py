"""Calls that edges name → ops with inputs, outputs and parameters, by the kind of their role."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from flowrl.compiler.lower import params
from flowrl.compiler.lower.edges import CallSite, head_of
from flowrl.compiler.lower.filters import check_filter
from flowrl.compiler.lower.mixes import kept
from flowrl.compiler.lower.stage import Stage
from flowrl.compiler.lower.user_files import check_env, check_template
from flowrl.compiler.lower.user_functions import inputs_of, signature_of
from flowrl.diag.diagnostic import Diagnostic
from flowrl.diag.span import Span
from flowrl.graph import denoised, signatures
from flowrl.graph.algorithms import backward, reachable
from flowrl.graph.graph import Edge, EdgeKind, Input, Kind, Op
from flowrl.graph.judges import ANSWERS, is_inner, reads_answers
from flowrl.graph.params import CallParams, DataParams, EnvParams, ForwardParams
from flowrl.graph.signatures import FIELDS, slot
from flowrl.graph.types import DTYPES, NUMBER, Field, Granularity, Unit, element
from flowrl.spec import schema
from flowrl.spec.schema import RoleDocument

COMPARING = ("function", "judge")
"""Flavours of a reward that can compare the samples of a group."""
_IMAGES = slot("images", optional=True)


def lower_op(stage: Stage, site: CallSite) -> Op | None:
    """The op that a call stands for; None where its parameters are at fault (the stage then has the problem)."""
    name = site.name
    role = stage.document.roles[name.role]
    signature = signatures.op_signature(Kind(role.kind), name.method, head_of(stage, role))
    assert signature is not None, name.text
    plain = Op(
        id=name.text,
        role=name.role,
        method=name.method,
        label=name.label,
        granularity=signature.granularity,
        inputs=signature.reads,
        outputs=signature.writes,
        derived=site.derived,
        span=site.span,
    )
    op = _LOWER[role.kind](stage, role, plain)
    if op is None:
        return None
    if head_of(stage, role) == "denoiser":
        inputs, outputs = denoised.denoiser_reads(op.inputs), denoised.denoiser_writes(op.outputs)
        op = replace(op, inputs=inputs, outputs=outputs)
    if _looks(role, op):
        op = replace(op, inputs=(*op.inputs, _IMAGES))
    return replace(op, inputs=tuple(_chosen(stage, role, name.role, input) for input in op.inputs))


def _looks(role: RoleDocument, op: Op) -> bool:
    """Whether a model reads the prompt, so that it also sees the prompt's images."""
    if all(input.slot not in ("tokens", "prompt") for input in op.inputs):
        return False
    kind = Kind(role.kind)
    return kind in (Kind.TRAINER, Kind.SCORER) or (kind is Kind.REWARD and getattr(role, "function", None) is None)


def check_inputs(stage: Stage, ops: Iterable[Op]) -> None:
    """Every slot that a role's `inputs:` names is read by an op of the role, and names a column as `role.field`."""
    slots: dict[str, set[str]] = {}
    for op in ops:
        own = () if reads_answers(op) else op.inputs  # a judge reads its own inner call, whatever is said
        slots.setdefault(op.role, set()).update(input.slot for input in own)
    for name, role in stage.document.roles.items():
        for slot_name, column in role.inputs.items():
            if name in slots and slot_name not in slots[name]:
                span = stage.key_span("roles", name, "inputs", slot_name)
                stage.refuse_name("FR0220", span, slot_name, slots[name], role=name)
            owner, dot, field = column.rpartition(".")
            if not (owner and dot and field) or not _owner_known(stage, owner):
                span = stage.span("roles", name, "inputs", slot_name)
                problem = f"`{column}` names no role and field"
                stage.refuse("FR0219", span, problem=problem, fix="write `role.field`")


def _owner_known(stage: Stage, owner: str) -> bool:
    role, _, rest = owner.partition(".")
    if role == "data":
        return rest in stage.document.data
    return owner.partition("@")[0] in stage.document.roles


def _chosen(stage: Stage, role: RoleDocument, name: str, input: Input) -> Input:
    column = role.inputs.get(input.slot)
    if column is None:
        return input
    owner, _, field = column.rpartition(".")
    return replace(input, field=field, chosen=owner, span=stage.span("roles", name, "inputs", input.slot))


def _generator(stage: Stage, role: schema.GeneratorRole, op: Op) -> Op:
    head = head_of(stage, role) or "lm"
    block = "generate" if op.label is None else f"generate@{op.label}"
    keys = ("max_response_tokens", "max_turn_tokens", "max_context_tokens", "samples_per_prompt", "temperature")
    keys += ("top_p", "top_k")
    return replace(
        op,
        params=params.generate_params(stage, op.role, role, op.label, head),
        spans=stage.written_keys("roles", op.role, block, keys=keys),
    )


def _trainer(stage: Stage, role: schema.TrainerRole, op: Op) -> Op | None:
    if op.method != "update":
        return replace(op, params=params.forward_params(role, op.method))
    update = params.update_params(stage, op.role, role, head_of(stage, role))
    if update is None:
        return None
    keys = ("loss", "updates", "epochs", "old_log_probs", "correction", "kl")
    return replace(
        op,
        inputs=signatures.update_reads(update),
        params=update,
        spans=stage.written_keys("roles", op.role, "update", keys=keys),
    )


def _scorer(stage: Stage, role: schema.ScorerRole, op: Op) -> Op:
    writes = signatures.scorer_writes(op.method, role.top_k)
    return replace(op, outputs=writes, params=ForwardParams(micro_batch_tokens=role.micro_batch_tokens))


def _estimator(stage: Stage, role: schema.EstimatorRole, op: Op) -> Op | None:
    estimate = params.estimate_params(stage, op.role, role)
    if estimate is None:
        return None
    return replace(
        op,
        granularity=signatures.estimate_granularity(estimate),
        inputs=signatures.estimate_reads(estimate),
        outputs=signatures.estimate_writes(estimate),
        params=estimate,
        spans=stage.written_keys("roles", op.role, keys=("estimator", "normalize", "kl")),
    )


def _reward(stage: Stage, role: schema.RewardRole, op: Op) -> Op | None:
    if role.judge is not None and is_inner(op.method):
        return replace(op, params=params.ask_params(role, role.judge))
    rewards = replace(FIELDS["rewards"], unit=Unit(role.unit))
    if op.method == "compare" and role.flavour not in COMPARING:
        stage.refuse("FR0227", op.span, role=op.role, flavour=f"`{role.flavour}`")
        return None
    inputs = _score_inputs(stage, role, op)
    if inputs is None:
        return None
    spans = stage.written_keys("roles", op.role, keys=("function",)) | _route_spans(stage, role, op)
    return replace(op, inputs=inputs, outputs=(rewards,), params=params.score_params(role), spans=spans)


def _route_spans(stage: Stage, role: schema.RewardRole, op: Op) -> dict[str, Span]:
    if role.router is None:
        return {}
    path = ("roles", op.role, "router", "routes")
    found = {f"routes.{key}": stage.key_span(*path, key) for key in role.router.routes}
    return {key: span for key, span in (found | {"routes": stage.span(*path)}).items() if span is not None}


def _score_inputs(stage: Stage, role: schema.RewardRole, op: Op) -> tuple[Input, ...] | None:
    if role.flavour == "function":
        inputs = _function_inputs(stage, op, role.function or "", role.args)
        if inputs is None or role.unit == "sample" or any(i.slot == "loss_mask" for i in inputs):
            return inputs
        return (*inputs, slot("loss_mask"))  # where a row's tokens and turns are
    if role.sandbox is not None:
        return (slot("response"), _column(role.sandbox.tests))
    if role.combine is not None:
        return tuple(_of_role(other, role.unit) for other in role.combine)
    if role.router is not None:
        owner, _, by = role.router.by.rpartition(".")
        chooser = _column(by, owner or None, stage.span("roles", op.role, "router", "by"))
        return (chooser, *(_of_role(r, role.unit) for r in dict.fromkeys(role.router.routes.values())))
    if role.flavour == "model" and head_of(stage, role) not in (None, "scalar"):
        span = stage.span("roles", op.role, "model")
        facts = {"reader": f"reward `{op.role}`", "want": "scalar", "model": role.model, "have": head_of(stage, role)}
        stage.refuse("FR0218", span, (), **facts)
    if role.judge is not None:
        check_template(stage, role.judge.template, "roles", op.role, "judge", "template")
        parse = signature_of(role.judge.parse, stage.folder, stage.span("roles", op.role, "judge", "parse"))
        if isinstance(parse, Diagnostic):
            stage.problems.append(parse)
        return (slot(ANSWERS[op.method]),)
    # A reward model has a tokenizer of its own, so it reads text (LANGUAGE.md, "Binding" 6).
    return (slot("prompt"), slot("response"))


def _filter(stage: Stage, role: schema.FilterRole, op: Op) -> Op | None:
    if not check_filter(stage, op.role, role):
        return None
    granularity = Granularity.GROUP if "group" in (role.unit, role.within) else Granularity.SAMPLE
    by = role.by or "rewards"
    owner, _, field = by.rpartition(".")
    by_column = _column(field, owner or None, stage.span("roles", op.role, "by"))
    inputs: tuple[Input, ...] | None = (replace(by_column, unit=Unit.SAMPLE, dtype=NUMBER),)
    if role.rule == "truncated":
        inputs = (slot("finish_reason"),)
    if role.rule == "function" and role.function is not None:
        inputs = _function_inputs(stage, op, role.function, role.args)
    if inputs is None:
        return None
    return replace(
        op,
        granularity=granularity,
        inputs=inputs,
        params=params.filter_params(role),
        spans=stage.written_keys("roles", op.role, keys=("keep_top", "unit", "action", "function")),
    )


def _env(stage: Stage, role: schema.EnvRole, op: Op) -> Op:
    check_env(stage, op.role, role)
    return replace(op, params=params.env_params(role), spans=stage.written_keys("roles", op.role, keys=("env",)))


def _function(stage: Stage, role: schema.FunctionRole, op: Op) -> Op | None:
    inputs = _function_inputs(stage, op, role.function, role.args)
    outputs = tuple(Field(name=name, unit=Unit(o.unit), dtype=o.dtype) for name, o in role.outputs.items())
    if inputs is None or not _outputs_fit(stage, op, role, outputs):
        return None
    if role.unit == "prompt":
        inputs = tuple(replace(input, unit=Unit.PROMPT) for input in inputs)
    written = stage.written_keys("roles", op.role, keys=("function",))
    spans = ((f"outputs.{name}", stage.key_span("roles", op.role, "outputs", name)) for name in role.outputs)
    return replace(
        op,
        granularity=Granularity(role.unit),
        inputs=inputs,
        outputs=outputs,
        params=CallParams(function=role.function, args=dict(role.args)),
        spans=written | {key: span for key, span in spans if span is not None},
    )


def _outputs_fit(stage: Stage, op: Op, role: schema.FunctionRole, outputs: Iterable[Field]) -> bool:
    """FR0224 for an unknown type, FR0223 for what one value for each prompt cannot be."""
    before = len(stage.problems)
    for field in outputs:
        span = stage.key_span("roles", op.role, "outputs", field.name)
        if element(field.dtype) not in DTYPES:
            span = stage.span("roles", op.role, "outputs", field.name, "dtype")
            stage.refuse_name("FR0224", span, field.dtype, DTYPES)
        elif role.unit == "prompt" and field.unit is not Unit.PROMPT:
            why = "a finer reader repeats the value of a prompt for each of its rows"
            fix = f"write `{field.name}: {{unit: prompt, dtype: {field.dtype}}}`, or another `unit:` for `{op.role}`"
            stage.refuse(
                "FR0223", span, op=op.id, rows="whole prompts", name=field.name, unit=field.unit, why=why, fix=fix
            )
    return len(stage.problems) == before


_LOWER: Mapping[str, Callable[[Stage, Any, Op], Op | None]] = {
    "generator": _generator,
    "trainer": _trainer,
    "scorer": _scorer,
    "estimator": _estimator,
    "reward": _reward,
    "filter": _filter,
    "env": _env,
    "function": _function,
}


def _function_inputs(stage: Stage, op: Op, function: str, args: Mapping[str, Any]) -> tuple[Input, ...] | None:
    """Inputs by parameter names; those with a default are optional. None, with the problem kept, if unreadable."""
    span = stage.span("roles", op.role, "function")
    signature = signature_of(function, stage.folder, span, stage.read)
    if isinstance(signature, Diagnostic):
        stage.problems.append(signature)
        return None
    name = function.rpartition(":")[2]
    args_span = stage.written("roles", op.role, "args") or span
    inputs = inputs_of(signature, args, name, args_span)
    if isinstance(inputs, Diagnostic):
        stage.problems.append(inputs)
        return None
    required, optional = inputs
    return (*(_column(p) for p in required), *(replace(_column(p), optional=True) for p in optional))


def _column(field: str, chosen: str | None = None, span: Any = None) -> Input:
    """An input of any unit and type."""
    return Input(slot=field, field=field, chosen=chosen, span=span)


def _of_role(role: str, unit: str) -> Input:
    """The rewards of one of several reward roles, no finer than those made of them."""
    return Input(slot=role, field="rewards", unit=Unit(unit), dtype="f32", chosen=role)


def with_starts(stage: Stage, ops: Sequence[Op], declared: Iterable[Edge]) -> list[Op]:
    """An environment starts from the prompt's id (its seed), the prompt, if the data sets above it have text, and the
    columns that they keep."""
    known = {op.id: op for op in ops}
    pairs = [(edge.source, edge.target) for edge in declared if edge.kind is EdgeKind.DATA]
    resets = [op.id for op in ops if op.method == "reset" and isinstance(op.params, EnvParams)]
    for id in resets:
        upstream = reachable([id], backward(pairs))
        above = [op for op in known.values() if op.id in upstream]
        columns = dict.fromkeys(name for op in above if isinstance(op.params, DataParams) for name in kept(op.params))
        role = stage.document.roles[known[id].role]
        written = any(isinstance(op.params, DataParams) and op.params.seeds is None for op in above)
        texts = (slot("prompt"),) if written else ()
        inputs = (slot("prompt_id"), *texts, *(_column(column) for column in columns))
        known[id] = replace(known[id], inputs=tuple(_chosen(stage, role, known[id].role, input) for input in inputs))
    return list(known.values())
