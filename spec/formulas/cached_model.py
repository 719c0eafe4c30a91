"""The decoder-only model with a cache in each layer: over the whole of a script of calls, and call by call."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from goldformer.spec.formulas.arrays import Array
from goldformer.spec.formulas.cached import Cache, attend_to_cache, find_seen_tokens
from goldformer.spec.formulas.decoder_only import (
    decoder_only_model,
    feed_through_gate,
    finish_layers,
    fit_layer,
    hide_padding,
    make_heads,
    make_logits,
    run_block,
)
from goldformer.spec.formulas.embedding import token_embedding
from goldformer.spec.formulas.grouped import Scores
from goldformer.spec.formulas.heads import Params, merge_heads, project_attention
from goldformer.spec.formulas.layers import layer_params, run_stack
from goldformer.spec.formulas.steps import step

#: The padding mask of all tokens so far, (batch, 1, 1, so_far) or None without a pad_id, and the cache of each layer.
ModelState = tuple[Array | None, tuple[Cache, ...]]


@step
def cached_model(
    ids: Array, *, calls: Sequence[int], after: Sequence[int] | None = None, params: Params, **model: Any
) -> Array:
    """Return the logits of all calls without a cache, (batch, seq, vocab): each sequence goes through the model."""
    seen = find_seen_tokens(calls, after)
    logits: dict[int, Array] = {}
    # From the last call on: a sequence has the rows of all calls that it continues.
    for last in (np.cumsum(calls)[::-1] - 1).tolist():
        if last not in logits:
            rows = np.flatnonzero(seen[last]).tolist()
            sequence = decoder_only_model(ids[:, rows], params=params, **model)["logits"]
            logits |= {row: sequence[:, place] for place, row in enumerate(rows)}
    return np.stack([logits[row] for row in range(ids.shape[1])], axis=1)


@step
def continue_model(
    ids: Array,
    state: ModelState | None = None,
    *,
    num_layers: int,
    logit_softcap: float | None = None,
    pad_id: int | None = None,
    params: Params,
    **settings: Any,
) -> dict[str, Array | ModelState]:
    """Return the logits of one call, (batch, new, vocab), and the state with its tokens."""
    padding, caches = (None, ()) if state is None else state
    mask = extend_padding(padding, hide_padding(ids, pad_id))
    kept: list[Cache] = []
    layer = partial(run_cached_layer, mask=mask, caches=caches, kept=kept, params=params, **settings)
    x = run_stack(token_embedding(ids, params={"table": params["table"]}), layer, num_layers)["output"]
    return {"logits": make_logits(finish_layers(x, params), logit_softcap, params), "state": (mask, tuple(kept))}


def extend_padding(so_far: Array | None, new: Array | None) -> Array | None:
    """Return the padding mask of the tokens so far and of the new ones, (batch, 1, 1, so_far); None without one."""
    return new if so_far is None or new is None else np.concatenate((so_far, new), axis=-1)


@step
def run_cached_layer(
    x: Array,
    *,
    index: int,
    mask: Array | None,
    caches: tuple[Cache, ...],
    kept: list[Cache],
    params: Params,
    **settings: Any,
) -> Array:
    """Return the output of one layer for new tokens, (batch, new, d_model), and add its cache to `kept`."""
    mine, sums = layer_params(params, "layers", index), [x]
    fitted = fit_layer(index, **settings)
    attend = partial(attend_in_layer, mask=mask, cache=find_cache(caches, index), kept=kept, params=mine, **fitted)
    attended, _ = run_block(x, attend, number=1, sums=sums, params=mine)
    output, _ = run_block(attended, partial(feed_through_gate, params=mine), number=2, sums=sums, params=mine)
    return output


@step
def find_cache(caches: tuple[Cache, ...], index: int) -> Cache | None:
    """Return the cache of a layer, of which each has its own; None where a sequence begins (LMC-3)."""
    return caches[index] if caches else None


@step
def attend_in_layer(
    x: Array,
    *,
    mask: Array | None,
    cache: Cache | None,
    kept: list[Cache],
    num_heads: int,
    num_kv_heads: int,
    base: float | None,
    window: int | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    params: Params,
) -> tuple[Array, Array]:
    """Return the output of the attention of new tokens to all so far, twice, and add its cache to `kept`."""
    start = find_start(cache)
    heads: dict[str, Any] = {"num_heads": num_heads, "num_kv_heads": num_kv_heads, "base": base}
    query, key, value = make_heads(x, **heads, start=start, params=params)
    attended, cache = attend_to_cache(query, key, value, mask, cache, Scores(window, scale, softcap))
    kept.append(cache)
    output = project_attention(merge_heads(attended), params, "o")
    return output, output


@step
def find_start(cache: Cache | None) -> int:
    """Return the position of the first new token, the number of tokens before it (LMC-2)."""
    return 0 if cache is None else cache[0].shape[2]
