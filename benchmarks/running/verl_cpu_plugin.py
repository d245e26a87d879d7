"""A CPU platform for verl 0.9, from outside: verl loads this module by VERL_USE_EXTERNAL_MODULES and changes no file.

Runs in verl's processes only; see verl_grpo.py. It registers the platform `cpu`, which claims one fake GPU of Ray, and
works round three faults that verl has on a CPU, each told where it is.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import types
from collections.abc import Callable, Iterator
from importlib.abc import MetaPathFinder
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry

MEMORY_BYTES = 8 << 30


def _device_module() -> types.ModuleType:
    """torch.cpu with what torch.cuda has beside it."""
    made = types.ModuleType("verl_cpu_device")
    for name in dir(torch.cpu):
        if not name.startswith("__"):
            setattr(made, name, getattr(torch.cpu, name))
    for name in ("max_memory_allocated", "max_memory_reserved", "memory_allocated", "memory_reserved"):
        setattr(made, name, lambda *_, **__: 0)
    for name in ("empty_cache", "ipc_collect", "manual_seed", "manual_seed_all", "reset_peak_memory_stats"):
        setattr(made, name, lambda *_, **__: None)
    for name in ("synchronize", "set_device", "set_rng_state"):
        setattr(made, name, lambda *_, **__: None)
    properties = types.SimpleNamespace(name="cpu", total_memory=MEMORY_BYTES, major=0, minor=0, multi_processor_count=1)
    properties.gcnArchName = ""
    answers: dict[str, object] = {
        "is_available": True,
        "device_count": 1,
        "is_initialized": True,
        "current_device": torch.device("cpu"),
        "get_device_name": "cpu",
        "mem_get_info": (MEMORY_BYTES, MEMORY_BYTES),
        "get_device_properties": properties,
        "get_device_capability": (0, 0),
    }
    for name, answer in answers.items():
        setattr(made, name, lambda *_, _answer=answer, **__: _answer)
    setattr(made, "get_rng_state", lambda *_: torch.get_rng_state())  # noqa: B010
    setattr(made, "device", contextlib.nullcontext)  # noqa: B010
    return made


_DEVICE = _device_module()


@PlatformRegistry.register(platform="cpu")
class PlatformCpu(PlatformBase):
    """What verl asks of a platform."""

    device_name = property(lambda self: "cpu")
    vendor_name = property(lambda self: "cpu")
    device_module = property(lambda self: _DEVICE)

    def is_available(self) -> bool:
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        return False  # only where VERL_PLATFORM asks for it

    def current_device(self) -> torch.device:
        return torch.device("cpu")

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None: ...

    def synchronize(self, device_index: int | None = None) -> None: ...

    def manual_seed(self, seed: int) -> None: ...

    def manual_seed_all(self, seed: int) -> None: ...

    def set_allocator_settings(self, settings: Any) -> None: ...

    def empty_cache(self) -> None: ...

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    @contextlib.contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def profiler_start(self) -> None: ...

    def profiler_stop(self) -> None: ...

    def ray_resource_name(self) -> str:
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return ["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"]

    def ray_resource_options(self, num: float) -> dict[str, float]:
        return {"num_gpus": num}

    def is_ipc_supported(self) -> bool:
        return False  # verl then takes shared memory

    def cudart(self) -> None: ...

    def rollout_env_vars(self) -> dict[str, str]:
        return {}

    def get_collective_module(self) -> None: ...


def _init_once(backend: Any = None, *arguments: Any, **options: Any) -> Any:
    """verl asks for "cpu:gloo,cpu:gloo", and torch refuses a device twice."""
    if isinstance(backend, str) and backend.startswith("cpu:gloo,cpu:"):
        backend = "gloo"
    if getattr(options.get("device_id"), "type", None) == "cpu":
        options.pop("device_id")
    return _init_process_group(backend, *arguments, **options)


_init_process_group = dist.init_process_group
dist.init_process_group = _init_once


class _AfterImport(MetaPathFinder):
    """Calls a hook of its own after a module has been loaded."""

    hooks: ClassVar[dict[str, Callable[[Any], None]]] = {}

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        if fullname not in self.hooks:
            return None
        hook, spec = self.hooks.pop(fullname), importlib.util.find_spec(fullname)
        assert spec is not None
        assert spec.loader is not None
        load = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            load(module)
            hook(module)

        spec.loader.exec_module = exec_module
        return spec


def _copy_buckets(module: Any) -> None:
    """On a CPU a received bucket is the shared memory itself, which vLLM still holds when it is closed: give copies."""
    receive = module.BucketedWeightReceiver.receive_weights

    def receive_weights(self: Any, on_bucket_received: Callable[..., Any]) -> Any:
        return receive(self, lambda named, last: on_bucket_received([(n, t.clone()) for n, t in named], last))

    module.BucketedWeightReceiver.receive_weights = receive_weights


def _keep_weights(module: Any) -> None:
    """vLLM's CPU build packs every linear and frees its weight, so verl's load_weights fails: keep plain products."""

    def dispatch_cpu_unquantized_gemm(layer: Any, remove_weight: bool) -> None:
        if layer.weight.is_meta or layer.weight.ndim == 2:
            layer.cpu_linear = torch.nn.functional.linear

    module.dispatch_cpu_unquantized_gemm = dispatch_cpu_unquantized_gemm


_AfterImport.hooks |= {
    "verl.workers.rollout.vllm_rollout.bucketed_weight_transfer": _copy_buckets,
    "vllm.model_executor.layers.utils": _keep_weights,
}
sys.meta_path.insert(0, _AfterImport())
for _name in [name for name in _AfterImport.hooks if name in sys.modules]:
    _AfterImport.hooks.pop(_name)(sys.modules[_name])
