"""A formula recorded as a graph: each operation with the named step in which it happens.

`record` runs a formula of spec/formulas on `Node`s, arrays with NumPy's protocols. Each argument of a step is a node of
its own, so that it can be changed apart from other uses of the same array. `Graph.run` computes what depends on changed
nodes again; the others keep their values.
"""

from __future__ import annotations

import math
import operator
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from functools import cache, partial
from inspect import signature
from typing import Any, Final

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from goldformer.adapters.textbook.reverse import Recorded
from goldformer.spec.formulas import COMPONENTS, name_outputs
from goldformer.spec.formulas.arrays import Arithmetic, Array, arithmetic, computing
from goldformer.spec.formulas.steps import Replacements, Step, around, hold, list_steps, replacing

#: An array, or a number of Python's, which promotes no dtype.
Value = Any
#: Reads the value that a node has while a change is computed.
Read = Callable[["Node"], Value]
#: What a changed node becomes.
Change = Callable[[Read], Value]

#: The methods of arrays that formulas use.
_METHODS: Final = frozenset(
    {"all", "any", "astype", "copy", "cumsum", "max", "mean", "reshape", "sum", "swapaxes", "transpose", "var"}
)


#: The number of elements of an array that take as long as the call of an operation.
_SMALL: Final = 2000


class UnrecordableError(Exception):
    """Raised where code turns a node into an array of NumPy's: what follows would not be recorded."""


class Scope:
    """One call of a step; `number` counts the calls of it in the whole run."""

    __slots__ = ("_ops", "name", "nodes", "number", "parent", "results")

    def __init__(self, name: str, number: int, parent: Scope | None) -> None:
        self.name, self.number, self.parent = name, number, parent
        #: Its arguments and operations, and what it returns, by their roles.
        self.nodes: dict[str, Node] = {}
        self.results: dict[str, Node] = {}
        self._ops: Counter[str] = Counter()

    def count_operation(self, name: str) -> str:
        """Return the role of the next operation of a kind, such as "sum-0"."""
        self._ops[name] += 1
        return f"{name}-{self._ops[name] - 1}"

    @property
    def chain(self) -> list[Scope]:
        """The calls around it and itself, from the outermost; of the whole formula only itself."""
        if self.parent is None:
            return [self]
        return [*(self.parent.chain if self.parent.parent else ()), self]

    def matches(self, path: str) -> bool:
        """Return True if a path names this call of its step, or all of them: "run_sublayer#1/norm_denominator"."""
        *calls, last = path.split("/")
        *around_, own = self.chain
        scopes = iter(around_)
        return own._is(last) and all(any(scope._is(call) for scope in scopes) for call in calls)

    def _is(self, call: str) -> bool:
        name, _, number = call.partition("#")
        return name == self.name and number in ("", str(self.number))

    def is_within(self, other: Scope) -> bool:
        """Return True for the other scope itself, and in it."""
        return self is other or other in self.chain or other.parent is None


