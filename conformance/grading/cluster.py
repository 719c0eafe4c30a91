"""Grade on a running Dask cluster: submissions travel to the workers, and result files come back."""

from __future__ import annotations

import itertools
import logging
import threading
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import CancelledError
from typing import Any, Final

from goldformer.conformance.grading.grader import GradedSubmission
from goldformer.conformance.grading.model import Submission
from goldformer.conformance.grading.pool import Unusable
from goldformer.conformance.grading.sandbox import SandboxError
from goldformer.conformance.grading.task import GradingTask
from goldformer.conformance.grading.worker import Worker, give_up
from goldformer.extras import install_hint
from goldformer.spec import load_spec
from goldformer.spec.files import explain_os_error

#: The number of submissions in flight for each thread of the cluster, so that no thread waits for the next one.
_AHEAD: Final = 2
#: Seconds to wait for a cluster, and for a worker that replaces a lost one.
_PATIENCE: Final = 30.0
#: The number of times that a submission is graded, if a worker is lost over it.
_TRIES: Final = 3

#: Only one thread may use a sandbox.
_local: Final = threading.local()


def grade_on_cluster(
    task: GradingTask, submissions: Iterable[Submission], address: str
) -> Generator[GradedSubmission, None, None]:
    """Yield the result files of each submission as soon as it is done; Unusable if none can be graded."""
    try:
        from distributed import Client
        from distributed.comm import CommClosedError
    except ImportError as error:
        raise Unusable(f"--scheduler needs Dask: {install_hint('cluster')} ({error})") from error
    _silence_logs()
    try:
        client = Client(address, timeout=_PATIENCE, set_as_default=False)
    except (OSError, ValueError) as error:
        raise Unusable(f"--scheduler {address}: {error}") from error
    with client:
        try:
            client.wait_for_workers(1, timeout=_PATIENCE)
        except TimeoutError as error:
            raise Unusable(f"--scheduler {address}: has no worker") from error
        try:
            yield from _grade_all(task, submissions, client)
        except (CancelledError, CommClosedError) as error:
            what = "the connection to the cluster was lost; start it again, and run the same command"
            raise Unusable(f"--scheduler {address}: {what}: finished grades are stored") from error


def _silence_logs() -> None:
    """Keep Dask from logging what this module says in a sentence: it logs a lost scheduler with a traceback."""
    for name in [*logging.root.manager.loggerDict]:
        if name.split(".")[0] == "distributed":
            logging.getLogger(name).setLevel(logging.CRITICAL)


def _grade_all(task: GradingTask, submissions: Iterable[Submission], client: Any) -> Iterator[GradedSubmission]:
    from distributed import as_completed
    from distributed.scheduler import KilledWorker

    threads = sum(worker["nthreads"] for worker in client.scheduler_info(n_workers=-1)["workers"].values())
    left = iter(submissions)
    in_flight: dict[Any, Submission] = {}

    def submit(submission: Submission) -> Any:
        # It is a pure function, but a result that another grader left on the cluster must not be used.
        future = client.submit(_finish, task, submission, pure=False, retries=_TRIES - 1)
        in_flight[future.key] = submission
        return future

    #: Submissions that others may have disturbed: each is graded once more, when nothing else runs.
    disturbed: deque[Submission] = deque()
    alone = False
    done = as_completed([submit(s) for s in itertools.islice(left, _AHEAD * max(1, threads))], loop=client.loop)
    for future in done:
        submission = in_flight.pop(future.key)
        error = future.exception()
        if error is None:
            result = future.result()
            if isinstance(result, str):
                raise Unusable(f"a worker: {result}")
            if result.disturbed and not alone:
                disturbed.append(submission)
            else:
                yield result
        elif isinstance(error, CancelledError):
            raise error
        elif isinstance(error, KilledWorker):
            yield give_up(submission, f"workers were lost while they graded it: {error}", task, load_spec())
        else:
            yield give_up(submission, f"{type(error).__name__}: {error}", task, load_spec())
        # The cluster need not keep the result.
        future.release()
        following = next(left, None)
        if following is None and not in_flight and disturbed:
            following, alone = disturbed.popleft(), True
        if following is not None:
            done.add(submit(following))


def _finish(task: GradingTask, submission: Submission) -> GradedSubmission | str:
    """Grade a submission by this thread's worker; return a text if nothing can be graded here."""
    try:
        if getattr(_local, "digests", None) != task.digests:
            worker = getattr(_local, "worker", None)
            if worker is not None:
                worker.close()
            _local.digests = None
            _local.worker = Worker(task, load_spec())
            _local.digests = task.digests
    except SandboxError as error:
        return str(error)
    try:
        result: GradedSubmission = _local.worker.finish(submission)
    except OSError as error:
        return explain_os_error(error)
    except BaseException:
        _local.digests = None  # the next submission gets a new worker
        raise
    return result
