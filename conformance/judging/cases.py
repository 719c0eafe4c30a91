"""Call an implementation with a case and judge the outcome: (case, adapter, dtype, device) becomes a Judgement.

    outcome = call_case(case, bench)        a Result to compare, or a CallProblem
    verdict = judge(case, outcome, …)       numbers only

The diagnosis looks for the causes of failures afterwards, in the judgements.
"""

from __future__ import annotations

import math
import shlex
import traceback
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any, Final

from goldformer.adapters.arrays import LIBRARIES, Layout
from goldformer.adapters.process import TIMEOUT
from goldformer.adapters.protocol import Adapter
from goldformer.conformance.judging.expected import (
    add_rounding,
    expect,
    list_rougher,
    round_like,
    select_agreed,
)
from goldformer.conformance.judging.gradient import invoke_gradient
from goldformer.conformance.judging.invoke import (
    Arguments,
    BadResult,
    CallProblem,
    NotCheckable,
    NotImplementedHere,
    Result,
    call,
    convert_arguments,
    describe_missing,
    invoke,
    read_arguments,
    run_in_host,
)
from goldformer.conformance.judging.measure import (
    describe_difference,
    find_reason,
    find_tolerance,
    measure,
    name_wrong_calls,
)
from goldformer.conformance.judging.tolerance import LARGEST, find_smallest_normal, find_visible, least_margin
from goldformer.conformance.judging.verdict import ERRORS, UNANSWERED, WITHHELD, Asks, Reason, Status, Verdict
from goldformer.spec import Case, Contract, Spec
from goldformer.spec.model import REFUSED, UNSPECIFIED, GoldenArray
from goldformer.spec.oracle.rounding import SMALLEST, TF32, is_half
from goldformer.spec.oracle.truth import MOST_SAMPLED, make_call

#: The most numbers of a passing result that a run keeps for its diagnosis: a megabyte.
MOST_KEPT: Final = 1 << 17


