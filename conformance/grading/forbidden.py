"""Find uses of forbidden names by reading the source of a submission: a hint for people, and no proof.

Imports and aliases are resolved; code that builds a name at run time is not seen.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from goldformer.conformance.grading.model import ForbiddenUse
from goldformer.conformance.grading.python_files import parse, read_python_files

#: The most uses that are listed for a submission, and the most characters of a private name.
_MOST_USES: Final = 50
_LONGEST: Final = 80
#: Names below which a library has its functions once more, although they are not private by their spelling.
_INTERNAL: Final = ("torch.ops.",)


def find_forbidden_uses(files: Mapping[str, bytes], forbid: Sequence[str]) -> tuple[ForbiddenUse, ...]:
    """Return where the Python files of a submission use a forbidden name, each name once in a line.

    Private names of the same libraries are returned too: they may be what is forbidden.

    Time and memory stay proportional to what is read.
    """
    uses: dict[ForbiddenUse, None] = {}
    for file, source in read_python_files(files) if forbid else ():
        tree = parse(source)
        if tree is None:
            continue
        if len(uses) >= _MOST_USES:
            break
        reader = _Reader(file, forbid)
        try:
            reader.visit(tree)
        except RecursionError:
            continue
        uses |= reader.uses
    return tuple(uses)[:_MOST_USES]


@dataclass
class _Reader(ast.NodeVisitor):
    """Reads one file from top to bottom; `names` are its names for dotted names of other modules."""

    file: str
    forbid: Sequence[str]
    names: dict[str, str] = field(default_factory=dict)
    stars: dict[str, None] = field(default_factory=dict)
    uses: dict[ForbiddenUse, None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Find how many characters of a dotted name decide whether it is forbidden or part of a forbidden one."""
        self._decisive = max(_LONGEST, *map(len, self.forbid)) + 1
        self._libraries = {name.partition(".")[0] for name in self.forbid if "." in name}

    def _join(self, owner: str, attribute: str) -> str:
        return f"{owner}.{attribute}"[: self._decisive]

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            first = alias.name.partition(".")[0]
            self.names[alias.asname or first] = alias.name if alias.asname else first
            self._report(node, [alias.name])

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if node.level or node.module is None:
            return  # a module of the submission, which is read too
        for alias in node.names:
            if alias.name == "*":
                if any(name.startswith(f"{node.module}.") for name in self.forbid):
                    self.stars[node.module] = None
                continue
            self.names[alias.asname or alias.name] = self._join(node.module, alias.name)
            self._report(node, [self._join(node.module, alias.name)])

    def visit_Assign(self, node: ast.Assign) -> None:
        self.generic_visit(node)
        named = next(iter(self._resolve(node.value)), None)
        for target in node.targets:
            if isinstance(target, ast.Name):
                if named is None:
                    self.names.pop(target.id, None)
                else:
                    self.names[target.id] = named

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        # A function of the submission may have the name of a library's.
        self.names.pop(node.name, None)
        self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load):
            self._report(node, self._resolve(node))

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if names := self._resolve(node):
            self._report(node, names)
            return  # whatever its parts use, it uses too
        inner: ast.expr = node
        while isinstance(inner, ast.Attribute):
            # The type of the object is not known: every forbidden method of that name may be meant.
            methods = [name for name in self.forbid if _is_method(name) and name.rpartition(".")[2] == inner.attr]
            self._report(inner, methods)
            inner = inner.value
        self.visit(inner)

    def visit_Call(self, node: ast.Call) -> None:
        match node:
            case ast.Call(func=ast.Name(id="getattr"), args=[owner, ast.Constant(value=str(attribute)), *_]) if (
                owned := self._resolve(owner)
            ):
                self._report(node, [self._join(name, attribute) for name in owned])
        self.generic_visit(node)

    def _resolve(self, node: ast.expr) -> list[str]:
        """Return the dotted names that an expression may have; none if it is nothing that was imported."""
        match node:
            case ast.Name(id=id_) if id_ in self.names:
                return [self.names[id_]]
            case ast.Name(id=id_):
                return [self._join(module, id_) for module in self.stars]
            case ast.Attribute(value=value, attr=attr):
                return [self._join(name, attr) for name in self._resolve(value)]
        return []

    def _report(self, node: ast.stmt | ast.expr, names: Sequence[str]) -> None:
        for name in self.forbid:
            if any(used == name or used.startswith(f"{name}.") for used in names):
                self.uses[ForbiddenUse(self.file, node.lineno, name)] = None
        for used in names:
            if used not in self.forbid and self._is_private(used):
                self.uses[ForbiddenUse(self.file, node.lineno, used[:_LONGEST], private=True)] = None

    def _is_private(self, name: str) -> bool:
        """Return True for a private name of a library that has a forbidden one."""
        library, *parts = name.split(".")
        private = any(part.startswith("_") and not part.startswith("__") for part in parts)
        return library in self._libraries and (private or f"{name}.".startswith(_INTERNAL))


def _is_method(name: str) -> bool:
    """Return True for a name such as torch.Tensor.softmax, whose last part but one is a class by its spelling."""
    owner = name.rpartition(".")[0].rpartition(".")[2]
    return owner[:1].isupper() or owner == "ndarray"


def list_unmentioned(text: str, forbid: Sequence[str]) -> Iterator[str]:
    """Yield the forbidden names that a text for students does not mention."""
    return (name for name in forbid if name not in text)
