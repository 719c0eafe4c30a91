"""Grades on several processes of this machine; whatever becomes of one of them, every submission gets a grade.

Unusable
└── raised when no process can grade at all, such as where submissions cannot be kept apart as is required
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
import traceback
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Final

from goldformer.conformance.grading.model import Submission
from goldformer.conformance.grading.sandbox import _linux as linux
from goldformer.conformance.grading.sandbox._sandbox import JailError
from goldformer.conformance.grading.task import Exam
from goldformer.conformance.grading.worker import Desk, Finished, given_up
from goldformer.spec import Spec, load_spec

#: So often a submission is given to a process, if each of them ends over it.
_TRIES: Final = 3
#: Seconds that a process is given to end what it started.
_FAREWELL: Final = 3.0


class Unusable(Exception):
    """Nothing can be graded here."""


@dataclass(frozen=True, slots=True)
class _Refused:
    """What a process says that cannot grade."""

    why: str


@dataclass
class _Todo:
    """A submission, and how often a process ended over it."""

    submission: Submission
    ends: list[str] = field(default_factory=list)


class _Worker:
    """A process with a desk, and what it is busy with."""

    def __init__(self, exam: Exam, boxes: Path) -> None:
        context = get_context("spawn")
        self.connection, theirs = context.Pipe()
        # The spec is sent, since reading its files takes twenty times as long.
        arguments = (theirs, exam, load_spec(), boxes, os.getpid())
        self._process = context.Process(target=_work, args=arguments, daemon=True)
        # Ctrl-C waits until there is somebody who knows what to do about it; what is started begins like that.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self._process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()
        self.todo: _Todo | None = None

    def give(self, todo: _Todo) -> None:
        """Hand it a submission."""
        self.todo = todo
        with contextlib.suppress(OSError):  # it has ended, as reading from it will say
            self.connection.send(todo.submission)

    def how_it_ended(self) -> str:
        """In words, once it has."""
        self._process.join(_FAREWELL)
        code = self._process.exitcode
        self.end()
        return f"signal {-code}" if code is not None and code < 0 else f"status {code}"

    def end(self) -> None:
        """End it, and with it what it started."""
        self._process.terminate()
        self._process.join(_FAREWELL)
        self._process.kill()
        self._process.join()
        self.connection.close()


def graded_here(exam: Exam, submissions: Iterable[Submission], jobs: int, boxes: Path) -> Iterator[Finished]:
    """What is kept of each submission, in the order in which they are done; Unusable where none can be graded."""
    pool = _Pool(exam, iter(submissions), jobs, boxes)
    try:
        yield from pool.run()
    finally:
        pool.close()


class _Pool:
    """Processes, and the submissions that are left for them. No more are held than there are processes."""

    def __init__(self, exam: Exam, submissions: Iterator[Submission], jobs: int, boxes: Path) -> None:
        self._exam = exam
        self._submissions = submissions
        self._jobs = jobs
        self._boxes = boxes
        self._workers: list[_Worker] = []
        self._again: deque[_Todo] = deque()

    def run(self) -> Iterator[Finished]:
        """Until everything is done."""
        while True:
            self._give_out()
            busy = {worker.connection: worker for worker in self._workers if worker.todo}
            if not busy:
                return
            for connection in wait(list(busy)):
                finished = self._received(busy[connection])  # type: ignore[index]
                if finished is not None:
                    yield finished

    def close(self) -> None:
        """End all processes."""
        for worker in self._workers:
            worker.end()

    def _give_out(self) -> None:
        """Give every idle process something to do, and start those that are missing while there is something."""
        idle = [worker for worker in self._workers if worker.todo is None]
        while idle or len(self._workers) < self._jobs:
            todo = self._next()
            if todo is None:
                return
            if not idle:
                self._workers.append(_Worker(self._exam, self._boxes))
                idle.append(self._workers[-1])
            idle.pop().give(todo)

    def _next(self) -> _Todo | None:
        if self._again:
            return self._again.popleft()
        submission = next(self._submissions, None)
        return _Todo(submission) if submission is not None else None

    def _received(self, worker: _Worker) -> Finished | None:
        """What a process says, or what it means that it has ended."""
        todo, worker.todo = worker.todo, None
        assert todo is not None, "only those that are busy are listened to"
        try:
            said = worker.connection.recv()
        except (EOFError, OSError):
            return self._ended(worker, todo)
        if isinstance(said, _Refused):
            raise Unusable(said.why)
        assert isinstance(said, Finished)
        return said

    def _ended(self, worker: _Worker, todo: _Todo) -> Finished | None:
        self._workers.remove(worker)
        todo.ends.append(worker.how_it_ended())
        if len(todo.ends) < _TRIES:
            self._again.append(todo)
            return None
        why = f"{_TRIES} processes ended while they graded it: {', '.join(todo.ends)}"
        return given_up(todo.submission, why, self._exam, load_spec())


def _work(connection: Connection, exam: Exam, spec: Spec, boxes: Path, parent: int) -> None:
    """A process: grade what comes until nothing does. It ends with the one that started it."""
    if sys.platform == "linux":
        linux.die_with_parent(signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
    # What it leaves behind when it is killed is removed with the boxes.
    tempfile.tempdir = str(boxes)
    # Ctrl-C is for the one that started it, which ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    signal.signal(signal.SIGTERM, _leave)
    with contextlib.suppress(_Leave):
        _grade(connection, exam, spec, boxes)


def _grade(connection: Connection, exam: Exam, spec: Spec, boxes: Path) -> None:
    """Grade what comes, or say why that cannot be done here."""
    try:
        desk = Desk(exam, spec, boxes)
    except JailError as error:
        connection.send(_Refused(str(error)))
        return
    except Exception:  # it would be the same for every submission
        connection.send(_Refused(f"a process that grades could not begin:\n{traceback.format_exc()}"))
        return
    with contextlib.closing(desk), contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            connection.send(desk.finish(connection.recv()))


class _Leave(BaseException):
    """The process is to end: nothing that a submission does, so nothing takes it for that."""


def _leave(*_: Any) -> None:
    raise _Leave