@dataclass(frozen=True, slots=True)
class Bench:
    """An implementation under test: its adapter, the dtype, the device, and how strictly it is judged.

    `strict` fails everything that is tolerated without it, and what is not implemented. `require_refusals` fails only
    bad inputs that are accepted, `require_precision` only results that are right to a coarser dtype: grading asks for
    both. `tolerance_dtype` is the dtype whose tolerances hold; without it, the dtype of the call.
    """

    spec: Spec
    adapter: Adapter
    dtype: str
    device: str
    strict: bool = False
    #: The outputs that this check requires. The first output is always required, the others only if they are here.
    required: Collection[str] = ()
    #: False if verdicts say nothing of the time that calls take.
    timed: bool = True
    require_refusals: bool = False
    require_precision: bool = False
    tolerance_dtype: str | None = None
    #: The transformation that the functions pass through, and the adapter of the functions that did.
    wrapper: str = ""
    wrapped: Adapter | None = None
    #: Require of some properties that they hold bit for bit.
    bitwise: bool = False
    #: Let matrix products of float32 round their factors to TF32.
    tf32: bool = False

    @property
    def computes_on_cpu(self) -> bool:
        """True if the processor does the arithmetic: on the CPU itself, and on the pretend device."""
        return self.device.partition(":")[0] in ("cpu", "pretend")

    @property
    def rounds_to(self) -> str:
        """The dtype whose rounding results are allowed, or TF32."""
        return self.tolerance_dtype or (TF32 if self.tf32 and self.dtype == "float32" else self.dtype)

    def find_coarser(self) -> Bench | None:
        """Return the same bench with the tolerances of the next coarser dtype, or None if its results must be exact."""
        return self.widen() if self.tolerates_precision else None

    @property
    def requires_gpu(self) -> bool:
        """Return True if code fails that is right on the CPU and would fail on a GPU: if one is asked for."""
        declared = self.adapter.declares_devices and any(device != "cpu" for device in self.adapter.devices)
        return self.strict or self.device != "cpu" or declared

    @property
    def tolerates_precision(self) -> bool:
        """Return True if a result may be right only to a coarser dtype."""
        return not (self.strict or self.require_precision)

    def widen(self) -> Bench | None:
        """Return the same bench with the tolerances of the next coarser dtype, or None if there is none.

        Only float64 has one. The tolerances of float16 and bfloat16 are so wide that mistakes hide in them: a result
        that is wrong in float32 and right to them may be either, so it counts as wrong.
        """
        return replace(self, tolerance_dtype="float32") if self.rounds_to == "float64" else None

    def has(self, component: str) -> bool:
        """Return True if the adapter has a component, or its gradient."""
        return component in self.adapter.functions or component in self.adapter.gradients

    def explain_unusable(self) -> tuple[Reason, str] | None:
        """Return the reason why nothing can run here, or None."""
        if self.dtype not in self.adapter.dtypes:
            return ("dtype", f"{self.adapter.name} works in {', '.join(self.adapter.dtypes)}, not in {self.dtype}")
        kind, adapter = self.device.partition(":")[0], self.adapter
        if not (adapter.is_device_agnostic if kind == "pretend" else kind in adapter.devices):
            return ("device", f"{adapter.name} works on {', '.join(adapter.devices)}, not on {self.device}")
        library = LIBRARIES[self.adapter.arrays]
        if why := library.unavailable(self.device):
            return "device", why
        why = library.explain_missing_dtype(self.device, self.dtype)
        return ("dtype", why) if why else None

    def explain_missing(self, component: str, *, gradient: bool = False) -> str:
        """Return the message if the adapter has no such function, or "": without one no arguments need be made."""
        if component in self.adapter.functions or (gradient and component in self.adapter.gradients):
            return ""
        return describe_missing(self.adapter, component)

    def command(self, *check: str) -> str:
        """Return the command line that repeats one check."""
        switches = {"--tf32": self.tf32, "--bitwise": self.bitwise, "--strict": self.strict}
        given = tuple(name for name, is_on in switches.items() if is_on)
        options = _join_options(self.dtype, self.device, self.adapter.timeout, self.wrapper, given)
        return f"goldformer check {shlex.quote(self.adapter.origin)} {shlex.join(check)} {options}"

    def describe_missing_outputs(self, component: str, outputs: Collection[str], expected: Collection[str]) -> str:
        """Name the expected outputs that are required and missing, and say what to return; empty if all are there."""
        contract = self.spec.contracts[component]
        missing = [n for n in contract.outputs if n in expected and n in self.required and n not in outputs]
        if not missing:
            return ""
        whole = [name for name in contract.outputs if name == contract.first_output or name in self.required]
        # A tuple holds the first outputs of the contract, in its order; a mapping holds any of them.
        in_order = whole == list(contract.outputs)[: len(whole)]
        form = f"({', '.join(whole)})" if in_order else f"{{{', '.join(f'{name!r}: …' for name in whole)}}}"
        return f"{', '.join(missing)}: not returned; return {form}"

    def options(self, case: Case) -> dict[str, str]:
        """Return the adapter's option for each convention that a case depends on or asks for."""
        of_component = self.adapter.options(case.component, self.spec)
        return of_component | {
            name: self.adapter.convention(name, case.component, self.spec)
            for name in case.only_with
            if name not in of_component
        }

    def call(
        self, component: str, arguments: Arguments, *, check_inputs: bool = True, layout: Layout = "contiguous"
    ) -> Result:
        """Call a component of the implementation; CallProblem when there is nothing to compare."""
        contract = self.spec.contracts[component]
        return invoke(
            self.adapter, contract, arguments, self.dtype, self.device, check_inputs=check_inputs, layout=layout
        )


@lru_cache
def _join_options(dtype: str, device: str, timeout: float | None, wrapper: str, switches: tuple[str, ...]) -> str:
    """Join the options of a command line that repeats a check; cached, because every verdict has one."""
    words = ["--dtype", dtype, *(["--device", device] if device != "cpu" else [])]
    words += ["--timeout", f"{timeout:.15g}"] if timeout not in (None, TIMEOUT) else []
    words += ["--wrap", wrapper] if wrapper else []
    return shlex.join([*words, *switches])


