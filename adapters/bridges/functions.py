"""The functions and classes of an exercise: import them from the solver's files, check their parameters, call them."""

from __future__ import annotations

import dis
import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError
from math import prod
from pathlib import Path
from types import CodeType
from typing import Any, Final

from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from goldformer.adapters.arrays import list_nodes
from goldformer.adapters.find import explain_import_error, is_installed
from goldformer.adapters.inference.packages import import_target
from goldformer.adapters.protocol import RAISES_NOT_IMPLEMENTED, AdapterError, read_signature

#: The functions of an exercise, each with the names of its parameters in order.
Signatures = Mapping[str, tuple[str, ...]]

#: The fix for a module that is missing.
_INSTALL: Final = "Write it, or install goldformer in the environment where your own tests run"

#: The steps of a function that does nothing: it returns the constant None.
_OF_NOTHING: Final = frozenset({"RESUME", "LOAD_CONST", "RETURN_VALUE", "RETURN_CONST", "NOP"})

#: The most functions that a message lists.
_MOST: Final = 3


@dataclass(frozen=True)
class Functions:
    """The functions and classes that a solution has of an exercise, without those that are still stubs.

    `by_position` are those that the exercise's own tests call by position, so that their parameters may have any names.
    `weights` are the parameters that take weights, where the exercise compares values only; None if it asks for
    gradients.
    """

    path: Path
    found: Mapping[str, Callable[..., Any]]
    signatures: Signatures
    by_position: frozenset[str]
    weights: frozenset[str] | None = None

    def find(self, name: str) -> Callable[..., Any]:
        """Return a call of a function, with its arguments in the order of the signature.

        NotImplementedError if the solution does not have it yet. The call raises it if its result has no graph to
        arguments whose gradient is needed.
        """
        if name not in self.found:
            raise NotImplementedError(f"{self.path}: {name} {RAISES_NOT_IMPLEMENTED}")
        return partial(self._call, name)

    def _call(self, name: str, *arguments: Any) -> Any:
        named = dict(zip(self.signatures[name], arguments, strict=True))
        function = self.found[name]
        output = function(*arguments) if name in self.by_position else function(**named)
        if self.weights is not None and isinstance(output, Tensor):
            _require_graph(name, output, named, self.weights)
        return output

    def require_parameters(self) -> None:
        """Raise AdapterError for the first function that cannot be called as the exercise calls it."""
        for name, function in self.found.items():
            names = self.signatures[name]
            signature = read_signature(function)
            try:
                signature.bind(*names) if name in self.by_position else signature.bind(**dict.fromkeys(names))
            except TypeError as error:
                code = _find_code(function)
                place = f"{code.co_filename}:{code.co_firstlineno}" if code else self.path
                own = ", ".join(signature.parameters)
                raise AdapterError(
                    f"{place}: {name}({own}) cannot be called: {error}. Write it with the parameters of the "
                    f"exercise: {name}({', '.join(names)})"
                ) from error


def _require_graph(name: str, output: Tensor, named: Mapping[str, Any], weights: frozenset[str]) -> None:
    """Raise NotImplementedError if a function copied its weights, or ran without gradients.

    Where an exercise compares values only, its solvers load weights as they like: into parameters of their own, or
    under no_grad. That is no mistake of the code that is judged.
    """
    # A whole model takes its weights as one state dict.
    states = {key: value for key, value in named.items() if isinstance(value, Mapping)}
    loads = {key: a for name in weights for key, a in states.get(name, {name: named.get(name)}).items()}
    tracked = {n: a for n, a in {**named, **loads}.items() if isinstance(a, Tensor) and a.requires_grad}
    if tracked and not output.requires_grad:
        raise NotImplementedError(f"{name} computes without gradients, which the exercise does not ask for")
    loaded = {n: a for n, a in tracked.items() if n in loads}
    if not loaded:
        return
    nodes = list_nodes(output)
    if cut := [n for n, array in loaded.items() if get_gradient_edge(array).node not in nodes]:
        more = f" and {len(cut) - _MOST} more" if len(cut) > _MOST else ""
        raise NotImplementedError(f"{name} copies {', '.join(cut[:_MOST])}{more}, so no gradient reaches them")


