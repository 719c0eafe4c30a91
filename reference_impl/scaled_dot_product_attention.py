"""Scaled dot-product attention, one step per function: scores, scaled scores, weights and output."""

import math

import torch
from torch import Tensor

from goldformer.reference_impl._checks import check_fraction, check_mask, check_seed, check_tensors
from goldformer.reference_impl._random import drop, seeded
from goldformer.reference_impl.softmax import softmax


def attention_scores(query: Tensor, key: Tensor) -> Tensor:
    """Compare every query with every key by their dot product.

    Formula:  S = QKᵀ
    Shapes:   query (..., q_seq, d_k), key (..., kv_seq, d_k) → (..., q_seq, kv_seq)
    Errors:   TypeError unless both are floating-point tensors of one dtype;
              ValueError for shapes that do not fit
    Source:   walkthrough 1, primer 4.1; paper, section 3.2.1, inside equation (1)
    """
    check_tensors({"query": (query, "... q_seq d_k"), "key": (key, "... kv_seq d_k")})

    return query @ key.transpose(-2, -1)  # (..., q_seq, kv_seq)


def scaled_scores(query: Tensor, key: Tensor) -> Tensor:
    """Divide the scores by √d_k, so that their spread does not grow with the width of the heads.

    Formula:  S / √d_k; for independent standard normal entries Var(q·k) = d_k, so Var(q·k / √d_k) = 1
    Shapes:   query (..., q_seq, d_k), key (..., kv_seq, d_k) → (..., q_seq, kv_seq)
    Errors:   as attention_scores
    Source:   walkthrough 1, primer 4.1; paper, section 3.2.1, equation (1) and footnote 4
    """
    # √d_k stays a Python number. A tensor made here would sit on the CPU and fail against CUDA scores, which
    # is what becomes of the scale in the code of n9 and illustrated.
    return attention_scores(query, key) / math.sqrt(query.shape[-1])


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    *,
    dropout_rate: float | None = None,
    seed: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Give each query the average of the values, weighted by how well their keys fit it.

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

    scores = scaled_scores(query, key)  # (..., q_seq, kv_seq)
    if mask is not None:
        check_mask("mask", mask, "... q_seq kv_seq", tuple(scores.shape), "query", query)
        # Masked scores become the most negative finite number of their dtype.
        #   Not −1e9 (java), −1e10 (n9) or −9e15 (walkthrough): float16 ends at −65504 and has none of them.
        #   Not −1e4 either, which float16 has: a kept score of −1.2e4 would lose to the masked ones.
        #   Not −inf: in a row without a key the maximum would be −inf, −inf − (−inf) is NaN, and so would be
        #   every gradient behind it. A finite fill makes that row equal throughout: the documents' 1/kv_seq.
        # Beside a kept score exp makes exactly 0 of the fill, in every dtype, unless that score is the most
        # negative number itself: its next neighbour in float16 is already 32 away, and exp(−32) rounds to 0.
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    weights = softmax(scores)  # (..., q_seq, kv_seq)
    kept = weights  # (..., q_seq, kv_seq)
    if dropout_rate is not None:
        check_fraction("dropout_rate", dropout_rate)
        check_seed("seed", seed)
        # Not normalised again: that the rows sum to 1 on average is what dropout means.
        kept = drop(weights, dropout_rate, seeded(seed, weights.device))  # (..., q_seq, kv_seq)
    output = kept @ value  # (..., q_seq, d_v)
    return output, weights
