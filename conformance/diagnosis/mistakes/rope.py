"""Mistakes in rotary position embedding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from goldformer.conformance.diagnosis.mistakes.registry import mistake
from goldformer.spec.formulas.arrays import Array, as_array
from goldformer.spec.formulas.rope import (
    Rotation,
    pair_angles,
    pair_channels,
    rotary_base,
    rotary_embedding,
    rotary_exponent,
    rotated_width,
    rotation_waves,
    round_wave,
    scale_frequency,
    scale_wave,
    scaling_factor,
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


@mistake("rope-exponent-one-ahead", instead_of=rotary_exponent)
def count_pairs_up_to_all(pair: int, width: int) -> float:
    """Return 2(i + 1)/width for pair i."""
    return 2 * (pair + 1) / width


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
    original: Callable[..., tuple[Array, Array]], x: Array, positions: Array, rotation: Rotation
) -> tuple[Array, Array]:
    """Return the waves of the first pairs of all channels, which have the width of all of them in their exponent."""
    pairs = rotation.width // 2
    cosine, sine = original(x, positions, replace(rotation, width=x.shape[-1]))
    return cosine[..., :pairs], sine[..., :pairs]


# Scaling


@mistake("rope-scaling-missing", instead_of=scaling_factor)
def ignore_factor(factor: float | None) -> None:
    """Return None: no angle is scaled."""


@mistake("rope-scaling-inverted", around=scaling_factor)
def invert_factor(original: Callable[[float | None], Any], factor: float | None) -> Any:
    """Return one over the factor, so that frequencies are multiplied by it."""
    return None if factor is None else 1 / original(factor)


@mistake("rope-scaling-hard-coded", around=scaling_factor)
def take_eight(original: Callable[[float | None], Any], factor: float | None) -> Any:
    """Return 8, the factor of Llama 3.1, whatever the call says."""
    return None if factor is None else original(8.0)


@mistake("rope-scaling-bands-swapped", around=scale_frequency, conventions={"rope_scaling": "llama3"})
def swap_bands(original: Callable[..., float], frequency: float, kept: Any, factor: Any) -> float:
    """Return the share of a frequency divided by the factor that is to be kept, and the rest kept."""
    return original(frequency, 1 - kept, factor)


@mistake("rope-scaling-waves-not-scaled", instead_of=scale_wave, conventions={"rope_scaling": "yarn"})
def leave_waves(wave: Array, factor: Any) -> Array:
    """Return the cosine or sine without the factor of attention."""
    return wave


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
    **of_frequencies: Any,
) -> Array:
    """Return x with each head turned by its number, all of its tokens alike; without heads as it should be."""
    if x.ndim > 2:
        positions = np.arange(x.shape[-3])[:, None]
    return original(x, positions, **of_frequencies)


# Half types


@mistake("rope-half-precision", instead_of=rotation_waves, shows_in=("float16",))
def form_angles_in_dtype_of_input(x: Array, positions: Array, rotation: Rotation) -> tuple[Array, Array]:
    """Return cosines and sines of angles that are formed in the dtype of x."""
    angles = pair_angles(turning_positions(positions), rotation, x.real.dtype).astype(x.real.dtype)
    return np.cos(angles), np.sin(angles)


@mistake("rope-promotes", instead_of=round_wave, shows_in=("float16",))
def keep_wide(wave: Array, x: Array) -> Array:
    """Return a cosine or sine in float32 at least, so that the result is too."""
    return wave.astype(np.promote_types(x.dtype, np.float32))
