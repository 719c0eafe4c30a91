"""All edits of a recorded formula, the likelier slips first."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import combinations, permutations
from typing import Final

import numpy as np

from goldformer.conformance.diagnosis.edits.changes import (
    ALONG,
    BETWEEN,
    BLOCKS,
    MASKS,
    SHARED,
    UFUNCS,
    divides_by_sum,
    list_arguments,
    list_reductions,
    may_replace,
)
from goldformer.conformance.diagnosis.edits.edit import Edit
from goldformer.conformance.diagnosis.edits.graph import Graph, Node, Scope
from goldformer.spec import Case, Contract

#: The powers of a size, or of a size and a small number.
_POWERS: Final = ("1", "0.5", "2", "-1", "-0.5", "0.25")
_MORE: Final = ("-1", "1", "-2", "*2", "*0.5")
#: What may stand in the place of a small number, and of a large one.
_TINY: Final = ("0", *(f"1e-{digits:02}" for digits in range(2, 13)))
_LARGE: Final = ("100", "500", "1000", "100000", "500000", "1000000")
#: The most arrays of a shape, the nearest ones, that a step may read instead of its own.
_MOST_SOURCES: Final = 12
#: Steps in at most so many others are the outer ones: they may read any result of one another.
_OUTER: Final = 3
#: The orders of samples, heads and tokens in which heads may lie, or be read; and where channels come before heads.
_ORDERS: Final = tuple(f"{''.join(order)}3" for order in permutations("012"))
_LAID: Final = (*permutations(_ORDERS, 2), ("0213", "0231"), ("0231", "0213"), ("0132", "0123"))
#: What code adds so as not to divide by 0.
_ADDED: Final = ("1e-05", "1e-06", "1e-07", "1e-08", "1e-09", "1e-10", "1e-12")
#: Functions of numbers and of arrays.
_OF_NUMBERS: Final = ("doubled", "halved", "negated", "inverse", "square", "root", "zero", "plus-one", "minus-one")
_OF_ARRAYS: Final = (
    "negated", "doubled", "halved", "square", "root", "inverse", "absolute", "exponential", "zero", "plus-one",
    "rounded",
)  # fmt: skip
#: The sizes of the blocks of keys that code reads.
_BLOCKS: Final = ("half", *(str(2**power) for power in range(8)))
_SCALES: Final = ("1", "0.5", "-1", "-0.5")


def list_edits(graph: Graph, axes: Mapping[tuple[str, int], str]) -> list[Edit]:
    """Return all edits of a graph, the likelier first; `axes` names the sizes of its inputs, ("x", -2) as "seq"."""
    found: dict[Edit, int] = {}
    outer = find_outer_results(graph)
    sizes = _list_sizes(graph, axes)
    for node in graph.nodes:
        scope, role = outer.get(node, (node.scope, node.role))
        for change in dict.fromkeys(_list_changes(graph, node, sizes, outer)):
            # A whole output of zeros is told by what became of the result.
            if change != "zero" or scope is not graph.root:
                _note(found, graph, scope, role, change)
    for scope in graph.scopes:
        for role, result in scope.results.items():
            for change in _list_step_changes(graph, scope, result):
                _note(found, graph, scope, role, change)
        for role in [*scope.results][:1]:
            for change in (*_list_exchanges(scope), *_list_reads_for_two(graph, scope, outer)):
                _note(found, graph, scope, role, change)
    root = graph.root.name
    for one, two in permutations(_list_parts(graph), 2):
        found.setdefault(Edit(root, f"{root}/{one}", f"read-part:{two}"), 0)
        if one < two:
            found.setdefault(Edit(root, f"{root}/{one}", f"exchange-part:{two}"), 0)
    for group in _list_groups(graph):
        found.update({Edit(root, f"{root}/{group}", f"share:{word}"): 0 for word in SHARED})
    return sorted(found, key=lambda edit: (edit.rank[:3], found[edit]))


def name_axes(case: Case, contract: Contract) -> dict[tuple[str, int], str]:
    """Return the axes of a case's arrays that differ, each where it is read first: ("x", -2) is "seq"."""
    shapes = {**contract.inputs, **contract.params_for(case.attributes)}
    axes: dict[str, tuple[str, int]] = {}
    for name, array in {**case.input_arrays, **case.param_arrays}.items():
        symbols = list(map(str, shapes[name].shape.axes))
        lead = array.ndim - len(symbols)
        for axis in range(array.ndim):
            is_named = axis >= lead
            symbol = symbols[axis - lead] if is_named else f"lead {axis}"
            axes.setdefault(symbol, (name, axis - array.ndim if is_named else axis))
    return {place: "" if place[1] >= 0 else symbol for symbol, place in axes.items()}


