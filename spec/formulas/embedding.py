"""Token embedding and positional encoding, which is written channel by channel."""

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from goldformer.spec.formulas.arrays import Array, arithmetic, number, ratio
from goldformer.spec.formulas.randomness import drop_encoded, dropping
from goldformer.spec.formulas.steps import step

Wave = Callable[[Array], Array]


@step
def token_embedding(ids: Array, *, params: Mapping[str, Array], pad_id: int | None = None) -> Array:
    """Return the table's row for each id, pad_id like any other, without a factor √d_model (EMB-3)."""
    del pad_id
    return read_rows(params["table"], ids)


@step
def read_rows(table: Array, ids: Array) -> Array:
    """Return the row of each id, (batch, seq, d_model)."""
    return table[ids]


@step
def positional_encoding(
    x: Array, *, dropout_rate: float | None = None, training: bool = True, seed: int | None = None
) -> Array:
    """Return x plus the encoding, computed and added in float64 and rounded once to the dtype of x (PE-5)."""
    with dropping(dropout_rate, training, seed):
        return drop_encoded(add_encoding(x, encode_positions(x)))


@step
def add_encoding(x: Array, encoding: Array) -> Array:
    """Return the sum, without factors, in the dtype of x (PE-3)."""
    return arithmetic().narrow(x + encoding, x)


@step
def encode_positions(x: Array) -> Array:
    """Return the encoding of the positions of x, the same for every sample, in float64 (PE-5)."""
    return arithmetic().refine(sinusoid_table(x.shape[1], x.shape[2], np.dtype(np.float64)))


@step
def sinusoid_table(seq: int, d_model: int, dtype: npt.DTypeLike) -> Array:
    """Return the encoding of the positions, (seq, d_model), computed channel by channel."""
    position = arithmetic().numbers(token_positions(seq), dtype)
    columns = [wave(position * angular_frequency(pair, d_model)) for pair, wave in channel_waves(d_model)]
    return np.stack(columns, axis=-1)


@step
def token_positions(seq: int) -> Array:
    """Return 0 … seq − 1."""
    return np.arange(seq)


@step
def channel_waves(d_model: int) -> list[tuple[float, Wave]]:
    """Return the pair and the wave of each channel: sine and cosine of pair i on 2i and 2i + 1."""
    return [(channel // 2, np.cos if channel % 2 else np.sin) for channel in range(d_model)]


@step
def angular_frequency(pair: float, d_model: int) -> float:
    """Return 10000^(−exponent), the radians per position of a pair of channels."""
    return arithmetic().power(wavelength_base(), -frequency_exponent(pair, d_model))


@step
def wavelength_base() -> float:
    """Return 10000."""
    return number(10000)


@step
def frequency_exponent(pair: float, d_model: int) -> float:
    """Return 2i/d_model for pair i."""
    return ratio(2 * pair, d_model)
