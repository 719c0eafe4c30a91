"""A failing case, and the comparison of its result with an imitation."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Final

import numpy as np

from goldformer.conformance.diagnosis.cuts import choose_cut
from goldformer.conformance.judging.cases import Judgement
from goldformer.conformance.judging.comparator import find_ratio
from goldformer.conformance.judging.invoke import Array, BadResult, Result
from goldformer.conformance.judging.measure import measure_ratio
from goldformer.conformance.judging.random_outputs import compare_draws, compute_statistics
from goldformer.conformance.judging.tolerance import tolerance
from goldformer.conformance.judging.verdict import Difference
from goldformer.spec import Case, Contract, Spec
from goldformer.spec.model import REFUSED, GoldenArray, find_magnitude

#: An option of each convention of a component.
Options = Mapping[str, str]

#: The dtype in which only what differs is told apart.
FINEST: Final = "float64"
#: The rounding of two ways to compute one thing in it.
_ROUNDING: Final = float(np.sqrt(np.finfo(np.float64).eps))

#: The components that run a backward pass in every call.
RUNS_BACKWARD: Final = frozenset({"single_head_attention_step"})

#: For a case of more numbers than this, only the mistakes that it lists are tried, and on a part of it if that can be
#: cut off: each imitation takes long.
LARGE: Final = 100_000
#: The fixed cost of an imitation, in numbers of a case.
_FIXED: Final = 600
#: How many times decoding runs the model, roughly.
_STEPS: Final = 10
#: Careful code stays below 0.4 of the tolerance: an error this many times as large is no rounding.
CLEAR: Final = 10.0

#: Two results that lose digits may be this many times as far from one another as from the right one.
BY_CHANCE: Final = 2.0

#: A result in another order of operations may be this many times as far from an imitation as its own rounding.
ROUNDINGS: Final = 4.0

#: The error scale ÷ magnitude of an imitation whose expected result is exact, such as beta where gamma is 0: a wrong
#: formula may round there. Most formulas of the suite round by 2 to 6 roundoffs of their result.
ROUNDED: Final = 6.0

#: The largest error ÷ magnitude of a result that only lost digits, those of a half type in a short sum.
_CLOSE: Final = 2.0**-4


def is_decoding(case: Case) -> bool:
    """Return True for a case whose result depends on choices: a model runs for every word."""
    return case.golden is not None and case.golden.margin is not None


def estimate_cost(case: Case) -> int:
    """Return the cost of an imitation of a case, in numbers."""
    return (case.size + _FIXED) * (_STEPS if is_decoding(case) else 1)


@dataclass(frozen=True)
class FailingCase:
    """A failing case, or one that passes: the actual result, and the expected one."""

    case: Case
    contract: Contract
    actual: Result | BadResult
    expected: Mapping[str, GoldenArray]
    dtype: str
    options: Options

    @classmethod
    def of(cls, judgement: Judgement) -> FailingCase | None:
        """Return what an imitation is compared with, or None for a check without a case, or without a result."""
        case, outcome, bench = judgement.case, judgement.outcome, judgement.bench
        if case is None or not isinstance(outcome, Result | BadResult):
            return None
        options = bench.adapter.options(case.component, bench.spec)
        if isinstance(outcome, Result):
            # What is returned where it may be refused is that of the default, in wrong code too.
            conventions = bench.spec.conventions
            options = {n: conventions[n].default if o == REFUSED else o for n, o in options.items()}
        contract = bench.spec.contracts[case.component]
        whole = cls(case, contract, outcome, judgement.expected, bench.dtype, options)
        return whole.shorten(judgement.verdict.differences)

    def shorten(self, differences: Sequence[Difference]) -> FailingCase:
        """Return a part of a large case that has the first wrong element, or itself: imitations of it are quicker."""
        outputs = self.contract.outputs
        first = next(((d.output, d.first.index) for d in differences if d.first is not None), None)
        output, index = first or (self.contract.first_output, ())
        if not isinstance(self.actual, Result) or output not in outputs:
            return self
        cut = choose_cut(self.case, self.contract, output, index, LARGE)
        if cut is None:
            return self
        made = {name: cut.cut_array(array, outputs[name]) for name, array in self.actual.outputs.items()}
        actual = replace(self.actual, outputs=made)
        return replace(self, case=cut.cut_case(self.case), actual=actual, expected=cut.cut_all(self.expected))

    def put_exactly(self, case: Case) -> FailingCase:
        """Return another case in float64, of the same implementation; what it gives there is not known."""
        return replace(self, case=case, actual=BadResult("raised", ""), dtype=FINEST)

    @property
    def has_changed_inputs(self) -> bool:
        """Return True if the call changed the caller's arrays."""
        return isinstance(self.actual, BadResult) and self.actual.reason == "mutated-input"

    @cached_property
    def output_names(self) -> frozenset[str] | None:
        """The names of the outputs that the implementation gives; None if its call has no result."""
        return frozenset(self.actual.outputs) if isinstance(self.actual, Result) and self.actual.outputs else None

    @cached_property
    def gradient_names(self) -> frozenset[str] | None:
        """The arguments whose gradients are compared; None if all of them are."""
        unreached = isinstance(self.actual, BadResult) and self.actual.unreached
        return None if unreached or not self.expected else frozenset(self.expected)

    @cached_property
    def wrong(self) -> frozenset[str]:
        """The outputs that are wrong."""
        return self._find_wrong(self.actual, self.expected) if isinstance(self.actual, Result) else frozenset()

    @cached_property
    def is_nan(self) -> bool:
        """Return True if every number of the wrong outputs is NaN."""
        wrong = self._select_wrong()
        return bool(wrong) and all(array.dtype.kind == "f" and np.isnan(array).all() for array in wrong)

    def _select_wrong(self) -> list[Array]:
        """Return the compared numbers of the wrong outputs."""
        outputs = self.actual.outputs if isinstance(self.actual, Result) else {}
        return [self.expected[name].select(outputs[name]) for name in self.wrong]

    def distance(self, imitation: Result | BadResult | None, right: Result | BadResult | None = None) -> float | None:
        """Return the distance of an imitation from the actual result ÷ tolerance; None if it does not explain it.

        `right` is the imitation without any cause, which tells the gradients that are 0 in right code too.
        """
        if isinstance(self.actual, BadResult):
            if self.actual.unreached and isinstance(imitation, Result) and isinstance(right, Result):
                return _compare_unreached(self.actual.unreached, imitation, right)
            # The message of a wrong shape or dtype is the same for the same fault.
            return 0.0 if isinstance(imitation, BadResult) and str(self.actual) == str(imitation) else None
        if not isinstance(imitation, Result):
            return None
        shared = self._select_shared(imitation)
        zeros = {name for name, golden in shared.items() if golden.is_exact_zero}
        # Most candidates differ in the first output already, and are compared no further.
        others = {name: golden for name, golden in shared.items() if name not in zeros}
        furthest = self._measure_distance(imitation, others)
        if furthest is None:
            return None
        shown = self._find_wrong(imitation, shared)
        # Chance may move another statistic of a wider distribution too far.
        if not shown or not (self.case.random or self.wrong <= shown):
            return None
        # Where 0 is exact there is no tolerance: the same elements must differ from it.
        exact = zeros & shown
        same = all(self._have_same_zeros(name, shared[name], imitation) for name in exact)
        inexact = {name: shared[name] for name in zeros - exact}
        rounded = self._measure_distance(imitation, inexact) if same else None
        return None if rounded is None else max(furthest, rounded)

    def _find_bound(self, name: str, golden: GoldenArray, magnitude: float) -> float:
        """Return the largest error that rounding explains in an imitation of an output, as large as `magnitude`."""
        scale = self._find_scale(name, golden, magnitude)
        return tolerance(self.dtype, scale, magnitude, self.contract.computed_in_at_least)

    def excludes(self, imitation: Result | BadResult | None) -> bool:
        """Return True if an imitation is clearly wrong, or raises, where the actual result is right."""
        if not isinstance(imitation, Result) or not isinstance(self.actual, Result):
            return isinstance(imitation, BadResult) and isinstance(self.actual, Result)
        shared = self._select_shared(imitation)
        return any(self._measure(name, imitation.outputs[name], golden) >= CLEAR for name, golden in shared.items())

    def measure_near(self, imitation: Result | BadResult | None) -> float | None:
        """Return the distance ÷ tolerance of an imitation from the actual result, if rounding may explain it.

        Wrong numbers may be so small, or go through so many layers, that rounding moves them by more than right ones.
        None if it is larger, or if there is nothing to compare.
        """
        largest = self.measure_apart(imitation)
        return largest if largest < CLEAR else None

    def measure_apart(self, imitation: Result | BadResult | None, limit: float = math.inf) -> float:
        """Return the distance ÷ tolerance of an imitation from the actual result; inf if nothing is compared."""
        if not isinstance(imitation, Result) or not isinstance(self.actual, Result) or self.case.random:
            return math.inf
        largest = -math.inf
        for name, golden in self._select_shared(imitation).items():
            largest = max(largest, self._measure_imitation(name, golden, imitation.outputs[name]))
            if not largest < limit:
                return math.inf
        return largest if largest >= 0 else math.inf

    def measure_seen(self, imitation: Result | BadResult | None) -> float:
        """Return the distance ÷ tolerance of an imitation where the actual result of a cache is no NaN.

        A wrong mask may hide all keys of a token, and what a cache gives then is no option of its component.
        """
        if not isinstance(imitation, Result) or not isinstance(self.actual, Result) or self.contract.session is None:
            return math.inf
        made, outputs = imitation.outputs, self.actual.outputs
        filled = {name: np.where(np.isnan(a), made[name], a) for name, a in outputs.items() if _fit(made.get(name), a)}
        return replace(self, actual=replace(self.actual, outputs=filled)).measure_apart(imitation)

    @property
    def is_close(self) -> bool:
        """Return True if no output is further from the expected one than a loss of digits can explain."""
        if not isinstance(self.actual, Result) or self.case.random:
            return False
        outputs = self.actual.outputs
        compared = ((golden, golden.select(outputs[name])) for name, golden in self.expected.items() if name in outputs)
        with np.errstate(invalid="ignore"):
            return all(
                golden.values.shape == actual.shape
                and bool(
                    np.all(np.abs(actual - golden.values)[np.isfinite(golden.values)] <= _CLOSE * golden.magnitude)
                )
                for golden, actual in compared
                if golden.values.dtype.kind == "f"
            )

    def differs_unseen(self, imitation: Result | BadResult | None) -> bool:
        """Return True if an imitation is another result in elements that no case compares, such as padded tokens."""
        if not isinstance(imitation, Result) or not isinstance(self.actual, Result):
            return False
        probed = {name: golden for name, golden in self._select_shared(imitation).items() if golden.indices is not None}
        pairs = ((name, golden, self.actual.outputs[name], imitation.outputs[name]) for name, golden in probed.items())
        return any(
            find_ratio(actual, made, self._find_bound(name, golden, find_magnitude(made))) >= CLEAR
            for name, golden, actual, made in pairs
            if actual.shape == made.shape
        )

    def find_residual(self, imitation: Result | BadResult | None) -> float:
        """Return the sum of the squared differences of an imitation and the actual result; inf if it has none."""
        if not isinstance(imitation, Result) or not isinstance(self.actual, Result):
            return math.inf
        both = [name for name in self.expected if name in self.actual.outputs and name in imitation.outputs]
        actual, imitated = (
            np.concatenate([self.expected[name].select(outputs[name]).astype(np.float64).ravel() for name in both])
            for outputs in (self.actual.outputs, imitation.outputs)
        )
        with np.errstate(over="ignore", invalid="ignore"):
            total = float(np.square(actual - imitated).sum()) if actual.shape == imitated.shape else math.inf
        return total if math.isfinite(total) else math.inf

    def is_near(self, imitation: Result | BadResult | None, most: float = 1.0) -> bool:
        """Return False if an imitation is further from the actual result than the right one is, times `most`."""
        if self.case.random or not isinstance(imitation, Result) or not isinstance(self.actual, Result):
            return True
        return self.find_residual(imitation) <= most**2 * self._error

    @cached_property
    def _error(self) -> float:
        """The sum of the squared differences of the right result and the actual one; inf if it has none."""
        whole = {name: replace(golden, indices=None) for name, golden in self.expected.items()}
        right = {name: golden.values for name, golden in self.expected.items()}
        assert isinstance(self.actual, Result), "only results are compared"
        seen = {n: self.expected[n].select(a) for n, a in self.actual.outputs.items() if n in self.expected}
        return replace(self, actual=Result(seen, 0.0), expected=whole).find_residual(Result(right, 0.0))

    def needs_tolerance(self, imitation: Result | BadResult | None) -> bool:
        """Return True if an imitation explains the actual result only if no output is further away than tolerated.

        Chance is compared by statistics, and zeros that are exact by their places.
        """
        return isinstance(imitation, Result) and isinstance(self.actual, Result) and self._has_tolerances

    @cached_property
    def _has_tolerances(self) -> bool:
        return not self.case.random and not any(golden.is_exact_zero for golden in self.expected.values())

    def _measure_distance(self, imitation: Result, shared: Mapping[str, GoldenArray]) -> float | None:
        """Return the largest distance of the outputs, or None if it is above 1: most differ in the first already."""
        assert isinstance(self.actual, Result), "only results are compared"
        actual = self.actual
        furthest = 0.0
        for name, golden in shared.items():
            if _is_drawn_one_by_one(golden) and actual.outputs[name].shape == imitation.outputs[name].shape:
                furthest = max(furthest, compare_draws(actual.outputs[name], imitation.outputs[name]))
            else:
                furthest = max(furthest, self._measure_imitation(name, golden, imitation.outputs[name]))
            if not furthest <= 1.0:
                return None
        return furthest

    def _have_same_zeros(self, name: str, golden: GoldenArray, imitation: Result) -> bool:
        """Return True if the actual result and an imitation differ from 0 in the same elements of an output."""
        assert isinstance(self.actual, Result), "only results are compared"
        actual, imitated = (golden.select(outputs[name]) for outputs in (self.actual.outputs, imitation.outputs))
        return np.array_equal(actual != 0, imitated != 0)

    def _measure_imitation(self, name: str, golden: GoldenArray, made: Array) -> float:
        """Return the largest difference ÷ tolerance of an output and its imitation, put in the place of `golden`."""
        assert isinstance(self.actual, Result), "only results are compared"
        actual = self.actual.outputs[name]
        if golden.within is not None:
            return self._measure(name, actual, self._widen_statistics(golden, made))
        if made.shape != actual.shape:  # such as that of an edit which leaves out a concatenation
            return math.inf
        imitated = golden.select(made)
        return find_ratio(golden.select(actual), imitated, self._find_bound(name, golden, find_magnitude(imitated)))

    def _widen_statistics(self, golden: GoldenArray, values: Array) -> GoldenArray:
        """Put the statistics of an imitation in the place of golden ones, each with twice its width."""
        assert golden.within is not None, "only statistics have widths"
        made = compute_statistics(values, golden)
        # Chance and rounding move numbers that are larger by more.
        grown = [max(abs(now / right), 1.0) if right else 1.0 for now, right in zip(made, golden.values, strict=True)]
        # Chance moves both the actual result and the imitation.
        doubled = {
            statistic: 2 * width * factor
            for (statistic, width), factor in zip(golden.within.items(), grown, strict=True)
        }
        scale = golden.error_scale * max(grown, default=1.0)
        return replace(golden, values=made, within=doubled, error_scale=scale)

    def _find_scale(self, name: str, golden: GoldenArray, magnitude: float) -> float:
        """Return the error scale of an imitation of an output, which is as large as `magnitude`."""
        # Larger numbers have larger roundoffs, and one option of a convention may lose more digits than another.
        grown = magnitude / golden.magnitude if golden.magnitude else 1.0
        # A golden value may be exact, such as an input that no sub-layer changes, and its imitation still be rounded.
        relative = self._relative_scales[name] or (ROUNDED if golden.magnitude else 0.0)
        return max(golden.error_scale * max(grown, 1.0), magnitude * relative)

    @cached_property
    def _relative_scales(self) -> Mapping[str, float]:
        """The largest error scale of each output under any option of the case, by the magnitude of its values."""
        options = self.case.golden.options.values() if self.case.golden is not None else ()
        scales: defaultdict[str, float] = defaultdict(float)
        for name, golden in chain.from_iterable(outputs.items() for outputs in options if outputs is not None):
            if golden.magnitude:
                scales[name] = max(scales[name], golden.error_scale / golden.magnitude)
        return scales

    def _find_wrong(self, result: Result, expected: Mapping[str, GoldenArray]) -> frozenset[str]:
        given = ((name, golden) for name, golden in expected.items() if name in result.outputs)
        return frozenset(name for name, golden in given if self._measure(name, result.outputs[name], golden) > 1.0)

    def _measure(self, name: str, array: Array, expected: GoldenArray) -> float:
        return measure_ratio(name, array, expected, self.contract, self.dtype)

    def _select_shared(self, imitation: Result) -> dict[str, GoldenArray]:
        """Return what is expected of the outputs that an imitation and the actual result have, as data flows."""
        assert isinstance(self.actual, Result), "only results are compared"
        both = self.actual.outputs.keys() & imitation.outputs.keys()
        return {name: self.expected[name] for name in self._order if name in both}

    @cached_property
    def _order(self) -> list[str]:
        """The names of what is expected, in the order in which data flows."""
        return [name for name in self.contract.results_of(self.case) if name in self.expected]


