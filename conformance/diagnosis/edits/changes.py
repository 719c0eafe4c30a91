"""Changes of an edit: of single nodes of a graph, the parameters of a part, or a whole step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final

import numpy as np

from goldformer.conformance.diagnosis.edits.graph import Change, Graph, Node, Read, Scope, Value
from goldformer.spec.formulas.checks import Array

#: The changed nodes of an edit.
Changes = Iterator[tuple[Node, Change]]

#: What becomes of a value, by a word of an id.
FUNCTIONS: Final[Mapping[str, Callable[[Value], Value]]] = {
    "doubled": lambda x: x + x,
    "halved": lambda x: x / 2,
    "negated": lambda x: -x,
    "inverse": lambda x: 1 / x,
    "square": lambda x: x * x,
    "root": lambda x: x**0.5,
    "zero": lambda x: x * 0,
    "plus-one": lambda x: x + 1,
    "minus-one": lambda x: x - 1,
    "absolute": lambda x: np.where(np.real(x) < 0, -x, x),
    "exponential": np.exp,
    "rounded": np.rint,
}
#: The other operation of two operands that a slip puts in the place of one.
UFUNCS: Final[Mapping[str, np.ufunc]] = {
    ufunc.__name__: ufunc for ufunc in (np.add, np.subtract, np.multiply, np.divide)
}


def _swap_first(x: Array, one: int, two: int) -> Array:
    return x.swapaxes(one, two).reshape(x.shape)


def _swap_last(x: Array, one: int, two: int) -> Array:
    turned = list(x.shape)
    turned[one], turned[two] = turned[two], turned[one]
    return x.reshape(turned).swapaxes(one, two)


def _zero(x: Array, axis: int, place: int) -> Array:
    changed, places = x.copy(), [slice(None)] * x.ndim
    places[axis] = slice(place, place % x.shape[axis] + 1)
    changed[tuple(places)] = 0
    return changed


#: Changes along an axis, and between two.
ALONG: Final[Mapping[str, Callable[[Array, int], Any]]] = {
    "reversed": np.flip,
    "next": lambda x, axis: np.roll(x, -1, axis),
    "before": lambda x, axis: np.roll(x, 1, axis),
    "first": lambda x, axis: np.broadcast_to(x.take([0], axis), x.shape),
    "mean": lambda x, axis: np.broadcast_to(x.mean(axis, keepdims=True), x.shape),
    "running": np.cumsum,
    "first-zeroed": lambda x, axis: _zero(x, axis, 0),
    "last-zeroed": lambda x, axis: _zero(x, axis, -1),
}
BETWEEN: Final[Mapping[str, Callable[[Array, int, int], Any]]] = {
    "transposed": lambda x, one, two: x.swapaxes(one, two) if x.shape[one] == x.shape[two] else x,
    "reshaped": _swap_first,
    "unread": _swap_last,
}


# Changes of single nodes


def _change_value(change: Callable[[Value], Value], _: Graph, node: Node) -> Changes:
    yield node, lambda read: change(node.compute(read))


def _change_along(word: str, _: Graph, node: Node, *axes: str) -> Changes:
    places = tuple(map(int, axes))
    change: Callable[..., Any] = ALONG[word] if word in ALONG else BETWEEN[word]
    if all(-node.ndim <= place < node.ndim for place in places):
        yield node, lambda read: change(node.compute(read), *places)


def _keep_operand(_: Graph, node: Node, place: str, left_out: str = "") -> Changes:
    del left_out  # the words of the id
    if int(place) < len(node.parents) and (parent := node.parents[int(place)]).shape == node.shape:
        yield node, lambda read: read(parent)


def find_before(graph: Graph, place: str, node: Node, like: Node) -> Node | None:
    """Return the last node of a place that was computed before another, if it has the shape of `like`."""
    earlier = [other for other in graph.find(place) if other.index < node.index and other.shape == like.shape]
    return earlier[-1] if earlier else None


def _read_other(graph: Graph, node: Node, place: str) -> Changes:
    other = find_before(graph, place, node, node)
    if other is None and not node.parents:  # parameters and inputs have no order
        other = next((leaf for leaf in graph.find(place) if leaf.shape == node.shape), None)
    if other is not None:
        yield node, lambda read: read(other)


def _read_operand(graph: Graph, node: Node, operand: str, place: str) -> Changes:
    own = node.parents[int(operand)] if int(operand) < len(node.parents) else None
    other = None if own is None else find_before(graph, place, node, own)
    if other is not None:
        yield node, lambda read: node.compute(lambda parent: read(other if parent is own else parent))


def _exchange_leaves(graph: Graph, node: Node, place: str) -> Changes:
    for other in graph.find(place):
        if other.shape == node.shape:
            yield node, partial(_give, other.value)
            yield other, partial(_give, node.value)


def _use_ufunc(_: Graph, node: Node, name: str) -> Changes:
    if len(node.arguments) == 2:
        ufunc = UFUNCS[name]
        yield node, lambda read: ufunc(*(read(x) if isinstance(x, Node) else x for x in node.arguments))


def _exchange_operands(_: Graph, node: Node) -> Changes:
    if len(node.arguments) == 2:
        yield node, lambda read: node.function(*(read(x) if isinstance(x, Node) else x for x in node.arguments[::-1]))


def _read_size(graph: Graph, leaf: str, axis: str) -> int:
    """Return the size of an axis of an input; 1 if the call has none."""
    shapes = [given.shape for given in graph.find(f"{graph.root.name}/{leaf}")]
    return next((shape[int(axis)] for shape in shapes if -len(shape) <= int(axis) < len(shape)), 1)


def _use_size(graph: Graph, node: Node, leaf: str, axis: str, symbol: str, power: str, more: str = "0") -> Changes:
    del symbol
    size = float(max(_read_size(graph, leaf, axis) + int(more), 1)) ** float(power)
    yield node, partial(_give, size)


def _scale(graph: Graph, node: Node, leaf: str, axis: str, symbol: str, power: str) -> Changes:
    del symbol
    factor = float(_read_size(graph, leaf, axis)) ** float(power)
    yield node, lambda read: node.compute(read) * factor


def _add_other(graph: Graph, node: Node, place: str) -> Changes:
    other = find_before(graph, place, node, node)
    if other is not None:
        yield node, lambda read: node.compute(read) + read(other)


def _use_number(_: Graph, node: Node, number: str, own: str = "") -> Changes:
    if not own or node.value == float(own):
        yield node, lambda _: float(number)


OF_NODES: Final[Mapping[str, Callable[..., Changes]]] = {
    **{word: partial(_change_value, change) for word, change in FUNCTIONS.items()},
    **{word: partial(_change_along, word) for word in (*ALONG, *BETWEEN)},
    "keep": _keep_operand,
    "read": _read_other,
    "operand": _read_operand,
    "exchange": _exchange_leaves,
    "ufunc": _use_ufunc,
    "operands-exchanged": _exchange_operands,
    "plus": _add_other,
    "size": _use_size,
    "times": _scale,
    "number": _use_number,
}

# Changes of the parameters of a part: of them only, or of both parts

OF_PARTS: Final = {"read-part": False, "exchange-part": True}


def read_part(graph: Graph, own: str, other: str) -> Changes:
    """Yield the parameters of a part, by their prefix, with the values of those of another part."""
    for node in graph.nodes:
        if node.scope is graph.root and node.is_argument and node.role.startswith(f"{own}."):
            for theirs in graph.find(f"{graph.root.name}/{other}.{node.role.removeprefix(f'{own}.')}"):
                if theirs.shape == node.shape:
                    yield node, partial(_give, theirs.value)


# Changes of whole steps


def list_arguments(scope: Scope) -> list[Node]:
    """Return the arrays that a call of a step takes."""
    return [node for node in scope.nodes.values() if node.is_argument]


def _find_argument(scope: Scope, like: Node) -> Node | None:
    return next((node for node in list_arguments(scope) if node.shape == like.shape), None)


def _skip(_: Graph, scope: Scope, result: Node) -> Changes:
    argument = _find_argument(scope, result)
    if argument is not None and argument is not result:
        yield result, lambda read: read(argument)


def _run_over(graph: Graph, scope: Scope, _: Node, axis: str) -> Changes:
    """Yield the reductions of a step along another axis, and the numbers of the elements by which it divides."""
    lengths = {}
    for node in list_reductions(graph, scope):
        shape, place = node.parents[0].shape, None if axis == "all" else int(axis)
        if place is None or -len(shape) <= place < len(shape):
            lengths[shape[node.named["axis"]]] = math.prod(shape) if place is None else shape[place]
            yield node, partial(_compute_over, node, place)
    for node in graph.nodes if lengths else ():
        if node.is_number and not node.parents and node.value in lengths and node.scope.is_within(scope):
            yield node, partial(_give, lengths[node.value])


def list_reductions(graph: Graph, scope: Scope) -> list[Node]:
    """Return the sums and maxima of a call of a step that keep their axis."""
    return [node for node in graph.nodes if node.named.get("keepdims") and node.scope.is_within(scope)]


def _give(value: Value, _: Read) -> Value:
    return value


def _compute_over(node: Node, axis: int | None, read: Read) -> Value:
    arguments = (read(x) if isinstance(x, Node) else x for x in node.arguments)
    return node.function(*arguments, **{**node.named, "axis": axis})


def _exchange_results(_: Graph, scope: Scope, result: Node, name: str) -> Changes:
    other = scope.results.get(name)
    if other is not None and other.shape == result.shape:
        yield result, other.compute
        yield other, result.compute


def _exchange_arguments(_: Graph, scope: Scope, __: Node, one: str, two: str) -> Changes:
    named = {node.role: node for node in list_arguments(scope)}
    first, second = named.get(one), named.get(two)
    if first is not None and second is not None and first.shape == second.shape:
        yield first, second.compute
        yield second, first.compute


def apply_step(graph: Graph, argument: Node, result: Node, value: Value) -> Value:
    """Return what one call of a step gives for another argument."""
    return graph.run({argument: lambda _: value}, result.index + 1).get(result, result.value)


def _run_twice(graph: Graph, scope: Scope, result: Node) -> Changes:
    argument = _find_argument(scope, result)
    if argument is not None and argument is not result:
        for other in scope.results.values():
            yield other, partial(_apply_again, graph, argument, result, other)


def _apply_again(graph: Graph, argument: Node, result: Node, other: Node, read: Read) -> Value:
    return apply_step(graph, argument, other, result.compute(read))


def _run_elsewhere(graph: Graph, scope: Scope, result: Node, place: str) -> Changes:
    """Yield the change of other places to what the step makes of them."""
    argument = _find_argument(scope, result)
    if argument is not None and argument is not result:
        others = (other for other in graph.find(place) if other is not result and other is not argument)
        yield from ((other, partial(_apply_to, graph, argument, result, other)) for other in others)


def _apply_to(graph: Graph, argument: Node, result: Node, other: Node, read: Read) -> Value:
    return apply_step(graph, argument, result, other.compute(read))


def _move(graph: Graph, scope: Scope, result: Node, place: str) -> Changes:
    moved = list(_run_elsewhere(graph, scope, result, place))
    yield from (*_skip(graph, scope, result), *moved) if moved else ()


OF_SCOPES: Final[Mapping[str, Callable[..., Changes]]] = {
    "skip": _skip,
    "results-exchanged": _exchange_results,
    "arguments-exchanged": _exchange_arguments,
    "over": _run_over,
    "twice": _run_twice,
    "also": _run_elsewhere,
    "moved": _move,
}

#: The kinds of changes, the likelier slips first: it decides between equals.
KINDS: Final = (
    "read", "read-part", "exchange", "exchange-part", "arguments-exchanged", "results-exchanged", "skip", "over",
    "keep", "size", "number", "operand", "ufunc", "operands-exchanged", *FUNCTIONS, "twice", "times", "moved", "also",
    "plus", *BETWEEN, *ALONG,
)  # fmt: skip
