"""`goldformer.expected` and `assert_correct`: values and tolerances for a caller's own inputs."""

from __future__ import annotations

import contextlib
import math
import re
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import goldformer
from drawn_calls import DRAWN, draw_call
from goldformer.adapters.textbook.build import build_textbook
from goldformer.conformance.diagnosis.mistakes import implementations
from goldformer.conformance.judging.invoke import name_outputs
from goldformer.spec import load_spec
from goldformer.spec.formulas.options import OPTIONS
from goldformer.spec.oracle.rounding import SLACK, UNIT_ROUNDOFF

GENERATOR = torch.Generator().manual_seed(0)
DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


def draw(*shape, dtype=torch.float32):
    return torch.randn(*shape, generator=GENERATOR, dtype=torch.float64).to(dtype)


def attention(**changes):
    return {"query": draw(2, 3, 4, 8), "key": draw(2, 3, 5, 8), "value": draw(2, 3, 5, 7), **changes}


def norm(dtype=torch.float32):
    return {"x": draw(2, 5, 12, dtype=dtype), "params": {n: draw(12, dtype=dtype) for n in ("gamma", "beta")}}


def run_norm(x, params):
    return F.layer_norm(x, (12,), params["gamma"], params["beta"], 1e-5)


# expected


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_values_are_those_of_the_numbers_that_the_arrays_hold(dtype):
    given = norm(dtype)
    found = goldformer.expected("layer_norm", **given)["output"]
    wide = run_norm(given["x"].double(), {n: a.double() for n, a in given["params"].items()})
    assert found.values.dtype == torch.float64
    assert (found.values - wide).abs().max() <= found.tolerances["float64"]
    name = str(dtype).removeprefix("torch.")
    assert found.tolerance == found.tolerances[name]
    # Values that are not proven are rounded to float64 as results are. Sums are finer than results in half types.
    counted = {dtype: bound / UNIT_ROUNDOFF[dtype] for dtype, bound in found.tolerances.items()}
    finest = counted["float64"] / (1 if dtype == torch.float64 else math.sqrt(2))
    assert "float32" not in counted or counted["float32"] == pytest.approx(finest, rel=1e-3)
    assert all(0.5 * finest < count < 1.5 * finest for count in counted.values())


def test_a_double_is_itself_and_no_decimal():
    # As decimals, 0.30000000000000004 − 0.3 is 4e-17; as doubles it is 2⁻⁵⁴. A uniform softmax takes half of it.
    value = np.array([[0.1 * 3], [-0.3]])
    found = goldformer.expected(
        "scaled_dot_product_attention", query=np.zeros((1, 1)), key=np.ones((2, 1)), value=value
    )
    assert found["output"].values[0, 0] == 2.0**-55


def test_inputs_are_not_rounded_again():
    # Rounding 100.3 to float32 moves its exponential by a hundred roundoffs; the call has the rounded number already.
    scores = np.array([[100.3, 100.1, 99.7]], dtype=np.float32)
    found = goldformer.expected("softmax", scores=scores)["output"]
    assert found.tolerance < 10 * SLACK * UNIT_ROUNDOFF["float32"]
    goldformer.assert_correct(torch.softmax(torch.from_numpy(scores), -1).numpy(), "softmax", scores=scores)


def test_parameters_and_results_of_autograd_are_arrays():
    x = torch.nn.Parameter(draw(3, 4).mT)
    module = torch.nn.LayerNorm(3)
    params = {"gamma": module.weight, "beta": module.bias}
    goldformer.assert_correct(module(x), "layer_norm", x=x, params=params)
    found = goldformer.expected(
        "cross_entropy", logits=draw(1, 2, 3), targets=torch.ones(1, 2).int(), pad_id=np.int64(0)
    )
    assert found["loss"].values.shape == ()


def test_dtypes_that_do_not_hold_the_inputs_have_no_tolerance():
    assert goldformer.expected("layer_norm", **norm())["output"].tolerances.keys() == {"float64", "float32"}
    coarse = goldformer.expected("layer_norm", **norm(torch.bfloat16))["output"].tolerances
    assert {"float64", "float32", "bfloat16"} <= coarse.keys()


