"""Wiring: a step of a layer reads another array of the same shape than the one that it should read.

The arrays of a layer are noted while it runs, so that a later step can read any of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from itertools import chain, combinations, permutations, product
from typing import Any, Final

from goldformer.conformance.diagnosis.neighbours.arguments import (
    Given,
    change_argument,
    change_array,
    read_argument,
    replace_argument,
)
from goldformer.conformance.diagnosis.neighbours.neighbour import Neighbour
from goldformer.conformance.properties.relations import join_names
from goldformer.spec.formulas.arrays import as_array
from goldformer.spec.formulas.attention import weigh_keys
from goldformer.spec.formulas.checks import Array
from goldformer.spec.formulas.heads import merge_heads, multi_head_attention
from goldformer.spec.formulas.layers import (
    SubLayer,
    activation,
    add_residual,
    cross_attend,
    decoder_layer,
    encoder_layer,
    feed_through,
    layer_norm,
    norm_params,
    run_sublayer,
    self_attend,
)
from goldformer.spec.formulas.randomness import dropping
from goldformer.spec.formulas.steps import Replacement, Replacements, Step, around, hold, replacing

#: The arrays of the layer that runs, by name.
_noted: Final[ContextVar[dict[str, Array]]] = ContextVar("noted")
#: The kind of layer that runs, and the sub-layer whose function runs.
_layer: Final[ContextVar[Step | None]] = ContextVar("layer", default=None)
_number: Final[ContextVar[int]] = ContextVar("number", default=0)
_running: Final[ContextVar[str]] = ContextVar("running", default="")

#: The sub-layers of each layer, in order.
_SUBLAYERS: Final[Mapping[Step, tuple[str, ...]]] = {
    encoder_layer: ("self_attention", "feed_forward"),
    decoder_layer: ("self_attention", "cross_attention", "feed_forward"),
}
_WORDS: Final = {
    "self_attention": "self-attention",
    "cross_attention": "cross-attention",
    "feed_forward": "feed-forward network",
}


def _describe(name: str) -> str:
    """Return an array of a layer in words."""
    kind, _, sublayer = name.partition(" ")
    if kind in ("x", "memory"):
        return "the layer's input" if kind == "x" else "the memory"
    what = f"the {_WORDS[sublayer]}"
    return {
        "heads": f"the joined heads of {what}, before their output projection",
        "result": f"the result of {what}",
        "sum": f"the sum of {what} and its residual",
        "end": f"the state after {what} and its residual",
        "read": f"what {what} reads",
    }[kind]


def _locate(layer: Step) -> str:
    return f", in the {layer.__name__.replace('_', ' ')}"


# Noting


def _note_layer(layer: Step) -> Replacement:
    def run(original: Step, *args: Any, **named: Any) -> Any:
        given = (args, named)
        start = {"x": read_argument(layer, "x", given)}
        if layer is decoder_layer:
            start["memory"] = read_argument(layer, "memory", given)
        with hold(_noted, start), hold(_layer, layer):
            return original(*args, **named)

    return around(run)


def _note_function(sublayer: str) -> Replacement:
    """Note what a sub-layer's function reads, and its result."""

    def run(original: Step, x: Array, *args: Any, **named: Any) -> Any:
        noted = _noted.get()
        noted[f"read {sublayer}"] = x
        with hold(_running, sublayer):
            result, second = original(x, *args, **named)
        noted[f"result {sublayer}"] = result
        return result, second

    return around(run)


def _note_heads(original: Step, *args: Any, **named: Any) -> Any:
    joined = original(*args, **named)
    if sublayer := _running.get():
        _noted.get()[f"heads {sublayer}"] = joined
    return joined


def _note_of_last(kind: str, array: Array) -> None:
    """Note an array of the current sub-layer: the one whose function ran last."""
    noted = _noted.get()
    *_, last = (name for name in noted if name.startswith("result "))
    noted[last.replace("result", kind)] = array


def _note_sublayer(original: Step, x: Array, *args: Any, **named: Any) -> Any:
    end, second = original(x, *args, **named)
    _note_of_last("end", end)
    return end, second


def _note_sum(original: Step, *args: Any, **named: Any) -> Any:
    total = original(*args, **named)
    _note_of_last("sum", total)
    return total


_NOTES: Final[Replacements] = {
    encoder_layer: _note_layer(encoder_layer),
    decoder_layer: _note_layer(decoder_layer),
    self_attend: _note_function("self_attention"),
    cross_attend: _note_function("cross_attention"),
    feed_through: _note_function("feed_forward"),
    run_sublayer: around(_note_sublayer),
    add_residual: around(_note_sum),
    merge_heads: around(_note_heads),
}


