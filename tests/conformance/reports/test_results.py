"""The results of a component: what is counted, which cases apply, what perhaps did not show, and where it is said."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from tests.support.runs import change, make_run

from comparisons import made, of, remark_lines, verdict, wrong
from goldformer.conformance.diagnosis.evidence import Match
from goldformer.conformance.judging.verdict import Status
from goldformer.conformance.reports.comparison_page import page
from goldformer.conformance.reports.json_data import replace_nonfinite
from goldformer.conformance.reports.markdown import describe_outcome, markdown, summarize_result
from goldformer.conformance.reports.record_json import as_json, make_report_model
from goldformer.conformance.reports.remarks import make_remarks
from goldformer.conformance.reports.results import (
    CaseCoverage,
    Counts,
    find_unseen,
    nothing_was_checked,
    summarize,
)
from goldformer.conformance.reports.text import format_row

EPS = "only for layer_norm_eps: 1e-5; the adapter declares 1e-6"

GIVEN_UP = "not run: 4 calls of the process in a row timed out"


def refusal(check, *, accepted=False, component="softmax", dtype="float32"):
    """A bad input that is refused, or accepted where nothing requires its refusal."""
    end = ("skipped", "robustness") if accepted else ("passed", "")
    return verdict(check, component, *end, dtype, asks="refusal", message=f"accepts {check}" if accepted else "")


def values(count, component="softmax", *end, **more):
    """So many cases of a component."""
    return [verdict(f"{component}-{'-'.join(end)}-{nth}", component, *end, **more) for nth in range(count)]


#: Seven right values, and two of four bad inputs refused; one layer norm of ten is judged.
MIXED = (
    *values(7),
    *(refusal(f"sm-bad-{nth}", accepted=nth > 1) for nth in range(4)),
    *values(1, "layer_norm"),
    *values(6, "layer_norm", "skipped", "convention", message=EPS, catches=("ln-eps-outside",)),
    *values(3, "layer_norm", "skipped", "not-implemented", message="no biases"),
)
FOUND = made("mixed", *MIXED, implemented=frozenset({"softmax", "layer_norm"}), absent=("causal_mask", "encoder"))


def list_remarks(verdicts, spec, **how):
    """Return the remarks below the table of a run, by label."""
    run = make_run(verdicts)
    found = make_remarks(run, summarize(run, spec, spec.components), spec, **how)
    return {finding.label: finding.text for finding in found}


# Counts


def test_refusals_are_counted_apart():
    counts = Counts.of(MIXED)
    assert (counts.passed, counts.failed, counts.errored) == (8, 0, 0)
    assert counts.skipped == {"convention": 6, "not-implemented": 3}
    assert (counts.refused, counts.refusals) == (2, 4)


def test_a_bad_input_counts_once_for_all_dtypes_and_is_refused_in_each():
    both = [refusal("a"), refusal("a", accepted=True, dtype="float64"), refusal("b"), refusal("b", dtype="float64")]
    counts = Counts.of(both)
    assert (counts.refused, counts.refusals) == (1, 2)


def test_a_refusal_that_is_required_fails_too():
    failed = verdict("a", "softmax", "failed", "no-error", asks="refusal")
    counts = Counts.of([failed, refusal("b")])
    assert (counts.passed, counts.failed, counts.refused, counts.refusals) == (0, 1, 1, 2)


def test_what_is_tolerated_was_checked():
    assert not nothing_was_checked([refusal("a", accepted=True)])
    assert not nothing_was_checked([verdict("a", "softmax", "skipped", "precision")])
    assert nothing_was_checked([verdict("a", "softmax", "skipped", "convention")])


# Cases that apply


def test_each_dtype_is_counted_by_itself_and_the_one_with_the_fewest_judged_cases_decides():
    few = [*values(3, "softmax", dtype="bfloat16"), *values(9, "softmax", "skipped", "dtype", "bfloat16")]
    for cases in ([*values(12), *few], [*few, *values(12)]):
        coverage = CaseCoverage.of(cases)
        assert (coverage.judged, coverage.needed, coverage.is_enough) == (3, 10, False)
        assert coverage.lost == ("9 not in bfloat16 (add a dtype with --dtype)",)
    whole = CaseCoverage.of([*values(12), *values(11, "softmax", dtype="bfloat16")])
    assert (whole.judged, whole.is_enough) == (11, True)


def test_advice_is_no_case_that_counts():
    assert str(CaseCoverage.of([*values(2), replace(verdict("b", "softmax"), asks="advice")])) == "2 of 2 cases apply"


def test_only_cases_that_ask_for_values_count():
    others = [refusal("a"), verdict("b", "softmax", asks="shape"), verdict("c", "softmax", kind="property", asks="law")]
    assert str(CaseCoverage.of([*values(2), *others])) == "2 of 2 cases apply"


def test_what_takes_too_many_cases_away_is_told_what_is_declined_first():
    coverage = CaseCoverage.of([v for v in MIXED if v.component == "layer_norm"])
    assert (coverage.judged, coverage.admitted, coverage.needed, coverage.cases) == (1, 4, 10, 10)
    first, second = coverage.lost
    assert first.startswith(
        "3 no biases (if your code can do it, let the adapter call that; if a convention has it, declare it)"
    )
    assert second == f"6 {EPS}"


def test_what_the_dtype_takes_away_is_told_and_is_not_held_against_the_code():
    coverage = CaseCoverage.of(
        [
            *values(2, "softmax", dtype="bfloat16"),
            *values(7, "softmax", "skipped", "dtype", "bfloat16", message="1e5"),
        ]
    )
    assert (coverage.judged, coverage.admitted, coverage.needed, coverage.is_enough) == (2, 2, 2, True)
    assert coverage.lost == ("7 not in bfloat16 (add a dtype with --dtype)",)


def test_what_derived_cases_show_is_not_said_to_be_unseen():
    skipped = verdict("a", "softmax", "skipped", "convention", catches=("one",))
    derived = verdict("sm-ordinary-as-declared", "softmax")
    assert find_unseen(make_run([skipped, verdict("b", "softmax")])) == {"softmax": ("one",)}
    assert find_unseen(make_run([skipped, derived])) == {}


def test_a_parameter_that_a_function_does_not_have_needs_no_remedy():
    absent = "softmax takes no dropout_rate"
    lost = CaseCoverage.of([*values(1), *values(4, "softmax", "failed", "not-implemented", message=absent)]).lost
    assert lost == (f"4 {absent}",)


def declined(count):
    """So many cases that an implementation declines."""
    return values(count, "softmax", "skipped", "not-implemented", message="not yet")


@pytest.mark.parametrize(
    ("judged", "others", "needed"),
    [
        (12, declined(8), 12),  # six in ten of the admitted ones
        (11, declined(8), 12),
        (10, declined(5), 10),  # ten of them
        (9, declined(4), 10),
        (8, [], 8),  # all, where the spec has fewer than ten
        (8, declined(1), 9),
        (20, values(100, "softmax", "skipped", "convention", message=EPS), 12),  # not what other options have
        (9, values(9, "softmax", "skipped", "convention", message=EPS), 10),  # unless the declared ones leave too few
        (8, values(1, "softmax", "skipped", "convention", message=EPS), 8),
        (4, values(5, "softmax", "skipped", "dtype"), 4),  # not what the dtype cannot hold
        (4, values(9, "softmax", "skipped", "dtype"), 10),  # unless it leaves too few of ten
        (4, [*values(3, "softmax", "skipped", "convention"), *values(9, "softmax", "skipped", "dtype")], 10),
        (4, values(9, "softmax", "skipped", "not-checkable"), 4),
        (0, values(9, "softmax", "skipped", "dtype"), 0),
        (0, declined(3), 3),
        (0, [], 1),
    ],
)
def test_so_many_cases_are_enough(judged, others, needed):
    coverage = CaseCoverage.of([*values(judged), *others])
    assert (coverage.judged, coverage.needed, coverage.is_enough) == (judged, needed, judged >= needed)


def test_gradients_count_where_they_are_judged_and_are_not_missed_where_they_are_not():
    forward = values(8)
    own = [replace(v, asks="gradients") for v in values(2, "softmax", "passed", "")]
    none = [replace(v, asks="gradients") for v in declined(2)]
    assert (CaseCoverage.of([*forward, *own]).judged, CaseCoverage.of([*forward, *own]).admitted) == (10, 10)
    coverage = CaseCoverage.of([*forward, *none])
    assert (coverage.judged, coverage.admitted, coverage.needed, coverage.cases) == (8, 8, 8, 10)


def test_a_case_that_is_declined_in_one_dtype_is_no_case_that_another_dtype_cannot_hold():
    cases = [
        verdict("a", "softmax", "skipped", "not-implemented"),
        verdict("a", "softmax", "skipped", "dtype", "float16"),
    ]
    for listed in (cases, cases[::-1]):
        assert (CaseCoverage.of(listed).judged, CaseCoverage.of(listed).admitted) == (0, 1)


@pytest.mark.parametrize(
    ("verdicts", "state"),
    [
        (values(4), "conforms (4 of 4 cases apply)"),
        ([*values(1), *values(2, "softmax", "skipped", "dtype")], "conforms (1 of 3 cases apply)"),
        ([*values(2), *declined(34)], "partial: nothing wrong was found in 2 of 36 cases"),
        (
            [*values(1, "softmax", "skipped", "precision"), *declined(3)],
            "partial: nothing wrong was found in 1 of 4 cases",
        ),
        ([verdict("p", "softmax", kind="property", asks="law")], "partial: nothing wrong was found in 0 of 0 cases"),
        ([refusal("a")], "partial: nothing wrong was found in 0 of 0 cases"),
        (values(6, "softmax", "skipped", "precision"), "conforms to float32 (6 of 6 cases apply)"),
        ([*values(6), wrong("w", "softmax")], "fails first (7 of 7 cases apply)"),
        ([*values(6), *values(2, "softmax", "errored", "timeout", message=GIVEN_UP)], "not run"),
        ([*values(6, "softmax", "errored", "timeout", message=GIVEN_UP), wrong("w", "softmax")],
         "fails first (7 of 7 cases apply)"),
        ([*values(1), *declined(9), wrong("w", "softmax")], "fails first (2 of 11 cases apply)"),
        (declined(3), "partial: nothing wrong was found in 0 of 3 cases"),
        (values(3, "softmax", "skipped", "not-wrapped"), "not checked"),
    ],
)  # fmt: skip
def test_no_component_conforms_without_saying_on_what(verdicts, state, spec):
    run = make_run(verdicts)
    (row,) = summarize(run, spec, {"softmax"}).values()
    assert format_row(row)[-1] == state
    record = made("mine", *verdicts, implemented=frozenset({"softmax"}))
    assert bool(record.partial) is state.startswith("partial")


@pytest.mark.parametrize(
    ("verdicts", "state"),
    [
        ([*values(2), *declined(34)], "conforms (2 of 36 cases apply)"),
        ([verdict("p", "softmax", kind="property", asks="law")], "conforms, on properties only"),
        (declined(3), "nothing to judge"),
    ],
)
def test_few_checks_are_enough_for_who_chose_them(verdicts, state, spec):
    (row,) = summarize(make_run(verdicts), spec, {"softmax"}, chosen=True).values()
    assert format_row(row)[-1] == state
    assert made("mine", *verdicts, implemented=frozenset({"softmax"}), chosen=True).outcome == "conforms"


def test_a_failure_wins_over_too_few_cases():
    few, absent = [*values(1), *declined(9)], values(3, "layer_norm", "skipped", "not-implemented")
    assert made("mine", *few, *absent, implemented=frozenset({"softmax"})).partial == ("softmax",)
    assert made("mine", *few, implemented=frozenset({"softmax"})).outcome == "partial"
    assert made("mine", *few, wrong("w", "encoder"), implemented=frozenset({"softmax"})).outcome == "fails"
    assert made("mine", *few, problem="gone").outcome == "unusable"


def test_what_was_not_run_is_counted_and_is_nothing_to_fix(spec):
    hung = values(3, "softmax", "errored", "timeout", message="the process gave no answer within 60 s")
    not_run = [
        *values(4, "softmax", "errored", "timeout", message="not run: 3 calls of softmax in a row timed out"),
        *values(5, "layer_norm", "errored", "timeout", message=GIVEN_UP),
        *values(1, "one_hot", "errored", "timeout", message=GIVEN_UP),
    ]
    lines = " ".join(line.strip() for line in remark_lines([*hung, *not_run], spec))
    assert re.findall(r"Fix first: \w+", lines) == ["Fix first: softmax"]
    assert (
        "No answer: 10 checks were not run: 6 of layer_norm, one_hot: 4 calls of the process in a row timed out; "
        "4 of softmax: 3 calls of softmax in a row timed out"
    ) in lines
    assert made("hung", *hung, *not_run).outcome == "fails"


# What perhaps did not show


def test_a_mistake_perhaps_did_not_show_if_every_check_that_lists_it_was_skipped():
    skipped = verdict("a", "layer_norm", "skipped", "convention", catches=("one", "two"))
    later = verdict("b", "encoder_layer", "skipped", "convention", catches=("two", "three"))
    passed = verdict("c", "encoder_layer", catches=("three",))
    assert find_unseen(make_run([skipped, later, passed])) == {"layer_norm": ("one", "two")}
    tolerated = verdict("d", "encoder_layer", "skipped", "precision", catches=("two",))
    assert find_unseen(make_run([skipped, later, passed, tolerated])) == {"layer_norm": ("one",)}


def test_a_mistake_that_was_found_did_show():
    skipped = verdict("a", "layer_norm", "skipped", "convention", catches=("one", "two", "three"))
    found = (Match(("one", "two in the first norm"), 0.1),)
    failed = change(verdict("b", "layer_norm", "failed", "wrong-value"), matches=found)
    assert find_unseen(make_run([skipped, failed])) == {"layer_norm": ("three",)}


def test_few_names_are_listed_and_all_of_them_on_demand(spec):
    hidden = [*values(1, "layer_norm", "skipped", "convention", catches=tuple("abcdef")), *values(6, "layer_norm")]
    assert list_remarks(hidden, spec)["Perhaps not shown"].startswith(
        "6 known mistakes of layer_norm (a, b, c, d and 2 more): "
    )
    assert list_remarks(hidden, spec, whole=True)["Perhaps not shown"].startswith(
        "6 known mistakes of layer_norm (a, b, c, d, e, f)"
    )


# Every place says the same


def test_every_place_shows_the_same_counts(spec):
    text = remark_lines(MIXED, spec, FOUND.results)
    assert any(line.startswith("Robustness: refuses 2 of 4 bad inputs; accepts sm-bad-2, sm-bad-3 (") for line in text)
    assert any(
        line.startswith(
            "Partial: layer_norm, 1 of 4 cases that the declared options admit were judged, and at least 10"
        )
        for line in text
    )
    assert text[-1] == "Not implemented: causal_mask, encoder"
    assert not any(line.startswith("Fix first") for line in text)
    whole = "partial · 2 components · 8 of 17 cases apply · too few in 1 component · refuses 2 of 4 bad inputs"
    assert (FOUND.outcome, describe_outcome(FOUND)) == ("partial", whole)
    assert summarize_result(FOUND.results["layer_norm"]) == "◐ partial · 1 of 4 cases"
    found = FOUND.results
    assert summarize_result(found["causal_mask"]) == "– not implemented"
    assert format_row(found["softmax"])[1:6] == ("7", "·", "·", "·", "2/4")
    comparison = of(FOUND, dtypes=("float32",))
    for drawn in (markdown(comparison, spec), page(comparison, spec)):
        assert whole in drawn
        assert "refuses 2 of 4 bad inputs; accepts sm-bad-2, sm-bad-3" in drawn
    assert "accepts sm-bad-3" in page(comparison, spec)
    assert "ln-eps-outside" in page(comparison, spec)
    data = json.loads(json.dumps(replace_nonfinite(as_json(FOUND))))
    make_report_model().model_validate(data)
    rows = {row["component"]: row for row in data["components"]}
    counts, coverage = rows["softmax"]["counts"], rows["layer_norm"]["coverage"]
    assert (counts["refused"], counts["refusals"], counts["passed"]) == (2, 4, 7)
    counted = [coverage[kind] for kind in ("judged", "admitted", "needed", "cases")]
    assert (data["outcome"], rows["layer_norm"]["state"], counted) == ("partial", "partial", [1, 4, 10, 10])
    assert coverage["unseen"] == ["ln-eps-outside"]
    assert data["not_implemented"] == ["causal_mask", "encoder"]
    tolerated = [v["message"] for v in data["verdicts"] if v["reason"] == "robustness"]
    assert tolerated == ["accepts sm-bad-2", "accepts sm-bad-3"]


def test_a_strict_run_names_what_is_not_implemented_once(spec):
    absent = [verdict(f"m-{nth}", "causal_mask", "failed", "not-implemented", message="no") for nth in range(3)]
    found = summarize(make_run([*values(6), *absent]), spec, {"softmax"})
    assert [row.state for row in found.values()] == ["not implemented", "conforms"]
    lines = remark_lines([*values(6), *absent], spec, found)
    assert [line for line in lines if "causal_mask" in line] == ["Not implemented: causal_mask"]


def test_a_failing_refusal_never_comes_first_unless_it_is_required(spec):
    required = verdict("a", "softmax", "failed", "no-error", asks="refusal", message="accepts a bad scores")
    assert "Fix first" not in list_remarks([*values(6), refusal("a", accepted=True)], spec)
    assert list_remarks([*values(6), required], spec)["Fix first"] == "softmax"
    assert required.status is Status.FAILED


def test_what_many_components_share_is_counted_and_all_is_named_on_demand(spec):
    hidden = [
        verdict("p", name, kind="property", asks="law", hidden_nan=("value",)) for name in ("softmax", "layer_norm")
    ]
    accepted = [refusal(f"sm-bad-{nth}", accepted=True) for nth in range(5)]
    brief, whole = (list_remarks([*values(6), *hidden, *accepted], spec, whole=whole) for whole in (False, True))
    assert "in 2 components (-v names them)" in brief["Hidden NaN"]
    assert "in value of softmax, layer_norm (0 · NaN)" in whole["Hidden NaN"]
    assert brief["Robustness"].startswith("refuses 0 of 5 bad inputs; accepts 5 others (-v shows each; ")
    assert "accepts sm-bad-0, sm-bad-1, sm-bad-2, sm-bad-3, sm-bad-4 (" in whole["Robustness"]
