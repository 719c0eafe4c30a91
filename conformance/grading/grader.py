"""Grade one submission after the other: run it in a sandbox, judge its answers, and turn them into points.

The engine's judge is the only one. An exception of the grader itself is an outcome of its own and costs nothing.
"""

from __future__ import annotations

import tempfile
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Protocol

from goldformer.adapters import Adapter, AdapterError
from goldformer.adapters.arrays import Wire
from goldformer.adapters.notebook import CellNames
from goldformer.adapters.process.client import Client, adapter_object
from goldformer.adapters.process.faults import CallFault, FaultReason
from goldformer.adapters.process.patience import NOT_ASKED
from goldformer.conformance.diagnosis.diagnosed import Explained
from goldformer.conformance.diagnosis.findings import diagnose
from goldformer.conformance.grading.answer_limits import AnswerLimiter
from goldformer.conformance.grading.answers import NOTHING_REQUIRED, AnswerRecorder, Answers
from goldformer.conformance.grading.carry import find_carried
from goldformer.conformance.grading.compact import compact_checks
from goldformer.conformance.grading.declarations import Declarations
from goldformer.conformance.grading.explainer import Explainer
from goldformer.conformance.grading.forbidden import find_forbidden_uses
from goldformer.conformance.grading.model import (
    NOT_STARTED,
    Check,
    ComponentGrade,
    Grade,
    Outcome,
    Submission,
    mark_imprecise,
)
from goldformer.conformance.grading.python_files import MAIN
from goldformer.conformance.grading.sandbox import Isolation
from goldformer.conformance.grading.score import grade_components, note_failures, round_points, summarize_outcomes
from goldformer.conformance.grading.task import CheckPlan, GradingTask, PlannedCheck, make_strict
from goldformer.conformance.judging.cases import Bench, Judgement, PreparedCase
from goldformer.conformance.judging.verdict import WITHHELD, Status, Verdict
from goldformer.spec import Case, Spec
from goldformer.spec.files import DISK_FAULTS, read_regular_file, replace_file

#: The most parts of a notebook that are said to be left out.
_MOST_LEFT_OUT: Final = 8

#: The isolation of a submission that did not run.
_NOT_RUN: Final = Isolation("process", ())
_BROKEN: Final = Check("published", "grader-error", Verdict("", "case", "", "", Status.SKIPPED, "", "", "", "", (), ""))


class ClientFactory(Protocol):
    """Makes clients of submissions: a Sandbox, or something that takes its place in a test."""

    isolation: Isolation
    memory: int

    def client(self, folder: Path) -> Client:
        """Return the client of the submission in a folder."""


@dataclass(frozen=True, slots=True)
class GradedSubmission:
    """A grade; `problem` is an error of the grader itself, for the staff.

    `answers` are what the submission answered, and `files` its result files by their names. If there are any, the grade
    has no checks: its own file has them. `disturbed` is true if a check may have failed because others ran meanwhile.
    `reason` says in one line why the outcome is `error`.
    """

    grade: Grade
    problem: str = ""
    answers: Answers = NOTHING_REQUIRED
    files: Mapping[str, str | bytes] = field(default_factory=dict)
    disturbed: bool = False
    reason: str = ""

    @property
    def line(self) -> str:
        """The result in one line."""
        grade = self.grade
        line = f"{grade.submission}: {grade.earned:g} of {grade.points:g} ({grade.outcome})"
        return f"{line}: {self.reason}" if self.reason else line


