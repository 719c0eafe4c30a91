"""goldformer grade: a class of submissions, each kept apart, graded alike and told what it did wrong."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from goldformer import __version__
from goldformer.adapters import AdapterError
from goldformer.adapters.find import must_have
from goldformer.conformance.commands._console import (
    FAILS,
    OK,
    STOPPED,
    err,
    no_folder,
    say,
    say_json,
    unusable,
    words,
)
from goldformer.conformance.commands._grade_session import Session
from goldformer.conformance.commands._grade_solution import Solution, kept_outputs, require_outputs
from goldformer.conformance.grading.assignment import digest_of, read_assignment
from goldformer.conformance.grading.declared import declared
from goldformer.conformance.grading.desk import TRANSCRIPT
from goldformer.conformance.grading.exam import FRESH, Exam
from goldformer.conformance.grading.fresh import draw_fresh
from goldformer.conformance.grading.grader import Grader
from goldformer.conformance.grading.model import Assignment, Grade, Level
from goldformer.conformance.grading.pool import Unusable
from goldformer.conformance.grading.records import BadRecord, from_json, to_json
from goldformer.conformance.grading.results import classroom, github, gradebook, gradescope, junit
from goldformer.conformance.grading.results.gradebook import Person
from goldformer.conformance.grading.results.summaries import Line
from goldformer.conformance.grading.results.words import counted
from goldformer.conformance.grading.store import GRADE, InUse, Store, digest_of_folder
from goldformer.conformance.grading.submissions import ClassList, NoSubmissions, find_submissions
from goldformer.conformance.grading.transcript import BadTranscript, Transcript, Unlike
from goldformer.conformance.reports.did_you_mean import unknown
from goldformer.spec import Spec, SpecError, load_spec
from goldformer.spec.files import replace_file

_ASSIGNMENT: Final = "assignment"
_SEED: Final = "fresh/seed"
#: What the fresh cases were drawn for.
_DRAWN_FOR: Final = "fresh/drawn-for.json"


@dataclass(frozen=True, slots=True)
class Options:
    """The command line of `goldformer grade`."""

    submissions: Path | None
    assignment: Path | None
    folder: Path | None
    jobs: int | None
    scheduler: str | None
    require: Level | None
    seed: str | None
    only: tuple[str, ...]
    again: bool
    gradescope_results: Path | None
    github_output: Path | None
    replay: Path | None
    as_json: bool
    solution: Path | None = None

    @property
    def single(self) -> bool:
        """Whether there is one submission, whatever is in it: what a platform hands over."""
        return self.gradescope_results is not None or self.github_output is not None


def run(options: Options) -> int:
    """Grade a class; the exit status."""
    try:
        if options.replay is not None:
            return _replay(options.replay)
        return _grade(options)
    except (AdapterError, InUse, NoSubmissions, SpecError, Unusable) as error:
        return unusable(str(error))
    except KeyboardInterrupt:
        err.print(
            "goldformer: stopped: what has a grade keeps it, and the same command goes on from there", markup=False
        )
        return STOPPED


def _grade(options: Options) -> int:
    if options.submissions is None or options.assignment is None or options.folder is None:
        return unusable("grade needs SUBMISSIONS, --assignment and --out (or --replay)")
    platforms = {"--gradescope-results": options.gradescope_results, "--github-output": options.github_output}
    if message := no_folder(platforms):
        return unusable(message)
    spec = load_spec()
    assignment = read_assignment(options.assignment, spec)
    arrays = declared(assignment.adapter.read_bytes(), spec, (part.component for part in assignment.parts)).arrays
    if options.scheduler is None:
        must_have(arrays, str(assignment.adapter))
    solution = Solution.of(assignment, options.solution)
    found = find_submissions(options.submissions, single=options.single)
    chosen = _chosen(found, options)
    if options.gradescope_results is not None:
        # The platform may stop everything at any time, and reads what is there then.
        replace_file(options.gradescope_results, gradescope.pending(assignment))
    with closing(_opened(options.folder)) as store:
        exam = Exam.of(assignment, _fresh(assignment, options.seed, spec, store), spec, options.require)
        _keep_assignment(assignment, store)
        exam = require_outputs(exam, solution, spec, store, options.scheduler, quiet=options.as_json)
        session = Session(exam, chosen, store, options.again, options.jobs, options.scheduler, told=not options.as_json)
        session.run()
        lines = [Line.of(grade) for grade in _kept(found, chosen, exam, store)]
        _write_class(lines, found, assignment, spec, store)
        if options.single:
            (grade,) = store.grades(handed.id for handed in chosen.handed)
            if options.gradescope_results is not None:
                replace_file(options.gradescope_results, gradescope.results(grade, assignment, spec))
            if options.github_output is not None:
                with options.github_output.open("a", encoding="utf-8") as steps:
                    steps.write(github.output(grade, assignment, spec))
    if options.as_json:
        say_json(gradebook.to_json(lines, assignment, _people(found)), end="")
    else:
        _report(lines, len(found), session, options.folder)
    return FAILS if any(line.outcome == "grader-error" for line in lines) else OK


def _opened(folder: Path) -> Store:
    """The folder of results; Unusable where it cannot be written."""
    try:
        return Store(folder)
    except OSError as error:
        raise Unusable(f"--out {folder}: cannot be written: {error.strerror}") from error


def _chosen(found: ClassList, options: Options) -> ClassList:
    """The submissions that are asked for."""
    only = words(options.only)
    if message := unknown(only, tuple(handed.id for handed in found.handed), "--only"):
        raise NoSubmissions(message)
    if only:
        found = replace(found, handed=tuple(handed for handed in found.handed if handed.id in only))
    if options.single and len(found) != 1:
        raise NoSubmissions(f"{options.submissions}: holds {len(found)} submissions, and a platform asks for one")
    return found


def _kept(found: ClassList, chosen: ClassList, exam: Exam, store: Store) -> Iterator[Grade]:
    """The grades of the class: of what was not chosen, those that were made of the same things."""
    graded = {handed.id for handed in chosen.handed}
    for handed in found.handed:
        grade = store.grade(handed.id)
        if grade is None:
            continue
        if handed.id in graded or grade.key == exam.key(found.read(handed, exam.assignment.limits)):
            yield grade


def _fresh(assignment: Assignment, seed: str | None, spec: Spec, store: Store) -> str:
    """The cases of this class that nobody has seen: drawn once, and then the same for everyone."""
    kept = store.folder / _SEED
    seed = seed or assignment.seed or (kept.read_text("utf-8").strip() if kept.exists() else secrets.token_hex(16))
    digests = (digest_of(assignment), digest_of_folder(spec.root), __version__, seed)
    drawn_for = hashlib.sha256(json.dumps(digests).encode()).hexdigest() + "\n"
    made, cases = store.folder / _DRAWN_FOR, store.folder / FRESH
    if made.exists() and cases.exists() and made.read_text("utf-8") == drawn_for:
        return cases.read_text("utf-8")
    try:
        fresh = draw_fresh(assignment, spec, seed)
    except ImportError as error:
        raise Unusable(f"fresh cases cannot be drawn: {error}") from error
    for component, why in fresh.short.items():
        err.print(f"goldformer: {component}: fewer fresh cases than asked for: {why}", markup=False)
    store.write(_SEED, seed + "\n")
    store.write(str(FRESH), fresh.text)
    store.write(_DRAWN_FOR, drawn_for)
    return fresh.text


def _keep_assignment(assignment: Assignment, store: Store) -> None:
    """Keep what is graded by: with it, the folder of results can be judged again."""
    folder = assignment.path.parent
    for path in filter(None, (assignment.path, assignment.adapter, assignment.starter)):
        name = "assignment.yaml" if path == assignment.path else path.relative_to(folder).as_posix()
        store.write(f"{_ASSIGNMENT}/{name}", path.read_bytes())


def _people(found: ClassList) -> Mapping[str, Person]:
    """Who handed in what, as the gradebook names them; several of a group in one cell."""
    return {
        id_: Person(name="; ".join(s.name for s in students), email="; ".join(s.email for s in students))
        for id_, students in found.students.items()
        if students
    }


def _write_class(lines: list[Line], found: ClassList, assignment: Assignment, spec: Spec, store: Store) -> None:
    people = _people(found)
    store.write("grades.csv", gradebook.to_csv(lines, assignment, people))
    store.write("grades.json", gradebook.to_json(lines, assignment, people))
    store.write("class.html", classroom.class_page(lines, assignment, spec))
    store.write("junit.xml", junit.junit(lines, assignment))


def _report(lines: Sequence[Line], among: int, session: Session, folder: Path) -> None:
    outcomes = Counter(line.outcome for line in lines)
    counts = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))
    graded = f"{session.finished} graded in {session.seconds:.1f} s"
    say(f"{graded}, {session.before} were already" if session.before else graded)
    of = "" if len(lines) == among else f"{len(lines)} of "
    missing = "" if len(lines) == among else f"; {among - len(lines)} without a grade"
    say(f"{of}{counted(among, 'submission')}: {counts}{missing}")
    for name in ("class.html", "grades.csv"):
        say(f"- wrote {folder / name}")
    if failed := [line.submission for line in lines if line.outcome == "grader-error"]:
        err.print(f"goldformer: grading itself failed for {', '.join(failed)}: see grader-error.txt there", style="red")


# Replay


def _replay(folder: Path) -> int:
    """Judge again from what a submission answered; the exit status says whether its grade is the same."""
    top = folder.resolve().parent.parent
    try:
        before = from_json((folder / GRADE).read_bytes())
        transcript = Transcript.unpacked((folder / TRANSCRIPT).read_bytes())
        fresh = (top / FRESH).read_text("utf-8")
    except OSError as error:
        return unusable(f"--replay {folder}: {error.filename} cannot be read: {error.strerror}")
    except (BadRecord, BadTranscript) as error:
        return unusable(f"--replay {folder}: {error}")
    spec = load_spec()
    exam = Exam.of(read_assignment(top / _ASSIGNMENT / "assignment.yaml", spec), fresh, spec)
    exam = exam.requiring(kept_outputs(top))
    try:
        now = Grader(exam, spec).again(transcript)
    except (Unlike, BadTranscript) as error:
        return unusable(f"--replay {folder}: {error}")
    if to_json(now) == to_json(before):
        say(f"{before.submission}: the same grade, {now.earned:g} of {now.points:g}")
        return OK
    say(f"{before.submission}: now {now.earned:g} of {now.points:g} ({now.outcome}), before {before.earned:g} of "
        f"{before.points:g} ({before.outcome})")  # fmt: skip
    for old, new in zip(before.checks, now.checks, strict=False):
        if old != new:
            say(f"- {new.verdict.check} ({new.verdict.dtype}): {new.outcome}, was {old.outcome}")
    return FAILS