def _note(found: dict[Edit, int], graph: Graph, scope: Scope, role: str, change: str) -> None:
    """Note a change in every call of a step, and in one call if there are several."""
    depth, everywhere = len(scope.chain), name_place(scope, role)
    found.setdefault(Edit(graph.root.name, everywhere, change), depth)
    if len(graph.find(everywhere)) > 1:
        found.setdefault(Edit(graph.root.name, f"{graph.name_call(scope)}/{role}", change), depth)


def _list_leaves_of(graph: Graph) -> list[str]:
    return [node.role for node in graph.nodes if node.scope is graph.root and node.is_argument]


def _list_parts(graph: Graph) -> list[str]:
    """Return the parts that parameters belong to: by their beginnings, "norm_1", and by a projection, "*_q"."""
    leaves = _list_leaves_of(graph)
    parts = [role.rpartition(".")[0] for role in leaves if "." in role]
    projections = [re.sub(r"[wb]_(q|k|v|o)$", r"*_\1", role) for role in leaves]
    return list(dict.fromkeys([*parts, *(part for part in projections if "*" in part)]))


def _list_groups(graph: Graph) -> list[str]:
    """Return the numbered groups of parameters: "norm_#", "encoder.#" and "encoder.#.norm_1"."""
    found: dict[str, set[str]] = {}
    for role in _list_leaves_of(graph):
        if match := re.fullmatch(r"(\w+\.|norm_)(\d+)((?:\.\w+)?)\.\w+", role):
            for rest in {match[3], ""}:
                found.setdefault(f"{match[1]}#{rest}", set()).add(match[2])
    return [group for group, numbers in found.items() if len(numbers) > 1]


def _list_sizes(graph: Graph, axes: Mapping[tuple[str, int], str]) -> dict[tuple[str, str], str]:
    """Return an axis of an input for each symbol; of the first input also leading axes and d_k times the heads."""
    given = {(leaf, axis): symbol for (leaf, axis), symbol in axes.items() if graph.find(f"{graph.root.name}/{leaf}")}
    by_symbol = {symbol: (leaf, str(axis)) for (leaf, axis), symbol in reversed(given.items())}
    found = {key: symbol for symbol, key in by_symbol.items()}
    found |= {(name, ""): name for name in graph.attributes}
    for leaf in [leaf for leaf, _ in given][:1]:
        ndim = graph.find(f"{graph.root.name}/{leaf}")[0].ndim
        places = [*range(-3, -ndim - 1, -1), *range(min(ndim - 1, 2)), *(["-1*-3"] if ndim > 2 else [])]
        found |= {(leaf, str(place)): "" for place in places if (leaf, str(place)) not in found}
    return found


def name_place(scope: Scope, role: str) -> str:
    """Return the name of a place in every call of its step."""
    return f"{scope.name}/{role}"


def find_outer_results(graph: Graph) -> dict[Node, tuple[Scope, str]]:
    """Return for each node that a step returns the outermost such step, and the role that it has there."""
    outer: dict[Node, tuple[Scope, str]] = {}
    for scope in graph.scopes:  # the outer ones come first
        for role, node in scope.results.items():
            outer.setdefault(node, (scope, role))
    return outer


