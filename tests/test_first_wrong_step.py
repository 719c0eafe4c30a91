"""A failure is placed: of the steps that an implementation returns, the first wrong one is named first."""

from __future__ import annotations

import pytest

from goldformer.adapters import Adapter, find_adapter
from goldformer.adapters.textbook import Textbook
from goldformer.conformance.engine import Bench, check_case
from goldformer.conformance.text import explain_verdict
from goldformer.conformance.verdict import Status


class KeyWeightForValues(Textbook):
    def project(self, x, params, role):
        return super().project(x, params, "k" if role == "v" else role)


class HeadsSplitByView(Textbook):
    def split_heads(self, x, num_heads):
        return x.reshape(len(x), num_heads, x.shape[1], -1)


class HeadsMergedByView(Textbook):
    def merge_heads(self, heads):
        return heads.reshape(len(heads), heads.shape[2], -1)


class WithoutTheScale(Textbook):
    def divisor(self, sizes):
        return 1.0


class WithoutTheMask(Textbook):
    def masked(self, scaled, mask):
        return scaled


class ValuesSummedByQuery(Textbook):
    def weighted_sum(self, weights, value):
        return super().weighted_sum(weights.swapaxes(-1, -2), value)


class WithoutTheOutputBias(Textbook):
    def project(self, x, params, role):
        bias = f"b_{role}"
        return super().project(x, {n: a for n, a in params.items() if n != bias or role != "o"}, role)


class FusedInThree(Textbook):
    def cut_fused(self, qkv, num_heads):
        third = qkv.shape[-1] // 3
        return tuple(self.split_heads(qkv[..., i * third : (i + 1) * third], num_heads) for i in range(3))


class TargetWithoutPositions(Textbook):
    def embedded(self, ids, side, pad_id, params):
        placed = super().embedded(ids, side, pad_id, params)
        return placed if side == "source" else self.token_embedding(ids, params={"table": params["table"]})


class EncoderOfSharedLayers(Textbook):
    def layer_params(self, params, stack, index):
        return super().layer_params(params, stack, 0 if stack == "encoder" else index)


class DecoderSeesAhead(Textbook):
    def target_mask(self, target, pad_id):
        return self.padding_mask(target, pad_id=pad_id)


class ProbabilitiesForLogits(Textbook):
    def output_layer(self, x, params):
        return self.softmax(super().output_layer(x, params))


MHA, FUSED, MODEL = "mha-distinct-sizes-causal", "fmha-causal", "tf-pair-alone"
#: A mistake, a case, and the steps that it spoils, in the order in which data flows.
PLACED = [
    (HeadsSplitByView, MHA, ["q", "k", "v", "scaled_scores", "weights", "heads", "output"]),
    (KeyWeightForValues, MHA, ["v", "heads", "output"]),
    (WithoutTheScale, MHA, ["scaled_scores", "weights", "heads", "output"]),
    (WithoutTheMask, MHA, ["weights", "heads", "output"]),
    (ValuesSummedByQuery, MHA, ["heads", "output"]),
    (HeadsMergedByView, MHA, ["output"]),
    (WithoutTheOutputBias, MHA, ["output"]),
    (FusedInThree, FUSED, ["q", "k", "v", "scaled_scores", "weights", "heads", "output"]),
    (WithoutTheMask, FUSED, ["weights", "heads", "output"]),
    (HeadsMergedByView, FUSED, ["output"]),
    (EncoderOfSharedLayers, MODEL, ["memory", "decoded", "logits"]),
    (TargetWithoutPositions, MODEL, ["target_embedded", "decoded", "logits"]),
    (DecoderSeesAhead, MODEL, ["decoded", "logits"]),
    (ProbabilitiesForLogits, MODEL, ["logits"]),
]


@pytest.mark.parametrize(("mistake", "case", "steps"), PLACED)
def test_the_first_wrong_step_is_named_first(mistake, case, steps, spec):
    bench = Bench(spec, Adapter.from_object(mistake(), mistake.__name__, spec), "float32", "cpu")
    verdict = check_case(spec.cases[case], bench)
    assert verdict.status is Status.FAILED
    assert [difference.output for difference in verdict.differences] == steps
    assert verdict.message.startswith(f"{steps[0]}: ")
    lines = explain_verdict(verdict, spec).splitlines()
    shown = [line.split(":")[0].strip() for line in lines if " wrong (" in line]
    assert shown == steps


@pytest.mark.parametrize("case", [MHA, FUSED, MODEL])
def test_all_steps_of_these_cases_are_asked_for_and_right_in_the_textbook(case, spec):
    contract = spec.contracts[spec.cases[case].component]
    assert set(spec.cases[case].expect) == set(contract.flow) == set(contract.outputs)
    bench = Bench(spec, Adapter.from_object(Textbook(), "textbook", spec), "float32", "cpu")
    assert check_case(spec.cases[case], bench).status is Status.PASSED


def test_the_reference_places_its_own_mistakes(broken_reference, spec):
    path = broken_reference(
        "multi_head_attention.py",
        "return x.transpose(1, 2).flatten(-2)", "return x.reshape(x.shape[0], x.shape[2], -1)",
    )  # fmt: skip
    verdict = check_case(spec.cases[MHA], Bench(spec, find_adapter(path, spec), "float32", "cpu"))
    assert [difference.output for difference in verdict.differences] == ["output"]


def test_steps_that_are_not_returned_are_not_missed(spec):
    class OutputAlone:
        ARRAYS = "numpy"

        def multi_head_attention(self, query, key, value, mask=None, *, num_heads, params):
            given = {"num_heads": num_heads, "params": params}
            return HeadsMergedByView().multi_head_attention(query, key, value, mask, **given)["output"]

    bench = Bench(spec, Adapter.from_object(OutputAlone(), "output alone", spec), "float32", "cpu")
    verdict = check_case(spec.cases[MHA], bench)
    assert [difference.output for difference in verdict.differences] == ["output"]
