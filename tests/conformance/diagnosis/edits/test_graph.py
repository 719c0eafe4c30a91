"""Formulas recorded as graphs: the record is exact, and each operation is in its step."""

from __future__ import annotations

import numpy as np
import pytest

from goldformer.adapters.arrays import LIBRARIES
from goldformer.conformance.diagnosis.edits.edit import Edit
from goldformer.conformance.diagnosis.edits.graph import Node, UnrecordableError, record
from goldformer.conformance.judging.invoke import convert_arguments, read_arguments
from goldformer.spec.formulas import COMPONENTS, name_outputs

#: Code that chooses as it goes, draws random numbers, or is called several times with a state.
NOT_RECORDED = {"beam_search", "greedy_decode", "xavier_uniform", "cached_attention", "cached_model", "generate"}


def list_calls(spec, component, dtype):
    for case in spec.cases_of(component):
        is_held = case.golden is None or case.golden.peak <= float(np.finfo(dtype).max)
        if case.error is None and case.cotangent is None and not case.random and case.size < 5000 and is_held:
            yield convert_arguments(
                LIBRARIES["numpy"], spec.contracts[component], read_arguments(case), dtype, "cpu"
            )  # fmt: skip


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("component", sorted(COMPONENTS.keys() - NOT_RECORDED))
def test_a_recorded_formula_gives_the_same_bits(component, dtype, spec):
    formula = COMPONENTS[component]
    for given in list(list_calls(spec, component, dtype))[:12]:
        try:
            right = name_outputs(component, formula(**given))
        except ValueError:  # an option that the defaults refuse
            continue
        graph, _ = record(component, formula, **given)
        for name, wanted in right.items():
            made = graph.outputs[name]
            value = np.asarray(made.value if isinstance(made, Node) else made)
            assert value.dtype == np.asarray(wanted).dtype
            np.testing.assert_array_equal(value, wanted, err_msg=name)


def test_an_operation_has_the_step_in_which_it_happens():
    x, params = np.array([[3.0, 4.0]], np.float32), {"gamma": np.ones(2, np.float32)}
    graph, _ = record("rms_norm", COMPONENTS["rms_norm"], x, params=params)
    (total,) = graph.find("mean_square/sum-0")
    np.testing.assert_array_equal(total.value, [[25.0]])
    (mean,) = graph.find("mean_square/result")
    np.testing.assert_array_equal(mean.value, [[12.5]])
    assert graph.find("mean_square/sum-1") == []


def test_one_call_of_a_step_has_a_path_of_its_own(spec):
    case = spec.cases["enc-distinct-sizes"]
    given = convert_arguments(
        LIBRARIES["numpy"], spec.contracts["encoder_layer"], read_arguments(case), "float32", "cpu"
    )
    graph, _ = record("encoder_layer", COMPONENTS["encoder_layer"], **given)
    assert len(graph.find("norm_denominator/result")) == 2
    names = [graph.name_call(scope) for scope in graph.find_scopes("norm_denominator")]
    assert names == ["run_sublayer#0/norm_denominator", "run_sublayer#1/norm_denominator"]
    assert [graph.find(f"{name}/result")[0] for name in names] == graph.find("norm_denominator/result")


def test_only_what_depends_on_a_change_is_computed_again():
    x, params = np.array([[3.0, 4.0]], np.float32), {"gamma": np.ones(2, np.float32)}
    graph, _ = record("rms_norm", COMPONENTS["rms_norm"], x, params=params)
    fresh = Edit("rms_norm", "mean_square/result", "doubled").apply(graph)
    assert {node.role for node in graph.nodes} > {node.role for node in fresh}
    np.testing.assert_array_equal(fresh[graph.find("mean_square/result")[0]], [[25.0]])


def test_code_that_leaves_the_record_is_refused():
    def formula(x):
        return np.asarray(x) + 1

    with pytest.raises(UnrecordableError):
        record("softmax", formula, np.ones(2, np.float32))
