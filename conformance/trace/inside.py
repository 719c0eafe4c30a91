"""Inside a piece that differs: the first operation whose value the other side never has, its line, and the cause."""

from __future__ import annotations

import contextlib
import io
import itertools
import linecache
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from goldformer.conformance.diagnosis.finding import MISTAKE_FOUND
from goldformer.conformance.reports.comparison import ComparisonRequest
from goldformer.conformance.runner import check_implementation
from goldformer.conformance.selection import Numerics
from goldformer.conformance.trace.arrays import equals, find_factor, find_order
from goldformer.conformance.trace.passes import WHOLE, Place, Visit, list_tensors, run_pass
from goldformer.spec import load_spec

#: The folders whose frames are no code of a user.
_INNER: Final = (str(Path(torch.__file__).parent), str(Path(__file__).parent))
#: A hidden score, which counts as 0 here: models add −∞, the least float or −1e9.
_HIDDEN: Final = 1e8
#: The operations that are told if one side only has them, and those that may stand for one another.
_TELLING: Final = frozenset(["gelu", "mean", "relu", "sigmoid", "silu", "softmax", "softplus", "std", "tanh", "var"])
_ALIKE: Final = ({"sigmoid", "silu"}, {"erf", "gelu", "tanh"}, {"exp", "softmax"}, {"mean", "sum", "std", "var"})
#: Parts of the names of functions whose operations are not seen.
_OPAQUE: Final = ("attention", "fwd", "gru", "lstm", "rnn")
#: The operations that only move numbers: their settings are no mistake by themselves.
_MOVES: Final = frozenset(
    ["expand", "flatten", "getitem", "permute", "repeat", "reshape", "split", "transpose", "unflatten", "view"]
)

#: A place in a function: its code, the instruction there, and the number of its line.
Spot = tuple[CodeType, int, int]


def describe_line(spot: Spot) -> str:
    """Return the function, the file, the number and the text of a line."""
    code, _, number = spot
    text = linecache.getline(code.co_filename, number).strip()
    return f"{code.co_name} ({Path(code.co_filename).name}:{number}): {text}"


def _list_frames() -> list[FrameType]:
    """Return the frames of the user's code that called one another, the innermost first, up to a module's call.

    Without any, return the innermost frame of a module of PyTorch's.
    """
    frame, found, inner = sys._getframe(1), list[FrameType](), list[FrameType]()
    while frame.f_back and frame.f_code is not run_pass.__code__:
        is_inner = frame.f_code.co_filename.startswith(_INNER)
        if is_inner and found:
            break
        if not is_inner or frame.f_code.co_name == "forward":
            (inner if is_inner else found).append(frame)
        frame = frame.f_back
    return found or inner[:1]


@dataclass(frozen=True, slots=True)
class Operation:
    """A call of PyTorch's: its settings, the lines that called one another, and which tensors it has."""

    name: str
    settings: tuple[float | str, ...]
    trail: tuple[Spot, ...]
    function: Any
    inputs: frozenset[int]
    output: int
    value: Tensor
    norm: float
    hidden: int


