"""Write the pages of one submission, for the student and for the staff."""

from __future__ import annotations

from collections.abc import Mapping

from goldformer.conformance.grading.model import Assignment, Grade
from goldformer.conformance.grading.results import feedback, staff
from goldformer.conformance.grading.results.source import SubmissionSource
from goldformer.spec import Spec


def write_pages(
    grade: Grade, files: Mapping[str, bytes], adapter: bytes, assignment: Assignment, spec: Spec
) -> dict[str, str]:
    """Return the pages of a submission with these files by their names."""
    page, text = feedback.write_both(grade, assignment, spec)
    return {
        "feedback.html": page,
        "feedback.md": text,
        "staff.html": staff.html(grade, assignment, spec, SubmissionSource(files, adapter, grade)),
    }
