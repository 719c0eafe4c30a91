"""Inside a piece that differs: the first operation whose value the other side never has, its line, and the cause."""

from __future__ import annotations

import contextlib
import io
import itertools
import linecache
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
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
#: The operations that two right programs both have, or both have not.
_TELLING: Final = frozenset(["gelu", "mean", "relu", "sigmoid", "silu", "softmax", "softplus", "std", "tanh", "var"])


@dataclass(frozen=True, slots=True)
class Operation:
    """A call of PyTorch's: its settings, its line, the function of it but for a method, and which tensors it has."""

    name: str
    settings: tuple[float | str, ...]
    line: str
    function: Any
    inputs: frozenset[int]
    output: int
    value: Tensor
    hidden: int


class Recorder(TorchFunctionMode):
    """Records the operations of a run whose innermost call among `keys` is one of the scopes."""

    def __init__(self, keys: frozenset[str], scopes: frozenset[str]) -> None:
        super().__init__()
        self.keys, self.operations = keys, {scope: list[Operation]() for scope in scopes}
        self.places, self.handed = dict[Place, int](), dict[int, Place]()
        self._stack, self._alive = list[str](), list[Any]()  # an id is that of one tensor as long as that lives

    def record(self, model: Any, inputs: Sequence[Any], visit: Visit | None = None) -> Recorder:
        """Run a model, and return what was recorded."""

        def look(place: Place, tensor: Tensor) -> Tensor | None:
            new = visit(place, tensor) if visit else None
            self.places[place] = id(tensor)
            if place[0] in self.keys:
                self.handed.setdefault(id(tensor if new is None else new), place)
            self._alive += [tensor, new]
            return new

        with self:
            run_pass(model, inputs, look, self._stack)
        return self

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a function of PyTorch, and record it; of a fused attention, what it computes inside too."""
        result = func(*args, **(kwargs or {}))
        done = self.operations.get(next((key for key in reversed(self._stack) if key in self.keys), WHOLE))
        if done is None:
            return result
        if func is functional.scaled_dot_product_attention:
            with self:
                _attend(*args, **(kwargs or {}))
            self._alive.append(result)
            done[-1] = replace(done[-1], output=id(result))
            return result
        name = getattr(func, "__name__", "").strip("_")
        frame = sys._getframe(1)
        while frame.f_back and frame.f_code.co_filename.startswith(_INNER):
            frame = frame.f_back
        code, given = frame.f_code, [*args, *(a for name, a in (kwargs or {}).items() if name[0] != "_")]
        text = linecache.getline(code.co_filename, frame.f_lineno).strip()
        line = f"{code.co_name} ({Path(code.co_filename).name}:{frame.f_lineno}): {text}"
        function = frame.f_globals.get(code.co_name)
        function = function if getattr(function, "__code__", None) is code else None
        settings = tuple(a for a in given if type(a) in (int, float, str))
        inputs = list_tensors(given)
        self._alive += [inputs, result]
        with torch._C.DisableTorchFunction():
            for t in (t for t in list_tensors(result) if t.is_floating_point() or t.is_complex()):
                value = (torch.view_as_real(t) if t.is_complex() else t).detach().double()
                shown, ids = value.abs() < _HIDDEN, frozenset(map(id, inputs))
                facts = (id(t), value.where(shown, 0.0), int((~shown).sum()))
                done.append(Operation(name, settings, line, function, ids, *facts))
        return result


def _attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, *_: Any, **options: Any) -> None:
    mask = options.get("attn_mask", mask)
    if options.get("enable_gqa"):
        k, v = (t.repeat_interleave(q.shape[-3] // t.shape[-3], -3) for t in (k, v))
    scores = q @ k.mT * (options.get("scale") or q.shape[-1] ** -0.5)
    mask = scores.new_ones(scores.shape[-2:]).bool().tril() if options.get("is_causal") else mask
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
    scores.softmax(-1) @ v


def find_frontier(
    own: Sequence[Operation], other: Sequence[Operation], target: int, data: set[int], tolerance: float
) -> list[Operation]:
    """Return the operations on the way to a tensor from which on the other side has no value."""
    good = [any(_equals(operation, o, tolerance) for o in other) for operation in own]
    reaches = [False] * len(own)
    for i in range(len(own) - 1, -1, -1):
        users = [j for j in range(i + 1, len(own)) if own[i].output in own[j].inputs]
        reaches[i] = own[i].output == target or any(reaches[j] for j in users)
        good[i] = good[i] or any(good[j] for j in users)
    for operation in own:
        data |= {operation.output} if operation.inputs & data else set()
    found = [operation for i, operation in enumerate(own) if reaches[i] and not good[i]]
    return [operation for operation in found if operation.output in data] or found


def meet(own: Sequence[Operation], other: Sequence[Operation]) -> tuple[Operation | None, Operation | None]:
    """Return the first operations of two frontiers that give as many numbers; else the first of each."""
    sizes = [
        (i + j, a, b) for i, a in enumerate(own) for j, b in enumerate(other) if a.value.numel() == b.value.numel()
    ]
    near = min(sizes, key=lambda pair: pair[0], default=(0, next(iter(own), None), next(iter(other), None)))
    return near[1:]


def _equals(one: Operation, other: Operation, tolerance: float) -> bool:
    return one.value.numel() == other.value.numel() and equals(_reorder(one, other), other.value, tolerance)


def _reorder(one: Operation, like: Operation) -> Tensor:
    if one.value.dim() != like.value.dim():
        return one.value.reshape(like.value.shape)
    return one.value.flatten()[find_order(one.value, like.value)]


def describe_change(
    mine: Sequence[Operation], theirs: Sequence[Operation], handed: Sequence[dict[int, str]], tolerance: float
) -> list[str]:
    """Return what differs between the first operations of two frontiers, or a factor between the values of any two."""
    one, other = meet(mine, theirs)
    if one is None or other is None:
        return []
    if one.name == other.name:
        has = [[str(x) for x in a.settings if x not in b.settings] for a, b in ((one, other), (other, one))]
        sides = zip((one, other), handed, strict=True)
        takes = [sorted({names[i] for i in operation.inputs if i in names}) for operation, names in sides]
        for words, verb in ((has, "has"), (takes, "takes")):
            if words[0] != words[1]:
                return [f"{one.name} {verb} {' and '.join(words[0]) or '–'}, theirs {' and '.join(words[1]) or '–'}"]
    hidden = [max(operation.hidden for operation in side) for side in (mine, theirs)]
    if all(hidden) and hidden[0] != hidden[1]:
        return [f"{hidden[0]} scores are hidden, in theirs {hidden[1]}"]
    only = [", ".join(sorted({operation.name for operation in side} & _TELLING)) or "–" for side in (mine, theirs)]
    if only[0] != only[1]:
        return [f"mine computes {only[0]} there, theirs {only[1]}"]
    for a, b in itertools.product(reversed(mine), reversed(theirs)):
        is_one_size = a.value.numel() == b.value.numel()
        if is_one_size and (factor := find_factor(_reorder(a, b), b.value, tolerance)):
            return [f"the value of {a.name} is {factor:.6g} × theirs"]
    return []


def name_causes(mine: Any, theirs: Any) -> list[str]:
    """Return what `goldformer check` finds in a function or a class of mine, and not in its counterpart."""
    if mine is None or theirs is None or mine is theirs:
        return []
    spec, request = load_spec(), ComparisonRequest(("float32",))
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()), Numerics().hold("torch"):
        other = check_implementation(theirs, request, spec)
        own = other if other.problem else check_implementation(mine, request, spec)
    one, two = own.conventions, other.conventions
    facts = [f"{name} is {one[name]}, theirs is {two[name]}" for name in one if two.get(name, one[name]) != one[name]]
    also = [finding.mistakes for finding in other.brief]
    facts += [f.text for f in own.brief if f.label == MISTAKE_FOUND and f.mistakes not in also]
    return [f"goldformer check of {mine.__name__}: {fact}" for fact in facts]
