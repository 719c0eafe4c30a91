"""The adapter of goldformer.reference_impl: every output its contract names, the default conventions."""

from collections.abc import Mapping
from typing import Final

from torch import Tensor

from goldformer import __version__, reference_impl

NAME: Final = "reference"
VERSION: Final = __version__
ARRAYS: Final = "torch"

softmax = reference_impl.softmax
causal_mask = reference_impl.causal_mask
padding_mask = reference_impl.padding_mask
positional_encoding = reference_impl.positional_encoding


def scaled_dot_product_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return output, weights, scores and scaled_scores."""
    attended = reference_impl.scaled_dot_product_attention(query, key, value, mask)
    return *attended, reference_impl.attention_scores(query, key), reference_impl.scaled_scores(query, key)


def token_embedding(ids: Tensor, *, params: Mapping[str, Tensor]) -> Tensor:
    """Return the rows of the table."""
    return reference_impl.token_embedding(ids, **params)


def multi_head_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    *,
    num_heads: int,
    params: Mapping[str, Tensor],
) -> tuple[Tensor, Tensor]:
    """Return output and weights."""
    return reference_impl.multi_head_attention(query, key, value, mask, num_heads=num_heads, **params)


def fused_multi_head_attention(
    x: Tensor, mask: Tensor | None = None, *, num_heads: int, params: Mapping[str, Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return output, weights and qkv."""
    return reference_impl.fused_multi_head_attention(x, mask, num_heads=num_heads, **params)


def single_head_attention(x: Tensor, *, causal: bool, params: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return output, weights, query, key, value and scores."""
    return reference_impl.single_head_attention(x, causal=causal, **params)._asdict()
