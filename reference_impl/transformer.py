"""A Transformer in PyTorch, to be read from top to bottom: functions, modules, layers, stacks, the model.

Calls are held to the shapes in signatures. Vectors are rows: affine(x, W, b) is x·W + b. A mask is True where a query
may attend (MASK-1). Sections and equations are those of Vaswani et al., 2017; SM-3 is a clause of the specification.
"""

import math
from collections.abc import Callable, Iterable
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from goldformer.reference_impl.parts import ACTIVATIONS, Activation, DecoderLayerResult, Dropout, Dropping
from goldformer.reference_impl.parts import EncoderLayerResult, StackResult, TransformerResult, affine, widen
from goldformer.reference_impl.parts import xavier_weight, zero_bias
from goldformer.reference_impl.shapes import Bool, Device, Float, FloatDtype, Int, Module, Positive, Rate, Size, checked
from goldformer.reference_impl.shapes import check_heads_divide


@checked
def softmax(scores: Float[Tensor, "... n"]) -> Float[Tensor, "... n"]:
    """Compute exp(s_j) / Σ_k exp(s_k) over the last axis. Section 3.2.1; walkthrough 1, java. SM-1, SM-2."""
    # exp overflows from 89 on in float32 and from 12 on in float16. Adding one number to a whole row changes nothing
    # (SM-4), so the largest score is moved to 0: every exp lies in [0, 1] (SM-3), and their sum is never 0. The shift
    # cancels in the derivative too, hence detach: the gradient through the maximum would be pure rounding.
    exponentials = (scores - scores.amax(dim=-1, keepdim=True).detach()).exp()
    return exponentials / exponentials.sum(dim=-1, keepdim=True)


@checked
def attention_scores(query: Float[Tensor, "... q_seq d_k"], key: Float[Tensor, "... kv_seq d_k"]) -> Tensor:
    """Compare every query with every key by their dot product, QKᵀ: (..., q_seq, kv_seq). SDPA-1."""
    return query @ key.transpose(-2, -1)


@checked
def scaled_scores(query: Float[Tensor, "... q_seq d_k"], key: Float[Tensor, "... kv_seq d_k"]) -> Tensor:
    """Divide by √d_k, as Var(q·k) = d_k for independent standard normal entries. Footnote 4. SDPA-2."""
    # A Python number: a tensor made here would sit on the CPU and fail against CUDA scores, as in n9 and illustrated.
    return attention_scores(query, key) / math.sqrt(query.shape[-1])


@checked
def scaled_dot_product_attention(
    query: Float[Tensor, "... q_seq d_k"], key: Float[Tensor, "... kv_seq d_k"], value: Float[Tensor, "... kv_seq d_v"],
    mask: Bool[Tensor, "... q_seq kv_seq"] | None = None, dropout: Dropping = lambda weights: weights,
) -> tuple[Float[Tensor, "... q_seq d_v"], Float[Tensor, "... q_seq kv_seq"]]:  # fmt: skip
    """Compute softmax(QKᵀ / √d_k) V and the weights. Equation (1); walkthrough 1, primer 4.1; dropout: illustrated."""
    scores = scaled_scores(query, key)
    if mask is not None:
        # Masked scores become the most negative finite number of their dtype (SDPA-6).
        #   Not −1e9 (java), −1e10 (n9) or −9e15 (walkthrough): float16 ends at −65504 and cannot hold them. Not −1e4
        #   either, which float16 has: a kept score of −1.2e4 would lose to the masked ones.
        #   Not −inf: in a row without a key the maximum would be −inf, −inf − (−inf) is NaN, and so would be every
        #   gradient after it (GRAD-3). A finite fill makes all weights of that row equal, 1/kv_seq (SDPA-7).
        # Next to a kept score exp makes exactly 0 of the fill, in every dtype, unless that score is the most negative
        # number itself: its next neighbour in float16 is already 32 away, and exp(−32) rounds to 0.
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    weights = softmax(scores)  # over the keys (SDPA-3)
    return dropout(weights) @ value, weights  # not normalised again: rows sum to 1 on average only (SDPA-4, DROP-3)


@checked
def causal_mask(q_seq: Size, kv_seq: Size, *, device: Device = None) -> Bool[Tensor, "q_seq kv_seq"]:
    """Let query i see keys 0 … i, also where the lengths differ. Section 3.2.3; primer 3.2, java. MASK-2, MASK-3."""
    return torch.arange(kv_seq, device=device) <= torch.arange(q_seq, device=device)[:, None]


