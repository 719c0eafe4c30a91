"""goldformer assignment: write a ready assignment, and check one before it is handed out."""

from __future__ import annotations

import contextlib
import pkgutil
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import click

from goldformer.adapters import Adapter, AdapterError, find_adapter
from goldformer.adapters.find import import_file
from goldformer.conformance.commands import _options as options
from goldformer.conformance.commands._console import FAILS, OK, CannotRun, err, plain_table, print_table, say
from goldformer.conformance.diagnosis.diagnosed import Explained
from goldformer.conformance.grading.answers import AnswerRecorder, Answers, summarize
from goldformer.conformance.grading.assignment import list_published_cases, read_assignment
from goldformer.conformance.grading.declarations import read_declarations
from goldformer.conformance.grading.forbidden import find_forbidden_uses, list_unmentioned
from goldformer.conformance.grading.fresh import KINDS, FreshCases, draw_fresh, list_unmatched_kinds, load_fresh
from goldformer.conformance.grading.model import Assignment, Check, GradedComponent
from goldformer.conformance.grading.python_files import SUBMISSION
from goldformer.conformance.grading.results.words import shorten_to_line
from goldformer.conformance.grading.sandbox import Sandbox, SandboxError, TooLittleMemory
from goldformer.conformance.grading.score import find_declined
from goldformer.conformance.grading.starter import make_starter
from goldformer.conformance.grading.task import CheckPlan, GradingTask
from goldformer.conformance.judging.cases import Bench
from goldformer.conformance.judging.verdict import Status, Verdict
from goldformer.conformance.reports.text import format_headline
from goldformer.conformance.selection import Numerics
from goldformer.spec import Spec, load_spec
from goldformer.spec.files import read_regular_file, replace_file

#: The folders of the ready assignments.
READY: Final = Path(__file__).resolve().parent.parent / "grading" / "assignments"

#: Their names, which --kind takes
READY_KINDS: Final = sorted(path.parent.name for path in READY.glob("*/assignment.yaml"))

#: The seed of the fresh cases of an assignment without one; grading draws a secret seed.
_SEED: Final = "check"


#: The number of failing checks that are listed, and of reasons for what is left out.
_LISTED: Final = 8

#: The number of cases that are named for each of these reasons, and the most characters of a reason.
_NAMED: Final = 3
_LONGEST_REASON: Final = 100


@click.group()
def assignment() -> None:
    """Write an assignment for a course, and check it."""


