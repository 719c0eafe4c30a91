"""Record what passes between the grader and a submission, to grade it again without running anything.

A transcript is compressed lines of JSON: a head, and then the events in order. A request is kept as its digest, since a
replay makes the same requests; a reply is kept as it came.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import re
import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, get_args

from goldformer.adapters.notebook import CellNames
from goldformer.adapters.process.child import ChildFault
from goldformer.adapters.process.client import Peer
from goldformer.adapters.process.faults import CallFault, FaultReason, TooLarge, WireError
from goldformer.adapters.process.messages import MAX_MESSAGE
from goldformer.conformance.grading.model import SubmissionLimits
from goldformer.conformance.grading.python_files import MAIN, SUBMISSION
from goldformer.conformance.grading.sandbox import COMPUTING, WAITS
from goldformer.spec.files import unpack_gzip

#: An address in memory, which differs from run to run.
_ADDRESS: Final = re.compile(rb"\bat 0x[0-9a-fA-F]{4,}")
#: The most bytes of all replies of a submission together, which are kept in memory.
_LARGEST: Final = 2 * MAX_MESSAGE
#: The most bytes of a transcript: of the replies, escaped, and of everything else.
_MOST: Final = 3 * _LARGEST
#: The additional size of a byte that JSON escapes.
_ESCAPED: Final = len(r"\u0000") - 1
_PLAIN: Final = bytes(range(0x20, 0x7F))
#: The processor time of an answer that took more seconds is measured. One that took even more may have waited: a
#: hundredth of that time is the shortest that the system measures.
_LONG: Final = 0.1
_WAITING: Final = 1.0
#: Higher levels hardly compress numbers better.
_LEVEL: Final = 1
#: What a text has in it that names a line or a missing name of the submission.
_NAMING: Final = (SUBMISSION.encode(), b"is not defined")
_UNREADABLE: Final = {error.__name__: error for error in (WireError, TooLarge)}

#: The type of each field of an event, and the fields that go together.
_FIELDS: Final = {"start": bool, "over": bool} | dict.fromkeys(
    ("reason", "message", "detail", "request", "reply", "unreadable", "fault", "changed", "stderr"), str
)
_EVENTS: Final = frozenset(
    frozenset(fields.split())
    for fields in (
        "start", "start reason message detail", "over", "changed", "stderr",
        "request reply", "request over", "request fault message", "request unreadable message",
    )
)  # fmt: skip

#: What to do about a file that cannot be read as a transcript.
_RESTORE: Final = "restore it from a copy, or grade the submission again: add --again and --only to the command"

Spawn = Callable[[], Peer]


class ReplayMismatch(Exception):
    """The calls differ from those of the transcript: a case, the spec or goldformer has changed."""


class BadTranscript(ValueError):
    """The file is not a transcript."""


@dataclass
class Transcript:
    """A head and the events of a submission; each event has one key that says what it is, and further ones."""

    head: Mapping[str, Any]
    events: list[Mapping[str, Any]] = field(default_factory=list)

    def pack(self) -> bytes:
        """Return the contents of a file, the same bytes for the same events."""
        buffer = io.BytesIO()
        # Line by line: all lines together would take several times the memory of the replies.
        with gzip.GzipFile(fileobj=buffer, mode="wb", filename="", compresslevel=_LEVEL, mtime=0) as file:
            for line in (self.head, *self.events):
                file.write(json.dumps(line, sort_keys=True).encode("ascii") + b"\n")
        return buffer.getvalue()

    @classmethod
    def unpack(cls, data: bytes) -> Transcript:
        """Return the transcript that `pack` wrote; BadTranscript for other bytes."""
        text = b""
        try:
            text = unpack_gzip(data, _MOST)
            lines = [json.loads(line) for line in text.splitlines()]
        except (OSError, EOFError, ValueError, RecursionError, zlib.error) as error:
            was_cut = isinstance(error, EOFError) or (isinstance(error, ValueError) and not text.endswith(b"\n"))
            what = "it was cut short" if was_cut else error
            raise BadTranscript(f"is no transcript: {what}; {_RESTORE}") from error
        if not lines:
            raise BadTranscript(f"is no transcript: it is empty; {_RESTORE}")
        head, *events = lines
        if not all(isinstance(line, dict) for line in lines):
            raise BadTranscript("is no transcript: a line is no JSON object")
        if not all(map(_is_event, events)):
            raise BadTranscript("is no transcript: a line is no event as it was written")
        return cls(head, events)


class Recorder:
    """Records the answers of a submission's processes, and limits the time that the answers of each component take.

    `hidden` are texts to remove because they differ from run to run, such as
    the submission's folder. `source` is submission.py, whose lines are named by cells if it was a notebook. `broken` is
    an error for which no submission can be blamed.
    """

    def __init__(
        self, transcript: Transcript, limits: SubmissionLimits, hidden: Iterable[str] = (), source: str = ""
    ) -> None:
        self._transcript = transcript
        self._limits = limits
        #: The seconds that each component has used and waited, and the one that is judged.
        self._used: defaultdict[str, float] = defaultdict(float)
        self._waited: defaultdict[str, float] = defaultdict(float)
        self._component = ""
        #: The process that runs, and the seconds that it had used when it was last looked at.
        self._peer: Peer | None = None
        self._seen = 0.0
        self._size = 0
        self._hidden = [text.encode() for text in hidden]
        self._source = source
        self._cells: CellNames | None = None
        self.broken: Exception | None = None
        self.ended = False

    def note(self, **event: Any) -> None:
        """Record an event."""
        if not self.ended:
            self._transcript.events.append(event)

    def wrap(self, spawn: Spawn) -> Spawn:
        """Return a function that starts the same process and records it."""

        def spawn_recorded() -> Peer:
            try:
                self._charge()
                self._require_time()
                peer = spawn()
            except CallFault as fault:
                message, detail = self.hide_text(str(fault)), self.hide_text(fault.detail)
                self.note(start=False, reason=fault.reason, message=message, detail=detail)
                raise CallFault(fault.reason, message, detail) from fault
            except Exception as error:
                # The engine blames the implementation for an exception in a call.
                self.broken = error
                raise
            self.note(start=True)
            self._peer, self._seen = peer, 0.0
            return _RecordedPeer(peer, self)

        return spawn_recorded

    def begin_check(self, component: str) -> bool:
        """Charge to this component what is used from now on; return False if no time is left for it."""
        if component != self._component:
            self._charge()
            self._component = component
        over = self._is_over()
        if over:
            self.note(over=True)
        return not over

    def _is_over(self) -> bool:
        return self._used[self._component] >= self._limits.total

    def _require_time(self) -> None:
        if self._is_over():
            raise _make_timeout(self._limits.total)

    def _charge(self) -> float:
        """Add what the process has used since the last look to the component that is judged, and return it."""
        if self._peer is None:
            return 0.0
        before, self._seen = self._seen, self._peer.measure_cpu()
        used = max(self._seen - before, 0.0)
        self._used[self._component] += used
        return used

    def _charge_answer(self, seconds: float) -> None:
        """Charge an answer that took some seconds of wall time; ChildFault if the component has waited too long.

        A look takes longer than most answers: what short ones use is seen in the next look.
        """
        used = self._charge() if seconds > _LONG else 0.0
        if seconds > _WAITING and used < COMPUTING * seconds:
            self._waited[self._component] += seconds
            if self._waited[self._component] > self._limits.wait:
                raise ChildFault("timeout", f"hardly computed for {self._limits.wait:g} s in several calls: it {WAITS}")

    def exchange(self, peer: Peer, message: bytes, seconds: float) -> bytes:
        """Send a request, and record and return the reply."""
        digest = _digest(message)
        if self._is_over():
            self.note(request=digest, over=True)
        self._require_time()
        start = time.monotonic()
        try:
            reply = self.hide(peer.exchange(message, seconds))
            self._size += len(reply) + _ESCAPED * len(reply.translate(None, _PLAIN))
            if self._size > _LARGEST:
                raise ChildFault("output-limit", f"answered with more than {_LARGEST >> 20} MiB altogether")
            self._charge_answer(time.monotonic() - start)
        except ChildFault as fault:
            text = self.hide_text(str(fault))
            self.note(request=digest, fault=fault.reason, message=text)
            raise ChildFault(fault.reason, text) from fault
        except WireError as error:
            self.note(request=digest, unreadable=type(error).__name__, message=str(error))
            raise
        self.note(request=digest, reply=reply.decode("utf-8", "surrogateescape"))
        return reply

    def hide(self, reply: bytes) -> bytes:
        """Remove from a reply what differs from run to run, and add the cells of a notebook and what it left out."""
        for text in self._hidden:
            if text in reply:
                reply = reply.replace(text, b"")
        if self._source and any(text in reply for text in _NAMING):
            # Once: a student may write a long file, and errors that name its lines many times.
            self._cells = self._cells or CellNames(self._source)
            named = self._cells.add(reply.decode("utf-8", "surrogateescape"), MAIN)
            reply = named.encode("utf-8", "surrogateescape")
        return _ADDRESS.sub(b"at 0x0", reply) if b"at 0x" in reply else reply

    def hide_text(self, text: str) -> str:
        """Remove the same from a text."""
        return self.hide(text.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogatepass")


def _make_timeout(total: float) -> CallFault:
    what = f"the {total:g} s of processor time that all answers of a component together may take are used up"
    return CallFault("timeout", what)


@dataclass(frozen=True)
class _RecordedPeer:
    """A Peer whose messages are recorded."""

    peer: Peer
    recorder: Recorder

    @property
    def owner(self) -> int:
        return self.peer.owner

    def exchange(self, message: bytes, seconds: float) -> bytes:
        return self.recorder.exchange(self.peer, message, seconds)

    def measure_cpu(self) -> float:
        return self.peer.measure_cpu()

    def stop(self) -> None:
        self.peer.stop()

    def end(self, grace: float = 0.0) -> None:
        self.peer.end(grace)

    def stderr_tail(self) -> str:
        stderr = self.recorder.hide_text(self.peer.stderr_tail())
        self.recorder.note(stderr=stderr)
        return stderr


class Replayer:
    """Replaces a submission's processes and repeats their replies; ReplayMismatch if the requests differ."""

    def __init__(self, transcript: Transcript, total: float) -> None:
        self.total = total
        self.broken: Exception | None = None
        self._events = iter(transcript.events)
        self._next: Mapping[str, Any] | None = next(self._events, None)

    def take(self, key: str) -> Mapping[str, Any]:
        """Return the next event; ReplayMismatch if it has not this key."""
        event = self._next
        if event is None or key not in event:
            actual = "the end" if event is None else next(iter(sorted(event)))
            raise self.make_mismatch(f"the transcript goes on with {actual} where {key} was expected")
        self._next = next(self._events, None)
        return event

    def spawn(self) -> Peer:
        """Start the next process of the transcript, or fail as it did."""
        event = self.take("start")
        if not event["start"]:
            raise CallFault(_parse_reason(event["reason"]), event["message"], event["detail"])
        return _ReplayedPeer(self)

    def begin_check(self, component: str) -> bool:
        """Return False if no time was left for the component at this point."""
        del component
        over = self._next is not None and self._next.keys() == {"over"}
        if over:
            self.take("over")
        return not over

    def find_change(self) -> str:
        """Return the name of the file that the submission changed while it was graded, or nothing."""
        return str(self.take("changed")["changed"]) if self._next is not None and "changed" in self._next else ""

    def finish(self) -> None:
        """Raise ReplayMismatch if the requests were not exactly those of the transcript."""
        # The engine blames the implementation for an exception in a call: raise it again here.
        if self.broken is not None:
            raise self.broken
        if self._next is not None:
            raise ReplayMismatch("the transcript goes on after the last check")

    def make_mismatch(self, why: str) -> ReplayMismatch:
        """Return the exception to raise now, and keep the first one for the end."""
        self.broken = self.broken or ReplayMismatch(why)
        return ReplayMismatch(why)


