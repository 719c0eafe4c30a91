"""Grade in several processes of this machine; every submission gets a grade, even if a process ends over it."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
import tempfile
import traceback
from collections import deque
from collections.abc import Generator, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Final

from goldformer.conformance.grading.grader import GradedSubmission
from goldformer.conformance.grading.model import Submission
from goldformer.conformance.grading.sandbox import SandboxError, die_with_parent
from goldformer.conformance.grading.task import FRESH, GradingTask
from goldformer.conformance.grading.worker import Worker, give_up
from goldformer.conformance.judging.collector import sparing_collector
from goldformer.spec import Spec, SpecError, load_spec
from goldformer.spec.files import explain_os_error

#: The number of times that a submission is given to a process, if each of them ends over it.
_TRIES: Final = 3
#: The number of submissions after which a process searches all of its memory for garbage.
_COLLECT_EVERY: Final = 32
#: Ctrl-C, and what a build server sends first.
_STOPPING: Final = {signal.SIGINT, signal.SIGTERM}


class Unusable(Exception):
    """Nothing can be graded here, such as where the required isolation is impossible."""


@dataclass
class _Job:
    """A submission, and how processes ended over it; whether no other submission runs meanwhile."""

    submission: Submission
    ends: list[str] = field(default_factory=list)
    alone: bool = False


class _Seat:
    """A process of its own pool, so that its end breaks no other one."""

    def __init__(self, task: GradingTask, spec: Spec, running: Path) -> None:
        self._pool = ProcessPoolExecutor(1, get_context("spawn"), _begin, (os.getpid(), running))
        # A start that is interrupted would leave a process that reads half of its arguments.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _STOPPING)
        try:
            # Not as arguments of the start, which wait for ever for a process that is killed before it reads them.
            self._pid = self._pool.submit(_prepare, task, spec, running)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def give(self, submission: Submission) -> Future[GradedSubmission]:
        """Grade a submission; BrokenProcessPool if the process has ended meanwhile."""
        return self._pool.submit(_grade, submission)

    def end(self) -> None:
        """End the process, and with it everything that it started."""
        if self._pid.done() and not self._pid.exception():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid.result(), signal.SIGTERM)
        self._pool.shutdown(cancel_futures=True)


def grade_in_pool(
    task: GradingTask, submissions: Iterable[Submission], jobs: int, running: Path
) -> Generator[GradedSubmission, None, None]:
    """Yield the result files of each submission as soon as it is done; Unusable if none can be graded.

    No more submissions are in memory than there are processes. One that others may have disturbed is graded once more,
    when nothing else runs.
    """
    spec, new = load_spec(), iter(submissions)
    again, disturbed = deque[_Job](), deque[_Job]()
    idle: list[_Seat] = []
    busy: dict[Future[GradedSubmission], tuple[_Seat, _Job]] = {}

    def find_job() -> _Job | None:
        if again:
            return again.popleft()
        if (submission := next(new, None)) is not None:
            return _Job(submission, alone=jobs == 1)
        return _Job(disturbed.popleft().submission, alone=True) if disturbed and not busy else None

    try:
        while True:
            while len(busy) < jobs and (job := find_job()):
                seat = idle.pop() if idle else _Seat(task, spec, running)
                try:
                    busy[seat.give(job.submission)] = seat, job
                except BrokenProcessPool:
                    seat.end()
                    again.append(job)
            if not busy:
                return
            for done in wait(busy, return_when=FIRST_COMPLETED).done:
                seat, job = busy.pop(done)
                try:
                    result = done.result()
                except (BrokenProcessPool, SandboxError) as error:
                    seat.end()
                    job.ends.append(str(error) if isinstance(error, SandboxError) else "it ended in the middle")
                    if len(job.ends) < _TRIES:
                        again.append(job)
                        continue
                    why = f"{_TRIES} processes ended while they graded it: {', '.join(dict.fromkeys(job.ends))}"
                    yield give_up(job.submission, why, task, spec)
                    continue
                idle.append(seat)
                if result.disturbed and not job.alone:
                    disturbed.append(job)
                else:
                    yield result
    finally:
        for seat in (*idle, *(seat for seat, _ in busy.values())):
            seat.end()


# In the process

_worker: Worker | Unusable | None = None
_number = 0


def _begin(parent: int, running: Path) -> None:
    """End with the process that started this one."""
    if sys.platform == "linux":
        die_with_parent(signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
    tempfile.tempdir = str(running)  # whatever a killed process leaves is removed with this folder
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends this process
    signal.signal(signal.SIGTERM, _leave)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPPING)


def _leave(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough
    if isinstance(_worker, Worker):
        _worker.close()
    os._exit(0)


def _prepare(task: GradingTask, spec: Spec, running: Path) -> int:
    """Start a worker, and return the number of this process; what prevents it is the same for every submission."""
    global _worker  # noqa: PLW0603 - one for each process
    try:
        _worker = Worker(task, spec, running)
    except SpecError as error:
        what = "; ".join(f"line {problem.line}: {problem.field}: {problem.message}" for problem in error.problems[:3])
        _worker = Unusable(f"{FRESH} is not as it was written; remove its folder, and cases are drawn again: {what}")
    except (SandboxError, OSError) as error:
        _worker = Unusable(explain_os_error(error) if isinstance(error, OSError) else str(error))
    except Exception:
        _worker = Unusable(f"a process that grades could not begin:\n{traceback.format_exc()}")
    sparing_collector().__enter__()
    # Let the garbage collector never look at the spec and the plan: that takes longer than to judge a submission.
    gc.collect()
    gc.freeze()
    return os.getpid()


def _grade(submission: Submission) -> GradedSubmission:
    """Grade a submission in this process."""
    global _number  # noqa: PLW0603 - one for each process
    _number += 1
    if not _number % _COLLECT_EVERY:
        gc.collect()
    if not isinstance(_worker, Worker):
        raise _worker or Unusable("a process that grades did not begin")
    try:
        return _worker.finish(submission)
    except OSError as error:  # it would be the same for every submission
        raise Unusable(explain_os_error(error)) from None
