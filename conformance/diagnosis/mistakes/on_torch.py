"""Mistakes that only tensors can show: where a tensor is, how it lies in memory, and what autograd follows."""

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, Final, TypeVar

import torch
from torch import Tensor

from goldformer.adapters.builtin import reference
from goldformer.conformance.diagnosis.mistakes.registry import mistake_on_torch

Function = TypeVar("Function", bound=Callable[..., Any])

#: What the bundled reference's adapter has.
_REFERENCE: Final = {name: thing for name, thing in vars(reference).items() if not name.startswith("_")}


def mistake(id_: str, *, instead_of: str) -> Callable[[Function], Function]:
    """Register the reference as the mistake `id_`, with a function instead of its own component of that name."""

    def register(function: Function) -> Function:
        mistake_on_torch(id_, lambda: SimpleNamespace(**_REFERENCE | {instead_of: function}))
        return function

    return register


# Where a tensor is


def _table_on_cpu(x: Tensor) -> Tensor:
    """Return the table that is added to x, which is made on the CPU: (seq, d_model)."""
    return reference.positional_encoding(torch.zeros(1, *x.shape[1:], dtype=x.dtype))[0]


def _drop(x: Tensor, *, dropout_rate: float | None = None, training: bool = True, seed: int = 0) -> Tensor:
    """Return x with elements dropped if there is a rate."""
    return x if dropout_rate is None else reference.dropout(x, rate=dropout_rate, training=training, seed=seed)


@mistake("pe-not-buffer", instead_of="positional_encoding")
def add_table_of_cpu(x: Tensor, **dropout: Any) -> Tensor:
    """Return x plus the table, which is made on the CPU and added where it is."""
    return _drop(x + _table_on_cpu(x), **dropout)


@mistake("pe-hard-cuda", instead_of="positional_encoding")
def add_table_on_cuda(x: Tensor, **dropout: Any) -> Tensor:
    """Return x plus the table, which is moved to CUDA, wherever x is."""
    return _drop(x + _table_on_cpu(x).cuda(), **dropout)


@mistake("device-const", instead_of="multi_head_attention")
def multiply_by_constant_of_cpu(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    *,
    num_heads: int,
    params: Mapping[str, Tensor],
    **dropout: Any,
) -> tuple[Tensor, ...]:
    """Return attention of queries multiplied by a constant of one element that is made on the CPU."""
    query = query * torch.ones(1, dtype=query.dtype)
    return reference.multi_head_attention(query, key, value, mask, num_heads=num_heads, params=params, **dropout)


@mistake("device-mask", instead_of="decoder_layer")
def hide_by_mask_of_cpu(x: Tensor, *rest: Any, **more: Any) -> tuple[Tensor, ...]:
    """Return the layer of tokens under a mask that hides no feature and is made on the CPU."""
    nothing = torch.zeros(x.shape[-1], dtype=torch.bool)
    return reference.decoder_layer(x.masked_fill(nothing, 0), *rest, **more)


@mistake("device-weight", instead_of="feed_forward")
def multiply_by_weight_of_cpu(x: Tensor, *, params: Mapping[str, Tensor], **dropout: Any) -> tuple[Tensor, ...]:
    """Return the network whose first weight is multiplied by a matrix of ones and zeros that stays on the CPU."""
    w_1 = params["w_1"] @ torch.eye(params["w_1"].shape[1], dtype=x.dtype)
    return reference.feed_forward(x, params={**params, "w_1": w_1}, **dropout)


@mistake("device-ids", instead_of="token_embedding")
def look_up_by_ids_of_cpu(ids: Tensor, *, params: Mapping[str, Tensor], pad_id: int | None = None) -> Tensor:
    """Return the embedding by a table whose rows are selected by ids that are counted on the CPU."""
    table = params["table"].index_select(0, torch.arange(len(params["table"])))
    return reference.token_embedding(ids, params={"table": table}, pad_id=pad_id)


@mistake("device-part", instead_of="greedy_decode")
def join_with_part_of_cpu(source: Tensor, **rest: Any) -> Any:
    """Return the sentences of sources that are joined with no words, which are made on the CPU."""
    nothing = torch.empty(len(source), 0, dtype=source.dtype)
    return reference.greedy_decode(torch.cat([nothing, source], 1), **rest)


@mistake("device-target", instead_of="one_hot")
def write_to_tensor_of_cpu(ids: Tensor, *, vocab: int) -> Tensor:
    """Return rows with a one, which are written to zeros that are made on the CPU."""
    return torch.zeros(*ids.shape, vocab, dtype=torch.int64).scatter_(-1, ids[..., None], 1)


@mistake("device-result", instead_of="softmax")
def return_to_cpu(scores: Tensor) -> Tensor:
    """Return the softmax on the CPU, wherever the scores are."""
    return reference.softmax(scores.cpu())


# How it lies in memory


@mistake("non-contiguous", instead_of="feed_forward")
def flatten_by_view(x: Tensor, *, params: Mapping[str, Tensor], **dropout: Any) -> tuple[Tensor, ...]:
    """Return the network of tokens made one axis by view, which moves nothing in memory."""
    batch, seq, d_model = x.shape
    results = reference.feed_forward(x.view(1, batch * seq, d_model), params=params, **dropout)
    return tuple(result.view(batch, seq, -1) for result in results)


# What autograd follows


@mistake("grad-cut", instead_of="scaled_dot_product_attention")
def detach_weights(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, **dropout: Any
) -> tuple[Tensor, ...]:
    """Return attention by the weights of queries and keys that are detached."""
    return reference.scaled_dot_product_attention(query.detach(), key.detach(), value, mask, **dropout)
