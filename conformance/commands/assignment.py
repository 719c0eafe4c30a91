"""goldformer assignment: a ready one to start from, and the instructor's check of one before it is handed out."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from goldformer.adapters import Adapter, AdapterError, find_adapter
from goldformer.conformance.commands._console import FAILS, OK, err, plain_table, print_table, say, unusable
from goldformer.conformance.grading.assignment import read_assignment
from goldformer.conformance.grading.exam import Exam, Plan
from goldformer.conformance.grading.fresh import Fresh, draw_fresh
from goldformer.conformance.grading.model import Assignment, Check, Part
from goldformer.conformance.grading.returned import OutputRecorder, summarize
from goldformer.conformance.judging.cases import Bench
from goldformer.conformance.judging.verdict import Status, Verdict
from goldformer.conformance.reports.text import headline
from goldformer.conformance.run import Numerics
from goldformer.spec import Spec, SpecError, load_spec

#: Where the ready assignments lie, a folder each.
READY: Final = Path(__file__).resolve().parent.parent / "grading" / "assignments"

#: What fresh cases are drawn with where an assignment has no seed; grading draws one that nobody knows.
_SEED: Final = "check"

#: How many failing checks are listed.
_LISTED: Final = 8


def new(folder: Path, kind: str) -> int:
    """Write a ready assignment into a folder; the exit status."""
    sources = sorted(path for path in (READY / kind).iterdir() if path.is_file())
    for source in sources:
        if (folder / source.name).exists():
            return unusable(f"{folder / source.name} exists: give another folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for source in sources:
            (folder / source.name).write_bytes(source.read_bytes())
    except OSError as error:
        return unusable(f"{error.filename} cannot be written: {error.strerror}")
    say(f"wrote {', '.join(source.name for source in sources)} into {folder}")
    say(f"now run: goldformer assignment check {folder / 'assignment.yaml'}")
    say("fill in, in README.md, where students install goldformer from: $GOLDFORMER_SOURCE and $GOLDFORMER_COMMIT")
    say("give students README.md, starter.py and adapter.py; keep solution.py and assignment.yaml")
    return OK


@dataclass(frozen=True, slots=True)
class _Row:
    """What came of a component: its checks that decide about points, and those among them that ask for numbers."""

    part: Part
    checks: tuple[Check, ...]
    numeric: Collection[str]

    def share(self, *, fresh: bool) -> str:
        """Passed of judged, as text."""
        judged = [check for check in self.checks if (check.origin == "fresh") is fresh]
        return f"{sum(check.outcome == 'correct' for check in judged)} of {len(judged)}" if judged else "–"

    @property
    def bad(self) -> list[Verdict]:
        """The checks that fail, what is not written among them."""
        bad = [check for check in self.checks if check.outcome != "correct"]
        return [replace(c.verdict, status=Status.FAILED) if c.outcome == "missing" else c.verdict for c in bad]

    @property
    def earning(self) -> list[Check]:
        """The checks of numbers: points need one of them to pass."""
        return [check for check in self.checks if check.verdict.check in self.numeric]

    @property
    def passed(self) -> bool:
        """Whether one of them does."""
        return any(check.outcome == "correct" for check in self.earning)


def check(path: Path, solution: Path | None) -> int:
    """Say whether an assignment's solution earns all points and its starter none; the exit status."""
    start = time.perf_counter()
    try:
        spec = load_spec()
        assignment = read_assignment(path, spec)
        fresh = draw_fresh(assignment, spec, assignment.seed or _SEED)
        plan = Plan.of(Exam.of(assignment, fresh.text, spec), spec)
    except (AdapterError, SpecError) as error:
        return unusable(str(error))
    except ImportError as error:
        return unusable(f"fresh cases cannot be drawn: {error}")
    solution = solution or assignment.path.parent / "solution.py"
    returned = OutputRecorder(plan.spec)
    try:
        solved = _rows(assignment, plan, spec, solution, returned)
        started = _rows(assignment, plan, spec, assignment.starter, OutputRecorder(spec)) if assignment.starter else []
    except AdapterError as error:
        return unusable(str(error))
    _show(assignment, solved, started, time.perf_counter() - start)
    if required := summarize(returned.outputs(), spec):
        say(f"submissions have to return what {solution.name} returns: {required}")
    _warn(assignment, fresh, solved)
    return OK if _verdict(solution, solved, started) else FAILS


