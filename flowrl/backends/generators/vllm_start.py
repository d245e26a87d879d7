"""Starting a vLLM engine in this process, and stopping it: what is set before vLLM is loaded, and what it may say.

Takes a RankSetup and engine arguments; gives an engine, or diagnostics FR0846 to FR0848. Knows no requests.
"""

from __future__ import annotations

import os
import socket
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

import torch

from flowrl.backends.contract import RankSetup
from flowrl.backends.generators.vllm_settings import engine_place, environment, is_cpu
from flowrl.diag.diagnostic import FlowError, InternalError, diagnose
from flowrl.diag.near import near_names


def start_engine(setup: RankSetup, arguments: dict[str, Any]) -> Any:
    """The engine, or FlowError FR0846 to FR0848."""
    os.environ.update(environment(setup.device, setup.threads))
    if is_cpu(setup.device):
        torch.set_num_threads(setup.threads)
        _switch_off_compiler()
    name, span = setup.role.name, setup.role.spans.get("backend", setup.role.span)
    with _quiet_start():
        try:
            import vllm
            from vllm import EngineArgs, LLMEngine
        except ImportError as error:
            raise FlowError(diagnose("FR0847", span, role=name, reason=last_line(error))) from error
        _check_keys(setup, {one.name for one in fields(EngineArgs)}, vllm.__version__)
        try:
            return LLMEngine.from_engine_args(EngineArgs(**arguments), enable_multiprocessing=False)
        except Exception as error:
            notes = [line for line in str(error).splitlines() if line.strip()][:8]
            facts = {"role": name, "rank": setup.rank, "reason": f"{type(error).__name__}"}
            raise FlowError(diagnose("FR0848", span, notes=notes, **facts)) from error


@contextmanager
def _quiet_start() -> Iterator[None]:
    """vLLM looks at every attribute of every loaded module, a deprecated one of torch among them, and on a CPU replaces
    `torch.set_num_threads` by a function that does nothing."""
    set_num_threads = torch.set_num_threads
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=r"`torch\.distributed\.reduce_op`", category=FutureWarning)
            yield
    finally:
        torch.set_num_threads = set_num_threads


def _switch_off_compiler() -> None:
    """The environment variable counts only if torch's compiler was not loaded before."""
    dynamo: Any = sys.modules.get("torch._dynamo")
    if dynamo is not None:
        dynamo.config.disable = True


def _check_keys(setup: RankSetup, known: set[str], version: str) -> None:
    unknown = sorted(set(setup.role.engine.extra) - known)
    if not unknown:
        return
    near = {key: near_names(key, known) for key in unknown}
    raise FlowError(
        diagnose(
            "FR0846",
            engine_place(setup, key),
            role=setup.role.name,
            key=key,
            version=version,
            near=_near_text(near[key]),
        )
        for key in unknown
    )


def _near_text(names: Sequence[str]) -> str:
    return f"keys with near names exist: {', '.join(names)}" if names else "no key has a near name"


def name_ranks(setup: RankSetup) -> Any:
    """Tell vLLM which ranks make one engine. Ranks are numbered replica by replica; each replica has a store of its
    own, whose port its first rank picks and the role's store passes on. Gives that store: rank 0 serves it while it is
    kept."""
    from torch.distributed import TCPStore

    if setup.store_port is None:
        raise InternalError("ranks of one engine need a store")
    replica, part = divmod(setup.rank, setup.layout.tp)
    store = TCPStore(setup.store_host, setup.store_port, setup.world_size, setup.rank == 0, wait_for_workers=False)
    if part == 0:
        store.set(f"vllm/{replica}", f"{setup.store_host}:{_free_port(setup.store_host)}")
    host, port = store.get(f"vllm/{replica}").decode().rsplit(":", 1)
    os.environ.update(
        RANK=str(part), LOCAL_RANK="0", WORLD_SIZE=str(setup.layout.tp), MASTER_ADDR=host, MASTER_PORT=port
    )
    return store


def _free_port(host: str) -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def stop_engine(engine: Any) -> None:
    """Shut an engine down, and forget the process groups that vLLM keeps in its modules: the next engine makes its own.
    Its memory goes with the last reference to it, which is the caller's."""
    from vllm.distributed.parallel_state import destroy_distributed_environment, destroy_model_parallel

    engine.engine_core.shutdown()
    destroy_model_parallel()
    destroy_distributed_environment()


def last_line(error: BaseException) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1].strip()}" if lines else type(error).__name__
