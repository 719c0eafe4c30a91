"""Changes of an edit: of single nodes of a graph, the parameters of a part, or a whole step."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import Any, Final

import numpy as np

from goldformer.conformance.diagnosis.edits.graph import Change, Graph, Node, Read, Scope, Value
from goldformer.spec.formulas.arrays import Array

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


def _keep_one(mask: Array, changed: Array) -> Array:
    """Return a changed mask, with the original row of each query that it leaves without a key."""
    return np.where(changed.any(-1, keepdims=True), changed, mask)


def _see_self(mask: Array) -> Array:
    return np.eye(*mask.shape[-2:], dtype=np.bool_)


def _see_earlier(mask: Array) -> Array:
    return np.tri(*mask.shape[-2:], dtype=np.bool_)


def _keep_causal(mask: Array) -> Array:
    """Return a causal mask without the padding that it hides too, or one that hides nothing if it is not causal."""
    causal = _see_earlier(mask)
    return np.ones_like(mask) if (mask & ~causal).any() else causal


def _drop_padding(mask: Array) -> Array:
    """Show the keys that are hidden from every query, as if the mask of padding were not handed on."""
    last = mask[..., -1:, :]
    if (mask == last).all():
        return np.ones_like(mask)
    causal = _see_earlier(mask)
    return causal if (mask == (causal & last)).all() else mask


def _hide_last(mask: Array) -> Array:
    return np.concatenate([mask[..., :-1] & mask[..., 1:], mask[..., -1:]], axis=-1)


def _show_next(mask: Array) -> Array:
    return np.concatenate([mask[..., :1], mask[..., 1:] | mask[..., :-1]], axis=-1)


#: What becomes of a mask that is broadcast to the scores, (..., q_seq, kv_seq), with sentences.
MASKS: Final[Mapping[str, tuple[str, Callable[[Array], Any]]]] = {
    "inverted": ("{} is inverted", np.logical_not),
    "ignored": ("{} hides nothing", np.ones_like),
    "without-padding": ("{} hides no padding, and all else that it should", _drop_padding),
    "only-causal": ("{} hides only later keys, and no padding", _keep_causal),
    "transposed": ("{} is transposed, so that queries are hidden as keys",
                   lambda m: m.swapaxes(-1, -2) if m.shape[-2] in (1, m.shape[-1]) else m),
    "reversed": ("{} is reversed along the keys", lambda m: m[..., ::-1]),
    "queries-reversed": ("{} is reversed along the queries", lambda m: m[..., ::-1, :]),
    "first-query": ("the first query's row of {} is used for all queries", lambda m: m[..., :1, :]),
    "last-query": ("the last query's row of {} is used for all queries", lambda m: m[..., -1:, :]),
    "first-key": ("the first key's column of {} is used for all keys", lambda m: m[..., :1]),
    "first-sample": ("{} of the first sample is used for all samples", lambda m: m[:1]),
    "last-sample": ("{} of the last sample is used for all samples", lambda m: m[-1:]),
    "samples-reversed": ("the samples have one another's {}, in the reverse order", lambda m: m[::-1]),
    "samples-shifted": ("each sample has {} of the one before", lambda m: np.roll(m, 1, 0)),
    "first-head": ("{} of the first head is used for all heads", lambda m: m[:, :1] if m.ndim > 3 else m),
    "last-head": ("{} of the last head is used for all heads", lambda m: m[:, -1:] if m.ndim > 3 else m),
    "heads-reversed": ("the heads have one another's {}", lambda m: m[:, ::-1] if m.ndim > 3 else m),
    "tiled": ("{} is repeated for heads and samples in the other order",
              lambda m: m.reshape(m.shape[1], m.shape[0], *m.shape[2:]).swapaxes(0, 1) if m.ndim == 4 else m),
    "laid-out-by-heads": ("{} is laid out head by head, and the scores sample by sample",
                          lambda m: m.swapaxes(0, 1).reshape(m.shape) if m.ndim == 4 else m),
    "one-more": ("one key after the last one that may be seen is seen too", _show_next),
    "shifted": ("{} is shifted by one key", lambda m: np.roll(m, 1, -1)),
    "one-less": ("the last key that may be seen is hidden too", _hide_last),
    "one-less-if-more": ("the last key that may be seen is hidden too, unless it is the only one",
                         lambda m: _keep_one(m, _hide_last(m))),
    "any-query": ("a key is hidden only where every query's row of {} hides it", lambda m: m.any(-2, keepdims=True)),
    "all-queries": ("a key is hidden where any query's row of {} hides it", lambda m: m.all(-2, keepdims=True)),
    "all-heads": ("a key is hidden where {} of any head hides it",
                  lambda m: m.all(1, keepdims=True) if m.ndim > 3 else m),
    "all-samples": ("a key is hidden where {} of any sample hides it", lambda m: m.all(0, keepdims=True)),
    "self-always": ("each position sees itself whatever {} says", lambda m: m | _see_self(m)),
    "self-never": ("each position is hidden from itself, whatever {} says", lambda m: m & ~_see_self(m)),
    "self-if-alone": ("each position is hidden from itself, unless it sees nothing else",
                      lambda m: _keep_one(m, m & ~_see_self(m))),
    "first-always": ("every position sees the first key whatever {} says", lambda m: m | (np.arange(m.shape[-1]) == 0)),
    "and-causal": ("later keys are hidden besides those that {} hides", lambda m: m & _see_earlier(m)),
    "instead-causal": ("a causal mask is used whatever {} is given", _see_earlier),
}  # fmt: skip


def _cut_blocks(scores: Array, size: int) -> list[Array]:
    return [scores[..., start : start + size] for start in range(0, scores.shape[-1], size)]


def _join(blocks: Sequence[Array]) -> Array:
    return np.concatenate(blocks, axis=-1)


def _sum(array: Array) -> Any:
    return array.sum(axis=-1, keepdims=True)


def _raise(blocks: Sequence[Array], *, rescales: bool) -> list[Array]:
    """Return the powers of blocks of scores, less the largest score, or that up to their own block."""
    tops = list(accumulate((block.max(axis=-1, keepdims=True) for block in blocks), np.maximum))
    tops = [np.where(top > -np.inf, top, 0.0) for top in tops]
    return [np.exp(block - (tops[-1] if rescales else top)) for block, top in zip(blocks, tops, strict=True)]


def _average(blocks: Sequence[Array], _: int) -> Array:
    powers = [_raise([block], rescales=True)[0] for block in blocks]
    return _join([power / (_sum(power) * len(blocks)) for power in powers])


def _cut_last(blocks: Sequence[Array], size: int) -> Array:
    full = [block for block in blocks if block.shape[-1] == size]
    kept = _join(_raise(full, rescales=True))
    return _join([kept / _sum(kept), *(np.exp(block) * 0 for block in blocks[len(full) :])])


def _divide(above: Sequence[Array], below: Sequence[Array]) -> Any:
    return _join(above) / _sum(_join(below))


#: What is wrong in code that reads the keys in blocks: a sentence, and the weights from the blocks of scores.
BLOCKS: Final[Mapping[str, tuple[str, Callable[[list[Array], int], Array]]]] = {
    "not-rescaled": ("never rescales its sums of weights and values when a later block has a larger score",
                     lambda blocks, _: _divide(_raise(blocks, rescales=False), _raise(blocks, rescales=False))),
    "values": ("never rescales its sum of values when a later block has a larger score",
               lambda blocks, _: _divide(_raise(blocks, rescales=False), _raise(blocks, rescales=True))),
    "weights": ("never rescales its sum of weights when a later block has a larger score",
                lambda blocks, _: _divide(_raise(blocks, rescales=True), _raise(blocks, rescales=False))),
    "last": ("divides by the sum of the weights of the last block only",
             lambda blocks, _: _divide(powers := _raise(blocks, rescales=True), powers[-1:])),
    "cut": ("leaves out the last block where it is not full", _cut_last),
    "averaged": ("averages the results of its blocks, without their sums as weights", _average),
}  # fmt: skip
#: The layer, or the norm, of a group whose parameters each one uses: by its own index and their number.
SHARED: Final[Mapping[str, tuple[str, Callable[[int, int], int]]]] = {
    "first": ("every one uses those of the first", lambda _, __: 0),
    "last": ("every one uses those of the last", lambda _, count: count - 1),
    "next": ("each one uses those of the next, and the last those of the first", lambda k, count: (k + 1) % count),
    "before": ("each one uses those of the one before, and the first those of the last",
               lambda k, count: (k - 1) % count),
    "turned": ("they are used in the reverse order", lambda k, count: count - 1 - k),
    "pairs": ("every second one uses those of the one before it", lambda k, _: k - k % 2),
    "halves": ("every two in a row use those of one, so that those of the later half are unused", lambda k, _: k // 2),
}  # fmt: skip


# Changes of single nodes


def _change_value(change: Callable[[Value], Value], _: Graph, node: Node) -> Changes:
    yield node, lambda read: change(node.compute(read))


def _change_along(word: str, _: Graph, node: Node, *axes: str) -> Changes:
    places = tuple(map(int, axes))
    change: Callable[..., Any] = ALONG[word] if word in ALONG else BETWEEN[word]
    if all(-node.ndim <= place < node.ndim for place in places):
        yield node, lambda read: change(node.compute(read), *places)


def _relay(_: Graph, node: Node, stored: str, read: str) -> Changes:
    if node.ndim == len(stored):
        yield node, lambda read_node: relay(node.compute(read_node), stored, read)


def relay(x: Array, stored: str, read: str) -> Array:
    """Return an array that lies in memory in one order of its axes, reshaped as another one: "0213" and "0123"."""
    turned = x.transpose([int(axis) for axis in stored])
    return turned.reshape([x.shape[int(axis)] for axis in read]).transpose([read.index(str(k)) for k in range(x.ndim)])


def _mask(_: Graph, node: Node, word: str) -> Changes:
    change = MASKS[word][1]
    if node.ndim > 1:
        yield node, lambda read: _broadcast(change(node.compute(read)), node.shape)


def _broadcast(mask: Array, shape: tuple[int, ...]) -> Array:
    """Return a mask in its own shape, or as it is where it grew: a column of queries of a row of keys."""
    return np.array(np.broadcast_to(mask, np.broadcast_shapes(mask.shape, shape)))


def _keep_operand(_: Graph, node: Node, place: str, left_out: str = "") -> Changes:
    del left_out  # the words of the id
    if int(place) < len(node.parents) and (parent := node.parents[int(place)]).shape == node.shape:
        yield node, lambda read: read(parent)


def find_before(graph: Graph, place: str, node: Node, like: Node) -> Node | None:
    """Return the last node of a place that was computed before another, if it may stand in the place of `like`."""
    earlier = [other for other in graph.find(place) if other.index < node.index and may_replace(other, like)]
    fitting = [other for other in earlier if other.shape == like.shape] or earlier
    return fitting[-1] if fitting else None


def may_replace(other: Node, own: Node) -> bool:
    """Return True for a node of the shape of another; a step may read samples of any number of tokens."""
    if own.is_argument and own.ndim == other.ndim == 3:
        return (own.shape[0], own.shape[-1]) == (other.shape[0], other.shape[-1])
    return own.shape == other.shape


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


def _read_size(graph: Graph, leaf: str, axes: str) -> int:
    """Return the size of an axis of an input, or the product of some, as "-1*-3"; 1 if the call has none.

    Without an axis it is an attribute, such as the number of heads.
    """
    if not axes:
        return graph.attributes.get(leaf, 1)
    shapes = [given.shape for given in graph.find(f"{graph.root.name}/{leaf}")]
    places = [int(axis) for axis in axes.split("*")]
    sizes = (shape[k] for k in places for shape in shapes[:1] if -len(shape) <= k < len(shape))
    return math.prod(sizes)


def _use_size(graph: Graph, node: Node, leaf: str, axis: str, symbol: str, power: str, more: str = "0") -> Changes:
    del symbol
    size = _read_size(graph, leaf, axis)
    changed = size * float(more[1:]) if more.startswith("*") else max(size + int(more), 1)
    yield node, partial(_give, float(changed) ** float(power))


def _scale(graph: Graph, node: Node, leaf: str, axis: str, symbol: str, power: str) -> Changes:
    del symbol
    factor = float(_read_size(graph, leaf, axis)) ** float(power)
    yield node, lambda read: node.compute(read) * factor


def _add_other(graph: Graph, node: Node, place: str) -> Changes:
    other = find_before(graph, place, node, node)
    if other is not None:
        yield node, lambda read: node.compute(read) + read(other)


def _add_number(_: Graph, node: Node, number: str) -> Changes:
    yield node, lambda read: node.compute(read) + node.value.dtype.type(number)


def _scale_by(_: Graph, node: Node, number: str) -> Changes:
    factor = float(number)
    yield node, lambda read: node.compute(read) * factor


def _use_number(_: Graph, node: Node, number: str, own: str = "") -> Changes:
    if not own or node.value == float(own):
        yield node, lambda _: float(number)


def _read_axes(axes: str, ndim: int) -> tuple[int, ...] | None:
    """Return axes that an array has, written "-1", "-2*-1" or "all"; None if it lacks one."""
    places = tuple(range(ndim)) if axes == "all" else tuple(map(int, axes.split("*")))
    return places if all(-ndim <= place < ndim for place in places) else None


def _run_one_over(_: Graph, node: Node, axes: str) -> Changes:
    """Yield one reduction along other axes, and not the others of its step."""
    places = _read_axes(axes, node.ndim)
    if node.named.get("keepdims") and places is not None:
        yield node, partial(_compute_over, node, places)


def divides_by_sum(node: Node) -> bool:
    """Return True for the division of an array by its own sum, as at the end of a softmax."""
    if not node.role.startswith("divide") or len(node.parents) < 2:
        return False
    array, total = node.parents
    return total.role.startswith("sum") and bool(total.named.get("keepdims")) and total.parents[:1] == (array,)


def _use_blocks(_: Graph, node: Node, size: str, word: str) -> Changes:
    """Yield the weights of code that reads the keys in blocks."""
    block = -(-node.shape[-1] // 2) if size == "half" else int(size)
    scores, change = _find_argument(node.scope, node), BLOCKS[word][1]
    if divides_by_sum(node) and scores is not None and 0 < block < node.shape[-1]:
        yield node, lambda read: change(_cut_blocks(read(scores), block), block)


OF_NODES: Final[Mapping[str, Callable[..., Changes]]] = {
    "one-over": _run_one_over,
    "blocks": _use_blocks,
    **{word: partial(_change_value, change) for word, change in FUNCTIONS.items()},
    **{word: partial(_change_along, word) for word in (*ALONG, *BETWEEN)},
    "keep": _keep_operand,
    "read": _read_other,
    "give": _read_other,
    "operand": _read_operand,
    "exchange": _exchange_leaves,
    "ufunc": _use_ufunc,
    "operands-exchanged": _exchange_operands,
    "plus": _add_other,
    "more": _add_number,
    "laid": _relay,
    "mask": _mask,
    "size": _use_size,
    "times": _scale,
    "number": _use_number,
    "solved": _use_number,
    "scaled": _scale_by,
}

# Changes of the parameters of a part: of them only, or of both parts

OF_PARTS: Final = {"read-part": False, "exchange-part": True, "share": False}


def match_part(part: str, role: str) -> str | None:
    """Return what a part leaves open in the role of a parameter: of "norm_1" the end, of "*_q" the beginning."""
    before, star, after = part.partition("*")
    before = before if star else f"{part}."
    fits = role.startswith(before) and role.endswith(after) and len(role) > len(before + after)
    return role[len(before) : len(role) - len(after)] if fits else None


def read_part(graph: Graph, own: str, other: str) -> Changes:
    """Yield the parameters of a part with the values of those of another part, if they have the same shapes."""
    pattern = other if "*" in other else f"{other}.*"
    pairs = [
        (node, theirs)
        for node in graph.nodes
        if node.scope is graph.root and node.is_argument and (rest := match_part(own, node.role))
        for theirs in graph.find(f"{graph.root.name}/{pattern.replace('*', rest)}")
    ]
    if all(node.shape == theirs.shape for node, theirs in pairs):
        yield from ((node, partial(_give, theirs.value)) for node, theirs in pairs)


def share_parts(graph: Graph, group: str, word: str) -> Changes:
    """Yield the parameters of a numbered group, such as "norm_#" or "encoder.#.norm_1", with those of other numbers."""
    before, _, after = group.partition("#")
    leaves = {node.role: node for node in graph.nodes if node.scope is graph.root and node.is_argument}
    pattern = re.compile(rf"{re.escape(before)}(\d+){re.escape(after)}(\..+)")
    found = [(node, match) for role, node in leaves.items() if (match := pattern.fullmatch(role))]
    numbers = sorted({int(match[1]) for _, match in found})
    for node, match in found:
        place = SHARED[word][1](numbers.index(int(match[1])), len(numbers))
        other = leaves.get(f"{before}{numbers[place]}{after}{match[2]}")
        if other is not None and other is not node and other.shape == node.shape:
            yield node, partial(_give, other.value)


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


def _run_over(graph: Graph, scope: Scope, _: Node, axes: str) -> Changes:
    """Yield the reductions of a step along other axes, and the numbers of the elements by which it divides."""
    lengths = {}
    for node in list_reductions(graph, scope):
        shape = node.parents[0].shape
        places = _read_axes(axes, len(shape))
        if places is not None:
            lengths[shape[node.named["axis"]]] = math.prod(shape[place] for place in places)
            yield node, partial(_compute_over, node, places)
    for node in graph.nodes if lengths else ():
        if node.is_number and not node.parents and node.value in lengths and node.scope.is_within(scope):
            yield node, partial(_give, lengths[node.value])


def list_reductions(graph: Graph, scope: Scope) -> list[Node]:
    """Return the sums and maxima of a call of a step that keep their axis."""
    return [node for node in graph.nodes if node.named.get("keepdims") and node.scope.is_within(scope)]


def _give(value: Value, _: Read) -> Value:
    return value


def _compute_over(node: Node, axes: tuple[int, ...], read: Read) -> Value:
    arguments = (read(x) if isinstance(x, Node) else x for x in node.arguments)
    return node.function(*arguments, **{**node.named, "axis": axes if len(axes) > 1 else axes[0]})


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


def _read_for_two(graph: Graph, scope: Scope, _: Node, one: str, two: str, place: str) -> Changes:
    """Yield two arguments that are one array with another array in their place."""
    for node in (node for node in list_arguments(scope) if node.role in (one, two)):
        other = find_before(graph, place, node, node)
        if other is not None:
            yield node, partial(_read_node, other)


def _read_node(node: Node, read: Read) -> Value:
    return read(node)


def apply_step(graph: Graph, argument: Node, result: Node, value: Value) -> Value:
    """Return what one call of a step gives for another argument."""
    return graph.run({argument: lambda _: value}, result.index + 1).get(result, result.value)


def _run_twice(graph: Graph, scope: Scope, result: Node) -> Changes:
    argument = _find_argument(scope, result)
    if argument is not None and argument is not result:
        for other in scope.results.values():
            yield other, partial(_apply_again, graph, argument, result, other)


def _apply_again(graph: Graph, argument: Node, result: Node, other: Node, read: Read) -> Value:
    # The other results of the step change too, so that the first run begins with the argument.
    once = apply_step(graph, argument, result, read(argument))
    return apply_step(graph, argument, other, once)


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
    "read-two": _read_for_two,
    "over": _run_over,
    "twice": _run_twice,
    "also": _run_elsewhere,
    "moved": _move,
}

#: The kinds of changes, the likelier slips first: it decides between equals. Those of a line are tried in every call of
#: a step, then in one, before those of the next line, and these only if nothing on it explains a failure.
_TIERS: Final = (
    ("mask", "read", "read-part", "exchange", "exchange-part", "share", "read-two", "arguments-exchanged",
     "results-exchanged", "skip", "over", "one-over", "keep", "size", "number", "solved", "operand", "square", "twice",
     "give"),
    ("times", "scaled", "blocks"),
    ("laid", *BETWEEN),
    ("ufunc", "operands-exchanged", *(word for word in FUNCTIONS if word != "square"), "more", "moved", "also", "plus"),
    (*ALONG,),
)  # fmt: skip
#: The line in which a factor is solved for.
SOLVED: Final = 1
KINDS: Final = {kind: (tier, place) for tier, kinds in enumerate(_TIERS) for place, kind in enumerate(kinds)}
