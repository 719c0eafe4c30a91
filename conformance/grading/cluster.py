"""Grades on a running Dask cluster: what was handed in travels to the workers, and what is kept of it comes back."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable, Iterator
from typing import Any, Final

from goldformer.conformance.grading.model import Submission
from goldformer.conformance.grading.pool import Unusable
from goldformer.conformance.grading.sandbox._sandbox import JailError
from goldformer.conformance.grading.task import Exam
from goldformer.conformance.grading.worker import Desk, Finished, given_up
from goldformer.extras import install_hint
from goldformer.spec import load_spec

#: So many submissions are on their way for each thread of the cluster, that none of them waits for the next one.
_AHEAD: Final = 2
#: Seconds to wait for a cluster, and for a worker that replaces a lost one.
_PATIENCE: Final = 30.0
#: So often a submission is graded, if a worker breaks down over it.
_TRIES: Final = 3

#: A jail is one thread's alone.
_mine = threading.local()


def graded_there(exam: Exam, submissions: Iterable[Submission], address: str) -> Iterator[Finished]:
    """What is kept of each submission, in the order in which they are done; Unusable where none can be graded."""
    try:
        from distributed import Client
    except ImportError as error:
        raise Unusable(f"--scheduler needs Dask: {install_hint('cluster')} ({error})") from error
    try:
        client = Client(address, timeout=_PATIENCE, set_as_default=False)
    except (OSError, ValueError) as error:
        raise Unusable(f"--scheduler {address}: {error}") from error
    with client:
        try:
            client.wait_for_workers(1, timeout=_PATIENCE)
        except TimeoutError as error:
            raise Unusable(f"--scheduler {address}: has no worker") from error
        yield from _graded(exam, submissions, client)


def _graded(exam: Exam, submissions: Iterable[Submission], client: Any) -> Iterator[Finished]:
    from distributed import as_completed
    from distributed.scheduler import KilledWorker

    threads = sum(worker["nthreads"] for worker in client.scheduler_info(n_workers=-1)["workers"].values())
    left = iter(submissions)
    on_the_way: dict[Any, Submission] = {}

    def submit(submission: Submission) -> Any:
        # Pure in truth, but a result that another grader left on the cluster is none of ours.
        future = client.submit(_finish, exam, submission, pure=False, retries=_TRIES - 1)
        on_the_way[future.key] = submission
        return future

    done = as_completed([submit(s) for s in itertools.islice(left, _AHEAD * max(1, threads))], loop=client.loop)
    for future in done:
        submission = on_the_way.pop(future.key)
        error = future.exception()
        if error is None:
            finished = future.result()
            if isinstance(finished, str):
                raise Unusable(f"a worker: {finished}")
            yield finished
        elif isinstance(error, KilledWorker):
            yield given_up(submission, f"workers were lost while they graded it: {error}", exam, load_spec())
        else:
            yield given_up(submission, f"{type(error).__name__}: {error}", exam, load_spec())
        # Its result is no longer needed there.
        future.release()
        following = next(left, None)
        if following is not None:
            done.add(submit(following))


def _finish(exam: Exam, submission: Submission) -> Finished | str:
    """On a worker: grade a submission at this thread's desk; the text says why nothing can be graded here."""
    try:
        if getattr(_mine, "exam", None) != exam.digests:
            desk = getattr(_mine, "desk", None)
            if desk is not None:
                desk.close()
            _mine.exam = None
            _mine.desk = Desk(exam, load_spec())
            _mine.exam = exam.digests
    except JailError as error:
        return str(error)
    try:
        finished: Finished = _mine.desk.finish(submission)
    except BaseException:
        _mine.exam = None  # the next one gets a desk that is sound
        raise
    return finished
