"""Golden gradients by reverse mode over balls or draws: one sweep back over the formula's own operations.

An element carries its value and the operations that made it, so gradients round as those of a framework do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import count
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from goldformer.spec.oracle.draws import Draw
from goldformer.spec.oracle.special import pi

Objects = NDArray[Any]
#: An operand, and what the cotangent of a result is on the way back to it.
Flow = tuple["Taped", Callable[[Any], Any]]

_numbers: Final = count()


class Taped:
    """A value, and how its cotangent flows back to what it was made of; nothing flows to a constant."""

    __slots__ = ("flows", "moves", "number", "value")
    moves: bool

    def __init__(self, value: Any, *flows: Flow, leaf: bool = False) -> None:
        self.value, self.number = value, next(_numbers)
        self.flows = tuple(flow for flow in flows if flow[0].moves)
        self.moves = leaf or bool(self.flows)

    def __add__(self, other: Any) -> Taped:
        if not isinstance(other, Taped):
            return Taped(self.value + other, (self, lambda g: g))
        return Taped(self.value + other.value, (self, lambda g: g), (other, lambda g: g))

    __radd__ = __add__

    def __neg__(self) -> Taped:
        return Taped(-self.value, (self, lambda g: -g))

    def __sub__(self, other: Any) -> Taped:
        return self.__add__(-other)

    def __mul__(self, other: Any) -> Taped:
        if not isinstance(other, Taped):
            return Taped(self.value * other, (self, lambda g: g * other))
        return Taped(self.value * other.value, (self, lambda g: g * other.value), (other, lambda g: g * self.value))

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Taped:
        if not isinstance(other, Taped):
            return Taped(self.value / other, (self, lambda g: g / other))
        quotient = self.value / other.value
        # The slope of 1/x, for code that multiplies by the reciprocal.
        other._note_slope(float(other.value) ** -2)
        return Taped(quotient, (self, lambda g: g / other.value), (other, lambda g: -(g * quotient) / other.value))

    def _note_slope(self, slope: float) -> None:
        """Note a slope that honest code forms on the way to a gradient, though the sweep here does not."""
        if self.moves and isinstance(self.value, Draw):
            Draw.peak = max(Draw.peak, abs(slope))

    def __float__(self) -> float:
        return float(self.value)

    def detach(self) -> Taped:
        """Return the value as a constant."""
        return Taped(self.value)

    def exp(self) -> Taped:
        """Apply (e^x)' = e^x."""
        value = self.value.exp()
        return Taped(value, (self, lambda g: g * value))

    def log(self) -> Taped:
        """Apply (log x)' = 1/x."""
        return Taped(self.value.log(), (self, lambda g: g / self.value))

    def tanh(self) -> Taped:
        """Apply (tanh x)' = 1 − tanh² x."""
        value = self.value.tanh()
        return Taped(value, (self, lambda g: g * (value * -value + 1)))

    def erf(self) -> Taped:
        """Apply (erf x)' = 2/√π · e^(−x²)."""
        make = getattr(type(self.value), "exact", type(self.value))
        slope = (self.value * -self.value).exp() * 2 / pi(make).sqrt()
        return Taped(self.value.erf(), (self, lambda g: g * slope))

    def sin(self) -> Taped:
        """Apply (sin x)' = cos x."""
        return Taped(self.value.sin(), (self, lambda g: g * self.value.cos()))

    def cos(self) -> Taped:
        """Apply (cos x)' = −sin x."""
        return Taped(self.value.cos(), (self, lambda g: g * -self.value.sin()))

    def sqrt(self) -> Taped:
        """Apply (√x)' = 1/(2√x)."""
        root = self.value.sqrt()
        # The slopes of √x, and of 1/√x for code that divides by it.
        self._note_slope(0.5 / float(root))
        self._note_slope(0.5 / float(root) ** 3)
        return Taped(root, (self, lambda g: g / (root + root)))


def gradients(
    formula: Callable[[Callable[[Any], Any], Callable[[float], Any]], Mapping[str, Objects]],
    arrays: Mapping[str, NDArray[np.float64]],
    cotangent: Objects,
    output: str,
    number: Callable[[Any], Any],
    read: Callable[[float], Any],
) -> dict[str, Objects]:
    """Return the gradient of Σ cotangent·output by every element of `arrays`, as arrays of elements.

    `formula(number, read)` runs the component's formula on elements made by these two; `read` is called once for each
    element of `arrays`, in order.
    """
    leaves: list[Taped] = []

    def seed(value: float) -> Taped:
        leaves.append(Taped(read(value), leaf=True))
        return leaves[-1]

    outputs = formula(lambda value: Taped(number(value)), seed)
    assert len(leaves) == sum(array.size for array in arrays.values()), "every element is made once, in order"
    # A loss has no axes; NumPy hands such an array out as its element.
    weights, results = (np.asarray(a, dtype=object).ravel() for a in (cotangent, outputs[output]))
    flowing = _sweep_back(results, weights)
    zero, cut = number(0), dict[str, Objects]()
    made = iter([flowing.get(leaf.number, zero) for leaf in leaves])
    for name, array in arrays.items():
        block = np.empty(array.size, dtype=object)
        block[:] = [next(made) for _ in range(array.size)]
        cut[name] = block.reshape(array.shape)
    return cut


def _sweep_back(results: Objects, weights: Objects) -> dict[int, Any]:
    """Return what flows back to each leaf, by its number, from results with these cotangents."""
    flowing: dict[int, Any] = {}
    nodes: dict[int, Taped] = {}
    waiting = [result for result in results if result.moves]
    while waiting:
        node = waiting.pop()
        if node.number not in nodes:
            nodes[node.number] = node
            waiting += [operand for operand, _ in node.flows]
    for weight, result in zip(weights, results, strict=True):
        _add(flowing, result, weight)
    # Whatever is made of an element has a higher number.
    for number in sorted(nodes, reverse=True):
        if number in flowing and (flows := nodes[number].flows):
            cotangent = flowing.pop(number)
            for operand, back in flows:
                _add(flowing, operand, back(cotangent))
    return flowing


def _add(flowing: dict[int, Any], node: Taped, part: Any) -> None:
    if node.moves:
        flowing[node.number] = flowing[node.number] + part if node.number in flowing else part
