"""Forms that only one document has: fused projections, a single head and its training step, padded sequences."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from goldformer.reference_impl.parts import Dropout, affine, xavier_weight, zero_bias
from goldformer.reference_impl.shapes import Bool, Float, Module, NotNegative, Rate, Size, check_heads_divide, checked
from goldformer.reference_impl.transformer import attention_scores, causal_mask, merge_heads, softmax, split_heads
from goldformer.reference_impl.transformer import scaled_dot_product_attention


@checked
def pad_or_truncate(x: Float[Tensor, "batch seq d_model"], length: Size) -> Float[Tensor, "batch length d_model"]:
    """Cut sequences off at one length, or append zero rows up to it (SEQ-1). Source: illustrated on the encoder."""
    missing = x.new_zeros(x.shape[0], max(length - x.shape[1], 0), x.shape[2])
    return torch.cat((x[:, :length], missing), dim=1)


@checked
def output_probabilities(
    x: Float[Tensor, "batch seq d_model"], *, w_vocab: Float[Tensor, "d_model vocab"],
    b_vocab: Float[Tensor, "vocab"] | None = None,
) -> tuple[Float[Tensor, "batch seq vocab"], Float[Tensor, "batch seq vocab"]]:  # fmt: skip
    """Compute softmax(x W_vocab + b_vocab) and the logits inside (OUT-1, OUT-2). Source: illustrated; paper 3.4."""
    logits = affine(x, w_vocab, b_vocab)
    return softmax(logits), logits


@checked
def cut_fused(qkv: Float[Tensor, "batch seq 3*heads*d_k"], num_heads: Size) -> tuple[Tensor, Tensor, Tensor]:
    """Cut a fused projection, q_1 k_1 v_1 q_2 …, into three of (batch, heads, seq, d_k) (FMHA-2). Walkthrough 3."""
    if qkv.shape[-1] % (3 * num_heads) != 0:
        must = f"its columns must be a multiple of {3 * num_heads}: lay q, k and v of {num_heads} heads side by side"
        raise ValueError(f"qkv has shape {tuple(qkv.shape)} and {must}, all of one width")
    # Heads first, then q, k and v within each: the order of the columns.
    q, k, v = split_heads(qkv, num_heads).chunk(3, dim=-1)
    return q, k, v


class FusedMultiHeadAttention(Module):
    """Multi-head self-attention from ``d_input`` channels to ``d_model``, with one projection. Source: walkthrough 3.

    The columns of w_qkv are not q_1 q_2 … k_1 k_2 … v_1 v_2 …, the layout of nn.MultiheadAttention. Started as the one
    matrix it is, its bound √(6 / (d_input + 3·d_model)) is smaller than that of three. The output is as wide as w_o,
    whatever the width of x: walkthrough's own code reshapes to the width of x and fails where the two differ (FMHA-3).
    """

    w_qkv: Float[Tensor, "d_input 3*heads*d_k"]
    w_o: Float[Tensor, "heads*d_k heads*d_k"]

    def __init__(
        self, d_input: Size, d_model: Size, num_heads: Size, *, dropout: Rate = 0.0, bias: bool = True, **like: Any
    ) -> None:
        super().__init__()
        check_heads_divide(num_heads, d_model, "the model, d_model")
        self.num_heads, self.dropout = num_heads, Dropout(dropout)
        self.w_qkv, self.w_o = xavier_weight(d_input, 3 * d_model, **like), xavier_weight(d_model, d_model, **like)
        self.b_qkv, self.b_o = zero_bias(3 * d_model, bias=bias, **like), zero_bias(d_model, bias=bias, **like)

    def forward(
        self, x: Float[Tensor, "batch seq d_input"], mask: Bool[Tensor, "batch heads seq seq"] | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the output (batch, seq, heads·d_k), the weights per head, and qkv (batch, seq, 3·heads·d_k)."""
        width = self.w_o.shape[0]
        if self.w_qkv.shape[1] != 3 * width:
            must = f"must have {3 * width} columns, three times the width {width} of w_o"
            fix = "lay q, k and v of every head side by side"
            raise ValueError(f"w_qkv has shape {tuple(self.w_qkv.shape)} and {must}: {fix}")
        qkv = affine(x, self.w_qkv, self.b_qkv)
        heads, weights = scaled_dot_product_attention(*cut_fused(qkv, self.num_heads), mask, self.dropout)
        return affine(merge_heads(heads), self.w_o, self.b_o), weights, qkv


