"""A mistake about memory that only kernels make is caught and named, in NumPy and in PyTorch; right code is not."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from numpy.lib.stride_tricks import as_strided
from tests.support.runs import make_run
from torch.nn.attention.bias import causal_lower_right

from goldformer.adapters import Adapter, find_adapter
from goldformer.adapters.arrays import LIBRARIES
from goldformer.conformance.diagnosis.finding import MISTAKE_FOUND
from goldformer.conformance.diagnosis.findings import diagnose
from goldformer.conformance.judging.cases import Bench
from goldformer.conformance.judging.decision import Policy
from goldformer.conformance.judging.verdict import Status
from goldformer.conformance.properties.judge import check_property
from goldformer.conformance.properties.registry import components_of

PROPERTIES = ("memory-around", "same-storage", "own-results", "new-memory")
#: Its causal_lower_right cannot be made while memory is filled.
NOT_FILLED = ("torch-nn", "cached_attention", "new-memory")


@pytest.fixture
def judge(spec):
    """The verdict of one property for one function, and the mistakes that are found in it."""

    def check(property_, function, arrays, component="layer_norm", dtype="float32"):
        thing = SimpleNamespace(ARRAYS=arrays, **{component: function})
        bench = Bench(spec, Adapter.from_object(thing, "mine.py", spec), dtype, "cpu")
        verdict = check_property(spec.properties[property_], component, bench)
        return verdict, [f.mistakes for f in diagnose(make_run([verdict]), spec) if f.label == MISTAKE_FOUND]

    return check


def normalise(x, params):
    """Layer norm in whichever library the arrays are of."""
    mean = x.mean(-1)[..., None]
    variance = ((x - mean) ** 2).mean(-1)[..., None]
    return (x - mean) / (variance + 1e-5) ** 0.5 * params["gamma"] + params["beta"]


# Faults, in NumPy and in PyTorch


def reads_past_rows(x, params):
    """As a kernel that loads whole blocks of eight without a mask, and multiplies the rest by 0."""
    rows = np.ascontiguousarray(x).reshape(-1, x.shape[-1])
    whole = as_strided(rows, (len(rows), -(-x.shape[-1] // 8) * 8), (rows.strides[0], rows.itemsize))
    weights = (np.arange(whole.shape[-1]) < x.shape[-1]).astype(x.dtype)
    mean = (whole @ weights / x.dtype.type(x.shape[-1])).reshape(*x.shape[:-1], 1)
    centred = x - mean
    variance = (centred**2).mean(-1, keepdims=True)
    return (centred / np.sqrt(variance + x.dtype.type(1e-5)) * params["gamma"] + params["beta"]).astype(x.dtype)


def leaves_out_the_offset(x, params):
    """As a kernel that takes the storage of a tensor for the tensor."""
    return normalise(x.as_strided(x.shape, x.stride(), 0), params)


def fills_up_a_block(x, params):
    """As a kernel that clears what follows the last row, where there is something."""
    if isinstance(x.base, np.ndarray) and x.flags.c_contiguous and x.base.size > x.size:
        as_strided(x.reshape(-1), (x.size + 1,), (x.itemsize,))[-1] = 0
    return normalise(x, params)


def fills_up_a_storage(x, params):
    after = x.storage_offset() + x.numel()
    if x.is_contiguous() and x.untyped_storage().nbytes() > after * x.element_size():
        x.as_strided((1,), (1,), after).zero_()
    return normalise(x, params)


def keeps_by_address():
    kept = {}

    def layer_norm(x, params):
        address = (x.__array_interface__["data"][0], x.shape, x.strides)
        if address not in kept:
            kept[address] = x.mean(-1, keepdims=True), ((x - x.mean(-1, keepdims=True)) ** 2).mean(-1, keepdims=True)
        mean, variance = kept[address]
        return (x - mean) / np.sqrt(variance + x.dtype.type(1e-5)) * params["gamma"] + params["beta"]

    return layer_norm


def keeps_by_object():
    kept = {}

    def layer_norm(x, params):
        gamma = params["gamma"]
        _, copy = kept.setdefault(id(gamma), (gamma, gamma.clone()))
        return normalise(x, {"gamma": copy, "beta": params["beta"]})

    return layer_norm


def returns_one_buffer(empty):
    buffers = {}

    def layer_norm(x, params):
        buffer = buffers.setdefault((x.shape, x.dtype), empty(x))
        buffer[...] = normalise(x, params)
        return buffer

    return layer_norm


def leaves_a_tail(empty):
    def layer_norm(x, params):
        output, whole = empty(x), x.shape[-1] // 4 * 4
        output[..., :whole] = normalise(x, params)[..., :whole]
        return output

    return layer_norm


def adds_to_what_was_there(empty):
    return lambda x, params: normalise(x, params) + 0 * empty(x)


def makes_empty_array(x):
    return np.empty(x.shape, x.dtype)


def makes_like(x):
    return np.empty_like(x)


FAULTS = [
    ("memory-around", "reads-around", "numpy", lambda: reads_past_rows),
    ("memory-around", "reads-around", "torch", lambda: leaves_out_the_offset),
    ("memory-around", "writes-around", "numpy", lambda: fills_up_a_block),
    ("memory-around", "writes-around", "torch", lambda: fills_up_a_storage),
    ("same-storage", "kept-by-address", "numpy", keeps_by_address),
    ("same-storage", "kept-by-address", "torch", keeps_by_object),
    ("own-results", "result-overwritten", "numpy", lambda: returns_one_buffer(np.empty_like)),
    ("own-results", "result-overwritten", "torch", lambda: returns_one_buffer(torch.empty_like)),
    ("new-memory", "uninitialised", "numpy", lambda: leaves_a_tail(makes_like)),
    ("new-memory", "uninitialised", "torch", lambda: leaves_a_tail(torch.empty_like)),
    ("new-memory", "uninitialised", "numpy", lambda: adds_to_what_was_there(makes_empty_array)),
    ("new-memory", "uninitialised", "torch", lambda: adds_to_what_was_there(lambda x: x.new_empty(x.shape))),
    ("new-memory", "uninitialised", "torch", lambda: adds_to_what_was_there(lambda x: torch.Tensor(*x.shape).to(x))),
]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("property_", "mistake", "arrays", "make"), FAULTS)
def test_a_fault_is_caught_by_its_property_and_named(property_, mistake, arrays, make, dtype, judge):
    verdict, found = judge(property_, make(), arrays, dtype=dtype)
    assert (verdict.status, verdict.reason, verdict.catches) == (Status.FAILED, "property", (mistake,))
    assert found == [(mistake,)]


def test_a_load_at_a_multiple_of_16_bytes_is_caught(judge):
    def layer_norm(x, params):
        if x.is_contiguous():
            moved = x.data_ptr() % 16 // x.element_size()
            x = x.as_strided(x.shape, x.stride(), x.storage_offset() - moved)
        return normalise(x, params)

    verdict, found = judge("memory-around", layer_norm, "torch")
    assert verdict.message == "arrays that are parts of larger ones, whose other elements are 3, give something else"
    assert found == [("reads-around",)]


def test_code_that_refuses_a_part_of_a_larger_array_departs_from_advice(judge):
    def layer_norm(x, params):
        if x.storage_offset():
            raise ValueError("x must begin at the start of its storage")
        return normalise(x, params)

    verdict, _ = judge("memory-around", layer_norm, "torch")
    assert (verdict.status, verdict.reason) == (Status.SKIPPED, "advice")
    assert verdict.message.startswith("needs arrays with memory of their own: with parts of larger ones it raised")


@pytest.mark.parametrize(("arrays", "join"), [("numpy", np.concatenate), ("torch", torch.cat)])
def test_a_view_of_an_argument_departs_from_advice(arrays, join, judge):
    def cut(x, *, length):
        return x[:, :length] if length <= x.shape[1] else join([x, *[0 * x[:, :1]] * (length - x.shape[1])], 1)

    verdict, _ = judge("own-results", cut, arrays, "pad_or_truncate")
    assert (verdict.status, verdict.reason) == (Status.SKIPPED, "advice")
    assert verdict.message == "the result shares memory with x: a change of one in place changes the other"


def test_what_is_kept_for_later_calls_is_as_it_was_afterwards(judge):
    tables = {}

    def positional_encoding(x):
        return tables.setdefault(x.shape, normal(x) + x)

    def normal(x):
        from goldformer.adapters.textbook.build import build_textbook

        return build_textbook().positional_encoding(np.zeros_like(x))

    verdict, _ = judge("own-results", positional_encoding, "numpy", "positional_encoding")
    assert (verdict.status, verdict.reason) == (Status.SKIPPED, "advice")
    assert verdict.message.startswith("output shares memory with later results")
    for shape, table in tables.items():
        assert np.abs(table).max() < 9, shape


# Right code


def returns_its_input(x, *, rate, training, seed):
    if training and rate:
        keep = np.random.default_rng(seed).random(x.shape) >= rate
        return (keep * x / x.dtype.type(1 - rate if rate < 1 else 1)).astype(x.dtype)
    return x


def fills_empty_memory(x, params):
    output = np.empty_like(x)
    output[...] = normalise(x, params)
    return output


def fills_empty_tensor(x, params):
    return torch.empty_like(x).copy_(normalise(x, params))


def keeps_by_version():
    """A cache that asks if the numbers changed is right."""
    kept = {}

    def layer_norm(x, params):
        gamma = params["gamma"]
        if id(gamma) not in kept or kept[id(gamma)][1] != gamma._version:
            kept[id(gamma)] = gamma, gamma._version, gamma.clone()
        return normalise(x, {"gamma": kept[id(gamma)][2], "beta": params["beta"]})

    return layer_norm


def maps_over_samples(x, params):
    return torch.func.vmap(normalise, in_dims=(0, None))(x, params)


RIGHT = [
    ("numpy", "layer_norm", normalise),
    ("torch", "layer_norm", normalise),
    ("numpy", "layer_norm", fills_empty_memory),
    ("torch", "layer_norm", fills_empty_tensor),
    ("torch", "layer_norm", keeps_by_version()),
    ("torch", "layer_norm", maps_over_samples),
    ("numpy", "dropout", returns_its_input),
]


@pytest.mark.parametrize("property_", PROPERTIES)
@pytest.mark.parametrize(("arrays", "component", "function"), RIGHT)
def test_right_code_is_not_accused(arrays, component, function, property_, judge):
    for dtype in ("float32", "float16"):
        verdict, _ = judge(property_, function, arrays, component, dtype)
        assert verdict.status is Status.PASSED, verdict.message


@pytest.mark.parametrize("property_", PROPERTIES)
@pytest.mark.parametrize("name", ["reference", "textbook", "torch-nn", "torch-nn-fast-path"])
def test_the_bundled_implementations_pass(name, property_, spec):
    bench = Bench(spec, find_adapter(name, spec), "float32", "cpu", Policy(strict=True))
    for component in filter(bench.has, components_of(spec.properties[property_], spec)):
        verdict = check_property(spec.properties[property_], component, bench)
        expected = Status.SKIPPED if (name, component, property_) == NOT_FILLED else Status.PASSED
        assert verdict.status is expected, f"{component}: {verdict.message}"


def test_arrays_that_never_change_are_not_checkable(spec):
    """Another process has memory of its own; so it is with JAX, whose arrays cannot be written to."""
    thing = SimpleNamespace(ARRAYS="process", softmax=lambda scores: scores)
    bench = Bench(spec, Adapter.from_object(thing, "mine", spec), "float32", "cpu")
    verdicts = [check_property(spec.properties[property_], "softmax", bench) for property_ in PROPERTIES]
    assert [(v.status, v.reason) for v in verdicts] == [(Status.SKIPPED, "not-checkable")] * len(PROPERTIES)


# Races and counters


def makes_a_causal_bias(x, params):
    """Normalise after a class of PyTorch that cannot be made in a dispatch mode."""
    causal_lower_right(2, 3)
    return normalise(x, params)


def test_a_class_of_pytorch_that_cannot_be_made_under_the_filling_is_no_fault(judge):
    verdict, found = judge("new-memory", makes_a_causal_bias, "torch")
    assert (verdict.status, verdict.reason, found) == (Status.SKIPPED, "not-checkable", [])
    assert verdict.message.startswith("cannot run with memory that is filled when it is allocated: raised RuntimeError")


def loses_a_race():
    """Every seventh call is wrong, whatever the setting."""
    calls = itertools.count(1)
    return lambda x, params: normalise(x, params) * x.dtype.type(1 if next(calls) % 7 else 2)


def is_wrong_from_the_fifteenth_call():
    calls = itertools.count(1)
    return lambda x, params: normalise(x, params) * (1 if next(calls) < 15 else 2)


@pytest.mark.parametrize("arrays", ["numpy", "torch"])
def test_a_call_that_is_wrong_late_is_found_and_numbered(arrays, judge):
    function = is_wrong_from_the_fifteenth_call()
    verdict, found = judge("repeat-calls", function, arrays)
    assert (verdict.status, found) == (Status.FAILED, [("nondeterminism",)])
    assert verdict.message == "call 14 with the same inputs gives something else"


@pytest.mark.parametrize("property_", [*PROPERTIES[:2], "new-memory", "memory-layout"])
def test_a_race_is_named_as_one_and_not_as_what_the_property_looks_for(property_, judge):
    for start in range(7):
        function = loses_a_race()
        for _ in range(start):
            function(np.ones((1, 2), np.float32), {"gamma": 1, "beta": 0})
        verdict, found = judge(property_, function, "numpy")
        assert verdict.status is Status.PASSED or found == [("nondeterminism",)], verdict.message


# The arrays


@pytest.mark.parametrize("around", [np.nan, 3.0])
@pytest.mark.parametrize("array", [np.arange(24.0).reshape(2, 3, 4), np.arange(6) > 2, np.arange(4)], ids=str)
def test_a_part_of_a_larger_array_keeps_its_values(array, around):
    for library in filter(lambda library: library.views, LIBRARIES.values()):
        part, whole = library.surround(library.make(array, "float32", "cpu"), 5, 3, around)
        assert np.array_equal(library.numpy(part), array)
        rest = np.delete(library.numpy(whole), np.s_[5 : 5 + array.size])
        filler = around if array.dtype.kind == "f" else np.isnan(around)
        assert np.array_equal(rest, np.full(8, filler), equal_nan=True)


def test_memory_without_values_is_filled_in_the_block_only():
    before = np.empty, np.empty_like
    with LIBRARIES["numpy"].fill_empty(np.nan):
        assert np.isnan(np.empty((2, 3))).all()
        assert np.empty_like(np.zeros(3, bool)).all()
        assert np.empty(2, object).tolist() == [None, None]
    assert (np.empty, np.empty_like) == before
    with LIBRARIES["torch"].fill_empty(3.0):
        assert torch.empty(2, 3).eq(3).all()
        assert torch.zeros(2).new_empty(4).eq(3).all()
        assert torch.empty_strided((2, 2), (1, 2), dtype=torch.int64).eq(0).all()
        assert torch.empty(2, dtype=torch.complex64).shape == (2,)


def test_a_read_only_array_is_not_written_to():
    frozen = np.broadcast_to(np.zeros(1), (3,))
    assert not LIBRARIES["numpy"].overwrite(frozen, np.ones(3))
    assert not LIBRARIES["torch"].overwrite(torch.zeros(1).expand(3), torch.ones(3))
