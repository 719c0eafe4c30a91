"""Implementations that do next to nothing fail, in each component and each dtype."""

from __future__ import annotations

import functools
from dataclasses import replace

import pytest
import torch

from goldformer.adapters import DTYPES
from goldformer.conformance.judging.cases import Bench
from goldformer.conformance.judging.verdict import Status
from goldformer.conformance.loading import load_implementation
from goldformer.conformance.selection import Selection, checks
from goldformer.spec import load_spec

SPEC = load_spec()
REFERENCE = load_implementation("reference", SPEC)


def copy(tensor, arguments):
    """The first argument of the same shape, else zeros."""
    given = [one for one in arguments if torch.is_tensor(one) and one.shape == tensor.shape]
    return given[0].to(tensor.dtype, copy=True) if given else torch.zeros_like(tensor)


#: By name: what stands in the place of each array that the reference returns. A random draw may be in any order.
WAYS = {
    "zeros": lambda tensor, _: torch.zeros_like(tensor),
    "ones": lambda tensor, _: torch.ones_like(tensor),
    "the mean everywhere": lambda tensor, _: torch.full_like(tensor, tensor.double().mean().item()),
    "an argument": copy,
    "the first sample for all": lambda tensor, _: tensor[:1].expand_as(tensor).clone() if tensor.ndim else tensor + 1,
}


def spoil(result, way, arguments):
    if torch.is_tensor(result):
        return way(result, arguments)
    if isinstance(result, dict):
        return {name: spoil(one, way, arguments) for name, one in result.items()}
    if isinstance(result, tuple):
        made = [spoil(one, way, arguments) for one in result]
        return type(result)(*made) if hasattr(result, "_fields") else tuple(made)
    return result


@pytest.mark.parametrize("component", SPEC.components)
def test_next_to_nothing_fails(component):
    function = REFERENCE.functions[component]
    for name, way in WAYS.items():

        @functools.wraps(function)
        def wrong(*given, way=way, **named):
            return spoil(function(*given, **named), way, (*given, *named.values()))

        adapter = replace(REFERENCE, functions={component: wrong}, gradients={})
        for dtype in DTYPES:
            bench = Bench(SPEC, adapter, dtype, "cpu")
            verdicts = (check().verdict for check in checks(bench, Selection((dtype,), (component,))))
            assert any(verdict.status is Status.FAILED for verdict in verdicts), f"{name} in {dtype}"
