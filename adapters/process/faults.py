"""What goes wrong when an implementation is called outside this process.

WireError     a message that is not one of the protocol's
├── TooLarge  one beyond its limits
├── Stray     a line that is no message at all, such as one meant for a log
└── Unasked   a reply to no request
CallFault     a call that gave no result, and whose fault that is
NoSuchMethod  a process that denies a method which it listed
"""

from __future__ import annotations

import json
import re
import reprlib
from typing import Any, Final, Literal

#: Why a call gave no result: the implementation raised; its process ended; it gave no answer in time; what it
#: wrote is no answer; what the call says does not fit into a message. Where a process runs within limits: it asked
#: for more memory, printed more, or was killed by the system; or it did what no honest answer needs.
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
    """What was read from JSON, in the words of JSON."""

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

#: In the place of what a message does not have.
MISSING: Final = object()
#: What is expected where an integer is.
_INTEGER: Final = re.compile(r"\d|(an )?integer")


class WireError(ValueError):
    """What was written is not a message of the protocol; the text names the field, what was got and expected."""

    @classmethod
    def at(cls, field: str, got: Any, expected: str) -> WireError:
        """An error at a field."""
        if got is MISSING:
            return cls(f"{field} is missing, expected {expected}")
        whole = isinstance(got, float) and got.is_integer() and _INTEGER.match(expected)
        hint = "; an integer is written without a fraction" if whole else ""
        return cls(f"{field} is {printable(_SHORT_JSON.repr(got))}, expected {expected}{hint}")


class TooLarge(WireError):
    """An array or a message beyond the protocol's limits."""


class Stray(WireError):
    """A line that is no message at all."""


class Unasked(WireError):
    """A reply to another request than the one that was made."""


class CallFault(Exception):
    """A call that gave no result; the text says why in a sentence, `detail` holds what explains it further."""

    def __init__(self, reason: FaultReason, message: str, detail: str = "") -> None:
        super().__init__(message)
        self.reason: FaultReason = reason
        self.detail = detail


class NoSuchMethod(NotImplementedError):
    """The process says that it has not the method, which it listed when it shook hands."""


def shown(value: Any) -> str:
    """A value of any size and kind in a few words that can be printed."""
    return printable(_SHORT.repr(value))


def clipped(text: str, most: int) -> str:
    """A text, or the beginning and the end of one that has more than so many characters, which is what tells most."""
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]} … {len(text) - 2 * half} characters … {text[-half:]}"


def printable(text: str) -> str:
    """The text without what would steer a terminal or cannot be encoded; line breaks and tabs stay."""
    # Most texts are, and long ones have many lines.
    if text.isprintable() or text.replace("\n", "").replace("\t", "").isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in text)
