"""Megatron Core on a CPU: while `on_cpu()` is open, what asks for a CUDA device, stream or generator gets the CPU's.

Megatron Core names `cuda` in some two hundred places and has no switch. The stand-ins are in force inside the context
alone and in this process alone: before and after it torch is as it was. On GPUs nothing here is used.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

CPU = torch.device("cpu")
_TYPES = ("FloatTensor", "IntTensor", "ByteTensor", "LongTensor", "BFloat16Tensor", "HalfTensor")
_TYPE_PREFIX = "torch.cuda."
_depth = 0


@contextlib.contextmanager
def on_cpu() -> Iterator[None]:
    """Stand in for CUDA. Contexts may lie within each other; the outermost one counts."""
    global _depth
    _depth += 1
    try:
        if _depth > 1:
            yield
        else:
            with _replaced(), _CudaIsCpu():
                yield
    finally:
        _depth -= 1


class _CudaIsCpu(TorchFunctionMode):
    """Calls of torch with a CUDA device are made with the CPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = dict(kwargs or {})
        if "device" in given:
            given["device"] = _device(given["device"])
        name = getattr(func, "__name__", "")
        if name == "to" and len(args) > 1 and isinstance(args[1], str | torch.device):
            args = (args[0], _device(args[1]), *args[2:])
        if name == "type" and len(args) == 1 and not given:
            # The optimizer sorts parameters by this string and knows those of CUDA.
            return func(*args).replace("torch.", _TYPE_PREFIX, 1)
        return func(*args, **given)


class _Stream:
    """Work on a CPU is in order."""

    device = CPU
    cuda_stream = 0

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *_: Any) -> None: ...

    def record_event(self, event: Any = None) -> Any:
        return event or _Event()

    def query(self) -> bool:
        return True

    def wait_stream(self, *_: Any) -> None: ...

    wait_event = synchronize = wait_stream


class _Event:
    def __init__(self, *_: Any, **__: Any) -> None: ...

    def record(self, *_: Any) -> None: ...

    wait = synchronize = record

    def query(self) -> bool:
        return True


def _device(device: Any) -> Any:
    is_number = isinstance(device, int) and not isinstance(device, bool)
    return CPU if is_number or str(device).startswith("cuda") else device


def _nothing(*_: Any, **__: Any) -> None: ...


def _no_context(*_: Any, **__: Any) -> Any:
    return contextlib.nullcontext()


def _stand_ins() -> Mapping[Any, Mapping[str, Any]]:
    stream = _Stream()
    cuda = {
        "current_device": lambda: CPU,
        "current_stream": lambda *_: stream,
        "default_stream": lambda *_: stream,
        "Stream": _Stream,
        "Event": _Event,
        "stream": _no_context,
        "device": _no_context,
        "set_device": _nothing,
        "synchronize": _nothing,
        "empty_cache": _nothing,
        "is_current_stream_capturing": lambda: False,
        "get_device_capability": lambda *_: (8, 0),
        "get_rng_state": lambda *_, **__: torch.get_rng_state(),
        "set_rng_state": lambda state, *_, **__: torch.set_rng_state(state),
        "manual_seed": lambda seed: torch.default_generator.manual_seed(int(seed)),
        **{name: getattr(torch, name) for name in _TYPES},
    }
    nvtx = {"range_push": _nothing, "range_pop": _nothing}
    itself = {"cuda": lambda each, *_, **__: each}
    return {torch.cuda: cuda, torch.cuda.nvtx: nvtx, torch.Tensor: itself, torch.nn.Module: itself}


@contextlib.contextmanager
def _replaced() -> Iterator[None]:
    former: list[tuple[Any, str, Any]] = []
    try:
        for owner, stand_ins in _stand_ins().items():
            for name, value in stand_ins.items():
                former.append((owner, name, vars(owner).get(name)))
                setattr(owner, name, value)
        # It reads and writes the state of the CUDA generator below torch's functions.
        random = importlib.import_module("megatron.core.tensor_parallel.random")
        for name, value in (
            ("_get_cuda_rng_state", lambda *_, **__: torch.get_rng_state()),
            ("_set_cuda_rng_state", lambda state, *_, **__: torch.set_rng_state(state)),
        ):
            former.append((random, name, vars(random).get(name)))
            setattr(random, name, value)
        yield
    finally:
        for owner, name, value in reversed(former):
            delattr(owner, name) if value is None else setattr(owner, name, value)
