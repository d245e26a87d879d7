"""ModelShape: the numbers of a decoder that memory and time are made from. A value; reads nothing."""

from __future__ import annotations

from dataclasses import dataclass

from flowrl.machine.attention import DeltaNet, LatentAttention, Mamba2

DTYPE_BYTES: dict[str, int] = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A decoder: layers of attention (grouped-query, latent, windowed, or a recurrent mixer) and a feed-forward (dense
    or a mixture of experts). Counts are numbers of parameters; an auxiliary head for several next tokens is not
    counted."""

    name: str
    origin: str
    """Where the numbers come from: `card Qwen/…`, `FOLDER/config.json` or `inline shape`."""
    architecture: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    """Of a query and a key; with latent attention, both parts together."""
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
    sinks: bool = False
    """One learned logit a head that no value stands behind (GPT-OSS)."""
    output_gate: bool = False
    """A gate beside the queries for the output of attention (Qwen3-Next)."""
    ffn_matrices: int = 3
    """3: gate, up and down; 2: up and down."""
    layer_norms: int = 2
    norm_bias: bool = False
    """Norms with a bias: layer norm, where RMS norm has none."""
    last_norm: bool = True
    learned_positions: int = 0
    """Rows of a table of positions; 0: rotary positions."""
    embedding_width: int = 0
    """Where it is not `hidden`: two matrices lead in and out (OPT-350M). 0: as `hidden`."""
    experts: int = 0
    """0: a dense feed-forward."""
    experts_per_token: int = 0
    shared_ffn: int = 0
    """Width of the experts that every token meets, together."""
    shared_gate: bool = False
    router_bias: bool = False
    dense_layers: int = 0
    """Layers of a mixture of experts whose feed-forward is dense, `dense_ffn` wide."""
    dense_ffn: int = 0
    window: int = 0
    """Tokens that a layer with a sliding window looks back, itself included."""
    windowed_layers: int = 0
    latent: LatentAttention | None = None
    """In place of grouped-query attention."""
    linear: DeltaNet | Mamba2 | None = None
    linear_layers: int = 0
    """Layers with `linear` in place of attention."""
    mixers: int = 0
    """Layers with attention or `linear`, where not each layer has it (Nemotron-H). 0: all."""
    feed_forwards: int = 0
    """Layers with a feed-forward, where not each layer has it. 0: all."""
    vision_parameters: int = 0
    """Of encoders of images or sound beside the decoder. Their time and activations are not modelled: an image's tokens
    count as tokens of the prompt."""

    def __hash__(self) -> int:
        """Of what tells models apart: all that is kept by a shape asks for it."""
        return hash((self.name, self.layers, self.hidden, self.vocab, self.head))

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

    # -- layers by kind -----------------------------------------------------------------------------------------------

    @property
    def sparse_layers(self) -> int:
        """Layers with a mixture of experts."""
        return (self.feed_forwards or self.layers) - self.dense_layers if self.experts else 0

    @property
    def dense_feed_forwards(self) -> int:
        """Layers with one dense feed-forward."""
        return (self.feed_forwards or self.layers) - self.sparse_layers

    @property
    def attention_layers(self) -> int:
        """Layers that cache something of each token, windowed ones too."""
        return (self.mixers or self.layers) - self.linear_layers

    @property
    def full_layers(self) -> int:
        """Layers whose attention reaches back to the first token."""
        return self.attention_layers - self.windowed_layers

    # -- parameters ---------------------------------------------------------------------------------------------------

    def _feed_forward(self, width: int) -> int:
        bias = (self.ffn_matrices - 1) * width + self.hidden if self.ffn_bias else 0
        return self.ffn_matrices * self.hidden * width + bias

    @property
    def norm_parameters(self) -> int:
        """One norm over the hidden state."""
        return self.hidden * (2 if self.norm_bias else 1)

    @property
    def expert_parameters(self) -> int:
        """One expert, or the dense feed-forward of a model without experts."""
        return self._feed_forward(self.ffn)

    @property
    def shared_parameters(self) -> int:
        """What each token meets in a sparse feed-forward: router and shared experts."""
        router = self.experts * (self.hidden + self.router_bias)
        shared = self._feed_forward(self.shared_ffn) if self.shared_ffn else 0
        return router + shared + (self.hidden if self.shared_gate else 0)

    @property
    def sparse_parameters(self) -> int:
        """One sparse feed-forward with all its experts, the shared ones and the router."""
        return self.experts * self.expert_parameters + self.shared_parameters

    @property
    def dense_parameters(self) -> int:
        """One dense feed-forward."""
        return self._feed_forward(self.dense_ffn or self.ffn)

    @property
    def attention_parameters(self) -> int:
        """Attention of one layer, without the norm before it."""
        if self.latent is not None:
            return self.latent.parameters(self.hidden, self.heads)
        gate = self.q_width if self.output_gate else 0
        weights = self.hidden * (2 * self.q_width + gate + 2 * self.kv_width)
        bias = self.q_width + gate + 2 * self.kv_width if self.qkv_bias else 0
        bias += (self.hidden if self.output_bias else 0) + (self.heads if self.sinks else 0)
        return weights + bias + (2 * self.head_dim if self.qk_norm else 0)

    @property
    def linear_parameters(self) -> int:
        """The recurrent mixer of one layer."""
        return 0 if self.linear is None else self.linear.parameters(self.hidden)

    @property
    def layer_kinds(self) -> tuple[tuple[str, int, int], ...]:
        """Kind, number of layers that have it and parameters of one, for the parts of layers: mixers, feed-forwards and
        norms. They add up to all decoder layers."""
        parts = (
            ("attention", self.attention_layers, self.attention_parameters),
            ("linear attention", self.linear_layers, self.linear_parameters),
            ("sparse feed-forward", self.sparse_layers, self.sparse_parameters),
            ("dense feed-forward", self.dense_feed_forwards, self.dense_parameters),
            ("norms", self.layers, self.layer_norms * self.norm_parameters),
        )
        return tuple(part for part in parts if part[1])

    @property
    def layer_parameters(self) -> int:
        """One decoder layer with its norms, all its experts and their router; of the largest kind, which is what a
        trainer that gathers layer by layer must hold."""
        kinds = {kind: count for kind, _, count in self.layer_kinds}
        mixer = max(kinds.get("attention", 0), kinds.get("linear attention", 0))
        feed_forward = max(kinds.get("sparse feed-forward", 0), kinds.get("dense feed-forward", 0))
        split = bool(self.mixers or self.feed_forwards)
        return (max(mixer, feed_forward) if split else mixer + feed_forward) + kinds["norms"]

    @property
    def embedding_parameters(self) -> int:
        """The table of tokens."""
        return self.vocab * (self.embedding_width or self.hidden)

    @property
    def head_parameters(self) -> int:
        """The output matrix, 0 if it is the embedding."""
        if self.head == "scalar":
            return self.embedding_width or self.hidden
        return 0 if self.tied else self.embedding_parameters

    @property
    def root_parameters(self) -> int:
        """What is in no decoder layer: embeddings, output head, last norm, encoders of images and sound."""
        return (
            self.embedding_parameters
            + self.learned_positions * self.hidden
            + 2 * self.embedding_width * self.hidden
            + self.head_parameters
            + (self.norm_parameters if self.last_norm else 0)
            + self.vision_parameters
        )

    @property
    def parameters(self) -> int:
        return sum(layers * each for _, layers, each in self.layer_kinds) + self.root_parameters

    @property
    def expert_parameters_total(self) -> int:
        """All routed experts: what expert parallelism divides. 0 without experts."""
        return self.sparse_layers * self.experts * self.expert_parameters

    @property
    def shared_parameters_total(self) -> int:
        """All that is no routed expert: attention, dense and shared feed-forwards, routers, norms and the root."""
        return self.parameters - self.expert_parameters_total

    @property
    def attention_parameters_total(self) -> int:
        """All mixers, recurrent ones too."""
        return self.attention_layers * self.attention_parameters + self.linear_layers * self.linear_parameters

    @property
    def active_parameters(self) -> int:
        """Parameters that one token meets: all of a dense model, the chosen experts of a mixture."""
        idle = self.experts - self.experts_per_token if self.experts else 0
        return self.parameters - self.sparse_layers * idle * self.expert_parameters

    @property
    def multiplied_parameters(self) -> int:
        """Active parameters that a token is multiplied with: an embedding is looked up, unless it is the head too."""
        looked_up = 0 if self.tied and self.head == "lm" else self.embedding_parameters
        return self.active_parameters - looked_up - self.learned_positions * self.hidden - self.vision_parameters

    @property
    def largest_tensor(self) -> int:
        """The largest single parameter: usually the embedding."""
        return max(self.embedding_parameters, self.hidden * max(self.ffn, self.dense_ffn), self.hidden * self.q_width)

    @property
    def output_width(self) -> int:
        """Outputs per token: the vocabulary, or 1 for a scalar head."""
        return self.vocab if self.head == "lm" else 1

    # -- what a generator keeps of a sequence -------------------------------------------------------------------------

    def layer_cache_bytes(self, dtype_bytes: int, tp: int = 1) -> int:
        """What one layer with attention caches of one token, on one of `tp` devices. With more devices than key-value
        heads each device holds one whole head, and each holds the whole latent (vLLM replicates both)."""
        if self.latent is not None:
            return self.latent.cached * dtype_bytes
        return 2 * max(1, self.kv_heads // tp) * self.head_dim * dtype_bytes

    def kv_bytes_per_token(self, dtype_bytes: int, tp: int = 1) -> int:
        """Keys and values, or latents, of one token in all layers that have attention, on one of `tp` devices: what a
        token adds to a sequence that is not yet longer than a window."""
        return self.attention_layers * self.layer_cache_bytes(dtype_bytes, tp)

    def state_bytes(self, dtype_bytes: int, tp: int = 1) -> int:
        """What recurrent layers keep of one sequence, whatever its length, on one of `tp` devices."""
        return 0 if self.linear is None else self.linear_layers * self.linear.kept_bytes(dtype_bytes, tp)

    def cache_bytes(self, tokens: float, dtype_bytes: int, tp: int = 1) -> float:
        """What is kept of one sequence of `tokens` tokens: full layers cache all, windowed ones the last `window`,
        recurrent ones a state."""
        seen = self.full_layers * tokens + self.windowed_layers * min(tokens, self.window)
        return seen * self.layer_cache_bytes(dtype_bytes, tp) + self.state_bytes(dtype_bytes, tp)

    def cache_words(self, dtype_bytes: int, tp: int = 1) -> str:
        """How `kv_bytes_per_token` is worked out."""
        layers = f"{self.attention_layers} layers"
        if self.latent is not None:
            return f"{layers} * ({self.latent.kv_rank} + {self.latent.rope_dim}) of the latent * {dtype_bytes} bytes"
        heads = max(1, self.kv_heads // tp)
        return f"2 * {layers} * {heads} key-value heads here * {self.head_dim} * {dtype_bytes} bytes"

    # -- FLOPs of attention, beside those of the matrices --------------------------------------------------------------

    def attention_flops(self, context: float, *, decode: bool = False) -> float:
        """Of one token with `context` tokens to attend to, itself included, forward, all layers: scores and values,
        2 * 2 * heads * head_dim * context (Korthikanti et al. 2022, arXiv:2205.05198, appendix A), at most `window`
        tokens in windowed layers; recurrent layers cost the same at any context. `decode`: latents are attended to as
        they are cached."""
        seen = self.full_layers * context + self.windowed_layers * min(context, self.window)
        return self.pair_flops(decode=decode) * seen + self.recurrent_flops

    def pair_flops(self, *, decode: bool = False) -> int:
        """Of a query and a key in all heads of one layer."""
        if self.latent is None:
            return 4 * self.q_width
        return self.latent.decode_flops(self.heads) if decode else self.latent.flops(self.heads)

    @property
    def recurrent_flops(self) -> int:
        """Of one token in all recurrent layers, at any context."""
        return 0 if self.linear is None else self.linear_layers * self.linear.flops()

    def causal_flops(self, tokens: float) -> float:
        """The same summed over a sequence of `tokens` tokens, each attending to those before it and itself."""
        beyond = max(0.0, tokens - self.window)
        near = tokens - beyond
        windowed = near * (near + 1) / 2 + beyond * self.window
        seen = self.full_layers * tokens * (tokens + 1) / 2 + self.windowed_layers * windowed
        return self.pair_flops() * seen + self.recurrent_flops * tokens
