"""The errors of calls of implementations in other processes.

WireError     a message that does not follow the protocol
├── TooLarge  a message beyond its limits
├── Stray     a line that is no message, such as a line of a log
└── Unasked   a reply to no request
CallFault     a call without a result, and the reason
NoSuchMethod  a process denies a method that it listed
"""

from __future__ import annotations

import json
import re
import reprlib
from typing import Any, Final, Literal

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


_SHORT: Final = reprlib.Repr()
_SHORT_JSON: Final = _Json()
for _short in (_SHORT, _SHORT_JSON):
    _short.maxstring = _short.maxother = 60
    _short.maxlist = _short.maxdict = 3
    _short.maxlevel = 2

#: Stands for a field that a message does not have.
MISSING: Final = object()
#: Matches the expectation of an integer.
_INTEGER: Final = re.compile(r"\d|(an )?integer")

#: The most characters of an exception's message and of its stack trace.
LONGEST_MESSAGE: Final = 2000
LONGEST_TRACE: Final = 32 << 10
#: The most characters of a name or a version.
_LONGEST_NAME: Final = 200


class WireError(ValueError):
    """A message does not follow the protocol; the text names the field, its value and the expected value."""

    @classmethod
    def at(cls, field: str, actual: Any, expected: str) -> WireError:
        """Make the error of one field."""
        if actual is MISSING:
            return cls(f"{field} is missing, expected {expected}")
        whole = isinstance(actual, float) and actual.is_integer() and _INTEGER.match(expected)
        hint = "; an integer is written without a fraction" if whole else ""
        return cls(f"{field} is {printable(_SHORT_JSON.repr(actual))}, expected {expected}{hint}")


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


class NoSuchMethod(NotImplementedError):
    """The process denies a method that it listed in its handshake."""


def abbreviate(value: Any) -> str:
    """Return a short printable representation of any value."""
    return printable(_SHORT.repr(value))


def clip_text(text: str, most: int) -> str:
    """Return the text, or its beginning and its end if it has more than `most` characters."""
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]} … {len(text) - 2 * half} characters … {text[-half:]}"


def describe_exception(error: BaseException) -> str:
    """Return the type and the message of an exception of foreign code."""
    return f"{clip_text(type(error).__name__, LONGEST_MESSAGE)}: {quote_message(error)}"


def quote_message(error: BaseException) -> str:
    """Return the message of an exception, clipped: its own methods may fail, and make text of any length."""
    try:
        return clip_text(str(error), LONGEST_MESSAGE)
    except Exception:
        return "(its message cannot be shown)"


def printable_name(text: str) -> str:
    """Return a name or a version of an untrusted program: one printable line, clipped."""
    return " ".join(printable(clip_text(text, _LONGEST_NAME)).split())


def printable(text: str) -> str:
    """Escape control characters and characters that cannot be encoded, other than line breaks and tabs."""
    # The fast path: most texts are printable.
    if text.isprintable() or text.replace("\n", "").replace("\t", "").isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in text)
