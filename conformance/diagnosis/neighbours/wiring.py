"""The wiring of layers: the order of their sub-layers, and factors of what their residuals add."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from functools import partial
from itertools import combinations, permutations, product
from typing import Any, Final

from goldformer.conformance.diagnosis.neighbours.arguments import (
    Given,
    change_argument,
    change_array,
    read_argument,
)
from goldformer.conformance.diagnosis.neighbours.neighbour import Neighbour
from goldformer.conformance.properties.relations import join_names
from goldformer.spec.formulas.attention import weigh_keys
from goldformer.spec.formulas.checks import Array
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
from goldformer.spec.formulas.steps import Replacement, Replacements, Step, around, hold

#: The kind of layer that runs.
_layer: Final[ContextVar[Step | None]] = ContextVar("layer", default=None)

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


def _locate(layer: Step) -> str:
    return f", in the {layer.__name__.replace('_', ' ')}"


def _note_layers(*changes: Replacements) -> Replacements:
    """Return changes that know the kind of layer that runs; those of one step are made one after the other."""

    def note(layer: Step) -> Replacement:
        def run(original: Step, *args: Any, **named: Any) -> Any:
            with hold(_layer, layer):
                return original(*args, **named)

        return around(run)

    joined: dict[Step, Replacement] = {layer: note(layer) for layer in _SUBLAYERS}
    for change in changes:
        for step, replacement in change.items():
            joined[step] = _chain_replacements(joined[step], replacement) if step in joined else replacement
    return joined


def _chain_replacements(below: Replacement, above: Replacement) -> Replacement:
    return lambda original: above(below(original))


def _restrict_to_layer(layer: Step, change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a change that is made only in one kind of layer: both kinds run the same steps."""
    return lambda own: change(own) if _layer.get() is layer else own


def _change_in_sublayer(argument: str, number: int, read: Callable[[Any], Any]) -> Replacements:
    """Change an argument of add_residual in one sub-layer: `sums` has one entry for each sub-layer that is done."""

    def change(own: Any, given: Given) -> Any:
        return read(own) if len(read_argument(add_residual, "sums", given)) == number else own

    return {add_residual: change_argument(add_residual, argument, change)}


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
        return _note_layers(*(change for place in places for change in changes[place]))

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

        return _note_layers(_change_in_sublayer(argument, number, _restrict_to_layer(layer, multiply)))

    for layer, sublayers in _SUBLAYERS.items():
        for number, sublayer in enumerate(sublayers, 1):
            what = _WORDS[sublayer]
            result, own = (f"the result of the {what}{_locate(layer)},", f"the residual of the {what}{_locate(layer)},")
            yield layer.__name__, sublayer, result, partial(scale, "output", number, layer)
            yield layer.__name__, f"{sublayer}.residual", own, partial(scale, "x", number, layer)


def _normalise_memory() -> Iterator[Neighbour]:
    """Yield decoder layers that first normalise their memory by one of their norms."""

    def normalise(memory: Array, given: Given, number: int) -> Array:
        return layer_norm(memory, params=norm_params(read_argument(decoder_layer, "params", given), number))

    for number, sublayer in enumerate(_SUBLAYERS[decoder_layer], 1):
        yield Neighbour(
            f"decoder_layer.memory-normed-by.{sublayer}",
            f"the memory is normalised by the norm of the {_WORDS[sublayer]} before it is attended to",
            "Make keys and values of the memory as it is; if its encoder ends with a norm, that is enough.",
            {decoder_layer: change_argument(decoder_layer, "memory", partial(normalise, number=number))},
        )  # fmt: skip


def generate() -> Iterator[Neighbour]:
    """Yield the neighbours of what layers are made of."""
    yield from _normalise_memory()
    for layer in _SUBLAYERS:
        yield from _reorder_sublayers(layer)
