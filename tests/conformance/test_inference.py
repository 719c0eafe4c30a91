"""The adapter of a class, inferred: what fits is found, and no mistake is taken for a choice."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch import nn

from goldformer.adapters import find_adapter
from goldformer.adapters.imports import forget_modules
from goldformer.adapters.inference import InferenceError, TableForm
from goldformer.conformance.inference import infer_adapter
from goldformer.conformance.judging.cases import Bench, judge_case
from goldformer.conformance.judging.verdict import Status
from goldformer.conformance.properties.judge import check_property
from repository import REPOSITORY

STYLES = REPOSITORY / "tests" / "support" / "styles"

KEEP, IGNORE, ADDED = "keep", "ignore", "added"

#: By class: its component, the shape and meaning of its masks, and what else was found of it.
HITS = {
    "separate_attention.py:CourseAttention": ("multi_head_attention", "any", KEEP, {}),
    "separate_attention.py:ClonedLinears": ("multi_head_attention", "no_heads", KEEP, {}),
    "separate_attention.py:UnnamedMatrices": ("multi_head_attention", "absent", KEEP, {"biases": "none"}),
    "separate_attention.py:SequenceFirst": ("multi_head_attention", "split", IGNORE, {"empty_row": "nan"}),
    "separate_attention.py:AdditiveMask": ("multi_head_attention", "any", ADDED, {"empty_row": "nan"}),
    "separate_attention.py:HeadList": ("multi_head_attention", "no_heads", KEEP, {"empty_row": "nan"}),
    "separate_attention.py:KeysWithoutBias": ("multi_head_attention", "any", KEEP, {"biases": "all"}),
    "separate_attention.py:HeadsOfWidthOut": ("multi_head_attention", "no_heads", KEEP, {"empty_row": "nan"}),
    "separate_attention.py:FreeWidths": ("multi_head_attention", "no_heads", KEEP, {"biases": "none"}),
    "separate_attention.py:KeysAndValuesFused": ("multi_head_attention", "keys", KEEP, {"biases": "not_in_q_k_v"}),
    "separate_attention.py:KernelCall": ("multi_head_attention", "four_axes", KEEP, {"empty_row": "zeros"}),
    "separate_attention.py:ValidLengths": ("multi_head_attention", "lengths", KEEP, {"biases": "none"}),
    "separate_attention.py:IgnoreMask": ("multi_head_attention", "any", IGNORE, {"empty_row": "nan"}),
    "separate_attention.py:EinsumHeads": ("multi_head_attention", "any", KEEP, {"biases": "all"}),
    "separate_attention.py:EinsumReads": ("multi_head_attention", "absent", KEEP, {"biases": "none"}),
    "separate_attention.py:NeedsMask": ("multi_head_attention", "no_heads", KEEP, {"empty_row": "zeros"}),
    "separate_attention.py:ListOfProjections": ("multi_head_attention", "any", KEEP, {"biases": "all"}),
    "separate_attention.py:GivenHeadWidth": ("multi_head_attention", "any", KEEP, {"biases": "all"}),
    "separate_attention.py:SwitchedCausal": ("multi_head_attention", "any", KEEP, {"biases": "all"}),
    "separate_attention.py:SoftmaxInFloat32": ("multi_head_attention", "any", KEEP, {"biases": "all"}),
    "fused_attention.py:VisionQkv": ("fused_multi_head_attention", "absent", KEEP, {}),
    "fused_attention.py:ConfiguredCausal": ("fused_multi_head_attention", "causal", KEEP, {}),
    "fused_attention.py:PerHeadChunks": ("fused_multi_head_attention", "any", KEEP, {}),
    "fused_attention.py:KeysFirst": ("fused_multi_head_attention", "keys", IGNORE, {"biases": "none"}),
    "fused_attention.py:WideSelf": ("fused_multi_head_attention", "absent", KEEP, {"biases": "not_in_q_k_v"}),
    "fused_attention.py:CausalHeads": ("fused_multi_head_attention", "causal", KEEP, {"biases": "not_in_q_k_v"}),
    "numpy_classes.py:Normalised": ("layer_norm", "absent", KEEP, {"layer_norm_eps": "1e-6"}),
    "numpy_classes.py:ManyHeads": ("multi_head_attention", "any", KEEP, {"biases": "all"}),
    "small_parts.py:Positionwise": ("feed_forward", "absent", KEEP, {}),
    "small_parts.py:SequentialNet": ("feed_forward", "absent", KEEP, {}),
    "small_parts.py:Convolutions": ("feed_forward", "absent", KEEP, {}),
    "small_parts.py:RawMatrices": ("feed_forward", "absent", KEEP, {"biases": "none"}),
    "small_parts.py:InnerAndOuter": ("feed_forward", "absent", KEEP, {"biases": "all"}),
    "small_parts.py:LlamaFeedForward": ("gated_feed_forward", "absent", KEEP, {"biases": "none"}),
    "small_parts.py:GemmaNetwork": ("gated_feed_forward", "absent", KEEP, {"gate_activation": "gelu_tanh"}),
    "small_parts.py:PackedGate": ("gated_feed_forward", "absent", KEEP, {"gate_activation": "gelu"}),
    "small_parts.py:ColumnsInTurn": ("gated_feed_forward", "absent", KEEP, {"gate_activation": "relu"}),
    "small_parts.py:OwnNorm": ("layer_norm", "absent", KEEP, {"layer_norm_eps": "1e-6"}),
    "small_parts.py:BertNorm": ("layer_norm", "absent", KEEP, {"layer_norm_eps": "1e-12"}),
    "small_parts.py:LlamaNorm": ("rms_norm", "absent", KEEP, {"rms_norm_eps": "1e-6", "rms_norm_weight": "w"}),
    "small_parts.py:GemmaNorm": ("rms_norm", "absent", KEEP, {"rms_norm_weight": "one_plus_w"}),
    "small_parts.py:NormOfTheAuthors": ("rms_norm", "absent", KEEP, {"rms_norm_eps_place": "outside"}),
    "small_parts.py:LibraryNorm": ("rms_norm", "absent", KEEP, {"rms_norm_eps": "1e-5"}),
    "small_parts.py:rms_norm": ("rms_norm", "absent", KEEP, {"rms_norm_eps": "1e-5"}),
    "rotary_parts.py:CourseRotary": ("rotary_embedding", "absent", KEEP, {"rope_pairing": "interleaved"}),
    "rotary_parts.py:PartialRotary": ("rotary_embedding", "absent", KEEP, {"rope_pairing": "half"}),
    "rotary_parts.py:TurnsBack": ("rotary_embedding", "absent", KEEP, {"rope_direction": "negative"}),
    "rotary_parts.py:rotary_embedding": ("rotary_embedding", "absent", KEEP, {"rope_pairing": "half"}),
    "small_parts.py:Sinusoids": ("positional_encoding", "absent", KEEP, {"odd_d_model": "refused"}),
    "small_parts.py:FrozenTable": ("positional_encoding", "absent", KEEP, {"odd_d_model": "refused"}),
    "small_parts.py:HalvedSinusoids": ("positional_encoding", "absent", KEEP, {"pe_layout": "concatenated"}),
    "small_parts.py:ShortTable": ("positional_encoding", "absent", KEEP, {"pe_layout": "interleaved"}),
    "small_parts.py:TableOfDevice": ("positional_encoding", "absent", KEEP, {"pe_layout": "interleaved"}),
    "small_parts.py:CourseTable": ("positional_encoding", "absent", KEEP, {"pe_layout": "interleaved"}),
    "small_parts.py:ScaledEmbedding": ("token_embedding", "absent", KEEP, {"embedding_scale": "sqrt_d_model"}),
    "small_parts.py:PlainEmbedding": ("token_embedding", "absent", KEEP, {"embedding_scale": "none"}),
    "grouped_queries.py:eager": ("grouped_query_attention", "any", KEEP, {"empty_row": "nan"}),
    "grouped_queries.py:without_copies": ("grouped_query_attention", "any", KEEP, {}),
    "grouped_queries.py:tiled": ("grouped_query_attention", "absent", KEEP, {"gqa_groups": "tile"}),
    "small_parts.py:attention": ("scaled_dot_product_attention", "any", KEEP, {}),
    "small_parts.py:attend": ("scaled_dot_product_attention", "any", ADDED, {"empty_row": "nan"}),
    "small_parts.py:attend_always_masked": ("scaled_dot_product_attention", "any", KEEP, {"empty_row": "nan"}),
    "small_parts.py:attend_in_numpy": ("scaled_dot_product_attention", "any", KEEP, {}),
    "small_parts.py:attend_to_rows": ("scaled_dot_product_attention", "absent", KEEP, {}),
    "small_parts.py:ScaledScores": ("scaled_dot_product_attention", "whole", IGNORE, {}),
    "small_parts.py:DividedByTemperature": ("scaled_dot_product_attention", "any", KEEP, {}),
    "small_parts.py:BatchedScores": ("scaled_dot_product_attention", "any", KEEP, {"empty_row": "nan"}),
    "small_parts.py:stable_softmax": ("softmax", "absent", KEEP, {}),
    "small_parts.py:NormOfRows": ("layer_norm", "absent", KEEP, {}),
    "small_parts.py:normalize": ("layer_norm", "absent", KEEP, {}),
    "small_parts.py:layer_norm": ("layer_norm", "absent", KEEP, {}),
    "ready_modules.py:ReadyLayer": ("encoder_layer", "no_heads", KEEP, {"norm_placement": "pre"}),
    "ready_modules.py:ReadyDecoderLayer": ("decoder_layer", "no_heads", KEEP, {"norm_placement": "pre"}),
    "ready_modules.py:ReadyEncoder": ("encoder", "no_heads", KEEP, {"final_norm": "after_stack"}),
    "masks_of_keys.py:ThreeMasks": ("decoder_layer", "split_rows", IGNORE, {"empty_row": "nan"}),
    "masks_of_keys.py:HidesTheFutureItself": ("decoder_layer", "causal_keys", IGNORE, {"empty_row": "nan"}),
    "masks_of_keys.py:HidesTheFutureAlone": ("decoder_layer", "causal", KEEP, {"later_tokens": "hidden_only"}),
    "masks_of_keys.py:JoinsMasks": ("decoder_layer", "any", IGNORE, {"norm_placement": "post"}),
    "whole_layers.py:LibraryLayer": ("encoder_layer", "flat", IGNORE, {"norm_placement": "post"}),
    "whole_layers.py:CourseBlock": ("encoder_layer", "any", KEEP, {"norm_placement": "post"}),
    "whole_layers.py:CalledAsAttention": ("encoder_layer", "any", KEEP, {"norm_placement": "post"}),
    "whole_layers.py:DecoderOfBlocks": ("decoder_layer", "any", KEEP, {"norm_placement": "post"}),
    "whole_layers.py:NormsMadeLast": ("encoder_layer", "any", KEEP, {"norm_placement": "post"}),
    "whole_layers.py:PreNormLayer": ("encoder_layer", "no_heads", KEEP, {"norm_placement": "pre"}),
    "whole_layers.py:PreNormDecoderLayer": ("decoder_layer", "no_heads", KEEP, {"layer_norm_eps": "1e-6"}),
    "whole_layers.py:NumberedProjections": ("decoder_layer", "any", KEEP, {"norm_placement": "post"}),
    "whole_layers.py:PostNormDecoderLayer": ("decoder_layer", "any", ADDED, {"norm_placement": "post"}),
    "whole_layers.py:LayerOfHeads": ("encoder_layer", "no_heads", KEEP, {"norm_placement": "post"}),
    "whole_layers.py:CausalLayerOfHeads": ("decoder_layer", "no_heads", KEEP, {"layer_norm_eps": "1e-6"}),
    "whole_layers.py:EncoderOfHeads": ("encoder", "no_heads", KEEP, {"final_norm": "none"}),
    "whole_layers.py:NormedEncoder": ("encoder", "no_heads", KEEP, {"final_norm": "after_stack"}),
    "cached_calls.py:CachedAttention": ("fused_multi_head_attention", "any", KEEP, {"biases": "all"}),
    "cached_calls.py:SizeOfHeads": ("multi_head_attention", "no_heads", IGNORE, {"biases": "none"}),
    "cached_calls.py:PlacesOfIds": ("positional_encoding", "absent", KEEP, {"odd_d_model": "refused"}),
    "cached_calls.py:DoubledLayer": ("encoder_layer", "absent", KEEP, {"biases": "not_in_attention"}),
    "cached_calls.py:FlatModel": ("transformer", "absent", KEEP, {"output_layer": "separate"}),
    "switched_calls.py:flash": ("scaled_dot_product_attention", "absent", KEEP, {}),
    "switched_calls.py:flash_from_the_end": ("scaled_dot_product_attention", "absent", KEEP, {}),
    "switched_calls.py:attend_with_both": ("scaled_dot_product_attention", "any", KEEP, {"empty_row": "zeros"}),
    "switched_calls.py:attend_with_hint": ("scaled_dot_product_attention", "any", KEEP, {"empty_row": "zeros"}),
    "switched_calls.py:kernel_of_one_width": ("scaled_dot_product_attention", "absent", KEEP, {}),
    "switched_calls.py:attend_with_bias": ("scaled_dot_product_attention", "any", KEEP, {}),
    "switched_calls.py:SwitchedLayer": ("encoder_layer", "absent", KEEP, {"norm_placement": "post"}),
    # Its causal mask is for other calls.
    "switched_calls.py:ChoosesItsMask": ("encoder_layer", "absent", KEEP, {"norm_placement": "pre"}),
    "switched_calls.py:SeesABand": ("encoder_layer", "absent", KEEP, {"norm_placement": "pre"}),
    "configured_blocks.py:ConfiguredBlock": ("encoder_layer", "absent", KEEP, {"norm_placement": "pre"}),
    "configured_blocks.py:BlockOfNumbers": ("encoder_layer", "any", KEEP, {"norm_placement": "post"}),
    "llama_of_complex_turns.py:Transformer": ("decoder_only_model", "absent", KEEP, {"rms_norm_eps": "1e-5"}),
    "llama_of_halves.py:LlamaForCausalLM": ("decoder_only_model", "absent", KEEP, {"rope_pairing": "half"}),
    "llama_of_blocks.py:GPT": ("decoder_only_model", "absent", KEEP, {"output_layer": "without_bias"}),
    "llama_of_complex_turns.py:TransformerBlock": ("decoder_only_layer", "any", ADDED, {"rope_pairing": "interleaved"}),
    "llama_of_halves.py:LlamaDecoderLayer": ("decoder_only_layer", "any", ADDED, {"rope_pairing": "half"}),
    "llama_of_blocks.py:Block": ("decoder_only_layer", "absent", KEEP, {"rope_pairing": "half"}),
    "layers_of_tables.py:CosinesOfHeads": ("decoder_only_layer", "absent", KEEP, {"rope_pairing": "interleaved"}),
    "layers_of_tables.py:StackedTables": ("decoder_only_layer", "any", KEEP, {"rope_pairing": "interleaved"}),
    "layers_of_tables.py:TablesOfBatches": ("decoder_only_layer", "any", KEEP, {"rope_pairing": "half"}),
    "layers_of_tables.py:TablesOfPositions": ("decoder_only_layer", "absent", KEEP, {"rope_pairing": "interleaved"}),
    "blocks_of_their_own_turns.py:CausalBlock": ("decoder_only_layer", "absent", KEEP, {"rope_pairing": "half"}),
    "blocks_of_their_own_turns.py:MaskedBlock": ("decoder_only_layer", "any", KEEP, {"empty_row": "zeros"}),
    "whole_layers.py:NormedDecoder": ("decoder", "no_heads", KEEP, {"final_norm": "after_stack"}),
    "whole_layers.py:TiedStacks": ("transformer", "absent", KEEP, {"output_layer": "tied_with_bias"}),
    "whole_layers.py:TranslationModel": ("transformer", "absent", KEEP, {"output_layer": "separate"}),
    "whole_layers.py:TwoLimits": ("transformer", "absent", KEEP, {"output_layer": "separate"}),
    "whole_layers.py:SharedTable": ("transformer", "no_heads", KEEP, {"output_layer": "tied"}),
}

#: Classes with a mistake: the names of most decide how they are called.
DEFECTS = (
    "Unscaled", "ScaledByModel", "ScaledInSingle", "ScaledByWidth", "OverQueries", "MaskAfterSoftmax",
    "NoTransposeBack", "MaskIgnored", "NoProjection", "FusedUnscaled", "LinearFeedForward", "SwappedWaves",
    "GatedByUp", "GatedBySigmoid", "CentredRms", "RmsWithoutWeight", "MismatchedRotary", "CountingRotary",
    "WavesOfEveryChannel", "NoResidualLayer", "QueriesAsKeys", "BlockOfOneTooFar", "BlockOfNoMask", "SineScores",
    "OutputTwice", "SquaredReluNet", "MedianNorm", "SineBlock",
)  # fmt: skip


@pytest.fixture(autouse=True)
def imports_are_undone():
    with forget_modules(STYLES):
        yield


@pytest.mark.sample(8)
@pytest.mark.parametrize("place", HITS)
def test_correct_code_is_found_with_what_it_chose(place, spec):
    component, shape, polarity, declared = HITS[place]
    found = infer_adapter(f"{STYLES}/{place}", spec=spec)
    assert (found.fits, found.component) == (True, component)
    assert (found.wiring.mask.shape, found.wiring.mask.polarity) == (shape, polarity)
    assert declared.items() <= found.wiring.declared.items()


def test_code_that_always_hides_the_future_is_called_on_the_meta_device_too(spec):
    found = infer_adapter(f"{STYLES}/fused_attention.py:CausalHeads", spec=spec)
    bench = Bench(spec, found.adapter, "float32", "cpu")
    verdict = check_property(spec.properties["device-hygiene"], found.component, bench)
    assert verdict.status is Status.PASSED, verdict.message


def test_code_of_float32_is_called_in_float32(spec):
    found = infer_adapter(f"{STYLES}/separate_attention.py:SoftmaxInFloat32", spec=spec)
    assert "it works in float32, not in float64" in found.wiring.choices
    assert found.adapter.dtypes == ("float32",)
    assert 'DTYPES = ["float32"]' in found.write()


@pytest.mark.parametrize("place", ["cached_calls.py:PlacesOfIds", "small_parts.py:TableOfDevice"])
def test_tables_are_made_on_the_device_of_the_call(place, spec):
    found = infer_adapter(f"{STYLES}/{place}", spec=spec)
    bench = Bench(spec, found.adapter, "float32", "cpu")
    verdict = check_property(spec.properties["device-hygiene"], found.component, bench)
    assert verdict.status is Status.PASSED, verdict.message
    assert found.wiring.construction.arguments["device"] == "device"


@pytest.mark.parametrize(
    ("name", "switched", "declined"),
    [
        ("flash", ["sdpa-causal"], ["sdpa-padding-per-sample"]),
        ("flash_from_the_end", ["sdpa-causal"], ["sdpa-padding-per-sample"]),
        ("attend_with_both", ["sdpa-causal", "sdpa-padding-per-sample"], []),
        ("SwitchedLayer", ["enc-causal"], ["enc-padding"]),
    ],
)
def test_a_switch_is_set_where_the_mask_is_causal(name, switched, declined, spec):
    found = infer_adapter(f"{STYLES}/switched_calls.py:{name}", spec=spec)
    bench = Bench(spec, found.adapter, "float32", "cpu")
    verdicts = {check: judge_case(spec.cases[check], bench).verdict for check in (*switched, *declined)}
    assert [verdicts[check].status for check in switched] == [Status.PASSED] * len(switched)
    assert all("takes no mask but the causal one" in verdicts[check].message for check in declined)
    switch = found.wiring.arguments.switch
    assert f"{switch} of the call: True where the mask is causal, with as many queries as keys" in found.wiring.choices


def test_a_kernel_of_one_width_is_judged_with_values_of_every_width(spec):
    found = infer_adapter(f"{STYLES}/switched_calls.py:kernel_of_one_width", spec=spec)
    assert found.wiring.equal_widths
    bench = Bench(spec, found.adapter, "float32", "cpu")
    cases = [case for case in spec.cases_of("scaled_dot_product_attention") if not (case.error or case.cotangent)]
    for is_wide in (False, True):
        some = [c for c in cases if c.size < 2000 and (c.sizes["d_v"] > c.sizes["d_k"]) is is_wide]
        verdicts = [judge_case(case, bench).verdict for case in some]
        assert not [verdict.message for verdict in verdicts if verdict.bad]
        assert any(verdict.status is Status.PASSED for verdict in verdicts)


@pytest.mark.parametrize("name", ["flash_one_too_far", "attend_with_both_one_too_far"])
def test_a_mistake_that_only_a_switch_shows_fails(name, spec):
    found = infer_adapter(f"{STYLES}/switched_calls.py:{name}", spec=spec)
    assert (found.is_proven, found.fits) == (True, False)
    bench = Bench(spec, found.adapter, "float32", "cpu")
    assert judge_case(spec.cases["sdpa-causal"], bench).verdict.bad
    assert not judge_case(spec.cases["sdpa-distinct-sizes"], bench).verdict.bad


def test_the_mask_of_a_language_model_is_made_of_its_padding(spec):
    found = infer_adapter(f"{STYLES}/llama_of_halves.py:LlamaForCausalLM", spec=spec)
    assert found.wiring.arguments.call["attention_mask"] == "words"
    verdict = judge_case(spec.cases["dom-padding-between-words"], Bench(spec, found.adapter, "float32", "cpu")).verdict
    assert verdict.status is Status.PASSED


def test_tables_and_positions_are_said(spec):
    found = infer_adapter(f"{STYLES}/layers_of_tables.py:StackedTables", spec=spec)
    wiring = found.wiring
    assert wiring.construction.constants["layer_idx"] == 0
    assert {"start_pos": "start", "freqs_cis": "rotary"}.items() <= wiring.arguments.call.items()
    assert wiring.arguments.table_form == TableForm("stacked")
    found = infer_adapter(f"{STYLES}/layers_of_tables.py:CosinesOfHeads", spec=spec)
    assert found.wiring.arguments.call["cos_sin"] == "rotary"
    assert found.wiring.arguments.table_form == TableForm("halves", 4)
    found = infer_adapter(f"{STYLES}/layers_of_tables.py:TablesOfPositions", spec=spec)
    assert found.wiring.arguments.call["position_ids"] == "positions_of_batch"


def test_tables_of_another_form_hide_no_mistake(spec):
    found = infer_adapter(f"{STYLES}/layers_of_tables.py:OnlyQueriesTurn", spec=spec)
    assert (found.component, found.fits) == ("decoder_only_layer", False)
    assert (found.is_proven, found.doubt) == (False, "")


def test_another_order_of_key_heads_is_declared(spec, tmp_path):
    text = (STYLES / "llama_of_halves.py").read_text(encoding="utf-8")
    right, wrong = "torch.repeat_interleave(hidden_states, n_rep, dim=1)", "hidden_states.repeat(1, n_rep, 1, 1)"
    assert right in text
    (tmp_path / "tiled_heads.py").write_text(text.replace(right, wrong), encoding="utf-8")
    with forget_modules(tmp_path):
        found = infer_adapter(f"{tmp_path}/tiled_heads.py:LlamaForCausalLM", spec=spec)
    assert found.is_proven
    assert found.wiring.declared["gqa_groups"] == "tile"


def test_rows_without_a_key_are_no_second_mistake(spec, tmp_path):
    text = (STYLES / "llama_of_halves.py").read_text(encoding="utf-8")
    assert " * self.head_dim**-0.5" in text
    (tmp_path / "unscaled.py").write_text(text.replace(" * self.head_dim**-0.5", ""), encoding="utf-8")
    with forget_modules(tmp_path):
        found = infer_adapter(f"{tmp_path}/unscaled.py:LlamaDecoderLayer", spec=spec)
    assert found.wiring.declared["empty_row"] == "nan"


def test_hidden_states_are_no_logits(spec):
    with pytest.raises(InferenceError, match="LlamaModel: goldformer does not judge"):
        infer_adapter(f"{STYLES}/llama_of_halves.py:LlamaModel", spec=spec)


def test_an_empty_cache_is_said(spec):
    found = infer_adapter(f"{STYLES}/cached_calls.py:CachedAttention", spec=spec)
    assert found.wiring.arguments.call["layer_past"] is None


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", DEFECTS)
def test_a_mistake_is_never_taken_for_a_choice(name, spec):
    found = infer_adapter(f"{STYLES}/defective_parts.py:{name}", spec=spec)
    assert not found.fits
    assert not found.wiring.sequence_first


@pytest.mark.parametrize("name", ["only_the_first_head", "groups_last", "mixed_repeats", "wide_scale"])
def test_wrong_groups_are_not_taken_for_plain_attention(name, spec):
    found = infer_adapter(f"{STYLES}/grouped_queries.py:{name}", spec=spec)
    assert (found.component, found.fits) == ("grouped_query_attention", False)


@pytest.mark.parametrize("name", ["SineBlock"])
def test_code_with_a_mistake_is_declared_as_its_calls_show(name, spec):
    found = infer_adapter(f"{STYLES}/defective_parts.py:{name}", spec=spec)
    declared = found.wiring.declared
    assert (declared["norm_placement"], declared["later_tokens"]) == ("pre", "hidden_only")


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("SampleDeviationNorm", {"norm_divisor": "std_plus_eps", "layer_norm_eps": "1e-6"}),
        ("SampleDeviationLayer", {"norm_divisor": "std_plus_eps", "layer_norm_eps": "1e-6"}),
        ("GeluBlock", {"activation": "gelu", "norm_placement": "pre", "later_tokens": "hidden_only"}),
    ],
)
def test_what_the_code_names_is_declared(name, options, spec):
    found = infer_adapter(f"{STYLES}/defective_parts.py:{name}", spec=spec)
    assert found.fits
    assert options.items() <= found.wiring.declared.items()


@pytest.mark.sample(12)
@pytest.mark.parametrize("place", [place for place in HITS if "whole_layers" not in place])
def test_the_file_that_is_written_runs_by_itself(place, spec, tmp_path):
    text = infer_adapter(f"{STYLES}/{place}", spec=spec).write()
    for file in STYLES.glob("*.py"):
        (tmp_path / file.name).write_text(file.read_text(encoding="utf-8"), encoding="utf-8")
    (tmp_path / "adapter.py").write_text(text, encoding="utf-8")
    adapter = find_adapter(str(tmp_path / "adapter.py"), spec)
    assert (adapter.broken, adapter.hints) == ({}, ())
    bench = Bench(spec, adapter, "float32", "cpu")
    cases = (case for component in adapter.functions for case in spec.cases_of(component))
    some = [case for case in cases if case.size < 2000 and not case.random]
    verdicts = [judge_case(case, bench).verdict for case in some]
    assert [v.check for v in verdicts if v.bad] == []
    assert any(v.status is Status.PASSED for v in verdicts)


@pytest.mark.parametrize(
    ("name", "choice", "said"),
    [
        ("SequenceForgotten", "sequence-first", "encoder_layer only if the sequence comes before the batch"),
        ("MaskInverted", "ignore", "multi_head_attention only if True in its mask hides a key"),
        ("EncodingAlone", "addend", "positional_encoding only if its result still has to be added to x"),
    ],
)
def test_a_choice_that_a_mistake_looks_like_must_be_said(name, choice, said, spec):
    question = (
        f"golden values fit {name} as {said}, and nothing in its code says so. If it is meant, pass --accept {choice}"
    )
    with pytest.raises(InferenceError, match=question):
        infer_adapter(f"{STYLES}/defective_parts.py:{name}", spec=spec)
    assert infer_adapter(f"{STYLES}/defective_parts.py:{name}", spec=spec, accept=[choice]).fits


def test_a_mask_that_cannot_be_given_is_handed_over_all_the_same(spec):
    found = infer_adapter(f"{STYLES}/defective_parts.py:MaskCompared", spec=spec)
    assert not found.is_proven
    verdict = judge_case(spec.cases["mha-distinct-sizes-causal"], Bench(spec, found.adapter, "float32", "cpu")).verdict
    assert "Boolean value of Tensor with more than one value is ambiguous" in verdict.message


def test_a_name_says_what_true_means_where_values_decide_nothing(spec):
    found = infer_adapter(f"{STYLES}/defective_parts.py:SineOfPadded", spec=spec)
    assert (found.is_proven, found.wiring.mask.polarity) == (False, "ignore")


def test_a_table_is_as_long_as_the_longest_sequence(spec):
    found = infer_adapter(f"{STYLES}/small_parts.py:ShortTable", spec=spec)
    verdict = judge_case(spec.cases["pe-5000"], Bench(spec, found.adapter, "float32", "cpu")).verdict
    assert verdict.status is Status.PASSED, verdict.message


def test_a_pair_of_mistaken_weights_is_not_permuted_into_a_right_one(spec):
    found = infer_adapter(f"{STYLES}/defective_parts.py:QueriesAsKeys", spec=spec)
    assert found.wiring.naming.names["w_q"] == "w_q.weight"
    assert not found.is_proven


def test_an_object_is_inferred_by_its_class_and_the_choices_it_was_made_with(spec):
    found = infer_adapter(nn.TransformerEncoderLayer(16, 2, 32, norm_first=True), spec=spec)
    assert (found.is_proven, found.wiring.declared["norm_placement"]) == (True, "pre")
    assert found.wiring.construction.constants["norm_first"] is True


#: The code of a norm whose class does not show its eps.
HIDDEN_EPS = """
import torch
from torch import nn