class SingleHeadResult(NamedTuple):
    """Every matrix of java's example; ``scores`` are QKᵀ as it prints them, before the division and the mask."""

    output: Float[Tensor, "seq d_model"]
    weights: Float[Tensor, "seq seq"]
    query: Float[Tensor, "seq d_model"]
    key: Float[Tensor, "seq d_model"]
    value: Float[Tensor, "seq d_model"]
    scores: Float[Tensor, "seq seq"]


@checked
def move_weights(
    weights: Mapping[str, Tensor], gradient: Mapping[str, Tensor], learning_rate: NotNegative
) -> dict[str, Tensor]:
    """Move weights against their gradients: W ← W − lr ∂W, new tensors (SHA-7, SHA-10). Source: java "代码实现"."""
    return {name: weight - learning_rate * gradient[name] for name, weight in weights.items()}


class SingleHeadAttention(Module):
    """Q = X W_Q, K = X W_K, V = X W_V, output = softmax(QKᵀ / √d_model) V (SHA-1 to SHA-5). Source: java.

    It trains by autograd and torch.optim.SGD like any module; java's gradient and move_weights do the same.
    """

    w_q: Float[Tensor, "d_model d_model"]
    w_k: Float[Tensor, "d_model d_model"]
    w_v: Float[Tensor, "d_model d_model"]

    def __init__(self, d_model: Size, *, causal: bool = True, **like: Any) -> None:
        super().__init__()
        self.causal = causal
        self.w_q, self.w_k, self.w_v = (xavier_weight(d_model, d_model, **like) for _ in "qkv")

    def forward(self, x: Float[Tensor, "seq d_model"]) -> SingleHeadResult:
        """Attend from x to x, causally (java's code) or not (its worked example)."""
        query, key, value = x @ self.w_q, x @ self.w_k, x @ self.w_v
        mask = causal_mask(x.shape[0], x.shape[0], device=x.device) if self.causal else None
        # The weights are square, so the √d_k of attention is java's √d_model.
        output, weights = scaled_dot_product_attention(query, key, value, mask)
        return SingleHeadResult(output, weights, query, key, value, attention_scores(query, key))

    @checked
    def gradient(
        self, x: Float[Tensor, "seq d_model"], output_gradient: Float[Tensor, "seq d_model"]
    ) -> dict[str, Tensor]:
        """Carry the gradient of the output back to x and the weights, by hand as java does and without autograd."""
        forward = self(x)
        weights = forward.weights
        # output = weights · value
        value = weights.T @ output_gradient
        for_weights = output_gradient @ forward.value.T
        # A score moves its own weight, and through the sum of the softmax every weight of its row: hence the row's
        # term. Above the diagonal the weights are 0, and so is all of this; java writes the 0 there once more.
        row = (for_weights * weights).sum(dim=-1, keepdim=True)
        scores = weights * (for_weights - row) / math.sqrt(x.shape[-1])
        # scores = query · keyᵀ
        query, key = scores @ forward.key, scores.T @ forward.query
        # query = x · w_q, and so on for key and value: x is used three times, so three gradients add up.
        for_x = query @ self.w_q.T + key @ self.w_k.T + value @ self.w_v.T
        return {"x": for_x, "w_q": x.T @ query, "w_k": x.T @ key, "w_v": x.T @ value}
