"""What the textbook draws at random: the weights that a layer begins with, and dropout."""

import math

import numpy as np

from goldformer.adapters.textbook_checks import Array, axis_sizes


class TextbookRandom:
    """Xavier-uniform weights and dropout."""

    # Initialisation

    def xavier_uniform(self, like: Array, *, seed: int) -> Array:
        """Return a weight (d_in, d_out) in the dtype of like."""
        sizes = axis_sizes({"like": "d_in d_out"}, like=like)
        bound = self.xavier_bound(sizes["d_in"], sizes["d_out"])
        return self.drawn_weight(like.shape, bound, np.random.default_rng(seed)).astype(like.dtype)

    def xavier_bound(self, d_in: int, d_out: int) -> float:
        """Return √(6/(d_in + d_out))."""
        return math.sqrt(6 / (d_in + d_out))

    def drawn_weight(self, shape: tuple[int, ...], bound: float, random: np.random.Generator) -> Array:
        """Return numbers drawn evenly between −bound and bound."""
        return random.uniform(-bound, bound, shape)

    # Dropout

    def dropout(self, x: Array, *, rate: float, training: bool, seed: int) -> Array:
        """Return x with elements dropped in training, and x otherwise, (..., n)."""
        axis_sizes({"x": "... n"}, x=x)
        return self.dropped(x, "rate", rate, seed) if training else self.untouched(x, rate)

    def untouched(self, x: Array, rate: float) -> Array:
        """Return what there is when it is not training: x, whatever the rate."""
        del rate
        return x

    def dropped(self, x: Array, name: str, rate: float, seed: int | None) -> Array:
        """Return 0 where an element is dropped, and what is scaled up elsewhere; `name` is the rate's own."""
        if not 0 <= rate <= 1:
            raise ValueError(f"{name}: {rate} is not in 0 … 1")
        stays = self.stays(x.shape, rate, np.random.default_rng(seed))
        # At a rate of 1 what would be scaled up is not kept.
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(stays, self.scaled_up(x, rate), np.zeros_like(x))

    def stays(self, shape: tuple[int, ...], rate: float, random: np.random.Generator) -> Array:
        """Say which elements are kept: each by itself, with probability 1 − rate."""
        return random.random(shape) >= rate

    def scaled_up(self, x: Array, rate: float) -> Array:
        """Return x/(1 − rate)."""
        return np.asarray(x / (1 - rate))
