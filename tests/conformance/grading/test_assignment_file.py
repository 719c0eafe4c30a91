"""assignment.yaml: what is read, and what is said of each thing that is wrong in it, with its line."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from goldformer.conformance.grading.assignment import digest_assignment, list_published_cases, read_assignment
from goldformer.conformance.grading.model import REASONS, Deduction, Feedback, GradedComponent, SubmissionLimits
from goldformer.spec import Spec, SpecError
from repository import REPOSITORY

FULL = """\
title: Attention, and what it stands on
adapter: maps/adapter.py
starter: starter.py
components:
  softmax: 10
  scaled_dot_product_attention: {points: 30.5, golden: 3, properties: 1, rule: all}
  causal_mask: 0
dtypes: [float32]
fresh: {cases: 2, seed: a well-kept secret}
limits: {call: 2.5, memory: 1024}
deductions:
  - {mistake: scale-missing, points: 2, note: read section 3.2.1 again}
  - {reason: wrong-dtype, points: 1}
without: [sdpa-dropout-*, sm-several-rows]
feedback: {expected: false}
"""
SHORT = "title: Softmax\ncomponents:\n  softmax: 1\n"


@pytest.fixture
def written(tmp_path: Path):
    """The path of an assignment with the given text, and an adapter and a starter beside it."""

    def write(text: str, folder: str = "course") -> Path:
        root = tmp_path / folder
        (root / "maps").mkdir(parents=True, exist_ok=True)
        for name in ("adapter.py", "starter.py", "maps/adapter.py", "notes.txt"):
            (root / name).write_text("import submission\n", encoding="utf-8")
        path = root / "assignment.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def test_everything_that_is_written_is_read(written, spec):
    path = written(FULL)
    read = read_assignment(path, spec)
    assert (read.path, read.title) == (path, "Attention, and what it stands on")
    assert (read.adapter, read.starter) == (path.parent / "maps" / "adapter.py", path.parent / "starter.py")
    assert read.parts == (
        GradedComponent(component="softmax", points=10),
        GradedComponent(component="scaled_dot_product_attention", points=30.5, golden=3, properties=1, rule="all"),
        GradedComponent(component="causal_mask", points=0),
    )
    assert (read.dtypes, read.fresh, read.seed) == (("float32",), 2, "a well-kept secret")
    assert read.limits == SubmissionLimits(call=2.5, memory=1024, cpu=380.0)
    assert read.deductions == (
        Deduction(points=2, mistake="scale-missing", note="read section 3.2.1 again"),
        Deduction(points=1, reason="wrong-dtype"),
    )
    assert read.feedback == Feedback(expected=False)
    assert read.points == 40.5


def test_what_is_left_out_takes_along_what_differs_from_it_in_a_fault(written, spec):
    read = read_assignment(written(FULL), spec)
    assert {"sdpa-dropout-each-weight", "sdpa-dropout-negative", "sm-several-rows", "sm-no-elements"} <= {*read.without}
    assert spec.cases["sm-no-elements"].base == "sm-several-rows"
    asked = {case.id for case in list_published_cases(read, spec)}
    components = {"softmax", "scaled_dot_product_attention", "causal_mask"}
    assert asked == {case.id for case in spec.cases.values() if case.component in components} - {*read.without}


def test_what_is_not_written_is_what_the_command_that_students_run_does(written, spec):
    read = read_assignment(written(SHORT), spec)
    assert (read.adapter.name, read.starter) == ("adapter.py", None)
    assert (read.dtypes, read.fresh, read.seed) == (("float64", "float32"), 4, None)
    limits = SubmissionLimits(cpu=140.0)  # of the start and of one component
    assert (read.limits, read.deductions, read.feedback, read.without) == (limits, (), Feedback(), ())


# ── what is wrong ──

#: The text of FULL and its replacement, the line, the field, and the message.
WRONG = {
    "unknown key": (
        "feedback:", "feedbak:", 15, "feedbak",
        "unknown key: did you mean feedback?",
    ),
    "unknown key of a component": (
        "golden: 3", "gold: 3", 6, "components.scaled_dot_product_attention.gold", "unknown key: did you mean golden?",
    ),
    "unknown key like none": (
        "expected: false", "colour: red", 15, "feedback.colour",
        "unknown key: known here are diagnosis, first_wrong, expected, reproduction, stderr",
    ),
    "endless points": (
        "golden: 3", "golden: 1.0e+308", 6, "components.scaled_dot_product_attention.golden",
        "Input should be less than or equal to 1000000",
    ),
    "endless memory": (
        "memory: 1024", "memory: 99999999999999999999", 10, "limits.memory",
        "Input should be less than or equal to 1073741824",
    ),
    "no mapping": ("limits: {call: 2.5, memory: 1024}", "limits: 5", 10, "limits",
        "should be a mapping of keys to values, got 5"),
    "misspelt component": (
        "softmax: 10", "sofmax: 10", 5, "components.sofmax", "unknown component sofmax: did you mean softmax?",
    ),
    "misspelt dtype": (
        "[float32]", "[float32, flaot64]", 8, "dtypes[1]", "unknown dtype flaot64: did you mean float64?",
    ),
    "misspelt mistake": (
        "scale-missing", "scale-mising", 12, "deductions[0].mistake",
        "unknown mistake scale-mising: did you mean scale-missing?",
    ),
    "misspelt reason": (
        "wrong-dtype", "wrong-dtyp", 13, "deductions[1].reason",
        "unknown reason wrong-dtyp: did you mean wrong-dtype?",
    ),
    "a reason that costs nothing": (
        "wrong-dtype", "convention", 13, "deductions[1].reason", "unknown reason convention: known are wrong-value, ",
    ),
    "a mistake of what is not asked for": (
        "scale-missing", "residual-missing", 12, "deductions[0].mistake",
        "residual-missing is a mistake of encoder_layer, which is neither asked for nor a part of what is",
    ),
    "a deduction twice": (
        "reason: wrong-dtype", "mistake: scale-missing", 13, "deductions[1].mistake",
        "scale-missing has a deduction already",
    ),
    "a deduction for two things": (
        "{reason:", "{mistake: scale-missing, reason:", 13, "deductions[1]",
        "should be for a mistake or for a reason, but not for both",
    ),
    "a deduction for nothing": (
        "reason: wrong-dtype, ", "", 13, "deductions[1]",
        "should be for a mistake or for a reason, but not for both",
    ),
    "negative points": (
        "softmax: 10", "softmax: -1", 5, "components.softmax",
        "Input should be greater than or equal to 0, got -1",
    ),
    "points in words": (
        "softmax: 10", "softmax: ten", 5, "components.softmax", "Input should be a valid number, got 'ten'",
    ),
    "no points in a part": (
        "{points: 30.5, ", "{", 6, "components.scaled_dot_product_attention.points", "is missing",
    ),
    "an unknown rule": (
        "rule: all", "rule: most", 6, "components.scaled_dot_product_attention.rule",
        "Input should be 'share' or 'all', got 'most'",
    ),
    "no weights": (
        "golden: 3, properties: 1", "golden: 0, properties: 0", 6, "components.scaled_dot_product_attention",
        "golden and properties are weights: at least one must be more than 0",
    ),
    "no adapter": (
        "maps/adapter.py", "maps/adaptor.py", 2, "adapter",
        "there is no file maps/adaptor.py in the assignment's folder",
    ),
    "an adapter elsewhere": (
        "maps/adapter.py", "../adapter.py", 2, "adapter",
        "'../adapter.py' should be a Python file next to this one or in a folder below it",
    ),
    "a starter that is no Python": (
        "starter.py", "notes.txt", 3, "starter",
        "'notes.txt' should be a Python file or a notebook next to this one or in a folder below it",
    ),
    "too many fresh cases": (
        "cases: 2", "cases: 999", 9, "fresh.cases", "Input should be less than or equal to 32, got 999",
    ),
    "a seed that is a number": (
        "seed: a well-kept secret", "seed: 2026", 9, "fresh.seed",
        "expected text, got 2026, which YAML reads as a number; put it in quotes",
    ),
    "a title that is a number": (
        "title: Attention, and what it stands on", "title: 1e3", 1, "title",
        "expected text, got 1000.0, which YAML reads as a number; put it in quotes",
    ),
    "a title that is nothing": (
        "title: Attention, and what it stands on", "title: ~", 1, "title",
        "expected text, got nothing; put null or ~ in quotes if it is meant as text",
    ),
    "a call longer than all calls": (
        "call: 2.5", "call: 500", 10, "limits.call",
        "is 500 s, more than a component may take (total, 120 s)",
    ),
    "less time for a process than for its components": (
        "call: 2.5", "cpu: 120", 10, "limits.cpu",
        "is 120 s: start and total for each component make 380 s; leave it out",
    ),
    "a case left out that is none": (
        "sm-several-rows", "sm-severl-rows", 14, "without[1]",
        "unknown case sm-severl-rows: did you mean sm-several-rows?",
    ),
    "every case left out": (
        "sm-several-rows", "sm-*", 14, "without", "leaves out every case of softmax: leave out the component",
    ),
    "no memory": (
        "memory: 1024", "memory: 0", 10, "limits.memory", "Input should be greater than or equal to 1, got 0",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_is_said_with_its_line_and_field(what, written, spec):
    old, new, line, field, message = WRONG[what]
    assert FULL.count(old) == 1, f"the text has {old!r} more than once, or not at all"
    path = written(FULL.replace(old, new))
    with pytest.raises(SpecError) as refused:
        read_assignment(path, spec)
    (problem,) = refused.value.problems
    assert (problem.file, problem.line, problem.field) == (path, line, field)
    assert problem.message.startswith(message)


QUESTIONS = """\
title: Attention
questions:
  - title: Softmax and masks
    components: {softmax: 10, causal_mask: {points: 5, visible: 1, hidden: 0}}
    visible: 1
    hidden: 3
  - {title: Attention, components: {scaled_dot_product_attention: 20}}
  - {title: Padding, components: {padding_mask: 7.5}}
