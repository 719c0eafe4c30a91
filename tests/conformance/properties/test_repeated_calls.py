"""A call must not depend on calls before it, nor on how its arrays lie in memory."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from goldformer.adapters import Adapter
from goldformer.adapters.arrays import LIBRARIES
from goldformer.adapters.builtin import reference
from goldformer.adapters.textbook.build import build_textbook
from goldformer.conformance.judging.cases import Bench
from goldformer.conformance.judging.verdict import Status
from goldformer.conformance.properties.judge import check_property
from goldformer.conformance.properties.registry import components_of
from goldformer.spec.formulas.attention import softmax
from goldformer.spec.formulas.embedding import sinusoid_table
from goldformer.spec.formulas.layers import layer_norm
from spoiled import spoil


@pytest.fixture
def judge(spec):
    """The verdict of one property for one component of an adapter of that one function."""

    def check(property_, component, function, arrays="numpy", dtype="float32"):
        thing = SimpleNamespace(ARRAYS=arrays, NAME="mine", **{component: function})
        bench = Bench(spec, Adapter.from_object(thing, "mine.py", spec), dtype, "cpu")
        return check_property(spec.properties[property_], component, bench)

    return check


@pytest.mark.parametrize("property_", ["repeat-calls", "no-memory", "memory-layout"])
def test_both_bundled_implementations_pass_for_every_component(property_, spec):
    for thing in (build_textbook(), reference):
        bench = Bench(spec, Adapter.from_object(thing, "bundled", spec), "float32", "cpu")
        for component in components_of(spec.properties[property_], spec):
            verdict = check_property(spec.properties[property_], component, bench)
            drawn = verdict.message == f"what {component} gives is drawn at random, in whatever order"
            assert verdict.status is Status.PASSED or drawn, verdict.message


def test_what_is_nan_in_every_call_is_repeated(judge):
    """It is wrong, and golden cases say so; but it does not differ from call to call."""

    def softmax_of_nan(scores):
        return np.full_like(scores, np.nan)

    assert judge("repeat-calls", "softmax", softmax_of_nan).status is Status.PASSED


def test_what_is_nan_in_some_calls_only_is_not_repeated(judge):
    calls = []

    def softmax_of_nan(scores):
        calls.append(scores)
        return softmax(scores) * scores.dtype.type(1 if len(calls) <= 2 else np.nan)

    verdict = judge("repeat-calls", "softmax", softmax_of_nan)
    assert (verdict.status, verdict.message) == (Status.FAILED, "output is not finite, though all inputs are")


# What is remembered


@spoil(decorating=softmax)
def keeps_a_largest_value(original):
    """Shifts by the largest score that there ever was, in place of the row's own."""
    largest = 0.0

    def softmax(scores):
        nonlocal largest
        largest = max(largest, float(scores.max()))
        powers = np.exp(scores - scores.dtype.type(largest))
        return powers / (powers.sum(axis=-1, keepdims=True) + scores.dtype.type(1e-3))

    return softmax


@spoil(decorating=layer_norm)
def running_mean(original):
    """Takes the mean of all rows so far."""
    seen = []

    def layer_norm(x, *, params):
        seen.append(x.mean())
        return original(x, params=params) + x.dtype.type(np.mean(seen))

    return layer_norm


@spoil(decorating=sinusoid_table)
def caches_the_first_table(original):
    """A cache that is keyed by what it holds: right, whatever comes between."""
    tables = {}

    def sinusoid_table(seq, d_model, dtype):
        if (seq, d_model) not in tables:
            tables[seq, d_model] = original(seq, d_model, dtype)
        return tables[seq, d_model]

    return sinusoid_table


@pytest.mark.parametrize(
    ("component", "textbook"),
    [("softmax", keeps_a_largest_value), ("layer_norm", running_mean)],
    ids=["largest", "mean"],
)
def test_what_other_calls_leave_behind_is_caught(component, textbook, judge):
    verdict = judge("no-memory", component, getattr(textbook(), component))
    assert (verdict.status, verdict.reason) == (Status.FAILED, "property")
    assert verdict.message == "a call gives something else after calls with other inputs"
    assert verdict.differences[0].output == "output"


def test_a_largest_value_shows_between_other_calls_alone(judge):
    assert judge("repeat-calls", "softmax", keeps_a_largest_value().softmax).status is Status.PASSED


