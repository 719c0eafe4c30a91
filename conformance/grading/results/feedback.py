"""Show a student's feedback as a page, and the same in Markdown."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from goldformer.adapters.untrusted_text import printable
from goldformer.conformance.grading.model import Assignment, Grade
from goldformer.conformance.grading.results import words
from goldformer.conformance.grading.results.student import (
    ComponentFeedback,
    StudentFeedback,
    StudentRemark,
    build_feedback,
)
from goldformer.conformance.grading.results.words import block, code, escape, points
from goldformer.conformance.reports.counting import count_noun
from goldformer.conformance.reports.page import render
from goldformer.spec import Spec
from goldformer.spec.markdown import markdown_table

#: The condition for running a check at home.
_AT_HOME: Final = "In the folder that has your submission.py, with the adapter of the assignment next to it:"


def write_both(grade: Grade, assignment: Assignment, spec: Spec) -> tuple[str, str]:
    """Return the student's page, and the same in Markdown."""
    feedback = build_feedback(grade, assignment, spec)
    return _write_html(feedback, assignment), _write_markdown(feedback, grade, assignment)


def html(grade: Grade, assignment: Assignment, spec: Spec) -> str:
    """Return the student's page."""
    return _write_html(build_feedback(grade, assignment, spec), assignment)


def _write_html(feedback: StudentFeedback, assignment: Assignment) -> str:
    questions = {part.component: part.question for part in assignment.parts}
    values = {"feedback": feedback, "assignment": assignment, "questions": questions, "at_home": _AT_HOME}
    return printable(render("feedback.html", **values, words=words))


def markdown(grade: Grade, assignment: Assignment, spec: Spec) -> str:
    """Return the student's feedback in Markdown, in which no text of the submission is markup."""
    return _write_markdown(build_feedback(grade, assignment, spec), grade, assignment)


def _write_markdown(feedback: StudentFeedback, grade: Grade, assignment: Assignment) -> str:
    parts = [
        f"# {escape(assignment.title)}",
        f"{code(grade.submission)}: **{feedback.headline}**",
        *_summarize(feedback),
    ]
    if not feedback.passing and feedback.rows:
        parts += ["## Components", _make_table(feedback)]
    if feedback.remarks:
        parts += ["## What to fix", "\n".join(_list_remarks(feedback.remarks))]
    failing = [row for row in feedback.rows if row.has_details]
    if failing:
        parts += ["## What fails", *([words.TOLERANCE] if feedback.mentions_tolerance else [])]
        parts += [*(text for row in failing for text in (f"### {code(row.component)}", *_describe_component(row)))]
    if feedback.command:
        parts += ["## See it at home", _AT_HOME, block(f"$ {feedback.command}", "console")]
    return "\n\n".join(filter(None, [*parts, escape(feedback.isolation)])) + "\n"


def _summarize(feedback: StudentFeedback) -> Iterator[str]:
    if feedback.passing:
        checked = sum(among for row in feedback.rows for _, among in row.grade.shares.values())
        named = ", ".join(row.component for row in feedback.rows)
        yield f"{count_noun(checked, 'check')} of {code(named)} pass."
    yield from _list_notes(feedback)


def _list_notes(feedback: StudentFeedback) -> Iterator[str]:
    """Yield the message, the advice and the standard error of a submission, as far as there are any, in Markdown."""
    if feedback.message:
        yield code(feedback.message)
    for finding in feedback.findings:
        quoted = f": {code(finding.quoted)}" if finding.quoted else ""
        fix = "".join(f"{line.label} {code(line.text)}. " for line in finding.code)
        yield f"{code(finding.component)}: {fix}{escape(finding.text)}{quoted}"
    if feedback.advice:
        yield escape(feedback.advice)
    yield from map(escape, filter(None, (feedback.forbidden, *feedback.left_out)))
    if feedback.stderr:
        yield block(feedback.stderr)


def _make_table(feedback: StudentFeedback) -> str:
    """Return the points of each component as a table in Markdown."""
    lines = [
        [code(row.component), f"{points(row.grade.earned)} of {points(row.grade.points)}", row.brief]
        + [row.share(origin) or "–" for origin in feedback.origins]
        for row in feedback.rows
    ]
    return markdown_table(
        ["component", "points", "outcome", *(words.ORIGINS[origin] for origin in feedback.origins)], lines
    ).rstrip()


def _list_remarks(remarks: tuple[StudentRemark, ...]) -> Iterator[str]:
    """Yield the lines of the diagnosis as a list in Markdown."""
    for remark in remarks:
        quoted = f": {code(remark.quoted)}" if remark.quoted else ""
        text = code(remark.text) if remark.is_code else escape(remark.text)
        yield f"{'  ' if remark.inner else ''}- **{escape(remark.label)}**: {text}{quoted}"
        for mistake in remark.known:
            yield f"    - Why it matters: {escape(mistake.why)}"


def _describe_component(row: ComponentFeedback) -> Iterator[str]:
    """Yield the feedback of one component in paragraphs of Markdown."""
    if row.note:
        yield escape(row.note)
    if row.first_wrong:
        yield escape(row.first_wrong)
    if row.failures:
        yield "\n".join(_list_failures(row))
    for failure in row.failures[:1]:
        if failure.numbers:
            yield block("\n".join(failure.numbers))
    for failure in [failure for failure in row.failures if failure.stderr][:1]:
        yield f"The end of standard error in {code(failure.check)}:"
        yield block(failure.stderr)
    for text in (*row.deductions, *row.carried, *row.rule):
        yield escape(text)


def _list_failures(row: ComponentFeedback) -> Iterator[str]:
    for failure in row.failures:
        alike = f" ({len(failure.alike)} more alike)" if failure.alike else ""
        dtypes = f" ({', '.join(failure.dtypes)})" if failure.dtypes else ""
        yield f"- {code(failure.check)}{dtypes}: {code(failure.said)}{alike}"
    if row.more:
        yield f"- and {count_noun(len(row.more), 'check')} more: {', '.join(map(code, row.more))}"
