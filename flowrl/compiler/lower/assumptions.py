"""What `assume:` says of an op that nothing reads, or that cannot be: quantities an op does not have, and means beyond
what the flow allows.

Takes a stage, whose names are right. What the planner does with an assumption is placement/cost/workload.py's.
"""

from __future__ import annotations

from collections.abc import Iterator

from flowrl.compiler.lower.edges import head_of, in_turns
from flowrl.compiler.lower.stage import Stage
from flowrl.diag.diagnostic import Diagnostic, diagnose
from flowrl.spec import schema
from flowrl.spec.sections import DistributionDocument, LengthDocument

Unread = tuple[tuple[str | int, ...], str]
"""Where a key stands that changes nothing, and why it does not."""

KEYS = ("response_tokens", "turns", "seconds", "keep", "share", "prompts")


def unread_assumptions(stage: Stage) -> Iterator[Unread]:
    """Quantities that the op does not have, by what placement reads of each kind of role."""
    for op in stage.document.assume:
        call, _, label = op.partition("@")
        name, _, method = call.rpartition(".")
        role = stage.document.roles.get(name)
        if role is None:
            continue
        read = {*_read(stage, name, method, role), *(["prompts"] if label else [])}
        for key in (key for key in KEYS if key not in read):
            yield ("assume", op, key), _why(key, name, op, role)


def _read(stage: Stage, name: str, method: str, role: schema.RoleDocument) -> Iterator[str]:
    if not _on_model(role):
        yield "seconds"
    if isinstance(role, schema.GeneratorRole):
        if head_of(stage, role) != "denoiser":
            yield "response_tokens"
        if in_turns(stage, name):
            yield "turns"
    elif method == "step":
        yield "turns"
    elif _is_supervised(stage, f"{name}.{method}"):
        yield "response_tokens"
    elif isinstance(role, schema.FilterRole) and role.keep_top is None:
        yield "keep"
    elif isinstance(role, schema.RewardRole):
        if role.judge is not None:
            yield "response_tokens"
        if method == "score" and _is_routed(stage, name):
            yield "share"


def _is_supervised(stage: Stage, op: str) -> bool:
    """Whether the op reads given responses, straight from a data set."""
    edges = (edge for edge in stage.document.edges if edge.arrow == "->" and op in edge.targets)
    return any(source.startswith("data.") for edge in edges for source in edge.sources)


def _on_model(role: schema.RoleDocument) -> bool:
    """Whether the time of its ops follows from a model, and not from a function's seconds."""
    served = isinstance(role, schema.RewardRole) and role.judge is not None and role.judge.endpoint is not None
    return getattr(role, "model", None) is not None and not served


def _is_routed(stage: Stage, name: str) -> bool:
    routers = (role.router for role in stage.document.roles.values() if isinstance(role, schema.RewardRole))
    return any(name in router.routes.values() for router in routers if router is not None)


def _why(key: str, name: str, op: str, role: schema.RoleDocument) -> str:
    if key == "seconds":
        return f"the time of `{op}` is worked out from the model of `{name}`"
    if key == "turns" and isinstance(role, schema.GeneratorRole):
        return f"no `<->` couples `{name}` with an environment, so it takes no turns"
    if key == "keep" and isinstance(role, schema.FilterRole):
        return f"`keep_top` of `{name}` says how many it keeps"
    if key == "prompts":
        return f"`{op}` works on the prompts of a step"
    if key == "share" and isinstance(role, schema.RewardRole):
        return f"no router sends samples to `{name}`"
    return f"`{op}` has none"


def warn_assumptions(stage: Stage) -> Iterator[Diagnostic]:
    """FR0245 for a mean above the most that the op can make, and for a 99th percentile below the mean."""
    for op, said in stage.document.assume.items():
        for key in ("response_tokens", "turns", "seconds"):
            value: object = getattr(said, key)
            mean = value.mean if isinstance(value, DistributionDocument | LengthDocument) else value
            p99 = value.p99 if isinstance(value, DistributionDocument | LengthDocument) else None
            if not isinstance(mean, int | float):
                continue
            span = stage.span("assume", op, key)
            if p99 is not None and p99 < mean:
                problem = f"99 % of `{key}` within {p99:,g}, and their mean is {mean:,g}"
                yield diagnose("FR0245", span, problem=problem, fix="exchange `mean` and `p99`, or leave `p99` out")
            most = _most(stage, op, key)
            if most is not None and mean > most[0]:
                problem = f"`{op}` makes at most {most[0]:,} {key.replace('_', ' ')}, and their mean is {mean:,g}"
                yield diagnose("FR0245", span, problem=problem, fix=f"write {most[0]} or less, or raise `{most[1]}`")


def _most(stage: Stage, op: str, key: str) -> tuple[int, str] | None:
    """What the flow allows at most, and the key that does."""
    call, _, label = op.partition("@")
    role = stage.document.roles.get(call.rpartition(".")[0])
    if key == "turns" and isinstance(role, schema.EnvRole):
        return role.max_turns, "max_turns"
    if key != "response_tokens" or not isinstance(role, schema.GeneratorRole):
        return None
    own = role.labelled.get(label)
    longest = own.max_response_tokens if own is not None else None
    longest = longest or role.generate.max_response_tokens
    return None if longest is None else (longest, "max_response_tokens")