class Grader:
    """Grades submissions for one task, each independently of the others."""

    def __init__(self, task: GradingTask, spec: Spec) -> None:
        """Plan the checks; `use_sandbox` must come before the first submission."""
        self._task = task
        self._plan = CheckPlan.of(task, spec)
        declared = Bench(self._plan.spec, _make_failing_adapter(self._plan, "crashed", "nothing runs"), "", "cpu")
        #: The case of each check, for the declarations that all submissions share.
        self._prepared = [
            PreparedCase(planned.subject, replace(declared, dtype=planned.dtype))
            if isinstance(planned.subject, Case)
            else None
            for planned in self._plan.checks
        ]
        self._explainer = Explainer(self._plan.spec)
        self._out_of_time = _make_failing_adapter(self._plan, "timeout", "all of its time is used up")
        self._sandbox: ClientFactory | None = None
        self._running: Path | None = None

    def use_sandbox(self, sandbox: ClientFactory, running: Path | None = None) -> Grader:
        """Run submissions in a sandbox from now on, in folders below `running`; return this grader."""
        self._sandbox, self._running = sandbox, running
        self._task = self._task.limit_memory(sandbox.memory)
        return self

    @property
    def spec(self) -> Spec:
        """The spec with the fresh cases."""
        return self._plan.spec

    @property
    def declarations(self) -> Declarations:
        """The declarations of the assignment's adapter, which hold for every submission."""
        return self._plan.declarations

    def grade(self, submission: Submission) -> GradedSubmission:
        """Run a submission and grade it; there is a grade whatever happens, unless OSError: a disk is full."""
        key = self._task.key(submission)
        forbidden = find_forbidden_uses(submission.files, self._task.assignment.forbid)
        left_out = CellNames(_read_main(submission)).reasons[:_MOST_LEFT_OUT]
        try:
            if submission.problem:
                message = f"It cannot be graded: {submission.problem}."
                grade = _grade_without_checks(self._task, submission, "error", message, self._isolation)
                return GradedSubmission(note_failures(grade))
            answers = AnswerRecorder(self.spec)
            grade = self._run(submission, key, answers)
            grade = note_failures(replace(grade, forbidden=forbidden, left_out=left_out))
        except Exception as error:  # it is an error of the grader
            if isinstance(error, OSError) and error.errno in DISK_FAULTS:
                raise
            text = "".join(traceback.format_exception(error))
            grade = _grade_broken(self._task, submission, self._isolation)
            return GradedSubmission(note_failures(grade), text)
        problems = [c.verdict.detail if c.outcome == "grader-error" else c.diagnosis.fault for c in grade.checks]
        return GradedSubmission(grade, "\n".join(dict.fromkeys(filter(None, problems))), answers.answers())

    def _run(self, submission: Submission, key: str, answers: AnswerRecorder) -> Grade:
        assert self._sandbox is not None, "it is set before the first submission"
        with tempfile.TemporaryDirectory(prefix="submission-", dir=self._running) as name:
            folder = Path(name).resolve()
            files = _write_files(submission, self._task.adapter, folder)
            hidden = (f"{folder}/submission/", f"{folder}/")
            limiter = AnswerLimiter(self._task.assignment.limits, hidden, _read_main(submission))
            client = self._sandbox.client(folder)
            client.watch(limiter.wrap)
            try:
                grade = self._judge(submission.id, key, client, limiter, self._sandbox.isolation, answers)
            finally:
                changed = _find_changed(files)
                client.close()
            if limiter.broken is not None:
                raise limiter.broken
            return _mark_tampered(grade, changed) if changed else grade

    def _judge(
        self,
        id_: str,
        key: str,
        client: Client,
        limiter: AnswerLimiter,
        isolation: Isolation,
        answers: AnswerRecorder,
    ) -> Grade:
        """Make all checks, and derive the diagnosis and the points."""
        plan, assignment = self._plan, self._task.assignment
        message = ""
        try:
            adapter = answers.watch(self._make_adapter(client))
        except CallFault as fault:
            message = f"{NOT_STARTED}: {fault}"
            adapter = _make_failing_adapter(plan, fault.reason, "the submission cannot be started", fault.detail)
        benches = {dtype: make_strict(Bench(plan.spec, adapter, dtype, "cpu")) for dtype in assignment.dtypes}
        judgements = list(self._judge_all(benches, limiter, answers))
        # The system removes the process meanwhile.
        client.stop()
        run = self._explainer.explain([judged for _, judged in judgements])
        rated = zip(judgements, map(run.explain, run), strict=True)
        checks = mark_imprecise([planned.rate(explained) for (planned, _), explained in rated])
        judged = {check.verdict.key for check in checks if check.outcome != "grader-error"}
        said = () if message else tuple(diagnose(run.select(lambda v: v.key in judged), plan.spec))
        carried = find_carried(assignment, checks, run, plan.kinds, plan.spec)
        spared = carried if assignment.carry == "once" else {}
        parts = grade_components(assignment, checks, said, plan.kinds, spared)
        outcome, sentence = summarize_outcomes(checks)
        earned, points = round_points(sum(part.earned for part in parts)), round_points(assignment.points)
        keys = {key for inherited in carried.values() for key in inherited.keys}
        marked = [replace(c, inherited=True) if c.verdict.key in keys else c for c in checks]
        kept = compact_checks(marked, assignment, plan.spec)
        return Grade(id_, key, outcome, message or sentence, points, earned, parts, said, kept, isolation)

    def _judge_all(
        self, benches: Mapping[str, Bench], limiter: AnswerLimiter, answers: AnswerRecorder
    ) -> Iterator[tuple[PlannedCheck, Judgement]]:
        """Yield every planned check with its judgement, in order."""
        works: set[str] = set()
        for planned, prepared in zip(self._plan.checks, self._prepared, strict=True):
            bench = benches[planned.dtype]
            if planned.origin == "property" and planned.component not in works:
                # Its component earns nothing, whatever properties hold.
                yield planned, Judgement(planned.skip("not run: no golden case passes"), bench)
                continue
            has_time = limiter.begin_check(planned.component)
            failing = None if has_time else self._out_of_time
            required = self._task.answers.outputs.get(planned.component, {}).get(planned.subject.id, ())
            if failing or required:
                bench = replace(
                    bench, adapter=failing or bench.adapter, policy=replace(bench.policy, required=frozenset(required))
                )
            judgement = self._count_declines(planned, planned.judge(bench, prepared), answers)
            check = planned.rate(Explained(judgement.verdict))
            if planned.subject.id in self._plan.kinds.refusals:
                answers.discard()
            else:
                answers.file(planned.component, planned.subject.id)
            if check.counts and check.outcome == "correct" and check.verdict.check in self._plan.kinds.numeric:
                works.add(planned.component)
            yield planned, judgement

    def _count_declines(self, planned: PlannedCheck, judgement: Judgement, answers: AnswerRecorder) -> Judgement:
        """Fail a check that passes because the submission declines a call which the assignment's solution answers.

        A golden case makes one call, and counts as missing where that is declined. A property makes many.
        """
        declined = answers.find_decline(self._task.answers)
        if declined is None or planned.rate(Explained(judgement.verdict)).outcome != "correct":
            return judgement
        message = f"raises NotImplementedError for inputs that are asked for: {declined}"
        failed = replace(judgement.verdict, status=Status.FAILED, reason=WITHHELD, message=message, ratio=None)
        return replace(judgement, verdict=failed)

    def _make_adapter(self, client: Client) -> Adapter:
        """Return the submission as an adapter, with the declarations of the assignment's adapter."""
        spec, declarations = self._plan.spec, self._plan.declarations
        try:
            adapter = Adapter.from_object(adapter_object(client, spec.contracts), "adapter.py", spec)
        except (ValueError, AdapterError) as error:
            raise CallFault("protocol", f"its handshake is wrong: {error}") from error
        missing = {name: _raise_no_gradient for name in adapter.functions if name not in declarations.gradients}
        return replace(
            adapter, conventions=declarations.conventions, dtypes=declarations.dtypes,
            gradients={**adapter.gradients, **missing}, differentiated=declarations.differentiated, hints=(),
        )  # fmt: skip

    @property
    def _isolation(self) -> Isolation:
        return self._sandbox.isolation if self._sandbox else _NOT_RUN


