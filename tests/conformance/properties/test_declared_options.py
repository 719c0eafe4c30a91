"""Every property holds for a textbook with a declared option, which may leave parameters out of a call."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from goldformer.adapters import Adapter
from goldformer.adapters.textbook.build import build_textbook
from goldformer.conformance.judging.cases import Bench
from goldformer.conformance.properties.judge import check_property
from goldformer.conformance.properties.registry import components_of
from goldformer.spec import load_spec
from goldformer.spec.formulas.options import OPTIONS

OTHER_OPTIONS = [
    (name, option)
    for name, convention in load_spec().conventions.items()
    for option in convention.options
    if option != convention.default
]


@pytest.mark.sample(1)
@pytest.mark.parametrize(("convention", "option"), OTHER_OPTIONS, ids=[": ".join(both) for both in OTHER_OPTIONS])
def test_a_textbook_with_a_declared_option_has_every_property(convention, option, spec):
    own = [name for name, contract in spec.contracts.items() if convention in contract.conventions]
    assert list_violations(spec, own, convention, option) == []


def test_the_properties_of_heads_hold_without_biases(spec):
    assert list_violations(spec, ["multi_head_attention"], "biases", "none") == []


@pytest.mark.parametrize("option", ["hidden_too", "hidden_only"])
@pytest.mark.parametrize(
    ("component", "query", "key"),
    [
        ("scaled_dot_product_attention", "query", "key"),
        ("multi_head_attention", "query", "key"),
        ("fused_multi_head_attention", "x", "x"),
        ("encoder_layer", "x", "x"),
    ],
)
def test_code_that_always_hides_later_tokens_has_every_property(component, query, key, option, spec):
    own = getattr(build_textbook(), component)

    def hide(mask=None, **given):
        lengths = given[query].shape[-2], given[key].shape[-2]
        causal = np.tri(*lengths, dtype=bool)
        if lengths[0] == lengths[1]:
            mask = causal if mask is None or option == "hidden_only" else mask & causal
        return own(mask=mask, **given)

    code = SimpleNamespace(ARRAYS="numpy", CONVENTIONS={"later_tokens": option}, **{component: hide})
    assert list_broken(spec, code, [component]) == []


def list_violations(spec, components, convention, option):
    """Return the properties that a textbook violates with a declared option, which may leave parameters out."""
    book = build_textbook(OPTIONS.get((convention, option), {}), CONVENTIONS={convention: option})
    return list_broken(spec, book, components)


def list_broken(spec, book, components):
    """Return the properties of some components that an adapter's object violates."""
    bench = Bench(spec, Adapter.from_object(book, "textbook", spec), "float64", "cpu")
    asked = [(p, component) for p in spec.properties.values() for component in components_of(p, spec)]
    verdicts = [check_property(p, component, bench) for p, component in asked if component in components]
    return [(v.check, v.component, v.message) for v in verdicts if v.bad]