@checked
def padding_mask(ids: Int[Tensor, "batch seq"], pad_id: int) -> Bool[Tensor, "batch 1 1 seq"]:
    """Hide the positions that hold pad_id, as keys, from every query of every head. n9 "使用示例". MASK-4."""
    return (ids != pad_id)[:, None, None, :]


@checked
def token_embedding(
    ids: Int[Tensor, "batch seq"], table: Float[Tensor, "vocab d_model"], *, fixed_id: int | None = None
) -> Float[Tensor, "batch seq d_model"]:
    """Look up the row of each id, without the factor √d_model of section 3.4 (EMB-3). Walkthrough 2. EMB-1, EMB-2."""
    rows = table[ids]
    # Places of fixed_id do not train the table (EMB-4). Not by torch's padding_idx: it must be a row, pad_id need not.
    return rows if fixed_id is None else rows.detach().where((ids == fixed_id)[..., None], rows)


@checked
def sinusoid_table(seq: Size, d_model: Size, *, dtype: FloatDtype = torch.float32, device: Device = None) -> Tensor:
    """Compute sin(pos / 10000^(2i/d_model)) on channel 2i, cos on 2i + 1. Section 3.5; walkthrough 2. PE-1, PE-6."""
    # A sine forgets whole turns but not the error of its angle, and an angle near 5000 is rounded in steps of 0.0005 by
    # float32, 4 by float16 and 32 by bfloat16: five turns. So all is in float64 (PE-5), and rounded last; mps has none.
    channel = torch.arange(d_model, device=device)
    widest = torch.float32 if channel.device.type == "mps" else torch.float64
    two_i = (channel - channel % 2).to(widest)  # 0 0 2 2 4 4 …: an odd width ends in a sine (PE-7)
    angle = torch.arange(seq, dtype=widest, device=device)[:, None] / 10000.0 ** (two_i / d_model)  # (seq, d_model)
    return torch.where(channel % 2 == 0, angle.sin(), angle.cos()).to(dtype)


@checked
def positional_encoding(x: Float[Tensor, "batch seq d_model"]) -> Float[Tensor, "batch seq d_model"]:
    """Add to every position its row of the table, the same for every sample. Section 3.5; n9 "位置编码". PE-3."""
    return x + sinusoid_table(x.shape[1], x.shape[2], dtype=x.dtype, device=x.device)


@checked
def split_heads(x: Float[Tensor, "batch seq heads*d"], num_heads: Size) -> Float[Tensor, "batch heads seq d"]:
    """Cut the channels into one contiguous block per head, and put the heads before the positions. MHA-2."""
    # Two steps: reshaping to (batch, heads, seq, d) at once has the right shape and mixes positions with heads.
    return x.reshape(*x.shape[:2], num_heads, -1).transpose(1, 2)


@checked
def merge_heads(x: Float[Tensor, "batch heads seq d"]) -> Float[Tensor, "batch seq heads*d"]:
    """Lay the heads next to each other again: the Concat of section 3.2.2. MHA-4."""
    return x.transpose(1, 2).flatten(-2)


class MultiHeadAttention(Module):
    """Concat(head_1, …, head_h) W^O, head_i = Attention(Q W_i^Q, K W_i^K, V W_i^V), and weights. Section 3.2.2; n9."""

    w_q: Float[Tensor, "d_query heads*d_k"]  # W_i^Q is the i-th block of its columns (MHA-2)
    w_k: Float[Tensor, "d_key heads*d_k"]
    w_v: Float[Tensor, "d_value heads*d_v"]
    w_o: Float[Tensor, "heads*d_v d_model"]

    def __init__(
        self, d_model: Size, num_heads: Size, *, d_key: Size | None = None, d_value: Size | None = None,
        dropout: Rate = 0.0, bias: bool = True, **like: Any,
    ) -> None:  # fmt: skip
        super().__init__()
        check_heads_divide(num_heads, d_model, "the model, d_model")
        self.num_heads, self.dropout = num_heads, Dropout(dropout)
        widths = (d_model, d_key or d_model, d_value or d_model, d_model)
        self.w_q, self.w_k, self.w_v, self.w_o = (xavier_weight(width, d_model, **like) for width in widths)
        self.b_q, self.b_k, self.b_v, self.b_o = (zero_bias(d_model, bias=bias, **like) for _ in "qkvo")

    def forward(
        self, query: Float[Tensor, "batch q_seq d_query"], key: Float[Tensor, "batch kv_seq d_key"],
        value: Float[Tensor, "batch kv_seq d_value"], mask: Bool[Tensor, "batch heads q_seq kv_seq"] | None = None,
    ) -> tuple[Float[Tensor, "batch q_seq d_model"], Float[Tensor, "batch heads q_seq kv_seq"]]:  # fmt: skip
        q = split_heads(affine(query, self.w_q, self.b_q), self.num_heads)  # (batch, heads, q_seq, d_k); MHA-1
        k = split_heads(affine(key, self.w_k, self.b_k), self.num_heads)
        v = split_heads(affine(value, self.w_v, self.b_v), self.num_heads)
        # Each head is scaled by the √d_k of its own width, the last axis of q (MHA-3).
        heads, weights = scaled_dot_product_attention(q, k, v, mask, self.dropout)
        return affine(merge_heads(heads), self.w_o, self.b_o), weights


