"""Limit the time and the size of what a submission answers, and remove from it what differs from run to run."""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from goldformer.adapters.notebook import CellNames
from goldformer.adapters.process.child import ChildFault
from goldformer.adapters.process.client import Peer
from goldformer.adapters.process.faults import CallFault
from goldformer.adapters.process.messages import MAX_MESSAGE
from goldformer.conformance.grading.model import SubmissionLimits
from goldformer.conformance.grading.python_files import MAIN, SUBMISSION
from goldformer.conformance.grading.sandbox import COMPUTING, WAITS

#: An address in memory, which differs from run to run.
_ADDRESS: Final = re.compile(rb"\bat 0x[0-9a-fA-F]{4,}")
#: The most bytes of all replies of a submission together.
_LARGEST: Final = 2 * MAX_MESSAGE
#: The processor time of an answer that took more seconds is measured. One that took even more may have waited: a
#: hundredth of that time is the shortest that the system measures.
_LONG: Final = 0.1
_WAITING: Final = 1.0
#: What a text has in it that names a line or a missing name of the submission.
_NAMING: Final = (SUBMISSION.encode(), b"is not defined")

Spawn = Callable[[], Peer]


class AnswerLimiter:
    """Limits the time that the answers of each component take, and the size of all answers.

    `hidden` are texts to remove because they differ from run to run, such as the submission's folder. `source` is
    submission.py, whose lines are named by cells if it was a notebook. `broken` is an error for which no submission can
    be blamed.
    """

    def __init__(self, limits: SubmissionLimits, hidden: Iterable[str] = (), source: str = "") -> None:
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

    def wrap(self, spawn: Spawn) -> Spawn:
        """Return a function that starts the same process and limits its answers."""

        def spawn_limited() -> Peer:
            try:
                self._charge()
                self._require_time()
                peer = spawn()
            except CallFault as fault:
                raise CallFault(fault.reason, self.hide_text(str(fault)), self.hide_text(fault.detail)) from fault
            except Exception as error:
                # The engine blames the implementation for an exception in a call.
                self.broken = error
                raise
            self._peer, self._seen = peer, 0.0
            return _LimitedPeer(peer, self)

        return spawn_limited

    def begin_check(self, component: str) -> bool:
        """Charge to this component what is used from now on; return False if no time is left for it."""
        if component != self._component:
            self._charge()
            self._component = component
        return not self._is_over()

    def _is_over(self) -> bool:
        return self._used[self._component] >= self._limits.total

    def _require_time(self) -> None:
        if self._is_over():
            total = self._limits.total
            what = f"the {total:g} s of processor time that all answers of a component together may take are used up"
            raise CallFault("timeout", what)

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
        """Send a request, and return the reply; ChildFault if the answers take too long or are too large."""
        self._require_time()
        start = time.monotonic()
        try:
            reply = self.hide(peer.exchange(message, seconds))
            self._size += len(reply)
            if self._size > _LARGEST:
                raise ChildFault("output-limit", f"answered with more than {_LARGEST >> 20} MiB altogether")
            self._charge_answer(time.monotonic() - start)
        except ChildFault as fault:
            raise ChildFault(fault.reason, self.hide_text(str(fault))) from fault
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


@dataclass(frozen=True)
class _LimitedPeer:
    """A Peer whose answers are limited."""

    peer: Peer
    limiter: AnswerLimiter

    @property
    def owner(self) -> int:
        return self.peer.owner

    def exchange(self, message: bytes, seconds: float) -> bytes:
        return self.limiter.exchange(self.peer, message, seconds)

    def measure_cpu(self) -> float:
        return self.peer.measure_cpu()

    def stop(self) -> None:
        self.peer.stop()

    def end(self, grace: float = 0.0) -> None:
        self.peer.end(grace)

    def stderr_tail(self) -> str:
        return self.limiter.hide_text(self.peer.stderr_tail())
