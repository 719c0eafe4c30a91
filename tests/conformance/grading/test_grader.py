"""One submission's grade: fair, explained, and the same whoever was graded before."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import homework
from goldformer.adapters import AdapterError
from goldformer.adapters.process.child import ChildFault
from goldformer.conformance.diagnosis.candidates import Imitations
from goldformer.conformance.diagnosis.findings import diagnose
from goldformer.conformance.grading import grader as graders
from goldformer.conformance.grading import task as exams
from goldformer.conformance.grading.declarations import read_declarations
from goldformer.conformance.grading.grader import GradedSubmission, Grader
from goldformer.conformance.grading.model import Submission
from goldformer.conformance.grading.sandbox import WAITS
from goldformer.conformance.grading.store import to_json
from goldformer.conformance.grading.task import GradingTask
from goldformer.conformance.grading.worker import write_results
from goldformer.conformance.judging.cases import Bench, Judgement, judge_case
from goldformer.conformance.judging.decision import report_fault
from goldformer.conformance.judging.verdict import Verdict
from goldformer.conformance.properties.judge import judge_property
from goldformer.spec import Spec
from homework import ADAPTER, CORRECT, NORM, SOFTMAX, UNKNOWN, UNSTABLE, OpenSandbox, make_task, submitted

#: What a property draws, told to a process that has imported other things.
DRAWS = """
import sys
for name in sys.argv[1:]:
    __import__(name)