def _add_notes(*changes: Replacements) -> Replacements:
    """Return the notes with changes on top of them."""
    joined = dict(_NOTES)
    for step, replacement in chain.from_iterable(change.items() for change in changes):
        joined[step] = _chain_replacements(joined[step], replacement) if step in joined else replacement
    return joined


def _chain_replacements(below: Replacement, above: Replacement) -> Replacement:
    return lambda original: above(below(original))


# The edges


@dataclass(frozen=True, slots=True)
class _Edge:
    """An input of a step: `verb` and `own` make the sentence "… makes its queries from … instead of the memory".

    `change` makes the replacements, given what to read instead.
    """

    id: str
    verb: str
    own: str
    #: The names of the arrays that give the right result.
    right: frozenset[str]
    #: The sub-layer that runs, and which of its own arrays are there already.
    sublayer: str
    there: tuple[str, ...]
    change: Callable[[Callable[[Any], Any]], Replacements]
    #: True if what is read may have any number of tokens.
    any_length: bool = False


def _read_noted(name: str, *, any_length: bool) -> Callable[[Any], Any]:
    """Return the noted array of a name; what should be read if there is none that fits."""

    def read(own: Any) -> Any:
        other = _noted.get().get(name)
        if other is None or (other.shape != own.shape and not (any_length and _differ_in_tokens(own, other))):
            return own
        return other

    return read


def _differ_in_tokens(one: Array, other: Array) -> bool:
    return one.ndim == other.ndim and one.shape[:-2] == other.shape[:-2] and one.shape[-1] == other.shape[-1]


