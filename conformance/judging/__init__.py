"""Judging: call an implementation, compare the outcome with golden values, and decide."""

from __future__ import annotations

from typing import TYPE_CHECKING

from goldformer.exports import load_on_use

if TYPE_CHECKING:
    from goldformer.conformance.judging.cases import Bench, Judgement, check_case, judge_case, plan
    from goldformer.conformance.judging.invoke import BadResult, CallProblem, NotCheckable, NotImplementedHere, Result
    from goldformer.conformance.judging.verdict import Difference, Status, Verdict

__all__ = [
    "BadResult",
    "Bench",
    "CallProblem",
    "Difference",
    "Judgement",
    "NotCheckable",
    "NotImplementedHere",
    "Result",
    "Status",
    "Verdict",
    "check_case",
    "judge_case",
    "plan",
]

__getattr__, __dir__ = load_on_use(
    __name__,
    {
        "cases": ("Bench", "Judgement", "check_case", "judge_case", "plan"),
        "invoke": ("BadResult", "CallProblem", "NotCheckable", "NotImplementedHere", "Result"),
        "verdict": ("Difference", "Status", "Verdict"),
    },
)
