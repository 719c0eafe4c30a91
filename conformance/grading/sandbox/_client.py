"""A submission's process as the suite sees it: what comes out of it, and why nothing does, in words for a student."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from goldformer.adapters.process.child import ChildFault, Pipes, describe, unblocked
from goldformer.adapters.process.client import Client, Peer
from goldformer.adapters.process.faults import CallFault, FaultReason, Unasked, WireError
from goldformer.conformance.grading.model import Limits

#: How long a process that closed its connection is given to end.
_GRACE: Final = 1.0
_MIB: Final = 1 << 20
_LONGEST_HANDSHAKE: Final = 64 << 10
_MEMORY: Final = re.compile(
    r"(\S+:\d+: )?_?(Array)?MemoryError\b|.*(DefaultCPUAllocator: can't allocate memory|cannot allocate memory)", re.S
)
_FULL: Final = re.compile(r"(\S+:\d+: )?OSError: \[Errno (27|28)\]")


class Keeper(Protocol):
    """What started a process and can end it."""

    def look(self, pid: int) -> bool:
        """Whether it has ended."""

    def end(self, pid: int) -> Mapping[str, Any]:
        """End it and all that it started; how it ended."""


class BoxPeer(Pipes):
    """The pipes of one process: to it, from it, and what it prints.

    They are no socket: with what is sent over one come open files, and closing such a file may take for ever.
    """

    def __init__(self, pid: int, pipes: tuple[int, int, int], keeper: Keeper, limits: Limits) -> None:
        """Take the process over; `keeper` ends it."""
        self.owner: Final = os.getpid()
        self._limits = limits
        self._printed = 0
        self._keeper = keeper
        self._pid = pid
        self._ending: Mapping[str, Any] | None = None
        self._descriptors = weakref.finalize(self, _closed, pipes, self.owner)
        super().__init__(*map(unblocked, pipes))

    def problem(self, seconds: float) -> str:
        """Why it is not shut in, once it has said so; empty when it is. Nothing of the submission has run then."""
        try:
            said = json.loads(self._line(memoryview(b""), time.monotonic() + seconds, seconds))
        except (ChildFault, ValueError) as error:
            told = self.stderr_tail()
            return f"it {error}" + (f": {told.splitlines()[-1]}" if told else "")
        return "" if said.get("ready") else str(said.get("failed"))

    def exchange(self, message: bytes, seconds: float) -> bytes:
        """Send a line and return the next one; ChildFault when none comes, or one was there before it was asked for."""
        if self._unread or self._has_sent():
            raise _unasked()
        line = super().exchange(message, seconds)
        # What was printed before the answer is in the pipe by now: it counts, however busy this machine is.
        with contextlib.suppress(KeyError):  # it is closed
            while self._read_stderr():
                pass
        return line

    def end(self, grace: float = 0.0) -> None:
        """End it and all that it started, after so many seconds in which it may end by itself."""
        if self._descriptors.alive:
            deadline = time.monotonic() + grace
            while not self._ended() and time.monotonic() < deadline:
                time.sleep(0.001)
            with contextlib.suppress(ChildFault):
                self._drain()
            self._ready.close()
            self._descriptors()
            self._end()

    def _end(self) -> Mapping[str, Any]:
        if self._ending is None:
            self._ending = self._keeper.end(self._pid)
        return self._ending

    def _has_sent(self) -> bool:
        try:
            return os.read(self._stdout, 1) != b""
        except OSError:
            return False  # nothing is there, or it is closed, as the exchange will say

    def _keep(self, chunk: bytes) -> None:
        super()._keep(chunk)
        self._printed += len(chunk)
        if self._printed > self._limits.output * _MIB:
            raise ChildFault("output-limit", f"printed more than {self._limits.output} MiB")

    def _ended(self) -> bool:
        return self._ending is not None or self._keeper.look(self._pid)

    def _closed(self, size: int, which: str = "output") -> ChildFault:
        del which
        half = f" in the middle of an answer, after {size} bytes" if size else ""
        deadline = time.monotonic() + _GRACE
        while not self._ended():
            if time.monotonic() >= deadline:
                return ChildFault("protocol", f"closed its connection and goes on running{half}")
            time.sleep(0.001)
        self._drain()
        reason, what = _why(self._end(), self._limits)
        return ChildFault(reason, f"{what}{half}")

    def _early(self, line: bytes) -> ChildFault:
        del line
        return _unasked()


def _unasked() -> ChildFault:
    return ChildFault("tampered", "wrote to the grader's connection without being asked, which no honest code does")


def _closed(descriptors: tuple[int, ...], owner: int) -> None:
    if os.getpid() == owner:
        for descriptor in descriptors:
            os.close(descriptor)


def _why(ending: Mapping[str, Any], limits: Limits) -> tuple[FaultReason, str]:
    """Why a process ended, as a verb phrase whose subject is the process."""
    status = ending["status"]
    if ending.get("out_of_memory"):
        return "memory", f"used more than {limits.memory} MiB of memory"
    # The first process of a namespace is not sent the first of the two signals, but one second later the second.
    if status == -signal.SIGXCPU or (status == -signal.SIGKILL and ending["cpu"] >= limits.cpu):
        return "timeout", f"used more than {limits.cpu:g} s of processor time"
    if status == -signal.SIGXFSZ:
        return "output-limit", f"wrote a file of more than {limits.file} MiB"
    if status < 0:
        return "killed", f"was ended by {describe(status)}"
    return "crashed", f"ended with {describe(status)}"


class Boxed(Client):
    """The calls of one submission, within its limits; what goes wrong is said to the student."""

    def __init__(self, spawn: Callable[[], Peer], limits: Limits) -> None:
        """Remember how to start a process; none is started yet."""
        super().__init__(spawn, limits.call)
        self._limits = limits
        self._spent = 0.0

    def call(self, method: str, given: Mapping[str, Any]) -> dict[str, Any] | None:
        """The arrays that a call gives, by name; NotImplementedError or CallFault when there are none."""
        if self._spent >= self._limits.total:
            raise CallFault("timeout", self._all_spent())
        return super().call(method, given)

    def close(self) -> None:
        """End what was started: nothing is left to be said to it."""
        with self._lock:
            child, self._child = self._mine(), None
            if child is not None:
                child.end()

    def _exchange(self, child: Peer, message: bytes, method: str) -> bytes:
        limits = self._limits
        seconds = limits.start if method == "initialize" else limits.call
        left = limits.total - self._spent
        if left <= 0:
            raise ChildFault("timeout", "")
        started = time.monotonic()
        try:
            line = child.exchange(message, min(seconds, left))
        finally:
            # The submission's own time alone: it is not charged for being judged.
            self._spent += time.monotonic() - started
        if method == "initialize" and len(line) > _LONGEST_HANDSHAKE:
            # Its names are looked up, and quoted where they are no components.
            raise ChildFault("protocol", f"says more of itself than {_LONGEST_HANDSHAKE >> 10} KiB")
        return line

    def _all_spent(self) -> str:
        return f"the time of {self._limits.total:g} s for the whole submission is used up"

    def _fault(self, fault: ChildFault, method: str, child: Peer) -> CallFault:
        told = child.stderr_tail()
        doing = "while it was imported" if method == "initialize" else f"when it was asked for {method}"
        if fault.reason != "timeout" or "processor" in str(fault):
            return CallFault(fault.reason, f"the process {fault} {doing}", told)
        if self._spent >= self._limits.total:
            return CallFault("timeout", self._all_spent(), told)
        seconds = self._limits.start if method == "initialize" else self._limits.call
        return CallFault("timeout", f"the process gave no answer within {seconds:g} s {doing}", told)

    def _no_answer(self, method: str, error: WireError, child: Peer) -> CallFault:
        told = child.stderr_tail()
        reason: FaultReason = "tampered" if isinstance(error, Unasked) else "protocol"
        return CallFault(reason, f"the process wrote what is no answer to {method}: {error}", told)

    def _raised(self, message: str, code: int, detail: str) -> CallFault:
        del code
        limits = self._limits
        if _MEMORY.match(message):
            return CallFault("memory", f"used more than {limits.memory} MiB of memory: {message}", detail)
        if _FULL.match(message):
            return CallFault("output-limit", f"wrote more than {limits.file} MiB to files: {message}", detail)
        return CallFault("raised", message, detail)
