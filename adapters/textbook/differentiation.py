"""The gradients of components by reverse mode, of mistakes and options in them too, as a framework would form them."""

from collections.abc import Callable, Mapping
from inspect import Parameter, signature
from typing import Any

import numpy as np

from goldformer.adapters.textbook.reverse import Recorded, Reverse, record_leaf, sweep_back
from goldformer.spec.formulas.arrays import Array, computing
from goldformer.spec.formulas.attention import scaled_dot_product_attention
from goldformer.spec.formulas.steps import Step, step


def gradients(function: Callable[..., Any], cotangent: Array, arguments: Mapping[str, Any]) -> dict[str, Array]:
    """Return the gradients of Σ cotangent·(first result) by all arguments of floats, parameters by their own names."""
    given = {name: _record_floats(thing) for name, thing in arguments.items()}
    leaves = {n: leaf for n, leaf in {**given, **given.get("params", {})}.items() if isinstance(leaf, Recorded)}
    with computing(Reverse()):
        returned = function(**given)
    if isinstance(returned, Mapping):
        returned = tuple(returned.values())
    return sweep_back(returned[0] if isinstance(returned, tuple) else returned, cotangent, leaves)


def _record_floats(thing: Any) -> Any:
    """Return what is made of floats as arrays that record their operations, and anything else as it is."""
    if isinstance(thing, Mapping):
        return {name: _record_floats(inner) for name, inner in thing.items()}
    return record_leaf(thing) if isinstance(thing, np.ndarray) and thing.dtype.kind == "f" else thing


def differentiate_attention(forward: Mapping[str, Array], cotangent: Array, mask: Array | None) -> dict[str, Array]:
    """Return the gradients of query, key and value, which `forward` holds."""
    arguments = {name: forward[name] for name in ("query", "key", "value")}
    return gradients(scaled_dot_product_attention, cotangent, {**arguments, "mask": mask})


def make_gradient(component: Step) -> Step:
    """Return the step `<component>_gradient`, which takes the component's arguments and a cotangent by name."""

    def gradient(cotangent: Array, **arguments: Any) -> dict[str, Array]:
        return gradients(component, cotangent, arguments)

    gradient.__name__ = f"{component.__name__}_gradient"
    parameter = Parameter("cotangent", Parameter.KEYWORD_ONLY)
    taken = signature(component).parameters.values()
    given = [p if p.kind is p.VAR_KEYWORD else p.replace(kind=Parameter.KEYWORD_ONLY) for p in taken]
    # `inspect` reads the attribute; the type of a function does not list it.
    gradient.__signature__ = signature(gradient).replace(parameters=[parameter, *given])  # type: ignore[attr-defined]
    return step(gradient)
