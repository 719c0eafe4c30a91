"""Each mistake in the layer of a decoder-only model gives what PyTorch code with it gives."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional

from goldformer.adapters.textbook.build import build_textbook
from goldformer.conformance.diagnosis.mistakes import implementations
from goldformer.spec.formulas.options import OPTIONS

MISTAKES = [id_ for id_, made in implementations().items() if made.module == "blocks"]
HEADS, KV_HEADS, WIDTH, SEQ, D_MODEL = 4, 2, 8, 4, 12


def draw(seed, *shape):
    return torch.from_numpy(np.random.default_rng(seed).integers(-64, 65, shape) / 64)


X = 2 * draw(1, 2, SEQ, D_MODEL)
MASK = torch.tensor([[True, False, True, True], [True, True, True, False]])[:, None, None]
SHAPES = {
    "w_q": (D_MODEL, HEADS * WIDTH), "w_k": (D_MODEL, KV_HEADS * WIDTH), "w_v": (D_MODEL, KV_HEADS * WIDTH),
    "w_o": (HEADS * WIDTH, D_MODEL), "norm_1.gamma": (D_MODEL,), "norm_2.gamma": (D_MODEL,),
    "post_norm_1.gamma": (D_MODEL,), "post_norm_2.gamma": (D_MODEL,), "feed_forward.w_gate": (D_MODEL, 5),
    "feed_forward.w_up": (D_MODEL, 5), "feed_forward.w_down": (5, D_MODEL),
}  # fmt: skip
PARAMS = {name: draw(2 + i, *shape) for i, (name, shape) in enumerate(SHAPES.items())}


def norm(x, name):
    return functional.rms_norm(x, (D_MODEL,), PARAMS[f"{name}.gamma"], 1e-6)


def network(x):
    w = {name: PARAMS[f"feed_forward.w_{name}"] for name in ("gate", "up", "down")}
    return (functional.silu(x @ w["gate"]) * (x @ w["up"])) @ w["down"]


def turn(x):
    """Turn neighbouring channels as one complex number, by the position along the last axis but one."""
    frequency = 10000.0 ** (-torch.arange(0, x.shape[-1], 2, dtype=torch.float64) / x.shape[-1])
    angle = torch.arange(x.shape[-2], dtype=torch.float64)[:, None] * frequency
    turned = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2)) * torch.polar(torch.ones_like(angle), angle)
    return torch.view_as_real(turned).flatten(-2)


def cut(x, heads):
    return x.reshape(*x.shape[:2], heads, -1).transpose(1, 2)


CAUSAL = torch.ones(SEQ, SEQ, dtype=torch.bool).tril()


def attention(
    x, q=turn, k=turn, v=lambda v: v, whole=lambda x: x, keep=CAUSAL & MASK, names=("w_k", "w_v"), scale=None, w_k=None
):  # fmt: skip
    query = q(cut(whole(x @ PARAMS["w_q"]), HEADS))
    key = k(cut(whole(x @ (PARAMS[names[0]] if w_k is None else w_k)), KV_HEADS))
    value = v(cut(x @ PARAMS[names[1]], KV_HEADS))
    # Of a row without a key the weights are equal.
    bias = torch.zeros(keep.shape, dtype=torch.float64).masked_fill(~keep, torch.finfo(torch.float64).min)
    heads = functional.scaled_dot_product_attention(query, key, value, bias, enable_gqa=True, scale=scale)
    return heads.transpose(1, 2).flatten(-2) @ PARAMS["w_o"]


def same(x):
    return x


def layer(attended=None, **changed):
    a = X + attention(norm(X, "norm_1"), **changed) if attended is None else attended
    return a + network(norm(a, "norm_2"))


def reorder_keys():
    """Put pairs into halves as if keys had the heads of queries, and read them by the heads that keys have."""
    halves = PARAMS["w_k"].reshape(D_MODEL, HEADS, -1, 2).transpose(2, 3).reshape(D_MODEL, -1)
    return halves.reshape(D_MODEL, KV_HEADS, 2, -1).transpose(2, 3).reshape(D_MODEL, -1)


def residual_normed():
    h = norm(X, "norm_1")
    a = norm(h + attention(h), "norm_2")
    return a + network(a)


def norm_after():
    a = norm(X + attention(X), "norm_1")
    return norm(a + network(a), "norm_2")


def after_sum():
    a = norm(X + attention(norm(X, "norm_1")), "post_norm_1")
    return norm(a + network(norm(a, "norm_2")), "post_norm_2")


A = X + attention(norm(X, "norm_1"))
SWAPPED = X + attention(norm(X, "norm_2"))
UNNORMED = X + attention(X)
WRITTEN = {
    "block-norm-missing": UNNORMED + network(UNNORMED),
    "block-norm-after": norm_after(),
    "block-norm-shared": A + network(norm(A, "norm_1")),
    "block-norms-swapped": SWAPPED + network(norm(SWAPPED, "norm_1")),
    "block-residual-normed": residual_normed(),
    "block-network-reads-input": A + network(norm(X, "norm_2")),
    "block-output-norm-after-sum": after_sum(),
    "block-output-norm-missing": layer(),
    "block-network-missing": A,
    "block-not-turned": layer(q=same, k=same),
    "block-keys-not-turned": layer(k=same),
    "block-queries-not-turned": layer(q=same),
    "block-values-turned": layer(v=turn),
    "block-turned-before-split": layer(q=same, k=same, whole=turn),
    "block-keys-laid-out-by-query-heads": layer(w_k=reorder_keys()),
    "block-causal-missing": layer(keep=MASK.expand(2, 1, SEQ, SEQ)),
    "block-mask-replaces-causal": layer(keep=MASK.expand(2, 1, SEQ, SEQ)),
    "block-mask-ignored": layer(keep=CAUSAL),
    "block-causal-off-by-one": layer(keep=torch.ones(SEQ, SEQ, dtype=torch.bool).tril(1) & MASK),
    "block-causal-self-hidden": layer(keep=torch.ones(SEQ, SEQ, dtype=torch.bool).tril(-1) & MASK),
    "block-keys-values-swapped": layer(names=("w_v", "w_k")),
    "block-scale-by-model-width": layer(scale=(D_MODEL / HEADS) ** -0.5),
}


def run(made, mask=MASK):
    arguments = {"num_heads": HEADS, "num_kv_heads": KV_HEADS, "params": {n: p.numpy() for n, p in PARAMS.items()}}
    return made.decoder_only_layer(X.numpy(), None if mask is None else mask.numpy(), **arguments)["output"]


def make(mistake):
    made = implementations()[mistake]
    options = dict(getattr(made.make(), "CONVENTIONS", {}))
    return build_textbook(*(OPTIONS[item] for item in options.items()), made.steps)


def test_every_mistake_of_the_catalogue_is_made(spec):
    named = {m.id for m in spec.mistakes.values() if m.component == "decoder_only_layer"}
    elsewhere = {id_ for id_ in named if implementations()[id_].module == "qk_norm"}
    assert named - elsewhere == {*MISTAKES} == {*WRITTEN}


@pytest.mark.parametrize("mistake", WRITTEN)
def test_a_layer_is_that_of_code_with_the_mistake(mistake):
    output = run(make(mistake))
    np.testing.assert_allclose(output, WRITTEN[mistake], rtol=0, atol=1e-10)
    assert np.abs(output - layer().numpy()).max() > 1e-3 or mistake == "block-output-norm-missing"


def test_without_a_mask_the_causal_mask_stays_where_a_mask_replaces_it():
    np.testing.assert_allclose(run(make("block-mask-replaces-causal"), None), layer(keep=CAUSAL), rtol=0, atol=1e-10)


def parallel():
    h = norm(X, "norm_1")
    return X + attention(h) + network(h)


def sandwich():
    a = X + norm(attention(norm(X, "norm_1")), "post_norm_1")
    return a + norm(network(norm(a, "norm_2")), "post_norm_2")


@pytest.mark.parametrize(("option", "expected"), [("pre", layer), ("parallel", parallel), ("sandwich", sandwich)])
def test_an_order_is_that_of_code_with_it(option, expected):
    made = build_textbook(OPTIONS.get(("block_order", option), {}))
    np.testing.assert_allclose(run(made), expected(), rtol=0, atol=1e-10)
