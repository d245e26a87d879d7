from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, DynamicCache

from flowrl.backends.generators.cache import LEAST_HEADROOM_TOKENS, roomy_cache
from tests.backends.tiny import make_tiny


def test_it_is_transformers_cache_to_the_last_bit(tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(make_tiny(tmp_path / "m", max_positions=128)).eval()
    torch.manual_seed(0)
    caches = [roomy_cache(model.config), DynamicCache(config=model.config)]

    def step(ids: torch.Tensor) -> None:
        with torch.inference_mode():
            one, other = (model(input_ids=ids, past_key_values=cache, use_cache=True).logits for cache in caches)
        assert torch.equal(one, other)

    step(torch.randint(90, (2, 5)))
    for cache in caches:
        cache.batch_repeat_interleave(3)
    for _ in range(2 * LEAST_HEADROOM_TOKENS):
        step(torch.randint(90, (6, 1)))
    for cache in caches:
        cache.batch_select_indices(torch.tensor([0, 3, 4]))
    for _ in range(5):
        step(torch.randint(90, (3, 1)))
    for layer, plain in zip(caches[0].layers, caches[1].layers, strict=True):
        assert torch.equal(layer.keys, plain.keys)
        assert torch.equal(layer.values, plain.values)
        assert layer.get_seq_length() == plain.get_seq_length() == 5 + 2 * LEAST_HEADROOM_TOKENS + 5
