"""One rank of the measurement of collectives: `python -m flowrl.runtime.measure.rank STORE RANK SIZE BACKEND SECONDS`.

Rank 0 prints a JSON list of [bytes, seconds] lists: repeats of an all-reduce of each size.
"""

from __future__ import annotations

import json
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

SIZES = (2**10, 2**14, 2**18, 2**22, 2**24)
QUICK_SIZES = (2**10, 2**18, 2**22)
JOIN_SECONDS = 60
REPEATS = 15


def main() -> None:
    store, rank, size, backend, quick = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5]
    torch.set_num_threads(1)
    device = torch.device("cpu")
    if backend == "nccl":
        device = torch.device("cuda", rank)
        torch.cuda.set_device(device)
    dist.init_process_group(
        backend, init_method=f"file://{store}", rank=rank, world_size=size, timeout=timedelta(seconds=JOIN_SECONDS)
    )
    found = [[count, _repeats(count, device)] for count in (QUICK_SIZES if quick == "quick" else SIZES)]
    if rank == 0:
        sys.stdout.write(json.dumps(found))
    dist.destroy_process_group()


def _repeats(count: int, device: torch.device) -> list[float]:
    data = torch.zeros(count // 4, device=device)
    found: list[float] = []
    for repeat in range(REPEATS + 2):
        dist.barrier()
        start = time.perf_counter()
        dist.all_reduce(data)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        if repeat > 1:
            found.append(time.perf_counter() - start)
    return found


if __name__ == "__main__":
    main()
