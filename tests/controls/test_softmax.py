"""Softmax done otherwise: no case and no property may accuse it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from controls import FINE, HALF, NUMPY, controls_of, in_each_dtype


def exp_of_log_softmax(scores):
    return F.log_softmax(scores, dim=-1).exp()


def softmin_of_the_negative(scores):
    return F.softmin(-scores, dim=-1)


def the_module(scores):
    return nn.Softmax(dim=-1)(scores)


def the_method_on_the_last_axis_moved_first(scores):
    return scores.movedim(-1, 0).softmax(dim=0).movedim(0, -1)


def shift_and_divide(scores):
    powers = torch.exp(scores - scores.max(dim=-1, keepdim=True).values)
    return powers / powers.sum(dim=-1, keepdim=True)


def times_the_reciprocal(scores):
    powers = (scores - scores.amax(-1, keepdim=True)).exp_()
    return powers * powers.sum(-1, keepdim=True).reciprocal()


def powers_of_two(scores):
    powers = torch.exp2((scores - scores.amax(-1, keepdim=True)) * math.log2(math.e))
    return powers / powers.sum(-1, keepdim=True)


def shift_of_the_maximum_and_one_more(scores):
    """Any shift near the maximum does."""
    powers = torch.exp(scores - scores.amax(-1, keepdim=True) - 1)
    return powers / powers.sum(-1, keepdim=True)


def summed_by_a_matrix_product(scores):
    powers = torch.exp(scores - scores.amax(-1, keepdim=True))
    return powers / (powers @ powers.new_ones(powers.shape[-1], 1))


def shifted_log_sum_exp(scores):
    moved = scores - scores.amax(-1, keepdim=True)
    return torch.exp(moved - moved.logsumexp(-1, keepdim=True))


def online(scores):
    """One pass for the running maximum and total, a second one for the rows."""
    top = torch.full_like(scores[..., 0], -math.inf)
    total = torch.zeros_like(top)
    for score in scores.unbind(-1):
        higher = torch.maximum(top, score)
        total = total * torch.exp(top - higher) + torch.exp(score - higher)
        top = higher
    return torch.exp(scores - top[..., None]) / total[..., None]


def row_by_row(scores):
    rows = [shift_and_divide(row) for row in scores.reshape(-1, scores.shape[-1])]
    return torch.stack(rows).reshape(scores.shape)


def odds_of_each_against_each(scores):
    """1/Σ e^(s_m − s_j): a sum of odds instead of a share."""
    return 1 / torch.exp(scores[..., None, :] - scores[..., :, None]).sum(-1)


def accumulated_in_float32(scores):
    return F.softmax(scores, dim=-1, dtype=torch.float32).to(scores.dtype)


def sum_in_float32_alone(scores):
    powers = torch.exp(scores - scores.amax(-1, keepdim=True))
    return powers / powers.float().sum(-1, keepdim=True).to(scores.dtype)


def numpy_from_scratch(scores):
    powers = np.exp(scores - np.max(scores, axis=-1, keepdims=True))
    return powers / np.sum(powers, axis=-1, keepdims=True)


def python_floats_exactly_summed(scores):
    def share(row):
        top = max(row)
        powers = [math.exp(score - top) for score in row]
        return [power / math.fsum(powers) for power in powers]

    return np.apply_along_axis(lambda row: np.array(share(row.tolist())), -1, scores).astype(scores.dtype)


EVERYWHERE = (
    exp_of_log_softmax, softmin_of_the_negative, the_module, the_method_on_the_last_axis_moved_first, shift_and_divide,
    times_the_reciprocal, powers_of_two, shift_of_the_maximum_and_one_more, summed_by_a_matrix_product,
    shifted_log_sum_exp, row_by_row,
)  # fmt: skip
CONTROLS = [
    *controls_of("softmax", EVERYWHERE),
    # A ratio of exponentials overflows in float16, and so does its gradient where one word is sure.
    *controls_of("softmax", (online, odds_of_each_against_each), dtypes=FINE),
    *controls_of("softmax", (accumulated_in_float32, sum_in_float32_alone), dtypes=HALF),
    *controls_of("softmax", (numpy_from_scratch, python_floats_exactly_summed), dtypes=NUMPY, arrays="numpy"),
]


@pytest.mark.sample(12)
@pytest.mark.parametrize(**in_each_dtype(CONTROLS))
def test_softmax_done_otherwise(control, dtype, acquitted):
    acquitted(control, dtype)
