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
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Final

from goldformer.conformance.grading.model import Submission
from goldformer.conformance.grading.sandbox import SandboxError, die_with_parent
from goldformer.conformance.grading.task import FRESH, GradingTask
from goldformer.conformance.grading.worker import ResultFiles, Worker, give_up
from goldformer.conformance.judging.collector import sparing_collector
from goldformer.spec import Spec, SpecError, load_spec
from goldformer.spec.files import explain_os_error

#: The number of times that a submission is given to a process, if each of them ends over it.
_TRIES: Final = 3
#: The number of submissions after which a process searches all of its memory for garbage.
_COLLECT_EVERY: Final = 32
#: Seconds that a process gets to end everything that it started.
_FAREWELL: Final = 3.0
#: Ctrl-C, and what a build server sends first.
_STOPPING: Final = {signal.SIGINT, signal.SIGTERM}


class Unusable(Exception):
    """Nothing can be graded here, such as where the required isolation is impossible."""


@dataclass(frozen=True, slots=True)
class _Refusal:
    """The message of a process that cannot grade."""

    why: str


@dataclass(frozen=True, slots=True)
class _Failure:
    """The last message of a process that failed over a submission; another process may succeed."""

    why: str


@dataclass
class _Job:
    """A submission, and how processes ended over it; whether no other submission runs meanwhile."""

    submission: Submission
    ends: list[str] = field(default_factory=list)
    alone: bool = False


class _WorkerProcess:
    """A process with a worker, and its current job."""

    def __init__(self, task: GradingTask, running: Path) -> None:
        context = get_context("spawn")
        self.connection, theirs = context.Pipe()
        self._process = context.Process(target=_work, args=(theirs, running, os.getpid()), daemon=True)
        # Block both until the process has its own handlers, as it inherits the mask: a start that is interrupted would
        # leave a process that reads half of its arguments, and prints a traceback.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _STOPPING)
        try:
            self._process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()
        # Only the connection tells when one side has been killed: more arguments than a pipe holds would wait for ever
        # for a killed process, and one whose starter is killed would print a traceback over half of them.
        with contextlib.suppress(OSError):
            # Send the spec: reading its files takes twenty times as long.
            self.connection.send((task, load_spec()))
        self.job: _Job | None = None

    def give(self, job: _Job) -> None:
        """Send it a submission."""
        self.job = job
        with contextlib.suppress(OSError):  # it has ended, as reading from it will show
            self.connection.send(job.submission)

    def describe_end(self) -> str:
        """Wait for its end and return how it ended."""
        self._process.join(_FAREWELL)
        code = self._process.exitcode
        self.end()
        return f"signal {-code}" if code is not None and code < 0 else f"status {code}"

    def end(self) -> None:
        """End it, and with it everything that it started."""
        self._process.terminate()
        self._process.join(_FAREWELL)
        self._process.kill()
        self._process.join()
        self.connection.close()


def grade_in_pool(
    task: GradingTask, submissions: Iterable[Submission], jobs: int, running: Path
) -> Generator[ResultFiles, None, None]:
    """Yield the result files of each submission as soon as it is done; Unusable if none can be graded."""
    pool = _Pool(task, iter(submissions), jobs, running)
    try:
        yield from pool.run()
    finally:
        pool.close()


