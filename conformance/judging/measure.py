"""The measurement of an outcome: each output against its golden values, and sentences about it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from goldformer.conformance.judging.applicability import explain_inapplicable
from goldformer.conformance.judging.comparator import compare, find_ratio, find_wrong_places
from goldformer.conformance.judging.expected import list_rougher, round_like
from goldformer.conformance.judging.implementation import Implementation
from goldformer.conformance.judging.invoke import (
    Array,
    BadResult,
    CallProblem,
    NotImplementedHere,
    Outcome,
    Result,
)
from goldformer.conformance.judging.random_outputs import compare_statistics
from goldformer.conformance.judging.sessions import describe_calls
from goldformer.conformance.judging.tolerance import COARSER, Tolerance, find_visible, limit_rounding
from goldformer.conformance.judging.verdict import Difference, Element, Limit, Reason
from goldformer.spec import Case, Contract
from goldformer.spec.model import GoldenArray
from goldformer.spec.oracle.rounding import is_half
from goldformer.spec.oracle.truth import MOST_SAMPLED

#: The beginning of what a verdict calls a gradient.
GRADIENT_OF: Final = "gradient of "

#: What is wrong with an output of which no value is wrong by itself.
_AS_A_WHOLE: Final = {
    Limit.AVERAGE: "no value is far off, but all of them together are",
    Limit.COMMON: "all values are too large or too small by the same factor",
    Limit.ROW: "in a row all values are off by the same factor, as if what divides it had been rounded to a half type",
}

#: The fewest digits of a number in a sentence, of a number by itself, and those that show every number exactly.
_FEWEST_DIGITS: Final = 3
_MORE_DIGITS: Final = 6
_MOST_DIGITS: Final = 17


@dataclass(frozen=True, slots=True)
class Measurement:
    """The numbers of an outcome: the largest error ÷ tolerance, and the outputs that are `wrong` in order of data flow.

    `finding` describes the first of these, `reason` says whether they are finite, `rougher` to what rounding they are
    right. `outputs` are those of the contract, `missing` the expected ones that were not returned. `problem` is why
    there is nothing to compare, and `permitted` the undeclared convention that permits a refusal. A result in a half
    type is `rounded_once` if it is that of float32, and changes below `visible` do not show in it. The call
    `asks_refusal` of a bad input, and it `is_advised` if all clauses of its case only advise.
    """

    outputs: tuple[str, ...] = ()
    asks_refusal: bool = False
    is_advised: bool = False
    problem: CallProblem | None = None
    missing: tuple[str, ...] = ()
    seconds: float = 0.0
    by_hand: bool = False
    ratio: float | None = None
    wrong: tuple[Difference, ...] = ()
    finding: str = ""
    reason: Reason = ""
    rougher: str = ""
    permitted: str = ""
    rounded_once: bool | None = None
    visible: float | None = None


def measure_outcome(
    outcome: Outcome, expected: Mapping[str, GoldenArray], case: Case, implementation: Implementation, dtype: str
) -> Measurement:
    """Compare the outcome of a case with its golden values, by the rounding of a dtype."""
    contract = implementation.spec.contracts[case.component]
    measured = Measurement(
        tuple(contract.outputs), asks_refusal=case.error is not None, is_advised=implementation.spec.is_advice(case)
    )
    if not isinstance(outcome, Result):
        refused = isinstance(outcome, BadResult) and outcome.reason == "raised" and case.golden is not None
        if refused and case.refuses(implementation.options(case)):
            return measured
        return replace(measured, problem=outcome, permitted=implementation.find_permission(case, outcome))
    if expected and expected.keys().isdisjoint(outcome.outputs):
        absent = NotImplementedHere(f"{implementation.adapter.name} does not return {', '.join(expected)}")
        measured = replace(measured, problem=absent)
    differences = measure(outcome, expected, case, contract, dtype)
    wrong = tuple(difference for difference in differences if difference.wrong)
    measured = replace(
        measured, ratio=max((difference.ratio for difference in differences), default=None), wrong=wrong,
        # Every gradient that is asked for is required already.
        missing=() if case.cotangent is not None else tuple(name for name in expected if name not in outcome.outputs),
        seconds=outcome.seconds, by_hand=outcome.by_hand,
    )  # fmt: skip
    if not wrong:
        once, visible = _measure_rounding(outcome, expected, case, contract, dtype)
        return replace(measured, rounded_once=once, visible=visible)
    calls = name_wrong_calls(wrong[0], outcome, expected, case, contract, dtype)
    rougher = _find_rougher(outcome, expected, case, implementation, dtype)
    finding = f"{describe_difference(wrong[0])}{calls}"
    return replace(measured, finding=finding, reason=find_reason(wrong), rougher=rougher)


def _measure_rounding(
    result: Result, expected: Mapping[str, GoldenArray], case: Case, contract: Contract, dtype: str
) -> tuple[bool | None, float | None]:
    """Return whether a right result in a half type was rounded once, and the smallest change that shows in it."""
    rounded = {name: golden for name, golden in expected.items() if golden.rounding is not None}
    # Large calls take long, and smaller ones tell as much.
    if not is_half(dtype) or not rounded or case.size > MOST_SAMPLED:
        return None, None
    shown = (find_visible(golden, find_tolerance(golden, contract, dtype)) for golden in rounded.values())
    once = _is_right(result, round_like(rounded, "once", dtype), case, contract, dtype)
    return once, max(filter(None, shown), default=None)


def _find_rougher(
    result: Result, expected: Mapping[str, GoldenArray], case: Case, implementation: Implementation, dtype: str
) -> str:
    """Return to what a wrong result is right: the tolerances of a coarser dtype, or coarser sums; "" if to nothing."""
    contract, coarser = implementation.spec.contracts[case.component], COARSER.get(dtype)
    judged = coarser is not None and not explain_inapplicable(case, replace(implementation, dtype=coarser))
    if coarser is not None and judged and _is_right(result, expected, case, contract, coarser):
        return describe_coarser(implementation.dtype, coarser)
    styles = list_rougher(case, expected, dtype)
    return next((words for words, outputs in styles if _is_right(result, outputs, case, contract, dtype)), "")


def describe_coarser(dtype: str, coarser: str) -> str:
    """Return words for a result that is right to the tolerances of a coarser dtype."""
    return f"to {coarser}, not to {dtype}"


def _is_right(result: Result, expected: Mapping[str, GoldenArray], case: Case, contract: Contract, dtype: str) -> bool:
    return not any(difference.wrong for difference in measure(result, expected, case, contract, dtype))


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