class FeedForward(Module):
    """max(0, x W_1 + b_1) W_2 + b_2 at every position, and the hidden channels. Equation (2); n9, primer 3.1. FFN-1."""

    w_1: Float[Tensor, "d_model d_ff"]
    w_2: Float[Tensor, "d_ff d_model"]

    def __init__(
        self, d_model: Size, d_ff: Size, *, dropout: Rate = 0.1, activation: Activation = "relu", bias: bool = True,
        **like: Any,
    ) -> None:  # fmt: skip
        super().__init__()
        self.activate, self.dropout = ACTIVATIONS[activation], Dropout(dropout)
        self.w_1, self.w_2 = xavier_weight(d_model, d_ff, **like), xavier_weight(d_ff, d_model, **like)
        self.b_1, self.b_2 = zero_bias(d_ff, bias=bias, **like), zero_bias(d_model, bias=bias, **like)

    def forward(self, x: Float[Tensor, "batch seq d_model"]) -> tuple[Tensor, Tensor]:
        hidden = self.dropout(self.activate(affine(x, self.w_1, self.b_1)))  # (batch, seq, d_ff); FFN-3, DROP-4
        return affine(hidden, self.w_2, self.b_2), hidden


class LayerNorm(Module):
    """(x − mean) / √(variance + eps) · gamma + beta over the last axis. Section 3.1; Ba et al., 2016. LN-1."""

    gamma: Float[Tensor, "d_model"]
    beta: Float[Tensor, "d_model"]

    def __init__(self, d_model: Size, eps: Positive = 1e-5, **like: Any) -> None:
        super().__init__()
        self.eps = eps  # that of nn.LayerNorm, which n9 uses (LN-3)
        self.gamma, self.beta = nn.Parameter(torch.ones(d_model, **like)), nn.Parameter(torch.zeros(d_model, **like))

    def forward(self, x: Float[Tensor, "... d_model"]) -> Float[Tensor, "... d_model"]:
        # float16 ends at 65504, and squares of differences from 256 on would be inf. bfloat16 holds them, but a mean of
        # 8 bits leaves its rounding in every difference. So both are computed in float32, and rounded last.
        row = widen(x)
        # Differences first, then squares: the mean of x² less the square of the mean cancels far from 0 (LN-5).
        centred = row - row.mean(dim=-1, keepdim=True)
        variance = (centred * centred).mean(dim=-1, keepdim=True)  # over d_model and not d_model − 1
        return (centred / (variance + self.eps).sqrt() * widen(self.gamma) + widen(self.beta)).to(x.dtype)  # LN-2, LN-4


class ResidualLayer(Module):
    """Sub-layers, each with a norm, a dropout and a residual connection around it. Section 3.1."""

    def __init__(
        self, d_model: Size, num_heads: Size, d_ff: Size, *, dropout: Rate = 0.1, norm_first: bool = False,
        activation: Activation = "relu", eps: Positive = 1e-5, bias: bool = True, **like: Any,
    ) -> None:  # fmt: skip
        super().__init__()
        self.norm_first, self.dropout = norm_first, Dropout(dropout)
        for i, name in enumerate(self.sublayers, 1):
            if name == "feed_forward":
                part: Module = FeedForward(d_model, d_ff, dropout=dropout, activation=activation, bias=bias, **like)
            else:  # without dropout of the weights: section 5.4 has none
                part = MultiHeadAttention(d_model, num_heads, bias=bias, **like)
            self.add_module(name, part)
            self.add_module(f"norm_{i}", LayerNorm(d_model, eps, **like))

    def add_and_norm(self, x: Tensor, norm: LayerNorm, sublayer: Callable[[Tensor], Any]) -> tuple[Tensor, Tensor]:
        """Compute post-norm LN(x + dropout(f(x))) or pre-norm x + dropout(f(LN(x))). Section 5.4. LAYER-3, DROP-6."""
        update, detail = sublayer(norm(x) if self.norm_first else x)
        total = x + self.dropout(update)
        return total if self.norm_first else norm(total), detail


