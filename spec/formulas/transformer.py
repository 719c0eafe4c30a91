"""The whole model, from ids to logits, and its output layer: probabilities and their logarithms."""

from typing import Any

import numpy as np

from goldformer.spec.formulas.arrays import Array, arithmetic
from goldformer.spec.formulas.attention import causal_mask, padding_mask, softmax
from goldformer.spec.formulas.embedding import positional_encoding, token_embedding
from goldformer.spec.formulas.heads import Params, project
from goldformer.spec.formulas.layers import decoder, encoder
from goldformer.spec.formulas.parts import part
from goldformer.spec.formulas.steps import step

# The whole model


@step
def transformer(
    source: Array,
    target: Array,
    *,
    num_heads: int,
    num_encoder_layers: int,
    num_decoder_layers: int,
    pad_id: int,
    params: Params,
) -> dict[str, Array]:
    """Return logits (batch, seq, vocab), memory and source_embedded, decoded and target_embedded (…, d_model)."""
    model: dict[str, Any] = {"num_heads": num_heads, "pad_id": pad_id, "params": params}
    embedded, encoded = encode(source, num_layers=num_encoder_layers, **model)
    memory = select_memory({"embedded": embedded, **encoded})
    target_embedded, decoded = decode(target, source, memory, num_layers=num_decoder_layers, **model)
    logits = output_logits(decoded, params)
    steps = {"decoded": decoded, "source_embedded": embedded, "target_embedded": target_embedded}
    return {"logits": logits, "memory": encoded["output"], **steps}


def encode(
    source: Array, *, num_heads: int, num_layers: int, pad_id: int, params: Params
) -> tuple[Array, dict[str, Array]]:
    """Return the embedded source, and the outputs of the encoder."""
    embedded, mask = embed_source(source, pad_id, params), source_mask(source, pad_id)
    mine = stack_of_model(params, "encoder")
    return embedded, encoder(embedded, mask, num_heads=num_heads, num_layers=num_layers, params=mine)


def decode(
    target: Array, source: Array, memory: Array, *, num_heads: int, num_layers: int, pad_id: int, params: Params
) -> tuple[Array, Array]:
    """Return the embedded target, and the output of the decoder."""
    embedded, mine = embed_target(target, pad_id, params), stack_of_model(params, "decoder")
    masks = target_mask(target, pad_id), memory_mask(source, pad_id)
    decoded = decoder(embedded, memory, *masks, num_heads=num_heads, num_layers=num_layers, params=mine)
    return embedded, decoded["output"]


def stack_of_model(params: Params, stack: str) -> Params:
    """Return the parameters with the final norm of the stack, encoder_norm or decoder_norm, under the name norm."""
    return {**params, **{f"norm.{name}": array for name, array in part(params, f"{stack}_norm").items()}}


@step
def embed_source(source: Array, pad_id: int, params: Params) -> Array:
    """Embed the source and add its positions, (batch, source_seq, d_model)."""
    return embed(source, pad_id, params)


@step
def embed_target(target: Array, pad_id: int, params: Params) -> Array:
    """Embed the target with the same table (MODEL-1) and add its positions, (batch, seq, d_model)."""
    return embed(target, pad_id, params)


@step
def embed(ids: Array, pad_id: int, params: Params) -> Array:
    """Embed the ids, padding like any word, and add their positions, (batch, tokens, d_model)."""
    rows = token_embedding(ids, params={"table": params["table"]}, pad_id=pad_id)
    return add_learned_positions(rows, params) if "position_table" in params else positional_encoding(rows)


@step
def add_learned_positions(x: Array, params: Params) -> Array:
    """Add the row of its position to each vector (MODEL-8)."""
    return x + params["position_table"][learned_positions(x.shape[1])]


@step
def learned_positions(seq: int) -> Array:
    """Return the rows of the position table, 0 … seq − 1."""
    return np.arange(seq)


@step
def word_mask(ids: Array, pad_id: int) -> Array:
    """Return True where the ids of source or target are not padding, (batch, 1, 1, tokens)."""
    return padding_mask(ids, pad_id=pad_id)


@step
def source_mask(source: Array, pad_id: int) -> Array:
    """Return the mask of the encoder, which hides padding."""
    return word_mask(source, pad_id)


@step
def target_mask(target: Array, pad_id: int) -> Array:
    """Return the mask of the decoder's self-attention, which hides padding and later positions (LAYER-5)."""
    seq = target.shape[1]
    return np.asarray(word_mask(target, pad_id) & causal_mask(q_seq=seq, kv_seq=seq))  # (batch, 1, seq, seq)


@step
def memory_mask(source: Array, pad_id: int) -> Array:
    """Return the mask of the cross-attention, which hides the padding of the source: its positions are the keys."""
    return word_mask(source, pad_id)


@step
def select_memory(encoded: dict[str, Array]) -> Array:
    """Return the memory: the output of the last encoder layer (LAYER-4)."""
    return encoded["output"]


# The output layer


@step
def output_logits(x: Array, params: Params) -> Array:
    """Return logits, x·W_vocab + b_vocab, (batch, seq, vocab)."""
    return project(x, params if "w_vocab" in params else {**params, "w_vocab": tied_weight(params)}, "vocab")


@step
def tied_weight(params: Params) -> Array:
    """Return the transposed table, which maps to the vocabulary where there is no w_vocab (MODEL-7)."""
    return params["table"].T


@step
def output_probabilities(x: Array, *, params: Params) -> dict[str, Array]:
    """Return probabilities and logits, each (batch, seq, vocab)."""
    logits = output_logits(x, params)
    return {"probabilities": softmax(logits), "logits": logits}


@step
def log_softmax(logits: Array) -> Array:
    """Return log softmax(logits) over the last axis: the logits minus log Σ exp(logits), which rounds at their size."""
    # Taking the maximum off a row and adding it again changes nothing, and keeps exp within range (SM-4).
    largest = arithmetic().maximum(logits)
    with np.errstate(over="ignore"):
        powers = np.exp(logits - largest)
    return logits - (np.log(powers.sum(axis=-1, keepdims=True)) + largest)
