"""The results of a class for staff: a page, a gradebook, JUnit XML, and a page for each submission."""

from __future__ import annotations

import csv
import io
import json
import re
import subprocess
from collections import Counter
from dataclasses import replace

import pytest

import grades
from goldformer.conformance.diagnosis.finding import Finding
from goldformer.conformance.grading.model import NOT_STARTED
from goldformer.conformance.grading.results import staff
from goldformer.conformance.grading.results.classroom import anonymous_page, class_page
from goldformer.conformance.grading.results.gradebook import to_csv, to_json
from goldformer.conformance.grading.results.source import SubmissionSource
from goldformer.conformance.grading.results.words import points
from goldformer.conformance.grading.sandbox import Isolation
from goldformer.conformance.grading.score import note_failures
from grades import ASSIGNMENT, HOSTILE, SECRET
from pages import CHROMIUM, PAIRS, READABLE, Page, contrast, must_scroll_by_keyboard, must_stand_alone, on_a_phone

ATTENTION = "scaled_dot_product_attention"
BROKEN = ("ugo", "grader-error", "protocol", "the grader fell over")


@pytest.fixture(scope="module")
def lines():
    made = [
        grades.passing("ada"), grades.failing("ben"), grades.failing("cai", "scale-no-root"), grades.failing("dee"),
        grades.cheating("eli"), grades.with_outcome("fay", "timeout", "timeout", "no answer within 5 s"),
    ]  # fmt: skip
    return [note_failures(grade) for grade in made]


@pytest.fixture
def hostile_lines(lines):
    made = grades.hostile()
    return [
        *lines,
        note_failures(replace(made, message=HOSTILE)),
        note_failures(replace(made, submission=f"b{HOSTILE}")),
    ]


@pytest.fixture
def page(lines, spec):
    return Page(class_page(lines, ASSIGNMENT, spec))


def test_a_slip_that_no_catalogue_lists_stands_on_the_page_in_words(lines, spec):
    slip = "scaled_dot_product_attention.edit@weigh_keys/result@scaled:1.01"
    text = class_page(
        [replace(lines[1], said=(Finding("Mistake found", "", mistakes=(slip,)),)), *lines], ASSIGNMENT, spec
    )
    assert text.count("the code multiplies the weights by 1.01") >= 3  # among the mistakes, the choices, and in the row
    assert f'<td class="w">{slip}' not in text


# ── a line ──


def test_a_line_keeps_what_a_class_needs_and_no_check(lines):
    ben, (earned, attention) = lines[1], grades.earned_by_failing()
    assert (ben.submission, ben.earned, ben.points, ben.outcome) == ("ben", earned, 10.0, "wrong")
    assert [(part.component, part.earned, part.outcome) for part in ben.parts] == [
        ("softmax", 4.0, "correct"),
        (ATTENTION, attention, "wrong"),
    ]
    assert ben.mistakes == ("scale-missing",)
    assert ("published", "sdpa-walkthrough-3x2") in ben.failed
    assert ("fresh", f"{SECRET}-5") in ben.failed
    assert ben.diagnosis.startswith("scale-missing, the scores are not divided by √d_k")


def test_an_exception_counts_in_the_component_that_raises_it_only():
    checks = [replace(c, outcome="error", verdict=grades.broken(c.verdict, "raised", "raised X"))
              for c in grades.passing().checks if c.origin == "published"]  # fmt: skip
    grade = grades.graded("eva", tuple(checks), outcome="error")
    failed = {check for _, check in note_failures(grade).failed}
    assert failed == {c.verdict.check for c in checks if c.verdict.component == "softmax"}
    assert note_failures(replace(grade, message=f"{NOT_STARTED}: no")).failed == ()


# ── the page of the class ──


def test_the_figures_and_the_bars_count_every_student(page, lines):
    figures = next(text for attributes, text in page.all("dl") if attributes.get("class") == "figures")
    mean = points(sum(line.earned for line in lines) / 6)
    median, _ = grades.earned_by_failing()
    assert figures == f"students6 mean{mean} median{points(median)} all points1 no points0"
    (bars,) = [attributes["aria-label"] for attributes, _ in page.all("svg")]
    counts = re.findall(r"(\d+) to (?:below )?(\d+): (\d+)", bars)
    assert [(low, high) for low, high, _ in counts] == [(str(n), str(n + 1)) for n in range(10)]
    assert [int(count) for _, _, count in counts] == [0, 0, 0, 0, 5, 0, 0, 0, 0, 1]


def test_mistakes_name_who_made_them_most_frequent_first(page):
    summaries = [text for _, text in page.all("summary")]
    assert summaries[0].startswith("3 · the scores are not divided by √d_k")
    assert summaries[1].startswith("1 · the scores are divided by d_k instead of √d_k")
    assert "1 · published cases pass, cases drawn for grading do not" in summaries
    first = page.all("details")[0][1]
    assert first.endswith("Divide QKᵀ by √d_k before the softmax. ben, dee, eli")


