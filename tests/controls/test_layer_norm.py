"""Layer normalisation done otherwise: no case and no property may accuse it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from controls import FINE, HALF, NUMPY, Control, controls_of, in_each_dtype

EPS = 1e-5


def torchs_function(x, *, params):
    return F.layer_norm(x, params["gamma"].shape, params["gamma"], params["beta"], EPS)


def torchs_module(x, *, params):
    layer = nn.LayerNorm(x.shape[-1], device="meta")
    return torch.func.functional_call(layer, {"weight": params["gamma"], "bias": params["beta"]}, (x,))


def torchs_native(x, *, params):
    return torch.native_layer_norm(x, x.shape[-1:], params["gamma"], params["beta"], EPS)[0]


def variance_and_mean(x, *, params):
    variance, mean = torch.var_mean(x, dim=-1, keepdim=True, correction=0)
    return (x - mean) * torch.rsqrt(variance + EPS) * params["gamma"] + params["beta"]


def mean_of_squared_distances(x, *, params):
    """As Tensor2Tensor has it."""
    mean = x.mean(-1, keepdim=True)
    variance = torch.mean((x - mean) ** 2, dim=-1, keepdim=True)
    return params["gamma"] * ((x - mean) / torch.sqrt(variance + EPS)) + params["beta"]


def root_as_power(x, *, params):
    centred = x - x.mean(-1, keepdim=True)
    return centred * (centred.pow(2).mean(-1, keepdim=True) + EPS) ** -0.5 * params["gamma"] + params["beta"]


def one_over_the_root(x, *, params):
    centred = x - x.mean(-1, keepdim=True)
    return (
        centred * (1 / centred.var(-1, unbiased=False, keepdim=True).add(EPS).sqrt()) * params["gamma"] + params["beta"]
    )


def gain_folded_into_the_scale(x, *, params):
    """x·s + (beta − mean·s), as one fused multiply-add: right only where the mean is small."""
    centred = x - x.mean(-1, keepdim=True)
    scale = params["gamma"] / torch.sqrt(centred.square().mean(-1, keepdim=True) + EPS)
    return torch.addcmul(params["beta"].expand_as(x), centred, scale)


def unbiased_variance_corrected(x, *, params):
    if (count := x.shape[-1]) == 1:
        return torch.zeros_like(x) * params["gamma"] + params["beta"]
    variance = x.var(-1, keepdim=True) * ((count - 1) / count)
    return (x - x.mean(-1, keepdim=True)) / (variance + EPS).sqrt() * params["gamma"] + params["beta"]


def norm_of_the_centred_row(x, *, params):
    """‖x − mean‖² / n is the variance."""
    centred = x - x.mean(-1, keepdim=True)
    variance = torch.linalg.vector_norm(centred, dim=-1, keepdim=True) ** 2 / x.shape[-1]
    return centred / (variance + EPS).sqrt() * params["gamma"] + params["beta"]


def centred_by_a_matrix(x, *, params):
    """x·(I − 1/n): the mean taken off by a product."""
    count = x.shape[-1]
    centred = x @ (torch.eye(count, dtype=x.dtype, device=x.device) - 1 / count)
    return centred * centred.square().mean(-1, keepdim=True).add(EPS).rsqrt() * params["gamma"] + params["beta"]


def rms_of_the_centred_row(x, *, params):
    centred = x - x.mean(-1, keepdim=True)
    return F.rms_norm(centred, x.shape[-1:], params["gamma"], EPS) + params["beta"]


def group_norm_of_one_group(x, *, params):
    rows = F.group_norm(x.reshape(-1, x.shape[-1]), 1, params["gamma"], params["beta"], EPS)
    return rows.view(x.shape)


def welford(x, *, params):
    """Mean and variance in one pass, channel by channel."""
    mean, moment = torch.zeros_like(x[..., :1]), torch.zeros_like(x[..., :1])
    for count, channel in enumerate(x.split(1, dim=-1), start=1):
        step = channel - mean
        mean = mean + step / count
        moment = moment + step * (channel - mean)
    return (x - mean) / torch.sqrt(moment / x.shape[-1] + EPS) * params["gamma"] + params["beta"]


def row_by_row(x, *, params):
    rows = []
    for row in x.reshape(-1, x.shape[-1]):
        centred = row - row.sum() / len(row)
        rows.append(centred / torch.sqrt(centred @ centred / len(row) + EPS) * params["gamma"] + params["beta"])
    return torch.stack(rows).view(x.shape)


def float32_inside(x, *, params):
    """As Llama has its norm: the row in float32, gamma and beta in the dtype."""
    wide = x.float()
    variance, mean = torch.var_mean(wide, dim=-1, keepdim=True, correction=0)
    return ((wide - mean) * torch.rsqrt(variance + EPS)).to(x.dtype) * params["gamma"] + params["beta"]


def float32_throughout(x, *, params):
    return F.layer_norm(x.float(), x.shape[-1:], params["gamma"].float(), params["beta"].float(), EPS).to(x.dtype)


def squares_less_the_squared_mean_in_float64(x, *, params):
    """E[x²] − E[x]², which loses what the row is away from zero: harmless when so much finer than the dtype."""
    wide = x.double()
    mean = wide.mean(-1, keepdim=True)
    variance = (wide.square().mean(-1, keepdim=True) - mean.square()).clamp(min=0)
    return ((wide - mean) / (variance + EPS).sqrt()).to(x.dtype) * params["gamma"] + params["beta"]


def numpy_from_scratch(x, *, params):
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    root = np.sqrt(variance + np.asarray(EPS, dtype=x.dtype))
    return params["gamma"] * (x - mean) / root + params["beta"]


def numpy_exact_sums(x, *, params):
    out = np.empty_like(x)
    for place in np.ndindex(x.shape[:-1]):
        row = x[place].tolist()
        mean = math.fsum(row) / len(row)
        root = math.sqrt(math.fsum((c - mean) ** 2 for c in row) / len(row) + EPS)
        out[place] = [(c - mean) / root for c in row] * params["gamma"].astype(np.float64) + params["beta"]
    return out


def with_eps(eps):
    def layer_norm(x, *, params):
        return F.layer_norm(x, x.shape[-1:], params["gamma"], params["beta"], eps)

    return layer_norm


EVERYWHERE = (
    torchs_function, torchs_module, torchs_native, variance_and_mean, mean_of_squared_distances, root_as_power,
    one_over_the_root, gain_folded_into_the_scale, unbiased_variance_corrected, norm_of_the_centred_row,
    centred_by_a_matrix, rms_of_the_centred_row, group_norm_of_one_group, row_by_row,
)  # fmt: skip
CONTROLS = [
    *controls_of("layer_norm", EVERYWHERE),
    *controls_of("layer_norm", (welford,), dtypes=FINE),
    *controls_of("layer_norm", (float32_inside, float32_throughout), dtypes=HALF),
    *controls_of("layer_norm", (squares_less_the_squared_mean_in_float64,), dtypes=("float32", *HALF)),
    *controls_of("layer_norm", (numpy_from_scratch, numpy_exact_sums), dtypes=NUMPY, arrays="numpy"),
    *(
        Control(f"torchs_function_with_{eps}", {"layer_norm": with_eps(float(eps))}, {"layer_norm_eps": eps})
        for eps in ("1e-6", "1e-12")
    ),
]


@pytest.mark.sample(20)
@pytest.mark.parametrize(**in_each_dtype(CONTROLS))
def test_layer_normalisation_done_otherwise(control, dtype, acquitted):
    acquitted(control, dtype)
