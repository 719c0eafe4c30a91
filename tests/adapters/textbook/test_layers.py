"""The textbook's layers and stacks by hand, against the reference, and against what they promise."""

import math
from functools import partial
from typing import Any

import numpy as np
import pytest

from arrays import UNIT_ROUNDOFF, draw, drawn, outputs, tensors
from goldformer.adapters.builtin import reference
from goldformer.adapters.builtin import textbook as textbook_adapter
from goldformer.adapters.textbook.build import build_textbook
from goldformer.conformance.diagnosis.mistakes import implementations
from goldformer.spec.formulas.embedding import positional_encoding
from goldformer.spec.formulas.layers import (
    DECODER_LAYER,
    ENCODER_LAYER,
    FEED_FORWARD,
    NORM,
    cross_attend,
    decoder_layer,
    layer_norm,
    layer_norm_eps,
    norm_params,
    note_sum,
    run_decoder_layer,
    run_encoder_layer,
    run_sublayer,
    stack_params,
)
from goldformer.spec.formulas.steps import around
from spoiled import Spoiled, spoil

# No two alike, but where one number stands for a product.
SIZES = {"batch": 3, "seq": 5, "source_seq": 7, "d_model": 14, "d_ff": 17}
HEADS, D_K, D_V, LAYERS = 2, 11, 13, 4
SIZES |= {"heads*d_k": HEADS * D_K, "heads*d_v": HEADS * D_V}
CAUSAL = np.tri(SIZES["seq"], dtype=bool)
SELF_MASK = CAUSAL & (np.arange(SIZES["seq"]) < np.array([5, 4, 2])[:, None])[:, None, None, :]
MEMORY_MASK = (np.arange(SIZES["source_seq"]) < np.array([3, 7, 5])[:, None])[:, None, None, :]

textbook = build_textbook()


def arguments(table, dtype="float64", *, memory=False, masks=None, **attributes):
    """Inputs and parameters, the latter so small that scores and outputs stay near 1."""
    inputs = {"x": "batch seq d_model"} | ({"memory": "batch source_seq d_model"} if memory else {})
    params = drawn(table, SIZES, seed=100, dtype=dtype, end=0.5)
    return drawn(inputs, SIZES, dtype=dtype) | (masks or {}) | attributes | {"params": params}


ENCODER_MASKS = {"mask": SELF_MASK}
DECODER_MASKS = {"self_mask": SELF_MASK, "memory_mask": MEMORY_MASK}
STACK = {"num_heads": HEADS, "num_layers": LAYERS}
ARGUMENTS = {
    "feed_forward": partial(arguments, FEED_FORWARD),
    "layer_norm": partial(arguments, NORM),
    "encoder_layer": partial(arguments, ENCODER_LAYER, masks=ENCODER_MASKS, num_heads=HEADS),
    "decoder_layer": partial(arguments, DECODER_LAYER, memory=True, masks=DECODER_MASKS, num_heads=HEADS),
    "encoder": partial(arguments, stack_params("encoder", ENCODER_LAYER, LAYERS), masks=ENCODER_MASKS, **STACK),
    "decoder": partial(
        arguments, stack_params("decoder", DECODER_LAYER, LAYERS), memory=True, masks=DECODER_MASKS, **STACK
    ),
}
every_component = pytest.mark.parametrize("component", ARGUMENTS)


# By hand


def test_feed_forward_by_hand():
    params = {
        "w_1": np.array([[1.0, 0, 2], [0, 1, -1]]),
        "b_1": np.array([0.0, -3, 1]),
        "w_2": np.array([[1.0, 0], [5, 5], [0, 1]]),
        "b_2": np.array([0.5, -0.5]),
    }
    output, hidden = textbook.feed_forward(np.array([[[1.0, 2], [-1, 4]]]), params=params)
    # x·W_1 + b_1 is [1, −1, 1] and [−1, 1, −5].
    assert hidden.tolist() == [[[1, 0, 1], [0, 1, 0]]]
    assert output.tolist() == [[[1.5, 0.5], [5.5, 4.5]]]


LOW_VARIANCE = np.array([1, 1, 1, 1.001])
UNIT = {"gamma": np.ones(4), "beta": np.zeros(4)}


