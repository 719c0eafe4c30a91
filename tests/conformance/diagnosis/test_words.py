"""The sentences of edits are in words of the field and of the call: no name of a step of the textbook is in them."""

from __future__ import annotations

import re

import pytest

from goldformer.conformance.diagnosis.candidates import Candidate, Textbooks
from goldformer.conformance.diagnosis.edits.generate import list_edits, name_axes
from goldformer.conformance.diagnosis.edits.words import describe_step, write_hint, write_title
from goldformer.conformance.diagnosis.failure import FailingCase
from goldformer.conformance.judging.invoke import Result
from goldformer.spec import Spec
from goldformer.spec.formulas.steps import list_steps

#: A name of code, and what a call or a contract names so.
IDENTIFIER = re.compile(r"[A-Za-z]+(?:_[A-Za-z0-9]+)+")


def list_public_names(spec: Spec) -> set[str]:
    names = {"W_vocab", "W_Q", "W_K", "W_V"}
    for component, contract in spec.contracts.items():
        arrays = {**contract.inputs, **contract.params, **contract.outputs}
        symbols = " ".join(str(axis) for array in arrays.values() for axis in array.shape.axes)
        of_layers = [name for stack in contract.layers for name in stack.params]
        text = " ".join([component, *arrays, *contract.attributes, *of_layers, symbols])
        names |= {word for name in text.split() for word in IDENTIFIER.findall(name)}
    return names


def find_identifiers(text: str, public: set[str]) -> set[str]:
    plain = re.sub(r"`[^`]*`", "", text)
    return set(IDENTIFIER.findall(plain)) - public


def test_no_step_has_a_name_of_code_in_its_words(spec: Spec):
    public = list_public_names(spec)
    found = {step.__name__: find_identifiers(describe_step(step.__name__), public) for step in list_steps()}
    assert {name: words for name, words in found.items() if words} == {}


@pytest.mark.parametrize(
    "component",
    ["softmax", "layer_norm", "rms_norm", "rotary_embedding", "gated_feed_forward", "multi_head_attention",
     "grouped_query_attention", "expert_router", "encoder_layer", "decoder_only_layer", "token_filter"],
)  # fmt: skip
def test_no_sentence_of_an_edit_has_a_name_of_code(component: str, spec: Spec):
    case = min((c for c in spec.cases_of(component) if c.error is None and not c.cotangent), key=lambda c: c.size)
    options = {name: spec.conventions[name].default for name in spec.contracts[component].conventions}
    failure = FailingCase(case, spec.contracts[component], Result({}, 0.0), {}, "float64", options)
    graph = Textbooks(spec, None).record(Candidate(), failure)
    assert graph is not None
    edits, public = list_edits(graph, name_axes(case, failure.contract)), list_public_names(spec)
    assert len(edits) > 20
    said = [f"{write_title(edit)}. {write_hint(edit)}" for edit in edits]
    assert [text for text in said if find_identifiers(text, public)][:5] == []