#: The result of a call, or the reason why there is nothing to compare.
Outcome = Result | CallProblem


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

        The diagnosis compares mistakes with small calls first, and its budget ends before these.
        """
        if self.verdict.status is not Status.PASSED or not isinstance(self.outcome, Result):
            return self
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
        return _start_verdict(self.whole, self.bench)

    @cached_property
    def skip(self) -> tuple[Reason, str] | None:
        """The reason why the case does not apply to such implementations, or None."""
        return _explain_inapplicable(self.whole, self.bench)

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
        return _select_expected(self.case, self.bench)

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


def judge_case(case: Case, bench: Bench, prepared: PreparedCase | None = None) -> Judgement:
    """Call and judge one golden case; a fault of goldformer becomes an errored verdict, so that the run goes on.

    `prepared` is the case for implementations with the declarations of this one.
    """
    prepared = prepared or PreparedCase(case, bench)
    blank = _mark_by_hand(prepared.blank, case, bench)
    try:
        if skip := bench.explain_unusable() or prepared.skip:
            return Judgement(skip_check(blank, *skip), bench, case)
        if missing := bench.explain_missing(case.component, gradient=case.cotangent is not None):
            return Judgement(report_missing(blank, missing, strict=bench.strict), bench, case)
        case = prepared.case
        if case.error is not None:
            return Judgement(_judge_bad_input(prepared, bench, blank), bench, case)
        outcome = call_case(case, bench, prepared.arguments)
        # What nobody implements is compared with nothing, and the values of a large call take seconds.
        expected = {} if isinstance(outcome, NotImplementedHere) else prepared.expected
        return judge_outcome(case, outcome, expected, bench, blank)
    except NotCheckable as unclear:
        return Judgement(skip_check(blank, "not-checkable", str(unclear)), bench, case)
    except Exception as error:
        return Judgement(report_fault(blank, error), bench, case)


def judge_outcome(
    case: Case, outcome: Outcome, expected: Mapping[str, GoldenArray], bench: Bench, blank: Verdict
) -> Judgement:
    """Return the judgement of a case that asks for a result; a departure that only advice forbids is tolerated."""
    if isinstance(outcome, Result) and outcome.by_hand:
        blank = replace(blank, by_hand=True)
    verdict = _apply_advice(judge(case, outcome, expected, bench, blank), case, bench)
    return Judgement(verdict, bench, case, outcome, expected)


def _judge_bad_input(prepared: PreparedCase, bench: Bench, blank: Verdict) -> Verdict:
    """Return the verdict on an error case: its working base must run, and the case itself must raise.

    A bad input that is accepted departs only from robustness, unless refusals are required.
    """
    case = prepared.case
    of_base = _try_base(prepared, bench, blank)
    passed = of_base.status is Status.PASSED
    verdict = _judge_refusal(case, bench, of_base, prepared.arguments) if passed else of_base
    if bench.require_refusals or bench.strict:
        return _apply_advice(verdict, case, bench)
    if not verdict.bad:
        return verdict
    if of_base.bad or verdict.reason not in (*UNANSWERED, "no-error"):
        # The call does not work without the fault either: cases that ask for values say so.
        return skip_check(verdict, "not-checkable", verdict.message)
    return skip_check(verdict, "robustness", verdict.message)


def _apply_advice(verdict: Verdict, case: Case, bench: Bench) -> Verdict:
    """Turn a failure of a case that is only advised into advice, unless the bench is strict."""
    # The rules of every call (CALL-1 to CALL-4) bind these cases too.
    departs = verdict.status is Status.FAILED and verdict.reason in ("wrong-value", "no-error", WITHHELD)
    return turn_into_advice(verdict) if departs and bench.spec.is_advice(case) and not bench.strict else verdict


def report_fault(blank: Verdict, error: Exception) -> Verdict:
    """Return the verdict of a check in which goldformer itself broke, with the traceback to report."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{Path(frame.filename).name}:{frame.lineno}, {frame.name}"
    message = f"a fault in goldformer: {type(error).__name__}: {error} ({where}); please report it with the traceback"
    text = "".join(traceback.format_exception(error))
    return replace(blank, status=Status.ERRORED, reason="fault", message=message, detail=text)


