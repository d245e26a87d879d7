"""The full tensors of the model that a checkpoint stands for, by Hugging Face name. Reads files alone.

`Trained`: all of them are in the checkpoint. `Adapted`: the checkpoint has adapters, and the folder that the trainer
started from has their base; they are merged as they are read.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from safetensors import safe_open
from torch import Tensor

from flowrl.backends.lora import A, B, is_adapter, merged, scale_of
from flowrl.backends.trainers.fsdp.checkpoint import MODEL, Stored


class Weights(Protocol):
    def names(self) -> list[str]: ...

    def shape(self, name: str) -> tuple[int, ...]: ...

    def whole(self, name: str) -> Tensor: ...


class Trained:
    """Of a trainer of all weights."""

    def __init__(self, stored: Stored) -> None:
        self._stored = stored

    def names(self) -> list[str]:
        return [key.removeprefix(f"{MODEL}/") for key in self._stored.names() if key.startswith(f"{MODEL}/")]

    def shape(self, name: str) -> tuple[int, ...]:
        return self._stored.shape(f"{MODEL}/{name}")

    def whole(self, name: str) -> Tensor:
        shape = self.shape(name)
        return self._stored.rows(f"{MODEL}/{name}", shape, 0, shape[0])


class Adapted:
    """Of a trainer of adapters. Raises FlowError FR0831 for a folder that is not their base."""

    def __init__(self, stored: Stored, base: Path, lora: Mapping[str, Any]) -> None:
        self._trained, self._scale = Trained(stored), scale_of(lora)
        names = self._trained.names()
        self._own = {name for name in names if not is_adapter(name)}
        self._adapted = {f"{name.removesuffix(f'.{A}')}.weight" for name in names if name.endswith(f".{A}")}
        self._files: dict[str, Path] = {}
        for path in sorted(base.glob("*.safetensors")):
            with safe_open(path, framework="pt") as file:
                self._files |= dict.fromkeys(file.keys(), path)
        lacking = sorted(self._adapted - set(self._files))
        if lacking:
            raise stored.unfit(f"its adapters stand beside `{lacking[0]}`, which no *.safetensors of {base} has")

    def names(self) -> list[str]:
        return [*self._files, *sorted(self._own - set(self._files))]

    def shape(self, name: str) -> tuple[int, ...]:
        if name in self._own:
            return self._trained.shape(name)
        with safe_open(self._files[name], framework="pt") as file:
            return tuple(file.get_slice(name).get_shape())

    def whole(self, name: str) -> Tensor:
        if name in self._own:
            return self._trained.whole(name)
        with safe_open(self._files[name], framework="pt") as file:
            base: Tensor = file.get_tensor(name)
        if name not in self._adapted:
            return base
        layer = name.removesuffix(".weight")
        return merged(base, self._trained.whole(f"{layer}.{A}"), self._trained.whole(f"{layer}.{B}"), self._scale)
