"""Each mistake in grouped-query attention gives what PyTorch code with it gives."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention as attend

from goldformer.adapters.textbook.build import build_textbook
from goldformer.conformance.diagnosis.mistakes import implementations
from goldformer.spec.formulas.options import OPTIONS

MISTAKES = [id_ for id_, made in implementations().items() if made.module == "groups"]
HEADS, KV_HEADS = 6, 2
GROUP = HEADS // KV_HEADS


def draw(seed, *shape):
    return torch.from_numpy(np.random.default_rng(seed).integers(-64, 65, shape) / 32)


Q, K, V = draw(1, 2, HEADS, 3, 4), draw(2, 2, KV_HEADS, 5, 4), draw(3, 2, KV_HEADS, 5, 7)
MASK = torch.from_numpy(np.random.default_rng(4).random((1, HEADS, 3, 5)) < 0.6) | torch.eye(3, 5, dtype=torch.bool)


def each(x):
    return x.repeat_interleave(GROUP, dim=1)


def whole(x):
    return x.repeat(1, GROUP, 1, 1)


def divide_powers(scores, sink):
    return scores.exp() / (scores.exp().sum(-1, keepdim=True) + sink[:, None, None])


RIGHT = attend(Q, each(K), each(V))
WRITTEN = {
    "gqa-first-head": attend(Q, K[:, :1].expand(-1, HEADS, -1, -1), V[:, :1].expand(-1, HEADS, -1, -1)),
    "gqa-values-tiled": attend(Q, each(K), whole(V)),
    "gqa-queries-reduced": torch.einsum(
        "bhns,bhsd->bhnd",
        (torch.einsum("bhgnd,bhsd->bhns", Q.unflatten(1, (KV_HEADS, GROUP)), K) / 2).softmax(-1),
        V,
    ),
    "gqa-heads-out-of-order": RIGHT.unflatten(1, (KV_HEADS, GROUP)).transpose(1, 2).flatten(1, 2),
    "gqa-scale-kv-heads": attend(Q, each(K), each(V), scale=(HEADS * 4 / KV_HEADS) ** -0.5),
    # They show in the calls below only.
    "gqa-no-divisibility": RIGHT,
    "gqa-mask-by-key-head": RIGHT,
}


BIAS = draw(5, HEADS, 3, 5)
SINKS, SHOWN = draw(6, HEADS), torch.arange(5) < 3
SCORES = Q @ each(K).mT
#: What code with each mistake weighs the keys by, given what a call says of its scores.
WEIGHED: dict[str, tuple[dict[str, Any], torch.Tensor]] = {
    "scale-argument-dropped": ({"scale": 0.3}, (SCORES / 2).softmax(-1)),
    "scale-argument-besides-root": ({"scale": 0.3}, (SCORES * 0.15).softmax(-1)),
    "softcap-after-mask": (
        {"softcap": 1.5, "mask": SHOWN},
        (1.5 * ((SCORES / 2).masked_fill(~SHOWN, -math.inf) / 1.5).tanh()).softmax(-1),
    ),
    "softcap-dropped": ({"softcap": 1.5}, (SCORES / 2).softmax(-1)),
    "softcap-times-logit": ({"softcap": 1.5}, (SCORES / 2 * (SCORES / 3).tanh()).softmax(-1)),
    "bias-dropped": ({"bias": BIAS}, (SCORES / 2).softmax(-1)),
    "bias-before-scale": ({"bias": BIAS}, ((SCORES + BIAS) / 2).softmax(-1)),
    "sinks-dropped": ({"sinks": SINKS}, (SCORES / 2).softmax(-1)),
    "sinks-max-shift": ({"sinks": SINKS}, divide_powers((SCORES - SCORES.amax(-1, keepdim=True)) / 2, SINKS.exp())),
    "sinks-twice": ({"sinks": SINKS}, divide_powers(SCORES / 2, 2 * SINKS.exp())),
}


def call(adapter, *arrays, **said):
    numpy = {name: given.numpy() if isinstance(given, torch.Tensor) else given for name, given in said.items()}
    return adapter.grouped_query_attention(*(array.numpy() for array in arrays), **numpy)["output"]


def test_every_mistake_of_the_catalogue_is_made(spec):
    named = {m.id for m in spec.mistakes.values() if m.component == "grouped_query_attention" and "-grad-" not in m.id}
    elsewhere = {id_ for id_ in named if implementations()[id_].module == "qk_norm"}
    assert named - elsewhere == {*MISTAKES} == {*WRITTEN, *WEIGHED}


@pytest.mark.parametrize("mistake", WRITTEN)
def test_the_output_is_that_of_code_with_the_mistake(mistake):
    output = call(implementations()[mistake].make(), Q, K, V)
    np.testing.assert_allclose(output, WRITTEN[mistake], rtol=0, atol=1e-13)


@pytest.mark.parametrize("mistake", WEIGHED)
def test_the_weights_are_those_of_code_with_the_mistake(mistake):
    said, weights = WEIGHED[mistake]
    output = call(implementations()[mistake].make(), Q, K, V, **said)
    np.testing.assert_allclose(output, weights @ each(V), rtol=0, atol=1e-13)


def test_a_mask_at_the_index_of_a_head_of_keys():
    output = call(implementations()["gqa-mask-by-key-head"].make(), Q, K, V, MASK)
    expected = attend(Q, each(K), each(V), MASK[:, torch.arange(HEADS) // GROUP])
    np.testing.assert_allclose(output, expected, rtol=0, atol=1e-13)


def test_heads_that_do_not_divide_are_accepted_where_nothing_checks_them():
    with pytest.raises(ValueError, match="key: 3 heads of queries do not divide into 2 equal groups"):
        call(build_textbook(), Q[:, :3], K, V)
    output = call(implementations()["gqa-no-divisibility"].make(), Q[:, :3], K, V)
    np.testing.assert_allclose(output, attend(Q[:, :3], K[:, [0, 0, 1]], V[:, [0, 0, 1]]), rtol=0, atol=1e-13)


def test_the_option_tile_repeats_the_heads_as_a_whole():
    made = build_textbook(OPTIONS["gqa_groups", "tile"])
    np.testing.assert_allclose(call(made, Q, K, V), attend(Q, whole(K), whole(V)), rtol=0, atol=1e-13)
    with pytest.raises(ValueError, match="key: 3 heads of queries do not divide into 2 equal groups"):
        call(made, Q[:, :3], K, V)