def test_layer_norm_of_a_row_with_little_variance():
    # Less the mean, the last is 0.00075 and the others −0.00025: variance 0.75e-6/4, a fiftieth of eps.
    got = textbook.layer_norm(LOW_VARIANCE, params=UNIT)
    expected = np.array([-0.00025, -0.00025, -0.00025, 0.00075]) / math.sqrt(1.875e-7 + 1e-5)
    np.testing.assert_allclose(got, expected, rtol=1e-11)
    assert got[3] == pytest.approx(0.235, abs=5e-4)


def test_layer_norm_of_equal_numbers_is_beta():
    got = textbook.layer_norm(np.full((2, 4), 3.0), params={"gamma": np.ones(4), "beta": np.arange(4.0)})
    assert got.tolist() == [[0, 1, 2, 3], [0, 1, 2, 3]]


def test_layer_norm_scales_and_shifts_by_channel():
    # Variance 1 and eps 1e-5: the row is ±1/√1.00001.
    params = {"gamma": np.array([2.0, 3]), "beta": np.array([0.5, -1])}
    one = 1 / math.sqrt(1.00001)
    got = textbook.layer_norm(np.array([[4.0, 6]]), params=params)
    np.testing.assert_allclose(got, [[0.5 - 2 * one, -1 + 3 * one]], rtol=1e-15)


def test_layer_norm_in_half_precision_does_not_overflow():
    x = np.array([1000, -1000, 1000, -1000], dtype="float16")
    got = textbook.layer_norm(x, params={name: value.astype("float16") for name, value in UNIT.items()})
    assert got.tolist() == [1, -1, 1, -1]


def silent(table):
    """Parameters with which every sub-layer gives zeros and every norm is plain."""
    params = {name: np.zeros_like(value) for name, value in drawn(table, SIZES).items()}
    return params | {name: np.ones_like(value) for name, value in params.items() if name.endswith("gamma")}


def test_a_layer_whose_sub_layers_give_nothing_is_its_norms():
    x, memory = draw(1, 3, 5, 14), draw(2, 3, 7, 14)
    plain = {"gamma": np.ones(14), "beta": np.zeros(14)}
    once = textbook.layer_norm(x, params=plain)
    twice = textbook.layer_norm(once, params=plain)
    thrice = textbook.layer_norm(twice, params=plain)
    encoded = textbook.encoder_layer(x, num_heads=HEADS, params=silent(ENCODER_LAYER))
    assert np.array_equal(encoded["attended"], once)
    assert np.array_equal(encoded["output"], twice)
    decoded = textbook.decoder_layer(x, memory, num_heads=HEADS, params=silent(DECODER_LAYER))
    assert np.array_equal(decoded["attended"], once)
    assert np.array_equal(decoded["crossed"], twice)
    assert np.array_equal(decoded["output"], thrice)
    # Scores of 0 everywhere.
    np.testing.assert_allclose(encoded["weights"], np.full((3, HEADS, 5, 5), 1 / 5), rtol=1e-15)
    np.testing.assert_allclose(decoded["cross_weights"], np.full((3, HEADS, 5, 7), 1 / 7), rtol=1e-15)


def test_masks_hide_what_they_should():
    got = textbook.decoder_layer(**ARGUMENTS["decoder_layer"]())
    assert not got["weights"][~np.broadcast_to(SELF_MASK, got["weights"].shape)].any()
    assert not got["cross_weights"][~np.broadcast_to(MEMORY_MASK, got["cross_weights"].shape)].any()
    assert got["weights"][:, :, 0, 0].tolist() == [[1, 1]] * 3


def test_a_stack_is_its_layers_one_by_one():
    given = ARGUMENTS["decoder"]()
    got = textbook.decoder(**given)
    x = given["x"]
    for index in range(LAYERS):
        start = f"decoder.{index}."
        mine = {name.removeprefix(start): p for name, p in given["params"].items() if name.startswith(start)}
        x = textbook.decoder_layer(x, given["memory"], **DECODER_MASKS, num_heads=HEADS, params=mine)["output"]
        assert np.array_equal(got["layers"][index], x)
    assert np.array_equal(got["output"], x)


# The reference in float64; test_torch_nn_layers.py does the same with PyTorch's own layers


