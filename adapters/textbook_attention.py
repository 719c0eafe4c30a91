"""The first part of the textbook: attention, its masks, and what comes before it, embedding and position."""

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from goldformer.adapters.textbook_checks import (
    Array,
    at_least_one,
    axis_sizes,
    check_ids,
    check_integers,
    spread_mask,
)
from goldformer.adapters.textbook_random import TextbookRandom

Wave = Callable[[Array], Array]

# The axes of every argument, as axis_sizes reads them.
ATTENTION: Final = {"query": "... q_seq d_k", "key": "... kv_seq d_k", "value": "... kv_seq d_v"}
EMBEDDING: Final = {"ids": "batch seq", "table": "vocab d_model"}
MULTI_HEAD: Final = {
    "query": "batch q_seq d_query",
    "key": "batch kv_seq d_key",
    "value": "batch kv_seq d_value",
    "w_q": "d_query heads*d_k",
    "b_q": "? heads*d_k",
    "w_k": "d_key heads*d_k",
    "b_k": "? heads*d_k",
    "w_v": "d_value heads*d_v",
    "b_v": "? heads*d_v",
    "w_o": "heads*d_v d_model",
    "b_o": "? d_model",
}
FUSED: Final = {
    "x": "batch seq d_input",
    "w_qkv": "d_input 3*heads*d_k",
    "b_qkv": "? 3*heads*d_k",
    "w_o": "heads*d_k heads*d_k",
    "b_o": "? heads*d_k",
}
SINGLE_HEAD: Final = {
    "x": "seq d_model",
    "w_q": "d_model d_model",
    "w_k": "d_model d_model",
    "w_v": "d_model d_model",
}
FUSED_OUTPUTS: Final = ("output", "weights", "qkv", "q", "k", "v", "scaled_scores", "heads")
SINGLE_HEAD_OUTPUTS: Final = ("output", "weights", "query", "key", "value", "scores")