def turn_into_advice(verdict: Verdict) -> Verdict:
    """Return a failure of a case that is only advised as skipped, with the message."""
    return skip_check(replace(verdict, ratio=None, differences=()), "advice", verdict.message)


def call_case(case: Case, bench: Bench, arguments: Arguments | None = None) -> Outcome:
    """Call the implementation with a case; return the outputs, the gradients of its arguments, or the problem.

    `arguments` are those of the case, if they have been read already.
    """
    arguments, contract = arguments or read_arguments(case, as_given=True), bench.spec.contracts[case.component]
    try:
        if case.cotangent_array is None:
            # Skip the check for changed inputs on full-size models, where it takes seconds: smaller cases cover it.
            return bench.call(case.component, arguments, check_inputs=not case.full_size)
        wanted = contract.results_of(case)
        return invoke_gradient(
            bench.adapter, contract, arguments, case.cotangent_array, wanted, bench.dtype, bench.device
        )
    except CallProblem as problem:
        return problem


def judge(case: Case, outcome: Outcome, expected: Mapping[str, GoldenArray], bench: Bench, blank: Verdict) -> Verdict:
    """Return the verdict on the outcome of a case that asks for a result."""
    if isinstance(outcome, Result):
        return _judge_result(case, outcome, expected, bench, blank)
    if isinstance(outcome, NotImplementedHere):
        return report_missing(blank, str(outcome), strict=bench.strict)
    if isinstance(outcome, BadResult):
        refused = outcome.reason == "raised" and may_refuse(case, bench.options(case))
        return blank if refused else report_bad_result(blank, outcome)
    return skip_check(blank, "not-checkable", str(outcome))


def _judge_result(
    case: Case, result: Result, expected: Mapping[str, GoldenArray], bench: Bench, blank: Verdict
) -> Verdict:
    """Compare a result with its golden values; a required output that is withheld fails where all others pass."""
    # Every gradient that is asked for is required already.
    withheld = (
        bench.describe_missing_outputs(case.component, result.outputs, expected) if case.cotangent is None else ""
    )
    if expected and not withheld and not set(expected) & set(result.outputs):
        absent_outputs = f"{bench.adapter.name} does not return {', '.join(expected)}"
        return report_missing(blank, absent_outputs, strict=bench.strict)
    differences = measure(result, expected, case, bench.spec.contracts[case.component], bench.rounds_to)
    ratio = max((d.ratio for d in differences), default=None)
    timed = replace(blank, ratio=ratio, seconds=result.seconds if bench.timed else 0.0)
    wrong = tuple(d for d in differences if d.wrong)
    if not wrong:
        timed = _note_rounding(timed, case, result, expected, bench)
        return replace(timed, status=Status.FAILED, reason=WITHHELD, message=withheld) if withheld else timed
    calls = name_wrong_calls(wrong[0], result, expected, case, bench.spec.contracts[case.component], bench.rounds_to)
    message = "; ".join(filter(None, (f"{describe_difference(wrong[0])}{calls}", withheld)))
    failed = replace(timed, status=Status.FAILED, reason=find_reason(wrong), message=message, differences=wrong)
    fits = "" if withheld else _find_rougher(bench, case, result, expected)
    if not fits:
        return failed
    if bench.tolerates_precision:
        return tolerate_precision(failed, fits)
    return replace(failed, message=describe_precision(failed, fits))


def _note_rounding(
    verdict: Verdict, case: Case, result: Result, expected: Mapping[str, GoldenArray], bench: Bench
) -> Verdict:
    """Note in a verdict how a right result in a half type was rounded, and what does not show in it."""
    dtype, contract = bench.rounds_to, bench.spec.contracts[case.component]
    rounded = {name: golden for name, golden in expected.items() if golden.rounding is not None}
    # Large calls take long, and smaller ones tell as much.
    if not is_half(dtype) or not rounded or case.size > MOST_SAMPLED:
        return verdict
    shown = (find_visible(golden, find_tolerance(golden, contract, dtype)) for golden in rounded.values())
    strict = measure(result, round_like(rounded, "once", dtype), case, contract, dtype)
    once = not any(difference.wrong for difference in strict)
    return replace(verdict, rounded_once=once, visible=max(filter(None, shown), default=None))


