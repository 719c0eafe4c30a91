"""Self-attention with one head over one sequence: the class of the java document."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from goldformer.reference_impl._checks import check_bool, check_positive_int, check_tensors
from goldformer.reference_impl._linear import xavier_weight
from goldformer.reference_impl.masks import causal_mask
from goldformer.reference_impl.scaled_dot_product_attention import (
    attention_scores,
    scaled_dot_product_attention,
)


class SingleHeadResult(NamedTuple):
    """Every matrix of the worked example, the result first.

    ``scores`` are QKᵀ as the document prints them: before the division by √d_model and before the mask.
    """

    output: Tensor  # (seq, d_model)
    weights: Tensor  # (seq, seq)
    query: Tensor  # (seq, d_model)
    key: Tensor  # (seq, d_model)
    value: Tensor  # (seq, d_model)
    scores: Tensor  # (seq, seq)


def single_head_attention(x: Tensor, *, w_q: Tensor, w_k: Tensor, w_v: Tensor, causal: bool) -> SingleHeadResult:
    """Attend from x to x with one head, causally (java's code) or not (its worked example).

    Formula:  Q = X W_Q,  K = X W_K,  V = X W_V,  output = softmax(QKᵀ / √d_model) V
    Shapes:   x (seq, d_model), w_q, w_k and w_v (d_model, d_model)
              → output, query, key, value (seq, d_model), weights, scores (seq, seq)
    Errors:   TypeError unless all are floating-point tensors of one dtype and causal is a bool;
              ValueError for shapes that do not fit
    Source:   java "公式解析部分" and "代码实现"; paper, section 3.2.1
    """
    check_tensors(
        {
            "x": (x, "seq d_model"),
            "w_q": (w_q, "d_model d_model"),
            "w_k": (w_k, "d_model d_model"),
            "w_v": (w_v, "d_model d_model"),
        }
    )
    check_bool("causal", causal)

    query, key, value = x @ w_q, x @ w_k, x @ w_v  # 3 × (seq, d_model)
    scores = attention_scores(query, key)  # (seq, seq)
    seq = x.shape[0]
    mask = causal_mask(seq, seq, device=x.device) if causal else None  # (seq, seq)
    # The weights are square, so the √d_k of attention is java's √d_model.
    output, weights = scaled_dot_product_attention(query, key, value, mask)  # (seq, d_model)
    return SingleHeadResult(output, weights, query, key, value, scores)


class SingleHeadAttention(nn.Module):
    """The java class: one causal head whose width is that of the model.

    Parameters: w_q, w_k, w_v, each (d_model, d_model). Its backward pass by hand is what autograd does here,
    and its step W ← W − lr·∂W is that of torch.optim.SGD.
    """

    def __init__(
        self,
        d_model: int,
        *,
        causal: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_positive_int("d_model", d_model)
        check_bool("causal", causal)
        self.causal = causal
        self.w_q = xavier_weight(d_model, d_model, device, dtype)
        self.w_k = xavier_weight(d_model, d_model, device, dtype)
        self.w_v = xavier_weight(d_model, d_model, device, dtype)

    def forward(self, x: Tensor) -> SingleHeadResult:
        """Attend as single_head_attention does to x (seq, d_model)."""
        return single_head_attention(x, w_q=self.w_q, w_k=self.w_k, w_v=self.w_v, causal=self.causal)
