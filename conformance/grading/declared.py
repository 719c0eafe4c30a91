"""What an assignment's adapter declares, read from its text: a submission that it imports cannot say otherwise."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from goldformer.adapters.arrays import LIBRARIES, Wire
from goldformer.adapters.protocol import Adapter, AdapterError
from goldformer.spec import Contract, Spec

_NAMES: Final = ("ARRAYS", "CONVENTIONS", "DTYPES")


@dataclass(frozen=True, slots=True)
class Declared:
    """What holds for every submission: the array library, the options of conventions, and the dtypes.

    `gradients` are the components whose gradients there are, if the component is there.
    """

    arrays: str
    conventions: Mapping[str, str]
    dtypes: tuple[str, ...]
    gradients: frozenset[str]

    def option(self, convention: str, component: str, spec: Spec) -> str:
        """The option of a convention that holds for a component."""
        default = spec.conventions[convention].default
        return self.conventions.get(f"{component}.{convention}", self.conventions.get(convention, default))


def declared(source: bytes, spec: Spec, asked: Iterable[str] = ()) -> Declared:
    """Read an adapter without running it; AdapterError where a declaration is missing, bad or no literal.

    So is a component that is asked for and that nothing in the text could define: every student would lack it.
    """
    try:
        tree = ast.parse(source, "adapter.py")
    except (SyntaxError, ValueError) as error:
        raise AdapterError(f"the assignment's adapter is not Python: {error}") from error
    found: dict[str, Any] = {}
    for statement in tree.body:
        for name, value in _assigned(statement):
            if name in _NAMES and value is not None:
                found[name] = _literal(name, value)
    functions = {s.name for s in tree.body if isinstance(s, ast.FunctionDef)}
    # As it would be read if it were run, which says what is wrong with each.
    adapter = Adapter.from_object(_Declarations(found), "the assignment's adapter", spec)
    if adapter.arrays == Wire.name:
        raise AdapterError(f"the assignment's adapter: ARRAYS is {Wire.name!r}, which no file can be")
    names = _names(tree)
    for component in asked:
        if names is not None and component not in names:
            what = f"has no {component}, which components asks for: write a function of that name, or do not ask for it"
            raise AdapterError(f"the assignment's adapter {what}")
    return Declared(
        adapter.arrays,
        adapter.conventions,
        adapter.dtypes,
        frozenset(
            name
            for name, contract in spec.contracts.items()
            if f"{name}_gradient" in functions or (LIBRARIES[adapter.arrays].differentiates and _is_float(contract))
        ),
    )


class _Declarations:
    """An object that has just what is declared."""

    def __init__(self, found: Mapping[str, Any]) -> None:
        vars(self).update(found)


def _is_float(contract: Contract) -> bool:
    return contract.outputs[contract.first_output].kind == "float"


def _assigned(statement: ast.stmt) -> list[tuple[str, ast.expr | None]]:
    """The names that a statement gives values to."""
    match statement:
        case ast.Assign(targets=targets, value=value):
            return [(target.id, value) for target in targets if isinstance(target, ast.Name)]
        case ast.AnnAssign(target=ast.Name(id=name), value=value):
            return [(name, value)]
    return []


def _names(tree: ast.Module) -> set[str] | None:
    """Every name that a text binds somewhere; None where it could bind any."""
    found: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                found.add(name)
            case ast.Name(id=name, ctx=ast.Store()):
                found.add(name)
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                found.update(alias.asname or alias.name for alias in aliases)
    return None if found & {"*", "__getattr__"} or "globals" in ast.dump(tree) else found


def _literal(name: str, value: ast.expr) -> Any:
    try:
        return ast.literal_eval(value)
    except ValueError as error:
        what = f"{name} is no literal (line {value.lineno}): it is read without running the file"
        raise AdapterError(f"the assignment's adapter: {what}") from error
