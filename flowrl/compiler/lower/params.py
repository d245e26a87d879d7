"""Documents of roles and data sets → typed parameters. Defaults that depend on a name (estimator, label) are settled
here; what depends on other ops (temperature, firings) is left to the passes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from flowrl.compiler.lower.mixes import longest_prompt
from flowrl.compiler.lower.stage import Stage
from flowrl.graph.params import (
    AskParams,
    CorrectionParams,
    DataParams,
    EngineParams,
    EnvParams,
    EstimateParams,
    FilterParams,
    ForwardParams,
    GenerateParams,
    KlParams,
    OptimizerParams,
    ScoreParams,
    UpdateParams,
)
from flowrl.graph.signatures import ESTIMATORS, LOSSES, LossSignature
from flowrl.spec.blocks import ClipDocument, CorrectionDocument, GenerateDocument, KlDocument, UpdateDocument
from flowrl.spec.package_keys import known_keys
from flowrl.spec.roles import (
    EnvRole,
    EstimatorRole,
    FilterRole,
    GeneratorRole,
    JudgeDocument,
    RewardRole,
    RoleDocument,
    TrainerRole,
)

OWN_KEYS = ("gamma", "lam", "coef", "step_weight", "turn_gamma")
"""Parameters that belong to some estimators only."""
OF_SOME_LOSSES = ("clip_ratio", "clip_dual", "clip_value", "beta")
OF_RATIOS = ("old_log_probs", "correction", "entropy_coef")
DENOISER_KEYS = ("denoise_steps", "eta", "height", "width", "noise_per")


def data_params(stage: Stage, name: str, also: tuple[str, ...] = ()) -> DataParams:
    """Of a data set, with those of its sources if it is a mix, which must end. `also` are columns that a mix keeps of
    each of its sources."""
    data = stage.document.data[name]
    own = DataParams(
        source=data.source or "",
        prompt=data.prompt,
        response=data.response,
        keep=tuple(dict.fromkeys((*data.keep, *also))),
        args=dict(data.args),
        max_prompt_tokens=data.max_prompt_tokens,
        on_long=data.on_long,
        order=data.order,
        seeds=data.seeds,
        tag=data.tag,
        chosen=data.chosen,
        rejected=data.rejected,
        images=data.images,
        template=data.template,
    )
    if not data.mix:
        return own
    shares = {other: float(share) for other, share in data.mix.items() if other in stage.document.data}
    sources = {other: data_params(stage, other, own.keep) for other in shares}
    whole = sum(shares.values())
    return replace(
        own,
        mix={other: share / whole for other, share in shares.items()},
        sources=sources,
        keep=tuple(dict.fromkeys(column for source in sources.values() for column in source.keep)),
        max_prompt_tokens=longest_prompt(own, sources.values()),
    )


def generate_params(stage: Stage, name: str, role: GeneratorRole, label: str | None, head: str) -> GenerateParams:
    """Of `generate`, or of `generate@label`: its own keys over those of `generate`, one sample a prompt unless said."""
    values: dict[str, Any] = role.generate.model_dump()
    samples = stage.document.step.samples_per_prompt
    if label is not None:
        over = role.labelled[label].model_dump(exclude_none=True) if label in role.labelled else {}
        samples = over.pop("samples_per_prompt", 1)
        values |= over
    if values["max_response_tokens"] is None and head != "denoiser":
        span = stage.span("roles", name, "generate")
        block = f"{name}.generate"
        why = "memory and batches are planned for the longest response"
        stage.refuse("FR0222", span, block=block, key="max_response_tokens", why=why, example="1024")
    return GenerateParams(
        max_response_tokens=values["max_response_tokens"] or 0,
        max_context_tokens=values["max_context_tokens"],
        max_turn_tokens=values["max_turn_tokens"],
        temperature=float(values["temperature"]),
        top_p=float(values["top_p"]),
        top_k=values["top_k"],
        stop=tuple(values["stop"]),
        samples_per_prompt=samples,
        extra=_denoiser(values) | _of_package(role, "generate", values),
    )


def update_params(stage: Stage, name: str, role: TrainerRole, head: str | None) -> UpdateParams | None:
    """Of a trainer's update; None where the loss is unknown."""
    update = role.update
    loss = LOSSES.get(update.loss)
    if loss is None:
        _refuse_loss(stage, name, update.loss)
        return None
    if head is not None and head != loss.head and not (loss.head == "lm" and head == "denoiser"):
        span = stage.span("roles", name, "update", "loss")
        reader = f"loss `{update.loss}` of `{name}`"
        stage.refuse("FR0218", span, reader=reader, want=loss.head, model=role.model, have=head)
    _check_corrections(stage, name, update.corrections)
    if update.loss == "dpo" and update.beta is None:
        span = stage.span("roles", name, "update", "loss")
        why = "it is how far the policy may go from the reference, and no value suits every job"
        stage.refuse("FR0222", span, block=f"{name}.update", key="beta", why=why, example="0.1")
    update = _read(update, loss)
    clip = update.clip_ratio
    low, high = (clip.low, clip.high) if isinstance(clip, ClipDocument) else (clip, clip)
    step = stage.document.step
    corrections = tuple(
        CorrectionParams(name=c.name, unit=c.unit, cap=c.cap, floor=c.floor) for c in update.corrections
    )
    return UpdateParams(
        loss=update.loss,
        clip_low=float(low),
        clip_high=float(high),
        clip_dual=update.clip_dual,
        clip_value=update.clip_value,
        aggregate=update.aggregate,
        entropy_coef=float(update.entropy_coef),
        beta=update.beta,
        kl=kl_params(update.kl),
        old_log_probs=update.old_log_probs,
        corrections=corrections,
        updates=step.updates if update.updates is None else update.updates,
        epochs=step.epochs if update.epochs is None else update.epochs,
        micro_batch_tokens=update.micro_batch_tokens,
        action_share=update.action_share,
        extra=_of_package(role, "update", update.declared),
    )


