"""Read what no golden case ran of the user's code: lines, methods, arguments with one value, and caches.

`adapters.executed` notes what ran, and the source says what else there is. A line that only raises, prints or makes a
loss is left out: nobody asks whether it was judged.
"""

from __future__ import annotations

import ast
import linecache
import re
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeGuard

from goldformer.adapters.executed import OBJECTS, SEVERAL, Executed, Use
from goldformer.conformance.reports.object_state import find_state, is_attribute
from goldformer.spec import Spec

#: The names of arguments and attributes that hold or place the keys and values of earlier calls, and similar names of
#: tables, which hold none.
_CACHE: Final = re.compile(
    r"(\w+_)?(kv_?)?caches?|cache_(k|v|keys?|values?|kv|position)|(\w+_)?past(_\w+)?|use_cache|incremental_state|"
    r"((start|cur|current|input)_?pos(ition)?s?)"
)
_TABLE: Final = re.compile(r"rope|rotary|cos|sin|freq|mask|bias|emb")
#: The calls that do nothing to a result.
_ASIDE: Final = frozenset({"print", "warn", "warning", "info", "debug", "error", "exception"})
#: The names in conditions of lines that make a loss.
_LOSS: Final = re.compile(r"targets?|labels?|loss|criterion")
#: The decorators that leave a function as it is.
_DECORATOR: Final = re.compile(r"staticmethod|classmethod|no_grad|inference_mode")
_ATTENTION: Final = "scaled_dot_product_attention"
#: The arguments that say nothing of what is computed, or make a loss.
_ELSEWHERE: Final = re.compile(rf"device|dtype|{_LOSS.pattern}")
#: The methods that take the arguments of a call.
_CALLED: Final = ("forward", "__call__")
#: The values of arguments that pass nothing.
_NOTHING: Final = ("None", "False", "0", "0.0")
#: The longest condition that is quoted.
_LONGEST: Final = 60

_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Lines:
    """Lines that no golden case ran, and the condition under which they run, if it is one of the same function."""

    file: str
    first: int
    last: int
    condition: str = ""

    def __str__(self) -> str:
        """Return the place, as "model.py:41–48 (if past_kv is not None)"."""
        last = "" if self.last == self.first else f"–{self.last}"
        return f"{Path(self.file).name}:{self.first}{last}" + (f" ({self.condition})" if self.condition else "")


@dataclass(frozen=True, slots=True)
class Cache:
    """A cache that no golden case used: the arguments and attributes that it consists of, and its lines."""

    names: tuple[str, ...]
    lines: tuple[Lines, ...] = ()

    def __str__(self) -> str:
        """Return its names and places in words."""
        places = f": {', '.join(map(str, self.lines))} never ran" if self.lines else ""
        return f"{', '.join(self.names)}{places}"


@dataclass(frozen=True, slots=True)
class NeverRan:
    """The code that no golden case ran: lines, methods of judged classes, arguments with their only value, and caches.

    The caches are by the component that has them.
    """

    lines: tuple[Lines, ...] = ()
    methods: tuple[str, ...] = ()
    arguments: Mapping[str, str] = field(default_factory=dict)
    caches: Mapping[str, Cache] = field(default_factory=dict)

    @property
    def places(self) -> list[str]:
        """The lines and the methods in words."""
        return [*map(str, self.lines), *(f"{name}()" for name in self.methods)]

    def describe(self, most: int | None = None) -> str:
        """Return it in a sentence; with `most`, no more than so many lines and methods."""
        places = self.places
        shown = places[:most]
        more = f" and {len(places) - len(shown)} more" if len(shown) < len(places) else ""
        texts = [f"no golden case runs {', '.join(shown)}{more}"] if places else []
        unpassed = [name for name, value in self.arguments.items() if value == repr(None)]
        texts += [f"no golden case passes {' or '.join(unpassed)}"] if unpassed else []
        texts += [f"{name} is always {value}" for name, value in self.arguments.items() if name not in unpassed]
        return "; ".join(texts)


NOTHING_MISSED: Final = NeverRan()


def add_executed(whole: Executed, other: Executed) -> None:
    """Add what ran in another process."""
    for file, lines in other.lines.items():
        whole.lines.setdefault(file, set()).update(lines)
    for place, use in other.functions.items():
        mine = whole.functions.setdefault(place, Use())
        mine.components |= use.components
        mine.is_repeated |= use.is_repeated
        for name, value in use.arguments.items():
            mine.note(name, value)


