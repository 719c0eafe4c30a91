"""Define what every submission of a class is asked, in a form that can be sent; and plan the checks in order."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from goldformer.adapters.protocol import find_options
from goldformer.conformance.diagnosis.diagnosed import Explained
from goldformer.conformance.grading.answers import NOTHING_REQUIRED, Answers
from goldformer.conformance.grading.assignment import digest_assignment, list_published_cases
from goldformer.conformance.grading.declarations import Declarations, read_declarations
from goldformer.conformance.grading.fresh import load_fresh
from goldformer.conformance.grading.model import Assignment, Check, Origin, Submission, derive_outcome
from goldformer.conformance.grading.redraw import find_kind
from goldformer.conformance.grading.sandbox import Level
from goldformer.conformance.grading.score import CheckKinds
from goldformer.conformance.grading.store import digest_folder, make_key
from goldformer.conformance.judging.cases import Bench, Judgement, PreparedCase, judge_case
from goldformer.conformance.judging.verdict import Status, Verdict
from goldformer.conformance.properties.judge import judge_property
from goldformer.conformance.properties.registry import components_of, load_properties
from goldformer.spec import Case, Property, Spec

#: The file in the folder of results that fresh cases name as their place.
FRESH: Final = Path("fresh/cases.yaml")

#: The name of the checks of each origin.
_ORIGINS: Final[Mapping[Origin, str]] = {
    "published": "published cases",
    "fresh": "fresh cases",
    "property": "properties",
}


@dataclass(frozen=True, slots=True)
class GradingTask:
    """An assignment with everything needed to grade it; whoever has it needs no file of the assignment.

    `fresh` is the text of the fresh cases, and `digests` are of everything except the submission. `answers` are those
    of the assignment's solution, which every submission must give.
    """

    assignment: Assignment
    adapter: bytes
    fresh: str
    digests: tuple[str, str, str, str]
    require: Level | None = None
    answers: Answers = NOTHING_REQUIRED

    @classmethod
    def of(cls, assignment: Assignment, fresh: str, spec: Spec, require: Level | None = None) -> GradingTask:
        """Return the task of an assignment; OSError if its adapter cannot be read."""
        fresh_digest = hashlib.sha256(fresh.encode()).hexdigest()
        digests = (digest_assignment(assignment), fresh_digest, digest_folder(spec.root), NOTHING_REQUIRED.digest)
        return cls(assignment, assignment.adapter.read_bytes(), fresh, digests, require)

    def require_answers(self, answers: Answers) -> GradingTask:
        """Return the same task in which a submission must answer what these answers do, and nothing else."""
        return replace(self, answers=answers, digests=(*self.digests[:3], answers.digest))

    def limit_memory(self, memory: int) -> GradingTask:
        """Return the same task with the memory limit that is in force on this machine."""
        limits = self.assignment.limits.model_copy(update={"memory": memory})
        return replace(self, assignment=replace(self.assignment, limits=limits))

    def key(self, submission: Submission) -> str:
        """Return the digest of everything that decides about a submission's grade."""
        return make_key(submission.digest, *self.digests)


def make_strict(bench: Bench) -> Bench:
    """Return a bench that tolerates nothing but advice, and does not keep durations, because they vary."""
    strict = replace(bench.policy, require_refusals=True, require_precision=True, timed=False)
    return bench if strict == bench.policy else replace(bench, policy=strict)