def _read(update: UpdateDocument, loss: LossSignature) -> UpdateDocument:
    """Without what this loss does not read. A user who wrote that is told (effects.py); a preset may have it for the
    loss that the user replaced."""
    unread = (
        *(key for key in OF_SOME_LOSSES if key not in loss.keys),
        *(OF_RATIOS if not loss.ratio else ()),
        *(("kl",) if not loss.kl else ()),
        *(("aggregate",) if not loss.aggregate else ()),
    )
    return update.model_copy(update={key: UpdateDocument.model_fields[key].default for key in unread})


def _check_corrections(stage: Stage, name: str, corrections: Sequence[CorrectionDocument]) -> None:
    """FR0266 for a correction that lets every ratio through, or none."""
    span = stage.span("roles", name, "update", "correction")
    for each in corrections:
        if each.cap is None and each.floor is None and each.name != "tis":
            problem = f"`{each.name}` of `{name}` leaves nothing out: it has neither `cap` nor `floor`"
            fix = f"write `correction: {{name: {each.name}, unit: {each.unit}, cap: 2.0}}`"
            stage.refuse("FR0266", span, problem=problem, fix=fix)
        if each.cap is not None and each.floor is not None and each.floor > each.cap:
            problem = f"no ratio is {each.floor:g} or more and {each.cap:g} or less"
            stage.refuse("FR0266", span, problem=problem, fix="exchange `floor` and `cap`")


def _refuse_loss(stage: Stage, name: str, loss: str) -> None:
    """Many name an algorithm by its estimator, so that gets a help of its own."""
    span = stage.span("roles", name, "update", "loss")
    if loss not in ESTIMATORS:
        stage.refuse_name("FR0215", span, loss, LOSSES)
        return
    text = f"`{loss}` is an estimator: write `estimator: {loss}` on the estimator role, and the loss here"
    stage.refuse("FR0215", span, [stage.edit(text, span, loss, "ppo")], name=loss, known=", ".join(LOSSES))


