"""Grades one submission after the other: runs it shut in, judges what it answers, and says what that is worth.

There is one comparator, the engine's. An exception of ours is an outcome of its own and never the student's loss.
"""

from __future__ import annotations

import tempfile
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Protocol

from goldformer import __version__
from goldformer.adapters import Adapter, AdapterError
from goldformer.adapters.arrays import Wire
from goldformer.adapters.process.client import Client, adapter_object
from goldformer.adapters.process.faults import CallFault, FaultReason
from goldformer.conformance.diagnosis.explain import Diagnosis
from goldformer.conformance.diagnosis.findings import diagnose
from goldformer.conformance.diagnosis.imitation import Imitations
from goldformer.conformance.grading.boxed import Boxed
from goldformer.conformance.grading.declared import Declared
from goldformer.conformance.grading.exam import Exam, Plan, Planned
from goldformer.conformance.grading.model import (
    NOT_STARTED,
    Check,
    Grade,
    Isolation,
    Outcome,
    PartGrade,
    Said,
    Submission,
)
from goldformer.conformance.grading.returned import OutputRecorder, Outputs
from goldformer.conformance.grading.score import grade_parts, outcome_of_all, rounded
from goldformer.conformance.grading.transcript import Recorder, Replayer, Transcript, Unlike
from goldformer.conformance.judging.cases import Bench, Judgement
from goldformer.conformance.judging.verdict import Status, Verdict
from goldformer.spec import Spec

#: After so many checks of a component that took too long, the others are not waited for.
_TIMEOUTS: Final = 3
#: Nothing ran, so nothing kept it apart.
_NOWHERE: Final = Isolation("process", ())


class Jail(Protocol):
    """What makes a process for each submission."""

    isolation: Isolation

    def client(self, box: Path) -> Client:
        """The client of what lies in a folder."""


@dataclass(frozen=True, slots=True)
class Graded:
    """A grade, and what it was made from; `problem` is what went wrong in the grader itself, for the staff.

    `outputs` are those that the submission returned, by component and check.
    """

    grade: Grade
    transcript: bytes
    problem: str = ""
    outputs: Outputs = field(default_factory=dict)


class Tape(Protocol):
    """Where answers come from and how time is kept: a Recorder of what runs, or a Replayer of what ran."""

    def used_up(self) -> bool:
        """Whether no time is left."""


