"""What passed between the grader and a submission, kept so that a grade can be made again without running anything.

A transcript is lines of JSON, packed: a head, and then what happened, in order. A request is kept as its digest, since
grading again asks for the same; a reply as it came.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, get_args

from goldformer.adapters.process.child import ChildFault
from goldformer.adapters.process.client import Peer
from goldformer.adapters.process.faults import CallFault, FaultReason, TooLarge, WireError
from goldformer.adapters.process.schema import MAX_MESSAGE

#: Where something lies in memory is another place every time, and tells nothing.
_ADDRESS: Final = re.compile(rb"\bat 0x[0-9a-fA-F]{4,}")
#: Bytes of all replies of a submission together as they are written down, which are all kept in memory.
_MOST_KEPT: Final = 2 * MAX_MESSAGE
#: What a byte that JSON escapes takes more than one that it does not.
_ESCAPED: Final = len(r"\u0000") - 1
_PLAIN: Final = bytes(range(0x20, 0x7F))
#: Numbers hardly pack, however long one tries.
_LEVEL: Final = 1
_UNREADABLE: Final = {error.__name__: error for error in (WireError, TooLarge)}

Spawn = Callable[[], Peer]


class Unlike(Exception):
    """What is asked for now is not what the transcript was asked: something that decides has changed."""


class BadTranscript(ValueError):
    """What was read is no transcript."""


@dataclass
class Transcript:
    """What happened: a head, and events of one key each, with what belongs to them."""

    head: Mapping[str, Any]
    events: list[Mapping[str, Any]] = field(default_factory=list)

    def packed(self) -> bytes:
        """As a file, the same bytes for the same events."""
        held = io.BytesIO()
        # Line by line: together they are several times as large as what was said.
        with gzip.GzipFile(fileobj=held, mode="wb", filename="", compresslevel=_LEVEL, mtime=0) as file:
            for line in (self.head, *self.events):
                file.write(json.dumps(line, sort_keys=True).encode("ascii") + b"\n")
        return held.getvalue()

    @classmethod
    def unpacked(cls, data: bytes) -> Transcript:
        """The inverse of packed; BadTranscript for other bytes."""
        try:
            head, *events = [json.loads(line) for line in gzip.decompress(data).splitlines()]
        except (OSError, EOFError, ValueError) as error:
            raise BadTranscript(f"is no transcript: {error}") from error
        if not all(isinstance(line, dict) for line in (head, *events)):
            raise BadTranscript("is no transcript: a line is no JSON object")
        return cls(head, events)


class Recorder:
    """Wraps what starts a submission's processes, keeps the time that they take, and writes down what they say.

    `total` is in seconds, for all answers together; `hidden` are texts that differ from run to run and are taken out,
    such as the folder that the submission lay in. `broken` is what went wrong that no submission can be blamed for.
    """

    def __init__(self, transcript: Transcript, total: float, hidden: Iterable[str] = ()) -> None:
        self._transcript = transcript
        self._total = total
        self._left = total
        self._kept = 0
        self._hidden = [text.encode() for text in hidden]
        self.broken: Exception | None = None
        self.ended = False

    def note(self, **event: Any) -> None:
        """Write something down."""
        if not self.ended:
            self._transcript.events.append(event)

    def wrap(self, spawn: Spawn) -> Spawn:
        """The same, watched."""

        def watched() -> Peer:
            try:
                if self._left <= 0:
                    raise self._used_up()
                peer = spawn()
            except CallFault as fault:
                told = self.plain_text(str(fault)), self.plain_text(fault.detail)
                self.note(start=False, reason=fault.reason, message=told[0], detail=told[1])
                raise CallFault(fault.reason, *told) from fault
            except Exception as error:
                # The engine takes what is raised in a call for the implementation's.
                self.broken = error
                raise
            self.note(start=True)
            return _Recorded(peer, self)

        return watched

    def used_up(self) -> bool:
        """Whether no time is left; asked between checks."""
        over = self._left <= 0
        if over:
            self.note(over=True)
        return over

    def exchange(self, peer: Peer, message: bytes, seconds: float) -> bytes:
        """One request and what came back."""
        asked = _digest(message)
        started = time.monotonic()
        try:
            reply = self.plain(peer.exchange(message, min(seconds, self._left)))
            self._kept += len(reply) + _ESCAPED * len(reply.translate(None, _PLAIN))
            if self._kept > _MOST_KEPT:
                raise ChildFault("output-limit", f"answered with more than {_MOST_KEPT >> 20} MiB altogether")
        except ChildFault as fault:
            self._left -= time.monotonic() - started
            told = self.plain_text(str(fault))
            if fault.reason == "timeout" and self._left <= 0:
                self.note(request=asked, over=True)
                raise self._used_up() from fault
            self.note(request=asked, fault=fault.reason, message=told)
            raise ChildFault(fault.reason, told) from fault
        except WireError as error:
            self.note(request=asked, unreadable=type(error).__name__, message=str(error))
            raise
        # The answers' own time: nobody is charged for being judged.
        self._left -= time.monotonic() - started
        self.note(request=asked, reply=reply.decode("utf-8", "surrogateescape"))
        return reply

    def _used_up(self) -> CallFault:
        return used_up(self._total)

    def plain(self, said: bytes) -> bytes:
        """What was said, without what differs from run to run."""
        for text in self._hidden:
            if text in said:
                said = said.replace(text, b"")
        return _ADDRESS.sub(b"at 0x0", said) if b"at 0x" in said else said

    def plain_text(self, said: str) -> str:
        """The same of a text."""
        return self.plain(said.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogatepass")


def used_up(total: float) -> CallFault:
    """All the time is gone."""
    return CallFault("timeout", f"the {total:g} s that all answers together may take are used up")


@dataclass(frozen=True)
class _Recorded:
    """A Peer whose words are written down."""

    peer: Peer
    recorder: Recorder

    @property
    def owner(self) -> int:
        return self.peer.owner

    def exchange(self, message: bytes, seconds: float) -> bytes:
        return self.recorder.exchange(self.peer, message, seconds)

    def end(self, grace: float = 0.0) -> None:
        self.peer.end(grace)

    def stderr_tail(self) -> str:
        told = self.recorder.plain_text(self.peer.stderr_tail())
        self.recorder.note(stderr=told)
        return told


class Replayer:
    """Takes the place of a submission's processes, and says again what they said; Unlike when asked something else."""

    def __init__(self, transcript: Transcript, total: float) -> None:
        self.total = total
        self.broken: Exception | None = None
        self._events = iter(transcript.events)
        self._next: Mapping[str, Any] | None = next(self._events, None)

    def take(self, key: str) -> Mapping[str, Any]:
        """The next event, which is of that kind."""
        event = self._next
        if event is None or key not in event:
            said = "the end" if event is None else next(iter(sorted(event)))
            raise self.unlike(f"the transcript goes on with {said} where {key} was expected")
        self._next = next(self._events, None)
        return event

    def spawn(self) -> Peer:
        """A process that was started, or was not."""
        event = self.take("start")
        if not event["start"]:
            raise CallFault(_reason(event["reason"]), event["message"], event["detail"])
        return _Replayed(self)

    def used_up(self) -> bool:
        """Whether no time was left here."""
        over = self._next is not None and self._next.keys() == {"over"}
        if over:
            self.take("over")
        return over

    def changed(self) -> str:
        """The file that the submission changed while it was graded, if it did."""
        return str(self.take("changed")["changed"]) if self._next is not None and "changed" in self._next else ""

    def finish(self) -> None:
        """Unlike when it was not asked just what the transcript was."""
        # The engine takes what is raised in a call for the implementation's.
        if self.broken is not None:
            raise self.broken
        if self._next is not None:
            raise Unlike("the transcript goes on after the last check")

    def unlike(self, why: str) -> Unlike:
        """What is raised now, and said at the end."""
        self.broken = self.broken or Unlike(why)
        return Unlike(why)


