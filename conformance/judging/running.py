"""Note what is running, where it can be read after native code has ended this process, and in the message of a stop.

The note is a page of memory, which the parent of a command shares. Each step is also the name of a frame, so that the
stack trace says it that Python's faulthandler prints: in pytest, in Python and in the log of a notebook's server.
"""

from __future__ import annotations

import faulthandler
import mmap
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Final, TypeVar

#: The step in which the code is loaded, and none of its calls can be made elsewhere.
LOADING: Final = "the loading of "

_SIZE: Final = mmap.PAGESIZE
#: The status of the command, and the time at which the last step began, stand before the text.
_STATUS: Final = slice(0, 4)
_SINCE: Final = slice(4, 24)
_TEXT: Final = slice(24, _SIZE)

#: The memory of the note: of this process alone, until it is shared.
_page: Final[list[mmap.mmap | bytearray]] = [bytearray(_SIZE)]
_steps: Final[list[tuple[str, float]]] = []

#: What ended the process of this command before; this one makes the calls in processes of their own.
ended: str = ""

Value = TypeVar("Value")


def share_note() -> None:
    """Keep the note in memory that processes share which are forked from now on."""
    _page[0] = mmap.mmap(-1, _SIZE)


def run_step(step: str, action: Callable[[], Value]) -> Value:
    """Return what an action returns; note it as a step of what is running."""
    _steps.append((step, time.monotonic()))
    _write_note()
    # Its name is all that faulthandler prints of a frame, besides the file and the line.
    named: Callable[[Callable[[], Value]], Value] = FunctionType(_act.__code__.replace(co_name=step), globals())
    try:
        return named(action)
    except KeyboardInterrupt as stop:
        stop.add_note(describe_running())  # the innermost step is the first
        raise
    finally:
        _steps.pop()
        _write_note()


def _act(action: Callable[[], Value]) -> Value:
    return action()


def _write_note() -> None:
    text = " in ".join(step for step, _ in reversed(_steps))
    since = _steps[-1][1] if _steps else 0.0
    _put(_SINCE, f"{since:f}")
    _put(_TEXT, text)


def _put(place: slice, text: str) -> None:
    size = place.stop - place.start
    _page[0][place] = text.encode(errors="replace")[:size].ljust(size, b"\0")


def _get(place: slice) -> str:
    return bytes(_page[0][place]).rstrip(b"\0").decode(errors="replace")


def note_status(status: int) -> None:
    """Note that the command is done, with its exit status: whatever ends its process now changes nothing."""
    _put(_STATUS, str(status))


def read_status() -> int | None:
    """Return the exit status if the command is done."""
    return int(_get(_STATUS)) if _get(_STATUS) else None


def read_running() -> tuple[str, float]:
    """Return what is running, and since when; "" between two steps."""
    return _get(_TEXT), float(_get(_SINCE) or 0)


def describe_running() -> str:
    """Say what is running and for how long; "" between two steps."""
    text, since = read_running()
    return f"{text} had run for {time.monotonic() - since:.1f} s" if text else ""


def describe_interrupted(stop: KeyboardInterrupt) -> str:
    """Return ": " and what Ctrl-C or SIGTERM interrupted, or ""."""
    return "".join(f": {note}" for note in getattr(stop, "__notes__", ())[:1])


@contextmanager
def trace_crash() -> Iterator[None]:
    """Let faulthandler print the steps, with their lines, if native code ends this process in the context."""
    if faulthandler.is_enabled() or sys.__stderr__ is None:
        yield
        return
    faulthandler.enable(sys.__stderr__)
    try:
        yield
    finally:
        faulthandler.disable()