@dataclass(frozen=True, slots=True)
class PlannedCheck:
    """A check to be made of every submission."""

    origin: Origin
    dtype: str
    subject: Case | Property
    component: str

    def judge(self, bench: Bench, prepared: PreparedCase | None = None) -> Judgement:
        """Make the check strictly. `prepared` is its case, for implementations with the declarations of this one."""
        bench = make_strict(bench)
        if isinstance(self.subject, Case):
            return judge_case(self.subject, bench, prepared)
        return judge_property(self.subject, self.component, bench)

    def rate(self, explained: Explained) -> Check:
        """Return what a verdict of this check means for a grade."""
        verdict, diagnosis = explained
        if verdict.is_fault:
            return Check(self.origin, "grader-error", self.skip("grading failed", verdict.detail))
        return Check(self.origin, derive_outcome(verdict), verdict, diagnosis=diagnosis)

    def skip(self, message: str, detail: str = "") -> Verdict:
        """Return the verdict of this check if it is not judged."""
        kind, source = (
            ("case", str(self.subject.source or "derived"))
            if isinstance(self.subject, Case)
            else ("property", "property")
        )
        return Verdict(
            self.subject.id, kind, self.component, self.subject.title, Status.SKIPPED, "not-checkable", message,  # type: ignore[arg-type]
            self.dtype, "cpu", self.subject.clauses, source, detail=detail,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class CheckPlan:
    """The checks of a task in order, the spec with its fresh cases, and the declarations of the adapter.

    `left_out` are the checks that the assignment's solution declines: nobody is asked for them.
    """

    spec: Spec
    declarations: Declarations
    checks: tuple[PlannedCheck, ...]
    kinds: CheckKinds
    left_out: tuple[PlannedCheck, ...] = ()

    @classmethod
    def of(cls, task: GradingTask, spec: Spec) -> CheckPlan:
        """Return the plan of a task for its spec; AdapterError or SpecError if something in it cannot be used."""
        # Fresh cases name a place in the folder of results, wherever that folder is.
        fresh = [replace(case, place=replace(case.place, file=FRESH)) for case in load_fresh(task.fresh, spec)]
        published = list_published_cases(task.assignment, spec)
        declarations = read_declarations(task.adapter, spec, (part.component for part in task.assignment.parts))
        spec = spec.with_cases({case.id: case for case in fresh})
        kinds = _sort_kinds([*published, *fresh], declarations, spec)
        plan = cls(spec, declarations, tuple(_plan_checks(task.assignment, published, fresh, spec)), kinds)
        return plan.leave_out(task.answers)

    def leave_out(self, answers: Answers) -> CheckPlan:
        """Return the same plan without the checks that a solution with these answers declines."""
        asked: list[PlannedCheck] = []
        left_out: list[PlannedCheck] = []
        for check in self.checks:
            (left_out if answers.leaves_out(check.component, check.subject.id) else asked).append(check)
        return replace(self, checks=tuple(asked), left_out=tuple(left_out))

    def describe_left_out(self) -> str:
        """Return the line that says what the solution declines; nothing if it declines nothing. No case is named."""
        texts = []
        for component in dict.fromkeys(check.component for check in self.left_out):
            counts = [
                f"{out} of {out + self._count(self.checks, component, origin)} {name}"
                for origin, name in _ORIGINS.items()
                if (out := self._count(self.left_out, component, origin))
            ]
            texts.append(f"{component} ({', '.join(counts)})")
        return f"left out for everybody, because the solution declines it: {', '.join(texts)}" if texts else ""

    def warn_of_tables(self) -> Iterator[str]:
        """Yield a warning for each component whose fresh cases of numbers are all left out."""
        fresh = {c.component for c in self.left_out if c.origin == "fresh" and c.subject.id in self.kinds.numeric}
        left = {c.component for c in self.checks if c.origin == "fresh" and c.subject.id in self.kinds.numeric}
        for component in sorted(fresh - left):
            yield (
                f"{component}: the solution declines every fresh case of numbers, so code that answers the published "
                "ones from a table earns all points"
            )

    def _count(self, checks: Iterable[PlannedCheck], component: str, origin: Origin) -> int:
        """Return the number of cases or properties of a component that count, each once for all dtypes."""
        mine = {c.subject.id for c in checks if (c.component, c.origin) == (component, origin)}
        return len(mine - {*self.kinds.advised})


def _plan_checks(
    assignment: Assignment, published: list[Case], fresh: list[Case], spec: Spec
) -> Iterator[PlannedCheck]:
    """Yield components before what is built of them, as the diagnosis needs it; and fresh cases last.

    What a submission prints before the fresh cases may be shown to its author; later output could repeat those cases.
    """
    parts = {part.component: part for part in assignment.parts}
    ordered = [name for name in spec.components if name in parts]

    def plan_cases(origin: Origin, cases: list[Case]) -> Iterator[PlannedCheck]:
        for dtype in assignment.dtypes:
            for name in ordered:
                yield from (PlannedCheck(origin, dtype, case, name) for case in cases if case.component == name)

    yield from plan_cases("published", published)
    load_properties(spec)
    for dtype in assignment.dtypes:
        for name in ordered:
            for prop in spec.properties.values():
                wanted = parts[name].properties > 0 and name in components_of(prop, spec)
                # Skip a property that compares with a component which the assignment does not ask for.
                if wanted and {*prop.needs} <= parts.keys() and prop.id not in assignment.without:
                    yield PlannedCheck("property", dtype, prop, name)
    yield from plan_cases("fresh", fresh)


def _sort_kinds(cases: list[Case], declarations: Declarations, spec: Spec) -> CheckKinds:
    refusals = frozenset(case.id for case in cases if _is_refusal(case, declarations, spec))
    numeric = frozenset(case.id for case in cases if case.id not in refusals and not case.shape_only)
    extreme = frozenset(case.id for case in cases if find_kind(case) == "extreme")
    return CheckKinds(refusals, numeric, extreme, frozenset(case.id for case in cases if spec.is_advice(case)))


def _is_refusal(case: Case, declarations: Declarations, spec: Spec) -> bool:
    """Return True if the right answer is an error, under the conventions that the adapter declares."""
    if case.error is not None or case.golden is None:
        return case.error is not None
    return case.refuses(find_options(declarations.conventions, case.component, spec))
