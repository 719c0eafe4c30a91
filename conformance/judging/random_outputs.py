"""Random outputs: judged by statistics, as far as chance and rounding may move them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from goldformer.conformance.judging.comparator import compare
from goldformer.conformance.judging.tolerance import tolerance
from goldformer.conformance.judging.verdict import Difference
from goldformer.spec.laws import FALSE_ALARM
from goldformer.spec.model import GoldenArray, Statistic

#: The statistics of an output in float64.
STATISTICS: Final[Mapping[Statistic, Callable[[NDArray[Any]], Any]]] = {
    "zeros": lambda output: (output == 0).mean(),
    "mean": np.mean,
    "mean_square": lambda output: np.square(output).mean(),
    "largest": lambda output: np.abs(output).max(),
}


def compare_statistics(output: str, actual: NDArray[Any], golden: GoldenArray, dtype: str) -> Iterator[Difference]:
    """Compare each statistic that a case asks for, in the order of the case."""
    assert golden.within is not None, "only random outputs have statistics"
    element = tolerance(dtype, golden.error_scale, 0.0)
    for (statistic, within), value in zip(golden.within.items(), golden.values.tolist(), strict=True):
        bound = within + _limit_rounding(statistic, element, value + within)
        yield compare(f"{statistic} of {output}", STATISTICS[statistic](actual), np.array(value), bound)


def compare_draws(one: NDArray[Any], other: NDArray[Any]) -> float:
    """Return how far two draws of equal size differ ÷ what chance allows; above 1 their distributions differ.

    The elements of each are independent. Their distribution functions differ by more than ε with a probability of at
    most e·exp(−n·ε²) (Wei and Dudley, 2012), and k elements of one are above the largest of the other with one of at
    most 2⁻ᵏ: either way, and for all three comparisons together, less often than FALSE_ALARM.
    """
    first, second = np.sort(one, axis=None), np.sort(other, axis=None)
    at = np.concatenate([first, second])
    shares = [np.searchsorted(draw, at, side="right") / draw.size for draw in (first, second)]
    chance = FALSE_ALARM / 3
    apart = np.abs(shares[0] - shares[1]).max() / math.sqrt((1 - math.log(chance)) / first.size)
    sizes = np.abs(first), np.abs(second)
    above = max(int((sizes[i] > sizes[1 - i].max()).sum()) for i in (0, 1))
    return max(float(apart), above / -math.log2(chance))


def compute_statistics(output: NDArray[Any], golden: GoldenArray) -> NDArray[np.float64]:
    """Return the statistics of an output that a case asks for."""
    return np.array([STATISTICS[statistic](output) for statistic in golden.within or ()], dtype=np.float64)


def _limit_rounding(statistic: Statistic, element: float, largest: float) -> float:
    """Bound the change of a statistic of at most `largest` when each element changes by at most `element`."""
    if statistic == "zeros":
        # A number that is not dropped is rounded to another, but not to 0.
        return 0.0
    if statistic == "mean_square":
        # |mean(y²) − mean(x²)| ≤ mean(2·|x|·e + e²) ≤ e·(2·√mean(x²) + e), by the inequality of Cauchy and Schwarz.
        return element * (2 * math.sqrt(largest) + element)
    return element