def fail_submission(task: GradingTask, submission: Submission, why: str) -> GradedSubmission:
    """Return the grade of a submission for which grading broke down entirely."""
    return GradedSubmission(note_failures(_grade_broken(task, submission, _NOT_RUN)), why)


def _grade_broken(task: GradingTask, submission: Submission, isolation: Isolation) -> Grade:
    return _grade_without_checks(task, submission, *summarize_outcomes([_BROKEN]), isolation)


def _grade_without_checks(
    task: GradingTask, submission: Submission, outcome: Outcome, message: str, isolation: Isolation
) -> Grade:
    parts = tuple(ComponentGrade(part.component, part.points, 0.0, {}) for part in task.assignment.parts)
    points = round_points(task.assignment.points)
    return Grade(submission.id, task.key(submission), outcome, message, points, 0.0, parts, (), (), isolation)


def _mark_tampered(grade: Grade, changed: str) -> Grade:
    """Return the grade of a submission that changed its own files: no measurement of it counts."""
    checks = tuple(replace(check, outcome="tampered") if check.counts else check for check in grade.checks)
    parts = tuple(
        replace(part, earned=0.0, shares={origin: (0, counted) for origin, (_, counted) in part.shares.items()})
        for part in grade.parts
    )
    message = f"It changed {changed} while it was graded, which no honest code does; the staff look at it."
    return replace(grade, outcome="tampered", message=message, earned=0.0, parts=parts, checks=checks)


def _read_main(submission: Submission) -> str:
    """Return the source of submission.py, which was a notebook or not."""
    return submission.files.get(MAIN, b"").decode("utf-8", "replace")


def _write_files(submission: Submission, adapter: bytes, folder: Path) -> dict[Path, bytes]:
    """Write a submission, whose file names have been checked, and the adapter; return their contents."""
    files = {folder / "submission" / name: data for name, data in submission.files.items()}
    files[folder / "adapter.py"] = adapter
    for path, data in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, data)
    return files


def _find_changed(files: Mapping[Path, bytes]) -> str:
    """Return the name of the first file that has changed, or nothing."""
    for path, data in files.items():
        try:
            same = not path.is_symlink() and read_regular_file(path, len(data)) == data
        except OSError:
            same = False
        if not same:
            return path.name
    return ""


def _make_failing_adapter(plan: CheckPlan, reason: FaultReason, why: str, detail: str = "") -> Adapter:
    """Return an adapter whose every function raises a CallFault with this reason."""

    def function(**given: Any) -> Any:
        del given
        raise CallFault(reason, f"{NOT_ASKED}{why}", detail)

    functions = dict.fromkeys(plan.spec.contracts, function)
    name, declarations = "adapter.py", plan.declarations
    return Adapter(
        name, name, "", Wire.name, functions, declarations.conventions, declarations.dtypes, ("cpu",),
        gradients=functions,
    )  # fmt: skip


def _raise_no_gradient(**given: Any) -> Any:
    del given
    # The student cannot change this, as with an array that is too large to send.
    raise CallFault("too-large", "the assignment's adapter gives no gradients")
