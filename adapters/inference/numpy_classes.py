"""A class of NumPy as an nn.Module: its arrays are parameters, and a call converts what goes in and comes out."""

from __future__ import annotations

import functools
import operator
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any, Final

import numpy as np

from goldformer.adapters.find_arrays import find_package
from goldformer.adapters.inference.names import GAIN, SHIFT, find_projection, says

#: What marks a class that is made here.
_MARK: Final = "_goldformer_numpy_class"

#: The axes of a matrix.
_MATRIX: Final = 2


def is_numpy_class(kind: type) -> bool:
    """Return True for a class whose file uses NumPy, and no other library of arrays."""
    used = {find_package(value) for value in vars(sys.modules.get(kind.__module__, ModuleType(""))).values()}
    return "numpy" in used and not used & {"torch", "jax", "flax", "tensorflow"}


def is_made_here(thing: Any) -> bool:
    """Return True for a class of `make_module_class`."""
    return isinstance(thing, type) and _MARK in vars(thing)


def make_module_class(kind: type) -> Any:
    """Return a subclass of nn.Module that makes an object of a class of NumPy and calls it.

    A matrix is a parameter if a second object has another one, so that tables and what an optimiser keeps are none; a
    vector is one if its name says a gain or a shift.
    """
    import torch
    from torch import nn

    called = vars(kind).get("forward") or getattr(kind, "forward", None) or kind.__call__

    class NumPyModule(nn.Module):
        @functools.wraps(kind.__init__)  # type: ignore[misc]  # the signature is that of the class
        def __init__(self, *given: Any, **named: Any) -> None:
            nn.Module.__init__(self)
            self.own = kind(*given, **named)
            self.places = list(_list_weights(self.own, kind(*given, **named)))
            for path, holder, name in self.places:
                owner: Any = self
                for step in path:
                    if step not in owner._modules:
                        owner.add_module(step, nn.Module())
                    owner = owner._modules[step]
                owner.register_parameter(name, nn.Parameter(torch.from_numpy(np.array(getattr(holder, name)))))

        @functools.wraps(called)
        def forward(self, *given: Any, **named: Any) -> Any:  # type: ignore[override]  # the class says what it takes
            weights = [operator.attrgetter(".".join((*path, name)))(self) for path, _, name in self.places]
            floats = [one for one in (*given, *named.values(), *weights) if _is_float(one)]
            if any(one.requires_grad for one in floats):
                raise NotImplementedError("NumPy has no gradients")
            for (_, holder, name), weight in zip(self.places, weights, strict=True):
                setattr(holder, name, _to_numpy(weight))
            returned = called(self.own, *map(_to_numpy, given), **{n: _to_numpy(one) for n, one in named.items()})
            return _to_torch(returned, floats[0].dtype if floats else torch.float64)

    def _to_numpy(value: Any) -> Any:
        return value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else value

    def _is_float(value: Any) -> bool:
        return isinstance(value, torch.Tensor) and value.is_floating_point()

    def _to_torch(value: Any, dtype: Any) -> Any:
        """Return arrays as tensors; one that a scalar of NumPy has widened is of the dtype of the call again."""
        if isinstance(value, tuple | list):
            return type(value)(_to_torch(one, dtype) for one in value)
        if not isinstance(value, np.ndarray):
            return value
        tensor = torch.from_numpy(np.ascontiguousarray(value))
        return tensor.to(dtype) if tensor.is_floating_point() else tensor

    NumPyModule.__name__, NumPyModule.__qualname__ = kind.__name__, kind.__qualname__
    NumPyModule.__module__ = kind.__module__
    setattr(NumPyModule, _MARK, True)
    return NumPyModule


def _list_weights(first: Any, second: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any, str]]:
    """Yield the weights of an object and of those that it is built of: the path, the object, and the attribute."""
    items = enumerate(first) if isinstance(first, list | tuple) else vars(first).items()
    for key, value in items:
        name = str(key)
        other = second[key] if isinstance(second, list | tuple) else vars(second).get(name)
        if isinstance(value, np.ndarray):
            if _is_weight(name, value, other):
                yield path, first, name
        elif isinstance(value, list | tuple) or _is_own(value):
            yield from _list_weights(value, other, (*path, name))


def _is_weight(name: str, value: Any, other: Any) -> bool:
    if value.dtype.kind != "f" or name.startswith("_"):
        return False
    if value.ndim == _MATRIX:
        return not np.array_equal(value, other) or (find_projection(name) is not None and bool(value.any()))
    return value.ndim == 1 and (says(name, GAIN) or says(name, SHIFT))


def _is_own(value: Any) -> bool:
    """Return True for an object of a class that is no part of Python or of a library."""
    root = type(value).__module__.partition(".")[0]
    return hasattr(value, "__dict__") and root not in _LIBRARIES


_LIBRARIES: Final = frozenset({*sys.stdlib_module_names, "numpy", "scipy", "builtins"})