def test_the_library_of_the_inputs_is_that_of_the_values():
    given = norm()
    found = goldformer.expected(
        "layer_norm", x=given["x"].numpy(), params={n: a.numpy() for n, a in given["params"].items()}
    )
    assert type(found["output"].values) is np.ndarray
    assert goldformer.expected("causal_mask", q_seq=2, kv_seq=3)["mask"].values.tolist() == [
        [True, False, False],
        [True, True, False],
    ]


def test_every_output_is_given_and_conventions_are_followed():
    given = attention(mask=torch.ones(4, 5, dtype=torch.bool).tril(-1))
    found = goldformer.expected("scaled_dot_product_attention", **given)
    assert found.keys() == {"output", "weights", "scores", "scaled_scores"}
    assert found["weights"].values[0, 0, 0].tolist() == [0.2] * 5
    nan = goldformer.expected("scaled_dot_product_attention", conventions={"empty_row": "nan"}, **given)
    assert nan["weights"].values[0, 0, 0].isnan().all()
    left_open = goldformer.expected("scaled_dot_product_attention", conventions={"empty_row": "unspecified"}, **given)
    assert left_open["weights"].values[0, 0, 0].isnan().all()
    assert torch.equal(left_open["weights"].values[:, :, 1:], found["weights"].values[:, :, 1:])


# assert_correct


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_right_result_passes(dtype):
    given = norm(dtype)
    goldformer.assert_correct(run_norm(**given), "layer_norm", **given)
    one, other = draw(2, 4, 8, dtype=dtype), draw(2, 4, 8, dtype=dtype)
    result = F.scaled_dot_product_attention(one, other, one)
    goldformer.assert_correct(result, "scaled_dot_product_attention", query=one, key=other, value=one)


@pytest.mark.parametrize("number", range(1000))
@pytest.mark.sample(60)
def test_correct_code_is_never_accused(number):
    call = draw_call(number)
    goldformer.assert_correct(call.run(), call.component, conventions=call.conventions, **call.arguments)


def test_a_wrong_result_is_told_its_mistake():
    given = attention()
    query, key, value = given.values()
    result = F.scaled_dot_product_attention(query, key, value, scale=1.0)
    with pytest.raises(goldformer.NonConformance) as caught:
        goldformer.assert_correct(result, "scaled_dot_product_attention", **given)
    first, *lines = str(caught.value).splitlines()
    assert first.startswith("scaled_dot_product_attention is wrong in float32: output: ")
    assert lines[0].startswith("  output: ")
    assert lines[1].startswith("    first at [0, 0, 0, 0]: expected ")
    assert "  Mistake found: scale-missing, the scores are not divided by √d_k." in str(caught.value)
    assert " Divide QKᵀ by √d_k before the softmax. Instead of: " in " ".join(str(caught.value).split())
    assert str(caught.value).endswith("\n  Write: softmax(query @ key.T / sqrt(d_k))")
    assert caught.traceback[-1].frame.f_locals.get("__tracebackhide__")


def test_a_result_that_nothing_known_explains_has_no_place():
    """There is no implementation to call again: the same numbers would answer every call."""
    given: Any = {"query": draw(2, 4, 8), "key": draw(2, 5, 8), "value": draw(2, 5, 8), "num_heads": 2}
    params = {name: draw(8, 8) for name in ("w_q", "w_k", "w_v", "w_o")}
    with pytest.raises(goldformer.NonConformance, match="Cause unknown: No known mistake") as caught:
        goldformer.assert_correct(draw(2, 4, 8), "multi_head_attention", **given, params=params)
    assert "Place: " not in str(caught.value)
    assert "wrong call" not in str(caught.value)


