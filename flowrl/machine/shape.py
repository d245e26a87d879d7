"""ModelShape: the numbers of a decoder that memory and time are made from. A value; reads nothing."""

from __future__ import annotations

from dataclasses import dataclass

DTYPE_BYTES: dict[str, int] = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A pre-norm decoder with rotary positions, grouped-query attention and a gated feed-forward (SwiGLU) of three
    matrices: the Llama, Mistral, Qwen2, Qwen3 and Qwen3-MoE families. Counts are numbers of parameters."""

    name: str
    origin: str
    """Where the numbers come from: `card Qwen/…`, `FOLDER/config.json` or `inline shape`."""
    architecture: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    """Width of the feed-forward, of one expert in a mixture of experts."""
    vocab: int
    max_positions: int
    tied: bool
    head: str = "lm"
    """lm: logits over the vocabulary; scalar: one number per token; denoiser: noise of an image."""
    qkv_bias: bool = False
    output_bias: bool = False
    ffn_bias: bool = False
    qk_norm: bool = False
    experts: int = 0
    """0: a dense feed-forward."""
    experts_per_token: int = 0
    vision_parameters: int = 0
    """Of an image encoder beside the decoder. Its time and activations are not modelled: an image's tokens count as
    tokens of the prompt."""

    @property
    def own_positions(self) -> bool:
        """Whether `max_positions` is this model's own: the ids of one card share a shape, but not always that number
        (a base model and its instruction-tuned one)."""
        return not self.origin.startswith("card ")

    @property
    def q_width(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        return self.kv_heads * self.head_dim

    @property
    def expert_parameters(self) -> int:
        """One expert, or the dense feed-forward: gate, up and down."""
        bias = 2 * self.ffn + self.hidden if self.ffn_bias else 0
        return 3 * self.hidden * self.ffn + bias

    @property
    def attention_parameters(self) -> int:
        weights = self.hidden * (2 * self.q_width + 2 * self.kv_width)
        bias = (self.q_width + 2 * self.kv_width if self.qkv_bias else 0) + (self.hidden if self.output_bias else 0)
        return weights + bias + (2 * self.head_dim if self.qk_norm else 0)

    @property
    def layer_parameters(self) -> int:
        """One decoder layer with its two norms, all its experts and their router."""
        router = self.experts * self.hidden
        return self.attention_parameters + max(1, self.experts) * self.expert_parameters + router + 2 * self.hidden

    @property
    def head_parameters(self) -> int:
        """The output matrix, 0 if it is the embedding."""
        if self.head == "scalar":
            return self.hidden
        return 0 if self.tied else self.vocab * self.hidden

    @property
    def root_parameters(self) -> int:
        """What is in no decoder layer: embedding, output head, last norm, image encoder."""
        return self.vocab * self.hidden + self.head_parameters + self.hidden + self.vision_parameters

    @property
    def parameters(self) -> int:
        return self.layers * self.layer_parameters + self.root_parameters

    @property
    def active_parameters(self) -> int:
        """Parameters that one token meets: all of a dense model, the chosen experts of a mixture."""
        idle = (self.experts - self.experts_per_token) * self.expert_parameters if self.experts else 0
        return self.parameters - self.layers * idle

    @property
    def multiplied_parameters(self) -> int:
        """Active parameters that a token is multiplied with: an embedding is looked up, unless it is the head too."""
        looked_up = 0 if self.tied and self.head == "lm" else self.vocab * self.hidden
        return self.active_parameters - looked_up - self.vision_parameters

    @property
    def largest_tensor(self) -> int:
        """The largest single parameter: usually the embedding."""
        return max(self.vocab * self.hidden, self.hidden * self.ffn, self.hidden * self.q_width)

    @property
    def output_width(self) -> int:
        """Outputs per token: the vocabulary, or 1 for a scalar head."""
        return self.vocab if self.head == "lm" else 1

    def kv_bytes_per_token(self, dtype_bytes: int, tp: int = 1) -> int:
        """Keys and values of one token in all layers, on one of `tp` devices. With more devices than key-value heads
        each device holds one whole head (vLLM replicates them)."""
        return 2 * self.layers * max(1, self.kv_heads // tp) * self.head_dim * dtype_bytes
