"""Submissions have to answer what the solution answers: one that withholds some of it fails the check."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from goldformer.adapters import Adapter
from goldformer.conformance.cli import main
from goldformer.conformance.grading.answers import NOTHING_REQUIRED, AnswerRecorder, summarize
from goldformer.conformance.grading.fresh import load_fresh
from goldformer.conformance.grading.grader import GradedSubmission, Grader
from goldformer.conformance.grading.model import Submission
from goldformer.conformance.grading.pool import grade_in_pool
from goldformer.conformance.grading.results import feedback, staff
from goldformer.conformance.grading.score import note_failures
from goldformer.conformance.grading.task import GradingTask
from goldformer.conformance.judging.cases import Bench, check_case
from goldformer.conformance.judging.decision import Policy
from goldformer.conformance.judging.verdict import Status
from goldformer.conformance.properties.judge import check_property
from goldformer.spec import Case, Spec
from goldformer.spec.tables import Level
from homework import (
    OpenSandbox,
    grade_in_this_process,
    grade_once,
    make_task,
    submitted,
    write_assignment,
    write_class,
    write_ready,
)

SDPA, MHA = "scaled_dot_product_attention", "multi_head_attention"
CASE = "sdpa-walkthrough-3x2"

#: Attention in NumPy.
ADAPTER = '''"""What was asked for."""

import submission

ARRAYS = "numpy"


def scaled_dot_product_attention(query, key, value, mask=None):
    return submission.attention(query, key, value, mask)
'''
YAML = """title: Attention
components:
  scaled_dot_product_attention: {points: 10, properties: 0.25}
dtypes: [float64]
fresh: {cases: 3, seed: a}
# Real sizes take longer than all else; the ready assignments have them.
without: [sdpa-dropout*, "*-empty-row*", "*-empty-queries*", "*-size-*"]
"""
SOLUTION = """import numpy as np
def attention(query, key, value, mask):
    if key.shape[:-2] != query.shape[:-2] or key.shape[-1] != query.shape[-1] or value.shape[:-1] != key.shape[:-1]:
        raise ValueError("shapes do not fit")
    if 0 in query.shape or 0 in key.shape or 0 in value.shape:
        raise ValueError("an axis is empty")
    scores = query @ np.swapaxes(key, -1, -2) / np.sqrt(query.shape[-1])
    if mask is not None:
        if np.broadcast_shapes(mask.shape, scores.shape) != scores.shape:
            raise ValueError("the mask does not fit")
        scores = np.where(mask, scores, -np.inf)
    e = np.exp(scores - scores.max(-1, keepdims=True))
    weights = e / e.sum(-1, keepdims=True)
    return weights @ value, weights
