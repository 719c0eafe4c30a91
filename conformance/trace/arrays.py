"""Distances of arrays in roundings, whatever the order of their axes; and named arrays of any library."""

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from goldformer.adapters.find_arrays import find_library
from goldformer.conformance.trace.passes import LOW, NotComparable
from goldformer.conformance.trace.report import Finding, Item, Trace

#: The root mean square of one rounding ÷ the unit roundoff: errors are spread evenly, numbers over a binade.
ROUNDING = 0.4


def measure_ratio(mine: Tensor, theirs: Tensor, error: Tensor, unit: float) -> float:
    """Return the error of mine ÷ the error of theirs; `error` is truth − theirs, and one rounding is the least."""
    seen, given = mine.double(), theirs.double()
    truth = given + error.double()
    finite = torch.isfinite(truth)
    if not torch.equal(torch.isfinite(seen), finite):
        return math.inf
    if not finite.all() and not torch.equal(*(t[~finite].nan_to_num() for t in (seen, given))):
        return math.inf
    off, size, least = (_rms(t.where(finite, 0.0)) for t in (seen - truth, truth, error.double()))
    return off / max(least, ROUNDING * unit * size, torch.finfo(torch.float32).tiny)


def _rms(tensor: Tensor) -> float:
    return float(tensor.detach().pow(2).mean().sqrt()) if tensor.numel() else 0.0


def equals(one: Tensor, other: Tensor, tolerance: float) -> bool:
    """Return True if two tensors of as many numbers are equal within a part of their size; a few decide mostly."""
    pairs = ((one.flatten()[::n].double(), other.flatten()[::n].double()) for n in (one.numel() // 256 or 1, 1))
    return all(_rms(a - b) <= tolerance * _rms(b) for a, b in pairs)


def find_factor(one: Tensor, other: Tensor, tolerance: float) -> float | None:
    """Return the number by which a tensor is another of its shape, or None if that is 0 or 1."""
    a, b = one.double(), other.double()
    factor = float((a * b).sum() / b.square().sum())
    return factor if abs(factor * (factor - 1)) > tolerance and equals(a / factor, b, tolerance) else None


def find_order(tensor: Tensor, like: Tensor) -> Tensor:
    """Return which number of a tensor lies at each place of another: axes may be folded, or in another order."""
    places = torch.arange(tensor.numel(), device=tensor.device).reshape(tensor.shape)
    orders = [*_list_orders(places, like.shape)] or [places.reshape(like.shape)]
    if len(orders) == 1:
        return orders[0]
    return min(orders, key=lambda order: _rms(tensor.flatten()[order].double() - like.double()))


def _list_orders(places: Tensor, shape: torch.Size) -> Iterator[Tensor]:
    """Yield a tensor in a shape, its axes in each order; the last axis of a folded tensor is the width, and stays."""
    axes = max(places.dim(), len(shape))
    moving = axes - (places.dim() != len(shape))
    for swapped in itertools.permutations(range(moving)):
        order = (*swapped, *range(moving, axes))
        back = [order.index(i) for i in range(axes)]
        unfolded = (
            places.reshape([shape[i] for i in order]).permute(back) if places.dim() < axes else places.permute(order)
        )
        if unfolded.shape == shape or places.dim() > len(shape):
            yield unfolded.reshape(shape)


def trace_arrays(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> Trace:
    """Compare named arrays that two models gave: the first one that differs, in theirs' order.

    Arrays are paired by name, or by order if no name is the same. Nothing is forced, so errors add up: an array differs
    only if half of its digits do. NotComparable if no arrays fit.
    """
    left, right = ({str(name): _read(array, name) for name, array in side.items()} for side in (mine, theirs))
    both = {name: name for name in right if name in left} or dict(zip(left, right, strict=False))
    names = {name: other for name, other in both.items() if left[name].numel() == right[other].numel()}
    if not names:
        raise NotComparable("no arrays of mine and theirs have as many numbers: name the same activations in both")
    unit = max(torch.finfo(tensor.dtype).eps for name in names for tensor in (left[name], right[names[name]])) / 2
    items = []
    for name, other in names.items():
        given, seen = right[other], left[name].flatten()[find_order(left[name], right[other])]
        ratio = measure_ratio(seen, given, torch.zeros_like(given), unit)
        items.append(Item((name, "out"), (other, "out"), name, None, ratio, is_leaf=True))
    first = next(((item,) for item in items if item.ratio > unit**-0.5), None)
    findings = (Finding(first, "", "", ()),) if first else ()
    notes = tuple(
        f"mine has no {other} of {right[other].numel()} numbers" for other in right if other not in names.values()
    )
    return Trace("float32" if unit < 1e-7 else "half types", unit**-0.5, tuple(items), findings, notes)


def _read(array: Any, name: object) -> Tensor:
    library = find_library(array)
    try:
        if library is None or isinstance(array, Tensor):
            tensor = torch.as_tensor(array).detach().cpu()
        else:
            tensor = torch.from_numpy(np.array(library.numpy(array))).to(getattr(torch, library.dtype(array)))
    except (AttributeError, RuntimeError, TypeError, ValueError) as error:
        raise NotComparable(f"{name} is no array of numbers: {error}") from error
    if tensor.dtype == torch.uint16:
        raise NotComparable(f"{name} is in uint16, which may be the bits of bfloat16: give floats")
    tensor = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    return tensor if tensor.dtype in LOW else tensor.float()
