"""One pass through a model: each call of each module is seen, and what enters and leaves it may be replaced."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal
from unittest import mock

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only

Side = Literal["in", "out"]
#: A call by its key, and a side of it.
Place = tuple[str, Side]
#: Gets a place and the first tensor there; returns what replaces the tensor, or None.
Visit = Callable[[Place, Tensor], Tensor | None]
#: The key of the whole run: of what the model, or the callable around it, returns.
WHOLE: Final = "the output"
LOW: Final = (torch.float32, torch.bfloat16, torch.float16)


class NotComparable(ValueError):
    """Two models that cannot be compared; the message says why, and what to do."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a module: the calls around it, and the shapes of its first tensors.

    `key` is the name of the module, with "#1" after it for the second call. A leaf calls no other module.
    """

    key: str
    module: nn.Module
    up: tuple[str, ...]
    arrived: torch.Size | None
    left: torch.Size | None
    is_leaf: bool


def list_tensors(thing: Any) -> list[Tensor]:
    """Return all tensors in nested lists, tuples and dictionaries."""
    return [leaf for leaf in tree_leaves(thing) if isinstance(leaf, Tensor)]


def run_pass(
    model: Callable[..., Any], inputs: Sequence[Any], visit: Visit | None = None, stack: list[str] | None = None
) -> list[Call]:
    """Run a model, or a callable around models, and return the calls of their modules in the order of their ends.

    `stack` has the keys of the running calls, the innermost one last. NotComparable for a model in training mode.
    """
    names: dict[nn.Module, str] = {}
    counts: dict[nn.Module, Iterator[int]] = {}
    calls: list[Call] = []
    running = [] if stack is None else stack
    original = nn.Module.__call__

    def look(place: Place, thing: Any) -> tuple[Any, torch.Size | None]:
        first = next((t for t in list_tensors(thing) if t.is_floating_point() and t.dim()), None)
        if first is None:
            return thing, None
        with torch._C.DisableTorchFunction():
            new = visit(place, first) if visit else None
        return thing if new is None else tree_map_only(Tensor, lambda t: new if t is first else t, thing), first.shape

    def call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if self not in names:
            _name_modules(self, names)
        nth = next(counts.setdefault(self, itertools.count()))
        key, before, up = f"{names[self]}#{nth}" if nth else names[self], len(calls), tuple(running)
        (args, kwargs), arrived = look((key, "in"), (args, kwargs))
        running.append(key)
        try:
            result = original(self, *args, **kwargs)
        finally:
            running.pop()
        result, left = look((key, "out"), result)
        calls.append(Call(key, self, up, arrived, left, is_leaf=len(calls) == before))
        return result

    with torch.no_grad(), mock.patch.object(nn.Module, "__call__", call):
        look((WHOLE, "out"), model(*tree_map_only(Tensor, torch.clone, [*inputs])))
    return calls


def _name_modules(root: nn.Module, names: dict[nn.Module, str]) -> None:
    """Name the modules of a model that is called for the first time."""
    kind = type(root).__name__
    if root.training:
        raise NotComparable(f"{kind} is in training mode, where dropout draws random numbers: call its eval()")
    head = f"{kind}{len(names)}." if names else ""
    for name, module in root.named_modules():
        names.setdefault(module, f"{head}{name}".rstrip(".") or kind)


class _AllDouble(TorchFunctionMode):
    """Every cast goes to float64: models cast to float32 inside norms, softmax and rotary positions.

    A table in a lower dtype that is no buffer meets the others in float64.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a function of PyTorch with float64 in the place of each lower dtype."""
        func = Tensor.double if func in (Tensor.float, Tensor.half, Tensor.bfloat16) else func
        given = tree_map_only(torch.dtype, lambda d: torch.float64 if d in LOW else d, (args, kwargs or {}))
        floats = {t.dtype for t in list_tensors(given) if t.is_floating_point()}
        if len(floats) > 1 and not getattr(func, "__name__", "").endswith(
            "_"
        ):  # a buffer that is written keeps its place
            given = tree_map_only(Tensor, lambda t: t.double() if t.dtype in LOW else t, given)
        return func(*given[0], **given[1])


@contextlib.contextmanager
def hold_in_double(roots: Sequence[nn.Module]) -> Iterator[None]:
    """Compute everything in float64 inside: parameters, buffers, casts and new tensors."""
    tensors = {id(t): t for root in roots for t in (*root.parameters(), *root.buffers()) if t.is_floating_point()}
    kept = [(tensor, tensor.data) for tensor in tensors.values()]
    default = torch.get_default_dtype()
    try:
        for tensor, data in kept:
            tensor.data = data.double()
        torch.set_default_dtype(torch.float64)
        with _AllDouble():
            yield
    finally:
        torch.set_default_dtype(default)
        for tensor, data in kept:
            tensor.data = data
