"""Layers, stacks and whole models of several authors: no case and no property may accuse them."""

from __future__ import annotations

from functools import wraps

import pytest
import torch

from authors import annotated, from_scratch, functional, mingpt, torch_layers
from controls import HALF, NUMPY, Control, in_each_dtype


def in_float32(functions):
    """The same in half precision with all of the arithmetic in float32, as mixed precision may have it."""

    def widened(function):
        def wide(thing):
            if isinstance(thing, dict):
                return {name: wide(value) for name, value in thing.items()}
            return thing.float() if isinstance(thing, torch.Tensor) and thing.is_floating_point() else thing

        def narrow(thing, dtype):
            if isinstance(thing, dict):
                return {name: narrow(value, dtype) for name, value in thing.items()}
            return thing.to(dtype)

        @wraps(function)  # its signature says which arguments it does not have, such as a dropout rate
        def call(**given):
            return narrow(function(**wide(given)), next(iter(given["params"].values())).dtype)

        return call

    return {name: widened(function) for name, function in functions.items()}


#: Of the components that have cases under that convention.
NORM_FIRST = {
    name: function
    for name, function in annotated.functions(norm_first=True).items()
    if name in ("encoder_layer", "decoder_layer")
}
CONTROLS = [
    Control("annotated", annotated.functions(), dtypes=("float64", "bfloat16")),
    Control("annotated_norm_first", NORM_FIRST, {"norm_placement": "pre"}, dtypes=("float32", "float16")),
    Control("mingpt", mingpt.FUNCTIONS, {"empty_row": "nan"}, dtypes=("float32", "float16")),
    Control("functional", functional.FUNCTIONS),
    Control("functional_in_float32", in_float32(functional.FUNCTIONS), dtypes=HALF),
    Control("nn_transformer", torch_layers.FUNCTIONS, {"empty_row": "zeros"}, dtypes=("float64", "float16")),
    Control("from_scratch", from_scratch.FUNCTIONS, dtypes=NUMPY, arrays="numpy"),
]


@pytest.mark.sample(1)
@pytest.mark.parametrize(**in_each_dtype(CONTROLS))
def test_models_of_other_authors(control, dtype, acquitted):
    acquitted(control, dtype)
