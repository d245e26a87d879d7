"""The request of a judge: a Jinja2 template of the flow, filled with what the judge is fed. Knows no model.

`prompt` is text: of messages each with its role, or the content alone where there is one; `messages` are these. For one
answer the template has `response`, for a pair `first` and `second`. What fills it is never read as a template, and the
template runs in Jinja2's sandbox, without files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from jinja2 import StrictUndefined, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from flowrl.diag.diagnostic import FlowError, diagnose
from flowrl.diag.span import Span


class JudgeTemplate:
    """Raises FlowError FR0874 where it cannot be read or filled."""

    def __init__(self, file: str, folder: Path, role: str, span: Span | None) -> None:
        self._file, self._role, self._span = file, role, span
        try:
            text = (folder / file).read_text(encoding="utf-8")
            self._template = ImmutableSandboxedEnvironment(undefined=StrictUndefined).from_string(text)
        except (OSError, ValueError, TemplateError) as error:
            raise self._fault("read", error) from error

    def filled(self, prompt: object, **texts: object) -> str:
        messages = _messages(prompt)
        try:
            return self._template.render(prompt=_text(messages), messages=messages, **texts)
        except Exception as error:  # whatever an expression of the user's may raise
            raise self._fault("filled", error) from error

    def _fault(self, verb: str, error: Exception) -> FlowError:
        said = f"{error}".strip().splitlines()
        problem = f"its template `{self._file}` cannot be {verb}: {said[0] if said else type(error).__name__}"
        fix = "it knows `prompt`, `messages` and `response`; for a pair `first` and `second` in place of `response`"
        return FlowError(diagnose("FR0874", self._span, role=self._role, problem=problem, fix=fix))


def _messages(prompt: object) -> Sequence[Mapping[str, Any]]:
    if isinstance(prompt, str):
        return [{"role": "user", "content": prompt}]
    return cast("Sequence[Mapping[str, Any]]", prompt)


def _text(messages: Sequence[Mapping[str, Any]]) -> str:
    if len(messages) == 1:
        return f"{messages[0]['content']}"
    return "\n\n".join(f"{each['role']}: {each['content']}" for each in messages)
