"""Lengths of responses that a flow takes from a file: what an earlier run had, or the responses of a data set.

Takes a stage and what its `assume:` says; reads the file and gives numbers. Knows no placement, runs no user code and
needs no tokenizer: texts are counted by a rule, which it names.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from os.path import isfile
from pathlib import Path
from typing import Any, cast

from flowrl.compiler.lower.stage import LISTED, Stage
from flowrl.compiler.lower.user_functions import is_function
from flowrl.diag.diagnostic import FlowError, diagnose
from flowrl.diag.near import near_names
from flowrl.machine.tokenizers import TOKENIZERS
from flowrl.spec.schema import DataDocument, LengthDocument
from flowrl.spec.sections import ShapeDocument

FIELD = "response_tokens"
LONGEST_LINE = 1 << 24
"""Characters; far more than a prompt and its response have. A device such as /dev/zero has one line without end."""
ROWS = 10_000
"""Rows of a data set that are counted at most: the mean of so many is within some percent."""
MOST_CHARACTERS = 1 << 25
"""Of a data set that are read at most, whatever its rows hold."""
BYTES_A_TOKEN = 4
"""UTF-8 bytes of a token of a vocabulary of words and their parts: about 4 characters of English (OpenAI, "What are
tokens and how to count them?"). Code, numbers and other scripts have fewer."""


@dataclass(frozen=True, slots=True)
class Counted:
    """Tokens of responses, one each; empty if the flow names no file."""

    lengths: tuple[float, ...] = ()
    rule: str = ""
    """What was counted and how, where the tokens were not measured."""


def counted(stage: Stage, id: str, said: LengthDocument) -> Counted:
    """The numbers of `samples`, or those of the responses of `data`. Raises FlowError FR0526 for a file that cannot be
    read or holds none, for a data set without responses in a file, and where not one of `mean`, `samples` and `data`
    is given, or both of the last two."""
    if said.data is not None:
        if said.samples is not None:
            raise _fault(stage, id, "data", "`samples` and `data` are two sources of the same lengths")
        return _of_data(stage, id, said.data)
    if said.samples is None:
        if said.mean is None:
            raise _fault(stage, id, None, "none of `mean`, `samples` and `data` is given")
        return Counted()
    try:
        found = tuple(lengths_in(Path(stage.folder) / said.samples))
    except (OSError, ValueError) as error:
        raise _fault(stage, id, "samples", f"`{said.samples}`: {_why(error)}") from None
    if not found:
        raise _fault(stage, id, "samples", f"`{said.samples}` has no line with a number or with `{FIELD}`")
    return Counted(found)


def _fault(stage: Stage, id: str, key: str | None, problem: str) -> FlowError:
    path = ("assume", id, FIELD) if key is None else ("assume", id, FIELD, key)
    return FlowError(diagnose("FR0526", stage.span(*path), problem=problem))


def _why(error: OSError | ValueError) -> str:
    plain = "it is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else str(error)
    return (getattr(error, "strerror", None) or plain).lower()


def lengths_in(path: Path) -> Iterator[float]:
    """Read line by line, since rows of a run hold whole texts. Raises OSError and ValueError."""
    for line in _lines(path):
        length = _length(_value(line))
        if length is not None:
            yield length


def _lines(path: Path) -> Iterator[str]:
    with path.open(encoding="utf-8") as file:
        while line := file.readline(LONGEST_LINE):
            if len(line) == LONGEST_LINE:
                raise ValueError(f"a line has {LONGEST_LINE:,} characters or more")
            yield line


def _value(line: str) -> Any:
    """What a line of JSON holds; None if it is none."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _length(value: Any) -> float | None:
    """The number of a line, if it has one that is at least 0."""
    if isinstance(value, dict):
        value = cast("dict[str, Any]", value).get(FIELD)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        return None
    return float(value)


def _of_data(stage: Stage, id: str, name: str) -> Counted:
    """Responses of the data set `name` by the rule: its bytes over those of a token, rounded up, and a last token that
    ends it."""
    data = stage.document.data.get(name)
    if data is None:
        raise _fault(stage, id, "data", _unknown(name, sorted(stage.document.data)))
    columns = [each for each in (data.response, data.chosen, data.rejected) if each is not None]
    problem = _unread(stage, data, columns)
    if problem is not None or data.source is None:
        raise _fault(stage, id, "data", f"`data.{name}` {problem}")
    width = _bytes_of_a_token(stage, id)
    try:
        texts = texts_in(Path(stage.folder) / data.source, columns)
    except (OSError, ValueError) as error:
        raise _fault(stage, id, "data", f"`{data.source}`: {_why(error)}") from None
    if not texts:
        wanted = " or ".join(f"`{each}`" for each in columns)
        raise _fault(stage, id, "data", f"no row of `{data.source}` has a text in {wanted}")
    each = "1 byte" if width == 1 else f"{width} bytes"
    rule = f"responses of data.{name} (rule: a token is {each} of text, and one more ends it)"
    return Counted(tuple(float(-(-size // width) + 1) for size in texts), rule)


def _unknown(name: str, known: Sequence[str]) -> str:
    near = near_names(name, known)
    listed = ", ".join(known[:LISTED]) + (", …" if len(known) > LISTED else "")
    hint = f"a near name exists: `{near[0]}`" if near else f"there are: {listed}" if known else "there is none"
    return f"no data set `{name}`; {hint}"


def _unread(stage: Stage, data: DataDocument, columns: Sequence[str]) -> str | None:
    """Why no text of a data set is counted; None if it can be."""
    if data.source is None:
        return "is a mix: name one of its data sets" if data.mix else "has numbered prompts without text"
    if not columns:
        return "names no column with a `response`, `chosen` or `rejected`"
    if is_function(data.source):
        return "is made by a function, and a plan calls none: write its rows to a file"
    return None if isfile(Path(stage.folder) / data.source) else f"is in `{data.source}`, which is not there"


def _bytes_of_a_token(stage: Stage, id: str) -> int:
    """1 where the model of the op has one of FlowRL's own vocabularies, whose tokens are bytes."""
    role = stage.document.roles.get(id.partition("@")[0].rpartition(".")[0])
    model = stage.document.models.get(getattr(role, "model", None) or "")
    source = None if model is None else model.source
    return 1 if isinstance(source, ShapeDocument) and source.tokenizer in TOKENIZERS else BYTES_A_TOKEN


def texts_in(path: Path, columns: Sequence[str]) -> list[int]:
    """UTF-8 bytes of the texts in `columns` of the first ROWS rows, and of no more than MOST_CHARACTERS of the file;
    other values are left out. Raises OSError and ValueError."""
    found: list[int] = []
    left = MOST_CHARACTERS
    for number, line in enumerate(_lines(path)):
        left -= len(line)
        if number == ROWS or left < 0:
            break
        value = _value(line)
        row = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
        texts = [text for column in columns if isinstance(text := row.get(column), str)]
        found.extend(len(text.encode("utf-8", "surrogatepass")) for text in texts)
    return found
