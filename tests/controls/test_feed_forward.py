"""The feed-forward network and the output layer done otherwise: no case and no property may accuse them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from controls import HALF, NUMPY, controls_of, in_each_dtype

FEED, OUT = "feed_forward", "output_probabilities"


class Network(nn.Module):
    def __init__(self, d_model, d_ff, inner, outer):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(d_model, d_ff, bias=inner, device="meta"),
            nn.ReLU(inplace=True),
            nn.Linear(d_ff, d_model, bias=outer, device="meta"),
        )

    def forward(self, x):
        return self.net(x)


def bias(params, number):
    given = params.get(f"b_{number}")
    return 0 if given is None else given


def modules(x, *, params):
    biases = {f"net.{i}.bias": params.get(name) for i, name in ((0, "b_1"), (2, "b_2"))}
    state = {name: array for name, array in biases.items() if array is not None}
    state |= {"net.0.weight": params["w_1"].t(), "net.2.weight": params["w_2"].t()}
    d_model, d_ff = params["w_1"].shape
    network = Network(d_model, d_ff, "net.0.bias" in state, "net.2.bias" in state)
    return torch.func.functional_call(network, state, (x,))


def functions(x, *, params):
    hidden = F.relu(F.linear(x, params["w_1"].t(), params.get("b_1")))
    return F.linear(hidden, params["w_2"].t(), params.get("b_2")), hidden


def clamped(x, *, params):
    hidden = (x @ params["w_1"] + bias(params, 1)).clamp(min=0)
    return {"output": hidden @ params["w_2"] + bias(params, 2), "hidden": hidden}


def times_whether_positive(x, *, params):
    inner = torch.einsum("bti,ih->bth", x, params["w_1"]) + bias(params, 1)
    hidden = inner * (inner > 0)
    return torch.einsum("bth,ho->bto", hidden, params["w_2"]) + bias(params, 2), hidden


def convolutions(x, *, params):
    """As the paper says: two convolutions with kernel size 1."""
    hidden = F.relu(F.conv1d(x.mT, params["w_1"].t()[..., None], params.get("b_1")))
    return F.conv1d(hidden, params["w_2"].t()[..., None], params.get("b_2")).mT, hidden.mT


def biases_as_a_channel_of_ones(x, *, params):
    def affine(y, number):
        if params.get(f"b_{number}") is None:
            return y @ params[f"w_{number}"]
        return F.pad(y, (0, 1), value=1.0) @ torch.cat([params[f"w_{number}"], params[f"b_{number}"][None]])

    return affine(torch.where((h := affine(x, 1)) > 0, h, torch.zeros_like(h)), 2)


def hidden_units_one_by_one(x, *, params):
    output = torch.zeros_like(x) + bias(params, 2)
    for unit in range(params["w_1"].shape[1]):
        inner = (x * params["w_1"][:, unit]).sum(-1, keepdim=True)
        inner = inner if params.get("b_1") is None else inner + params["b_1"][unit]
        output = output + F.threshold(inner, 0.0, 0.0) * params["w_2"][unit]
    return output


def tokens_in_one_matrix(x, *, params):
    rows = x.reshape(-1, x.shape[-1])
    first = rows.mm(params["w_1"]) if params.get("b_1") is None else torch.addmm(params["b_1"], rows, params["w_1"])
    hidden = torch.relu_(first)
    second = (
        hidden.mm(params["w_2"]) if params.get("b_2") is None else torch.addmm(params["b_2"], hidden, params["w_2"])
    )
    return second.view_as(x), hidden.view(*x.shape[:2], -1)


def float32_throughout(x, *, params):
    wide = {name: None if array is None else array.float() for name, array in params.items()}
    return tuple(y.to(x.dtype) for y in functions(x.float(), params=wide))


def numpy_maximum(x, *, params):
    hidden = np.maximum(x @ params["w_1"] + bias(params, 1), 0)
    return hidden @ params["w_2"] + bias(params, 2), hidden


def numpy_tensordot(x, *, params):
    hidden = np.tensordot(x, params["w_1"], axes=1) + bias(params, 1)
    hidden[hidden < 0] = 0
    return np.tensordot(hidden, params["w_2"], axes=(2, 0)) + bias(params, 2)


# The output layer


def linear_and_softmax(x, *, params):
    logits = F.linear(x, params["w_vocab"].t(), params.get("b_vocab"))
    return logits.softmax(-1), logits


def generator(x, *, params):
    """As the Annotated Transformer has it: log-probabilities, taken back."""
    logits = x @ params["w_vocab"]
    if params.get("b_vocab") is not None:
        logits = logits + params["b_vocab"]
    return F.log_softmax(logits, dim=-1).exp()


def word_by_word(x, *, params):
    logits = torch.stack([x @ column for column in params["w_vocab"].unbind(1)], dim=-1)
    logits = logits if params.get("b_vocab") is None else logits + params["b_vocab"]
    powers = torch.exp(logits - logits.amax(-1, keepdim=True))
    return {"logits": logits, "probabilities": powers / powers.sum(-1, keepdim=True)}


def softmax_in_float32(x, *, params):
    logits = F.linear(x, params["w_vocab"].t(), params.get("b_vocab"))
    return torch.softmax(logits, dim=-1, dtype=torch.float32).to(x.dtype), logits


def numpy_output(x, *, params):
    logits = np.einsum("btd,dv->btv", x, params["w_vocab"])
    logits = logits if params.get("b_vocab") is None else logits + params["b_vocab"]
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True), logits


NETWORKS = (
    modules, functions, clamped, times_whether_positive, convolutions, biases_as_a_channel_of_ones,
    hidden_units_one_by_one, tokens_in_one_matrix,
)  # fmt: skip
CONTROLS = [
    *controls_of(FEED, NETWORKS),
    *controls_of(FEED, (float32_throughout,), dtypes=HALF),
    *controls_of(FEED, (numpy_maximum, numpy_tensordot), dtypes=NUMPY, arrays="numpy"),
    *controls_of(OUT, (linear_and_softmax, generator, word_by_word)),
    *controls_of(OUT, (softmax_in_float32,), dtypes=HALF),
    *controls_of(OUT, (numpy_output,), dtypes=NUMPY, arrays="numpy"),
]


@pytest.mark.sample(15)
@pytest.mark.parametrize(**in_each_dtype(CONTROLS))
def test_linear_maps_done_otherwise(control, dtype, acquitted):
    acquitted(control, dtype)
