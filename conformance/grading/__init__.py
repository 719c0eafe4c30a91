"""Grade a class of submissions. Names are loaded when they are used: sandboxed processes import this package too."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from goldformer.conformance.grading.assignment import read_assignment
    from goldformer.conformance.grading.cluster import grade_on_cluster
    from goldformer.conformance.grading.fresh import draw_fresh
    from goldformer.conformance.grading.grader import Grader
    from goldformer.conformance.grading.model import Assignment, Check, Grade, Submission
    from goldformer.conformance.grading.pool import Unusable, grade_in_pool
    from goldformer.conformance.grading.store import Store, from_json, to_json
    from goldformer.conformance.grading.submissions import NoSubmissions, find_submissions
    from goldformer.conformance.grading.task import CheckPlan, GradingTask
    from goldformer.conformance.grading.transcript import Transcript
    from goldformer.conformance.grading.worker import ResultFiles, Worker

__all__ = [
    "Assignment", "Check", "CheckPlan", "Grade", "Grader", "GradingTask", "NoSubmissions", "ResultFiles", "Store",
    "Submission", "Transcript", "Unusable", "Worker", "draw_fresh", "find_submissions", "from_json", "grade_in_pool",
    "grade_on_cluster", "read_assignment", "to_json",
]  # fmt: skip

_MODULES: Final = {
    "CheckPlan": "task", "Grader": "grader", "GradingTask": "task", "NoSubmissions": "submissions",
    "ResultFiles": "worker", "Store": "store", "Transcript": "transcript", "Unusable": "pool", "Worker": "worker",
    "draw_fresh": "fresh", "find_submissions": "submissions", "from_json": "store", "grade_in_pool": "pool",
    "grade_on_cluster": "cluster", "read_assignment": "assignment", "to_json": "store",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    """Load a public name."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES.get(name, 'model')}"), name)