def draw_wrong(mistake, component):
    """Yield drawn calls with the result of the textbook that makes a mistake, where it is far from the right one."""
    contract = load_spec().contracts[component]
    for seed in range(40):
        call = draw_call(seed, component)
        options = [OPTIONS[item] for item in call.conventions.items() if item in OPTIONS]
        found = []
        for more in ([implementations()[mistake].steps], []):
            run = getattr(build_textbook(*options, *more, only=component), component)
            # Some mistakes cannot be made in every call, such as a mask of another shape.
            with np.errstate(all="ignore"), contextlib.suppress(ValueError):
                found.append(next(iter(name_outputs(run(**call.arguments), contract).values())))
        if len(found) < 2:
            continue
        wrong, right = found
        alike = wrong.shape == right.shape and np.allclose(wrong, right, rtol=0.0, atol=1e-2 * abs(right).max())
        if not alike:
            yield call, wrong


def list_mistakes():
    """The mistakes of the components that are drawn."""
    spec = load_spec()
    return [id_ for id_ in implementations() if spec.mistakes[id_].component in DRAWN]


@pytest.mark.parametrize("mistake", list_mistakes())
@pytest.mark.sample(25)
def test_mistakes_of_the_catalogue_are_caught(mistake):
    component = load_spec().mistakes[mistake].component
    for call, wrong in islice(draw_wrong(mistake, component), 3):
        with pytest.raises(AssertionError, match=f"{component} is wrong in"):
            goldformer.assert_correct(wrong, component, conventions=call.conventions, **call.arguments)


@pytest.mark.parametrize(
    "mistake", ["scale-missing", "scale-d-model", "ln-unbiased", "ln-eps-outside", "residual-missing", "ffn-no-relu"]
)
def test_frequent_mistakes_are_named(mistake):
    component = load_spec().mistakes[mistake].component
    call, wrong = next(draw_wrong(mistake, component))
    with pytest.raises(AssertionError, match=mistake):
        goldformer.assert_correct(wrong, component, conventions=call.conventions, **call.arguments)


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (torch.zeros_like, "values are wrong"),
        (lambda right: right * math.nan, "values are wrong, such as nan"),
        (lambda right: right.mT, "output has shape (2, 12, 5), must be (..., d_model) = (2, 5, 12)"),
        (lambda right: right.double(), "output is float64, must be float32"),
        (lambda right: right.numpy(), "output is an ndarray: return a torch.Tensor"),
        (lambda right: None, "returned None: return output"),
        (lambda right: right.tolist(), "output is a list: return a torch.Tensor"),
        (lambda right: right.round(decimals=4), "values are wrong, such as"),
    ],
)
def test_what_is_wrong_in_any_way_fails(spoil, says):
    given = norm()
    with pytest.raises(AssertionError) as caught:
        goldformer.assert_correct(spoil(run_norm(**given)), "layer_norm", **given)
    assert str(caught.value).startswith("layer_norm is wrong in float32: ")
    assert says in str(caught.value)


def test_a_result_that_is_right_only_to_float32_fails_in_float64():
    given = norm(torch.float64)
    rough = run_norm(**given).float().double()
    with pytest.raises(AssertionError, match="is wrong in float64: right to float32, not to float64: output: "):
        goldformer.assert_correct(rough, "layer_norm", **given)


def test_several_outputs_are_judged_and_the_first_wrong_one_comes_first():
    given = attention()
    scores = given["query"] @ given["key"].mT / math.sqrt(8)
    weights = scores.softmax(-2)
    with pytest.raises(AssertionError, match="float32: weights: ") as caught:
        goldformer.assert_correct(
            {"output": weights @ given["value"], "weights": weights}, "scaled_dot_product_attention", **given
        )
    assert "Run the softmax over the last axis of the scores, the keys." in " ".join(str(caught.value).split())


def test_a_result_of_ids_is_compared_exactly():
    ids = torch.tensor([[3, 1, 2]])
    goldformer.assert_correct(torch.tensor([[9, 3, 1]]), "shift_right", ids=ids, bos_id=9)
    with pytest.raises(AssertionError, match=r"output: 1 of 3 values are wrong; they must be exact"):
        goldformer.assert_correct(torch.tensor([[9, 3, 2]]), "shift_right", ids=ids, bos_id=9)


