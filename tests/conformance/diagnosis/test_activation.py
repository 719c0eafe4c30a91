"""Feed-forward networks with another activation: right where it is declared, told as that option where it is not."""

from __future__ import annotations

import pytest

from goldformer.adapters import Adapter
from goldformer.adapters.textbook.build import build_textbook
from goldformer.conformance.diagnosis.explain import Diagnosis
from goldformer.conformance.diagnosis.finding import MISTAKE_FOUND, OPTION_FOUND, PLACE
from goldformer.conformance.diagnosis.findings import diagnose
from goldformer.conformance.diagnosis.neighbours import find_made
from goldformer.conformance.inference import infer_adapter
from goldformer.conformance.judging.cases import Bench, judge_case
from goldformer.spec.formulas.options import OPTIONS

#: A network in NumPy, without a library's own functions.
NUMPY = """
import numpy as np

ARRAYS = "numpy"

def phi(x):
    # Abramowitz and Stegun would be too coarse: integrate the density of the normal distribution by Gauss-Legendre.
    nodes, weights = np.polynomial.legendre.leggauss(80)
    at = x[..., None] * (nodes + 1) / 2
    return 0.5 + (np.exp(-at * at / 2) * weights).sum(-1) * x / 2 / np.sqrt(2 * np.pi)

FUNCTIONS = {{
    "gelu": lambda x: x * phi(x),
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * np.power(x, 3)))),
    "silu": lambda x: x * 0.5 * (1 + np.tanh(x / 2)),
}}

def feed_forward(x, *, params):
    inner = x @ params["w_1"] + params.get("b_1", 0)
    hidden = FUNCTIONS["{activation}"](inner.astype(np.float64)).astype(x.dtype)
    return hidden @ params["w_2"] + params.get("b_2", 0)
"""
#: A block of GPT-2: weights (in, out) in one projection, normalised first, always causal.
BLOCK = """
import math

import torch
from torch import nn
from torch.func import functional_call

from goldformer.adapters.layouts import is_causal, join_projections, map_state, require_square_projections

ARRAYS = "torch"

class Conv1D(nn.Module):
    def __init__(self, nf, nx):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.empty(nx, nf)), nn.Parameter(torch.zeros(nf))

    def forward(self, x):
        return torch.addmm(self.bias, x.flatten(0, -2), self.weight).view(*x.shape[:-1], -1)

class NewGELU(nn.Module):
    def forward(self, x):
        return {activation}

class Block(nn.Module):
    def __init__(self, nx, n_head, n_inner):
        super().__init__()
        self.n_head = n_head
        self.ln_1, self.ln_2 = nn.LayerNorm(nx), nn.LayerNorm(nx)
        self.c_attn, self.c_proj = Conv1D(3 * nx, nx), Conv1D(nx, nx)
        self.c_fc, self.mlp_proj, self.act = Conv1D(n_inner, nx), Conv1D(nx, n_inner), NewGELU()

    def attend(self, x):
        q, k, v = (t.view(*x.shape[:2], self.n_head, -1).transpose(1, 2) for t in self.c_attn(x).chunk(3, -1))
        w = q @ k.transpose(-1, -2) / math.sqrt(v.shape[-1])
        hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
        a = w.masked_fill(hidden, torch.finfo(w.dtype).min).softmax(-1) @ v
        return self.c_proj(a.transpose(1, 2).flatten(2))

    def forward(self, x):
        x = x + self.attend(self.ln_1(x))
        return x + self.mlp_proj(self.act(self.c_fc(self.ln_2(x))))

NAMES = {{
    "self_attention.w_qkv": "c_attn.weight", "self_attention.b_qkv": "c_attn.bias",
    "self_attention.w_o": "c_proj.weight", "self_attention.b_o": "c_proj.bias",
    "norm_1.gamma": "ln_1.weight", "norm_1.beta": "ln_1.bias", "norm_2.gamma": "ln_2.weight",
    "norm_2.beta": "ln_2.bias", "feed_forward.w_1": "c_fc.weight", "feed_forward.b_1": "c_fc.bias",
    "feed_forward.w_2": "mlp_proj.weight", "feed_forward.b_2": "mlp_proj.bias",
}}

def encoder_layer(x, mask=None, *, num_heads, params):
    if not is_causal(mask, q_seq=x.shape[1], kv_seq=x.shape[1]):
        raise NotImplementedError("it always hides later tokens")
    require_square_projections({{n.partition(".")[2]: a for n, a in params.items() if n.startswith("self_attention")}})
    joined = join_projections(params, num_heads, "qkv")
    module = Block(x.shape[-1], num_heads, params["feed_forward.w_1"].shape[1]).to(x).eval()
    state = {{NAMES[name]: array for name, array in joined.items()}}
    state |= {{name: torch.zeros_like(p) for name, p in module.state_dict().items() if name not in state}}
    return functional_call(module, state, (x,), strict=True)
"""
TANH = "0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))"
DECLARED = '\nCONVENTIONS = {{"activation": "{}"{}}}\n'
GPT = ', "norm_placement": "pre", "later_tokens": "hidden_only"'


