"""Flash attention in Triton, forward and backward: softmax(Q Kᵀ / √d_k) V without the matrix of all weights.

The forward pass goes through the keys block by block and keeps three things of each query: the largest score so far,
the sum of the powers, and the sum of the weighted values. The backward pass computes the weights again, from the
logarithm of the sum. All sums run in float32. A query that may attend to no key gets zeros, and no gradient.

On a GPU it runs as it is; on a CPU set TRITON_INTERPRET=1 before the first import of triton.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

#: Queries and keys in one block. tl.dot takes no less than 16.
BLOCK = 32
#: One block in flight: with heads of 256 channels in float32, more would not fit into shared memory.
STAGES = 1


# The blocks that all kernels share. `sizes` is (queries, keys, d_k, d_v).


@triton.jit
def locate(strides, pair, heads, rows, columns):
    """Return the offsets of a block of an array (batch, heads, rows, columns); a pair is a sample and a head."""
    start = (pair // heads) * strides[0] + (pair % heads) * strides[1]
    return start + rows[:, None] * strides[2] + columns[None, :] * strides[3]


@triton.jit
def load_block(pointer, strides, pair, heads, rows, columns, num_rows, num_columns):
    """Return a block of an array, with zeros where the array has ended."""
    inside = (rows[:, None] < num_rows) & (columns[None, :] < num_columns)
    return tl.load(pointer + locate(strides, pair, heads, rows, columns), mask=inside, other=0.0)


@triton.jit
def store_block(pointer, strides, pair, heads, rows, columns, num_rows, num_columns, block):
    """Write the part of a block that lies in the array."""
    inside = (rows[:, None] < num_rows) & (columns[None, :] < num_columns)
    tl.store(pointer + locate(strides, pair, heads, rows, columns), block.to(pointer.dtype.element_ty), mask=inside)


@triton.jit
def score_block(
    q, k, mask_pointer, mask_strides, pair, heads, queries, keys, sizes, scale, MASKED: tl.constexpr,
    CAUSAL: tl.constexpr,
):  # fmt: skip
    """Return the scores of a block of queries and a block of keys, −∞ where a query may not attend."""
    # "ieee": Triton's default for float32 is TF32, which rounds both factors to eleven bits.
    scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    visible = (queries[:, None] < sizes[0]) & (keys[None, :] < sizes[1])
    if CAUSAL:
        visible = visible & (keys[None, :] <= queries[:, None])
    if MASKED:
        offsets = locate(mask_strides, pair, heads, queries, keys)
        visible = visible & (tl.load(mask_pointer + offsets, mask=visible, other=0) != 0)
    return tl.where(visible, scores, float("-inf"))


# The kernels


@triton.jit
def forward_kernel(
    q_pointer, k_pointer, v_pointer, mask_pointer, out_pointer, log_sum_pointer,
    q_strides, k_strides, v_strides, mask_strides, out_strides, heads, sizes, scale,
    MASKED: tl.constexpr, CAUSAL: tl.constexpr, BLOCK: tl.constexpr, D_K: tl.constexpr, D_V: tl.constexpr,
):  # fmt: skip
    """Compute one block of the output's rows, and the logarithm of the sum of each row."""
    pair = tl.program_id(0).to(tl.int64)
    queries = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    d_k, d_v = tl.arange(0, D_K), tl.arange(0, D_V)
    q = load_block(q_pointer, q_strides, pair, heads, queries, d_k, sizes[0], sizes[2])
    highest = tl.full((BLOCK,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    weighted = tl.zeros((BLOCK, D_V), tl.float32)
    end = sizes[1]
    if CAUSAL:
        end = tl.minimum(end, (tl.program_id(1) + 1) * BLOCK)
    for start in range(0, end, BLOCK):
        keys = start + tl.arange(0, BLOCK)
        k = load_block(k_pointer, k_strides, pair, heads, keys, d_k, sizes[1], sizes[2])
        v = load_block(v_pointer, v_strides, pair, heads, keys, d_v, sizes[1], sizes[3])
        scores = score_block(q, k, mask_pointer, mask_strides, pair, heads, queries, keys, sizes, scale, MASKED, CAUSAL)
        raised = tl.maximum(highest, tl.max(scores, 1))
        # As long as a row has seen no key, its maximum is −∞, and −∞ − −∞ would be NaN.
        shift = tl.where(raised == float("-inf"), 0.0, raised)
        powers = tl.exp(scores - shift[:, None])
        rescale = tl.exp(highest - shift)
        total = total * rescale + tl.sum(powers, 1)
        weighted = weighted * rescale[:, None] + tl.dot(powers.to(v.dtype), v, input_precision="ieee")
        highest = raised
    seen = total > 0
    divisor = tl.where(seen, total, 1.0)
    out = weighted / divisor[:, None]
    store_block(out_pointer, out_strides, pair, heads, queries, d_v, sizes[0], sizes[3], out)
    log_sum = tl.where(seen, highest, 0.0) + tl.log(divisor)
    tl.store(log_sum_pointer + pair * sizes[0] + queries, log_sum, mask=queries < sizes[0])


@triton.jit
def query_gradient_kernel(
    q_pointer, k_pointer, v_pointer, mask_pointer, grad_pointer, log_sum_pointer, dot_pointer, dq_pointer,
    q_strides, k_strides, v_strides, mask_strides, grad_strides, dq_strides, heads, sizes, scale,
    MASKED: tl.constexpr, CAUSAL: tl.constexpr, BLOCK: tl.constexpr, D_K: tl.constexpr, D_V: tl.constexpr,
):  # fmt: skip
    """Compute the gradient of one block of queries: a sum over the keys."""
    pair = tl.program_id(0).to(tl.int64)
    queries = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    d_k, d_v = tl.arange(0, D_K), tl.arange(0, D_V)
    q = load_block(q_pointer, q_strides, pair, heads, queries, d_k, sizes[0], sizes[2])
    grad = load_block(grad_pointer, grad_strides, pair, heads, queries, d_v, sizes[0], sizes[3])
    log_sum = tl.load(log_sum_pointer + pair * sizes[0] + queries, mask=queries < sizes[0], other=0.0)
    dot = tl.load(dot_pointer + pair * sizes[0] + queries, mask=queries < sizes[0], other=0.0)
    dq = tl.zeros((BLOCK, D_K), tl.float32)
    end = sizes[1]
    if CAUSAL:
        end = tl.minimum(end, (tl.program_id(1) + 1) * BLOCK)
    for start in range(0, end, BLOCK):
        keys = start + tl.arange(0, BLOCK)
        k = load_block(k_pointer, k_strides, pair, heads, keys, d_k, sizes[1], sizes[2])
        v = load_block(v_pointer, v_strides, pair, heads, keys, d_v, sizes[1], sizes[3])
        scores = score_block(q, k, mask_pointer, mask_strides, pair, heads, queries, keys, sizes, scale, MASKED, CAUSAL)
        weights = tl.exp(scores - log_sum[:, None])
        weights_grad = tl.dot(grad, tl.trans(v), input_precision="ieee")
        scores_grad = weights * (weights_grad - dot[:, None]) * scale
        dq += tl.dot(scores_grad.to(k.dtype), k, input_precision="ieee")
    store_block(dq_pointer, dq_strides, pair, heads, queries, d_k, sizes[0], sizes[2], dq)


@triton.jit
def key_value_gradient_kernel(
    q_pointer, k_pointer, v_pointer, mask_pointer, grad_pointer, log_sum_pointer, dot_pointer, dk_pointer, dv_pointer,
    q_strides, k_strides, v_strides, mask_strides, grad_strides, dk_strides, dv_strides, heads, sizes, scale,
    MASKED: tl.constexpr, CAUSAL: tl.constexpr, BLOCK: tl.constexpr, D_K: tl.constexpr, D_V: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of one block of keys and values: sums over the queries."""
    pair = tl.program_id(0).to(tl.int64)
    keys = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    d_k, d_v = tl.arange(0, D_K), tl.arange(0, D_V)
    k = load_block(k_pointer, k_strides, pair, heads, keys, d_k, sizes[1], sizes[2])
    v = load_block(v_pointer, v_strides, pair, heads, keys, d_v, sizes[1], sizes[3])
    dk = tl.zeros((BLOCK, D_K), tl.float32)
    dv = tl.zeros((BLOCK, D_V), tl.float32)
    first = 0
    if CAUSAL:
        first = tl.program_id(1) * BLOCK
    for start in range(first, sizes[0], BLOCK):
        queries = start + tl.arange(0, BLOCK)
        q = load_block(q_pointer, q_strides, pair, heads, queries, d_k, sizes[0], sizes[2])
        grad = load_block(grad_pointer, grad_strides, pair, heads, queries, d_v, sizes[0], sizes[3])
        log_sum = tl.load(log_sum_pointer + pair * sizes[0] + queries, mask=queries < sizes[0], other=0.0)
        dot = tl.load(dot_pointer + pair * sizes[0] + queries, mask=queries < sizes[0], other=0.0)
        scores = score_block(q, k, mask_pointer, mask_strides, pair, heads, queries, keys, sizes, scale, MASKED, CAUSAL)
        weights = tl.exp(scores - log_sum[:, None])
        weights_grad = tl.dot(grad, tl.trans(v), input_precision="ieee")
        scores_grad = weights * (weights_grad - dot[:, None]) * scale
        dk += tl.dot(tl.trans(scores_grad).to(q.dtype), q, input_precision="ieee")
        dv += tl.dot(tl.trans(weights).to(grad.dtype), grad, input_precision="ieee")
    store_block(dk_pointer, dk_strides, pair, heads, keys, d_k, sizes[1], sizes[2], dk)
    store_block(dv_pointer, dv_strides, pair, heads, keys, d_v, sizes[1], sizes[3], dv)


# What PyTorch calls


class FlashAttention(torch.autograd.Function):
    """The kernels as one operation with a gradient for query, key and value."""

    @staticmethod
    def forward(ctx, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
        """Launch the forward kernel: one program for each block of queries of each sample and head."""
        batch, heads, num_queries, _ = query.shape
        out = query.new_empty(batch, heads, num_queries, value.shape[-1])
        log_sum = query.new_empty(batch, heads, num_queries, dtype=torch.float32)
        # A kernel takes no None: without a mask it gets another array, which it does not read.
        mask_or_any = query if mask is None else mask
        forward_kernel[batch * heads, triton.cdiv(num_queries, BLOCK)](
            query, key, value, mask_or_any, out, log_sum,
            query.stride(), key.stride(), value.stride(), mask_or_any.stride(), out.stride(),
            **describe_call(query, key, value, mask is not None, causal),
        )  # fmt: skip
        ctx.save_for_backward(query, key, value, mask, out, log_sum)
        ctx.causal = causal
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        """Launch the kernels of the gradients: one for each block of queries, one for each block of keys."""
        query, key, value, mask, out, log_sum = ctx.saved_tensors
        batch, heads, num_queries, _ = query.shape
        dq, dk, dv = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (query, key, value))
        # Σ weights · their gradients, of each row.
        dot = (grad.float() * out.float()).sum(-1)
        mask_or_any = query if mask is None else mask
        arrays = (query, key, value, mask_or_any, grad)
        strides = [x.stride() for x in arrays]
        call = describe_call(query, key, value, mask is not None, ctx.causal)
        query_gradient_kernel[batch * heads, triton.cdiv(num_queries, BLOCK)](
            *arrays, log_sum, dot, dq, *strides, dq.stride(), **call
        )
        key_value_gradient_kernel[batch * heads, triton.cdiv(key.shape[-2], BLOCK)](
            *arrays, log_sum, dot, dk, dv, *strides, dk.stride(), dv.stride(), **call
        )
        return dq, dk, dv, None, None


def describe_call(query: Tensor, key: Tensor, value: Tensor, masked: bool, causal: bool) -> dict[str, object]:
    """Return the arguments that the three kernels share."""
    d_k, d_v = query.shape[-1], value.shape[-1]
    return {
        "heads": query.shape[1],
        "sizes": (query.shape[-2], key.shape[-2], d_k, d_v),
        "scale": d_k**-0.5,
        "MASKED": masked,
        "CAUSAL": causal,
        "BLOCK": BLOCK,
        "D_K": max(16, triton.next_power_of_2(d_k)),
        "D_V": max(16, triton.next_power_of_2(d_v)),
        "num_stages": STAGES,
    }


def flash_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, *, causal: bool = False
) -> Tensor:
    """Return softmax(query keyᵀ / √d_k) value for arrays (batch, heads, seq, width).

    The mask is boolean, True = may attend, and broadcasts to (batch, heads, queries, keys). With `causal` query i sees
    the keys up to i. ValueError for shapes that do not fit.
    """
    if query.ndim != 4:
        raise ValueError(f"query: it has {query.ndim} axes, but must have (batch, heads, seq, width)")
    batch, heads, num_queries, d_k = query.shape
    num_keys = key.shape[-2]
    if key.shape != (batch, heads, num_keys, d_k):
        raise ValueError(f"key: {tuple(key.shape)} does not fit a query {tuple(query.shape)}")
    if value.shape[:-1] != (batch, heads, num_keys):
        raise ValueError(f"value: {tuple(value.shape)} does not fit a key {tuple(key.shape)}")
    if not query.numel() or not value.numel():
        raise ValueError("query, key, value: an axis is empty")
    if mask is not None:
        shape = (batch, heads, num_queries, num_keys)
        if any(size not in (1, full) for size, full in zip(mask.shape, shape, strict=True)):
            raise ValueError(f"mask: {tuple(mask.shape)} does not broadcast to {shape}")
        mask = mask.expand(shape)
    return FlashAttention.apply(query, key, value, mask, causal)
