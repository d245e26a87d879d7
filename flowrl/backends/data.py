"""The data backend: rows of a source or of a mix of them, in an endless order. Runs in the host pool.

Position p of the order is the p % size-th place of epoch p // size; `shuffle` permutes each epoch anew, by the run's
seed. The position is the prompt's id, so ids never repeat in a run and a resumed run goes on where it stopped. A data
set of pairs gives two rows a prompt: the better response, `pair_sign` 1, and the worse, -1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np
from msgspec import structs

from flowrl.backends.batch import SAMPLE_ID_BITS, Batch, Column, IntArray
from flowrl.backends.contract import RankSetup
from flowrl.backends.data_files import Place, Row, rows_of
from flowrl.backends.data_mix import SEQUENTIAL, SHUFFLE, draw, draws
from flowrl.backends.data_template import PromptTemplate
from flowrl.backends.image_files import Images
from flowrl.backends.seeds import permutation, sample_seed
from flowrl.backends.text import Codec
from flowrl.diag.diagnostic import FlowError, InternalError, diagnose
from flowrl.diag.span import Span
from flowrl.graph.graph import Op
from flowrl.graph.params import DataParams

ENCODED = 1024
"""Prompts that are made into tokens at a time where their lengths are asked for."""
SEED_BITS = 31
"""What every library takes for a seed."""
SIGNS = (1, -1)
"""Of the two responses of a pair."""


Shown = tuple[object, tuple[bytes, ...]]
"""A prompt and its images."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt with what belongs to it."""

    prompt: object
    responses: tuple[object, ...]
    """None, the given response, or the better and the worse of a pair."""
    kept: Mapping[str, object]
    seed: int | None = None
    """Of a numbered prompt, which has no text."""
    images: tuple[bytes, ...] = ()


class Prompts(Protocol):
    """An endless order of prompts."""

    @property
    def size(self) -> int: ...

    @property
    def dropped(self) -> int:
        """Rows left out because their prompts are too long."""
        ...

    def at(self, position: int) -> Prompt: ...


class Data:
    """One data set, read whole when it is made."""

    def __init__(self, setup: RankSetup) -> None:
        if len(setup.ops) != 1 or not isinstance(setup.ops[0].params, DataParams):
            raise InternalError(f"data role `{setup.role.name}` has {len(setup.ops)} ops instead of one data op")
        self._params: DataParams = setup.ops[0].params
        self._prompts = _prompts(setup.ops[0], self._params, setup, setup.ops[0].id)
        self._kept = _kept(self._params)

    @property
    def size(self) -> int:
        """Rows of one epoch."""
        return self._prompts.size

    @property
    def dropped(self) -> int:
        """Rows of the source that are left out, their prompts being longer than `max_prompt_tokens`."""
        return self._prompts.dropped

    def rows(self, start: int, count: int | None) -> Batch:
        """Prompts with ids start, …, start + count - 1; None: the `size` prompts from `start`. A row each, with its own
        id; of pairs two sample rows each.

        Columns: prompt_id int64 [rows], of numbered prompts (`seeds`) their seeds; prompt, images (if the flow names
        them: each row's as files' bytes), response (if the flow names one, or a pair) and each kept column as tuples;
        pair_sign int8 [rows] of pairs. A kept column that a source of a mix lacks is None there.
        """
        prompts = np.arange(start, start + (self.size if count is None else count), dtype=np.int64)
        picked = [self._prompts.at(position) for position in prompts.tolist()]
        each = max(1, max((len(one.responses) for one in picked), default=1))
        ids = prompts if each == 1 else ((prompts[:, None] << SAMPLE_ID_BITS) + np.arange(each)).reshape(-1)
        prompt_ids = np.repeat(prompts, each)
        rows = [one for one in picked for _ in range(each)]
        numbers = [id if one.seed is None else one.seed for id, one in zip(prompt_ids.tolist(), rows, strict=True)]
        columns: dict[str, Column] = {"prompt_id": np.asarray(numbers, dtype=np.int64)}
        if _has_prompt(self._params):
            columns["prompt"] = tuple(one.prompt for one in rows)
        if with_images(self._params):
            columns["images"] = tuple(one.images for one in rows)
        if _has_response(self._params):
            columns["response"] = tuple(response for one in picked for response in one.responses)
        if self._params.paired:
            columns["pair_sign"] = np.tile(np.asarray(SIGNS, dtype=np.int8), len(picked))
        columns |= {name: tuple(one.kept.get(name) for one in rows) for name in self._kept}
        return Batch(ids, prompt_ids, columns)

    def close(self) -> None:
        """Nothing to end."""


