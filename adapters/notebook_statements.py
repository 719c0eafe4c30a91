"""Choose the statements of a notebook that are read: definitions, constants, and the imports that these use.

A statement that sets an attribute of a definition belongs to it: `Layer.forward = forward` adds a method to a class.
"""

from __future__ import annotations

import ast
import re
import symtable
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Final

#: The functions whose calls make constants: they need no data, change nothing, and return at once.
_HARMLESS: Final = frozenset(
    f"{owner}{name}"
    for owner, names in {
        "": "abs bool classmethod complex dict float frozenset int len list max min namedtuple partial property round "
        "set staticmethod str tuple NewType TypeVar",
        "math.": "ceil exp floor log log2 log10 sqrt",
        "np.": "array finfo float16 float32 float64 log sqrt",
        "numpy.": "array finfo float16 float32 float64 log sqrt",
        "torch.": "cuda.is_available device finfo tensor backends.mps.is_available",
        "collections.": "namedtuple",
        "functools.": "partial",
        "logging.": "getLogger",
        "typing.": "NewType TypeVar",
    }.items()
    for name in names.split()
)
#: A name in an annotation, which may be a string.
_NAME: Final = re.compile(r"[^\W\d]\w*")
#: What a line of a cell that is not valid Python would define.
_WOULD_DEFINE: Final = re.compile(
    r"^[ \t]*(?:(?:async[ \t]+)?def|class)[ \t]+(\w+)|^(\w+)[ \t]*(?::[^=\n]*)?=(?!=)", re.MULTILINE
)
_COMPREHENSIONS: Final = frozenset({"listcomp", "setcomp", "dictcomp", "genexpr"})
FUTURE: Final = "__future__"


@dataclass(slots=True)
class StatementChoice:
    """Chooses statements in the order of the notebook.

    `bound` are the names of what is kept, `definitions` those of functions and classes among them, `used` those that it
    uses. `lost` are those that only what is left out binds, or may have changed since, and attributes, as
    "Layer.forward".
    """

    lazy_annotations: bool
    bound: set[str] = field(default_factory=set)
    definitions: set[str] = field(default_factory=set)
    used: set[str] = field(default_factory=set)
    lost: set[str] = field(default_factory=set)

    def add(self, node: ast.stmt, text: str) -> frozenset[str] | None:
        """Keep a statement and return None, or leave it out and return the names that it binds or changes.

        A statement is left out too if it needs what is lost.
        """
        bound, needed, used = _read_names(node, text, lazy_annotations=self.lazy_annotations)
        # A condition or a `try` may bind the names that it needs.
        needed -= bound if isinstance(node, ast.If | ast.Try) else frozenset()
        assigns = isinstance(node, ast.Assign | ast.AnnAssign)
        changed = frozenset(name for name in _list_changed(node) if _get_root(name) in self.bound)
        extends = self.definitions.issuperset(map(_get_root, changed))
        if not _is_kept(node) or not extends or needed & (self.lost if assigns else self.lost - self.bound):
            self.lost |= bound | changed
            return bound | changed
        self.bound |= bound
        self.lost = {name for name in self.lost if _get_root(name) not in bound}
        is_import = isinstance(node, ast.Import | ast.ImportFrom)
        self.definitions = self.definitions - bound if assigns or is_import else self.definitions | bound
        self.used |= frozenset() if is_import else used
        return None

    def is_needed(self, name: str, wanted: Collection[str]) -> bool:
        """Return True if what is kept uses a name, or if that is a definition which is lost in part."""
        return _get_root(name) in wanted or _get_root(name) in self.definitions


def select_imports(node: ast.stmt, wanted: Collection[str]) -> ast.stmt | None:
    """Return a statement, of `import a, b` only what is wanted; None for an import of which nothing is."""
    if isinstance(node, ast.Import):
        names = [alias for alias in node.names if _get_bound(alias) in wanted]
        return ast.copy_location(ast.Import(names), node) if names else None
    if isinstance(node, ast.ImportFrom) and node.module != FUTURE:
        return node if any(alias.name == "*" or _get_bound(alias) in wanted for alias in node.names) else None
    return node


def list_bound(node: ast.stmt) -> list[str]:
    """Return the names that an import binds."""
    return [_get_bound(alias) for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []


def _read_names(
    node: ast.stmt, text: str, *, lazy_annotations: bool
) -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
    """Return the global names that a statement binds, that it needs to run, and that it uses, also in functions.

    With `lazy_annotations` no annotation is evaluated.
    """
    first = f"from {FUTURE} import annotations\n" if lazy_annotations else ""
    table = symtable.symtable(first + text, "cell", "exec")
    bound = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_assigned() or symbol.is_imported()}
    return (
        frozenset(bound - {"annotations"} if first else bound),
        frozenset(_list_needed(table)),
        frozenset({*_list_used(table), *_list_annotated(node)}),
    )


