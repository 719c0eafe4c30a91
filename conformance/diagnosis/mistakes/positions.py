"""Mistakes in token embedding and positional encoding."""

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from goldformer.conformance.diagnosis.mistakes.registry import mistake
from goldformer.spec.formulas.arrays import Array, as_array
from goldformer.spec.formulas.embedding import (
    Wave,
    add_encoding,
    angular_frequency,
    channel_waves,
    encode_positions,
    frequency_exponent,
    sinusoid_table,
    token_embedding,
    token_positions,
    wavelength_base,
)
from goldformer.spec.formulas.heads import Params


@mistake("emb-scale-divide", around=token_embedding)
def divide_embedding(original: Callable[..., Array], ids: Array, *, params: Params, pad_id: int | None = None) -> Array:
    """Return the rows of the table divided by √d_model, (batch, seq, d_model)."""
    rows = original(ids, params=params, pad_id=pad_id)
    return rows / math.sqrt(rows.shape[-1])


@mistake("emb-row-zeroed", around=token_embedding)
def zero_row_of_id_0(original: Callable[..., Array], ids: Array, *, params: Params, pad_id: int | None = None) -> Array:
    """Return the rows of the table, and 0 for the id 0, (batch, seq, d_model)."""
    return as_array(original(ids, params=params, pad_id=pad_id) * (ids != 0)[..., None])


@mistake("emb-pad-zeroed", around=token_embedding)
def zero_padding(original: Callable[..., Array], ids: Array, *, params: Params, pad_id: int | None = None) -> Array:
    """Return the rows of the table, and 0 for pad_id, (batch, seq, d_model)."""
    return as_array(original(ids, params=params, pad_id=pad_id) * (ids != pad_id)[..., None])


# The formula


@mistake("pe-double-exp", around=frequency_exponent)
def double_exponent(original: Callable[[float, int], float], pair: float, d_model: int) -> float:
    """Return 4i/d_model."""
    return 2 * original(pair, d_model)


@mistake("pe-half-exp", around=frequency_exponent)
def halve_exponent(original: Callable[[float, int], float], pair: float, d_model: int) -> float:
    """Return i/d_model for pair i."""
    return original(pair, d_model) / 2


@mistake("pe-exponent-sign", around=frequency_exponent)
def negate_exponent(original: Callable[[float, int], float], pair: float, d_model: int) -> float:
    """Return −2i/d_model, so that angles are multiplied by the power of the base."""
    return -original(pair, d_model)


@mistake("pe-cos-exp", around=channel_waves)
def number_pairs_by_channel(
    original: Callable[[int], list[tuple[float, Wave]]], d_model: int
) -> list[tuple[float, Wave]]:
    """Return waves whose exponent is the channel divided by d_model, so that of a cosine is (2i + 1)/d_model."""
    return [(channel / 2, wave) for channel, (_, wave) in enumerate(original(d_model))]


@mistake("pe-base", instead_of=wavelength_base)
def base_of_1000() -> float:
    """Return 1000."""
    return 1000.0


@mistake("pe-sin-cos-swap", around=channel_waves)
def swap_waves(original: Callable[[int], list[tuple[float, Wave]]], d_model: int) -> list[tuple[float, Wave]]:
    """Return for every channel the wave of the other one of its pair."""
    return [(pair, np.cos if wave is np.sin else np.sin) for pair, wave in original(d_model)]


@mistake("pe-t2t-timescale", instead_of=frequency_exponent)
def tensor2tensor_exponent(pair: float, d_model: int) -> float:
    """Return i/(d_model/2 − 1), and 0 where there is one pair."""
    return pair / max(d_model / 2 - 1, 1)


@mistake("pe-int-arange", around=frequency_exponent)
def round_exponent_down(original: Callable[[float, int], float], pair: float, d_model: int) -> float:
    """Return the exponent as an integer, so 0 for every pair."""
    return int(original(pair, d_model))


@mistake("pe-precedence", instead_of=angular_frequency)
def divide_before_halving(pair: float, d_model: int) -> float:
    """Return the frequency by −log(10000)/d_model//2, where −log(10000)/(d_model/2) is meant."""
    return math.exp(pair * (-math.log(wavelength_base()) / d_model // 2))


@mistake("pe-power-swapped", instead_of=angular_frequency)
def swap_power(pair: float, d_model: int) -> float:
    """Return 2i/d_model to the power 1/10000."""
    return float(frequency_exponent(pair, d_model) ** (1 / wavelength_base()))


# Positions and rows


@mistake("pe-start-one", around=token_positions)
def count_from_one(original: Callable[[int], Array], seq: int) -> Array:
    """Return 1 … seq."""
    return original(seq) + 1


@mistake("pe-batch-axis", around=encode_positions)
def encode_samples(original: Callable[[Array], Array], x: Array) -> Array:
    """Return as many rows as there are samples, each to be added to all tokens of its sample, (batch, 1, d_model)."""
    return original(x.swapaxes(0, 1))[:, None]


@mistake("pe-single-row", around=sinusoid_table)
def take_one_row(
    original: Callable[[int, int, npt.DTypeLike], Array], seq: int, d_model: int, dtype: npt.DTypeLike
) -> Array:
    """Return the row at index seq, where the rows before it are meant, (d_model,)."""
    row: Array = original(seq + 1, d_model, dtype)[seq]
    return row


@mistake("pe-on-pad-zeroed", around=sinusoid_table)
def zero_first_row(
    original: Callable[[int, int, npt.DTypeLike], Array], seq: int, d_model: int, dtype: npt.DTypeLike
) -> Array:
    """Return the table with 0 in the row of position 0."""
    rows = original(seq, d_model, dtype)
    rows[0] = 0
    return rows


@mistake("pe-max-len", around=sinusoid_table)
def end_table_at_512(
    original: Callable[[int, int, npt.DTypeLike], Array], seq: int, d_model: int, dtype: npt.DTypeLike
) -> Array:
    """Return at most 512 rows, so that a longer sequence finds no more."""
    return original(min(seq, 512), d_model, dtype)


@mistake("emb-scale-after-pe", around=add_encoding)
def scale_sum(original: Callable[[Array, Array], Array], x: Array, encoding: Array) -> Array:
    """Return the sum multiplied by √d_model."""
    return original(x, encoding) * math.sqrt(x.shape[-1])


# How it behaves as a call


@mistake("pe-half", instead_of=encode_positions, shows_in=("float16",))
def encode_in_dtype_of_input(x: Array) -> Array:
    """Return rows whose positions, frequencies and angles are of the dtype of x, be it a half."""
    return sinusoid_table(x.shape[1], x.shape[2], x.dtype)


@mistake("input-mutated", instead_of=add_encoding)
def add_in_place(x: Array, encoding: Array) -> Array:
    """Return x, to which the encoding is added in place."""
    x += encoding
    return x


@mistake("pe-float32", around=sinusoid_table, shows_in=("float64",))
def make_table_in_float32(
    original: Callable[[int, int, npt.DTypeLike], Array], seq: int, d_model: int, dtype: npt.DTypeLike
) -> Array:
    """Return the table rounded to float32, in the dtype of the input."""
    return original(seq, d_model, np.float32).astype(dtype)
