"""PyYAML's complaints in our words: which rule of YAML a text breaks, where, and the edit that mends it."""

from __future__ import annotations

import re
from typing import Any

import yaml

from flowrl.diag.diagnostic import Diagnostic, Help, Label, diagnose
from flowrl.diag.span import Span

_UNQUOTED_TEMPLATE = re.compile(
    r"""[:\-,\[]\s+(?P<scalar>[^\s"'#,{][^"'#,]*\{\{.*?\}\}|\{\{.*?\}\})(?P<rest>[^\s,\]}]*)"""
)

LONGEST_LINE = 2000

_WORDS: tuple[tuple[str, str], ...] = (
    (r"expected ',' or '(?P<close>[\]}])'", "a `,` or the closing `{close}` is missing before this"),
    (r"found unexpected end of stream", "the text ends inside the quotes that open on line {context_line}"),
    (r"found unknown escape character '(?P<char>.+)'", "`\\{char}` is not an escape; single quotes keep `\\` as it is"),
    (r"found character '`' that cannot start", "a value cannot start with a backtick without quotes"),
    (r"found character '(?P<char>.+)' that cannot start", "a value cannot start with `{char}` without quotes"),
    (r"expected alphabetic or numeric character", "`*` and `&` name anchors; quote a text that starts with one"),
    (r"expected the node content, but found '<stream end>'", "the text ends inside brackets that are still open"),
    (r"expected the node content", "a value is missing here"),
    (r"expected chomping or indentation indicators", "`|` and `>` start a block: its text begins on the next line"),
    (r"expected '<document start>'", "the document ended above; nothing may follow it"),
    (
        r"expected <block end>, but found '\?'",
        "a key where the list above goes on: an entry starts with `- `, a key after the list stands further left",
    ),
    (r"expected <block end>, but found '-'", "a list entry where the keys above go on"),
    (r"expected <block end>, but found '<scalar>'", "text follows a value that already ended"),
    (r"expected <block end>, but found ','", "a block list has one entry a line; `,` belongs in brackets"),
)


def syntax_error(error: yaml.YAMLError, text: str, file: str) -> Diagnostic:
    """The diagnostic of what PyYAML refused: a tab (FR0007), indentation (FR0009), an unquoted template (FR0018) or
    any other fault of syntax (FR0008)."""
    mark: Any = getattr(error, "problem_mark", None)
    problem = str(getattr(error, "problem", None) or error)
    if mark is None:
        return diagnose("FR0008", Span(file, 1, 1, 1, 2), problem=problem)
    lines = text.split("\n")
    line, column = _inside(lines, mark.line, mark.column)
    row = lines[line]
    span = Span(file, line + 1, column + 1, line + 1, column + 2)
    if column < len(row) and row[column] == "\t":
        return _tab(lines, line, span)
    template = unquoted_template(row, span)
    if template is not None:
        return template
    colonless = re.match(r"\s*(- )?(?P<key>[\w@-]+) +(?P<open>[{\[])", row)
    if colonless is not None:
        at = Span(file, line + 1, colonless.start("open") + 1, line + 1, colonless.start("open") + 2)
        words = f"`{colonless['key']}` needs a `:` before `{colonless['open']}`"
        return diagnose("FR0008", at, problem=words)
    also = _opened_at(error, file, span)
    if "mapping values are not allowed" in problem and ": " in row[:column].strip():
        return diagnose("FR0008", span, problem="a second `: ` on this line; quote the value that holds it")
    if "could not find expected ':'" in problem:
        return _no_colon(error, lines, file, span)
    if _is_indentation(problem):
        return _indentation(lines, line, also, file)
    context: Any = getattr(error, "context_mark", None)
    for pattern, words in _WORDS:
        found = re.search(pattern, problem)
        if found is not None:
            facts = {"context_line": context.line + 1 if context else line + 1, **found.groupdict()}
            return diagnose("FR0008", span, also=also, problem=words.format(**facts))
    return diagnose("FR0008", span, also=also, problem=problem)


def unquoted_template(row: str, span: Span) -> Diagnostic | None:
    """FR0018 if the line holds a `{{ … }}` that is not inside quotes."""
    # The search takes quadratic time on lines without quotes, so it is kept from very long ones.
    found = _UNQUOTED_TEMPLATE.search(row) if "{{" in row and len(row) <= LONGEST_LINE else None
    if found is None:
        return None
    start = found.start("scalar")
    scalar = found.group("scalar") + found.group("rest")
    fixed = f'{row[:start]}"{scalar}"{row[start + len(scalar) :]}'
    place = Span(span.file, span.line, start + 1, span.line, start + 1 + len(scalar))
    quoted = Help(text="quote it", span=place, replacement=fixed, certain='"' not in scalar)
    return diagnose("FR0018", place, helps=[quoted])