def _list_changes(
    graph: Graph, node: Node, axes: Mapping[tuple[str, str], str], outer: Mapping[Node, tuple[Scope, str]]
) -> Iterator[str]:
    """Yield the changes of one node; `outer` has the steps that return a node."""
    if node.is_number:
        yield from _list_numbers(node, axes, is_result=node in outer)
    elif node.value is None:
        return  # what only writes into an array has no value of its own
    elif node.value.dtype.kind == "b":
        # Where the call or a step gets a mask, and not where it is handed on.
        if node.is_argument and node.uses and not any(parent.is_argument for parent in node.parents):
            yield from (f"mask:{word}" for word in MASKS)
    elif node.value.dtype.kind == "f":
        yield from _list_sources_of(graph, node, outer)
        # Another change of an argument is one of the array itself, unless that has other uses.
        if not (node.is_argument and node.parents and not _is_used_again(graph, node.parents[0])):
            yield from _OF_ARRAYS
            yield from _list_layouts(node) if node in outer or node.is_argument else ()
            yield from _list_factors(graph, node, axes) if node in outer or _is_input(node) else ()
            yield from _list_added(node)
            if node.named.get("keepdims"):
                yield from (f"one-over:{axes}" for axes in _list_axes(node.ndim))
        if divides_by_sum(node):
            yield from (f"blocks:{size}:{word}" for size in _BLOCKS for word in BLOCKS)


def _list_axes(ndim: int) -> list[str]:
    """Return what code may reduce instead of the last axis: another one, two, or all."""
    pairs = combinations(range(-ndim, 0), 2) if ndim > 2 else ()
    return [*map(str, range(-ndim, -1)), *(f"{one}*{two}" for one, two in pairs), "all"]


def _is_used_again(graph: Graph, node: Node) -> bool:
    return len(node.uses) > 1 or node in graph.outputs.values()


def _is_input(node: Node) -> bool:
    return node.scope.parent is None and node.is_argument


def _list_added(node: Node) -> Iterator[str]:
    """Yield small numbers that are added to a sum of positive numbers, or to what is divided by one."""
    if node.role.startswith(("sum", "divide")) and node.ndim and (np.real(node.value) >= 0).all():
        yield from (f"more:{number}" for number in _ADDED)


def _list_sources_of(graph: Graph, node: Node, outer: Mapping[Node, tuple[Scope, str]]) -> Iterator[str]:
    """Yield the changes of what a node reads, and of its operation."""
    kind = node.role.partition("-")[0]
    if node.is_argument or (node in outer and _is_outer(outer[node][0])):
        for place in _list_sources(graph, node, node, outer):
            yield f"{'read' if node.is_argument else 'give'}:{place}"
            yield f"plus:{place}"
    if not node.is_argument:
        for k, parent in enumerate(node.parents):
            if parent.shape == node.shape:
                yield f"keep:{k}:{_name_other(node, k, outer)}".removesuffix(":")
    if len(node.arguments) == 2 and kind in UFUNCS:
        yield from (f"ufunc:{name}" for name in UFUNCS if name != kind)
        yield "operands-exchanged"
    for k, parent in enumerate(node.parents) if len(node.parents) > 1 else ():
        yield from (f"operand:{k}:{place}" for place in _list_sources(graph, node, parent, outer))
    if _is_input(node):
        for place in _list_leaves(graph, node):
            yield f"read:{place}"
            yield f"exchange:{place}"


def _name_other(node: Node, kept: int, outer: Mapping[Node, tuple[Scope, str]]) -> str:
    """Return the place of the other one of two operands; "" without one."""
    others = [parent for k, parent in enumerate(node.parents) if k != kept]
    return name_place(*outer.get(others[0], (others[0].scope, others[0].role))) if len(others) == 1 else ""


def _list_layouts(node: Node) -> Iterator[str]:
    yield from (f"{word}:{one}:{two}" for word in BETWEEN for one, two in combinations(range(-node.ndim, 0), 2))
    if node.ndim == len(_ORDERS[0]) and _changes_axes(node):
        yield from (f"laid:{stored}:{read}" for stored, read in _LAID)
    # Samples and heads are counted from the front.
    axes = (*range(-node.ndim, 0), *range(min(node.ndim - 2, 2)))
    yield from (f"{word}:{axis}" for word in ALONG for axis in axes if node.shape[axis] > 1)


