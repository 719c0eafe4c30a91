"""A child process and its three pipes: a line to it, a line from it, within a time and in bounded memory.

ChildFault
└── raised when no line came; the process is then of no further use
Pipes   lines over any three descriptors
Child   those of a command
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import selectors
import signal
import subprocess
import sys
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import IO, Final

from goldformer.adapters.process.faults import FaultReason, printable, shown
from goldformer.adapters.process.schema import MAX_MESSAGE

#: How much of standard error is kept.
TAIL: Final = 8 << 10
_CHUNK: Final = 1 << 20
#: How long a process that closed its standard output is given to end, so that its exit status is known.
_GRACE: Final = 1.0
#: How often one looks whether a process that is silent is still there.
_LOOK: Final = 0.2


class ChildFault(Exception):
    """Why no line came, as a verb phrase whose subject is the process."""

    def __init__(self, reason: FaultReason, message: str) -> None:
        super().__init__(message)
        self.reason: FaultReason = reason


class Pipes(ABC):
    """Lines to a process and from it, while what it writes to standard error is kept aside.

    The descriptors do not block.
    """

    def __init__(self, stdin: int, stdout: int, stderr: int) -> None:
        self._stdin, self._stdout, self._stderr = stdin, stdout, stderr
        self._ready = selectors.DefaultSelector()
        self._ready.register(stdout, selectors.EVENT_READ)
        self._ready.register(stderr, selectors.EVENT_READ)
        self._unread = b""
        self._tail = b""

    def exchange(self, message: bytes, seconds: float) -> bytes:
        """Send a line and return the next one; ChildFault when none comes within so many seconds."""
        deadline = time.monotonic() + seconds
        unsent = self._write(memoryview(message))
        if unsent:
            self._ready.register(self._stdin, selectors.EVENT_WRITE)
        try:
            return self._line(unsent, deadline, seconds)
        finally:
            with contextlib.suppress(KeyError):
                self._ready.unregister(self._stdin)

    def stderr_tail(self) -> str:
        """The last that it wrote to standard error."""
        return printable(self._tail.decode("utf-8", "replace")).strip("\n")

    def _line(self, unsent: memoryview, deadline: float, seconds: float) -> bytes:
        # One array: who writes byte by byte would make millions of them.
        read, self._unread = bytearray(self._unread), b""
        end, late, more = read.find(b"\n"), False, False
        while end < 0:
            if len(read) > MAX_MESSAGE:
                raise ChildFault("protocol", f"sent more than {MAX_MESSAGE >> 20} MiB without a line break")
            if late and not more:
                # What was there in time has been read; who goes on writing is not listened to.
                raise ChildFault("timeout", _late(seconds, len(read), len(unsent)))
            late, more = time.monotonic() >= deadline, False
            events = self._ready.select(min(_LOOK, max(0.0, deadline - time.monotonic())))
            if not events and self._ended():
                raise self._closed(len(read))  # what it started may hold its pipes open
            ready = [key.fd for key, _ in events]
            if self._stderr in ready:
                self._read_stderr()
            if self._stdin in ready:
                unsent = self._write(unsent)
                if not unsent:
                    self._ready.unregister(self._stdin)
            if self._stdout in ready:
                chunk = _read(self._stdout)
                if chunk == b"":
                    raise self._closed(len(read))
                if chunk:
                    read += chunk
                    end = read.find(b"\n", len(read) - len(chunk))
                    more = len(chunk) == _CHUNK
        line, self._unread = bytes(memoryview(read)[:end]), bytes(memoryview(read)[end + 1 :])
        if unsent:
            raise self._early(line)
        return line

    def _write(self, data: memoryview) -> memoryview:
        """What is left of the data when the pipe is full."""
        try:
            while data:
                data = data[os.write(self._stdin, data[:_CHUNK]) :]
        except BlockingIOError:
            pass
        except OSError as error:
            raise self._closed(0, "input") from error
        return data

    @abstractmethod
    def _ended(self) -> bool:
        """Whether the process has ended."""

    @abstractmethod
    def _closed(self, size: int, which: str = "output") -> ChildFault:
        """What it means that a pipe is closed, after so many bytes of a message: most often, that it ended."""

    def _early(self, line: bytes) -> ChildFault:
        """What it means that an answer came before the request was read."""
        text = line[:60].decode("utf-8", "replace")
        return ChildFault("protocol", f"answered before it had read the whole request: {shown(text)}")

    def _read_stderr(self) -> bool:
        chunk = _read(self._stderr)
        if chunk == b"":
            self._ready.unregister(self._stderr)
        if chunk:
            self._keep(chunk)
        return bool(chunk)

    def _keep(self, chunk: bytes) -> None:
        """Keep the last of what was written to standard error."""
        self._tail = (self._tail + chunk)[-TAIL:]

    def _drain(self) -> None:
        """Read what is left of standard error, without waiting for more; a flood of it is cut off."""
        with contextlib.suppress(KeyError, OSError, ValueError):
            for _ in range(64):
                if not self._read_stderr():
                    return


class Child(Pipes):
    """A process in a session of its own, so that it and what it starts can be ended together."""

    def __init__(self, words: Sequence[str]) -> None:
        """Start it; OSError when it cannot be."""
        self._process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0,
            start_new_session=True,
        )  # fmt: skip
        self.owner: Final = os.getpid()
        self._end = weakref.finalize(self, _end, self._process, self.owner, _GRACE)
        pipes = (self._process.stdin, self._process.stdout, self._process.stderr)
        super().__init__(*(_descriptor(pipe) for pipe in pipes))

    def end(self, grace: float = 0.0) -> None:
        """End it and all that it started, after so many seconds in which it may end by itself, and reap it."""
        if self._end.detach():
            self._drain()
            self._ready.close()
            _end(self._process, self.owner, grace)

    def _ended(self) -> bool:
        return _status(self._process) is not None

    def _closed(self, size: int, which: str = "output") -> ChildFault:
        half = f" in the middle of a message, after {size} bytes without a line break" if size else ""
        status = _status_within(self._process, _GRACE)
        if status is None:
            return ChildFault("protocol", f"closed its standard {which} and goes on running{half}")
        return ChildFault("crashed", f"ended with {describe(status)}{half}")


def describe(status: int) -> str:
    """An exit status, or the signal that ended a process, in words."""
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"signal {signal.Signals(-status).name}"
    except ValueError:
        return f"signal {-status}"


def _late(seconds: float, received: int, unsent: int) -> str:
    if received:
        return f"sent {received} bytes but no line break within {seconds:g} s: half a message"
    return f"gave no answer within {seconds:g} s" + (", and did not read all of the request" if unsent else "")


def _descriptor(pipe: IO[bytes] | None) -> int:
    assert pipe is not None  # all three were asked for
    return unblocked(pipe.fileno())


def unblocked(pipe: int) -> int:
    """The same end of a pipe, which from now on does not block, and is as wide as it may be."""
    os.set_blocking(pipe, False)
    if sys.platform == "linux":
        # A message of megabytes wakes each side once for every time it is filled.
        with contextlib.suppress(OSError):
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _CHUNK)
    return pipe


def _read(descriptor: int) -> bytes | None:
    """What is there; b"" at the end, None when nothing is there now."""
    try:
        return os.read(descriptor, _CHUNK)
    except BlockingIOError:
        return None


def _status_within(process: subprocess.Popen[bytes], seconds: float) -> int | None:
    """The exit status (a signal's number negated) of a process that ends by itself; None while it runs."""
    deadline = time.monotonic() + seconds
    while (status := _status(process)) is None and time.monotonic() < deadline:
        time.sleep(0.001)
    return status


def _status(process: subprocess.Popen[bytes]) -> int | None:
    # Not reaped, where the system can tell without: its number still stands for its group, which is ended later.
    if not hasattr(os, "waitid"):
        return process.poll()
    found = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
    if found is None:
        return None
    return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status


def _end(process: subprocess.Popen[bytes], owner: int, grace: float) -> None:
    """Close its input, wait a little, kill its group, and reap it; a forked copy of the suite leaves it alone."""
    if os.getpid() != owner:
        return
    if process.stdin is not None:
        process.stdin.close()
    _status_within(process, grace)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
