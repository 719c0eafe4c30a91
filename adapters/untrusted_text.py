"""Texts of untrusted programs: printable, short, and on one line."""

from __future__ import annotations

import reprlib
from typing import Any, Final, TypeVar

Short = TypeVar("Short", bound=reprlib.Repr)

#: The most characters of an exception's message and of its stack trace.
LONGEST_MESSAGE: Final = 2000
LONGEST_TRACE: Final = 32 << 10
#: The most characters of a name or a version.
_LONGEST_NAME: Final = 200


def limit_repr(maker: Short) -> Short:
    """Return what makes representations, limited to a few elements and characters."""
    maker.maxstring = maker.maxother = 60
    maker.maxlist = maker.maxdict = 3
    maker.maxlevel = 2
    return maker


_SHORT: Final = limit_repr(reprlib.Repr())


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
    return join_lines(clip_text(text, _LONGEST_NAME))


def printable(text: str) -> str:
    """Escape control characters and characters that cannot be encoded, other than line breaks and tabs."""
    # The fast path: most texts are printable.
    if text.isprintable() or text.replace("\n", "").replace("\t", "").isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in text)


def join_lines(text: str) -> str:
    """Return an untrusted text as one line: build servers run commands that stand at the start of a line."""
    return " ".join(printable(text).split())
