"""The parts of a decoder-only Transformer in PyTorch that are not those of 2017, to be read from top to bottom.

Calls are held to the shapes in signatures, as in transformer.py. RMS-1 is a clause of the specification, in
spec/decoder_only.md.
"""

from typing import Any

import torch
from torch import Tensor, nn

from goldformer.reference_impl.parts import widen
from goldformer.reference_impl.shapes import Bool, Float, Module, Positive, Size, checked
from goldformer.reference_impl.transformer import scaled_dot_product_attention


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
