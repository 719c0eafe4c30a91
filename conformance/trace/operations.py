"""Inside a piece that differs: the first operation whose value the other side never has, and the line that runs it."""

from __future__ import annotations

import itertools
import linecache
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Final

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from goldformer.conformance.trace.measure import equals, find_factor, find_order
from goldformer.conformance.trace.passes import WHOLE, Place, Visit, list_tensors, run_pass

#: The folders whose frames are no code of a user.
_INNER: Final = (str(Path(torch.__file__).parent), str(Path(__file__).parent))
#: A score that is hidden: models add −∞, the least float or −1e9.
_HIDDEN: Final = 1e8


@dataclass(frozen=True, slots=True)
class Value:
    """The numbers of a tensor in float64, those without hidden scores, and the root of the sum of their squares."""

    tensor: Tensor
    shown: Tensor
    size: float

    @classmethod
    def of(cls, tensor: Tensor) -> Value:
        """Copy the numbers of a tensor; complex ones as pairs."""
        real = (torch.view_as_real(tensor) if tensor.is_complex() else tensor).detach().double()
        shown = real[real.abs() < _HIDDEN]
        return cls(real, shown, float(shown.norm()))


@dataclass(frozen=True, slots=True)
class Operation:
    """A call of PyTorch's: its name, its numbers, the line that runs it, and which tensors went in and came out.

    `function` is the function of the line, None for a method.
    """

    name: str
    numbers: tuple[float, ...]
    line: str
    function: Any
    inputs: frozenset[int]
    output: int
    value: Value


@dataclass(frozen=True, slots=True)
class Recorded:
    """Operations by their scope, values that come from outside, and ids of tensors.

    `places` has the id of what enters or leaves a call, `handed` the call that hands on a tensor.
    """

    operations: dict[str, list[Operation]]
    sources: dict[str, list[Value]]
    places: dict[Place, int]
    handed: dict[int, str]