from goldformer.conformance.properties.registry import _REGISTRY
from goldformer.conformance.properties.registry import load_properties
from goldformer.spec import load_spec
load_properties(load_spec())
print([prop.examples() for prop in _REGISTRY.values()])
"""


@pytest.fixture(scope="module")
def exam(spec: Spec, tmp_path_factory: pytest.TempPathFactory) -> GradingTask:
    return make_task(tmp_path_factory.mktemp("assignment"), spec)


@pytest.fixture
def sandbox(spec: Spec) -> OpenSandbox:
    return OpenSandbox(spec)


@pytest.fixture
def grader(exam: GradingTask, sandbox: OpenSandbox, spec: Spec) -> Grader:
    return Grader(exam, spec).use_sandbox(sandbox)


def earned(graded: GradedSubmission) -> dict[str, float]:
    return {part.component: part.earned for part in graded.grade.parts}


def test_correct_code_earns_everything(grader: Grader) -> None:
    graded = grader.grade(submitted(CORRECT))
    assert (graded.grade.outcome, graded.grade.earned, graded.grade.points) == ("correct", 20.0, 20.0)
    assert graded.grade.message == "Every check passes."
    softmax, norm = graded.grade.parts
    # Two of each, one of large scores, and refusals with their base.
    assert (softmax.shares["fresh"], norm.shares["fresh"]) == ((3, 3), (6, 6))
    assert softmax.shares["property"][0] == softmax.shares["property"][1] > 2
    assert "property" not in norm.shares
    assert not graded.problem


def test_a_mistake_is_named_and_deducted(grader: Grader) -> None:
    grade = grader.grade(submitted(UNSTABLE)).grade
    assert grade.outcome == "wrong"
    (named,) = [said for said in grade.said if said.label == "Mistake found"]
    assert named.mistakes == ("softmax-unstable",)
    softmax, norm = grade.parts
    assert [deduction.points for deduction in softmax.deductions] == [1.0]
    assert 0 < softmax.earned < 9
    assert (norm.earned, norm.deductions) == (10.0, ())


def test_answers_from_the_published_cases_earn_nothing(grader: Grader, exam: GradingTask, spec: Spec) -> None:
    known = {}
    for case in spec.cases_of("softmax"):
        if case.golden is not None and not case.shape_only and case.cotangent is None:
            (outputs,) = case.golden.options.values()
            assert outputs is not None
            known[case.input_arrays["scores"].tobytes()] = outputs["output"].values.tolist()
    table = f"import numpy as np\nKNOWN = {known!r}\n".replace("inf", "np.inf")
    cheat = table + "def softmax(scores):\n    return np.array(KNOWN[np.ascontiguousarray(scores).tobytes()])\n"
    softmax, _ = grader.grade(submitted(cheat + NORM)).grade.parts
    assert softmax.shares["published"][0] >= 10
    assert softmax.shares["fresh"][0] == 0
    assert softmax.earned == 0.0


@pytest.mark.parametrize(
    ("raised", "disturbed"),
    [
        ('RuntimeError("can\'t start new thread")', True),
        ('BlockingIOError(11, "Resource temporarily unavailable")', True),
        ('RuntimeError("no")', False),
    ],
)
def test_who_can_start_no_process_may_have_been_disturbed_by_others(
    grader: Grader, exam: GradingTask, spec: Spec, raised: str, disturbed: bool
) -> None:
    in_call = submitted(f"def softmax(scores):\n    raise {raised}\n{NORM}")
    at_start = submitted(f"raise ImportError(str({raised}))\n")
    for submission in (in_call, at_start):
        files = write_results(grader.grade(submission), submission, exam, spec)
        assert files.disturbed is disturbed


def test_what_is_not_there_is_missing_and_costs_its_component(grader: Grader) -> None:
    graded = grader.grade(submitted(SOFTMAX))
    assert earned(graded) == {"softmax": 10.0, "layer_norm": 0.0}
    assert graded.grade.outcome == "missing"


def test_what_cannot_be_imported_is_said_once(grader: Grader, sandbox: OpenSandbox) -> None:
    graded = grader.grade(submitted("def softmax(:\n"))
    assert (graded.grade.earned, graded.grade.outcome) == (0.0, "killed")
    assert graded.grade.message.startswith("It cannot be started: the process ended: invalid syntax")
    counted = [check.verdict.message for check in graded.grade.checks if check.counts]
    assert all(message.endswith("not run: the submission cannot be started") for message in counted)
    assert graded.grade.said == ()
    assert sandbox.starts == 1


def test_a_bad_archive_is_graded_as_such(grader: Grader, sandbox: OpenSandbox) -> None:
    graded = grader.grade(Submission("bob", {}, "d", "'a' is a link in the zip: hand in the file itself"))
    assert graded.grade.message == "It cannot be graded: 'a' is a link in the zip: hand in the file itself."
    assert (graded.grade.outcome, graded.grade.earned, sandbox.starts) == ("error", 0.0, 0)


def late(seconds: float = 0.0, method: bytes = b'"softmax"') -> object:
    def before(folder: Path, message: bytes) -> None:
        if method in message:
            raise ChildFault("timeout", "gave no answer")

    return before


def test_after_three_late_checks_a_component_is_not_waited_for(grader: Grader, sandbox: OpenSandbox) -> None:
    sandbox.before = late()  # type: ignore[assignment]
    grade = grader.grade(submitted(CORRECT)).grade
    softmax = [c for c in grade.checks if c.verdict.component == "softmax" and c.counts]
    assert {c.outcome for c in softmax} == {"timeout"}
    asked = [c for c in softmax if "not run" not in c.verdict.message]
    assert (len(asked), len(softmax) > 10) == (3, True)
    assert softmax[-1].verdict.message == "not run: 3 calls of softmax in a row timed out"
    assert [part.earned for part in grade.parts] == [0.0, 10.0]


def test_a_component_that_waits_is_not_judged_and_takes_nothing_from_the_others(
    grader: Grader, sandbox: OpenSandbox
) -> None:
    def before(folder: Path, message: bytes) -> None:
        if b'"softmax"' in message:
            raise ChildFault("timeout", f"hardly computed for 60 s: it {WAITS}")

    sandbox.before = before
    graded = grader.grade(submitted(CORRECT))
    softmax = [c for c in graded.grade.checks if c.verdict.component == "softmax" and c.counts]
    assert {c.outcome for c in softmax} == {"not-judged"}
    assert sum("not run" not in c.verdict.message for c in softmax) == 1
    assert earned(graded) == {"softmax": 0.0, "layer_norm": 10.0}
    assert [said.text for said in graded.grade.said if said.label == "Fix first"] == ["softmax"]


def test_what_was_not_run_is_never_to_be_fixed_first(grader: Grader, spec: Spec) -> None:
    """The refused calls of a component that is not run have a base that is not run either."""
    bench = Bench(spec, grader._out_of_time, "float64", "cpu")
    run = grader._explainer.explain([judge_case(case, bench) for case in spec.cases_of("softmax")])
    assert sum(verdict.bad for verdict in run) > 10
    assert [said for said in diagnose(run, spec) if said.label == "Fix first"] == []


@pytest.mark.parametrize("answer", ["names", "id"])
def test_after_three_answers_outside_the_protocol_a_component_is_not_asked_again(
    answer: str, grader: Grader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """30,000 outputs in each answer took 24 seconds of the judge, and an id of 5000 digits 26."""
    asked: list[bytes] = []
    exchange = homework._Inside.exchange

    def spoil(inside: homework._Inside, message: bytes, seconds: float) -> bytes:
        request = json.loads(message)
        if request["method"] != "softmax":
            return exchange(inside, message, seconds)
        asked.append(message)
        if answer == "id":
            return b'{"jsonrpc":"2.0","id":' + b"1" * 5000 + b',"result":{}}'
        return json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": dict.fromkeys("abcdefghij", 1)}).encode()

    monkeypatch.setattr(homework._Inside, "exchange", spoil)
    grade = grader.grade(submitted(CORRECT)).grade
    softmax = [c for c in grade.checks if c.verdict.component == "softmax" and c.counts]
    assert {c.verdict.reason for c in softmax} == {"protocol"}
    assert (len(asked), len(softmax) > 10) == (3, True)
    assert softmax[-1].verdict.message == "not run: 3 calls of softmax in a row got no valid answer"
    assert [part.earned for part in grade.parts] == [0.0, 10.0]


def test_a_slow_component_has_a_time_of_its_own(
    grader: Grader, sandbox: OpenSandbox, exam: GradingTask, spec: Spec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each softmax takes a second of 10: after ten answers it is not run, and the other component is judged whole."""
    monkeypatch.setattr("goldformer.conformance.grading.answer_limits._LONG", -1.0)

    def before(folder: Path, message: bytes) -> None:
        sandbox.cpu += b'"softmax"' in message

    sandbox.before = before
    limited = replace(
        exam, assignment=replace(exam.assignment, limits=exam.assignment.limits.model_copy(update={"total": 10.0}))
    )
    grader = Grader(limited, spec).use_sandbox(sandbox)
    graded = grader.grade(submitted(CORRECT))
    softmax = [c for c in graded.grade.checks if c.counts and c.verdict.component == "softmax"]
    assert Counter(check.outcome for check in softmax)["correct"] <= 10
    assert graded.grade.outcome == "timeout"
    assert softmax[-1].verdict.message == "not run: all of its time is used up"
    assert earned(graded) == {"softmax": 0.0, "layer_norm": 10.0}


