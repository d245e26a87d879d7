"""plan.json: canonical bytes out, strict reading in. No pickles; reading a plan executes nothing.

Canonical: keys sorted, two spaces of indent, one newline at the end, nothing from a clock, so that the same plan is the
same bytes. Strict: another version, another shape or a key that this version does not have is told, never guessed.
"""

from __future__ import annotations

import hashlib
import math
import os
from pathlib import Path
from typing import cast

import msgspec
from msgspec.structs import replace

from flowrl.diag.diagnostic import Diagnostic, FlowError, Help, InternalError, diagnose
from flowrl.diag.near import near_names
from flowrl.diag.span import Span
from flowrl.plan.plan import PLAN_VERSION, Plan

LARGEST_BYTES = 10 * 2**20
"""A longer file is not read: a plan of a thousand devices has less than one MiB."""


def dumps(plan: Plan) -> bytes:
    """The canonical bytes of a plan, with the digest of its content. InternalError if it holds a number that JSON has
    not (nan, inf)."""
    return canonical(replace(plan, digests=replace(plan.digests, plan=content_digest(plan))))


def content_digest(plan: Plan) -> str:
    """sha256 hex of all that a plan holds, but this."""
    return hashlib.sha256(canonical(_without_digest(plan))).hexdigest()


def _without_digest(plan: Plan) -> Plan:
    return plan if not plan.digests.plan else replace(plan, digests=replace(plan.digests, plan=""))


def canonical(value: object) -> bytes:
    """Canonical JSON of any frozen value."""
    plain = msgspec.to_builtins(value, order="sorted")
    _refuse_not_finite(plain, "")
    return msgspec.json.format(msgspec.json.encode(plain, order="sorted"), indent=2) + b"\n"


def loads(data: bytes, file: str = "plan.json") -> Plan:
    """The plan in `data`, edited or not. `file` is its name for diagnostics.

    Raises FlowError FR0701 (not JSON), FR0702 (no plan), FR0703 (another version), FR0704 (wrong shape or an unknown
    key), FR0705 (too large).
    """
    if len(data) > LARGEST_BYTES:
        raise FlowError(diagnose("FR0705", _top(file), size=len(data), limit=LARGEST_BYTES))
    plain = _json(data, file)
    version = cast("dict[str, object]", plain).get("flowrl_plan") if isinstance(plain, dict) else None
    if not isinstance(version, int) or isinstance(version, bool):
        raise FlowError(diagnose("FR0702", _top(file)))
    if version != PLAN_VERSION:
        raise FlowError(diagnose("FR0703", _place_of(data, file, '"flowrl_plan"'), found=version, known=PLAN_VERSION))
    try:
        plan = msgspec.json.decode(data, type=Plan)
    except (msgspec.ValidationError, RecursionError) as failure:
        raise FlowError(_wrong_shape(file, str(failure))) from None
    unknown = _lost(cast("object", plain), msgspec.to_builtins(plan), "$")
    if unknown is not None:
        raise FlowError(_wrong_shape(file, f"`{unknown}` is not part of version {PLAN_VERSION}"))
    return _without_digest(plan)


def read(path: Path) -> Plan:
    """The plan in a file. Raises FlowError as `loads` does, FR0706 if there is no such file, FR0734 for one that was
    edited; a file that does not have the digest of its content is taken as it is."""
    try:
        data = bounded_bytes(path)
    except OSError as failure:
        reason = (failure.strerror or str(failure)).lower()
        raise FlowError(diagnose("FR0706", helps=_near_files(path), file=path, reason=reason)) from None
    plan = loads(data, str(path))
    written = _Written.of(data)
    if written and written != content_digest(plan):
        raise FlowError(diagnose("FR0734", _top(str(path))))
    return plan


class _WrittenDigests(msgspec.Struct, frozen=True):
    plan: str = ""


class _Written(msgspec.Struct, frozen=True):
    """The one digest that `loads` leaves out."""

    digests: _WrittenDigests

    @staticmethod
    def of(data: bytes) -> str:
        return msgspec.json.decode(data, type=_Written).digests.plan


def bounded_bytes(path: Path) -> bytes:
    """The bytes of a plan's file, its size looked at first. Raises OSError, and FlowError FR0705 for one too large."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > LARGEST_BYTES:
            raise FlowError(diagnose("FR0705", _top(str(path)), size=size, limit=LARGEST_BYTES))
        return file.read(LARGEST_BYTES + 1)  # a pipe or a device has no size


def _near_files(path: Path) -> list[Help]:
    try:
        beside = [entry.name for entry in path.parent.iterdir() if entry.suffix in (".json", ".yaml", ".yml")]
    except OSError:
        return []
    near = near_names(path.name, beside)
    return [Help(text=f"a file with a near name exists: `{path.parent / near[0]}`")] if near else []


def _json(data: bytes, file: str) -> object:
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as failure:
        raise FlowError(diagnose("FR0701", _top(file), reason=str(failure))) from None


def _top(file: str) -> Span:
    return Span(file, 1, 1, 1, 1)


def _place_of(data: bytes, file: str, text: str) -> Span:
    """Where `text` first stands; the top of the file if it does not."""
    for number, row in enumerate(data.decode("utf-8", "replace").splitlines(), start=1):
        if text in row:
            column = row.index(text) + 1
            return Span(file, number, column, number, column + len(text))
    return _top(file)


def _wrong_shape(file: str, fault: str) -> Diagnostic:
    return diagnose("FR0704", _top(file), fault=fault)


def _lost(given: object, kept: object, path: str) -> str | None:
    """The first key of the file that reading has dropped."""
    if isinstance(given, dict) and isinstance(kept, dict):
        mine, theirs = cast("dict[str, object]", given), cast("dict[str, object]", kept)
        for key, value in mine.items():
            if key not in theirs:
                return f"{path}.{key}"
            found = _lost(value, theirs[key], f"{path}.{key}")
            if found is not None:
                return found
    if isinstance(given, list) and isinstance(kept, list | tuple):
        pairs = zip(cast("list[object]", given), cast("list[object]", kept), strict=True)
        found = (_lost(one, other, f"{path}[{place}]") for place, (one, other) in enumerate(pairs))
        return next((each for each in found if each is not None), None)
    return None


def _refuse_not_finite(value: object, path: str) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise InternalError(f"a plan holds {value} at {path}")
    if isinstance(value, dict):
        for key, item in cast("dict[str, object]", value).items():
            _refuse_not_finite(item, f"{path}.{key}")
    if isinstance(value, list | tuple):
        for place, item in enumerate(cast("list[object]", value)):
            _refuse_not_finite(item, f"{path}[{place}]")
