"""Steps that keep their results and have other derivatives: what a mistake in a backward pass is made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from goldformer.spec.formulas.arrays import Array, arithmetic
from goldformer.spec.formulas.steps import Step

#: Maps a cotangent to the one that flows on.
Change = Callable[[Array], Array]


def change_cotangent(x: Array, change: Change) -> Array:
    """Return the same array, whose cotangent flows on changed."""
    return arithmetic().record(x, (x, change))


def take_derivative(value: Array, *flows: Array) -> Array:
    """Return a value with the derivative of another array, or of the sum of several."""
    return arithmetic().record(value, *((array, lambda cotangent: cotangent) for array in flows))


def read_numbers(thing: Any) -> Any:
    """Return the numbers of an array without derivatives, and anything else as it is."""
    return arithmetic().detach(thing) if hasattr(thing, "dtype") else thing


def pass_back(backward: Callable[..., Array]) -> Step:
    """Return a function around a step with one operand and a backward pass of its own.

    The backward pass takes the cotangent, the result and the operands of the step, as numbers.
    """

    def run(original: Step, *operands: Any, **named: Any) -> Array:
        given = (*operands, *named.values())
        value = arithmetic().detach(original(*operands, **named))
        numbers = tuple(map(read_numbers, given))
        return arithmetic().record(value, (given[0], lambda cotangent: backward(cotangent, value, *numbers)))

    return run


def change_result(change: Callable[..., Array]) -> Step:
    """Return a function around a step whose result passes on a changed cotangent; the change also takes its operands.

    A component that returns its results by name passes on that of the first.
    """

    def run(original: Step, *operands: Any, **named: Any) -> Any:
        found = original(*operands, **named)
        numbers = tuple(map(read_numbers, (*operands, *named.values())))
        return _map_first(lambda array: change_cotangent(array, lambda g: change(g, *numbers)), found)

    return run


def cut_params(params: Mapping[str, Array], prefix: str = "") -> dict[str, Array]:
    """Return parameters; nothing flows back to those whose names begin with a prefix."""
    return {name: arithmetic().detach(a) if name.startswith(prefix) else a for name, a in params.items()}


def cut_off(original: Step, /, *operands: Any, **named: Any) -> Any:
    """Return what a step gives; nothing flows back to its first operand."""
    return original(arithmetic().detach(operands[0]), *operands[1:], **named)


def _map_first(change: Change, found: Any) -> Any:
    if isinstance(found, Mapping):
        name = next(iter(found))
        return {**found, name: change(found[name])}
    return (change(found[0]), *found[1:]) if isinstance(found, tuple) else change(found)