"""
RETURN = "return weights @ value, weights"
#: Each way to withhold the weights.
WITHHELD = {
    "None in the tuple": "return weights @ value, None",
    "a tuple of one": "return (weights @ value,)",
    "the output alone": "return weights @ value",
    "None in a mapping": 'return {"output": weights @ value, "weights": None}',
    "a mapping without it": 'return {"output": weights @ value}',
}
SAYS = "weights: not returned; return (output, weights)"


def withholding(how: str, source: str = SOLUTION) -> str:
    assert source.count(RETURN) == 1
    return source.replace(RETURN, WITHHELD[how])


# ── one check ──


@pytest.fixture
def attention(spec: Spec) -> Callable[..., Bench]:
    """A bench of attention that ends with a line of its own, and requires some outputs."""

    def make(last: str = RETURN, required: Iterable[str] = (), component: str = SDPA) -> Bench:
        made: dict[str, Callable[..., object]] = {}
        exec(SOLUTION.replace(RETURN, last), made)

        class Mine:
            ARRAYS = "numpy"

        def function(query, key, value, mask=None):
            return made["attention"](query, key, value, mask)

        setattr(Mine, component, staticmethod(function))
        return Bench(
            spec, Adapter.from_object(Mine(), "mine.py", spec), "float64", "cpu", Policy(required=frozenset(required))
        )

    return make


@pytest.mark.parametrize("how", WITHHELD)
def test_a_required_output_that_is_withheld_fails_the_case(how, attention, spec):
    verdict = check_case(spec.cases[CASE], attention(WITHHELD[how], ["weights"]))
    assert (verdict.status, verdict.reason, verdict.message) == (Status.FAILED, "missing-output", SAYS)
    assert verdict.differences == ()


@pytest.mark.parametrize("how", WITHHELD)
def test_without_a_requirement_it_is_optional(how, attention, spec):
    assert check_case(spec.cases[CASE], attention(WITHHELD[how])).status is Status.PASSED


def test_what_is_returned_and_wrong_is_said_first(attention, spec):
    verdict = check_case(spec.cases[CASE], attention("return 2 * weights @ value, None", ["weights"]))
    assert verdict.reason == "wrong-value"
    assert verdict.message.startswith("output: 6 of 6 values are wrong")
    assert verdict.message.endswith(f"; {SAYS}")


def test_outputs_that_are_no_beginning_of_the_tuple_are_returned_by_name(attention, spec):
    bench = attention("return weights @ value", ["scaled_scores"])
    outputs = bench.spec.contracts[SDPA].outputs
    assert bench.policy.describe_withheld(outputs, {"scaled_scores"}) == (
        "scaled_scores: not returned; return {'output': …, 'scaled_scores': …}"
    )


def test_what_a_case_does_not_ask_for_is_not_required_in_it(attention, spec):
    (outputs,) = spec.cases[CASE].golden.options.values()
    assert "weights" in outputs
    alone = replace(spec.cases[CASE].golden, options={"": {"output": outputs["output"]}})
    case = replace(spec.cases[CASE], golden=alone)
    assert check_case(case, attention(WITHHELD["the output alone"], ["weights"])).status is Status.PASSED


def test_a_case_that_asks_for_the_withheld_output_alone_is_not_skipped(attention, spec):
    (outputs,) = spec.cases[CASE].golden.options.values()
    case = replace(
        spec.cases[CASE], golden=replace(spec.cases[CASE].golden, options={"": {"weights": outputs["weights"]}})
    )
    bench = attention(WITHHELD["the output alone"], ["weights"])
    assert (check_case(case, bench).status, check_case(case, bench).message) == (Status.FAILED, SAYS)
    optional = check_case(case, replace(bench, policy=Policy()))
    assert (optional.status, optional.reason) == (Status.SKIPPED, "not-implemented")


def test_withholding_in_a_case_of_advice_is_no_failure(attention, spec):
    should = next(clause.id for clause in spec.clauses.values() if clause.level is Level.SHOULD)
    case = replace(spec.cases[CASE], clauses=(should,))
    verdict = check_case(case, attention(WITHHELD["the output alone"], ["weights"]))
    assert (verdict.status, verdict.reason, verdict.message) == (Status.SKIPPED, "advice", SAYS)


def test_a_property_fails_too(attention, spec):
    simplex = spec.properties["sdpa-simplex"]
    assert check_property(simplex, SDPA, attention(WITHHELD["the output alone"])).status is Status.PASSED
    verdict = check_property(simplex, SDPA, attention(WITHHELD["the output alone"], ["weights"]))
    assert (verdict.status, verdict.reason, verdict.message) == (Status.FAILED, "missing-output", SAYS)


# ── what a solution returns ──


def test_the_recorder_keeps_what_every_call_of_a_check_returned(spec):
    answers = iter([(1, 2), {"output": 1}, (1, 2), (1, 2, 3), (1, None, 3)])

    class Mine:
        ARRAYS = "numpy"

        def scaled_dot_product_attention(self, query, key, value):
            return next(answers)

    recorder = AnswerRecorder(spec)
    adapter = recorder.watch(Adapter.from_object(Mine(), "mine.py", spec))

    def call() -> None:
        adapter.functions[SDPA](query=1, key=1, value=1)

    call()
    recorder.file(SDPA, "always")
    call()
    recorder.file(SDPA, "never")
    call()
    recorder.file(SDPA, "in both dtypes")
    call()
    recorder.file(SDPA, "in both dtypes")
    call()
    recorder.discard()
    recorder.file(SDPA, "not called")
    assert recorder.answers().outputs == {SDPA: {"always": ("weights",), "in both dtypes": ("weights",)}}
    assert summarize(recorder.answers().outputs, spec) == f"{SDPA} (output, weights)"
    assert summarize({}, spec) == ""


@pytest.mark.parametrize("stored", [["multi_head_attention", SDPA], [SDPA, "multi_head_attention"]])
def test_what_is_required_is_said_in_one_order(spec, stored):
    """A later run reads it from a file, whose names are sorted."""
    outputs = {component: {"a-case": ("weights",)} for component in stored}
    assert summarize(outputs, spec) == f"{SDPA} (output, weights), multi_head_attention (output, weights)"


# ── a submission ──


@pytest.fixture(scope="module")
def exam(spec: Spec, tmp_path_factory: pytest.TempPathFactory) -> GradingTask:
    """The exam, which requires what the solution returns."""
    exam = make_task(tmp_path_factory.mktemp("assignment"), spec, YAML, ADAPTER)
    solved = Grader(exam, spec).use_sandbox(OpenSandbox(spec)).grade(submitted(SOLUTION))
    assert (solved.grade.outcome, solved.grade.earned) == ("correct", 10.0)
    return exam.require_answers(solved.answers)


@pytest.fixture
def grade(exam: GradingTask, spec: Spec) -> Callable[[str], GradedSubmission]:
    grader = Grader(exam, spec).use_sandbox(OpenSandbox(spec))
    return lambda source: grade_once(grader, exam, submitted(source))


def test_the_solution_and_what_is_as_right_earn_everything(grade):
    for source in (SOLUTION, SOLUTION.replace(RETURN, 'return {"weights": weights, "output": weights @ value}')):
        graded = grade(source)
        assert (graded.grade.outcome, graded.grade.earned) == ("correct", 10.0)


@pytest.mark.sample(2)
@pytest.mark.parametrize("how", WITHHELD)
def test_withheld_outputs_earn_no_more_than_wrong_ones(how, grade):
    wrong = grade(SOLUTION.replace(RETURN, "return weights @ value, 2 * weights")).grade
    graded = grade(withholding(how))
    assert graded.grade.outcome == "missing"
    assert graded.grade.earned <= wrong.earned < 5.0
    assert graded.grade.message == "Something that was asked for is not implemented or not returned."
    missing = [check for check in graded.grade.checks if check.outcome == "missing"]
    assert {check.origin for check in missing} == {"published", "fresh"}
    assert {check.verdict.message for check in missing} == {SAYS}
    assert all(check.counts for check in missing)


def withholding_unless(known: Iterable[Case]) -> str:
    """A submission that returns the weights for the queries of some cases alone."""
    queries = {case.input_arrays["query"].tobytes() for case in known if "query" in case.input_arrays}
    last = "return weights @ value, weights if np.ascontiguousarray(query).tobytes() in KNOWN else None"
    return f"KNOWN = {queries!r}\n{SOLUTION.replace(RETURN, last)}"


def test_withholding_in_fresh_cases_earns_no_more(grade, spec):
    found = grade(withholding_unless(spec.cases_of(SDPA))).grade
    (part,) = found.parts
    assert all(check.outcome == "correct" for check in found.checks if check.origin == "published")
    assert part.shares["fresh"][0] < part.shares["fresh"][1]
    assert (found.outcome, found.earned < 5.0) == ("missing", True)


def test_withholding_in_properties_alone_costs_points_too(grade, exam, spec):
    found = grade(withholding_unless([*spec.cases_of(SDPA), *load_fresh(exam.fresh, spec)])).grade
    (part,) = found.parts
    assert all(passed == among for origin, (passed, among) in part.shares.items() if origin != "property")
    missing = [check for check in found.checks if check.outcome == "missing"]
    assert {(check.origin, check.verdict.message) for check in missing} == {("property", SAYS)}
    assert (found.outcome, found.earned < 10.0) == ("missing", True)


#: Holds for some of the inputs that each property draws.
SOMETIMES = "int(abs(query).sum() * 64) % 2"


def wrong_in_properties(known: Iterable[Case], then: str) -> str:
    """A submission that is right in some cases, and does `then` for half of the other inputs."""
    queries = {case.input_arrays["query"].tobytes() for case in known if "query" in case.input_arrays}
    hidden = f"if {SOMETIMES} and np.ascontiguousarray(query).tobytes() not in KNOWN:"
    return f"KNOWN = {queries!r}\n" + SOLUTION.replace(RETURN, f"{hidden}\n        {then}\n    {RETURN}")


def test_declining_the_inputs_of_properties_that_it_gets_wrong_earns_no_more(grade, exam, spec):
    known = [*spec.cases_of(SDPA), *load_fresh(exam.fresh, spec)]
    wrong = grade(wrong_in_properties(known, "return 2 * weights @ value, weights[..., ::-1]")).grade
    declined = grade(wrong_in_properties(known, "raise NotImplementedError('too hard')")).grade
    assert declined.earned <= wrong.earned < 10.0
    (part,) = declined.parts
    assert all(passed == among for origin, (passed, among) in part.shares.items() if origin != "property")
    messages = {check.verdict.message for check in declined.checks if check.outcome == "missing"}
    assert "raises NotImplementedError for inputs that are asked for: too hard" in messages


def test_a_submission_may_decline_the_inputs_of_properties_that_the_solution_declines(exam, spec):
    odd = SOLUTION.replace(RETURN, f"if query.shape[-1] % 2:\n        raise NotImplementedError('odd')\n    {RETURN}")
    optional = exam.require_answers(NOTHING_REQUIRED)
    solved = Grader(optional, spec).use_sandbox(OpenSandbox(spec)).grade(submitted(odd))
    grader = Grader(optional.require_answers(solved.answers), spec).use_sandbox(OpenSandbox(spec))
    assert solved.grade.earned == grader.grade(submitted(odd)).grade.earned < 10.0
    # It answers inputs that the solution answers, and no others.
    even = grader.grade(submitted(odd.replace("% 2:", "% 2 == 0:"))).grade
    assert any(check.origin == "property" and "asked for: odd" in check.verdict.message for check in even.checks)


def test_a_solution_that_returns_an_output_only_at_times_requires_it_only_then(grade, exam, spec):
    """Exactly the checks in which it did."""
    at_times = SOLUTION.replace(RETURN, "return weights @ value, weights if mask is None else None")
    optional = exam.require_answers(NOTHING_REQUIRED)
    solved = Grader(optional, spec).use_sandbox(OpenSandbox(spec)).grade(submitted(at_times))
    assert 0 < len(solved.answers.outputs[SDPA]) < len(exam.answers.outputs[SDPA])
    grader = Grader(optional.require_answers(solved.answers), spec).use_sandbox(OpenSandbox(spec))
    assert grader.grade(submitted(at_times)).grade.earned == 10.0
    withheld = grader.grade(submitted(withholding("None in the tuple"))).grade
    assert (withheld.outcome, withheld.earned < 10.0) == ("missing", True)


def test_the_student_is_told_which_output_is_missing_and_nothing_else(grade, exam, spec):
    found = grade(withholding("None in the tuple")).grade
    told = feedback.markdown(found, exam.assignment, spec)
    assert f"`{CASE}`: `{SAYS}` (" in told
    assert "not written or not returned" in told
    assert f"- **Fix first**: {SDPA}" in told
    for other in ("Possible causes", "Mistake found", "Cause unknown"):
        assert other not in told
    # At home the output is optional, so a command would show nothing.
    assert "See it at home" not in told
    assert SAYS in feedback.html(found, exam.assignment, spec)
    assert SAYS in staff.html(found, exam.assignment, spec)
    assert ("published", CASE) in note_failures(found).failed


# ── a class ──

Run = Callable[..., Result]


@pytest.fixture
def runs() -> list[list[str]]:
    """The submissions that each pool was given."""
    return []


@pytest.fixture
def run(spec: Spec, tmp_path: Path, runs: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> Run:
    """The command, on a class of two; what it runs, it runs in this process."""
    write_assignment(tmp_path, YAML, ADAPTER)
    (tmp_path / "solution.py").write_text(SOLUTION)
    write_class(tmp_path / "class", alice=SOLUTION + "\n", bob=withholding("None in the tuple"))

    def graded(
        exam: GradingTask, submissions: Iterable[Submission], jobs: int, running: Path
    ) -> Iterator[GradedSubmission]:
        listed = list(submissions)
        runs.append([submission.id for submission in listed])
        return grade_in_this_process(exam, listed, spec, running)

    monkeypatch.setattr("goldformer.conformance.commands._grade_session.grade_in_pool", graded)

    def invoke(*options: str) -> Result:
        words = ["grade", str(tmp_path / "class"), "--assignment", str(tmp_path / "assignment.yaml")]
        return CliRunner().invoke(main, [*words, "--out", str(tmp_path / "out"), *options])

    return invoke


REQUIRED = f"required, because solution.py returns it: {SDPA} (output, weights)"


def outcomes(folder: Path) -> dict[str, str]:
    book = json.loads((folder / "out" / "grades.json").read_text())
    return {student["id"]: student["outcome"] for student in book["students"]}


def test_a_class_is_graded_by_what_the_solution_returns(run, runs, tmp_path):
    result = run()
    assert (result.exit_code, result.stderr) == (0, "")
    required, estimate, alice, *_ = result.stdout.splitlines()
    assert (required, alice) == (REQUIRED, "[1/2] alice: 10 of 10 (correct)")
    assert estimate.startswith("2 to grade in ")
    assert outcomes(tmp_path) == {"alice": "correct", "bob": "missing"}
    record = json.loads((tmp_path / "out" / "assignment" / "answers.json").read_text())
    assert record["outputs"][SDPA][CASE] == ["weights"]
    assert any(check.startswith("fresh-") for check in record["outputs"][SDPA])
    assert runs == [["solution"], ["alice", "bob"]]
    # It is run once for a folder of results, and not told to programs.
    again = run("--json", "-")
    assert json.loads(again.stdout)["students"][1]["outcome"] == "missing"
    assert runs[2:] == [[]]


def test_another_solution_is_run_and_the_class_graded_again(run, runs, tmp_path):
    run()
    (tmp_path / "solution.py").write_text(withholding("the output alone"))
    result = run()
    assert (result.exit_code, "required" in result.stdout) == (0, False)
    assert outcomes(tmp_path) == {"alice": "correct", "bob": "correct"}
    assert runs[2:] == [["solution"], ["alice", "bob"]]
    (tmp_path / "other.py").write_text(SOLUTION)
    result = run("--solution", str(tmp_path / "other.py"))
    assert result.stdout.startswith(REQUIRED.replace("solution.py", "other.py"))
    assert outcomes(tmp_path) == {"alice": "correct", "bob": "missing"}


def test_without_a_solution_outputs_are_optional_and_that_is_said(run, runs, tmp_path):
    (tmp_path / "solution.py").unlink()
    result = run()
    assert result.exit_code == 0
    assert " ".join(result.stderr.split()) == (
        f"goldformer: {tmp_path} has no solution.py, so nobody knows what it answers: a submission that returns None "
        "instead of the attention weights, or raises NotImplementedError for some inputs of a property, loses nothing. "
        "Name the solution with --solution FILE"
    )
    assert outcomes(tmp_path) == {"alice": "correct", "bob": "correct"}
    assert runs == [["alice", "bob"]]


def test_a_solution_that_is_not_there_or_does_not_run_is_2_before_anyone_is_graded(run, runs, tmp_path):
    result = run("--solution", str(tmp_path / "none.py"))
    assert (result.exit_code, runs) == (2, [])
    assert (
        result.stderr == f"goldformer: {tmp_path / 'none.py'}: the solution cannot be read: No such file or directory\n"
    )
    (tmp_path / "solution.py").write_text("raise SystemExit('no')\n")
    result = run()
    assert (result.exit_code, runs) == (2, [["solution"]])
    assert (
        f"{tmp_path / 'solution.py'}: the solution does not run: It cannot be started: the process ended"
        in result.stderr
    )
    assert "(fix it, or see: goldformer assignment check)" in result.stderr


def test_a_solution_that_is_not_right_is_warned_of(run, tmp_path):
    (tmp_path / "solution.py").write_text(SOLUTION.replace("return weights @ value", "return 2 * weights @ value"))
    result = run()
    assert result.exit_code == 0, result.stderr
    said = " ".join(result.stderr.split())
    failing = re.match(r"goldformer: (\S+) fails (\d+) of (\d+) checks \(wrong\), and a submission need", said)
    assert failing[1] == str(tmp_path / "solution.py")
    # Twice the output shows everywhere but in 32 checks: of the weights, of refusals and of laws.
    assert int(failing[3]) - int(failing[2]) == 32
    assert said.endswith("need not return what it does not return; see: goldformer assignment check")
    assert outcomes(tmp_path) == {"alice": "correct", "bob": "missing"}


def test_where_grading_the_solution_fails_nobody_is_graded(run, tmp_path, monkeypatch):
    (tmp_path / "solution.py").write_text(f"{SOLUTION}# that no other test grades\n")
    monkeypatch.setattr(Grader, "_judge", lambda *_: 1 / 0)
    result = run()
    assert result.exit_code == 2
    assert f"{tmp_path / 'solution.py'}: grading the solution failed: Traceback" in result.stderr
    assert "ZeroDivisionError" in result.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="submissions are kept apart on Linux")
@pytest.mark.usefixtures("unread_spec")
def test_it_holds_for_submissions_that_are_kept_apart(run, tmp_path, monkeypatch):
    write_assignment(tmp_path, YAML.replace(', "*-size-*"', ""), ADAPTER)
    monkeypatch.setattr("goldformer.conformance.commands._grade_session.grade_in_pool", grade_in_pool)
    result = run("--jobs", "1")
    assert (result.exit_code, result.stderr) == (0, "")
    assert outcomes(tmp_path) == {"alice": "correct", "bob": "missing"}


# ── the ready assignments ──


def take_ready(kind: str, folder: Path, *replacements: tuple[str, str]) -> str:
    """Write a ready assignment with another assignment.yaml, and return its solution."""
    write_ready(kind, folder)
    path = folder / "assignment.yaml"
    text = path.read_text(encoding="utf-8")
    for old, new in replacements:
        assert old in text
        text = text.replace(old, new)
    path.write_text(text, encoding="utf-8")
    return (folder / "solution.py").read_text(encoding="utf-8")


#: Leaves out real sizes, which take longer than all else: `assignment check` of each ready one has them.
SMALL = ("without:\n", 'without:\n  - "*-size-*"\n')


def test_the_ready_attention_requires_the_weights(run, tmp_path):
    right = take_ready("attention", tmp_path, ("[float64, float32]", "[float32]"), ("cases: 4", "cases: 1"), SMALL)
    withheld = right.replace(RETURN, WITHHELD["None in the tuple"]).replace(
        ".flatten(2)), weights", ".flatten(2)), None"
    )
    write_class(tmp_path / "class", alice=right, bob=withheld)
    result = run()
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines()[0] == f"{REQUIRED}, {MHA} (output, weights)"
    alice, bob = json.loads((tmp_path / "out" / "grades.json").read_text())["students"]
    assert (alice["earned"], alice["outcome"], bob["outcome"]) == (100.0, "correct", "missing")
    assert bob["earned"] < 50.0
    assert bob["components"][SDPA] < 10.0 > bob["components"][MHA]


NAIVE = "torch.exp(scores)"


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("torch.exp(scores - scores.max(dim=-1, keepdim=True).values)", NAIVE),
        ("weights = softmax(scores)", f"weights = {NAIVE} / {NAIVE}.sum(-1, keepdim=True)"),
    ],
    ids=["in softmax", "in attention"],
)
def test_a_softmax_that_overflows_costs_eight_points_of_the_ready_attention_wherever_it_is(right, wrong, run, tmp_path):
    source = take_ready("attention", tmp_path, ("cases: 4", "cases: 1"), SMALL)
    assert source.count(right) == 1
    write_class(tmp_path / "class", alice=source.replace(right, wrong))
    assert run("--only", "alice").exit_code == 0
    (alice,) = json.loads((tmp_path / "out" / "grades.json").read_text())["students"]
    assert 90.0 < alice["earned"] <= 92.0


def test_the_ready_embedding_requires_no_output_and_leaves_nothing_out(run, runs, tmp_path):
    right = take_ready("embedding", tmp_path, ("cases: 4", "cases: 0"), ("[float64, float32]", "[float32]"))
    write_class(tmp_path / "class", alice=right, bob=right)
    result = run()
    assert (result.exit_code, result.stderr) == (0, "")
    assert runs == [["solution"], ["alice", "bob"]]
    assert result.stdout.startswith("2 to grade in ")
    assert outcomes(tmp_path) == {"alice": "correct", "bob": "correct"}


DECODE = "return torch.stack(words, dim=1), torch.stack(scores, dim=1)"


def test_the_ready_transformer_requires_every_score(run, tmp_path):
    right = take_ready("transformer", tmp_path, ("cases: 4", "cases: 0"), ("[float64, float32]", "[float32]"))
    path = tmp_path / "assignment.yaml"
    # Greedy decoding alone: all of it takes a minute.
    others = r"(?m)^  (?!greedy)\w+: \d+\n|(?<=^without: \[).*(?=greedy-)"
    text = re.sub(others, "", path.read_text(encoding="utf-8")).replace("without: [", 'without: ["*-size-*", ')
    path.write_text(text, encoding="utf-8")
    assert right.count(DECODE) == 1
    write_class(tmp_path / "class", alice=right, bob=right.replace(DECODE, "return torch.stack(words, dim=1), None"))
    result = run()
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines()[0] == (
        "required, because solution.py returns it: greedy_decode (ids, scores, token_scores)"
    )
    alice, bob = json.loads((tmp_path / "out" / "grades.json").read_text())["students"]
    assert (alice["earned"], alice["points"]) == (15.0, 15.0)
    # The adapter adds up the scores of the words, which are not there.
    assert (bob["earned"], bob["outcome"]) == (0.0, "error")


def test_a_course_that_asks_for_an_output_further_back_says_its_name(run, tmp_path):
    """An encoder layer returns (output, attended, weights); this course asks for the output and the weights."""
    right = take_ready("transformer", tmp_path, ("cases: 4", "cases: 0"), ("[float64, float32]", "[float32]"))
    path = tmp_path / "assignment.yaml"
    text = re.sub(r"(?m)^  (?!encoder_layer)\w+: \d+\n", "", path.read_text(encoding="utf-8"))
    path.write_text(re.sub(r"(?m)^without.*", "without: [enc-dropout-*, enc-size-*]", text), encoding="utf-8")
    named = right + NAMED.replace("WEIGHTS", "self.self_attention(x, x, x, mask)[1]")
    (tmp_path / "solution.py").write_text(named, encoding="utf-8")
    write_class(tmp_path / "class", alice=named + "\n", bob=right + NAMED.replace("WEIGHTS", "None"))
    result = run()
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[0] == "required, because solution.py returns it: encoder_layer (output, weights)"
    alice, bob = json.loads((tmp_path / "out" / "grades.json").read_text())["students"]
    assert (alice["earned"], alice["points"]) == (15.0, 15.0)
    assert (bob["outcome"], bob["earned"] < 15.0) == ("missing", True)
    told = (tmp_path / "out" / "students" / "bob" / "feedback.md").read_text(encoding="utf-8")
    assert "weights: not returned; return {'output': …, 'weights': …}" in told


#: Also returns the weights of its attention.
NAMED = """