def _restrict_to_layer(layer: Step, change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a change that is made only in one kind of layer: both kinds run the same steps."""
    return lambda own: change(own) if _layer.get() is layer else own


def _list_attention_edges(sublayer: str, own_input: str) -> Iterator[_Edge]:
    cross = sublayer == "cross_attention"
    groups = (("query", "queries"), ("key", "keys"), ("value", "values"), ("key value", "keys and values"))
    for group, words in groups:
        own = "memory" if cross and group != "query" else f"read {sublayer}"

        def change(read: Callable[[Any], Any], group: str = group) -> Replacements:
            def run(original: Step, *args: Any, **named: Any) -> Any:
                given: Given = (args, named)
                for argument in group.split() if _running.get() == sublayer else ():
                    mine = read_argument(multi_head_attention, argument, given)
                    given = replace_argument(multi_head_attention, argument, read(mine), given)
                return original(*given[0], **given[1])

            return {multi_head_attention: around(run)}

        says = f"the {_WORDS[sublayer]} makes its {words} from"
        yield _Edge(
            f"{sublayer}.{group.replace(' ', '-and-')}",
            says,
            own_input if own == f"read {sublayer}" else _describe(own),
            frozenset({own}),
            sublayer,
            ("read",),
            change,
            any_length=group == "key value",
        )


def _change_in_sublayer(argument: str, number: int, read: Callable[[Any], Any]) -> Replacements:
    """Change an argument of add_residual in one sub-layer: `sums` has one entry for each sub-layer that is done."""

    def change(own: Any, given: Given) -> Any:
        return read(own) if len(read_argument(add_residual, "sums", given)) == number else own

    return {add_residual: change_argument(add_residual, argument, change)}


def _list_edges(layer: Step) -> Iterator[_Edge]:
    sublayers = _SUBLAYERS[layer]
    for number, sublayer in enumerate(sublayers, 1):
        words = _WORDS[sublayer]
        before = "x" if number == 1 else f"end {sublayers[number - 2]}"
        own_input = f"{_describe(before)} (normalised if the norm comes first)"
        if sublayer == "feed_forward":
            yield _Edge(
                "feed_forward.x", f"the {words} reads", own_input, frozenset({"read feed_forward"}), sublayer, (),
                lambda read: {feed_through: change_argument(feed_through, "x", lambda own, _: read(own))},
            )  # fmt: skip
        else:
            yield from _list_attention_edges(sublayer, own_input)
        yield _Edge(
            f"{sublayer}.residual", f"the residual of the {words} adds", _describe(before), frozenset({before}),
            sublayer, ("heads", "result", "read"), partial(_change_in_sublayer, "x", number),
        )  # fmt: skip
        yield _Edge(
            f"{sublayer}.update", f"the residual of the {words} is added to", f"the result of the {words}",
            frozenset({f"result {sublayer}"}), sublayer, ("heads", "result", "read"),
            partial(_change_in_sublayer, "output", number),
        )  # fmt: skip
        yield _Edge(
            f"{sublayer}.sum", f"the {words} and its residual give", "their sum",
            frozenset({f"sum {sublayer}"}), sublayer, ("result", "sum", "read"), partial(_replace_sum, number),
        )  # fmt: skip
        yield _Edge(
            f"{sublayer}.norm", f"the norm of the {words} reads",
            f"the sum of its residual (or in pre-norm code {_describe(before)})", frozenset(), sublayer,
            ("result", "read"), partial(_replace_normed, number),
        )  # fmt: skip
    last = f"end {sublayers[-1]}"
    yield _Edge(
        "output", "the layer returns", _describe(last), frozenset({last}), sublayers[-1], ("result", "sum", "read"),
        lambda read: {run_sublayer: _replace_end(len(sublayers), read)},
    )  # fmt: skip


def _replace_sum(number: int, read: Callable[[Any], Any]) -> Replacements:
    def run(original: Step, x: Array, output: Array, sums: list[Array]) -> Any:
        total = original(x, output, sums)
        return read(total) if len(sums) == number else total

    return {add_residual: around(run)}


def _replace_normed(number: int, read: Callable[[Any], Any]) -> Replacements:
    """Change what the norm of one sub-layer reads, before its function or after it."""

    def change(own: Any, _: Given) -> Any:
        return read(own) if _number.get() == number else own

    def run(original: Step, *args: Any, **named: Any) -> Any:
        with hold(_number, named["number"]):
            return original(*args, **named)

    return {run_sublayer: around(run), layer_norm: change_argument(layer_norm, "x", change)}


def _replace_end(number: int, read: Callable[[Any], Any]) -> Replacement:
    def run(original: Step, *args: Any, **named: Any) -> Any:
        end, second = original(*args, **named)
        return (read(end) if named["number"] == number else end), second

    return around(run)


def _list_sources(layer: Step, edge: _Edge) -> Iterator[str]:
    """Yield the arrays that are there when a step reads, other than the right one."""
    yield from (name for name in ("x", "memory") if name not in edge.right and (name == "x" or layer is decoder_layer))
    for sublayer in _SUBLAYERS[layer]:
        kinds = edge.there if sublayer == edge.sublayer else ("end", "result", "sum", "read", "heads")
        names = (f"{kind} {sublayer}" for kind in kinds if kind != "heads" or sublayer != "feed_forward")
        yield from (name for name in names if name not in edge.right)
        if sublayer == edge.sublayer:
            return


# Parameters and order


def _swap_norms(layer: Step) -> Iterator[Neighbour]:
    """Yield norms with the gamma and beta of another sub-layer, or all with those of one."""
    sublayers = _SUBLAYERS[layer]
    for number, sublayer in enumerate(sublayers, 1):

        def share(own: int, _: Given, number: int = number) -> int:
            return number if _layer.get() is layer else own

        if len(sublayers) > 2:
            yield Neighbour(
                f"{layer.__name__}.{sublayer}.norm.for-all",
                f"all norms have gamma and beta of that of the {_WORDS[sublayer]}{_locate(layer)}",
                "Give each sub-layer a norm of its own.",
                _add_notes({norm_params: change_argument(norm_params, "number", share)}),
            )
        for other, theirs in enumerate(sublayers, 1):
            if other == number:
                continue

            def change(own: int, _: Given, number: int = number, other: int = other) -> int:
                return other if own == number and _layer.get() is layer else own

            def exchange(own: int, _: Given, pair: tuple[int, int] = (number, other)) -> int:
                return sum(pair) - own if own in pair and _layer.get() is layer else own

            if number < other:
                yield Neighbour(
                    f"{layer.__name__}.{sublayer}.norm.with.{theirs}",
                    f"the norms of the {_WORDS[sublayer]} and the {_WORDS[theirs]} are swapped{_locate(layer)}",
                    f"Normalise the sub-layer of the {_WORDS[sublayer]} with norm_{number}.",
                    _add_notes({norm_params: change_argument(norm_params, "number", exchange)}),
                )
            yield Neighbour(
                f"{layer.__name__}.{sublayer}.norm.of.{theirs}",
                f"the norm of the {_WORDS[sublayer]} has gamma and beta of the {_WORDS[theirs]}'s norm{_locate(layer)}",
                f"Normalise the sub-layer of the {_WORDS[sublayer]} with norm_{number}.",
                _add_notes({norm_params: change_argument(norm_params, "number", change)}),
            )
    for word, by, says in (("next", 1, "the next one, and the last that of the first"),
                           ("before", -1, "the one before, and the first that of the last")):  # fmt: skip

        def turn(own: int, _: Given, by: int = by) -> int:
            return (own - 1 + by) % len(sublayers) + 1 if _layer.get() is layer else own

        if len(sublayers) > 2:
            yield Neighbour(
                f"{layer.__name__}.norms.{word}",
                f"each sub-layer has the norm of {says}{_locate(layer)}",
                "Number the norms in the order in which the forward pass uses them.",
                _add_notes({norm_params: change_argument(norm_params, "number", turn)}),
            )


def _change_updates(layer: Step) -> Iterator[Neighbour]:
    """Yield layers that leave out the result of a sub-layer, or add it in another way."""
    ways = (
        ("left-out", "is left out", lambda a: a * 0),
        ("twice", "is added twice", lambda a: a + a),
        ("subtracted", "is subtracted from the residual instead of added", lambda a: -a),
        ("halved", "is halved before it is added", lambda a: a / 2),
    )
    for number, sublayer in enumerate(_SUBLAYERS[layer], 1):
        # LN(x + x + a) is LN(x + a/2), but for eps; a second residual is the likelier slip.
        yield Neighbour(
            f"{layer.__name__}.{sublayer}.residual.twice",
            f"the residual of the {_WORDS[sublayer]} is added twice{_locate(layer)}",
            f"Add the input of the {_WORDS[sublayer]} to its result once.",
            _add_notes(_change_in_sublayer("x", number, _restrict_to_layer(layer, lambda a: a + a))),
        )
        for word, says, way in ways:
            yield Neighbour(
                f"{layer.__name__}.{sublayer}.{word}",
                f"the result of the {_WORDS[sublayer]} {says}{_locate(layer)}",
                f"Add the result of the {_WORDS[sublayer]} to its residual once.",
                _add_notes(_change_in_sublayer("output", number, _restrict_to_layer(layer, way))),
            )


def _reorder_sublayers(layer: Step) -> Iterator[Neighbour]:
    """Yield layers whose sub-layers run in another order, with their norms or without them."""
    sublayers = _SUBLAYERS[layer]
    right = ", ".join(_WORDS[sublayer] for sublayer in sublayers)
    for order in permutations(sublayers):
        words = ", ".join(_WORDS[sublayer] for sublayer in order)
        for word, says, number in (
            ("own-norms", "each with its own norm", lambda name, _, own=sublayers: own.index(name) + 1),
            ("norms-in-place", "and the norms stay in theirs", lambda _, place: place),
        ):
            if order == sublayers or (*order, word) == (
                "cross_attention",
                "self_attention",
                "feed_forward",
                "own-norms",
            ):
                continue  # Right, or in the catalogue.
            yield Neighbour(
                f"{layer.__name__}.order.{'.'.join(order)}.{word}",
                f"the sub-layers run in the order {words}, {says}{_locate(layer)}", f"Run them in the order {right}.",
                {layer: around(partial(_run_in_order, layer=layer, order=order, find_number=number))},
            )  # fmt: skip


def _run_in_order(
    original: Step, *args: Any, layer: Step, order: Sequence[str], find_number: Callable[[str, int], int], **named: Any
) -> dict[str, Array]:
    """Run the sub-layers of a layer in another order."""
    del original
    read = partial(read_argument, layer, given=(args, named))
    x, params, crosses = read("x"), read("params"), layer is decoder_layer
    common = {"num_heads": read("num_heads"), "params": params}
    functions: dict[str, SubLayer] = {
        "self_attention": partial(self_attend, mask=read("self_mask" if crosses else "mask"), **common),
        "feed_forward": partial(feed_through, params=params),
    }
    if crosses:
        functions["cross_attention"] = partial(cross_attend, memory=read("memory"), mask=read("memory_mask"), **common)
    sums, ends = [x], {}
    with dropping(read("dropout_rate"), read("training"), read("seed")):
        for place, name in enumerate(order, 1):
            x, second = run_sublayer(x, functions[name], number=find_number(name, place), sums=sums, params=params)
            ends[name] = (x, second)
    found = {"output": x}
    found["attended"], found["weights"] = ends["self_attention"]
    if crosses:
        found["crossed"], found["cross_weights"] = ends["cross_attention"]
    return found


def _repeat_functions(layer: Step) -> Iterator[Neighbour]:
    """Yield layers that apply the function of a sub-layer twice."""
    steps: dict[str, Step] = {
        "self_attention": self_attend,
        "cross_attention": cross_attend,
        "feed_forward": feed_through,
    }
    for sublayer in _SUBLAYERS[layer]:

        def run(original: Step, x: Array, *args: Any, **named: Any) -> Any:
            once = original(x, *args, **named)
            return original(once[0], *args, **named) if _layer.get() is layer else once

        yield Neighbour(
            f"{layer.__name__}.{sublayer}.applied-twice",
            f"the {_WORDS[sublayer]} is applied twice{_locate(layer)}",
            f"Apply the {_WORDS[sublayer]} once.",
            _add_notes({steps[sublayer]: around(run)}),
        )


def _normalise_memory() -> Iterator[Neighbour]:
    """Yield cross-attentions that first normalise their memory or input by a norm of the decoder layer."""

    def normalise(memory: Array, given: Given, number: int) -> Array:
        return layer_norm(memory, params=norm_params(read_argument(decoder_layer, "params", given), number))

    for number, sublayer in enumerate(_SUBLAYERS[decoder_layer], 1):
        yield Neighbour(
            f"decoder_layer.memory-normed-by.{sublayer}",
            f"the memory is normalised by the norm of the {_WORDS[sublayer]} before it is attended to",
            "Make keys and values of the memory as it is; if its encoder ends with a norm, that is enough.",
            {decoder_layer: change_argument(decoder_layer, "memory", partial(normalise, number=number))},
        )  # fmt: skip
        for argument, words, read, again in (
            ("query", "queries", "its input", ", once more"),
            ("key", "keys", "the memory", ""),
            ("value", "values", "the memory", ""),
        ):

            def attend(
                original: Step, x: Array, memory: Array, mask: Any, *, num_heads: int, params: Any,
                number: int = number, argument: str = argument,
            ) -> Any:  # fmt: skip
                read = x if argument == "query" else memory
                normed = layer_norm(read, params=norm_params(params, number))
                changed = change_argument(multi_head_attention, argument, lambda own, _: normed if own is read else own)
                with replacing({multi_head_attention: changed}):
                    return original(x, memory, mask, num_heads=num_heads, params=params)

            yield Neighbour(
                f"decoder_layer.{words}-normed-by.{sublayer}",
                f"the {words} of the cross-attention are made of {read}{again} normalised by the norm of the "
                f"{_WORDS[sublayer]}",
                f"Make the {words} of {read} as it is.", {cross_attend: around(attend)},
            )  # fmt: skip


#: Where a layer has dropout, in words; `updates` are what the residuals add.
_DROPPED: Final = {
    "weights": "the weights of the attention",
    "activations": "the activations",
    "updates": "the results of all sub-layers",
}


def list_dropped() -> Iterator[tuple[str, str, str, Callable[[Callable[[], float]], Replacements]]]:
    """Yield layer, an id, words and a scaling of the places where dropout stands, given what reads the one factor."""

    def scale(layer: Step, places: Sequence[str], read: Callable[[], float]) -> Replacements:
        multiply = _restrict_to_layer(layer, lambda own: (own * read()).astype(own.dtype))
        updates = [_change_in_sublayer("output", number, multiply) for number in range(1, len(_SUBLAYERS[layer]) + 1)]
        changes: dict[str, list[Replacements]] = {
            "weights": [{weigh_keys: change_array(multiply)}],
            "activations": [{activation: change_array(multiply)}],
            "updates": updates,
        }
        return _add_notes(*(change for place in places for change in changes[place]))

    for layer, count in product(_SUBLAYERS, range(1, len(_DROPPED) + 1)):
        for places in combinations(_DROPPED, count):
            # A single place is that of the attention or of the feed-forward network.
            if count > 1 or places == ("updates",):
                words = join_names([_DROPPED[place] for place in places])
                yield layer.__name__, "-".join(places), f"{words}{_locate(layer)},", partial(scale, layer, places)


def list_updates() -> Iterator[tuple[str, str, str, Callable[[Callable[[], float]], Replacements]]]:
    """Yield layer, sub-layer, words and a scaling of each array that a residual adds, given what reads the factor."""

    def scale(argument: str, number: int, layer: Step, read: Callable[[], float]) -> Replacements:
        def multiply(own: Any) -> Any:
            return (own * read()).astype(own.dtype)

        return _add_notes(_change_in_sublayer(argument, number, _restrict_to_layer(layer, multiply)))

    for layer, sublayers in _SUBLAYERS.items():
        for number, sublayer in enumerate(sublayers, 1):
            what = _WORDS[sublayer]
            result, own = (f"the result of the {what}{_locate(layer)},", f"the residual of the {what}{_locate(layer)},")
            yield layer.__name__, sublayer, result, partial(scale, "output", number, layer)
            yield layer.__name__, f"{sublayer}.residual", own, partial(scale, "x", number, layer)


def _rewire(layer: Step, edge: _Edge, source: str) -> Replacements:
    return edge.change(_restrict_to_layer(layer, _read_noted(source, any_length=edge.any_length)))


def _rewire_layers() -> Iterator[Neighbour]:
    """Yield each edge of a layer with each other array that may have the same shape."""
    for layer in _SUBLAYERS:
        for edge in _list_edges(layer):
            for source in _list_sources(layer, edge):
                yield Neighbour(
                    f"{layer.__name__}.{edge.id}.from.{source.replace(' ', '.')}",
                    f"{edge.verb} {_describe(source)} instead of {edge.own}{_locate(layer)}",
                    f"Take {edge.own} there.",
                    _add_notes(_rewire(layer, edge, source)),
                )


def _add_to_inputs(layer: Step) -> Iterator[Neighbour]:
    """Yield layers with one residual too many: they add another array to a sub-layer's input, or to its residual."""
    sublayers = _SUBLAYERS[layer]
    for number, sublayer in enumerate(sublayers, 1):
        earlier = [f"{kind} {before}" for before in sublayers[: number - 1] for kind in ("end", "result")]
        before = "x" if number == 1 else f"end {sublayers[number - 2]}"
        own = [] if number == 1 else ["x"]
        for source in (*own, *earlier, *(["memory"] if layer is decoder_layer else [])):
            if source == before:
                continue
            name, what = f"{layer.__name__}.{sublayer}", _describe(source)
            add = _restrict_to_layer(layer, _add_noted(source))

            def change(x: Array, given: Given, number: int = number, add: Callable[[Any], Any] = add) -> Array:
                mine = read_argument(run_sublayer, "number", given) == number
                return as_array(add(x)) if mine else x

            yield Neighbour(
                f"{name}.plus.{source.replace(' ', '.')}",
                f"{what} is added to the input of the {_WORDS[sublayer]}, and to its residual{_locate(layer)}",
                f"Give the {_WORDS[sublayer]} only {_describe(before)}.",
                _add_notes({run_sublayer: change_argument(run_sublayer, "x", change)}),
            )  # fmt: skip
            yield Neighbour(
                f"{name}.residual.plus.{source.replace(' ', '.')}",
                f"the residual of the {_WORDS[sublayer]} adds {what} as well{_locate(layer)}",
                f"Add only {_describe(before)} to the result.", _add_notes(_change_in_sublayer("x", number, add)),
            )  # fmt: skip


def _add_noted(source: str) -> Callable[[Any], Any]:
    """Return the sum of an array and the noted one of a name, where there is one of its shape."""

    def add(own: Any) -> Any:
        other = _noted.get().get(source)
        return own if other is None or other.shape != own.shape else own + other

    return add


def _rewire_models() -> Iterator[Neighbour]:
    """Yield models in which an edge is wrong in both kinds of layer, as with one class for both."""
    of_decoder = {edge.id: edge for edge in _list_edges(decoder_layer)}
    for edge in _list_edges(encoder_layer):
        other = of_decoder[edge.id]
        for source in (s for s in _list_sources(encoder_layer, edge) if s in _list_sources(decoder_layer, other)):
            own = edge.own if edge.own == other.own else "what it should"
            yield Neighbour(
                f"transformer.{edge.id}.from.{source.replace(' ', '.')}",
                f"{edge.verb} {_describe(source)} instead of {own}, in every layer",
                f"Take {own} there." if own == edge.own else "Take there what the layer's formula says.",
                _add_notes(_rewire(encoder_layer, edge, source), _rewire(decoder_layer, other, source)),
            )


def generate() -> Iterator[Neighbour]:
    """Yield the neighbours of what layers are made of."""
    yield from _normalise_memory()
    yield from _rewire_layers()
    yield from _rewire_models()
    for layer in _SUBLAYERS:
        yield from _swap_norms(layer)
        yield from _reorder_sublayers(layer)
        yield from _change_updates(layer)
        yield from _repeat_functions(layer)
        yield from _add_to_inputs(layer)
