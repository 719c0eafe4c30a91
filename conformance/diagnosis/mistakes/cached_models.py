"""Mistakes in decoder-only models with caches: positions of later calls, and which cache a layer reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from goldformer.conformance.diagnosis.mistakes.registry import mistake
from goldformer.spec.formulas.arrays import Array
from goldformer.spec.formulas.cached import Cache
from goldformer.spec.formulas.cached_model import attend_in_layer, find_cache, find_start
from goldformer.spec.formulas.decoder_only import turn_heads
from goldformer.spec.formulas.grouped import share_heads


@mistake("lmc-offset-missing", instead_of=find_start)
def start_at_zero(cache: Cache | None) -> int:
    """Return 0, as if each call began a sequence."""
    return 0


@mistake("lmc-offset-doubled", around=find_start)
def count_twice(original: Callable[[Cache | None], int], cache: Cache | None) -> int:
    """Return twice the number of tokens so far."""
    return 2 * original(cache)


@mistake("lmc-rotated-twice", around=attend_in_layer)
def turn_cached_keys(
    original: Callable[..., tuple[Array, Array]],
    x: Array,
    *,
    cache: Cache | None,
    base: float | None,
    **rest: Any,
) -> tuple[Array, Array]:
    """Return the attention whose cached keys are turned again by their positions."""
    turned = None if cache is None else (turn_heads(cache[0], base), cache[1])
    return original(x, cache=turned, base=base, **rest)


@mistake("lmc-one-cache", around=find_cache)
def read_first_cache(
    original: Callable[[tuple[Cache, ...], int], Cache | None], caches: tuple[Cache, ...], index: int
) -> Cache | None:
    """Return the cache of the first layer."""
    return original(caches, 0)


@mistake("lmc-heads-expanded", around=attend_in_layer)
def read_expanded_heads(
    original: Callable[..., tuple[Array, Array]],
    x: Array,
    *,
    cache: Cache | None,
    num_heads: int,
    num_kv_heads: int,
    **rest: Any,
) -> tuple[Array, Array]:
    """Return the attention that reads the first of the cached heads, which were repeated for the query heads."""
    if cache is not None:
        key, value = (share_heads(rows, num_heads)[:, :num_kv_heads] for rows in cache)
        cache = key, value
    return original(x, cache=cache, num_heads=num_heads, num_kv_heads=num_kv_heads, **rest)
