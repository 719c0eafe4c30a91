"""Constants that are in no list: a neighbour with a number that is solved for, such as the eps of a normalisation.

While it is searched, the number is that of the context; what is found is a neighbour with the number in its id.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, partial
from itertools import product
from typing import Any, Final

import numpy as np

from goldformer.conformance.diagnosis.mistakes import implementations
from goldformer.conformance.diagnosis.neighbours.arguments import change_argument, change_array
from goldformer.conformance.diagnosis.neighbours.constants import OTHER_EPS, SCALED_RESULTS
from goldformer.conformance.diagnosis.neighbours.neighbour import EQUALS, find_component
from goldformer.conformance.diagnosis.neighbours.wiring import list_dropped, list_updates
from goldformer.spec.formulas.arrays import as_array
from goldformer.spec.formulas.attention import fill_masked, mask_fill, scaled_dot_product_attention, score_divisor
from goldformer.spec.formulas.checks import Array
from goldformer.spec.formulas.embedding import add_encoding, token_embedding, wavelength_base
from goldformer.spec.formulas.layers import activation, norm_denominator
from goldformer.spec.formulas.losses import count_targets, find_words, score_targets
from goldformer.spec.formulas.options import EPS
from goldformer.spec.formulas.steps import Replacements, Step, around, hold, instead
from goldformer.spec.formulas.transformer import log_softmax

#: The numbers of the grid to a factor of ten, and the sections after it: they leave six digits.
_POINTS: Final = 3
_SECTIONS: Final = 30
#: After this many sections, which divide the interval by 50, the residual of the right family has fallen.
_EARLY: Final = 8
#: How many times a family is tried, about, where it is not the right one.
TRIALS: Final = 35
#: Reads the number of a neighbour.
Number = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Family:
    """Neighbours that differ in a number: `title` has braces in its place, and `make` takes what reads the number.

    The number lies between the powers of ten `range`; if it is `signed`, its negation is tried too. With a
    `convention` it is an option of it.
    """

    id: str
    title: str
    hint: str
    range: tuple[float, float]
    make: Callable[[Number], Replacements]
    signed: bool = False
    convention: str = ""

    @property
    def component(self) -> str:
        """The component in which the number is."""
        return find_component(self.id)

    @property
    def grid(self) -> list[float]:
        """The numbers from which the search starts."""
        low, high = self.range
        powers = np.linspace(low, high, round(_POINTS * (high - low)) + 1)
        positive = [float(value) for value in 10.0**powers]
        return [*positive, *(-value for value in positive)] if self.signed else positive


_number: Final[ContextVar[float]] = ContextVar("number")


def trying(value: float) -> AbstractContextManager[None]:
    """Make a family's number this one inside a context."""
    return hold(_number, value)


def read_trial(family: Family) -> Replacements:
    """Return the steps of a family, whose number is that of `trying`."""
    return family.make(_number.get)


def name_solved(family: Family, value: float) -> str:
    """Return the id of the neighbour of a family with a number."""
    return f"{family.id}{EQUALS}{value:.9g}"


def _scale_result(step: Step) -> Callable[[Number], Replacements]:
    return lambda number: {step: change_array(lambda x: (x * number()).astype(x.dtype))}


def _leak_negative(number: Number) -> Replacements:
    return {activation: instead(lambda x: np.where(x > 0, x, x * number()).astype(x.dtype))}


def _scale_encoding(number: Number) -> Replacements:
    return {add_encoding: change_argument(add_encoding, "encoding", lambda own, _: own * number())}


def _divide(number: Number) -> Replacements:
    def divide(original: Step, sizes: Mapping[str, Any]) -> float | Array:
        divisor: float | Array = original(sizes) * number()
        return divisor

    return {score_divisor: around(divide)}


def _divide_by_power_of_width(number: Number) -> Replacements:
    return {score_divisor: instead(lambda sizes: float(sizes["d_k"]) ** number())}


def _divide_by_power_of_variance(number: Number) -> Replacements:
    def divide(original: Step, variance: Array) -> Array:
        root: Array = original(variance)
        return as_array(root ** (2 * number())).astype(root.dtype)

    return {norm_denominator: around(divide)}


def _add_eps(step: Step, number: Number) -> Replacements:
    return {step: instead(number)}


def _add_to_deviation(number: Number) -> Replacements:
    return {norm_denominator: instead(lambda variance: (np.sqrt(variance) + number()).astype(variance.dtype))}