Given = EncoderLayer


class EncoderLayer(Given):
    def forward(self, x, mask=None):
        return {"output": super().forward(x, mask), "weights": WEIGHTS}
"""


def test_mistakes_in_the_ready_decoder_only_are_named(run, tmp_path):
    right = take_ready(
        "decoder-only", tmp_path, ("cases: 4", "cases: 1, seed: it"), ("[float64, float32]", "[float32]")
    )
    path = tmp_path / "assignment.yaml"
    # Of nine components only those that a mistake is made in: all of it takes a minute.
    others = r"(?m)^  (?!gated_feed_forward|cached_model)\w+: \d+\n|^  - (?!lmc|glu|torch).*\n"
    path.write_text(re.sub(others, "", path.read_text(encoding="utf-8")), encoding="utf-8")
    wrong = [
        ("silu(self.w_gate(x)) * self.w_up(x)", "silu(self.w_gate(x) * self.w_up(x))"),
        ("start = 0 if cache is None else cache[0].shape[2]", "start = 0"),
    ]
    assert [right.count(old) for old, _ in wrong] == [1, 1]
    bob, cleo = (right.replace(*change) for change in wrong)
    starter = (tmp_path / "starter.py").read_text(encoding="utf-8")
    write_class(tmp_path / "class", alice=right, bob=bob, cleo=cleo, dan=starter)
    assert run().exit_code == 0
    students = json.loads((tmp_path / "out" / "grades.json").read_text())["students"]
    assert [student["earned"] for student in students] == [20.0, 12.0, 8.0, 0.0]
    assert [student["mistakes"] for student in students] == [[], ["glu-act-of-product"], ["lmc-offset-missing"], []]
