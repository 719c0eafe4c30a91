"""Feedback tells a student what failed and why, as far as the assignment allows, and never shows a fresh case."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from markdown_it import MarkdownIt

import grades
from goldformer.conformance.diagnosis.causes import make_option_cause, write_hint
from goldformer.conformance.diagnosis.finding import ADAPTER_LABELS, Finding
from goldformer.conformance.grading.model import NOT_STARTED, Deduction, Feedback, derive_outcome
from goldformer.conformance.grading.results import feedback
from goldformer.conformance.grading.results.words import (
    advise,
    block,
    code,
    escape,
    points,
    shorten_to_line,
    tail,
)
from goldformer.conformance.judging.verdict import Status
from goldformer.conformance.reports.counting import count_noun
from goldformer.spec import load_spec
from grades import ASSIGNMENT, HOSTILE, SECRET
from pages import CHROMIUM, PAIRS, READABLE, Page, contrast, must_scroll_by_keyboard, must_stand_alone, on_a_phone

#: Of the first case that fails: what should have been, and what was.
EXPECTED, GOT = "0.397954285", "0.425934076"
FIRST_CASE = "sdpa-walkthrough-3x2"
ATTENTION = "scaled_dot_product_attention"
HINT = write_hint((make_option_cause("empty_row", "nan", load_spec()),))


@pytest.fixture
def both(spec):
    """The page and the Markdown of a grade, as one text each."""
    return lambda grade, assignment=ASSIGNMENT: (
        feedback.html(grade, assignment, spec),
        feedback.markdown(grade, assignment, spec),
    )


def test_page_and_markdown_written_together_are_those_written_alone(spec, both):
    for grade in (grades.passing(), grades.failing()):
        assert feedback.write_both(grade, ASSIGNMENT, spec) == both(grade)


def told(**switches):
    return replace(ASSIGNMENT, feedback=Feedback(**switches))


# ── what is said ──


def test_who_passes_gets_a_short_friendly_page(both):
    page, text = both(grades.passing())
    for shown in (page, text):
        assert "Well done: all 10 points." in shown
        assert "✗" not in shown
        assert "goldformer check" not in shown
    assert len(text.splitlines()) < 10


def test_who_fails_is_told_the_mistake_the_step_and_how_to_see_it(both):
    page, text = both(grades.failing())
    for shown in (page, text):
        assert f"{points(grades.earned_by_failing()[0])} of 10 points." in shown
        assert "scale-missing, the scores are not divided by √d_k" in shown
        assert "Divide QKᵀ by √d_k before the softmax." in shown
        assert (
            "The first output that is wrong is scaled_scores, in sdpa-walkthrough-3x2: 9 of 9 values are wrong" in shown
        )
        assert "goldformer check adapter.py --case sdpa-walkthrough-3x2 --dtype float32" in shown
        assert "/course" not in shown
    assert f"16 of {grades.published()}" in text
    assert "the standard deviation √d_k, which is 8 at d_k = 64" in page


def test_the_code_of_the_fix_comes_before_its_reasons(both):
    page, text = both(grades.failing())
    (first, *_) = [line for line in text.splitlines() if "`softmax(query @ key.T / sqrt(d_k))`" in line]
    assert first.index("Write ") < first.index("The scores are not divided by √d_k.")
    box = page.partition('<div class="box')[2].partition("</div>")[0]
    assert box.index("Write <code>softmax(query @ key.T / sqrt(d_k))</code>") < box.index("The scores are not divided")
    labels = [label for _, label in Page(page).all("dt")]
    place = labels.index("Fix first")
    assert labels[place : place + 4] == ["Fix first", "Instead of", "Write", "Mistake found"]


def test_the_first_box_names_the_mistake_and_what_to_do_instead_of_general_advice(both):
    page, text = both(grades.failing())
    box = page.partition('<div class="box')[2].partition("</div>")[0]
    assert "The scores are not divided by √d_k. Divide QKᵀ by √d_k before the softmax." in box
    assert advise("wrong", ASSIGNMENT) not in page
    assert text.index("The scores are not divided by √d_k. Divide") < text.index("## Components")
    unknown = grades.failing()
    unknown = replace(unknown, said=tuple(line for line in unknown.said if not line.mistakes))
    assert advise("wrong", ASSIGNMENT) in both(unknown)[0]


def test_values_that_differ_late_are_shown_with_the_digits_that_differ(both):
    grade = grades.failing()

    def move_closer(check):
        moved = [
            replace(d, first=replace(d.first, got=d.first.expected * (1 + 2**-22))) for d in check.verdict.differences
        ]
        return replace(check, verdict=replace(check.verdict, differences=tuple(moved)))

    for shown in both(replace(grade, checks=tuple(map(move_closer, grade.checks)))):
        assert re.search(r"scaled_scores\[0, 0, 0\]: expected 2, actual 2\.00000048;", shown)


def test_expected_and_actual_come_before_any_ratio(both):
    for shown in both(grades.failing()):
        fails = shown[shown.index("What fails") :]
        assert re.search(r"scaled_scores\[0, 0, 0\]: expected 2, actual 4;", fails)
        assert fails.index("expected") < fails.index("error ÷ tolerance")
        assert "times the tolerance" not in fails.replace("1000 times the tolerance", "")


def test_every_failing_check_that_is_not_described_is_named(both):
    bad = {c.verdict.check for c in grades.failing().checks if c.origin != "fresh" and c.is_shown}
    for shown in both(grades.failing()):
        alike = sum(map(int, re.findall(r"\((\d+) more alike\)", shown)))
        assert len(bad) > 20
        assert sum(check not in shown for check in bad) <= alike < 5


def test_the_first_check_that_is_shown_is_the_one_to_repeat(spec):
    page = Page(feedback.html(grades.failing(), ASSIGNMENT, spec))
    opened = [text for attributes, text in page.all("details") if "open" in attributes]
    assert [text.split()[1] for text in opened] == ["sdpa-walkthrough-3x2"]


def test_published_right_and_drawn_wrong_is_said_as_a_fact(both):
    for shown in both(grades.cheating()):
        assert "The published cases pass, cases drawn for grading do not." in shown
        assert "{0} of {0}".format(grades.published()) in shown
        assert "0 of 4" in shown
        assert not re.search(r"cheat|copied|dishonest|hard-?cod|plagia", shown, re.IGNORECASE)
        # There is no published case that fails, so nothing to repeat.
        assert "goldformer check" not in shown


def test_some_drawn_cases_failing_while_published_ones_pass_is_said_with_how_many(both):
    right = grades.checked(grades.verdicts())
    wrong = {c.verdict.check: c for c in grades.checked(grades.verdicts("scale-missing")) if c.origin == "fresh"}
    listed = tuple(wrong.get(check.verdict.check, check) for check in right)
    for shown in both(grades.graded("dee", listed)):
        assert "The published cases pass; 1 of 4 cases drawn for grading does not." in shown


@pytest.mark.parametrize(
    ("outcome", "reason", "said"),
    [
        (
            "timeout",
            "timeout",
            "A call may take 5 seconds of processor time, and all calls of a component together 120",
        ),
        ("not-judged", "timeout", "A call hardly computed for 60 seconds. Look for input()"),
        ("memory", "memory", "Your code may use 2048 MiB of memory"),
        ("output-limit", "output-limit", "Your code may print 1 MiB"),
        ("killed", "crashed", "look for exit() or quit()"),
        ("protocol", "protocol", "Return arrays of numbers"),
        ("tampered", "tampered", "Such a run is not counted"),
        ("error", "raised", "Begin with the last line of the message"),
    ],
)
def test_what_ended_without_a_result_is_said_in_words_that_help(both, outcome, reason, said):
    for shown in both(grades.with_outcome("eva", outcome, reason, "what the engine says", "last words")):
        assert said.lower() in shown.lower()
        assert "what the engine says" in shown
        assert "last words" in shown


def test_checks_that_fail_alike_are_said_once(both):
    _, text = both(grades.with_outcome("eva", "timeout", "timeout", "no answer"))
    assert text.partition("## What fails")[2].count("no answer") == 1
    assert f"({grades.published() - 1} more alike)" in text


def test_what_cannot_be_started_says_why_once(both):
    """A file that Python cannot read fails every check alike, and none of them says more than that."""
    not_run = "raised not run: the submission cannot be started"
    grade = grades.with_outcome("eva", "error", "raised", not_run, "SyntaxError: x")
    grade = replace(grade, message=f"{NOT_STARTED}: submission.py:9: SyntaxError: x")
    for shown in both(grade):
        assert shown.count("SyntaxError: x") == 2  # the message, and what Python said of it
        assert "not run: the submission" not in shown
        assert "goldformer check" not in shown
        assert "None of your code could be called" in shown
        assert "raises an error" not in shown
    assert all(shown.count("SyntaxError: x") == 1 for shown in both(grade, told(stderr=False)))


def test_what_was_not_read_is_not_said_to_have_run(both):
    parts = tuple(replace(part, earned=0.0, shares={}) for part in grades.passing().parts)
    grade = replace(grades.passing("fay"), outcome="error", message="It cannot be graded: x.pdf is no .py file.",
                    earned=0.0, parts=parts, said=(), checks=())  # fmt: skip
    for shown in both(grade):
        assert "Hand in submission.py" in shown
        assert "not run" in shown
        assert "Your code ran" not in shown
        assert "raised" not in shown


def test_a_function_of_another_name_is_not_written_and_the_name_is_said(both):
    lacks = "raised AttributeError: module 'submission' has no attribute 'soft_max' (/adapter.py:3, softmax)"
    verdict = replace(grades.verdicts()[0].verdict, status=Status.ERRORED, reason="raised", message=lacks)
    assert derive_outcome(verdict) == "missing"
    for shown in both(grades.with_outcome("eva", "missing", "raised", lacks)):
        assert "There is no soft_max in submission.py." in shown
        assert "not written" in shown
        assert "AttributeError" not in shown
    reason = " (code cell 2, which defines soft_max, is left out: its line 1 is not valid Python: unmatched ')')"
    for shown in both(grades.with_outcome("eva", "missing", "raised", lacks.replace(" (/", f"{reason} (/"))):
        assert f"There is no soft_max in submission.py{reason}." in shown.replace("&#39;", "'")


def test_a_call_that_raises_is_shown_however_many_values_are_wrong(both):
    """Its outcome stands in the table, and the advice speaks of its message."""
    last = [c.verdict.check for c in grades.failing().checks if c.outcome == "wrong" and c.origin == "published"][-1]
    listed = tuple(
        replace(c, outcome="error", verdict=grades.broken(c.verdict, "raised", "raised IndexError: no axis", "where"))
        if c.verdict.check == last and c.origin == "published"
        else c
        for c in grades.failing().checks
    )
    for shown in both(grades.graded("ben", listed)):
        fails = shown[shown.index("What fails") :]
        assert "raised IndexError: no axis" in fails
        assert "where" in fails.partition("raised IndexError: no axis")[2]


@pytest.mark.parametrize(
    ("part", "rule"),
    [
        ({}, "Ordinary numbers: "),
        ({"visible": 1.0, "hidden": 3.0}, "Published cases weigh 1, and drawn ones 3"),
        ({"rule": "all"}, "only if every case passes"),
    ],
    ids=["smaller", "weights", "all"],
)
def test_how_points_come_about_is_said_where_some_are_lost(both, part, rule):
    parts = tuple(p.model_copy(update=part) if p.component == ATTENTION else p for p in ASSIGNMENT.parts)
    assignment = replace(ASSIGNMENT, parts=parts)
    for shown in both(grades.failing(), assignment):
        assert rule in shown
        assert len(re.findall(r" of 6 points\. ", shown)) == 1
        passed, among = next(p for p in grades.failing().parts if p.component == ATTENTION).kinds["value"]["published"]
        assert ("rule" in part) is not (f"because {passed} of {among} published cases" in shown)
    assert not any(" points, because" in shown for shown in both(grades.passing(), assignment))


def test_nobody_is_told_to_change_the_adapter_of_the_assignment(both):
    said = (
        Finding("Fix first", "softmax", inner=False, mistakes=()),
        Finding("Option found", f"empty_row: nan. {HINT}", inner=True, mistakes=()),
        Finding(ADAPTER_LABELS[0], "raise NotImplementedError in the adapter", inner=True, mistakes=()),
    )
    for shown in both(replace(grades.failing(), said=said)):
        assert "empty_row: nan." in shown
        assert "in the adapter" not in shown


def test_a_result_of_another_form_needs_no_formula(both):
    shown, _ = both(grades.with_outcome("eva", "wrong", "wrong-dtype", "output is float64, must be float32"))
    assert "output is float64, must be float32" in shown
    assert advise("wrong", ASSIGNMENT) not in shown


def test_the_tolerance_is_explained_where_it_is_spoken_of(both):
    assert all("further from the right one than rounding can explain" in shown for shown in both(grades.failing()))
    ended = grades.with_outcome("eva", "timeout", "timeout", "no answer")
    assert not any("rounding can explain" in shown for shown in both(ended))


def test_where_no_mistake_is_named_what_was_seen_first_is_said(both):
    for shown in both(grades.with_outcome("eva", "error", "raised", "raised ValueError: too many", "Traceback")):
        assert "First seen" in shown
    assert not any("First seen" in shown for shown in both(grades.failing()))


def test_what_could_not_be_graded_says_why_and_has_no_table(both):
    grade = replace(grades.passing("fay"), outcome="error", message="there is no submission.py", earned=0.0, parts=(),
                    said=(), checks=())  # fmt: skip
    for shown in both(grade):
        assert "there is no submission.py" in shown
        assert "0 of 10 points." in shown
        assert "Components" not in shown


def test_deductions_are_shown_with_their_note(both):
    grade = grades.failing()
    cost = Deduction(points=0.5, mistake="scale-missing", note="read section 3 again")
    parts = (grade.parts[0], replace(grade.parts[1], deductions=(cost, Deduction(points=1.0, reason="raised"))))
    for shown in both(replace(grade, parts=parts)):
        assert "0.5 points less: read section 3 again" in shown
        assert "1 point less: checks fail for the reason raised" in shown


# ── what is not said ──


@pytest.mark.parametrize("make", [grades.failing, grades.cheating, grades.hostile])
@pytest.mark.parametrize("switches", [{}, {"expected": False, "first_wrong": False}])
def test_nothing_is_told_of_a_drawn_case(both, spec, make, switches):
    grade = make()
    drawn = [check.verdict for check in grade.checks if check.origin == "fresh"]
    numbers = {f"{e.expected:.6g}" for v in drawn for d in v.differences for e in (d.first, d.worst) if e}
    known = {
        f"{e.expected:.6g}"
        for c in grade.checks if c.origin != "fresh"
        for d in c.verdict.differences for e in (d.first, d.worst) if e
    }  # fmt: skip
    assert drawn
    for shown in both(grade, told(**switches)):
        assert SECRET not in shown
        assert [number for number in numbers - known if number in shown] == []


def test_what_code_says_after_it_saw_a_drawn_case_is_not_told(both):
    """It could repeat the inputs, in a message, on standard error or as numbers."""
    checks = grades.failing().checks
    leaking = [
        replace(c, outcome="error", verdict=grades.broken(c.verdict, "raised", "raised X: the inputs", "the inputs"))
        if c.origin == "published" and c.outcome == "wrong" else c
        for c in checks
    ]  # fmt: skip
    first = [c for c in leaking if c.origin == "fresh"]
    others = [c for c in leaking if c.origin != "fresh"]
    for shown in both(grades.graded("gus", (*first, *others))):
        assert "the inputs" not in shown
        assert "raises an error" in shown
    for shown in both(grades.graded("gus", (*others, *first))):
        assert "raised X: the inputs" in shown
    for shown in both(grades.graded("gus", (*[c for c in checks if c.origin == "fresh"], *others))):
        assert GOT not in shown


def test_a_sentence_of_the_diagnosis_that_names_a_drawn_case_is_left_out(both):
    grade = grades.cheating()
    assert any(SECRET in said.text for said in grade.said)
    named = replace(grade.said[-1], label="Possible causes", text=f"seen in {SECRET}-1")
    for shown in both(replace(grade, said=(*grade.said, named))):
        assert "seen in" not in shown


def test_a_message_that_repeats_what_a_drawn_case_raised_is_left_out(both):
    fresh = grades.with_outcome("hal", "error", "raised", "raised X: secret", origins=("fresh",))
    for shown in both(replace(fresh, message="it raised X: secret")):
        assert "secret" not in shown
    everywhere = grades.with_outcome("hal", "error", "raised", "cannot be imported")
    for shown in both(replace(everywhere, message="It cannot be imported")):
        assert "It cannot be imported" in shown


@pytest.mark.parametrize(
    ("switch", "there"),
    [
        ("diagnosis", ["scale-missing, the scores", "Fix first", "Divide QKᵀ"]),
        ("first_wrong", ["The first output that is wrong", "scaled_scores"]),
        ("expected", ["expected 0.", "error ÷ tolerance"]),
        ("reproduction", ["goldformer check"]),
    ],
)
def test_what_is_switched_off_is_not_there(both, spec, switch, there):
    on = both(grades.failing())
    off = both(grades.failing(), told(**{switch: False}))
    for text in there:
        assert all(text in shown for shown in on)
        assert [text for shown in off if text in shown] == []


def test_standard_error_can_be_switched_off(both):
    grade = grades.with_outcome("ida", "killed", "crashed", "the process ended", "Segmentation fault")
    assert all("Segmentation fault" in shown for shown in both(grade))
    assert all("Segmentation fault" not in shown for shown in both(grade, told(stderr=False)))


def test_a_deduction_names_no_mistake_where_the_diagnosis_is_not_told(both):
    grade = grades.failing()
    parts = (grade.parts[0], replace(grade.parts[1], deductions=(Deduction(points=1.0, mistake="scale-missing"),)))
    for shown in both(replace(grade, parts=parts), told(diagnosis=False)):
        assert "1 point less: a known mistake" in shown
        assert "scale-missing" not in shown


# ── hostile text ──


def test_a_page_shows_hostile_text_as_text(both):
    page, _ = both(grades.hostile())
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert not set(page) & set("\x00\x1b\u202e")
    must_stand_alone(Page(page))


def test_markdown_shows_hostile_text_as_code_alone(both):
    _, text = both(grades.hostile())
    _, calm = both(grades.with_outcome("calm", "error", "raised", "raised X", "Traceback"))
    parsed, others = (MarkdownIt("gfm-like", {"linkify": False}).parse(shown) for shown in (text, calm))
    assert [token.type for token in parsed] == [token.type for token in others]
    inline = [child for token in parsed for child in token.children or ()]
    assert not [token for token in (*parsed, *inline) if token.type.startswith("html")]
    assert [child.type for child in inline if "alert(1)" in child.content] == ["code_inline"] * 4
    assert not set(text) & set("\x00\x1b\u202e")


@pytest.mark.parametrize("text", ["```", "`", "``x` y", "a\n```\nb", "````\n```", "", "~~~", "x`"])
def test_no_text_ends_its_own_fence(text):
    tokens = MarkdownIt().parse(f"{block(text)}\n\nafter {code(text)} end")
    assert [token.type for token in tokens] == ["fence", "paragraph_open", "inline", "paragraph_close"]
    assert tokens[0].content == f"{text}\n"
    shown = [child.content for child in tokens[2].children if child.type == "code_inline"]
    assert shown == ([" ".join(text.split())] if text else [])


@pytest.mark.parametrize(
    "text",
    ["# a", "1. b", "- c", "+ d", "_e_", "*f*", "[g](h)", "<i>", "a|b", "&lt;", "$x$", "~~k~~", "> l", "===", "\\"],
)
def test_escaped_words_mean_themselves(text):
    tokens = MarkdownIt("gfm-like", {"linkify": False}).parse(escape(text))
    assert [token.type for token in tokens] == ["paragraph_open", "inline", "paragraph_close"]
    assert "".join(child.content for child in tokens[1].children) == text
    assert {child.type for child in tokens[1].children} <= {"text", "text_special"}


def test_underscores_within_a_name_are_left_as_they_are():
    assert escape("d_k of scaled_dot") == "d_k of scaled_dot"


def test_long_text_is_cut_and_says_so():
    assert shorten_to_line("x" * 600) == "x" * 499 + "…"
    assert tail("\n".join(map(str, range(50))), 3) == "47\n48\n49"
    assert tail("y" * 9000, 3).startswith("…y")
    assert len(tail("y" * 9000, 3)) == 4000


def test_numbers_in_words():
    assert [points(value) for value in (0.0, -0.0, 1.0, 2.5, 3.14159, 100.0)] == ["0", "0", "1", "2.5", "3.14", "100"]
    assert [count_noun(1, "case"), count_noun(2, "property"), count_noun(0, "check")] == [
        "1 case",
        "2 properties",
        "0 checks",
    ]
    assert advise("correct", ASSIGNMENT) == ""


# ── heat maps ──


def test_windows_of_published_cases_are_drawn(spec):
    page = Page(feedback.html(grades.failing(), told(first_wrong=True), spec))
    drawn = [attributes["aria-label"].partition(",")[0] for attributes, _ in page.all("svg")]
    assert drawn[:3] == ["expected", "actual", "actual − expected"]
    must_stand_alone(page)


def test_a_small_window_prints_its_numbers_and_names_its_axes(spec):
    page = Page(feedback.html(grades.failing(), ASSIGNMENT, spec))
    texts = [text for attributes, text in page.all("text")]
    assert {"query ↓", "key →"} <= {*texts}
    first = next(attributes["aria-label"] for attributes, _ in page.all("svg"))
    rows, columns = map(int, re.search(r"(\d+) × (\d+) numbers", first).groups())
    drawn = texts[: texts.index("key →", 1)]
    # The numbers of the columns, and of each row, are printed too; the name of the next map's rows follows.
    assert len([text for text in drawn if re.fullmatch(r"-?[\d.]+", text)]) == rows * columns + rows + columns


def test_windows_are_not_drawn_where_values_are_not_told(spec):
    assert "<svg" not in feedback.html(grades.failing(), told(expected=False), spec)


def test_windows_of_drawn_cases_are_not_drawn(spec):
    grade = grades.failing()
    fresh = tuple(check for check in grade.checks if check.origin == "fresh")
    assert any(difference.grid for check in fresh for difference in check.verdict.differences)
    assert "<svg" not in feedback.html(replace(grade, checks=fresh), told(), spec)


# ── the page ──


@pytest.mark.parametrize("make", [grades.passing, grades.failing, grades.cheating, grades.hostile])
def test_pages_stand_alone_and_can_be_used_by_keyboard(spec, make):
    page = Page(feedback.html(make(), ASSIGNMENT, spec))
    must_stand_alone(page)
    must_scroll_by_keyboard(page)


@pytest.mark.parametrize("scheme", [0, 1])
@pytest.mark.parametrize("pair", [*PAIRS, ("good", "page"), ("ink", "goodsoft")])
def test_colours_can_be_read(spec, pair, scheme):
    assert contrast(Page(feedback.html(grades.failing(), ASSIGNMENT, spec)), pair, scheme) >= READABLE


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on PATH")
def test_the_page_is_no_wider_than_a_phone(spec, tmp_path):
    page = feedback.html(grades.hostile(HOSTILE + "x" * 300), ASSIGNMENT, spec).replace("<details", "<details open")
    fits, _, complaints = on_a_phone(page, tmp_path)
    assert fits
    assert complaints == []


def test_the_same_grade_gives_the_same_bytes(both):
    assert both(grades.failing()) == both(grades.failing())
