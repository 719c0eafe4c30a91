"""Mistakes in softmax, scaled dot-product attention and its masks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from goldformer.adapters.mistakes.differentiation import DifferentiatedTextbook as Textbook
from goldformer.adapters.mistakes.registry import mistake
from goldformer.adapters.textbook_checks import Array


@mistake("softmax-unstable")
class SoftmaxUnstable(Textbook):
    """The exponentials are those of the scores as they are."""

    def shifted(self, scores: Array) -> Array:
        return scores


@mistake("softmax-whole-array")
class SoftmaxWholeArray(Textbook):
    """Maximum and sum are those of the whole array."""

    def softmax(self, scores: Array) -> Array:
        powers = np.exp(scores - scores.max(initial=-np.inf))
        return np.asarray(powers / powers.sum())


# The scale


@mistake("scale-missing")
class ScaleMissing(Textbook):
    """The scores are not divided."""

    def divisor(self, sizes: Mapping[str, Any]) -> float:
        return 1.0


@mistake("scale-multiply")
class ScaleMultiply(Textbook):
    """The divisor is d_k to the power −1/2, by which one multiplies."""

    def divisor(self, sizes: Mapping[str, Any]) -> float:
        return float(sizes["d_k"] ** -0.5)


@mistake("scale-no-root")
class ScaleNoRoot(Textbook):
    """The divisor is d_k."""

    def divisor(self, sizes: Mapping[str, Any]) -> float:
        return float(sizes["d_k"])


@mistake("scale-seq-len")
class ScaleSeqLen(Textbook):
    """The width is read from the query's axis of tokens."""

    def divisor(self, sizes: Mapping[str, Any]) -> float:
        return math.sqrt(sizes["q_seq"])


@mistake("scale-dim-v")
class ScaleDimV(Textbook):
    """The width is read from the value."""

    def divisor(self, sizes: Mapping[str, Any]) -> float:
        return math.sqrt(sizes["d_v"])


@mistake("scale-after-softmax")
class ScaleAfterSoftmax(Textbook):
    """The weights are divided by √d_k, and the scores are not."""

    def divisor(self, sizes: Mapping[str, Any]) -> float:
        return 1.0

    def scaled_dot_product_attention(
        self,
        query: Array,
        key: Array,
        value: Array,
        mask: Array | None = None,
        *,
        dropout_rate: float | None = None,
        seed: int | None = None,
    ) -> dict[str, Array]:
        attended = super().scaled_dot_product_attention(query, key, value, mask, dropout_rate=dropout_rate, seed=seed)
        root = math.sqrt(query.shape[-1])
        return attended | {name: attended[name] / root for name in ("output", "weights")}


# The axis of the softmax


@mistake("softmax-query-axis")
class SoftmaxQueryAxis(Textbook):
    """The softmax runs over the last axis but one."""

    def softmax_over_keys(self, scores: Array) -> Array:
        return self.softmax(scores.swapaxes(-2, -1)).swapaxes(-2, -1)


@mistake("softmax-batch-axis")
class SoftmaxBatchAxis(Textbook):
    """The softmax runs over axis 0."""

    def softmax_over_keys(self, scores: Array) -> Array:
        return self.softmax(scores.swapaxes(0, -1)).swapaxes(0, -1)


@mistake("softmax-head-axis")
class SoftmaxHeadAxis(Textbook):
    """The softmax runs over axis 1, which is that of the keys when there is no other."""

    def softmax_over_keys(self, scores: Array) -> Array:
        return self.softmax(scores.swapaxes(1, -1)).swapaxes(1, -1)


# The mask


@mistake("mask-inverted")
class MaskInverted(Textbook):
    """Scores are filled where the mask is True."""

    def masked(self, scaled: Array, mask: Array) -> Array:
        return super().masked(scaled, ~mask)


@mistake("mask-after-softmax")
class MaskAfterSoftmax(Textbook):
    """The mask multiplies the weights."""

    def weights(self, scaled: Array, mask: Array | None) -> Array:
        weights = super().weights(scaled, None)
        return weights if mask is None else weights * mask


@mistake("mask-multiply-zero")
class MaskMultiplyZero(Textbook):
    """The mask multiplies the scores."""

    def masked(self, scaled: Array, mask: Array) -> Array:
        return scaled * mask


