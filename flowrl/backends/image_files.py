"""Images of a data set: a column's cells → files' bytes, and bytes → what Pillow makes of them. Knows no model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from flowrl.diag.diagnostic import FlowError, diagnose
from flowrl.diag.span import Span
from flowrl.graph.params import DataParams


class Images:
    """The images of one source's rows. A cell is a path, which starts where the source lies, bytes, `{bytes, path}` as
    Hugging Face `datasets` writes it, a list of these, or nothing."""

    def __init__(self, params: DataParams, folder: Path, data: str, span: Span | None) -> None:
        self._column, self._data, self._span = params.images, data, span
        file = params.source.rpartition(":")[0] if ".py:" in params.source else params.source
        self._folder = folder / file if (folder / file).is_dir() else (folder / file).parent

    def of(self, row: Mapping[str, object]) -> tuple[bytes, ...]:
        """Those of one row, as files' bytes. Raises FlowError FR0865."""
        return tuple(_bytes(cell, name, self._span) for cell, name in self._cells(row, f"data `{self._data}`"))

    def check(self, rows: Sequence[Mapping[str, object]]) -> None:
        """Raise FlowError FR0865 for the first that is no image: better now than in the middle of a run. Only the head
        of each file is read."""
        for number, row in enumerate(rows, start=1):
            for cell, name in self._cells(row, f"row {number} of data `{self._data}`"):
                with _begun(cell if isinstance(cell, bytes) else _there(cell, name, self._span), name, self._span):
                    pass

    def _cells(self, row: Mapping[str, object], whose: str) -> Iterator[tuple[Path | bytes, str]]:
        value = None if self._column is None else row.get(self._column)
        if value is None:
            return
        for number, cell in enumerate(value if isinstance(value, list | tuple) else [value], start=1):
            name = f"image {number} of {whose}"
            yield self._cell(cell, name), name

    def _cell(self, cell: object, name: str) -> Path | bytes:
        if isinstance(cell, Mapping):
            inside: object = cell.get("bytes")
            cell = cell.get("path") if inside is None else inside
        if isinstance(cell, bytes | bytearray):
            return bytes(cell)
        if isinstance(cell, str):
            return self._folder / cell
        reason = f"it is of type `{type(cell).__name__}`, and neither a path nor bytes"
        raise FlowError(diagnose("FR0865", self._span, image=name, reason=reason))


def opened(data: bytes, name: str, span: Span | None) -> Any:
    """The whole image, in three colours. Raises FlowError FR0865 for bytes that are none, or half of one, FR0913
    without Pillow."""
    with _begun(data, name, span) as image:
        try:
            return image.convert("RGB")
        except (OSError, SyntaxError, ValueError) as error:
            raise _fault(error, name, span) from error


def _begun(source: Path | bytes, name: str, span: Span | None) -> Any:
    """The image with its head read."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as error:
        raise FlowError(diagnose("FR0913", span, what="`images`", package="pillow")) from error
    try:
        return Image.open(BytesIO(source) if isinstance(source, bytes) else source)
    except UnidentifiedImageError as error:
        what = f"{len(source):,} bytes that are" if isinstance(source, bytes) else f"{source} is"
        raise FlowError(diagnose("FR0865", span, image=name, reason=f"{what} no image of a known format")) from error
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise _fault(error, name, span) from error


def _bytes(cell: Path | bytes, name: str, span: Span | None) -> bytes:
    return cell if isinstance(cell, bytes) else _there(cell, name, span).read_bytes()


def _there(path: Path, name: str, span: Span | None) -> Path:
    if not path.is_file():
        raise FlowError(diagnose("FR0865", span, image=name, reason=f"there is no file {path}"))
    return path


def _fault(error: BaseException, name: str, span: Span | None) -> FlowError:
    reason = str(error).strip().splitlines()[0]
    return FlowError(diagnose("FR0865", span, image=name, reason=reason))
