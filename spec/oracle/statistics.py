"""Statistics of a random output: their values, and how far chance may move them.

The interval around a value is so wide that a correct implementation falls outside of it with a probability of at
most FALSE_ALARM, by an inequality that holds for every number of elements. Nothing is taken to be normal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

from goldformer.spec.laws import FALSE_ALARM, Discrete, Law, Uniform
from goldformer.spec.model import Statistic

#: The function of an element whose mean is the statistic.
_OF: Final[Mapping[Statistic, Callable[[Fraction], Fraction]]] = {
    "zeros": lambda value: Fraction(value == 0),
    "mean": lambda value: value,
    "mean_square": lambda value: value**2,
}


@dataclass(frozen=True, slots=True)
class Interval:
    """The value of a statistic as balls see it, and an upper bound of half the width of its interval."""

    value: Any
    within: float


def statistics(law: Law, names: tuple[Statistic, ...]) -> dict[Statistic, Interval]:
    """Compute the statistics of a law, which has all that are named (`laws.unfit`)."""
    return {name: _largest(law) if name == "largest" else _mean(law, name) for name in names}


def _largest(law: Law) -> Interval:
    from goldformer.spec.oracle import balls  # only deriving needs python-flint

    if isinstance(law, Discrete):
        # The probability that nothing is kept is below FALSE_ALARM, and every kept element is this number.
        (magnitude,) = law.magnitudes
        return Interval(balls.ratio(magnitude), 0.0)
    bound = balls.ratio(law.square).sqrt()
    # All of n elements stay below a·(1 − δ) with the probability (1 − δ)ⁿ.
    missing = 1 - (balls.ratio(FALSE_ALARM).log() / law.count).exp()
    return Interval(bound, _above(bound * missing))


def _mean(law: Law, name: Statistic) -> Interval:
    from goldformer.spec.oracle import balls  # only deriving needs python-flint

    if isinstance(law, Uniform):
        bound, square = balls.ratio(law.square).sqrt(), balls.ratio(law.square)
        if name == "mean":
            return Interval(balls.exact(0), _bernstein(square / 3, bound, law.count))
        return Interval(square / 3, _bernstein(square**2 * 4 / 45, square * 2 / 3, law.count))
    mean, variance, reach = Fraction(0), Fraction(0), Fraction(0)
    for count, values in law.groups:
        parts = [(_OF[name](value), probability) for value, probability in values.items()]
        centre = sum((part * probability for part, probability in parts), Fraction(0))
        share = Fraction(count, law.count)
        mean += share * centre
        variance += share * sum((part - centre) ** 2 * probability for part, probability in parts)
        reach = max(reach, *(abs(part - centre) for part, _ in parts))
    return Interval(balls.ratio(mean), _bernstein(balls.ratio(variance), balls.ratio(reach), law.count))


def _bernstein(variance: Any, reach: Any, count: int) -> float:
    """Bound the deviation of the mean of `count` independent terms, with FALSE_ALARM the probability of a larger one.

    Bernstein's inequality: with terms that lie within `reach` of their means, and `variance` the mean of their
    variances, P(|mean − its expectation| ≥ t) ≤ 2·exp(−n·t²/2 / (variance + reach·t/3)). Solved for t.
    """
    from goldformer.spec.oracle import balls  # only deriving needs python-flint

    spread = balls.ratio(2 / FALSE_ALARM).log() / count
    linear = reach * spread / 3
    return _above(linear + (linear**2 + 2 * spread * variance).sqrt())


def _above(ball: Any) -> float:
    """Return a float that is certainly not less than a ball."""
    return math.nextafter(float(ball.upper()), math.inf) if not bool(ball == 0) else 0.0
