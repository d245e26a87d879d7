"""Reading a flow's file: what can go wrong before there is any text, and the text with one kind of line end."""

from __future__ import annotations

import codecs
from pathlib import Path

from flowrl.diag.diagnostic import FlowError, Help, diagnose
from flowrl.diag.near import near_names
from flowrl.spec.yaml_tree import LARGEST_BYTES


def read_text(path: str | Path, wanted: str = "a flow's YAML file") -> str:
    """The text of a UTF-8 file; `wanted` says what it should be. Raises FlowError (FR0001 to FR0004)."""
    file = Path(path)
    shown = str(path)
    try:
        with file.open("rb") as stream:
            data = stream.read(LARGEST_BYTES + 1)
    except FileNotFoundError:
        raise FlowError(diagnose("FR0001", helps=_near_files(file), file=shown, wanted=wanted)) from None
    except IsADirectoryError:
        helps = [Help(text=f"name a file in it, for example `{file / name}`") for name in flow_names(file)[:1]]
        raise FlowError(diagnose("FR0002", helps=helps, file=shown, problem="it is a folder")) from None
    except (OSError, ValueError) as error:
        problem = getattr(error, "strerror", None) or str(error)
        raise FlowError(diagnose("FR0002", file=shown, problem=problem.lower())) from None
    _check_size(len(data), shown)
    return _decoded(data, shown)


def of_a_flow(text: str, shown: str) -> str:
    """The text, which `read_text` would read from a file. Raises FlowError FR0004."""
    _check_size(len(text.encode()), shown)
    return text


def _check_size(size: int, shown: str) -> None:
    if size > LARGEST_BYTES:
        raise FlowError(diagnose("FR0004", file=shown, limit=f"{LARGEST_BYTES:,} bytes"))


def _decoded(data: bytes, shown: str) -> str:
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise FlowError(diagnose("FR0003", file=shown, problem="it starts like UTF-16"))
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        problem = f"byte 0x{data[error.start]:02x} in line {line} is not UTF-8"
        raise FlowError(diagnose("FR0003", file=shown, problem=problem)) from None


def normal_text(text: str) -> str:
    """Without a byte order mark, with `\n` as the end of every line."""
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")


def flow_names(folder: Path) -> list[str]:
    """Names of the YAML files in a folder, sorted; none where it cannot be read."""
    try:
        return sorted(entry.name for entry in folder.iterdir() if entry.suffix in (".yaml", ".yml"))
    except OSError:
        return []


def _near_files(file: Path) -> list[Help]:
    near = near_names(file.name, flow_names(file.parent))
    if near:
        return [Help(text=f"a file with a near name exists: `{file.parent / near[0]}`")]
    if not file.parent.exists():
        return [Help(text=f"the folder `{file.parent}` does not exist either")]
    return []
