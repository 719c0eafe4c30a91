"""Code with parts that goldformer does not judge: it says so, instead of naming a place that right code has too."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from goldformer.adapters.identifiers import list_identifiers
from goldformer.conformance.cli import main
from goldformer.spec.scope import _read, explain_scope

LLAMA = """
import torch
from torch import nn
import torch.nn.functional as F


class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.eps, self.weight = eps, nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


def turn(x):
    half = x.shape[-1] // 2
    rates = 10000.0 ** (-torch.arange(half, dtype=x.dtype) / half)
    angles = torch.arange(x.shape[1], dtype=x.dtype)[:, None, None] * rates
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()], -1)


class Attention(nn.Module):
    def __init__(self, dim, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(dim, dim, bias=False) for _ in range(4))
        self.rotary_emb = turn

    def forward(self, x, mask=None):
        q, k, v = (f(x).unflatten(-1, (self.n_heads, -1)) for f in (self.wq, self.wk, self.wv))
        scores = torch.einsum("bqhd,bkhd->bhqk", self.rotary_emb(q), self.rotary_emb(k)) / q.shape[-1] ** 0.5
        if mask is not None:
            scores = scores.masked_fill(~mask, torch.finfo(x.dtype).min)
        return self.wo(torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v).flatten(2))


class FeedForward(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(dim, hidden, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(hidden, dim, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
"""

#: In another style: plain functions, called by an adapter in a file of its own.
ADAPTER = """
ARRAYS = "numpy"
import functional


def multi_head_attention(query, key, value, mask=None, *, num_heads, params):
    return functional.attend(query, key, value, mask, num_heads, params)


def layer_norm(x, *, params):
    return functional.norm(x, params["gamma"], params["beta"])
"""
FUNCTIONAL = """
import numpy as np


def apply_rope(x, base=10000.0):
    pairs = x.shape[-1] // 2
    angles = np.arange(x.shape[-2], dtype=x.dtype)[:, None] * base ** (-np.arange(pairs, dtype=x.dtype) / max(pairs, 1))
    out = x.copy()
    even, odd = x[..., : 2 * pairs : 2], x[..., 1 : 2 * pairs : 2]
    out[..., : 2 * pairs : 2] = even * np.cos(angles) - odd * np.sin(angles)
    out[..., 1 : 2 * pairs : 2] = even * np.sin(angles) + odd * np.cos(angles)
    return out


def attend(query, key, value, mask, heads, p):
    def split(x, name):
        y = x @ p["w_" + name] + (p["b_" + name] if "b_" + name in p else 0)
        return y.reshape(*y.shape[:-1], heads, -1).swapaxes(-2, -3)

    q, k, v = split(query, "q"), split(key, "k"), split(value, "v")
    scores = apply_rope(q) @ apply_rope(k).swapaxes(-1, -2) / np.asarray(q.shape[-1] ** 0.5, q.dtype)
    if mask is not None:
        scores = np.where(mask, scores, np.finfo(scores.dtype).min)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    out = (weights / weights.sum(-1, keepdims=True) @ v).swapaxes(-2, -3)
    out = out.reshape(*out.shape[:-2], -1) @ p["w_o"]
    return out + p["b_o"] if "b_o" in p else out


def norm(x, gamma, beta):
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred * centred).mean(-1, keepdims=True) + x.dtype.type(1e-5)) * gamma + beta
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, text in (("llama.py", LLAMA), ("adapter.py", ADAPTER), ("functional.py", FUNCTIONAL)):
        Path(name).write_text(text, encoding="utf-8")
    return lambda *words: CliRunner().invoke(main, [*words])


def test_infer_says_what_is_not_judged(run):
    pytest.importorskip("torch")
    result = run("infer", "llama.py:Attention")
    assert result.exit_code == 2
    said = " ".join(result.output.split())
    what = "rotary positions within another component (rotary_emb; by itself it is judged as rotary_embedding)"
    assert f"goldformer does not judge {what}. Check a part that does not use it" in said


def test_check_says_it_in_place_of_a_cause_and_of_nothing_else(run):
    result = run("check", "adapter.py")
    assert result.exit_code == 1
    said = " ".join(result.output.split())
    assert (
        "Cause unknown: goldformer does not judge rotary positions within another component (apply_rope; by itself it "
        "is judged as rotary_embedding). Plug in a part without it" in said
    )
    assert "Place" not in said
    assert said.count("does not judge") == 1


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("RoPE", "rotary positions within another component (RoPE; by itself it is judged as rotary_embedding)"),
        (
            "num_kv_heads",
            "grouped keys and values within another component (num_kv_heads; by itself it is judged as "
            "grouped_query_attention)",
        ),
        (
            "SlidingWindow",
            "sliding windows within another component (SlidingWindow; by itself it is judged as sliding_window_mask)",
        ),
        (
            "softcap",
            "soft caps of scores within another component (softcap; by itself it is judged as grouped_query_attention)",
        ),
        ("MoE", "experts"),
    ],
)
def test_explain_says_it_of_a_name(run, name, title):
    result = run("explain", name)
    assert result.exit_code == 2
    assert f"goldformer does not judge {title}" in result.output


