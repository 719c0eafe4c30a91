"""Random numbers: the initial weights of a layer, and dropout."""

from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final

import numpy as np

from goldformer.spec.formulas.arrays import Array, arithmetic, number, ratio, root
from goldformer.spec.formulas.steps import hold, step

# Initialisation


@step
def xavier_uniform(like: Array, *, seed: int) -> dict[str, Array]:
    """Return a weight (d_in, d_out) and a bias of zeros, (d_out,), in the dtype of like (INIT-3)."""
    bound = xavier_bound(*like.shape)
    weight = arithmetic().narrow(draw_weight(like.shape, bound, np.random.default_rng(seed)), like)
    return {"weight": weight, "bias": np.full_like(like, arithmetic().constant(0, like), shape=like.shape[1:])}


@step
def xavier_bound(d_in: int, d_out: int) -> float:
    """Return √(6/(d_in + d_out))."""
    return root(ratio(6, d_in + d_out))


@step
def draw_weight(shape: tuple[int, ...], bound: float, random: np.random.Generator) -> Array:
    """Draw numbers uniformly between −bound and bound."""
    return random.uniform(-bound, bound, shape)


# Dropout


@step
def dropout(x: Array, *, rate: float, training: bool, seed: int) -> Array:
    """Drop elements of x in training; return x in evaluation, whatever the rate, (..., n)."""
    return drop_elements(x, rate, seed) if training else x


@step
def drop_elements(x: Array, rate: float, seed: int | None) -> Array:
    """Set dropped elements to 0 and scale up the others."""
    kept = draw_dropout_mask(x.shape, float(rate), np.random.default_rng(seed))
    # At a rate of 1 scaling divides by 0, but no element is kept.
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(kept, scale_up(x, rate), arithmetic().constant(0, x))


@step
def draw_dropout_mask(shape: tuple[int, ...], rate: float, random: np.random.Generator) -> Array:
    """Draw True for each element that is kept, independently, with probability 1 − rate."""
    return random.random(shape) >= rate


@step
def scale_up(x: Array, rate: float) -> Array:
    """Return x/(1 − rate)."""
    return x / (number(1) - number(rate))


# Dropout inside a component


@dataclass(frozen=True, slots=True)
class Dropout:
    """The dropout of one call: its rate, and the random numbers from which each place gets a seed of its own."""

    rate: float
    random: np.random.Generator


_dropout: Final[ContextVar[Dropout | None]] = ContextVar("dropout", default=None)


def dropping(dropout_rate: float | None, training: bool, seed: int | None) -> AbstractContextManager[None]:  # noqa: FBT001
    """Drop in all places inside the context; without a rate keep to the dropout of the context around it."""
    if dropout_rate is None:
        return nullcontext()
    return hold(_dropout, Dropout(dropout_rate, np.random.default_rng(seed)) if is_dropping(training) else None)


@step
def is_dropping(training: bool) -> bool:  # noqa: FBT001
    """Return True in training; in evaluation nothing is dropped (DROP-2)."""
    return training


def find_dropout() -> tuple[float | None, int | None]:
    """Return rate and seed for the next place inside a component; None where nothing is dropped."""
    current = _dropout.get()
    return (None, None) if current is None else (current.rate, int(current.random.integers(2**32)))


def drop_here(x: Array) -> Array:
    """Return x after the dropout of the component that runs."""
    rate, seed = find_dropout()
    return x if rate is None else drop_elements(x, rate, seed)


@step
def drop_hidden(x: Array) -> Array:
    """Drop hidden channels, between the activation and the second map (DROP-4)."""
    return drop_here(x)


@step
def drop_encoded(x: Array) -> Array:
    """Drop elements of the sum of input and positional encoding (DROP-5)."""
    return drop_here(x)


@step
def drop_update(x: Array) -> Array:
    """Drop elements of the output of a sub-layer, before it is added (DROP-6)."""
    return drop_here(x)