def load_functions(
    path: Path,
    files: Sequence[Path],
    signatures: Signatures,
    by_position: frozenset[str],
    weights: frozenset[str] | None = None,
) -> Functions:
    """Import the files of a solution at `path`, and return what they define of an exercise.

    AdapterError if a file cannot be imported, if two define the same, if none defines anything of the exercise, or if
    something has other parameters.
    """
    found: dict[str, Callable[..., Any]] = {}
    for file in files:
        for name, function in _list_defined(file, signatures).items():
            if name in found:
                raise AdapterError(f"{path}: two files define {name}, one of them {file}: give one of the files")
            _require_imports(function, f"{file}: {name}")
            found[name] = function
    if not found:
        listed = ", ".join([*signatures][:_MOST])
        raise AdapterError(
            f"{path}: it has none of the functions {listed} and {len(signatures) - _MOST} more: give the file or the "
            "folder of the exercise that defines them"
        )
    written = {name: f for name, f in found.items() if not _is_stub(f)}
    functions = Functions(path, written, signatures, by_position, weights)
    functions.require_parameters()
    return functions


def restore_shape(output: Any, shape: Sequence[int]) -> Any:
    """Return a result in the shape of the call; whatever has another size is left for the judge."""
    fits = isinstance(output, Tensor) and output.numel() == prod(shape)
    return output.reshape(shape) if fits else output


def _list_defined(file: Path, signatures: Signatures) -> dict[str, Callable[..., Any]]:
    """Import a file, and return those functions and classes of an exercise that it has."""
    try:
        module = import_target(file).module
    except AdapterError as error:
        advice = f". {_INSTALL}" if isinstance(error.__cause__, ModuleNotFoundError) else ""
        raise AdapterError(f"{error}{advice}") from error
    return {name: f for name in signatures if callable(f := getattr(module, name, None))}


def _require_imports(function: Callable[..., Any], place: str) -> None:
    """Import what a function imports when it is called; AdapterError if that is not installed.

    Every call would fail in the same way, and say nothing of what the function computes. Any other fault of an import
    is one of the solution, and a failure of the calls.
    """
    for name in _list_imports(function):
        try:
            importlib.import_module(name)
        except Exception as error:
            # The package of an assignment may ask for its own version, so it must be installed too.
            absent = isinstance(error, ModuleNotFoundError) and not is_installed(str(error.name).partition(".")[0])
            if absent or isinstance(error, PackageNotFoundError):
                raise AdapterError(f"{explain_import_error(place, error)}. {_INSTALL}") from error


def _list_imports(function: Callable[..., Any]) -> list[str]:
    """Return the modules that a function imports when it is called, except by relative imports."""
    code = _find_code(function)
    steps = [step for step in dis.get_instructions(code) if step.opname != "EXTENDED_ARG"] if code else []
    # Two constants come before: how many folders up, and the names.
    return [step.argval for i, step in enumerate(steps) if step.opname == "IMPORT_NAME" and not steps[i - 2].argval]


def _find_code(function: Callable[..., Any]) -> CodeType | None:
    """Return the code of a function, or of the forward pass of a class; None for what has none."""
    written = getattr(function, "forward", None) if inspect.isclass(function) else function
    return getattr(inspect.unwrap(written), "__code__", None) if callable(written) else None


def _is_stub(function: Callable[..., Any]) -> bool:
    """Return True for what is still as it is handed out: it only raises NotImplementedError, or does nothing."""
    code = _find_code(function)
    if code is None:
        return False
    steps = list(dis.get_instructions(code))
    if "NotImplementedError" in code.co_names:
        return not any(step.opname.startswith("RETURN") for step in steps)
    return all(step.opname in _OF_NOTHING and step.argval in (None, 0) for step in steps)
