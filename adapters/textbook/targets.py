"""Sequences and targets: lengths, the shifted target, one-hot rows and label smoothing."""

import numpy as np

from goldformer.adapters.textbook.attention import IDS
from goldformer.adapters.textbook.checks import Array, at_least_one, axis_sizes, check_ids, check_integers
from goldformer.adapters.textbook.layers import TOKENS
from goldformer.adapters.textbook.steps import step


@step
def pad_or_truncate(x: Array, *, length: int) -> Array:
    """Return (batch, length, d_model)."""
    axis_sizes({"x": TOKENS}, x=x)
    at_least_one("length", length, "a sequence has at least one row")
    return pad_sequence(truncate_sequence(x, length), length)


@step
def truncate_sequence(x: Array, length: int) -> Array:
    """Return the first `length` rows."""
    return x[:, :length]


@step
def pad_sequence(x: Array, length: int) -> Array:
    """Return rows of zeros after the last, up to `length`."""
    return np.pad(x, ((0, 0), (0, length - x.shape[1]), (0, 0)))


@step
def shift_right(ids: Array, *, bos_id: int) -> Array:
    """Return bos_id and then all ids but the last, (batch, seq)."""
    axis_sizes({"ids": IDS}, ids=ids)
    check_integers("ids", ids)
    return np.insert(ids[:, :-1], 0, bos_id, axis=1)


@step
def one_hot(ids: Array, *, vocab: int) -> Array:
    """Return 1 at the id and 0 elsewhere, (batch, seq, vocab)."""
    axis_sizes({"ids": IDS}, ids=ids)
    at_least_one("vocab", vocab, "a vocabulary has at least one word")
    check_ids("ids", ids, vocab, "the words of vocab")
    return np.eye(vocab, dtype=np.int64)[ids]


@step
def label_smoothing(target: Array, *, smoothing: float) -> Array:
    """Return (1 − s)·target + s/vocab, (batch, seq, vocab)."""
    axis_sizes({"target": "batch seq vocab"}, target=target)
    if not 0 <= smoothing <= 1:
        raise ValueError(f"smoothing: {smoothing} is not in 0 … 1")
    return keep_target_mass(target, smoothing) + spread_smoothing_mass(target, smoothing)


@step
def keep_target_mass(target: Array, smoothing: float) -> Array:
    """Return what the target keeps, (1 − s) of all."""
    return target * (1 - smoothing)


@step
def spread_smoothing_mass(target: Array, smoothing: float) -> Array | float:
    """Return what every word gets, the target's own included: s/vocab."""
    vocab: int = target.shape[-1]
    return smoothing / vocab
