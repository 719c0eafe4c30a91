"""The errors of calls of implementations in other processes.

WireError     a message that does not follow the protocol
├── TooLarge  a message beyond its limits
├── Stray     a line that is no message, such as a line of a log
└── Unasked   a reply to no request
CallFault     a call without a result, and the reason
"""

from __future__ import annotations

import json
import re
import reprlib
import signal
from typing import Any, Final, Literal

from goldformer.adapters.untrusted_text import limit_repr, printable

#: The reason why a call has no result: the implementation raised; its process ended; no answer came in time; it wrote
#: something other than an answer; the arguments do not fit into a message. For a process within limits also: it used
#: too much memory, printed too much, or was killed by the system; it interfered with the connection.
FaultReason = Literal[
    "raised",
    "crashed",
    "timeout",
    "protocol",
    "too-large",
    "memory",
    "output-limit",
    "killed",
    "tampered",
]


class _Json(reprlib.Repr):
    """Short representations in the notation of JSON."""

    def repr1(self, x: Any, level: int) -> str:
        if x is None or isinstance(x, bool):
            return json.dumps(x)
        text = super().repr1(x, level)
        return f'"{text[1:-1]}"' if isinstance(x, str) else text


_SHORT: Final = limit_repr(_Json())

#: Stands for a field that a message does not have.
MISSING: Final = object()
#: Matches the expectation of an integer.
_INTEGER: Final = re.compile(r"\d|(an )?integer")


class WireError(ValueError):
    """A message does not follow the protocol; the text names the field, its value and the expected value."""

    @classmethod
    def at(cls, field: str, actual: Any, expected: str) -> WireError:
        """Make the error of one field."""
        if actual is MISSING:
            return cls(f"{field} is missing, expected {expected}")
        whole = isinstance(actual, float) and actual.is_integer() and _INTEGER.match(expected)
        hint = "; an integer is written without a fraction" if whole else ""
        return cls(f"{field} is {printable(_SHORT.repr(actual))}, expected {expected}{hint}")


class TooLarge(WireError):
    """An array or a message is beyond the protocol's limits."""


class Stray(WireError):
    """A line is no message."""


class Unasked(WireError):
    """A reply is not the answer to the request."""


class CallFault(Exception):
    """A call has no result; the message is the reason, `detail` explains it further."""

    def __init__(self, reason: FaultReason, message: str, detail: str = "") -> None:
        super().__init__(message)
        self.reason: FaultReason = reason
        self.detail = detail


def describe_status(status: int) -> str:
    """Describe an exit status, or the signal that ended a process."""
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"signal {signal.Signals(-status).name}"
    except ValueError:
        return f"signal {-status}"