@dataclass(frozen=True)
class _ReplayedPeer:
    """A Peer that takes its replies from a transcript."""

    replayer: Replayer

    @property
    def owner(self) -> int:
        return os.getpid()

    def exchange(self, message: bytes, seconds: float) -> bytes:
        del seconds
        event = self.replayer.take("request")
        if event["request"] != _digest(message):
            why = "another call is made now than the transcript has: a case, the spec or goldformer has changed"
            raise self.replayer.make_mismatch(why)
        if "over" in event:
            raise _make_timeout(self.replayer.total)
        if "unreadable" in event:
            raise _UNREADABLE.get(event["unreadable"], WireError)(event["message"])
        if "fault" in event:
            raise ChildFault(_parse_reason(event["fault"]), event["message"])
        reply: str = event["reply"]
        return reply.encode("utf-8", "surrogateescape")

    def measure_cpu(self) -> float:
        return 0.0

    def stop(self) -> None:
        """Do nothing: no process runs."""

    def end(self, grace: float = 0.0) -> None:
        del grace

    def stderr_tail(self) -> str:
        stderr: str = self.replayer.take("stderr")["stderr"]
        return stderr


def _is_event(line: Mapping[str, Any]) -> bool:
    """Return True if a line has the fields of an event; a start that failed says why."""
    return (
        frozenset(line) in _EVENTS
        and all(type(value) is _FIELDS[name] for name, value in line.items())
        and line.get("start", True) is not ("reason" in line)
    )


def _digest(message: bytes) -> str:
    return hashlib.sha256(message).hexdigest()


def _parse_reason(word: str) -> FaultReason:
    if word not in get_args(FaultReason):
        raise BadTranscript(f"is no transcript: {word!r} is no fault")
    reason: FaultReason = word  # type: ignore[assignment]
    return reason
