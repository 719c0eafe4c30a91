"""Outputs that are returned in one another's place, and masks that are made of another sample."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

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
from goldformer.spec.formulas.attention import padding_mask
from goldformer.spec.formulas.checks import Array
from goldformer.spec.formulas.heads import fused_multi_head_attention, multi_head_attention, single_head_attention
from goldformer.spec.formulas.layers import decoder_layer, encoder_layer, run_stack
from goldformer.spec.formulas.steps import Step, around
from goldformer.spec.formulas.transformer import output_probabilities, transformer

#: Pairs of outputs of one shape; of one shape in some calls, such as those of a head as wide as the sequence is long.
_PAIRS: Final[tuple[tuple[Step, str, str], ...]] = (
    (multi_head_attention, "q", "k"),
    (multi_head_attention, "k", "v"),
    (multi_head_attention, "q", "heads"),
    (multi_head_attention, "weights", "scaled_scores"),
    (fused_multi_head_attention, "q", "k"),
    (fused_multi_head_attention, "k", "v"),
    (fused_multi_head_attention, "q", "heads"),
    (fused_multi_head_attention, "weights", "scaled_scores"),
    (single_head_attention, "query", "key"),
    (single_head_attention, "key", "value"),
    (single_head_attention, "weights", "scores"),
    (encoder_layer, "output", "attended"),
    (decoder_layer, "output", "attended"),
    (decoder_layer, "output", "crossed"),
    (decoder_layer, "attended", "crossed"),
    (output_probabilities, "probabilities", "logits"),
    (transformer, "decoded", "target_embedded"),
    (transformer, "memory", "source_embedded"),
)


def _swap(one: str, other: str) -> Any:
    def run(original: Step, *args: Any, **named: Any) -> Any:
        found = original(*args, **named)
        if one not in found or other not in found or found[one].shape != found[other].shape:
            return found
        return {**found, one: found[other], other: found[one]}

    return around(run)


def _list_inputs(original: Step, x: Array, layer: Callable[..., Array], num_layers: int) -> Any:
    found = original(x, layer, num_layers)
    return {**found, "layers": np.stack([x, *found["layers"][:-1]])}


def generate() -> Iterator[Neighbour]:
    """Yield the neighbours of what is returned."""
    for step, one, other in _PAIRS:
        name = step.__name__
        yield Neighbour(
            f"{name}.outputs.{one}-{other}", f"the outputs {one} and {other} are returned in each other's place",
            f"Return {one} as {one} and {other} as {other}.", {step: _swap(one, other)},
        )  # fmt: skip
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
    for word, title, change in masks:
        yield Neighbour(
            f"padding_mask.{word}", title, "True where the sample's own id is not pad_id.",
            {padding_mask: change_array(change)},
        )  # fmt: skip