def estimate_params(stage: Stage, name: str, role: EstimatorRole) -> EstimateParams | None:
    """Of an estimator, with its own defaults; None where it is unknown."""
    estimator = ESTIMATORS.get(role.estimator)
    if estimator is None:
        stage.refuse_name("FR0216", stage.span("roles", name, "estimator"), role.estimator, ESTIMATORS)
        return None
    given = {key: getattr(role, key) for key in OWN_KEYS if getattr(role, key) is not None}
    for key in given:
        if key not in estimator.keys:
            known = ", ".join(estimator.keys) or "none"
            span = stage.key_span("roles", name, key)
            stage.refuse("FR0217", span, estimator=role.estimator, key=key, known=known)
    if role.kl is not None and not estimator.kl:
        known = ", ".join(estimator.keys) or "none"
        stage.refuse("FR0217", stage.key_span("roles", name, "kl"), estimator=role.estimator, key="kl", known=known)
    values = {key: float(value) for key, value in {**estimator.keys, **given}.items() if key in estimator.keys}
    return EstimateParams(
        estimator=role.estimator,
        normalize=role.normalize or estimator.normalize,
        kl=kl_params(role.kl),
        gamma=values.pop("gamma", 1.0),
        lam=values.pop("lam", 1.0),
        extra=values,
    )


def score_params(role: RewardRole) -> ScoreParams:
    """Of a judge only how its model's answers are read; `ask_params` has the rest."""
    return ScoreParams(
        flavour=role.flavour,
        function=role.function if role.judge is None else role.judge.parse,
        args=dict(role.args),
        timeout_seconds=role.timeout_seconds if role.judge is None else None,
        micro_batch_tokens=role.micro_batch_tokens,
        extra=_flavour(role),
    )


def ask_params(role: RewardRole, judge: JudgeDocument) -> AskParams:
    own = role.generate
    return AskParams(
        template=judge.template,
        endpoint=judge.endpoint,
        parallel=judge.parallel,
        timeout_seconds=role.timeout_seconds,
        sampling=own.model_dump(mode="json", exclude_none=True) if isinstance(own, GenerateDocument) else {},
    )


def filter_params(role: FilterRole) -> FilterParams:
    return FilterParams(
        rule=role.rule,
        unit=role.unit,
        keep_top=role.keep_top,
        within=role.within,
        min=role.min,
        max=role.max,
        action=role.action,
        function=role.function,
        args=dict(role.args),
    )


def env_params(role: EnvRole) -> EnvParams:
    return EnvParams(
        env=role.env,
        max_turns=role.max_turns,
        args=dict(role.args),
        parallel=role.parallel,
        timeout_seconds=role.timeout_seconds,
    )


def forward_params(role: TrainerRole, method: str) -> ForwardParams:
    block = role.values if method == "values" else role.log_probs
    return ForwardParams(micro_batch_tokens=block.micro_batch_tokens)


def optimizer_params(role: TrainerRole) -> OptimizerParams:
    return OptimizerParams(**role.optimizer.model_dump())


def engine_params(role: RoleDocument) -> EngineParams:
    """Keys that a package declares join `extra`, for that is what the backend is given as it stands. A role without a
    backward pass recomputes nothing, whatever it says (FR0241)."""
    values = {key: value for key, value in role.engine.model_dump().items() if key not in role.engine.declared}
    extra = values.pop("extra") | _of_package(role, "engine", role.engine.declared)
    if not isinstance(role, TrainerRole):
        values["recompute"] = None
    return EngineParams(**values, extra=extra)


def _of_package(role: RoleDocument, block: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Keys that a package declares for the role's backend, with its defaults; those without a value are left out."""
    keys = known_keys(role.kind, role.backend).get(block, {})
    values = {name: given.get(name, key.default) for name, key in keys.items()}
    return {name: value for name, value in values.items() if value is not None}


def kl_params(kl: KlDocument | None) -> KlParams | None:
    return None if kl is None else KlParams(coef=float(kl.coef), form=kl.form)


def _flavour(role: RewardRole) -> dict[str, Any]:
    """Keys of a sandbox, router or combine, as a plan file holds them."""
    blocks = {name: getattr(role, name) for name in ("sandbox", "router")}
    found: dict[str, Any] = {
        name: b.model_dump(mode="json", exclude_none=True) for name, b in blocks.items() if b is not None
    }
    if role.combine is not None:
        found["combine"] = dict(role.combine)
    return found


def _denoiser(values: dict[str, Any]) -> dict[str, Any]:
    return {key: values[key] for key in DENOISER_KEYS if values.get(key) is not None}
