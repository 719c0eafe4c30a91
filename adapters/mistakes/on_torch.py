"""Mistakes that only tensors can show: where a tensor is, how it lies in memory, and what autograd follows."""

from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import Tensor

from goldformer.adapters.builtin import reference
from goldformer.adapters.mistakes.registry import mistake
from goldformer.reference_impl import sinusoid_table


class Reference:
    """The bundled reference, one component of which a mistake does otherwise."""

    ARRAYS: Final = reference.ARRAYS

    def __getattr__(self, name: str) -> Any:
        """What the reference's adapter has by that name."""
        return getattr(reference, name)


# Where a tensor is


@mistake("pe-not-buffer")
class TableNotABuffer(Reference):
    """The table is made on the CPU and added where it is."""

    def positional_encoding(self, x: Tensor) -> Tensor:
        return x + sinusoid_table(x.shape[1], x.shape[2], dtype=x.dtype)


@mistake("pe-hard-cuda")
class TableOnCuda(Reference):
    """The table is moved to CUDA, wherever x is."""

    def positional_encoding(self, x: Tensor) -> Tensor:
        return x + sinusoid_table(x.shape[1], x.shape[2], dtype=x.dtype).cuda()


@mistake("device-const")
class ConstantOnTheCpu(Reference):
    """The queries are multiplied by a constant of one element that is made on the CPU."""

    def multi_head_attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None = None,
        *,
        num_heads: int,
        params: Mapping[str, Tensor],
    ) -> tuple[Tensor, ...]:
        query = query * torch.ones(1, dtype=query.dtype)
        return reference.multi_head_attention(query, key, value, mask, num_heads=num_heads, params=params)


# How it lies in memory


@mistake("non-contiguous")
class FlattenedByView(Reference):
    """The tokens of all samples are made one axis by view, which moves nothing in memory."""

    def feed_forward(self, x: Tensor, *, params: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
        batch, seq, d_model = x.shape
        results = reference.feed_forward(x.view(1, batch * seq, d_model), params=params)
        return tuple(result.view(batch, seq, -1) for result in results)


# What autograd follows


@mistake("grad-cut")
class WeightsDetached(Reference):
    """The weights are those of queries and keys that are detached."""

    def scaled_dot_product_attention(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, **dropout: Any
    ) -> tuple[Tensor, ...]:
        return reference.scaled_dot_product_attention(query.detach(), key.detach(), value, mask, **dropout)
