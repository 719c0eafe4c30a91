"""Estimate how long grading a class takes, from the checks of the assignment."""

from __future__ import annotations

from typing import Final

from goldformer.conformance.grading.task import CheckPlan

#: Seconds of a golden case and of a property of right code, measured with PyTorch on a server's core; and of the start
#: of the processes that grade.
_CASE: Final = 0.001
_PROPERTY: Final = 0.2
_START: Final = 8.0


def estimate_seconds(plan: CheckPlan, submissions: int, jobs: int) -> float:
    """Return the seconds that grading right submissions takes in `jobs` processes."""
    properties = sum(check.origin == "property" for check in plan.checks)
    each = _CASE * (len(plan.checks) - properties) + _PROPERTY * properties
    return _START + each * submissions / max(1, min(jobs, submissions))


def describe_duration(seconds: float) -> str:
    """Return a duration in the unit that fits: "40 s", "3 min", "1.5 h"."""
    if seconds < 90:
        return f"{max(10, round(seconds, -1)):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
