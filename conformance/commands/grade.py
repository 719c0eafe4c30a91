"""goldformer grade: a class of submissions, each isolated and graded by the same checks."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Final

import click

from goldformer.conformance.commands import _options as options
from goldformer.conformance.commands._console import (
    DASH,
    FAILS,
    OK,
    STOPPED,
    CannotRun,
    err,
    require_folders,
    require_known,
    save_json,
    say,
)
from goldformer.conformance.commands._grade_class import require_graded, write_class
from goldformer.conformance.commands._grade_packages import require_packages
from goldformer.conformance.commands._grade_session import Session
from goldformer.conformance.commands._grade_solution import Solution, require_answers
from goldformer.conformance.grading.assignment import digest_assignment, read_assignment
from goldformer.conformance.grading.declarations import read_declarations
from goldformer.conformance.grading.fresh import draw_fresh
from goldformer.conformance.grading.model import Assignment, Grade
from goldformer.conformance.grading.pool import Unusable
from goldformer.conformance.grading.results import gradebook
from goldformer.conformance.grading.sandbox import Level
from goldformer.conformance.grading.store import ASSIGNMENT, InUse, Store, digest_folder
from goldformer.conformance.grading.submissions import ClassList, Holds, NoSubmissions, find_submissions
from goldformer.conformance.grading.task import FRESH, GradingTask
from goldformer.conformance.reports.counting import count_noun
from goldformer.extras import describe_missing, list_missing
from goldformer.spec import Spec, load_spec
from goldformer.spec.files import read_regular_file, resolve_path
from goldformer.spec.yamlfile import LARGEST

#: The level of isolation that is required unless another one is named.
_LEAST: Final[Level] = "files"
_ASK_FOR_LESS: Final = (
    "To grade with less, name it: --require-isolation process. Read first what submissions can do then: "
    "docs/isolation.md"
)
_WEAK: Final = (
    "--require-isolation process: where this machine has no stronger isolation, submissions can read every file that "
    "every user may read; if you are not root, they run as you, and can read, change and delete your files, "
    "such as other submissions and grades"
)
_SEED: Final = "fresh/seed"
#: The most bytes of a file with a seed.
_LONGEST_SEED: Final = 4096
#: The file that says what the fresh cases were drawn for.
_DRAWN_FOR: Final = "fresh/drawn-for.json"


@click.command(
    epilog=options.list_statuses(
        ok="every submission has a grade",
        fails="grading itself failed for some",
        bad="bad assignment or option, no submissions, no isolation, or a package is missing",
    )
)
@click.argument("submissions", required=False, type=click.Path(path_type=Path))
@click.option("--assignment", "assignment_file", type=options.FILE, help="assignment.yaml: the components and points.")
@click.option(
    "-o", "--out", "folder", type=options.FOLDER, help="The folder of results; finished submissions are skipped."
)
@options.JOBS
@click.option("--scheduler", metavar="ADDRESS", help="Grade on a running Dask cluster, such as tcp://10.0.0.1:8786.")
@click.option(
    "--require-isolation",
    "require",
    type=click.Choice(["process", "files", "full"]),
    help="Refuse to grade if submissions are isolated less than this; `process` must be asked for.  [default: files]",
)
@click.option(
    "--seed",
    help="Draw the fresh cases with this seed, or the seed in @FILE, not with the assignment's or a random one.",
)
@click.option(
    "--solution",
    "solution_file",
    type=options.FILE,
    help="The right solution: submissions have to answer what it answers, with every output."
    "  [default: solution.py next to the assignment]",
)
@click.option(
    "--only",
    multiple=True,
    callback=options.split_words(),
    metavar="ID",
    help="Only this submission (repeatable, or a,b).",
)
@click.option("--one", "holds", flag_value="one", help="SUBMISSIONS is one submission, whatever else its folder holds.")
@click.option(
    "--class", "holds", flag_value="class", help="SUBMISSIONS is a class, also where one file of it is submission.py."
)
@click.option(
    "--drop-missing",
    "drop",
    is_flag=True,
    help="Take submissions that are no longer there out of the gradebook; without this, they are an error.",
)
@click.option("--again", is_flag=True, help="Grade finished submissions again.")
@options.JSON
def grade(
    *,
    submissions: Path | None,
    assignment_file: Path | None,
    folder: Path | None,
    jobs: int | None,
    scheduler: str | None,
    require: Level | None,
    seed: str | None,
    solution_file: Path | None,
    only: tuple[str, ...],
    holds: Holds | None,
    drop: bool,
    again: bool,
    json: Path | None,
) -> int:
    """Grade a class.

    SUBMISSIONS is a folder of .py files, notebooks, folders and zips. Each submission runs in its own process, isolated
    from everything else, and is judged from outside. A single file, a zip, or a folder with submission.py is a class of
    one.
    """
    try:
        if submissions is None or assignment_file is None or folder is None:
            raise CannotRun("grade needs SUBMISSIONS, --assignment and --out")
        if packages := list_missing():
            raise CannotRun(describe_missing(packages))
        require_folders({"--json": json})
        _warn_of_weak_isolation(require)
        seed = _read_seed(seed, require)
        spec = load_spec()
        assignment = read_assignment(assignment_file, spec)
        declarations = read_declarations(
            assignment.adapter.read_bytes(), spec, (part.component for part in assignment.parts)
        )
        solution = Solution.of(assignment, solution_file)
        if scheduler is None:
            require_packages(assignment, declarations.arrays, solution)
        _refuse_results_inside(folder, submissions)
        found = find_submissions(submissions, holds)
        _name_left_out(found)
        chosen = _choose(found, only)
        with closing(_open_store(folder)) as store:
            if not drop:
                require_graded(store, found)
            fresh = _draw_fresh_cases(assignment, declarations.conventions, seed, spec, store)
            task = GradingTask.of(assignment, fresh, spec, require or _LEAST)
            _store_assignment(assignment, store)
            task, plan = require_answers(task, solution, spec, store, scheduler, quiet=json == DASH)
            session = Session(task, chosen, store, again, jobs, scheduler, visible=json != DASH)
            session.announce(plan)
            session.run()
            lines = list(_read_grades(found, chosen, session, store))
            written = write_class(lines, task, plan, spec, store)
        if json is not None:
            save_json(json, gradebook.to_json(lines, assignment))
        _report(lines, len(found), session, [folder / name for name in written])
        return FAILS if any(line.outcome == "grader-error" for line in lines) else OK
    except (InUse, NoSubmissions, Unusable) as error:
        weak = require is None and f"isolation {_LEAST} cannot be had" in str(error)
        raise CannotRun(f"{error}\n{_ASK_FOR_LESS}" if weak else str(error)) from error
    except KeyboardInterrupt:
        err.print("goldformer: stopped: finished grades are stored; the same command continues", markup=False)
        return STOPPED


def _warn_of_weak_isolation(require: Level | None) -> None:
    if require == "process":
        err.print(f"goldformer: {_WEAK}", style="bold yellow", markup=False)


def _read_seed(seed: str | None, require: Level | None) -> str | None:
    """Return the seed that an option names; CannotRun if submissions could read it, or if there is no such file."""
    if seed is None:
        return None
    if not seed.startswith("@"):
        if require == "process":
            what = "every process of this machine can read the command line, and so can submissions at level process"
            raise CannotRun(f"--seed: {what}: write the seed to a file with mode 600, and name it with --seed @FILE")
        return _require_seed(seed, "--seed")
    try:
        return _require_seed(read_regular_file(Path(seed[1:]), _LONGEST_SEED).decode(), f"--seed {seed}")
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise CannotRun(f"--seed {seed}: the file cannot be read: {why}") from error


def _require_seed(seed: str, option: str) -> str:
    """Return a seed without surrounding space; CannotRun if nothing is left, which would be a random one."""
    if not seed.strip():
        raise CannotRun(f"{option}: the seed is empty: write any word or number, or leave the option out")
    return seed.strip()


def _refuse_results_inside(folder: Path, submissions: Path) -> None:
    """Raise CannotRun if the folder of results lies in the one of submissions."""
    top = resolve_path(folder)
    if submissions.is_dir() and resolve_path(submissions) in (top, *top.parents):
        raise CannotRun(
            f"--out {folder}: lies in {submissions}, where the next run would take it for a submission: name a folder "
            "outside"
        )


def _open_store(folder: Path) -> Store:
    """Open the folder of results; Unusable if it cannot be written."""
    try:
        return Store(folder)
    except OSError as error:
        raise Unusable(f"--out {folder}: cannot be written: {error.strerror}") from error


def _name_left_out(found: ClassList) -> None:
    """Say which files are not graded: no submission is skipped silently."""
    if found.left_out:
        names = ", ".join(found.left_out)
        err.print(f"goldformer: not graded, because it is no student's work: {names}", markup=False)


def _choose(found: ClassList, only: tuple[str, ...]) -> ClassList:
    """Return the submissions that --only names, or all of them."""
    require_known(only, tuple(handed.id for handed in found.handed), "--only")
    return replace(found, handed=tuple(handed for handed in found.handed if handed.id in only)) if only else found


def _read_grades(found: ClassList, chosen: ClassList, session: Session, store: Store) -> Iterator[Grade]:
    """Yield the grades of the class; a grade of an earlier run counts if nothing that it is made of has changed."""
    task, chosen_ids = session.task, {handed.id for handed in chosen.handed}
    for handed in found.handed:
        grade = session.grades.get(handed.id) or store.grade(handed.id)
        if grade is None:
            continue
        if handed.id in chosen_ids or grade.key == task.key(handed.read(task.assignment.limits)):
            yield replace(grade, checks=())


def _draw_fresh_cases(
    assignment: Assignment, declared: Mapping[str, str], seed: str | None, spec: Spec, store: Store
) -> str:
    """Return the fresh cases of this class, which nobody has seen: drawn once, and then the same for everyone."""
    seed = seed or assignment.seed or _read_stored_seed(store) or secrets.token_hex(16)
    digests = (digest_assignment(assignment), digest_folder(spec.root), version("goldformer"), seed)
    drawn_for = hashlib.sha256(json.dumps(digests).encode()).hexdigest() + "\n"
    made, cases = store.folder / _DRAWN_FOR, store.folder / FRESH
    # Damaged cases are drawn again.
    with suppress(OSError, UnicodeDecodeError):
        if read_regular_file(made, len(drawn_for)).decode() == drawn_for:
            return read_regular_file(cases, LARGEST).decode()
    fresh = draw_fresh(assignment, spec, seed, declared)
    for component, why in fresh.short.items():
        err.print(f"goldformer: {component}: fewer fresh cases than asked for: {why}", markup=False)
    store.write(_SEED, seed + "\n")
    store.write(str(FRESH), fresh.text)
    store.write(_DRAWN_FOR, drawn_for)
    return fresh.text


def _read_stored_seed(store: Store) -> str:
    """Return the seed of an earlier run, or nothing if it was the first."""
    path = store.folder / _SEED
    try:
        return read_regular_file(path, _LONGEST_SEED).decode().strip()
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise Unusable(f"{path}: is no seed as it was written: name the seed with --seed @FILE") from error


def _store_assignment(assignment: Assignment, store: Store) -> None:
    """Copy the assignment into the folder of results, which says by it what was asked."""
    folder = assignment.path.parent
    for path in filter(None, (assignment.path, assignment.adapter, assignment.starter)):
        name = "assignment.yaml" if path == assignment.path else path.relative_to(folder).as_posix()
        store.write(f"{ASSIGNMENT}/{name}", path.read_bytes())


def _report(lines: Sequence[Grade], among: int, session: Session, written: Sequence[Path]) -> None:
    outcomes = Counter(line.outcome for line in lines)
    counts = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))
    graded = f"{len(session.grades)} graded in {session.seconds:.1f} s"
    say(f"{graded}, {session.before} were already" if session.before else graded)
    of = "" if len(lines) == among else f"{len(lines)} of "
    missing = "" if len(lines) == among else f"; {among - len(lines)} without a grade"
    say(f"{of}{count_noun(among, 'submission')}: {counts}{missing}")
    for path in written:
        say(f"- wrote {path}")
    if failed := [line.submission for line in lines if line.outcome == "grader-error"]:
        err.print(f"goldformer: grading itself failed for {', '.join(failed)}: see grader-error.txt there", style="red")
