"""The decision on a measurement, and the verdict that says it."""

from __future__ import annotations

import traceback
from dataclasses import replace
from pathlib import Path
from typing import Final

from goldformer.conformance.judging.invoke import BadResult, BaseFails, CallProblem, NotImplementedHere
from goldformer.conformance.judging.measure import Measurement, describe_difference, find_reason
from goldformer.conformance.judging.policy import Policy
from goldformer.conformance.judging.verdict import ERRORS, UNANSWERED, WITHHELD, Reason, Status, Verdict

#: The failures of a case that are tolerated if all of its clauses only advise. The rules of every call (CALL-1 to
#: CALL-4) bind these cases too.
_ADVISED: Final[tuple[Reason, ...]] = ("wrong-value", "no-error", WITHHELD)


def decide(measured: Measurement, policy: Policy, blank: Verdict) -> Verdict:
    """Return the verdict on what was measured: what is not right fails unless it is tolerated."""
    (status, reason), message = _find_status(measured, policy), _write_message(measured, policy)
    if status is Status.FAILED and reason in _ADVISED and measured.is_advised and not policy.strict:
        status, reason = Status.SKIPPED, "advice"
        measured = replace(measured, differences=())
    return replace(
        blank, status=status, reason=reason, message=message,
        detail=measured.problem.detail if isinstance(measured.problem, BadResult) else "",
        ratio=measured.ratio, differences=measured.wrong,
        seconds=measured.seconds if policy.timed else 0.0, by_hand=blank.by_hand or measured.by_hand,
        rounded_once=measured.rounded_once, visible=measured.visible,
    )  # fmt: skip


def _find_status(measured: Measurement, policy: Policy) -> tuple[Status, Reason]:
    withholds = not policy.required.isdisjoint(measured.missing)
    if measured.problem is not None and not withholds:
        return _judge_problem(measured.problem, measured, policy)
    if measured.wrong:
        if measured.rougher and not withholds and policy.tolerates_precision:
            return Status.SKIPPED, "precision"
        return Status.FAILED, find_reason(measured.wrong)
    return (Status.FAILED, WITHHELD) if withholds else (Status.PASSED, "")


def _judge_problem(problem: CallProblem, measured: Measurement, policy: Policy) -> tuple[Status, Reason]:
    if isinstance(problem, NotImplementedHere):
        return (Status.FAILED if policy.strict else Status.SKIPPED), "not-implemented"
    if not isinstance(problem, BadResult):
        return Status.SKIPPED, "not-checkable"
    if measured.asks_refusal and policy.tolerates_bad_inputs:
        # Where the call does not work without the fault either, cases that ask for values say so.
        answers = not isinstance(problem, BaseFails) and problem.reason in (*UNANSWERED, "no-error")
        return Status.SKIPPED, "robustness" if answers else "not-checkable"
    return (Status.ERRORED if problem.reason in ERRORS else Status.FAILED), problem.reason


def _write_message(measured: Measurement, policy: Policy) -> str:
    withheld = policy.describe_withheld(measured.outputs, measured.missing)
    if measured.problem is not None and not withheld:
        return f"{measured.problem}{getattr(measured.problem, 'hint', '')}"
    if not measured.wrong:
        return withheld
    message = "; ".join(filter(None, (f"{describe_difference(measured.wrong[0])}{measured.where}", withheld)))
    return f"right {measured.rougher}: {message}" if measured.rougher and not withheld else message


def report_problem(blank: Verdict, problem: CallProblem, policy: Policy) -> Verdict:
    """Return the verdict of a check whose calls gave no result."""
    return decide(Measurement(problem=problem), policy, blank)


def report_fault(blank: Verdict, error: Exception) -> Verdict:
    """Return the verdict of a check in which goldformer itself broke, with the traceback to report."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{Path(frame.filename).name}:{frame.lineno}, {frame.name}"
    message = f"a fault in goldformer: {type(error).__name__}: {error} ({where}); please report it with the traceback"
    text = "".join(traceback.format_exception(error))
    return replace(blank, status=Status.ERRORED, reason="fault", message=message, detail=text)


def skip_check(blank: Verdict, reason: Reason, message: str) -> Verdict:
    """Return a skipped verdict."""
    return replace(blank, status=Status.SKIPPED, reason=reason, message=message)
