"""Changes of a whole result: it is multiplied, in another order, or another array of the call.

These neighbours are read off the arrays: the actual result is compared with what the textbook gives. They say what is
wrong where no changed step explains it. An id such as "layer_norm.gradient.x=times:0.5" holds all that makes one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import combinations, product
from typing import Any, Final

import numpy as np

from goldformer.adapters import textbook
from goldformer.conformance.diagnosis.neighbours.arguments import Given, read_argument, was_left_out
from goldformer.conformance.diagnosis.neighbours.neighbour import EQUALS, Neighbour
from goldformer.conformance.properties.relations import join_names
from goldformer.spec import Case, Contract
from goldformer.spec.formulas.arrays import as_array
from goldformer.spec.formulas.checks import Array
from goldformer.spec.formulas.steps import Step, around
from goldformer.spec.model import GoldenArray

#: In the place of names: all of those that the call returns.
ALL: Final = "all"
_RESULT, _GRADIENT = ".result.", ".gradient."
#: A relation that fits the arrays is compared exactly afterwards: only what is far off is left out here.
_NEAR: Final = 1e-3
#: The end of a relation that holds in calls without a mask only, and the name of every mask ends like that.
_UNMASKED: Final = "@unmasked"
_MASK: Final = "mask"
_HINT: Final = "Look for the step that does this on the way to it, and leave it out."
_DIGITS: Final = 9


def _swap_first(x: Array, one: int, two: int) -> Array:
    return np.ascontiguousarray(x.swapaxes(one, two)).reshape(x.shape)


def _swap_last(x: Array, one: int, two: int) -> Array:
    turned = list(x.shape)
    turned[one], turned[two] = turned[two], turned[one]
    return x.reshape(turned).swapaxes(one, two)


#: Functions of each element, in words.
_FUNCTIONS: Final[Mapping[str, tuple[str, Callable[[Array], Any]]]] = {
    "zero": ("0 everywhere", np.zeros_like),
    "absolute": ("the absolute value of what it must be", np.abs),
    "square": ("the square of what it must be", np.square),
    "root": ("the root of what it must be", np.sqrt),
    "inverse": ("one divided by what it must be", np.reciprocal),
    "exponential": ("the exponential of what it must be", np.exp),
    "logarithm": ("the logarithm of what it must be", np.log),
    "rectified": ("0 where it must be negative", lambda x: np.maximum(x, 0)),
    "complement": ("one minus what it must be", lambda x: 1 - x),
}
#: Changes along an axis, in words.
_ALONG: Final[Mapping[str, tuple[str, Callable[[Array, int], Any]]]] = {
    "reversed": ("reversed along axis {}", np.flip),
    "next": ("shifted by one towards the start of axis {}", lambda x, axis: np.roll(x, -1, axis)),
    "before": ("shifted by one towards the end of axis {}", lambda x, axis: np.roll(x, 1, axis)),
    "first": ("everywhere what it must be at index 0 of axis {}",
              lambda x, axis: np.broadcast_to(x.take([0], axis), x.shape)),
    "last": ("everywhere what it must be at the last index of axis {}",
             lambda x, axis: np.broadcast_to(x.take([-1], axis), x.shape)),
    "mean": ("averaged over axis {}", lambda x, axis: np.broadcast_to(x.mean(axis, keepdims=True), x.shape)),
    "running": ("summed up along axis {}", np.cumsum),
}  # fmt: skip
#: Where one number stands in the place of a result along an axis, in words.
_FILLED: Final[Mapping[str, tuple[str, slice]]] = {
    "but-last": ("{} at every index of axis {} but the last", slice(None, -1)),
    "but-first": ("{} at every index of axis {} but the first", slice(1, None)),
}
#: Changes of the order of two axes, in words.
_BETWEEN: Final[Mapping[str, tuple[str, Callable[[Array, int, int], Any]]]] = {
    "transposed": ("transposed over the axes {} and {}", lambda x, one, two: x.swapaxes(one, two)),
    "reshaped": ("swapped over the axes {} and {} and then reshaped", _swap_first),
    "unread": ("reshaped where the axes {} and {} should be swapped", _swap_last),
}
#: Another array of the call in it, in words.
_OTHERS: Final[Mapping[str, tuple[str, Callable[[Array, Array], Any]]]] = {
    "is": ("{} itself", lambda _, other: other),
    "plus": ("what it must be, plus {}", lambda x, other: x + other),
    "minus": ("what it must be, minus {}", lambda x, other: x - other),
    "product": ("what it must be, times {}", lambda x, other: x * other),
}
#: What becomes of it with a power of a size, in words.
_POWERS: Final = {"1": "multiplied by {}", "-1": "divided by {}", "0.5": "multiplied by the root of {}",
                  "-0.5": "divided by the root of {}"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Call:
    """The arrays of a call by name, and the axes of them that differ, with their symbols: ("x", -2) is "seq"."""

    arrays: Mapping[str, Array]
    axes: Mapping[tuple[str, int], str]
    #: True if it may have a mask, and has none.
    is_unmasked: bool = False

    @classmethod
    def of(cls, case: Case, contract: Contract) -> Call:
        """Return the arrays that a case passes, each size where it is read first."""
        arrays = {**case.input_arrays, **case.param_arrays}
        shapes = {**contract.inputs, **contract.params_for(case.attributes)}
        axes: dict[str, tuple[str, int]] = {}
        for name, array in arrays.items():
            symbols = list(map(str, shapes[name].shape.axes))
            lead = array.ndim - len(symbols)
            for axis in range(array.ndim):
                named = axis >= lead
                symbol = symbols[axis - lead] if named else f"lead {axis}"
                axes.setdefault(symbol, (name, axis - array.ndim if named else axis))
        maskable = any(name.endswith(_MASK) for name in contract.inputs)
        is_unmasked = maskable and not any(name.endswith(_MASK) for name in case.given_inputs)
        return cls(arrays, {place: "" if place[1] >= 0 else symbol for symbol, place in axes.items()}, is_unmasked)


def is_read_off(id_: str) -> bool:
    """Return True for the id of a neighbour that was read off a result."""
    place, equals, _ = id_.partition(EQUALS)
    return bool(equals) and (_RESULT in place or _GRADIENT in place)


def make_neighbour(id_: str) -> Neighbour:
    """Return the neighbour of an id."""
    place, _, relation = id_.partition(EQUALS)
    backward = _GRADIENT in place
    component, _, names = place.partition(_GRADIENT if backward else _RESULT)
    says, change = _parse_relation(relation.removesuffix(_UNMASKED))
    step: Step = getattr(textbook, f"{component}_gradient" if backward else component)
    chosen = names.split("+")
    title = f"{_name_subject(chosen, backward=backward)} {says}"
    run: Step = partial(_run_changed, step, chosen, change)
    if relation.endswith(_UNMASKED):
        title, run = f"{title}, in calls without a mask", partial(_run_unmasked, run)
    return Neighbour(id_, title, _HINT, {step: around(run)}, backward)


def _name_subject(names: list[str], *, backward: bool) -> str:
    what = "gradient" if backward else "output"
    if names == [ALL]:
        return f"every {what} is"
    if names == ["output"]:
        return "the output is"
    if len(names) == 1:
        return f"the gradient of {names[0]} is" if backward else f"the output {names[0]} is"
    return f"each of the {what}s {'of ' if backward else ''}{join_names(names)} is"


def _run_unmasked(run: Step, original: Step, *args: Any, **named: Any) -> Any:
    """Run a changed step where the implementation was given no mask, and the step itself elsewhere."""
    return run(original, *args, **named) if was_left_out(_MASK) else original(*args, **named)


def _run_changed(step: Step, names: list[str], change: Any, original: Step, *args: Any, **named: Any) -> Any:
    found = original(*args, **named)
    read = partial(_read_argument, step, (args, named))
    if not isinstance(found, Mapping):
        return as_array(change(found, read))
    return {
        name: as_array(change(array, read)).astype(array.dtype) if names == [ALL] or name in names else array
        for name, array in found.items()
    }


def _read_argument(step: Step, given: Given, name: str) -> Array:
    """Return an input of a call, or a parameter."""
    params = given[1].get("params") or {}
    return as_array(params[name] if name in params else read_argument(step, name, given))


def _parse_relation(relation: str) -> tuple[str, Callable[[Array, Callable[[str], Array]], Any]]:
    """Return a relation in words, and the function of the right result and of what reads an argument."""
    word, *rest = relation.split(":")
    if word in _FUNCTIONS:
        says, function = _FUNCTIONS[word]
        return says, lambda x, _: function(x)
    if word in _ALONG:
        says, along = _ALONG[word]
        axis = int(rest[0])
        return says.format(_write_number(axis)), lambda x, _: along(x, axis) if _has_axes(x, axis) else x
    if word in _BETWEEN:
        says, between = _BETWEEN[word]
        one, two = int(rest[0]), int(rest[1])
        return says.format(
            _write_number(one), _write_number(two)
        ), lambda x, _: between(x, one, two) if _has_axes(x, one, two) else x
    if word in _OTHERS:
        says, join = _OTHERS[word]
        return says.format(rest[0]), lambda x, read: join(x, read(rest[0]))
    if word in _FILLED or word == "times":
        return _parse_number(word, *rest)
    name, index, symbol, power = rest
    size = f"the size of axis {_write_number(index)} of {name}" + (f" ({symbol})" if symbol else "")
    return _POWERS[power].format(size), lambda x, read: x * float(read(name).shape[int(index)]) ** float(power)


def _parse_number(word: str, *rest: str) -> tuple[str, Callable[[Array, Callable[[str], Array]], Any]]:
    """Return the same for a relation with a number."""
    number = float(rest[-1])
    if word == "times":
        return f"multiplied by {_write_number(rest[-1])}", lambda x, _: x * number
    says, where = _FILLED[word]
    axis = int(rest[0])
    return says.format(_write_number(rest[-1]), _write_number(axis)), lambda x, _: _fill(x, axis, where, number)


def _fill(x: Array, axis: int, where: slice, number: float) -> Array:
    """Return an array with a number in some places of an axis."""
    filled = x.copy()
    if _has_axes(x, axis):
        np.moveaxis(filled, axis, 0)[where] = number
    return filled


def _has_axes(x: Array, *axes: int) -> bool:
    return all(-x.ndim <= axis < x.ndim for axis in axes)


def _write_number(number: int | str) -> str:
    return str(number).replace("-", "−")


def list_relations(
    component: str,
    wrong: Iterable[str],
    golden: Mapping[str, GoldenArray],
    actual: Mapping[str, Array],
    right: Mapping[str, Array],
    call: Call,
    *,
    backward: bool,
) -> Iterator[str]:
    """Yield the ids of what became of the wrong results, the plainer first; nothing if they have nothing in common."""
    names = [name for name in golden if name in wrong and name in right]
    given = [name for name in golden if name in right]
    if not names or not hasattr(textbook, f"{component}_gradient" if backward else component):
        return
    chosen = ALL if names == given and len(names) > 1 else "+".join(names)
    place = f"{component}{_GRADIENT if backward else _RESULT}{chosen}{EQUALS}"
    pairs = [(golden[name], actual[name], right[name]) for name in names]
    if all(wanted.shape == got.shape for _, got, wanted in pairs):
        for relation in dict.fromkeys(_list_possible(pairs, call)):
            _, change = _parse_relation(relation)
            if all(_fits(selected, got, change, wanted, call) for selected, got, wanted in pairs):
                yield f"{place}{relation}"
                if call.is_unmasked:
                    yield f"{place}{relation}{_UNMASKED}"


def _list_possible(pairs: list[tuple[GoldenArray, Array, Array]], call: Call) -> Iterator[str]:
    """Yield the relations that two arrays of these shapes can have."""
    axes = min(wanted.ndim for _, _, wanted in pairs)
    factor = _find_factor(*pairs[0])
    if factor is not None:
        for (name, axis), symbol in call.axes.items():
            size = call.arrays[name].shape[axis]
            fitting = (p for p in _POWERS if size > 1 and math.isclose(size ** float(p), factor, rel_tol=_NEAR))
            yield from (f"size:{name}:{axis}:{symbol}:{power}" for power in fitting)
        yield from (f"times:{float(f'{factor:.{digits}g}'):g}" for digits in range(1, _DIGITS + 1))
    yield from _FUNCTIONS
    # The axes that a contract names are counted from the end; those before them differ in number.
    yield from (f"{word}:{axis}" for word in _ALONG for axis in range(-axes, axes))
    for word, axis in product(_FILLED, range(-axes, 0)):
        parts = [np.moveaxis(got, axis, 0)[_FILLED[word][1]] for _, got, _ in pairs]
        numbers = {float(number) for part in parts if part.size for number in (part.min(), part.max())}
        yield from (f"{word}:{axis}:{number:.{_DIGITS}g}" for number in numbers if len(numbers) == 1)
    pairs_of_axes = [*combinations(range(-axes, 0), 2), *combinations(range(axes), 2)]
    yield from (f"{word}:{one}:{two}" for word in _BETWEEN for one, two in pairs_of_axes)
    floats = {name: array for name, array in call.arrays.items() if array.dtype.kind == "f"}
    like = [name for name, array in floats.items() if all(array.shape == wanted.shape for _, _, wanted in pairs)]
    yield from (f"{word}:{name}" for word in _OTHERS for name in like)


def _find_factor(golden: GoldenArray, actual: Array, right: Array) -> float | None:
    """Return the number by which the right values are multiplied, if there is one besides 0 and 1."""
    got, wanted = (golden.select(array).astype(np.float64).ravel() for array in (actual, right))
    with np.errstate(all="ignore"):
        square, product = float(wanted @ wanted), float(got @ wanted)
    factor = product / square if square and math.isfinite(square) else 0.0
    return factor if math.isfinite(factor) and factor not in (0.0, 1.0) else None


def _fits(golden: GoldenArray, actual: Array, change: Any, right: Array, call: Call) -> bool:
    """Return True if a relation gives the actual values, roughly."""
    try:
        with np.errstate(all="ignore"):
            made = as_array(change(right, call.arrays.__getitem__))
    except ValueError:  # two arrays that cannot be joined
        return False
    if made.shape != actual.shape or made.dtype.kind not in "fiub":
        return False
    one, other = (golden.select(array).astype(np.float64) for array in (made, actual))
    scale = float(np.abs(other[np.isfinite(other)]).max(initial=0.0))
    return np.allclose(one, other, rtol=_NEAR, atol=_NEAR * scale, equal_nan=True)