def judge(bench, spec, component):
    cases = [c for c in spec.cases_of(component) if not (c.error or c.full_size or c.random or c.is_computed)]
    return Diagnosis(spec).explain_all(judge_case(c, bench) for c in cases if c.cotangent is None)


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "silu"])
def test_a_declared_activation_is_right(activation, bench, adapter_file, spec):
    source = NUMPY.format(activation=activation) + DECLARED.format(activation, "")
    verdicts = judge(bench(adapter_file(source), "float64"), spec, "feed_forward")
    assert not [v.check for v in verdicts if v.bad]
    assert sum(v.is_judged for v in verdicts) >= 10


def test_a_block_of_gpt_2_is_right(bench, adapter_file, spec):
    source = BLOCK.format(activation=TANH) + DECLARED.format("gelu_tanh", GPT)
    verdicts = judge(bench(adapter_file(source)), spec, "encoder_layer")
    assert not [v.check for v in verdicts if v.bad]
    assert sum(v.is_judged for v in verdicts) >= 5


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "silu"])
def test_an_undeclared_activation_of_a_network_is_told_as_the_option(activation, bench, adapter_file, spec):
    verdicts = judge(bench(adapter_file(NUMPY.format(activation=activation))), spec, "feed_forward")
    (found,) = [f for f in diagnose(verdicts, spec) if f.label in (OPTION_FOUND, MISTAKE_FOUND)]
    assert found.label == OPTION_FOUND
    assert f'Declare CONVENTIONS = {{"activation": "{activation}"}}' in found.text


@pytest.mark.parametrize(
    ("activation", "written"),
    [("gelu_tanh", TANH), ("gelu", "nn.functional.gelu(x)"), ("silu", "x * torch.sigmoid(x)")],
)
def test_an_undeclared_activation_of_a_block_is_told_as_the_option(activation, written, bench, adapter_file, spec):
    source = BLOCK.format(activation=written) + DECLARED.format("relu", GPT)
    found = list(diagnose(judge(bench(adapter_file(source)), spec, "encoder_layer"), spec))
    named = [f for f in found if f.label in (OPTION_FOUND, MISTAKE_FOUND, PLACE)]
    assert named[0].label == OPTION_FOUND
    assert f'"activation": "{activation}"' in named[0].text
    assert not any(f.mistakes for f in named)


@pytest.mark.parametrize(
    ("written", "option"),
    [("nn.GELU()", "gelu"), ('nn.GELU(approximate="tanh")', "gelu_tanh"), ("nn.SiLU()", "silu")],
)
def test_an_adapter_is_inferred_with_its_activation(written, option, tmp_path, spec):
    file = tmp_path / "net.py"
    file.write_text(
        "from torch import nn\n\n\nclass Mlp(nn.Module):\n    def __init__(self, dim, hidden_dim):\n"
        f"        super().__init__()\n        self.fc1, self.act = nn.Linear(dim, hidden_dim), {written}\n"
        "        self.fc2 = nn.Linear(hidden_dim, dim)\n\n    def forward(self, x):\n"
        "        return self.fc2(self.act(self.fc1(x)))\n",
        encoding="utf-8",
    )
    found = infer_adapter(f"{file}:Mlp", spec=spec)
    assert found.fits
    assert found.wiring.declared["activation"] == option


def test_a_slip_of_a_layer_is_named_beside_an_undeclared_activation(spec):
    slip, gelu = "encoder_layer.sublayer-1.each-normed", ("activation", "gelu")
    book = build_textbook(OPTIONS[gelu], find_made(slip).steps, only="encoder_layer", CONVENTIONS={})
    code = Bench(spec, Adapter.from_object(book, "mine.py", spec), "float32", "cpu")
    (found,) = [f for f in diagnose(judge(code, spec, "encoder_layer"), spec) if f.label == MISTAKE_FOUND]
    assert found.mistakes == (slip,)
    assert "also has activation: gelu (" in found.text
