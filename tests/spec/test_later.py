"""Cases as code is called with them that always hides later tokens, and the golden values that hold there."""

import functools
from types import SimpleNamespace

import numpy as np
import pytest

from goldformer.adapters.protocol import Adapter
from goldformer.adapters.textbook.build import build_textbook
from goldformer.conformance.judging.cases import Bench, judge_case
from goldformer.conformance.judging.expected import expect
from goldformer.conformance.judging.verdict import Status
from goldformer.spec import load_spec
from goldformer.spec.formulas.options import OPTIONS
from goldformer.spec.oracle.declared import LEAST, derive_declared

WITH_MASKS = [name for name, contract in load_spec().contracts.items() if contract.later_tokens]
KINDS = ("hidden_too", "hidden_only")


def declare(spec, **options):
    return {name: convention.default for name, convention in spec.conventions.items()} | options


def join_causal_mask(function, name):
    @functools.wraps(function)
    def hiding(*arguments, **named):
        first = arguments[0] if arguments else next(named[n] for n in ("query", "x") if n in named)
        mask, seq = named.get(name), first.shape[-2]
        return function(*arguments, **named | {name: np.tri(seq, dtype=bool) & (True if mask is None else mask)})

    return hiding


def judge_textbook(spec, component, conventions):
    """Return the verdicts on the textbook under some options; it joins the causal mask where code does so."""
    layers = [OPTIONS[item] for item in conventions.items() if item in OPTIONS]
    function = getattr(build_textbook(*layers, only=component), component)
    # Code under hidden_only hides later tokens without a mask too.
    function = join_causal_mask(function, spec.contracts[component].later_tokens.mask)
    adapter = Adapter.from_trusted(SimpleNamespace(**{component: function}), "textbook", spec, arrays="numpy")
    bench = Bench(spec, adapter.declare(conventions, spec), "float64", "cpu")
    return [judge_case(case, bench).verdict for case in spec.cases_of(component)]


@pytest.mark.sample(4)
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
@pytest.mark.parametrize("component", WITH_MASKS)
def test_always_causal_code_has_20_cases_whatever_biases_it_has(spec, component, biases, kind):
    options = declare(spec, later_tokens=kind, biases=biases)
    fitting = [c for c in spec.cases_of(component) if not (c.error or c.shape_only or c.explain_unfit(options))]
    assert len(fitting) + len(derive_declared(component, options, spec)) >= LEAST


def expect_hidden(spec, case, **options):
    """Return what is expected of a case of always causal code, and the causal mask of the call."""
    declared = declare(spec, later_tokens="hidden_only", **options)
    called = case.under(declared)
    return expect(called, declared, spec.contracts[case.component], "float32"), called.input_arrays["mask"]


def test_all_rows_of_a_case_without_a_mask_are_compared_under_the_causal_one(spec):
    case = spec.cases["fmha-square"]
    found, mask = expect_hidden(spec, case)
    assert np.array_equal(mask, np.tri(case.sizes["seq"], dtype=bool))
    assert found["output"].indices is None
    golden = case.expects(declare(spec))["output"].values
    same = np.isclose(found["output"].values, golden, rtol=1e-9).all(-1)
    assert same[:, -1].all(), "the last token sees all others, with and without the mask"
    assert not same[:, :-1].any()
    assert case.under(declare(spec)) is case


def test_a_deep_stack_without_a_mask_is_compared_too(spec):
    found, mask = expect_hidden(spec, spec.cases["encs-ordinary-plain"])
    assert mask.shape == (spec.cases["encs-ordinary-plain"].sizes["seq"],) * 2
    assert found["output"].values.size


def test_what_depends_on_rows_without_a_key_is_left_out_where_that_is_left_open(spec):
    case = spec.cases["fmha-square-no-bias-empty-row"]
    options = declare(spec, later_tokens="hidden_too")
    called = case.under(options)
    assert called.hiding
    contract = spec.contracts[case.component]
    whole = expect(called, options, contract, "float32")["output"]
    some = expect(called, options | {"empty_row": "unspecified"}, contract, "float32")["output"]
    assert 0 < some.values.size < whole.values.size
    assert np.array_equal(some.values, some.select(whole.values))


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


def test_gradients_of_other_masks_do_not_hold(spec):
    options = declare(spec, later_tokens="hidden_too")
    assert "it is about gradients" in spec.cases["fmha-square-gradient"].explain_unfit(options)


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
    assert "a query of it has no key" in case.explain_unfit(options)
