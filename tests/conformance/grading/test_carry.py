"""A mistake costs points once: a component that only inherits it keeps its own."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support.runs import change, make_run

from goldformer.conformance.commands.assignment import READY
from goldformer.conformance.diagnosis.causes import find_cause
from goldformer.conformance.diagnosis.evidence import Match
from goldformer.conformance.diagnosis.inherited import find_inherited
from goldformer.conformance.grading.grader import Grader
from goldformer.conformance.grading.model import CarriedMistake, Feedback
from goldformer.conformance.grading.results import feedback, staff
from goldformer.conformance.grading.score import note_failures
from goldformer.conformance.grading.store import from_json, to_json
from goldformer.conformance.judging.verdict import Status, Verdict
from homework import OpenSandbox, make_task, submitted

SDPA, MHA = "scaled_dot_product_attention", "multi_head_attention"
YAML = """title: Attention
components: {scaled_dot_product_attention: 60, multi_head_attention: 40}
dtypes: [float64]
fresh: {cases: 2, seed: a}
without: [sdpa-dropout*, mha-dropout*, "*-empty-row*", "*-empty-queries*", mha-distinct-sizes, mha-every-bit,
  mha-rectangular-output, mha-values-narrower, mha-output-bias-only, mha-self-output-bias-only,
  mha-biases-without-output, mha-n9-shapes, mha-illustrated-shapes, "*-size-*"]
