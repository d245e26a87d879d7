"""Peak memory of an FSDP2 trainer without a GPU: torch's FSDPMemTracker on fake tensors in a group of fake processes.

    python benchmarks/trace_memory.py qwen3 --layers 8 --world 8 --seq 4096 --recompute full --keep-gathered

Prints one JSON object: the configuration, parameters and the peak of forward and backward in the second step, when the
optimizer's states are there. References for tests/placement/fsdp_memory_ways.json. Counted is what tensors hold: no
CUDA context, no NCCL, no workspace of kernels, no fragmentation, and not the optimizer's own peak. Figures were not
compared with a GPU. Traps: the mesh must be made outside of fake mode; Hugging Face would build a mask of seq x seq for
each layer, so attention and mask are our own; the tracker's peak is cumulative, so it is reset before each step.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig

SHAPES: dict[str, dict[str, Any]] = {
    "qwen2": {"hidden_size": 1536, "num_attention_heads": 12, "num_key_value_heads": 2, "intermediate_size": 8960},
    "qwen3": {"hidden_size": 2560, "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 9728}
    | {"head_dim": 128},
    "llama": {"hidden_size": 2048, "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 8192},
    "qwen3_moe": {"hidden_size": 2048, "num_attention_heads": 32, "num_key_value_heads": 4, "intermediate_size": 6144}
    | {"head_dim": 128, "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768},
}
VOCAB = 151_936
PLAN = {
    **dict.fromkeys(("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), ColwiseParallel()),
    **dict.fromkeys(("mlp.gate_proj", "mlp.up_proj"), ColwiseParallel()),
    **dict.fromkeys(("self_attn.o_proj", "mlp.down_proj"), RowwiseParallel()),
}

ENDS = {
    "model.embed_tokens": RowwiseParallel(input_layouts=Replicate()),
    "lm_head": ColwiseParallel(output_layouts=Replicate()),
}


def _attention(module: Any, q: Any, k: Any, v: Any, mask: Any = None, *, scaling: Any = None, **rest: Any) -> Any:
    """The flash kernel's memory by its meta implementation: it keeps its inputs, its output and a log-sum-exp."""
    out = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, True, False, scale=scaling)[0]
    return out.transpose(1, 2).contiguous(), None


def _config(model: str, layers: int, tied: bool) -> PretrainedConfig:
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register("meta", _attention)
    ALL_MASK_ATTENTION_FUNCTIONS.register("meta", lambda *a, **k: None)
    config = AutoConfig.for_model(
        model,
        **SHAPES[model],
        num_hidden_layers=layers,
        vocab_size=VOCAB,
        tie_word_embeddings=tied,
        max_position_embeddings=65536,
        use_cache=False,
    )
    config._attn_implementation = "meta"
    return config


