"""Reverse mode: a formula runs once on arrays that record their operations, and one sweep back gives all gradients.

Every operation computes in the dtype of NumPy that runs, forwards and backwards, so gradients round as other people's
code rounds them. A step that is replaced, by an option or a mistake, is differentiated as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any, Final

import numpy as np

from goldformer.spec.formulas.arrays import Arithmetic, Array, Flow, Valued

#: What sums of half types run in, forwards and backwards.
_PLAIN: Final = Arithmetic()
_numbers: Final = count()


class _Node:
    """An operation: its number in the order of all operations, and how its cotangent flows back to its operands."""

    __slots__ = ("dtype", "flows", "number")

    def __init__(self, value: Array, flows: Sequence[tuple[_Node, Callable[[Array], Array]]] = ()) -> None:
        self.number, self.flows = next(_numbers), flows
        self.dtype = value.dtype


class Recorded(Valued):
    """An array of NumPy and the operation that made it; None for a constant."""

    __slots__ = ("node",)

    def __init__(self, value: Array, node: _Node | None = None) -> None:
        self.value, self.node = value, node

    def __array__(self, *_: Any, **__: Any) -> Array:
        raise TypeError("np.asarray would lose the derivatives of this array: call as_array, or decide")

    @property
    def real(self) -> Array:
        """The numbers without derivatives, on which formulas decide."""
        return self.value

    @property
    def T(self) -> Any:  # noqa: N802 - NumPy's name
        """The transpose."""
        return self.transpose()

    def __iter__(self) -> Iterator[Recorded]:
        return (self[place] for place in range(len(self)))

    def astype(self, dtype: Any, *, copy: bool = True) -> Any:
        """Convert; numbers that are not floats have no derivatives."""
        value = self.value.astype(dtype, copy=copy)
        return record(value, (self, _keep)) if value.dtype.kind == "f" else value

    def copy(self) -> Recorded:
        """Return a copy; `__setitem__` writes into none."""
        return Recorded(self.value, self.node)

    def reshape(self, *shape: Any) -> Recorded:
        """Return the elements in another shape."""
        return record(self.value.reshape(*shape), (self, lambda g: g.reshape(self.shape)))

    def swapaxes(self, one: int, other: int) -> Recorded:
        """Return the array with two axes swapped."""
        return record(self.value.swapaxes(one, other), (self, lambda g: g.swapaxes(one, other)))

    def transpose(self, *axes: Any) -> Any:
        """Return the array with its axes in another order."""
        return _move(lambda x: x.transpose(*axes), self)

    def take(self, indices: Any, axis: int | None = None) -> Any:
        """Return the elements of these indices."""
        return _move(lambda x: x.take(indices, axis), self)

    def repeat(self, times: Any, axis: int | None = None) -> Any:
        """Return each element several times."""
        return _move(lambda x: x.repeat(times, axis), self)

    def __getitem__(self, places: Any) -> Any:
        listed = places if isinstance(places, tuple) else (places,)
        if any(isinstance(place, list | np.ndarray) for place in listed):
            return _move(lambda x: x[places], self)
        return record(self.value[places], (self, lambda g: _put(np.zeros(self.shape, g.dtype), places, g)))

    def __setitem__(self, places: Any, other: Any) -> None:
        changed = _move(lambda x, y: _put(x.copy(), places, y), self, other)
        self.value, self.node = changed.value, changed.node

    def sum(self, axis: Any = None, *, keepdims: bool = False) -> Recorded:
        """Add the elements along some axes, or all."""
        return record(self.value.sum(axis, keepdims=keepdims), (self, self._spread(axis, keepdims=keepdims)))

    def mean(self, axis: Any = None, *, keepdims: bool = False) -> Recorded:
        """Average the elements along some axes, or all."""
        value, spread = np.asarray(self.value.mean(axis, keepdims=keepdims)), self._spread(axis, keepdims=keepdims)
        return record(value, (self, lambda g: spread(g) / g.dtype.type(self.size / value.size)))

    def _spread(self, axis: Any, *, keepdims: bool) -> Callable[[Array], Array]:
        """Return the way back through a sum: each element of it gets the cotangent of the sum."""
        kept = self.value.sum(axis, keepdims=True).shape
        return lambda g: np.broadcast_to(g if keepdims else g.reshape(kept), self.shape)

    def var(self, axis: Any = None, *, ddof: int = 0, keepdims: bool = False) -> Any:
        """Return the variance along some axes."""
        squares = np.square(self - self.mean(axis, keepdims=True)).sum(axis, keepdims=keepdims)
        return squares / squares.dtype.type(self.size / squares.size - ddof)

    def max(self, axis: Any = None, *, keepdims: bool = False, **options: Any) -> Recorded:
        """Return the largest element along some axes, or of all; equal ones share what flows back."""
        return self._pick(np.max, axis, keepdims=keepdims, **options)

    def min(self, axis: Any = None, *, keepdims: bool = False, **options: Any) -> Recorded:
        """Return the smallest element along some axes, or of all; equal ones share what flows back."""
        return self._pick(np.min, axis, keepdims=keepdims, **options)

    def _pick(self, choose: Callable[..., Array], axis: Any, *, keepdims: bool, **options: Any) -> Recorded:
        chosen = self.value == choose(self.value, axis, keepdims=True, **options)
        share = chosen / np.maximum(chosen.sum(axis, keepdims=True), 1)
        spread = self._spread(axis, keepdims=keepdims)
        return record(choose(self.value, axis, keepdims=keepdims, **options), (self, lambda g: spread(g) * share))

    def cumsum(self, axis: int) -> Recorded:
        """Add up the elements along an axis."""
        return record(self.value.cumsum(axis), (self, lambda g: np.flip(np.flip(g, axis).cumsum(axis), axis)))

    def any(self, axis: Any = None, *, keepdims: bool = False) -> Array:
        """Return True where an element is not 0."""
        return np.asarray(self.value.any(axis, keepdims=keepdims))

    def argmax(self, axis: Any = None, *, keepdims: bool = False) -> Array:
        """Return the place of the largest element."""
        return np.asarray(self.value.argmax(axis, keepdims=keepdims))

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *operands: Any, out: Any = None, **options: Any) -> Any:
        values = [_read(x) for x in operands]
        if method != "__call__":
            return getattr(ufunc, method)(*values, **options)  # a running maximum, on which code decides
        if ufunc is np.matmul and not options:
            return _multiply(values[0] @ values[1], *operands)
        value = ufunc(*values, **options)
        if isinstance(value, tuple) or value.dtype.kind != "f" or ufunc in _FLAT:
            return value
        if ufunc not in _SLOPES:
            return NotImplemented
        ways = zip(operands, _SLOPES[ufunc], strict=True)
        made = _operate(value, *((x, lambda g, back=back: back(g, value, *values)) for x, back in ways))
        if out is None:
            return made
        (target,) = out
        target[...] = made
        return target

    def __array_function__(self, function: Any, types: Any, arguments: Any, options: Any) -> Any:
        if function in _DECIDING:
            return function(*map(_read, arguments), **{name: _read(x) for name, x in options.items()})
        if function in _METHODS:
            return getattr(arguments[0], _METHODS[function])(*arguments[1:], **options)
        own = _FUNCTIONS.get(function)
        return own(*arguments, **options) if own else _move(function, *arguments, **options)


def record(value: Any, *flows: tuple[Any, Callable[[Array], Array]]) -> Recorded:
    """Return a value whose cotangent flows back to operands, to each by a function of it; constants get none."""
    array = np.asarray(value)
    ways = [(x.node, back) for x, back in flows if isinstance(x, Recorded) and x.node is not None]
    return Recorded(array, _Node(array, ways) if ways else None)


def _operate(value: Any, *flows: tuple[Any, Callable[[Array], Array]]) -> Recorded:
    """Return the value of an operation that broadcasts: what flows back to an operand is summed to its shape."""
    return record(value, *((x, lambda g, x=x, back=back: _fit(back(g), x.shape)) for x, back in flows))


def _keep(cotangent: Array) -> Array:
    return cotangent


def _read(x: Any) -> Any:
    return x.value if isinstance(x, Recorded) else x


def _put(array: Array, places: Any, other: Any) -> Array:
    array[places] = other
    return array


def _move(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Apply a function that only moves elements; those that it adds are constants.

    Applied to the numbers of the elements, it shows where each comes from.
    """
    operands: list[tuple[Recorded, int]] = []
    first = 1

    def number(x: Any) -> Any:
        nonlocal first
        if isinstance(x, list | tuple):
            return type(x)(map(number, x))
        if not isinstance(x, Recorded):
            return np.zeros(x.shape, np.int64) if isinstance(x, np.ndarray) and x.dtype.kind == "f" else x
        operands.append((x, first))
        first += x.size
        return np.arange(first - x.size, first).reshape(x.shape)

    def read(x: Any) -> Any:
        return type(x)(map(read, x)) if isinstance(x, list | tuple) else _read(x)

    numbers = function(*map(number, arguments), **{name: number(x) for name, x in options.items()})
    values = function(*map(read, arguments), **{name: read(x) for name, x in options.items()})
    if isinstance(values, list):
        return [_follow(*pair, operands) for pair in zip(values, numbers, strict=True)]
    return _follow(values, numbers, operands)