EPS = float("{eps}")

class Norm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS) * self.weight
"""


# Not the option next to it, which is right to float32.
@pytest.mark.parametrize(
    ("name", "convention", "number"),
    [
        ("LayerOfOtherEps", "layer_norm_eps", "1e-10"),
        ("EncoderOfOtherEps", "layer_norm_eps", "1e-10"),
        ("NormOfOddEps", "layer_norm_eps", "3e-9"),
        ("Norm", "rms_norm_eps", "1e-8"),
        ("Norm", "rms_norm_eps", "2.5e-4"),
    ],
)
def test_an_eps_of_any_number_is_declared(name, convention, number, spec, tmp_path):
    path = Path(STYLES) / "defective_parts.py"
    if name == "Norm":
        (path := tmp_path / "norm.py").write_text(HIDDEN_EPS.format(eps=number))
    found = infer_adapter(f"{path}:{name}", spec=spec)
    assert found.fits
    assert found.wiring.declared[convention] == number


class SecondIsGate(nn.Module):
    """Its matrices have Llama's names, and its activation is on the other one."""

    def __init__(self, dim, hidden_dim):
        super().__init__()
        self.w1, self.w3 = (nn.Linear(dim, hidden_dim, bias=False) for _ in range(2))
        self.w2 = nn.Linear(hidden_dim, dim, bias=False)

    def forward(self, x):
        return self.w2(self.w1(x) * nn.functional.silu(self.w3(x)))