@dataclass(frozen=True)
class _Replayed:
    """A Peer that is not there."""

    replayer: Replayer

    @property
    def owner(self) -> int:
        return os.getpid()

    def exchange(self, message: bytes, seconds: float) -> bytes:
        del seconds
        event = self.replayer.take("request")
        if event["request"] != _digest(message):
            why = "another call is made now than the transcript has: a case, the spec or goldformer has changed"
            raise self.replayer.unlike(why)
        if "over" in event:
            raise used_up(self.replayer.total)
        if "unreadable" in event:
            raise _UNREADABLE.get(event["unreadable"], WireError)(event["message"])
        if "fault" in event:
            raise ChildFault(_reason(event["fault"]), event["message"])
        reply: str = event["reply"]
        return reply.encode("utf-8", "surrogateescape")

    def end(self, grace: float = 0.0) -> None:
        del grace

    def stderr_tail(self) -> str:
        told: str = self.replayer.take("stderr")["stderr"]
        return told


def _digest(message: bytes) -> str:
    return hashlib.sha256(message).hexdigest()


def _reason(word: str) -> FaultReason:
    if word not in get_args(FaultReason):
        raise BadTranscript(f"is no transcript: {word!r} is no fault")
    reason: FaultReason = word  # type: ignore[assignment]
    return reason
