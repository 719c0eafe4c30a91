"""The functions of an exercise: import them from the solver's file, check their parameters, and make their calls."""

from __future__ import annotations

import dis
import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from goldformer.adapters.find import explain_import_error, is_installed
from goldformer.adapters.inference.packages import import_target
from goldformer.adapters.protocol import RAISES_NOT_IMPLEMENTED, AdapterError

#: The functions of an exercise, each with the names of its parameters in order.
Signatures = Mapping[str, tuple[str, ...]]

#: The fix for a module that is missing.
_INSTALL: Final = "Write it, or install goldformer in the environment where your own tests run"

#: The most functions that a message lists.
_MOST: Final = 3


@dataclass(frozen=True)
class Functions:
    """The functions that a file has of an exercise, without those that are still stubs.

    `weights` are the parameters that take weights. `by_position` are the functions that the exercise's own tests call
    by position, so that their parameters may have any names.
    """

    file: Path
    found: Mapping[str, Callable[..., Any]]
    signatures: Signatures
    weights: frozenset[str] = frozenset()
    by_position: frozenset[str] = frozenset()

    def find(self, name: str) -> Callable[..., Any]:
        """Return a call of a function, with its arguments in the order of the signature.

        NotImplementedError if the file does not have it yet. The call raises it if its result has no graph to arguments
        whose gradient is needed.
        """
        if name not in self.found:
            raise NotImplementedError(f"{self.file}: {name} {RAISES_NOT_IMPLEMENTED}")
        return partial(self._call, name)

    def _call(self, name: str, *arguments: Any) -> Any:
        named = dict(zip(self.signatures[name], arguments, strict=True))
        function = self.found[name]
        output = function(*arguments) if name in self.by_position else function(**named)
        if isinstance(output, Tensor):
            self._require_graph(name, output, named)
        return output

    def require_parameters(self) -> None:
        """Raise AdapterError for the first function that cannot be called as the exercise calls it."""
        for name, function in self.found.items():
            names = self.signatures[name]
            signature = inspect.signature(function)
            try:
                signature.bind(*names) if name in self.by_position else signature.bind(**dict.fromkeys(names))
            except TypeError as error:
                code = getattr(inspect.unwrap(function), "__code__", None)
                line = f":{code.co_firstlineno}" if code else ""
                own = ", ".join(signature.parameters)
                raise AdapterError(
                    f"{self.file}{line}: {name}({own}) cannot be called: {error}. Write it with the parameters of the "
                    f"exercise: {name}({', '.join(names)})"
                ) from error

    def _require_graph(self, name: str, output: Tensor, named: Mapping[str, Any]) -> None:
        """Raise NotImplementedError if the function copied its weights, or ran without gradients.

        Exercises compare values only, so their solvers load weights as they like: into parameters of their own, or
        under no_grad. That is no mistake of the code that is judged.
        """
        tracked = {n: a for n, a in named.items() if isinstance(a, Tensor) and a.requires_grad}
        if tracked and not output.requires_grad:
            raise NotImplementedError(f"{name} computes without gradients, which the exercise does not ask for")
        weights = {n: a for n, a in tracked.items() if n in self.weights}
        if not weights:
            return
        reached = torch.autograd.grad(output.sum(), list(weights.values()), retain_graph=True, allow_unused=True)
        if cut := [n for n, gradient in zip(weights, reached, strict=True) if gradient is None]:
            raise NotImplementedError(f"{name} copies {', '.join(cut)}, so no gradient reaches them")


def load_functions(
    file: Path,
    signatures: Signatures,
    *,
    weights: frozenset[str] = frozenset(),
    by_position: frozenset[str] = frozenset(),
) -> Functions:
    """Import a file and return those of its functions that an exercise names.

    AdapterError if it cannot be imported, has none of them, or has one with other parameters.
    """
    try:
        module = import_target(file).module
    except AdapterError as error:
        advice = f". {_INSTALL}" if isinstance(error.__cause__, ModuleNotFoundError) else ""
        raise AdapterError(f"{error}{advice}") from error
    defined = {name: f for name in signatures if callable(f := getattr(module, name, None))}
    if not defined:
        listed = ", ".join([*signatures][:_MOST])
        raise AdapterError(
            f"{file}: it has none of the functions {listed} and {len(signatures) - _MOST} more: give the file or the "
            "folder of the exercise that defines them"
        )
    found = {name: f for name, f in defined.items() if not _is_stub(f)}
    for name, function in found.items():
        _require_imports(function, f"{file}: {name}")
    functions = Functions(file, found, signatures, weights, by_position)
    functions.require_parameters()
    return functions


def _require_imports(function: Callable[..., Any], place: str) -> None:
    """Import what a function imports when it is called; AdapterError if that is not installed.

    Every call would fail in the same way, and say nothing of what the function computes. Any other fault of an import
    is one of the solution, and a failure of the calls.
    """
    code = getattr(inspect.unwrap(function), "__code__", None)
    steps = dis.get_instructions(code) if code else ()
    for name in [step.argval for step in steps if step.opname == "IMPORT_NAME" and step.argval]:
        try:
            importlib.import_module(name)
        except Exception as error:
            # The package of an assignment may ask for its own version, so it must be installed too.
            absent = isinstance(error, ModuleNotFoundError) and not is_installed(str(error.name).partition(".")[0])
            if absent or isinstance(error, PackageNotFoundError):
                raise AdapterError(f"{explain_import_error(place, error)}. {_INSTALL}") from error


def _is_stub(function: Callable[..., Any]) -> bool:
    """Return True for a function that only raises NotImplementedError, as it is handed out."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None or "NotImplementedError" not in code.co_names:
        return False
    return not any(step.opname.startswith("RETURN") for step in dis.get_instructions(code))