def test_a_gate_that_numbers_do_not_suggest_is_said(spec):
    found = infer_adapter(SecondIsGate, spec=spec)
    assert (found.fits, found.wiring.choices) == (True, ("w3.weight is the gate",))


def test_the_masks_of_the_librarys_decoder_layer_are_told_apart(spec):
    found = infer_adapter(nn.TransformerDecoderLayer(16, 2, 32), spec=spec)
    assert (found.fits, found.wiring.mask.shape) == (True, "split")
    assert (found.wiring.arguments.masks, found.wiring.arguments.paddings) == (
        {"self_mask": "tgt_mask", "memory_mask": "memory_mask"},
        {"self_mask": "tgt_key_padding_mask", "memory_mask": "memory_key_padding_mask"},
    )


def test_a_mask_of_padded_keys_that_is_lost_fails(spec):
    found = infer_adapter(f"{STYLES}/masks_of_keys.py:PaddingOfTargetsLost", spec=spec)
    assert (found.is_proven, found.fits) == (True, False)


def test_a_mask_that_is_not_used_is_said(spec):
    found = infer_adapter(f"{STYLES}/masks_of_keys.py:JoinsMasks", spec=spec)
    assert "tgt_padding_mask of the call: not used, all masks go to the other argument" in found.wiring.choices


