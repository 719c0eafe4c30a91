"""The parts of a decoder-only Transformer in PyTorch that are not those of 2017, to be read from top to bottom.

Calls are held to the shapes in signatures, as in transformer.py. RMS-1 and GLU-1 are clauses of the specification, in
spec/decoder_only.md.
"""

from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from goldformer.reference_impl.parts import (
    ACTIVATIONS,
    Activation,
    GatedResult,
    affine,
    widen,
    xavier_weight,
    zero_bias,
)
from goldformer.reference_impl.shapes import (
    Bool,
    Float,
    Module,
    Positions,
    Positive,
    Size,
    check_cached_mask,
    check_rotary_width,
    checked,
)
from goldformer.reference_impl.transformer import scaled_dot_product_attention

#: The two channels of a pair: neighbours, or one of each half (ROPE-4).
Pairing = Literal["interleaved", "half"]


class RMSNorm(Module):
    """x / √(mean square + eps) · gamma over the last axis. Zhang and Sennrich, 2019, equation 4. RMS-1."""

    gamma: Float[Tensor, "d_model"]

    def __init__(self, d_model: Size, eps: Positive = 1e-6, **like: Any) -> None:
        super().__init__()
        self.eps = eps  # that of T5 and of the first Llama (RMS-4)
        self.gamma = nn.Parameter(torch.ones(d_model, **like))

    def forward(self, x: Float[Tensor, "... d_model"]) -> Float[Tensor, "... d_model"]:
        # float16 ends at 65504, and squares of numbers from 256 on would be inf: everything is computed in float32, and
        # rounded last (RMS-6).
        row = widen(x)
        mean_square = (row * row).mean(dim=-1, keepdim=True)  # no mean is subtracted
        return (row / (mean_square + self.eps).sqrt() * widen(self.gamma)).to(x.dtype)  # RMS-2, RMS-3