def _changes_axes(node: Node) -> bool:
    """Return True for what a step makes of an array with fewer axes, or makes one with fewer of."""
    if node.is_argument:
        return any(result.ndim < node.ndim for result in node.scope.results.values())
    arguments = [argument.ndim for argument in list_arguments(node.scope)]
    return bool(arguments) and max(arguments) < node.ndim


def _list_factors(graph: Graph, node: Node, axes: Mapping[tuple[str, str], str]) -> Iterator[str]:
    """Yield the sizes of a result with which code may multiply or divide it."""
    for (leaf, axis), symbol in axes.items() if node.ndim else ():
        if not axis:
            continue
        (given,) = graph.find(f"{graph.root.name}/{leaf}")
        if symbol and given.shape[int(axis)] in node.shape:
            yield from (f"times:{leaf}:{axis}:{symbol}:{power}" for power in _SCALES)


def _list_leaves(graph: Graph, node: Node) -> Iterator[str]:
    """Yield the other parameters and inputs of a node's shape."""
    for other in graph.nodes:
        if other.scope is graph.root and not other.parents and other.index > node.index and other.shape == node.shape:
            yield name_place(other.scope, other.role)


def _is_outer(scope: Scope) -> bool:
    return len(scope.chain) <= _OUTER


def _list_sources(graph: Graph, node: Node, own: Node, outer: Mapping[Node, tuple[Scope, str]]) -> list[str]:
    """Return the places of other arrays of one's shape that were computed before a node, the nearest first.

    Steps deep in others read only the nearest; a step's result that others hide is found by its call.
    """
    if own.is_number or own.ndim == 0:
        return []
    found: dict[str, None] = {}
    seen, is_outer, near = {id(own.value)}, _is_outer(node.scope), 0
    for other in reversed(graph.nodes[: node.index]):
        named = other in outer or other.is_argument
        if not named or other.is_number or id(other.value) in seen or not may_replace(other, own):
            continue
        scope, role = outer.get(other, (other.scope, other.role))
        if near >= _MOST_SOURCES and not (is_outer and _is_outer(scope)):
            continue
        place = name_place(scope, role)
        if place in found:  # another call of the same step: what it read has other names as well
            if other.is_argument:
                continue
            place = f"{graph.name_call(scope)}/{role}"
        near += 1
        seen.add(id(other.value))
        found.setdefault(place)
    return list(found)


def _list_numbers(node: Node, axes: Mapping[tuple[str, str], str], *, is_result: bool) -> Iterator[str]:
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
        if result.value.dtype.kind == "f" and _is_outer(scope):
            for place in _list_places_to_move(graph, scope, result):
                yield f"also:{place}"
                yield f"moved:{place}"
    reduced = {node.parents[0].ndim for node in list_reductions(graph, scope)}
    for ndim in reduced:
        yield from (f"over:{axes}" for axes in _list_axes(ndim))
    others = ((name, other) for name, other in scope.results.items() if other.index > result.index)
    yield from (f"results-exchanged:{name}" for name, other in others if other.shape == result.shape)


def _list_exchanges(scope: Scope) -> Iterator[str]:
    """Yield the exchanges of two arguments of one call of a step."""
    pairs = ((one, two) for one, two in combinations(list_arguments(scope), 2) if one.shape == two.shape)
    yield from (f"arguments-exchanged:{one.role}:{two.role}" for one, two in pairs if one.value is not two.value)


def _list_reads_for_two(graph: Graph, scope: Scope, outer: Mapping[Node, tuple[Scope, str]]) -> Iterator[str]:
    """Yield what two arguments may read instead of the one array that they are, as keys and values."""
    for one, two in combinations(list_arguments(scope), 2):
        if one.value is two.value and one.value.dtype.kind == "f":
            yield from (f"read-two:{one.role}:{two.role}:{place}" for place in _list_sources(graph, one, one, outer))


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
