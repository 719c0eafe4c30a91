"""The functions that are written from the contracts can be read, and have the arguments that a call has."""

from __future__ import annotations

import ast

import pytest

from goldformer.adapters.skeleton import sign, write_example, write_stub
from goldformer.spec import load_spec

CONTRACTS = load_spec().contracts


@pytest.mark.parametrize("name", CONTRACTS)
def test_a_stub_and_an_example_are_called_alike(name):
    for text in (write_stub(CONTRACTS[name]), write_example(CONTRACTS[name])):
        (function,) = (node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef))
        assert f"{function.name}({ast.unparse(function.args)})".replace(" ", "") == sign(CONTRACTS[name]).replace(
            " ", ""
        )


def test_few_parameters_are_taken_apart_and_many_are_handed_on():
    assert 'return my_layer_norm(x, params["gamma"], params["beta"])' in write_example(CONTRACTS["layer_norm"])
    assert "return my_multi_head_attention(query, key, value, mask, num_heads, params)" in write_example(
        CONTRACTS["multi_head_attention"]
    )
    assert "max_length, beam_size, top_beams, params)" in write_example(CONTRACTS["beam_search"])