@checked
def rotary_embedding(
    x: Float[Tensor, "... seq d_k"],
    positions: Positions[Tensor, "... seq"],
    base: Positive = 10000.0,
    rotary_width: Size | None = None,
    pairing: Pairing = "interleaved",
) -> Float[Tensor, "... seq d_k"]:
    """Turn each pair of channels by position · base^(−2i/d_k). Su et al., 2021, section 3.4.2. ROPE-1, ROPE-3."""
    width = x.shape[-1] if rotary_width is None else rotary_width
    check_rotary_width(rotary_width, x)
    row, rest = widen(x[..., :width]), x[..., width:]  # the channels after the first `width` do not turn (ROPE-5)
    # bfloat16 rounds 257 to 256, and neighbours would share one angle: all is in float32 or float64 (ROPE-6).
    frequency = base ** (-torch.arange(0, width, 2, dtype=row.dtype, device=x.device) / width)
    angle = positions[..., None].to(row.dtype) * frequency  # (..., seq, width / 2)
    # Cut each row into pairs: (width / 2, 2) puts neighbours together, (2, width / 2) the first half and the second.
    sizes, axis = ((width // 2, 2), -1) if pairing == "interleaved" else ((2, width // 2), -2)
    first, second = row.reshape(*row.shape[:-1], *sizes).unbind(axis)
    turned = (first * angle.cos() - second * angle.sin(), second * angle.cos() + first * angle.sin())
    return torch.cat([torch.stack(turned, axis).flatten(-2).to(x.dtype), rest], dim=-1)


class GatedFeedForward(Module):
    """(act(x W_gate) * (x W_up)) W_down at every position, with biases. Shazeer, 2020, equations 5 and 6. GLU-1."""

    w_gate: Float[Tensor, "d_model d_ff"]
    w_up: Float[Tensor, "d_model d_ff"]
    w_down: Float[Tensor, "d_ff d_model"]

    def __init__(
        self, d_model: Size, d_ff: Size, *, activation: Activation = "silu", bias: bool = True, **like: Any
    ) -> None:
        super().__init__()
        self.activate = ACTIVATIONS[activation]  # GLU-3
        self.w_gate, self.w_up = xavier_weight(d_model, d_ff, **like), xavier_weight(d_model, d_ff, **like)
        self.w_down = xavier_weight(d_ff, d_model, **like)
        self.b_gate, self.b_up = zero_bias(d_ff, bias=bias, **like), zero_bias(d_ff, bias=bias, **like)
        self.b_down = zero_bias(d_model, bias=bias, **like)

    def forward(self, x: Float[Tensor, "batch seq d_model"]) -> GatedResult:
        gate, up = affine(x, self.w_gate, self.b_gate), affine(x, self.w_up, self.b_up)  # (batch, seq, d_ff)
        # σ(−12) is so small that float16 keeps 7 bits of it: the activation is computed in float32, and rounded once
        # (GLU-4). Neither up nor the product goes through a function (GLU-5).
        hidden = self.activate(widen(gate)).to(gate.dtype) * up
        return GatedResult(affine(hidden, self.w_down, self.b_down), hidden, gate, up)


@checked
def repeat_heads(x: Float[Tensor, "batch kv_heads kv_seq d"], heads: Size) -> Float[Tensor, "batch heads kv_seq d"]:
    """Repeat each head of keys or values for all query heads of its group, 0 0 1 1 and not 0 1 0 1. GQA-3."""
    kv_heads = x.shape[1]
    if heads % kv_heads != 0:  # GQA-2
        raise ValueError(f"heads={heads} is no multiple of kv_heads={kv_heads}: choose a multiple of {kv_heads}")
    return x.repeat_interleave(heads // kv_heads, dim=1)  # backwards it sums over a group (GQA-6)


@checked
def grouped_query_attention(
    query: Float[Tensor, "batch heads q_seq d_k"], key: Float[Tensor, "batch kv_heads kv_seq d_k"],
    value: Float[Tensor, "batch kv_heads kv_seq d_v"], mask: Bool[Tensor, "batch heads q_seq kv_seq"] | None = None,
) -> tuple[Float[Tensor, "batch heads q_seq d_v"], Float[Tensor, "batch heads q_seq kv_seq"]]:  # fmt: skip
    """Attend with query heads that share keys and values; output, weights. Ainslie et al., 2023, section 2.2. GQA-1."""
    # One head of keys for all makes it the multi-query attention of Shazeer, 2019; one for each, multi-head (GQA-5).
    key, value = (repeat_heads(x, query.shape[1]) for x in (key, value))
    return scaled_dot_product_attention(query, key, value, mask)


class Cache(NamedTuple):
    """The keys and values of all tokens so far, (batch, kv_heads, so_far, d_k) and (batch, kv_heads, so_far, d_v)."""

    key: Tensor
    value: Tensor


@checked
def cached_attention(
    query: Float[Tensor, "batch heads new d_k"], key: Float[Tensor, "batch kv_heads new d_k"],
    value: Float[Tensor, "batch kv_heads new d_v"], mask: Tensor | None = None, cache: Cache | None = None,
) -> tuple[Float[Tensor, "batch heads new d_v"], Cache]:  # fmt: skip
    """Attend from new tokens to all so far; output, and the cache for the next call. Shazeer, 2019, 2.4. CACHE-1."""
    if cache is not None:  # the first call has none (CACHE-4)
        # cat makes new tensors: the old cache stays as it was, and another call may continue it too (CACHE-5).
        key, value = torch.cat([cache.key, key], dim=2), torch.cat([cache.value, value], dim=2)
    new, so_far = query.shape[2], key.shape[2]
    check_cached_mask(mask, so_far)  # (batch, 1, 1, so_far): padding of earlier calls stays hidden (CACHE-3)
    # The triangle ends in the last column: the first new token sees the cached ones and itself (CACHE-2). is_causal of
    # PyTorch starts in the first column instead.
    seen = torch.ones(new, so_far, dtype=torch.bool, device=query.device).tril(so_far - new)
    output, _ = grouped_query_attention(query, key, value, seen if mask is None else seen & mask)
    return output, Cache(key, value)
