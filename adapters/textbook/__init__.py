"""The textbook: the formulas of the spec in the dtypes of NumPy, with gradients, as an adapter has them.

It rounds as other people's code does, so a mistake made in it, one step replaced, gives what their mistake gives.

layers_backward                backward passes by hand; those of smaller components are in spec/formulas/backward.py
differentiation                the gradients of all others, and of a forward pass with a mistake
build                          an adapter object with steps replaced
"""

from collections.abc import Mapping
from inspect import unwrap
from typing import Any, Final

from goldformer.adapters.textbook import layers_backward
from goldformer.adapters.textbook.differentiation import differentiate, make_gradient, refuse_gradients
from goldformer.spec import formulas
from goldformer.spec.formulas import backward
from goldformer.spec.formulas.steps import Replacements, Step, instead

#: What gives no numbers that arguments move smoothly: masks and ids, chance, and training, whose gradients are outputs;
#: and what is called several times.
_WITHOUT_GRADIENT: Final = frozenset(
    {
        "beam_search", "cached_attention", "causal_mask", "dropout", "greedy_decode", "one_hot", "padding_mask",
        "shift_right", "single_head_attention_step", "xavier_uniform",
    }
)  # fmt: skip
#: For each of many hundred numbers a stack would run once more.
_STACKS: Final = frozenset({"encoder", "decoder", "transformer"})

_WRITTEN: Final = {**vars(backward), **vars(layers_backward)}
_HAVE_GRADIENTS: Final = {n: c for n, c in formulas.COMPONENTS.items() if n not in _WITHOUT_GRADIENT}
#: The gradients of each component: a backward pass that is written by hand, or else its derivative.
_GRADIENTS: Final[Mapping[str, Step]] = {
    name: _WRITTEN.get(f"{name}_gradient") or make_gradient(component) for name, component in _HAVE_GRADIENTS.items()
}

#: All components and their gradients, by name; what is called several times as one call of it.
COMPONENTS: Final[Mapping[str, Step]] = dict(
    sorted(
        {
            **formulas.COMPONENTS,
            **formulas.SESSION_CALLS,
            **{gradient.__name__: gradient for gradient in _GRADIENTS.values()},
        }.items()
    )
)

#: The components whose gradients are formed by differentiating them.
DIFFERENTIABLE: Final = frozenset(_GRADIENTS) - _STACKS
#: The gradients of the forward passes as they are, so that a mistake there shows in them. The gradients of layers show
#: what a mistake does to those of a stack.
DIFFERENTIATED: Final[Replacements] = {
    gradient: (refuse_gradients if name in _STACKS else differentiate)(formulas.COMPONENTS[name])
    for name, gradient in _GRADIENTS.items()
}
#: The gradients of the textbook's backward passes by hand again, on top of those: they do not know what a mistake in a
#: forward pass does to its gradients.
BY_HAND: Final[Replacements] = {
    gradient: instead(unwrap(gradient)) for gradient in DIFFERENTIATED if gradient.__name__ in _WRITTEN
}


def __getattr__(name: str) -> Any:
    """Return a component or its gradients by name."""
    if name not in COMPONENTS:
        raise AttributeError(f"the textbook has no component {name}")
    return COMPONENTS[name]
