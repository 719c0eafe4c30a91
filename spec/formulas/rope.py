"""Rotary position embedding: channels turn in pairs, by angles that grow with the position of their token."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from goldformer.spec.formulas.arrays import Array, arithmetic, as_array, number, ratio
from goldformer.spec.formulas.steps import step


@dataclass(frozen=True, slots=True)
class Rotation:
    """The number of channels that turn, and what a call says of their frequencies."""

    width: int
    base: float | None = None
    factor: float | None = None
    length: int | None = None


@step
def rotary_embedding(
    x: Array,
    positions: Array,
    *,
    base: float | None = None,
    rotary_width: int | None = None,
    scaling_factor: float | None = None,
    original_length: int | None = None,
) -> Array:
    """Return x with the pairs of its first channels turned, (..., seq, 2·pairs); the other channels stay."""
    width = rotated_width(x, rotary_width)
    cosine, sine = rotation_waves(x, positions, Rotation(width, base, scaling_factor, original_length))
    return np.concatenate([turn_pairs(x[..., :width], cosine, sine), x[..., width:]], axis=-1)


@step
def rotated_width(x: Array, rotary_width: int | None) -> int:
    """Return the number of channels that turn: all, unless the call says how many (ROPE-5)."""
    return x.shape[-1] if rotary_width is None else rotary_width


@step
def rotation_waves(x: Array, positions: Array, rotation: Rotation) -> tuple[Array, Array]:
    """Return the cosines and the sines of the angles, each (..., seq, pairs), formed in float64 (ROPE-6)."""
    angles = pair_angles(turning_positions(positions), rotation, np.dtype(np.float64))
    waves = (wave(angles) for wave in (np.cos, np.sin))
    factor = scaling_factor(rotation.factor)
    if factor is not None:
        waves = (scale_wave(wave, factor) for wave in waves)
    cosine, sine = map(arithmetic().refine, waves)
    return round_wave(cosine, x), round_wave(sine, x)


@step
def turning_positions(positions: Array) -> Array:
    """Return the positions as signed integers: the direction in which each angle grows."""
    return positions.astype(np.int64)


@step
def pair_angles(positions: Array, rotation: Rotation, dtype: npt.DTypeLike) -> Array:
    """Return the position of each token times the frequency of each pair, (..., seq, pairs)."""
    position = arithmetic().numbers(positions, dtype)
    columns = [position * pair_frequency(pair, rotation) for pair in range(rotation.width // 2)]
    return np.stack(columns, axis=-1)


def pair_frequency(pair: int, rotation: Rotation) -> float:
    """Return the radians per position of a pair of channels, scaled if the call says so (ROPE-10)."""
    frequency = rotary_frequency(pair, rotation.width, rotary_base(rotation.base))
    factor = scaling_factor(rotation.factor)
    return frequency if factor is None else scale_frequency(frequency, kept_share(pair, frequency, rotation), factor)


@step
def rotary_base(base: float | None) -> float:
    """Return the base of the frequencies, 10000 unless the call says another (ROPE-3)."""
    return number(10000 if base is None else base)


@step
def rotary_frequency(pair: int, width: int, base: float) -> float:
    """Return base^(−exponent), the radians per position of a pair of channels without scaling."""
    return arithmetic().power(base, -rotary_exponent(pair, width))


@step
def rotary_exponent(pair: int, width: int) -> float:
    """Return 2i/width for pair i of the channels that turn."""
    return ratio(2 * pair, width)


@step
def scaling_factor(factor: float | None) -> Any:
    """Return the factor by which angles are scaled, None without one (ROPE-10)."""
    return None if factor is None else number(factor)


@step
def kept_share(pair: int, frequency: float, rotation: Rotation) -> Any:
    """Return 0: no share of a frequency is kept as it is, so all fall by the factor (ROPE-11)."""
    del pair, frequency, rotation
    return number(0)


@step
def scale_frequency(frequency: float, kept: Any, factor: Any) -> float:
    """Return the kept share of a frequency, and the rest divided by the factor."""
    return as_array(frequency) * (as_array(kept) + as_array(number(1) - kept) / factor)


@step
def scale_wave(wave: Array, factor: Any) -> Array:
    """Return a cosine or sine as it is: only the angles are scaled (ROPE-11)."""
    del factor
    return wave


@step
def round_wave(wave: Array, x: Array) -> Array:
    """Return a cosine or sine in the dtype of x."""
    return arithmetic().narrow(wave, x)


@step
def turn_pairs(row: Array, cosine: Array, sine: Array) -> Array:
    """Return each pair (a, b) as (a·cos − b·sin, b·cos + a·sin), in the places that the pair had."""
    first, second = pair_channels(row.shape[-1])
    a, b = row[..., first], row[..., second]
    turned = np.concatenate([a * cosine - b * sine, b * cosine + a * sine], axis=-1)
    return turned[..., np.argsort(np.concatenate([first, second]))]


@step
def pair_channels(width: int) -> tuple[Array, Array]:
    """Return the first and the second channel of each pair: 2i and 2i + 1."""
    return np.arange(0, width, 2), np.arange(1, width, 2)