class _Source:
    """The rows of one source."""

    def __init__(self, op: Op, params: DataParams, setup: RankSetup, name: str) -> None:
        self._params, self._name, self._seed = params, name, setup.seed
        template = params.template
        span = _place(op, "template")
        self._template = None if template is None else PromptTemplate(template, setup.folder, span)
        rows = read_rows(op, params, setup.folder, name)
        self._images = Images(params, setup.folder, name, _place(op, "images"))
        self._images.check(rows)
        self._rows = _short_enough(op, params, setup, name, rows, self._shown)
        self.dropped = len(rows) - len(self._rows)
        self._orders = _Orders(setup.seed, name)

    @property
    def size(self) -> int:
        return len(self._rows)

    def at(self, position: int) -> Prompt:
        params = self._params
        epoch, place = divmod(position, self.size)
        if params.order != SEQUENTIAL:
            place = int(self._orders.of(epoch, self.size)[place])
        row = self._rows[place]
        names = (params.chosen, params.rejected) if params.chosen is not None else (params.response,)
        responses = tuple(row[name] for name in names if name is not None)
        prompt, images = self._shown(row)
        kept = {name: row[name] for name in params.keep if name in row}
        return Prompt(prompt, responses, kept, images=images)

    def _shown(self, row: Row) -> Shown:
        """The row's prompt and its images."""
        return self._prompt(row), self._images.of(row)

    def _prompt(self, row: Row) -> object:
        prompt = row[self._params.prompt]
        return prompt if self._template is None else self._template.filled(prompt, row)


class _Numbers:
    """Prompts without text, each a seed for an environment to begin from. Each epoch has every one once. A seed is made
    of the data set's name and the prompt's number alone: the same in every epoch and run, and another one in a set of
    another name, so that `val` holds nothing that `train` has."""

    dropped = 0

    def __init__(self, params: DataParams, setup: RankSetup, name: str) -> None:
        assert params.seeds is not None
        self._name, self._shuffled = name, params.order != SEQUENTIAL
        self.size: int = params.seeds
        self._orders = _Orders(setup.seed, name)

    def at(self, position: int) -> Prompt:
        epoch, place = divmod(position, self.size)
        number = int(self._orders.of(epoch, self.size)[place]) if self._shuffled else place
        return Prompt(None, (), {}, sample_seed(0, self._name, number) >> (63 - SEED_BITS))


class _Mix:
    """Several sources by their shares."""

    def __init__(self, op: Op, params: DataParams, setup: RankSetup, name: str) -> None:
        self._params = params
        self._names = tuple(params.sources)
        self._sources = tuple(
            _prompts(op, _limited(params.sources[each], params), setup, f"data.{each}") for each in self._names
        )
        shares = [params.mix[each] for each in self._names]
        self._draws = draws([source.size for source in self._sources], shares, params.order)
        self._orders = _Orders(setup.seed, name)
        self.dropped = sum(source.dropped for source in self._sources)

    @property
    def size(self) -> int:
        return len(self._draws.source)

    def at(self, position: int) -> Prompt:
        epoch, place = divmod(position, self.size)
        permuted = self._orders.of(epoch, self.size) if self._params.order == SHUFFLE else None
        number, own = draw(self._draws, epoch, place, permuted)
        drawn = self._sources[number].at(own)
        if self._params.tag is None:
            return drawn
        return replace(drawn, kept={**drawn.kept, self._params.tag: self._names[number]})


class _Orders:
    """Shuffles of the epochs that were asked of last."""

    def __init__(self, seed: int, label: str) -> None:
        self._seed, self._label = seed, label
        self._known: dict[int, IntArray] = {}

    def of(self, epoch: int, size: int) -> IntArray:
        if epoch not in self._known:
            # A step touches two epochs at most where they meet; older ones never come back.
            self._known = {e: order for e, order in self._known.items() if e == epoch - 1}
            self._known[epoch] = permutation(self._seed, self._label, epoch, size)
        return self._known[epoch]


