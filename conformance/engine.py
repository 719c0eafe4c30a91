"""Turns (case, adapter, dtype, device) into a Verdict; everything that judges goes through here."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from goldformer.adapters.arrays import LIBRARIES, Layout
from goldformer.adapters.process.client import TIMEOUT
from goldformer.adapters.protocol import Adapter
from goldformer.conformance.gradient import invoke_gradient
from goldformer.conformance.imitation import Imitator
from goldformer.conformance.invoke import (
    Arguments,
    BadResult,
    NotCheckable,
    NotImplementedHere,
    Result,
    arguments_of,
    call,
    hand_over,
    invoke,
)
from goldformer.conformance.judge import measure, reason_of, sentence
from goldformer.conformance.other_options import other_convention, refusing_convention
from goldformer.conformance.tolerance import LARGEST, least_margin
from goldformer.conformance.verdict import ERRORS, UNANSWERED, Match, Reason, Status, Verdict
from goldformer.spec import Case, Spec
from goldformer.spec.model import ANY, GoldenArray


@dataclass(frozen=True, slots=True)
class Bench:
    """An implementation on the bench: which adapter, in which dtype, on which device, how strictly."""

    spec: Spec
    adapter: Adapter
    dtype: str
    device: str
    strict: bool = False
    #: Looks for the mistakes behind what fails; without it nobody does.
    imitator: Imitator | None = None
    #: Is handed what each golden case gives, once it is known to have the contract's form.
    keep: Callable[[Case, Bench, Result], None] | None = None

    def unusable(self) -> tuple[Reason, str] | None:
        """Why nothing can run here, or None."""
        if self.dtype not in self.adapter.dtypes:
            return (
                "dtype",
                f"{self.adapter.name} works in {', '.join(self.adapter.dtypes)}, not in {self.dtype}",
            )
        if self.device.partition(":")[0] not in self.adapter.devices:
            return (
                "device",
                f"{self.adapter.name} works on {', '.join(self.adapter.devices)}, not on {self.device}",
            )
        if why := LIBRARIES[self.adapter.arrays].unavailable(self.device):
            return "device", why
        return None

    def command(self, *check: str) -> str:
        """The line that repeats one check."""
        words = ["goldformer", "check", self.adapter.origin, *check, "--dtype", self.dtype]
        words += ["--device", self.device] if self.device != "cpu" else []
        timeout = self.adapter.timeout
        words += ["--timeout", f"{timeout:.15g}"] if timeout not in (None, TIMEOUT) else []
        return shlex.join([*words, "--strict"] if self.strict else words)

    def call(
        self, component: str, arguments: Arguments, *, untouched: bool = True, layout: Layout = "contiguous"
    ) -> Result:
        """Call a component of the implementation; CallProblem when there is nothing to compare."""
        contract = self.spec.contracts[component]
        how: dict[str, Any] = {"untouched": untouched, "layout": layout}
        return invoke(self.adapter, contract, arguments, self.dtype, self.device, **how)


def check_case(case: Case, bench: Bench) -> Verdict:
    """Judge one golden case; failing one that no clause requires is advice, unless strictness is asked for."""
    try:
        verdict = _check(case, bench)
    except NotCheckable as unclear:
        return skipped(_blank(case, bench), "not-checkable", str(unclear))
    # What every call must keep (CALL-1 to CALL-4) binds these cases too.
    departs = verdict.status is Status.FAILED and verdict.reason in ("wrong-value", "no-error")
    return as_advice(verdict) if departs and bench.spec.is_advice(case) and not bench.strict else verdict


def as_advice(verdict: Verdict) -> Verdict:
    """What is only advised, and not done: skipped with the reason."""
    return skipped(replace(verdict, ratio=None, differences=(), matches=None, advice=""), "advice", verdict.message)


def _check(case: Case, bench: Bench) -> Verdict:
    blank = _blank(case, bench)
    if skip := bench.unusable() or _does_not_apply(case, bench):
        return skipped(blank, *skip)
    expected = None if case.error is not None else _expected(case, bench)
    if expected is None:
        return _check_refusal(case, bench, blank)
    try:
        result = _result(case, bench)
    except NotImplementedHere as absent:
        return not_implemented(blank, str(absent), strict=bench.strict)
    except BadResult as bad:
        advice = refusing_convention(case, bench) if bad.reason == "raised" else ""
        return replace(broken(blank, bad), advice=advice, matches=_matches(case, bench, bad, expected))
    if bench.keep is not None:
        bench.keep(case, bench, result)
    if expected and not set(expected) & set(result.outputs):
        absent_outputs = f"{bench.adapter.name} does not return {', '.join(expected)}"
        return not_implemented(blank, absent_outputs, strict=bench.strict)
    return _judge(blank, case, bench, result, expected)


def _result(case: Case, bench: Bench) -> Result:
    """What the implementation gives for a case: outputs, or gradients of its arguments."""
    if case.cotangent_array is None:
        # A second copy of a whole model takes seconds: whether arrays are left alone, the others tell.
        return bench.call(case.component, arguments_of(case), untouched=not case.full_size)
    contract = bench.spec.contracts[case.component]
    specs = contract.results_of(case)
    return invoke_gradient(
        bench.adapter, contract, arguments_of(case), case.cotangent_array, specs, bench.dtype, bench.device
    )


def _judge(blank: Verdict, case: Case, bench: Bench, result: Result, expected: dict[str, GoldenArray]) -> Verdict:
    """Compare what was given with what was asked for."""
    contract = bench.spec.contracts[case.component]
    differences = measure(result, expected, case, contract, bench.dtype)
    ratio = max((d.ratio for d in differences), default=None)
    timed = replace(blank, ratio=ratio, seconds=result.seconds)
    wrong = tuple(d for d in differences if d.wrong)
    if not wrong:
        return timed
    return replace(
        timed,
        status=Status.FAILED,
        reason=reason_of(wrong),
        message=sentence(wrong[0]),
        differences=wrong,
        matches=_matches(case, bench, result, expected),
        advice=other_convention(case, bench, result, contract),
    )


def _matches(
    case: Case, bench: Bench, given: Result | BadResult, expected: dict[str, GoldenArray]
) -> tuple[Match, ...] | None:
    if bench.imitator is None:
        return None
    declared = bench.adapter.options(case.component, bench.spec)
    return bench.imitator.matches(case, given, expected, bench.dtype, declared)


def working_case(component: str, bench: Bench) -> Case:
    """The first small case of a component that the implementation runs; NotImplementedHere when none does."""
    last = NotImplementedHere(f"{bench.adapter.name} has no {component}")
    for case in plain_cases(component, bench):
        try:
            bench.call(component, arguments_of(case))
        except NotImplementedHere as absent:
            last = absent
            continue
        return case
    raise last


def plain_cases(component: str, bench: Bench) -> Iterator[Case]:
    """The cases of a component whose numbers are judged here, in the order of their file."""
    for case in bench.spec.cases_of(component):
        if case.error is None and not case.shape_only and not _does_not_apply(case, bench):
            yield case


def _blank(case: Case, bench: Bench) -> Verdict:
    return Verdict(
        case.id, "case", case.component, case.title, Status.PASSED, "", "", bench.dtype, bench.device,
        case.clauses, str(case.source or "derived"), case.kills, reproduce=bench.command(*_named(case, bench)),
    )  # fmt: skip


def _named(case: Case, bench: Bench) -> tuple[str, ...]:
    """The options that choose a case, with its file if that is no part of the spec."""
    own = () if case.place.file.is_relative_to(bench.spec.root) else ("--cases", str(case.place.file))
    return (*own, "--case", case.id)


def skipped(blank: Verdict, reason: Reason, message: str) -> Verdict:
    """Nothing was judged, for a reason."""
    return replace(blank, status=Status.SKIPPED, reason=reason, message=message)


def not_implemented(blank: Verdict, message: str, *, strict: bool) -> Verdict:
    """The component or variant is not there: skipped, or failed when that counts."""
    status = Status.FAILED if strict else Status.SKIPPED
    return replace(blank, status=status, reason="not-implemented", message=message)


def broken(blank: Verdict, bad: BadResult) -> Verdict:
    """There is no result to compare: errored when the call itself went wrong, failed when it broke the contract."""
    status = Status.ERRORED if bad.reason in ERRORS else Status.FAILED
    return replace(blank, status=status, reason=bad.reason, message=str(bad), detail=bad.detail)


def _does_not_apply(case: Case, bench: Bench) -> tuple[Reason, str] | None:
    for name, option in case.only_with.items():
        declared = bench.adapter.convention(name, case.component, bench.spec)
        if declared != option:
            return "convention", f"only for {name}: {option}; the adapter declares {declared}"
    if case.error is not None and bench.device != "cpu":
        # A bad id on CUDA trips an assertion that leaves the whole process without a device.
        return "device", "what is refused is checked on the CPU"
    if case.full_size and bench.dtype != "float32" and bench.device == "cpu":
        return "dtype", f"on a CPU a model of full size is run in float32 alone: in {bench.dtype} it takes much longer"
    if case.golden is not None and case.golden.peak > LARGEST[bench.dtype]:
        return "dtype", f"numbers up to {case.golden.peak:.3g} on the way overflow {bench.dtype}"
    margin = case.golden.margin if case.golden is not None else None
    if margin is not None and margin <= (least := least_margin(bench.dtype)):
        closer = f"closer together than {bench.dtype}'s rounding tells apart"
        return "dtype", f"the best candidates lie {closer} (margin {margin:.3g}, {bench.dtype} needs {least:.3g})"
    return None


def _expected(case: Case, bench: Bench) -> dict[str, GoldenArray] | None:
    """The golden values under the adapter's convention; None when that convention refuses the call."""
    if case.golden is None:
        return {}
    option = ANY
    if case.convention is not None:
        if bench.adapter.leaves_open(case.convention, case.component):
            return case.golden.whatever_the_option()
        option = bench.adapter.convention(case.convention, case.component, bench.spec)
    outputs = case.golden.options[option]
    return None if outputs is None else dict(outputs)