def test_what_could_be_is_counted_apart(spec, lines):
    unsure = replace(lines[1], said=(Finding("Possible causes", "one", mistakes=("scale-multiply",)),))
    summaries = [text for _, text in Page(class_page([unsure], ASSIGNMENT, spec)).all("summary")]
    assert summaries[0].startswith("0 + 1 possible · the scores are multiplied by √d_k")
    nothing = replace(unsure, said=())
    summaries = [text for _, text in Page(class_page([nothing], ASSIGNMENT, spec)).all("summary")]
    assert summaries[0] == "1 · wrong, by no mistake of the catalogue"


def test_the_hardest_check_is_the_one_that_most_fail(page, lines):
    rows = [text for _, text in page.all("tr")]
    failing = Counter(key for line in lines for key in line.failed)
    assert failing["fresh", f"{SECRET}-5"] == max(failing.values()) == 5
    hardest = rows[rows.index("checkkindfailed byof 6") + 1 :]
    assert hardest[0] == f"{SECRET}-5drawn5"
    assert hardest[1].startswith("sdpa-causal")
    assert hardest[1].endswith("published4")


def test_each_component_says_how_many_got_all_some_and_none(page):
    rows = [text for _, text in page.all("tr")]
    assert any(row.startswith("softmax") and row.endswith("4 of 4 6000") for row in rows)
    assert any(row.startswith(ATTENTION) and row.endswith(" of 6 1320") for row in rows)


def test_every_student_is_linked_in_a_row(page):
    links = [attributes["href"] for attributes, text in page.all("a") if text == "ada"]
    assert set(links) == {"students/ada/staff.html"}
    assert "students/ada/feedback.html" in [attributes.get("href") for attributes, _ in page.all("a")]
    rows = [text for _, text in page.all("tr")]
    packed = {row.replace(" ", "") for row in rows}
    earned, attention = map(points, grades.earned_by_failing())
    assert f"benfeedback{earned}wrongvaluesscale-missing✓4{attention}" in packed
    assert "fayfeedback4outoftime✓4✗0" in packed


def test_a_link_leads_into_the_folder_of_students_whatever_the_id(spec, lines):
    ids = ("../../etc", "a b#c?d", "javascript:alert(1)", "ä/ö")
    text = class_page([replace(lines[0], submission=id_) for id_ in ids], ASSIGNMENT, spec)
    found = [attributes["href"] for attributes, _ in Page(text).all("a") if attributes.get("href", "#")[0] != "#"]
    assert len(found) >= 8
    assert all(re.fullmatch(r"students/[\w.%~-]+/(staff|feedback)\.html", href) for href in found)


def test_the_order_in_which_students_were_graded_leaves_no_trace(spec, lines):
    turned = lines[::-1]
    assert class_page(lines, ASSIGNMENT, spec) == class_page(turned, ASSIGNMENT, spec)
    assert to_csv(lines, ASSIGNMENT) == to_csv(turned, ASSIGNMENT)
    assert to_json(lines, ASSIGNMENT) == to_json(turned, ASSIGNMENT)


def test_isolation_is_summed_up_with_what_is_not_in_force(spec, lines):
    weaker = replace(lines[0], isolation=Isolation("process", ("rlimits",), {"landlock": "not in this kernel"}))
    items = [text for _, text in Page(class_page([*lines, weaker], ASSIGNMENT, spec)).all("li")]
    assert any(item.startswith("6 at level full") for item in items)
    assert any(item.startswith("1 at level process") and "landlock: not in this kernel" in item for item in items)


def test_a_class_of_nobody_is_refused(spec):
    with pytest.raises(ValueError, match="lines: no student, expected at least one"):
        class_page([], ASSIGNMENT, spec)


def test_the_page_of_a_class_is_safe_and_stands_alone(spec, hostile_lines):
    text = class_page(hostile_lines, ASSIGNMENT, spec)
    assert "<script>alert" not in text
    assert not set(text) & set("\x00\x1b\u202e")
    must_stand_alone(Page(text), r"students/[\w.%~-]+/(staff|feedback)\.html(#source)?", scripts=1)
    must_scroll_by_keyboard(Page(text))


def test_the_anonymous_page_names_no_student_and_no_drawn_case(spec, hostile_lines):
    named = [replace(line, submission=f"somebody-{nth}") for nth, line in enumerate(hostile_lines)]
    text = anonymous_page(named, ASSIGNMENT, spec)
    for secret in ("somebody", SECRET, "staff.html", HOSTILE[:5], "alert(1)"):
        assert secret not in text
    page = Page(text)
    must_stand_alone(page)
    must_scroll_by_keyboard(page)
    assert any("the scores are not divided by √d_k" in summary for _, summary in page.all("summary"))


