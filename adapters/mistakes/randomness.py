"""Mistakes in the weights that a layer begins with, and in dropout, of attention and of anything else."""

import math

import numpy as np

from goldformer.adapters.mistakes.differentiation import DifferentiatedTextbook as Textbook
from goldformer.adapters.mistakes.registry import mistake
from goldformer.adapters.textbook_checks import Array

# Initialisation


@mistake("xavier-fan-in")
class FanIn(Textbook):
    """The bound is √(3/d_in)."""

    def xavier_bound(self, d_in: int, d_out: int) -> float:
        return math.sqrt(3 / d_in)


@mistake("xavier-fan-out")
class FanOut(Textbook):
    """The bound is √(3/d_out)."""

    def xavier_bound(self, d_in: int, d_out: int) -> float:
        return math.sqrt(3 / d_out)


@mistake("xavier-he")
class He(Textbook):
    """The bound is √(6/d_in)."""

    def xavier_bound(self, d_in: int, d_out: int) -> float:
        return math.sqrt(6 / d_in)


@mistake("xavier-std-as-bound")
class DeviationAsBound(Textbook):
    """The bound is √(2/(d_in + d_out))."""

    def xavier_bound(self, d_in: int, d_out: int) -> float:
        return super().xavier_bound(d_in, d_out) / math.sqrt(3)


@mistake("xavier-normal")
class Normal(Textbook):
    """The elements are drawn from a normal distribution of the same variance."""

    def drawn_weight(self, shape: tuple[int, ...], bound: float, random: np.random.Generator) -> Array:
        return random.normal(0, bound / math.sqrt(3), shape)


@mistake("xavier-one-sided")
class OneSided(Textbook):
    """The elements are drawn between 0 and the bound."""

    def drawn_weight(self, shape: tuple[int, ...], bound: float, random: np.random.Generator) -> Array:
        return random.uniform(0, bound, shape)


@mistake("xavier-thirds")
class Thirds(Textbook):
    """A weight whose columns divide by three is three weights, each with the bound of its own."""

    def xavier_bound(self, d_in: int, d_out: int) -> float:
        return super().xavier_bound(d_in, d_out if d_out % 3 else d_out // 3)


@mistake("xavier-transposed")
class Transposed(Textbook):
    """The weight is (d_out, d_in)."""

    def xavier_uniform(self, like: Array, *, seed: int) -> Array:
        return super().xavier_uniform(like, seed=seed).T


# Dropout


@mistake("xavier-one-seed")
class SameWeightsEverywhere(Textbook):
    """Every weight of a shape is the same, whatever the seed."""

    def xavier_uniform(self, like: Array, *, seed: int) -> Array:
        return super().xavier_uniform(like, seed=0)


@mistake("dropout-no-rescale")
class NotScaledUp(Textbook):
    """What is kept stays as it is."""

    def scaled_up(self, x: Array, rate: float) -> Array:
        return x


@mistake("dropout-keep-probability")
class RateOfTheKept(Textbook):
    """The rate is the probability of being kept."""

    def dropped(self, x: Array, name: str, rate: float, seed: int | None) -> Array:
        return super().dropped(x, name, 1 - rate, seed)


@mistake("dropout-whole-rows")
class WholeRows(Textbook):
    """One random number decides for a row."""

    def stays(self, shape: tuple[int, ...], rate: float, random: np.random.Generator) -> Array:
        return super().stays((*shape[:-1], 1), rate, random)


@mistake("dropout-shared-mask")
class SameChannels(Textbook):
    """One random number decides for a channel of all samples and tokens."""

    def stays(self, shape: tuple[int, ...], rate: float, random: np.random.Generator) -> Array:
        return super().stays(shape[-1:], rate, random)


@mistake("dropout-one-seed")
class SameMaskInEveryCall(Textbook):
    """Arrays of a shape lose the same elements in every call, whatever the seed."""

    def stays(self, shape: tuple[int, ...], rate: float, random: np.random.Generator) -> Array:
        return super().stays(shape, rate, np.random.default_rng(0))


@mistake("dropout-in-evaluation")
class AlwaysTraining(Textbook):
    """Elements are dropped in training and otherwise."""

    def dropout(self, x: Array, *, rate: float, training: bool, seed: int) -> Array:
        return super().dropout(x, rate=rate, training=True, seed=seed)


@mistake("dropout-scaled-in-evaluation")
class ScaledInEvaluation(Textbook):
    """When it is not training the input is multiplied by 1 − rate."""

    def untouched(self, x: Array, rate: float) -> Array:
        return np.asarray(super().untouched(x, rate) * (1 - rate))


@mistake("dropout-sticky")
class DropoutSticky(Textbook):
    """The rate is set to 0 when it is not training, and stays there."""

    switched_off = False

    def dropout(self, x: Array, *, rate: float, training: bool, seed: int) -> Array:
        self.switched_off = self.switched_off or not training
        return super().dropout(x, rate=0.0 if self.switched_off else rate, training=training, seed=seed)


# Dropout in attention


@mistake("attention-dropout-scores")
class ScoresDropped(Textbook):
    """Scores are dropped, and the softmax is taken of what is left."""

    def kept_weights(self, scaled: Array, mask: Array | None, rate: float, seed: int | None) -> Array:
        return self.weights(self.dropped(scaled, "dropout_rate", rate, seed), mask)


@mistake("attention-dropout-renormalised")
class Renormalised(Textbook):
    """The weights that are left are divided by their sum."""

    def kept_weights(self, scaled: Array, mask: Array | None, rate: float, seed: int | None) -> Array:
        kept = super().kept_weights(scaled, mask, rate, seed)
        # A row of which nothing is left becomes 0/0.
        with np.errstate(invalid="ignore"):
            return np.asarray(kept / kept.sum(axis=-1, keepdims=True))


@mistake("attention-dropout-output")
class OutputDropped(Textbook):
    """Elements of the output are dropped instead of weights."""

    def scaled_dot_product_attention(
        self,
        query: Array,
        key: Array,
        value: Array,
        mask: Array | None = None,
        *,
        dropout_rate: float | None = None,
        seed: int | None = None,
    ) -> dict[str, Array]:
        given = super().scaled_dot_product_attention(query, key, value, mask)
        if dropout_rate is None:
            return given
        return given | {"output": self.dropped(given["output"], "dropout_rate", dropout_rate, seed)}
