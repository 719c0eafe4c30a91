"""The comparison of a result with its golden values, output by output, and a sentence about it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from goldformer.conformance.judging.comparator import compare, find_ratio, find_wrong_places
from goldformer.conformance.judging.invoke import Array, Result
from goldformer.conformance.judging.random_outputs import compare_statistics
from goldformer.conformance.judging.sessions import describe_calls
from goldformer.conformance.judging.tolerance import Tolerance, limit_rounding
from goldformer.conformance.judging.verdict import Difference, Element, Limit, Reason
from goldformer.spec import Case, Contract
from goldformer.spec.model import GoldenArray

#: The beginning of what a verdict calls a gradient.
GRADIENT_OF: Final = "gradient of "

#: What is wrong with an output of which no value is wrong by itself.
_AS_A_WHOLE: Final = {
    Limit.AVERAGE: "no value is far off, but all of them together are",
    Limit.COMMON: "all values are too large or too small by the same factor",
}

#: The fewest digits of a number in a sentence, of a number by itself, and those that show every number exactly.
_FEWEST_DIGITS: Final = 3
_MORE_DIGITS: Final = 6
_MOST_DIGITS: Final = 17


def measure(
    result: Result, expected: Mapping[str, GoldenArray], case: Case, contract: Contract, dtype: str
) -> list[Difference]:
    """Compare each output that is both returned and expected, in the order in which data flows."""
    differences: list[Difference] = []
    for name in contract.results_of(case):
        if name in expected and name in result.outputs:
            golden, actual = expected[name], result.outputs[name]
            if golden.within is not None:
                differences += compare_statistics(name, actual, golden, dtype)
                continue
            bound = find_tolerance(golden, contract, dtype)
            label = name if case.cotangent is None else f"{GRADIENT_OF}{name}"
            differences.append(compare(label, golden.select(actual), golden.values, bound, golden.indices))
    return differences


def measure_ratio(name: str, actual: Array, golden: GoldenArray, contract: Contract, dtype: str) -> float:
    """Return the largest ratio of the differences of one output."""
    if golden.within is not None:
        return max((d.ratio for d in compare_statistics(name, actual, golden, dtype)), default=0.0)
    return find_ratio(golden.select(actual), golden.values, find_tolerance(golden, contract, dtype))


def name_wrong_calls(
    difference: Difference,
    result: Result,
    expected: Mapping[str, GoldenArray],
    case: Case,
    contract: Contract,
    dtype: str,
) -> str:
    """Return which calls of a session gave the wrong elements of an output, as words to add; "" without a session."""
    name = difference.output
    if contract.session is None or name not in expected:
        return ""
    golden = expected[name]
    bound = find_tolerance(golden, contract, dtype)
    places = find_wrong_places(golden.select(result.outputs[name]), golden.values, bound, golden.indices)
    return describe_calls(contract, case.attributes, name, places)


def find_tolerance(golden: GoldenArray, contract: Contract, dtype: str) -> Tolerance:
    """Return what rounding explains in an output of a component."""
    if dtype not in golden.limits:
        golden.limits[dtype] = limit_rounding(golden, contract.computed_in_at_least, dtype)
    limits: Tolerance = golden.limits[dtype]
    return limits


def find_reason(wrong: tuple[Difference, ...]) -> Reason:
    """Return "not-finite" if an output is not finite where a finite number was expected, else "wrong-value"."""
    for difference in wrong:
        worst = difference.worst
        if worst is not None and math.isfinite(worst.expected) and not math.isfinite(worst.got):
            return "not-finite"
    return "wrong-value"


def describe_difference(difference: Difference) -> str:
    """Describe a wrong output in one line."""
    worst, far = difference.worst, f"{difference.ratio:.3g} times the tolerance"
    if difference.limit in _AS_A_WHOLE:
        return f"{difference.output}: {_AS_A_WHOLE[difference.limit]}, {far}"
    if worst is not None and not worst.index:
        got, expected = distinguish(worst.got, worst.expected, _MORE_DIGITS)
        text = f"{difference.output}: {got} instead of {expected}"
        return f"{text}, off by {far}" if math.isfinite(difference.ratio) else text
    text = f"{difference.output}: {difference.wrong} of {difference.compared} values are wrong"
    if worst is None or isinstance(worst.got, bool):
        return text
    if not math.isfinite(worst.got):
        return f"{text}, such as {worst.got}"
    if not difference.tolerance:
        return f"{text}; they must be exact"
    got, expected = distinguish(worst.got, worst.expected)
    return f"{text}, such as {got} instead of {expected} at {list(worst.index)}: {far}"


def describe_values(element: Element, fewest: int = _MORE_DIGITS) -> str:
    """Return the expected and the actual value of an element, with as many digits as show that they differ."""
    if isinstance(element.expected, bool):
        return f"expected {element.expected}, actual {element.got}"
    expected, got = distinguish(element.expected, element.got, fewest)
    return f"expected {expected}, actual {got}"


def distinguish(one: float, other: float, fewest: int = _FEWEST_DIGITS) -> tuple[str, str]:
    """Return two numbers with the fewest digits, or with one more than show that they differ."""
    enough = (d for d in range(fewest, _MOST_DIGITS) if f"{one:.{d - 1}g}" != f"{other:.{d - 1}g}")
    digits = next(enough, _MOST_DIGITS)
    return f"{one:.{digits}g}", f"{other:.{digits}g}"