def _find_rougher(bench: Bench, case: Case, result: Result, expected: Mapping[str, GoldenArray]) -> str:
    """Return to what a wrong result is right: the tolerances of a coarser dtype, or coarser sums; "" if to nothing."""
    coarser = bench.widen()
    if coarser is not None and _explain_inapplicable(case, replace(bench, dtype=coarser.rounds_to)):
        coarser = None
    dtypes = [] if coarser is None else [(describe_coarser(bench, coarser), expected, coarser.rounds_to)]
    styles = ((words, outputs, bench.rounds_to) for words, outputs in list_rougher(case, expected, bench.rounds_to))
    contract = bench.spec.contracts[case.component]
    for words, outputs, dtype in (*dtypes, *styles):
        if not any(difference.wrong for difference in measure(result, outputs, case, contract, dtype)):
            return words
    return ""


def tolerate_precision(failed: Verdict, fits: str) -> Verdict:
    """Return a failure as skipped, because the result is right to coarser rounding; it keeps the numbers."""
    return skip_check(failed, "precision", describe_precision(failed, fits))


def describe_precision(failed: Verdict, fits: str) -> str:
    """Return the message of a failure whose result is right to coarser rounding, in words such as "to float32"."""
    return f"right {fits}: {failed.message}"


def describe_coarser(bench: Bench, coarser: Bench) -> str:
    """Return words for a result that is right to the tolerances of a coarser dtype."""
    return f"to {coarser.rounds_to}, not to {bench.dtype}"


def find_working_case(component: str, bench: Bench, cases: Iterable[Case] | None = None) -> Case:
    """Return the first case, of these or of the component, that the implementation runs; else NotImplementedHere."""
    last = NotImplementedHere(describe_missing(bench.adapter, component))
    for case in select_plain_cases(component, bench) if cases is None else cases:
        try:
            bench.call(component, read_arguments(case))
        except NotImplementedHere as absent:
            last = absent
            continue
        return case
    raise last


def select_plain_cases(component: str, bench: Bench) -> Iterator[Case]:
    """Yield the cases of a component whose numbers are judged here, in the order of their file."""
    for case in bench.spec.cases_of(component):
        if case.error is None and not case.shape_only and not _explain_inapplicable(case, bench):
            yield case.under(bench.options(case))


def _start_verdict(case: Case, bench: Bench) -> Verdict:
    return Verdict(
        case.id, "case", case.component, case.title, Status.PASSED, "", "", bench.dtype, bench.device,
        case.clauses, str(case.source or "derived"), case.kills, reproduce=bench.command(*select_cases([case], bench)),
        asks=_find_asked(case),
    )  # fmt: skip


def _find_asked(case: Case) -> Asks:
    """Return what a case asks for."""
    if case.error is not None:
        return "refusal"
    return "shape" if case.shape_only else "gradients" if case.cotangent is not None else "values"


def _mark_by_hand(blank: Verdict, case: Case, bench: Bench) -> Verdict:
    """Note in the verdict if the gradients are those of the implementation's own backward pass."""
    by_hand = case.cotangent is not None and case.component in bench.adapter.gradients
    return replace(blank, by_hand=True) if by_hand else blank


def select_cases(cases: Sequence[Case], bench: Bench) -> tuple[str, ...]:
    """Return the options that choose some cases, with their files if they are not part of the spec."""
    files = dict.fromkeys(case.place.file for case in cases if not _is_within(case.place.file, bench.spec.root))
    own = [word for file in files for word in ("--cases", str(file))]
    return (*own, "--case", ",".join(case.id for case in cases))


@lru_cache(maxsize=1 << 10)
def _is_within(file: Path, folder: Path) -> bool:
    return file.is_relative_to(folder)


