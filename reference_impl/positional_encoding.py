"""The sinusoidal positional encoding, interleaved: sines on even channels, cosines on odd ones."""

from typing import Any, Self

import torch
from torch import Tensor, nn

from goldformer.reference_impl._checks import check_positive_int, check_tensors


def angle_dtype(device: torch.device) -> torch.dtype:
    """Name the widest floating-point dtype of a device: float64, but float32 on mps, which has no float64."""
    return torch.float32 if device.type == "mps" else torch.float64


def sinusoid_table(
    seq: int,
    d_model: int,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
) -> Tensor:
    """Write positions 0 … seq − 1 as sines and cosines of d_model / 2 frequencies.

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

    # A sine forgets whole turns but not the error of its angle, and an angle near 5000 is rounded in steps of
    # 0.0005 by float32, 4 by float16 and 32 by bfloat16: five turns. Hence angles, sines and cosines in
    # float64, whatever dtype is asked for, and the rounding to it last.
    channel = torch.arange(d_model, device=device)  # (d_model,)
    wide = angle_dtype(channel.device)
    position = torch.arange(seq, dtype=wide, device=device)[:, None]  # (seq, 1)
    two_i = (channel - channel % 2).to(wide)  # (d_model,): 0 0 2 2 4 4 …, a pair shares its angle
    angle = position / 10000.0 ** (two_i / d_model)  # (seq, d_model)
    table = torch.where(channel % 2 == 0, angle.sin(), angle.cos())  # (seq, d_model)
    return table.to(dtype)


def positional_encoding(x: Tensor) -> Tensor:
    """Add to every position its row of the sinusoid table, the same for every sample.

    Formula:  output[b, pos] = x[b, pos] + PE[pos], the table in the dtype of x
    Shapes:   x (batch, seq, d_model) → (batch, seq, d_model)
    Errors:   TypeError unless x is a floating-point tensor; ValueError unless it has three axes, none empty
    Source:   walkthrough 2, n9 "位置编码" without its dropout; paper, section 3.5
    """
    check_tensors({"x": (x, "batch seq d_model")})

    _, seq, d_model = x.shape
    return x + sinusoid_table(seq, d_model, dtype=x.dtype, device=x.device)


class PositionalEncoding(nn.Module):
    """The positional encoding with its first ``max_len`` rows at hand.

    Buffer: pe (1, max_len, d_model), saved and moved with the module but not trained; its name and shape are
    those of n9. Sequences longer than ``max_len`` are encoded too, their table is just formed at every call.
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
            return positional_encoding(x)
        return x + self.pe[:, :seq]

    def _apply(self, *args: Any, **kwargs: Any) -> Self:
        # The hook behind .to(), .double() and .cuda(). A cast alone carries the rounding of an old dtype into
        # a wide one: .double() would leave rows that are right to 3e-8 only. So they are formed anew.
        before = self.pe.dtype
        super()._apply(*args, **kwargs)  # type: ignore[no-untyped-call]  # torch leaves it unannotated
        if self.pe.dtype != before:
            _, max_len, d_model = self.pe.shape
            self.pe = sinusoid_table(max_len, d_model, dtype=self.pe.dtype, device=self.pe.device)[None]
        return self