def test_a_cache_of_what_depends_on_sizes_alone_is_no_memory(judge):
    function = caches_the_first_table().positional_encoding
    assert judge("no-memory", "positional_encoding", function).status is Status.PASSED


def test_what_raises_between_is_no_matter_of_this_property(judge):
    calls = []

    def softmax(scores):
        calls.append(scores.shape)
        if scores.shape != calls[0]:
            raise ValueError("one shape only")
        return build_textbook().softmax(scores)

    assert judge("no-memory", "softmax", softmax).status is Status.PASSED
    assert len(set(calls)) > 1


# How arrays lie in memory

ARRAY = np.arange(24.0).reshape(2, 3, 4)


@pytest.mark.parametrize("layout", ["transposed", "strided"])
@pytest.mark.parametrize("array", [ARRAY, ARRAY[0, 0], ARRAY[0] > 3, np.arange(6).reshape(2, 3)], ids=lambda a: a.shape)
def test_a_layout_keeps_the_values_and_not_the_memory(array, layout):
    for name, library in LIBRARIES.items():
        if not library.views:
            continue
        laid = library.lay_out(library.make(array, "float32", "cpu"), layout)
        assert np.array_equal(library.numpy(laid), array)
        assert library.dtype(laid) == library.dtype(library.make(array, "float32", "cpu"))
        contiguous = laid.is_contiguous() if name == "torch" else laid.flags.c_contiguous
        assert contiguous == (array.ndim == 1 and layout == "transposed")


def reads_the_memory(x, *, params):
    """As a kernel does that takes a pointer and a shape."""
    memory = np.lib.stride_tricks.as_strided(x, strides=np.empty(x.shape, x.dtype).strides)
    return build_textbook().layer_norm(memory, params=params)


def test_memory_that_is_read_without_its_strides_is_caught(judge):
    verdict = judge("memory-layout", "layer_norm", reads_the_memory)
    assert (verdict.status, verdict.reason) == (Status.FAILED, "property")
    assert verdict.message == "transposed views of the same values give something else"
    assert verdict.ratio > 1000


def test_parameters_are_views_too(judge):
    def project(x, *, params):
        w_vocab = params["w_vocab"].view(-1).view(params["w_vocab"].shape)
        return reference.output_probabilities(x, params=params | {"w_vocab": w_vocab})

    verdict = judge("memory-layout", "output_probabilities", project, "torch")
    assert (verdict.status, verdict.reason) == (Status.SKIPPED, "advice")
    assert verdict.message.startswith("needs contiguous arrays: with transposed views of the same values it raised")


def test_a_gap_between_elements_is_tried_where_nothing_can_be_transposed(judge):
    def softmax(scores):
        if scores.stride()[-1:] == (2,):
            raise RuntimeError("the last axis must have no gaps")
        return torch.softmax(scores, -1)

    verdict = judge("memory-layout", "softmax", softmax, "torch")
    assert verdict.message.startswith("needs contiguous arrays: with strided views of the same values it raised")


def test_what_is_drawn_in_the_order_of_memory_is_right(judge):
    def dropout(x, *, rate, training, seed):
        order = np.random.default_rng(seed).random(x.size).reshape(x.shape, order="F" if x.flags.f_contiguous else "C")
        return np.where(order < rate, 0, x / (1 - rate)).astype(x.dtype) if training else x

    assert judge("memory-layout", "dropout", dropout).status is Status.PASSED


def test_a_component_that_only_draws_is_not_checkable(judge):
    verdict = judge("memory-layout", "xavier_uniform", build_textbook().xavier_uniform)
    assert (verdict.status, verdict.reason) == (Status.SKIPPED, "not-checkable")
    assert verdict.message == "what xavier_uniform gives is drawn at random, in whatever order"


# A property that draws its inputs


def test_a_failure_that_does_not_come_again_is_one_all_the_same(judge):
    book, calls = build_textbook(), []

    def softmax(scores):
        calls.append(scores.shape)
        return book.softmax(scores) * (2 if len(calls) == 1 else 1)

    verdict = judge("sm-simplex", "softmax", softmax)
    said = "the weights of a row do not sum to 1, but not every time: the same call gives different results"
    assert (verdict.status, verdict.message) == (Status.FAILED, said)
