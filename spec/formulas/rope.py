"""Rotary position embedding: channels turn in pairs, by angles that grow with the position of their token."""

import numpy as np
import numpy.typing as npt

from goldformer.spec.formulas.arrays import arithmetic, number, ratio
from goldformer.spec.formulas.checks import Array, axis_sizes, check_integers
from goldformer.spec.formulas.steps import step


@step
def rotary_embedding(
    x: Array, positions: Array, *, base: float | None = None, rotary_width: int | None = None
) -> Array:
    """Return x with the pairs of its first channels turned, (..., seq, 2·pairs); the other channels stay."""
    check_rotation(x, positions, rotary_width)
    width = rotated_width(x, rotary_width)
    cosine, sine = rotation_waves(x, positions, width, base)
    return np.concatenate([turn_pairs(x[..., :width], cosine, sine), x[..., width:]], axis=-1)


def check_rotation(x: Array, positions: Array, rotary_width: int | None) -> None:
    """Raise unless channels come in pairs and positions are integers that broadcast to the tokens (ROPE-2, ROPE-5)."""
    sizes = axis_sizes({"x": "... seq d_k"}, x=x)
    if sizes["d_k"] % 2:
        raise ValueError(f"x: shape {x.shape} has {sizes['d_k']} channels, but channels turn in pairs")
    if positions is None:
        raise ValueError("positions: missing; it is (..., seq)")
    check_integers("positions", positions)
    try:
        np.broadcast_to(positions, x.shape[:-1])
    except ValueError:
        message = f"positions: shape {positions.shape} does not broadcast to the tokens of x, {x.shape[:-1]}"
        raise ValueError(message) from None
    if rotary_width is not None and (rotary_width % 2 or not 2 <= rotary_width <= sizes["d_k"]):
        raise ValueError(f"rotary_width: {rotary_width} is not one of 2, 4, …, {sizes['d_k']}, the channels of x")


@step
def rotated_width(x: Array, rotary_width: int | None) -> int:
    """Return the number of channels that turn: all, unless the call says how many (ROPE-5)."""
    return x.shape[-1] if rotary_width is None else rotary_width


@step
def rotation_waves(x: Array, positions: Array, width: int, base: float | None) -> tuple[Array, Array]:
    """Return the cosines and the sines of the angles, each (..., seq, pairs), formed in float64 (ROPE-6)."""
    angles = pair_angles(turning_positions(positions), width, base, np.dtype(np.float64))
    cosine, sine = (arithmetic().refine(wave(angles)) for wave in (np.cos, np.sin))
    return round_wave(cosine, x), round_wave(sine, x)


@step
def turning_positions(positions: Array) -> Array:
    """Return the positions as signed integers: the direction in which each angle grows."""
    return positions.astype(np.int64)


@step
def pair_angles(positions: Array, width: int, base: float | None, dtype: npt.DTypeLike) -> Array:
    """Return the position of each token times the frequency of each pair, (..., seq, pairs)."""
    position = arithmetic().numbers(positions, dtype)
    columns = [position * rotary_frequency(pair, width, rotary_base(base)) for pair in range(width // 2)]
    return np.stack(columns, axis=-1)


@step
def rotary_base(base: float | None) -> float:
    """Return the base of the frequencies, 10000 unless the call says another (ROPE-3)."""
    return number(10000 if base is None else base)


@step
def rotary_frequency(pair: int, width: int, base: float) -> float:
    """Return base^(−exponent), the radians per position of a pair of channels."""
    return arithmetic().power(base, -rotary_exponent(pair, width))


@step
def rotary_exponent(pair: int, width: int) -> float:
    """Return 2i/width for pair i of the channels that turn."""
    return ratio(2 * pair, width)


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