def _prompts(op: Op, params: DataParams, setup: RankSetup, name: str) -> Prompts:
    if params.seeds is not None:
        return _Numbers(params, setup, name)
    return (_Mix if params.sources else _Source)(op, params, setup, name)


def _limited(source: DataParams, mix: DataParams) -> DataParams:
    """A source of a mix that leaves out long prompts leaves them out too."""
    if mix.on_long != "drop" or mix.max_prompt_tokens is None:
        return source
    limits = [each for each in (source.max_prompt_tokens, mix.max_prompt_tokens) if each is not None]
    return structs.replace(source, on_long="drop", max_prompt_tokens=min(limits))


def read_rows(op: Op, params: DataParams, folder: Path, name: str | None = None) -> Sequence[Row]:
    """All rows of a source, in its order, each with the columns that the flow names. `name`: of the data set, if the
    op's is that of a mix.

    Raises FlowError: what `rows_of` raises, FR0812 for a missing column, FR0813 for no rows.
    """
    name = name or op.id
    if params.order not in (SHUFFLE, SEQUENTIAL):
        what = f"`order: {params.order}` of data `{name}`"
        raise FlowError(diagnose("FR0801", _place(op, "order"), what=what, known="`shuffle`, `sequential`"))
    span = _source_place(op, name)
    rows = rows_of(params, Place(name, params.source, folder, span))
    if not rows:
        raise FlowError(diagnose("FR0813", span, data=name, source=params.source))
    for key in ("prompt", "response", "chosen", "rejected", "images"):
        column = getattr(params, key)
        _check_columns(op, name, params, rows, key, () if column is None else (column,))
    _check_columns(op, name, params, rows, "keep", params.keep if name == op.id else ())
    return rows


def _check_columns(
    op: Op, name: str, params: DataParams, rows: Sequence[Row], key: str, columns: Sequence[str]
) -> None:
    for number, row in enumerate(rows, start=1):
        missing = next((column for column in columns if column not in row), None)
        if missing is not None:
            known = ", ".join(f"`{column}`" for column in row) or "none"
            facts = {"row": number, "source": params.source, "column": missing, "columns": known, "data": name}
            raise FlowError(diagnose("FR0812", _place(op, key), **facts))


def _short_enough(
    op: Op, params: DataParams, setup: RankSetup, name: str, rows: Sequence[Row], shown: Callable[[Row], Shown]
) -> Sequence[Row]:
    """The rows whose prompts are within `max_prompt_tokens`, with `on_long: drop`; else all. Tokens are those of the
    model that reads the prompts. Raises FlowError FR0816 where there is none, FR0878 where no row is left."""
    most = params.max_prompt_tokens
    if params.on_long != "drop" or most is None:
        return rows
    span = _place(op, "on_long")
    if setup.model_folder is None:
        raise FlowError(diagnose("FR0816", span, data=name))
    codec = Codec(setup.model_folder)
    kept: list[Row] = []
    for start in range(0, len(rows), ENCODED):
        part = rows[start : start + ENCODED]
        prompts, images = zip(*map(shown, part), strict=True)
        encoded = codec.encode_prompts(prompts, images=images, span=span)
        kept += [row for row, tokens in zip(part, encoded, strict=True) if len(tokens) <= most]
    if not kept:
        raise FlowError(diagnose("FR0878", span, data=name, rows=len(rows), max_tokens=most))
    return kept


def _kept(params: DataParams) -> tuple[str, ...]:
    """Columns that stay in the record under their own names."""
    below = [name for source in params.sources.values() for name in _kept(source)]
    tag = [] if params.tag is None or not params.sources else [params.tag]
    return tuple(dict.fromkeys((*below, *tag, *params.keep)))


def _has_prompt(params: DataParams) -> bool:
    return any(_has_prompt(source) for source in params.sources.values()) if params.sources else params.seeds is None


def _has_response(params: DataParams) -> bool:
    own = params.response is not None or params.chosen is not None
    return own or any(_has_response(source) for source in params.sources.values())


def with_images(params: DataParams) -> bool:
    """Whether some source has images."""
    return params.images is not None or any(map(with_images, params.sources.values()))


def _source_place(op: Op, name: str) -> Span | None:
    return _place(op, "source" if name == op.id else f"mix.{name.removeprefix('data.')}")


def _place(op: Op, key: str) -> Span | None:
    """Where the flow has the key; where it is not written, the data set."""
    return op.spans.get(key, op.span)