def _follow(value: Array, numbers: Array, operands: Sequence[tuple[Recorded, int]]) -> Recorded:
    """Return a value whose elements come from these numbers of the operands, each with its first number."""
    flat = np.asarray(numbers).ravel()

    def collect(x: Recorded, first: int) -> Callable[[Array], Array]:
        def back(g: Array) -> Array:
            mine = np.where((flat >= first) & (flat < first + x.size), flat - first + 1, 0)
            return np.bincount(mine, g.ravel(), x.size + 1)[1:].reshape(x.shape)

        return back

    return record(value, *((x, collect(x, first)) for x, first in operands))


def _multiply(product: Array, x: Any, w: Any) -> Recorded:
    """Return a product of matrices that was computed, with the ways back to both; sums of float16 run in float32."""

    def back_to_w(g: Array) -> Array:
        rows = _read(x)
        if w.ndim == 2:
            rows, g = rows.reshape(-1, rows.shape[-1]), g.reshape(-1, g.shape[-1])
        return _PLAIN.multiply(rows.swapaxes(-1, -2), g)

    return _operate(product, (x, lambda g: _PLAIN.multiply(g, _read(w).swapaxes(-1, -2))), (w, back_to_w))


def _choose(condition: Array, x: Any, y: Any) -> Recorded:
    ways = (
        (x, lambda g: np.where(condition, g, g.dtype.type(0))),
        (y, lambda g: np.where(condition, g.dtype.type(0), g)),
    )
    return _operate(np.where(condition, _read(x), _read(y)), *ways)