@every_component
def test_the_adapters_of_textbook_and_reference_agree(component):
    given = ARGUMENTS[component]()
    got = outputs(getattr(textbook_adapter, component)(**given))
    expected = outputs(getattr(reference, component)(**tensors(given)))
    for mine, other in zip(got, expected, strict=True):
        # The most that was seen is 26 unit roundoffs, 3e-15.
        np.testing.assert_allclose(mine, other.numpy(), rtol=0, atol=1e-13)


@every_component
def test_biases_and_masks_may_be_absent(component):
    given = {name: value for name, value in ARGUMENTS[component]().items() if not name.endswith("mask")}
    biases = [name for name in given["params"] if name.rpartition(".")[2].startswith("b_")]
    without = given | {"params": {n: p for n, p in given["params"].items() if n not in biases}}
    zeros = given | {"params": given["params"] | {n: np.zeros_like(given["params"][n]) for n in biases}}
    method = getattr(textbook, component)
    for mine, other in zip(outputs(method(**without)), outputs(method(**zeros)), strict=True):
        assert np.array_equal(mine, other)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@every_component
def test_dtype_is_kept(component, dtype):
    # Inputs are equal in all dtypes; 16 unit roundoffs are nearly three times the most that was seen, 5.8.
    exact = outputs(getattr(textbook, component)(**ARGUMENTS[component]()))
    rounded = outputs(getattr(textbook, component)(**ARGUMENTS[component](dtype=dtype)))
    for want, got in zip(exact, rounded, strict=True):
        assert got.dtype == dtype
        bound = 16 * UNIT_ROUNDOFF[dtype] * max(1, np.abs(want).max())
        np.testing.assert_allclose(got, want, rtol=0, atol=bound)


# Refusals: a component, what is changed of its arguments, and how it says so

REFUSED = [
    ("feed_forward", {"x": np.ones((3, 5, 4))}, r"w_1: shape \(14, 17\) is not \(d_model, d_ff\): d_model is 4 in x"),
    ("feed_forward", {"params": {"w_1": np.ones((14, 17))}}, r"w_2: missing; it is \(d_ff, d_model\)"),
    ("layer_norm", {"x": np.ones((3, 5, 4))}, "gamma: shape .* d_model is 4 in x"),
    ("encoder_layer", {"x": np.ones((5, 14))}, r"x: shape \(5, 14\) is not \(batch, seq, d_model\)"),
    ("encoder_layer", {"x": np.ones((3, 5, 4))}, "self_attention.w_q: shape .* d_model is 4 in x"),
    ("encoder_layer", {"params": {}}, r"self_attention.w_q: missing; it is \(d_model, heads\*d_k\)"),
    ("encoder_layer", {"num_heads": 3}, "num_heads: 22 columns do not divide into 3 equal parts"),
    ("encoder_layer", {"mask": np.ones((7, 5), dtype=bool)}, r"mask: shape \(7, 5\) does not broadcast"),
    ("decoder_layer", {"memory": np.ones((2, 7, 14))}, "memory: shape .* batch is 3 in x"),
    ("decoder_layer", {"memory": np.ones((3, 7, 4))}, "memory: shape .* d_model is 14 in x"),
    (
        "decoder_layer",
        {"self_mask": MEMORY_MASK},
        r"self_mask: shape \(3, 1, 1, 7\) does not broadcast .* \(3, 2, 5, 5\)",
    ),
    ("decoder_layer", {"memory_mask": SELF_MASK}, "memory_mask: shape .* does not broadcast"),
    ("decoder_layer", {"memory_mask": np.ones(7)}, "memory_mask: dtype float64, but a mask is boolean"),
    ("encoder", {"num_layers": 0}, "encoder layers: 0, but a stack has at least one"),
    ("encoder", {"num_layers": 5}, r"encoder.4.self_attention.w_q: missing; it is \(d_model, heads\*d_k\)"),
    ("decoder", {"num_layers": 5}, "decoder.4.self_attention.w_q: missing"),
    ("decoder", {"memory": np.ones((3, 7, 4))}, "memory: shape .* d_model is 14 in x"),
]


@pytest.mark.parametrize(("component", "changed", "message"), REFUSED)
def test_refusals_name_the_argument(component, changed, message):
    with pytest.raises((ValueError, TypeError), match=message):
        getattr(textbook, component)(**ARGUMENTS[component]() | changed)


# Every step can be replaced: a mistake is a function of a line or two