def test_ready_modules_are_said_with_the_calls_that_build_them(spec):
    found = infer_adapter(f"{STYLES}/ready_modules.py:ReadyLayer", spec=spec)
    assert '"self_attn": Made(ClonedLinears, {"h": "heads", "d_model": "width"' in found.write()
    assert "from ready_modules import ReadyLayer, ClonedLinears, Positionwise" in found.write().splitlines()


class CountedLayers(nn.Module):
    """A number of layers is no ready layer, however it is called."""

    def __init__(self, d_model, layer_count):
        super().__init__()
        self.layers = nn.ModuleList([nn.Bilinear(d_model, d_model, d_model) for _ in range(layer_count)])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x, x)
        return x


class ConstantSizes(nn.Module):
    """Its sizes are constants."""

    def __init__(self, dropout=0.1):
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(8, 8) for _ in range(4))

    def forward(self, q, k, v, mask=None):
        return self.out(((self.q(q) @ self.k(k).mT) / 8**0.5).softmax(-1) @ self.v(v))


class NoSizes(nn.Module):
    """Nothing says how to build it."""

    def __init__(self, parts):
        super().__init__()
        self.first = parts[0]

    def forward(self, x):
        return self.first(x)


class TakesParts(nn.Module):
    """Nothing here gives its parts."""

    def __init__(self, size, self_attn, feed_forward, dropout):
        super().__init__()
        self.self_attn, self.feed_forward = self_attn, feed_forward

    def forward(self, x, mask):
        return self.feed_forward(x + self.self_attn(x, x, x, mask))