def _clip(x: Any, lowest: Any = None, highest: Any = None) -> Any:
    above = x if lowest is None else np.maximum(x, lowest)
    return above if highest is None else np.minimum(above, highest)


def _replace_nan(x: Recorded, **fills: Any) -> Recorded:
    return _choose(np.isfinite(x.value), x, np.nan_to_num(x.value, **fills))


def _make_like(make: Callable[..., Array]) -> Callable[..., Recorded]:
    return lambda like, *fill, **options: Recorded(make(_read(like), *map(_read, fill), **options))


#: The ways back of functions of elements, to each operand: of the cotangent, the result and the operands.
_SLOPES: Final[Mapping[np.ufunc, tuple[Callable[..., Array], ...]]] = {
    np.add: (lambda g, *_: g, lambda g, *_: g),
    np.subtract: (lambda g, *_: g, lambda g, *_: -g),
    np.multiply: (lambda g, _, a, b: g * b, lambda g, _, a, b: g * a),  # noqa: ARG005
    np.divide: (lambda g, _, a, b: g / b, lambda g, y, a, b: -(g * y) / b),  # noqa: ARG005
    np.power: (lambda g, _, a, b: g * b * a ** (b - 1), lambda g, y, a, b: g * y * np.log(a)),  # noqa: ARG005
    np.maximum: (lambda g, _, a, b: np.where(a >= b, g, 0), lambda g, _, a, b: np.where(a >= b, 0, g)),
    np.minimum: (lambda g, _, a, b: np.where(a <= b, g, 0), lambda g, _, a, b: np.where(a <= b, 0, g)),
    np.negative: (lambda g, *_: -g,),
    np.absolute: (lambda g, _, a: g * np.sign(a),),
    np.reciprocal: (lambda g, y, _: -g * y * y,),
    np.square: (lambda g, _, a: g * (a + a),),
    # Through the root of 0 nothing flows, as frameworks define it for a deviation.
    np.sqrt: (lambda g, y, _: np.where(y == 0, 0, g / (y + y)),),
    np.exp: (lambda g, y, _: g * y,),
    np.expm1: (lambda g, y, _: g * (y + 1),),
    np.log: (lambda g, _, a: g / a,),
    np.tanh: (lambda g, y, _: g * (1 - y * y),),
    np.sin: (lambda g, _, a: g * np.cos(a),),
    np.cos: (lambda g, _, a: -g * np.sin(a),),
}
#: Functions of elements whose derivative is 0.
_FLAT: Final = frozenset({np.sign, np.rint, np.floor})
#: Functions on whose results code decides.
_DECIDING: Final = frozenset({np.shape, np.ndim, np.argmax, np.argsort, np.array_equal})
_METHODS: Final[Mapping[Callable[..., Any], str]] = {
    np.sum: "sum", np.mean: "mean", np.max: "max", np.min: "min", np.cumsum: "cumsum",
}  # fmt: skip
_FUNCTIONS: Final[Mapping[Callable[..., Any], Callable[..., Any]]] = {
    np.where: _choose,
    np.clip: _clip,
    np.nan_to_num: _replace_nan,
    **{make: _make_like(make) for make in (np.full_like, np.zeros_like, np.ones_like, np.empty_like)},
}


