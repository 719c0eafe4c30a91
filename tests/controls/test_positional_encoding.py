"""The positional encoding done otherwise: no case and no property may accuse it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from controls import NUMPY, Control, in_each_dtype

COMPONENT = "positional_encoding"
CONCATENATED, TENSOR2TENSOR = {"pe_layout": "concatenated"}, {"pe_layout": "tensor2tensor"}


def at_least_float32(x):
    return torch.promote_types(x.dtype, torch.float32)


# Tables in a dtype `width`


def annotated_transformer(x, width):
    """exp(2i · −ln(10000)/d), as most tutorials have it; the angles in `width`."""
    seq, d_model = x.shape[-2:]
    position = torch.arange(seq, dtype=width)[:, None]
    rate = torch.exp(torch.arange(0, d_model, 2, dtype=width) * (-math.log(10000.0) / d_model))
    table = torch.zeros(seq, d_model, dtype=width)
    table[:, 0::2] = torch.sin(position * rate)
    table[:, 1::2] = torch.cos(position * rate[: d_model // 2])
    return table


def power_of_ten_thousand(x, width):
    seq, d_model = x.shape[-2:]
    even = torch.arange(0, d_model, 2, dtype=width)
    angle = torch.arange(seq, dtype=width)[:, None] / torch.pow(10000.0, even / d_model)
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(-2)[:, :d_model]


def cosine_as_shifted_sine(x, width):
    seq, d_model = x.shape[-2:]
    channel = torch.arange(d_model, dtype=width)
    rate = 10000.0 ** (-2 * torch.div(channel, 2, rounding_mode="floor") / d_model)
    return torch.sin(torch.outer(torch.arange(seq, dtype=width), rate) + channel % 2 * math.pi / 2)


def plain_python_floats(x, width):
    seq, d_model = x.shape[-2:]
    return torch.tensor(
        [
            [(math.cos if c % 2 else math.sin)(pos / 10000 ** (c // 2 * 2 / d_model)) for c in range(d_model)]
            for pos in range(seq)
        ],
        dtype=width,
    )


def powers_of_i(x, width):
    """e^(i·θ), its imaginary and its real part."""
    seq, d_model = x.shape[-2:]
    rate = torch.exp(torch.arange(0, d_model, 2, dtype=width) / d_model * -math.log(10000.0))
    turn = torch.polar(torch.ones(seq, len(rate), dtype=width), torch.outer(torch.arange(seq, dtype=width), rate))
    return torch.view_as_real(turn).flip(-1).flatten(-2)[:, :d_model]


def rows_of_a_longer_table(x, width):
    """As with register_buffer: the longest table is made once, and its first rows are taken."""
    return annotated_transformer(x.new_empty(1, 5000, x.shape[-1]), width)[: x.shape[-2]]


def halves(x, width):
    """All sines, then all cosines."""
    rate = 10000 ** (-torch.arange(0, x.shape[-1], 2, dtype=width) / x.shape[-1])
    angle = torch.outer(torch.arange(x.shape[-2], dtype=width), rate)
    return torch.cat([angle.sin(), angle.cos()], dim=1)


def tensor2tensor(x, width):
    """As get_timing_signal_1d has it."""
    number = x.shape[-1] // 2
    step = math.log(10000.0) / max(number - 1, 1)
    rate = torch.exp(torch.arange(number, dtype=width) * -step)
    scaled = torch.arange(x.shape[-2], dtype=width).unsqueeze(1) * rate.unsqueeze(0)
    return torch.cat([torch.sin(scaled), torch.cos(scaled)], dim=1)


# What is added


def in_float32_or_finer(table):
    def positional_encoding(x):
        return (x + table(x, at_least_float32(x)).to(x.device)).to(x.dtype)

    return {COMPONENT: positional_encoding}


def in_the_dtype(table):
    def positional_encoding(x):
        return x + table(x, at_least_float32(x)).to(x)

    return {COMPONENT: positional_encoding}


def from_float64(table):
    def positional_encoding(x):
        return (x.double() + table(x, torch.float64).to(x.device)).to(x.dtype)

    return {COMPONENT: positional_encoding}


def numpy_table(x):
    """As the walkthrough writes it, in a loop over positions and pairs."""
    seq, d_model = x.shape[-2:]
    table = np.zeros((seq, d_model))
    for pos in range(seq):
        for i in range(0, d_model, 2):
            table[pos, i] = np.sin(pos / 10000 ** (i / d_model))
            if i + 1 < d_model:
                table[pos, i + 1] = np.cos(pos / 10000 ** (i / d_model))
    return (x + table).astype(x.dtype)


def numpy_where(x):
    seq, d_model = x.shape[-2:]
    angle = np.arange(seq)[:, np.newaxis] / np.power(10000, (2 * (np.arange(d_model) // 2)) / np.float64(d_model))
    return x + np.where(np.arange(d_model) % 2 == 0, np.sin(angle), np.cos(angle)).astype(x.dtype)


TABLES = (
    annotated_transformer, power_of_ten_thousand, cosine_as_shifted_sine, plain_python_floats, powers_of_i,
    rows_of_a_longer_table,
)  # fmt: skip
OTHER_LAYOUTS = ((halves, CONCATENATED), (tensor2tensor, TENSOR2TENSOR))
CONTROLS = [
    *(Control(t.__name__, in_float32_or_finer(t)) for t in TABLES),
    *(Control(f"{t.__name__}_in_the_dtype", in_the_dtype(t)) for t in TABLES),
    *(Control(f"{t.__name__}_from_float64", from_float64(t)) for t in TABLES[:3]),
    *(Control(t.__name__, added(t), c) for t, c in OTHER_LAYOUTS for added in (in_float32_or_finer, in_the_dtype)),
    *(Control(f.__name__, {COMPONENT: f}, dtypes=NUMPY, arrays="numpy") for f in (numpy_table, numpy_where)),
]


@pytest.mark.sample(10)
@pytest.mark.parametrize(**in_each_dtype(CONTROLS))
def test_the_encoding_done_otherwise(control, dtype, acquitted):
    acquitted(control, dtype)
