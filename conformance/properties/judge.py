"""The verdict on one property for one component."""

from __future__ import annotations

from dataclasses import replace

from goldformer.conformance.judging.cases import Bench, Judgement
from goldformer.conformance.judging.decision import report_fault, report_problem, skip_check
from goldformer.conformance.judging.invoke import CallProblem, NotImplementedHere
from goldformer.conformance.judging.measure import describe_coarser
from goldformer.conformance.judging.repeat import write_command
from goldformer.conformance.judging.running import run_step
from goldformer.conformance.judging.verdict import Status, Verdict
from goldformer.conformance.properties.registry import find_property
from goldformer.conformance.properties.relations import join_names
from goldformer.conformance.properties.subject import MixesDevices, NotAdvised, Subject, Violation
from goldformer.spec import Property
from goldformer.spec.oracle.rounding import UNIT_ROUNDOFF


def judge_property(prop: Property, component: str, bench: Bench) -> Judgement:
    """Judge one property for one component, in the form of a golden case's judgement."""
    return Judgement(check_property(prop, component, bench), bench)


def check_property(prop: Property, component: str, bench: Bench) -> Verdict:
    """Return the verdict on one property for one component; a fault of goldformer becomes an errored verdict."""
    command = write_command(bench, bench.policy, "--property", prop.id, "--component", component)
    blank = Verdict(
        prop.id, "property", component, prop.title, Status.PASSED, "", "", bench.dtype, bench.device,
        prop.clauses, "property", prop.catches, reproduce=command, asks="law",
    )  # fmt: skip
    try:
        return run_step(blank.step, lambda: _check_property(prop, component, bench, blank))
    except Exception as error:
        return report_fault(blank, error)


def _check_property(prop: Property, component: str, bench: Bench, blank: Verdict) -> Verdict:
    if unusable := bench.explain_unusable(component):
        return skip_check(blank, *unusable)
    subject = Subject(bench, component)
    try:
        if missing := bench.explain_missing(component):
            raise NotImplementedHere(missing)
        find_property(prop).run(subject)
    except CallProblem as problem:
        return report_problem(blank, problem, bench.policy)
    except Violation as violation:
        return _tolerate(prop, violation, _fail(violation, blank), bench)
    passed = replace(
        blank,
        ratio=subject.ratio,
        seconds=subject.seconds if bench.policy.timed else 0.0,
        invariances=tuple(subject.invariances.values()),
        hidden_nan=subject.hidden_nan,
    )
    return _require_bits(passed) if bench.policy.bitwise else passed


def _require_bits(passed: Verdict) -> Verdict:
    """Return a verdict as failed if its property holds only up to rounding over some setting."""
    rounded = [
        f"{found.setting} (up to {found.distance:.2g} of the tolerance apart)"
        for found in passed.invariances
        if not found.bitwise
    ]
    if not rounded:
        return passed
    message = f"holds within the tolerance, and not bit for bit over {join_names(rounded)}"
    return replace(passed, status=Status.FAILED, reason="bitwise", message=message)


def _tolerate(prop: Property, violation: Violation, failed: Verdict, bench: Bench) -> Verdict:
    """Return a failure as skipped if nothing requires what it departs from.

    It is only advised against, shows only on a GPU, or holds up to the tolerances of a coarser dtype.
    """
    if isinstance(violation, MixesDevices) and not bench.requires_gpu:
        return skip_check(failed, "gpu", failed.message)
    if isinstance(violation, NotAdvised) and not bench.policy.strict:
        return skip_check(replace(failed, ratio=None, differences=()), "advice", failed.message)
    coarser = bench.find_coarser()
    if coarser is None or violation.difference is None:
        return failed
    # Code may remember the first run, so a second run proves nothing: the numbers of the first have to fit too.
    wider = UNIT_ROUNDOFF[coarser.rounds_to] / UNIT_ROUNDOFF[bench.rounds_to]
    fits = violation.difference.ratio <= wider and _holds(prop, failed.component, coarser)
    if not fits:
        return failed
    return skip_check(
        failed, "precision", f"right {describe_coarser(bench.dtype, coarser.rounds_to)}: {failed.message}"
    )


def _holds(prop: Property, component: str, bench: Bench) -> bool:
    """Return True if a property holds up to the tolerances of a bench."""
    try:
        find_property(prop).run(Subject(bench, component))
    except (CallProblem, Violation):
        return False
    return True


def _fail(violation: Violation, blank: Verdict) -> Verdict:
    """Return the failed verdict of a violation, with the smallest input that shows it."""
    drawn = ", ".join(f"{name}={value!r}" for name, value in violation.drawn.items())
    differences = (violation.difference,) if violation.difference else ()
    ratio = violation.difference.ratio if violation.difference else None
    catches = (violation.shows,) if violation.shows else blank.catches
    return replace(
        blank, status=Status.FAILED, reason="property", message=str(violation), differences=differences, ratio=ratio,
        detail=f"smallest input: {drawn}" if drawn else "", catches=catches,
    )  # fmt: skip