class TakesClasses(nn.Module):
    """Nothing here gives its parts, which it builds itself."""

    def __init__(self, hid_dim, n_heads, self_attention, feed_forward):
        super().__init__()
        self.sa, self.ff = self_attention(hid_dim, n_heads), feed_forward(hid_dim)

    def forward(self, src, src_mask):
        return self.ff(src + self.sa(src, src, src, src_mask))


class ScaledBy(nn.Module):
    """No name says if its number multiplies or divides the scores."""

    def __init__(self, alpha):
        super().__init__()
        self.alpha = alpha

    def forward(self, q, k, v):
        return (q @ k.mT / self.alpha).softmax(-1) @ v


class OneWidthOnly(nn.Module):
    """It can be built only where the heads share the width of the model, and is no component."""

    def __init__(self, d_model, d_head, n_heads):
        super().__init__()
        if d_model != d_head * n_heads:
            raise ValueError("d_model must be a multiple of d_head")
        self.one = nn.Linear(d_model, d_model)

    def forward(self, x):
        return self.one(x)


class ProjectsNothing(nn.Module):
    """An attention without projections but the last."""

    def __init__(self, d_model, heads):
        super().__init__()
        self.heads, self.out = heads, nn.Linear(d_model, d_model)

    def forward(self, q, k, v):
        q, k, v = (x.unflatten(-1, (self.heads, -1)).transpose(1, 2) for x in (q, k, v))
        return self.out(((q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v).transpose(1, 2).flatten(2))


def layer_norm(x, eps=1e-6):
    """Return normalised rows, as a softmax would be called."""
    return (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + eps)


class Doubled(nn.Module):
    """An input of any kind, and a result of its shape."""

    def forward(self, anything):
        raise RuntimeError("not today")


@pytest.mark.parametrize(
    ("what", "component", "message"),
    [
        (3, None, "an adapter is inferred for an nn.Module class, an object of one, or a function, not for 3"),
        (lambda x: x, None, "a lambda has no name that an adapter could import: give it one with def"),
        (
            dict,
            None,
            "an adapter is inferred for .*, not for dict, a class without forward or __call__",
        ),
        (
            nn.LayerNorm,
            "beam_search",
            "beam_search: no adapter is inferred for it; components are transformer, decoder_only_model,",
        ),
        (
            nn.LayerNorm,
            "softmax",
            "LayerNorm has arguments or parameters that softmax has not. `goldformer new` writes",
        ),
        (NoSizes, None, r"NoSizes cannot be built: NoSizes\(parts=12\) raises TypeError: .* Give a subclass"),
        (
            TakesParts,
            None,
            "TakesParts takes arguments for which its file has no class: self_attn and feed_forward. Import "
            r"a class there, give a default, or write a subclass that builds them: "
            r"def __init__\(self, d_model, num_heads, d_ff\): "
            r"super\(\).__init__\(size=…, self_attn=YourClass\(…\), feed_forward=YourClass\(…\), dropout=…\)",
        ),
        (
            TakesClasses,
            None,
            r"super\(\).__init__\(hid_dim=…, n_heads=…, self_attention=YourClass, feed_forward=YourClass\)",
        ),
        (
            ScaledBy,
            None,
            "ScaledBy has arguments .* Nothing says the meaning of alpha in its constructor: a subclass",
        ),
        (layer_norm, None, r"layer_norm takes \(x, eps\), which are not the inputs and parameters that layer_norm has"),
        (OneWidthOnly, None, "OneWidthOnly has arguments or parameters that no component has. Its arguments are"),
        (
            ProjectsNothing,
            None,
            r"Its arguments are \(q, k, v\): compare its parameters with those that `goldformer explain multi_head",
        ),
        (
            f"{STYLES}/configured_blocks.py:TakesNorm",
            None,
            r"TakesNorm takes arguments for which its file has no class: norm\. Import",
        ),
        (CountedLayers, None, "CountedLayers has arguments or parameters that no component has"),
        (
            ConstantSizes,
            None,
            "ConstantSizes takes no sizes in its constructor, and every golden case has sizes of its own: give",
        ),
        (
            Doubled,
            None,
            "Doubled is taken for a helper: no golden value fits, and neither its name nor .* pass --component",
        ),
        (
            f"{STYLES}/whole_layers.py:PlainEncoder",
            None,
            r"PlainEncoder cannot be built: PlainEncoder\(num_layers=5\) rai",
        ),
        (
            f"{STYLES}/small_parts.py:subsequent_mask",
            None,
            "subsequent_mask has the arguments .* but no call of it works",
        ),
        ("no_such_module", None, "no_such_module: give FILE.py:NAME or package.module:NAME"),
        (f"{STYLES}/fused_attention.py", None, "name one of its classes or functions, as .*:NAME; it has VisionQkv,"),
        (
            f"{STYLES}/fused_attention.py:Missing",
            None,
            "fused_attention.py has no Missing; it has VisionQkv, Configured",
        ),
    ],
)
def test_what_cannot_be_told_is_asked(what, component, message, spec):
    with pytest.raises(InferenceError, match=message):
        infer_adapter(what, component, spec)


def test_the_styles_are_all_tried():
    tried = {place.partition(":")[0] for place in HITS} | {"defective_parts.py", "sessions.py"}
    assert tried == {path.name for path in Path(STYLES).glob("*.py")}


#: By class: what takes keys and values of earlier calls, how many tokens a call takes, and the fate of the state.
SESSIONS = {
    "BuffersFromStart": ("", "any", "consumed"),
    "PairOfArrays": ("kv_cache", "any", "kept"),
    "ObjectThatUpdates": ("cache", "any", "consumed"),
    "OnlyIfAsked": ("layer_past", "any", "kept"),
    "PlacesOfTokens": ("", "any", "consumed"),
    "OneTokenLater": ("kv_cache", "one_after", "kept"),
}
WRONG_SESSIONS = ("SwapsKeysAndValues", "MasksFromTheFirstKey", "WritesOnePlaceLater")


def judge_sessions(adapter, spec):
    """Return the verdicts of the small sessions of attention."""
    bench = Bench(spec, adapter, "float32", "cpu")
    cases = [case for case in spec.cases_of("cached_attention") if case.size < 2000 and not case.error]
    return [judge_case(case, bench).verdict for case in cases]


@pytest.mark.parametrize("name", SESSIONS)
def test_classes_that_keep_keys_and_values_are_judged_in_sessions(spec, name):
    found = infer_adapter(f"{STYLES}/sessions.py:{name}", spec=spec)
    argument, tokens, state = SESSIONS[name]
    assert (found.session.cache.argument, found.session.cache.tokens) == (argument, tokens)
    assert found.session.declared.get("cache_state", "kept") == state
    verdicts = judge_sessions(found.adapter, spec)
    assert not [verdict.message for verdict in verdicts if verdict.bad]
    assert sum(verdict.status is Status.PASSED for verdict in verdicts) >= 10


@pytest.mark.parametrize("name", WRONG_SESSIONS)
def test_a_wrong_cache_fails(spec, name):
    found = infer_adapter(f"{STYLES}/sessions.py:{name}", spec=spec)
    assert found.fits
    assert any(verdict.bad for verdict in judge_sessions(found.adapter, spec))


def test_an_adapter_with_a_cache_can_be_written_and_read(spec, tmp_path):
    found = infer_adapter(f"{STYLES}/sessions.py:ObjectThatUpdates", spec=spec)
    place = tmp_path / "written.py"
    place.write_text(found.write(str(STYLES)))
    adapter = find_adapter(str(place), spec)
    assert {"fused_multi_head_attention", "cached_attention"} == adapter.functions.keys()
    assert not any(verdict.bad for verdict in judge_sessions(adapter, spec))
