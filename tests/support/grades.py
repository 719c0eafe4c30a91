"""Grades of real verdicts: the engine on mistakes' adapters, shared out among published and drawn cases."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path

from tests.support.runs import change, diagnose

from goldformer.adapters import Adapter
from goldformer.adapters.textbook.build import build_textbook
from goldformer.conformance.diagnosis.diagnosed import Explained
from goldformer.conformance.diagnosis.explain import Diagnosis
from goldformer.conformance.diagnosis.finding import Finding
from goldformer.conformance.diagnosis.mistakes import implementations
from goldformer.conformance.grading.model import (
    Assignment,
    Check,
    ComponentGrade,
    Grade,
    GradedComponent,
    Origin,
    SubmissionLimits,
    derive_outcome,
)
from goldformer.conformance.grading.sandbox import Isolation
from goldformer.conformance.grading.score import note_failures
from goldformer.conformance.judging.cases import Bench
from goldformer.conformance.judging.decision import Policy
from goldformer.conformance.judging.verdict import Status
from goldformer.conformance.selection import Selection, checks
from goldformer.spec import load_spec

COMPONENTS = ("softmax", "scaled_dot_product_attention")
#: What no page for students may have in it: every case that was drawn has it in its id.
SECRET = "drawn-cafe"
HOSTILE = '=cmd|" /C calc"!A0<script>alert(1)</script>```\n# **x**\x00\x1b[31m\u202e]]>\n::error::x'

ASSIGNMENT = Assignment(
    path=Path("/course/attention/assignment.yaml"),
    title="Attention, from scratch",
    adapter=Path("/course/attention/adapter.py"),
    starter=None,
    parts=(
        GradedComponent(component="softmax", points=4.0),
        GradedComponent(component="scaled_dot_product_attention", points=6.0, properties=0.5),
    ),
    dtypes=("float32",),
    fresh=4,
    seed="cafe",
    limits=SubmissionLimits(memory=2048),
)
ISOLATION = Isolation("full", ("rlimits", "landlock", "namespaces"), {"cgroup": "not writable here"})


@cache
def _spec():
    return load_spec()


@cache
def verdicts(mistake=""):
    """The verdicts on an implementation with a mistake, or on one without, with their diagnoses."""
    made = implementations()[mistake].make() if mistake else build_textbook()
    bench = Bench(
        _spec(), Adapter.from_object(made, "adapter.py", _spec()), "float32", "cpu", Policy(require_refusals=True)
    )
    judgements = (check() for check in checks(bench, Selection(("float32",), COMPONENTS)))
    run = Diagnosis(_spec()).explain_all(judgements)
    return tuple(change(run.explain(verdict), seconds=0.0) for verdict in run)


def checked(listed, fresh=4):
    """Checks of verdicts: the last golden cases of each component that were judged as if they had been drawn."""
    drawn = set()
    for component in COMPONENTS:
        mine = [v for v, _ in listed if v.component == component and v.kind == "case"]
        judged = [v for v in mine if v.status is not Status.SKIPPED]
        # Those that give outputs to compare: of refusals none is drawn, nor of large calls.
        special = {c.id for c in _spec().cases_of(component) if c.error or c.is_computed or c.has_all_bits}
        judged = [v for v in judged if v.check not in special]
        drawn |= {v.check for v in judged[-fresh:]}
    cases = [check for check in listed if check.verdict.kind == "case"]
    published = [_check("published", *check) for check in cases if check.verdict.check not in drawn]
    new = [check for check in cases if check.verdict.check in drawn]
    fresh_checks = [
        _check("fresh", *change(check, check=f"{SECRET}-{nth}", title="drawn", reproduce=f"--case {SECRET}-{nth}"))
        for nth, check in enumerate(new)
    ]
    return (
        *published,
        *fresh_checks,
        *(_check("property", *check) for check in listed if check.verdict.kind == "property"),
    )


def _check(origin, verdict, diagnosis):
    return Check(origin, derive_outcome(verdict), verdict, diagnosis=diagnosis)


def graded(id_, listed, *, message="", outcome=None, assignment=ASSIGNMENT, **more):
    """A grade of checks, by the share that passes."""
    parts = tuple(_part(part, listed) for part in assignment.parts)
    bad = {check.outcome for check in listed if check.counts} - {"correct"}
    findings = diagnose([Explained(check.verdict, check.diagnosis) for check in listed], _spec())
    said = tuple(Finding(r.label, r.text, r.inner, r.mistakes) for r in findings)
    grade = Grade(
        submission=id_, key=f"key-{id_}", outcome=outcome or (min(bad) if bad else "correct"), message=message,
        points=assignment.points, earned=round(sum(part.earned for part in parts), 2), parts=parts, said=said,
        checks=tuple(listed), isolation=ISOLATION, **more,
    )  # fmt: skip
    return note_failures(grade)


def _part(part, listed) -> ComponentGrade:
    passed: Counter[Origin] = Counter()
    among: Counter[Origin] = Counter()
    for check in listed:
        if check.verdict.component == part.component and check.counts:
            among[check.origin] += 1
            passed[check.origin] += check.outcome == "correct"
    shares = {origin: (passed[origin], among[origin]) for origin in among}
    golden = min((passed[o] / among[o] for o in ("published", "fresh") if among[o]), default=0.0)
    golden_shares: dict[Origin, tuple[int, int]] = {
        origin: share for origin, share in shares.items() if origin != "property"
    }
    earned = round(part.points * golden, 2)
    return ComponentGrade(part.component, part.points, earned, shares, kinds={"value": golden_shares})


def passing(id_="ada"):
    return graded(id_, checked(verdicts()))


def failing(id_="ben", mistake="scale-missing"):
    return graded(id_, checked(verdicts(mistake)))


@cache
def published():
    """Return the number of published cases of attention that count."""
    return passing().parts[1].shares["published"][1]


def earned_by_failing():
    """Return the points of `failing` for both components, and for attention: 16 cases do not show the scale."""
    attention = round(6 * 16 / published(), 2)
    return round(4 + attention, 2), attention


def with_outcome(id_, outcome, reason, message, detail="", *, origins=("published", "fresh")):
    """A grade in which every golden case of attention ends in the same way."""
    listed = tuple(
        replace(c, outcome=outcome, verdict=broken(c.verdict, reason, message, detail))
        if c.verdict.component == COMPONENTS[1] and c.origin in origins and c.verdict.status is not Status.SKIPPED
        else c
        for c in checked(verdicts())
    )
    return graded(id_, listed, outcome=outcome)


def broken(verdict, reason, message, detail=""):
    return replace(verdict, status=Status.ERRORED, reason=reason, message=message, detail=detail, ratio=None)


def cheating(id_="cy"):
    """Published cases right, drawn ones wrong: those of an implementation that knows the former by heart."""
    right = {(c.verdict.check): c for c in checked(verdicts()) if c.origin == "published"}
    wrong = checked(verdicts("scale-missing"))
    listed = tuple(right.get(c.verdict.check, c) if c.origin == "published" else _all_wrong(c) for c in wrong)
    return graded(id_, listed)


def _all_wrong(check):
    if check.origin != "fresh" or check.verdict.component != COMPONENTS[1] or check.outcome == "wrong":
        return check
    model = next(c for c in checked(verdicts("scale-missing")) if c.outcome == "wrong").verdict
    return replace(check, outcome="wrong", verdict=replace(model, check=check.verdict.check, title="drawn"))


def hostile(id_=HOSTILE):
    """A submission whose name and messages attack every format."""
    return with_outcome(id_, "error", "raised", f"raised {HOSTILE}", f"Traceback\n{HOSTILE}\n````\n</pre>{HOSTILE}")
