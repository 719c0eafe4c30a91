"""Fresh cases: the same on every machine, unlike anything published, revealing, and right for correct code alone."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from goldformer.adapters import Adapter, find_adapter
from goldformer.conformance.grading.fresh import draw_fresh, list_unmatched_kinds, load_fresh
from goldformer.conformance.grading.model import Assignment, GradedComponent
from goldformer.conformance.grading.redraw import find_kind
from goldformer.conformance.judging.cases import Bench, check_case
from goldformer.conformance.judging.tolerance import least_margin
from goldformer.conformance.judging.verdict import Status
from goldformer.spec import SpecError
from goldformer.spec.load import load_own_cases
from goldformer.spec.making.lint import lint_cases

SEED = "what nobody knows"
DTYPES = ("float64", "float32")

#: One of each way in which cases are drawn: numbers, ids, masks, lengths, sizes alone, distributions, chance.
#: Drawing a case of decoding takes seconds, so one test has it.
COMPONENTS = [
    "softmax", "scaled_dot_product_attention", "causal_mask", "padding_mask", "multi_head_attention",
    "token_embedding", "positional_encoding", "pad_or_truncate", "layer_norm", "one_hot", "shift_right",
    "cross_entropy", "kl_divergence", "label_smoothing", "dropout", "encoder_layer",
]  # fmt: skip


def asks(*components, fresh=2, without=()):
    parts = tuple(GradedComponent(component=component, points=1) for component in components)
    return Assignment(Path("a.yaml"), "A", Path("a.py"), None, parts, DTYPES, fresh, None, without=tuple(without))


@pytest.fixture(scope="module")
def text(spec):
    return draw_fresh(asks(*COMPONENTS), spec, SEED).text


@pytest.fixture(scope="module")
def drawn(text, spec):
    return load_fresh(text, spec)


def verdicts(adapter, cases, spec, dtype):
    whole = replace(spec, cases={**spec.cases, **{case.id: case for case in cases}})
    return {case.id: check_case(case, Bench(whole, adapter, dtype, "cpu")) for case in cases}


def test_every_component_gets_as_many_as_are_asked_for(drawn):
    numbered = [case for case in drawn if re.search(r"[a-z]-\d$", case.id) and "refusal" not in case.id]
    assert [case.component for case in numbered] == [name for name in COMPONENTS for _ in range(2)]
    assert [case.id for case in numbered[:4]] == [
        "fresh-softmax-1", "fresh-softmax-2",
        "fresh-scaled-dot-product-attention-1", "fresh-scaled-dot-product-attention-2",
    ]  # fmt: skip


def test_rare_kinds_are_drawn_too(drawn, spec):
    kinds = {component: {find_kind(case) for case in drawn if case.component == component} for component in COMPONENTS}
    published = {
        component: {find_kind(case) for case in spec.cases_of(component) if not spec.is_advice(case)}
        for component in COMPONENTS
    }
    missing = {component: published[component] - kinds[component] for component in COMPONENTS}
    # `assignment check` reports them: no base of these refusals, and no such gradient, can be drawn again.
    assert {component: left for component, left in missing.items() if left} == {
        "cross_entropy": {"refusal"},
        "kl_divergence": {"gradient"},
    }


def test_refusals_are_of_fresh_calls(drawn, spec):
    refusals = [case for case in drawn if case.error]
    assert len(refusals) > 15
    ids = {case.id for case in drawn}
    for case in refusals:
        assert case.base in ids
    published = {call_of(case) for component in COMPONENTS for case in spec.cases_of(component) if case.error}
    assert [case.id for case in refusals if call_of(case) in published] == []


def call_of(case):
    arrays = {**case.input_arrays, **case.param_arrays}
    texts = tuple((name, array.shape, array.tobytes()) for name, array in arrays.items())
    return case.component, tuple(sorted(case.attributes.items())), texts


def test_naive_exponentials_fail_what_is_extreme(drawn, spec):
    def softmax(scores):
        powers = np.exp(scores)
        return powers / powers.sum(-1, keepdims=True)

    adapter = Adapter.from_object(SimpleNamespace(ARRAYS="numpy", softmax=softmax), "naive", spec)
    softmaxes = [case for case in drawn if case.component == "softmax" and case.cotangent is None]
    for dtype in DTYPES:
        failing = [id_ for id_, v in verdicts(adapter, softmaxes, spec, dtype).items() if v.status is Status.FAILED]
        assert failing == ["fresh-softmax-extreme"]


def test_kinds_without_a_fresh_counterpart_are_listed(drawn, spec):
    published = [case for case in spec.cases_of("softmax") if not case.error]
    assert list_unmatched_kinds(published, [case for case in drawn if case.id == "fresh-softmax-1"]) == {
        "softmax": {"extreme": 4, "gradient": 2}
    }
    assert list_unmatched_kinds(published, drawn) == {}


def test_every_one_is_proven_when_it_is_read(drawn):
    assert [case.id for case in drawn if case.golden is None and not case.error] == []


@pytest.mark.parametrize("dtype", DTYPES)
def test_correct_code_passes_them_all(dtype, drawn, spec):
    got = verdicts(find_adapter("textbook", spec), drawn, spec, dtype)
    assert {id_: verdict.message for id_, verdict in got.items() if verdict.status is not Status.PASSED} == {}


def test_the_lint_finds_nothing_in_them(drawn, spec):
    assert list(lint_cases(replace(spec, cases={case.id: case for case in drawn}))) == []


def test_no_seed_can_be_read_in_them(text):
    assert SEED not in text
    names = "|".join(component.replace("_", "-") for component in COMPONENTS)
    ids = re.findall(r"- id: (.*)", text)
    form = rf"fresh-({names})-([12]|gradient|extreme|base|refusal-[123])"
    assert [id_ for id_ in ids if not re.fullmatch(form, id_)] == []
    assert len(ids) == len(set(ids))


def test_one_seed_gives_one_text_and_another_one_other_inputs(text, drawn, spec):
    assert draw_fresh(asks("softmax", "causal_mask"), spec, SEED).text in text.replace(
        text[text.index("- component: scaled_dot") : text.index("- component: causal_mask")], ""
    )
    other = load_fresh(draw_fresh(asks("softmax", "padding_mask"), spec, "another one").text, spec)
    mine = {case.id: case for case in drawn}
    for case in other:
        for name, array in case.input_arrays.items():
            assert not np.array_equal(array, mine[case.id].input_arrays[name])


def test_what_a_part_is_worth_and_which_parts_stand_beside_it_change_nothing(text, spec):
    alone = asks("padding_mask")
    alone = replace(alone, parts=(GradedComponent(component="padding_mask", points=50, properties=1),))
    assert draw_fresh(alone, spec, SEED).text in text


# ── whoever has learnt the published cases by heart ──


def key(inputs, attributes, params):
    arrays = [(name, np.shape(a), np.asarray(a, np.float64).tobytes()) for name, a in sorted(inputs.items())]
    weights = [(name, np.asarray(a, np.float64).tobytes()) for name, a in sorted(params.items())]
    return repr((arrays, sorted(attributes.items()), weights))


def by_heart(spec):
    """An adapter that answers what is published from a table, and all else with zeros."""

    def function(component):
        table = {
            key(case.input_arrays, case.attributes, case.param_arrays): case
            for case in spec.cases_of(component)
            if case.golden is not None and case.cotangent is None
        }
        contract = spec.contracts[component]

        def answer(params=None, **given):
            inputs = {n: given[n] for n in contract.inputs if given.get(n) is not None}
            attributes = {n: given[n] for n in contract.attributes if n in given}
            case = table.get(key(inputs, attributes, params or {}))
            arrays = [a for a in (*inputs.values(), *(params or {}).values()) if a.dtype.kind == "f"]
            dtype = arrays[0].dtype if arrays else np.float64
            if case is None:
                return np.zeros(3, dtype)
            known = next(iter(case.golden.options.values()))
            whole = {n: a.values for n, a in known.items() if a.indices is None and a.within is None}
            return {n: a.astype(dtype) if a.dtype.kind == "f" else a for n, a in whole.items()}

        return answer

    names = {component: function(component) for component in COMPONENTS}
    return Adapter.from_object(SimpleNamespace(ARRAYS="numpy", **names), "by heart", spec)


def test_answers_from_a_table_pass_what_is_published_and_fail_every_fresh_case(drawn, spec):
    adapter = by_heart(spec)
    published = [
        case
        for case in spec.cases.values()
        if case.component in COMPONENTS and case.golden and not case.cotangent and not case.random
        and not case.only_with and case.golden.options.keys() == {""} and not case.full_size
        and all(wanted.form == "all" for wanted in case.expect.values())
    ]  # fmt: skip
    assert len(published) > 100
    known = verdicts(adapter, published, spec, "float64")
    assert {id_: verdict.message for id_, verdict in known.items() if verdict.status is not Status.PASSED} == {}
    unknown = verdicts(adapter, drawn, spec, "float64")
    assert [id_ for id_, verdict in unknown.items() if verdict.status is Status.PASSED] == []


# ── what they are like ──


def test_they_differ_in_kind(spec):
    cases = load_fresh(draw_fresh(asks("scaled_dot_product_attention", fresh=4), spec, SEED).text, spec)
    assert {"mask" in case.inputs for case in cases} == {True, False}
    assert {case.cotangent is not None for case in cases} == {True, False}
    assert len({tuple(case.sizes.values()) for case in cases[:4]}) == 4


def test_decoding_is_decided_and_says_several_words(spec):
    fresh = load_fresh(draw_fresh(asks("greedy_decode", fresh=1), spec, SEED).text, spec)
    (case,) = (case for case in fresh if not case.error)
    assert case.golden.margin > least_margin("float32")
    for outputs in case.golden.options.values():
        assert len(np.unique(outputs["ids"].values)) >= 3
    (verdict,) = verdicts(find_adapter("textbook", spec), [case], spec, "float32").values()
    assert verdict.status is Status.PASSED


def test_they_are_like_what_is_asked_for_alone(spec):
    softmaxes = [case.id for case in spec.cases_of("softmax")]
    without = [id_ for id_ in softmaxes if id_ != "sm-several-rows"]
    cases = load_fresh(draw_fresh(asks("softmax", fresh=3, without=without), spec, SEED).text, spec)
    assert {case.title for case in cases} == {"Drawn for an assignment, like sm-several-rows"}
    assert len({(case.lead, *case.sizes.values(), case.input_arrays["scores"].tobytes()) for case in cases}) == 3


def test_where_nothing_can_be_drawn_anew_it_is_said(spec):
    softmaxes = [case.id for case in spec.cases_of("softmax")]
    fresh = draw_fresh(asks("softmax", without=[i for i in softmaxes if i != "sm-one-element"]), spec, SEED)
    assert fresh.short == {"softmax": "0 of 2: no published case can be drawn again"}
    assert load_fresh(fresh.text, spec) == []


def test_none_are_drawn_where_none_are_asked_for(spec):
    fresh = draw_fresh(asks("softmax", fresh=0), spec, SEED)
    assert (fresh.text, fresh.short) == ("[]\n", {})
    assert load_fresh(fresh.text, spec) == []


# ── a file of several components ──

TWO = """\
- component: causal_mask
  cases:
    - id: own-1
      title: Mine
      clauses: [MASK-1]
      source: derived
      attributes: {q_seq: 2, kv_seq: 2}
      equal_sizes: a sentence attends to itself
      expect: {mask: all}
