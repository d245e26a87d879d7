"""Prompts from a template of the flow's own, which takes the place of the tokenizer's chat template. Knows no data set.

A template is a Jinja2 file. It is filled with the columns of a row by their names, and `prompt`, the row's prompt.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from jinja2 import Environment, StrictUndefined, Template, TemplateError

from flowrl.backends.text import Written
from flowrl.diag.diagnostic import FlowError, diagnose
from flowrl.diag.span import Span


class PromptTemplate:
    """One template. Raises FlowError FR0879 where it cannot be read or filled."""

    def __init__(self, file: str, folder: Path, span: Span | None) -> None:
        self._file, self._span = file, span
        try:
            text = (folder / file).read_text(encoding="utf-8")
            environment = Environment(undefined=StrictUndefined, keep_trailing_newline=True)
            self._template: Template = environment.from_string(text)
        except (OSError, TemplateError) as error:
            raise FlowError(diagnose("FR0879", span, template=file, reason=_said(error))) from error

    def filled(self, prompt: object, row: Mapping[str, object]) -> Written:
        try:
            return Written(self._template.render({**row, "prompt": prompt}))
        except (TemplateError, TypeError, ValueError) as error:
            raise FlowError(diagnose("FR0879", self._span, template=self._file, reason=_said(error))) from error


def _said(error: BaseException) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
