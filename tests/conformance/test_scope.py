"""Code with parts that goldformer does not judge: it says so, instead of naming a place that right code has too."""

import pytest

from goldformer.adapters.identifiers import list_identifiers
from goldformer.spec.scope import _read, explain_scope


def test_names_of_what_is_judged_say_nothing(spec):
    for component, contract in spec.contracts.items():
        names = {component, *contract.conventions, *contract.inputs, *contract.params, *contract.attributes}
        names |= {mistake.id for mistake in spec.mistakes.values() if mistake.component == component}
        assert explain_scope(names, (component,)) == "", component
    assert explain_scope(["property", "europe", "stereoscope"]) == ""


def test_libraries_are_not_read():
    functional = pytest.importorskip("torch").nn.functional

    class Layer:
        def forward(self, x):
            return functional.scaled_dot_product_attention(x, x, x)

    assert {"Layer", "forward", "scaled_dot_product_attention"} <= list_identifiers(Layer)
    assert explain_scope(list_identifiers(Layer)) == ""


def test_a_component_that_has_such_a_part_is_judged_with_it():
    names = ["num_kv_heads", "rotary_emb"]
    assert explain_scope(names, ("decoder_only_layer",)) == ""
    assert explain_scope(["num_kv_heads"], ("cached_attention",)) == ""
    assert "rotary_emb" in explain_scope(names, ("cached_attention",))
    assert explain_scope(["sliding_window", "softcap"], ("decoder_only_layer",)) == ""
    assert explain_scope(["experts"], ("expert_router",)) == ""


def test_components_with_such_a_part_depend_on_it(spec):
    entries = [entry for entry, _ in _read() if entry.but_as]
    assert any(entry.within for entry in entries)
    for entry in entries:
        for component in entry.within:
            assert entry.but_as in spec.list_dependencies(component), (entry.id, component)


def attend_with_cap(scores, softcap=None, *, sliding_window=None, scale=1.0):
    """Return scores that are capped where a call asks for it."""
    return scores if softcap is None else softcap * (scores * scale / softcap).tanh()


def test_an_argument_that_most_calls_leave_out_is_no_reason_for_a_failure():
    assert explain_scope(list_identifiers(attend_with_cap)).count("soft caps of scores")
    names = list_identifiers(attend_with_cap, switched_off=False)
    assert names.isdisjoint({"softcap", "sliding_window"})
    assert {"attend_with_cap", "scores", "scale", "tanh"} <= names
    assert explain_scope(names) == ""