def test_names_of_what_is_judged_say_nothing(spec):
    for component, contract in spec.contracts.items():
        names = {component, *contract.conventions, *contract.inputs, *contract.params, *contract.attributes}
        names |= {mistake.id for mistake in spec.mistakes.values() if mistake.component == component}
        assert explain_scope(names, (component,)) == "", component
    assert explain_scope(["property", "europe", "stereoscope"]) == ""


def test_libraries_are_not_read():
    functional = pytest.importorskip("torch").nn.functional

    class Layer:
        def forward(self, x):
            return functional.scaled_dot_product_attention(x, x, x)

    assert {"Layer", "forward", "scaled_dot_product_attention"} <= list_identifiers(Layer)
    assert explain_scope(list_identifiers(Layer)) == ""


@pytest.mark.parametrize("formula", ["x * cos + sin", "x.no_attribute"])
def test_a_function_that_is_such_a_part_is_asked_for_its_arguments(run, formula):
    Path("rope.py").write_text(f"def apply_rope(x, cos, sin):\n    return {formula}\n", encoding="utf-8")
    said = " ".join(run("check", "rope.py").output.split())
    assert "apply_rope takes (x, cos, sin), which are not the inputs and parameters that rotary_embedding has" in said
    assert "does not judge" not in said


def test_a_component_that_has_such_a_part_is_judged_with_it():
    names = ["num_kv_heads", "rotary_emb"]
    assert explain_scope(names, ("decoder_only_layer",)) == ""
    assert explain_scope(["num_kv_heads"], ("cached_attention",)) == ""
    assert "rotary_emb" in explain_scope(names, ("cached_attention",))
    assert explain_scope(["sliding_window", "softcap"], ("decoder_only_layer",)) == ""
    assert explain_scope(["experts"], ("expert_router",)) == ""


def test_components_with_such_a_part_depend_on_it(spec):
    entries = [entry for entry, _ in _read() if entry.but_as]
    assert any(entry.within for entry in entries)
    for entry in entries:
        for component in entry.within:
            assert entry.but_as in spec.list_dependencies(component), (entry.id, component)


def attend_with_cap(scores, softcap=None, *, sliding_window=None, scale=1.0):
    """Return scores that are capped where a call asks for it."""
    return scores if softcap is None else softcap * (scores * scale / softcap).tanh()


def test_an_argument_that_most_calls_leave_out_is_no_reason_for_a_failure():
    assert explain_scope(list_identifiers(attend_with_cap)).count("soft caps of scores")
    names = list_identifiers(attend_with_cap, switched_off=False)
    assert names.isdisjoint({"softcap", "sliding_window"})
    assert {"attend_with_cap", "scores", "scale", "tanh"} <= names
    assert explain_scope(names) == ""
