"""The shape of every model of a graph, and what a stage hands on to the next. Checks roles against their backend."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec.structs import replace

from flowrl.diag.diagnostic import Diagnostic, FlowError, Help, Label, Respelt, diagnose
from flowrl.diag.near import near_names
from flowrl.graph.graph import Graph, Kind, Model, Role
from flowrl.machine.adapter import targets_of, widths
from flowrl.machine.models import shape_of
from flowrl.machine.shape import ModelShape
from flowrl.machine.traits import TRAITS

OF_SOURCES = ("FR0401", "FR0402", "FR0403")
"""What is at fault with the source of a model, whatever its head."""
_HEADS_OF_METHOD = {"generate": ("lm", "denoiser"), "log_probs": ("lm", "denoiser"), "values": ("scalar",)}


def shapes_of(graph: Graph, folder: str, earlier: Mapping[str, ModelShape] | None = None) -> dict[str, ModelShape]:
    """Shape by name of model. `earlier` holds `STAGE.ROLE` → shape of the stages before (see `handed_on`).

    Raises FlowError with every fault of models (FR0401 to FR0407, FR0417) and of backends (FR0412 to FR0416).
    """
    found: dict[str, ModelShape] = {}
    faults: list[Diagnostic] = []
    used = {role.model for role in graph.roles}
    for model in (each for each in graph.models if each.name in used):
        try:
            found[model.name] = shape_of(
                model.source,
                folder,
                inline=model.inline,
                head=model.head,
                stages=earlier,
                name=model.name,
                span=model.span,
            )
        except FlowError as error:
            faults.extend(error.diagnostics)
    models = {model.name: model for model in graph.models}
    for role in graph.roles:
        if role.model is not None:
            faults.extend(_backend_faults(role, models[role.model]))
            faults.extend(_head_faults(graph, role, models[role.model]))
    faults.extend(fault for name, shape in found.items() for fault in _target_faults(models[name], shape))
    if faults:
        raise FlowError(_by_cause(faults))
    return found


def _by_cause(faults: Iterable[Diagnostic]) -> list[Diagnostic]:
    """Models of one source share its fault: it is told at the first, with the places of the others."""
    kept: dict[tuple[str, str], Diagnostic] = {}
    for fault in faults:
        is_of_source = fault.code in OF_SOURCES and fault.labels
        key = (fault.code, fault.labels[0].text if is_of_source else str(fault))
        first = kept.setdefault(key, fault)
        spans = [label.span for label in first.labels]
        also = (Label(label.span, "and here") for label in fault.labels[:1] if label.span not in spans)
        kept[key] = replace(first, labels=(*first.labels, *also))
    return list(kept.values())


def _target_faults(model: Model, shape: ModelShape) -> list[Diagnostic]:
    """Matrices that an adapter is asked for and the model has not."""
    known = widths(shape)
    missing = [name for name in targets_of(shape, model.lora) if name not in known] if model.lora else []
    faults: list[Diagnostic] = []
    for name in missing:
        near = near_names(name, known)
        span = model.spans.get("lora") or model.span
        text = f"a target with a near name exists: `{near[0]}`" if near else ""
        helps = [Respelt(text=text, span=span, old=name, new=near[0])] if near else []
        facts: dict[str, Any] = {"name": name, "model": shape.name, "known": ", ".join(known)}
        faults.append(diagnose("FR0417", span, helps=helps, **facts))
    return faults


def handed_on(stage: str, graph: Graph, shapes: Mapping[str, ModelShape]) -> dict[str, ModelShape]:
    """`STAGE.ROLE` → shape of each role whose checkpoint a later stage may start from: the trained ones."""
    return {f"{stage}.{role.name}": shapes[role.model] for role in graph.roles if role.model and role.trainable}


def _backend_faults(role: Role, model: Model) -> list[Diagnostic]:
    if role.backend is None:
        able = ", ".join(name for name, traits in TRAITS.items() if role.kind in traits.kinds)
        return [diagnose("FR0415", role.span, role=role.name, model=model.name, kind=role.kind, able=able)]
    written = role.spans.get("backend") or role.span
    if role.backend not in TRAITS:
        near = near_names(role.backend, TRAITS)
        text = f"a backend with a near name exists: `{near[0]}`" if near else ""
        helps = [Respelt(text=text, span=written, old=role.backend, new=near[0])] if near else []
        known = ", ".join(TRAITS)
        return [diagnose("FR0412", written, backend=role.backend, role=role.name, known=known, helps=helps)]
    traits = TRAITS[role.backend]
    if role.kind not in traits.kinds:
        able = ", ".join(name for name, other in TRAITS.items() if role.kind in other.kinds)
        kinds = ", ".join(traits.kinds)
        facts: dict[str, Any] = {"role": role.name, "kind": role.kind, "backend": role.backend}
        return [diagnose("FR0413", written, kinds=kinds, able=able, **facts)]
    if model.head not in traits.heads:
        facts = {"role": role.name, "model": model.name, "head": model.head, "backend": role.backend}
        able = [name for name, other in TRAITS.items() if role.kind in other.kinds and model.head in other.heads]
        text = f"backends for a {role.kind} of head {model.head}: {', '.join(able) or 'none yet'}"
        return [diagnose("FR0416", written, helps=[Help(text=text)], heads=", ".join(traits.heads), **facts)]
    if model.dtype not in traits.dtypes:
        facts = {"role": role.name, "backend": role.backend, "model": model.name, "dtype": model.dtype}
        dtypes = ", ".join(traits.dtypes)
        span = model.spans.get("dtype") or model.span or role.span
        return [diagnose("FR0414", span, dtypes=dtypes, first=traits.dtypes[-1], **facts)]
    return []


def _head_faults(graph: Graph, role: Role, model: Model) -> list[Diagnostic]:
    for op in graph.ops:
        wanted = _HEADS_OF_METHOD.get(op.method)
        if op.role == role.name and wanted is not None and model.head not in wanted and role.kind is not Kind.REWARD:
            fault = f"`{op.id}` needs a head `{wanted[0]}`, and `{role.name}` has the model `{model.name}`"
            span = model.spans.get("head") or model.span or op.span
            return [diagnose("FR0405", span, model=model.name, head=model.head, fault=fault)]
    return []
