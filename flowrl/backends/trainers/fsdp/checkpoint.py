"""A trainer's state on disk: each rank's rows of every tensor it trains, to be read back by any number of ranks.

`rank-R.safetensors` holds the rows of rank R, `rank-R.json` says which: {"ranks", "dtype", "lora", "counters",
"tensors": {key: {"shape", "start", "stop"}}}; "lora" is null where all weights are trained. Keys are `model/NAME` and
`optimizer/MOMENT/NAME`. Rank 0 also writes the model's `config.json`. Parameters and moments have the dtype that they
have in memory; nothing is pickled.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from flowrl.backends.trainers.fsdp.model_rank import ModelRank
from flowrl.backends.trainers.fsdp.weights import Part, part_of, parts
from flowrl.diag.diagnostic import FlowError, Help, diagnose

MODEL, OPTIMIZER = "model", "optimizer"


def save(folder: Path, rank: ModelRank, optimizer: torch.optim.Optimizer) -> None:
    """Write this rank's files into `folder`, which exists."""
    own = {key: _written(part) for key, part in _own_parts(rank.module, optimizer).items()}
    name = f"rank-{rank.setup.rank}"
    save_file({key: part.local.contiguous().cpu() for key, part in own.items()}, folder / f"{name}.safetensors")
    index = {
        "ranks": rank.setup.world_size,
        "dtype": str(rank.dtype).removeprefix("torch."),
        "lora": rank.setup.model.lora if rank.setup.model is not None else None,
        "counters": _counters(rank.module, optimizer),
        "tensors": {key: _entry(key, part, rank.setup.layout.tp) for key, part in own.items()},
    }
    (folder / f"{name}.json").write_text(json.dumps(index, indent=1), encoding="utf-8")
    if rank.setup.rank == 0:
        facts = _config(rank.module)
        (folder / "config.json").write_text(json.dumps(facts, indent=2), encoding="utf-8")


def restore(folder: Path, rank: ModelRank, optimizer: torch.optim.Optimizer) -> None:
    """Read what `save` wrote, whatever the number of ranks then. Raises FlowError FR0831 if it is another model's."""
    stored = Stored(folder)
    with torch.no_grad():
        for key, part in _model_parts(rank.module).items():
            part.local.copy_(_stored_of(stored, key, part))
    _restore_moments(stored, rank.module, optimizer)


class Stored:
    """The tensors of a checkpoint folder, whichever ranks wrote them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._indices: list[tuple[Path, Any]] = []
        first = self._index(0)
        for number in range(first["ranks"]):
            self._indices.append((folder / f"rank-{number}.safetensors", self._index(number)))
        self.counters: Mapping[str, int] = first["counters"]
        self.dtype: str = first["dtype"]
        self.lora: Mapping[str, Any] | None = first.get("lora")

    def names(self) -> list[str]:
        return list(self._indices[0][1]["tensors"])

    def shape(self, key: str) -> tuple[int, ...]:
        entry = self._indices[0][1]["tensors"].get(key)
        if entry is None:
            raise self.unfit(f"it has no {_named(key)}")
        return tuple(entry["shape"])

    def rows(self, key: str, shape: tuple[int, ...], start: int, stop: int) -> Tensor:
        """Rows [start, stop) of a full tensor of `shape`, read from the files that hold some of them."""
        if self.shape(key) != shape:
            there = list(self.shape(key))
            raise self.unfit(f"{_named(key)} has shape {there} there, the model has {list(shape)}")
        if "boxes" in self._indices[0][1]["tensors"][key]:
            return _assembled(self._indices, key, shape, start, stop)
        found = [rows for path, index in self._indices if (rows := _overlap(path, index, key, start, stop)) is not None]
        return torch.cat(found) if found else torch.zeros((0, *shape[1:]))

    def _index(self, number: int) -> Any:
        path = self._folder / f"rank-{number}.json"
        if not path.is_file():
            again = Help(text="copy the folder again, whole, or go on from an earlier checkpoint")
            raise self.unfit(f"{path.name} is missing", [again])
        return json.loads(path.read_text(encoding="utf-8"))

    def unfit(self, reason: str, helps: Sequence[Help] = ()) -> FlowError:
        return FlowError(diagnose("FR0831", helps=helps, folder=self._folder, reason=reason))


def _entry(key: str, part: Part, tp: int) -> dict[str, Any]:
    """What the index says of a tensor; with tensor parallelism in boxes of rows and columns."""
    entry: dict[str, Any] = {"shape": list(part.shape), "start": part.start, "stop": part.stop}
    if tp == 1:
        return entry
    width = int(np.prod(part.shape[1:]))
    first, last = part.columns or (0, width)
    return entry | {"boxes": [[part.start, part.stop - part.start, first, last - first, key]]}


def _config(module: Any) -> dict[str, Any]:
    """What the model's config.json says, in the words of the library that it is of."""
    architecture = type(module).__name__.removeprefix("FSDP")
    if not hasattr(module.config, "to_json_string"):  # a denoiser's
        return json.loads(module.to_json_string()) | {"_class_name": architecture}
    return json.loads(module.config.to_json_string(use_diff=True)) | {"architectures": [architecture]}