@pytest.mark.parametrize("where", ["judge_case", "judge_property", "diagnose", "grade_components"])
def test_what_breaks_in_the_grader_costs_nobody_anything(
    where: str, grader: Grader, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> object:
        raise RuntimeError("ours")

    checks: dict[str, Callable[..., Judgement]] = {"judge_case": judge_case, "judge_property": judge_property}
    real = checks.get(where)

    def lose(verdict: Verdict) -> Verdict:
        try:
            raise RuntimeError("ours")
        except RuntimeError as error:
            return report_fault(verdict, error)

    def sometimes(subject, *rest):
        made = real(subject, *rest)
        lost = subject.id in ("sm-several-rows", "sm-shift")
        return replace(made, verdict=lose(made.verdict)) if lost else made

    monkeypatch.setattr(exams if real else graders, where, sometimes if real else broken)
    graded = grader.grade(submitted(CORRECT))
    assert graded.grade.outcome == "grader-error"
    assert "RuntimeError: ours" in graded.problem
    assert graded.grade.message.startswith("Grading itself failed, which is no fault of yours")
    if real:
        assert graded.grade.earned == 20.0


def test_a_jail_that_breaks_is_the_graders_fault(grader: Grader, sandbox: OpenSandbox) -> None:
    def before(folder: Path, message: bytes) -> None:
        if b"layer_norm" in message:
            raise ChildFault("crashed", "ended")

    spawn = sandbox._spawn

    def broken(folder: Path) -> object:
        if sandbox.starts:
            raise RuntimeError("no more processes")
        return spawn(folder)

    sandbox._spawn = broken  # type: ignore[method-assign,assignment]
    sandbox.before = before
    graded = grader.grade(submitted(CORRECT))
    assert graded.grade.outcome == "grader-error"
    assert "no more processes" in graded.problem


def test_a_submission_that_changes_itself_earns_nothing(grader: Grader, sandbox: OpenSandbox) -> None:
    def before(folder: Path, message: bytes) -> None:
        (folder / "submission" / "submission.py").write_text("# gone")

    sandbox.before = lambda folder, message: before(folder, message) if b"layer_norm" in message else None
    graded = grader.grade(submitted(CORRECT))
    assert (graded.grade.outcome, graded.grade.earned) == ("tampered", 0.0)
    assert "changed submission.py" in graded.grade.message


def test_a_pipe_in_the_place_of_a_file_is_found_without_waiting(grader: Grader, sandbox: OpenSandbox) -> None:
    def before(folder: Path, message: bytes) -> None:
        notes = folder / "submission" / "notes.py"
        if b"layer_norm" in message and not notes.is_fifo():
            notes.unlink()
            os.mkfifo(notes)

    sandbox.before = before
    graded = grader.grade(Submission("alice", {"submission.py": CORRECT.encode(), "notes.py": b""}, "digest"))
    assert (graded.grade.outcome, graded.grade.earned) == ("tampered", 0.0)
    assert "changed notes.py" in graded.grade.message


CLASS = {"a": CORRECT, "b": UNSTABLE, "c": UNKNOWN, "d": SOFTMAX, "e": "def softmax(:\n", "f": UNSTABLE + "# f\n"}


def class_of(grader: Grader, order: str) -> dict[str, str]:
    graded = {id_: grader.grade(submitted(CLASS[id_], id_)) for id_ in order}
    return {id_: to_json(g.grade) for id_, g in sorted(graded.items())}


def test_who_was_graded_before_does_not_matter(exam: GradingTask, spec: Spec) -> None:
    one, other = (Grader(exam, spec).use_sandbox(OpenSandbox(spec)) for _ in range(2))
    assert class_of(one, "abcdef") == class_of(other, "fedcba") == class_of(one, "cfaebd")


def test_kept_imitations_change_nothing(exam: GradingTask, spec: Spec, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Grader(exam, spec).use_sandbox(OpenSandbox(spec))
    forgetful = Grader(exam, spec).use_sandbox(OpenSandbox(spec))
    forgetful._explainer._imitations = Imitations(most=0)
    without = Grader(exam, spec).use_sandbox(OpenSandbox(spec))
    without._explainer._imitations = None
    kept_twice = [class_of(kept, "abcf") for _ in range(2)]
    assert kept_twice == [class_of(forgetful, "abcf"), class_of(without, "abcf")]


def test_nothing_that_differs_from_run_to_run_is_kept(exam: GradingTask, spec: Spec) -> None:
    source = "def softmax(scores):\n    raise ValueError(f'{object()} in {__file__}')\n"
    one, other = (Grader(exam, spec).use_sandbox(OpenSandbox(spec)).grade(submitted(source)) for _ in range(2))
    assert to_json(one.grade) == to_json(other.grade)
    message = next(c.verdict.message for c in one.grade.checks if c.verdict.component == "softmax")
    assert message == "raised ValueError: <object object at 0x0> in submission.py"


def test_a_submission_cannot_declare_anything(exam: GradingTask, spec: Spec) -> None:
    """It reaches into the adapter that imports it; what is graded stands in the text of the adapter."""
    source = CORRECT + "import sys\nfor name in ('DTYPES', 'CONVENTIONS'):\n    pass\n"
    sandbox = OpenSandbox(spec)
    spawn = sandbox._spawn

    def lying(folder: Path) -> object:
        peer = spawn(folder)
        exchange = peer.exchange

        def said(message: bytes, seconds: float) -> bytes:
            reply = exchange(message, seconds)
            if b'"initialize"' in message:
                told = json.loads(reply)
                told["result"] |= {"dtypes": ["float16"], "conventions": {"empty_row": "zeros"}}
                return json.dumps(told).encode()
            return reply

        peer.exchange = said  # type: ignore[method-assign]
        return peer

    honest = Grader(exam, spec).use_sandbox(OpenSandbox(spec)).grade(submitted(source)).grade
    sandbox._spawn = lying  # type: ignore[method-assign,assignment]
    assert Grader(exam, spec).use_sandbox(sandbox).grade(submitted(source)).grade == honest


@pytest.mark.parametrize(
    ("adapter", "message"),
    [
        ("def f(:", "the assignment's adapter is not Python: "),
        ("x = 1", "the assignment's adapter: ARRAYS is missing"),
        ('ARRAYS = "process"', "the assignment's adapter: ARRAYS is 'process', which no file can be"),
        ('ARRAYS = "num" + "py"', r"ARRAYS is no literal \(line 1\): it is read without running the file"),
        ('ARRAYS = "numpy"\nCONVENTIONS = {[]: 1}', r"CONVENTIONS is no literal \(line 2\): it is read without"),
        (f"ARRAYS = {'-' * 20_000}1", "the assignment's adapter is nested too deeply for Python"),
        (f"x{'.x' * 200_000}", "the assignment's adapter is nested too deeply for Python"),
        ('ARRAYS = "numpy"\nDTYPES = ("float1",)', "DTYPES has 'float1'; known are \"float64\""),
        ('ARRAYS = "numpy"\nCONVENTIONS = {"a": "b"}', "CONVENTIONS has 'a'; conventions are "),
    ],
)
def test_a_bad_adapter_is_refused_before_anything_is_graded(adapter: str, message: str, spec: Spec) -> None:
    with pytest.raises(AdapterError, match=message):
        read_declarations(adapter.encode(), spec)


def test_what_an_adapter_declares_is_read_from_its_text(spec: Spec) -> None:
    text = 'ARRAYS: str = "numpy"\nCONVENTIONS = {"empty_row": "zeros"}\nDTYPES = ("float32",)\n'
    text += "def softmax_gradient(**_): ...\n"
    read = read_declarations(text.encode(), spec)
    assert (read.arrays, read.conventions, read.dtypes) == ("numpy", {"empty_row": "zeros"}, ("float32",))
    assert read.gradients == {"softmax"}
    assert read_declarations(ADAPTER.encode(), spec).dtypes == ("float64", "float32", "float16")
    assert "layer_norm" in read_declarations(b'ARRAYS = "torch"', spec).gradients


def test_properties_draw_the_same_in_every_process(tmp_path: Path) -> None:
    """Hypothesis draws from the numbers in the modules that are imported, too."""
    (tmp_path / "others.py").write_text(f"NUMBERS = {list(range(1000))}\n")
    told = [
        subprocess.run(
            [sys.executable, "-c", DRAWS, *names], capture_output=True, text=True, check=True, cwd=tmp_path
        ).stdout
        for names in ((), ("others", "goldformer.conformance.commands._kill"))
    ]
    assert told[0] == told[1]
    assert told[0].count("seed") > 300
