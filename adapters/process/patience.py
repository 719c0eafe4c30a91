"""Decide which calls of a process are not made any more, because those before them got no answer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from typing import Final

from goldformer.adapters.process.faults import CallFault, FaultReason

#: A method is given up after this many calls in a row without an answer.
_MOST_CALLS: Final = 3
#: A process is given up after so many seconds of timeouts in a row, but not before a second method gave no answer.
_MOST_SECONDS: Final = 240.0
#: The beginning of the message of a call that is not made any more.
NOT_ASKED: Final = "not run: "


class Patience:
    """Counts the calls in a row without an answer: of each method, and of the process.

    `reasons` are the faults that count: each such call costs time, a timeout most of all.
    """

    def __init__(self, timeout: float, reasons: Collection[FaultReason], most_calls: int = _MOST_CALLS) -> None:
        """Begin before the first call; it may take `timeout` seconds. A method is given up after `most_calls`."""
        self._reasons, self._most_calls = reasons, most_calls
        self._most_of_all = max(most_calls + 1, int(_MOST_SECONDS / timeout))
        self._of_all: list[FaultReason] = []
        self._of_method: defaultdict[str, list[FaultReason]] = defaultdict(list)

    def note(self, method: str, fault: CallFault | None) -> None:
        """Count a call that was made, with its fault if there is one."""
        for faults in (self._of_all, self._of_method[method]):
            if fault is not None and fault.reason in self._reasons:
                faults.append(fault.reason)
            else:
                faults.clear()

    def require_hope(self, method: str) -> None:
        """Raise CallFault if the method or the whole process is given up."""
        faults, calls = self._of_method[method], f"{self._most_calls} calls of {method}"
        if len(faults) < self._most_calls:
            faults, calls = self._of_all, f"{self._most_of_all} calls of the process"
            if len(faults) < self._most_of_all:
                return
        what = "timed out" if set(faults) == {"timeout"} else "got no valid answer"
        raise CallFault(faults[-1], f"{NOT_ASKED}{calls} in a row {what}")