def test_a_convention_is_advised_and_may_be_followed():
    ids, table = torch.tensor([[3, 1, 2]]), draw(5, 6)
    scaled = F.embedding(ids, table) * math.sqrt(6)
    with pytest.raises(AssertionError, match="Option found: embedding_scale: sqrt_d_model") as caught:
        goldformer.assert_correct(scaled, "token_embedding", ids=ids, params={"table": table})
    said = " ".join(str(caught.value).split())
    assert 'Pass conventions={"embedding_scale": "sqrt_d_model"}, or fix it.' in said
    assert "adapter" not in said
    how = {"embedding_scale": "sqrt_d_model"}
    goldformer.assert_correct(scaled, "token_embedding", conventions=how, ids=ids, params={"table": table})


def test_inputs_for_which_zeros_would_pass_prove_nothing():
    # Scores near 2500 that differ by 1: a roundoff of bfloat16 is 10 there, and decides which key is attended.
    given: Any = {"query": torch.full((1, 6, 8), 30.0), "key": torch.full((1, 6, 8), 30.0), "value": draw(1, 6, 8)}
    given["key"][:, ::2, 0] += 0.125
    given = {name: array.bfloat16() for name, array in given.items()}
    result = F.scaled_dot_product_attention(**given)
    with pytest.raises(ValueError, match=r"output: zeros would pass too, since no expected value exceeds .* bfloat16"):
        goldformer.assert_correct(result, "scaled_dot_product_attention", **given)


def test_a_large_result_of_zeros_is_said_to_be_zeros():
    # Divided by the sum of all rows, it would be within one tolerance for the whole output.
    scores = np.random.default_rng(0).normal(size=(8, 4000)).astype("float16")
    with pytest.raises(goldformer.NonConformance) as caught:
        goldformer.assert_correct(np.zeros_like(scores), "softmax", scores=scores)
    said = " ".join(str(caught.value).split())
    zeros = "Mistake found: Every number of output is 0 in 1 of 1 failing cases. Look for where it is filled"
    assert zeros in said
    assert said.count("Mistake found") == 1


def test_zeros_in_every_case_are_named_once():
    def softmax(scores):
        return np.zeros_like(scores)

    said, alone = (" ".join(str(goldformer.check(softmax, cases=cases)).split()) for cases in ((), "sm-a-thousand"))
    assert re.search(r"Mistake found: Every number of output is 0 in (\d+) of \1 failing cases\. ", said)
    assert "Mistake found: Every number of output is 0 in 1 of 1 failing cases. " in alone
    assert all(text.count("Mistake found") == 1 for text in (said, alone))


def test_a_cause_that_gives_exactly_zeros_is_named_instead_of_them():
    # The exponentials are finite, and their sum is not.
    scores = np.linspace(87, 88, 4000, dtype="float32")[None]
    with np.errstate(over="ignore"):
        powers = np.exp(scores)
        result = powers / powers.sum(-1, keepdims=True)
    given = attention(mask=torch.zeros(4, 5, dtype=torch.bool))
    without_keys = torch.zeros_like(given["query"][..., :7])
    assert not result.any()
    for label, actual, component, arguments in (
        ("Mistake found: softmax-unstable", result, "softmax", {"scores": scores}),
        ("Option found: empty_row: zeros", without_keys, "scaled_dot_product_attention", given),
    ):
        with pytest.raises(goldformer.NonConformance, match=label) as caught:
            goldformer.assert_correct(actual, component, **arguments)
        assert "Every number of" not in str(caught.value)