class Node(NDArrayOperatorsMixin):
    """The result of one operation, its value included, which later operations take like an array."""

    __slots__ = ("_graph", "arguments", "function", "index", "named", "parents", "role", "scope", "size", "uses",
                 "value")  # fmt: skip

    def __init__(
        self, graph: Graph, function: Callable[..., Value], arguments: tuple[Any, ...], named: Mapping[str, Any],
        role: str,
    ) -> None:  # fmt: skip
        self._graph, self.function, self.arguments, self.named = graph, function, arguments, named
        self.scope, self.role, self.index = graph.scope, role, len(graph.nodes)
        self.parents: tuple[Node, ...] = tuple(_list_nodes((*arguments, *named.values())))
        self.uses: list[Node] = []
        for parent in dict.fromkeys(self.parents):
            parent.uses.append(self)
        self.value: Value = self.compute(lambda node: node.value)
        self.size = math.prod(np.shape(self.value))
        self.scope.nodes[role] = self
        graph.nodes.append(self)

    def compute(self, read: Read) -> Value:
        """Compute the operation with the values that `read` gives."""
        # Almost every argument is a node or a constant; a search computes millions of operations.
        given = [
            read(x) if isinstance(x, Node) else _fill(x, read) if isinstance(x, list | tuple) else x
            for x in self.arguments
        ]
        return self.function(*given, **_fill(self.named, read)) if self.named else self.function(*given)

    def __eq__(self, other: object) -> bool:
        # A node is a key of mappings. No formula compares floats for equality.
        return self is other

    def __hash__(self) -> int:
        return self.index

    @property
    def is_argument(self) -> bool:
        """Return True for an argument of a step, False for an operation."""
        return "-" not in self.role

    @property
    def is_number(self) -> bool:
        """Return True for a number of Python's."""
        return isinstance(self.value, float | int)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of its value."""
        return np.shape(self.value)

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return np.ndim(self.value)

    @property
    def dtype(self) -> Any:
        """The dtype of its value."""
        return self.value.dtype

    @property
    def real(self) -> Node:
        """The real part."""
        return self._graph.note("real", np.real, self)

    @property
    def T(self) -> Node:  # noqa: N802 - NumPy's name
        """The transpose."""
        return self._graph.note("transpose", np.transpose, self)

    def __getattr__(self, name: str) -> Any:
        if name not in _METHODS:
            raise AttributeError(name)
        return partial(self._graph.note, name, partial(_call_method, name), self)

    def __getitem__(self, places: Any) -> Node:
        return self._graph.note("part", operator.getitem, self, places)

    def __len__(self) -> int:
        return len(self.value)

    def __iter__(self) -> Iterator[Node]:
        return (self[place] for place in range(len(self)))

    def __float__(self) -> float:
        return float(self.value)

    def __array__(self, *_: Any, **__: Any) -> Array:
        raise UnrecordableError

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        if method != "__call__" or "out" in options:
            return NotImplemented
        values = [x.value if isinstance(x, Node) else x for x in inputs]
        numbers = all(isinstance(value, float | int) for value in values)
        # NumPy makes a float64 of two numbers, which would promote an array in float32.
        function = partial(_compute_number, ufunc) if numbers else ufunc
        return self._graph.note(ufunc.__name__, function, *inputs, **options)

    def __array_function__(self, function: Any, types: Any, arguments: Any, options: Any) -> Any:
        del types
        made = self._graph.note(function.__name__, function, *arguments, **options)
        if isinstance(made.value, list | tuple):
            return [self._graph.note("part", operator.getitem, made, place) for place in range(len(made.value))]
        return made


def _call_method(name: str, x: Value, *arguments: Any, **named: Any) -> Value:
    return getattr(x, name)(*arguments, **named)


def _compute_number(ufunc: np.ufunc, *values: float) -> float:
    return float(ufunc(*values))


def _list_nodes(things: Any) -> Iterator[Node]:
    for thing in things:
        if isinstance(thing, Node):
            yield thing
        elif isinstance(thing, list | tuple):
            yield from _list_nodes(thing)


def _fill(things: Any, read: Read) -> Any:
    """Return arguments with values in the place of nodes."""
    if isinstance(things, Node):
        return read(things)
    if isinstance(things, tuple | list):
        return type(things)(_fill(thing, read) for thing in things)
    if isinstance(things, Mapping):
        return {name: _fill(thing, read) for name, thing in things.items()}
    return things


class _Recording(Arithmetic):
    """Makes a node of each constant of a formula, which the arithmetic around it computes."""

    def __init__(self, graph: Graph) -> None:
        self._graph, self._around = graph, arithmetic()

    def number(self, value: Any) -> Any:
        return value if isinstance(value, Node) else self._graph.note("number", _give, value)

    def root(self, value: Any) -> Any:
        return self._graph.note("root", self._around.root, self.number(value))

    def power(self, base: Any, exponent: Any) -> Any:
        return self._graph.note("power", self._around.power, base, exponent)

    def numbers(self, values: Any, dtype: Any) -> Any:
        return self._graph.note("numbers", self._around.numbers, values, dtype)

    def decide(self, x: Any) -> Any:
        return self._graph.note("real", self._around.decide, x) if isinstance(x, Node) else self._around.decide(x)

    def erf(self, x: Any) -> Any:
        return self._graph.note("erf", self._around.erf, x)

    def lowest(self, dtype: Any) -> Any:
        return self.number(self._around.lowest(dtype))

    def constant(self, value: Any, like: Any) -> Any:
        given = like.value if isinstance(like, Node) else like
        return self._graph.note("constant", partial(self._around.constant, like=given), value)

    def pi(self) -> Any:
        return self.number(super().pi())


def _give(value: Value) -> Value:
    return value


class Graph:
    """The nodes of one run of a formula, in the order in which they were computed, and its outputs by name."""

    def __init__(self, component: str) -> None:
        self.nodes: list[Node] = []
        self.root = self.scope = Scope(component, 0, None)
        self._calls: defaultdict[str, list[Scope]] = defaultdict(list, {component: [self.root]})
        self._names: dict[Scope, str] = {}
        self._below: dict[tuple[Node, ...], list[Node]] = {}
        self._reached: dict[Node, frozenset[str]] = {}
        self.scopes = [self.root]
        self.outputs: dict[str, Any] = {}
        self._found: dict[str, list[Node]] = {}
        #: The whole numbers that the formula takes, such as the number of heads.
        self.attributes: dict[str, int] = {}
        #: The work of all runs, in operations on small arrays.
        self.work = 0

    def note(self, kind: str, function: Callable[..., Value], /, *arguments: Any, **named: Any) -> Node:
        """Compute an operation in the scope that runs, and return its node."""
        return Node(self, function, arguments, named, self.scope.count_operation(kind))

    def take(self, name: str, value: Any) -> Any:
        """Return an argument as a node if it is an array of floats, a mask or a node; parameters one by one."""
        if isinstance(value, Mapping) and self.scope is self.root:
            return {key: self.take(key, inner) for key, inner in value.items()}
        kinds = "fcb" if name.endswith("mask") else "fc"
        if isinstance(value, Node) or (isinstance(value, np.ndarray | Recorded) and value.dtype.kind in kinds):
            return Node(self, _give, (value,), {}, name)
        return value

    def run_step(self, name: str, names: tuple[str, ...], original: Step, *args: Any, **named: Any) -> Any:
        """Run a step in a scope of its own; the whole formula has one already."""
        if self.scope is self.root and name == self.root.name:
            return original(*args, **named)
        scope = self.scope = Scope(name, len(self._calls[name]), self.scope)
        self._calls[name].append(scope)
        self.scopes.append(scope)
        try:
            given = [self.take(n, value) for n, value in zip(names, args, strict=False)]
            returned = original(*given, **{n: self.take(n, value) for n, value in named.items()})
        finally:
            self.scope = scope.parent or self.root
        scope.results = dict(_name_results(name, returned))
        return returned

    def find(self, place: str) -> list[Node]:
        """Return the nodes of a place: "mean_square/sum-0" in every call of the step, or in one, by its path."""
        if place not in self._found:
            path, _, role = place.rpartition("/")
            scopes = self.find_scopes(path)
            named = [scope.results if role.startswith("result") else scope.nodes for scope in scopes]
            self._found[place] = [nodes[role] for nodes in named if role in nodes]
        return self._found[place]

    def name_call(self, scope: Scope) -> str:
        """Return the path of one call of a step, by the outermost call around it that makes it only once."""
        if scope not in self._names:
            self._names[scope] = self._find_name(scope)
        return self._names[scope]

    def _find_name(self, scope: Scope) -> str:
        for outer in scope.chain[:-1]:
            path = f"{outer.name}#{outer.number}/{scope.name}"
            if len(self._calls[outer.name]) > 1 and len(self.find_scopes(path)) == 1:
                return path
        return f"{scope.name}#{scope.number}"

    def find_scopes(self, path: str) -> list[Scope]:
        """Return the calls of a step, or the one call of a path."""
        name = path.rpartition("/")[2].partition("#")[0]
        return [scope for scope in self._calls[name] if scope.matches(path)]

    def _list_below(self, changed: tuple[Node, ...]) -> list[Node]:
        """Return some nodes and all that depend on them, in order."""
        if changed not in self._below:
            below, waiting = {*changed}, [*changed]
            while waiting:
                new = [use for use in waiting.pop().uses if use not in below]
                below.update(new)
                waiting += new
            self._below[changed] = sorted(below, key=lambda node: node.index)
        return self._below[changed]

    def find_reached(self, changed: Iterable[Node]) -> frozenset[str]:
        """Return the outputs that depend on some nodes."""
        if not self._reached:
            made: defaultdict[Node, set[str]] = defaultdict(set)
            for name, output in self.outputs.items():
                if isinstance(output, Node):
                    made[output].add(name)
            for node in reversed(self.nodes):
                made[node].update(*(made[use] for use in node.uses))
            self._reached = {node: frozenset(names) for node, names in made.items()}
        return frozenset[str]().union(*(self._reached[node] for node in changed))

    def run(self, changes: Mapping[Node, Change], most: int | None = None) -> dict[Node, Value]:
        """Return the new values of the nodes that depend on the changes, the first `most` of all nodes."""
        fresh: dict[Node, Value] = {}

        def read(node: Node) -> Value:
            return fresh.get(node, node.value)

        for node in self._list_below((*changes,)):
            if most is not None and node.index >= most:
                break
            fresh[node] = match_dtype(changes[node](read), node.value) if node in changes else node.compute(read)
        self.work += sum(1 + node.size // _SMALL for node in fresh)
        return fresh


def match_dtype(value: Value, like: Value) -> Value:
    """Return a value in the dtype of another one, numbers of Python's as they are."""
    is_array = isinstance(value, np.ndarray | Recorded) and hasattr(like, "dtype")
    return value.astype(like.dtype, copy=False) if is_array else value


