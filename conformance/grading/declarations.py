"""Read the declarations of an assignment's adapter from its text, so that a submission that it imports cannot lie."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final

from goldformer.adapters.arrays import LIBRARIES, Wire
from goldformer.adapters.protocol import Adapter, AdapterError
from goldformer.spec import Contract, Spec

_NAMES: Final = ("ARRAYS", "CONVENTIONS", "DTYPES", "FAMILY")


@dataclass(frozen=True, slots=True)
class Declarations:
    """The array library, the options of conventions, and the dtypes, which hold for every submission.

    `gradients` are the components that have gradients, if the component exists; `differentiated` are those whose
    gradients the library derives.
    """

    arrays: str
    conventions: Mapping[str, str]
    dtypes: tuple[str, ...]
    gradients: frozenset[str]
    differentiated: frozenset[str] = frozenset()


def read_declarations(source: bytes, spec: Spec, components: Iterable[str] = ()) -> Declarations:
    """Read an adapter without running it; AdapterError if a declaration is missing, wrong or no literal.

    AdapterError also if nothing in the text can define one of these components: no student could pass it.
    """
    try:
        tree = ast.parse(source, "adapter.py")
        names = _list_bound_names(tree)
    except (SyntaxError, ValueError) as error:
        raise AdapterError(f"the assignment's adapter is not Python: {error}") from error
    except (RecursionError, MemoryError) as error:
        raise AdapterError("the assignment's adapter is nested too deeply for Python") from error
    values: dict[str, Any] = {}
    for statement in tree.body:
        for name, value in _list_assignments(statement):
            if name in _NAMES and value is not None:
                values[name] = _evaluate_literal(name, value)
    functions = {s.name for s in tree.body if isinstance(s, ast.FunctionDef)}
    # The same checks and messages as for an adapter that is run.
    adapter = Adapter.from_object(SimpleNamespace(**values), "the assignment's adapter", spec)
    if adapter.arrays == Wire.name:
        raise AdapterError(f"the assignment's adapter: ARRAYS is {Wire.name!r}, which no file can be")
    for component in components:
        if names is not None and component not in names:
            what = f"has no {component}, which components asks for: write a function of that name, or do not ask for it"
            raise AdapterError(f"the assignment's adapter {what}")
    differentiates = LIBRARIES[adapter.arrays].differentiates
    gradients = frozenset(
        name
        for name, contract in spec.contracts.items()
        if f"{name}_gradient" in functions or (differentiates and _is_float(contract))
    )
    differentiated = frozenset(name for name in gradients if f"{name}_gradient" not in functions)
    return Declarations(adapter.arrays, adapter.conventions, adapter.dtypes, gradients, differentiated)


def _is_float(contract: Contract) -> bool:
    return contract.outputs[contract.first_output].kind == "float"


def _list_assignments(statement: ast.stmt) -> list[tuple[str, ast.expr | None]]:
    """Return the names to which a statement assigns, with their values."""
    match statement:
        case ast.Assign(targets=targets, value=value):
            return [(target.id, value) for target in targets if isinstance(target, ast.Name)]
        case ast.AnnAssign(target=ast.Name(id=name), value=value):
            return [(name, value)]
    return []


def _list_bound_names(tree: ast.Module) -> set[str] | None:
    """Return every name that a text binds somewhere; None if it could bind any name."""
    names: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.Name(id=name, ctx=ast.Store()):
                names.add(name)
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                names.update(alias.asname or alias.name for alias in aliases)
    return None if names & {"*", "__getattr__"} or "globals" in ast.dump(tree) else names


def _evaluate_literal(name: str, value: ast.expr) -> Any:
    try:
        return ast.literal_eval(value)
    except (ValueError, TypeError, RecursionError, MemoryError) as error:
        what = f"{name} is no literal (line {value.lineno}): it is read without running the file"
        raise AdapterError(f"the assignment's adapter: {what}") from error
