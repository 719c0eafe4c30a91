"""Draws: weights of another distribution or variance, and dropout whose rate is read in another way."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np

from goldformer.conformance.diagnosis.neighbours.neighbour import Neighbour
from goldformer.spec.formulas.arrays import as_array
from goldformer.spec.formulas.checks import Array
from goldformer.spec.formulas.randomness import draw_dropout_mask, draw_weight, scale_up, xavier_bound
from goldformer.spec.formulas.steps import Step, instead

_INITIALISATION: Final = "xavier_uniform"
_HINT: Final = "Draw uniformly between −a and a, with a = √(6/(d_in + d_out))."

#: Half the width of a uniform distribution, in words, and its value.
_BOUNDS: Final[tuple[tuple[str, str, Callable[[int, int], float]], ...]] = (
    ("linear", "1/√d_in, as nn.Linear has it", lambda d_in, _: 1 / math.sqrt(d_in)),
    ("gain", "√2·√(6/(d_in + d_out)), with the gain of a ReLU", lambda d_in, d_out: math.sqrt(12 / (d_in + d_out))),
    ("he-out", "√(6/d_out), He's of the outputs", lambda _, d_out: math.sqrt(6 / d_out)),
    ("half", "√(3/(d_in + d_out))", lambda d_in, d_out: math.sqrt(3 / (d_in + d_out))),
    ("largest", "√(3/max(d_in, d_out))", lambda d_in, d_out: math.sqrt(3 / max(d_in, d_out))),
    ("0.1", "0.1, whatever the sizes", lambda *_: 0.1),
    ("0.08", "0.08, whatever the sizes", lambda *_: 0.08),
    ("0.05", "0.05, whatever the sizes", lambda *_: 0.05),
    ("1", "1, whatever the sizes", lambda *_: 1.0),
)
#: The standard deviation of a normal distribution, in words, and its value.
_DEVIATIONS: Final[tuple[tuple[str, str, Callable[[int, int], float]], ...]] = (
    ("0.02", "0.02, whatever the sizes", lambda *_: 0.02),
    ("he", "√(2/d_in), He's", lambda d_in, _: math.sqrt(2 / d_in)),
    ("lecun", "1/√d_in", lambda d_in, _: 1 / math.sqrt(d_in)),
    ("he-out", "√(2/d_out), He's of the outputs", lambda _, d_out: math.sqrt(2 / d_out)),
    ("out", "1/√d_out", lambda _, d_out: 1 / math.sqrt(d_out)),
    ("gain", "√2·√(2/(d_in + d_out)), with the gain of a ReLU", lambda d_in, d_out: math.sqrt(4 / (d_in + d_out))),
    ("half", "√(1/(d_in + d_out))", lambda d_in, d_out: math.sqrt(1 / (d_in + d_out))),
    ("0.01", "0.01, whatever the sizes", lambda *_: 0.01),
    ("0.1", "0.1, whatever the sizes", lambda *_: 0.1),
    ("1", "1, whatever the sizes", lambda *_: 1.0),
)


def _draw_normal(shape: tuple[int, ...], deviation: float, random: np.random.Generator) -> Array:
    return random.normal(0, deviation, shape)


def _draw_truncated(shape: tuple[int, ...], deviation: float, random: np.random.Generator) -> Array:
    """Draw normally, and again what lies further than two deviations from 0."""
    drawn = random.normal(0, deviation, shape)
    while (far := np.abs(drawn) > 2 * deviation).any():
        drawn[far] = random.normal(0, deviation, int(far.sum()))
    return drawn


def _change_initialisation() -> Iterator[Neighbour]:
    for word, words, bound in _BOUNDS:
        yield Neighbour(
            f"{_INITIALISATION}.uniform.{word}", f"the elements are drawn with the bound {words}",
            _HINT, {xavier_bound: instead(bound)},
        )  # fmt: skip
    deviations = (("xavier", "√(2/(d_in + d_out))", lambda i, o: math.sqrt(2 / (i + o))), *_DEVIATIONS)
    for kind, says, draw in (
        ("normal", "normally", _draw_normal),
        ("truncated", "normally and cut at two deviations,", _draw_truncated),
    ):
        # The catalogue has the first one.
        for word, words, deviation in _DEVIATIONS if kind == "normal" else deviations:
            yield Neighbour(
                f"{_INITIALISATION}.{kind}.{word}",
                f"the elements are drawn {says} with the standard deviation {words}", _HINT,
                {xavier_bound: instead(deviation), draw_weight: instead(draw)},
            )  # fmt: skip
    fixed: tuple[tuple[str, str, Callable[..., Any]], ...] = (
        ("zero", "every element is 0", lambda shape, _, __: np.zeros(shape)),
        ("one", "every element is 1", lambda shape, _, __: np.ones(shape)),
        ("unit", "the elements are drawn between 0 and 1", lambda shape, _, random: random.random(shape)),
    )
    for word, title, draw_fixed in fixed:
        yield Neighbour(f"{_INITIALISATION}.{word}", title, _HINT, {draw_weight: instead(draw_fixed)})


def _keep_by_rate(shape: tuple[int, ...], rate: float, random: np.random.Generator) -> Array:
    return random.random(shape) < rate


def _change_dropout() -> Iterator[Neighbour]:
    ways: tuple[tuple[str, str, str, dict[Step, Any]], ...] = (
        ("kept-by-rate", "elements are kept with the probability of the rate, and divided by 1 − rate",
         "Keep an element with the probability 1 − rate.", {draw_dropout_mask: instead(_keep_by_rate)}),
        ("divided-by-rate", "what is kept is divided by the rate", "Divide what is kept by 1 − rate.",
         {scale_up: instead(lambda x, rate: as_array(x / rate if rate else x))}),
        ("multiplied", "what is kept is multiplied by 1 − rate", "Divide what is kept by 1 − rate.",
         {scale_up: instead(lambda x, rate: as_array(x * (1 - rate)))}),
        ("scaled-twice", "what is kept is divided by 1 − rate twice", "Divide what is kept by 1 − rate once.",
         {scale_up: instead(lambda x, rate: as_array(x / (1 - rate) / (1 - rate)))}),
        ("root", "what is kept is divided by √(1 − rate)", "Divide what is kept by 1 − rate.",
         {scale_up: instead(lambda x, rate: as_array(x / math.sqrt(1 - rate)))}),
    )  # fmt: skip
    for word, title, hint, steps in ways:
        yield Neighbour(f"dropout.{word}", title, hint, steps)


def generate() -> Iterator[Neighbour]:
    """Yield the neighbours of initialisation and dropout."""
    yield from _change_initialisation()
    yield from _change_dropout()
