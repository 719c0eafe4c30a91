"""All edits of a recorded formula, the likelier slips first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import combinations, permutations
from typing import Final

from goldformer.conformance.diagnosis.edits.changes import ALONG, BETWEEN, UFUNCS, list_arguments, list_reductions
from goldformer.conformance.diagnosis.edits.edit import Edit
from goldformer.conformance.diagnosis.edits.graph import Graph, Node, Scope

#: The powers of a size, or of a size and a small number.
_POWERS: Final = ("1", "0.5", "2", "-1", "-0.5", "0.25")
_MORE: Final = ("-1", "1")
#: What may stand in the place of a small number, and of a large one.
_TINY: Final = ("0", *(f"1e-{digits:02}" for digits in range(2, 13)))
_LARGE: Final = ("100", "500", "1000", "100000", "500000", "1000000")
#: The most arrays of a shape, the nearest ones, that a step may read instead of its own.
_MOST_SOURCES: Final = 12
#: Functions of numbers and of arrays.
_OF_NUMBERS: Final = ("doubled", "halved", "negated", "inverse", "square", "root", "zero", "plus-one", "minus-one")
_OF_ARRAYS: Final = (
    "negated", "doubled", "halved", "square", "root", "inverse", "absolute", "exponential", "zero", "plus-one",
    "rounded",
)  # fmt: skip
_SCALES: Final = ("1", "0.5", "-1", "-0.5")


def list_edits(graph: Graph, axes: Mapping[tuple[str, int], str]) -> list[Edit]:
    """Return all edits of a graph, the likelier first; `axes` names the sizes of its inputs, ("x", -2) as "seq"."""
    found: dict[Edit, int] = {}
    outer = _find_outer_results(graph)
    for node in graph.nodes:
        scope, role = outer.get(node, (node.scope, node.role))
        for change in dict.fromkeys(_list_changes(graph, node, axes, outer)):
            # A whole output of zeros is told by what became of the result.
            if change != "zero" or scope is not graph.root:
                _note(found, graph, scope, role, change)
    for scope in graph.scopes:
        for role, result in scope.results.items():
            for change in _list_step_changes(graph, scope, result):
                _note(found, graph, scope, role, change)
    for one, two in permutations(_list_parts(graph), 2):
        found.setdefault(Edit(graph.root.name, f"{graph.root.name}/{one}", f"read-part:{two}"), 0)
        if one < two:
            found.setdefault(Edit(graph.root.name, f"{graph.root.name}/{one}", f"exchange-part:{two}"), 0)
    return sorted(found, key=lambda edit: (edit.rank[:2], found[edit]))


def _note(found: dict[Edit, int], graph: Graph, scope: Scope, role: str, change: str) -> None:
    """Note a change in every call of a step, and in one call if there are several."""
    depth, everywhere = len(scope.chain), name_place(scope, role)
    found.setdefault(Edit(graph.root.name, everywhere, change), depth)
    if len(graph.find(everywhere)) > 1:
        found.setdefault(Edit(graph.root.name, f"{graph.name_call(scope)}/{role}", change), depth)


def _list_parts(graph: Graph) -> list[str]:
    """Return the prefixes of parameters, such as "norm_1"."""
    leaves = (node.role for node in graph.nodes if node.scope is graph.root and node.is_argument)
    return list(dict.fromkeys(role.rpartition(".")[0] for role in leaves if "." in role))


def name_place(scope: Scope, role: str) -> str:
    """Return the name of a place in every call of its step."""
    return f"{scope.name}/{role}"


def _find_outer_results(graph: Graph) -> dict[Node, tuple[Scope, str]]:
    """Return for each node that a step returns the outermost such step, and the role that it has there."""
    outer: dict[Node, tuple[Scope, str]] = {}
    for scope in graph.scopes:  # the outer ones come first
        for role, node in scope.results.items():
            outer.setdefault(node, (scope, role))
    return outer


def _list_changes(
    graph: Graph, node: Node, axes: Mapping[tuple[str, int], str], outer: Mapping[Node, tuple[Scope, str]]
) -> Iterator[str]:
    """Yield the changes of one node; `outer` has the steps that return a node."""
    if node.is_number:
        yield from _list_numbers(graph, node, axes, is_result=node in outer)
    elif node.value.dtype.kind == "f":
        yield from _list_sources_of(graph, node, outer)
        # Another change of an argument is one of the array itself, unless that has other uses.
        if not (node.is_argument and node.parents and len(node.parents[0].uses) == 1):
            yield from _OF_ARRAYS
            yield from _list_layouts(node) if node in outer or node.is_argument else ()
            yield from _list_factors(graph, node, axes) if node in outer else ()


def _list_sources_of(graph: Graph, node: Node, outer: Mapping[Node, tuple[Scope, str]]) -> Iterator[str]:
    """Yield the changes of what a node reads, and of its operation."""
    kind = node.role.partition("-")[0]
    if node.is_argument:
        for place in _list_sources(graph, node, node, outer):
            yield f"read:{place}"
            yield f"plus:{place}"
    else:
        for k, parent in enumerate(node.parents):
            if parent.shape == node.shape:
                yield f"keep:{k}:{_name_other(node, k, outer)}".removesuffix(":")
    if len(node.arguments) == 2 and kind in UFUNCS:
        yield from (f"ufunc:{name}" for name in UFUNCS if name != kind)
        yield "operands-exchanged"
    for k, parent in enumerate(node.parents) if len(node.parents) > 1 else ():
        yield from (f"operand:{k}:{place}" for place in _list_sources(graph, node, parent, outer))
    if node.scope is graph.root and node.is_argument:
        yield from (f"exchange:{place}" for place in _list_leaves(graph, node))


def _name_other(node: Node, kept: int, outer: Mapping[Node, tuple[Scope, str]]) -> str:
    """Return the place of the other one of two operands; "" without one."""
    others = [parent for k, parent in enumerate(node.parents) if k != kept]
    return name_place(*outer.get(others[0], (others[0].scope, others[0].role))) if len(others) == 1 else ""


def _list_layouts(node: Node) -> Iterator[str]:
    yield from (f"{word}:{one}:{two}" for word in BETWEEN for one, two in combinations(range(-node.ndim, 0), 2))
    # Samples and heads are counted from the front.
    axes = (*range(-node.ndim, 0), *range(min(node.ndim - 2, 2)))
    yield from (f"{word}:{axis}" for word in ALONG for axis in axes if node.shape[axis] > 1)


def _list_factors(graph: Graph, node: Node, axes: Mapping[tuple[str, int], str]) -> Iterator[str]:
    """Yield the sizes of a result with which code may multiply or divide it."""
    for (leaf, axis), symbol in axes.items():
        if any(given.shape[axis] in node.shape for given in graph.find(f"{graph.root.name}/{leaf}")):
            yield from (f"times:{leaf}:{axis}:{symbol}:{power}" for power in _SCALES)


def _list_leaves(graph: Graph, node: Node) -> Iterator[str]:
    """Yield the other parameters and inputs of a node's shape."""
    for other in graph.nodes:
        if other.scope is graph.root and not other.parents and other.index > node.index and other.shape == node.shape:
            yield name_place(other.scope, other.role)


