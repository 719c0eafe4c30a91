"""Trace two dictionaries of named arrays, of any library, in the order in which they were computed."""

from __future__ import annotations

import difflib
import math
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from goldformer.adapters.find_arrays import find_library
from goldformer.conformance.trace.measure import find_order, measure_ratio
from goldformer.conformance.trace.pairing import Weights
from goldformer.conformance.trace.passes import NotComparable
from goldformer.conformance.trace.report import Finding, Item, Trace


def trace_arrays(mine: Mapping[str, Any], theirs: Mapping[str, Any], truth: Mapping[str, Any] | None = None) -> Trace:
    """Compare named arrays that two models gave: the first one that differs, in theirs' order.

    Arrays are paired by name, then by order among those of one size. Nothing is forced, so errors add up: without
    `truth`, theirs in float64, an array differs only if half of its digits do. NotComparable if no arrays fit.
    """
    start = time.perf_counter()
    left, right, exact = ({name: _read(array) for name, array in side.items()} for side in (mine, theirs, truth or {}))
    names = _pair(left, right)
    if not names:
        raise NotComparable("no arrays of mine and theirs have as many numbers: name the same activations in both")
    coarsest = max((right[other].dtype for other in names.values()), key=lambda dtype: torch.finfo(dtype).eps)
    unit = torch.finfo(coarsest).eps / 2
    limit = math.sqrt(max(max(right[other].shape) for other in names.values())) if exact else unit**-0.5
    items = []
    for name, other in names.items():
        given = right[other]
        seen = left[name].flatten()[find_order(left[name], given)]
        error = exact[other].double() - given.double() if other in exact else torch.zeros_like(given)
        items.append(
            Item((name, "out"), (other, "out"), name, None, measure_ratio(seen, given, error, unit), is_leaf=True)
        )
    first = next(((item,) for item in items if item.ratio > limit), None)
    findings = (Finding(first, "", "", ()),) if first else ()
    notes = tuple(f"mine has no {other}" for other in right if other not in names.values())
    return Trace(
        str(coarsest).removeprefix("torch."),
        limit,
        tuple(items),
        findings,
        Weights(0, 0, notes),
        time.perf_counter() - start,
    )


def _read(array: Any) -> Tensor:
    """Return an array of any library as a tensor of floats."""
    library = find_library(array)
    if library is None:
        return torch.as_tensor(np.asarray(array))
    if isinstance(array, Tensor):
        return array.detach()
    return torch.from_numpy(np.array(library.numpy(array))).to(getattr(torch, library.dtype(array)))


def _pair(mine: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> dict[str, str]:
    """Return the name in theirs of each array of mine, in theirs' order."""
    to = {name: name for name in theirs if name in mine}
    for other, array in theirs.items():
        sized = [name for name, t in mine.items() if name not in to and t.numel() == array.numel()]
        if other not in to.values() and sized:
            to[max(sized, key=lambda name: difflib.SequenceMatcher(None, name, other).ratio())] = other
    order = [*theirs]
    return dict(
        sorted(((n, o) for n, o in to.items() if mine[n].numel() == theirs[o].numel()), key=lambda p: order.index(p[1]))
    )
