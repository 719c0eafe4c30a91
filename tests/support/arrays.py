"""Inputs for the textbook, and its results beside those of others."""

import numpy as np
import torch

UNIT_ROUNDOFF = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11}


def draw(seed, *shape, dtype="float64", end=2.0):
    """64ths of ±end: every dtype holds them. Read-only, so that writing to an input raises."""
    x = (np.random.default_rng(seed).integers(-64, 65, shape) / 64 * end).astype(dtype)
    x.flags.writeable = False
    return x


def drawn(table, sizes, seed=0, dtype="float64", end=2.0):
    """Arrays for a table of axes of these sizes, by name."""
    shapes = {name: [sizes[axis] for axis in axes.removeprefix("? ").split()] for name, axes in table.items()}
    arrays = {n: draw(seed + i, *shape, dtype=dtype, end=end) for i, (n, shape) in enumerate(shapes.items())}
    # Norms scale by about 1, so that no signal dies in the stacks.
    return arrays | {n: arrays[n] + 1 for n in arrays if n.endswith("gamma")}


def outputs(returned):
    """The outputs in the contract's order, whichever of the adapter's three forms they come in."""
    if isinstance(returned, dict):
        return list(returned.values())
    return list(returned) if isinstance(returned, tuple) else [returned]


def tensors(thing):
    if isinstance(thing, dict):
        return {name: tensors(value) for name, value in thing.items()}
    return torch.from_numpy(thing.copy()) if isinstance(thing, np.ndarray) else thing