class Grader:
    """Grades submissions for one exam, each as if it were the only one."""

    def __init__(self, exam: Exam, spec: Spec) -> None:
        """Plan the checks; without a jail, transcripts alone can be judged."""
        self._exam = exam
        self._plan = Plan.of(exam, spec)
        self._imitations = Imitations()
        self._jail: Jail | None = None
        self._boxes: Path | None = None

    def within(self, jail: Jail, boxes: Path | None = None) -> Grader:
        """The same, with a jail to run submissions in; they are put into folders in `boxes`."""
        self._jail, self._boxes = jail, boxes
        return self

    @property
    def spec(self) -> Spec:
        """The spec, with the fresh cases."""
        return self._plan.spec

    @property
    def declared(self) -> Declared:
        """What holds for every submission."""
        return self._plan.declared

    def grade(self, submission: Submission) -> Graded:
        """Run a submission and grade it; whatever happens, there is a grade."""
        key = self._exam.key(submission)
        transcript = Transcript(self._head(submission, key))
        try:
            if submission.problem:
                return Graded(self._ungradable(submission), transcript.packed())
            returned = OutputRecorder(self.spec)
            grade = self._run(submission, key, transcript, returned)
        except Exception as error:  # whatever it is, it is ours
            told = "".join(traceback.format_exception(error))
            return Graded(_broken(self._exam, submission, self._isolation), transcript.packed(), told)
        problems = [check.verdict.detail for check in grade.checks if check.outcome == "grader-error"]
        return Graded(grade, transcript.packed(), "\n".join(dict.fromkeys(problems)), returned.outputs())

    def again(self, transcript: Transcript) -> Grade:
        """Judge what a submission answered before, without it; Unlike where other things are asked of it now."""
        head = transcript.head
        if not transcript.events:
            raise Unlike("nothing was run, so there is nothing to judge again")
        told = head["isolation"]
        isolation = Isolation(told["level"], tuple(told["features"]), told["missing"])
        limits = self._exam.assignment.limits
        replayer = Replayer(transcript, limits.total)
        client = Boxed(replayer.spawn, limits)
        returned = OutputRecorder(self.spec)
        grade = self._judged(head["submission"], head["key"], client, replayer, isolation, returned)
        changed = replayer.changed()
        replayer.finish()
        return _tampered(grade, changed) if changed else grade

    def _head(self, submission: Submission, key: str) -> dict[str, Any]:
        return {
            "submission": submission.id, "key": key, "goldformer": __version__,
            "limits": asdict(self._exam.assignment.limits), "isolation": asdict(self._isolation),
        }  # fmt: skip

    def _run(self, submission: Submission, key: str, transcript: Transcript, returned: OutputRecorder) -> Grade:
        assert self._jail is not None, "only transcripts are judged without one"
        with tempfile.TemporaryDirectory(prefix="box-", dir=self._boxes) as folder:
            box = Path(folder).resolve()
            box.chmod(0o755)
            files = _put(submission, self._exam.adapter, box)
            recorder = Recorder(transcript, self._exam.assignment.limits.total, (f"{box}/submission/", f"{box}/"))
            client = self._jail.client(box)
            client.watch(recorder.wrap)
            try:
                grade = self._judged(submission.id, key, client, recorder, self._jail.isolation, returned)
            finally:
                changed = _changed(files)
                if changed:
                    recorder.note(changed=changed)
                recorder.ended = True
                client.close()
            if recorder.broken is not None:
                raise recorder.broken
            return _tampered(grade, changed) if changed else grade

    def _judged(
        self, id_: str, key: str, client: Client, tape: Tape, isolation: Isolation, returned: OutputRecorder
    ) -> Grade:
        """All checks, the diagnosis and the points."""
        plan, assignment = self._plan, self._exam.assignment
        message = ""
        try:
            adapter = returned.watch(self._adapter(client))
        except CallFault as fault:
            message = f"{NOT_STARTED}: {fault}"
            adapter = _silent(plan, fault.reason, "the submission cannot be started", fault.detail)
        bench = Bench(plan.spec, adapter, assignment.dtypes[0], "cpu")
        made = list(self._judgements(bench, tape, returned))
        # What the answers do not explain is looked at when the submission has given all of them.
        verdicts = Diagnosis(plan.spec, imitations=self._imitations).explain_all(judgement for _, judgement in made)
        checks = tuple(planned.checked(verdict) for (planned, _), verdict in zip(made, verdicts, strict=True))
        judged = [check.verdict for check in checks if check.outcome != "grader-error"]
        said = () if message else tuple(_said(judged, plan.spec))
        parts = grade_parts(assignment, checks, said, plan.kinds)
        outcome, sentence = outcome_of_all(checks)
        earned = rounded(sum(part.earned for part in parts))
        points = rounded(assignment.points)
        return Grade(id_, key, outcome, message or sentence, points, earned, parts, said, checks, isolation)

    def _judgements(self, bench: Bench, tape: Tape, returned: OutputRecorder) -> Iterator[tuple[Planned, Judgement]]:
        """Yield every planned check with its judgement, in order."""
        late: Counter[str] = Counter()
        works: set[str] = set()
        over = False
        for planned in self._plan.checks:
            if planned.origin == "property" and planned.component not in works:
                # Its component earns nothing, whatever holds.
                yield planned, Judgement(planned.unjudged("not run: no golden case passes"), bench)
                continue
            over = over or tape.used_up()
            adapter = bench.adapter
            if over:
                adapter = _silent(self._plan, "timeout", "all of its time is used up")
            elif late[planned.component] >= _TIMEOUTS:
                why = f"{_TIMEOUTS} checks of {planned.component} took too long"
                adapter = _silent(self._plan, "timeout", why)
            required = self._exam.outputs.get(planned.component, {}).get(planned.subject.id, ())
            judgement = planned.judge(replace(bench, dtype=planned.dtype, adapter=adapter, required=required))
            check = planned.checked(judgement.verdict)
            if planned.subject.id in self._plan.kinds.refusals:
                returned.discard()
            else:
                returned.file(planned.component, planned.subject.id)
            late[planned.component] += check.outcome == "timeout"
            if check.counts and check.outcome == "correct" and check.verdict.check in self._plan.kinds.numeric:
                works.add(planned.component)
            yield planned, judgement

    def _adapter(self, client: Client) -> Adapter:
        """The submission as an adapter; what the assignment's adapter declares, it cannot change."""
        spec, declares = self._plan.spec, self._plan.declared
        try:
            adapter = Adapter.from_object(adapter_object(client, spec.contracts), "adapter.py", spec)
        except (ValueError, AdapterError) as error:
            raise CallFault("protocol", f"it says what is not so: {error}") from error
        none = {name: _no_gradient for name in adapter.functions if name not in declares.gradients}
        gradients = {**adapter.gradients, **none}
        return replace(adapter, conventions=declares.conventions, dtypes=declares.dtypes, gradients=gradients, hints=())

    def _ungradable(self, submission: Submission) -> Grade:
        message = f"It cannot be graded: {submission.problem}."
        return _without_checks(self._exam, submission, "error", message, self._isolation)

    @property
    def _isolation(self) -> Isolation:
        return self._jail.isolation if self._jail else _NOWHERE


