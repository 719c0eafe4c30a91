"""A function that cannot be called as the contract calls it says so itself, and spoils nothing else."""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace

import pytest

from goldformer.adapters import Adapter
from goldformer.adapters.protocol import list_parameters
from goldformer.adapters.textbook.build import build_textbook
from goldformer.conformance.judging.cases import Bench, check_case
from goldformer.conformance.judging.decision import Policy
from goldformer.conformance.judging.verdict import Status

textbook = build_textbook()
attend = textbook.scaled_dot_product_attention


@pytest.fixture
def adapter_with(spec):
    """An adapter of the one function, under the name of the component."""

    def make(component, function, **declared):
        return Adapter.from_object(SimpleNamespace(ARRAYS="numpy", **{component: function}, **declared), "mine", spec)

    return make


@pytest.fixture
def verdict_of(spec, adapter_with):
    """The verdict of one case for an adapter of one function."""

    def check(case, function, **declared):
        adapter = adapter_with(spec.cases[case].component, function, **declared)
        return check_case(spec.cases[case], Bench(spec, adapter, "float32", "cpu", Policy(require_refusals=True)))

    return check


def query_key_value(q, k, v):
    raise AssertionError("must not be called")


def with_a_temperature(query, key, value, temperature, mask=None):
    raise AssertionError("must not be called")


def without_value(query, key, mask=None):
    raise AssertionError("must not be called")


def positional_only(query, key, value, mask=None, /):
    raise AssertionError("must not be called")


def without_a_default(query, key, value, mask, seed, dropout_rate=None):
    raise AssertionError("must not be called")


def norm_of_two_arrays(x, weight, bias):
    return x * weight + bias


SDPA = "the suite calls it with query, key, value, mask, dropout_rate, seed"
HELPER = ". If it is only a helper of yours, rename it, such as to _"


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (
            query_key_value,
            f"requires q, k, v and does not take query, key, value; {SDPA}: rename q, k, v to query, key, value, "
            "or `goldformer infer test_parameters.py:query_key_value` writes an adapter that does so"
            f"{HELPER}scaled_dot_product_attention",
        ),
        (with_a_temperature, f"requires temperature; {SDPA}{HELPER}scaled_dot_product_attention"),
        (without_value, f"does not take value; {SDPA}"),
        (
            positional_only,
            "takes positional-only parameters; the suite calls it by name: query, key, value, mask, dropout_rate, seed",
        ),
        (without_a_default, f"gives no default to seed; {SDPA}"),
    ],
    ids=["other names", "one more", "one fewer", "positional only", "no default"],
)
def test_wrong_parameters_are_an_error_of_that_component_and_the_function_is_not_called(function, says, verdict_of):
    verdict = verdict_of("sdpa-distinct-sizes", function)
    assert (verdict.status, verdict.reason) == (Status.ERRORED, "wrong-parameters")
    assert verdict.message == f"scaled_dot_product_attention {says}"


@pytest.mark.parametrize(
    ("component", "function", "says"),
    [
        (
            "softmax",
            lambda x: x,
            f"requires x and does not take scores; the suite calls it with scores: rename x to scores{HELPER}softmax",
        ),
        (
            "layer_norm",
            norm_of_two_arrays,
            "requires weight, bias and does not take params; the suite calls it with x, params: "
            "`goldformer infer test_parameters.py:norm_of_two_arrays` writes an adapter that does so"
            f"{HELPER}layer_norm",
        ),
        (
            "causal_mask",
            lambda n: n,
            f"requires n and does not take q_seq, kv_seq; the suite calls it with q_seq, kv_seq{HELPER}causal_mask",
        ),
        (
            "token_embedding",
            lambda ids, table: table[ids],
            "requires table and does not take params; the suite calls it with ids, pad_id, params"
            f"{HELPER}token_embedding",
        ),
        (
            "multi_head_attention",
            lambda query, key, value, mask, *, params: query,
            "does not take num_heads; the suite calls it with "
            "query, key, value, mask, num_heads, dropout_rate, training, seed, params",
        ),
    ],
    ids=["input", "parameters one by one", "attributes", "params", "one attribute"],
)
def test_inputs_attributes_and_params_are_called_by_the_contracts_names(component, function, says, adapter_with):
    assert adapter_with(component, function).broken == {component: says}


def takes_anything(**given):
    return attend(**given)


def takes_the_rest_by_name(query, **rest):
    return attend(query, **rest)


def has_an_option_of_its_own(query, key, value, mask=None, dropout=0.0):
    return attend(query, key, value, mask)


def takes_names_alone_in_another_order(*, value, key, query, mask=None):
    return attend(query, key, value, mask)


def takes_more(query, key, value, *more, mask=None):
    return attend(query, key, value, mask)


