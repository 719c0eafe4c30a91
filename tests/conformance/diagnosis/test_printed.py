"""A mistake that a document prints is said to be printed there."""

from __future__ import annotations

from dataclasses import replace

from tests.support.runs import change, diagnose

from goldformer.conformance.diagnosis.evidence import Match
from goldformer.conformance.diagnosis.finding import AS_PRINTED
from goldformer.conformance.diagnosis.precision import find_precision
from goldformer.conformance.diagnosis.printed import find_printed
from goldformer.conformance.judging.verdict import Status, Verdict

MULTI_HEAD = "multi_head_attention"
OVERFLOW = "raised RuntimeError: value cannot be converted to type c10::Half without overflow (my.py:9, f)"
RAISED_SCORES = "raised RuntimeError: expected scalar type Float but found Half (my.py:9, f)"
OF_SHAPES = "raised RuntimeError: shape '[3, 6, 5]' is invalid for input of size 144 (my.py:12, f)"
#: Mistakes that show by the dtype of a call, which the matrix of float32 does not measure.
OF_DTYPES = ("fill-1e9-fp16", "dtype-promote")


def judge(check, component, message="", reason="raised", kind="case", **more):
    status = {"": Status.PASSED, "raised": Status.ERRORED}.get(reason, Status.FAILED)
    return Verdict(check, kind, component, "", status, reason, message, "float16", "cpu", (), "", **more)


def printed_in(verdicts, spec):
    return [f.text.partition(";")[0] for f in diagnose(verdicts, spec) if f.label == AS_PRINTED]


def test_a_mistake_found_names_the_documents_that_print_it(spec):
    overflows = judge("mha-causal-and-padding", MULTI_HEAD, OVERFLOW)
    assert printed_in([overflows], spec) == ["n9 (n9-fill-half), illustrated (illustrated-fill-half)"]
    [finding] = [f for f in diagnose([overflows], spec) if f.label == AS_PRINTED]
    assert finding.text.endswith("; goldformer explain n9-fill-half says what is right")


def test_a_proof_that_does_not_fail_names_no_document(spec):
    elsewhere = judge("mha-distinct-sizes-causal", MULTI_HEAD, OVERFLOW)
    assert printed_in([elsewhere], spec) == []


def test_an_error_that_says_what_a_document_prints_names_the_document(spec):
    said = "raised AssertionError: was expecting embedding dimension of {}, but got 8 (my.py:10, f)"
    assert printed_in([judge("mha-distinct-sizes", MULTI_HEAD, said.format(299))], spec) == [
        "illustrated (illustrated-embed-dim-299)"
    ]
    assert printed_in([judge("mha-distinct-sizes", MULTI_HEAD, said.format(512))], spec) == []


def test_a_value_that_a_mistake_reproduces_names_the_document(spec):
    match = Match(("ffn-no-relu",), 0.1)
    proof = spec.errata["primer-ffn-function"].proof
    wrong = [change(judge(id_, "feed_forward", reason="wrong-value"), matches=(match,)) for id_ in proof]
    assert printed_in(wrong, spec) == ["primer (primer-ffn-function)"]


def test_scores_that_a_constant_raised_to_float32_are_a_possible_cause(spec):
    raised = judge("mha-self-attention", MULTI_HEAD, RAISED_SCORES)
    causes = [f for f in diagnose([raised], spec) if f.label == "Possible causes"]
    assert [f.mistakes for f in causes] == [("dtype-promote",)]
    assert printed_in([raised], spec) == ["n9 (n9-scale-float32), illustrated (illustrated-scale-float32)"]


def test_the_same_error_without_an_attention_is_not_one_of_its_scores(spec):
    raised = judge("ffn-distinct-sizes", "feed_forward", RAISED_SCORES)
    assert [f.label for f in diagnose([raised], spec)] == ["Fix first", "First seen"]


def test_a_table_that_raises_the_dtype_names_the_document(spec):
    promoted = judge("pe-walkthrough-4x4", "positional_encoding", reason="wrong-dtype")
    assert printed_in([promoted], spec) == ["walkthrough (walkthrough-pe-float32)"]
    wrong = judge("pe-walkthrough-4x4", "positional_encoding", reason="wrong-shape")
    assert printed_in([wrong], spec) == []


def test_a_mistake_that_only_a_property_proves_is_one_of_its_own_component(spec):
    assert [e.id for e in find_printed(["device-const"], MULTI_HEAD, ["device-hygiene"], spec)] == [
        "n9-scale-device", "illustrated-scale-device",
    ]  # fmt: skip
    assert not find_printed(["device-const"], "feed_forward", ["device-hygiene"], spec)
    assert not find_printed(["softmax.result.output=times:2"], "softmax", ["device-hygiene"], spec)


def test_an_erratum_that_raises_is_named_beside_another_error(spec):
    verdicts = [
        judge("fmha-input-narrower", "fused_multi_head_attention", OF_SHAPES),
        judge("fmha-input-wider", "fused_multi_head_attention", OF_SHAPES),
        judge("fmha-causal", "fused_multi_head_attention", OVERFLOW),
    ]
    square = judge("fmha-square", "fused_multi_head_attention", reason="")
    labels = [f.label for f in diagnose([*verdicts, square], spec)]
    assert "If it follows walkthrough" in labels
    assert "If it follows walkthrough" not in [f.label for f in diagnose(verdicts, spec)]


def test_results_right_to_float32_only_name_the_documents(spec):
    coarse = judge("pe-walkthrough-4x4", "positional_encoding", reason="precision", ratio=1.2e7)
    coarse = replace(coarse, status=Status.SKIPPED, dtype="float64")
    (finding,) = find_precision([coarse], spec)
    assert finding.text.endswith("Such code is printed in walkthrough (walkthrough-pe-float32)")
    (finding,) = find_precision([replace(coarse, check="pe-d-6")], spec)
    assert "printed" not in finding.text


def test_each_mistake_of_an_erratum_shows_in_its_proof(spec):
    for erratum in spec.errata.values():
        shown = {m for id_ in erratum.proof if id_ in spec.cases for m in spec.cases[id_].kills}
        shown |= {m for id_ in erratum.proof if id_ in spec.properties for m in spec.properties[id_].catches}
        assert {*erratum.mistakes} <= {*shown, *OF_DTYPES}, erratum.id