class EncoderLayer(ResidualLayer):
    """Self-attention, then the feed-forward network. Section 3.1; primer 3.1, n9 "编码层", illustrated. LAYER-1."""

    sublayers = ("self_attention", "feed_forward")

    def forward(
        self, x: Float[Tensor, "batch seq d_model"], mask: Bool[Tensor, "batch heads seq seq"] | None = None
    ) -> EncoderLayerResult:
        attended, weights = self.add_and_norm(x, self.norm_1, lambda y: self.self_attention(y, y, y, mask))
        output, _ = self.add_and_norm(attended, self.norm_2, self.feed_forward)
        return EncoderLayerResult(output, attended, weights)


class DecoderLayer(ResidualLayer):
    """Self-attention, attention to the memory, the feed-forward network; only masks hide. Section 3.1; n9. LAYER-2."""

    sublayers = ("self_attention", "cross_attention", "feed_forward")

    def forward(
        self, x: Float[Tensor, "batch seq d_model"], memory: Float[Tensor, "batch source_seq d_model"],
        self_mask: Bool[Tensor, "batch heads seq seq"] | None = None,
        memory_mask: Bool[Tensor, "batch heads seq source_seq"] | None = None,
    ) -> DecoderLayerResult:  # fmt: skip
        attended, weights = self.add_and_norm(x, self.norm_1, lambda y: self.self_attention(y, y, y, self_mask))
        # Queries from the decoder, keys and values from the encoder (LAYER-4); illustrated has them from the decoder.
        crossed, cross_weights = self.add_and_norm(
            attended, self.norm_2, lambda y: self.cross_attention(y, memory, memory, memory_mask)
        )
        output, _ = self.add_and_norm(crossed, self.norm_3, self.feed_forward)
        return DecoderLayerResult(output, attended, crossed, weights, cross_weights)


def run_layers(layers: Iterable[Any], norm: Any, x: Tensor, *others: Tensor | None) -> StackResult:
    """Send x through the layers, each with weights of its own and all with the same others. STACK-1, STACK-2."""
    outputs = [x := layer(x, *others).output for layer in layers]
    # The output of a pre-norm layer is a sum that nothing brings to one scale, unless a final norm does (STACK-3).
    return StackResult(x if norm is None else norm(x), torch.stack(outputs))


class Encoder(Module):
    """A stack of encoder layers, which take the settings. Section 3.1; primer 3.1, n9 "Transformer模型构建"."""

    def __init__(
        self, d_model: Size, num_heads: Size, d_ff: Size, num_layers: Size, *, final_norm: bool = False, **settings: Any
    ) -> None:
        super().__init__()
        self.encoder = nn.ModuleList(EncoderLayer(d_model, num_heads, d_ff, **settings) for _ in range(num_layers))
        self.norm = deepcopy(self.encoder[0].norm_1) if final_norm else None

    def forward(
        self, x: Float[Tensor, "batch seq d_model"], mask: Bool[Tensor, "batch heads seq seq"] | None = None
    ) -> StackResult:
        return run_layers(self.encoder, self.norm, x, mask)


class Decoder(Module):
    """A stack of decoder layers, all with the same memory and masks. Section 3.1; primer 3.2, illustrated."""

    def __init__(
        self, d_model: Size, num_heads: Size, d_ff: Size, num_layers: Size, *, final_norm: bool = False, **settings: Any
    ) -> None:
        super().__init__()
        self.decoder = nn.ModuleList(DecoderLayer(d_model, num_heads, d_ff, **settings) for _ in range(num_layers))
        self.norm = deepcopy(self.decoder[0].norm_1) if final_norm else None

    def forward(
        self, x: Float[Tensor, "batch seq d_model"], memory: Float[Tensor, "batch source_seq d_model"],
        self_mask: Bool[Tensor, "batch heads seq seq"] | None = None,
        memory_mask: Bool[Tensor, "batch heads seq source_seq"] | None = None,
    ) -> StackResult:  # fmt: skip
        return run_layers(self.decoder, self.norm, x, memory, self_mask, memory_mask)


