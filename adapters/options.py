"""The options of the conventions, each as a few steps of the textbook done otherwise; the textbook has the defaults."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import chain
from types import MappingProxyType
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

from goldformer.adapters.textbook import Textbook
from goldformer.adapters.textbook_attention import Wave
from goldformer.adapters.textbook_backward import Gradients
from goldformer.adapters.textbook_backward_layers import SubLayerBackward
from goldformer.adapters.textbook_checks import Array
from goldformer.adapters.textbook_decoding import Sentence, Task
from goldformer.adapters.textbook_layers import Params, SubLayer, under

Class = TypeVar("Class", bound=type[Textbook])

_REGISTERED: dict[tuple[str, str], type[Textbook]] = {}

#: By convention and option, who computes it so; an option that is not here is a default.
OPTIONS: Final[Mapping[tuple[str, str], type[Textbook]]] = MappingProxyType(_REGISTERED)


def _option(convention: str, option: str) -> Callable[[Class], Class]:
    def register(made: Class) -> Class:
        _REGISTERED[convention, option] = made
        return made

    return register


@_option("empty_row", "zeros")
class ZerosInEmptyRows(Textbook):
    """A row without a key has no weight at all."""

    def weights(self, scaled: Array, mask: Array | None) -> Array:
        weights = super().weights(scaled, mask)
        return weights if mask is None else weights * mask.any(-1, keepdims=True).astype(weights.dtype)


@_option("empty_row", "nan")
class NanInEmptyRows(Textbook):
    """The fill is −∞, of which alone there is no softmax."""

    def fill(self, dtype: npt.DTypeLike) -> float:
        return -math.inf


@_option("causal_corner", "bottom_right")
class BottomRight(Textbook):
    """The last query sees every key."""

    def causal_mask(self, *, q_seq: int, kv_seq: int) -> Array:
        super().causal_mask(q_seq=q_seq, kv_seq=kv_seq)
        return self.sees(np.arange(q_seq)[:, None] + kv_seq - q_seq, np.arange(kv_seq))


@_option("embedding_scale", "sqrt_d_model")
class ScaledEmbedding(Textbook):
    """The rows of the table are multiplied by √d_model."""

    def scaled_embedding(self, rows: Array) -> Array:
        return rows * math.sqrt(rows.shape[-1])


@_option("pe_layout", "concatenated")
class Concatenated(Textbook):
    """All sines come before all cosines; an odd width has one sine more."""

    def layout(self, d_model: int) -> list[tuple[float, Wave]]:
        half = d_model - d_model // 2
        sines: list[tuple[float, Wave]] = [(pair, np.sin) for pair in range(half)]
        return sines + [(pair, np.cos) for pair in range(d_model - half)]


@_option("pe_layout", "tensor2tensor")
class Tensor2Tensor(Concatenated):
    """The last frequency is 1/10000 exactly."""

    def exponent(self, pair: float, d_model: int) -> float:
        return 2 * pair / max(d_model - 2, 1)


@_option("odd_d_model", "refused")
class RefusesOddWidths(Textbook):
    """A sine without its cosine is an error."""

    def positional_encoding(self, x: Array) -> Array:
        if x.ndim == 3 and x.shape[-1] % 2:
            raise ValueError(f"x: d_model is {x.shape[-1]}, which is odd")
        return super().positional_encoding(x)


@_option("layer_norm_eps", "1e-6")
class Eps6(Textbook):
    """The number added to the variance is 10⁻⁶."""

    layer_norm_eps = 1e-6


@_option("layer_norm_eps", "1e-12")
class Eps12(Textbook):
    """The number added to the variance is 10⁻¹²."""

    layer_norm_eps = 1e-12


@_option("norm_placement", "pre")
class NormedBefore(Textbook):
    """A sub-layer reads its input normalised, and its result is added to the input as it was."""

    def sublayer(
        self, x: Array, function: SubLayer, *, number: int, sums: list[Array], params: Params
    ) -> tuple[Array, Array]:
        output, extra = function(self.layer_norm(x, params=self.norm(params, number)))
        return self.summed(x, output, sums), extra

    def sublayer_gradient(
        self, x: Array, function: SubLayer, backward: SubLayerBackward, cotangent: Array, *, number: int, params: Params
    ) -> tuple[Array, Gradients]:
        mine = self.norm(params, number)
        through, gradients = backward(self.layer_norm(x, params=mine), cotangent)
        of_norm = self.layer_norm_gradient(x, through, params=mine)
        return self.residual_gradient(cotangent) + of_norm.pop("x"), gradients | under(f"norm_{number}", of_norm)


@_option("smoothing_denominator", "others")
class SharedAmongOthers(Textbook):
    """The target has no part of what the other words share."""

    def shared(self, target: Array, smoothing: float) -> Array | float:
        return np.asarray((1 - target) * smoothing / (target.shape[-1] - 1))


@_option("beam_finish", "set_aside")
class SetsAside(Textbook):
    """Sentences that have ended leave the beam."""

    def next_beam(self, beam: list[Sentence], grown: list[list[Sentence]], task: Task) -> list[Sentence]:
        before = [sentence for sentence in beam if self.ended(sentence, task)]
        ranked = self.ranked((s for s in chain.from_iterable(grown) if s not in before), task)
        aside = before + [s for s in ranked[: task.beam_size] if self.ended(s, task)]
        alive = [s for s in ranked if not self.ended(s, task)][: task.beam_size]
        return aside if len(aside) >= task.beam_size else aside + alive


@_option("length_penalty", "mean")
class MeanOfWords(Textbook):
    """The sum is divided by the number of words."""

    def length_penalty(self, length: int) -> float:
        return length


@_option("length_penalty", "gnmt")
class PenaltyOfThePaper(Textbook):
    """The sum is divided by ((5 + n)/6)^0.6."""

    def length_penalty(self, length: int) -> float:
        return float(((5 + length) / 6) ** 0.6)