def test_zeros_in_a_few_cases_are_a_possible_cause_only():
    def scaled_dot_product_attention(query, key, value, mask=None):
        scores = query @ key.mT / query.shape[-1] ** 0.5
        if mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf)
        output = scores.softmax(-1) @ value
        return torch.zeros_like(output) if output.isnan().any() else output

    said = " ".join(str(goldformer.check(scaled_dot_product_attention)).split())
    assert re.search(
        r"Possible causes: Every number of output is 0 in (\d+) of \1 failing cases, and \d+ others pass\. "
        "Look for what makes all of it 0 there, such as a test for NaN or infinity, or an early return",
        said,
    )
    assert "Mistake found" not in said


def test_zeros_are_right_where_the_result_is_zero():
    given = attention(value=torch.zeros(2, 3, 5, 7))
    goldformer.assert_correct(torch.zeros(2, 3, 4, 7), "scaled_dot_product_attention", **given)


def test_a_dtype_that_overflows_on_the_way_cannot_be_judged():
    given: Any = {n: torch.full((1, 2, 4), 200.0, dtype=torch.float16) for n in ("query", "key", "value")}
    with pytest.raises(
        ValueError, match=r"in float16 cannot be judged: intermediate numbers up to .* overflow float16"
    ):
        goldformer.assert_correct(given["value"], "scaled_dot_product_attention", **given)
    with pytest.raises(ValueError, match="overflow float16"):
        goldformer.expected("scaled_dot_product_attention", **given)


def test_the_inputs_are_left_as_they_are():
    given: Any = {name: array.numpy() for name, array in attention().items()}
    before = {name: array.copy() for name, array in given.items()}
    goldformer.expected("scaled_dot_product_attention", **given)
    assert all(np.array_equal(given[name], before[name]) and given[name].flags.writeable for name in given)


# what is refused


def test_a_result_and_a_component_in_the_other_order_are_told_apart():
    with pytest.raises(TypeError, match=r"component is Tensor: .*; the name comes second: assert_correct\(result, "):
        goldformer.assert_correct("layer_norm", draw(2, 12), **norm())


def test_a_random_result_is_refused():
    with pytest.raises(ValueError, match=r"output is random: there are no expected values; give a rate of 0"):
        goldformer.expected("dropout", x=draw(2, 3), rate=0.5, training=True, seed=1)
    assert torch.equal(
        goldformer.expected("dropout", x=torch.ones(2, 3), rate=0.5, training=False, seed=1)["output"].values,
        torch.ones(2, 3, dtype=torch.float64),
    )


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_arrays_of_jax_are_judged_and_its_settings_kept(dtype):
    jax = pytest.importorskip("jax")
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", dtype == "float64")
    try:
        scores = jax.numpy.asarray(np.random.default_rng(0).standard_normal((2, 5)), dtype=dtype)
        assert str(scores.dtype) == dtype
        goldformer.assert_correct(jax.nn.softmax(scores), "softmax", scores=scores)
        found = goldformer.expected("softmax", scores=scores)["output"]
        assert (isinstance(found.values, jax.Array), str(found.values.dtype)) == (True, "float64")
        with pytest.raises(AssertionError, match=f"softmax is wrong in {dtype}"):
            goldformer.assert_correct(scores, "softmax", scores=scores)
        # Its only argument has another name.
        assert goldformer.check(jax.nn.softmax, "softmax")

        def softmax(scores):
            return jax.nn.softmax(scores)

        assert goldformer.check(softmax, dtypes=dtype)
        assert jax.config.jax_enable_x64 == (dtype == "float64")
    finally:
        jax.config.update("jax_enable_x64", before)


def test_a_table_of_jax_that_is_float32_by_default_promotes_nothing():
    jnp = pytest.importorskip("jax").numpy

    def rotary_embedding(x, positions, base=10000.0):
        angles = positions[..., None] * base ** (-jnp.arange(0, x.shape[-1], 2) / x.shape[-1])
        cos, sin = jnp.cos(angles), jnp.sin(angles)
        a, b = x[..., ::2], x[..., 1::2]
        return jnp.stack((a * cos - b * sin, a * sin + b * cos), axis=-1).reshape(x.shape)

    goldformer.check(rotary_embedding, arrays="jax", dtypes=["float32", "float64"]).raise_for_failures()
