"""Grade a class of submissions. Names are loaded when they are used: sandboxed processes import this package too."""

from __future__ import annotations

from typing import TYPE_CHECKING

from goldformer.exports import load_on_use

if TYPE_CHECKING:
    from goldformer.conformance.grading.assignment import read_assignment
    from goldformer.conformance.grading.cluster import grade_on_cluster
    from goldformer.conformance.grading.fresh import draw_fresh
    from goldformer.conformance.grading.grader import Grader
    from goldformer.conformance.grading.model import Assignment, Check, Grade, Submission
    from goldformer.conformance.grading.pool import Unusable, grade_in_pool
    from goldformer.conformance.grading.store import Store, pack_grade, unpack_grade
    from goldformer.conformance.grading.submissions import NoSubmissions, find_submissions
    from goldformer.conformance.grading.task import CheckPlan, GradingTask
    from goldformer.conformance.grading.worker import ResultFiles, Worker

__all__ = [
    "Assignment", "Check", "CheckPlan", "Grade", "Grader", "GradingTask", "NoSubmissions", "ResultFiles", "Store",
    "Submission", "Unusable", "Worker", "draw_fresh", "find_submissions", "grade_in_pool",
    "grade_on_cluster", "pack_grade", "read_assignment", "unpack_grade",
]  # fmt: skip

__getattr__, __dir__ = load_on_use(
    __name__,
    {
        "assignment": ("read_assignment",),
        "cluster": ("grade_on_cluster",),
        "fresh": ("draw_fresh",),
        "grader": ("Grader",),
        "model": ("Assignment", "Check", "Grade", "Submission"),
        "pool": ("Unusable", "grade_in_pool"),
        "store": ("Store", "pack_grade", "unpack_grade"),
        "submissions": ("NoSubmissions", "find_submissions"),
        "task": ("CheckPlan", "GradingTask"),
        "worker": ("ResultFiles", "Worker"),
    },
)
