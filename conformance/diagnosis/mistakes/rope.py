"""Mistakes in rotary position embedding."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from goldformer.conformance.diagnosis.mistakes.registry import mistake
from goldformer.spec.formulas.arrays import as_array
from goldformer.spec.formulas.checks import Array
from goldformer.spec.formulas.rope import (
    pair_angles,
    pair_channels,
    rotary_base,
    rotary_embedding,
    rotary_exponent,
    rotated_width,
    rotation_waves,
    round_wave,
    turn_pairs,
    turning_positions,
)

# Frequencies


@mistake("rope-exponent-half", around=rotary_exponent)
def halve_exponent(original: Callable[[int, int], float], pair: int, width: int) -> float:
    """Return i/width for pair i."""
    return original(pair, width) / 2


@mistake("rope-exponent-odd", instead_of=rotary_exponent)
def number_odd_channels(pair: int, width: int) -> float:
    """Return (2i + 1)/width for pair i."""
    return (2 * pair + 1) / width


@mistake("rope-exponent-one-based", instead_of=rotary_exponent)
def count_pairs_from_one(pair: int, width: int) -> float:
    """Return 2(i − 1)/width for pair i, which is counted from 0."""
    return 2 * (pair - 1) / width


@mistake("rope-exponent-sign", around=rotary_exponent)
def negate_exponent(original: Callable[[int, int], float], pair: int, width: int) -> float:
    """Return −2i/width, so that positions are multiplied by the power of the base."""
    return -original(pair, width)


@mistake("rope-base-default", instead_of=rotary_base)
def ignore_base(base: float | None) -> float:
    """Return 10000, whatever the call says."""
    return 10000.0


# Pairs and widths


@mistake("rope-pair-mismatch", instead_of=turn_pairs)
def mix_layouts(row: Array, cosine: Array, sine: Array) -> Array:
    """Return the pairs turned, each channel by the frequency that it has in the other pairing."""
    width = row.shape[-1]
    first, second = pair_channels(width)
    channel = np.arange(width)
    pair = channel % (width // 2) if second[0] == 1 else channel // 2
    across = np.empty_like(row)
    across[..., first], across[..., second] = -row[..., second], row[..., first]
    return as_array(row * cosine[..., pair] + across * sine[..., pair])


@mistake("rope-minus-missing", instead_of=turn_pairs)
def swap_pairs(row: Array, cosine: Array, sine: Array) -> Array:
    """Return each pair (a, b) as (a·cos + b·sin, b·cos + a·sin)."""
    first, second = pair_channels(row.shape[-1])
    turned = np.empty_like(row)
    turned[..., first] = row[..., first] * cosine + row[..., second] * sine
    turned[..., second] = row[..., second] * cosine + row[..., first] * sine
    return turned


@mistake("rope-partial-ignored", instead_of=rotated_width)
def turn_all(x: Array, rotary_width: int | None) -> int:
    """Return the number of all channels."""
    return int(x.shape[-1])


@mistake("rope-partial-width", around=rotation_waves)
def use_whole_width(
    original: Callable[..., tuple[Array, Array]], x: Array, positions: Array, width: int, base: float | None
) -> tuple[Array, Array]:
    """Return the waves of the first pairs of all channels, which have the width of all of them in their exponent."""
    cosine, sine = original(x, positions, x.shape[-1], base)
    return cosine[..., : width // 2], sine[..., : width // 2]


# Positions


@mistake("rope-offset-missing", around=turning_positions)
def count_tokens(original: Callable[[Array], Array], positions: Array) -> Array:
    """Return 0 … seq − 1, whatever the call says."""
    return original(np.arange(positions.shape[-1]))


@mistake("rope-positions-shared", around=turning_positions)
def share_positions(original: Callable[[Array], Array], positions: Array) -> Array:
    """Return the positions of the first sample for all samples."""
    return original(positions[:1] if positions.ndim > 1 else positions)


@mistake("rope-axis-heads", around=rotary_embedding)
def turn_along_heads(
    original: Callable[..., Array],
    x: Array,
    positions: Array,
    *,
    base: float | None = None,
    rotary_width: int | None = None,
) -> Array:
    """Return x with each head turned by its number, all of its tokens alike; without heads as it should be."""
    if x.ndim > 2:
        positions = np.arange(x.shape[-3])[:, None]
    return original(x, positions, base=base, rotary_width=rotary_width)


# Half types


@mistake("rope-half-precision", instead_of=rotation_waves, shows_in=("float16",))
def form_angles_in_dtype_of_input(x: Array, positions: Array, width: int, base: float | None) -> tuple[Array, Array]:
    """Return cosines and sines of angles that are formed in the dtype of x."""
    angles = pair_angles(turning_positions(positions), width, base, x.real.dtype)
    return np.cos(angles), np.sin(angles)


@mistake("rope-promotes", instead_of=round_wave, shows_in=("float16",))
def keep_wide(wave: Array, x: Array) -> Array:
    """Return a cosine or sine in float32 at least, so that the result is too."""
    return wave.astype(np.promote_types(x.dtype, np.float32))
