"""The parts of a decoder-only Transformer in PyTorch that are not those of 2017, to be read from top to bottom.

Calls are held to the shapes in signatures, as in transformer.py. RMS-1 and GLU-1 are clauses of the specification, in
spec/decoder_only.md.
"""

import math
from typing import Any, Literal

import torch
from torch import Tensor, nn

from goldformer.reference_impl.parts import (
    ACTIVATIONS,
    Activation,
    DecoderOnlyLayerResult,
    DecoderOnlyModelResult,
    GatedResult,
    affine,
    widen,
    xavier_weight,
    zero_bias,
)
from goldformer.reference_impl.shapes import (
    Bool,
    Float,
    Int,
    Module,
    Positions,
    Positive,
    Size,
    check_groups,
    check_rotary_width,
    checked,
)
from goldformer.reference_impl.transformer import causal_mask, merge_heads, padding_mask, run_layers
from goldformer.reference_impl.transformer import scaled_dot_product_attention, split_heads, token_embedding

#: The two channels of a pair: neighbours, or one of each half (ROPE-4).
Pairing = Literal["interleaved", "half"]
#: Where the norms of a layer stand (BLOCK-5).
Order = Literal["pre", "parallel", "sandwich"]


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
    check_groups(heads, kv_heads)  # GQA-2
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


class DecoderOnlyLayer(Module):
    """Causal attention, then the gated network, each behind a norm. Touvron et al., 2023, section 2.2. BLOCK-1.

    A head is d_model / num_heads wide unless head_width says otherwise; settings go to the norms (eps), to the network
    (activation) and to all (device, dtype).
    """

    w_q: Float[Tensor, "d_model heads*d_k"]
    w_k: Float[Tensor, "d_model kv_heads*d_k"]
    w_v: Float[Tensor, "d_model kv_heads*d_k"]
    w_o: Float[Tensor, "heads*d_k d_model"]

    def __init__(
        self, d_model: Size, num_heads: Size, num_kv_heads: Size, d_ff: Size, *, head_width: Size | None = None,
        base: Positive = 10000.0, order: Order = "pre", pairing: Pairing = "interleaved", eps: Positive = 1e-6,
        activation: Activation = "silu", bias: bool = False, **like: Any,
    ) -> None:  # fmt: skip
        super().__init__()
        self.num_heads, self.num_kv_heads, self.base, self.pairing = num_heads, num_kv_heads, base, pairing
        check_groups(num_heads, num_kv_heads)
        d_k = head_width or d_model // num_heads
        all_heads, shared = num_heads * d_k, num_kv_heads * d_k
        self.w_q, self.w_k, self.w_v = (xavier_weight(d_model, width, **like) for width in (all_heads, shared, shared))
        self.w_o = xavier_weight(all_heads, d_model, **like)
        widths = (all_heads, shared, shared, d_model)
        self.b_q, self.b_k, self.b_v, self.b_o = (zero_bias(width, bias=bias, **like) for width in widths)
        self.feed_forward = GatedFeedForward(d_model, d_ff, activation=activation, bias=bias, **like)
        self.norm_1 = RMSNorm(d_model, eps, **like)
        self.norm_2 = None if order == "parallel" else RMSNorm(d_model, eps, **like)
        self.post_norm_1, self.post_norm_2 = (
            RMSNorm(d_model, eps, **like) if order == "sandwich" else None for _ in range(2)
        )

    def attend(self, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Let each token attend to itself and to earlier tokens; output, weights."""
        seq = x.shape[1]
        q = split_heads(affine(x, self.w_q, self.b_q), self.num_heads)  # (batch, heads, seq, d_k)
        k = split_heads(affine(x, self.w_k, self.b_k), self.num_kv_heads)  # (batch, kv_heads, seq, d_k)
        v = split_heads(affine(x, self.w_v, self.b_v), self.num_kv_heads)
        # Queries and keys turn within each head, so their scores know how far apart they are; values do not (BLOCK-3).
        positions = torch.arange(seq, device=x.device)
        q, k = (rotary_embedding(heads, positions, self.base, pairing=self.pairing) for heads in (q, k))
        causal = causal_mask(seq, seq, device=x.device)  # in every call: a mask only hides more (BLOCK-4)
        heads, weights = grouped_query_attention(q, k, v, causal if mask is None else causal & mask)
        return affine(merge_heads(heads), self.w_o, self.b_o), weights

    def forward(
        self, x: Float[Tensor, "batch seq d_model"], mask: Bool[Tensor, "batch heads seq seq"] | None = None
    ) -> DecoderOnlyLayerResult:
        h = self.norm_1(x)
        update, weights = self.attend(h, mask)
        # The sum is never normalised, only what a block reads: every block of a model adds to one sum (BLOCK-6).
        attended = x + (update if self.post_norm_1 is None else self.post_norm_1(update))
        update = self.feed_forward(h if self.norm_2 is None else self.norm_2(attended)).output
        output = attended + (update if self.post_norm_2 is None else self.post_norm_2(update))
        return DecoderOnlyLayerResult(output, attended, weights)


class DecoderOnlyModel(Module):
    """The model: ids to logits, through layers with parameters of their own. Touvron et al., 2023. LM-1, LM-2.

    The settings go to the layers. tied=True makes the table the weight of the output too (MODEL-7), scaled=True
    multiplies the embedding by √d_model (EMB-3), and pad_id hides a word from all others (LM-4).
    """

    table: Float[Tensor, "vocab d_model"]
    w_vocab: Float[Tensor, "d_model vocab"] | None

    def __init__(
        self, vocab: Size, d_model: Size, num_heads: Size, num_kv_heads: Size, d_ff: Size, num_layers: Size, *,
        pad_id: int | None = None, tied: bool = False, scaled: bool = False, eps: Positive = 1e-6, **settings: Any,
    ) -> None:  # fmt: skip
        super().__init__()
        like = {name: settings[name] for name in ("device", "dtype") if name in settings}
        self.pad_id, self.factor = pad_id, math.sqrt(d_model) if scaled else 1.0
        self.table = nn.Parameter(torch.randn(vocab, d_model, **like))
        sizes = (d_model, num_heads, num_kv_heads, d_ff)
        self.layers = nn.ModuleList(DecoderOnlyLayer(*sizes, eps=eps, **settings) for _ in range(num_layers))
        self.norm = RMSNorm(d_model, eps, **like)
        self.w_vocab = None if tied else xavier_weight(d_model, vocab, **like)

    def embed(self, ids: Tensor) -> Tensor:
        """Look up the row of each id; nothing is added for its position, which the layers turn by."""
        return token_embedding(ids, self.table) * self.factor

    def forward(self, ids: Int[Tensor, "batch seq"]) -> DecoderOnlyModelResult:
        embedded = self.embed(ids)
        mask = None if self.pad_id is None else padding_mask(ids, self.pad_id)
        # The output of a layer is a sum that no norm has brought to one size: one norm follows the last (LM-3).
        decoded = self.norm(run_layers(self.layers, None, embedded, mask).output)
        return DecoderOnlyModelResult(
            decoded @ (self.table.T if self.w_vocab is None else self.w_vocab), decoded, embedded
        )