class _Recorder(TorchFunctionMode):
    """Records the operations whose innermost call among `keys` is one of the scopes."""

    def __init__(self, keys: frozenset[str], scopes: frozenset[str]) -> None:
        super().__init__()
        self.stack: list[str] = []
        self.keys, self.found = keys, Recorded({s: [] for s in scopes}, {s: [] for s in scopes}, {}, {})
        self.alive: list[Any] = []  # an id is that of one tensor as long as that lives

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a function of PyTorch, and record it."""
        result = func(*args, **(kwargs or {}))
        scope = next((key for key in reversed(self.stack) if key in self.keys), WHOLE)
        name = getattr(func, "__name__", "")
        if scope not in self.found.operations or name == "__get__":
            return result
        with torch._C.DisableTorchFunction():
            self._note(name.strip("_"), scope, (*args, *(kwargs or {}).values()), result)
        return result

    def _note(self, name: str, scope: str, given: Any, result: Any) -> None:
        frame = _find_frame(sys._getframe(2))
        code = frame.f_code
        line = f"{code.co_name} ({Path(code.co_filename).name}:{frame.f_lineno}): "
        line += linecache.getline(code.co_filename, frame.f_lineno).strip()
        function = frame.f_globals.get(code.co_name)
        function = function if getattr(function, "__code__", None) is code else None
        inputs, done = list_tensors(given), self.found.operations[scope]
        self.alive += [inputs, result]
        made = {operation.output for operation in done}
        self.found.sources[scope] += [Value.of(t) for t in inputs if id(t) not in made and _has_values(t)]
        numbers = tuple(float(a) for a in given if type(a) in (int, float))
        ids = frozenset(map(id, inputs))
        outputs = [t for t in list_tensors(result) if _has_values(t)]
        done += [Operation(name, numbers, line, function, ids, id(t), Value.of(t)) for t in outputs]


def _has_values(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _find_frame(frame: FrameType) -> FrameType:
    while frame.f_back and frame.f_code.co_filename.startswith(_INNER):
        frame = frame.f_back
    return frame


def record(
    model: Any, inputs: Sequence[Any], keys: frozenset[str], scopes: frozenset[str], visit: Visit | None = None
) -> Recorded:
    """Run a model, and record the operations in each scope that are in no other of the keys."""
    recorder = _Recorder(keys, scopes)

    def look(place: Place, tensor: Tensor) -> Tensor | None:
        new = visit(place, tensor) if visit else None
        recorder.found.places[place] = id(tensor)
        if place[0] in keys and place[1] == "out":
            recorder.found.handed[id(tensor if new is None else new)] = place[0]
        recorder.alive += [tensor, new]
        return new

    with recorder:
        run_pass(model, inputs, look, recorder.stack)
    return recorder.found


def find_frontiers(
    mine: Recorded, theirs: Recorded, scopes: tuple[str, str], places: tuple[Place, Place], tolerance: float
) -> tuple[list[Operation], list[Operation]]:
    """Return for each side the operations on the way to a place from which on the other side has no value."""
    sides = [(side.operations[scope], side.sources[scope]) for side, scope in zip((mine, theirs), scopes, strict=True)]
    (own, _), (other, _) = sides
    mine_has, theirs_has = ([operation.value for operation in done] + outside for done, outside in sides)
    return (
        _find_frontier(own, theirs_has, mine.places[places[0]], tolerance),
        _find_frontier(other, mine_has, theirs.places[places[1]], tolerance),
    )


def _find_frontier(own: Sequence[Operation], other: Sequence[Value], target: int, tolerance: float) -> list[Operation]:
    good = [_has_value(other, operation.value, tolerance) for operation in own]
    reaches = [False] * len(own)
    for i in range(len(own) - 1, -1, -1):
        users = [j for j in range(i + 1, len(own)) if own[i].output in own[j].inputs]
        reaches[i] = own[i].output == target or any(reaches[j] for j in users)
        good[i] = good[i] or any(good[j] for j in users)
    return [operation for i, operation in enumerate(own) if reaches[i] and not good[i]]


def _has_value(values: Sequence[Value], value: Value, tolerance: float) -> bool:
    """Return True if a side has the same numbers, in any order of axes.

    Where no shape of that side is the same, in any order at all, and each perhaps several times: cosines are, for both
    halves of a head.
    """
    shape = sorted(value.tensor.shape)
    alike = (
        [v for v in values if sorted(v.tensor.shape) == shape] if value.shown.numel() == value.tensor.numel() else []
    )
    return any(
        _has_same_order(value, v, tolerance) if alike else _has_same_numbers(value, v, tolerance)
        for v in alike or values
    )


def _has_same_order(one: Value, other: Value, tolerance: float) -> bool:
    if abs(one.size - other.size) > tolerance * other.size:
        return False
    return equals(_reorder(one, other), other.tensor, tolerance)


def _reorder(one: Value, like: Value) -> Tensor:
    return one.tensor.flatten()[find_order(one.tensor, like.tensor)]


def _has_same_numbers(one: Value, other: Value, tolerance: float) -> bool:
    few, many = sorted((one, other), key=lambda value: value.shown.numel())
    times, rest = divmod(many.shown.numel(), few.shown.numel() or 1)
    if rest or not times or abs(few.size * times**0.5 - many.size) > tolerance * many.size:
        return False
    return equals(many.shown.sort().values[::times], few.shown.sort().values, tolerance)


def describe_change(
    mine: Sequence[Operation],
    theirs: Sequence[Operation],
    handed: tuple[dict[int, str], dict[int, str]],
    tolerance: float,
) -> list[str]:
    """Return what differs between the first operations of two frontiers, or a factor between the values of any two.

    `handed` has the names of the tensors that modules hand on, those of mine on both sides.
    """
    if not (mine and theirs):
        return []
    one, other = mine[0], theirs[0]
    if one.name == other.name and len(one.numbers) == len(other.numbers):
        if pairs := [(a, b) for a, b in zip(one.numbers, other.numbers, strict=True) if a != b]:
            return [f"{one.name} has {a:.6g}, theirs has {b:.6g}" for a, b in pairs]
        takes = [
            sorted({names[i] for i in op.inputs if i in names}) for op, names in zip((one, other), handed, strict=True)
        ]
        if takes[0] != takes[1] and all(takes):
            return ["{} takes what {} gives, theirs takes {}'s".format(one.name, *map(" and ".join, takes))]
    for a, b in itertools.product(reversed(mine), reversed(theirs)):
        is_one_size = a.value.tensor.numel() == b.value.tensor.numel()
        if is_one_size and (factor := find_factor(_reorder(a.value, b.value), b.value.tensor, tolerance)):
            return [f"the value of {a.name} is {factor:.6g} × theirs"]
    return []