def read_never_ran(executed: Executed, spec: Spec) -> NeverRan:
    """Return what no golden case ran of the functions and classes that some case called."""
    sources = [source for file in sorted(executed.lines) if (source := _Source.read(file, executed))]
    arguments: dict[str, set[str]] = {}
    caches: dict[str, list[Cache]] = {}
    for source in sources:
        for name, value in source.list_arguments():
            arguments.setdefault(name, set()).add(value)
        for component, cache in source.list_caches(spec):
            caches.setdefault(component, []).append(cache)
    return NeverRan(
        tuple(lines for source in sources for lines in source.list_lines()),
        tuple(name for source in sources for name in source.list_methods()),
        {
            name: min(values)
            for name, values in arguments.items()
            if len(values) == 1 and not values & {OBJECTS, SEVERAL}
        },
        {component: _join_caches(found) for component, found in caches.items()},
    )


def _join_caches(caches: Sequence[Cache]) -> Cache:
    names = dict.fromkeys(name for cache in caches for name in cache.names)
    return Cache(tuple(names), tuple(dict.fromkeys(lines for cache in caches for lines in cache.lines)))


@dataclass(frozen=True)
class _Source:
    """A file of the user: its syntax, the lines that ran, and its functions that ran by their first line."""

    file: str
    tree: ast.Module
    ran: Set[int]
    uses: Mapping[int, Use]

    @classmethod
    def read(cls, file: str, executed: Executed) -> _Source | None:
        """Return the source of a file, or None if it cannot be read."""
        linecache.checkcache(file)
        try:
            tree = ast.parse("".join(linecache.getlines(file)))
        except SyntaxError:
            return None
        uses = {line: use for (place, line), use in executed.functions.items() if place == file}
        return cls(file, tree, executed.lines[file], uses)

    def list_functions(self) -> Iterator[tuple[ast.ClassDef | None, _Function]]:
        """Yield all functions, each with its class."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Module | ast.ClassDef):
                owner = node if isinstance(node, ast.ClassDef) else None
                yield from ((owner, inner) for inner in node.body if isinstance(inner, _Function))

    def find_use(self, function: _Function) -> Use | None:
        """Return the use of a function, or None if it was not entered."""
        return self.uses.get(min([function.lineno, *(decorator.lineno for decorator in function.decorator_list)]))

    def list_lines(self) -> Iterator[Lines]:
        """Yield the lines that did not run of the functions that were entered."""
        for _, function in self.list_functions():
            if self.find_use(function):
                yield from (block.lines for block in self.list_blocks(function.body))

    def list_blocks(self, body: Sequence[ast.stmt], test: ast.expr | None = None, words: str = "") -> Iterator[_Block]:
        """Yield the groups of statements of a body that did not run; its `test` decides whether the body runs."""
        group: list[ast.stmt] = []
        before: ast.stmt | None = None
        for statement in (*(one for one in body if not _is_silent(one)), None):
            if statement is not None and not self._has_run(statement):
                group.append(statement)
                continue
            why, text = (test, words) if before is None else _read_exit(before)
            if group and not all(map(_is_aside, group)) and not any(map(_LOSS.fullmatch, _list_names(why))):
                lines = Lines(self.file, group[0].lineno, group[-1].end_lineno or 0, text)
                yield _Block(lines, _list_names(why), _list_names(*group))
            group, before = [], statement
            for inner, why, text in _list_bodies(statement):
                yield from self.list_blocks(inner, why, text)

    def _has_run(self, statement: ast.stmt) -> bool:
        return not self.ran.isdisjoint(range(statement.lineno, (statement.end_lineno or 0) + 1))

    def list_methods(self) -> Iterator[str]:
        """Yield the methods that run parts of a class that was called, and were not entered themselves."""
        for owner in [node for node in ast.walk(self.tree) if isinstance(node, ast.ClassDef)]:
            methods = [node for node in owner.body if isinstance(node, _Function)]
            is_called = any(method.name in _CALLED and self.find_use(method) for method in methods)
            stored = {node.attr for node in ast.walk(owner) if _is_stored(node)}
            parts = stored - {method.name for method in methods} | {"forward"}
            for method in methods if is_called else ():
                # Any other decorator, such as a compiler, may hide that its function runs.
                is_plain = all(_DECORATOR.search(ast.unparse(one)) for one in method.decorator_list)
                is_public = not method.name.startswith("_")
                if is_public and is_plain and not self.find_use(method) and _calls_part(method, parts):
                    yield f"{owner.name}.{method.name}"

    def list_arguments(self) -> Iterator[tuple[str, str]]:
        """Yield the optional arguments of calls and functions, each with the value that it always had."""
        for owner, function in self.list_functions():
            use = self.find_use(function)
            if use is None or (owner is not None and function.name not in _CALLED):
                continue
            optional = _list_optional(function)
            for name, value in use.arguments.items():
                # The arguments of a helper are for its caller to choose: only one that it never gets says something.
                if not _ELSEWHERE.fullmatch(name) and (value in _NOTHING or (owner is not None and name in optional)):
                    yield name, value

    def list_caches(self, spec: Spec) -> Iterator[tuple[str, Cache]]:
        """Yield the caches of attention that no case used, each with a component that has it."""
        for owner, function in self.list_functions():
            use = self.find_use(function)
            components = [name for name in use.components if _attends(name, spec)] if use else []
            if use is None or not components or function.name == "__init__":
                continue
            names = [name for name, value in use.arguments.items() if value in _NOTHING and _is_cache(name)]
            blocks = [*self.list_blocks(function.body)]
            tested = {name for block in blocks for name in block.tested if name not in use.arguments}
            names += sorted(name for name in tested if _is_cache(name))
            has_session = any(spec.contracts[name].session for name in use.components)
            if owner is not None and not use.is_repeated and not has_session:
                names += [name for name in find_state(function, use) if name not in names]
            lines = tuple(block.lines for block in blocks if not {*names}.isdisjoint(block.tested | block.used))
            yield from ((component, Cache(tuple(names), lines)) for component in components if names)


@dataclass(frozen=True, slots=True)
class _Block:
    """Lines that did not run, the names in the condition under which they run, and the names that they use."""

    lines: Lines
    tested: frozenset[str]
    used: frozenset[str]


def _list_names(*nodes: ast.AST | None) -> frozenset[str]:
    """Return the variables and attributes that syntax names."""
    inner = [one for node in nodes if node is not None for one in ast.walk(node)]
    named = {one.id for one in inner if isinstance(one, ast.Name)}
    return frozenset(named | {one.attr for one in inner if isinstance(one, ast.Attribute)})


def _is_silent(statement: ast.stmt) -> bool:
    """Return True for a statement that Python may leave out of its code."""
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, ast.Constant)
    is_declared = isinstance(statement, ast.AnnAssign) and statement.value is None
    return is_declared or isinstance(statement, ast.Pass | ast.Continue | ast.Break | ast.Global | ast.Nonlocal)


def _is_aside(statement: ast.stmt) -> bool:
    """Return True for a statement that raises or says something, and computes nothing."""
    if isinstance(statement, ast.If):
        return all(map(_is_aside, (*statement.body, *statement.orelse)))
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        return ast.unparse(statement.value.func).rpartition(".")[2] in _ASIDE
    return isinstance(statement, ast.Raise | ast.Assert) or _is_silent(statement)


def _list_bodies(statement: ast.stmt | None) -> Iterator[tuple[list[ast.stmt], ast.expr | None, str]]:
    """Yield the bodies inside a statement, each with its condition; not those that handle errors."""
    if isinstance(statement, ast.If | ast.While):
        word = "if" if isinstance(statement, ast.If) else "while"
        yield statement.body, statement.test, _quote(word, statement.test)
        yield statement.orelse, statement.test, _quote("unless", statement.test)
    elif isinstance(statement, ast.For):
        yield statement.body, statement.iter, _quote("for each of", statement.iter)
    elif isinstance(statement, ast.With | ast.Try):
        yield statement.body, None, ""
    elif isinstance(statement, ast.Match):
        yield from ((case.body, None, _quote("case", case.pattern)) for case in statement.cases)


def _read_exit(statement: ast.stmt) -> tuple[ast.expr | None, str]:
    """Return the condition that leaves what follows a statement to run, if the statement returns."""
    if isinstance(statement, ast.If) and isinstance(statement.body[-1], ast.Return | ast.Raise | ast.Continue):
        return statement.test, _quote("unless", statement.test)
    return None, ""


def _quote(word: str, node: ast.AST) -> str:
    text = ast.unparse(node)
    return f"{word} {text if len(text) <= _LONGEST else f'{text[:_LONGEST]}…'}"


def _is_stored(node: ast.AST) -> TypeGuard[ast.Attribute]:
    """Return True for an attribute of self that a value is assigned to."""
    return is_attribute(node) and isinstance(node.ctx, ast.Store)


def _calls_part(method: _Function, parts: Collection[str]) -> bool:
    """Return True for a method that calls self, or a part that self has."""
    called = [node.func for node in ast.walk(method) if isinstance(node, ast.Call)]
    return any((isinstance(f, ast.Name) and f.id == "self") or (is_attribute(f) and f.attr in parts) for f in called)


def _list_optional(function: _Function) -> set[str]:
    """Return the arguments that have a default."""
    arguments = function.args
    places = [*arguments.posonlyargs, *arguments.args]
    by_place = places[len(places) - len(arguments.defaults) :]
    by_name = [one for one, value in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if value]
    return {one.arg for one in (*by_place, *by_name)}


def _is_cache(name: str) -> bool:
    return _CACHE.fullmatch(name) is not None and not _TABLE.search(name)


def _attends(component: str, spec: Spec) -> bool:
    """Return True for a component with keys that earlier calls may have made, and none that is judged over sessions."""
    is_attention = _ATTENTION in (component, *spec.list_dependencies(component))
    return is_attention and spec.contracts[component].session is None
