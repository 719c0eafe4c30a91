"""Submissions that fail alike are explained once, and what is said of one does not depend on another."""

from __future__ import annotations

import pytest

from goldformer.conformance.diagnosis.explain import Diagnosis
from goldformer.conformance.diagnosis.imitation import Imitator
from goldformer.conformance.grading import explainer as explainers
from goldformer.conformance.grading.grader import Grader
from goldformer.conformance.grading.store import to_json
from goldformer.conformance.grading.task import GradingTask
from goldformer.spec import Spec
from homework import UNSTABLE, OpenSandbox, make_task, submitted

#: It fails as UNSTABLE does, and what is right in it is rounded otherwise.
UNSTABLE_TOO = UNSTABLE.replace("(x - mean) / np.sqrt(", "(x - mean) * np.reciprocal(np.sqrt(").replace(
    "+ eps) + beta", "+ eps)) + beta"
)
#: Its numbers differ from those of UNSTABLE.
HALVED = UNSTABLE.replace("return e /", "return 0.5 * e /")


@pytest.fixture(scope="module")
def exam(spec: Spec, tmp_path_factory: pytest.TempPathFactory) -> GradingTask:
    return make_task(tmp_path_factory.mktemp("assignment"), spec)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of verdicts of each diagnosis that is made."""
    made: list[int] = []

    class Counted(Diagnosis):
        def explain_all(self, judgements):
            found = super().explain_all(judgements)
            made.append(len(found.verdicts))
            return found

    monkeypatch.setattr(explainers, "Diagnosis", Counted)
    return made


def test_who_fails_alike_is_explained_once_and_as_if_nobody_had_failed_before(
    exam: GradingTask, spec: Spec, counted: list[int]
) -> None:
    grader = Grader(exam, spec).use_sandbox(OpenSandbox(spec))
    first, alike = (grader.grade(submitted(source)).grade for source in (UNSTABLE, UNSTABLE_TOO))
    assert len(counted) == 1
    assert first.said == alike.said
    alone = Grader(exam, spec).use_sandbox(OpenSandbox(spec)).grade(submitted(UNSTABLE_TOO)).grade
    assert len(counted) == 2
    assert to_json(alike) == to_json(alone)
    assert to_json(first) != to_json(alike), "what passes keeps its own ratios"


def test_other_numbers_are_explained_by_themselves(exam: GradingTask, spec: Spec, counted: list[int]) -> None:
    grader = Grader(exam, spec).use_sandbox(OpenSandbox(spec))
    one, other = (grader.grade(submitted(source)).grade for source in (UNSTABLE, HALVED))
    assert len(counted) == 2
    assert one.said != other.said


def test_only_the_last_explanations_are_kept(
    exam: GradingTask, spec: Spec, counted: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(explainers, "_KEPT", 1)
    grader = Grader(exam, spec).use_sandbox(OpenSandbox(spec))
    for source in (UNSTABLE, HALVED, UNSTABLE, UNSTABLE_TOO):
        grader.grade(submitted(source))
    assert len(counted) == 3


def test_a_fault_of_the_diagnosis_is_not_kept(
    exam: GradingTask, spec: Spec, counted: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("broken")

    grader = Grader(exam, spec).use_sandbox(OpenSandbox(spec))
    with monkeypatch.context() as patched:
        patched.setattr(Imitator, "find_matches", fail)
        assert grader.grade(submitted(UNSTABLE)).problem
    assert not grader.grade(submitted(UNSTABLE)).problem
    assert len(counted) == 2