class Recorder(TorchFunctionMode):
    """Records the operations of a run whose innermost call among `keys` is one of the scopes."""

    def __init__(self, keys: frozenset[str], scopes: frozenset[str]) -> None:
        super().__init__()
        self.keys, self.operations = keys, {scope: list[Operation]() for scope in scopes}
        self.places, self.handed, self.lines = dict[Place, int](), dict[int, Place](), dict[Place, str]()
        self._stack, self._alive = list[str](), list[Any]()  # an id is that of one tensor as long as that lives

    def record(self, model: Any, inputs: Sequence[Any], visit: Visit | None = None) -> Recorder:
        """Run a model, and return what was recorded."""

        def look(place: Place, tensor: Tensor) -> Tensor | None:
            new = visit(place, tensor) if visit else None
            self.places[place] = id(tensor)
            if place[1] == "in" and (frames := _list_frames()):
                self.lines[place] = describe_line((frames[0].f_code, 0, frames[0].f_lineno))
            if place[0] in self.keys or (place[1] == "in" and not self._stack):
                self.handed.setdefault(id(tensor if new is None else new), place)
            self._alive += [tensor, new]
            return new

        with self:
            run_pass(model, inputs, look, self._stack)
        return self

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a function of PyTorch, and record it; of a fused one, what it computes inside."""
        result = func(*args, **(kwargs or {}))
        done = self.operations.get(next((key for key in reversed(self._stack) if key in self.keys), WHOLE))
        if done is None:
            return result
        if inner := _FUSED.get(func):
            with self:
                inner(*args, **(kwargs or {}))
            self._alive.append(result)
            done[-1] = replace(done[-1], output=id(result))
            return result
        name = getattr(func, "__name__", "").strip("_")
        frames, given = _list_frames(), [*args, *(a for name, a in (kwargs or {}).items() if name[0] != "_")]
        if name == "square":
            name, given = "pow", [*given, 2]
        if not frames:
            return result
        trail = tuple((frame.f_code, frame.f_lasti, frame.f_lineno) for frame in frames)
        function = frames[0].f_globals.get(frames[0].f_code.co_name)
        function = function if getattr(function, "__code__", None) is frames[0].f_code else None
        settings = tuple(a for a in given if type(a) in (int, float, str))
        inputs = list_tensors(given)
        self._alive += [inputs, result]
        with torch._C.DisableTorchFunction():
            for t in (t for t in list_tensors(result) if t.is_floating_point() or t.is_complex()):
                value = (torch.view_as_real(t) if t.is_complex() else t).detach().double()
                shown, ids = value.abs() < _HIDDEN, frozenset(map(id, inputs))
                value = value.where(shown, 0.0)
                facts = (id(t), value, float(value.norm()), int((~shown).sum()))
                done.append(Operation(name, settings, trail, function, ids, *facts))
        return result


def _attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, *_: Any, **options: Any) -> None:
    mask = options.get("attn_mask", mask)
    if options.get("enable_gqa"):
        k, v = (t.repeat_interleave(q.shape[-3] // t.shape[-3], -3) for t in (k, v))
    scores = q * (options.get("scale") or q.shape[-1] ** -0.5) @ k.mT
    mask = scores.new_ones(scores.shape[-2:]).bool().tril() if options.get("is_causal") else mask
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
    scores.softmax(-1) @ v


def _center(x: Tensor, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> None:
    axes = tuple(range(-len(shape), 0))
    x = x - x.mean(axes, keepdim=True)
    x = x * torch.rsqrt(x.pow(2).mean(axes, keepdim=True) + eps)
    x = x if weight is None else x * weight
    x if bias is None else x + bias


_FUSED: Final[dict[Any, Any]] = {functional.scaled_dot_product_attention: _attend, functional.layer_norm: _center}


class Piece:
    """The operations of a piece on both sides, and which of them have a value that the other side has too."""

    def __init__(self, sides: Sequence[Sequence[Operation]], handed: Sequence[Iterable[int]], tolerance: float) -> None:
        self.sides, self.data, self.tolerance = sides, [{*ids} for ids in handed], tolerance
        for side, data in zip(sides, self.data, strict=True):
            for operation in side:
                data.update([operation.output] if operation.inputs & data else [])
        free = [[o for o in side if o.output not in data] for side, data in zip(sides, self.data, strict=True)]
        pools = [torch.cat([torch.zeros(2).double(), *(o.value.flatten() for o in f)]).sort().values for f in free]
        self.known = [
            [
                any(_equals(o, like, tolerance) for like in other) or (o.output not in data and self._lies_in(o, pool))
                for o in side
            ]
            for side, other, data, pool in zip(sides, sides[::-1], self.data, pools[::-1], strict=True)
        ]

    def _lies_in(self, operation: Operation, pool: Tensor) -> bool:
        """Return True if all numbers of a constant, whatever its shape, are among sorted ones."""
        numbers = operation.value.flatten()
        at = torch.searchsorted(pool, numbers).clamp(1, len(pool) - 1)
        off = torch.minimum((pool[at] - numbers).abs(), (pool[at - 1] - numbers).abs())
        return not len(numbers) or bool((off <= self.tolerance * numbers.abs().max()).all())

    def find_frontier(self, side: int, target: int) -> tuple[list[Operation], list[Operation], set[str]]:
        """Return the operations on the way to a tensor from which on the other side has no value, constants apart.

        The names are those of all operations on the way.

        The tensor itself is measured, so what is equal to it in another shape is not.
        """
        own, data = self.sides[side], self.data[side]
        good = [fine and o.output != target for fine, o in zip(self.known[side], own, strict=True)]
        reaches = [operation.output == target for operation in own]
        for i in range(len(own) - 1, -1, -1):
            users = [j for j in range(i + 1, len(own)) if own[i].output in own[j].inputs]
            reaches[i] |= any(reaches[j] for j in users)
            good[i] |= any(good[j] for j in users)
        found = [_climb(operation, own, good) for i, operation in enumerate(own) if reaches[i] and not good[i]]
        parts = [[o for o in found if (o.output in data) == is_data] for is_data in (True, False)]
        names = {operation.name for operation, is_on_way in zip(own, reaches, strict=True) if is_on_way}
        return (parts[0] or found), (parts[1] if parts[0] else []), names


def find_source(operation: Operation, constants: Sequence[Operation]) -> Operation | None:
    """Return the first of the constants on the way to an operation."""
    source = operation
    for constant in reversed(constants):
        source = constant if constant.output in source.inputs else source
    return source if source is not operation else None


def _climb(operation: Operation, own: Sequence[Operation], good: Sequence[bool]) -> Operation:
    """Return an operation at the line that calls its function, if another call of that gives what theirs has."""
    trail = operation.trail
    while len(trail) > 1:
        calls = {}
        for other, fine in zip(own, good, strict=True):
            here = other.trail[-len(trail) :]
            if [spot[0] for spot in here[:2]] == [spot[0] for spot in trail[:2]] and here[2:] == trail[2:]:
                calls[here[1]] = fine  # the last operation of a call gives its result
        if not any(fine for call, fine in calls.items() if call != trail[1]):
            break
        trail = trail[1:]
    return replace(operation, trail=trail)


def meet(own: Sequence[Operation], other: Sequence[Operation]) -> tuple[Operation | None, Operation | None]:
    """Return the first operations of two frontiers that give as many numbers; else the first of each."""
    sizes = [
        (i + j, a, b) for i, a in enumerate(own) for j, b in enumerate(other) if a.value.numel() == b.value.numel()
    ]
    near = min(sizes, key=lambda pair: pair[0], default=(0, next(iter(own), None), next(iter(other), None)))
    return near[1:]


def _equals(one: Operation, other: Operation, tolerance: float) -> bool:
    is_near = abs(one.norm - other.norm) <= 2 * tolerance * other.norm  # as of any two that are equal
    is_near &= one.value.numel() == other.value.numel()
    return is_near and equals(_reorder(one, other), other.value, tolerance)


def _reorder(one: Operation, like: Operation) -> Tensor:
    if one.value.dim() != like.value.dim():
        return one.value.reshape(like.value.shape)
    return one.value.flatten()[find_order(one.value, like.value)]


def describe_change(
    mine: Sequence[Operation], theirs: Sequence[Operation], on_way: Sequence[set[str]],
    handed: Sequence[dict[int, str]], tolerance: float,
) -> list[str]:  # fmt: skip
    """Return what differs between the first operations of two frontiers, or a factor between the values of any two.

    `on_way` are the names of all operations of a side that lead to what is measured.
    """
    one, other = meet(mine, theirs)
    if one is None or other is None:
        return []
    told: list[str] = []
    if one.name == other.name:
        has = [[str(x) for x in a.settings if x not in b.settings] for a, b in ((one, other), (other, one))]
        takes = [_list_taken(operation, names) for operation, names in zip((one, other), handed, strict=True)]
        also = [_list_taken(operation, handed[1]) for operation in theirs if operation.name == other.name]
        if has[0] != has[1] and one.name not in _MOVES:
            told.append(f"{one.name} has {' and '.join(has[0]) or '–'}, theirs {' and '.join(has[1]) or '–'}")
        if takes[0] != takes[1] and all(takes) and takes[0] not in also:
            told.append(f"{one.name} takes {' and '.join(takes[0])}, theirs {' and '.join(takes[1])}")
    masked = [max(side, key=lambda operation: operation.hidden) for side in (mine, theirs)]
    hidden, sizes = [operation.hidden for operation in masked], {operation.value.numel() for operation in masked}
    if all(hidden) and hidden[0] != hidden[1] and len(sizes) == 1:
        told.append(f"{hidden[0]} scores are hidden, in theirs {hidden[1]}")
    names = [{operation.name for operation in side} for side in (mine, theirs)]
    only = [", ".join(sorted(_list_told(a, b))) or "–" for a, b in zip(names, on_way[::-1], strict=True)]
    if only[0] != only[1] and all(map(_is_seen, names[0] | names[1])):
        told.append(f"mine computes {only[0]} there, theirs {only[1]}")
    ordered = [operation.value.flatten().sort().values for operation in (one, other)]
    is_moved = one.value.shape != other.value.shape or not one.value.equal(other.value)
    if is_moved and ordered[0].shape == ordered[1].shape and equals(ordered[0], ordered[1], tolerance):
        told.append(f"{one.name} gives the numbers of theirs in another order")
    pairs = itertools.product(reversed(mine), reversed(theirs)) if not told else ()
    same = ((a, b) for a, b in pairs if a.value.numel() == b.value.numel())
    scaled = ((a.name, find_factor(_reorder(a, b), b.value, tolerance)) for a, b in same)
    return told[:1] or [f"the value of {name} is {factor:.6g} × theirs" for name, factor in scaled if factor][:1]


def _is_seen(name: str) -> bool:
    """Return True if a function is one of PyTorch's that computes one thing."""
    is_known = any(hasattr(home, name) for home in (torch, Tensor, functional)) or hasattr(Tensor, f"__{name}__")
    return (is_known or name == "get") and not any(part in name for part in _OPAQUE)


