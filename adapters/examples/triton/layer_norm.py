"""Layer normalisation in Triton, forward and backward: (x − mean) / √(variance + eps) · gamma + beta.

Each program takes a block of whole rows. All sums run in float32.

On a GPU it runs as it is; on a CPU set TRITON_INTERPRET=1 before the first import of triton.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

#: The numbers in one block, if one row has no more.
BLOCK = 4096


@triton.jit
def forward_kernel(
    x_pointer, gamma_pointer, beta_pointer, out_pointer, mean_pointer, factor_pointer, num_rows, width, eps,
    ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Normalise a block of rows, and keep the mean of each and 1 / √(variance + eps)."""
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, WIDTH)
    inside = (rows[:, None] < num_rows) & (columns[None, :] < width)
    offsets = rows[:, None] * width + columns[None, :]
    x = tl.load(x_pointer + offsets, mask=inside, other=0.0).to(tl.float32)
    gamma = tl.load(gamma_pointer + columns, mask=columns < width, other=0.0).to(tl.float32)
    beta = tl.load(beta_pointer + columns, mask=columns < width, other=0.0).to(tl.float32)
    mean = tl.sum(x, 1) / width
    # Columns beyond the row are 0, and must not count as far from the mean.
    centred = tl.where(inside, x - mean[:, None], 0.0)
    variance = tl.sum(centred * centred, 1) / width
    factor = 1 / tl.sqrt_rn(variance + eps)
    out = centred * factor[:, None] * gamma[None, :] + beta[None, :]
    tl.store(out_pointer + offsets, out.to(out_pointer.dtype.element_ty), mask=inside)
    tl.store(mean_pointer + rows, mean, mask=rows < num_rows)
    tl.store(factor_pointer + rows, factor, mask=rows < num_rows)


@triton.jit
def backward_kernel(
    x_pointer, gamma_pointer, grad_pointer, mean_pointer, factor_pointer, dx_pointer, dgamma_pointer, dbeta_pointer,
    num_rows, width, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Compute the gradient of a block of rows, and this block's part of the gradients of gamma and beta."""
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, WIDTH)
    inside = (rows[:, None] < num_rows) & (columns[None, :] < width)
    offsets = rows[:, None] * width + columns[None, :]
    x = tl.load(x_pointer + offsets, mask=inside, other=0.0).to(tl.float32)
    grad = tl.load(grad_pointer + offsets, mask=inside, other=0.0).to(tl.float32)
    gamma = tl.load(gamma_pointer + columns, mask=columns < width, other=0.0).to(tl.float32)
    mean = tl.load(mean_pointer + rows, mask=rows < num_rows, other=0.0)
    factor = tl.load(factor_pointer + rows, mask=rows < num_rows, other=0.0)
    normalised = tl.where(inside, (x - mean[:, None]) * factor[:, None], 0.0)
    scaled = grad * gamma[None, :]
    mean_of_scaled = tl.sum(scaled, 1) / width
    mean_of_product = tl.sum(scaled * normalised, 1) / width
    dx = (scaled - mean_of_scaled[:, None] - normalised * mean_of_product[:, None]) * factor[:, None]
    tl.store(dx_pointer + offsets, dx.to(dx_pointer.dtype.element_ty), mask=inside)
    part = tl.program_id(0) * width + columns
    tl.store(dgamma_pointer + part, tl.sum(grad * normalised, 0), mask=columns < width)
    tl.store(dbeta_pointer + part, tl.sum(grad, 0), mask=columns < width)


class LayerNorm(torch.autograd.Function):
    """The kernels as one operation with a gradient for x, gamma and beta."""

    @staticmethod
    def forward(ctx, x: Tensor, gamma: Tensor, beta: Tensor, eps: float) -> Tensor:
        """Launch the forward kernel: one program for each block of rows of x (rows, width)."""
        num_rows, width = x.shape
        out = torch.empty_like(x)
        mean, factor = (x.new_empty(num_rows, dtype=torch.float32) for _ in range(2))
        blocks = choose_blocks(width)
        forward_kernel[(triton.cdiv(num_rows, blocks["ROWS"]),)](
            x, gamma, beta, out, mean, factor, num_rows, width, eps, **blocks
        )
        ctx.save_for_backward(x, gamma, mean, factor)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        """Launch the backward kernel, and add what its programs found for gamma and beta."""
        x, gamma, mean, factor = ctx.saved_tensors
        num_rows, width = x.shape
        blocks = choose_blocks(width)
        programs = triton.cdiv(num_rows, blocks["ROWS"])
        dx = torch.empty_like(x)
        # Each program writes a row of its own, so the order of the sum does not depend on which one is faster.
        dgamma, dbeta = (x.new_empty(programs, width, dtype=torch.float32) for _ in range(2))
        backward_kernel[(programs,)](
            x, gamma, grad.contiguous(), mean, factor, dx, dgamma, dbeta, num_rows, width, **blocks
        )
        return dx, dgamma.sum(0).to(gamma.dtype), dbeta.sum(0).to(gamma.dtype), None


def choose_blocks(width: int) -> dict[str, int]:
    """Return the rows and columns of a block: a whole row, and as many rows as fit."""
    columns = triton.next_power_of_2(width)
    return {"ROWS": max(1, BLOCK // columns), "WIDTH": columns}


def layer_norm(x: Tensor, gamma: Tensor, beta: Tensor, eps: float = 1e-5) -> Tensor:
    """Normalise the rows of x (..., width); ValueError for shapes that do not fit."""
    if not x.ndim or not x.numel():
        raise ValueError(f"x: {tuple(x.shape)} has no rows, or an axis is empty")
    for name, vector in (("gamma", gamma), ("beta", beta)):
        if vector.shape != x.shape[-1:]:
            raise ValueError(f"{name}: {tuple(vector.shape)} does not fit rows of {x.shape[-1]}")
    rows = x.reshape(-1, x.shape[-1]).contiguous()
    return LayerNorm.apply(rows, gamma.contiguous(), beta.contiguous(), eps).reshape(x.shape)
