"""How far two tensors are apart, in roundings, whatever the order of their axes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import torch
from torch import Tensor

#: The root mean square of one rounding ÷ the unit roundoff: errors are spread evenly, numbers over a binade.
ROUNDING = 0.4


def measure_ratio(mine: Tensor, theirs: Tensor, error: Tensor, unit: float) -> float:
    """Return the error of mine ÷ the error of theirs; `error` is truth − theirs, and one rounding is the least."""
    truth = theirs.double() + error.double()
    finite, seen = torch.isfinite(truth), mine.double()
    if not torch.equal(torch.isfinite(seen), finite):
        return math.inf
    off, size, least = (_rms(t[finite]) for t in (seen - truth, truth, error.double()))
    return off / max(least, ROUNDING * unit * size, torch.finfo(torch.float32).tiny)


def _rms(tensor: Tensor) -> float:
    return float(tensor.pow(2).mean().sqrt()) if tensor.numel() else 0.0


def equals(one: Tensor, other: Tensor, tolerance: float) -> bool:
    """Return True if two tensors of as many numbers are equal within a part of their size; a few decide mostly."""
    flat = one.flatten(), other.flatten()
    step = max(1, one.numel() // 256)
    few, every = (tuple(t[::n].double() for t in flat) for n in (step, 1))
    return all(_rms(a - b) <= tolerance * _rms(b) for a, b in (few, every))


def find_factor(one: Tensor, other: Tensor, tolerance: float) -> float | None:
    """Return the number by which a tensor is another of its shape, or None."""
    a, b = one.double(), other.double()
    factor = float((a * b).sum() / b.square().sum())
    return factor if factor and equals(a / factor, b, tolerance) else None


def find_order(tensor: Tensor, like: Tensor) -> Tensor:
    """Return which number of a tensor lies at each place of another: axes may be folded, or in another order.

    Of several orders that fit, return the one in which both are nearest.
    """
    places = torch.arange(tensor.numel(), device=tensor.device).reshape(tensor.shape)
    orders = [*_list_orders(places, like.shape)] or [places.reshape(like.shape)]
    if len(orders) == 1:
        return orders[0]
    return min(orders, key=lambda order: _rms(tensor.flatten()[order].double() - like.double()))


def _list_orders(places: Tensor, shape: torch.Size) -> Iterator[Tensor]:
    """Yield a tensor in a shape, its axes in each order; the last axis of a folded tensor is the width, and stays."""
    if places.dim() == len(shape):
        for order in itertools.permutations(range(len(shape))):
            if places.permute(order).shape == shape:
                yield places.permute(order)
        return
    for order in itertools.permutations(range(max(places.dim(), len(shape)) - 1)):
        if places.dim() > len(shape):
            yield places.permute(*order, -1).reshape(shape)
        else:
            back = [order.index(i) for i in range(len(order))]
            yield places.reshape([*(shape[i] for i in order), shape[-1]]).permute(*back, -1)
