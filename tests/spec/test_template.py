"""Variables: types that templates give, their order, and what the sandbox refuses."""

from __future__ import annotations

import subprocess
import sys

import pytest

from flowrl.spec import loads
from flowrl.spec.limits import LONGEST_TEMPLATE
from tests.spec.flows import GRPO, changed, codes, diagnostics_of


def rendered(template: str, variables: str = "{}") -> object:
    """What `template` gives as an argument of the reward."""
    text = changed(
        GRPO, ("models:\n", f"vars: {variables}\nmodels:\n"), ('score"}', f'score", args: {{x: {template}}}}}')
    )
    return loads(text).document.roles["reward"].args["x"]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("template", "variables", "wanted"),
    [
        ('"{{ a }}"', "{a: 3}", 3),
        ('"{{ a }}"', "{a: 1e-6}", 1e-6),
        ('"{{ a }}"', '{a: "3"}', "3"),
        ('"{{ a }}"', "{a: null}", None),
        ('"{{ a }}"', "{a: [1, {b: c}]}", [1, {"b": "c"}]),
        ('"{{ a.b[1] }}"', "{a: {b: [1, true]}}", True),
        ('"{{ 2 * a + 1 }}"', "{a: 3}", 7),
        ('"{{ a / 2 }}"', "{a: 3}", 1.5),
        ('"{{ a ** 2 }}"', "{a: 3}", 9),
        ('"{{ a > 2 and not b }}"', "{a: 3, b: false}", True),
        ('"{{ 8 if big else 4 }}"', "{big: true}", 8),
        ('"{{- a -}}"', "{a: 3}", 3),
        ('"{{ -a }}"', "{a: 3}", -3),
        ('"{{- -a -}}"', "{a: 3}", -3),
        # Text around an expression: quoted stays text, unquoted is typed by what it gives.
        ('"{{ a }}0"', "{a: 3}", "30"),
        ('"{{ org }}/{{ model }}"', "{org: Qwen, model: Qwen2.5}", "Qwen/Qwen2.5"),
        ("\"{{ base.split('/')[-1].lower() }}\"", "{base: Qwen/Qwen2.5-7B}", "qwen2.5-7b"),
        ('"{% if big %}large{% else %}small{% endif %}"', "{big: false}", "small"),
        ('"{{ a | default(3) }} {{ b | int }}"', "{a: 1, b: '2'}", "1 2"),
        ("\"{{ '{{' }} a }}\"", "{}", "{{ a }}"),
        ('"{# a remark #}x"', "{}", "x"),
    ],
)  # fmt: skip
def test_types(template: str, variables: str, wanted: object) -> None:
    found = rendered(template, variables)
    assert found == wanted
    assert type(found) is type(wanted)


@pytest.mark.parametrize(("template", "wanted"), [("1{{ a }}", 13), ("{{ a }}0", None), ("0x{{ a }}", 3)])
def test_unquoted_text_is_typed_by_what_it_gives(template: str, wanted: int | None) -> None:
    text = changed(
        GRPO, ("models:\n", "vars: {a: 3}\nmodels:\n"), ("step: {prompts: 8", f"step:\n  prompts: {template}")
    )
    text = changed(text, (", samples_per_prompt: 4}", "\n  samples_per_prompt: 4"))
    if wanted is None:
        assert codes(text) == ["FR0018"]
    else:
        assert loads(text).stages[0].step.prompts == wanted


def test_variables_may_refer_to_each_other_in_any_order() -> None:
    assert rendered('"{{ c }}"', '{c: "{{ b }}c", b: "{{ a }}b", a: a}') == "abc"


def test_a_rendered_text_is_not_rendered_again() -> None:
    assert rendered('"{{ a }}"', "{a: \"{{ '{{ b }}' }}\"}") == "{{ b }}"


def test_keys_are_not_rendered() -> None:
    text = changed(GRPO, ("models:\n", 'vars: {"{{ a }}": 1}\nmodels:\n'))
    assert loads(text).document.vars == {"{{ a }}": 1}


