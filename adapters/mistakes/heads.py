"""Mistakes in multi-head attention, separate and fused, and in single-head attention."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from goldformer.adapters.mistakes.differentiation import DifferentiatedTextbook as Textbook
from goldformer.adapters.mistakes.registry import mistake
from goldformer.adapters.textbook_checks import Array

Params = Mapping[str, Array]

# The heads


@mistake("head-split-view")
class HeadSplitView(Textbook):
    """The projection is reshaped to (batch, heads, seq, width) as it lies."""

    def split_heads(self, x: Array, num_heads: int) -> Array:
        return x.reshape(len(x), num_heads, x.shape[1], -1)


@mistake("head-merge-view")
class HeadMergeView(Textbook):
    """The heads are reshaped to (batch, seq, heads·width) as they lie."""

    def merge_heads(self, heads: Array) -> Array:
        return heads.reshape(len(heads), heads.shape[2], -1)


@mistake("head-merge-hb")
class HeadMergeHB(Textbook):
    """The heads are (heads, batch, seq, width), and axes 1 and 2 of them are swapped, where 0 and 2 are meant."""

    def merge_heads(self, heads: Array) -> Array:
        return heads.swapaxes(0, 1).swapaxes(1, 2).reshape(len(heads), heads.shape[2], -1)


@mistake("head-interleaved")
class HeadInterleaved(Textbook):
    """Head h has the columns h, h + heads, h + 2·heads, …; fused, they are query's, key's and value's by turns."""

    def split_heads(self, x: Array, num_heads: int) -> Array:
        return np.moveaxis(x.reshape(*x.shape[:2], -1, num_heads), -1, 1)

    def cut_fused(self, qkv: Array, num_heads: int) -> tuple[Array, Array, Array]:
        self.head_width(qkv.shape[-1], 3 * num_heads)
        heads = self.split_heads(qkv, num_heads)
        return heads[..., 0::3], heads[..., 1::3], heads[..., 2::3]


@mistake("head-shared-w")
class HeadSharedWeights(Textbook):
    """Every head has the projection of the first."""

    def project_heads(self, x: Array, params: Params, role: str, num_heads: int) -> Array:
        return super().project_heads(x, params, role, num_heads)[:, [0] * num_heads]


@mistake("d-model-not-divisible")
class WidthRoundedDown(Textbook):
    """Columns that are left over belong to no head, and are left out with the rows of W_O that they would meet."""

    def head_width(self, columns: int, parts: int) -> int:
        return columns // parts

    def affine(self, x: Array, weight: Array, bias: Array | None) -> Array:
        return super().affine(x, weight[: x.shape[-1]], bias)


# The projections


@mistake("w-transposed")
class WeightsTransposed(Textbook):
    """An input is multiplied by Wᵀ."""

    def projection(self, x: Array, params: Params, role: str) -> Array:
        return self.affine(x, params[f"w_{role}"].T, params.get(f"b_{role}"))


@mistake("qkv-relu")
class ProjectionsRelu(Textbook):
    """Queries, keys and values are max(0, ·) of their projections."""

    def projection(self, x: Array, params: Params, role: str) -> Array:
        projected = super().projection(x, params, role)
        return projected if role == "o" else np.maximum(projected, 0)


@mistake("wo-missing")
class OutputProjectionMissing(Textbook):
    """The heads side by side are the output."""

    def projection(self, x: Array, params: Params, role: str) -> Array:
        return x if role == "o" else super().projection(x, params, role)


@mistake("wo-relu")
class OutputProjectionRelu(Textbook):
    """The output is max(0, ·) of itself."""

    def projection(self, x: Array, params: Params, role: str) -> Array:
        projected = super().projection(x, params, role)
        return np.maximum(projected, 0) if role == "o" else projected


@mistake("bias-missing")
class BiasMissing(Textbook):
    """No projection adds its bias."""

    def projection(self, x: Array, params: Params, role: str) -> Array:
        return self.affine(x, params[f"w_{role}"], None)


@mistake("v-proj-missing")
class ValueProjectionMissing(Textbook):
    """The values are the input."""

    def projection(self, x: Array, params: Params, role: str) -> Array:
        return x if role == "v" else super().projection(x, params, role)


