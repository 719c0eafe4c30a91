"""The parts of a decoder-only Transformer in PyTorch that are not those of 2017, to be read from top to bottom.

Calls are held to the shapes in signatures, as in transformer.py. RMS-1 and GLU-1 are clauses of the specification, in
spec/decoder_only.md.
"""

import math
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from goldformer.reference_impl.parts import (
    ACTIVATIONS,
    Activation,
    DecoderOnlyLayerResult,
    DecoderOnlyModelResult,
    ExpertsResult,
    GatedResult,
    affine,
    widen,
    xavier_weight,
    zero_bias,
)
from goldformer.reference_impl.shapes import (
    Bool,
    Device,
    Float,
    Int,
    Module,
    NotNegative,
    Positions,
    Positive,
    Rate,
    Size,
    Words,
    can_read,
    check_cached_mask,
    check_gains,
    check_groups,
    check_ids_below,
    check_rotary_width,
    check_word,
    checked,
)
from goldformer.reference_impl.transformer import attention_scores, merge_heads, padding_mask
from goldformer.reference_impl.transformer import scaled_scores, softmax, split_heads, token_embedding

#: The two channels of a pair: neighbours, or one of each half (ROPE-4).
Pairing = Literal["interleaved", "half"]
#: How angles are scaled (ROPE-11).
Scaling = Literal["linear", "llama3", "yarn"]
#: Where the norms of a layer stand (BLOCK-5).
Order = Literal["pre", "parallel", "sandwich"]


def rms_norm(x: Tensor, gamma: Tensor, eps: float) -> Tensor:
    """Return x / √(mean square + eps) · gamma over the last axis."""
    # float16 ends at 65504, and squares of numbers from 256 on would be inf: everything is computed in float32, and
    # rounded last (RMS-6).
    row = widen(x)
    mean_square = (row * row).mean(dim=-1, keepdim=True)  # no mean is subtracted
    return (row / (mean_square + eps).sqrt() * widen(gamma)).to(x.dtype)  # RMS-2, RMS-3


class RMSNorm(Module):
    """x / √(mean square + eps) · gamma over the last axis. Zhang and Sennrich, 2019, equation 4. RMS-1."""

    gamma: Float[Tensor, "d_model"]

    def __init__(self, d_model: Size, eps: Positive = 1e-6, **like: Any) -> None:
        super().__init__()
        self.eps = eps  # that of T5 and of the first Llama (RMS-4)
        self.gamma = nn.Parameter(torch.ones(d_model, **like))

    def forward(self, x: Float[Tensor, "... d_model"]) -> Float[Tensor, "... d_model"]:
        return rms_norm(x, self.gamma, self.eps)


@checked
def scale_frequencies(
    frequency: Float[Tensor, "pairs"],
    base: Positive,
    factor: Positive,
    original_length: Size | None,
    scaling: Scaling,
) -> Float[Tensor, "pairs"]:
    """Divide frequencies by the factor, but keep a share of the fast ones. Peng et al., 2023, section 3.2. ROPE-11."""
    if scaling == "linear":
        return frequency / factor  # Chen et al., 2023, section 2.3
    if original_length is None:
        raise ValueError(f"original_length must be given for scaling={scaling!r}: pass the length of the training")
    if scaling == "llama3":
        kept = (original_length * frequency / (2 * math.pi) - 1) / (4 - 1)  # turns in training: 1 to 4
    else:
        pairs = len(frequency)
        start, end = (pairs * math.log(original_length / (2 * math.pi * n)) / math.log(base) for n in (32, 1))
        # The code of the paper's authors rounds to whole pairs, and so does each model trained with it.
        start, end = max(math.floor(start), 0), min(math.ceil(end), 2 * pairs - 1)
        kept = 1 - (torch.arange(pairs).to(frequency) - start) / (end - start or 0.001)
    kept = kept.clamp(0, 1)
    return kept * frequency + (1 - kept) * frequency / factor


