"""The sinusoidal positional encoding, interleaved: sines on even channels, cosines on odd ones."""

from typing import Any, Self

import torch
from torch import Tensor, nn

from goldformer.reference_impl import _functional as functional
from goldformer.reference_impl._checks import check_positive_int, check_tensors
from goldformer.reference_impl._random import make_dropping


def sinusoid_table(
    seq: int,
    d_model: int,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
) -> Tensor:
    """Encode positions 0 … seq − 1 as sines and cosines of d_model / 2 frequencies.

    Formula:  PE[pos, 2i]     = sin(pos / 10000^(2i / d_model))
              PE[pos, 2i + 1] = cos(pos / 10000^(2i / d_model))
              an odd d_model ends in a sine without its cosine
    Shapes:   → (seq, d_model)
    Errors:   TypeError unless the sizes are ints and dtype is floating point; ValueError for a size below 1
    Source:   walkthrough 2, primer 2.4; paper, section 3.5
    """
    check_positive_int("seq", seq)
    check_positive_int("d_model", d_model)
    if not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise TypeError(f"dtype={dtype!r} must be a floating-point torch.dtype: pass torch.float32")
    return functional.sinusoid_table(seq, d_model, dtype=dtype, device=device)  # (seq, d_model)


def positional_encoding(
    x: Tensor, *, dropout_rate: float | None = None, training: bool = True, seed: int | None = None
) -> Tensor:
    """Add to every position its row of the sinusoid table, the same for every sample.

    Formula:  output[b, pos] = x[b, pos] + PE[pos], the table in the dtype of x;
              in training with a dropout_rate dropout(x[b, pos] + PE[pos])
    Shapes:   x (batch, seq, d_model) → (batch, seq, d_model)
    Errors:   TypeError unless x is a floating-point tensor; ValueError unless it has three axes, all not empty
    Source:   walkthrough 2, n9 "位置编码"; paper, section 3.5, and 5.4 for the dropout
    """
    check_tensors({"x": (x, "batch seq d_model")})
    dropout = make_dropping(dropout_rate, training, seed)
    return dropout(functional.positional_encoding(x))  # (batch, seq, d_model)


class PositionalEncoding(nn.Module):
    """The positional encoding with its first ``max_len`` rows precomputed.

    Buffer: pe (1, max_len, d_model), saved and moved with the module but not trained; its name and shape are
    those of n9. Sequences longer than ``max_len`` are encoded too; their table is computed at every call.
    """

    pe: Tensor

    def __init__(
        self,
        d_model: int,
        max_len: int = 5000,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_positive_int("max_len", max_len)
        dtype = torch.get_default_dtype() if dtype is None else dtype
        table = sinusoid_table(max_len, d_model, dtype=dtype, device=device)  # (max_len, d_model)
        self.register_buffer("pe", table[None])  # (1, max_len, d_model)

    def forward(self, x: Tensor) -> Tensor:
        """Encode x (batch, seq, d_model), in the dtype and on the device of the module."""
        check_tensors({"pe": (self.pe, "1 max_len d_model"), "x": (x, "batch seq d_model")})

        seq, max_len = x.shape[1], self.pe.shape[1]
        if seq > max_len:
            return functional.positional_encoding(x)  # (batch, seq, d_model)
        return x + self.pe[:, :seq]  # (batch, seq, d_model)

    def _apply(self, *args: Any, **kwargs: Any) -> Self:
        # .to(), .double() and .cuda() call this. Only a cast would keep the rounding of the old dtype: after
        # .double() the rows would be right to 3e-8 only. So the rows are computed again.
        before = self.pe.dtype
        super()._apply(*args, **kwargs)  # type: ignore[no-untyped-call]  # torch leaves it unannotated
        if self.pe.dtype != before:
            _, max_len, d_model = self.pe.shape
            self.pe = sinusoid_table(max_len, d_model, dtype=self.pe.dtype, device=self.pe.device)[None]
        return self