def _mesh(options: argparse.Namespace) -> tuple[DeviceMesh, DeviceMesh | None]:
    """Of FSDP, and of tensor parallelism."""
    if options.tp > 1:
        mesh = init_device_mesh("cpu", (options.world // options.tp, options.tp), mesh_dim_names=("dp", "tp"))
        return mesh["dp"], mesh["tp"]
    if options.shard:
        return init_device_mesh(
            "cpu", (options.world // options.shard, options.shard), mesh_dim_names=("copies", "shards")
        ), None
    return init_device_mesh("cpu", (options.world,)), None


def _real_meshes() -> None:
    """With tp FSDP makes a mesh of its own, which reads coordinates from a tensor: that must be a real one."""
    init = DeviceMesh.__init__

    def outside(self: DeviceMesh, *args: Any, **keys: Any) -> None:
        with unset_fake_temporarily():
            init(self, *args, **keys)

    DeviceMesh.__init__ = outside


def _model(options: argparse.Namespace, mesh: DeviceMesh, tp: DeviceMesh | None) -> torch.nn.Module:
    config = _config(options.model, options.layers, options.tied)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16 if options.bf16_weights else torch.float32)
    if options.recompute == "full":
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if options.frozen:
        _freeze(model, options.frozen)
    model.train()
    if tp is not None:
        for layer in model.model.layers:
            parallelize_module(layer, tp, PLAN)
        parallelize_module(model, tp, ENDS)
    reduce = torch.bfloat16 if options.bf16_gradients else torch.float32
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=reduce)
    said = {"mesh": mesh, "mp_policy": policy, "reshard_after_forward": not options.keep_gathered}
    for layer in model.model.layers:
        fully_shard(layer, **said)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    return model


class _Adapter(torch.nn.Module):
    def __init__(self, base: torch.nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base
        self.down = torch.nn.Linear(base.in_features, rank, bias=False, dtype=base.weight.dtype)
        self.up = torch.nn.Linear(rank, base.out_features, bias=False, dtype=base.weight.dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.up(self.down(x))


def _freeze(model: torch.nn.Module, rank: int) -> None:
    """All weights but low-rank adapters beside the linear layers of the decoder."""
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    for block in [m for m in model.model.layers.modules() if any(isinstance(c, torch.nn.Linear) for c in m.children())]:
        for name, child in list(block.named_children()):
            if isinstance(child, torch.nn.Linear) and not isinstance(block, _Adapter):
                setattr(block, name, _Adapter(child, rank))


def _loss(model: torch.nn.Module, ids: torch.Tensor, kind: str) -> torch.Tensor:
    if kind == "last":
        return model(input_ids=ids, use_cache=False, logits_to_keep=1).logits.float().mean()
    logits = model(input_ids=ids, use_cache=False).logits
    logits = logits.float() if kind == "hf" else logits
    width = logits.size(-1)
    return torch.nn.functional.cross_entropy(logits[:, :-1].reshape(-1, width), ids[:, 1:].reshape(-1))


def peak(options: argparse.Namespace) -> dict[str, Any]:
    """The configuration and its peak in GiB."""
    dist.init_process_group("fake", rank=0, world_size=options.world, store=FakeStore())
    _real_meshes()
    mesh, tp = _mesh(options)
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = _model(options, mesh, tp)
        count = sum(p.numel() for p in model.parameters())
        trained = [p for p in model.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(trained, lr=1e-4, foreach=False)
        ids = torch.randint(0, VOCAB, (options.mb, options.seq))
        tracker = FSDPMemTracker(model, optimizer)
        tracker.track_inputs((ids,))
        with tracker:
            for _ in range(2):
                tracker.reset_mod_stats()
                tracker._peak_mem_snap = tracker.get_tracker_snapshot()
                tracker._peak_mem = {device: snap["Total"] for device, snap in tracker._peak_mem_snap.items()}
                for turn in range(options.accum):
                    _loss(model, ids, options.loss).backward()
                    if turn + 1 < options.accum:
                        tracker.reset_mod_stats()
                found = _by_kind(tracker)
                optimizer.step()
                optimizer.zero_grad()
    return {
        **{key: value for key, value in vars(options).items() if value},
        "params": count,
        "trained": sum(p.numel() for p in trained),
        "peak_GiB": round(found["Total"] / 2**30, 3),
        "breakdown_GiB": {key: round(v / 2**30, 3) for key, v in found.items() if v and key != "Total"},
    }


def _by_kind(tracker: FSDPMemTracker) -> dict[str, int]:
    """Bytes of the peak by what they are for."""
    snaps = tracker.get_tracker_snapshot("peak").values()
    return {str(getattr(kind, "value", kind)): value for snap in snaps for kind, value in snap.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description="Peak memory of an FSDP2 trainer on fake tensors.")
    parser.add_argument("model", choices=list(SHAPES))
    for name, default in (("layers", 8), ("world", 8), ("seq", 4096), ("mb", 1), ("accum", 1), ("tp", 1), ("shard", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--frozen", type=int, default=0, metavar="RANK", help="train adapters of this rank alone")
    parser.add_argument("--recompute", choices=("none", "full"), default="none")
    parser.add_argument("--loss", choices=("hf", "bf16", "last"), default="hf")
    for name in ("keep-gathered", "bf16-weights", "bf16-gradients", "tied"):
        parser.add_argument(f"--{name}", action="store_true")
    print(json.dumps(peak(parser.parse_args())))  # noqa: T201


if __name__ == "__main__":
    main()
