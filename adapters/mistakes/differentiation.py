"""What a mistake makes of gradients: the textbook's forward passes, differentiated as a framework would do it.

Derivatives are taken by a complex step: f(x + ih) has the imaginary part h·f′(x), but for terms in h³, and nothing
is subtracted on the way, so that with h = 2⁻³⁰⁰ only rounding is left. NumPy compares complex numbers by their real
parts first, so a maximum and a ReLU choose as they do for real numbers.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import numpy as np

from goldformer.adapters.textbook import Textbook
from goldformer.adapters.textbook_checks import Array

Gradient = Callable[..., dict[str, Array]]

#: A power of 2, which rounds nothing; its square underflows.
STEP: Final = 2.0**-300


def gradients(function: Callable[..., Any], cotangent: Array, arguments: Mapping[str, Any]) -> dict[str, Array]:
    """Return the gradients of Σ cotangent·(first result) by all arguments of floats, parameters by their own names."""
    given = {name: _complex(thing) for name, thing in arguments.items()}
    leaves = {name: thing for name, thing in {**given, **given.get("params", {})}.items() if _is_complex(thing)}
    found = {}
    for name, leaf in leaves.items():
        gradient = np.empty(leaf.shape)
        for index in _moved(leaf):
            gradient[index] = (_first(function(**given)).imag / STEP * cotangent).sum()
        found[name] = gradient.astype(cotangent.dtype)
    return found


def _moved(leaf: Array) -> Iterator[tuple[int, ...]]:
    """Give each index, the element there being a step off meanwhile."""
    for index in np.ndindex(leaf.shape):
        leaf[index] += 1j * STEP
        yield index
        leaf[index] = leaf[index].real


def _complex(thing: Any) -> Any:
    """Return what is made of floats as complex numbers, and anything else as it is."""
    if isinstance(thing, Mapping):
        return {name: _complex(inner) for name, inner in thing.items()}
    floats = isinstance(thing, np.ndarray) and thing.dtype.kind == "f"
    return thing.astype(np.complex128) if floats else thing


def _is_complex(thing: Any) -> bool:
    return isinstance(thing, np.ndarray) and thing.dtype.kind == "c"


def _first(returned: Any) -> Array:
    """Return the first result of a component, whichever form it returns its results in."""
    if isinstance(returned, Mapping):
        returned = tuple(returned.values())
    return np.asarray(returned[0] if isinstance(returned, tuple) else returned)


def differentiated(component: str) -> Gradient:
    """Return the method that gives the gradients of a component by differentiating it."""

    def gradient(self: Any, cotangent: Array, **arguments: Any) -> dict[str, Array]:
        return gradients(getattr(self, component), cotangent, arguments)

    return gradient


def undifferentiated(component: str) -> Gradient:
    """Return what says that there are no gradients: for each of many hundred numbers a stack takes a step anew."""

    def gradient(self: Any, cotangent: Array, **arguments: Any) -> dict[str, Array]:
        raise NotImplementedError(f"the gradients of {component} are formed by hand alone")

    return gradient


class DifferentiatedTextbook(Textbook):
    """The textbook with the gradients of its forward passes as they are, so that a mistake there is one in them.

    What a mistake makes of the gradients of a stack, those of its layers tell.
    """

    softmax_gradient = differentiated("softmax")
    scaled_dot_product_attention_gradient = differentiated("scaled_dot_product_attention")
    token_embedding_gradient = differentiated("token_embedding")
    multi_head_attention_gradient = differentiated("multi_head_attention")
    fused_multi_head_attention_gradient = differentiated("fused_multi_head_attention")
    single_head_attention_gradient = differentiated("single_head_attention")
    feed_forward_gradient = differentiated("feed_forward")
    layer_norm_gradient = differentiated("layer_norm")
    encoder_layer_gradient = differentiated("encoder_layer")
    decoder_layer_gradient = differentiated("decoder_layer")
    encoder_gradient = undifferentiated("encoder")
    decoder_gradient = undifferentiated("decoder")
    transformer_gradient = undifferentiated("transformer")
    output_probabilities_gradient = differentiated("output_probabilities")
    kl_divergence_gradient = differentiated("kl_divergence")
    cross_entropy_gradient = differentiated("cross_entropy")
