"""Attention with a cache of keys and values: over the whole of a script of calls, and call by call."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from goldformer.spec.formulas.arrays import Array
from goldformer.spec.formulas.grouped import Scores, attend_to_seen, grouped_query_attention
from goldformer.spec.formulas.steps import step

#: The keys and the values so far, (batch, kv_heads, so_far, width).
Cache = tuple[Array, Array]
AS_IT_IS: Final = Scores()


@step
def cached_attention(
    query: Array,
    key: Array,
    value: Array,
    mask: Array | None = None,
    *,
    calls: Sequence[int],
    after: Sequence[int] | None = None,
) -> Array:
    """Return the output of all calls without a cache, (batch, heads, seq, d_v): CACHE-1 says what each token sees."""
    seen = find_seen_tokens(calls, after)
    return grouped_query_attention(query, key, value, seen if mask is None else seen & mask)["output"]


def find_seen_tokens(calls: Sequence[int], after: Sequence[int] | None) -> Array:
    """Return True where a token sees another one, (seq, seq): those of the calls before its own, and none later."""
    after = range(len(calls)) if after is None else after  # each call follows the one before
    ends = np.cumsum(calls)
    seen = np.zeros((ends[-1], ends[-1]), dtype=np.bool_)
    for new, end, before in zip(calls, ends, after, strict=True):
        rows = slice(end - new, end)
        if before:
            seen[rows] = seen[ends[before - 1] - 1]  # the last token of the call before sees all that came until then
        seen[rows, rows] = np.tri(new, dtype=np.bool_)
    return seen


@step
def attend_with_cache(
    query: Array, key: Array, value: Array, mask: Array | None = None, state: Cache | None = None
) -> dict[str, Array | Cache]:
    """Return the output of one call, (batch, heads, new, d_v), and the state with its keys and values."""
    output, state = attend_to_cache(query, key, value, mask, state)
    return {"output": output, "state": state}


@step
def attend_to_cache(
    query: Array, key: Array, value: Array, mask: Array | None, cache: Cache | None, scores: Scores = AS_IT_IS
) -> tuple[Array, Cache]:
    """Return the output of new tokens, and the cache with their keys and values; a layer says more of the scores."""
    cache = extend_cache(start_cache(key, value) if cache is None else cache, key, value)
    new = query.shape[2]
    seen = see_cached(new, cache[0].shape[2])
    seen = seen if mask is None else seen & fit_padding(mask, new)
    return attend_to_seen(query, *cache, seen, scores)["output"], cache


@step
def start_cache(key: Array, value: Array) -> Cache:
    """Return the state before the first token: no keys and no values (CACHE-4)."""
    return key[:, :, :0], value[:, :, :0]


@step
def extend_cache(state: Cache, key: Array, value: Array) -> Cache:
    """Return a new state, with the new keys and values after those so far; the old one stays as it is (CACHE-5)."""
    return append_rows(state[0], key), append_rows(state[1], value)


@step
def append_rows(rows: Array, new: Array) -> Array:
    """Return the rows so far and then the new ones, (batch, kv_heads, so_far, width)."""
    return np.concatenate((rows, new), axis=2)


@step
def see_cached(new: int, so_far: int) -> Array:
    """Return True where a new token sees one of all so far, (new, so_far): the last one sees all (CACHE-2)."""
    return np.tri(new, so_far, so_far - new, dtype=np.bool_)


@step
def fit_padding(mask: Array, new: int) -> Array:
    """Return the mask of the padding among all tokens so far, (batch, 1, 1, so_far)."""
    del new
    return mask
