"""The form of a sub-layer: where its norm, its function and its residual stand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from goldformer.conformance.diagnosis.neighbours.neighbour import Neighbour
from goldformer.spec.formulas.arrays import as_array
from goldformer.spec.formulas.checks import Array
from goldformer.spec.formulas.layers import (
    SubLayer,
    decoder_layer,
    encoder_layer,
    layer_norm,
    norm_params,
    run_sublayer,
)
from goldformer.spec.formulas.randomness import drop_update
from goldformer.spec.formulas.steps import Replacements, Step, around, replacing

#: The form of a sub-layer: of its input, its function and its norm.
Form = Callable[[Array, Callable[[Array], Array], Callable[[Array], Array]], Array]


def _add_residual(read: Array, function: Callable[[Array], Array]) -> Array:
    return as_array(read + function(read))


#: What a sub-layer f with input x and norm LN may compute. Two of them are right, each under a norm_placement.
_FORMS: Final[Mapping[str, tuple[str, Form]]] = {
    "post": ("LN(x + f(x))", lambda x, f, n: n(x + f(x))),
    "pre": ("x + f(LN(x))", lambda x, f, n: x + f(n(x))),
    "residual-normed": ("LN(x) + f(x)", lambda x, f, n: n(x) + f(x)),
    "both-normed": ("LN(x) + f(LN(x))", lambda x, f, n: _add_residual(n(x), f)),
    "result-normed": ("x + LN(f(x))", lambda x, f, n: x + n(f(x))),
    "each-normed": ("LN(x) + LN(f(x))", lambda x, f, n: n(x) + n(f(x))),
    "before-and-after": ("LN(x + f(LN(x)))", lambda x, f, n: n(x + f(n(x)))),
    "first-and-after": ("LN(y + f(y)) with y = LN(x)", lambda x, f, n: n(_add_residual(n(x), f))),
    "around": ("x + LN(f(LN(x)))", lambda x, f, n: x + n(f(n(x)))),
    "result-and-after": ("LN(x + LN(f(x)))", lambda x, f, n: n(x + n(f(x)))),
    "twice": ("LN(LN(x + f(x)))", lambda x, f, n: n(n(x + f(x)))),
    "read-twice": ("x + f(LN(LN(x)))", lambda x, f, n: x + f(n(n(x)))),
    "without-residual": ("LN(f(x))", lambda x, f, n: n(f(x))),
    "normed-alone": ("f(LN(x))", lambda x, f, n: f(n(x))),
    "residual-outside": ("x + LN(x + f(x))", lambda x, f, n: x + n(x + f(x))),
    "bare": ("x + f(x)", lambda x, f, _: x + f(x)),
    "bare-function": ("f(x)", lambda x, f, _: f(x)),
    "norm-alone": ("LN(x)", lambda x, _, n: n(x)),
}
_RIGHT: Final = frozenset({"post", "pre"})
#: The kinds of layers that are wrong, in words, and their sub-layers.
_LAYERS: Final[tuple[tuple[str, tuple[Step, ...], tuple[str, ...]], ...]] = (
    ("in the encoder layer", (encoder_layer,), ("self-attention", "feed-forward network")),
    ("in the decoder layer", (decoder_layer,), ("self-attention", "cross-attention", "feed-forward network")),
    ("in every layer", (encoder_layer, decoder_layer), ()),
)


def _replace_in_sublayers(layers: tuple[Step, ...], number: int, replacement: Step) -> Replacements:
    """Replace the sub-layer of a number, or all for 0, while one of the layers runs."""

    def run_some(original: Step, x: Array, function: SubLayer, **named: Any) -> Any:
        if number in (0, named["number"]):
            return replacement(original, x, function, **named)
        return original(x, function, **named)

    def run_layer(original: Step, *args: Any, **named: Any) -> Any:
        with replacing({run_sublayer: around(run_some)}):
            return original(*args, **named)

    return {layer: around(run_layer) for layer in layers}


def _run_form(form: Form) -> Step:
    def run(
        original: Step, x: Array, function: SubLayer, *, number: int, sums: list[Array], params: Any
    ) -> tuple[Array, Array]:
        del original
        second: list[Array] = []

        def apply(read: Array) -> Array:
            output, other = function(read)
            second.append(other)
            return drop_update(output)

        def normalise(read: Array) -> Array:
            return layer_norm(read, params=norm_params(params, number))

        output = form(x, apply, normalise)
        if not second:
            apply(x)
        sums.append(output)
        return output, second[0]

    return run


def _change_forms() -> Iterator[Neighbour]:
    for where, layers, sublayers in _LAYERS:
        name = layers[0].__name__ if len(layers) == 1 else "transformer"
        for word, (formula, form) in _FORMS.items():
            steps = _run_form(form)
            hint = "A sub-layer is LN(x + f(x)), or x + f(LN(x)) where norm_placement: pre is declared."
            if word not in _RIGHT:
                yield Neighbour(
                    f"{name}.sublayers.{word}", f"each sub-layer f computes {formula}, {where}", hint,
                    _replace_in_sublayers(layers, 0, steps),
                )  # fmt: skip
            for number, sublayer in enumerate(sublayers, 1):
                others = " and the others do not" if word in _RIGHT else ""
                yield Neighbour(
                    f"{name}.sublayer-{number}.{word}",
                    f"the sub-layer f of the {sublayer} computes {formula}{others}, {where}", hint,
                    _replace_in_sublayers(layers, number, steps),
                )  # fmt: skip


def generate() -> Iterator[Neighbour]:
    """Yield the neighbours of the forms of sub-layers."""
    yield from _change_forms()