class _Pool:
    """Processes and the submissions left for them; it holds no more submissions than there are processes."""

    def __init__(self, task: GradingTask, submissions: Iterator[Submission], jobs: int, running: Path) -> None:
        self._task = task
        self._submissions = submissions
        self._jobs = jobs
        self._running = running
        self._workers: list[_WorkerProcess] = []
        self._again: deque[_Job] = deque()
        #: Submissions that others may have disturbed: each is graded once more, when nothing else runs.
        self._disturbed: deque[_Job] = deque()

    def run(self) -> Iterator[ResultFiles]:
        """Grade until everything is done."""
        while True:
            self._assign_jobs()
            busy = {worker.connection: worker for worker in self._workers if worker.job}
            if not busy:
                return
            for connection in wait(list(busy)):
                result = self._receive(busy[connection])  # type: ignore[index]
                if result is not None:
                    yield result

    def close(self) -> None:
        """End all processes."""
        for worker in self._workers:
            worker.end()

    def _assign_jobs(self) -> None:
        """Give every idle process a job, and start the missing processes while there are jobs."""
        idle = [worker for worker in self._workers if worker.job is None]
        while idle or len(self._workers) < self._jobs:
            job = self._next_job()
            if job is None:
                return
            if not idle:
                self._workers.append(_WorkerProcess(self._task, self._running))
                idle.append(self._workers[-1])
            idle.pop().give(job)

    def _next_job(self) -> _Job | None:
        if self._again:
            return self._again.popleft()
        submission = next(self._submissions, None)
        if submission is not None:
            return _Job(submission, alone=self._jobs == 1)
        if self._disturbed and not any(worker.job for worker in self._workers):
            return replace(self._disturbed.popleft(), alone=True)
        return None

    def _receive(self, worker: _WorkerProcess) -> ResultFiles | None:
        job, worker.job = worker.job, None
        assert job is not None, "only busy processes are listened to"
        try:
            message = worker.connection.recv()
        except (EOFError, OSError):
            return self._retry(worker, job)
        if isinstance(message, _Failure):
            return self._retry(worker, job, message.why)
        if isinstance(message, _Refusal):
            raise Unusable(message.why)
        assert isinstance(message, ResultFiles)
        if message.disturbed and not job.alone:
            self._disturbed.append(job)
            return None
        return message

    def _retry(self, worker: _WorkerProcess, job: _Job, said: str = "") -> ResultFiles | None:
        """Put back the job of a process that has ended, or give it up after too many tries."""
        self._workers.remove(worker)
        end = worker.describe_end()
        job.ends.append(said or end)
        if len(job.ends) < _TRIES:
            self._again.append(job)
            return None
        why = f"{_TRIES} processes ended while they graded it: {', '.join(dict.fromkeys(job.ends))}"
        return give_up(job.submission, why, self._task, load_spec())


def _work(connection: Connection, running: Path, parent: int) -> None:
    """Grade in this process until nothing comes; end with the process that started it."""
    if sys.platform == "linux":
        die_with_parent(signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
    # Whatever a killed process leaves is removed with this folder.
    tempfile.tempdir = str(running)
    # Ctrl-C is for the parent, which ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _leave)
    with contextlib.suppress(_Leave):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPPING)
        try:
            task, spec = connection.recv()
        except (EOFError, OSError):
            return  # whoever started it has ended
        with contextlib.suppress(EOFError, BrokenPipeError):
            _grade(connection, task, spec, running)


def _grade(connection: Connection, task: GradingTask, spec: Spec, running: Path) -> None:
    """Grade each submission that comes, or report that grading is impossible here."""
    try:
        worker = Worker(task, spec, running)
    except SandboxError as error:
        _send_last(connection, _Refusal(str(error)))
        return
    except OSError as error:
        _send_last(connection, _Refusal(explain_os_error(error)))
        return
    except SpecError as error:
        what = "; ".join(f"line {problem.line}: {problem.field}: {problem.message}" for problem in error.problems[:3])
        why = f"{FRESH} is not as it was written; remove its folder, and cases are drawn again: {what}"
        _send_last(connection, _Refusal(why))
        return
    except Exception:  # it would be the same for every submission
        _send_last(connection, _Refusal(f"a process that grades could not begin:\n{traceback.format_exc()}"))
        return
    with contextlib.closing(worker), sparing_collector():
        _leave_out_old_objects()
        for number in count(1):
            submission = connection.recv()
            if not number % _COLLECT_EVERY:
                gc.collect()
            try:
                result = worker.finish(submission)
            except OSError as error:  # it would be the same for every submission
                _send_last(connection, _Refusal(explain_os_error(error)))
                return
            except SandboxError as error:
                _send_last(connection, _Failure(str(error)))
                return
            connection.send(result)


def _leave_out_old_objects() -> None:
    """Let the garbage collector never look at what is there now.

    The spec, the plan and what the diagnosis remembers stay for the whole class. To search these hundreds of thousands
    of objects takes longer than to judge a submission.
    """
    gc.collect()
    gc.freeze()


def _send_last(connection: Connection, message: _Refusal | _Failure) -> None:
    """Send a message after which this process ends by itself.

    The other side sends it SIGTERM too, which would print a traceback.
    """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    connection.send(message)


class _Leave(BaseException):
    """The process is to end; no Exception, so that nobody blames a submission for it."""


def _leave(*_: Any) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough
    raise _Leave