@checked
def rotary_embedding(
    x: Float[Tensor, "... seq d_k"],
    positions: Positions[Tensor, "... seq"],
    base: Positive = 10000.0,
    rotary_width: Size | None = None,
    scaling_factor: Positive | None = None,
    original_length: Size | None = None,
    pairing: Pairing = "interleaved",
    scaling: Scaling = "linear",
) -> Float[Tensor, "... seq d_k"]:
    """Turn each pair of channels by position · base^(−2i/d_k). Su et al., 2021, section 3.4.2. ROPE-1, ROPE-3."""
    width = x.shape[-1] if rotary_width is None else rotary_width
    check_rotary_width(rotary_width, x)
    row, rest = widen(x[..., :width]), x[..., width:]  # the channels after the first `width` do not turn (ROPE-5)
    # bfloat16 rounds 257 to 256, and neighbours would share one angle: all is in float32 or float64 (ROPE-6).
    frequency = base ** (-torch.arange(0, width, 2, dtype=row.dtype, device=x.device) / width)
    size = 1.0
    if scaling_factor is not None:  # ROPE-10
        frequency = scale_frequencies(frequency, base, scaling_factor, original_length, scaling)
        size = 0.1 * math.log(scaling_factor) + 1 if scaling == "yarn" else size  # sharper attention, section 3.4
    angle = positions[..., None].to(row.dtype) * frequency  # (..., seq, width / 2)
    # Cut each row into pairs: (width / 2, 2) puts neighbours together, (2, width / 2) the first half and the second.
    sizes, axis = ((width // 2, 2), -1) if pairing == "interleaved" else ((2, width // 2), -2)
    first, second = row.reshape(*row.shape[:-1], *sizes).unbind(axis)
    cosine, sine = size * angle.cos(), size * angle.sin()
    turned = (first * cosine - second * sine, second * cosine + first * sine)
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


def normalise_heads(heads: Tensor, gamma: Tensor | None, eps: float) -> Tensor:
    """Normalise each head of queries or keys, by one gain for all. Dehghani et al., 2023, section 2. QKN-1."""
    return heads if gamma is None else rms_norm(heads, gamma, eps)


@checked
def grouped_query_attention(
    query: Float[Tensor, "batch heads q_seq d_k"], key: Float[Tensor, "batch kv_heads kv_seq d_k"],
    value: Float[Tensor, "batch kv_heads kv_seq d_v"], mask: Bool[Tensor, "batch heads q_seq kv_seq"] | None = None,
    bias: Float[Tensor, "heads q_seq kv_seq"] | None = None, sinks: Float[Tensor, "heads"] | None = None,
    scale: Positive | None = None, softcap: Positive | None = None,
    gamma_q: Float[Tensor, "d_k"] | None = None, gamma_k: Float[Tensor, "d_k"] | None = None, eps: Positive = 1e-6,
) -> tuple[Float[Tensor, "batch heads q_seq d_v"], Float[Tensor, "batch heads q_seq kv_seq"]]:  # fmt: skip
    """Attend with query heads that share keys and values; output, weights. Ainslie et al., 2023, section 2.2. GQA-1."""
    query, key = normalise_heads(query, gamma_q, eps), normalise_heads(key, gamma_k, eps)
    # One head of keys for all makes it the multi-query attention of Shazeer, 2019; one for each, multi-head (GQA-5).
    key, value = (repeat_heads(x, query.shape[1]) for x in (key, value))
    scores = scaled_scores(query, key) if scale is None else attention_scores(query, key) * scale  # SCORE-1
    if softcap is not None:  # before the mask: the fill would become -softcap, a score like any other (SCORE-2)
        scores = softcap * (scores / softcap).tanh()
    if bias is not None:
        scores = scores + bias  # SCORE-3
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    if sinks is not None:  # one key more, which no mask hides and which has no value (SCORE-4)
        scores = torch.cat([scores, sinks[:, None, None].expand(*scores.shape[:-1], 1)], dim=-1)
    weights = softmax(scores)[..., : key.shape[-2]]
    return weights @ value, weights


@checked
def sliding_window_mask(
    q_seq: Size, kv_seq: Size, window: Size, *, device: Device = None
) -> Bool[Tensor, "q_seq kv_seq"]:
    """Let query i see its own key and the window − 1 before it. Jiang et al., 2023, section 2. WIN-1, WIN-2."""
    behind = torch.arange(q_seq, device=device)[:, None] - torch.arange(kv_seq, device=device)
    return (behind >= 0) & (behind < window)


@checked
def alibi_bias(like: Float[Tensor, "heads q_seq kv_seq"]) -> Float[Tensor, "heads q_seq kv_seq"]:
    """Take each head's slope off for every position back to a key. Press et al., 2021, section 3. ALIBI-1, ALIBI-2."""
    heads, q_seq, kv_seq = like.shape
    power = 2 ** int(math.log2(heads))
    # Heads beyond a power of two take the slopes between those of the others, from the largest on (ALIBI-3).
    exponents = [8 * (head + 1) / power for head in range(power)]
    exponents += [8 * (head + 0.5) / power for head in range(heads - power)]
    slopes = 2.0 ** -torch.tensor(exponents, dtype=widen(like).dtype, device=like.device)
    # bfloat16 rounds 257 to 256, and neighbours would share one bias: the difference is one of integers (ALIBI-6).
    behind = torch.arange(q_seq, device=like.device)[:, None] - torch.arange(kv_seq, device=like.device)
    return (-slopes[:, None, None] * behind).to(like.dtype)


@checked
def position_ids(mask: Words[Tensor, "batch seq"]) -> Int[Tensor, "batch seq"]:
    """Count the words before each word, and give padding 1. POS-1, POS-2."""
    # Not arange(seq): where padding comes first, the first word would not have position 0.
    return (mask.cumsum(dim=-1) - 1).masked_fill(~mask, 1)


@checked
def expert_router(
    x: Float[Tensor, "tokens d_model"], w_router: Float[Tensor, "d_model experts"], top_k: Size
) -> tuple[Float[Tensor, "tokens experts"], Float[Tensor, "tokens experts"]]:
    """Weigh the top_k experts of each token, 0 for the others; weights, logits. Shazeer et al., 2017, 2.1. MOE-3."""
    logits = x @ w_router  # MOE-1
    if top_k > logits.shape[-1]:  # MOE-2
        raise ValueError(f"top_k={top_k} must be at most {logits.shape[-1]}, the experts of w_router")
    best, experts = logits.topk(top_k, dim=-1)
    # The softmax over the chosen is that over all, divided by the sum of the chosen (MOE-4).
    return torch.zeros_like(logits).scatter(-1, experts, softmax(best)), logits


class ExpertFeedForward(Module):
    """The sum of the outputs of each token's experts by weight. Shazeer et al., 2017, equation 1. MOE-6."""

    w_router: Float[Tensor, "d_model experts"]

    def __init__(
        self, d_model: Size, d_ff: Size, num_experts: Size, top_k: Size, *, activation: Activation = "silu",
        bias: bool = False, **like: Any,
    ) -> None:  # fmt: skip
        super().__init__()
        self.top_k = top_k
        self.w_router = xavier_weight(d_model, num_experts, **like)
        self.experts = nn.ModuleList(
            GatedFeedForward(d_model, d_ff, activation=activation, bias=bias, **like) for _ in range(num_experts)
        )  # MOE-7

    def forward(self, x: Float[Tensor, "batch seq d_model"]) -> ExpertsResult:
        routed = expert_router(x.flatten(0, 1), self.w_router, self.top_k)
        weights, logits = (rows.reshape(*x.shape[:2], -1) for rows in routed)  # (batch, seq, experts)
        # Every expert computes every token, and a weight of 0 removes those that it is not chosen for. Fast code
        # gathers the tokens of each expert instead, and adds the same numbers.
        outputs = torch.stack([expert(x).output for expert in self.experts], dim=-2)  # (batch, seq, experts, d_model)
        return ExpertsResult((weights.unsqueeze(-1) * outputs).sum(dim=-2), weights, logits)


def lower_repeated(logits: Tensor, previous: Tensor, penalty: float) -> Tensor:
    """Lower the logits of tokens that occurred, each once. Keskar et al., 2019, section 4.1. SAMPLE-6."""
    seen = torch.zeros_like(logits, dtype=torch.bool).scatter(-1, previous, value=True)
    # The paper divides all: a negative logit would grow.
    return torch.where(seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits)


@checked
def token_filter(
    logits: Float[Tensor, "batch vocab"], previous: Int[Tensor, "batch seq"] | None = None, *,
    temperature: NotNegative = 1.0, top_k: Size | None = None, top_p: Rate = 1.0, min_p: Rate = 0.0,
    repetition_penalty: Positive = 1.0,
) -> Float[Tensor, "batch vocab"]:  # fmt: skip
    """Return the distribution of the next token after all filters. Holtzman et al., 2019, section 3. SAMPLE-1."""
    if previous is not None:
        check_ids_below(
            "previous", previous, logits.shape[-1], "the columns of logits: use the vocabulary of the model"
        )
        logits = lower_repeated(logits, previous, repetition_penalty)
    logits, order = logits.sort(dim=-1, descending=True, stable=True)  # of equal logits the lowest id first (SAMPLE-8)
    place = torch.arange(logits.shape[-1], device=logits.device)
    if temperature == 0:
        top_k = 1  # SAMPLE-9
    else:
        logits = logits / temperature  # SAMPLE-2
    if top_k is not None:
        logits = logits.masked_fill(place >= top_k, -math.inf)  # Fan et al., 2018, section 5.4. SAMPLE-3
    if top_p < 1:
        weights = softmax(logits)
        before = weights.cumsum(dim=-1) - weights  # the token that reaches top_p stays, as does the first (SAMPLE-4)
        logits = logits.masked_fill((before >= top_p) & (place > 0), -math.inf)
    weights = softmax(logits)
    # Nguyen et al., 2024, section 3: at least min_p times as likely as the first. SAMPLE-5.
    weights = softmax(logits.masked_fill(weights < min_p * weights[:, :1], -math.inf))
    return torch.empty_like(weights).scatter(-1, order, weights)


class Cache(NamedTuple):
    """The keys and values of all tokens so far, (batch, kv_heads, so_far, d_k) and (batch, kv_heads, so_far, d_v)."""

    key: Tensor
    value: Tensor


def attend_with_cache(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, cache: Cache | None, window: int | None = None,
    **scores: Any,
) -> tuple[Tensor, Tensor, Cache]:  # fmt: skip
    """Attend from new tokens to all so far, or to those in the window; output, weights, and the next cache. CACHE-1."""
    if cache is not None:  # the first call has none (CACHE-4)
        # cat makes new tensors: the old cache stays as it was, and another call may continue it too (CACHE-5).
        key, value = torch.cat([cache.key, key], dim=2), torch.cat([cache.value, value], dim=2)
    new, so_far = query.shape[2], key.shape[2]
    # The triangle ends in the last column: the first new token sees the cached ones and itself (CACHE-2). is_causal of
    # PyTorch starts in the first column instead.
    seen = torch.ones(new, so_far, dtype=torch.bool, device=query.device).tril(so_far - new)
    if window is not None:  # the new tokens are the last rows of the whole sequence's mask (BLOCK-8)
        seen = seen & sliding_window_mask(so_far, so_far, window, device=query.device)[-new:]
    seen = seen if mask is None else seen & mask
    return *grouped_query_attention(query, key, value, seen, **scores), Cache(key, value)


@checked
def cached_attention(
    query: Float[Tensor, "batch heads new d_k"], key: Float[Tensor, "batch kv_heads new d_k"],
    value: Float[Tensor, "batch kv_heads new d_v"], mask: Words[Tensor, "batch one one so_far"] | None = None,
    cache: Cache | None = None,
) -> tuple[Float[Tensor, "batch heads new d_v"], Cache]:  # fmt: skip
    """Attend from new tokens to all so far; output, and the cache for the next call. Shazeer, 2019, 2.4. CACHE-1."""
    so_far = key.shape[2] + (0 if cache is None else cache.key.shape[2])
    check_cached_mask(mask, so_far)  # (batch, 1, 1, so_far): padding of earlier calls stays hidden (CACHE-3)
    output, _, cache = attend_with_cache(query, key, value, mask, cache)
    return output, cache


class DecoderOnlyLayer(Module):
    """Causal attention, then the gated network, each behind a norm. Touvron et al., 2023, section 2.2. BLOCK-1.

    A head is d_model / num_heads wide unless head_width says otherwise, and qk_norm=True normalises queries and keys
    (QKN-4). With a window a token sees the last keys only (BLOCK-8); scale and softcap change the scores (BLOCK-9).
    Settings go to the norms (eps), to the network (activation) and to all (device, dtype).
    """

    w_q: Float[Tensor, "d_model heads*d_k"]
    w_k: Float[Tensor, "d_model kv_heads*d_k"]
    w_v: Float[Tensor, "d_model kv_heads*d_k"]
    w_o: Float[Tensor, "heads*d_k d_model"]
    gamma_q: Float[Tensor, "d_k"] | None
    gamma_k: Float[Tensor, "d_k"] | None

    def __init__(
        self, d_model: Size, num_heads: Size, num_kv_heads: Size, d_ff: Size, *, head_width: Size | None = None,
        base: Positive = 10000.0, order: Order = "pre", pairing: Pairing = "interleaved", eps: Positive = 1e-6,
        activation: Activation = "silu", bias: bool = False, qk_norm: bool = False, window: Size | None = None,
        scale: Positive | None = None, softcap: Positive | None = None, **like: Any,
    ) -> None:  # fmt: skip
        super().__init__()
        self.window, self.scores = window, {"scale": scale, "softcap": softcap}
        self.num_heads, self.num_kv_heads, self.base, self.pairing = num_heads, num_kv_heads, base, pairing
        self.eps = eps
        check_groups(num_heads, num_kv_heads)
        d_k = head_width or d_model // num_heads
        all_heads, shared = num_heads * d_k, num_kv_heads * d_k
        self.w_q, self.w_k, self.w_v = (xavier_weight(d_model, width, **like) for width in (all_heads, shared, shared))
        self.w_o = xavier_weight(all_heads, d_model, **like)
        widths = (all_heads, shared, shared, d_model)
        self.b_q, self.b_k, self.b_v, self.b_o = (zero_bias(width, bias=bias, **like) for width in widths)
        # One gain for all heads of queries, and one for those of keys (QKN-2).
        self.gamma_q, self.gamma_k = (nn.Parameter(torch.ones(d_k, **like)) if qk_norm else None for _ in range(2))
        self.feed_forward = GatedFeedForward(d_model, d_ff, activation=activation, bias=bias, **like)
        self.norm_1 = RMSNorm(d_model, eps, **like)
        self.norm_2 = None if order == "parallel" else RMSNorm(d_model, eps, **like)
        self.post_norm_1, self.post_norm_2 = (
            RMSNorm(d_model, eps, **like) if order == "sandwich" else None for _ in range(2)
        )

    def attend(self, x: Tensor, mask: Tensor | None, cache: Cache | None) -> tuple[Tensor, Tensor, Cache]:
        """Let each token attend to itself and to earlier tokens, those of the cache too; output, weights, cache."""
        q = split_heads(affine(x, self.w_q, self.b_q), self.num_heads)  # (batch, heads, seq, d_k)
        k = split_heads(affine(x, self.w_k, self.b_k), self.num_kv_heads)  # (batch, kv_heads, seq, d_k)
        v = split_heads(affine(x, self.w_v, self.b_v), self.num_kv_heads)
        check_gains(self.gamma_q, self.gamma_k)
        # Before the turn, which mixes channels of different gains (QKN-3).
        q, k = normalise_heads(q, self.gamma_q, self.eps), normalise_heads(k, self.gamma_k, self.eps)
        # Queries and keys turn within each head, so their scores know how far apart they are; values do not (BLOCK-3).
        start = 0 if cache is None else cache.key.shape[2]  # cached keys are turned already (LMC-2)
        positions = torch.arange(start, start + x.shape[1], device=x.device)
        q, k = (rotary_embedding(heads, positions, self.base, pairing=self.pairing) for heads in (q, k))
        # Causal: a mask and a window only hide more (BLOCK-4).
        heads, weights, cache = attend_with_cache(q, k, v, mask, cache, self.window, **self.scores)
        return affine(merge_heads(heads), self.w_o, self.b_o), weights, cache

    def forward(
        self, x: Float[Tensor, "batch seq d_model"], mask: Bool[Tensor, "batch heads seq seq"] | None = None
    ) -> DecoderOnlyLayerResult:
        return self.extend(x, mask, None)[0]

    def extend(self, x: Tensor, mask: Tensor | None, cache: Cache | None) -> tuple[DecoderOnlyLayerResult, Cache]:
        """Run the layer on new tokens after those of a cache; the results, and the cache with the new tokens."""
        h = self.norm_1(x)
        update, weights, cache = self.attend(h, mask, cache)
        # The sum is never normalised, only what a block reads: every block of a model adds to one sum (BLOCK-6).
        attended = x + (update if self.post_norm_1 is None else self.post_norm_1(update))
        update = self.feed_forward(h if self.norm_2 is None else self.norm_2(attended)).output
        output = attended + (update if self.post_norm_2 is None else self.post_norm_2(update))
        return DecoderOnlyLayerResult(output, attended, weights), cache


class ModelState(NamedTuple):
    """All ids so far, (batch, so_far), and the cache of each layer."""

    ids: Tensor
    caches: tuple[Cache, ...]


class DecoderOnlyModel(Module):
    """The model: ids to logits, through layers with parameters of their own. Touvron et al., 2023. LM-1, LM-2.

    The settings go to the layers. tied=True makes the table the weight of the output too (MODEL-7), scaled=True
    multiplies the embedding by √d_model (EMB-3), pad_id hides a word from all others (LM-4), and logit_softcap bounds
    the logits (LM-8). All layers have the window and local_base, or, with global_every=n, all but each n-th (LM-7):
    Gemma 2 has 2, and Gemma 3 has 6.
    """

    table: Float[Tensor, "vocab d_model"]
    w_vocab: Float[Tensor, "d_model vocab"] | None

    def __init__(
        self, vocab: Size, d_model: Size, num_heads: Size, num_kv_heads: Size, d_ff: Size, num_layers: Size, *,
        pad_id: int | None = None, tied: bool = False, scaled: bool = False, eps: Positive = 1e-6,
        base: Positive = 10000.0, local_base: Positive | None = None, window: Size | None = None,
        global_every: Size | None = None, logit_softcap: Positive | None = None, **settings: Any,
    ) -> None:  # fmt: skip
        super().__init__()
        like = {name: settings[name] for name in ("device", "dtype") if name in settings}
        self.pad_id, self.factor = pad_id, math.sqrt(d_model) if scaled else 1.0
        self.table = nn.Parameter(torch.randn(vocab, d_model, **like))
        sizes = (d_model, num_heads, num_kv_heads, d_ff)
        self.logit_softcap = logit_softcap
        far, near = {"base": base}, {"base": base if local_base is None else local_base, "window": window}
        kinds = [far if global_every and (i + 1) % global_every == 0 else near for i in range(num_layers)]  # LM-5, LM-6
        self.layers: Any = nn.ModuleList(DecoderOnlyLayer(*sizes, eps=eps, **(settings | kind)) for kind in kinds)
        self.norm = RMSNorm(d_model, eps, **like)
        self.w_vocab = None if tied else xavier_weight(d_model, vocab, **like)

    def embed(self, ids: Tensor) -> Tensor:
        """Look up the row of each id; nothing is added for its position, which the layers turn by."""
        return token_embedding(ids, self.table) * self.factor

    def forward(self, ids: Int[Tensor, "batch seq"]) -> DecoderOnlyModelResult:
        return self.extend(ids)[0]

    @checked
    def extend(
        self, ids: Int[Tensor, "batch seq"], state: ModelState | None = None
    ) -> tuple[DecoderOnlyModelResult, ModelState]:
        """Read new ids after those of a state; the results of the new ones, and the state for the next call. LMC-1.

        Without a state a sequence begins: that call reads the prompt, and each later one a chunk or a single id.
        """
        embedded = x = self.embed(ids)
        so_far = ids if state is None else torch.cat([state.ids, ids], dim=1)  # padding stays hidden (LMC-4)
        mask = None if self.pad_id is None else padding_mask(so_far, self.pad_id)
        caches: list[Cache] = []
        for index, layer in enumerate(self.layers):  # each with a cache of its own (LMC-3)
            result, cache = layer.extend(x, mask, None if state is None else state.caches[index])
            x = result.output
            caches.append(cache)
        # The output of a layer is a sum that no norm has brought to one size: one norm follows the last (LM-3).
        decoded = self.norm(x)
        logits = decoded @ (self.table.T if self.w_vocab is None else self.w_vocab)
        if self.logit_softcap is not None:
            logits = self.logit_softcap * (logits / self.logit_softcap).tanh()
        return DecoderOnlyModelResult(logits, decoded, embedded), ModelState(so_far, tuple(caches))


@checked
def generate(
    model: DecoderOnlyModel, ids: Int[Tensor, "batch seq"], *, eos_id: int, max_new_tokens: Size
) -> Int[Tensor, "batch max_new_tokens"]:
    """Write the tokens after each prompt, at each step the one of the largest logit, up to eos_id. GEN-1, GEN-2.

    The prompt is not returned. pad_id follows eos_id, or eos_id again where the model has none. Prompts of different
    lengths are padded on the left. Where no values can be read, all max_new_tokens steps are taken.
    """
    check_word("eos_id", eos_id, model.table.shape[0], "ends a sample")
    batch, fill = ids.shape[0], eos_id if model.pad_id is None else model.pad_id
    new_ids = torch.full((batch, max_new_tokens), fill, device=ids.device)
    ended = torch.zeros(
        batch, dtype=torch.bool, device=ids.device
    )  # by a new token: eos_id may be in the prompt (GEN-3)
    state: ModelState | None = None
    for t in range(max_new_tokens):
        if can_read(ended) and ended.all():
            break
        result, state = model.extend(ids, state)  # the prompt, and then one token in each call
        token = widen(result.logits[:, -1]).argmax(dim=-1)  # the first of equals, as torch promises (GEN-5)
        new_ids[:, t] = token.where(~ended, fill)
        ended = ended | (token == eos_id)
        # A sample that has ended waits for the others (GEN-4). What it reads does not matter.
        ids = token[:, None]
    return new_ids
