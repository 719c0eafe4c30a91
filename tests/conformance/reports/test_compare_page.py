"""The page of a comparison: what it says, that it stands alone, and how a browser, an eye and a keyboard find it."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from tests.support.runs import make_run

from comparisons import ALL, FAILING, MISSING, RIGHT, made, of, verdict, wrong
from goldformer.conformance.diagnosis.evidence import Match
from goldformer.conformance.reports.comparison_page import page
from goldformer.conformance.reports.failing_checks import group_by_cause
from pages import (
    CHROMIUM,
    PAIRS,
    READABLE,
    Page,
    contrast,
    measure_in_chromium,
    must_scroll_by_keyboard,
    must_stand_alone,
    on_a_phone,
)


@pytest.fixture
def read(spec):
    return lambda comparison: Page(page(comparison, spec))


@pytest.fixture
def parsed(read):
    return read(ALL)


def table(parsed, nth):
    """The texts of a table: its headings, and its rows."""
    markup = [i for i, (tag, _, _) in enumerate(parsed.elements) if tag == "table"] + [len(parsed.elements)]
    cells = [
        (tag, " ".join("".join(text).split()), attributes)
        for tag, attributes, text in parsed.elements[markup[nth] : markup[nth + 1]]
        if tag in ("th", "td")
    ]
    headings = [text for _, text, attributes in cells if attributes.get("scope") == "col"]
    rest = [text for _, text, attributes in cells if attributes.get("scope") != "col"]
    width = len(headings)
    return headings, [rest[i : i + width] for i in range(0, len(rest), width)]


def test_the_page_is_well_formed_and_asks_nothing_of_the_network(parsed):
    must_stand_alone(parsed)


def test_every_table_can_be_scrolled_by_keyboard_and_has_a_name(parsed):
    must_scroll_by_keyboard(parsed)


def test_a_failing_cell_leads_to_the_failing_checks_and_a_clause_to_the_first_of_them(parsed):
    cells = [attributes["href"] for attributes, text in parsed.all("a") if text.startswith("✗")]
    assert cells == [
        *("#i2-softmax", "#i2-scaled_dot_product_attention"),
        *("#i2-softmax-1", "#i2-scaled_dot_product_attention-1"),
    ]
    headings = {attributes.get("id"): text for attributes, text in parsed.all("h3")}
    assert headings["i2-softmax"] == "softmax: 1 fail"
    opened = {attributes.get("id"): text for attributes, text in parsed.all("details")}
    assert [a["id"] for a, _ in parsed.all("details") if "open" in a and "id" in a] == ["i2-softmax-1"]
    assert opened["i2-softmax-1"].startswith("✗ sm-one float32 output: 3 of 9 values are wrong (sm-one)")


def test_what_an_implementation_says_is_text_and_never_markup(spec):
    text = page(ALL, spec)
    assert "a | &lt;b&gt;*bad*&lt;/b&gt;" in text
    assert "raised &lt;X&gt; &amp; &#34;y&#34;" in text
    assert "<b>*bad*" not in text
    assert "<X>" not in text


def test_conventions_hints_time_and_environment_are_told(parsed):
    said = [text for _, text in parsed.all("p")]
    assert "It declares: empty_row: nan." in said
    assert "Note: sotfmax is no component: did you mean softmax?" in said
    facts = dict(zip([t for _, t in parsed.all("dt")], [t for _, t in parsed.all("dd")], strict=True))
    assert facts["numpy"] == "2.0"
    assert re.match(r"\w+ 3\.\d+\.\d+", facts["Python"])
    assert facts["goldformer"]
    assert facts["processor"]
    assert "right: 1.2 s" in [t for _, t in parsed.all("dd")]


def scaled(check, component="softmax", causes=("scale-missing",), **more):
    """A wrong value that a mistake reproduces."""
    return wrong(check, component, matches=(Match(causes, 0.1),), **more)


def test_checks_of_one_cause_are_in_one_closed_box_with_the_first_in_full(read):
    others = [wrong("sm-odd", "softmax"), verdict("sm-bad", "softmax", "errored", "raised", message="raised size 3")]
    parsed = read(of(made("mine", *(scaled(f"sm-{nth}") for nth in range(3)), *others)))
    boxes = [(a, text) for a, text in parsed.all("details") if a.get("id")]
    assert [a["id"] for a, _ in boxes] == ["i1-softmax-1", "i1-softmax-2", "i1-softmax-3"]
    (attributes, text), odd, bad = boxes
    assert "open" not in attributes
    assert text.startswith("✗ 3 checks: the scores are not divided by √d_k (scale-missing) sm-0 float32")
    assert text.count("first at [0, 0]") == 1
    assert "So do: sm-1 float32 output: 3 of 9 values are wrong (sm-1) sm-2" in text
    assert odd[1].startswith("✗ sm-odd float32")
    assert bad[1].startswith("✗ sm-bad float32 raised size 3")


def test_checks_that_fail_in_the_same_way_are_together_where_no_cause_is_known(read):
    raised = [verdict(f"r-{nth}", "softmax", "errored", "raised", message=f"raised sizes {nth}") for nth in range(4)]
    parsed = read(of(made("mine", *raised, *(wrong(f"sm-{nth}", "softmax") for nth in range(3)))))
    texts = [text for a, text in parsed.all("details") if a.get("id")]
    assert [text.partition(" float32")[0] for text in texts] == ["✗ 4 checks, such as r-0", "✗ 3 checks, such as sm-0"]


def list_causes(checks, named):
    """Return the causes of failing checks, with the number of the checks of each."""
    run = make_run(checks)
    return [(causes, len(mine)) for causes, mine in group_by_cause([*run], run.evidence, {named})]


def test_the_cause_that_the_diagnosis_names_counts_of_several_that_fit():
    both = [wrong(f"sm-{nth}", "softmax", matches=(Match(("a",), 0.1), Match(("b",), 0.1))) for nth in range(2)]
    for named in "ab":
        assert list_causes(both, named) == [((named,), 2)]
    most = [*both, wrong("sm-c", "softmax", matches=(Match(("b",), 0.1),))]
    assert list_causes(most, "a") == [(("b",), 3)]


def test_many_failures_of_a_cause_are_listed_in_part_with_the_command_that_shows_all(read):
    parsed = read(of(made("mine", *(wrong(f"sm-{nth}", "softmax") for nth in range(60)))))
    assert len([a for a, _ in parsed.all("details") if a.get("id")]) == 1
    assert "9 more fail; all of them: goldformer check mine.py --component softmax --verbose" in [
        text for _, text in parsed.all("p")
    ]


def test_a_clause_leads_to_the_checks_of_it_though_they_are_not_listed(read):
    many = [wrong(f"sm-{nth}", "softmax") for nth in range(60)]
    parsed = read(of(made("mine", *many, wrong("sm-last", "softmax", clauses=("SM-2",)))))
    must_stand_alone(parsed)
    assert [a["href"] for a, text in parsed.all("a") if text == "✗ 0 of 1"] == ["#i1-softmax-1"]


def test_the_fix_as_code_comes_first_and_the_notes_are_closed(read):
    found = made("mine", *(scaled(f"sdpa-{nth}", "scaled_dot_product_attention", confirms=(("scale-missing",),))
                           for nth in range(3)), conventions={"empty_row": "nan"})  # fmt: skip
    parsed = read(of(found))
    labels = [text for _, text in parsed.all("dt")]
    assert labels[:6] == ["Fix first", "Instead of", "Write", "Fix", "First seen", "Mistake found"]
    assert parsed.all("code")[1][1] == "softmax(query @ key.T / sqrt(d_k))"
    notes = [a for a, text in parsed.all("details") if re.match(r"\d+ notes?\b", text)]
    assert all("open" not in attributes for attributes in notes)


def test_no_page_mentions_an_option_that_lists_more(read):
    for comparison in (ALL, of(RIGHT), of(FAILING)):
        assert not [text for _, text in read(comparison).all("dd") if "-v " in text]


def test_where_nothing_fails_there_is_nothing_to_choose_from(read, parsed):
    assert [a["id"] for a, _ in parsed.all("input")] == ["only"]
    assert read(of(RIGHT)).all("input") == []


def test_where_nothing_could_be_checked_there_is_no_table(read):
    parsed = read(of(MISSING))
    must_stand_alone(parsed)
    assert parsed.all("table") == []


def test_the_filter_hides_what_is_clean_alone(read, spec):
    both = of(made("mine", verdict("a", "softmax"), wrong("b", "softmax", clauses=("SM-2",))))
    clean = [text for a, text in read(both).all("tr") if a.get("class") == "clean"]
    assert len(clean) == 1
    assert clean[0].startswith("SM-1 MUST")
    assert "#only:checked ~ .matrix .clean { display: none; }" in read(both).style


@pytest.mark.parametrize("pair", [*PAIRS, ("holdsi", "holds"), ("failsi", "fails")], ids="-on-".join)
@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_text_is_readable_in_light_and_dark(parsed, pair, scheme):
    assert contrast(parsed, pair, scheme) >= READABLE


# ── in a browser ──

LONG = "scaled_dot_product_attention_of_an_implementation_whose_name_does_not_end"


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on PATH")
def test_no_page_is_wider_than_a_phone_and_none_complains(spec, tmp_path):
    """Tables scroll in regions of their own; with every failing check open and many columns."""
    columns = [replace(FAILING, name=f"{LONG}{nth}", given=f"{nth}.py") for nth in range(6)]
    text = page(of(RIGHT, *columns, MISSING), spec).replace("<details", "<details open")
    assert on_a_phone(text, tmp_path) == (True, True, [])


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on PATH")
def test_the_page_of_one_implementation_uses_its_width(spec, tmp_path):
    text = page(of(made("mine", *(wrong(f"sm-{nth}", "softmax") for nth in range(3)))), spec)
    inner = "const b = d.body, s = getComputedStyle(b); const free = b.clientWidth - 2 * parseFloat(s.paddingLeft)"
    widths = "['.columns', 'details[id]', '.matrix'].map(q => d.querySelector(q).offsetWidth / free > .99)"
    measured, _ = measure_in_chromium(text, tmp_path, f"(() => {{ {inner}; return {widths}; }})()", 1280)
    assert measured == "true,true,true"
