"""Multi-head attention with separate projections: project, split, attend, merge, project."""

import torch
from torch import Tensor, nn

from goldformer.reference_impl import _functional as functional
from goldformer.reference_impl._building import build
from goldformer.reference_impl._checks import check_heads_divide, check_mask, check_positive_int, check_tensors
from goldformer.reference_impl._random import Dropping, make_dropping, skip_dropout, xavier_weight, zero_bias


def split_heads(x: Tensor, num_heads: int) -> Tensor:
    """Cut the channels into one contiguous block per head, and put the heads before the positions.

    Shapes:   x (batch, seq, heads·d) → (batch, heads, seq, d)
    Errors:   ValueError unless num_heads divides the last axis
    Source:   n9 "多头注意力机制"; paper, section 3.2.2
    """
    check_tensors({"x": (x, "batch seq heads*d")})
    check_heads_divide(num_heads, x.shape[-1], "x")
    return functional.split_heads(x, num_heads)  # (batch, heads, seq, d)


def merge_heads(x: Tensor) -> Tensor:
    """Lay the heads next to each other again: the inverse of split_heads, and the Concat of the formula.

    Shapes:   x (batch, heads, seq, d) → (batch, seq, heads·d)
    Errors:   ValueError unless x has four axes
    Source:   n9 "多头注意力机制"; paper, section 3.2.2
    """
    check_tensors({"x": (x, "batch heads seq d")})
    return functional.merge_heads(x)  # (batch, seq, heads·d)


def project_heads(x: Tensor, w: Tensor, b: Tensor | None = None, *, num_heads: int) -> Tensor:
    """Project every position to the queries, the keys or the values of all heads at once.

    Formula:  head i gets X W_i + b_i, with W_i and b_i the i-th blocks of columns of w and b
    Shapes:   x (batch, seq, d_input), w (d_input, heads·d), b (heads·d,) → (batch, heads, seq, d)
    Errors:   TypeError unless all are floating-point tensors of one dtype; ValueError for shapes that do not fit,
              or a num_heads that does not divide the width of w
    Source:   walkthrough 3, n9 "多头注意力机制"; paper, section 3.2.2
    """
    check_tensors({"x": (x, "batch seq d_input"), "w": (w, "d_input heads*d")}, optional={"b": (b, "heads*d")})
    check_heads_divide(num_heads, w.shape[-1], "w")
    return functional.project_heads(x, w, b, num_heads)  # (batch, heads, seq, d)


