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


def mistake(id_: str, *, instead_of: str = "", decorating: str = "") -> Callable[[Function], Function]:
    """Register the reference as the mistake `id_`, with a function instead of its own component of that name.

    One that decorates a component is given the reference's once and returns what takes its place, so that each
    implementation has a memory of its own.
    """

    def register(function: Function) -> Function:
        def make() -> SimpleNamespace:
            own = {decorating: function(_REFERENCE[decorating])} if decorating else {instead_of: function}
            return SimpleNamespace(**_REFERENCE | own)

        mistake_on_torch(id_, make)
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
def hide_by_mask_of_cpu(x: Tensor, *rest: Any, **more: Any) -> Any:
    """Return the layer of tokens under a mask that hides no feature and is made on the CPU."""
    nothing = torch.zeros(x.shape[-1], dtype=torch.bool)
    return reference.decoder_layer(x.masked_fill(nothing, 0), *rest, **more)


@mistake("device-weight", instead_of="feed_forward")
def multiply_by_weight_of_cpu(x: Tensor, *, params: Mapping[str, Tensor], **dropout: Any) -> Any:
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


@mistake("reads-around", instead_of="scaled_dot_product_attention")
def read_whole_block(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, **dropout: Any
) -> tuple[Tensor, ...]:
    """Return attention that adds 0 times the element after the last one of the values, if memory has one."""
    output, *weights = reference.scaled_dot_product_attention(query, key, value, mask, **dropout)
    if after := _find_after(value):
        output = output + 0 * value.as_strided((1,), (1,), after)
    return output, *weights


@mistake("writes-around", instead_of="scaled_dot_product_attention")
def fill_up_block(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, **dropout: Any
) -> tuple[Tensor, ...]:
    """Return attention that writes 0 after the last element of the values, if memory has one."""
    if after := _find_after(value):
        value.detach().as_strided((1,), (1,), after).zero_()
    return reference.scaled_dot_product_attention(query, key, value, mask, **dropout)


def _find_after(array: Tensor) -> int:
    """Return the place of the element after the last one of a contiguous tensor; 0 if its memory ends there."""
    after = int(array.storage_offset()) + array.numel()
    has_more = array.is_contiguous() and array.untyped_storage().nbytes() > after * array.element_size()
    return after if has_more else 0


@mistake("kept-by-address", decorating="scaled_dot_product_attention")
def keep_by_object(original: Callable[..., Any]) -> Callable[..., Any]:
    """Keep a copy of the keys for each tensor; it is kept itself, so that no other one gets its address."""
    kept: dict[int, tuple[Tensor, Tensor]] = {}

    def attend_to_kept(query: Tensor, key: Tensor, *rest: Any, **named: Any) -> Any:
        _, copy = kept.setdefault(id(key), (key, key.detach().clone()))
        return original(query, copy if not key.requires_grad else key, *rest, **named)

    return attend_to_kept


@mistake("result-overwritten", decorating="scaled_dot_product_attention")
def return_one_buffer(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return the output in one buffer for each size."""
    buffers: dict[tuple[Any, ...], Tensor] = {}

    def attend_into_buffer(query: Tensor, *rest: Any, **named: Any) -> Any:
        output, *weights = original(query, *rest, **named)
        if output.requires_grad:
            return output, *weights
        buffer = buffers.setdefault((tuple(output.shape), output.dtype, output.device), torch.empty_like(output))
        return buffer.copy_(output), *weights

    return attend_into_buffer


@mistake("result-aliases-input", instead_of="pad_or_truncate")
def cut_by_view(x: Tensor, *, length: int) -> Tensor:
    """Return a view of the rows that are kept, if there are enough."""
    return x[:, :length] if 0 < length <= x.shape[1] else reference.pad_or_truncate(x, length=length)


@mistake("uninitialised", instead_of="scaled_dot_product_attention")
def add_to_empty(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, **dropout: Any
) -> tuple[Tensor, ...]:
    """Return attention whose output is added to memory that holds whatever was there, if that is a number."""
    output, *weights = reference.scaled_dot_product_attention(query, key, value, mask, **dropout)
    return output + torch.empty_like(output), *weights


# What autograd follows


@mistake("grad-cut", instead_of="scaled_dot_product_attention")
def detach_weights(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, **dropout: Any
) -> tuple[Tensor, ...]:
    """Return attention by the weights of queries and keys that are detached."""
    return reference.scaled_dot_product_attention(query.detach(), key.detach(), value, mask, **dropout)