def _check_refusal(case: Case, bench: Bench, blank: Verdict) -> Verdict:
    """An error case passes when its working base runs and the case itself raises."""
    if case.base is not None:
        base = bench.spec.cases[case.base]
        try:
            blank = replace(blank, seconds=bench.call(base.component, arguments_of(base)).seconds)
        except NotImplementedHere as absent:
            return not_implemented(blank, str(absent), strict=bench.strict)
        except BadResult as bad:
            message = f"cannot be judged: {base.id}, the same call without the fault, {bad}"
            return replace(broken(blank, bad), message=message)
    returned, problem = refuses(case, bench)
    if isinstance(problem, NotImplementedHere):
        return not_implemented(blank, str(problem), strict=bench.strict)
    if problem is not None:
        uncalled = isinstance(problem, BadResult) and problem.reason in ("wrong-parameters", *UNANSWERED)
        return broken(blank, problem) if uncalled else replace(blank, status=Status.PASSED)
    fault = f"bad {case.error}" if case.error else "call that its convention refuses"
    message = f"accepts a {fault} and returns {_describe(returned)}: raise an error that names the argument"
    declared = bench.adapter.options(case.component, bench.spec)
    matches = bench.imitator.accepting(case, bench.dtype, declared) if bench.imitator else None
    return replace(blank, status=Status.FAILED, reason="no-error", message=message, matches=matches)


