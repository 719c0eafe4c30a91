"""The tolerance of a check, the decision on a measurement, and the verdict that says it."""

from __future__ import annotations

import traceback
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from goldformer.conformance.judging.invoke import BadResult, BaseFails, CallProblem, NotImplementedHere
from goldformer.conformance.judging.measure import Measurement
from goldformer.conformance.judging.verdict import ERRORS, PERMITTED, UNANSWERED, WITHHELD, Reason, Status, Verdict
from goldformer.spec.model import REFUSED

#: The failures of a case that are tolerated if all of its clauses only advise. The rules of every call (CALL-1 to
#: CALL-4) bind these cases too.
_ADVISED: Final[tuple[Reason, ...]] = ("wrong-value", "no-error", WITHHELD)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The strictness of a check: its requirements, and what it tolerates.

    `strict` fails everything that is tolerated without it, and what is not implemented. `require_refusals` fails only
    bad inputs that are accepted, `require_precision` only results that are right to a coarser dtype: grading asks for
    both. `tolerance_dtype` is the dtype whose tolerances hold; without it, the dtype of the call.
    """

    strict: bool = False
    require_refusals: bool = False
    require_precision: bool = False
    tolerance_dtype: str | None = None
    #: Require of some properties that they hold bit for bit.
    bitwise: bool = False
    #: Let matrix products of float32 round their factors to TF32.
    tf32: bool = False
    #: False if verdicts say nothing of the time that calls take.
    timed: bool = True
    #: The outputs that this check requires. The first output is always required, the others only if they are here.
    required: frozenset[str] = frozenset()

    @property
    def tolerates_precision(self) -> bool:
        """Return True if a result may be right only to a coarser dtype."""
        return not (self.strict or self.require_precision)

    @property
    def tolerates_bad_inputs(self) -> bool:
        """Return True if a bad input may be accepted."""
        return not (self.strict or self.require_refusals)

    def describe_withheld(self, outputs: Iterable[str], missing: Collection[str]) -> str:
        """Name the missing outputs that are required, and say what to return; empty if none is.

        `outputs` are all that the contract has, in its order.
        """
        names = list(outputs)
        withheld = [name for name in names if name in missing and name in self.required]
        if not withheld:
            return ""
        whole = [name for name in names if name == names[0] or name in self.required]
        # A tuple holds the first outputs of the contract, in its order; a mapping holds any of them.
        in_order = whole == names[: len(whole)]
        form = f"({', '.join(whole)})" if in_order else f"{{{', '.join(f'{name!r}: …' for name in whole)}}}"
        return f"{', '.join(withheld)}: not returned; return {form}"


#: The policy of a check without options.
TOLERANT: Final = Policy()


def decide(measured: Measurement, policy: Policy, blank: Verdict) -> Verdict:
    """Return the verdict on what was measured: what is not right fails unless it is tolerated."""
    (status, reason), message = _find_status(measured, policy), _write_message(measured, policy)
    if status is Status.FAILED and reason in _ADVISED and measured.is_advised and not policy.strict:
        status, reason = Status.SKIPPED, "advice"
        measured = replace(measured, ratio=None, wrong=())
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
        return Status.FAILED, measured.reason
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
    if measured.permitted and policy.tolerates_bad_inputs:
        return Status.SKIPPED, "convention"
    return (Status.ERRORED if problem.reason in ERRORS else Status.FAILED), problem.reason


def _write_message(measured: Measurement, policy: Policy) -> str:
    withheld = policy.describe_withheld(measured.outputs, measured.missing)
    if measured.problem is not None and not withheld:
        permitted = measured.permitted and policy.tolerates_bad_inputs
        head = f"{PERMITTED}{measured.permitted}: {REFUSED}: " if permitted else ""
        return f"{head}{measured.problem}{getattr(measured.problem, 'hint', '')}"
    if not measured.wrong:
        return withheld
    if withheld:
        return f"{measured.finding}; {withheld}"
    return f"right {measured.rougher}: {measured.finding}" if measured.rougher else measured.finding


def report_problem(blank: Verdict, problem: CallProblem, policy: Policy) -> Verdict:
    """Return the verdict of a check whose calls gave no result."""
    return decide(Measurement(problem=problem), policy, blank)


def report_fault(blank: Verdict, error: Exception) -> Verdict:
    """Return the verdict of a check in which goldformer itself broke, with the traceback to report."""
    message = f"a fault in goldformer: {describe_fault(error)}; please report it with the traceback"
    text = "".join(traceback.format_exception(error))
    return replace(blank, status=Status.ERRORED, reason="fault", message=message, detail=text)


def describe_fault(error: Exception) -> str:
    """Return the type, the message and the place of an exception of goldformer's own, in one line."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return f"{text} ({Path(frame.filename).name}:{frame.lineno}, {frame.name})"


def skip_check(blank: Verdict, reason: Reason, message: str) -> Verdict:
    """Return a skipped verdict."""
    return replace(blank, status=Status.SKIPPED, reason=reason, message=message)
