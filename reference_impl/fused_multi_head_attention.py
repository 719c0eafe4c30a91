"""Multi-head self-attention whose queries, keys and values come out of one projection."""

import torch
from torch import Tensor, nn

from goldformer.reference_impl import _functional as functional
from goldformer.reference_impl._building import build
from goldformer.reference_impl._checks import check_heads_divide, check_mask, check_positive_int, check_tensors
from goldformer.reference_impl._random import Dropping, make_dropping, skip_dropout, xavier_weight, zero_bias


def cut_fused(qkv: Tensor, num_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Cut a fused projection into the queries, keys and values of every head.

    Shapes:   qkv (batch, seq, 3·heads·d_k), the columns q_1 k_1 v_1 q_2 k_2 v_2 … → 3 × (batch, heads, seq, d_k)
    Errors:   TypeError unless qkv is a floating-point tensor; ValueError for other shapes, or a num_heads that does
              not cut its columns into three equal parts for each head
    Source:   walkthrough 3
    """
    check_tensors({"qkv": (qkv, "batch seq 3*heads*d_k")})
    check_positive_int("num_heads", num_heads)
    if qkv.shape[-1] % (3 * num_heads) != 0:
        raise ValueError(
            f"qkv has shape {tuple(qkv.shape)} and its columns must be a multiple of {3 * num_heads}: "
            f"lay q, k and v of {num_heads} heads side by side, all of one width"
        )

    return functional.cut_fused(qkv, num_heads)  # 3 × (batch, heads, seq, d_k)


def fused_multi_head_attention(
    x: Tensor,
    mask: Tensor | None = None,
    *,
    num_heads: int,
    w_qkv: Tensor,
    w_o: Tensor,
    b_qkv: Tensor | None = None,
    b_o: Tensor | None = None,
    dropout_rate: float | None = None,
    training: bool = True,
    seed: int | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Attend from x to x with several heads, projecting once for queries, keys and values together.

    Formula:  as multi_head_attention; the columns of w_qkv are q_1 k_1 v_1 q_2 k_2 v_2 …, each d_k wide, for
              heads 1, 2, … (not q_1 q_2 … k_1 k_2 … v_1 v_2 …, which is the layout of nn.MultiheadAttention)
    Shapes:   x (batch, seq, d_input),
              mask boolean, broadcastable to (batch, heads, seq, seq), True = may attend,
              w_qkv (d_input, 3·heads·d_k), w_o (heads·d_k, heads·d_k), and to each its bias
              → output (batch, seq, heads·d_k), weights (batch, heads, seq, seq),
              qkv (batch, seq, 3·heads·d_k)
    Errors:   TypeError unless all are floating-point tensors of one dtype and the mask is boolean;
              ValueError for shapes that do not fit, or a num_heads that does not divide the width of w_o
    Source:   walkthrough 3; paper, section 3.2.2

    The output is as wide as w_o, whatever the width of x: walkthrough's own code reshapes to the width of x
    and fails where the two differ.
    """
    dropout = make_dropping(dropout_rate, training, seed)
    weights = {"w_qkv": w_qkv, "w_o": w_o, "b_qkv": b_qkv, "b_o": b_o}
    module = build(FusedMultiHeadAttention, num_heads=num_heads, dropout=dropout, **weights)
    return module.forward(x, mask)


class FusedMultiHeadAttention(nn.Module):
    """Multi-head self-attention of walkthrough's class: from ``d_input`` channels to ``d_model``.

    Parameters: w_qkv (d_input, 3·d_model), b_qkv, w_o (d_model, d_model), b_o; no biases with ``bias=False``.
    The fused matrix is started Xavier-uniform as the one matrix it is: its bound √(6 / (d_input + 3·d_model))
    is smaller than that of three separate ones.
    """

    dropout: Dropping = staticmethod(skip_dropout)  # of the weights; the function may replace it

    def __init__(
        self,
        d_input: int,
        d_model: int,
        num_heads: int,
        *,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_positive_int("d_input", d_input)
        check_positive_int("d_model", d_model)
        check_heads_divide(num_heads, d_model, "the model, d_model")
        self.num_heads = num_heads
        self.w_qkv = xavier_weight(d_input, 3 * d_model, device, dtype)
        self.w_o = xavier_weight(d_model, d_model, device, dtype)
        self.b_qkv = zero_bias(3 * d_model, device, dtype) if bias else None
        self.b_o = zero_bias(d_model, device, dtype) if bias else None

    def forward(self, x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Attend as fused_multi_head_attention does, and return its output, its weights per head and qkv."""
        self._check_input(x, mask)

        qkv = functional.affine(x, self.w_qkv, self.b_qkv)  # (batch, seq, 3·heads·d_k)
        q, k, v = functional.cut_fused(qkv, self.num_heads)  # 3 × (batch, heads, seq, d_k)
        # heads (batch, heads, seq, d_k)
        heads, weights = functional.scaled_dot_product_attention(q, k, v, mask, self.dropout)
        output = functional.affine(functional.merge_heads(heads), self.w_o, self.b_o)  # (batch, seq, heads·d_k)
        return output, weights, qkv

    def _check_input(self, x: Tensor, mask: Tensor | None) -> None:
        """Refuse arguments that do not fit the parameters."""
        check_tensors(
            {
                "x": (x, "batch seq d_input"),
                "w_qkv": (self.w_qkv, "d_input 3*heads*d_k"),
                "w_o": (self.w_o, "heads*d_k heads*d_k"),
            },
            optional={"b_qkv": (self.b_qkv, "3*heads*d_k"), "b_o": (self.b_o, "heads*d_k")},
        )
        width = self.w_o.shape[0]
        if self.w_qkv.shape[1] != 3 * width:
            raise ValueError(
                f"w_qkv has shape {tuple(self.w_qkv.shape)} and must have {3 * width} columns, three times the width "
                f"{width} of w_o: lay q, k and v of every head side by side"
            )
        check_heads_divide(self.num_heads, width, "w_o")
        if mask is not None:
            batch, seq, _ = x.shape
            check_mask("mask", mask, "... q_seq kv_seq", (batch, self.num_heads, seq, seq), "query", x)