def _list_taken(operation: Operation, names: dict[int, str]) -> list[str]:
    return sorted({names[i] for i in operation.inputs if i in names})


def _list_told(names: set[str], others: set[str]) -> set[str]:
    """Return the telling operations of one side only, but for those that the other may write in another way."""
    return {
        n for n in names & _TELLING - others if not any(n in alike and alike & (others - names) for alike in _ALIKE)
    }


def name_causes(mine: Any, theirs: Any) -> list[str]:
    """Return what `goldformer check` finds in a function or a class of mine, and not in its counterpart."""
    if mine is None or theirs is None or mine is theirs:
        return []
    spec, request = load_spec(), ComparisonRequest(("float32",))
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()), Numerics().hold("torch"):
        other = check_implementation(theirs, request, spec)
        own = other if other.problem else check_implementation(mine, request, spec)
    one, two = own.conventions, other.conventions
    differ = [name for name in one if two.get(name, one[name]) != one[name] and not one[name][:1].isdigit()]
    facts = [f"{name} is {one[name]}, theirs is {two[name]}" for name in differ]  # a class does not know its numbers
    also = [finding.mistakes for finding in other.brief]
    facts += [f.text for f in own.brief if f.label == MISTAKE_FOUND and f.mistakes not in also]
    return [f"goldformer check of {mine.__name__}: {fact}" for fact in facts]
