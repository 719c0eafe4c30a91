"""Results of the reference for options that are not its defaults, by the golden values of these options."""

from __future__ import annotations

import inspect
from dataclasses import replace
from functools import partial

import pytest

from goldformer.adapters import find_adapter
from goldformer.conformance.judging.cases import Bench, check_case

#: The convention, its option, the argument that asks for it with its value, and the fewest cases that are judged.
OPTIONS = [
    ("norm_placement", "pre", "norm_first", True, 200),
    ("activation", "gelu", "activation", "gelu", 55),
    ("activation", "gelu_tanh", "activation", "gelu_tanh", 55),
    ("activation", "silu", "activation", "silu", 55),
    ("gate_activation", "gelu", "activation", "gelu", 20),
    ("gate_activation", "gelu_tanh", "activation", "gelu_tanh", 20),
    ("gate_activation", "relu", "activation", "relu", 20),
    ("beam_finish", "set_aside", "finish", "set_aside", 12),
    ("length_penalty", "mean", "length_penalty", "mean", 12),
    ("length_penalty", "gnmt", "length_penalty", "gnmt", 12),
    ("rope_pairing", "half", "pairing", "half", 20),
    ("rope_scaling", "llama3", "scaling", "llama3", 2),
    ("rope_scaling", "yarn", "scaling", "yarn", 2),
    ("rms_norm_eps", "1e-5", "eps", 1e-5, 15),
]

#: They run a model, which has cases of its own.
DECODING = ("greedy_decode", "beam_search")


def list_arguments(function):
    """The arguments of a function, or the settings of the module and the arguments of what runs it."""
    made = inspect.getclosurevars(function).nonlocals
    run = inspect.signature(made["run"]).parameters if "run" in made else ()
    return {*inspect.signature(function).parameters, *made.get("settings", "").split(), *run}


@pytest.mark.parametrize(("convention", "option", "argument", "value", "fewest"), OPTIONS)
def test_an_option_has_its_golden_values(convention, option, argument, value, fewest, spec):
    adapter = find_adapter("reference", spec)
    functions = {
        name: partial(function, **{argument: value})
        for name, function in adapter.functions.items()
        if argument in list_arguments(function)
        if convention in spec.contracts[name].conventions
        if name not in DECODING or argument in ("finish", "length_penalty")
    }
    declared = {**adapter.conventions, convention: option}
    bench = Bench(spec, replace(adapter, functions=functions, conventions=declared), "float64", "cpu")
    cases = [case for name in functions for case in spec.cases_of(name) if not case.full_size]
    verdicts = [check_case(case, bench) for case in cases]
    assert [(verdict.check, verdict.message) for verdict in verdicts if verdict.bad] == []
    assert sum(verdict.ratio is not None for verdict in verdicts) >= fewest
