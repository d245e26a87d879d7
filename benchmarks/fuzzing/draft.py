"""A mutant in the making, the values it is spoilt with, and the finished mutant."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

from benchmarks.fuzzing.seeds import Seed

PARTIAL = 1 << 63
ODD_NUMBERS: tuple[Any, ...] = (
    0, -1, 1, 2, 3, 7, 64, 1_000_003, 10**9, 10**12, PARTIAL - 1, PARTIAL, 1 << 64, 10**30, 10**400, -(10**30),
    0.0, -0.0, 0.5, 1.5, 1e-320, 1e308, float("inf"), float("-inf"), float("nan"),
)  # fmt: skip
ODD_TEXTS: tuple[str, ...] = (
    "", " ", "~", "null", "yes", "on", "1e400", "1e-6", "0x1F", "0o17", "1_000", "+1", ".inf", "-.nan", "2020-01-01",
    "<<", "*", "&", "!", "%", "@", "`", "a: b", "- a", "#", "\n", "\t", "a.b.c", "data.train", "data", "stages",
    "stages.a.b", "stages.x.actor_train", "actor_train", "actor_infer.generate@val", "reward.rewards@val", "math, code",
    "../x.py:f", "/etc/passwd", "/dev/zero", "/dev/stdin", ".", "x.py:", ":f", "x.py:f:g", "a" * 200, "a" * 20_000,
    "é☃", "\u202eabc", "a\u200bb", "\ufeffx", "\U0001f600", "0xH100-80G", "999999999xH100-80G", "local", "{", "}}",
)  # fmt: skip
TEMPLATES: tuple[str, ...] = (
    "{{ ''.__class__ }}", "{{ ''.__class__.__mro__ }}", "{{ 'a' * 10**9 }}", "{{ 10**10**10 }}", "{{ 2 ** 64 ** 2 }}",
    "{% for i in range(10**9) %}{{ i }}{% endfor %}", "{{ range(10**9) | list | length }}", "{{ x.x.x.x }}",
    "{{ ('a,' * 100000).split(',') }}", "{{ 'aaaa'.replace('a', 'a' * 1000) }}", "{{ vars }}", "{{ self }}",
    "{{ cycler.__init__.__globals__ }}", "{{ lipsum(1000) }}", "{% set a = [1] %}{{ a }}", "{{ [1, 2] | sum }}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "{% include 'flow.yaml' %}", "{{ 'a'|join('b'*100000) }}",
    "{{ 1 / 0 }}", "{{", "}}", "{%", "{# x", "{{ }}", "{{ 1 if }}", "{{ '%9999999d' % 1 }}", "{{ 9**9**9 }}", "{{ a }}",
    "{{ 'x'.ljust(10**9) }}", "{{ [[[[[[1]]]]]] }}", "{{ {'a': {'b': 1}} }}", "{{ (1, 2) }}", "{{ none }}",
    "{{ 1e400 }}",
    "{{ '\\ud800' }}",
    "{{ 'aaaaaaaaaaaaaaaaaaaa'.replace('a','aaaaaaaaaaaaaaaaaaaa').replace('a','aaaaaaaaaaaaaaaaaaaa')"
    ".replace('a','aaaaaaaaaaaaaaaaaaaa').replace('a','aaaaaaaaaaaaaaaaaaaaa').replace('a','aaaaaaaaaaaaaaa') }}",
    "{{ " + "(" * 500 + "1" + ")" * 500 + " }}", "{{ " + "-" * 3000 + "1 }}", "{{ " + "1+" * 3000 + "1 }}",
    "{{ 'a'.join(['b'] * 100) }}", "{{ x | default('y') | upper }}", "{{ 'a' ~ 'b' ~ 1 }}", "{{ 1 < 2 }}",
    "{{ 10 // 3 }}",
    "{{ 'ab'[::-1] }}", "{{ 'a' in 'abc' }}", "{{ [3, 1] | sort }}", "{{ '1' | float | int }}",
    "{{ 99999999999999 | string }}",
    "{{ [1] * 1000000 }}", "{{ 'a'|replace('a', 'b' * 99999) }}", "{{ x.y() }}", "{{ 'a'.format() }}",
    "{{ ''.title().x }}",
    "{{ 'abc'|sort(true)|list|join }}", "{{ 'a'|round }}", "{{ 3.7|round(400) }}", "{{ 1|round(-400) }}",
    "{{ 3|round(10**9) }}",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Mutant:
    """A flow file and what stands on the command line beside it."""

    seed: str
    folder: str
    operations: tuple[str, ...]
    data: bytes
    sets: tuple[str, ...] = ()
    cluster: str | None = None
    files: tuple[tuple[str, bytes], ...] = ()
    """Other files in the flow's folder."""


@dataclass(slots=True)
class Draft:
    """A mutant in the making. `data` is set by operations on bytes, which come last."""

    seed: Seed
    random: Random
    seeds: tuple[Seed, ...]
    text: str
    data: bytes | None = None
    sets: list[str] = field(default_factory=list[str])
    cluster: str | None = None
    files: dict[str, bytes] = field(default_factory=dict[str, bytes])

    def bytes(self) -> bytes:
        return self.text.encode("utf-8", "surrogatepass") if self.data is None else self.data

    def other(self) -> Seed:
        return self.random.choice(self.seeds)

    def odd_value(self) -> Any:
        """A value that few keys take."""
        pick = self.random.random()
        if pick < 0.35:
            return self.random.choice(ODD_NUMBERS)
        if pick < 0.65:
            return self.random.choice(ODD_TEXTS)
        if pick < 0.75:
            return self.random.choice(TEMPLATES)
        return self.random.choice((None, True, False, [], {}, [[]], {"a": {}}, [None], [{}], {"": 1}, ["a", "b"]))

    def typo(self, name: str) -> str:
        """`name` with a letter lost, doubled, swapped or changed."""
        at = self.random.randrange(len(name)) if name else 0
        way = self.random.randrange(5)
        if way == 0:
            return name[:at] + name[at + 1 :]
        if way == 1:
            return name[: at + 1] + name[at:]
        if way == 2:
            return name[:at] + name[at + 1 : at + 2] + name[at : at + 1] + name[at + 2 :]
        if way == 3:
            return name[:at] + self.random.choice("abcxyz_-. 09é@") + name[at + 1 :]
        return name.upper() if self.random.random() < 0.5 else name + self.random.choice(("s", "_", ".x", "@val", "-"))
