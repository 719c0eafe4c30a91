"""Judging: call an implementation, compare the outcome with golden values, and decide."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from goldformer.conformance.judging.cases import Bench, Judgement, check_case, judge_case, plan
    from goldformer.conformance.judging.invoke import BadResult, CallProblem, NotCheckable, NotImplementedHere, Result
    from goldformer.conformance.judging.verdict import Difference, Match, Status, Verdict

__all__ = [
    "BadResult",
    "Bench",
    "CallProblem",
    "Difference",
    "Judgement",
    "Match",
    "NotCheckable",
    "NotImplementedHere",
    "Result",
    "Status",
    "Verdict",
    "check_case",
    "judge_case",
    "plan",
]

#: The module of each name. It is imported when the name is used, because some import NumPy or all mistakes.
_MODULES: Final = {
    "cases": ("Bench", "Judgement", "check_case", "judge_case", "plan"),
    "invoke": ("BadResult", "CallProblem", "NotCheckable", "NotImplementedHere", "Result"),
    "verdict": ("Difference", "Match", "Status", "Verdict"),
}


def __getattr__(name: str) -> Any:
    """Import the module of a public name on its first use."""
    for module, names in _MODULES.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
