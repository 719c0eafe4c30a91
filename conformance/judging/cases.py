"""Judge one golden case: (case, adapter, dtype, device) becomes a Judgement.

    outcome = bench.call_case(case)                      a Result to compare, or a CallProblem
    measured = measure_outcome(outcome, expected, …)     numbers only
    verdict = decide(measured, policy)                   status and reason

The diagnosis looks for the causes of failures afterwards, in the judgements.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Final

from goldformer.adapters.arrays import LIBRARIES, ArrayLibrary, Wire
from goldformer.adapters.executed import Recorder
from goldformer.adapters.modules import find_classes
from goldformer.conformance.judging.applicability import explain_inapplicable
from goldformer.conformance.judging.decision import (
    TOLERANT,
    Policy,
    decide,
    report_fault,
    report_problem,
    skip_check,
)
from goldformer.conformance.judging.expected import select_expected
from goldformer.conformance.judging.implementation import Implementation
from goldformer.conformance.judging.invoke import Arguments, NotImplementedHere, Outcome, Result, read_arguments
from goldformer.conformance.judging.measure import measure_outcome
from goldformer.conformance.judging.repeat import repeat_cases
from goldformer.conformance.judging.running import run_step
from goldformer.conformance.judging.tolerance import COARSER
from goldformer.conformance.judging.verdict import Asks, Reason, Status, Verdict
from goldformer.spec import Case, Spec
from goldformer.spec.model import GoldenArray
from goldformer.spec.oracle.rounding import TF32
from goldformer.spec.ways import PLAIN, WAYS, Way, select_ways

#: The most numbers of a passing result, or of its arguments, that a run keeps for its diagnosis: a megabyte.
MOST_KEPT: Final = 1 << 17

#: The reasons of a call that is wrong in some way; where it raises, code refuses the way.
_WRONG: Final = ("wrong-value", "not-finite", "no-gradient")


@dataclass(frozen=True, slots=True)
class Bench(Implementation):
    """An implementation, the policy by which it is judged, and what notes the lines that run, if anybody asks."""

    policy: Policy = TOLERANT
    recorder: Recorder | None = field(default=None, compare=False, repr=False)

    @property
    def rounds_to(self) -> str:
        """The dtype whose rounding results are allowed, or TF32."""
        return self.policy.tolerance_dtype or (TF32 if self.policy.tf32 and self.dtype == "float32" else self.dtype)

    @property
    def requires_gpu(self) -> bool:
        """Return True if code fails that is right on the CPU and would fail on a GPU: if one is asked for."""
        declared = self.adapter.declares_devices and any(device != "cpu" for device in self.adapter.devices)
        return self.policy.strict or self.device != "cpu" or declared

    def follow(self, case: Case) -> AbstractContextManager[None]:
        """Note what runs inside the context for a case, if anybody asks for it."""
        return self.recorder.follow(case.component) if self.recorder else nullcontext()

    def find_coarser(self) -> Bench | None:
        """Return the same bench with the tolerances of the next coarser dtype, or None if its results must be exact."""
        coarser = COARSER.get(self.rounds_to)
        if coarser is None or not self.policy.tolerates_precision:
            return None
        return replace(self, policy=replace(self.policy, tolerance_dtype=coarser))


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict and its data, for the diagnosis and the baseline.

    `case` is None for a property. `outcome` is None if no result was expected: the check was skipped, or the
    implementation had to refuse the call. `expected` are the golden values that the outcome was compared with.
    """

    verdict: Verdict
    bench: Bench
    case: Case | None = None
    outcome: Outcome | None = None
    expected: Mapping[str, GoldenArray] = field(default_factory=dict)

    def drop_large_arrays(self) -> Judgement:
        """Return the judgement without the arrays of a large call that passes, or itself.

        The diagnosis compares mistakes with small calls first, and its budget ends before these. The case draws its
        arguments again if anything asks for them.
        """
        if self.verdict.status is not Status.PASSED or not isinstance(self.outcome, Result):
            return self
        if self.case is not None and self.case.size > MOST_KEPT:
            self.case.forget_arrays()
        is_large = sum(array.size for array in self.outcome.outputs.values()) > MOST_KEPT
        return replace(self, outcome=None, expected={}) if is_large else self


@dataclass(frozen=True)
class PreparedCase:
    """A case with everything that is the same for all implementations with the same declarations.

    Each part is made when it is first used: many implementations share a prepared case. `bench` has
    one of these implementations.
    """

    whole: Case
    bench: Bench

    @cached_property
    def blank(self) -> Verdict:
        """The verdict before the implementation is called."""
        case, bench = self.whole, self.bench
        command = repeat_cases(bench, bench.policy, [case])
        return Verdict(
            case.id, "case", case.component, case.title, Status.PASSED, "", "", bench.dtype, bench.device,
            case.clauses, str(case.source or "derived"), case.kills, reproduce=command,
            asks=_find_asked(case, bench.spec),
        )  # fmt: skip

    @cached_property
    def skip(self) -> tuple[Reason, str] | None:
        """The reason why the case does not apply to such implementations, or None."""
        return explain_inapplicable(self.whole, self.bench)

    @cached_property
    def case(self) -> Case:
        """The case as it is called under the options that the adapter declares."""
        return self.whole.under(self.bench.options(self.whole))

    @property
    def arguments(self) -> Arguments:
        """The arguments of the call. Those of a full-size model are not kept: encoded, they take hundreds of MiB."""
        return read_arguments(self.case, as_given=True) if self.case.full_size else self._arguments

    @cached_property
    def _arguments(self) -> Arguments:
        return read_arguments(self.case, as_given=True)

    @cached_property
    def expected(self) -> Mapping[str, GoldenArray]:
        """The golden values under the options that the adapter declares."""
        return select_expected(self.case, self.bench, self.bench.rounds_to)

    @cached_property
    def base(self) -> tuple[str, Arguments] | None:
        """The id and the arguments of the same call without the fault; None if an error case has no such call."""
        if self.case.base is None:
            return None
        base = self.bench.spec.cases[self.case.base].under(self.bench.options(self.case))
        return base.id, read_arguments(base)


