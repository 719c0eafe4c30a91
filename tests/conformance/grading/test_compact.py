"""A stored grade keeps what its pages and programs read, and no more."""

from __future__ import annotations

import gzip
from dataclasses import replace

import pytest

import grades
from goldformer.conformance.grading.compact import WINDOWS, compact_checks
from goldformer.conformance.grading.model import Feedback
from goldformer.conformance.grading.results import feedback, staff
from goldformer.conformance.grading.score import note_failures
from goldformer.conformance.grading.store import BadRecord, pack_grade, to_json, unpack_grade
from grades import ASSIGNMENT


def compact(grade, spec, assignment=ASSIGNMENT):
    return replace(grade, checks=compact_checks(grade.checks, assignment, spec))


@pytest.mark.parametrize("first_wrong", [True, False])
@pytest.mark.parametrize("make", [grades.passing, grades.failing, grades.cheating, grades.hostile])
def test_pages_and_tables_of_a_compact_grade_are_the_same(spec, make, first_wrong):
    assignment = replace(ASSIGNMENT, feedback=Feedback(first_wrong=first_wrong))
    whole = make()
    small = compact(whole, spec, assignment)
    for write in (feedback.html, feedback.markdown, staff.html):
        assert write(small, assignment, spec) == write(whole, assignment, spec)
    assert replace(note_failures(small), checks=()) == replace(note_failures(whole), checks=())


def test_only_the_first_failing_checks_that_students_see_keep_windows(spec):
    whole = grades.failing()
    assert sum(any(d.grid for d in check.verdict.differences) for check in whole.checks) > 20
    kept = [c for c in compact(whole, spec).checks if any(d.grid for d in c.verdict.differences)]
    assert len(kept) == WINDOWS
    assert {check.origin for check in kept} == {"published"}


def test_a_packed_grade_is_a_tenth_of_the_whole_one(spec):
    whole = grades.failing()
    packed = pack_grade(compact(whole, spec))
    assert 10 * len(packed) < len(to_json(whole))
    assert unpack_grade(packed) == compact(whole, spec)
    assert pack_grade(unpack_grade(packed)) == packed


@pytest.mark.parametrize("data", [b"", b"{}", gzip.compress(b"{}", mtime=0)])
def test_what_is_no_packed_grade_is_a_bad_record(data):
    with pytest.raises(BadRecord):
        unpack_grade(data)


def test_a_packed_grade_that_was_cut_off_is_a_bad_record():
    with pytest.raises(BadRecord):
        unpack_grade(pack_grade(grades.passing())[:-9])


def test_a_grade_that_unpacks_without_end_is_refused_before_it_takes_memory():
    packed = gzip.compress(b" " * (65 << 20))
    with pytest.raises(BadRecord, match="is no compressed grade: it unpacks to more than 64 MiB"):
        unpack_grade(packed)
