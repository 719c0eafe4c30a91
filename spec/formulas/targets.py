"""Sequences and targets: lengths, the shifted target, one-hot rows and label smoothing."""

import numpy as np

from goldformer.spec.formulas.arrays import Array, arithmetic, number
from goldformer.spec.formulas.steps import step


@step
def pad_or_truncate(x: Array, *, length: int) -> Array:
    """Return (batch, length, d_model)."""
    return pad_sequence(x[:, :length], length)


@step
def pad_sequence(x: Array, length: int) -> Array:
    """Append rows of zeros up to `length`."""
    missing = (x.shape[0], length - x.shape[1], x.shape[2])
    return np.concatenate([x, np.full_like(x, arithmetic().constant(0, x), shape=missing)], axis=1)


@step
def shift_right(ids: Array, *, bos_id: int) -> Array:
    """Return bos_id and then all ids but the last, (batch, seq)."""
    return np.insert(ids[:, :-1], 0, bos_id, axis=1)


@step
def one_hot(ids: Array, *, vocab: int) -> Array:
    """Return 1 at each id and 0 elsewhere, (batch, seq, vocab)."""
    return np.eye(vocab, dtype=np.int64)[ids]


@step
def label_smoothing(target: Array, *, smoothing: float) -> Array:
    """Return (1 − s)·target + s/vocab, (batch, seq, vocab)."""
    return target * (number(1) - number(smoothing)) + spread_smoothing_mass(target, smoothing)


@step
def spread_smoothing_mass(target: Array, smoothing: float) -> Array | float:
    """Return s/vocab, the mass that every word gets, also the target's own."""
    return number(smoothing) / number(target.shape[-1])