"""


def test_questions_group_components(written, spec):
    read = read_assignment(written(QUESTIONS), spec)
    assert read.questions == {
        "Softmax and masks": ("softmax", "causal_mask"), "Attention": ("scaled_dot_product_attention",),
        "Padding": ("padding_mask",),
    }  # fmt: skip
    assert [(part.visible, part.hidden) for part in read.parts] == [(1, 3), (1, 0), (None, None), (None, None)]
    assert read.points == 42.5
    assert read_assignment(written(SHORT), spec).questions == {}


@pytest.mark.parametrize(
    ("old", "new", "line", "field", "message"),
    [
        ("questions:", "components: {softmax: 1}\nquestions:", 2, "components", "give the components here, or below"),
        ("    hidden: 3\n", "", 3, "questions[0]", "visible and hidden are weights: give both"),
        ("hidden: 0", "hidden: 1, visable: 1", 4, "questions[0].components.causal_mask.visable", "unknown key"),
        ("{padding_mask: 7.5}", "{}", 8, "questions[2].components", "Dictionary should have at least 1 item"),
        ("title: Padding", "title: Attention", 8, "questions[2].title", "Attention is the title of another question"),
        ("scaled_dot_product_attention: 20", "softmax: 2", 7, "questions[1].components.softmax", "is part of another"),
        ("scaled_dot_product_attention", "attention", 7, "questions[1].components.attention", "unknown component"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_questions_is_said_with_its_line(old, new, line, field, message, written, spec):
    assert QUESTIONS.count(old) == 1
    with pytest.raises(SpecError) as refused:
        read_assignment(written(QUESTIONS.replace(old, new)), spec)
    (problem,) = refused.value.problems
    assert (problem.line, problem.field) == (line, field)
    assert problem.message.startswith(message)


def test_every_problem_is_listed(written, spec):
    path = written(FULL.replace("softmax: 10", "sofmax: 10").replace("starter.py", "stater.py"))
    with pytest.raises(SpecError) as refused:
        read_assignment(path, spec)
    assert [problem.field for problem in refused.value.problems] == ["starter", "components.sofmax"]


def test_thousands_of_problems_take_no_time(written, spec):
    text = SHORT + "".join(f"  no{n}: 1\n" for n in range(10_000))
    started = time.process_time()
    with pytest.raises(SpecError) as refused:
        read_assignment(written(text), spec)
    assert len(refused.value.problems) == 100
    assert time.process_time() - started < 2


def test_thousands_of_questions_take_no_time(written, spec):
    text = QUESTIONS + "".join(f"  - {{title: q{n}, components: {{softmax: 1}}}}\n" for n in range(10_000))
    started = time.process_time()
    with pytest.raises(SpecError, match="is part of another question"):
        read_assignment(written(text), spec)
    assert time.process_time() - started < 4


def test_a_name_too_long_for_a_file_is_of_none(written, spec):
    with pytest.raises(SpecError, match=r"adapter: there is no file a+\.py in the assignment's folder"):
        read_assignment(written(f"{SHORT}adapter: {'a' * 5000}.py\n"), spec)


def test_points_for_nothing_are_no_assignment(written, spec):
    with pytest.raises(SpecError, match=re.escape("no component has points, so there is nothing to earn")):
        read_assignment(written(SHORT.replace("softmax: 1", "softmax: 0")), spec)


@pytest.mark.parametrize(
    ("worth", "without", "says"),
    [
        ("{points: 1, large_scores: 1}", "sm-one-*", ""),
        ("{points: 1, large_scores: 2}", "sm-one-*", "is 2, more than the points of softmax (1)"),
        ("{points: 1, large_scores: 1, rule: all}", "sm-one-*", "has no effect with rule: all"),
        (
            "{points: 1, large_scores: 1}",
            "sm-*thousand*, sm-shifted-*, sm-size-*",
            "softmax has no case of large scores that is asked for: leave this out",
        ),
    ],
)
def test_points_of_large_scores_need_cases_that_give_them(worth, without, says, written, spec):
    text = (
        SHORT.replace("softmax: 1", f"softmax: {worth}") + f"without: [{', '.join(map(repr, without.split(', ')))}]\n"
    )
    if not says:
        assert read_assignment(written(text), spec).parts[0].large_scores == 1.0
        return
    with pytest.raises(SpecError) as refused:
        read_assignment(written(text), spec)
    (problem,) = refused.value.problems
    assert problem.field == "components.softmax.large_scores"
    assert problem.message.startswith(says)


def test_a_file_that_is_not_there_is_named(tmp_path, spec):
    with pytest.raises(SpecError, match=re.escape("assignment.yaml:1: file: cannot be read: No such file")):
        read_assignment(tmp_path / "assignment.yaml", spec)


# ── the page about it ──

PAGE = (REPOSITORY / "docs" / "assignment-reference.md").read_text(encoding="utf-8")


def test_the_example_of_the_page_is_read(written, spec):
    read = read_assignment(written(PAGE.split("```yaml\n")[1].split("```")[0]), spec)
    assert read.points == 100


def test_the_page_lists_every_reason_and_every_limit(written, spec):
    listed = PAGE.split("> wrong-value")[1].split("\n\n")[0].replace("\n> ", " ")
    assert ("wrong-value" + listed).split(", ") == list(REASONS)
    table = PAGE.split("## limits\n")[1].split("## feedback\n")[0]
    limits = {name: float(value) for name, value in re.findall(r"^\| `(\w+)` \| (\d+)", table, re.MULTILINE)}
    derived = {"cpu", "memory"}
    assert limits == {name: limit for name, limit in SubmissionLimits().model_dump().items() if name not in derived}


# ── its digest ──


def test_the_digest_is_of_what_is_said_and_not_of_where_it_lies(written, spec):
    first = digest_assignment(read_assignment(written(FULL), spec))
    moved = digest_assignment(read_assignment(written("# a remark\n" + FULL, "elsewhere"), spec))
    assert first == moved
    assert re.fullmatch("[0-9a-f]{64}", first)


@pytest.mark.parametrize(
    ("old", "new"), [("softmax: 10", "softmax: 11"), ("call: 2.5", "call: 2"), ("a well", "no well")]
)
def test_the_digest_changes_with_what_is_said(old, new, written, spec):
    assert digest_assignment(read_assignment(written(FULL), spec)) != digest_assignment(
        read_assignment(written(FULL.replace(old, new)), spec)
    )


@pytest.mark.parametrize("name", ["maps/adapter.py", "starter.py"])
def test_the_digest_changes_with_the_files_that_it_names(name, written, spec):
    path = written(FULL)
    before = digest_assignment(read_assignment(path, spec))
    (path.parent / name).write_text("import submission as s\n", encoding="utf-8")
    assert digest_assignment(read_assignment(path, spec)) != before


def test_a_name_of_any_length_is_refused_in_a_short_message(written, spec: Spec) -> None:
    with pytest.raises(SpecError) as caught:
        read_assignment(written(f"{SHORT}dtypes: [{'z' * 100_000}]\n"), spec)
    assert "dtypes[0]: unknown dtype zzz" in str(caught.value)
    assert len(str(caught.value)) < 10_000
