"""Faults of templates in plain words: none of Jinja2's or Python's own."""

from __future__ import annotations

import re

import pytest

from tests.spec.flows import GRPO, diagnostics_of

OTHERS = re.compile(r"statement|token|object|Error|operand|NoneType|\bstr\b|\bint\b|0x|callable|tag|print", re.ASCII)


def told(expression: str) -> str:
    """The label of the one fault of a flow whose `step.prompts` is the template."""
    quoted = expression.replace("'", "''")
    flow = GRPO.replace("prompts: 8,", f"prompts: '{quoted}',", 1)
    assert flow != GRPO
    (found,) = diagnostics_of(f"{flow}\nvars: {{n: 3, names: [a, b], text: abc}}\n")
    return f"{found.code} {found.labels[0].text}"


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("{{ n + }}", "FR0116 a value is missing before `}}`"),
        ("{{ n", "FR0116 `}}` is missing at the end"),
        ("{{ }}", "FR0116 a value is missing before `}}`"),
        ("{{ n n }}", "FR0116 `n` stands where `}}` is expected"),
        ("{{ (n }}", "FR0116 `}` stands where `)` is expected"),
        ("{{ 'n }}", "FR0116 `'` has no meaning here, or a quote is not closed"),
        ("{{ n ? 1 }}", "FR0116 `?` has no meaning here, or a quote is not closed"),
        ("{% if n %}1", "FR0116 `{% if %}` is not closed: `{% endif %}` is missing"),
        ("{% endif %}", "FR0116 `{% endif %}` closes nothing"),
        ("{% set n = 1 %}2", "FR0116 `{% set %}` is not part of the language"),
        ("{{ n }} {# x", "FR0116 `{#` begins a remark that `#}` does not end"),
        ("{{ " + "9" * 5000 + " }}", "FR0116 the number is too long"),
        ("{{ 1 / 0 }}", "FR0117 it divides by 0"),
        ("{{ n % 0 }}", "FR0117 it divides by 0"),
        ("{{ n + 'a' }}", "FR0117 `+` does not take a number and text"),
        ("{{ n < 'a' }}", "FR0117 `<` does not compare a number with text"),
        ("{{ -text }}", "FR0117 `-` does not take text"),
        ("{{ text|abs }}", "FR0117 `abs` does not take text"),
        ("{{ text|round }}", "FR0117 `round` does not take text"),
        ("{{ n|length }}", "FR0117 a number has no length"),
        ("{{ n.name }}", "FR0117 a number has no `name`"),
        ("{{ names[9] }}", "FR0117 a list has no element 9"),
        ("{{ n|foo }}", "FR0116 there is no filter `foo`"),
        ("{{ n is foo }}", "FR0116 there is no test `foo`"),
        ("{{ text.format() }}", "FR0117 `format` may not be called here"),
        ("{{ names.append(3) }}", "FR0117 `append` may not be called here"),
        ("{{ n() }}", "FR0117 3 is no method that can be called"),
        ("{{ names.__class__ + 1 }}", "FR0117 `__class__` may not be read here"),
        ("{{ text * 9 }}", "FR0117 `*` takes two numbers"),
        ("{{ 2 ** 99 }}", "FR0117 the power is too large"),
        ("{{ text.split('') }}", "FR0117 a filter or method refuses its value (empty separator)"),
    ],
)
def test_fault_of_a_template_is_told_in_plain_words(expression: str, words: str) -> None:
    assert told(expression) == words
    assert not OTHERS.search(words)