def _add_to_deviation_of_one_less(number: Number) -> Replacements:
    return {**implementations()["ln-unbiased"].steps, **_add_to_deviation(number)}


def _fill_masked(number: Number) -> Replacements:
    return {mask_fill: instead(lambda _: number())}


def _add_fill(number: Number) -> Replacements:
    return {fill_masked: instead(lambda scaled, mask: np.where(mask, scaled, scaled + number()).astype(scaled.dtype))}


def _fill_before_division(number: Number) -> Replacements:
    """Fill masked scores before they are divided."""

    def attend(original: Step, *args: Any, **named: Any) -> Any:
        latest: list[float | Array] = [1.0]
        with hold(_divisor, latest):
            return original(*args, **named)

    def note(original: Step, sizes: Mapping[str, Any]) -> float | Array:
        divisor: float | Array = original(sizes)
        _divisor.get()[0] = divisor
        return divisor

    return {
        scaled_dot_product_attention: around(attend),
        score_divisor: around(note),
        mask_fill: instead(lambda _: float(number() / _divisor.get()[0])),
    }


def _smooth_targets(number: Number, *, more: Replacements, target_too: bool) -> Replacements:
    """Compare the logits with smoothed targets, with other changes."""

    def score(original: Step, logits: Array, targets: Array) -> Array:
        own, every, words = original(logits, targets), log_softmax(logits).sum(axis=-1), logits.shape[-1]
        share = number() / (words if target_too else max(words - 1, 1))
        others = every if target_too else every - own
        return as_array((1 - number()) * own + share * others).astype(own.dtype)

    return {score_targets: around(score), **more}


#: The divisor of the scores of the attention that runs, in a list.
_divisor: Final[ContextVar[list[float | Array]]] = ContextVar("divisor")

_FACTORS: Final = (-2.0, 2.0)
_POWERS: Final = (-1.5, 0.7)
#: The families whose number a layer may choose for each sub-layer.
OF_SUBLAYERS: Final = ("layer_norm.eps", "scaled_dot_product_attention.divisor")


