"""One pass through a model: each call of each module is seen, and what enters and leaves it may be replaced."""

import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal
from unittest import mock

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

#: A call by its key, and a side of it.
Place = tuple[str, Literal["in", "out"]]
#: Gets a place and the first tensor there; returns what replaces the tensor, or None.
Visit = Callable[[Place, Tensor], Tensor | None]
#: The key of the whole run: of what the model, or the callable around it, returns.
WHOLE: Final = "the output"
LOW: Final = (torch.float32, torch.bfloat16, torch.float16)


class NotComparable(ValueError):
    """Two models that cannot be compared; the message says why, and what to do."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a module: the calls around it, and the shapes of the first tensors that arrive and leave."""

    key: str
    module: nn.Module
    up: tuple[str, ...]
    arrived: tuple[int, ...]
    left: tuple[int, ...]
    is_leaf: bool


def list_tensors(thing: Any) -> list[Tensor]:
    """Return all tensors in nested lists, tuples and dictionaries."""
    return [leaf for leaf in tree_leaves(thing) if isinstance(leaf, Tensor)]


def _lacks(thing: Any, tensor: Tensor) -> bool:
    return all(leaf is not tensor for leaf in tree_leaves(thing))


def run_pass(
    model: Callable[..., Any], inputs: Sequence[Any], visit: Visit | None = None, stack: list[str] | None = None
) -> list[Call]:
    """Run a model, or a callable around models, and return the calls of their modules in the order of their ends."""
    names: dict[nn.Module, str] = {}
    counts: dict[nn.Module, Iterator[int]] = {}
    calls: list[Call] = []
    running = [] if stack is None else stack
    original = nn.Module.__call__

    def look(place: Place, thing: Any) -> tuple[Any, tuple[int, ...]]:
        first = next((t for t in list_tensors(thing) if t.is_floating_point() and t.dim()), None)
        if first is None:
            return thing, ()
        with torch._C.DisableTorchFunction():
            new = visit(place, first) if visit else None
        if new is None:
            return thing, first.shape
        # What holds the tensor nowhere stays itself: a module writes into a cache that arrives as an argument.
        is_kept = partial(_lacks, tensor=first)
        return tree_map(lambda part: new if part is first else part, thing, is_leaf=is_kept), first.shape

    def call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if self not in names:  # a model that is called for the first time; a callable may call several
            kind, head = type(self).__name__, f"{type(self).__name__}{len(names)}." if names else ""
            for name, module in self.named_modules():
                names.setdefault(module, f"{head}{name}".rstrip(".") or kind)
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

    # Compiled code hides its operations; PyTorch 2.6 and later run it as it is written.
    stance = getattr(torch.compiler, "set_stance", nullcontext) if "torch._dynamo" in sys.modules else nullcontext
    with torch._C.DisableTorchFunction():
        copies = tree_map_only(Tensor, torch.clone, [*inputs])
    with stance("force_eager"), torch.no_grad(), mock.patch.object(nn.Module, "__call__", call):
        look((WHOLE, "out"), model(*copies))
    return calls


class AllDouble(TorchFunctionMode):
    """Computes everything in float64: models cast to float32 inside norms, softmax and rotary positions."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a function with float64 in the place of each lower dtype; what is written stays in its place."""
        func = Tensor.double if func in (Tensor.float, Tensor.half, Tensor.bfloat16) else func
        name, given = getattr(func, "__name__", ""), (args, kwargs or {})
        given = tree_map_only(torch.dtype, lambda dtype: torch.float64 if dtype in LOW else dtype, given)
        if not name.endswith("_") or (name.endswith("__") and name not in ("__get__", "__set__", "__setitem__")):
            given = tree_map_only(Tensor, lambda t: t.double() if t.dtype in LOW else t, given)
        return func(*given[0], **given[1])
