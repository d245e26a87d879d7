"""Mixers of tokens beside grouped-query attention: latent attention, gated delta nets, Mamba 2. Values; read nothing.

Each gives its parameters, what it keeps of a sequence while it generates, and its FLOPs. A multiplication and an
addition are two FLOPs. Knows no layers: how many a model has is in its ModelShape.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, section 2.1): keys and values of all heads are made
    from one latent vector a token, which is all that is cached, with one rotary key that the heads share."""

    q_rank: int = 0
    """Width of the latent of the queries; 0: queries are made from the hidden state."""
    kv_rank: int
    nope_dim: int
    """Of a query and a key in a head, without rotary positions."""
    rope_dim: int
    value_dim: int

    @property
    def cached(self) -> int:
        """Numbers cached of one token in one layer, the same on each device of a tensor-parallel group."""
        return self.kv_rank + self.rope_dim

    def parameters(self, hidden: int, heads: int) -> int:
        """Matrices and the norms of the latents (modeling_deepseek_v3.py, DeepseekV3Attention)."""
        q_width = heads * (self.nope_dim + self.rope_dim)
        queries = hidden * self.q_rank + self.q_rank + self.q_rank * q_width if self.q_rank else hidden * q_width
        down = hidden * (self.kv_rank + self.rope_dim) + self.kv_rank
        up = self.kv_rank * heads * (self.nope_dim + self.value_dim)
        return queries + down + up + heads * self.value_dim * hidden

    def matrices(self, hidden: int, heads: int) -> dict[str, tuple[int, int]]:
        """The two sides of each matrix, by its name in transformers."""
        q_width = heads * (self.nope_dim + self.rope_dim)
        queries = {"q_a_proj": (hidden, self.q_rank), "q_b_proj": (self.q_rank, q_width)}
        return (queries if self.q_rank else {"q_proj": (hidden, q_width)}) | {
            "kv_a_proj_with_mqa": (hidden, self.kv_rank + self.rope_dim),
            "kv_b_proj": (self.kv_rank, heads * (self.nope_dim + self.value_dim)),
            "o_proj": (heads * self.value_dim, hidden),
        }

    def flops(self, heads: int) -> int:
        """Of one query and one key, forward, with keys and values made anew per head, as training and prefill do."""
        return 2 * heads * (self.nope_dim + self.rope_dim + self.value_dim)

    def decode_flops(self, heads: int) -> int:
        """The same on the latents: up-projections are absorbed into queries and output (arXiv:2405.04434, 2.1.2)."""
        return 2 * heads * (2 * self.kv_rank + self.rope_dim)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaNet:
    """Gated delta rule (Yang et al. 2024, arXiv:2412.06464) as Qwen3-Next and Qwen3.5 build it: a short convolution
    over queries, keys and values, then one matrix of state for each value head."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    kernel: int
    state_bytes: int = 0
    """Of one number of the recurrent state; 0: as the model's weights."""

    @property
    def channels(self) -> int:
        """Of the convolution."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    def parameters(self, hidden: int) -> int:
        """modeling_qwen3_next.py, Qwen3NextGatedDeltaNet: joint input matrices, convolution, decays, norm, output."""
        values = self.value_heads * self.value_dim
        inside = self.channels * self.kernel + 2 * self.value_heads + self.value_dim
        return hidden * (self.channels + values + 2 * self.value_heads) + inside + values * hidden

    def kept_bytes(self, dtype_bytes: int, tp: int = 1) -> int:
        """State of one sequence in one layer on one of `tp` devices, whatever its length."""
        state = self.value_heads * self.key_dim * self.value_dim * (self.state_bytes or dtype_bytes)
        return (state + self.channels * (self.kernel - 1) * dtype_bytes) // tp

    def flops(self) -> int:
        """Of one token, forward, beside the matrices: the state decays, is read by the key, gets an outer product, and
        is read by the query (arXiv:2412.06464, equation 10): 7 FLOPs an entry; and the convolution."""
        return 7 * self.value_heads * self.key_dim * self.value_dim + 2 * self.channels * self.kernel


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba2:
    """State-space layer (Dao and Gu 2024, arXiv:2405.21060) as Nemotron-H builds it."""

    heads: int
    head_dim: int
    groups: int
    state_dim: int
    kernel: int
    state_bytes: int = 0

    @property
    def channels(self) -> int:
        return self.heads * self.head_dim + 2 * self.groups * self.state_dim

    def parameters(self, hidden: int) -> int:
        """modeling_nemotron_h.py, NemotronHMamba2Mixer: input, convolution with bias, A, D, step, norm, output."""
        inner = self.heads * self.head_dim
        inside = self.channels * (self.kernel + 1) + 3 * self.heads + inner
        return hidden * (inner + self.channels + self.heads) + inside + inner * hidden

    def kept_bytes(self, dtype_bytes: int, tp: int = 1) -> int:
        state = self.heads * self.head_dim * self.state_dim * (self.state_bytes or dtype_bytes)
        return (state + self.channels * (self.kernel - 1) * dtype_bytes) // tp

    def flops(self) -> int:
        """Decay, outer product and read-out of the state: 5 FLOPs an entry (arXiv:2405.21060, equation 2)."""
        return 5 * self.heads * self.head_dim * self.state_dim + 2 * self.channels * self.kernel