def guess_names(source: str) -> tuple[str, ...]:
    """Return the names that a cell would bind that is not valid Python."""
    return tuple(dict.fromkeys(one or other for one, other in _WOULD_DEFINE.findall(source)))


def _list_needed(table: symtable.SymbolTable) -> Iterator[str]:
    """Yield the global names that a statement needs to run, and not those that its functions need when called."""
    is_class = table.get_type() == "class"
    yield from (s.get_name() for s in table.get_symbols() if s.is_referenced() and not (is_class and s.is_local()))
    for inner in table.get_children():
        if inner.get_type() == "class":
            yield from _list_needed(inner)
        elif inner.get_name() in _COMPREHENSIONS:
            yield from (s.get_name() for s in inner.get_symbols() if s.is_global())


def _list_used(table: symtable.SymbolTable) -> Iterator[str]:
    waiting = [table]
    while waiting:
        inner = waiting.pop()
        everything = inner.get_type() != "function"
        yield from (s.get_name() for s in inner.get_symbols() if s.is_referenced() and (everything or s.is_global()))
        waiting += inner.get_children()


def _list_changed(node: ast.stmt) -> Iterator[str]:
    """Yield the names of objects of which a statement changes an item, and the attributes that it sets or deletes."""
    waiting: list[ast.AST] = [node]
    while waiting:
        inner = waiting.pop()
        if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            continue  # it runs later, if at all
        waiting += ast.iter_child_nodes(inner)
        match inner:
            case ast.Subscript(value=ast.Name(id=name), ctx=ast.Store() | ast.Del()):
                yield name
            case ast.Attribute(value=ast.Name(id=name), attr=attribute, ctx=ast.Store() | ast.Del()):
                yield f"{name}.{attribute}"
            case ast.Call(func=ast.Name(id="setattr"), args=[ast.Name(id=name), ast.Constant(value=str(attribute)), _]):
                yield f"{name}.{attribute}"
            case ast.Call(func=ast.Name(id="setattr"), args=[ast.Name(id=name), *_]):
                yield name  # which attribute is known only when it runs


def _list_annotated(node: ast.stmt) -> Iterator[str]:
    """Yield the names in annotations, which may be strings, or become strings by an import from __future__."""
    for inner in ast.walk(node):
        for annotation in (getattr(inner, "annotation", None), getattr(inner, "returns", None)):
            if isinstance(annotation, ast.expr):
                yield from _NAME.findall(ast.unparse(annotation))


def _get_root(name: str) -> str:
    return name.partition(".")[0]


def _get_bound(alias: ast.alias) -> str:
    return alias.asname or _get_root(alias.name)


def _is_kept(node: ast.stmt) -> bool:
    """Return True for an import, a definition, a constant, and a condition around nothing else."""
    waiting = [node]  # no recursion: a condition may have any number of branches
    while waiting:
        match waiting.pop():
            case ast.Import() | ast.ImportFrom() | ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                kept = True
            case ast.Assign(targets=targets, value=value):
                kept = all(map(_is_name_or_attribute, targets)) and _is_constant(value)
            case ast.Expr(value=ast.Call(func=ast.Name(id="setattr"), args=[ast.Name(), ast.Constant(), value])):
                kept = _is_constant(value)
            case ast.AnnAssign(target=target, value=value):
                kept = isinstance(target, ast.Name) and value is not None and _is_constant(value)
            case ast.If(test=test, body=body, orelse=orelse):
                kept = _is_constant(test)
                waiting += [*body, *orelse]
            case ast.Try(body=body, handlers=handlers, orelse=orelse):
                inner = [*body, *(statement for handler in handlers for statement in handler.body), *orelse]
                kept = True
                waiting += [statement for statement in inner if not isinstance(statement, ast.Pass)]
            case _:
                kept = False
        if not kept:
            return False
    return True


def _is_name_or_attribute(target: ast.expr) -> bool:
    match target:
        case ast.Name() | ast.Attribute(value=ast.Name()):
            return True
        case ast.Tuple(elts=targets):
            return all(map(_is_name_or_attribute, targets))
    return False


def _is_constant(value: ast.expr) -> bool:
    """Return True for literals, names, what operators make of them, and calls that do nothing else."""
    if isinstance(value, ast.Lambda):
        return True
    return not any(
        isinstance(inner, ast.Await | ast.Yield | ast.YieldFrom | ast.NamedExpr)
        or (isinstance(inner, ast.Call) and not _is_harmless(inner.func))
        for inner in ast.walk(value)
    )


def _is_harmless(function: ast.expr) -> bool:
    names: list[str] = []
    while isinstance(function, ast.Attribute):
        names.append(function.attr)
        function = function.value
    return isinstance(function, ast.Name) and ".".join([function.id, *reversed(names)]) in _HARMLESS