def _name_results(step: str, returned: Any) -> Iterator[tuple[str, Node]]:
    if isinstance(returned, tuple) and step in COMPONENTS:
        returned = name_outputs(step, returned)
    if isinstance(returned, Node):
        yield "result", returned
    elif isinstance(returned, tuple | Mapping):
        named = returned.items() if isinstance(returned, Mapping) else enumerate(returned)
        yield from ((f"result.{name}", value) for name, value in named if isinstance(value, Node))


@cache
def _list_names(step: Step) -> tuple[str, ...]:
    return tuple(signature(step).parameters)


#: The graph of the formula that runs.
_recorded: Final[ContextVar[Graph]] = ContextVar("recorded")


def _run_recorded(name: str, names: tuple[str, ...], original: Step, *args: Any, **named: Any) -> Any:
    return _recorded.get().run_step(name, names, original, *args, **named)


@cache
def _note_steps(steps: tuple[Step, ...]) -> Replacements:
    # One for all graphs: a gradient records a formula once for each element of its arguments.
    return {step: around(partial(_run_recorded, step.__name__, _list_names(step))) for step in steps}


def record(component: str, formula: Step, *args: Any, run: Step | None = None, **named: Any) -> tuple[Graph, Any]:
    """Return the graph of a formula for some arguments, and what the formula returned, made of nodes.

    `run` is the same formula with steps replaced, such as by an option.
    """
    graph = Graph(component)
    names = _list_names(formula)
    attributes = {**dict(zip(names, args, strict=False)), **named}
    graph.attributes = {name: value for name, value in attributes.items() if type(value) is int}
    given = [graph.take(name, value) for name, value in zip(names, args, strict=False)]
    with computing(_Recording(graph)), hold(_recorded, graph), replacing(_note_steps(list_steps())):
        returned = (run or formula)(*given, **{name: graph.take(name, value) for name, value in named.items()})
    graph.root.results = dict(_name_results(component, returned))
    graph.outputs = name_outputs(component, returned)
    return graph, returned