def _list_sources(graph: Graph, node: Node, own: Node, outer: Mapping[Node, tuple[Scope, str]]) -> list[str]:
    """Return the places of other arrays of one's shape that were computed before a node, the nearest first."""
    if own.is_number or own.ndim == 0:
        return []
    found: dict[str, None] = {}
    seen = {id(own.value)}
    for other in reversed(graph.nodes[: node.index]):
        named = other in outer or other.is_argument
        if not named or other.is_number or other.shape != own.shape or id(other.value) in seen:
            continue
        seen.add(id(other.value))
        scope, role = outer.get(other, (other.scope, other.role))
        found.setdefault(name_place(scope, role))
        if len(found) == _MOST_SOURCES:
            break
    return list(found)


def _list_numbers(graph: Graph, node: Node, axes: Mapping[tuple[str, int], str], *, is_result: bool) -> Iterator[str]:
    """Yield the changes of a constant: sizes of the call for one of middling size, powers of ten for others."""
    size = abs(float(node.value))
    if is_result and not 1e-3 < size < 1000:
        others: Iterable[str] = _TINY if size <= 1e-3 else _LARGE
        for other in others:
            if float(other) != size:
                # A large number is often a default, in the place of which a call may give another.
                yield from (f"number:{other}:{node.value:g}",) if size >= 1000 else ()
                yield f"number:{other}"
    elif size > 1:
        for (leaf, axis), symbol in axes.items():
            if graph.find(f"{graph.root.name}/{leaf}"):
                yield from (f"size:{leaf}:{axis}:{symbol}:{power}" for power in _POWERS)
                yield from (f"size:{leaf}:{axis}:{symbol}:{power}:{more}" for power in ("1", "0.5") for more in _MORE)
        yield "number:1"
    yield from _OF_NUMBERS


def _list_step_changes(graph: Graph, scope: Scope, result: Node) -> Iterator[str]:
    """Yield the changes of one call of a step."""
    arguments = list_arguments(scope)
    if any(node.shape == result.shape and node is not result for node in arguments) and not result.is_number:
        yield "skip"
        yield "twice"
        if result.value.dtype.kind == "f":
            for place in _list_places_to_move(graph, scope, result):
                yield f"also:{place}"
                yield f"moved:{place}"
    reduced = {node.parents[0].ndim for node in list_reductions(graph, scope)}
    for axes in reduced:
        yield from (f"over:{axis}" for axis in (*range(-axes, -1), "all"))
    pairs = ((one, two) for one, two in combinations(arguments, 2) if one.shape == two.shape)
    yield from (f"arguments-exchanged:{one.role}:{two.role}" for one, two in pairs if one.value is not two.value)
    others = ((name, other) for name, other in scope.results.items() if other.index > result.index)
    yield from (f"results-exchanged:{name}" for name, other in others if other.shape == result.shape)


def _list_places_to_move(graph: Graph, scope: Scope, result: Node) -> list[str]:
    """Return the results of other steps, and the inputs, to which a step may be applied by mistake."""
    places: dict[str, None] = {}
    for other in graph.scopes:
        if other is not scope and not other.is_within(scope) and not scope.is_within(other):
            for role, node in other.results.items():
                if node is not result and not node.is_number and node.ndim == result.ndim:
                    places.setdefault(name_place(other, role))
    inputs = (
        node for node in graph.nodes if node.scope is graph.root and not node.parents and node.ndim == result.ndim
    )
    places |= dict.fromkeys(name_place(node.scope, node.role) for node in inputs if not node.is_number)
    return list(places)