@pytest.mark.parametrize(
    ("template", "code"),
    [
        ('"{{ missing }}"', "FR0115"),
        ('"{{ a.missing }}"', "FR0117"),
        ('"{{ a }"', "FR0116"),
        ('"{{ a + }}"', "FR0116"),
        ('"{% for i in a %}{% endfor %}"', "FR0116"),
        ('"{% set b = 1 %}"', "FR0116"),
        ("\"{% include '/etc/passwd' %}\"", "FR0116"),
        ('"{% macro m() %}{% endmacro %}"', "FR0116"),
        ('"{{ a.__class__ }}"', "FR0117"),
        ('"{{ \'\'.__class__.__mro__ }}"', "FR0117"),
        ("\"{{ a | attr('real') }}\"", "FR0116"),
        ('"{{ range(10) }}"', "FR0115"),
        ('"{{ lipsum() }}"', "FR0115"),
        ('"{{ 10 ** 10 ** 10 }}"', "FR0117"),
        ("\"{{ 'a' * 1000000000 }}\"", "FR0117"),
        ("\"{{ '%999999999d' % 1 }}\"", "FR0117"),
        ("\"{{ '{:>999999999}'.format(1) }}\"", "FR0117"),
        ("\"{{ 'a'.center(999999999) }}\"", "FR0117"),
        ('"{{ a // 0 }}"', "FR0117"),
        ("\"{{ a + 'x' }}\"", "FR0117"),
        ('"{{ a.real }}"', None),
        ('"{{ ' + "(" * 3000 + "1" + ")" * 3000 + ' }}"', "FR0116"),
        ('"{{ ' + "not " * 5000 + 'a }}"', "FR0116"),
        ('"{{ 1' + "0" * 5000 + ' }}"', "FR0116"),
        ('"{{ 1e400 }}"', "FR0117"),
        ("\"{{ '\\\\ud800' }}\"", "FR0117"),
    ],
)  # fmt: skip
def test_what_is_refused(template: str, code: str | None) -> None:
    text = changed(GRPO, ("models:\n", "vars: {a: 3}\nmodels:\n"), ('score"}', f'score", args: {{x: {template}}}}}'))
    assert codes(text) == ([code] if code else [])


def test_every_missing_name_is_told_at_its_place() -> None:
    text = changed(GRPO, ("source: Qwen/Qwen2.5-7B", 'source: "{{ org }}/{{ model }}"'))
    places = {(d.code, d.labels[0].span.column) for d in diagnostics_of(text)}
    assert places == {("FR0115", 24), ("FR0115", 34)}


def test_a_cycle_is_told_once_and_its_users_are_not_blamed() -> None:
    text = changed(
        GRPO,
        ("models:\n", 'vars: {a: "{{ b }}", b: "{{ a }}", c: "{{ a }}"}\nmodels:\n'),
        ("prompts: 8", 'prompts: "{{ c }}"'),
    )
    assert codes(text)[:1] == ["FR0118"]


def test_flags_reach_variables() -> None:
    text = changed(GRPO, ("models:\n", "vars: {n: 8}\nmodels:\n"), ("prompts: 8", 'prompts: "{{ n }}"'))
    assert loads(text, sets=["vars.n=16"]).stages[0].step.prompts == 16


def test_importing_the_front_door_does_not_import_jinja() -> None:
    script = "import sys, flowrl.spec; print('jinja2' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_a_template_is_no_longer_than_a_page_of_text() -> None:
    """Jinja2 would take seconds to compile it; the fault is told once, at the value."""
    within, over = ("{{ 1 }}" * (length // 7) for length in (LONGEST_TEMPLATE, LONGEST_TEMPLATE + 7))
    assert codes(changed(GRPO, ("models:\n", f'vars: {{x: "{within}"}}\nmodels:\n'))) == []
    assert codes(changed(GRPO, ("models:\n", f'vars: {{x: "{over}"}}\nmodels:\n'))) == ["FR0116"]
