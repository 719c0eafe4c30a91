"""Mistakes in token embedding and positional encoding."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from goldformer.adapters.mistakes.differentiation import DifferentiatedTextbook as Textbook
from goldformer.adapters.mistakes.registry import mistake
from goldformer.adapters.textbook_attention import Wave
from goldformer.adapters.textbook_checks import Array


@mistake("emb-scale-divide")
class EmbeddingScaleDivide(Textbook):
    """The rows of the table are divided by √d_model."""

    def scaled_embedding(self, rows: Array) -> Array:
        return rows / math.sqrt(rows.shape[-1])


# The formula


@mistake("pe-double-exp")
class DoubleExponent(Textbook):
    """The exponent is 4i/d_model."""

    def exponent(self, pair: float, d_model: int) -> float:
        return 2 * super().exponent(pair, d_model)


@mistake("pe-cos-exp")
class CosineExponent(Textbook):
    """The exponent is the channel divided by d_model, so that of a cosine is (2i + 1)/d_model."""

    def layout(self, d_model: int) -> list[tuple[float, Wave]]:
        return [(channel / 2, wave) for channel, (_, wave) in enumerate(super().layout(d_model))]


@mistake("pe-base")
class Base1000(Textbook):
    """The base is 1000."""

    base = 1000.0


@mistake("pe-sin-cos-swap")
class SineCosineSwapped(Textbook):
    """Every channel has the wave of the other one of its pair."""

    def layout(self, d_model: int) -> list[tuple[float, Wave]]:
        return [(pair, np.cos if wave is np.sin else np.sin) for pair, wave in super().layout(d_model)]


@mistake("pe-t2t-timescale")
class Tensor2TensorTimescale(Textbook):
    """The exponent is i/(d_model/2 − 1), and 0 where there is one pair."""

    def exponent(self, pair: float, d_model: int) -> float:
        return pair / max(d_model / 2 - 1, 1)


@mistake("pe-int-arange")
class IntegerArange(Textbook):
    """The exponent is an integer, so it is 0 for every pair."""

    def exponent(self, pair: float, d_model: int) -> float:
        return int(super().exponent(pair, d_model))


@mistake("pe-precedence")
class Precedence(Textbook):
    """The logarithm's step is −log(10000)/d_model//2, where −log(10000)/(d_model/2) is meant."""

    def frequency(self, pair: float, d_model: int) -> float:
        return math.exp(pair * (-math.log(self.base) / d_model // 2))


@mistake("pe-power-swapped")
class PowerSwapped(Textbook):
    """The frequency is 2i/d_model to the power 1/10000."""

    def frequency(self, pair: float, d_model: int) -> float:
        return float(self.exponent(pair, d_model) ** (1 / self.base))


# Positions and rows


@mistake("pe-start-one")
class StartOne(Textbook):
    """The first token has position 1."""

    def positions(self, seq: int) -> Array:
        return super().positions(seq) + 1


@mistake("pe-batch-axis")
class BatchAxis(Textbook):
    """As many rows are taken as there are samples, and each is added to all tokens of its sample."""

    def encoding_for(self, x: Array) -> Array:
        return super().encoding_for(x.swapaxes(0, 1))[:, None]


@mistake("pe-single-row")
class SingleRow(Textbook):
    """The row at index seq is taken, where the rows before it are meant."""

    def encoding(self, seq: int, d_model: int, dtype: npt.DTypeLike) -> Array:
        row: Array = super().encoding(seq + 1, d_model, dtype)[seq]
        return row


@mistake("pe-on-pad-zeroed")
class PositionZeroIsPadding(Textbook):
    """The row of position 0 is 0."""

    def encoding(self, seq: int, d_model: int, dtype: npt.DTypeLike) -> Array:
        rows = super().encoding(seq, d_model, dtype)
        rows[0] = 0
        return rows


@mistake("pe-max-len")
class MaxLen(Textbook):
    """The table has 512 rows, and a longer sequence finds no more."""

    def encoding(self, seq: int, d_model: int, dtype: npt.DTypeLike) -> Array:
        return super().encoding(min(seq, 512), d_model, dtype)


@mistake("emb-scale-after-pe")
class ScaledAfterEncoding(Textbook):
    """The sum is multiplied by √d_model."""

    def with_encoding(self, x: Array, encoding: Array) -> Array:
        return super().with_encoding(x, encoding) * math.sqrt(x.shape[-1])


# How it behaves as a call


@mistake("pe-half", shows_in=("float16",))
class Half(Textbook):
    """Positions, frequencies and angles are of the dtype of x, be it a half."""

    def encoding_for(self, x: Array) -> Array:
        return self.encoding(x.shape[1], x.shape[2], x.dtype)


@mistake("input-mutated")
class InputMutated(Textbook):
    """The encoding is added in place."""

    def with_encoding(self, x: Array, encoding: Array) -> Array:
        x += encoding
        return x