def _inside(lines: list[str], line: int, column: int) -> tuple[int, int]:
    """The place itself, or the end of the last line with text if it lies behind it."""
    if line < len(lines) and (lines[line].strip() or line == 0):
        return line, min(column, len(lines[line]))
    last = max((i for i in range(min(line, len(lines))) if lines[i].strip()), default=0)
    return last, len(lines[last].rstrip())


def _no_colon(error: yaml.YAMLError, lines: list[str], file: str, span: Span) -> Diagnostic:
    """FR0008 for a line that has text where a key belongs, with the line as a key where one can be made of it."""
    mark: Any = getattr(error, "context_mark", None)
    if mark is not None:
        line, column = int(mark.line), int(mark.column)
        span = Span(file, line + 1, column + 1, line + 1, max(len(lines[line].rstrip()), column) + 1)
    row = lines[span.line - 1]
    text = row[span.column - 1 :].rstrip()
    glued = re.match(r"(?P<key>[\w@-]+):(?P<value>\S.*)", text)
    split = re.match(r"(?P<key>[\w@-]+)(?: +(?P<value>[^\s:{\[][^:]*))?\Z", text)
    found = glued or split
    if found is None:
        return diagnose("FR0008", span, problem="no `:`, so this is no key; a list entry starts with `- `")
    value = f" {found['value']}" if found["value"] else ""
    words = "put a space after the `:`" if glued else "end the key with `:`"
    help_ = Help(text=words, span=span, replacement=f"{row[: span.column - 1]}{found['key']}:{value}")
    problem = "a `:` without a space after it makes no key" if glued else "no `:`, so this is no key"
    return diagnose("FR0008", span, helps=[help_], problem=problem)


def _tab(lines: list[str], line: int, span: Span) -> Diagnostic:
    """FR0007 with the line as it was meant: as deep as the next line where that is below the line above, else two
    spaces for a tab."""
    row = lines[line]
    indent = row[: len(row) - len(row.lstrip())]
    above = next((lines[i] for i in range(line - 1, -1, -1) if lines[i].strip()), "")
    below = next((each for each in lines[line + 1 :] if each.strip()), "")
    spaces = indent.replace("\t", "  ")
    column = _first_column(below)
    if above.rstrip().endswith(":") and "\t" not in below[: column - 1] and column > _first_column(above):
        spaces = " " * (column - 1)
    fixed = row.replace("\t", "  ") if span.column > len(indent) else f"{spaces}{row.lstrip()}"
    return diagnose("FR0007", span, helps=[Help(text="indent with spaces", span=span, replacement=fixed)])


def _is_indentation(problem: str) -> bool:
    return "mapping values are not allowed" in problem or "but found '<block mapping start>'" in problem


def _indentation(lines: list[str], line: int, also: tuple[Label, ...], file: str) -> Diagnostic:
    """FR0009 with the line above, which this one should line up with."""
    row = lines[line]
    column = _first_column(row)
    span = Span(file, line + 1, column, line + 1, max(len(row.rstrip()) + 1, column + 1))
    above = next((i for i in range(line - 1, -1, -1) if re.match(r"\s*[^#\s]", lines[i])), None)
    if above is None:
        return diagnose("FR0009", span, column=column, expected=1)
    other = _first_column(lines[above])
    fixed = Help(text="line it up", span=span, replacement=f"{' ' * (other - 1)}{row.lstrip(' ')}")
    near = Span(file, above + 1, other, above + 1, len(lines[above].rstrip()) + 1)
    label = Label(near, f"the line above starts in column {other}")
    return diagnose("FR0009", span, also=(label,), helps=[fixed], column=column, expected=other)


def _first_column(row: str) -> int:
    return len(row) - len(row.lstrip(" ")) + 1


def _opened_at(error: yaml.YAMLError, file: str, span: Span) -> tuple[Label, ...]:
    """The bracket or quote that is still open, if it stands elsewhere."""
    mark: Any = getattr(error, "context_mark", None)
    opens = re.search("flow mapping|flow sequence|quoted", str(getattr(error, "context", "")))
    if mark is None or opens is None or (mark.line, mark.column) == (span.line - 1, span.column - 1):
        return ()
    return (Label(Span(file, mark.line + 1, mark.column + 1, mark.line + 1, mark.column + 2), "opens here"),)
