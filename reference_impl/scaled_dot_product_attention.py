"""Scaled dot-product attention, and its first two steps: scores and scaled scores."""

from torch import Tensor

from goldformer.reference_impl import _functional as functional
from goldformer.reference_impl._checks import check_mask, check_tensors
from goldformer.reference_impl._random import make_dropping


def attention_scores(query: Tensor, key: Tensor) -> Tensor:
    """Compare every query with every key by their dot product.

    Formula:  S = QKᵀ
    Shapes:   query (..., q_seq, d_k), key (..., kv_seq, d_k) → (..., q_seq, kv_seq)
    Errors:   TypeError unless both are floating-point tensors of one dtype;
              ValueError for shapes that do not fit
    Source:   walkthrough 1, primer 4.1; paper, section 3.2.1, inside equation (1)
    """
    check_tensors({"query": (query, "... q_seq d_k"), "key": (key, "... kv_seq d_k")})
    return functional.attention_scores(query, key)  # (..., q_seq, kv_seq)


def scaled_scores(query: Tensor, key: Tensor) -> Tensor:
    """Divide the scores by √d_k, so that their spread does not grow with the width of the heads.

    Formula:  S / √d_k; for independent standard normal entries Var(q·k) = d_k, so Var(q·k / √d_k) = 1
    Shapes:   query (..., q_seq, d_k), key (..., kv_seq, d_k) → (..., q_seq, kv_seq)
    Errors:   as attention_scores
    Source:   walkthrough 1, primer 4.1; paper, section 3.2.1, equation (1) and footnote 4
    """
    check_tensors({"query": (query, "... q_seq d_k"), "key": (key, "... kv_seq d_k")})
    return functional.scaled_scores(query, key)  # (..., q_seq, kv_seq)


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    *,
    dropout_rate: float | None = None,
    seed: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Average the values for each query, weighted by how well their keys fit it.

    Formula:  Attention(Q, K, V) = softmax(QKᵀ / √d_k) V; with a dropout_rate, dropout(softmax(QKᵀ / √d_k)) V
    Shapes:   query (..., q_seq, d_k), key (..., kv_seq, d_k), value (..., kv_seq, d_v),
              mask boolean, broadcastable to (..., q_seq, kv_seq), True = may attend
              → output (..., q_seq, d_v), weights (..., q_seq, kv_seq)
    Errors:   TypeError unless all are floating-point tensors of one dtype and the mask is boolean, or for a
              dropout_rate without a seed; ValueError for shapes that do not fit, and for a rate outside 0 … 1
    Source:   walkthrough 1, primer 4.1; paper, section 3.2.1, equation (1); dropout: illustrated, in its code

    A masked key has weight 0. A query whose keys are all masked gives every key the weight 1/kv_seq.
    The weights returned are those of the softmax, before any of them is dropped.
    """
    check_tensors(
        {
            "query": (query, "... q_seq d_k"),
            "key": (key, "... kv_seq d_k"),
            "value": (value, "... kv_seq d_v"),
        }
    )
    if mask is not None:
        check_mask("mask", mask, "... q_seq kv_seq", (*query.shape[:-1], key.shape[-2]), "query", query)
    dropout = make_dropping(dropout_rate, True, seed)  # noqa: FBT003 - a call with a rate is one in training
    return functional.scaled_dot_product_attention(query, key, value, mask, dropout)
