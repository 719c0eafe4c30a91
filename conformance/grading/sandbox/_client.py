"""Speak to a sandboxed process: its answers, or why there is none, in words for the author of its code."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Final

from goldformer.adapters.process.child import ChildFault, Pipes, prepare_pipe
from goldformer.adapters.process.client import Client, Peer
from goldformer.adapters.process.faults import CallFault, FaultReason, Unasked, WireError, describe_status
from goldformer.adapters.process.messages import MAX_MESSAGE
from goldformer.adapters.process.patience import NOT_ASKED
from goldformer.conformance.grading.sandbox._types import COMPUTING, WAITS, Limits

#: Seconds that a process which closed its connection gets to end.
_GRACE: Final = 1.0
#: Seconds between two looks at a process that keeps writing; at a silent one, the wait for its pipes looks.
_POLL: Final = 0.2
_MIB: Final = 1 << 20
#: The end of a process: its status, seconds of cpu, and whether it was killed because it was out_of_memory.
Ending = Mapping[str, Any]
#: The state of a process: whether it has ended, and the seconds of cpu that it and those that it started have used.
State = Mapping[str, Any]
_LONGEST_HANDSHAKE: Final = 64 << 10
#: The most numbers that an answer may write out, instead of as bytes: as many as fit into a message with all their
#: digits. To decode a message full of zeros takes seconds of the grader, which no limit counts, and a gigabyte.
MOST_WRITTEN: Final = MAX_MESSAGE // 16
_MEMORY: Final = re.compile(
    r"(\S+:\d+: )?_?(Array)?MemoryError\b|.*(DefaultCPUAllocator: can't allocate memory|cannot allocate memory)", re.S
)
_FULL: Final = re.compile(r"(\S+:\d+: )?OSError: \[Errno (27|28)\]")


class SandboxProcess(Pipes):
    """The three pipes of one sandboxed process: requests, replies, and its output.

    They are pipes, because open files can be sent over a socket, and closing such a file may take for ever.
    """

    def __init__(
        self,
        pipes: tuple[int, int, int],
        limits: Limits,
        look: Callable[[], State],
        kill: Callable[[], object],
        end: Callable[[], Ending],
    ) -> None:
        """Take over a process that somebody else started, with the functions that look at it, kill it and end it."""
        self.owner: Final = os.getpid()
        self._limits = limits
        self._printed = 0
        self._look, self._kill, self._finish = look, kill, end
        #: The seconds of processor time that the present call may take, those that were used before it, and its begin.
        self._most: float | None = None
        self._used_before: float | None = None
        self._began = self._looked = 0.0
        self._has_answered = False
        self._ending: Ending | None = None
        self._descriptors = weakref.finalize(self, _close_descriptors, pipes, self.owner)
        super().__init__(*map(prepare_pipe, pipes))

    def find_problem(self, seconds: float) -> str:
        """Wait until the process is isolated; return why it is not, or nothing. It has run no other code by then."""
        try:
            report = json.loads(self._line(memoryview(b""), time.monotonic() + seconds, seconds))
        except (ChildFault, ValueError) as error:
            stderr = self.stderr_tail()
            return f"it {error}" + (f": {stderr.splitlines()[-1]}" if stderr else "")
        return "" if report.get("ready") else str(report.get("failed"))

    def exchange(self, message: bytes, seconds: float) -> bytes:
        """Send a line and return the next one; ChildFault if none comes, or if one came before it was requested."""
        if self._unread or self._has_sent():
            raise _make_unrequested_fault()
        self._most = self._limits.call if self._has_answered else self._limits.start
        self._used_before = None
        self._began = self._looked = time.monotonic()
        try:
            line = super().exchange(message, seconds)
        finally:
            self._most = None
        self._has_answered = True
        # Everything printed before the answer is in the pipe: count it however busy this machine is.
        with contextlib.suppress(KeyError):  # the pipe is closed
            while self._read_stderr():
                pass
        return line

    def measure_cpu(self) -> float:
        """Return the seconds of processor time that the process and those that it started have used."""
        return float((self._ending or self._look())["cpu"])

    def stop(self) -> None:
        """Kill the process without waiting for its end: its namespaces take a while to be removed."""
        if self._descriptors.alive and self._ending is None:
            self._kill()

    def end(self, grace: float = 0.0) -> None:
        """End the process and everything that it started, after at most `grace` seconds."""
        if self._descriptors.alive:
            deadline = time.monotonic() + grace
            while not self._has_ended() and time.monotonic() < deadline:
                time.sleep(0.001)
            with contextlib.suppress(ChildFault):
                self._drain()
            self._ready.close()
            self._descriptors()
            self._end()

    def _end(self) -> Ending:
        if self._ending is None:
            self._ending = self._finish()
        return self._ending

    def _has_sent(self) -> bool:
        try:
            return os.read(self._stdout, 1) != b""
        except OSError:
            return False  # nothing is there; or the pipe is closed, which the exchange reports

    def _keep(self, chunk: bytes) -> None:
        super()._keep(chunk)
        self._printed += len(chunk)
        if self._printed > self._limits.output * _MIB:
            raise ChildFault("output-limit", f"printed more than {self._limits.output} MiB")
        if self._most is not None and time.monotonic() - self._looked > _POLL:
            self._has_ended()

    def _has_ended(self) -> bool:
        if self._ending is not None:
            return True
        state = self._look()
        if self._most is not None and not state["ended"]:
            self._check_time(state["cpu"], self._most)
        return bool(state["ended"])

    def _check_time(self, used: float, most: float) -> None:
        """Raise ChildFault if the present call has used more processor time than it may, or waits for something.

        The load of the machine decides about neither. The first look of a call, a fraction of a second after its
        beginning, says what was used before.
        """
        self._looked = time.monotonic()
        if self._used_before is None:
            self._used_before = used
        if used - self._used_before > most:
            raise ChildFault("timeout", f"gave no answer within {most:g} s of processor time")
        seconds = self._looked - self._began
        if seconds > self._limits.wait and used - self._used_before < COMPUTING * seconds:
            raise ChildFault("timeout", f"hardly computed for {self._limits.wait:g} s: it {WAITS}")

    def _explain_closed_pipe(self, size: int, which: str = "output") -> ChildFault:
        del which
        partial = f" in the middle of an answer, after {size} bytes" if size else ""
        deadline = time.monotonic() + _GRACE
        while not self._has_ended():
            if time.monotonic() >= deadline:
                return ChildFault("protocol", f"closed its connection and goes on running{partial}")
            time.sleep(0.001)
        self._drain()
        reason, what = _explain_end(self._end(), self._limits)
        return ChildFault(reason, f"{what}{partial}")

    def _explain_early_answer(self, line: bytes) -> ChildFault:
        del line
        return _make_unrequested_fault()


def _make_unrequested_fault() -> ChildFault:
    return ChildFault("tampered", "wrote to the grader's connection without being asked, which no honest code does")


def _close_descriptors(descriptors: tuple[int, ...], owner: int) -> None:
    if os.getpid() == owner:
        for descriptor in descriptors:
            os.close(descriptor)


def _explain_end(ending: Ending, limits: Limits) -> tuple[FaultReason, str]:
    """Return why a process ended, as a verb phrase whose subject is the process."""
    status = ending["status"]
    if ending.get("out_of_memory"):
        return "memory", f"used more than {limits.memory} MiB of memory"
    # The first process of a PID namespace does not get SIGXCPU, but SIGKILL one second later.
    if status == -signal.SIGXCPU or (status == -signal.SIGKILL and ending["cpu"] >= limits.cpu):
        return "timeout", f"used more than {limits.cpu:g} s of processor time"
    if status == -signal.SIGXFSZ:
        return "output-limit", f"wrote a file of more than {limits.file} MiB"
    if status < 0:
        return "killed", f"was ended by {describe_status(status)}"
    return "crashed", f"ended with {describe_status(status)}"


class SandboxClient(Client):
    """The calls of one submission within its limits, with faults described for its author."""

    # Reading an answer outside the protocol may take half a minute, which no limit counts.
    GIVE_UP_ON = frozenset({"timeout", "protocol", "tampered"})

    def __init__(self, spawn: Callable[[], Peer], limits: Limits) -> None:
        """Remember how to start a process; the first call starts it."""
        super().__init__(spawn, limits.call)
        self._limits = limits
        self._waiting: set[str] = set()

    def call(
        self, method: str, arguments: Mapping[str, Any], most: int | None = None, *, has_state: bool = False
    ) -> dict[str, Any] | None:
        """Call a method as a Client does, but none of a component that waited once: it would wait again."""
        component = method.removesuffix("_gradient")
        if component in self._waiting:
            raise CallFault("timeout", f"{NOT_ASKED}an earlier call of {component} {WAITS}")
        try:
            return super().call(method, arguments, most, has_state=has_state)
        except CallFault as fault:
            if fault.reason == "timeout" and WAITS in str(fault):
                self._waiting.add(component)
            raise

    def close(self) -> None:
        """End the process without a farewell."""
        with self._lock:
            child, self._child = self._own_child(), None
            if child is not None:
                child.end()

    def _exchange(self, child: Peer, message: bytes, method: str) -> bytes:
        most = self._limits.start if method == "initialize" else self._limits.call
        # A process that computes has used its time by then, and one that does not is found to wait.
        line = child.exchange(message, self._limits.wait + most / COMPUTING)
        if method == "initialize" and len(line) > _LONGEST_HANDSHAKE:
            # Its names are looked up, and quoted if they are unknown.
            raise ChildFault("protocol", f"says more of itself than {_LONGEST_HANDSHAKE >> 10} KiB")
        if line.count(b",") > MOST_WRITTEN:
            raise ChildFault("protocol", f"writes out more than {MOST_WRITTEN} numbers: they are sent as bytes")
        return line

    def _fault(self, fault: ChildFault, method: str, child: Peer) -> CallFault:
        doing = "while it was imported" if method == "initialize" else f"when it was asked for {method}"
        what = str(fault)
        return CallFault(fault.reason, f"the process {what} {doing}", child.stderr_tail())

    def _no_answer(self, method: str, error: WireError, child: Peer) -> CallFault:
        reason: FaultReason = "tampered" if isinstance(error, Unasked) else "protocol"
        what = f"the process wrote something else than an answer to {method}: {error}"
        return CallFault(reason, what, child.stderr_tail())

    def _explain_error(self, message: str, code: int, detail: str) -> CallFault:
        del code
        limits = self._limits
        if _MEMORY.match(message):
            return CallFault("memory", f"used more than {limits.memory} MiB of memory: {message}", detail)
        if _FULL.match(message):
            return CallFault("output-limit", f"wrote more than {limits.file} MiB to files: {message}", detail)
        return CallFault("raised", message, detail)
