"""Mistakes in attention with a cache of keys and values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from goldformer.conformance.diagnosis.mistakes.registry import mistake
from goldformer.spec.formulas.arrays import Array
from goldformer.spec.formulas.cached import (
    Cache,
    append_rows,
    attend_with_cache,
    extend_cache,
    fit_padding,
    see_cached,
    start_cache,
)
from goldformer.spec.formulas.cached_model import ModelState, continue_model
from goldformer.spec.formulas.heads import Params

Attended = Callable[..., dict[str, Any]]


@mistake("cache-causal-top-left", around=see_cached)
def start_at_first_key(original: Callable[[int, int], Array], new: int, so_far: int) -> Array:
    """Return a triangle that starts at the first key for several tokens, (new, so_far)."""
    return original(new, so_far) if new == 1 else np.tri(new, so_far, dtype=np.bool_)


@mistake("cache-first-key-only", instead_of=see_cached)
def see_first_key(new: int, so_far: int) -> Array:
    """Return a triangle that starts at the first key, also for one token, (new, so_far)."""
    return np.tri(new, so_far, dtype=np.bool_)


@mistake("cache-prefill-unmasked", instead_of=see_cached)
def see_all(new: int, so_far: int) -> Array:
    """Return True for all tokens so far, (new, so_far)."""
    return np.ones((new, so_far), dtype=np.bool_)


@mistake("cache-chunk-unmasked", around=see_cached)
def see_whole_chunk(original: Callable[[int, int], Array], new: int, so_far: int) -> Array:
    """Return True for all tokens so far if a token is cached, (new, so_far)."""
    return original(new, so_far) if new == so_far else np.ones((new, so_far), dtype=np.bool_)


@mistake("cache-not-reset", decorating=attend_with_cache)
def keep_last_sequence(original: Attended) -> Attended:
    """Return a call that continues the last one of the same sizes, whatever state it is given."""
    last: dict[tuple[Any, ...], Cache] = {}

    def attend(
        query: Array, key: Array, value: Array, mask: Array | None = None, state: Cache | None = None
    ) -> dict[str, Any]:
        sizes = (query.dtype, *(array.shape[:2] + array.shape[3:] for array in (query, key, value)))
        own = last.get(sizes)
        attended = original(query, key, value, _cover(mask, key, own), own)
        last[sizes] = attended["state"]
        return attended

    return attend


def _cover(mask: Array | None, key: Array, state: Cache | None) -> Array | None:
    """Return a mask for all tokens of a state and the new ones: those that it does not have are seen."""
    so_far = key.shape[2] + (0 if state is None else state[0].shape[2])
    if mask is None or mask.shape[-1] == so_far:
        return mask
    if mask.shape[-1] > so_far:
        new = key.shape[2]
        return np.concatenate((mask[..., : so_far - new], mask[..., -new:]), axis=-1)
    more = np.ones((*mask.shape[:-1], so_far - mask.shape[-1]), dtype=np.bool_)
    return np.concatenate((more, mask), axis=-1)


@mistake("cache-prompt-mutated", instead_of=start_cache)
def start_list(key: Array, value: Array) -> Any:
    """Return a list without keys and without values."""
    return [key[:, :, :0], value[:, :, :0]]


@mistake("cache-prompt-mutated", instead_of=extend_cache)
def extend_list(state: Any, key: Array, value: Array) -> Any:
    """Return the same list, with the new keys and values in it."""
    state[:] = append_rows(state[0], key), append_rows(state[1], value)
    return state


class _Buffer:
    """The keys and values of all states that continue one, each from its own length on."""

    def __init__(self, key: Array, value: Array) -> None:
        self.rows = [key[:, :, :0], value[:, :, :0]]

    def write(self, start: int, key: Array, value: Array) -> Cache:
        """Put new rows in the places from `start` on, and return all rows up to the last new one."""
        stop = start + key.shape[2]
        for place, new in enumerate((key, value)):
            self.rows[place] = np.concatenate(
                (self.rows[place][:, :, :start], new, self.rows[place][:, :, stop:]), axis=2
            )
        return self.rows[0][:, :, :stop], self.rows[1][:, :, :stop]


class _Shared(tuple[Array, Array]):
    """The rows of a state, and the buffer that it shares with the states that continue it."""

    buffer: _Buffer


@mistake("cache-buffer-shared", instead_of=start_cache)
def start_buffer(key: Array, value: Array) -> Cache:
    """Return a state without rows, with a buffer of its own."""
    state = _Shared((key[:, :, :0], value[:, :, :0]))
    state.buffer = _Buffer(key, value)
    return state


@mistake("cache-buffer-shared", instead_of=extend_cache)
def write_to_buffer(state: Any, key: Array, value: Array) -> Cache:
    """Return the rows of the shared buffer, with the new ones after those of the state."""
    extended = _Shared(state.buffer.write(state[0].shape[2], key, value))
    extended.buffer = state.buffer
    return extended


@mistake("cache-append-lost", around=attend_with_cache)
def keep_prompt_only(
    original: Attended,
    query: Array,
    key: Array,
    value: Array,
    mask: Array | None = None,
    state: Cache | None = None,
) -> dict[str, Any]:
    """Return the output of the call, and the state that it was given, if it was given one."""
    attended = original(query, key, value, _cover(mask, key, state), state)
    return attended if state is None else attended | {"state": state}


@mistake("cache-last-call-only", around=attend_with_cache)
def keep_last_call_only(
    original: Attended,
    query: Array,
    key: Array,
    value: Array,
    mask: Array | None = None,
    state: Cache | None = None,
) -> dict[str, Any]:
    """Return the output of the call, and a state with the keys and values of this call only."""
    return original(query, key, value, _cover(mask, key, state), state) | {"state": (key, value)}


@mistake("cache-values-lost", instead_of=extend_cache)
def keep_keys_only(state: Cache, key: Array, value: Array) -> Cache:
    """Return the keys so far and the new ones, and zeros for the values so far."""
    return append_rows(state[0], key), append_rows(np.zeros_like(state[1]), value)


@mistake("cache-mask-cut", around=fit_padding)
def see_cached_padding(original: Callable[[Array, int], Array], mask: Array, new: int) -> Array:
    """Return the mask of the new tokens, and True for all cached ones, (batch, 1, 1, so_far)."""
    kept = original(mask, new).copy()
    kept[..., : kept.shape[-1] - new] = True
    return kept


# In a model. Its layers call attend_to_cache, so what is around attend_with_cache is around the whole model there.


@mistake("cache-not-reset", decorating=continue_model)
def keep_last_text(original: Attended) -> Attended:
    """Return a model that continues its last call of the same dtype and batch, whatever state it is given."""
    last: dict[tuple[Any, ...], ModelState] = {}

    def run(ids: Array, state: ModelState | None = None, *, params: Params, **model: Any) -> dict[str, Any]:
        sizes = (ids.shape[0], params["table"].dtype, params["table"].shape, *sorted(model.items()))
        called = original(ids, last.get(sizes), params=params, **model)
        last[sizes] = called["state"]
        return called

    return run


@mistake("cache-append-lost", around=continue_model)
def keep_prompt_of_model_only(
    original: Attended, /, ids: Array, state: ModelState | None = None, **model: Any
) -> dict[str, Any]:
    """Return the logits of the call, and the state that it was given, if it was given one."""
    called = original(ids, state, **model)
    return called if state is None else called | {"state": state}
