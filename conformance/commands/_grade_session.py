"""One run over a class: grade the rest, store each grade as it is done, and show the progress."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from goldformer.conformance.commands._console import err, say
from goldformer.conformance.grading.cluster import grade_on_cluster
from goldformer.conformance.grading.grader import GradedSubmission
from goldformer.conformance.grading.model import Grade, Submission
from goldformer.conformance.grading.pool import grade_in_pool
from goldformer.conformance.grading.store import Store
from goldformer.conformance.grading.submissions import ClassList
from goldformer.conformance.grading.task import CheckPlan, GradingTask


@dataclass
class Session:
    """One run over a class and its progress.

    `again` grades finished submissions too. `jobs` processes grade here, or a cluster grades by its `scheduler`.
    `grades` are those of this run by the ids of their submissions.
    """

    task: GradingTask
    found: ClassList
    store: Store
    again: bool
    jobs: int | None
    scheduler: str | None
    visible: bool
    grades: dict[str, Grade] = field(default_factory=dict)
    before: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    def announce(self, plan: CheckPlan) -> None:
        """Print how many submissions have no grade, if several."""
        left = sum(self.again or not self.store.has_grade(handed.id) for handed in self.found.handed)
        if left < 2 or not self.visible or self.scheduler is not None:
            return
        jobs = min(self._count_jobs(), left)
        limit = self.task.assignment.limits.total
        where = f"in {jobs} process{'' if jobs == 1 else 'es'}"
        slow = f"a component that never answers takes up to {limit:g} s more"
        say(f"{left} to grade {where}, {len(plan.checks)} checks each; {slow}")

    def run(self) -> None:
        """Grade what is not finished, and store each grade as it is done."""
        start = time.monotonic()
        with self._watch() as tell:
            graded = grade_all(self.task, self._read_unfinished(), self.store, self._count_jobs(), self.scheduler)
            try:
                for done in graded:
                    self.store.keep(done.grade.submission, done.files)
                    self.grades[done.grade.submission] = done.grade
                    self.outcomes[done.grade.outcome] += 1
                    tell(done)
            finally:
                graded.close()
        self.seconds = time.monotonic() - start

    def _count_jobs(self) -> int:
        return min(self.jobs or _count_cores(), len(self.found))

    def _read_unfinished(self) -> Iterator[Submission]:
        """Yield what has no grade for its present content and assignment; one submission is in memory at a time."""
        for handed in self.found.handed:
            submission = handed.read(self.task.assignment.limits)
            if not self.again and self.store.is_finished(submission.id, self.task.key(submission)):
                self.before += 1
            else:
                yield submission

    def _watch(self) -> AbstractContextManager[Callable[[GradedSubmission], None]]:
        if not self.visible:
            return nullcontext(lambda _: None)
        return _Bar(self) if err.is_terminal else nullcontext(self._say)

    def _say(self, done: GradedSubmission) -> None:
        say(f"[{len(self.grades) + self.before}/{len(self.found)}] {done.line}")


class _Bar:
    """Progress on a terminal: the number done, the outcomes, and the rest."""

    def __init__(self, session: Session) -> None:
        self._session = session
        columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
        self._progress = Progress(*columns, console=err, transient=True)
        self._task: TaskID | None = None

    def __enter__(self) -> Callable[[GradedSubmission], None]:
        self._progress.start()
        self._task = self._progress.add_task("starting", total=len(self._session.found))
        return self._tell

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def _tell(self, done: GradedSubmission) -> None:
        session = self._session
        assert self._task is not None, "it was entered"
        counts = ", ".join(f"{count} {outcome}" for outcome, count in session.outcomes.most_common())
        text = f"{counts} · {done.grade.submission}"
        self._progress.update(self._task, completed=len(session.grades) + session.before, description=text)
        if done.grade.outcome in ("error", "grader-error", "tampered"):
            err.print(done.line, markup=False)


def grade_all(
    task: GradingTask, submissions: Iterable[Submission], store: Store, jobs: int, scheduler: str | None
) -> Generator[GradedSubmission, None, None]:
    """Grade submissions in `jobs` processes here, or on the cluster of a scheduler; yield each as it is done."""
    if scheduler is not None:
        return grade_on_cluster(task, submissions, scheduler)
    return grade_in_pool(task, submissions, jobs, store.running)


def _count_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
