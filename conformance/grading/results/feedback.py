"""What a student gets: a page, and the same in Markdown."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from goldformer.adapters.process.faults import printable
from goldformer.conformance.grading.model import Assignment, Grade
from goldformer.conformance.grading.results import words
from goldformer.conformance.grading.results.student import Remark, Row, Told, told
from goldformer.conformance.grading.results.words import block, code, escaped, points
from goldformer.conformance.reports.page import render
from goldformer.spec import Spec
from goldformer.spec.readme import markdown_table

#: What is done to run a check at home.
AT_HOME: Final = "In the folder that has your submission.py, with the adapter of the assignment beside it:"


def html(grade: Grade, assignment: Assignment, spec: Spec) -> str:
    """The student's page."""
    page = told(grade, assignment, spec)
    return printable(render("feedback.html", told=page, assignment=assignment, words=words, at_home=AT_HOME))


def markdown(grade: Grade, assignment: Assignment, spec: Spec) -> str:
    """The student's feedback in Markdown, in which what the submission says is never markup."""
    found = told(grade, assignment, spec)
    parts = [f"# {escaped(assignment.title)}", f"{code(grade.submission)}: **{found.headline}**", *_summary(found)]
    if not found.passing and found.rows:
        parts += ["## Components", table(found)]
    if found.remarks:
        parts += ["## What to fix", "\n".join(remarks(found.remarks))]
    failing = [row for row in found.rows if row.says]
    if failing:
        parts += ["## What fails", *([words.TOLERANCE] if found.compares else [])]
        parts += [*(text for row in failing for text in (f"### {code(row.component)}", *section(row)))]
    if found.command:
        parts += ["## See it at home", AT_HOME, block(f"$ {found.command}", "console")]
    return "\n\n".join(filter(None, [*parts, escaped(found.isolation)])) + "\n"


def _summary(found: Told) -> Iterator[str]:
    if found.passing:
        checked = sum(among for row in found.rows for _, among in row.grade.shares.values())
        named = ", ".join(row.component for row in found.rows)
        yield f"{words.counted(checked, 'check')} of {code(named)} pass."
    if found.message:
        yield code(found.message)
    if found.advice:
        yield escaped(found.advice)
    if found.stderr:
        yield block(found.stderr)


def table(found: Told) -> str:
    """What each component earned, in Markdown."""
    lines = [
        [code(row.component), f"{points(row.grade.earned)} of {points(row.grade.points)}", row.brief]
        + [row.share(origin) or "–" for origin in found.origins]
        for row in found.rows
    ]
    return markdown_table(
        ["component", "points", "outcome", *(words.ORIGINS[origin] for origin in found.origins)], lines
    ).rstrip()


def remarks(listed: tuple[Remark, ...]) -> Iterator[str]:
    """The diagnosis as a list in Markdown."""
    for remark in listed:
        quoted = f": {code(remark.quoted)}" if remark.quoted else ""
        yield f"{'  ' if remark.inner else ''}- **{escaped(remark.label)}**: {escaped(remark.text)}{quoted}"
        for mistake in remark.mistakes:
            yield f"    - Why it matters: {escaped(mistake.why)}"


def section(row: Row) -> Iterator[str]:
    """What is said of one component, in paragraphs of Markdown."""
    if row.note:
        yield escaped(row.note)
    if row.first_wrong:
        yield escaped(row.first_wrong)
    if row.failures:
        yield "\n".join(_failures(row))
    for failure in row.failures[:1]:
        if failure.numbers:
            yield block("\n".join(failure.numbers))
        if failure.stderr:
            yield "The last that it wrote to standard error:"
            yield block(failure.stderr)
    for deduction in row.deductions:
        yield escaped(deduction)


def _failures(row: Row) -> Iterator[str]:
    for failure in row.failures:
        alike = f" (and so {failure.alike} more)" if failure.alike else ""
        yield f"- {code(failure.check)} ({', '.join(failure.dtypes)}): {code(failure.said)}{alike}"
    if row.more:
        yield f"- and {row.more} more"
