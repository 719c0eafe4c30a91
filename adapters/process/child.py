"""A child process and its three pipes: send a line and receive a line, within a time limit and in bounded memory.

Pipes works on any three descriptors; Child starts a command and has its pipes. ChildFault is raised when no line came;
the process is then not used again.
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

from goldformer.adapters.process.faults import FaultReason, describe_status
from goldformer.adapters.process.messages import MAX_MESSAGE
from goldformer.adapters.untrusted_text import abbreviate, printable

#: The number of bytes of standard error that are kept.
TAIL: Final = 8 << 10
_CHUNK: Final = 1 << 20
#: The seconds that a process has to end after it closed its standard output, so that its exit status is known.
_GRACE: Final = 1.0
#: The seconds between two checks of whether a silent process is still running.
_POLL: Final = 0.2


class ChildFault(Exception):
    """No line came; the message is a verb phrase whose subject is the process."""

    def __init__(self, reason: FaultReason, message: str) -> None:
        super().__init__(message)
        self.reason: FaultReason = reason


class Pipes(ABC):
    """Lines to and from a process; the end of its standard error is kept. The descriptors do not block."""

    def __init__(self, stdin: int, stdout: int, stderr: int) -> None:
        self._stdin, self._stdout, self._stderr = stdin, stdout, stderr
        self._ready = selectors.DefaultSelector()
        self._ready.register(stdout, selectors.EVENT_READ)
        self._ready.register(stderr, selectors.EVENT_READ)
        self._unread = b""
        self._tail = b""

    def exchange(self, message: bytes, seconds: float) -> bytes:
        """Send a line and return the next one; ChildFault if no line comes within `seconds`."""
        deadline = time.monotonic() + seconds
        unsent = self._write(memoryview(message))
        if not unsent:
            return self._line(unsent, deadline, seconds)
        self._ready.register(self._stdin, selectors.EVENT_WRITE)
        try:
            return self._line(unsent, deadline, seconds)
        finally:
            with contextlib.suppress(KeyError):
                self._ready.unregister(self._stdin)

    def stderr_tail(self) -> str:
        """Return the end of what it wrote to standard error."""
        return printable(self._tail.decode("utf-8", "replace")).strip("\n")

    def _line(self, unsent: memoryview, deadline: float, seconds: float) -> bytes:
        # One array grows in place, so that a process that writes byte by byte does not cost millions of copies.
        read, self._unread = bytearray(self._unread), b""
        end, late, more = read.find(b"\n"), False, False
        while end < 0:
            if len(read) > MAX_MESSAGE:
                raise ChildFault("protocol", f"sent more than {MAX_MESSAGE >> 20} MiB without a line break")
            if late and not more:
                # Everything that came in time has been read. A process that goes on writing is not waited for.
                raise ChildFault("timeout", _explain_timeout(seconds, len(read), len(unsent)))
            late, more = time.monotonic() >= deadline, False
            events = self._ready.select(min(_POLL, max(0.0, deadline - time.monotonic())))
            if not events and self._has_ended():
                raise self._explain_closed_pipe(len(read))  # a process that it started may hold its pipes open
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
                    raise self._explain_closed_pipe(len(read))
                if chunk:
                    read += chunk
                    end = read.find(b"\n", len(read) - len(chunk))
                    more = len(chunk) == _CHUNK
        line, self._unread = bytes(memoryview(read)[:end]), bytes(memoryview(read)[end + 1 :])
        if unsent:
            raise self._explain_early_answer(line)
        return line

    def _write(self, data: memoryview) -> memoryview:
        """Write until the pipe is full, and return the rest of the data."""
        try:
            while data:
                data = data[os.write(self._stdin, data[:_CHUNK]) :]
        except BlockingIOError:
            pass
        except OSError as error:
            raise self._explain_closed_pipe(0, "input") from error
        return data

    @abstractmethod
    def _has_ended(self) -> bool:
        """Return True if the process has ended."""

    @abstractmethod
    def _explain_closed_pipe(self, size: int, which: str = "output") -> ChildFault:
        """Return the fault for a closed pipe, after `size` bytes of a message; usually the process has ended."""

    def _explain_early_answer(self, line: bytes) -> ChildFault:
        """Return the fault for an answer that came before the whole request was read."""
        text = line[:60].decode("utf-8", "replace")
        return ChildFault("protocol", f"answered before it had read the whole request: {abbreviate(text)}")

    def _read_stderr(self) -> bool:
        chunk = _read(self._stderr)
        if chunk == b"":
            self._ready.unregister(self._stderr)
        if chunk:
            self._keep(chunk)
        return bool(chunk)

    def _keep(self, chunk: bytes) -> None:
        """Keep the end of what was written to standard error."""
        self._tail = (self._tail + chunk)[-TAIL:]

    def _drain(self) -> None:
        """Read the rest of standard error without waiting for more, up to a limit."""
        with contextlib.suppress(KeyError, OSError, ValueError):
            for _ in range(64):
                if not self._read_stderr():
                    return


class Child(Pipes):
    """A process in a session of its own, so that it and the processes that it starts can be ended together.

    A daemon leaves that session, and is left alone: to be found again, it would have to become a child of this process,
    which must not get children that its caller did not start.
    """

    def __init__(self, words: Sequence[str]) -> None:
        """Start the command; OSError if that fails."""
        self._process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0,
            start_new_session=True,
        )  # fmt: skip
        self.owner: Final = os.getpid()
        self._end = weakref.finalize(self, _end, self._process, self.owner, _GRACE)
        pipes = (self._process.stdin, self._process.stdout, self._process.stderr)
        super().__init__(*(_descriptor(pipe) for pipe in pipes))

    def measure_cpu(self) -> float:
        """Return 0: nobody limits it."""
        return 0.0

    def stop(self) -> None:
        """Kill it and the processes that it started, without waiting for their end."""
        if self._end.alive and os.getpid() == self.owner:
            _kill_group(self._process)

    def end(self, grace: float = 0.0) -> None:
        """Wait `grace` seconds for it to end, then kill and reap it and the processes that it started."""
        if self._end.detach():
            self._drain()
            self._ready.close()
            _end(self._process, self.owner, grace)

    def _has_ended(self) -> bool:
        return _read_status(self._process) is not None

    def _explain_closed_pipe(self, size: int, which: str = "output") -> ChildFault:
        half = f" in the middle of a message, after {size} bytes without a line break" if size else ""
        status = _wait_for_status(self._process, _GRACE)
        if status is None:
            return ChildFault("protocol", f"closed its standard {which} and is still running{half}")
        return ChildFault("crashed", f"ended with {describe_status(status)}{half}")


def _explain_timeout(seconds: float, received: int, unsent: int) -> str:
    if received:
        return f"sent {received} bytes but no line break within {seconds:g} s: half a message"
    return f"gave no answer within {seconds:g} s" + (", and did not read all of the request" if unsent else "")


def _descriptor(pipe: IO[bytes] | None) -> int:
    assert pipe is not None  # Popen was called with three pipes
    return prepare_pipe(pipe.fileno())


def prepare_pipe(pipe: int) -> int:
    """Make a pipe non-blocking and as large as possible, and return its descriptor."""
    os.set_blocking(pipe, False)
    if sys.platform == "linux":
        # Each time the pipe is full both sides wake up; a larger pipe wakes them less often.
        with contextlib.suppress(OSError):
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _CHUNK)
    return pipe


def _read(descriptor: int) -> bytes | None:
    """Read what is available; b"" at the end, None if nothing is available now."""
    try:
        return os.read(descriptor, _CHUNK)
    except BlockingIOError:
        return None


def _wait_for_status(process: subprocess.Popen[bytes], seconds: float) -> int | None:
    """Wait for the exit status (a signal's number negated) of a process; None if it still runs after `seconds`."""
    deadline = time.monotonic() + seconds
    while (status := _read_status(process)) is None and time.monotonic() < deadline:
        time.sleep(0.001)
    return status


def _read_status(process: subprocess.Popen[bytes]) -> int | None:
    # Do not reap the process if the system allows: its id still names its group, which is killed later.
    if not hasattr(os, "waitid"):
        return process.poll()
    found = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
    if found is None:
        return None
    return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _end(process: subprocess.Popen[bytes], owner: int, grace: float) -> None:
    """Close its input, wait `grace` seconds, kill its group, and reap it; do nothing in a fork of the suite."""
    if os.getpid() != owner:
        return
    if process.stdin is not None:
        process.stdin.close()
    _wait_for_status(process, grace)
    _kill_group(process)
    process.wait()
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