def multi_head_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    *,
    num_heads: int,
    w_q: Tensor,
    w_k: Tensor,
    w_v: Tensor,
    w_o: Tensor,
    b_q: Tensor | None = None,
    b_k: Tensor | None = None,
    b_v: Tensor | None = None,
    b_o: Tensor | None = None,
    dropout_rate: float | None = None,
    training: bool = True,
    seed: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Attend several times in parallel, each time in a subspace of its own, and mix the results.

    Formula:  MultiHead(Q, K, V) = Concat(head_1, …, head_h) W^O,
              head_i = Attention(Q W_i^Q, K W_i^K, V W_i^V), with W_i^Q the i-th block of columns of w_q;
              in training with a dropout_rate each head drops weights as scaled_dot_product_attention does
    Shapes:   query (batch, q_seq, d_query), key (batch, kv_seq, d_key), value (batch, kv_seq, d_value),
              mask boolean, broadcastable to (batch, heads, q_seq, kv_seq), True = may attend,
              w_q (d_query, heads·d_k), w_k (d_key, heads·d_k), w_v (d_value, heads·d_v),
              w_o (heads·d_v, d_model), and to each its bias
              → output (batch, q_seq, d_model), weights (batch, heads, q_seq, kv_seq)
    Errors:   TypeError unless all are floating-point tensors of one dtype and the mask is boolean;
              ValueError for shapes that do not fit, or a num_heads that does not divide the widths of
              w_q and w_v
    Source:   walkthrough 3, n9 "多头注意力机制"; paper, section 3.2.2
    """
    module = build(
        MultiHeadAttention,
        num_heads=num_heads,
        w_q=w_q,
        w_k=w_k,
        w_v=w_v,
        w_o=w_o,
        b_q=b_q,
        b_k=b_k,
        b_v=b_v,
        b_o=b_o,
        dropout=make_dropping(dropout_rate, training, seed),
    )
    return module.forward(query, key, value, mask)


class MultiHeadAttention(nn.Module):
    """Multi-head attention of the documents' width: d_k = d_v = d_model / num_heads.

    Parameters: w_q, w_k, w_v, w_o, all (in, out), and b_q, b_k, b_v, b_o unless ``bias=False``; in the state
    dict by the same names. Where keys and values come from another model, ``d_key`` and ``d_value`` give
    their widths.
    """

    dropout: Dropping = staticmethod(skip_dropout)  # of the weights; the function may replace it

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        *,
        d_key: int | None = None,
        d_value: int | None = None,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_positive_int("d_model", d_model)
        check_heads_divide(num_heads, d_model, "the model, d_model")
        d_key = d_model if d_key is None else d_key
        d_value = d_model if d_value is None else d_value
        check_positive_int("d_key", d_key)
        check_positive_int("d_value", d_value)
        self.num_heads = num_heads
        self.w_q = xavier_weight(d_model, d_model, device, dtype)
        self.w_k = xavier_weight(d_key, d_model, device, dtype)
        self.w_v = xavier_weight(d_value, d_model, device, dtype)
        self.w_o = xavier_weight(d_model, d_model, device, dtype)
        self.b_q = zero_bias(d_model, device, dtype) if bias else None
        self.b_k = zero_bias(d_model, device, dtype) if bias else None
        self.b_v = zero_bias(d_model, device, dtype) if bias else None
        self.b_o = zero_bias(d_model, device, dtype) if bias else None

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Attend as multi_head_attention does, and return its output and its weights per head."""
        self._check_input(query, key, value, mask)

        q = functional.project_heads(query, self.w_q, self.b_q, self.num_heads)  # (batch, heads, q_seq, d_k)
        k = functional.project_heads(key, self.w_k, self.b_k, self.num_heads)  # (batch, heads, kv_seq, d_k)
        v = functional.project_heads(value, self.w_v, self.b_v, self.num_heads)  # (batch, heads, kv_seq, d_v)
        # Each head is scaled by the √d_k of its own width, the last axis of q.
        # heads (batch, heads, q_seq, d_v)
        heads, weights = functional.scaled_dot_product_attention(q, k, v, mask, self.dropout)
        output = functional.affine(functional.merge_heads(heads), self.w_o, self.b_o)  # (batch, q_seq, d_model)
        return output, weights

    def _check_input(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> None:
        """Refuse arguments that do not fit the parameters."""
        check_tensors(
            {
                "query": (query, "batch q_seq d_query"),
                "key": (key, "batch kv_seq d_key"),
                "value": (value, "batch kv_seq d_value"),
                "w_q": (self.w_q, "d_query heads*d_k"),
                "w_k": (self.w_k, "d_key heads*d_k"),
                "w_v": (self.w_v, "d_value heads*d_v"),
                "w_o": (self.w_o, "heads*d_v d_model"),
            },
            optional={
                "b_q": (self.b_q, "heads*d_k"),
                "b_k": (self.b_k, "heads*d_k"),
                "b_v": (self.b_v, "heads*d_v"),
                "b_o": (self.b_o, "d_model"),
            },
        )
        check_heads_divide(self.num_heads, self.w_q.shape[-1], "w_q")
        check_heads_divide(self.num_heads, self.w_v.shape[-1], "w_v")
        if mask is not None:
            scores = (query.shape[0], self.num_heads, query.shape[1], key.shape[1])
            check_mask("mask", mask, "... q_seq kv_seq", scores, "query", query)
