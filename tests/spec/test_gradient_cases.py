"""Gradient cases are safe from rounding, and name what autograd does not reach.

tests/conformance/diagnosis/mistakes/mistakes.json holds the gradients of code with each mistake that such a case lists.
"""

from __future__ import annotations

import numpy as np
import pytest

from goldformer.adapters import find_adapter
from goldformer.conformance.diagnosis.explain import Diagnosis
from goldformer.conformance.judging.cases import Bench, judge_case
from goldformer.conformance.judging.tolerance import tolerance
from goldformer.spec.formulas.heads import project
from goldformer.spec.formulas.steps import around, replacing
from goldformer.spec.oracle.derive import evaluate
from goldformer.spec.oracle.draws import Draw, error_scale

#: What is cut from the graph of autograd in transformer.py, and the mistakes that are named.
CUTS = {
    "layer-bwd": (
        "[x := layer(x, *others).output for layer in layers]",
        "[x := layer(x.detach() if i else x, *others).output for i, layer in enumerate(layers)]",
        "tf-gradient", [("layer-bwd",)],
    ),
    "memory-bwd": (
        "self.decode(target, memory, source)", "self.decode(target, memory.detach(), source)",
        "tf-gradient", [("memory-bwd",)],
    ),
    "in no catalogue": (
        "attended, self.norm_2, lambda y: self.cross", "attended.detach(), self.norm_2, lambda y: self.cross",
        "decs-gradient", [],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("old", "new", "case", "named"), CUTS.values(), ids=CUTS)
def test_what_autograd_does_not_reach_is_named_as_what_arithmetic_makes_0(
    old, new, case, named, broken_reference, spec
):
    bench = Bench(spec, find_adapter(broken_reference("transformer.py", old, new), spec), "float32", "cpu")
    verdict, found = Diagnosis(spec).explain(judge_case(spec.cases[case], bench))
    assert verdict.reason == "no-gradient"
    assert [match.causes for match in found.matches] == named


#: Conventions of what comes after the last feed-forward network.
_AFTER = {"final_norm", "output_layer"}


@pytest.fixture
def inner_layers():
    """Record the inputs of the ReLU of every feed-forward network while a formula runs."""
    seen = []

    def recording(original, x, params, role):
        inner = original(x, params, role)
        if role == "1":
            seen.append(inner)
        return inner

    with replacing({project: around(recording)}):
        yield seen


def list_with_hidden_units(spec):
    """Return the gradient cases that run through a feed-forward network."""
    gradients = [case for case in spec.cases.values() if case.cotangent is not None]
    return [case for case in gradients if any(name.endswith("w_1") for name in case.params)]


#: The components of these cases.
HAVE_HIDDEN_UNITS = ("decoder", "decoder_layer", "encoder", "encoder_layer", "feed_forward", "transformer")


def test_the_components_with_hidden_units_are_these(spec):
    assert {case.component for case in list_with_hidden_units(spec)} == {*HAVE_HIDDEN_UNITS}


@pytest.mark.sample(3)
@pytest.mark.parametrize("component", HAVE_HIDDEN_UNITS)
def test_no_hidden_unit_can_change_its_sign_by_rounding(component, spec, inner_layers):
    """The ReLU has no gradient at 0: a unit within the tolerance of it would go either way in bfloat16."""
    for case in list_with_hidden_units(spec):
        if case.component != component:
            continue
        # What comes after the last network says nothing of its hidden units.
        first = {name: case.conventions[name][:1] for name in _AFTER & case.conventions.keys()}
        for options in case.combine_options(first):
            inner_layers.clear()
            Draw.reset()
            called = case.under(options)
            call = (called.input_arrays, called.param_arrays, called.attributes, options)
            evaluate(called.component, Draw.exact, Draw.read, *call)
            assert inner_layers
            for inner in inner_layers:
                units = inner.ravel()
                middle = np.array([np.mean(draw.samples) for draw in units])
                scales = [error_scale(units[[i]], middle[[i]]) for i in range(len(units))]
                bound = np.array([tolerance("bfloat16", s, abs(m)) for s, m in zip(scales, middle, strict=True)])
                # Exactly 0 whatever rounds, and the subject of GRAD-4.
                corner = np.array([not np.any(draw.samples) for draw in units])
                assert corner.any() == ("GRAD-4" in case.clauses)
                assert (np.abs(middle) > bound)[~corner].all(), f"{case.id} {options}"