class Transformer(Module):
    """The model: ids of a source and of what the decoder reads, the target shifted right, to logits (MODEL-4, MODEL-5).

    One table embeds source and target (MODEL-1); tied=True makes it the output layer's weight too (MODEL-7); settings
    go to the layers; max_positions makes positions learned (MODEL-8). Section 3; n9 "Transformer模型构建", primer 3.
    """

    table: Float[Tensor, "vocab d_model"]
    w_vocab: Float[Tensor, "d_model vocab"] | None
    position_table: Float[Tensor, "positions d_model"] | None

    def __init__(
        self, vocab: Size, d_model: Size, num_heads: Size, num_encoder_layers: Size, num_decoder_layers: Size,
        d_ff: Size, *, pad_id: int, final_norm: bool = False, tied: bool = False, max_positions: Size | None = None,
        fixed_pad_row: bool = False, **settings: Any,
    ) -> None:  # fmt: skip
        super().__init__()
        like = {name: settings[name] for name in ("device", "dtype") if name in settings}
        self.pad_id, self.fixed_id = pad_id, pad_id if fixed_pad_row else None
        self.table = nn.Parameter(torch.randn(vocab, d_model, **like))
        self.position_table = nn.Parameter(torch.randn(max_positions, d_model, **like)) if max_positions else None
        sizes = (d_model, num_heads, d_ff)
        self.encoder = nn.ModuleList(EncoderLayer(*sizes, **settings) for _ in range(num_encoder_layers))
        self.decoder = nn.ModuleList(DecoderLayer(*sizes, **settings) for _ in range(num_decoder_layers))
        stacks = (self.encoder, self.decoder)
        self.encoder_norm, self.decoder_norm = (deepcopy(s[0].norm_1) if final_norm else None for s in stacks)
        self.w_vocab = None if tied else xavier_weight(d_model, vocab, **like)
        self.b_vocab = zero_bias(vocab, bias=settings.get("bias", True), **like)
        self.dropout = Dropout(settings.get("dropout", 0.1))

    def embed(self, ids: Tensor) -> Tensor:
        """Embed ids and add their positions, once, before the first layer: primer adds them in each. MODEL-2."""
        rows = token_embedding(ids, self.table, fixed_id=self.fixed_id)
        if self.position_table is None:
            return self.dropout(positional_encoding(rows))  # DROP-5
        return self.dropout(rows + self.position_table[: ids.shape[1]])

    @checked
    def encode(self, source: Int[Tensor, "batch source_seq"]) -> Float[Tensor, "batch source_seq d_model"]:
        """Compute the memory. Padding is hidden as a key (MODEL-3); its own rows of the memory have no meaning."""
        return run_layers(self.encoder, self.encoder_norm, self.embed(source), padding_mask(source, self.pad_id)).output

    @checked
    def decode(
        self, target: Int[Tensor, "batch seq"], memory: Float[Tensor, "batch source_seq d_model"],
        source: Int[Tensor, "batch source_seq"],
    ) -> Float[Tensor, "batch seq d_model"]:  # fmt: skip
        """Compute what the logits are made of; the source shows which rows of the memory are padding."""
        seq = target.shape[1]
        # Both masks (MASK-5). With only padding, as n9 has it, every position sees the word that it must predict.
        self_mask = causal_mask(seq, seq, device=target.device) & padding_mask(target, self.pad_id)
        # The keys of the cross-attention are the source's, so its padding counts here and not the target's.
        masks = self_mask, padding_mask(source, self.pad_id)
        return run_layers(self.decoder, self.decoder_norm, self.embed(target), memory, *masks).output

    def score(self, decoded: Float[Tensor, "batch seq d_model"]) -> Float[Tensor, "batch seq vocab"]:
        """Score every word; tied, by the dot product with its own embedding. Section 3.4. OUT-1, MODEL-7."""
        return affine(decoded, self.table.T if self.w_vocab is None else self.w_vocab, self.b_vocab)

    def forward(self, source: Int[Tensor, "batch source_seq"], target: Int[Tensor, "batch seq"]) -> TransformerResult:
        memory = self.encode(source)
        decoded = self.decode(target, memory, source)
        return TransformerResult(self.score(decoded), memory, decoded)