@mistake("kv-swap")
class KeysAndValuesSwapped(Textbook):
    """The queries meet the values, and the keys are what is summed."""

    def attended(self, query: Array, key: Array, value: Array, mask: Array | None) -> dict[str, Array]:
        return super().attended(query, value, key, mask)


@mistake("qk-same-layer")
class KeysAsQueries(Textbook):
    """The keys are projected by W_Q and b_Q."""

    def projection(self, x: Array, params: Params, role: str) -> Array:
        return super().projection(x, params, "q" if role == "k" else role)


# The scale


@mistake("scale-d-model")
class ScaleDModel(Textbook):
    """The scores of the heads are divided by √d_model."""

    def attended_heads(
        self, query: Array, key: Array, value: Array, mask: Array | None, params: Params
    ) -> dict[str, Array]:
        d_k, d_model = query.shape[-1], params["w_o"].shape[1]
        return super().attended_heads(query * math.sqrt(d_k / d_model), key, value, mask, params)


@mistake("scale-twice")
class ScaleTwice(Textbook):
    """The queries are divided by √d_k before the scores are."""

    def attended_heads(
        self, query: Array, key: Array, value: Array, mask: Array | None, params: Params
    ) -> dict[str, Array]:
        return super().attended_heads(query / math.sqrt(query.shape[-1]), key, value, mask, params)


# The mask


def per_sample(mask: Array) -> bool:
    """Say whether each sample has a mask of its own for all its heads."""
    return mask.ndim == 4 and mask.shape[1] == 1 and len(mask) > 1


@mistake("mask-repeat-order")
class MaskRepeatOrder(Textbook):
    """The masks of all samples are repeated as a whole, for scores that count heads faster than samples."""

    def mask_of_heads(self, mask: Array, shape: tuple[int, ...]) -> Array:
        if not per_sample(mask):
            return mask
        repeated: Array = np.concatenate([mask[:, 0]] * shape[1])
        return repeated.reshape(*shape, *mask.shape[2:])


@mistake("mask-broadcast-bh")
class MaskBroadcastToHeads(Textbook):
    """A mask for all heads loses its head axis, so that its samples meet the heads."""

    def mask_of_heads(self, mask: Array, shape: tuple[int, ...]) -> Array:
        return mask[:, 0] if per_sample(mask) else mask


@mistake("mask-first-sample")
class MaskOfTheFirstSample(Textbook):
    """Every sample has the mask of the first."""

    def mask_of_heads(self, mask: Array, shape: tuple[int, ...]) -> Array:
        first: Array = mask[0] if mask.ndim == 4 else mask
        return first


# Layout and call


@mistake("seq-batch-swap")
class SequenceAndBatchSwapped(Textbook):
    """Axis 0 is that of the tokens and axis 1 that of the samples."""

    def multi_head_attention(
        self,
        query: Array,
        key: Array,
        value: Array,
        mask: Array | None = None,
        *,
        num_heads: int,
        params: Params,
    ) -> dict[str, Array]:
        query, key, value = (x.swapaxes(0, 1) for x in (query, key, value))
        attended = super().multi_head_attention(query, key, value, mask, num_heads=num_heads, params=params)
        return attended | {"output": attended["output"].swapaxes(0, 1)}


@mistake("weights-averaged")
class WeightsAveraged(Textbook):
    """The weights are the mean over the heads, (batch, q_seq, kv_seq)."""

    def attended_heads(
        self, query: Array, key: Array, value: Array, mask: Array | None, params: Params
    ) -> dict[str, Array]:
        attended = super().attended_heads(query, key, value, mask, params)
        return attended | {"weights": attended["weights"].mean(axis=1)}


# Fused and single-head attention


@mistake("qkv-layout")
class FusedLayout(Textbook):
    """The fused columns are cut in three, and each third into heads."""

    def cut_fused(self, qkv: Array, num_heads: int) -> tuple[Array, Array, Array]:
        query, key, value = (self.split_heads(x, num_heads) for x in np.split(qkv, 3, axis=-1))
        return query, key, value


@mistake("causal-missing")
class CausalMissing(Textbook):
    """No later token is hidden, neither in single-head attention nor in the decoder."""

    def single_head_attention(self, x: Array, *, causal: bool, params: Params) -> dict[str, Array]:
        return super().single_head_attention(x, causal=False, params=params)

    def target_mask(self, target: Array, pad_id: int) -> Array:
        return self.padding_mask(target, pad_id=pad_id)
