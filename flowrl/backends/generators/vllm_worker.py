"""What runs inside a vLLM worker: weights replaced in place, the KV cache freed and made again.

vLLM mixes `WeightExtension` into its worker class (`worker_extension_cls`) and `collective_rpc` calls its methods, so
`self` is vLLM's worker. Takes full parameters under Hugging Face names; knows nothing of versions, requests or roles.

Why it is more than `load_weights` (vLLM 0.32): on the CPU linear weights are packed for the kernels when a model is
loaded and the plain ones dropped, so new ones must go through the layerwise reload, which unpacks, loads and packs
layer by layer. It packs only layers that got weights of their own: a tied `lm_head` would keep its old packed copy and
give the old logits, silently, so it is packed again here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch

from flowrl.backends.contract import Bytes, TensorSpec

ADAPTER = 1
"""Number of the adapter of an engine that has one."""


class WeightExtension:
    """Methods of every vLLM worker of a FlowRL engine. Names carry the prefix `flowrl_`: vLLM refuses name clashes."""

    model_runner: Any
    vllm_config: Any

    def flowrl_read_weights(self, manifest: Sequence[TensorSpec], buffer: Bytes) -> tuple[str, ...]:
        """Replace every parameter by the one in `buffer`; returns the engine's names that got nothing.

        The engine must be between steps. After an exception the model holds meta tensors and cannot be used.
        """
        from vllm.config import set_current_vllm_config
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

        model = self.model_runner.get_model()
        wanted = {name for name, _ in model.named_parameters()}
        with set_current_vllm_config(self.vllm_config), torch.no_grad():
            initialize_layerwise_reload(model)
            loaded = model.load_weights(_tensors(manifest, buffer))
            finalize_layerwise_reload(model, self.vllm_config.model_config)
        _pack_tied_heads(model)
        return tuple(sorted(wanted - loaded))

    def flowrl_start_adapter(self, rank: int) -> None:
        """An adapter of zeros, so that requests name one from the first on and go on with it when it changes."""
        self.model_runner.lora_manager.add_dummy_lora(adapter_request(), rank)

    def flowrl_read_adapter(
        self, manifest: Sequence[TensorSpec], buffer: Bytes, rank: int, alpha: Any
    ) -> tuple[str, ...]:
        """Replace the adapter by the one in `buffer`; returns names of layers that the engine has no adapter for."""
        from vllm.lora.lora_model import LoRAModel
        from vllm.lora.peft_helper import PEFTHelper

        manager = self.model_runner.lora_manager._adapter_manager
        mapper = getattr(manager.model, "hf_to_vllm_mapper", None)
        tensors = {_peft_name(name): tensor.clone() for name, tensor in _tensors(manifest, buffer)}
        made = LoRAModel.from_lora_tensors(
            ADAPTER,
            tensors,
            PEFTHelper(r=rank, lora_alpha=alpha, target_modules=[]),
            device="cpu",
            dtype=manager.lora_config.lora_dtype,
            weights_mapper=None if mapper is None else mapper.get_rename_mapper(),
        )
        missing = tuple(sorted(set(made.loras) - _adaptable(manager)))
        manager.remove_adapter(ADAPTER)
        manager.add_adapter(made)
        manager.activate_adapter(ADAPTER)
        return missing

    def flowrl_log_probs_of(self, temperature: float | None) -> None:
        """Which distribution the reported log-probs are of: softmax(logits / temperature) over the whole vocabulary;
        None: what the engine itself samples from (`processed_logprobs`)."""
        sampler = self.model_runner.sampler
        mode = "processed_logprobs" if temperature is None else "raw_logprobs"
        sampler.logprobs_mode = sampler.topk_topp_sampler.logprobs_mode = mode
        sampler.compute_logprobs = partial(_log_probs, temperature=temperature or 1.0)

    def flowrl_free_cache(self) -> int:
        """Give the KV cache's memory back; returns the bytes. Views on the storages stay valid but empty."""
        self._flowrl_sizes = [(storage, storage.nbytes()) for storage in _storages(self.model_runner.kv_caches)]
        for storage, _ in self._flowrl_sizes:
            storage.resize_(0)
        return sum(nbytes for _, nbytes in self._flowrl_sizes)

    def flowrl_make_cache(self) -> None:
        """Make the KV cache again, zeroed."""
        for storage, nbytes in self._flowrl_sizes:
            storage.resize_(nbytes)
            torch.tensor([], dtype=torch.uint8).set_(storage).zero_()
        self._flowrl_sizes = []


def adapter_request() -> Any:
    """How a request names the engine's one adapter, which comes from a weight buffer and from no folder."""
    from vllm.lora.request import LoRARequest

    return LoRARequest("flowrl", ADAPTER, "from-a-weights-edge")


def _peft_name(name: str) -> str:
    """`….q_proj.lora_a` as vLLM reads it in a checkpoint of an adapter."""
    layer, _, part = name.rpartition(".")
    return f"base_model.model.{layer}.lora_{part[-1].upper()}.weight"


def _adaptable(manager: Any) -> set[str]:
    """Names of the layers beside which the engine can keep an adapter; of joined ones (qkv_proj) what they join."""
    found: set[str] = set()
    for name in manager.modules:
        parent, _, last = name.rpartition(".")
        parts = manager.packed_modules_mapping.get(last, [last])
        found |= {f"{parent}.{part}" if parent else part for part in parts}
    return found


def _log_probs(logits: torch.Tensor, *, temperature: float) -> torch.Tensor:
    """In place of Sampler.compute_logprobs, which gets the logits as the model made them in `raw_logprobs` mode and as
    they were sampled from in `processed_logprobs` mode (temperature is 1 here then)."""
    return (logits.float() / temperature).log_softmax(dim=-1)


def _tensors(manifest: Sequence[TensorSpec], buffer: Bytes) -> Iterator[tuple[str, torch.Tensor]]:
    """Views on the buffer. The layerwise loader keeps them until a layer is whole; the buffer stays until then."""
    flat = torch.from_numpy(buffer)
    for spec in manifest:
        raw = flat[spec.offset : spec.offset + spec.nbytes]
        yield spec.name, raw.view(getattr(torch, spec.dtype)).view(spec.shape)


def _pack_tied_heads(model: torch.nn.Module) -> None:
    """Pack the embedding and head again from their plain weight. Only the CPU build packs (`cpu_linear`)."""
    from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

    for module in model.modules():
        if isinstance(module, VocabParallelEmbedding) and hasattr(module, "cpu_linear"):
            module.quant_method.process_weights_after_loading(module)


def _storages(caches: Sequence[Any]) -> list[torch.UntypedStorage]:
    tensors = [tensor for cache in caches for tensor in (cache if isinstance(cache, list | tuple) else [cache])]
    return list({tensor.untyped_storage().data_ptr(): tensor.untyped_storage() for tensor in tensors}.values())
