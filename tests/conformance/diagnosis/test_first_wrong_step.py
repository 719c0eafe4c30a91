"""A failure is placed: of the steps that an implementation returns, the first wrong one is named first."""

from __future__ import annotations

import pytest

from goldformer.adapters import Adapter, find_adapter
from goldformer.adapters.textbook.build import build_textbook
from goldformer.conformance.diagnosis.diagnosed import Explained
from goldformer.conformance.judging.cases import Bench, check_case
from goldformer.conformance.judging.verdict import Status
from goldformer.conformance.reports.text import explain_verdict
from goldformer.spec.formulas.attention import fill_masked, padding_mask, score_divisor, softmax, sum_values
from goldformer.spec.formulas.embedding import token_embedding
from goldformer.spec.formulas.heads import merge_heads, project, split_fused, split_heads
from goldformer.spec.formulas.layers import layer_params
from goldformer.spec.formulas.transformer import embed_target, output_logits, target_mask
from spoiled import spoil


@spoil(around=project)
def key_weight_for_values(original, x, params, role):
    return original(x, params, "k" if role == "v" else role)


@spoil(instead_of=split_heads)
def heads_split_by_view(x, num_heads):
    return x.reshape(len(x), num_heads, x.shape[1], -1)


@spoil(instead_of=merge_heads)
def heads_merged_by_view(heads):
    return heads.reshape(len(heads), heads.shape[2], -1)


@spoil(instead_of=score_divisor)
def without_the_scale(sizes):
    return 1.0


@spoil(instead_of=fill_masked)
def without_the_mask(scaled, mask):
    return scaled


@spoil(around=sum_values)
def values_summed_by_query(original, weights, value):
    return original(weights.swapaxes(-1, -2), value)


@spoil(around=project)
def without_the_output_bias(original, x, params, role):
    bias = f"b_{role}"
    return original(x, {n: a for n, a in params.items() if n != bias or role != "o"}, role)


@spoil(instead_of=split_fused)
def fused_in_three(qkv, num_heads):
    third = qkv.shape[-1] // 3
    return tuple(split_heads(qkv[..., i * third : (i + 1) * third], num_heads) for i in range(3))


@spoil(instead_of=embed_target)
def target_without_positions(target, pad_id, params):
    return token_embedding(target, params={"table": params["table"]})


@spoil(around=layer_params)
def encoder_of_shared_layers(original, params, stack, index):
    return original(params, stack, 0 if stack == "encoder" else index)


@spoil(instead_of=target_mask)
def decoder_sees_ahead(target, pad_id):
    return padding_mask(target, pad_id=pad_id)


@spoil(around=output_logits)
def probabilities_for_logits(original, x, params):
    return softmax(original(x, params))


MHA, FUSED, MODEL = "mha-distinct-sizes-causal", "fmha-causal", "tf-pair-alone"
#: A mistake, a case, and the steps that it spoils, in the order in which data flows.
PLACED = [
    (heads_split_by_view, MHA, ["q", "k", "v", "scaled_scores", "weights", "heads", "output"]),
    (key_weight_for_values, MHA, ["v", "heads", "output"]),
    (without_the_scale, MHA, ["scaled_scores", "weights", "heads", "output"]),
    (without_the_mask, MHA, ["weights", "heads", "output"]),
    (values_summed_by_query, MHA, ["heads", "output"]),
    (heads_merged_by_view, MHA, ["output"]),
    (without_the_output_bias, MHA, ["output"]),
    (fused_in_three, FUSED, ["q", "k", "v", "scaled_scores", "weights", "average_weights", "heads", "output"]),
    (without_the_mask, FUSED, ["weights", "average_weights", "heads", "output"]),
    (heads_merged_by_view, FUSED, ["output"]),
    (encoder_of_shared_layers, MODEL, ["memory", "decoded", "logits"]),
    (target_without_positions, MODEL, ["target_embedded", "decoded", "logits"]),
    (decoder_sees_ahead, MODEL, ["decoded", "logits"]),
    (probabilities_for_logits, MODEL, ["logits"]),
]


@pytest.mark.parametrize(("mistake", "case", "steps"), PLACED)
def test_the_first_wrong_step_is_named_first(mistake, case, steps, spec):
    bench = Bench(spec, Adapter.from_object(mistake(), mistake.__name__, spec), "float32", "cpu")
    verdict = check_case(spec.cases[case], bench)
    assert verdict.status is Status.FAILED
    assert [difference.output for difference in verdict.differences] == steps
    assert verdict.message.startswith(f"{steps[0]}: ")
    lines = explain_verdict(Explained(verdict), spec).splitlines()
    shown = [line.split(":")[0].strip() for line in lines if " wrong (" in line]
    assert shown == steps


@pytest.mark.parametrize("case", [MHA, FUSED, MODEL])
def test_all_steps_of_these_cases_are_asked_for_and_right_in_the_textbook(case, spec):
    contract = spec.contracts[spec.cases[case].component]
    # No later step depends on the average of the weights: a case of its own asks for it.
    assert set(spec.cases[case].expect) == set(contract.flow) - {"average_weights"}
    assert set(contract.flow) == set(contract.outputs)
    bench = Bench(spec, Adapter.from_object(build_textbook(), "textbook", spec), "float32", "cpu")
    assert check_case(spec.cases[case], bench).status is Status.PASSED


def test_the_reference_places_its_own_mistakes(broken_reference, spec):
    path = broken_reference(
        "transformer.py",
        "return x.transpose(1, 2).flatten(-2)", "return x.reshape(x.shape[0], x.shape[2], -1)",
    )  # fmt: skip
    verdict = check_case(spec.cases[MHA], Bench(spec, find_adapter(path, spec), "float32", "cpu"))
    assert [difference.output for difference in verdict.differences] == ["output"]


def test_steps_that_are_not_returned_are_not_missed(spec):
    class OutputAlone:
        ARRAYS = "numpy"

        def multi_head_attention(self, query, key, value, mask=None, *, num_heads, params):
            given = {"num_heads": num_heads, "params": params}
            return heads_merged_by_view().multi_head_attention(query, key, value, mask, **given)["output"]

    bench = Bench(spec, Adapter.from_object(OutputAlone(), "output alone", spec), "float32", "cpu")
    verdict = check_case(spec.cases[MHA], bench)
    assert [difference.output for difference in verdict.differences] == ["output"]
