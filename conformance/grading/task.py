"""What all submissions of a class are asked, in a form that travels; and in which order it is asked."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from goldformer.conformance.grading.assignment import digest_of, published_cases
from goldformer.conformance.grading.declarations import Declared, declared
from goldformer.conformance.grading.fresh import load_fresh
from goldformer.conformance.grading.model import Assignment, Check, Level, Origin, Submission, outcome_of
from goldformer.conformance.grading.outputs import OPTIONAL, Outputs
from goldformer.conformance.grading.score import Kinds
from goldformer.conformance.grading.store import digest_of_folder, key_of
from goldformer.conformance.judging.cases import Bench, Judgement, judge_case
from goldformer.conformance.judging.verdict import Status, Verdict
from goldformer.conformance.properties.held import components_of, judge_property
from goldformer.conformance.run import load_properties
from goldformer.spec import Case, Property, Spec
from goldformer.spec.model import ANY

#: Where results say that fresh cases stand: in the folder of results.
FRESH: Final = Path("fresh/cases.yaml")


@dataclass(frozen=True, slots=True)
class Exam:
    """An assignment with all that it is graded by; whoever has it needs no file of the assignment.

    `fresh` is the text of the fresh cases, and `digests` are of everything but a submission. `outputs` are those that
    every submission has to return, because the assignment's solution does.
    """

    assignment: Assignment
    adapter: bytes
    fresh: str
    digests: tuple[str, str, str, str]
    require: Level | None = None
    outputs: Outputs = field(default_factory=dict)

    @classmethod
    def of(cls, assignment: Assignment, fresh: str, spec: Spec, require: Level | None = None) -> Exam:
        """The exam of an assignment; OSError when its adapter cannot be read."""
        fresh_digest = hashlib.sha256(fresh.encode()).hexdigest()
        digests = (digest_of(assignment), fresh_digest, digest_of_folder(spec.root), _digest(OPTIONAL))
        return cls(assignment, assignment.adapter.read_bytes(), fresh, digests, require)

    def requiring(self, outputs: Outputs) -> Exam:
        """Return the same exam in which a submission has to return these outputs."""
        return replace(self, outputs=outputs, digests=(*self.digests[:3], _digest(outputs)))

    def key(self, submission: Submission) -> str:
        """What a submission's grade is made of."""
        return key_of(submission.digest, *self.digests)


@dataclass(frozen=True, slots=True)
class Planned:
    """A check that is to be made of every submission."""

    origin: Origin
    dtype: str
    subject: Case | Property
    component: str

    def judge(self, bench: Bench) -> Judgement:
        """Make the check. Its duration is not kept: it differs from run to run."""
        made = (
            judge_case(self.subject, bench)
            if isinstance(self.subject, Case)
            else judge_property(self.subject, self.component, bench)
        )
        return replace(made, verdict=replace(made.verdict, seconds=0.0))

    def checked(self, verdict: Verdict) -> Check:
        """Return what a verdict of this check means for a grade."""
        if verdict.is_fault:
            return Check(self.origin, "grader-error", self.unjudged("grading failed", verdict.detail))
        return Check(self.origin, outcome_of(verdict), verdict)

    def unjudged(self, message: str, detail: str = "") -> Verdict:
        """What is said of it where it is not judged."""
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
class Plan:
    """The checks of an exam in order, the spec with its fresh cases, and what the adapter declares."""

    spec: Spec
    declared: Declared
    checks: tuple[Planned, ...]
    kinds: Kinds

    @classmethod
    def of(cls, exam: Exam, spec: Spec) -> Plan:
        """AdapterError or SpecError where something in an exam cannot be used; `spec` is the one that it is of."""
        fresh = _fresh(exam.fresh, spec)
        published = published_cases(exam.assignment, spec)
        declares = declared(exam.adapter, spec, (part.component for part in exam.assignment.parts))
        spec = spec.with_cases({case.id: case for case in fresh})
        cases = [*published, *fresh]
        checks = tuple(_planned(exam.assignment, published, fresh, spec))
        return cls(spec, declares, checks, _kinds(cases, declares, spec))


def _digest(outputs: Outputs) -> str:
    return hashlib.sha256(json.dumps(outputs, sort_keys=True).encode()).hexdigest()


def _fresh(text: str, spec: Spec) -> list[Case]:
    """The fresh cases, which say that they stand in the folder of results, wherever that is."""
    return [replace(case, place=replace(case.place, file=FRESH)) for case in load_fresh(text, spec)]


def _planned(assignment: Assignment, published: list[Case], fresh: list[Case], spec: Spec) -> Iterator[Planned]:
    """Parts before what is built of them, as the diagnosis wants it; fresh cases last.

    Before them, what a submission says of itself can be told to its author: after them it could repeat what they are.
    """
    parts = {part.component: part for part in assignment.parts}
    ordered = [name for name in spec.components if name in parts]

    def each(origin: Origin, cases: list[Case]) -> Iterator[Planned]:
        for dtype in assignment.dtypes:
            for name in ordered:
                yield from (Planned(origin, dtype, case, name) for case in cases if case.component == name)

    yield from each("published", published)
    load_properties()
    for dtype in assignment.dtypes:
        for name in ordered:
            for prop in spec.properties.values():
                asked = parts[name].properties > 0 and name in components_of(prop, spec)
                # One that compares with what nobody asked for is not asked either.
                if asked and {*prop.needs} <= parts.keys() and prop.id not in assignment.without:
                    yield Planned("property", dtype, prop, name)
    yield from each("fresh", fresh)


def _kinds(cases: list[Case], declares: Declared, spec: Spec) -> Kinds:
    refusals = frozenset(case.id for case in cases if _is_refusal(case, declares, spec))
    plain = (case for case in cases if case.id not in refusals and not case.shape_only)
    advised = frozenset(case.id for case in cases if spec.is_advice(case))
    return Kinds(refusals, frozenset(case.id for case in plain), advised)


def _is_refusal(case: Case, declares: Declared, spec: Spec) -> bool:
    """Whether the right answer is an error, under what the adapter declares."""
    if case.error is not None or case.golden is None:
        return case.error is not None
    option = ANY if case.convention is None else declares.option(case.convention, case.component, spec)
    return case.golden.options[option] is None