@pytest.mark.parametrize(
    "function",
    [
        takes_anything,
        takes_the_rest_by_name,
        has_an_option_of_its_own,
        takes_names_alone_in_another_order,
        takes_more,
    ],
)
def test_whatever_takes_the_names_is_called(function, verdict_of):
    assert verdict_of("sdpa-causal", function).status is Status.PASSED


def without_a_mask(query, key, value):
    return attend(query, key, value)


def test_a_mask_may_be_absent_until_a_case_has_one(verdict_of, adapter_with):
    assert adapter_with("scaled_dot_product_attention", without_a_mask).broken == {}
    assert verdict_of("sdpa-distinct-sizes", without_a_mask).status is Status.PASSED
    masked = verdict_of("sdpa-causal", without_a_mask)
    assert (masked.status, masked.reason) == (Status.SKIPPED, "not-implemented")
    assert masked.message == "scaled_dot_product_attention takes no mask"


def test_a_mask_that_is_required_is_none_where_a_case_has_none(verdict_of):
    def always_masked(query, key, value, mask):
        return attend(query, key, value, mask)

    assert verdict_of("sdpa-causal", always_masked).status is Status.PASSED
    assert verdict_of("sdpa-distinct-sizes", always_masked).status is Status.PASSED


def test_dropout_may_be_absent_until_a_case_has_it(verdict_of):
    def without_dropout(query, key, value, mask=None):
        return attend(query, key, value, mask)

    assert verdict_of("sdpa-causal", without_dropout).status is Status.PASSED
    dropped = verdict_of("sdpa-dropout-nothing", without_dropout)
    assert (dropped.status, dropped.reason) == (Status.SKIPPED, "not-implemented")
    assert dropped.message == "scaled_dot_product_attention takes no dropout_rate, and need not"
    assert verdict_of("sdpa-dropout-above-one", without_dropout).message == dropped.message


def test_an_attribute_that_a_case_has_not_is_not_passed(verdict_of):
    def with_a_rate_of_its_own(query, key, value, mask=None, dropout_rate=0.0, seed=7):
        assert (dropout_rate, seed) == (0.0, 7)
        return attend(query, key, value, mask)

    assert verdict_of("sdpa-causal", with_a_rate_of_its_own).status is Status.PASSED


def test_a_function_whose_signature_cannot_be_read_is_called(verdict_of, adapter_with):
    assert adapter_with("softmax", max).broken == {}
    verdict = verdict_of("sm-one-row-by-hand", max)
    assert (verdict.status, verdict.reason) == (Status.ERRORED, "raised")
    assert verdict.message.startswith("raised TypeError: max")


def test_a_bound_method_and_a_class_with_call_are_functions(adapter_with):
    class Attention:
        def __call__(self, query, key, value, mask=None):
            return query

    assert adapter_with("softmax", textbook.softmax).broken == {}
    assert adapter_with("scaled_dot_product_attention", Attention()).broken == {}


def test_data_under_a_components_name_is_no_implementation(adapter_with, verdict_of):
    assert adapter_with("softmax", 3).functions == {}
    verdict = verdict_of("sm-one-row-by-hand", 3)
    assert (verdict.status, verdict.reason) == (Status.SKIPPED, "not-implemented")
    assert verdict.message == "mine has no softmax"


def test_wrong_parameters_do_not_pass_for_a_refusal(verdict_of):
    """A function that cannot be called has refused nothing."""
    named_otherwise = verdict_of("sdpa-widths-differ", query_key_value)
    assert (named_otherwise.status, named_otherwise.reason) == (Status.ERRORED, "wrong-parameters")
    assert named_otherwise.message.startswith(
        "cannot be judged: sdpa-cross-lengths, the same call without the fault, fails: "
        "scaled_dot_product_attention requires"
    )
    by_convention = verdict_of("pe-odd-5", lambda inputs: inputs, CONVENTIONS={"odd_d_model": "refused"})
    assert (by_convention.status, by_convention.reason) == (Status.ERRORED, "wrong-parameters")


def test_one_wrong_function_leaves_the_others_alone(spec, verdicts_of):
    source = SimpleNamespace(
        ARRAYS="numpy", softmax=textbook.softmax, scaled_dot_product_attention=query_key_value, NAME="mine"
    )
    verdicts = verdicts_of(
        Bench(spec, Adapter.from_object(source, "mine", spec), "float32", "cpu"),
        "softmax", "scaled_dot_product_attention",
    )  # fmt: skip
    by_component = {name: {v.status for v in verdicts if v.component == name} for name in spec.components}
    assert Status.ERRORED not in by_component["softmax"]
    # Its gradients are not implemented, and so not called.
    assert by_component["scaled_dot_product_attention"] == {Status.ERRORED, Status.SKIPPED}


def test_a_function_is_not_kept_alive_by_the_names_of_its_parameters():
    def softmax(scores):
        return scores

    assert list_parameters(softmax) == {"scores"}
    alive = weakref.ref(softmax)
    del softmax
    gc.collect()
    assert alive() is None
