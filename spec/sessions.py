"""Sessions: components that are called several times, each call with the state that an earlier one returned.

A case of such a component holds one sequence, and a script that cuts it into calls. `calls` are the numbers of new
tokens of the calls, in the order in which they are made. `after` names for each call the one whose state it is given,
counted from 1, or 0 for a call that begins a sequence. Without `after`, each call follows the one before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from goldformer.spec.shapes import ContractViolation, Shape
from goldformer.spec.strict import Items, Name, StrictModel

Array = NDArray[Any]

#: The attributes of the script, and the argument and the result that carry the state.
CALLS: Final = "calls"
AFTER: Final = "after"
STATE: Final = "state"

#: The most calls of a session. A program may forget a state after so many further calls.
MOST_CALLS: Final = 64


@dataclass(frozen=True, slots=True)
class SessionCall:
    """One call of a session: its number from 1 on, the call that it follows or 0, and its rows of the whole sequence.

    `so_far` are the rows of the calls whose state it continues, and its own.
    """

    number: int
    after: int
    start: int
    stop: int
    so_far: tuple[int, ...]


class Session(StrictModel):
    """The arrays of a contract that a session cuts: those with the axis `axis`.

    A call has its own rows of them. It has the rows of the whole sequence so far of those named in `so_far`.
    """

    axis: Name
    so_far: Items[Name] = ()

    def find_axis(self, shape: Shape) -> int | None:
        """Return where the axis is in a shape, counted from the end; None if the shape does not have it."""
        names = [str(axis) for axis in shape.axes]
        return names.index(self.axis) - len(names) if self.axis in names else None

    def index(self, shape: Shape, start: int, stop: int) -> tuple[Any, ...]:
        """Return the index of some rows of an array, as arrays of every library take it."""
        axis = self.find_axis(shape)
        return (...,) if axis is None else (..., slice(start, stop), *[slice(None)] * (-axis - 1))

    def cut(self, name: str, array: Array, shape: Shape, call: SessionCall) -> Array:
        """Return the part of an array that a call has; rows that the array does not have are left out."""
        axis = self.find_axis(shape)
        if axis is None or array.ndim < -axis:
            return array
        rows = call.so_far if name in self.so_far else range(call.start, call.stop)
        return array.take([row for row in rows if row < array.shape[axis]], axis)

    def split(
        self, inputs: Mapping[str, Array], shapes: Mapping[str, Shape], attributes: Mapping[str, Any]
    ) -> Iterator[tuple[SessionCall, dict[str, Array]]]:
        """Yield each call of a script with its part of the inputs."""
        for call in read_script(attributes):
            yield call, {name: self.cut(name, array, shapes[name], call) for name, array in inputs.items()}

    def join(self, parts: list[Array], shape: Shape) -> Array:
        """Return the whole of an output whose rows the calls gave, in the order of the calls."""
        axis = self.find_axis(shape)
        return parts[-1] if axis is None else np.concatenate(parts, axis)

    def find_call(self, place: tuple[int, ...], shape: Shape, attributes: Mapping[str, Any]) -> SessionCall | None:
        """Return the call that gave an element of an output; None if an output is not cut."""
        axis = self.find_axis(shape)
        if axis is None or len(place) < -axis:
            return None
        return next(call for call in read_script(attributes) if place[axis] < call.stop)


def drop_script(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes that a call of a session has: all but the script."""
    return {name: value for name, value in attributes.items() if name not in (CALLS, AFTER)}


def read_script(attributes: Mapping[str, Any]) -> tuple[SessionCall, ...]:
    """Return the calls of a script that `check_script` accepts."""
    return _follow(tuple(attributes[CALLS]), tuple(attributes.get(AFTER) or range(len(attributes[CALLS]))))


@lru_cache(maxsize=1 << 10)
def _follow(new: tuple[int, ...], after: tuple[int, ...]) -> tuple[SessionCall, ...]:
    """Return the calls of a script; cached, because every dtype and implementation makes the same ones."""
    made: list[SessionCall] = []
    for number, (count, before) in enumerate(zip(new, after, strict=True), 1):
        start = made[-1].stop if made else 0
        earlier = made[before - 1].so_far if before else ()
        made.append(SessionCall(number, before, start, start + count, (*earlier, *range(start, start + count))))
    return tuple(made)


def check_script(attributes: Mapping[str, Any], rows: int, rows_by: str) -> None:
    """Refuse a script that does not cut the rows of a call, or continues what is not there; ContractViolation."""
    new = attributes[CALLS]
    if not 1 <= len(new) <= MOST_CALLS or min(new) < 1:
        message = f"{CALLS} is {list(new)}: write 1 to {MOST_CALLS} numbers of new tokens, each 1 or more"
        raise ContractViolation(message, (CALLS,))
    if sum(new) != rows:
        message = f"{CALLS} is {list(new)}, {sum(new)} tokens in all, but {rows_by} has {rows}"
        raise ContractViolation(message, (CALLS, rows_by))
    after = attributes.get(AFTER, range(len(new)))
    if len(after) != len(new) or any(not 0 <= before < number for number, before in enumerate(after, 1)):
        message = (
            f"{AFTER} is {list(after)} for {len(new)} calls: write for each call the number of an earlier one, "
            "counted from 1, or 0 where a sequence begins"
        )
        raise ContractViolation(message, (AFTER,))