def _stored_of(stored: Stored, key: str, part: Part) -> Tensor:
    rows = stored.rows(key, part.shape, part.start, part.stop)
    return rows if part.columns is None else rows[:, part.columns[0] : part.columns[1]]


def _named(key: str) -> str:
    """The parameter, or what the optimizer keeps of it."""
    part, _, name = key.partition("/")
    if part == MODEL:
        return f"`{name}`"
    moment, _, name = name.partition("/")
    return f"the optimizer's {moment} of `{name}`"


def _overlap(path: Path, index: Any, key: str, start: int, stop: int) -> Tensor | None:
    entry = index["tensors"][key]
    low, high = max(start, entry["start"]), min(stop, entry["stop"])
    if low >= high:
        return None
    with safe_open(path, framework="pt") as file:
        return file.get_slice(key)[low - entry["start"] : high - entry["start"]]


def _assembled(indices: Sequence[tuple[Path, Any]], key: str, shape: tuple[int, ...], start: int, stop: int) -> Tensor:
    """As `_overlap`, of all ranks, where they hold boxes (megatron/checkpoint.py)."""
    whole = torch.zeros((stop - start, int(np.prod(shape[1:]))))
    for path, index in indices:
        for row, rows, column, columns, inside in index["tensors"][key]["boxes"]:
            low, high = max(start, row), min(stop, row + rows)
            if low >= high:
                continue
            with safe_open(path, framework="pt") as file:
                part = file.get_slice(inside)[low - row : high - row]
            whole[low - start : high - start, column : column + columns] = part.view(high - low, columns)
    return whole.view(stop - start, *shape[1:])


def _own_parts(module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Part]:
    return {**_model_parts(module), **_moment_parts(module, optimizer)}


def _written(part: Part) -> Part:
    """The part, or none of its rows where the first of several equal copies has them."""
    return part if not part.copy else replace(part, stop=part.start, local=part.local[:0])


def _model_parts(module: nn.Module) -> dict[str, Part]:
    trained = {name for name, parameter in module.named_parameters() if parameter.requires_grad}
    return {f"{MODEL}/{part.name}": part for part in parts(module) if part.name in trained}


def _moment_parts(module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Part]:
    found: dict[str, Part] = {}
    for name, parameter in module.named_parameters():
        for moment, value in _moments(optimizer, parameter):
            found[f"{OPTIMIZER}/{moment}/{name}"] = part_of(name, value)
    return found


def _moments(optimizer: torch.optim.Optimizer, parameter: nn.Parameter) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a parameter's state that have its shape; `step` is a counter."""
    state: Mapping[str, Any] = optimizer.state.get(parameter, {})
    for moment, value in state.items():
        if isinstance(value, Tensor) and value.dim():
            yield moment, value


def _counters(module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, int]:
    """How many updates the optimizer has made: the same for every parameter."""
    states = [optimizer.state[p] for p in module.parameters() if p in optimizer.state]
    return {"step": int(states[0]["step"])} if states and "step" in states[0] else {}


def _restore_moments(stored: Stored, module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.state.clear()
    keys = [key.split("/", 2) for key in stored.names() if key.startswith(f"{OPTIMIZER}/")]
    moments = sorted({moment for _, moment, _ in keys})
    if not moments and not stored.counters:
        return
    for name, parameter in module.named_parameters():
        if not parameter.requires_grad:
            continue
        state: dict[str, Any] = {"step": torch.tensor(float(stored.counters["step"]))}
        for moment in moments:
            state[moment] = _filled(stored, f"{OPTIMIZER}/{moment}/{name}", parameter.detach())
        optimizer.state[parameter] = state


def _filled(stored: Stored, key: str, like: Tensor) -> Tensor:
    """A tensor placed like `like` with the stored values."""
    own = torch.empty_like(like)
    part = part_of(key, own)
    part.local.copy_(_stored_of(stored, key, part))
    return own