def _rows(assignment: Assignment, plan: Plan, spec: Spec, submission: Path, returned: OutputRecorder) -> list[_Row]:
    """Judge each component, and record what is returned; AdapterError if a file cannot be imported."""
    with _adapter(assignment, spec, submission) as adapter:
        Numerics().apply(adapter.arrays)
        bench = Bench(plan.spec, returned.watch(adapter), assignment.dtypes[0], "cpu")
        checks = []
        for planned in plan.checks:
            checks.append(planned.checked(planned.judge(replace(bench, dtype=planned.dtype)).verdict))
            returned.file(planned.component, planned.subject.id)
    counted = [check for check in checks if plan.kinds.counts(check)]
    return [
        _Row(part, tuple(c for c in counted if c.verdict.component == part.component), plan.kinds.numeric)
        for part in assignment.parts
    ]


@contextlib.contextmanager
def _adapter(assignment: Assignment, spec: Spec, submission: Path) -> Iterator[Adapter]:
    """The assignment's adapter, for which a file is `submission`; AdapterError where one cannot be imported."""
    before, path = sys.modules.get("submission"), list(sys.path)
    module_spec = importlib.util.spec_from_file_location("submission", submission)
    if module_spec is None or module_spec.loader is None or not submission.is_file():
        raise AdapterError(f"{submission}: no such Python file; --solution FILE names another one")
    module = importlib.util.module_from_spec(module_spec)
    sys.modules["submission"] = module
    try:
        try:
            module_spec.loader.exec_module(module)
        except (Exception, SystemExit) as error:
            raise AdapterError(f"{submission} could not be imported: {type(error).__name__}: {error}") from error
        with contextlib.closing(find_adapter(str(assignment.adapter), spec)) as adapter:
            yield adapter
    finally:
        sys.path[:] = path
        del sys.modules["submission"]
        if before is not None:
            sys.modules["submission"] = before


def _show(assignment: Assignment, solved: list[_Row], started: list[_Row], seconds: float) -> None:
    say(f"{assignment.title}: {assignment.points:g} points, in {' and '.join(assignment.dtypes)}", "bold")
    table = plain_table("component", "points", "published", "fresh", right=("points", "published", "fresh"))
    for row in solved:
        table.add_row(row.part.component, f"{row.part.points:g}", row.share(fresh=False), row.share(fresh=True))
    print_table(table)
    judged = sum(len(row.checks) for row in (*solved, *started))
    say(f"{judged} checks in {seconds:.1f} s, with what drawing the fresh cases took", "dim")


def _warn(assignment: Assignment, fresh: Fresh, solved: list[_Row]) -> None:
    warnings = [f"{component} has fewer fresh cases: {why}" for component, why in fresh.short.items()]
    if not assignment.fresh:
        warnings.append("there are no fresh cases: code that answers the published ones from a table earns all points")
    for row in solved:
        if not row.earning:
            name = row.part.component
            warnings.append(
                f"{name}: nothing is judged in {' or '.join(assignment.dtypes)}, so nobody can earn its points"
            )
    for warning in warnings:
        err.print(f"Warning: {warning}", style="yellow", markup=False)


def _verdict(solution: Path, solved: list[_Row], started: list[_Row]) -> bool:
    """Say whether the solution earns everything and the starter nothing."""
    failing = [verdict for row in solved for verdict in row.bad]
    barren = [row.part.component for row in solved if row.part.points and not row.passed]
    for verdict in failing[:_LISTED]:
        say(headline(verdict))
    if failing:
        say(f"{solution.name} fails {len(failing)} checks: fix it, or leave them out with `without`", "red")
    elif barren:
        say(f"{solution.name} earns nothing for {', '.join(barren)}", "red")
    else:
        say(f"{solution.name} earns all points", "green")
    earning = [row.part.component for row in started if row.passed]
    if earning:
        say(f"the starter earns points for {', '.join(earning)}: leave out what students are to write", "red")
    elif started:
        say("the starter earns none", "green")
    return not (failing or barren or earning)