@assignment.command("new", epilog=options.list_statuses())
@click.argument("folder", metavar="DIR", type=options.FOLDER)
@click.option(
    "--kind",
    type=click.Choice(READY_KINDS),
    default="attention",
    show_default=True,
    help="The code that students write.",
)
def write_new(*, folder: Path, kind: str) -> int:
    """Write a ready assignment into DIR.

    It has the assignment itself, a starter, an adapter, a solution, and a page for students.
    """
    files = read_ready(kind)
    there = [name for name in files if (folder / name).exists()]
    # A run that was killed leaves some of the files, and the same command goes on.
    unfinished = len(there) < len(files) and all(_holds(folder / name, files[name]) for name in there)
    if there and not unfinished:
        raise CannotRun(f"{folder / there[0]} exists: give another folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            replace_file(folder / name, data)
    except OSError as error:
        # The same command would refuse a folder with some of the files.
        for name in files:
            (folder / name).unlink(missing_ok=True)
        raise CannotRun(f"{error.filename} cannot be written: {error.strerror}") from error
    say(f"wrote {', '.join(files)} into {folder}")
    say(f"now run: goldformer assignment check {folder / 'assignment.yaml'}")
    say("fill in, in README.md, where students install goldformer from: $GOLDFORMER_SOURCE and $GOLDFORMER_COMMIT")
    say("give students README.md, starter.py and adapter.py; keep solution.py and assignment.yaml")
    return OK


def read_ready(kind: str) -> dict[str, bytes]:
    """Return the files of a ready assignment by their names; the starter is made of the solution."""
    files = {path.name: path.read_bytes() for path in sorted((READY / kind).iterdir()) if path.is_file()}
    return files | {"starter.py": make_starter(files["solution.py"].decode("utf-8")).encode("utf-8")}


def _holds(path: Path, data: bytes) -> bool:
    """Return True if a file holds just these bytes."""
    try:
        return read_regular_file(path, len(data)) == data
    except OSError:
        return False


@assignment.command(
    "check",
    epilog=options.list_statuses(
        ok="the solution earns everything and the starter nothing",
        fails="something is wrong with one of them",
        bad="bad assignment, adapter or solution",
    ),
)
@click.argument("path", metavar="ASSIGNMENT", type=options.FILE)
@click.option(
    "--solution", type=options.FILE, help="The right solution.  [default: solution.py next to the assignment]"
)
def check_assignment(*, path: Path, solution: Path | None) -> int:
    """Check that the solution earns all points, the starter nothing.

    ASSIGNMENT is its assignment.yaml. Published and fresh cases are judged. The solution and the starter run in this
    process: check only your own.
    """
    start = time.perf_counter()
    spec = load_spec()
    found = read_assignment(path, spec)
    declarations = read_declarations(found.adapter.read_bytes(), spec)
    fresh = draw_fresh(found, spec, found.seed or _SEED, declarations.conventions)
    plan = CheckPlan.of(GradingTask.of(found, fresh.text, spec), spec)
    memory = _measure_memory(found, declarations.arrays)
    solution = solution or found.path.parent / "solution.py"
    returned = AnswerRecorder(plan.spec)
    with _open_adapter(found, spec, solution) as adapter:
        checks, present = _judge(found, plan, adapter, returned), adapter.functions.keys()
    answers = Answers(left_out=find_declined(checks, plan.kinds))
    plan = plan.leave_out(answers)
    solved = _make_rows(found, plan, [c for c in checks if not _is_left_out(c, answers)])
    started = []
    if found.starter:
        with _open_adapter(found, spec, found.starter) as adapter:
            started = _make_rows(found, plan, _judge(found, plan, adapter, AnswerRecorder(spec)))
    _print_results(found, solved, started, time.perf_counter() - start)
    say(memory)
    if required := summarize(returned.answers().outputs, spec):
        say(f"submissions have to return what {solution.name} returns: {required}")
    _print_left_out(plan, [check.verdict for check in checks if _is_left_out(check, answers)])
    _warn(found, fresh, solved, plan, spec, solution, present)
    return OK if _print_verdict(solution, solved, started) else FAILS


def _measure_memory(assignment: Assignment, arrays: str) -> str:
    """Say how much memory submissions have, by starting the sandbox; CannotRun if that is too little for the library.

    Where no sandbox can be started, say that: only grading needs one.
    """
    try:
        with Sandbox(assignment.limits.of_process, arrays) as sandbox:
            return f"a submission may use {sandbox.memory} MiB of memory; {arrays} alone takes {sandbox.size} MiB here"
    except TooLittleMemory as error:
        raise CannotRun(f"{assignment.path}: {error}") from error
    except SandboxError as error:
        return f"how much memory {arrays} takes was not measured: no sandbox can be started here ({error})"


@dataclass(frozen=True, slots=True)
class _Row:
    """The checks of a component that decide about points; `numeric` are the ids of those that ask for numbers."""

    part: GradedComponent
    checks: tuple[Check, ...]
    numeric: Collection[str]

    def share(self, *, fresh: bool) -> str:
        """Return how many checks passed, of those judged, as text."""
        judged = [check for check in self.checks if (check.origin == "fresh") is fresh]
        return f"{sum(check.outcome == 'correct' for check in judged)} of {len(judged)}" if judged else "–"

    @property
    def bad(self) -> list[Verdict]:
        """The checks that fail, including what is not written."""
        bad = [check for check in self.checks if check.outcome != "correct"]
        return [replace(c.verdict, status=Status.FAILED) if c.outcome == "missing" else c.verdict for c in bad]

    @property
    def earning(self) -> list[Check]:
        """The checks of numbers: points need one of them to pass."""
        return [check for check in self.checks if check.verdict.check in self.numeric]

    @property
    def earns_points(self) -> bool:
        """Return True if a check of numbers passes."""
        return any(check.outcome == "correct" for check in self.earning)


def _judge(assignment: Assignment, plan: CheckPlan, adapter: Adapter, returned: AnswerRecorder) -> list[Check]:
    """Make every check, and record the outputs of each."""
    Numerics().apply(adapter.arrays)
    bench = Bench(plan.spec, returned.watch(adapter), assignment.dtypes[0], "cpu")
    checks = []
    for planned in plan.checks:
        checks.append(planned.rate(Explained(planned.judge(replace(bench, dtype=planned.dtype)).verdict)))
        returned.file(planned.component, planned.subject.id)
    return checks


def _is_left_out(check: Check, answers: Answers) -> bool:
    return answers.leaves_out(check.verdict.component, check.verdict.check)


def _make_rows(assignment: Assignment, plan: CheckPlan, checks: Sequence[Check]) -> list[_Row]:
    """Return the checks of each component that decide about points."""
    counted = [check for check in checks if plan.kinds.counts(check)]
    return [
        _Row(part, tuple(c for c in counted if c.verdict.component == part.component), plan.kinds.numeric)
        for part in assignment.parts
    ]


@contextlib.contextmanager
def _open_adapter(assignment: Assignment, spec: Spec, submission: Path) -> Iterator[Adapter]:
    """Yield the assignment's adapter, which imports the file as `submission`; AdapterError if it cannot be imported."""
    before, path = sys.modules.get(SUBMISSION), list(sys.path)
    if not submission.is_file():
        raise AdapterError(f"{submission}: no such Python file; --solution FILE names another one")
    try:
        sys.modules[SUBMISSION] = import_file(submission)
        with contextlib.closing(find_adapter(str(assignment.adapter), spec)) as adapter:
            yield adapter
    finally:
        sys.path[:] = path
        sys.modules.pop(SUBMISSION, None)
        if before is not None:
            sys.modules[SUBMISSION] = before


def _print_results(assignment: Assignment, solved: list[_Row], started: list[_Row], seconds: float) -> None:
    say(f"{assignment.title}: {assignment.points:g} points, in {' and '.join(assignment.dtypes)}", "bold")
    table = plain_table("component", "points", "published", "fresh", right=("points", "published", "fresh"))
    for row in solved:
        table.add_row(row.part.component, f"{row.part.points:g}", row.share(fresh=False), row.share(fresh=True))
    print_table(table)
    judged = sum(len(row.checks) for row in (*solved, *started))
    say(f"{judged} checks in {seconds:.1f} s, including the drawing of the fresh cases", "dim")


def _print_left_out(plan: CheckPlan, declined: Sequence[Verdict]) -> None:
    """Print what nobody is asked for, and the reason for each that the solution gives."""
    if not declined:
        return
    say(plan.describe_left_out())
    reasons: dict[str, list[str]] = {}
    for verdict in declined:
        cases = reasons.setdefault(shorten_to_line(verdict.message, _LONGEST_REASON), [])
        if verdict.check not in cases:
            cases.append(verdict.check)
    for reason, cases in list(reasons.items())[:_LISTED]:
        more = f" and {len(cases) - _NAMED} more" if len(cases) > _NAMED else ""
        say(f"- {', '.join(cases[:_NAMED])}{more}: {reason}")


def _warn(
    assignment: Assignment,
    fresh: FreshCases,
    solved: list[_Row],
    plan: CheckPlan,
    spec: Spec,
    solution: Path,
    present: Collection[str],
) -> None:
    """Print what the staff should know; `present` are the components that the adapter has."""
    warnings = [f"{component} has fewer fresh cases: {why}" for component, why in fresh.short.items()]
    if not assignment.fresh:
        warnings.append("there are no fresh cases: code that answers the published ones from a table earns all points")
    else:
        warnings += _describe_unmatched_kinds(assignment, fresh, plan, spec)
    warnings += _describe_forbidden(assignment, solution)
    warnings += _describe_unasked(assignment, spec, present)
    for row in solved:
        if not row.earning:
            name = row.part.component
            warnings.append(
                f"{name}: nothing is judged in {' or '.join(assignment.dtypes)}, so nobody can earn its points"
            )
    for warning in warnings:
        err.print(f"Warning: {warning}", style="yellow", markup=False)


def _describe_unmatched_kinds(assignment: Assignment, fresh: FreshCases, plan: CheckPlan, spec: Spec) -> Iterator[str]:
    """Yield which published cases of each component have no fresh counterpart."""
    asked = {check.subject.id for check in plan.checks}
    published = [c for c in list_published_cases(assignment, spec) if c.id in asked - {*plan.kinds.advised}]
    drawn = [c for c in load_fresh(fresh.text, spec) if c.id in asked]
    for component, counts in list_unmatched_kinds(published, drawn).items():
        kinds = " and ".join(f"{count} of {KINDS[kind]}" for kind, count in counts.items())
        yield f"{component}: no fresh case is like these published ones, which a table can answer: {kinds}"


def _describe_forbidden(assignment: Assignment, solution: Path) -> Iterator[str]:
    """Yield what does not exist, what the solution uses and must not, and what the starter does not forbid."""
    for name in assignment.forbid:
        try:
            pkgutil.resolve_name(name)
        except (ImportError, AttributeError) as error:
            yield f"forbid: {name} is not found here ({error}), so nothing is refused: correct the name"
    for use in find_forbidden_uses({solution.name: solution.read_bytes()}, assignment.forbid):
        if not use.private:
            yield f"{use.file}, line {use.line} uses {use.name}, which the assignment forbids: grading refuses it"
    if assignment.starter is not None:
        starter = assignment.starter.read_text("utf-8")
        for name in list_unmentioned(starter, assignment.forbid):
            yield f"{assignment.starter.name} does not say that {name} is forbidden"


def _describe_unasked(assignment: Assignment, spec: Spec, present: Collection[str]) -> Iterator[str]:
    """Yield which components the adapter has and nobody earns points for: `goldformer check` judges them at home."""
    asked = {part.component for part in assignment.parts}
    if unasked := [name for name in spec.components if name in present and name not in asked]:
        yield (
            f"{assignment.adapter.name} has {', '.join(unasked)}, which components does not ask for: delete this there "
            f"and in what students get, or their `goldformer check {assignment.adapter.name}` judges it too"
        )


def _print_verdict(solution: Path, solved: list[_Row], started: list[_Row]) -> bool:
    """Print whether the solution earns everything and the starter nothing, and return it."""
    failing = [verdict for row in solved for verdict in row.bad]
    barren = [row.part.component for row in solved if row.part.points and not row.earns_points]
    for verdict in failing[:_LISTED]:
        say(format_headline(verdict))
    if failing:
        say(f"{solution.name} fails {len(failing)} checks: fix it, or leave them out with `without`", "red")
    elif barren:
        say(f"{solution.name} earns nothing for {', '.join(barren)}", "red")
    else:
        say(f"{solution.name} earns all points", "green")
    earning = [row.part.component for row in started if row.earns_points]
    if earning:
        say(f"the starter earns points for {', '.join(earning)}: leave out what students are to write", "red")
    elif started:
        say("the starter earns no points", "green")
    return not (failing or barren or earning)