def failed(exam: Exam, submission: Submission, why: str) -> Graded:
    """What is kept of a submission for which grading broke down entirely."""
    return Graded(_broken(exam, submission, _NOWHERE), b"", why)


def _broken(exam: Exam, submission: Submission, isolation: Isolation) -> Grade:
    return _without_checks(exam, submission, *outcome_of_all([_BROKEN]), isolation)


def _without_checks(exam: Exam, submission: Submission, outcome: Outcome, message: str, isolation: Isolation) -> Grade:
    parts = tuple(PartGrade(part.component, part.points, 0.0, {}) for part in exam.assignment.parts)
    points, key = rounded(exam.assignment.points), exam.key(submission)
    return Grade(submission.id, key, outcome, message, points, 0.0, parts, (), (), isolation)


_BROKEN: Final = Check("published", "grader-error", Verdict("", "case", "", "", Status.SKIPPED, "", "", "", "", (), ""))


def _said(verdicts: Sequence[Verdict], spec: Spec) -> Iterator[Said]:
    for remark in diagnose(verdicts, spec):
        yield Said(remark.label, remark.text, remark.inner, remark.mistakes)


def _tampered(grade: Grade, changed: str) -> Grade:
    """Nothing that was measured of what changed itself is worth anything."""
    checks = tuple(replace(check, outcome="tampered") if check.counts else check for check in grade.checks)
    parts = tuple(
        replace(part, earned=0.0, shares={origin: (0, counted) for origin, (_, counted) in part.shares.items()})
        for part in grade.parts
    )
    message = f"It changed {changed} while it was graded, which no honest code does; the staff look at it."
    return replace(grade, outcome="tampered", message=message, earned=0.0, parts=parts, checks=checks)


def _put(submission: Submission, adapter: bytes, box: Path) -> dict[Path, bytes]:
    """Write a submission to where it is run; its names have been checked."""
    files = {box / "submission" / name: data for name, data in submission.files.items()} | {box / "adapter.py": adapter}
    for path, data in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return files


def _changed(files: Mapping[Path, bytes]) -> str:
    """The first file that is no longer what was handed in, or empty."""
    for path, data in files.items():
        try:
            same = not path.is_symlink() and path.read_bytes() == data
        except OSError:
            same = False
        if not same:
            return path.name
    return ""


def _silent(plan: Plan, reason: FaultReason, why: str, detail: str = "") -> Adapter:
    """An adapter that has everything and is never called: each check says why."""

    def function(**given: Any) -> Any:
        del given
        raise CallFault(reason, f"not run: {why}", detail)

    functions = dict.fromkeys(plan.spec.contracts, function)
    origin, declares = "adapter.py", plan.declared
    return Adapter(
        origin, origin, "", Wire.name, functions, declares.conventions, declares.dtypes, ("cpu",), gradients=functions
    )


def _no_gradient(**given: Any) -> Any:
    del given
    # Nothing that a student could write would change it, as with an array that is too large to be sent.
    raise CallFault("too-large", "the assignment's adapter gives no gradients")
