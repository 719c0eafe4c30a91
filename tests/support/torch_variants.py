"""The variants of the torch-nn adapter, their inputs and their arrays."""

import numpy as np
import pytest
import torch

from goldformer.adapters.builtin import torch_nn
from goldformer.spec import load_spec

UNIT_ROUNDOFF = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
VARIANTS = {
    adapter.NAME: adapter
    for adapter in (
        torch_nn.torch_nn,
        torch_nn.torch_nn_pre,
        torch_nn.torch_nn_gelu,
        torch_nn.torch_nn_math,
        torch_nn.torch_nn_flash,
        torch_nn.torch_nn_sequence_first,
    )
}
every_variant = pytest.mark.parametrize("adapter", VARIANTS.values(), ids=VARIANTS)
every_dtype = pytest.mark.parametrize("dtype", UNIT_ROUNDOFF)


def axes_of(component, layers=0):
    """The axes of a component's parameters under the documents' own options, by name, with blanks between."""
    specs = load_spec().contracts[component].params_for({"num_layers": layers}).values()
    return {spec.name: " ".join(map(str, spec.shape.axes)) for spec in specs if spec.only_with.keys() <= {"biases"}}


def draw(seed, *shape, end=2.0):
    """64ths of ±end, which every dtype holds where end is a power of 2."""
    return np.random.default_rng(seed).integers(-64, 65, shape) / 64 * end


def tensors(thing, dtype):
    """The arguments as tensors: floats in the dtype, masks and ids as they are."""
    if isinstance(thing, dict):
        return {name: tensors(value, dtype) for name, value in thing.items()}
    if not isinstance(thing, np.ndarray):
        return thing
    tensor = torch.from_numpy(thing)
    return tensor.to(getattr(torch, dtype)) if tensor.is_floating_point() else tensor
