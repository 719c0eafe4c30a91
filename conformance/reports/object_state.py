"""Find the data that a method keeps in its object and reads in a later call, as a cache of keys and values does.

A table that is made from sizes alone is no such data, and neither is what a call writes before it reads it.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, TypeGuard

from goldformer.adapters.executed import OBJECTS, Use

#: The attributes and functions that give sizes and kinds of arrays, and no data of them.
_SIZES: Final = frozenset({"shape", "size", "dim", "ndim", "numel", "device", "dtype", "type", "len", "range"})
#: The methods whose arguments only say a kind or a shape.
_LIKE: Final = frozenset({"to", "type_as", "expand_as", "view_as", "reshape_as"})


def find_state(method: ast.FunctionDef | ast.AsyncFunctionDef, use: Use) -> list[str]:
    """Return the attributes of self that a method fills with data of its arguments, and may read before that."""
    walk = _Walk({name for name, value in use.arguments.items() if value == OBJECTS})
    walk.run(method.body)
    return sorted(walk.filled & walk.read_early)


@dataclass
class _Walk:
    """A walk through the statements of a method in order; `data` are the variables that hold data of arguments."""

    data: set[str]
    #: The attributes that are certainly written by now, those that were filled, and those that were read before.
    written: set[str] = field(default_factory=set)
    filled: set[str] = field(default_factory=set)
    read_early: set[str] = field(default_factory=set)

    def run(self, body: Sequence[ast.stmt]) -> None:
        """Walk through statements."""
        for statement in body:
            self._run_one(statement)

    def _run_one(self, statement: ast.stmt) -> None:
        if isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign) and statement.value is not None:
            self._read(statement.value)
            for target in statement.targets if isinstance(statement, ast.Assign) else [statement.target]:
                if isinstance(statement, ast.AugAssign):
                    self._read(target)
                self._write(target, statement.value)
        elif isinstance(statement, ast.If):
            self._read(statement.test)
            before = set(self.written)
            self.run(statement.body)
            first, self.written = self.written, before
            self.run(statement.orelse)
            self.written &= first
        elif isinstance(statement, ast.For | ast.While):
            if isinstance(statement, ast.For):
                self._read(statement.iter)
                self._write(statement.target, statement.iter)
            before = set(self.written)
            self.run(statement.body)
            self.written = before
        elif isinstance(statement, ast.With | ast.Try):
            self.run(statement.body)
        elif isinstance(statement, ast.Expr | ast.Return) and statement.value is not None:
            self._read(statement.value)
            self._note_in_place(statement.value)

    def _read(self, node: ast.AST) -> None:
        for inner in ast.walk(node):
            if is_attribute(inner) and isinstance(inner.ctx, ast.Load) and inner.attr not in self.written:
                self.read_early.add(inner.attr)

    def _write(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Tuple | ast.List):
            values = value.elts if isinstance(value, ast.Tuple | ast.List) else []
            values = values if len(values) == len(target.elts) else [value] * len(target.elts)
            for inner, one in zip(target.elts, values, strict=True):
                self._write(inner, one)
            return
        has_data = self._has_data(value)
        if isinstance(target, ast.Name) and has_data:
            self.data.add(target.id)
        base = target.value if isinstance(target, ast.Subscript) else target
        if is_attribute(base):
            if has_data:
                self.filled.add(base.attr)
            if base is target:
                self.written.add(base.attr)

    def _note_in_place(self, node: ast.expr) -> None:
        """Note the attribute that a method such as copy_ fills."""
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr.endswith("_"):
            base = node.func.value.value if isinstance(node.func.value, ast.Subscript) else node.func.value
            if is_attribute(base) and any(map(self._has_data, node.args)):
                self.filled.add(base.attr)

    def _has_data(self, node: ast.AST) -> bool:
        if isinstance(node, ast.Name):
            return node.id in self.data
        if isinstance(node, ast.Attribute) and node.attr in _SIZES:
            return False
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in _SIZES or name.endswith("_like") or name.startswith("new_"):
                return False
            if name in _LIKE:
                return self._has_data(node.func)
        return any(map(self._has_data, ast.iter_child_nodes(node)))


def is_attribute(node: ast.AST) -> TypeGuard[ast.Attribute]:
    """Return True for an attribute of self."""
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"