def _list_families() -> Iterator[Family]:
    attention, norm, embedding = "scaled_dot_product_attention", "layer_norm", "token_embedding"
    for convention, step in EPS.items():
        yield Family(
            f"{convention.removesuffix('_eps')}.eps", "the normalisation fits eps = {}", OTHER_EPS, (-12, 0),
            partial(_add_eps, step), convention=convention,
        )  # fmt: skip
    yield Family(
        "positional_encoding.base", "the base is {} instead of 10000",
        "The angle is pos/10000^(2i/d_model).", (0.5, 8), lambda number: {wavelength_base: instead(number)},
    )  # fmt: skip
    yield Family(
        f"{attention}.divisor", "the scores are divided by {} times √d_k",
        "Divide the scores by the root of d_k.", _FACTORS, _divide, signed=True,
    )  # fmt: skip
    yield Family(
        f"{attention}.divisor-fixed", "the scores are divided by {} instead of √d_k, whatever the width",
        "Divide the scores by the root of d_k.", _FACTORS, lambda number: {score_divisor: instead(lambda _: number())},
    )  # fmt: skip
    yield Family(
        f"{attention}.divisor-power", "the scores are divided by d_k to the power of {} instead of 1/2",
        "Divide the scores by the root of d_k.", _POWERS, _divide_by_power_of_width, signed=True,
    )  # fmt: skip
    yield Family(
        f"{norm}.power", "the row is divided by its variance plus eps to the power of {} instead of 1/2",
        "Divide by the root of the variance plus eps.", _POWERS, _divide_by_power_of_variance, signed=True,
    )  # fmt: skip
    yield Family(
        f"{attention}.fill", "masked scores become {}, which leaves their keys a weight",
        "Fill masked scores with −∞ or the lowest finite number.", (-1, 2), _fill_masked, signed=True,
    )  # fmt: skip
    yield Family(
        f"{attention}.fill-added", "{} is added to masked scores, which leaves their keys a weight",
        "Fill masked scores with −∞ or the lowest finite number.", (-1, 2), _add_fill, signed=True,
    )  # fmt: skip
    yield Family(
        f"{attention}.fill-before-division",
        "masked scores become {} before they are divided, which leaves their keys a weight",
        "Fill masked scores with −∞ or the lowest finite number.", (-1, 3), _fill_before_division, signed=True,
    )  # fmt: skip
    yield Family(
        "feed_forward.slope", "the activation is a leaky ReLU with the slope {}",
        "Use ReLU, max(0, x), or declare a variant.", (-3, 0), _leak_negative, signed=True,
    )  # fmt: skip
    yield Family(
        "positional_encoding.factor", "the encoding of the positions is multiplied by {}",
        "Add the encoding as it is.", _FACTORS, _scale_encoding, signed=True,
    )  # fmt: skip
    counted: tuple[tuple[str, str, Replacements], ...] = (
        ("", "", {}),
        ("-padding-counted", ", and padding counts as a word does",
         {find_words: instead(lambda targets, _: np.ones(targets.shape, np.bool_))}),
        ("-padding-in-mean", ", and the sum over the words is divided by the number of all places, padding too",
         {count_targets: instead(lambda counts: counts.size)}),
    )  # fmt: skip
    for (ending, says, more), too in product(counted, (True, False)):
        word, words = ("", "vocab words") if too else ("-others", "vocab − 1 others")
        yield Family(
            f"cross_entropy.smoothed{word}{ending}", f"the targets are smoothed by {{}}, shared among {words}{says}",
            "The loss is the mean of −log softmax at the target, over the words.", (-3, 0),
            partial(_smooth_targets, more=more, target_too=too),
        )  # fmt: skip
    rows: tuple[Step, str, str] = (token_embedding, embedding, "the rows of the table are")
    for step, component, words in (*SCALED_RESULTS, rows):
        yield Family(
            f"{component}.{step.__name__}.factor", f"{words} multiplied by {{}}",
            "Leave the factor out, or declare the option that has it. A dropout that rescales in evaluation too "
            "multiplies by 1/(1 − rate).", _FACTORS, _scale_result(step), signed=True,
        )  # fmt: skip
    for layer, places, words, scale_all in list_dropped():
        yield Family(
            f"{layer}.{places}.factor", f"{words} are multiplied by {{}}, as by a dropout that rescales in evaluation",
            "Leave the factor out: in evaluation dropout does nothing.", _FACTORS, scale_all, signed=True,
        )  # fmt: skip
    for layer, sublayer, words, scale in list_updates():
        yield Family(
            f"{layer}.{sublayer}.factor", f"{words} is multiplied by {{}} before it is added",
            "Add it as it is.", _FACTORS, scale, signed=True,
        )  # fmt: skip
    # Layers have many families, and only the first are tried there.
    yield Family(
        f"{norm}.eps-outside", "eps = {} is added to the deviation instead of the variance",
        "Add the declared eps to the variance, before the root.", (-12, 0), _add_to_deviation,
    )  # fmt: skip
    yield Family(
        f"{norm}.std-plus-eps", "the deviation divides by d_model − 1, and eps = {} is added to it",
        "Divide by √(variance + eps), with the variance over d_model (correction=0, unbiased=False).", (-12, 0),
        _add_to_deviation_of_one_less,
    )  # fmt: skip


@cache
def families() -> Mapping[str, Family]:
    """Return the families by id."""
    return {family.id: family for family in _list_families()}


def fit_number(residual: Callable[[float], float], family: Family) -> float | None:
    """Return the number with the smallest residual, a sum of squares; None if there is no residual.

    It is searched by a golden section of its exponent, which ends early if the residual does not vanish.
    """
    start = {value: residual(value) for value in family.grid}
    best = min(start, key=lambda value: start[value])
    if not math.isfinite(start[best]):
        return None
    sign, middle = math.copysign(1.0, best), math.log10(abs(best))
    shrink = (math.sqrt(5) - 1) / 2
    low, high = middle - 1 / _POINTS, middle + 1 / _POINTS

    def at(exponent: float) -> float:
        return residual(sign * 10.0**exponent)

    one, two = high - shrink * (high - low), low + shrink * (high - low)
    left, right = at(one), at(two)
    for count in range(_SECTIONS):
        if count == _EARLY and min(left, right) > start[best] / 4:
            return best
        # One of the two points is used again.
        if left < right:
            high, two, right = two, one, left
            one = high - shrink * (high - low)
            left = at(one)
        else:
            low, one, left = one, two, right
            two = low + shrink * (high - low)
            right = at(two)
    return float(sign * 10.0 ** ((low + high) / 2))
