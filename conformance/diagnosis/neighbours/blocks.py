"""Slips of code that goes through an axis block by block, or has a table or a tile of a fixed length.

They show only in calls that are longer than one block, or sum nothing in shorter ones, and are tried in long calls
first. Blocks are as long as kernels have them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final

import numpy as np

from goldformer.conformance.diagnosis.neighbours.arguments import Given, change_argument, change_result
from goldformer.conformance.diagnosis.neighbours.neighbour import Neighbour
from goldformer.spec.formulas.arrays import as_array
from goldformer.spec.formulas.attention import softmax, weigh_keys
from goldformer.spec.formulas.checks import Array
from goldformer.spec.formulas.embedding import token_embedding, token_positions
from goldformer.spec.formulas.layers import feed_forward
from goldformer.spec.formulas.losses import score_targets
from goldformer.spec.formulas.steps import around

#: The part of an id after the component.
_BLOCKS: Final = "blocks"
#: The lengths of blocks and tiles, and the shortest of them.
_LENGTHS: Final = (16, 32, 64, 128, 256)
SHORTEST: Final = _LENGTHS[0]
#: The lengths of tables of positions.
_TABLES: Final = (64, 128, 256, 512, 1024, 2048, 4096)
_OF_TABLES: Final = "Make the table as long as the longest sequence, or refuse a longer one."
_OF_PARTS: Final = "Weigh the result of each block by its sum of powers, all taken from one maximum."
_OF_ENDS: Final = "Go on to the last, incomplete block, or pad the axis with elements that count for nothing."
_OF_SUMS: Final = (
    "Where a later block raises the maximum, multiply what was summed before, numerators and sum, by "
    "exp(old maximum − new maximum)."
)


def _find_end(size: int, length: int) -> int:
    """Return the end of the last complete block of an axis; that of the axis if there is none."""
    return size // length * length or size


def _power_blocks(scores: Array, length: int) -> tuple[Array, Array]:
    """Return exp(s − m), m the maximum up to the end of the block of each score, and that times exp(m − the last m)."""
    lowest = np.finfo(scores.real.dtype).min
    highest = np.maximum.accumulate(scores.real, axis=-1)
    ends = np.minimum(np.arange(scores.shape[-1]) // length * length + length, scores.shape[-1]) - 1
    top = highest[..., ends]
    with np.errstate(over="ignore", invalid="ignore"):
        # A score that is hidden is the lowest number; a block of nothing else adds nothing.
        powers = np.where((scores.real <= lowest) & (highest[..., -1:] > lowest), 0, np.exp(scores - top))
        return powers, powers * np.exp(top - top[..., -1:])


def _keep_scale(
    original: Callable[..., Array], scores: Array, *, length: int, rescales_powers: bool, rescales_sum: bool
) -> Array:
    """Sum block by block, and rescale only some of what was summed before."""
    if scores.shape[-1] <= length:
        return original(scores)
    powers, rescaled = _power_blocks(scores, length)
    total = (rescaled if rescales_sum else powers).sum(axis=-1, keepdims=True)
    return as_array((rescaled if rescales_powers else powers) / total)


def _cut(
    original: Callable[..., Array], scores: Array, *, length: int, to_end: bool, empty: float | None = None
) -> Array:
    """Use the first block of each row alone, or all complete ones, `to_end` of the last of them.

    A row without a complete block is used as it is, or gets `empty`.
    """
    size = scores.shape[-1]
    if empty is not None and size < length:
        return np.full_like(scores, empty)
    kept = _find_end(size, length) if to_end else length
    if kept >= size:
        return original(scores)
    first, rest = scores[..., :kept], scores[..., kept:]
    # Where only what is left out may be seen, nothing is summed.
    hidden = first.real.max(-1, keepdims=True) <= np.finfo(scores.real.dtype).min
    blank = hidden & (rest.real.max(-1, keepdims=True) > np.finfo(scores.real.dtype).min)
    return np.concatenate([np.where(blank, 0, original(first)), np.zeros_like(rest)], axis=-1)


def _average(original: Callable[..., Array], scores: Array, *, length: int) -> Array:
    """Take the softmax of each block by itself, and divide by the number of blocks."""
    if scores.shape[-1] <= length:
        return original(scores)
    lowest = np.finfo(scores.real.dtype).min
    blocks = [scores[..., start : start + length] for start in range(0, scores.shape[-1], length)]
    # A block of hidden keys alone adds nothing.
    kept = [np.where(block.real.max(-1, keepdims=True) <= lowest, 0, original(block)) for block in blocks]
    return as_array(np.concatenate(kept, axis=-1) / scores.dtype.type(len(blocks)))


def _change_softmax() -> Iterator[Neighbour]:
    for length in _LENGTHS:
        of, end = f"in blocks of {length}", f"the last, incomplete block of {length} is left out"
        changes = (
            ("not-rescaled", f"what is summed {of} is never rescaled to a larger maximum", _OF_SUMS,
             partial(_keep_scale, rescales_powers=False, rescales_sum=False)),
            ("sum-not-rescaled", f"the sum {of} is not rescaled to a larger maximum", _OF_SUMS,
             partial(_keep_scale, rescales_powers=True, rescales_sum=False)),
            ("only-sum-rescaled", f"of what is summed {of}, only the sum is rescaled", _OF_SUMS,
             partial(_keep_scale, rescales_powers=False, rescales_sum=True)),
            ("averaged", f"the results {of} are averaged as if all blocks had the same sum", _OF_PARTS, _average),
            ("end", end, _OF_ENDS, partial(_cut, to_end=True)),
            ("end-or-zeros", f"{end}, also where it is the only one", _OF_ENDS, partial(_cut, to_end=True, empty=0.0)),
            ("end-or-nan", f"{end}, and where it is the only one, 0 is divided by 0", _OF_ENDS,
             partial(_cut, to_end=True, empty=math.nan)),
            ("first", f"only the first {length} elements of a row are used", _OF_ENDS, partial(_cut, to_end=False)),
        )  # fmt: skip
        for word, title, hint, change in changes:
            yield Neighbour(
                f"softmax.{_BLOCKS}.{word}-{length}", title, hint, {softmax: around(partial(change, length=length))},
                in_blocks=True,
            )  # fmt: skip


def _change_masks() -> Iterator[Neighbour]:
    for length in _LENGTHS:

        def repeat(mask: Array | None, _: Given, length: int = length) -> Array | None:
            return None if mask is None else mask[..., np.arange(mask.shape[-1]) % length]

        yield Neighbour(
            f"scaled_dot_product_attention.{_BLOCKS}.first-mask-{length}",
            f"every block of {length} keys has the mask of the first one",
            "Add the offset of the block to the keys of the mask.",
            {weigh_keys: change_argument(weigh_keys, "mask", repeat)},
            in_blocks=True,
        )


def _change_positions() -> Iterator[Neighbour]:
    for length in _TABLES:

        def wrap(positions: Array, length: int = length) -> Array:
            return positions % length

        def clamp(positions: Array, length: int = length) -> Array:
            return np.minimum(positions, length - 1)

        for word, says, change in (("wrapped", "begin again", wrap), ("clamped", "stay at the last one", clamp)):
            yield Neighbour(
                f"positional_encoding.{_BLOCKS}.{word}-{length}", f"positions {says} after {length}", _OF_TABLES,
                {token_positions: change_result(change)}, in_blocks=True,
            )  # fmt: skip


def _change_losses() -> Iterator[Neighbour]:
    for length in _LENGTHS:

        def score(original: Callable[..., Array], logits: Array, targets: Array, length: int = length) -> Array:
            whole = _find_end(logits.shape[-1], length)
            # Σ exp over whole blocks ÷ Σ exp over all: what log softmax has too much.
            first = np.zeros_like(targets)
            missing = original(logits[..., :whole], first) - original(logits, first)
            return as_array(original(logits, targets) + missing)

        def read_in_first(targets: Array, _: Given, length: int = length) -> Array:
            return targets % length

        yield Neighbour(
            f"cross_entropy.{_BLOCKS}.target-{length}",
            f"the target's logit is read in the first block of {length} words, whichever block the target is in",
            "Add the offset of the block to the words, or take it from the target.",
            {score_targets: change_argument(score_targets, "targets", read_in_first)}, in_blocks=True,
        )  # fmt: skip
        yield Neighbour(
            f"cross_entropy.{_BLOCKS}.end-{length}",
            f"the sum of the powers leaves out the last, incomplete block of {length} words", _OF_ENDS,
            {score_targets: around(score)}, in_blocks=True,
        )  # fmt: skip


def _change_tables() -> Iterator[Neighbour]:
    for length in _LENGTHS:

        def look_up(
            original: Callable[..., Array],
            ids: Array,
            *,
            params: Mapping[str, Array],
            length: int = length,
            **rest: Any,
        ) -> Array:
            found = original(ids, params=params, **rest)
            return np.where(ids[..., None] < _find_end(len(params["table"]), length), found, 0)

        yield Neighbour(
            f"token_embedding.{_BLOCKS}.end-{length}",
            f"words in the last, incomplete block of {length} rows of the table get zeros", _OF_ENDS,
            {token_embedding: around(look_up)}, in_blocks=True,
        )  # fmt: skip


def _change_feed_forward() -> Iterator[Neighbour]:
    for length in _LENGTHS:

        def add(
            original: Callable[..., tuple[Array, Array]],
            x: Array,
            *,
            params: Mapping[str, Array],
            length: int = length,
            **rest: Any,
        ) -> tuple[Array, Array]:
            output, hidden = original(x, params=params, **rest)
            more = -(-hidden.shape[-1] // length) - 1
            return (output + more * params["b_2"] if more > 0 and "b_2" in params else output), hidden

        yield Neighbour(
            f"feed_forward.{_BLOCKS}.bias-{length}", f"each block of {length} hidden units adds the bias b_2 again",
            "Add the bias once, to the sum of all blocks.", {feed_forward: around(add)}, in_blocks=True,
        )  # fmt: skip


def generate() -> Iterator[Neighbour]:
    """Yield the neighbours of code in blocks."""
    yield from _change_softmax()
    yield from _change_masks()
    yield from _change_positions()
    yield from _change_losses()
    yield from _change_tables()
    yield from _change_feed_forward()
