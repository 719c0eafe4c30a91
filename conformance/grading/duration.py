"""Estimate how long grading a class takes, from the time that the assignment's solution takes on this machine."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

#: The time of a submission of a class, in times of the solution. A wrong one of a new kind is explained, which takes
#: one to two times as long as its checks. If all are right, the estimate is half too long; if all are wrong in ways of
#: their own, up to half too short.
_MIXED: Final = 1.5
#: The time of a sandboxed submission with its pages, in times of the same checks in this process.
_SANDBOXED: Final = 1.5
#: Seconds until a process grades, where it was not measured.
_START: Final = 4.0


@dataclass(frozen=True, slots=True)
class Pace:
    """The seconds that a process needs to start, and that grading the solution took in it."""

    start: float
    each: float

    @classmethod
    def of_checks(cls, seconds: float) -> Pace:
        """Return the pace of grading, if the checks of the solution took some seconds in this process."""
        return cls(_START, _SANDBOXED * seconds)

    def estimate_seconds(self, submissions: int, jobs: int) -> float:
        """Return the seconds that a class takes in `jobs` processes, if about half of it is wrong."""
        return self.start + _MIXED * self.each * math.ceil(submissions / jobs)


def describe_duration(seconds: float) -> str:
    """Return a duration in the unit that fits: "45 s", "3 min", "1.5 h"."""
    if seconds < 90:
        return f"{max(10, 5 * round(seconds / 5))} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
