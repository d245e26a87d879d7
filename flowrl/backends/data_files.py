"""Rows of a data source: a jsonl or parquet file, a folder of such files, a folder that Hugging Face `datasets` saved,
a data set of the hub (from the local cache or fetched), or a user's function. Knows no order and no columns.

A folder or hub id has splits: `args: {split: test, name: main}`, by default `train` and, where there is only one, the
only configuration. Parquet and Arrow need pyarrow (the extra `data`), which is imported when a file asks for it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from flowrl.backends.user_code import UserCodeError, call_function, load_function
from flowrl.diag.diagnostic import FlowError, diagnose
from flowrl.diag.span import Span
from flowrl.graph.params import DataParams

Row = Mapping[str, object]
LINES, PARQUET, ARROW = (".jsonl", ".json"), ".parquet", ".arrow"
SOURCES: Mapping[str, str] = {
    "a jsonl file": "",
    "a parquet file": "pyarrow (the extra `data`)",
    "a folder of jsonl or parquet files, with splits": "pyarrow, for parquet",
    "a folder that Hugging Face `datasets` saved": "pyarrow",
    "a data set's id on the Hugging Face hub (from the cache, or fetched)": "pyarrow, for parquet",
    "`FILE.py:FUNCTION`": "",
    "`seeds`: numbered prompts": "",
    "`mix` of data sets by share": "",
}
"""What a data set may be, and what must be installed for it."""
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
TRAIN = "train"
_PIECE = re.compile(r"[-_.]\d+(-of-\d+)?$")
"""What the hub adds to a split's name: `train-00000-of-00002`."""


@dataclass(frozen=True, slots=True)
class Place:
    """Whose source it is and where the flow has it."""

    data: str
    source: str
    folder: Path
    span: Span | None


def rows_of(params: DataParams, place: Place) -> Sequence[Row]:
    """All rows, in the source's order.

    Raises FlowError: FR0810 no file, FR0811 a line that is no JSON object, FR0814 and FR0815 a function that fails or
    returns something else, FR0875 no pyarrow, FR0876 no such split, FR0877 a file that cannot be read.
    """
    if params.source.rpartition(":")[0].endswith(".py"):
        return _call(params, place)
    path = place.folder / params.source
    if path.is_dir():
        return _folder(path, params.args, place)
    if not path.is_file() and HUB_ID.fullmatch(params.source) and path.suffix not in (*LINES, PARQUET, ARROW):
        return _folder(_of_hub(params.source, path, place), params.args, place)
    if not path.is_file():
        raise FlowError(diagnose("FR0810", place.span, data=place.data, source=place.source, path=path))
    return _file(path, place)


def _file(path: Path, place: Place) -> Sequence[Row]:
    return _table(path, place) if path.suffix in (PARQUET, ARROW) else _lines(path, place)


def _lines(path: Path, place: Place) -> Sequence[Row]:
    rows: list[Row] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), start=1):
        if line.strip():
            rows.append(_object(line, number, place))
    return rows


def _object(line: str, number: int, place: Place) -> Row:
    try:
        value: object = json.loads(line)
    except json.JSONDecodeError as error:
        reason = f"{error.msg} at column {error.colno}"
        raise FlowError(diagnose("FR0811", place.span, source=place.source, line=number, reason=reason)) from error
    if not isinstance(value, dict):
        reason = f"a {type(value).__name__}, not an object"
        raise FlowError(diagnose("FR0811", place.span, source=place.source, line=number, reason=reason))
    return cast("Row", value)


def _table(path: Path, place: Place) -> Sequence[Row]:
    """Rows of a parquet file or of an Arrow stream, as `datasets` writes them."""
    try:
        import pyarrow
        from pyarrow import ipc, parquet
    except ImportError as error:
        raise FlowError(diagnose("FR0875", place.span, data=place.data, file=path.name)) from error
    arrow: Any = pyarrow
    try:
        if path.suffix == PARQUET:
            return cast("Sequence[Row]", parquet.read_table(path).to_pylist())
        with arrow.memory_map(str(path)) as source:
            return cast("Sequence[Row]", ipc.open_stream(source).read_all().to_pylist())
    except (arrow.ArrowException, OSError) as error:
        reason = str(error).strip().splitlines()[0]
        raise FlowError(diagnose("FR0877", place.span, data=place.data, file=path, reason=reason)) from error


def _folder(folder: Path, args: Mapping[str, Any], place: Place) -> Sequence[Row]:
    split, config = str(args.get("split", TRAIN)), args.get("name")
    saved = folder / split if (folder / "dataset_dict.json").is_file() else folder
    if (saved / "state.json").is_file():
        named = json.loads((saved / "state.json").read_text(encoding="utf-8"))["_data_files"]
        return [row for each in named for row in _file(saved / each["filename"], place)]
    files = _splits(folder, config)
    if split not in files:
        known = ", ".join(f"`{name}`" for name in sorted(files)) or "none"
        raise FlowError(diagnose("FR0876", place.span, source=place.source, split=split, known=known))
    return [row for path in files[split] for row in _file(path, place)]


def _splits(folder: Path, config: object) -> Mapping[str, Sequence[Path]]:
    """The data files below `folder` by split: the file's name without its number, or its folder's where that is all
    the name tells. With several configurations (folders), those of `config`, or `CONFIG/SPLIT` for each."""
    found: dict[str, list[Path]] = {}
    files = sorted(p for p in folder.rglob("*") if p.suffix in (*LINES, PARQUET, ARROW) and p.is_file())
    data = [p for p in files if p.name not in ("dataset_info.json", "dataset_infos.json", "dataset_dict.json")]
    wanted = [p for p in data if config is None or str(config) in p.relative_to(folder).parts[:-1]]
    homes = {p.parent.name for p in wanted}
    for path in wanted:
        split = _PIECE.sub("", path.stem)
        if not split or split.isdigit():
            split = path.parent.name
        several = len(homes) > 1 and split != path.parent.name
        found.setdefault(f"{path.parent.name}/{split}" if several else split, []).append(path)
    return found


def _of_hub(source: str, path: Path, place: Place) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    patterns = [f"*{suffix}" for suffix in (*LINES, PARQUET, ARROW)]
    try:
        return Path(snapshot_download(source, repo_type="dataset", allow_patterns=patterns))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as failure:
        # The hub has its own words for being offline; the file that is not there is what the flow can mend.
        fault = diagnose("FR0810", place.span, data=place.data, source=place.source, path=path)
        raise FlowError(fault) from failure


def _call(params: DataParams, place: Place) -> Sequence[Row]:
    function = load_function(params.source, place.folder, place.span)
    file, _, attribute = params.source.rpartition(":")
    try:
        value: object = call_function(function, None, **params.args)
    except UserCodeError as error:
        module = Path(file).stem
        told = error.told
        fault = diagnose("FR0814", place.span, source=params.source, error=told, module=module, function=attribute)
        raise FlowError(fault) from error
    if not isinstance(value, list | tuple):
        raise FlowError(diagnose("FR0815", place.span, source=params.source, found=_typed(value)))
    rows = cast("Sequence[object]", value)
    odd = next((row for row in rows if not isinstance(row, Mapping)), None)
    if odd is not None:
        raise FlowError(diagnose("FR0815", place.span, source=params.source, found=f"a list with {_typed(odd)}"))
    return cast("Sequence[Row]", rows)


def _typed(value: object) -> str:
    return "None" if value is None else f"a value of type `{type(value).__name__}`"
