"""Mistakes of the whole model, of its output layer, and of the target that it reads."""

import math
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from goldformer.conformance.diagnosis.mistakes.registry import mistake
from goldformer.spec.formulas.arrays import Array, as_array
from goldformer.spec.formulas.attention import causal_mask, softmax
from goldformer.spec.formulas.embedding import token_embedding
from goldformer.spec.formulas.heads import Params
from goldformer.spec.formulas.layers import run_decoder_layer
from goldformer.spec.formulas.targets import shift_right
from goldformer.spec.formulas.transformer import (
    embed,
    learned_positions,
    output_logits,
    output_probabilities,
    select_memory,
    target_mask,
    tied_weight,
    transformer,
    word_mask,
)

# Masks and positions


@mistake("tgt-pad-replaces-causal", instead_of=target_mask)
def mask_target_padding(target: Array, pad_id: int) -> Array:
    """Return a mask that hides padding only, (batch, 1, 1, seq)."""
    return word_mask(target, pad_id)


@mistake("tgt-masks-joined-or", instead_of=target_mask)
def join_masks_by_or(target: Array, pad_id: int) -> Array:
    """Return a mask that hides only what is both padding and later, (batch, 1, seq, seq)."""
    seq = target.shape[1]
    return as_array(word_mask(target, pad_id) | causal_mask(q_seq=seq, kv_seq=seq))


@mistake("pad-from-embedding-sum", around=word_mask)
def take_padding_for_words(original: Callable[[Array, int], Array], ids: Array, pad_id: int) -> Array:
    """Return True for every token: padding is looked for among rows to which positions were added, and none is 0."""
    return np.ones_like(original(ids, pad_id))


@mistake("pe-missing", instead_of=embed)
def leave_out_positions(ids: Array, pad_id: int, params: Params) -> Array:
    """Return the rows of the table as they are, (batch, tokens, d_model)."""
    return token_embedding(ids, params={"table": params["table"]}, pad_id=pad_id)


@mistake("pad-mask-zeroes-positions", around=embed)
def add_positions_to_padding(
    original: Callable[[Array, int, Params], Array], ids: Array, pad_id: int, params: Params
) -> Array:
    """Return the rows of the table, with the positional encoding added to padding only, (batch, tokens, d_model)."""
    rows = token_embedding(ids, params={"table": params["table"]}, pad_id=pad_id)
    return np.where((ids == pad_id)[..., None], original(ids, pad_id, params), rows)


# Memory and result


@mistake("cross-raw-src", instead_of=select_memory)
def attend_to_embedded_source(encoded: dict[str, Array]) -> Array:
    """Return the embedded source, (batch, source_seq, d_model)."""
    return encoded["embedded"]


@mistake("memory-per-layer", instead_of=select_memory)
def attend_to_all_layers(encoded: dict[str, Array]) -> Array:
    """Return the outputs of all encoder layers, (layers, batch, source_seq, d_model)."""
    return encoded["layers"]


@mistake("memory-per-layer", around=run_decoder_layer)
def attend_to_layer_of_same_index(
    original: Callable[..., Array], x: Array, *, index: int, memory: Array, **rest: Any
) -> Array:
    """Return decoder layer i, which attends to the output of encoder layer i, and those beyond to the last."""
    # A decoder called by itself has one memory for all.
    own = memory if memory.ndim == 3 else memory[min(index, len(memory) - 1)]
    return original(x, index=index, memory=own, **rest)


@mistake("softmax-in-model", around=transformer)
def return_probabilities(original: Callable[..., dict[str, Array]], *ids: Array, **rest: Any) -> dict[str, Array]:
    """Return the softmax of the logits in their place."""
    given = original(*ids, **rest)
    return given | {"logits": softmax(given["logits"])}


# The output layer


@mistake("softmax-before-linear", around=output_probabilities)
def map_probabilities(original: Callable[..., dict[str, Array]], x: Array, *, params: Params) -> dict[str, Array]:
    """Return the linear map of the softmax as probabilities."""
    return {"probabilities": original(softmax(x), params=params)["logits"]}


@mistake("tied-logit-scale", around=output_logits)
def scale_logits(original: Callable[[Array, Params], Array], x: Array, params: Params) -> Array:
    """Return the logits divided by √d_model."""
    return original(x, params) / math.sqrt(x.shape[-1])


TIED: Final = {"output_layer": "tied"}


@mistake("tied-not-transposed", instead_of=tied_weight, conventions=TIED)
def reshape_table(params: Params) -> Array:
    """Return the table reshaped to (d_model, vocab)."""
    table = params["table"]
    return table.reshape(table.shape[::-1])


@mistake("tied-output-scaled", around=tied_weight, conventions=TIED)
def scale_tied_table(original: Callable[[Params], Array], params: Params) -> Array:
    """Return the transposed table multiplied by √d_model."""
    return original(params) * math.sqrt(params["table"].shape[-1])


# Learned positions


@mistake("learned-positions-from-one", around=learned_positions, conventions={"positions": "learned"})
def count_positions_from_one(original: Callable[[int], Array], seq: int) -> Array:
    """Return 1 … seq."""
    return original(seq) + 1


# The target


@mistake("shift-missing", instead_of=shift_right)
def leave_unshifted(ids: Array, *, bos_id: int) -> Array:
    """Return the target as it is."""
    return ids.copy()


@mistake("shift-double", around=shift_right)
def shift_twice(original: Callable[..., Array], ids: Array, *, bos_id: int) -> Array:
    """Return the target shifted twice."""
    return original(original(ids, bos_id=bos_id), bos_id=bos_id)


@mistake("eos-fed-in", around=shift_right)
def keep_last_id(original: Callable[..., Array], ids: Array, *, bos_id: int) -> Array:
    """Return the shifted target with its last id, (batch, seq + 1)."""
    return np.concatenate([original(ids, bos_id=bos_id), ids[:, -1:]], axis=1)
