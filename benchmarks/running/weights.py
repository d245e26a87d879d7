"""Hand-over of a 135-million-parameter model: from a trainer's shards to bytes that an engine can read.

A real trainer (FSDP2, float32 masters, bfloat16 published) writes into a real shared buffer; a plain copy of as many
bytes, from memory to memory that both were touched before, is the measure. One rank, then two gloo ranks at once.
"""

from __future__ import annotations

import multiprocessing as mp
import socket
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.searching.outcome import Outcome
from flowrl.runtime.weights import SharedBuffer, buffer_bytes

LEAST = 0.5
"""Of the rate of a plain copy."""
REPEATS, QUICK_REPEATS = 12, 5
SHAPE = {
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "tie_word_embeddings": True,
}
"""Of SmolLM2-135M; weights are random."""
JOIN_SECONDS = 240.0


def section(quick: bool = False) -> Outcome:
    out = Outcome("hand-over of weights, 135 million parameters")
    repeats = QUICK_REPEATS if quick else REPEATS
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        made = mp.get_context("spawn").Process(target=_make_model, args=(folder,))
        made.start()
        made.join(JOIN_SECONDS)
        for ranks in (1, 2):
            _measure(out, folder, ranks, repeats)
    return out


def _measure(out: Outcome, folder: Path, ranks: int, repeats: int) -> None:
    found = _run_ranks(folder, ranks, repeats)
    size = found[0]["bytes"]
    writes = [max(r["ends"][n] for r in found) - min(r["starts"][n] for r in found) for n in range(repeats)]
    write, plain = statistics.median(writes), statistics.median(found[0]["plain"])
    read = statistics.median(found[0]["reads"])
    ratio = plain / write
    out.lines.append(
        f"{ranks} rank{'s' * (ranks > 1)}, {size / 1e6:.0f} MB: written in {write * 1e3:.1f} ms"
        f" ({size / write / 1e9:.1f} GB/s), plain copy {plain * 1e3:.1f} ms ({size / plain / 1e9:.1f} GB/s);"
        f" taken in by a generator in {read * 1e3:.1f} ms (not counted); checksums agree: {found[0]['right']}"
    )
    out.rows.append({"ranks": ranks, "bytes": size, "write": write, "copy": plain, "read": read, "ratio": ratio})
    demand = f"at least {LEAST:.0%} of a plain copy's"
    out.bar(f"rate with {ranks} rank{'s' * (ranks > 1)}", f"{ratio:.0%}", demand, ratio >= LEAST and found[0]["right"])


def _run_ranks(folder: Path, ranks: int, repeats: int) -> list[dict[str, Any]]:
    context = mp.get_context("spawn")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    told, names = context.Queue(), [context.Queue() for _ in range(ranks)]
    barrier = context.Barrier(ranks)
    processes = [
        context.Process(target=_rank, args=(folder, rank, ranks, port, repeats, barrier, told, names))
        for rank in range(ranks)
    ]
    for process in processes:
        process.start()
    try:
        found = [told.get(timeout=JOIN_SECONDS) for _ in processes]
    finally:
        for process in processes:
            process.join(5.0)
            with suppress(Exception):
                process.kill()
    return sorted(found, key=lambda each: each["rank"])


def _make_model(folder: Path) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    made: Any = LlamaForCausalLM(LlamaConfig(**SHAPE))
    made.to(torch.bfloat16).save_pretrained(str(folder))


def _rank(
    folder: Path, rank: int, ranks: int, port: int, repeats: int, barrier: Any, told: Any, names: list[Any]
) -> None:
    trainer = _trainer(folder, rank, ranks, port)
    manifest = trainer.manifest()
    if rank == 0:
        buffer = SharedBuffer.create(buffer_bytes(manifest), slots=2, writers=ranks)
        for queue in names[1:]:
            queue.put(buffer.name)
    else:
        buffer = SharedBuffer.open(names[rank].get(timeout=JOIN_SECONDS))
    found: dict[str, Any] = {"rank": rank, "bytes": buffer.nbytes, "starts": [], "ends": []}
    for version in range(1, repeats + 3):  # the first two touch the slots' pages
        barrier.wait(JOIN_SECONDS)
        found["starts"].append(time.monotonic())
        with buffer.writing(version, rank) as slot:
            trainer.write_weights(slot)
        found["ends"].append(time.monotonic())
    barrier.wait(JOIN_SECONDS)
    found["starts"], found["ends"] = found["starts"][2:], found["ends"][2:]
    if rank == 0:
        version = repeats + 2
        found |= {"plain": _plain(buffer.nbytes, repeats), "reads": _reads(folder, manifest, buffer, version, repeats)}
        found["right"] = _is_right(folder, manifest, buffer, version)
    told.put(found)
    barrier.wait(JOIN_SECONDS)
    trainer.close()
    buffer.close()


def _trainer(folder: Path, rank: int, ranks: int, port: int) -> Any:
    from flowrl.backends.contract import RankSetup
    from flowrl.backends.registry import make_rank
    from flowrl.graph.graph import Kind, Model, Role
    from flowrl.graph.params import OptimizerParams
    from flowrl.plan.plan import Layout

    role = Role(name="actor_train", kind=Kind.TRAINER, backend="fsdp", optimizer=OptimizerParams(name="sgd"))
    model = Model(name="m", source=str(folder), dtype="bfloat16")
    return make_rank(
        RankSetup(
            role=role,
            model=model,
            model_folder=folder,
            layout=Layout(dp=ranks),
            rank=rank,
            world_size=ranks,
            threads=max(1, 2 // ranks),
            store_port=port if ranks > 1 else None,
        )
    )


def _plain(size: int, repeats: int) -> list[float]:
    source, target = np.ones(size, dtype=np.uint8), np.zeros(size, dtype=np.uint8)
    return _timed(lambda: np.copyto(target, source), repeats)


def _reads(folder: Path, manifest: Any, buffer: SharedBuffer, version: int, repeats: int) -> list[float]:
    """Into the parameters of a transformers model, as the generator `hf` takes them in."""
    import torch
    from transformers import AutoModelForCausalLM

    from flowrl.backends.weights import read_into

    model: Any = AutoModelForCausalLM.from_pretrained(str(folder), dtype=torch.bfloat16)
    parameters = dict(model.named_parameters())

    def read() -> None:
        with buffer.reading(version) as slot:
            read_into(parameters, manifest, slot)

    return _timed(read, repeats)


def _is_right(folder: Path, manifest: Any, buffer: SharedBuffer, version: int) -> bool:
    """Whether the slot holds what the model's file has: nothing was trained in between."""
    import torch
    from safetensors.torch import load_file

    held = load_file(str(folder / "model.safetensors"))
    with buffer.reading(version) as slot:
        return all(
            np.array_equal(
                slot[spec.offset : spec.offset + spec.nbytes],
                held[spec.name].to(torch.bfloat16).contiguous().view(-1).view(torch.uint8).numpy(),
            )
            for spec in manifest
        )


def _timed(work: Callable[[], object], repeats: int) -> list[float]:
    found: list[float] = []
    for _ in range(repeats + 2):
        start = time.monotonic()
        work()
        found.append(time.monotonic() - start)
    return found[2:]