class TextbookAttention(TextbookRandom):
    """Softmax, attention, masks, embedding and positional encoding."""

    ARRAYS = "numpy"

    base = 10000.0

    # Softmax and attention

    def softmax(self, scores: Array) -> Array:
        """Return exp(s − max) / Σ exp(s − max) over the last axis, (..., n) as given."""
        axis_sizes({"scores": "... n"}, scores=scores)
        # A masked score is the lowest number there is: less the maximum it overflows to −inf, rightly.
        # An override that fills with −inf leaves NaN in an empty row, as silently as the frameworks do.
        with np.errstate(over="ignore", invalid="ignore"):
            powers = np.exp(self.shifted(scores))
            return np.asarray(powers / powers.sum(axis=-1, keepdims=True))

    def shifted(self, scores: Array) -> Array:
        """Return the scores less the maximum of their row, so that no power overflows."""
        return np.asarray(scores - scores.max(axis=-1, keepdims=True))

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
        """Return output (..., q_seq, d_v); weights, scores and scaled_scores, each (..., q_seq, kv_seq)."""
        sizes = axis_sizes(ATTENTION, query=query, key=key, value=value)
        scores = self.scores(query, key)
        scaled = scores / self.divisor(sizes)
        mask = None if mask is None else self.aligned_mask(mask, scores.shape)
        weights = self.weights(scaled, mask)
        kept = weights if dropout_rate is None else self.kept_weights(scaled, mask, dropout_rate, seed)
        output = self.weighted_sum(kept, value)
        return {"output": output, "weights": weights, "scores": scores, "scaled_scores": scaled}

    def scores(self, query: Array, key: Array) -> Array:
        """Return the dot product of every query with every key."""
        return np.asarray(np.einsum("...qd,...kd->...qk", query, key))

    def divisor(self, sizes: Mapping[str, Any]) -> float | Array:
        """Return √d_k, given the sizes of all axes; under "..." stand the leading ones, (batch, heads)."""
        return math.sqrt(sizes["d_k"])

    def aligned_mask(self, mask: Array, shape: tuple[int, ...]) -> Array:
        """Return the mask spread over all scores, or raise if it does not fit them."""
        return spread_mask("mask", mask, shape)

    def weights(self, scaled: Array, mask: Array | None) -> Array:
        """Return the softmax of the scores that the mask leaves."""
        return self.softmax_over_keys(scaled if mask is None else self.masked(scaled, mask))

    def softmax_over_keys(self, scores: Array) -> Array:
        """Return the softmax over the keys, which are on the last axis (SDPA-3)."""
        return self.softmax(scores)

    def masked(self, scaled: Array, mask: Array) -> Array:
        """Return the scores with the fill where the mask is False."""
        # A fill that the dtype cannot hold becomes −inf there.
        with np.errstate(over="ignore"):
            fill = scaled.dtype.type(self.fill(scaled.dtype))
        return np.where(mask, scaled, fill)

    def fill(self, dtype: npt.DTypeLike) -> float:
        """Return the lowest finite number: below every score, and a row of it alone is uniform (SDPA-7)."""
        return float(np.finfo(dtype).min)

    def kept_weights(self, scaled: Array, mask: Array | None, rate: float, seed: int | None) -> Array:
        """Return the weights after dropout, which leaves the scores and the sums of the rows alone (DROP-3)."""
        return self.dropped(self.weights(scaled, mask), "dropout_rate", rate, seed)

    def weighted_sum(self, weights: Array, value: Array) -> Array:
        """Return the sum of the value rows, each times its weight."""
        return np.asarray(np.einsum("...qk,...kv->...qv", weights, value))

    # Masks

    def causal_mask(self, *, q_seq: int, kv_seq: int) -> Array:
        """Return which query sees which key, (q_seq, kv_seq), the diagonal starting top left."""
        for name, size in (("q_seq", q_seq), ("kv_seq", kv_seq)):
            at_least_one(name, size, "a mask has at least one row and one column")
        return self.sees(np.arange(q_seq)[:, None], np.arange(kv_seq))

    def sees(self, query: Array, key: Array) -> Array:
        """Say for positions of queries and keys whether the query sees the key."""
        return np.asarray(key <= query)

    def padding_mask(self, ids: Array, *, pad_id: int) -> Array:
        """Return where ids is not padding, as (batch, 1, 1, seq) to serve all heads and all queries."""
        axis_sizes({"ids": EMBEDDING["ids"]}, ids=ids)
        check_integers("ids", ids)
        return np.asarray(ids != pad_id)[:, None, None, :]

    # Embedding and positional encoding

    def token_embedding(self, ids: Array, *, params: Mapping[str, Array]) -> Array:
        """Return the table's row for each id, (batch, seq, d_model)."""
        sizes = axis_sizes(EMBEDDING, ids=ids, **params)
        check_ids("ids", ids, sizes["vocab"], "the rows of table")
        return self.scaled_embedding(params["table"][ids])

    def scaled_embedding(self, rows: Array) -> Array:
        """Return the rows as they are: no factor √d_model (EMB-3)."""
        return rows

    def positional_encoding(self, x: Array) -> Array:
        """Return x plus the encoding, formed and added in float64 and rounded once to the dtype of x."""
        axis_sizes({"x": "batch seq d_model"}, x=x)
        return self.with_encoding(x, self.encoding_for(x))

    def with_encoding(self, x: Array, encoding: Array) -> Array:
        """Return the sum, with no other factor, in the dtype of x (PE-3)."""
        return (x + encoding).astype(x.dtype)

    def encoding_for(self, x: Array) -> Array:
        """Return the rows of its tokens' positions, the same for every sample, in float64 whatever x is (PE-5)."""
        return self.encoding(x.shape[1], x.shape[2], np.dtype(np.float64))

    def encoding(self, seq: int, d_model: int, dtype: npt.DTypeLike) -> Array:
        """Return the encoding of the positions, (seq, d_model), one channel after the other."""
        position = self.positions(seq).astype(dtype)
        columns = [wave(position * self.frequency(pair, d_model)) for pair, wave in self.layout(d_model)]
        return np.stack(columns, axis=-1)

    def positions(self, seq: int) -> Array:
        """Return 0 … seq − 1."""
        return np.arange(seq)

    def layout(self, d_model: int) -> list[tuple[float, Wave]]:
        """Return for each channel its pair and its wave: sine and cosine of pair i on 2i and 2i + 1."""
        return [(channel // 2, np.cos if channel % 2 else np.sin) for channel in range(d_model)]

    def frequency(self, pair: float, d_model: int) -> float:
        """Return the radians per position of a pair of channels, 10000^(−exponent)."""
        return float(self.base ** -self.exponent(pair, d_model))

    def exponent(self, pair: float, d_model: int) -> float:
        """Return 2i/d_model for pair i."""
        return 2 * pair / d_model

    # Multi-head attention

    def multi_head_attention(
        self,
        query: Array,
        key: Array,
        value: Array,
        mask: Array | None = None,
        *,
        num_heads: int,
        params: Mapping[str, Array],
    ) -> dict[str, Array]:
        """Return output (batch, q_seq, d_model) and, head by head, (batch, heads, …), the steps on the way to it."""
        axis_sizes(MULTI_HEAD, query=query, key=key, value=value, **params)
        inputs = {"q": query, "k": key, "v": value}
        heads = (self.project_heads(x, params, role, num_heads) for role, x in inputs.items())
        return self.attend(*heads, mask=mask, params=params)

    def fused_multi_head_attention(
        self, x: Array, mask: Array | None = None, *, num_heads: int, params: Mapping[str, Array]
    ) -> dict[str, Array]:
        """Return output (batch, seq, E), qkv (batch, seq, 3·E) and, head by head, (batch, heads, …), the steps."""
        sizes = axis_sizes(FUSED, x=x, **params)
        if sizes["3*heads*d_k"] != 3 * sizes["heads*d_k"]:
            raise ValueError(f"w_qkv: {sizes['3*heads*d_k']} columns are not 3 times w_o's {len(params['w_o'])}")
        qkv = self.projection(x, params, "qkv")
        query, key, value = self.cut_fused(qkv, num_heads)
        attended = self.attend(query, key, value, mask=mask, params=params)
        return {name: (attended | {"qkv": qkv})[name] for name in FUSED_OUTPUTS}

    def single_head_attention(self, x: Array, *, causal: bool, params: Mapping[str, Array]) -> dict[str, Array]:
        """Return output, query, key and value, each (seq, d_model), and weights and scores, (seq, seq)."""
        sizes = axis_sizes(SINGLE_HEAD, x=x, **params)
        query, key, value = (self.projection(x, params, role) for role in ("q", "k", "v"))
        mask = self.causal_mask(q_seq=sizes["seq"], kv_seq=sizes["seq"]) if causal else None
        attended = self.attended(query, key, value, mask)
        projected = {"query": query, "key": key, "value": value}
        return {name: (attended | projected)[name] for name in SINGLE_HEAD_OUTPUTS}

    def project_heads(self, x: Array, params: Mapping[str, Array], role: str, num_heads: int) -> Array:
        """Return x projected as query, key or value and cut into heads, (batch, heads, seq, width)."""
        return self.split_heads(self.projection(x, params, role), num_heads)

    def projection(self, x: Array, params: Mapping[str, Array], role: str) -> Array:
        """Return x projected by an attention's own parameters: those of q, k, v, qkv or o."""
        return self.project(x, params, role)

    def project(self, x: Array, params: Mapping[str, Array], role: str) -> Array:
        """Return x·W + b with the parameters of a role: q, k, v, qkv, o, 1, 2 or vocab."""
        return self.affine(x, params[f"w_{role}"], params.get(f"b_{role}"))

    def affine(self, x: Array, weight: Array, bias: Array | None) -> Array:
        """Return x·W + b, where W is (in, out)."""
        product = np.asarray(x @ weight)
        return product if bias is None else product + bias

    def head_width(self, columns: int, parts: int) -> int:
        """Return the width of one of `parts` equal parts, or raise if there is none."""
        if parts < 1 or columns % parts:
            raise ValueError(f"num_heads: {columns} columns do not divide into {parts} equal parts")
        return columns // parts

    def split_heads(self, x: Array, num_heads: int) -> Array:
        """Return (batch, heads, seq, width): head h is the h-th block of adjacent columns."""
        width = self.head_width(x.shape[-1], num_heads)
        return np.stack([x[..., h * width : (h + 1) * width] for h in range(num_heads)], axis=1)

    def cut_fused(self, qkv: Array, num_heads: int) -> tuple[Array, Array, Array]:
        """Return query, key and value, (batch, heads, seq, d_k), of columns laid out [heads, q|k|v, d_k]."""
        width = self.head_width(qkv.shape[-1], 3 * num_heads)
        heads = self.split_heads(qkv, num_heads)
        # Copies: over strided views einsum may add in another order.
        query, key, value = (heads[..., i * width : (i + 1) * width].copy() for i in range(3))
        return query, key, value

    def attend(
        self, query: Array, key: Array, value: Array, *, mask: Array | None, params: Mapping[str, Array]
    ) -> dict[str, Array]:
        """Return the heads attended, merged and projected by W_O, and the steps on the way."""
        mask = None if mask is None else self.mask_of_heads(mask, query.shape[:2])
        attended = self.attended_heads(query, key, value, mask, params)
        heads = attended["output"]
        output = self.projection(self.merge_heads(heads), params, "o")
        projected = {"q": query, "k": key, "v": value}
        steps = {"scaled_scores": attended["scaled_scores"], "heads": heads}
        return {"output": output, "weights": attended["weights"], **projected, **steps}

    def mask_of_heads(self, mask: Array, shape: tuple[int, ...]) -> Array:
        """Return the mask of all samples and heads, `shape` of them, as it is given (MHA-6)."""
        del shape
        return mask

    def attended_heads(
        self, query: Array, key: Array, value: Array, mask: Array | None, params: Mapping[str, Array]
    ) -> dict[str, Array]:
        """Return what the heads give, each by itself; `params` are those of the whole."""
        del params
        return self.attended(query, key, value, mask)

    def attended(self, query: Array, key: Array, value: Array, mask: Array | None) -> dict[str, Array]:
        """Return what the queries, keys and values give, once projected."""
        return self.scaled_dot_product_attention(query, key, value, mask)

    def merge_heads(self, heads: Array) -> Array:
        """Return (batch, seq, heads·width): the heads side by side."""
        return np.concatenate([heads[:, h] for h in range(heads.shape[1])], axis=-1)