def skip_check(blank: Verdict, reason: Reason, message: str) -> Verdict:
    """Return a skipped verdict."""
    return replace(blank, status=Status.SKIPPED, reason=reason, message=message)


def report_missing(blank: Verdict, message: str, *, strict: bool) -> Verdict:
    """Return the verdict on a missing component or variant: skipped, or failed if `strict`."""
    status = Status.FAILED if strict else Status.SKIPPED
    return replace(blank, status=status, reason="not-implemented", message=message)


def report_bad_result(blank: Verdict, bad: BadResult) -> Verdict:
    """Return the verdict without a result: errored if the call itself went wrong, failed if it broke the contract."""
    status = Status.ERRORED if bad.reason in ERRORS else Status.FAILED
    return replace(blank, status=status, reason=bad.reason, message=f"{bad}{bad.hint}", detail=bad.detail)


def _explain_inapplicable(case: Case, bench: Bench) -> tuple[Reason, str] | None:
    if other := _explain_other_option(case, bench):
        return "convention", other
    if case.error is not None and bench.device != "cpu":
        # A bad id on CUDA trips an assertion that leaves the whole process without a device. PyTorch checks less there,
        # and on the pretend device too.
        return "device", "refusals are checked only on the CPU"
    if case.full_size and bench.dtype != "float32" and bench.computes_on_cpu:
        return "dtype", f"on a CPU a model of full size is run only in float32: in {bench.dtype} it takes much longer"
    at_least = bench.spec.contracts[case.component].computed_in_at_least
    why = explain_out_of_reach(case, bench.dtype, at_least) or explain_lost_eps(case, bench.options(case), bench.dtype)
    return ("dtype", why) if why else None


def explain_out_of_reach(case: Case, dtype: str, at_least: str | None = None) -> str:
    """Return why a dtype cannot hold the numbers of a case, or cannot separate its candidates; or "".

    `at_least` is the dtype in which code computes in any case, and rounds to its own at the end.
    """
    if case.golden is not None and case.golden.peak > max(LARGEST[dtype], LARGEST[at_least or dtype]):
        return f"intermediate numbers up to {case.golden.peak:.3g} overflow {dtype}"
    margin = case.golden.margin if case.golden is not None else None
    if margin is not None and margin <= (least := least_margin(dtype)):
        needed = f"(margin {margin:.3g}, {dtype} needs {least:.3g})"
        return f"the best candidates lie too close for {dtype} to separate them {needed}"
    return ""


def explain_lost_eps(case: Case, options: Mapping[str, str], dtype: str) -> str:
    """Return why LN-3 does not apply to a case of layer_norm: eps and variance are too small for the dtype; or ""."""
    if case.component != "layer_norm" or case.error is not None:
        return ""
    variance = float(case.input_arrays["x"].var(-1).min(initial=math.inf))
    eps, deviation = options["layer_norm_eps"], math.sqrt(variance)
    if options["norm_divisor"] == "std_plus_eps" and 0 < deviation < find_smallest_normal(dtype):
        return f"{dtype} cannot hold all digits of a deviation of {deviation:.3g}"
    if float(eps) > SMALLEST[dtype] / 2 or variance >= find_smallest_normal(dtype):
        return ""
    return f"an eps of {eps} is 0 in {dtype}, which cannot hold all digits of a variance of {variance:.3g}"


def _explain_other_option(case: Case, bench: Bench) -> str:
    """Return why a case does not apply under what the adapter declares, or ""."""
    for name, option in case.only_with.items():
        if bench.adapter.leaves_open(name, case.component):
            return f"only for {name}: {option}; the adapter leaves {name} open"
    return case.explain_unfit(bench.options(case))


