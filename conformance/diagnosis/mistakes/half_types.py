"""Mistakes that keep fewer digits than the dtype of the call: weights, inputs, products or sums in a half type.

They show only where numbers have more digits than that. A gradient passes through their rounding unchanged, as it does
through a cast.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any, Final

import numpy as np

from goldformer.adapters.dtypes import round_to_dtype
from goldformer.adapters.textbook import COMPONENTS
from goldformer.conformance.diagnosis.mistakes.registry import mistake
from goldformer.spec.formulas.arrays import Array, arithmetic, as_array
from goldformer.spec.formulas.attention import score_keys, sum_values
from goldformer.spec.formulas.embedding import token_embedding
from goldformer.spec.formulas.heads import apply_affine
from goldformer.spec.formulas.steps import Step, hold

Rounding = Callable[[Array], Array]

#: The dtypes with more digits than every half type.
_FINER: Final = ("float32", "float64")
#: The significant bits of the numbers that a tensor core multiplies in place of those of float32.
_BITS_OF_TF32: Final = 11

#: True inside a call: the components that a component is made of are given what is rounded already.
_is_inside: Final[ContextVar[bool]] = ContextVar("is_inside", default=False)


def _keep_slope(rounding: Rounding) -> Rounding:
    """Return a rounding of floats through which gradients flow as they are."""

    def run(values: Array) -> Array:
        if values.dtype.kind != "f":
            return values
        rounded = rounding(arithmetic().detach(values)).astype(values.dtype)
        return arithmetic().record(rounded, (values, lambda cotangent: cotangent))

    return run


def _to_tf32(values: Array) -> Array:
    mantissa, exponent = np.frexp(values)
    return as_array(np.ldexp(np.rint(np.ldexp(mantissa, _BITS_OF_TF32)), exponent - _BITS_OF_TF32))


def _to_half(dtype: str) -> Rounding:
    # A cast from float64 goes by float32, and so rounds twice, in PyTorch as on a GPU.
    return _keep_slope(lambda values: round_to_dtype(values.astype(np.float32).astype(values.dtype), dtype))


def _is_floats(thing: Any) -> bool:
    return hasattr(thing, "dtype") and thing.dtype.kind == "f"


def _register_arguments(id_: str, rounding: Rounding, *, inputs: bool, params: bool) -> None:
    """Register the mistake that rounds the inputs or the parameters of each call, of all components.

    One that rounds both shows where a call has both: elsewhere it is one of the others.
    """

    def run(original: Step, *given: Any, **named: Any) -> Any:
        has_both = "params" in named and any(map(_is_floats, (*given, *named.values())))
        if not _is_inside.get() and (has_both or not (inputs and params)):
            given = tuple(_round("", thing) for thing in given)
            named = {name: _round(name, thing) for name, thing in named.items()}
        with hold(_is_inside, value=True):
            return original(*given, **named)

    def _round(name: str, thing: Any) -> Any:
        if name == "params":
            return {key: rounding(array) for key, array in thing.items()} if params else thing
        return rounding(thing) if inputs and _is_floats(thing) else thing

    for component in COMPONENTS.values():
        # Of a table of embeddings there is a mistake of its own; gradients are formed of the components.
        if component is not token_embedding and not component.__name__.endswith("_gradient"):
            mistake(id_, around=component, shows_in=_FINER)(run)


def _register_table(id_: str, rounding: Rounding) -> None:
    def look_up(original: Step, ids: Array, *, params: Mapping[str, Array], **named: Any) -> Array:
        return as_array(original(ids, params={**params, "table": rounding(params["table"])}, **named))

    mistake(id_, around=token_embedding, shows_in=_FINER)(look_up)


def _register_products(id_: str, operands: Rounding, results: Rounding) -> None:
    """Register the mistake that rounds what matrix products take, and what they return."""

    def multiply(original: Step, x: Array, y: Array) -> Array:
        return results(as_array(original(operands(x), operands(y))))

    def apply(original: Step, x: Array, weight: Array, bias: Array | None) -> Array:
        product = results(as_array(original(operands(x), operands(weight), None)))
        return product if bias is None else product + bias

    for step in (score_keys, sum_values):
        mistake(id_, around=step, shows_in=_FINER)(multiply)
    mistake(id_, around=apply_affine, shows_in=_FINER)(apply)


def _add_up(terms: Array, rounding: Rounding) -> Array:
    """Add terms along their last axis, and round after each."""
    total = np.zeros_like(terms[..., 0])
    for place in range(terms.shape[-1]):
        total = rounding(total + terms[..., place])
    return total


def _register_sums(id_: str, rounding: Rounding) -> None:
    """Register the mistake that adds up the terms of matrix products in a half type."""

    def score(query: Array, key: Array) -> Array:
        return _add_up(query[..., :, None, :] * key[..., None, :, :], rounding)

    def weigh(weights: Array, value: Array) -> Array:
        return score(weights, value.swapaxes(-1, -2))

    def apply(x: Array, weight: Array, bias: Array | None) -> Array:
        product = _add_up(x[..., None, :] * weight.T, rounding)
        return product if bias is None else product + bias

    mistake(id_, instead_of=score_keys, shows_in=_FINER)(score)
    mistake(id_, instead_of=sum_values, shows_in=_FINER)(weigh)
    mistake(id_, instead_of=apply_affine, shows_in=_FINER)(apply)


for _dtype in ("bfloat16", "float16"):
    _half = _to_half(_dtype)
    _register_table(f"table-in-{_dtype}", _half)
    _register_arguments(f"weights-in-{_dtype}", _half, inputs=False, params=True)
    _register_arguments(f"inputs-in-{_dtype}", _half, inputs=True, params=False)
    _register_arguments(f"arguments-in-{_dtype}", _half, inputs=True, params=True)
    _register_products(f"products-in-{_dtype}", _half, _half)
    _register_sums(f"sums-in-{_dtype}", _half)
_register_products("products-in-tf32", _keep_slope(_to_tf32), lambda values: values)
