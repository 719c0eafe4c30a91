"""Backward passes of layers and models by hand: a way that is lost, doubled or taken in another place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextvars import ContextVar
from functools import partial
from itertools import product
from typing import Any, Final

import numpy as np

from goldformer.adapters.textbook.layers_backward import (
    add_tied_gradient,
    cross_attend_gradient,
    decoder_layer_gradient,
    encoder_layer_gradient,
    feed_through_gradient,
    join_residual_gradient,
    multi_head_attention_gradient,
    self_attend_gradient,
    sublayer_gradient,
    sum_table_gradients,
)
from goldformer.conformance.diagnosis.neighbours.arguments import read_argument
from goldformer.conformance.diagnosis.neighbours.backward import make_backward
from goldformer.conformance.diagnosis.neighbours.neighbour import Neighbour
from goldformer.spec.formulas.backward import Gradients, projection_gradients
from goldformer.spec.formulas.checks import Array
from goldformer.spec.formulas.layers import feed_through, self_attend
from goldformer.spec.formulas.steps import Step, around, hold, instead, replacing

#: The sub-layers of each layer, in words.
_SUBLAYERS: Final = {
    "encoder_layer": ("self-attention", "feed-forward network"),
    "decoder_layer": ("self-attention", "cross-attention", "feed-forward network"),
}
#: The sub-layer whose gradient is formed, counted from 1, and the gradient of its layer's output.
_number: Final[ContextVar[int]] = ContextVar("number", default=0)
_of_layer: Final[ContextVar[Array]] = ContextVar("of_layer")


def _note_number(original: Step, *args: Any, number: int, **named: Any) -> Any:
    with hold(_number, number):
        return original(*args, number=number, **named)


def _change_residuals() -> Iterator[Neighbour]:
    """Yield sub-layers through which, or around which, no gradient flows, or twice as much of it."""
    ways: tuple[tuple[str, str, Callable[[Array, Array], Array]], ...] = (
        ("residual-forgotten", "forgets the residual around the {}", lambda _, through: through),
        ("result-forgotten", "goes around the {} only, and not through it", lambda bypass, _: bypass),
        ("residual-twice", "adds the residual around the {} twice", lambda bypass, through: 2 * bypass + through),
        ("subtracted", "subtracts what comes through the {}", lambda bypass, through: bypass - through),
    )
    for layer, sublayers in _SUBLAYERS.items():
        for (number, what), (word, says, way) in product(enumerate(sublayers, 1), ways):

            def join(original: Step, bypass: Array, through: Array, number: int = number, way: Any = way) -> Array:
                mine = _number.get() == number
                return np.asarray(way(bypass, through) if mine else original(bypass, through))

            yield make_backward(
                f"{what.replace(' ', '-')}.{word}", layer, f"the backward pass {says.format(what)}",
                "The gradient of the input is that around the sub-layer plus that through it.",
                {sublayer_gradient: around(_note_number), join_residual_gradient: around(join)},
            )  # fmt: skip


def _bypass_norms() -> Iterator[Neighbour]:
    """Yield sub-layers around which the gradient of the layer's output flows, past all norms after them."""
    for step in (encoder_layer_gradient, decoder_layer_gradient):
        layer = step.__name__.removesuffix("_gradient")

        def note(original: Step, *args: Any, step: Step = step, **named: Any) -> Gradients:
            with hold(_of_layer, read_argument(step, "cotangent", (args, named))):
                found: Gradients = original(*args, **named)
                return found

        for number, what in enumerate(_SUBLAYERS[layer], 1):

            def join(original: Step, bypass: Array, through: Array, number: int = number) -> Array:
                return np.asarray(original(_of_layer.get() if _number.get() == number else bypass, through))

            yield make_backward(
                f"{what.replace(' ', '-')}.residual-of-layer-output", layer,
                f"the gradient around the {what} is that of the layer's output, before any norm",
                "Around a sub-layer flows the gradient of the sum of its residual.",
                {step: around(note), sublayer_gradient: around(_note_number), join_residual_gradient: around(join)},
            )  # fmt: skip