def _select_expected(case: Case, bench: Bench) -> dict[str, GoldenArray]:
    """Return the golden values under the adapter's convention.

    An option that permits a refusal has no values of its own: a result is compared with those of the default option.
    """
    if case.golden is None:
        return {}
    options, conventions = bench.options(case), bench.spec.conventions
    contract = bench.spec.contracts[case.component]
    is_open = any(bench.adapter.leaves_open(name, case.component) for name in case.conventions)
    if is_open and not case.hiding:
        decided = {n: (options[n],) for n in case.conventions if not bench.adapter.leaves_open(n, case.component)}
        combined = [options | combination for combination in case.combine_options(decided)]
        agreed = select_agreed(case, combined, contract, bench.rounds_to)
        return add_rounding(agreed, case, make_call(case, combined[0], contract))
    if case.hiding and bench.adapter.leaves_open("empty_row", case.component):
        options |= {"empty_row": UNSPECIFIED}
    elif may_refuse(case, options):
        options |= {name: conventions[name].default for name in case.conventions if options[name] == REFUSED}
    outputs = expect(case, options, contract, bench.rounds_to)
    assert outputs is not None, "the documents' own option refuses nothing"
    return dict(outputs)


def may_refuse(case: Case, options: Mapping[str, str]) -> bool:
    """Return True if the options that an adapter declares permit a refusal of the case."""
    return case.golden is not None and case.refuses(options)


def _try_base(prepared: PreparedCase, bench: Bench, blank: Verdict) -> Verdict:
    """Pass an error case if the same call without its fault runs, or if it has no such call."""
    if prepared.base is None:
        return blank
    base, arguments = prepared.base
    try:
        seconds = bench.call(prepared.case.component, arguments).seconds
        return replace(blank, seconds=seconds) if bench.timed else blank
    except NotImplementedHere as absent:
        return report_missing(blank, str(absent), strict=bench.strict)
    except BadResult as bad:
        message = f"cannot be judged: {base}, the same call without the fault, fails: {bad}"
        return replace(report_bad_result(blank, bad), message=message)


def _judge_refusal(case: Case, bench: Bench, blank: Verdict, arguments: Arguments) -> Verdict:
    """Pass an error case if it raises."""
    returned, problem = call_refused(case, bench, arguments)
    if isinstance(problem, NotImplementedHere):
        return report_missing(blank, str(problem), strict=bench.strict)
    if problem is not None:
        uncalled = isinstance(problem, BadResult) and problem.reason in ("wrong-parameters", *UNANSWERED)
        return report_bad_result(blank, problem) if uncalled else blank
    message = f"accepts a bad {case.error} and returns {returned}: raise an error that names the argument"
    return replace(blank, status=Status.FAILED, reason="no-error", message=message)


def call_refused(
    case: Case, bench: Bench, arguments: Arguments | None = None
) -> tuple[str, NotImplementedHere | BadResult | None]:
    """Call with the arguments of a case without checking the contract; return the result in words, and the problem."""
    unchecked = partial(
        _call_unchecked, contract=bench.spec.contracts[case.component], arguments=arguments or read_arguments(case),
        dtype=bench.dtype, device=bench.device,
    )  # fmt: skip
    try:
        return run_in_host(unchecked, case.component, bench.adapter, bench.device), None
    except (NotImplementedHere, BadResult) as problem:
        return "", problem


def _call_unchecked(adapter: Adapter, *, contract: Contract, arguments: Arguments, dtype: str, device: str) -> str:
    given = convert_arguments(LIBRARIES[adapter.arrays], contract, arguments, dtype, device)
    return _describe_returned(call(adapter, contract, given)[0])


def _describe_returned(returned: Any) -> str:
    first = returned[0] if isinstance(returned, tuple) and returned else returned
    shape = getattr(first, "shape", None)
    return f"an array of shape {tuple(shape)}" if shape is not None else type(first).__name__


def plan(spec: Spec, components: Iterable[str] = (), cases: Iterable[str] = ()) -> list[Case]:
    """Return the cases to run, in the order of dependency; empty filters mean everything."""
    components, ids = set(components), set(cases)
    if ids:
        # Only the files of these cases are read. The cases keep the order of their file.
        homes = {spec.cases[id_].component for id_ in ids if id_ in spec.cases}
        components = homes & components if components else homes
    chosen = [name for name in spec.components if name in components] if components or ids else spec.components
    return [case for name in chosen for case in spec.cases_of(name) if not ids or case.id in ids]