def test_questions_are_the_columns_of_the_table(spec, lines):
    parts = tuple(part.model_copy(update={"question": "Attention, all of it"}) for part in ASSIGNMENT.parts)
    page = Page(class_page(lines[:2], replace(ASSIGNMENT, parts=parts), spec))
    heads = [text for attributes, text in page.all("th") if attributes.get("class") == "n c"]
    assert heads == ["Attention, all of it10"]
    cells = [attributes["data-value"] for attributes, _ in page.all("td") if "data-value" in attributes]
    assert cells == ["10.0", "10.0", *2 * [str(grades.earned_by_failing()[0])]]


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on PATH")
def test_the_table_of_students_is_sorted_and_filtered_by_its_script(spec, lines, tmp_path):
    use = """<script>addEventListener("load", () => {
      const rows = () => [...document.querySelectorAll(".students tbody tr")].filter(r => !r.hidden);
      const ids = () => rows().map(r => r.cells[0].querySelector("a").textContent).join("");
      const buttons = document.querySelectorAll(".students thead button");
      const seen = [ids()];
      buttons[1].click(); seen.push(ids());
      buttons[1].click(); seen.push(ids());
      const [text, outcome, mistake] = document.querySelectorAll(".tools [data-for]");
      mistake.value = "scale-no-root"; mistake.dispatchEvent(new Event("input")); seen.push(ids());
      mistake.value = ""; outcome.value = "out of time"; outcome.dispatchEvent(new Event("input")); seen.push(ids());
      document.body.dataset.seen = seen.join();
    })</script></body>"""
    file = tmp_path / "class.html"
    file.write_text(class_page(lines, ASSIGNMENT, spec).replace("</body>", use), encoding="utf-8")
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    done = subprocess.run(
        [*command, "--dump-dom", file.as_uri()], capture_output=True, text=True, timeout=60, check=True
    )
    (seen,) = re.findall(r'data-seen="(.*?)"', done.stdout)
    initials = "".join(line.submission for line in sorted(lines, key=lambda line: line.earned))
    first, up, down, by_mistake, by_outcome = seen.split(",")
    assert first == "adabencaideeelifay"
    assert up == initials
    assert down.startswith("ada")
    assert (by_mistake, by_outcome) == ("cai", "fay")


@pytest.mark.parametrize("scheme", [0, 1])
@pytest.mark.parametrize("pair", PAIRS)
def test_colours_can_be_read(page, pair, scheme):
    assert contrast(page, pair, scheme) >= READABLE


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on PATH")
def test_a_page_of_a_thousand_is_no_wider_than_a_phone(spec, hostile_lines, tmp_path):
    many = [replace(hostile_lines[n % 8], submission=f"{n:04}{hostile_lines[n % 8].submission}") for n in range(1000)]
    fits, scrolls, complaints = on_a_phone(
        class_page(many, ASSIGNMENT, spec).replace("<details", "<details open"), tmp_path
    )
    assert fits
    assert scrolls
    assert complaints == []


# ── the gradebook ──


def read(text):
    assert text.endswith("\r\n")
    return list(csv.DictReader(io.StringIO(text, newline="")))


def test_a_row_for_each_student_and_a_column_for_each_component(lines):
    rows = read(to_csv(lines, ASSIGNMENT))
    assert list(rows[0]) == ["id", "points", "earned", "softmax", ATTENTION, "outcome",
                             "mistakes", "diagnosis", "message"]  # fmt: skip
    ben = rows[1]
    assert [ben[name] for name in ("id", "points", "earned", ATTENTION)] == [
        "ben", "10", *map(points, grades.earned_by_failing()),
    ]  # fmt: skip
    assert ben["mistakes"] == "scale-missing"
    assert [row["id"] for row in rows] == ["ada", "ben", "cai", "dee", "eli", "fay"]


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", " =1", "＝1", HOSTILE])
def test_no_cell_begins_a_formula(lines, text):
    hostile = replace(lines[0], submission=text, message=text, said=(Finding("Mistake found", text),))
    (row,) = read(to_csv([hostile], ASSIGNMENT))
    for name in ("id", "message", "diagnosis"):
        assert row[name][0] in "'\\"
        assert "1" in row[name] or "SUM" in row[name]
        assert "\n" not in row[name]


@pytest.mark.parametrize("id_", ['say "hi", you', "a,b", "x;y"])
def test_commas_and_quotes_come_back_as_they_were(lines, id_):
    assert [row["id"] for row in read(to_csv([replace(lines[0], submission=id_)], ASSIGNMENT))] == [id_]