@spoil(instead_of=layer_norm_eps)
def norm_eps_value():
    return 1e-6


norm_eps_outside = Spoiled("norm_eps_outside", *norm_eps_value.layers, implementations()["ln-eps-outside"].steps)


@spoil(instead_of=run_sublayer)
def pre_for_post(x, function, *, number, sums, params):
    output, extra = function(layer_norm(x, params=norm_params(params, number)))
    return note_sum(x, output, sums), extra


@spoil(around=decoder_layer)
def causal_missing(original, x, memory, self_mask=None, *mask, **rest):
    return original(x, memory, None, *mask, **rest)


def add_position(original, x, **rest):
    return original(positional_encoding(x), **rest)


position_before_every_layer = Spoiled(
    "position_before_every_layer", {run_encoder_layer: around(add_position), run_decoder_layer: around(add_position)}
)


# Those of the catalogue by their ids.
MISTAKES: dict[str, list[Any]] = {
    "feed_forward": ["ffn-leaky-relu", "ffn-no-relu", "ffn-output-relu", "ffn-bias-missing", "ffn-mixes-tokens"],
    "layer_norm": [
        "ln-wrong-axis",
        "bn-for-ln",
        "rms-for-ln",
        "ln-unbiased",
        "ln-square",
        "ln-no-affine",
        "ln-one-plus-gamma",
    ],
    "encoder_layer": [
        "residual-missing",
        "residual-wrong-x",
        "residual-normed",
        "residual-unnormed",
        "norm-before-add",
        "norm-missing",
        "wrong-ln-reused",
        "ffn-missing",
        "ffn-no-dff",
        "pe-every-layer",
        pre_for_post,
    ],
    "decoder_layer": [
        "residual-wrong-x",
        "residual-unnormed",
        "norm-missing",
        "wrong-ln-reused",
        "ffn-missing",
        "cross-missing",
        "cross-q-source",
        "cross-self-weights",
        "cross-mask-absent",
        "causal-in-cross",
        causal_missing,
    ],
    "encoder": ["layers-shared", "layer-skipped", "final-norm-extra", position_before_every_layer],
    "decoder": ["layers-shared", "layer-skipped", "final-norm-extra", position_before_every_layer],
}
PAIRS = [(component, mistake) for component, mistakes in MISTAKES.items() for mistake in mistakes]


@pytest.mark.parametrize(("component", "mistake"), PAIRS)
def test_a_replaced_step_is_a_mistake(component, mistake):
    given = ARGUMENTS[component]()
    right = outputs(getattr(textbook, component)(**given))[0]
    make = implementations()[mistake].make if isinstance(mistake, str) else mistake
    wrong = outputs(getattr(make(), component)(**given))[0]
    assert wrong.shape == right.shape
    assert np.abs(wrong - right).max() > 0.01


def test_other_values_of_eps_give_what_the_catalogue_measures():
    assert norm_eps_value().layer_norm(LOW_VARIANCE, params=UNIT)[3] == pytest.approx(0.688, abs=5e-4)
    assert norm_eps_outside().layer_norm(LOW_VARIANCE, params=UNIT)[3] == pytest.approx(1.728, abs=5e-4)


def test_a_cross_attention_that_asks_from_the_memory():
    @spoil(around=cross_attend)
    def cross_from_memory(original, x, memory, mask, **rest):
        return original(memory, x, mask, **rest)

    # It shows by its shape, unless source and target are as long as each other.
    given = ARGUMENTS["decoder_layer"]() | {"memory_mask": None}
    with pytest.raises(ValueError, match="could not be broadcast"):
        cross_from_memory().decoder_layer(**given)
    square = given | {"memory": given["memory"][:, :5]}
    wrong = cross_from_memory().decoder_layer(**square)["crossed"] - textbook.decoder_layer(**square)["crossed"]
    assert np.abs(wrong).max() > 0.01


def test_a_memory_of_its_own_for_every_layer():
    @spoil(around=run_decoder_layer)
    def memory_by_layer(original, x, *, index, memory, **rest):
        return original(x, index=index, memory=memory[index], **rest)

    given = ARGUMENTS["decoder"]()
    memories = np.stack([given["memory"]] * LAYERS)
    got = memory_by_layer().decoder(**given | {"memory": memories})
    assert np.array_equal(got["output"], textbook.decoder(**given)["output"])
