"""The adapter of PyTorch's flex_attention, whose masks, biases and caps are functions of a score and its place.

It runs unfused here, and on a CPU it has no backward pass. Sinks are a factor of the output, which follows from the
logarithm of the sum of exponentials that flex_attention returns too.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torch.nn.attention import flex_attention as flex

from goldformer.adapters.layouts import four_axes, four_axes_mask

NAME: Final = "torch-nn-flex"
VERSION: Final = torch.__version__
ARRAYS: Final = "torch"
DTYPES: Final = ("float64", "float32", "float16", "bfloat16")

# It refuses any device that it does not know by name.
DEVICES: Final = ("cpu",)

# It replaces the NaN of a row without a key.
CONVENTIONS: Final = {"empty_row": "zeros"}


class Cache(NamedTuple):
    """The keys and values of all tokens so far."""

    key: Tensor
    value: Tensor


def scaled_dot_product_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
    """Call flex_attention over four axes, which returns only the output."""
    q, k, v, masked, restore = four_axes(query, key, value, mask)
    output: Tensor = restore(_attend(q, k, v, masked))
    return output


def grouped_query_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    sinks: Tensor | None = None,
    *,
    scale: float | None = None,
    softcap: float | None = None,
) -> Tensor:
    """Call flex_attention with enable_gqa, which returns only the output."""
    return _attend(query, key, value, mask, bias=bias, sinks=sinks, scale=scale, softcap=softcap)


def cached_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, state: Cache | None = None
) -> tuple[Tensor, Cache]:
    """Call flex_attention with all keys so far, under a causal mask that is offset by the cached ones."""
    earlier = 0 if state is None else state.key.shape[2]
    if state is not None:
        key, value = torch.cat([state.key, key], dim=2), torch.cat([state.value, value], dim=2)
    return _attend(query, key, value, mask, offset=earlier), Cache(key, value)


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    *,
    bias: Tensor | None = None,
    sinks: Tensor | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    offset: int | None = None,
) -> Tensor:
    """Call flex_attention; with an offset, query i sees the keys up to i + offset."""
    sizes = (len(query), query.shape[1], query.shape[2], key.shape[2])
    visible = None if mask is None else four_axes_mask(mask).expand(sizes)

    def change_score(score: Tensor, sample: Tensor, head: Tensor, row: Tensor, column: Tensor) -> Tensor:
        if softcap is not None:
            score = softcap * torch.tanh(score / softcap)
        if bias is not None:
            score = score + bias[head, row, column]
        if visible is not None:
            score = torch.where(visible[sample, head, row, column], score, -torch.inf)
        return score if offset is None else torch.where(column <= row + offset, score, -torch.inf)

    options: dict[str, Any] = {"score_mod": change_score, "scale": scale, "enable_gqa": True}
    with _run_uncompiled():
        output, made = flex.flex_attention(query, key, value, **options, return_aux=flex.AuxRequest(lse=True))
    # A sink takes its part of the sum of exponentials, whose logarithm is lse.
    part = 1.0 if sinks is None else torch.sigmoid(made.lse - sinks[:, None])[..., None]
    attended: Tensor = (output * part).to(query.dtype)
    return attended


@contextmanager
def _run_uncompiled() -> Iterator[None]:
    """Switch off the compiler in flex_attention, which runs again for each new score function, for a second a time."""
    before = flex._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG
    flex._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = True
    try:
        yield
    finally:
        flex._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = before