def _overwrite_inputs() -> Iterator[Neighbour]:
    """Yield sub-layers whose residual is added in place to the input that the gradients of the weights read.

    Of a decoder layer only some gradients are judged.
    """
    places: tuple[tuple[str, str, Step, Step, str], ...] = (
        ("encoder_layer", "self-attention", self_attend, self_attend_gradient, "qkv"),
        ("encoder_layer", "feed-forward network", feed_through, feed_through_gradient, "1"),
        ("decoder_layer", "self-attention", self_attend, self_attend_gradient, "qkv"),
    )
    for layer, what, forward, backward, roles in places:

        def run(
            original: Step, x: Array, cotangent: Array, *args: Any, forward: Step = forward, roles: str = roles,
            **named: Any,
        ) -> Any:  # fmt: skip
            summed = np.asarray(x + forward(x, *args, **named)[0])

            def form(own: Step, given: Array, gradient: Array, params: Any, role: str) -> Gradients:
                found: Gradients = own(summed if role in roles and given is x else given, gradient, params, role)
                return found

            with replacing({projection_gradients: around(form)}):
                return original(x, cotangent, *args, **named)

        yield make_backward(
            f"{what.replace(' ', '-')}.input-overwritten", layer,
            f"the gradients of the weights that read the input of the {what} read the sum of its residual",
            "Keep the input for the backward pass: do not add the residual to it in place.", {backward: around(run)},
        )  # fmt: skip


def _lose_ways() -> Iterator[Neighbour]:
    """Yield layers in which no gradient flows back through the queries, keys or values of an attention."""
    roles = {"query": "queries", "key": "keys", "value": "values"}

    def lose(original: Step, *args: Any, name: str, **named: Any) -> Gradients:
        found: Gradients = original(*args, **named)
        return {**found, name: found[name] * 0}

    def attend(original: Step, *args: Any, name: str, **named: Any) -> Any:
        with replacing({multi_head_attention_gradient: around(partial(lose, name=name))}):
            return original(*args, **named)

    places = (
        ("encoder_layer", "self-attention", "input", self_attend_gradient, roles),
        ("decoder_layer", "self-attention", "input", self_attend_gradient, roles),
        ("decoder_layer", "cross-attention", "memory", cross_attend_gradient, {n: roles[n] for n in ("key", "value")}),
        ("decoder_layer", "cross-attention", "input", cross_attend_gradient, {"query": roles["query"]}),
    )
    for layer, attention, target, step, names in places:
        for name, words in names.items():
            yield make_backward(
                f"{attention}.{target}-without-{words}", layer,
                f"the way back through the {words} of the {attention} is missing in the gradient of the {target}",
                "Add up what flows back through queries, keys and values.", {step: around(partial(attend, name=name))},
            )  # fmt: skip


def _lose_table() -> Iterator[Neighbour]:
    """Yield models whose tied table gets the gradient of one of its uses only."""
    ways: tuple[tuple[str, str, Step, Callable[[Array, Array], Array]], ...] = (
        ("logits", "what reaches the tied table through the logits is missing in its gradient", add_tied_gradient,
         lambda words, _: words),
        ("words", "what reaches the tied table through the words is missing in its gradient", add_tied_gradient,
         lambda words, logits: 0 * words + logits.T),
        ("source", "what reaches the table through the source is missing in its gradient", sum_table_gradients,
         lambda _, target: target),
        ("target", "what reaches the table through the target is missing in its gradient", sum_table_gradients,
         lambda source, _: source),
    )  # fmt: skip
    for word, title, step, way in ways:
        yield make_backward(
            f"table.without-{word}", "transformer", title,
            "Add up the gradients of all uses of the table: source, target and, if it is tied, logits.",
            {step: instead(way)},
        )  # fmt: skip


def generate() -> Iterator[Neighbour]:
    """Yield the neighbours of the backward passes of layers and models."""
    yield from _lose_table()
    yield from _change_residuals()
    yield from _bypass_norms()
    yield from _overwrite_inputs()
    yield from _lose_ways()