@mistake("mask-add-0-minus1")
class MaskAdd0Minus1(Textbook):
    """The mask is added as 0 and −1."""

    def masked(self, scaled: Array, mask: Array) -> Array:
        return scaled - ~mask


@mistake("mask-not-inplace")
class MaskNotInPlace(Textbook):
    """The masked scores are not those that go on."""

    def masked(self, scaled: Array, mask: Array) -> Array:
        super().masked(scaled, mask)
        return scaled


@mistake("fill-1e9-fp16", shows_in=("float16",))
class Fill1e9(Textbook):
    """The fill is −1e9, in float16 −∞."""

    def fill(self, dtype: npt.DTypeLike) -> float:
        return -1e9


@mistake("fill-too-small")
class FillTooSmall(Textbook):
    """The fill is −1e4."""

    def fill(self, dtype: npt.DTypeLike) -> float:
        return -1e4


@mistake("fill-dampens", shows_in=("float64",))
class FillDampens(Textbook):
    """The fill is −20, e⁻²⁰ of a kept score of 0."""

    def fill(self, dtype: npt.DTypeLike) -> float:
        return -20.0


@mistake("zero-times-inf")
class ZeroTimesInf(Textbook):
    """What is added to the scores is the mask's negation times −∞."""

    def masked(self, scaled: Array, mask: Array) -> Array:
        return scaled + (~mask).astype(scaled.dtype) * -math.inf


@mistake("causal-when-unmasked")
class CausalWhenUnmasked(Textbook):
    """A call without a mask has the causal one."""

    def scaled_dot_product_attention(
        self,
        query: Array,
        key: Array,
        value: Array,
        mask: Array | None = None,
        *,
        dropout_rate: float | None = None,
        seed: int | None = None,
    ) -> dict[str, Array]:
        if mask is None:
            mask = self.causal_mask(q_seq=query.shape[-2], kv_seq=key.shape[-2])
        return super().scaled_dot_product_attention(query, key, value, mask, dropout_rate=dropout_rate, seed=seed)


# How it behaves as a call


@mistake("dtype-promote", shows_in=("float32", "float16"))
class DtypePromote(Textbook):
    """The root is an array of float64."""

    def divisor(self, sizes: Mapping[str, Any]) -> float | Array:
        return np.sqrt([sizes["d_k"]])


@mistake("nondeterminism")
class Nondeterminism(Textbook):
    """A tenth of the weights is dropped in every call, by random numbers that go on from the call before."""

    def __init__(self) -> None:
        self.seeds = np.random.default_rng(0)

    def weighted_sum(self, weights: Array, value: Array) -> Array:
        seed = int(self.seeds.integers(1 << 32))
        return super().weighted_sum(self.dropped(weights, "dropout_rate", 0.1, seed), value)


@mistake("mask-left-over")
class MaskLeftOver(Textbook):
    """A call without a mask uses the last one there was, if it is as large as the scores."""

    last: Array | None = None

    def weights(self, scaled: Array, mask: Array | None) -> Array:
        if mask is not None:
            self.last = mask
        elif self.last is not None and self.last.shape == scaled.shape:
            mask = self.last
        return super().weights(scaled, mask)


# The causal mask


@mistake("causal-flipped")
class CausalFlipped(Textbook):
    """A query sees its own key and later ones."""

    def sees(self, query: Array, key: Array) -> Array:
        return np.asarray(key >= query)


@mistake("causal-strict")
class CausalStrict(Textbook):
    """A query sees earlier keys alone."""

    def sees(self, query: Array, key: Array) -> Array:
        return np.asarray(key < query)


@mistake("causal-plus-one")
class CausalPlusOne(Textbook):
    """A query sees the key after its own too."""

    def sees(self, query: Array, key: Array) -> Array:
        return np.asarray(key <= query + 1)


# The padding mask


@mistake("pad-on-query")
class PadOnQuery(Textbook):
    """The mask is (batch, 1, seq, 1)."""

    def padding_mask(self, ids: Array, *, pad_id: int) -> Array:
        return super().padding_mask(ids, pad_id=pad_id).swapaxes(-2, -1)


@mistake("padding-idx")
class PaddingIdx(Textbook):
    """Padding is the id 0."""

    def padding_mask(self, ids: Array, *, pad_id: int) -> Array:
        return super().padding_mask(ids, pad_id=0)
