"""What Jinja2 and Python say of a template → plain words. Takes their exceptions, gives one clause; knows no flow."""

from __future__ import annotations

import re
from collections.abc import Callable

from jinja2.exceptions import SecurityError

_ENDS = (("'end of print statement'", "`}}`"), ("'end of statement block'", "`%}`"), ("end of template", "the end"))
_SYNTAX: tuple[tuple[str, Callable[[re.Match[str]], str]], ...] = (
    (r"the end, expected (\S+)", lambda m: f"{_it(m[1])} is missing at the end"),
    (r"unexpected (\S+), expected (\S+)", lambda m: f"{_it(m[1])} stands where {_it(m[2])} is expected"),
    (r"expected token (\S+), got (\S+)", lambda m: f"{_it(m[2])} stands where {_it(m[1])} is expected"),
    (r"Expected an expression, got (\S+)", lambda m: f"a value is missing before {_it(m[1])}"),
    (r"unexpected char ['\"](.+?)['\"] at", lambda m: f"`{m[1]}` has no meaning here, or a quote is not closed"),
    (r"unexpected (`[}%]+)", lambda m: f"a value is missing before {m[1]}`"),
    (r"unexpected (\S+)", lambda m: f"{_it(m[1])} does not belong here"),
    (r"closed is '(\w+)'", lambda m: f"`{{% {m[1]} %}}` is not closed: `{{% end{m[1]} %}}` is missing"),
    (r"unknown tag '(end\w+)'", lambda m: f"`{{% {m[1]} %}}` closes nothing"),
    (r"unknown tag '(\w+)'", lambda m: f"`{{% {m[1]} %}}` is not part of the language"),
    (r"No filter named '(.+)'", lambda m: f"there is no filter `{m[1]}`"),
    (r"No test named '(.+)'", lambda m: f"there is no test `{m[1]}`"),
    (r"end of comment", lambda m: "`{#` begins a remark that `#}` does not end"),
    (r"digits", lambda m: "the number is too long"),
    (r"recursion", lambda m: "the brackets are too deep"),
)
_NAMES = {"str": "text", "int": "a number", "float": "a number", "bool": "a truth value", "list": "a list",
          "dict": "a mapping", "NoneType": "nothing", "tuple": "a list", "Undefined": "nothing"}  # fmt: skip
_VALUES: tuple[tuple[str, Callable[[re.Match[str]], str]], ...] = (
    (r"by zero|integer modulo", lambda m: "it divides by 0"),
    (r"type\(s\) for (\S+?): '(\w+)' and '(\w+)'", lambda m: f"`{m[1]}` does not take {_a(m[2])} and {_a(m[3])}"),
    (r"^'(\S+)' not supported.*'(\w+)' and '(\w+)'", lambda m: f"`{m[1]}` does not compare {_a(m[2])} with {_a(m[3])}"),
    (r"operand type for (?:unary )?(\w+|.)(?:\(\))?: '(\w+)'", lambda m: f"`{m[1]}` does not take {_a(m[2])}"),
    (r"'(\w+)(?: object)?' has no attribute '(\w+)'", lambda m: f"{_a(m[1])} has no `{m[2]}`"),
    (r"^(\w+) object has no element (.+)", lambda m: f"{_a(m[1])} has no element {m[2]}"),
    (r"type '(\w+)' has no len", lambda m: f"{_a(m[1])} has no length"),
    (r"type (\w+) doesn't define __(\w+)__", lambda m: f"`{m[2]}` does not take {_a(m[1])}"),
    (r"^<.*?(?:method|function) (?:\w+\.)?(\w+)", lambda m: f"`{m[1]}` may not be called here"),
    (r"access to attribute '(\w+)'", lambda m: f"`{m[1]}` may not be read here"),
    (r"^(.+) is not safely callable", lambda m: f"{m[1]} is no method that can be called"),
    (r"too large|[Oo]verflow", lambda m: "the number becomes too large"),
)


def malformed(error: Exception) -> str:
    """What is wrong with a template that cannot be parsed."""
    text = str(getattr(error, "message", None) or error)
    for theirs, ours in _ENDS:
        text = text.replace(theirs, ours)
    return _said(text, _SYNTAX) or "it is no expression"


def unevaluable(error: Exception) -> str:
    """What went wrong in a template that can be parsed."""
    own = str(error) if isinstance(error, SecurityError) and "safe" not in str(error) else ""
    return own or _said(str(error), _VALUES) or _own_words(error)


def _own_words(error: Exception) -> str:
    """An error of a filter or method that has no row here; its text without Python's name for it."""
    text = str(error).strip().split("\n")[0]
    return f"a filter or method refuses its value ({text})" if text else "a filter or method refuses its value"


def _said(text: str, rows: tuple[tuple[str, Callable[[re.Match[str]], str]], ...]) -> str | None:
    for pattern, words in rows:
        found = re.search(pattern, text)
        if found is not None:
            return words(found)
    return None


def _it(token: str) -> str:
    return f"`{token.strip(chr(39) + chr(96) + '.,')}`"


def _a(kind: str) -> str:
    return _NAMES.get(kind, f"`{kind}`")
