"""The ranks of a role, each in a process of its own."""

from __future__ import annotations

import multiprocessing as mp
import socket
import traceback
from collections.abc import Callable
from typing import Any


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def in_processes(work: Callable[..., dict[str, Any]], ranks: int, *arguments: Any) -> list[dict[str, Any]]:
    """What `work(rank, *arguments)` returns in each of `ranks` processes. Raises what a rank raised. All are forked
    from one process that has imported the module of `work` and done nothing else, so that it is imported once."""
    context = mp.get_context("forkserver")
    context.set_forkserver_preload([work.__module__])
    results = context.Queue()
    processes = [context.Process(target=_run, args=(work, rank, arguments, results)) for rank in range(ranks)]
    for process in processes:
        process.start()
    try:
        found = [results.get(timeout=900) for _ in processes]
    finally:
        for process in processes:
            process.join(timeout=5)
            if process.is_alive():
                process.kill()
    failures = [failure for _, _, failure in found if failure]
    if failures:
        raise AssertionError("\n".join(failures))
    return [made for _, made, _ in sorted(found, key=lambda item: item[0])]


def _run(work: Callable[..., dict[str, Any]], rank: int, arguments: tuple[Any, ...], results: Any) -> None:
    try:
        results.put((rank, work(rank, *arguments), None))
    except BaseException as error:
        results.put((rank, {}, traceback.format_exc() + repr(error)))