def list_quick_cases(component: str, spec: Spec) -> list[Case]:
    """Return the cases of a component whose results in float64 tell explanations apart, the smallest first."""
    cases = sorted(spec.cases_of(component), key=lambda case: case.size)
    return [case for case in cases if not (case.error or case.random or case.full_size or case.cotangent)]


def equals_whole(one: Result | BadResult | None, other: Result | BadResult | None) -> bool:
    """Return True if two results in float64 are the same but for rounding."""
    if not isinstance(one, Result) or not isinstance(other, Result):
        return type(one) is type(other)
    return all(
        one.outputs[name].shape == other.outputs[name].shape
        and np.allclose(one.outputs[name], other.outputs[name], rtol=_ROUNDING, atol=_ROUNDING, equal_nan=True)
        for name in one.outputs.keys() & other.outputs.keys()
    )


def _compare_unreached(unreached: frozenset[str], imitation: Result, right: Result) -> float | None:
    """Return 0 if an imitation has gradients of 0 for exactly those arguments that no gradient reaches.

    Automatic differentiation gives no gradient for an argument that is cut off; arithmetic gives one of 0.
    """
    moves = right.outputs.keys() - _find_noughts(right)
    nought = _find_noughts(imitation) & moves
    return 0.0 if nought and nought == unreached & moves else None


def _find_noughts(gradients: Result) -> set[str]:
    """Return the arguments whose gradient is 0 but for rounding, such as that of the keys' bias."""
    largest = {name: float(np.abs(gradient).max(initial=0.0)) for name, gradient in gradients.outputs.items()}
    least = 1e-6 * max(largest.values())
    return {name for name, size in largest.items() if size <= least}


def _fit(made: Array | None, actual: Array) -> bool:
    return made is not None and made.shape == actual.shape and actual.dtype.kind == "f"


def _is_drawn_one_by_one(golden: GoldenArray) -> bool:
    """Return True for a random output without zeros to count: dropout may drop elements together."""
    return golden.within is not None and "zeros" not in golden.within