def test_the_data_has_these_keys(lines):
    data, (earned, attention) = json.loads(to_json(lines, ASSIGNMENT)), grades.earned_by_failing()
    assert data["components"] == {"softmax": 4.0, ATTENTION: 6.0}
    assert data["students"][1]["mistakes"] == ["scale-missing"]
    assert data["students"][1]["components"] == {"softmax": 4.0, ATTENTION: attention}
    assert list(data) == ["assignment", "points", "components", "questions", "students"]
    assert list(data["students"][0]) == [
        "id", "points", "earned", "outcome", "components", "mistakes",
        "could_be", "diagnosis", "message", "isolation", "key",
    ]  # fmt: skip
    assert data["students"][1]["earned"] == earned


# ── a submission, for staff ──


def test_staff_see_every_bad_check_with_its_facts(spec):
    page = Page(staff.html(grades.failing(), ASSIGNMENT, spec))
    shown = " ".join(text for _, text in page.all("details"))
    assert f"{SECRET}-5 float32 · fresh · wrong values" in shown
    assert "first at [0, 0]: expected 0.397954285, actual 0.425934076" in shown
    assert "Equalsthe scores are not divided by √d_k (scale-missing)" in shown
    assert f"ClauseSDPA-2 MUST: {spec.clauses['SDPA-2'].title}" in shown
    bad = sum(check.outcome == "wrong" for check in grades.failing().checks)
    boxes = [text for _, text in page.all("summary") if "· wrong values" in text]
    alike = sum(int(number) for text in boxes for number in re.findall(r"and so (\d+) more", text))
    (more,) = [int(text.split()[0]) for _, text in page.all("summary") if text.endswith(" more")]
    assert len(boxes) == 41
    assert len(boxes) + alike + more == bad


def test_staff_see_the_source_next_to_what_fails_with_the_line_that_raises(spec):
    # No line ends at a form feed or a separator of Unicode: what stands below them would be shown in the wrong place.
    source = b"import math  # \x0c \xe2\x80\xa8 \xc2\x85\n\n\n"
    source += b"def attend(q, k, v):\n    return q + '<b>'\n\n\ndef other():\n    pass\n"
    adapter = b"import submission\n\n\ndef helper(q):\n    return submission.attend(q)\n\n\ndef " + ATTENTION.encode()
    adapter += b"(query, key, value):\n    return helper(query)\n"
    grade = grades.with_outcome(
        "eva", "error", "raised", "raised TypeError", '  File "submission.py", line 5, in attend'
    )
    files = {"submission.py": source, "notes.txt": b"no code"}
    text = staff.html(grade, ASSIGNMENT, spec, SubmissionSource(files, adapter, grade))
    page = Page(text)
    must_stand_alone(page, r"feedback\.html|\.\./\.\./class\.html")
    (aside,) = [text for _, text in page.all("aside")]
    assert "def attend(q, k, v):" in aside
    assert "other" not in aside
    marked = [text for attributes, text in page.all("li") if attributes.get("class") == "marked"]
    assert marked == ["return q + '<b>'"] * 2
    assert "q + &#39;&lt;b&gt;&#39;" in text
    assert "no code" not in text


@pytest.mark.parametrize("source", [b"def (", b"\xff\x00", b"x = 1\n" * 9000, b"(" * 5000])
def test_any_source_is_shown_as_far_as_there_is_room(spec, source):
    grade = grades.failing()
    text = staff.html(grade, ASSIGNMENT, spec, SubmissionSource({"submission.py": source}, b"def (", grade))
    must_stand_alone(Page(text), r"feedback\.html|\.\./\.\./class\.html")
    assert len(Page(text).all("li")) <= 3100


def test_staff_see_how_it_ran(spec):
    page = Page(staff.html(grades.with_outcome("fay", "killed", "crashed", "ended", "one\ntwo"), ASSIGNMENT, spec))
    shown = " ".join(text for _, text in page.all("dl"))
    for text in ("full: rlimits, landlock, namespaces", "cgroup: not writable here", "memory 2048 MiB", "call 5 s",
                 "key-fay", "processes 16"):  # fmt: skip
        assert text in shown
    assert "one two" in [text for _, text in page.all("pre")]


@pytest.mark.parametrize("make", [grades.passing, grades.failing, grades.cheating, grades.hostile])
def test_staff_pages_stand_alone_and_show_text_as_text(spec, make):
    text = staff.html(replace(make(), message=HOSTILE), ASSIGNMENT, spec)
    assert "<script" not in text
    assert not set(text) & set("\x00\x1b\u202e")
    must_stand_alone(Page(text), r"feedback\.html|\.\./\.\./class\.html")
    must_scroll_by_keyboard(Page(text))


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on PATH")
def test_the_staff_page_is_no_wider_than_a_phone(spec, tmp_path):
    text = staff.html(grades.hostile(HOSTILE + "x" * 300), ASSIGNMENT, spec).replace("<details", "<details open")
    fits, _, complaints = on_a_phone(text, tmp_path)
    assert fits
    assert complaints == []
