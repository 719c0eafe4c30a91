"""The array library of functions that declare none, in the styles that people use."""

from __future__ import annotations

import contextlib
import functools
import math
import types

import numpy as np
import pytest
import torch
from torch import nn
from torch import softmax as torch_softmax

from goldformer.adapters import AdapterError
from goldformer.adapters.arrays import LIBRARIES
from goldformer.adapters.find_arrays import add_arrays, find_arrays, find_library
from goldformer.spec import load_spec

STEP = nn.Softmax(dim=-1)


def by_method(scores):
    return (scores - scores.max()) * 0


def by_module(scores):
    return torch.softmax(scores, -1)


def by_name(scores):
    return torch_softmax(scores, -1)


def by_object(scores):
    return STEP(scores)


def by_numpy(scores):
    return np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)


def with_a_numpy_constant(scores):
    return torch.softmax(scores * np.float32(1), -1)


def by_helper(scores):
    return by_module(scores)


def with_an_inner_function(scores):
    def inner():
        return torch.softmax(scores, -1)

    return inner()


def with_its_own_import(scores):
    import torch

    return torch.softmax(scores, -1)


def annotated(scores: torch.Tensor) -> torch.Tensor:
    return scores.softmax(-1)


def annotated_optional(scores: np.ndarray | None) -> np.ndarray:
    return math.e**scores


def only_torch_has_it(scores):
    return scores.softmax(-1)


def only_numpy_has_it(scores):
    return scores.view(scores.ctypes and scores.dtype)


def make_closure(library):
    def softmax(scores):
        return library.exp(scores)

    return softmax


@pytest.mark.parametrize(
    ("function", "library"),
    [
        (by_module, "torch"),
        (by_name, "torch"),
        (by_object, "torch"),
        (by_numpy, "numpy"),
        (with_a_numpy_constant, "torch"),
        (by_helper, "torch"),
        (with_an_inner_function, "torch"),
        (with_its_own_import, "torch"),
        (annotated, "torch"),
        (annotated_optional, "numpy"),
        (only_torch_has_it, "torch"),
        (only_numpy_has_it, "numpy"),
        (make_closure(torch), "torch"),
        (make_closure(np), "numpy"),
        (functools.partial(by_numpy), "numpy"),
        (functools.lru_cache(by_numpy), "numpy"),
        (torch.no_grad()(by_module), "torch"),
    ],
)
def test_the_library_is_found(function, library):
    assert find_arrays({"softmax": function}, load_spec()) == library


def test_a_function_for_any_arrays_gets_those_that_are_loaded():
    # PyTorch is loaded here.
    assert find_arrays({"softmax": by_method}, load_spec()) == "torch"


def test_functions_of_two_libraries_are_refused():
    with pytest.raises(AdapterError) as caught:
        find_arrays({"softmax": by_numpy, "layer_norm": by_module}, load_spec())
    assert str(caught.value) == (
        "softmax works on arrays of numpy, layer_norm on arrays of torch: check them one after the other"
    )


def test_a_function_that_works_on_nothing_must_say_its_arrays():
    with pytest.raises(AdapterError, match=r'nothing shows which arrays softmax works on: pass arrays="torch" or "num'):
        find_arrays({"softmax": lambda scores: scores.nothing}, load_spec())


@pytest.mark.parametrize(
    ("array", "library"),
    [
        (np.ones(2), "numpy"),
        (np.float32(1), "numpy"),
        (torch.ones(2), "torch"),
        (nn.Parameter(torch.ones(2)), "torch"),
        (torch.float32, None),
        (np.dtype("float32"), None),
        ([1.0], None),
        (1.0, None),
    ],
)
def test_an_array_tells_its_library(array, library):
    found = find_library(array)
    assert (found.name if found else None) == library


def test_an_array_of_jax_tells_its_library_and_leaves_its_64_bits_alone():
    jax = pytest.importorskip("jax")
    before = jax.config.jax_enable_x64
    assert find_library(jax.numpy.ones(2)) is LIBRARIES["jax"]
    assert find_arrays({"softmax": jax.nn.softmax}, load_spec()) == "jax"
    assert find_arrays({"softmax": lambda scores: scores.at[0].get()}, load_spec()) == "jax"
    assert jax.config.jax_enable_x64 == before


@pytest.mark.parametrize(("devices", "calls"), [(("cpu", "cuda"), True), (("cuda",), False)])
def test_nothing_is_called_on_a_device_that_is_not_declared(devices, calls, spec):
    called = []

    def softmax(scores):
        called.append(scores)
        return scores

    with contextlib.suppress(AdapterError):
        add_arrays(types.SimpleNamespace(DEVICES=devices, softmax=softmax), spec)
    assert bool(called) == calls
