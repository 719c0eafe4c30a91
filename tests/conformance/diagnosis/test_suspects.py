"""From verdicts to a diagnosis: which mistakes fit, what to mend first, and whether anything was checked at all."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import count

import pytest
from tests.support.runs import change, diagnose, make_run, rank_explanations, rank_suspects

from goldformer.conformance.diagnosis.causes import find_cause
from goldformer.conformance.diagnosis.evidence import Match
from goldformer.conformance.diagnosis.findings import describe_explanations, describe_faults
from goldformer.conformance.diagnosis.suspects import find_failing_roots, is_compared
from goldformer.conformance.judging.verdict import Difference, Status, Verdict
from goldformer.conformance.reports.results import nothing_was_checked, summarize

numbers = count()
ATTENTION = "scaled_dot_product_attention"
MULTI_HEAD = "multi_head_attention"
PASSED, FAILED, SKIPPED, ERRORED = Status.PASSED, Status.FAILED, Status.SKIPPED, Status.ERRORED


def verdict(status, *catches, component=ATTENTION, kind="case", reason="", ratio=None, dtype="float32"):
    return Verdict(
        f"case-{next(numbers)}", kind, component, "", status, reason, "", dtype, "cpu", (), "",
        catches=catches, ratio=ratio,
    )  # fmt: skip


def named(verdicts, spec, component=ATTENTION):
    return [(s.mistake.id, s.explains, s.failing) for s in rank_suspects(verdicts, component, spec)]


def test_an_option_is_not_held_against_gradients_that_are_not_finite(spec):
    case = next(case for case in spec.cases_of("layer_norm") if case.cotangent is not None)
    failing = replace(verdict(FAILED, component="layer_norm", reason="not-finite"), check=case.id, by_hand=True)
    option = find_cause("layer_norm_eps: 1e-6", spec)
    assert not is_compared(failing, [option], spec)
    assert is_compared(replace(failing, reason="wrong-value"), [option], spec)


def test_a_passing_case_rules_out_the_mistakes_it_would_have_shown(spec):
    failing = verdict(FAILED, "scale-missing", "scale-multiply", "mask-inverted")
    assert named([failing, verdict(PASSED, "scale-multiply")], spec) == [
        ("mask-inverted", 1, 1),
        ("scale-missing", 1, 1),
    ]


def test_what_accounts_for_most_failures_comes_first_and_ties_go_by_name(spec):
    verdicts = [
        verdict(FAILED, "scale-missing", "scale-dim-v"),
        verdict(ERRORED, "scale-missing", "mask-inverted"),
        verdict(FAILED, "scale-missing", "scale-no-root", "mask-inverted"),
    ]
    assert named(verdicts, spec) == [
        ("scale-missing", 3, 3), ("mask-inverted", 2, 3), ("scale-dim-v", 1, 3), ("scale-no-root", 1, 3),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("component", "fit"),
    [
        ("encoder_layer", ["device-const", "device-result", "device-weight"]),
        ("positional_encoding", ["pe-hard-cuda", "pe-not-buffer"]),
        ("feed_forward", ["device-weight"]),
    ],
)
def test_mistakes_of_what_a_component_is_not_made_of_fit_only_if_none_of_its_own_does(component, fit, spec):
    catches = spec.properties["device-hygiene"].catches
    failing = verdict(FAILED, *catches, component=component, kind="property", reason="property")
    assert [id_ for id_, *_ in named([failing], spec, component)] == fit


@pytest.mark.parametrize("spared", [SKIPPED, FAILED, ERRORED])
def test_only_a_pass_rules_out(spared, spec):
    verdicts = [verdict(FAILED, "scale-missing"), verdict(spared, "scale-missing")]
    assert [id_ for id_, *_ in named(verdicts, spec)] == ["scale-missing"]


def test_other_components_have_no_say(spec):
    verdicts = [
        verdict(FAILED, "scale-missing"),
        verdict(PASSED, "scale-missing", component="softmax"),
        verdict(FAILED, "mask-inverted", component="softmax"),
    ]
    assert named(verdicts, spec) == [("scale-missing", 1, 1)]


def test_a_property_counts_by_what_it_catches(spec):
    verdicts = [
        verdict(FAILED, "scale-missing", "mask-inverted", "mask-not-inplace"),
        verdict(FAILED, "mask-inverted", kind="property"),
        verdict(PASSED, "mask-not-inplace", kind="property"),
        verdict(FAILED, kind="property"),
    ]
    assert named(verdicts, spec) == [("mask-inverted", 2, 2), ("scale-missing", 1, 2)]


@pytest.mark.parametrize(
    ("failing", "passing", "left"),
    [("float32", "float64", 1), ("float16", "float16", 1), ("bfloat16", "bfloat16", 1), ("float64", "float64", 0)],
)
def test_only_a_pass_in_the_same_dtype_rules_out_and_none_in_a_coarse_one(failing, passing, left, spec):
    verdicts = [
        verdict(FAILED, "scale-missing", dtype=failing),
        verdict(PASSED, "scale-missing", dtype=passing),
    ]
    assert len(named(verdicts, spec)) == left


@pytest.mark.parametrize(("dtype", "named_first"), [("float32", "fill-dampens"), ("float64", "scale-missing")])
def test_a_pass_in_a_dtype_in_which_it_does_not_show_speaks_against_nothing(dtype, named_first, spec):
    both = (Match(("scale-missing",), 0.1), Match(("fill-dampens",), 0.1))
    verdicts = [
        change(verdict(FAILED, "fill-dampens", dtype=dtype), matches=both),
        verdict(PASSED, "fill-dampens", dtype=dtype),
        verdict(PASSED, "fill-dampens", dtype=dtype),
        verdict(PASSED, "scale-missing", dtype=dtype),
    ]
    assert rank_explanations(verdicts, ATTENTION, spec)[0].causes[0].id == named_first
    assert [id_ for id_, *_ in named(verdicts, spec)] == (["fill-dampens"] if dtype == "float32" else [])


@pytest.mark.parametrize(("dtype", "named_first"), [("float32", "zero-times-inf"), ("float64", "fill-dampens")])
def test_of_two_that_fit_alike_the_one_that_shows_in_the_dtype_comes_first(dtype, named_first, spec):
    both = (Match(("fill-dampens",), 0.1), Match(("zero-times-inf",), 0.1))
    verdicts = [change(verdict(FAILED, dtype=dtype), matches=both)]
    assert rank_explanations(verdicts, ATTENTION, spec)[0].causes[0].id == named_first


def explained(*equal, of, spec):
    """Return the explanations of cases that fail by scale-missing, except those where it does not match."""
    match = (Match(("scale-missing",), 0.1),)
    verdicts = [change(verdict(FAILED), check=id_, matches=match if id_ in equal else ()) for id_ in of]
    (found,) = rank_explanations(verdicts, ATTENTION, spec)
    return found, [f"{remark.label}: {remark.text}" for remark in describe_explanations([found])]


def test_what_equals_every_failing_case_is_the_mistake(spec):
    found, (said, *code) = explained("one", "two", of=("one", "two"), spec=spec)
    assert found.certain
    assert code == ["Instead of: softmax(query @ key.T)", "Write: softmax(query @ key.T / sqrt(d_k))"]
    assert said == (
        "Mistake found: scale-missing, the scores are not divided by √d_k. It reproduces your output in 2 of 2 failing "
        "cases (within 0.1 of the tolerance). Divide QKᵀ by √d_k before the softmax."
    )


def test_what_a_failing_case_refutes_is_the_closest_known_mistake_and_names_the_case(spec):
    cases = [f"case-{nth}" for nth in range(20)]
    found, (said,) = explained(*cases[:18], of=cases, spec=spec)
    assert not found.certain
    assert said == (
        "Closest known mistake: scale-missing, the scores are not divided by √d_k. It reproduces your output in "
        "18 of 20 failing cases (within 0.1 of the tolerance); 2 contradict it: case-18, case-19. "
        "Divide QKᵀ by √d_k before the softmax."
    )
    _, (said,) = explained(*cases[:12], of=cases, spec=spec)
    assert "; 8 contradict it: case-12, case-13, case-14, case-15 and 4 more. Divide" in said


def test_a_generated_change_that_as_many_cases_contradict_fits_by_chance(spec):
    def explain(id_, right):
        found = [change(verdict(FAILED), check=f"case-{nth}", matches=()) for nth in range(4)]
        found[:right] = [change(v, matches=(Match((id_,), 0.1),)) for v in found[:right]]
        (explanation,) = rank_explanations(found, ATTENTION, spec)
        return explanation.fits_by_chance

    generated = "scaled_dot_product_attention.mask.one-more"
    assert not explain(generated, 3)
    assert explain(generated, 2)
    assert not explain("scale-missing", 2), "people make what the catalogue lists"


def test_of_two_options_that_fit_the_nearer_one_is_named(spec):
    options = {"layer_norm_eps: 1e-12": 0.3, "layer_norm_eps: 1e-6": 0.2}
    matches = tuple(Match((option,), ratio) for option, ratio in options.items())
    found = rank_explanations([change(verdict(FAILED, component="layer_norm"), matches=matches)], "layer_norm", spec)
    (said,) = describe_explanations(found)
    assert said.text.startswith("layer_norm_eps: 1e-6 (")


def test_an_exception_hints_at_no_mistake(spec):
    raised = verdict(ERRORED, "scale-missing", "scale-dim-v", reason="raised")
    assert named([raised, verdict(PASSED, "scale-missing")], spec) == []
    assert [remark.label for remark in diagnose([raised, verdict(PASSED, "scale-missing")], spec)] == [
        "Fix first", "First seen",
    ]  # fmt: skip


def of_case(id_, status, spec, **changed):
    """Return the verdict on a case of the spec."""
    return replace(verdict(status, component=spec.cases[id_].component), check=id_, **changed)


def of_property(id_, component, message):
    """Return the verdict on a property whose call raised."""
    return replace(verdict(ERRORED, component=component, reason="raised"), check=id_, kind="property", message=message)


NO_BIAS = {"reason": "raised", "message": "raised KeyError: 'b_q' (my.py:9, heads); params has w_q, w_k, w_v, w_o"}


def test_a_variant_is_offered_if_the_calls_that_raise_share_a_trait_that_no_passing_call_has(spec):
    raised = of_case("mha-no-bias", ERRORED, spec, **NO_BIAS)
    passed = of_case("mha-distinct-sizes", PASSED, spec)
    *_, hint = diagnose([raised, passed], spec)
    assert hint.label == "If it has no such variant"
    assert hint.text.endswith("Only calls without b_k or without b_o or without b_q or without b_v raise")


@pytest.mark.parametrize("said", ["RuntimeError: the sizes differ", "ValueError: odd", "ZeroDivisionError: by zero"])
def test_whichever_case_of_a_component_raises_is_described(said, spec):
    """A case need not have all the axes of its contract, such as the positions of a table that it does not pass."""
    for component in spec.components:
        cases = [case.id for case in spec.cases_of(component) if case.error is None]
        for raising in {cases[0], cases[-1], *cases[::25]}:
            passed = [of_case(id_, PASSED, spec) for id_ in cases if id_ != raising]
            raised = of_case(raising, ERRORED, spec, reason="raised", message=f"raised {said} (my.py:9, f)")
            fix_first, *_ = diagnose([raised, *passed], spec)
            assert fix_first.text == component


@pytest.mark.parametrize("others", [[], ["mha-no-bias"]], ids=["none", "alike"])
def test_no_variant_is_offered_if_nothing_passes_or_a_passing_call_is_like_it(others, spec):
    raised = of_case("mha-output-bias-only", ERRORED, spec, **NO_BIAS)
    passed = [of_case(id_, PASSED, spec) for id_ in others]
    assert [f.label for f in diagnose([raised, *passed], spec)] == ["Fix first", "First seen"]


def test_an_error_that_only_one_mistake_raises_names_it_and_is_no_variant(spec):
    message = "raised RuntimeError: value cannot be converted to type c10::Half without overflow (my.py:9, attention)"
    raised = of_case("mha-distinct-sizes-causal", ERRORED, spec, reason="raised", message=message, dtype="float16")
    passed = of_case("mha-distinct-sizes", PASSED, spec, dtype="float16")
    *_, found = diagnose([raised, passed], spec)
    assert (found.label, found.mistakes) == ("Mistake found", ("fill-1e9-fp16",))
    assert "It raises the error of 1 of 1 failing checks. Fill with −∞ or" in found.text


@pytest.mark.parametrize("exception", ["NameError", "AttributeError", "UnboundLocalError", "ModuleNotFoundError"])
def test_a_name_that_is_misspelt_is_no_variant(exception, spec):
    raised = of_case("mha-no-bias", ERRORED, spec, reason="raised", message=f"raised {exception}: … (my.py:9, f)")
    labels = [f.label for f in diagnose([raised, of_case("mha-distinct-sizes", PASSED, spec)], spec)]
    assert labels == ["Fix first", "First seen"]


def test_a_bad_call_that_is_accepted_says_nothing_of_values(spec):
    wrong = Difference("weights", 1, 2, 0.1, 7.0, None, None)
    match = (Match(("scale-missing",), 0.1),)
    failing = change(verdict(FAILED, reason="wrong-value"), matches=match, differences=(wrong,))
    accepted = change(verdict(FAILED, "mask-inverted", reason="no-error"), matches=())
    (found,) = rank_explanations([failing, accepted], ATTENTION, spec)
    assert found.certain
    assert found.case_count == 1
    assert named([accepted], spec) == []
    assert [f.label for f in diagnose([accepted], spec)] == ["Fix first", "First seen"]


def test_a_missing_bias_is_no_cause_where_no_call_has_one(spec):
    def suspects(id_):
        return [m for m, *_ in named([of_case(id_, FAILED, spec, catches=("bias-missing",))], spec, MULTI_HEAD)]

    assert suspects("mha-no-bias") == []
    assert suspects("mha-distinct-sizes") == ["bias-missing"]


# Components that fail because of others


def layers(root, follower, spec, *, component="multi_head_attention"):
    """Return the labels of a run in which attention and a component built of it fail with these matches."""
    wrong = Difference("output", 1, 2, 0.1, 7.0, None, None)
    made = [
        change(verdict(FAILED, component=name, reason="wrong-value"), matches=matches, differences=(wrong,))
        for name, matches in ((ATTENTION, root), (component, follower))
    ]
    return [f.label for f in diagnose(made, spec) if not f.inner], list(diagnose(made, spec))


SCALE, HEADS = (Match(("scale-missing",), 0.1),), (Match(("head-split-view",), 0.1),)


def test_a_component_follows_if_what_explains_its_part_explains_it(spec):
    labels, _ = layers(SCALE, SCALE, spec)
    assert labels == ["Fix first", "These also fail, perhaps only because of it"]


@pytest.mark.parametrize(
    ("place", "label"),
    [
        ("the encoder's half", "These also fail, perhaps only because of it"),
        ("the encoder layer's feed-forward network", "These also fail, perhaps only because of it"),
        ("the decoder's half", "Fix too"),
    ],
)
def test_a_model_follows_if_the_cause_of_its_half_is_made_there_only(place, label, spec):
    wrong = Difference("output", 1, 2, 0.1, 7.0, None, None)
    made = [
        change(
            verdict(FAILED, component=name, reason="wrong-value"), matches=(Match((id_,), 0.1),), differences=(wrong,)
        )
        for name, id_ in (("encoder_layer", "residual-wrong-x"), ("transformer", f"residual-wrong-x in {place}"))
    ]
    assert [f.label for f in diagnose(made, spec) if not f.inner] == ["Fix first", label]


def test_calls_that_raise_for_a_mask_of_other_axes_say_how_to_give_all_four(spec):
    def judge(check, status, reason=""):
        message = "raised RuntimeError: the sizes differ (my.py:3, f)" if reason else ""
        return replace(verdict(status, component="encoder_layer", reason=reason), check=check, message=message)

    padded, per_head = judge("enc-ordinary-padding", PASSED), judge("enc-mask-per-head", ERRORED, "raised")
    label = "If it counts a mask's axes"
    (found,) = (f for f in diagnose([padded, per_head], spec) if f.label == label)
    assert found.text == (
        "pass four_axes_mask(mask) of goldformer.adapters.layouts, since masks broadcast from the right. "
        "Only calls whose mask has 3 of the four axes raise"
    )
    both = judge("enc-ordinary-padding", ERRORED, "raised")
    assert label not in [f.label for f in diagnose([padded, per_head, both], spec)]


def test_a_result_of_code_that_computes_in_float32_refutes_nothing_in_float64(spec):
    fits = change(verdict(FAILED, reason="wrong-value"), matches=(Match(("scale-missing",), 0.1),))
    blurred = change(verdict(FAILED, reason="wrong-value", dtype="float64"), matches=())
    for coarse, certain in (((), False), ((verdict(SKIPPED, reason="precision", dtype="float64"),), True)):
        (found,) = rank_explanations([fits, blurred, *coarse], ATTENTION, spec)
        assert found.certain == certain


def test_calls_that_raise_in_some_dtypes_only_say_what_to_declare(spec):
    verdicts = [verdict(PASSED, dtype=dtype) for dtype in ("float64", "float32")]
    raised = replace(verdict(ERRORED, reason="raised", dtype="float16"), message="raised RuntimeError: Half")
    found = {f.label: f.text for f in diagnose([*verdicts, raised], spec)}
    declared = 'declare DTYPES = ("float64", "float32") in the adapter. Only calls in float16 raise'
    assert found["If it has no such dtype"] == declared
    for other in (verdict(PASSED, dtype="float16"), replace(raised, dtype="float32")):
        hinted = any(f.label == "If it has no such dtype" for f in diagnose([raised, other], spec))
        assert not hinted


@pytest.mark.parametrize("matches", [(), HEADS], ids=["unknown", "another"])
def test_a_component_that_fails_in_another_way_is_to_be_fixed_too(matches, spec):
    labels, found = layers(SCALE, matches, spec)
    assert labels == ["Fix first", "Fix too"]
    assert [f.label for f in found if not f.is_code][-1] == ("Mistake found" if matches else "Cause unknown")


def test_nobody_can_tell_what_follows_from_an_unknown_cause(spec):
    labels, _ = layers((), (), spec)
    assert labels == ["Fix first", "These also fail; check them again after the fix"]


@pytest.mark.parametrize(
    ("line", "label"), [(9, "These also fail, perhaps only because of it"), (12, "Fix too")], ids=["same", "another"]
)
def test_an_exception_of_the_same_line_follows_and_another_does_not(line, label, spec):
    verdicts = [
        replace(verdict(ERRORED, component=c, reason="raised"), message=f"raised TypeError: {c} (my.py:{n}, f)")
        for c, n in ((ATTENTION, 9), (MULTI_HEAD, line))
    ]
    assert [f.label for f in diagnose(verdicts, spec) if not f.inner] == ["Fix first", label]


def test_options_of_several_components_are_declared_together(spec):
    wrong = Difference("output", 1, 2, 0.1, 7.0, None, None)
    causes = {
        "layer_norm": ("layer_norm_eps: 1e-6",),
        "encoder_layer": ("layer_norm_eps: 1e-6", "norm_placement: pre"),
        ATTENTION: ("empty_row: nan",),
    }
    verdicts = [
        change(verdict(FAILED, component=c, reason="wrong-value"), matches=(Match(ids, 0.1),), differences=(wrong,))
        for c, ids in causes.items()
    ]
    (said,) = (f for f in diagnose(verdicts, spec) if f.label == "For all of these")
    assert json.loads(said.text[said.text.index("{") : said.text.index("}") + 1]) == {
        "empty_row": "nan", "layer_norm_eps": "1e-6", "norm_placement": "pre",
    }  # fmt: skip
    assert "For all of these" not in [f.label for f in diagnose(verdicts[:1], spec)]


def test_the_causes_of_a_better_explanation_are_not_offered_again_with_more(spec):
    matches = (Match(("scale-missing",), 0.1), Match(("empty_row: nan", "scale-missing"), 0.1))
    found = rank_explanations([change(verdict(FAILED), matches=matches)], ATTENTION, spec)
    said, *code = describe_explanations(found)
    assert said.text.startswith("scale-missing, ")
    assert [finding.label for finding in code] == ["Instead of", "Write"]


def test_advice_for_a_few_of_many_failing_cases_is_not_repeated_for_the_component(spec):
    wrong = Difference("output", 1, 2, 0.1, 7.0, None, None)
    failing = [
        change(verdict(FAILED, component="layer_norm", reason="wrong-value"), matches=(), differences=(wrong,))
        for _ in range(3)
    ]
    another = verdict(FAILED, component="layer_norm", reason="wrong-value")
    advised = [change(another, matches=(), differences=(wrong,), advice="this is layer_norm_eps: 1e-12; declare it")]
    assert [f.label for f in diagnose(failing + advised, spec)][2:] == ["Cause unknown"]
    assert [f.label for f in diagnose(advised, spec)][2:] == ["Convention"]


def test_a_property_that_the_implementation_keeps_from_running_is_named(spec):
    said = "cannot run on the meta device: raised RuntimeError: Tensor.item() …"
    stopped = replace(verdict(SKIPPED, kind="property", reason="not-checkable"), check="device-hygiene", message=said)
    (found,) = diagnose([stopped, verdict(PASSED)], spec)
    assert (found.label, found.text) == ("Could not be checked", f"device-hygiene of {ATTENTION}: {said}")
    numpy = replace(stopped, message="numpy has neither a pretend nor a meta device")
    assert not list(diagnose([numpy], spec))


def test_nothing_could_be_what_is_not_known(spec):
    wrong = Difference("weights", 1, 2, 0.1, 7.0, None, None)
    case = change(verdict(FAILED, reason="wrong-value"), matches=(), differences=(wrong,))
    broken = verdict(FAILED, "mask-not-inplace", kind="property", reason="property")
    assert [remark.label for remark in diagnose([case, broken], spec)] == ["Fix first", "First seen", "Cause unknown"]
    assert [remark.label for remark in diagnose([broken], spec)] == ["Fix first", "First seen", "Possible causes"]


def test_what_a_failing_case_was_held_against_in_vain_is_ruled_out(spec):
    # `non-contiguous` shows in PyTorch alone: nothing was held against it.
    failing = verdict(FAILED, "scale-missing", "mask-inverted", "non-contiguous")
    fits = change(failing, matches=(Match(("mask-inverted",), 0.1),))
    also = verdict(FAILED, "scale-missing", "mask-inverted", kind="property")
    assert named([fits, also], spec) == [("mask-inverted", 2, 2), ("non-contiguous", 1, 2)]
    assert [id_ for id_, *_ in named([failing, also], spec)] == ["mask-inverted", "scale-missing", "non-contiguous"]


def test_nothing_failing_suspects_nothing(spec):
    assert named([verdict(PASSED, "scale-missing"), verdict(SKIPPED, "mask-inverted")], spec) == []


@pytest.mark.parametrize(
    ("failing", "roots", "followers"),
    [
        ([], [], []),
        (["softmax"], ["softmax"], []),
        ([ATTENTION, "softmax"], ["softmax"], [ATTENTION]),
        (["multi_head_attention", ATTENTION], [ATTENTION], ["multi_head_attention"]),
        (["multi_head_attention", "softmax"], ["softmax"], ["multi_head_attention"]),
        (
            ["positional_encoding", "multi_head_attention", "fused_multi_head_attention"],
            ["positional_encoding", "fused_multi_head_attention", "multi_head_attention"], [],
        ),
    ],
)  # fmt: skip
def test_what_fails_first_is_what_depends_on_nothing_failing(failing, roots, followers, spec):
    others = [verdict(PASSED, component=name) for name in spec.components if name not in failing]
    verdicts = [verdict(FAILED, component=name) for name in failing] + others
    assert find_failing_roots(verdicts, spec) == (roots, followers)


def test_an_error_fails_and_a_skip_does_not(spec):
    verdicts = [verdict(ERRORED, component=ATTENTION), verdict(SKIPPED, component="softmax")]
    assert find_failing_roots(verdicts, spec) == ([ATTENTION], [])


def test_the_summary_counts_by_component_in_order_of_dependency(spec):
    verdicts = [
        verdict(FAILED, component=ATTENTION, ratio=7.0),
        verdict(PASSED, component=ATTENTION, ratio=0.25),
        verdict(SKIPPED, component=ATTENTION, reason="dtype"),
        verdict(SKIPPED, component=ATTENTION, reason="not-implemented"),
        verdict(ERRORED, component="softmax"),
        verdict(SKIPPED, component="causal_mask", reason="not-implemented"),
        verdict(PASSED, component="padding_mask", ratio=0.0),
    ]
    found = summarize(make_run(verdicts), spec, {"softmax", ATTENTION, "padding_mask"})
    rows = [(r.component, r.counts.passed, r.counts.bad, r.counts.skipped, r.counts.worst, r.state) for r in found]
    assert rows == [
        ("causal_mask", 0, 0, {"not-implemented": 1}, None, "not implemented"),
        ("padding_mask", 1, 0, {}, 0.0, "conforms"),
        ("softmax", 0, 1, {}, None, "fails first"),
        (ATTENTION, 1, 1, {"dtype": 1, "not-implemented": 1}, 7.0, "fails"),
    ]


@pytest.mark.parametrize(
    ("statuses", "nothing"),
    [([], True), ([SKIPPED, SKIPPED], True), ([SKIPPED, PASSED], False), ([FAILED], False), ([ERRORED], False)],
)
def test_nothing_was_checked_when_all_was_skipped(statuses, nothing):
    assert nothing_was_checked([verdict(status) for status in statuses]) is nothing


@pytest.mark.parametrize(
    ("reason", "implemented", "state"),
    [
        ("not-implemented", {"softmax"}, "partial"),
        ("convention", {"softmax"}, "partial"),
        ("not-implemented", set(), "not implemented"),
        ("dtype", {"softmax"}, "not checked"),
    ],
)
def test_what_no_check_fits_does_not_conform(reason, implemented, state, spec):
    (row,) = summarize(make_run([verdict(SKIPPED, component="softmax", reason=reason)]), spec, implemented)
    assert row.state == state


def test_a_fault_of_goldformer_is_no_failure_of_the_implementation(spec):
    lost = replace(verdict(ERRORED, component="softmax", reason="fault"), message="a fault in goldformer: boom")
    verdicts = [lost, verdict(PASSED, component=ATTENTION)]
    assert find_failing_roots(verdicts, spec) == ([], [])
    states = [r.state for r in summarize(make_run(verdicts), spec, {"softmax", ATTENTION})]
    assert states == ["fault in goldformer", "conforms"]
    assert list(diagnose(verdicts, spec)) == []
    (remark,) = describe_faults(make_run(verdicts))
    assert remark.label == "Fault in goldformer"
    assert remark.text == f"a fault in goldformer: boom. Not judged: {lost.check} (float32)"


def test_an_odd_width_is_a_trait(spec):
    message = "raised AssertionError: the width must be even (my.py:9, f)"
    raised = of_case("fmha-square-mask-per-sample-and-head", ERRORED, spec, reason="raised", message=message)
    *_, hint = diagnose([raised, of_case("fmha-square-padding", PASSED, spec)], spec)
    assert hint.text.endswith("Only calls where d_input is odd raise")


def test_one_word_that_shares_among_no_others_is_a_trait(spec):
    message = "raised ZeroDivisionError: float division by zero (my.py:9, smooth)"
    raised = of_case("ce-vocabulary-of-one", ERRORED, spec, reason="raised", message=message)
    *_, hint = diagnose([raised, of_case("ce-distinct-sizes", PASSED, spec)], spec)
    assert hint.text.endswith("Only calls where vocab is 1 raise")


def test_more_beams_than_words_are_a_trait(spec):
    message = "raised RuntimeError: selected index k out of range (my.py:9, search)"
    raised = of_case("beam-larger-than-the-vocabulary", ERRORED, spec, reason="raised", message=message)
    *_, hint = diagnose([raised, of_case("beam-two-of-two", PASSED, spec)], spec)
    assert hint.text.endswith("Only calls with more beams than words raise")


def test_a_property_that_raises_where_no_case_does_has_no_variant(spec):
    raised = of_property("dec-causality", "decoder_layer", "raised RuntimeError: batch1 must be a 3D tensor")
    passed = of_case("dec-ordinary-plain", PASSED, spec)
    assert [f.label for f in diagnose([raised, passed], spec)][:2] == ["Fix first", "First seen"]


def test_sizes_that_differ_are_a_trait_and_an_erratum_that_makes_code_raise_is_named(spec):
    message = "raised RuntimeError: shape '[3, 6, 5]' is invalid for input of size 144 (my.py:9, f)"
    narrow, wide = "fmha-input-narrower", "fmha-input-wider"
    raised = [of_case(id_, ERRORED, spec, reason="raised", message=message) for id_ in (narrow, wide)]
    said = list(diagnose([*raised, of_case("fmha-square", PASSED, spec)], spec))
    variant, erratum = said[-2:]
    assert variant.text.endswith("Only calls where d_input is not heads*d_k raise")
    assert erratum.label == "If it follows walkthrough"
    assert erratum.text.startswith("walkthrough-output-width, the heads are reshaped to the last size of the input")
    both = [raised[0], of_case(wide, PASSED, spec)]
    assert [f.label for f in diagnose(both, spec)] == ["Fix first", "First seen"]