- component: softmax
  cases:
    - id: own-2
      title: Mine
      clauses: [SM-1]
      source: derived
      sizes: {lead: [2], n: 3}
      inputs: {scores: {draw: dyadic, seed: 1, range: [-1, 1], step: 1/8}}
      expect: {output: all}
"""


def test_a_file_may_hold_cases_of_several_components(tmp_path, spec):
    path = tmp_path / "own.yaml"
    path.write_text(TWO, encoding="utf-8")
    cases = load_own_cases(path, spec)
    assert [(case.id, case.component, case.place.line) for case in cases] == [
        ("own-1", "causal_mask", 3), ("own-2", "softmax", 12),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("n: 3", "n: 3, m: 4", ":16: cases[0].sizes.m: own-2: is no size of softmax"),
        ("id: own-2", "id: own-1", ":12: id: 'own-1' is taken: the spec has it, or a file before"),
    ],
)
def test_what_is_wrong_in_one_is_said_with_its_line(old, new, says, tmp_path, spec):
    path = tmp_path / "own.yaml"
    path.write_text(TWO.replace(old, new), encoding="utf-8")
    with pytest.raises(SpecError, match=re.escape(f"{path}{says}")):
        load_own_cases(path, spec)


def test_sessions_are_drawn_again_with_their_calls(spec):
    cases = load_fresh(draw_fresh(asks("cached_attention"), spec, SEED).text, spec)
    scripts = {case.attributes["calls"] for case in spec.cases_of("cached_attention") if case.error is None}
    values = [case for case in cases if case.error is None]
    assert len(values) >= 2
    assert {case.attributes["calls"] for case in values} <= scripts
    assert {v.status for v in verdicts(find_adapter("reference", spec), cases, spec, "float64").values()} == {
        Status.PASSED
    }


def test_they_hold_under_the_options_that_the_adapter_declares(spec):
    """Linear maps without a bias: a case with biases would count for nobody."""
    declared = {"biases": "none", "gate_activation": "gelu"}
    cases = load_fresh(draw_fresh(asks("gated_feed_forward"), spec, SEED, declared).text, spec)
    judged = [case for case in cases if case.error is None]
    assert len(judged) >= 2
    assert [case.explain_unfit(declared) for case in judged] == [""] * len(judged)
    assert not any(name.startswith("b_") for case in judged for name in case.params)


def test_models_with_one_head_of_keys_are_drawn_again(spec):
    drawn = draw_fresh(asks("decoder_only_model"), spec, SEED)
    assert not drawn.short
    assert any(case.sizes["kv_heads"] == 1 for case in load_fresh(drawn.text, spec) if case.error is None)