"""
SOLUTION = (READY / "attention" / "solution.py").read_text(encoding="utf-8")
SCALE = " / math.sqrt(query.shape[-1])"
UNSCALED = SOLUTION.replace(SCALE, "")
#: The heads are put next to each other in the wrong order, which is a mistake of its own.
SWAPPED = UNSCALED.replace("heads.transpose(1, 2).flatten(2)", "heads.flatten(1, 1).reshape(*query.shape)")


@pytest.fixture(scope="module")
def task(spec, tmp_path_factory):
    adapter = (READY / "attention" / "adapter.py").read_text(encoding="utf-8")
    return make_task(tmp_path_factory.mktemp("assignment"), spec, YAML, adapter)


@pytest.fixture(scope="module")
def graded(task, spec):
    """Grade a source by the task, or by the same one with another assignment; each once."""
    known = {}

    def grade(source, **changes):
        changed = replace(task, assignment=replace(task.assignment, **changes))
        key = (source, *changes.items())
        if key not in known:
            known[key] = Grader(changed, spec).use_sandbox(OpenSandbox(spec)).grade(submitted(source)).grade
        return known[key]

    return grade


def earned(grade):
    return {part.component: part.earned for part in grade.parts}


def test_the_sources_differ():
    assert len({SOLUTION, UNSCALED, SWAPPED}) == 3


def test_a_mistake_costs_points_where_it_is_made_and_nowhere_else(graded):
    grade = graded(UNSCALED)
    points = earned(grade)
    assert points[SDPA] < 30
    assert points[MHA] == 40
    inherits = next(part for part in grade.parts if part.component == MHA)
    (carried,) = inherits.carried
    failing = sum(number - passed for passed, number in inherits.shares.values())
    assert carried == CarriedMistake(("scale-missing",), (SDPA,), failing)
    assert failing > 10
    assert next(part for part in grade.parts if part.component == SDPA).carried == ()
    assert from_json(to_json(grade)) == grade


@pytest.mark.parametrize("carry", ["once", "every"])
def test_inherited_failures_are_marked_and_counted_nowhere_else(graded, carry):
    grade = graded(UNSCALED, carry=carry)
    failed = {check.verdict.component for check in grade.checks if check.is_shown}
    assert failed == {SDPA, MHA}
    assert {check.verdict.component for check in grade.checks if check.inherited} == {MHA}
    roots = [check.verdict.check for check in grade.checks if check.is_shown and not check.inherited]
    assert [check for _, check in note_failures(grade).failed] == list(dict.fromkeys(roots))


def test_an_assignment_may_deduct_it_in_every_component(graded):
    once, every = graded(UNSCALED), graded(UNSCALED, carry="every")
    assert earned(every)[SDPA] == earned(once)[SDPA]
    assert earned(every)[MHA] < 20
    assert every.parts[1].carried == ()


def test_a_mistake_of_its_own_costs_points(graded):
    assert earned(graded(SWAPPED))[MHA] < 20


def test_a_mistake_is_not_carried_from_a_component_that_costs_nothing(graded, task):
    free = tuple(
        part.model_copy(update={"points": 0.0 if part.component == SDPA else 40.0}) for part in task.assignment.parts
    )
    assert earned(graded(UNSCALED, parts=free))[MHA] < 20


def test_a_correct_submission_inherits_nothing(graded):
    grade = graded(SOLUTION)
    assert (grade.outcome, grade.earned) == ("correct", 100.0)
    assert [part.carried for part in grade.parts] == [(), ()]


def test_the_student_reads_what_is_not_deducted_again(graded, task, spec):
    grade = graded(UNSCALED)
    number = grade.parts[1].carried[0].checks
    says = f"Not deducted again: {number} checks fail only because of scale-missing in {SDPA}"
    assert says in feedback.html(grade, task.assignment, spec)
    # Not as a failure: it earns all its points.
    assert '<td class="o ">– wrong values, not deducted again</td>' in feedback.html(grade, task.assignment, spec)
    assert says in staff.html(grade, task.assignment, spec)
    assert "only because of scale-missing" in feedback.markdown(grade, task.assignment, spec)
    quiet = replace(task.assignment, feedback=Feedback(diagnosis=False))
    page = feedback.html(grade, quiet, spec)
    assert f"fail only because of a mistake in {SDPA}" in page
    assert "scale-missing" not in page


@pytest.mark.parametrize(("part", "is_inherited"), [(SDPA, True), ("softmax", False)])
def test_what_is_called_alike_in_two_components_is_not_inherited(spec, part, is_inherited):
    edit = "edit@softmax/result@scaled:2"
    doubled = find_cause(f"{part}.{edit}", spec)
    matches = (Match((f"{SDPA}.{edit}",), 0.0),)
    failed = Verdict("sdpa-gradient", "case", SDPA, "", Status.FAILED, "wrong-value", "", "float32", "cpu", (), "")
    assert doubled.heading == find_cause(f"{SDPA}.{edit}", spec).heading
    run = make_run([change(failed, matches=matches)])
    assert bool(find_inherited(run, {doubled.heading: doubled}, spec)) is is_inherited


@pytest.mark.parametrize(
    "nothing", ["0 * (weights @ value)", "(weights @ value).mean(-1, keepdim=True) + 0 * value[..., :1, :]"]
)
def test_what_became_of_a_result_is_not_carried(graded, nothing):
    # "The output is 0 everywhere" would explain all that is built of it, and whoever returns zeros kept those points.
    wrong = SOLUTION.replace("return weights @ value, weights", f"return {nothing}, weights")
    assert wrong != SOLUTION
    grade = graded(wrong)
    assert [m for part in grade.parts for m in part.carried] == []
    assert earned(grade)[MHA] < 4


LOGSUMEXP = SOLUTION.replace(
    "powers / powers.sum(dim=-1, keepdim=True)", "torch.exp(scores - torch.logsumexp(scores, dim=-1, keepdim=True))"
)
OVERFLOWS = SOLUTION.replace("scores - scores.max(dim=-1, keepdim=True).values", "scores")


def test_lost_digits_cost_less_than_an_overflow_and_only_where_they_are_lost(spec, tmp_path):
    """A part built of the softmax loses digits as it does, whether or not an imitation rounds alike."""
    adapter = (READY / "attention" / "adapter.py").read_text(encoding="utf-8")
    large = YAML.replace("{scaled_dot_product_attention: 60, multi_head_attention: 40}", "{softmax: 20, MHA: 80}")
    task = make_task(tmp_path, spec, large.replace("MHA", MHA), adapter)
    grader = Grader(task, spec).use_sandbox(OpenSandbox(spec))
    digits, overflow = (grader.grade(submitted(source)).grade for source in (LOGSUMEXP, OVERFLOWS))
    assert earned(digits)[MHA] == 80
    assert earned(overflow)["softmax"] < earned(digits)["softmax"] < 20
    assert (digits.outcome, overflow.outcome) == ("imprecise", "wrong")
    assert from_json(to_json(digits)) == digits


def test_two_mistakes_are_two_with_a_gradient_that_the_library_derives(graded, task, spec):
    """No third one is found in the backward pass, and nobody is told to declare an option in the adapter."""
    inverted = SOLUTION.replace("masked_fill(~mask", "masked_fill(mask")
    grade = graded(inverted.replace("heads.transpose(1, 2).flatten(2)", "heads.reshape(*query.shape[:2], -1)"))
    assert {id_ for said in grade.said for id_ in said.mistakes} == {"mask-inverted", "head-merge-view"}
    _, page = feedback.write_both(grade, task.assignment, spec)
    assert any("which is not declared" in said.text for said in grade.said)
    assert "declare" not in page.lower()
