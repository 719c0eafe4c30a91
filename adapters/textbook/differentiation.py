"""The gradients of forward passes, mistakes in them included, differentiated as a framework would do it.

Derivatives are taken by a complex step: f(x + ih) has the imaginary part h·f′(x), but for terms in h³, and nothing
is subtracted on the way, so that with h = 2⁻³⁰⁰ only rounding is left. NumPy compares complex numbers by their real
parts first, so a maximum and a ReLU choose as they do for real numbers.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from inspect import Parameter, signature
from typing import Any, Final

import numpy as np

from goldformer.spec.formulas.checks import Array
from goldformer.spec.formulas.steps import Replacement, Step, hold, instead, step

#: A power of 2, which rounds nothing; its square underflows.
STEP: Final = 2.0**-300

#: The arguments whose gradients are formed: each of their elements takes a call. None stands for all.
_asked: Final[ContextVar[Collection[str] | None]] = ContextVar("asked", default=None)


def gradients(function: Callable[..., Any], cotangent: Array, arguments: Mapping[str, Any]) -> dict[str, Array]:
    """Return the gradients of Σ cotangent·(first result) by all arguments of floats, parameters by their own names."""
    given, leaves = _read_leaves(arguments, _asked.get())
    found = {}
    for name, leaf in leaves.items():
        gradient = np.empty(leaf.shape)
        for index in _step_elements(leaf):
            gradient[index] = (_take_first_result(function(**given)).imag / STEP * cotangent).sum()
        found[name] = gradient.astype(cotangent.dtype)
    return found


def asking(names: Collection[str] | None) -> AbstractContextManager[None]:
    """Form only the gradients of these arguments inside a context; None stands for all."""
    return hold(_asked, names)


def derive_along_all(
    function: Callable[..., Any],
    arguments: Mapping[str, Any],
    names: Collection[str] | None,
    places: Mapping[str, Sequence[tuple[int, ...]] | None],
) -> tuple[dict[str, Array], Array]:
    """Return a random direction for each of these arguments, and the derivative of the first result along all at once.

    The directions are always the same, and 0 but at the places of an argument that has some. Functions with one such
    derivative have the same gradients there.
    """
    given, leaves = _read_leaves(arguments, names)
    rng = np.random.default_rng(0)
    directions = {name: rng.standard_normal(leaf.shape) for name, leaf in leaves.items()}
    for name, direction in directions.items():
        if (indices := places.get(name)) is not None:
            chosen = tuple(np.array(indices).T)
            kept = direction[chosen]
            direction[...] = 0.0
            direction[chosen] = kept
    for name, leaf in leaves.items():
        np.add(leaf, 1j * STEP * directions[name], out=leaf)
    return directions, _take_first_result(function(**given)).imag / STEP


def _read_leaves(
    arguments: Mapping[str, Any], names: Collection[str] | None
) -> tuple[dict[str, Any], dict[str, Array]]:
    """Return the arguments with complex numbers for floats, and those of floats among `names`, parameters by theirs."""
    given = {name: _to_complex(thing) for name, thing in arguments.items()}
    floats = {name: thing for name, thing in {**given, **given.get("params", {})}.items() if _is_complex(thing)}
    return given, {name: leaf for name, leaf in floats.items() if names is None or name in names}


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


def _take_first_result(returned: Any) -> Array:
    """Return the first result of a component, whichever form it returns its results in."""
    if isinstance(returned, Mapping):
        returned = tuple(returned.values())
    return np.asarray(returned[0] if isinstance(returned, tuple) else returned)


def differentiate(component: Step) -> Replacement:
    """Return the replacement that forms the gradients of a component by differentiating it."""
    return instead(_derive(component))


def _derive(component: Step) -> Step:
    def gradient(cotangent: Array, **arguments: Any) -> dict[str, Array]:
        return gradients(component, cotangent, arguments)

    return gradient


def refuse_gradients(component: Step) -> Replacement:
    """Return the replacement that has no gradients: for each of many hundred numbers a stack would run once more."""

    def gradient(cotangent: Array, **arguments: Any) -> dict[str, Array]:
        raise NotImplementedError(f"the gradients of {component.__name__} are only formed by hand")

    return instead(gradient)


def make_gradient(component: Step) -> Step:
    """Return the step `<component>_gradient`, which differentiates a component that has no backward pass by hand."""
    gradient = _derive(component)
    gradient.__name__ = f"{component.__name__}_gradient"
    cotangent = Parameter("cotangent", Parameter.KEYWORD_ONLY)
    given = [p.replace(kind=Parameter.KEYWORD_ONLY) for p in signature(component).parameters.values()]
    # `inspect` reads the attribute; the type of a function does not list it.
    gradient.__signature__ = signature(gradient).replace(parameters=[cotangent, *given])  # type: ignore[attr-defined]
    return step(gradient)
