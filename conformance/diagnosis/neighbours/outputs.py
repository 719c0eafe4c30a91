"""Outputs of a stack that are what its layers read, and masks that are made of another sample."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from goldformer.conformance.diagnosis.neighbours.arguments import change_array
from goldformer.conformance.diagnosis.neighbours.array_changes import (
    Change,
    repeat_first_sample,
    reverse_last_axis,
    reverse_samples,
    shift_last_axis,
)
from goldformer.conformance.diagnosis.neighbours.neighbour import Neighbour
from goldformer.spec.formulas.attention import causal_mask, padding_mask
from goldformer.spec.formulas.checks import Array
from goldformer.spec.formulas.layers import run_stack
from goldformer.spec.formulas.steps import Step, around


def _list_inputs(original: Step, x: Array, layer: Callable[..., Array], num_layers: int) -> Any:
    found = original(x, layer, num_layers)
    return {**found, "layers": np.stack([x, *found["layers"][:-1]])}


def generate() -> Iterator[Neighbour]:
    """Yield the neighbours of what is returned."""
    yield Neighbour(
        "encoder.outputs.inputs-of-layers", "the output layers holds what each layer reads",
        "Put the output of each layer into layers.", {run_stack: around(_list_inputs)},
    )  # fmt: skip
    masks: tuple[tuple[str, str, Change], ...] = (
        ("first-sample", "the padding mask of every sample is the first sample's",
         repeat_first_sample),
        ("samples-reversed", "the padding masks of the samples are in the reverse order", reverse_samples),
        ("reversed", "the padding mask is reversed along the keys", reverse_last_axis),
        ("shifted", "the padding mask is shifted by one key", shift_last_axis),
        ("all-samples", "a key is hidden where any sample has padding",
         lambda m: np.broadcast_to(m.all(0, keepdims=True), m.shape)),
        ("all-true", "the padding mask hides nothing", np.ones_like),
        ("inverted", "the padding mask is True at the padding and False at the words", np.logical_not),
    )  # fmt: skip
    yield Neighbour(
        "causal_mask.all-true", "the causal mask hides nothing", "True where the key is not after the query.",
        {causal_mask: change_array(np.ones_like)},
    )  # fmt: skip
    for word, title, change in masks:
        yield Neighbour(
            f"padding_mask.{word}", title, "True where the sample's own id is not pad_id.",
            {padding_mask: change_array(change)},
        )  # fmt: skip
