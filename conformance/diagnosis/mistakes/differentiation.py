"""The gradients of a mistake: the textbook's forward passes, differentiated as a framework would do it.

Derivatives are taken by a complex step: f(x + ih) has the imaginary part h·f′(x), but for terms in h³, and nothing
is subtracted on the way, so that with h = 2⁻³⁰⁰ only rounding is left. NumPy compares complex numbers by their real
parts first, so a maximum and a ReLU choose as they do for real numbers.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import numpy as np

from goldformer.adapters import textbook
from goldformer.adapters.textbook.checks import Array
from goldformer.adapters.textbook.steps import Replacement, Replacements, Step, instead

#: A power of 2, which rounds nothing; its square underflows.
STEP: Final = 2.0**-300


def gradients(function: Callable[..., Any], cotangent: Array, arguments: Mapping[str, Any]) -> dict[str, Array]:
    """Return the gradients of Σ cotangent·(first result) by all arguments of floats, parameters by their own names."""
    given = {name: _to_complex(thing) for name, thing in arguments.items()}
    leaves = {name: thing for name, thing in {**given, **given.get("params", {})}.items() if _is_complex(thing)}
    found = {}
    for name, leaf in leaves.items():
        gradient = np.empty(leaf.shape)
        for index in _step_elements(leaf):
            gradient[index] = (_first(function(**given)).imag / STEP * cotangent).sum()
        found[name] = gradient.astype(cotangent.dtype)
    return found


def _step_elements(leaf: Array) -> Iterator[tuple[int, ...]]:
    """Move each element by a step while its index is yielded."""
    for index in np.ndindex(leaf.shape):
        leaf[index] += 1j * STEP
        yield index
        leaf[index] = leaf[index].real


def _to_complex(thing: Any) -> Any:
    """Return what is made of floats as complex numbers, and anything else as it is."""
    if isinstance(thing, Mapping):
        return {name: _to_complex(inner) for name, inner in thing.items()}
    floats = isinstance(thing, np.ndarray) and thing.dtype.kind == "f"
    return thing.astype(np.complex128) if floats else thing


def _is_complex(thing: Any) -> bool:
    return isinstance(thing, np.ndarray) and thing.dtype.kind == "c"


def _first(returned: Any) -> Array:
    """Return the first result of a component, whichever form it returns its results in."""
    if isinstance(returned, Mapping):
        returned = tuple(returned.values())
    return np.asarray(returned[0] if isinstance(returned, tuple) else returned)


def differentiate(component: Step) -> Replacement:
    """Return the replacement that forms the gradients of a component by differentiating it."""

    def gradient(cotangent: Array, **arguments: Any) -> dict[str, Array]:
        return gradients(component, cotangent, arguments)

    return instead(gradient)


def refuse_gradients(component: Step) -> Replacement:
    """Return the replacement that has no gradients: for each of many hundred numbers a stack would run once more."""

    def gradient(cotangent: Array, **arguments: Any) -> dict[str, Array]:
        raise NotImplementedError(f"the gradients of {component.__name__} are formed by hand alone")

    return instead(gradient)


#: The gradients of the forward passes as they are, so that a mistake there is one in them. What a mistake makes of the
#: gradients of a stack, those of its layers tell.
DIFFERENTIATED: Final[Replacements] = {
    textbook.softmax_gradient: differentiate(textbook.softmax),
    textbook.scaled_dot_product_attention_gradient: differentiate(textbook.scaled_dot_product_attention),
    textbook.token_embedding_gradient: differentiate(textbook.token_embedding),
    textbook.multi_head_attention_gradient: differentiate(textbook.multi_head_attention),
    textbook.fused_multi_head_attention_gradient: differentiate(textbook.fused_multi_head_attention),
    textbook.single_head_attention_gradient: differentiate(textbook.single_head_attention),
    textbook.feed_forward_gradient: differentiate(textbook.feed_forward),
    textbook.layer_norm_gradient: differentiate(textbook.layer_norm),
    textbook.encoder_layer_gradient: differentiate(textbook.encoder_layer),
    textbook.decoder_layer_gradient: differentiate(textbook.decoder_layer),
    textbook.encoder_gradient: refuse_gradients(textbook.encoder),
    textbook.decoder_gradient: refuse_gradients(textbook.decoder),
    textbook.transformer_gradient: refuse_gradients(textbook.transformer),
    textbook.output_probabilities_gradient: differentiate(textbook.output_probabilities),
    textbook.kl_divergence_gradient: differentiate(textbook.kl_divergence),
    textbook.cross_entropy_gradient: differentiate(textbook.cross_entropy),
}
