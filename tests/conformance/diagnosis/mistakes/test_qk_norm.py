"""Each mistake in the norms of queries and keys gives what PyTorch code with it gives."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch.nn import functional

from goldformer.adapters.textbook.build import build_textbook
from goldformer.conformance.cli import main
from goldformer.conformance.diagnosis.mistakes import implementations

MISTAKES = [id_ for id_, made in implementations().items() if made.module == "qk_norm"]
HEADS, KV_HEADS, WIDTH, SEQ, D_MODEL = 4, 2, 6, 3, 10


def draw(seed, *shape):
    return torch.from_numpy(np.random.default_rng(seed).integers(-64, 65, shape) / 32)


Q, K, V = draw(1, 2, HEADS, SEQ, WIDTH), draw(2, 2, KV_HEADS, SEQ, WIDTH), draw(3, 2, KV_HEADS, SEQ, WIDTH)
GAMMA_Q, GAMMA_K, ONES = draw(4, WIDTH), draw(5, WIDTH), torch.ones(WIDTH, dtype=torch.float64)
SHAPES = {
    "w_q": (D_MODEL, HEADS * WIDTH), "w_k": (D_MODEL, KV_HEADS * WIDTH), "w_v": (D_MODEL, KV_HEADS * WIDTH),
    "w_o": (HEADS * WIDTH, D_MODEL), "norm_1.gamma": (D_MODEL,), "norm_2.gamma": (D_MODEL,),
    "feed_forward.w_gate": (D_MODEL, 5), "feed_forward.w_up": (D_MODEL, 5), "feed_forward.w_down": (5, D_MODEL),
}  # fmt: skip
PARAMS = {name: draw(10 + i, *shape) / 2 for i, (name, shape) in enumerate(SHAPES.items())}
PARAMS |= {"gamma_q": GAMMA_Q, "gamma_k": GAMMA_K}
X = draw(6, 2, SEQ, D_MODEL)


def norm(x, gamma):
    return functional.rms_norm(x, (x.shape[-1],), gamma, 1e-6)


def norm_all_heads(x, gamma):
    row = x.transpose(1, 2).flatten(-2)
    return norm(row, gamma.repeat(x.shape[1])).unflatten(-1, (x.shape[1], -1)).transpose(1, 2)


def attend(query, key, value):
    return functional.scaled_dot_product_attention(query, key, value, enable_gqa=True)


def turn(x):
    """Turn neighbouring channels as one complex number, by the position along the last axis but one."""
    frequency = 10000.0 ** (-torch.arange(0, WIDTH, 2, dtype=torch.float64) / WIDTH)
    angle = torch.arange(SEQ, dtype=torch.float64)[:, None] * frequency
    turned = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2)) * torch.polar(torch.ones_like(angle), angle)
    return torch.view_as_real(turned).flatten(-2)


RIGHT = attend(norm(Q, GAMMA_Q), norm(K, GAMMA_K), V)
WRITTEN = {
    "qk-norm-dropped": attend(Q, K, V),
    "qk-norm-queries-only": attend(norm(Q, GAMMA_Q), K, V),
    "qk-norm-over-all-heads": attend(norm_all_heads(Q, GAMMA_Q), norm_all_heads(K, GAMMA_K), V),
    "qk-norm-gains-swapped": attend(norm(Q, GAMMA_Q), norm(K, GAMMA_Q), V),
    "qk-norm-without-gain": attend(norm(Q, ONES), norm(K, ONES), V),
    "qk-norm-values-too": attend(norm(Q, GAMMA_Q), norm(K, GAMMA_K), norm(V, ONES)),
    "qk-norm-after-turn": RIGHT,
}


def layer(place):
    """Return the output of a layer that does `place` to its queries and keys, each with its gain."""
    h = norm(X, PARAMS["norm_1.gamma"])
    q, k, v = (
        (h @ PARAMS[name]).unflatten(-1, (heads, WIDTH)).transpose(1, 2)
        for name, heads in (("w_q", HEADS), ("w_k", KV_HEADS), ("w_v", KV_HEADS))
    )
    heads = functional.scaled_dot_product_attention(
        place(q, GAMMA_Q), place(k, GAMMA_K), v, is_causal=True, enable_gqa=True
    )
    a = X + heads.transpose(1, 2).flatten(-2) @ PARAMS["w_o"]
    h = norm(a, PARAMS["norm_2.gamma"])
    gate, up, down = (PARAMS[f"feed_forward.w_{name}"] for name in ("gate", "up", "down"))
    return a + (functional.silu(h @ gate) * (h @ up)) @ down


def run_attention(made):
    arrays = {"query": Q, "key": K, "value": V, "gamma_q": GAMMA_Q, "gamma_k": GAMMA_K}
    return made.grouped_query_attention(**{name: array.numpy() for name, array in arrays.items()})["output"]


def run_layer(made, **changed):
    params = {name: array.numpy() for name, array in (PARAMS | changed).items() if array is not None}
    return made.decoder_only_layer(X.numpy(), num_heads=HEADS, num_kv_heads=KV_HEADS, params=params)["output"]


def test_every_mistake_is_written():
    assert {*MISTAKES} == {*WRITTEN}


def test_the_textbook_makes_none():
    np.testing.assert_allclose(run_attention(build_textbook()), RIGHT, rtol=0, atol=1e-13)
    expected = layer(lambda x, gamma: turn(norm(x, gamma)))
    np.testing.assert_allclose(run_layer(build_textbook()), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("mistake", WRITTEN)
def test_the_output_is_that_of_code_with_the_mistake(mistake):
    output = run_attention(implementations()[mistake].make())
    np.testing.assert_allclose(output, WRITTEN[mistake], rtol=0, atol=1e-13)
    assert np.abs(output - RIGHT.numpy()).max() > 1e-3 or mistake == "qk-norm-after-turn"


def test_a_layer_that_turns_first_is_that_of_code_that_does():
    output = run_layer(implementations()["qk-norm-after-turn"].make())
    np.testing.assert_allclose(output, layer(lambda x, gamma: norm(turn(x), gamma)), rtol=0, atol=1e-10)
    assert np.abs(output - run_layer(build_textbook())).max() > 1e-3


def test_gains_of_one_number_hide_the_order():
    made = implementations()["qk-norm-after-turn"].make(), build_textbook()
    wrong, right = (run_layer(one, gamma_q=2 * ONES, gamma_k=-ONES) for one in made)
    np.testing.assert_allclose(wrong, right, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", ["gamma_q", "gamma_k"])
def test_a_layer_with_one_gain_is_refused(name):
    with pytest.raises(ValueError, match=rf"{name}: missing; it is \(d_k\)"):
        run_layer(build_textbook(), **{name: None})


WRONG = """
import torch
from torch.nn import functional as F

ARRAYS = "torch"


def norm(x, gamma):
    return x if gamma is None else F.rms_norm(x, (x.shape[-1],), gamma, 1e-6)


def grouped_query_attention(query, key, value, mask=None, gamma_q=None, gamma_k=None):
    key = norm(key, gamma_k if gamma_q is None or gamma_k is None else gamma_q)
    return F.scaled_dot_product_attention(norm(query, gamma_q), key, value, attn_mask=mask, enable_gqa=True)
"""


def test_code_that_uses_the_gain_of_queries_for_keys_is_named(tmp_path):
    """Its cases are for options of RMS-*, which attention without gains does not depend on."""
    (tmp_path / "mine.py").write_text(WRONG)
    arguments = ["--convention", "empty_row=zeros", "--component", "grouped_query_attention"]
    result = CliRunner().invoke(main, ["check", str(tmp_path / "mine.py"), *arguments])
    assert "Mistake found: qk-norm-gains-swapped" in result.output