def refuses(case: Case, bench: Bench) -> tuple[Any, NotImplementedHere | BadResult | None]:
    """Call with a case's arguments, contract unchecked: what came back, or what was raised."""
    contract = bench.spec.contracts[case.component]
    library = LIBRARIES[bench.adapter.arrays]
    given = hand_over(library, contract, arguments_of(case), bench.dtype, bench.device)
    try:
        return call(bench.adapter, contract, given)[0], None
    except (NotImplementedHere, BadResult) as problem:
        return None, problem


def _describe(returned: Any) -> str:
    first = returned[0] if isinstance(returned, tuple) and returned else returned
    shape = getattr(first, "shape", None)
    return f"an array of shape {tuple(shape)}" if shape is not None else type(first).__name__


def plan(spec: Spec, components: Iterable[str] = (), cases: Iterable[str] = ()) -> list[Case]:
    """The cases to run, roots of the dependency order first; empty filters mean everything."""
    components, ids = set(components), set(cases)
    if ids:
        # Only the files of these cases are read, and of each all of it: its order is that of the cases.
        homes = {spec.cases[id_].component for id_ in ids if id_ in spec.cases}
        components = homes & components if components else homes
    chosen = [name for name in spec.components if name in components] if components or ids else spec.components
    return [case for name in chosen for case in spec.cases_of(name) if not ids or case.id in ids]
