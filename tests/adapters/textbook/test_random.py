"""The textbook's random numbers: a mistake is a replaced step, and every case that names it catches it."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from goldformer.adapters import Adapter
from goldformer.adapters.textbook.build import build_textbook
from goldformer.conformance.diagnosis.mistakes import implementations
from goldformer.conformance.judging.cases import Bench, check_case
from goldformer.conformance.judging.decision import Policy
from goldformer.conformance.judging.verdict import Status
from goldformer.spec.formulas.attention import (
    drop_weights,
    scaled_dot_product_attention,
    score_divisor,
    softmax,
    softmax_over_keys,
)
from goldformer.spec.formulas.randomness import (
    draw_dropout_mask,
    draw_weight,
    drop_elements,
    dropout,
    scale_up,
    xavier_bound,
    xavier_uniform,
)
from spoiled import spoil

COMPONENTS = ("xavier_uniform", "dropout", "scaled_dot_product_attention")
DTYPES = ("float64", "float32", "float16", "bfloat16")
textbook = build_textbook()


# ── the textbook itself ──


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_results_keep_the_dtype(dtype):
    x = np.ones((3, 4), dtype=dtype)
    for rate in (0, 0.3, 1):
        assert textbook.dropout(x, rate=rate, training=True, seed=1).dtype == dtype
    assert textbook.xavier_uniform(x, seed=1)["weight"].dtype == dtype
    assert textbook.scaled_dot_product_attention(x, x, x, dropout_rate=0.3, seed=1)["output"].dtype == dtype


def test_a_rate_of_one_leaves_zeros_whatever_was_there():
    x = np.array([0.0, 1.0, -math.inf, math.nan])
    assert np.array_equal(textbook.dropout(x, rate=1, training=True, seed=1), np.zeros(4))


def test_the_weights_returned_are_those_before_dropout():
    x = np.random.default_rng(1).standard_normal((4, 5))
    plain = textbook.scaled_dot_product_attention(x, x, x)
    dropped = textbook.scaled_dot_product_attention(x, x, x, dropout_rate=0.5, seed=2)
    assert np.array_equal(dropped["weights"], plain["weights"])
    kept = textbook.dropout(plain["weights"], rate=0.5, training=True, seed=2)
    np.testing.assert_allclose(dropped["output"], kept @ x, rtol=0, atol=1e-15)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: textbook.dropout(x, rate=1.5, training=True, seed=1), "rate: 1.5 is not in 0 … 1"),
        (lambda x: textbook.dropout(x, rate=-0.1, training=True, seed=1), "rate: -0.1 is not in 0 … 1"),
        (lambda x: textbook.dropout(x[:, :0], rate=0, training=True, seed=1), "x: shape (3, 0) is empty along n"),
        (lambda x: textbook.xavier_uniform(x[0], seed=1), "like: shape (4,) is not (d_in, d_out)"),
        (
            lambda x: textbook.scaled_dot_product_attention(x, x, x, dropout_rate=2, seed=1),
            "dropout_rate: 2 is not in 0 … 1",
        ),
    ],
)
def test_refusals_name_the_argument(call, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        call(np.ones((3, 4)))


# ── the mistakes ──


@spoil(instead_of=xavier_bound)
def fan_in(d_in, d_out):
    return math.sqrt(3 / d_in)


@spoil(instead_of=xavier_bound)
def fan_out(d_in, d_out):
    return math.sqrt(3 / d_out)


@spoil(instead_of=xavier_bound)
def he(d_in, d_out):
    return math.sqrt(6 / d_in)


@spoil(instead_of=xavier_bound)
def std_as_bound(d_in, d_out):
    return math.sqrt(2 / (d_in + d_out))


@spoil(instead_of=draw_weight)
def normal(shape, bound, random):
    return random.normal(0, bound / math.sqrt(3), shape)


@spoil(instead_of=draw_weight)
def one_sided(shape, bound, random):
    return random.uniform(0, bound, shape)


@spoil(around=xavier_bound)
def thirds(original, d_in, d_out):
    return original(d_in, d_out / 3)


@spoil(around=xavier_uniform)
def transposed(original, like, *, seed):
    return original(like, seed=seed).T.copy()


@spoil(instead_of=scale_up)
def no_rescale(x, rate):
    return x


@spoil(around=draw_dropout_mask)
def keep_probability(original, shape, rate, random):
    return original(shape, 1 - rate, random)


@spoil(around=draw_dropout_mask)
def whole_rows(original, shape, rate, random):
    return np.broadcast_to(original((*shape[:-1], 1), rate, random), shape)


@spoil(around=draw_dropout_mask)
def shared_mask(original, shape, rate, random):
    return np.broadcast_to(original(shape[-1:], rate, random), shape)


@spoil(around=dropout)
def in_evaluation(original, x, *, rate, training, seed):
    return original(x, rate=rate, training=True, seed=seed)


@spoil(around=dropout)
def scaled_in_evaluation(original, x, *, rate, training, seed):
    given = original(x, rate=rate, training=training, seed=seed)
    return given if training else given * (1 - rate)


@spoil(instead_of=drop_weights)
def drops_scores(weights, scaled, mask, rate, seed):
    return softmax(drop_elements(scaled, "dropout_rate", rate, seed))


@spoil(around=drop_weights)
def renormalised(original, *given):
    kept = original(*given)
    return kept / np.maximum(kept.sum(-1, keepdims=True), np.finfo(kept.dtype).tiny)


@spoil(around=scaled_dot_product_attention)
def drops_output(original, query, key, value, mask=None, *, dropout_rate=None, seed=None):
    attended = original(query, key, value, mask)
    if dropout_rate is not None:
        attended["output"] = drop_elements(attended["output"], "dropout_rate", dropout_rate, seed)
    return attended


@spoil(instead_of=softmax_over_keys)
def softmax_over_the_axis_torch_chooses(scores):
    return np.swapaxes(softmax(np.swapaxes(scores, {1: 0, 2: 1, 3: 0}.get(scores.ndim, 1), -1)), -1, -1)


@spoil(instead_of=score_divisor)
def float32_root(sizes):
    return float(np.sqrt(np.float32(sizes["d_k"])))


MISTAKES = {
    "xavier-fan-in": fan_in,
    "xavier-fan-out": fan_out,
    "xavier-he": he,
    "xavier-std-as-bound": std_as_bound,
    "xavier-normal": normal,
    "xavier-one-sided": one_sided,
    "xavier-thirds": thirds,
    "xavier-transposed": transposed,
    "dropout-no-rescale": no_rescale,
    "dropout-keep-probability": keep_probability,
    "dropout-whole-rows": whole_rows,
    "dropout-shared-mask": shared_mask,
    "dropout-in-evaluation": in_evaluation,
    "dropout-scaled-in-evaluation": scaled_in_evaluation,
    "attention-dropout-scores": drops_scores,
    "attention-dropout-renormalised": renormalised,
    "attention-dropout-output": drops_output,
    "softmax-implicit-axis": softmax_over_the_axis_torch_chooses,
    "scale-float32": float32_root,
}
#: A mistake that shows in some dtypes alone.
SHOWS_IN = {"scale-float32": ("float64",)}
#: Mistakes of attention, whose cases of chance are only a few of those that catch them.
OF_ATTENTION = {"softmax-implicit-axis", "scale-float32"} | {id_ for id_ in MISTAKES if id_.startswith("attention-")}


@pytest.fixture
def verdict_of(spec):
    """The verdict of a case for a textbook: in bfloat16 too, which it computes in float32 and rounds."""

    def check(case, book, dtype):
        works_in = "float32" if dtype == "bfloat16" else dtype

        def torched(function):
            def call(**given):
                arrays = {
                    name: x.to(getattr(torch, works_in)).numpy() if isinstance(x, torch.Tensor) else x
                    for name, x in given.items()
                }
                returned = function(**arrays)
                outputs = returned if isinstance(returned, dict) else {contract.first_output: returned}
                return {
                    n: torch.from_numpy(np.ascontiguousarray(a)).to(getattr(torch, dtype)) for n, a in outputs.items()
                }

            return call

        contract = spec.contracts[case.component]
        functions = {case.component: torched(getattr(book, case.component))}
        adapter = Adapter.from_object(SimpleNamespace(ARRAYS="torch", **functions), "textbook in torch", spec)
        return check_case(case, Bench(spec, adapter, dtype, "cpu", Policy(require_precision=True)))

    return check


def of_chance(spec):
    return [
        case
        for name in COMPONENTS
        for case in spec.cases_of(name)
        if case.error is None and (name != COMPONENTS[2] or "dropout_rate" in case.attributes)
    ]


def test_every_mistake_of_these_components_is_known_here(spec):
    catalogued = {m.id for m in spec.mistakes.values() if m.component in ("xavier_uniform", "dropout")}
    # The others show in several calls alone, and properties catch them.
    in_one_call = {id_ for case in spec.cases.values() for id_ in case.kills}
    assert set(MISTAKES) - OF_ATTENTION == catalogued & in_one_call
    caught = {m for case in of_chance(spec) for m in case.kills if not implementations()[m].loses_digits}
    assert caught == set(MISTAKES)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_textbook_passes_with_other_seeds_too(dtype, spec, verdict_of):
    for case in of_chance(spec):
        for seed in range(10):
            verdict = verdict_of(replace(case, attributes={**case.attributes, "seed": seed}), textbook, dtype)
            assert verdict.status is Status.PASSED, f"{case.id}, seed {seed}: {verdict.message}"
            assert verdict.ratio is None or verdict.ratio < 0.7


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_caught_by_each_case_that_says_so(mistake, spec, verdict_of):
    cases = [case for case in of_chance(spec) if mistake in case.kills]
    assert cases
    for case in cases:
        for dtype in SHOWS_IN.get(mistake, DTYPES):
            for seed in range(5):
                again = replace(case, attributes={**case.attributes, "seed": seed})
                verdict = verdict_of(again, MISTAKES[mistake](), dtype)
                assert verdict.bad, f"{case.id} passes {mistake} in {dtype} with seed {seed}"