def check_case(case: Case, bench: Bench) -> Verdict:
    """Return the verdict on one golden case."""
    return judge_case(case, bench).verdict


def judge_case(case: Case, bench: Bench, prepared: PreparedCase | None = None, *, in_ways: bool = True) -> Judgement:
    """Call and judge one golden case; a fault of goldformer becomes an errored verdict, so that the run goes on.

    `prepared` is the case for implementations with the declarations of this one. With `in_ways`, a case that passes is
    called again in the ways that its id selects.
    """
    prepared = prepared or PreparedCase(case, bench)
    blank = _mark_by_hand(prepared.blank, case, bench)
    try:
        if skip := bench.explain_unusable(case.component) or prepared.skip:
            return Judgement(skip_check(blank, *skip), bench, case)
        if missing := bench.explain_missing(case.component, gradient=case.cotangent is not None):
            return Judgement(report_problem(blank, NotImplementedHere(missing), bench.policy), bench, case)
        judge = partial(_judge_ways if in_ways else judge_call, prepared, bench, blank)
        return run_step(blank.step, judge)
    except Exception as error:
        return Judgement(report_fault(blank, error), bench, case)


def judge_call(prepared: PreparedCase, bench: Bench, blank: Verdict) -> Judgement:
    """Make the call of a case, compare its outcome with what is expected, and decide."""
    case = prepared.case
    arguments, base = prepared.arguments, prepared.base
    with bench.follow(case):
        outcome = bench.call_case(case, arguments, base)
    # What nobody implements is compared with nothing, and the values of a large call take seconds.
    expected = {} if isinstance(outcome, NotImplementedHere) else prepared.expected
    measured = measure_outcome(outcome, expected, case, bench, bench.rounds_to)
    verdict = decide(measured, bench.policy, blank)
    return Judgement(verdict, bench, case, outcome if case.error is None else None, expected)


def _judge_ways(prepared: PreparedCase, bench: Bench, blank: Verdict) -> Judgement:
    """Judge the call of a case, and if it passes, in the ways that its id selects; return what fails first.

    A way that the implementation refuses, or in which its results vary, says nothing.
    """
    plain, component = judge_call(prepared, bench, blank), prepared.case.component
    function = bench.adapter.functions.get(component)
    if plain.verdict.status is not Status.PASSED or function is None:
        return plain
    library = LIBRARIES[bench.adapter.arrays]
    for name in select_ways(component, bench.spec).get(prepared.whole.id, ()):
        way = WAYS[name]
        is_possible = _has_way(way, library, function) and (prepared.case.hiding == "only" or not way.omits)
        failing = _judge_way(way, plain, prepared) if is_possible else plain
        if not failing.verdict.bad:
            continue
        again = _judge_way(way, plain, prepared)
        same_values = _judge_way(replace(way, copies=True) if way.expands else PLAIN, plain, prepared)
        if again.verdict.bad and not same_values.verdict.bad and not (way.trains and _differ(failing, again)):
            found = failing.verdict
            verdict = replace(found, reason="way", message=way.describe(found.message))
            return replace(failing, verdict=replace(verdict, reproduce=f"{found.reproduce}  # {name}"), outcome=None)
    return plain


def _has_way(way: Way, library: ArrayLibrary, function: Callable[..., Any]) -> bool:
    """Return True if code in an array library can be called in a way."""
    if way.repeats:
        return bool(find_classes(function))
    if way.trains or way.records or way.splits:
        return library.name == "torch"
    is_laid_out = way.kinds or way.expands or way.cotangent != "contiguous"
    return library.views if is_laid_out else library.name != Wire.name


def _judge_way(way: Way, plain: Judgement, prepared: PreparedCase) -> Judgement:
    """Return the judgement of the call in some way, if its values are wrong, and the plain one if they are not."""
    bench, case, arguments = plain.bench, prepared.case, prepared.arguments
    if way.omits and case.later_tokens is not None:
        inputs = {name: array for name, array in arguments.inputs.items() if name != case.later_tokens.mask}
        arguments = replace(arguments, inputs=inputs)
    # A second call of one object is no session, in which a cache is used.
    with nullcontext() if way.repeats else bench.follow(case):
        outcome = bench.call_case(case, arguments, way=way)
    measured = measure_outcome(outcome, plain.expected, case, bench, bench.rounds_to)
    verdict = decide(measured, bench.policy, plain.verdict)
    return replace(plain, verdict=verdict, outcome=outcome) if verdict.reason in _WRONG else plain


def _differ(one: Judgement, other: Judgement) -> bool:
    """Return True if the results of two calls differ, as where a dropout still draws."""
    results = one.outcome, other.outcome
    return not (
        isinstance(results[0], Result) and isinstance(results[1], Result) and results[0].is_identical(results[1])
    )


def _mark_by_hand(blank: Verdict, case: Case, bench: Bench) -> Verdict:
    """Note in the verdict if the gradients are those of the implementation's own backward pass."""
    own = bench.adapter.gradients.keys() - bench.adapter.differentiated
    by_hand = case.cotangent is not None and case.component in own
    return replace(blank, by_hand=True) if by_hand else blank


def _find_asked(case: Case, spec: Spec) -> Asks:
    """Return what a case asks for."""
    if case.error is not None:
        return "refusal"
    if case.shape_only:
        return "shape"
    return "advice" if spec.is_advice(case) else "gradients" if case.cotangent is not None else "values"
