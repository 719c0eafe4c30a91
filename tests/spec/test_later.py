"""Cases as code is called with them that always hides later tokens, and the golden values that hold there."""

import numpy as np
import pytest

from goldformer.adapters.options import OPTIONS
from goldformer.adapters.protocol import Adapter
from goldformer.adapters.textbook.build import build_textbook
from goldformer.conformance.judging.cases import Bench, judge_case
from goldformer.conformance.judging.verdict import Status
from goldformer.spec.oracle.declared import LEAST, derive_declared

WITH_MASKS = (
    "scaled_dot_product_attention", "multi_head_attention", "fused_multi_head_attention", "encoder_layer", "encoder",
    "decoder_layer", "decoder",
)  # fmt: skip
KINDS = ("hidden_too", "hidden_only")


def declare(spec, **options):
    return {name: convention.default for name, convention in spec.conventions.items()} | options


def judge_textbook(spec, component, conventions):
    """Return the verdicts on the textbook under some options, which has no causal mask but that of the calls."""
    layers = [OPTIONS[item] for item in conventions.items() if item in OPTIONS]
    adapter = Adapter.from_trusted(build_textbook(*layers, only=component), "textbook", spec)
    bench = Bench(spec, adapter.declare(conventions, spec), "float64", "cpu")
    return [judge_case(case, bench).verdict for case in spec.cases_of(component)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("component", WITH_MASKS)
@pytest.mark.parametrize("more", [{}, {"biases": "none"}, {"empty_row": "nan"}], ids=str)
def test_golden_values_that_are_kept_are_those_of_the_causal_mask(spec, component, kind, more):
    more = {name: option for name, option in more.items() if name in spec.contracts[component].conventions}
    verdicts = judge_textbook(spec, component, {"later_tokens": kind, **more})
    assert not [f"{v.check}: {v.message}" for v in verdicts if v.bad or v.is_fault]
    judged = [v for v in verdicts if v.status is Status.PASSED and v.asks == "values"]
    assert len(judged) >= 10
    assert max(v.ratio or 0 for v in judged) < 0.5


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("biases", ["all", "not_in_q_k_v", "not_in_attention", "none"])
@pytest.mark.parametrize("component", WITH_MASKS[:4])
def test_always_causal_code_has_20_cases_whatever_biases_it_has(spec, component, biases, kind):
    options = declare(spec, later_tokens=kind, biases=biases)
    fitting = [c for c in spec.cases_of(component) if not (c.error or c.shape_only or c.explain_unfit(options))]
    assert len(fitting) + len(derive_declared(component, options, spec)) >= LEAST


def test_only_the_last_row_of_a_case_without_a_mask_is_compared(spec):
    case = spec.cases["fmha-square"]
    options = declare(spec, later_tokens="hidden_only")
    called = case.under(options)
    seq = case.sizes["seq"]
    assert np.array_equal(called.input_arrays["mask"], np.tri(seq, dtype=bool))
    places = called.expects(options)["output"].indices
    assert {place[1] for place in places} == {seq - 1}
    assert len(places) == case.sizes["batch"] * case.sizes["d_input"]
    assert case.under(declare(spec)) is case


def test_a_mask_of_padding_is_joined_or_replaced(spec):
    case = spec.cases["fmha-square-padding"]
    padding = case.input_arrays["mask"]
    causal = np.tri(case.sizes["seq"], dtype=bool)
    too = case.under(declare(spec, later_tokens="hidden_too")).input_arrays["mask"]
    only = case.under(declare(spec, later_tokens="hidden_only")).input_arrays["mask"]
    assert np.array_equal(too, padding & causal)
    assert np.array_equal(only, causal)


def test_a_causal_case_keeps_all_of_its_values(spec):
    options = declare(spec, later_tokens="hidden_only")
    case = spec.cases["fmha-square-gradient-causal"]
    assert case.under(options) is case
    assert not case.explain_unfit(options)


def test_no_row_of_a_deep_stack_without_a_mask_is_the_same(spec):
    options = declare(spec, later_tokens="hidden_only")
    assert "no value of it holds" in spec.cases["encs-ordinary-plain"].explain_unfit(options)
    assert not spec.cases["enc-ordinary-plain"].explain_unfit(options)


def test_gradients_of_other_masks_do_not_hold(spec):
    options = declare(spec, later_tokens="hidden_too")
    assert "no value of it holds" in spec.cases["fmha-square-gradient"].explain_unfit(options)


def test_queries_that_are_not_the_keys_have_no_later_key(spec):
    options = declare(spec, later_tokens="hidden_only")
    assert "3 queries and 5 keys" in spec.cases["sdpa-heads-mask-per-head"].explain_unfit(options)


def test_a_bad_mask_is_not_repaired(spec):
    options = declare(spec, later_tokens="hidden_only")
    assert "its fault is in mask" in spec.cases["fmha-mask-of-other-heads"].explain_unfit(options)


def test_a_case_in_which_a_query_loses_its_last_key_does_not_fit(spec):
    options = declare(spec, later_tokens="hidden_too")
    case = spec.cases["encs-ordinary-mask-of-each-sample"]
    joined = case.under(options).input_arrays["mask"]
    assert not joined.any(-1).all()
    assert case.input_arrays["mask"].any(-1).all()
    assert "no value of it holds" in case.explain_unfit(options)