class Reverse(Arithmetic):
    """Computing in the dtypes of NumPy on arrays that record their operations."""

    is_plain = False

    def decide(self, x: Any) -> Array:
        """Return what comparisons look at."""
        return np.asarray(_read(x))

    detach = decide

    def record(self, value: Any, *flows: Flow) -> Any:
        """Return a value whose cotangent flows back to operands, to each by a function of it."""
        return record(_read(value), *flows)

    def multiply(self, x: Any, w: Any, b: Any = None) -> Any:
        """Return x·W + b; sums of float16 run in float32, as in frameworks."""
        product = _multiply(_PLAIN.multiply(_read(x), _read(w)), x, w)
        return product if b is None else product + b

    def erf(self, x: Any) -> Any:
        """Compute the error function, (erf x)' = 2/√π · e^(−x²)."""
        value = _read(x)
        slope = np.exp(-np.square(value)) * value.dtype.type(2 / math.sqrt(math.pi))
        return record(_PLAIN.erf(value), (x, lambda g: g * slope))


def record_leaf(value: Array) -> Recorded:
    """Return an array by which results are differentiated."""
    return Recorded(value, _Node(value))


def sweep_back(result: Any, cotangent: Array, leaves: Mapping[str, Recorded]) -> dict[str, Array]:
    """Return the gradients of Σ cotangent·result by the leaves, in their dtypes; 0 where nothing reaches one."""
    found: dict[int, Array] = {}
    nodes = _list_nodes(result.node) if isinstance(result, Recorded) and result.node else []
    with np.errstate(all="ignore"):
        if nodes:
            found[nodes[0].number] = _fit(np.broadcast_arrays(cotangent, result.value)[0], result.shape)
        for node in nodes:
            # A leaf has no operands, and keeps its cotangent.
            flowing = found.pop(node.number) if node.flows else found[node.number]
            for operand, back in node.flows:
                part = back(flowing).astype(operand.dtype, copy=False)
                found[operand.number] = found[operand.number] + part if operand.number in found else part
    ends = {name: leaf.node.number for name, leaf in leaves.items() if leaf.node}
    return {name: found.get(end, np.zeros_like(leaves[name].value)) for name, end in ends.items()}


def _list_nodes(last: _Node) -> list[_Node]:
    """Return the operations that lead to one, the latest first."""
    seen, waiting = {last.number: last}, [last]
    while waiting:
        for operand, _ in waiting.pop().flows:
            if operand.number not in seen:
                seen[operand.number] = operand
                waiting.append(operand)
    return [seen[number] for number in sorted(seen, reverse=True)]


def _fit(cotangent: Array, shape: tuple[int, ...]) -> Array:
    """Return a cotangent summed over the axes along which an operand of this shape was broadcast."""
    lead = cotangent.ndim - len(shape)
    stretched = [lead + axis for axis, size in enumerate(shape) if size == 1 and cotangent.shape[lead + axis] != 1]
    if axes := (*range(lead), *stretched):
        cotangent = cotangent.sum(axes, dtype=np.promote_types(cotangent.dtype, np.float32), keepdims=True)
    return cotangent.reshape(shape)
