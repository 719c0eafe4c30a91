"""The neighbours of the textbook: each shows in a case, has its own sentence, and is named where it is made."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from goldformer.adapters.protocol import Adapter
from goldformer.adapters.textbook.build import build_textbook
from goldformer.conformance.diagnosis.catalogue import Catalogue
from goldformer.conformance.diagnosis.explain import Diagnosis
from goldformer.conformance.diagnosis.finding import BECAUSE, CLOSEST, MISTAKE_FOUND, OPTION_FOUND
from goldformer.conformance.diagnosis.findings import diagnose
from goldformer.conformance.diagnosis.imitation import Imitator
from goldformer.conformance.diagnosis.mistakes import implementations
from goldformer.conformance.diagnosis.mistakes.places import HALVES, TRACKED, restrict_to
from goldformer.conformance.diagnosis.neighbours import find_made, find_neighbour, neighbours
from goldformer.conformance.judging.cases import Bench, judge_case
from goldformer.spec.formulas.attention import scaled_dot_product_attention
from goldformer.spec.formulas.options import OPTIONS

#: Some neighbours show only under an option that is not the default.
UNDER = (
    {},
    {"norm_placement": "pre"},
    {"positions": "learned"},
    {"final_norm": "after_stack"},
    {"length_penalty": "mean"},
    {"length_penalty": "gnmt"},
    {"layer_norm_eps": "1e-6"},
    {"output_layer": "tied"},
)


def make_bench(spec, steps, component, conventions):
    layers = [OPTIONS[item] for item in conventions.items() if item in OPTIONS]
    book = build_textbook(*layers, steps, only=component, CONVENTIONS=conventions)
    return Bench(spec, Adapter.from_object(book, "mine.py", spec), "float32", "cpu")


def small_cases(spec, component, *, gradients=False):
    """Return small cases, but not the smallest first: in these many mistakes look alike."""
    # Statistics take thousands of elements.
    listed = (c for c in spec.cases_of(component) if c.error is None and (c.random or c.size < 5000))
    cases = (case for case in listed if (case.cotangent is not None) is gradients)
    ordered = sorted(cases, key=lambda case: case.size)
    return ordered[len(ordered) // 3 :] + ordered[: len(ordered) // 3]


def diagnose_cases(bench, cases):
    judgements = [judge_case(case, bench) for case in cases]
    return list(diagnose(Diagnosis(bench.spec).explain_all(judgements), bench.spec))


def find_said(spec, neighbour, component, most=None):
    bench = make_bench(spec, neighbour.steps, component, {})
    cases = small_cases(spec, component, gradients=neighbour.backward)[:most]
    return diagnose_cases(bench, cases)


def test_there_are_hundreds_with_ids_and_sentences_of_their_own(spec):
    made = neighbours()
    assert len(made) > 600
    assert len({(n.component, n.title) for n in made.values()}) == len(made)
    assert not made.keys() & implementations().keys()
    for neighbour in made.values():
        assert ": " not in neighbour.id
        assert " in " not in neighbour.id
        assert neighbour.component in spec.components
        assert neighbour.title[0].islower() or neighbour.title[0] == "Q"
        assert not neighbour.title.endswith(".")
        assert neighbour.hint.endswith(".")
        assert find_made(neighbour.id).steps == neighbour.steps


@pytest.mark.sample(2)
@pytest.mark.parametrize("component", sorted({neighbour.component for neighbour in neighbours().values()}))
def test_each_shows_in_a_case_of_its_component(component, spec):
    idle = [
        neighbour.id
        for neighbour in neighbours().values()
        if neighbour.component == component
        # Slips of code in blocks show in large calls: test_blocks.py has them.
        and not neighbour.in_blocks
        and not any(
            judge_case(case, bench).verdict.bad
            for conventions in UNDER
            for bench in [make_bench(spec, neighbour.steps, neighbour.component, conventions)]
            for case in small_cases(spec, neighbour.component, gradients=neighbour.backward)
        )
    ]
    assert idle == []


def test_none_changes_the_dtype(spec):
    """A number of NumPy's own makes float64 of float32, and then a neighbour explains nothing."""
    wider = []
    for neighbour in neighbours().values():
        case = small_cases(spec, neighbour.component, gradients=neighbour.backward)[0]
        verdict = judge_case(case, make_bench(spec, neighbour.steps, neighbour.component, {})).verdict
        wider += [neighbour.id] if verdict.reason == "wrong-dtype" else []
    assert wider == []


@pytest.mark.sample(6)
@pytest.mark.parametrize(
    "id_",
    [
        "scaled_dot_product_attention.divisor.root.d_k_plus_one",
        "scaled_dot_product_attention.mask.always-causal",
        "scaled_dot_product_attention.mask.always-causal-too",
        "layer_norm.beta-first",
        "positional_encoding.exponent.odd",
        "feed_forward.activation.elu",
        "cross_entropy.log-of-softmax.1e-09",
        "cross_entropy.log-of-softmax.one-hot",
        "softmax.softmax.array-maximum",
        "scaled_dot_product_attention.mask.inverted-added-1e4",
        "decoder_layer.self_mask.always-causal",
        "decoder_layer.self_mask.always-causal-too",
        "transformer.memory.words",
        "positional_encoding.waves.only-cosines",
        "encoder.from-input",
        "layer_norm.backward.no-variance-term",
        "feed_forward.backward.biases-averaged",
        "feed_forward.backward.all.halved",
        "scaled_dot_product_attention.backward.weights-without-mask",
        "multi_head_attention.inputs.q-v-k",
        "multi_head_attention.fused.kv.head-part-channel.of.part-head-channel",
        "label_smoothing.own-whole",
        "cross_entropy.padding-added",
        "pad_or_truncate.padded-in-front",
        "single_head_attention_step.w_v.ascent",
        "scaled_dot_product_attention.backward.key.not-transposed",
        "encoder_layer.backward.self-attention.residual-forgotten",
        "scaled_dot_product_attention.backward.key.scale.1",
        "multi_head_attention.backward.biases-averaged",
        "multi_head_attention.backward.qkv-not-projected-back",
        "multi_head_attention.backward.k-not-projected-back",
        "fused_multi_head_attention.backward.weights-mixed",
        "feed_forward.backward.weights-mixed",
        "feed_forward.backward.weights-over-batch",
        "encoder.positions-per-layer",
        "cross_entropy.backward.padding-kept",
        "transformer.decoded.divided",
        "encoder_layer.order.feed_forward.self_attention.own-norms",
        "decoder_layer.order.self_attention.feed_forward.cross_attention.norms-in-place",
        "greedy_decode.sees.last-two",
        "greedy_decode.reads.bos",
        "kl_divergence.reversed-finite",
        "layer_norm.backward.gamma-times-gamma",
        "greedy_decode.position.one-more-after-bos",
        "greedy_decode.score.without-eos",
        "greedy_decode.last-word-left-out",
        "beam_search.ended-dropped",
        "beam_search.best-extended",
        "greedy_decode.score.after-end.best.max-length",
        "greedy_decode.score.after-end.pad.longest",
        "encoder.first-left-out",
        "cross_entropy.base-two",
        "softmax.softmax.sum-over-samples",
        "feed_forward.backward.b_1-of-first-sample",
        "multi_head_attention.qkv.without-biases",
        "cross_entropy.log-softmax-over-tokens",
        "transformer.logits.log-softmax",
        "padding_mask.inverted",
        "causal_mask.inverted",
        "layer_norm.variance-along-tokens",
        "multi_head_attention.edit@multi_head_attention/b_v@read:multi_head_attention/b_k",
        "multi_head_attention.edit@multi_head_attention/*_k@exchange-part:*_q",
        "multi_head_attention.edit@merge_heads/heads@laid:0123:2013",
        "multi_head_attention.edit@project_heads/result@laid:2013:1023",
        "fused_multi_head_attention.edit@split_fused/result.2@laid:0213:0231",
        "scaled_dot_product_attention.edit@weigh_keys/mask@mask:self-never",
        "scaled_dot_product_attention.edit@scaled_dot_product_attention/result.weights@reshaped:-2:-1",
        "feed_forward.edit@feed_forward/x@unread:-2:-1",
        "encoder_layer.edit@feed_through/result.0@twice",
        "decoder_layer.edit@decoder_layer/norm_#@share:last",
        "decoder_layer.memory-normed-by.cross_attention",
        "decoder_layer.edit@decoder_layer/norm_3@read-part:norm_1",
        "decoder_layer.edit@cross_attend/x@read:add_residual/x",
    ],
)
def test_it_is_named_in_its_own_component(spec, id_):
    neighbour = find_neighbour(id_)
    said = find_said(spec, neighbour, neighbour.component, 12)
    (found,) = (finding for finding in said if finding.label == MISTAKE_FOUND)
    assert found.mistakes == (id_,)
    assert found.text.startswith(neighbour.title[0].upper() + neighbour.title[1:] + ". It reproduces your output in ")
    assert found.text.endswith(neighbour.hint)


@pytest.mark.parametrize(("id_", "whole"), [("layer_norm.mean-twice", "encoder_layer")])
def test_it_is_named_in_a_larger_component(spec, id_, whole):
    said = find_said(spec, neighbours()[id_], whole, 8)
    assert [finding.mistakes for finding in said if finding.label == MISTAKE_FOUND] == [(id_,)]


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "id_",
    [
        "transformer.positions-scaled-source",
        "transformer.embedding-divided-positions-missing-target",
        "transformer.embedding-normed",
    ],
)
def test_what_enters_the_first_layer_is_named_under_what_is_declared(id_, spec):
    changed = neighbours()[id_]
    conventions = {"positions": "learned", "embedding_scale": "sqrt_d_model"}
    bench = make_bench(spec, changed.steps, "transformer", conventions)
    said = diagnose_cases(bench, small_cases(spec, "transformer"))
    assert [finding.mistakes for finding in said if finding.label == MISTAKE_FOUND] == [(id_,)]


def without_weights(steps, component, **conventions):
    """The textbook with a change, which returns its first output alone."""
    layers = [OPTIONS[item] for item in conventions.items()]
    book = build_textbook(*layers, steps, only=component)
    called = getattr(book, component)

    def first(**given):
        return called(**given)["output"]

    return SimpleNamespace(ARRAYS="numpy", NAME="book", CONVENTIONS=conventions, **{component: first})


@pytest.mark.parametrize(
    ("id_", "advice"),
    [
        ("layer_norm.eps.1e-10", 'Declare CONVENTIONS = {"layer_norm_eps": "1e-10"} in the adapter, or fix it.'),
        ("layer_norm.eps.zero", "Add the declared eps, the same in every norm."),
        ("positional_encoding.input-scaled", "declare embedding_scale: sqrt_d_model for the model"),
    ],
)
def test_what_may_be_meant_is_told_how_to_be_checked(id_, advice, spec):
    neighbour = neighbours()[id_]
    said = find_said(spec, neighbour, neighbour.component, 12)
    (found,) = (f for f in said if f.label in (MISTAKE_FOUND, OPTION_FOUND))
    assert advice in found.text


def test_keys_and_values_of_another_length_are_named(spec):
    """Nobody sees the shape of weights that are not returned."""
    id_ = "multi_head_attention.inputs.q-q-q"
    edit = find_neighbour("decoder_layer.edit@cross_attend/memory@read:cross_attend/x")
    book = without_weights(edit.steps, "decoder_layer", norm_placement="pre")
    bench = Bench(spec, Adapter.from_object(book, "mine.py", spec), "float32", "cpu")
    said = diagnose_cases(bench, small_cases(spec, "decoder_layer"))
    assert [finding.mistakes for finding in said if finding.label == MISTAKE_FOUND] == [(id_,)]


def test_a_backward_pass_of_its_own_refutes_nothing_in_the_forward_pass(spec):
    """Gradients that are right, or wrong in another way, say nothing of a forward pass that is wrong."""
    id_ = "softmax.softmax.sigmoid"
    book = build_textbook(neighbours()[id_].steps, only="single_head_attention")
    right = build_textbook(only="single_head_attention").single_head_attention_gradient
    own = SimpleNamespace(**{**vars(book), "single_head_attention_gradient": right})
    bench = Bench(spec, Adapter.from_object(own, "mine.py", spec), "float32", "cpu")
    judgements = [judge_case(case, bench) for case in spec.cases_of("single_head_attention")]
    assert any(j.case.cotangent is not None and not j.verdict.bad for j in judgements)
    said = list(diagnose(Diagnosis(spec).explain_all(judgements), spec))
    assert [finding.mistakes for finding in said if finding.label == MISTAKE_FOUND] == [(id_,)]


def test_the_catalogue_comes_first(spec):
    """The divisor √d_v is a mistake of the catalogue, with a text by hand."""
    said = find_said(
        spec, neighbours()["scaled_dot_product_attention.divisor.root.d_v"], "scaled_dot_product_attention"
    )
    assert [finding.mistakes for finding in said if finding.label == MISTAKE_FOUND] == [("scale-dim-v",)]


def test_one_that_a_passing_case_rules_out_is_not_named(spec):
    """The mask of the first sample for all looks like a mask without its second sample, where there are two."""

    def attend(query, key, value, mask=None):
        if mask is not None and query.ndim == 3 and mask.any(-1).all():
            mask = np.broadcast_to(mask, (*query.shape[:-1], key.shape[-2]))[:1]
        return scaled_dot_product_attention(query, key, value, mask)

    component = "scaled_dot_product_attention"
    one = SimpleNamespace(ARRAYS="numpy", scaled_dot_product_attention=attend)
    bench = Bench(spec, Adapter.from_object(one, "mine.py", spec), "float32", "cpu")
    judgements = [judge_case(case, bench) for case in small_cases(spec, component)]
    said = list(diagnose(Diagnosis(spec).explain_all(judgements), spec))
    named = {id_ for finding in said if finding.label in (MISTAKE_FOUND, CLOSEST) for id_ in finding.mistakes}
    assert any(judgement.verdict.bad for judgement in judgements)
    assert not named & neighbours().keys()


def test_an_option_that_permits_to_refuse_is_no_part_of_a_mistake_where_a_result_is_returned(spec):
    """An encoding of one channel is returned, and its sine is wrong like all others."""
    conventions = {"odd_d_model": "refused"}
    steps = find_made("pe-start-one").steps
    book = build_textbook(steps, only="positional_encoding", CONVENTIONS=conventions)
    bench = Bench(spec, Adapter.from_object(book, "mine.py", spec), "float32", "cpu")
    even = [case for case in small_cases(spec, "positional_encoding") if case.sizes["d_model"] % 2 == 0]
    cases = [*even, spec.cases["pe-odd-1"]]
    (found,) = (finding for finding in diagnose_cases(bench, cases) if finding.label == MISTAKE_FOUND)
    assert found.text.startswith("pe-start-one, positions start at 1. It reproduces")


def test_a_larger_scale_widens_what_chance_may_move(spec):
    """Nine times as large, a mean moves nine times as far with the draw."""

    def dropout(x, *, rate, training=True, seed=0):
        if not training or rate in (0, 1):
            return x * x.dtype.type(not training or rate < 1)
        kept = np.random.default_rng(seed + 7).random(x.shape) >= rate
        return (x * kept / x.dtype.type(rate)).astype(x.dtype)

    one = SimpleNamespace(ARRAYS="numpy", dropout=dropout)
    bench = Bench(spec, Adapter.from_object(one, "mine.py", spec), "float32", "cpu")
    said = diagnose_cases(bench, [case for case in spec.cases_of("dropout") if case.error is None])
    assert [(f.label, f.mistakes) for f in said if f.mistakes] == [(MISTAKE_FOUND, ("dropout.divided-by-rate",))]


def test_ended_sentences_that_are_extended_are_told_from_scores_that_go_on(spec):
    """Where all have ended, a search that never ends goes on, and one that extends them does not."""
    id_, conventions = "beam_search.ended-extended", {"biases": "none", "layer_norm_eps": "1e-6"}
    bench = make_bench(spec, neighbours()[id_].steps, "beam_search", conventions)
    names = ("beam-small-two-sentences", "beam-small-four-steps", "beam-plain-post-norm-every-eps")
    said = diagnose_cases(bench, [spec.cases[name] for name in names])
    assert [(f.label, f.mistakes) for f in said if f.mistakes] == [(MISTAKE_FOUND, (id_,))]


def test_a_search_that_returns_one_sentence_without_its_score_is_told_by_what_passes(spec):
    """By its words alone, the loss of ended sentences looks like a sum of probabilities."""
    book = build_textbook(neighbours()["beam_search.ended-dropped"].steps, only="beam_search", CONVENTIONS={})

    def beam_search(source, **others):
        if others["top_beams"] != 1 or others["bos_id"] == others["eos_id"]:
            raise NotImplementedError("the best sentence only")
        return book.beam_search(source, **others)["ids"]

    code = SimpleNamespace(ARRAYS="numpy", beam_search=beam_search)
    bench = Bench(spec, Adapter.from_object(code, "mine.py", spec), "float32", "cpu")
    cases = [case for case in spec.cases_of("beam_search") if case.error is None and not case.full_size]
    said = diagnose_cases(bench, cases)
    assert [(f.label, f.mistakes) for f in said if f.mistakes] == [(MISTAKE_FOUND, ("beam_search.ended-dropped",))]


def test_an_axis_that_is_counted_from_the_front_is_one_mistake(spec):
    """It is the sequence in a call with three axes, the heads in one with four, and d_k in one with two."""
    id_ = "scaled_dot_product_attention.divisor.root.axis-1"
    bench = make_bench(spec, neighbours()[id_].steps, "scaled_dot_product_attention", {})
    cases = [spec.cases[name] for name in ("sdpa-primer-batched", "sdpa-four-axes", "sdpa-walkthrough-3x2")]
    said = diagnose_cases(bench, cases)
    assert [(f.label, f.mistakes) for f in said if f.mistakes] == [(MISTAKE_FOUND, (id_,))]


def test_what_a_stack_does_with_its_layers_is_not_named_in_one_layer(spec):
    """A model that normalises its memory once more is not one that normalises after every layer."""
    id_ = "encoder.final-norm-twice"
    bench = make_bench(spec, neighbours()[id_].steps, "transformer", {"final_norm": "after_stack"})
    said = diagnose_cases(bench, small_cases(spec, "transformer")[:12])
    assert [(f.label, f.mistakes) for f in said if f.mistakes] == [(MISTAKE_FOUND, (id_,))]


def test_nothing_idle_is_found_on_top_of_what_explains_the_parts(spec):
    """A mistake that shows nothing in a case would be found there with each cause that explains it."""
    neighbour, conventions = neighbours()["transformer.final-norms-first"], {"final_norm": "after_stack"}
    judgements = [
        judge_case(case, make_bench(spec, neighbour.steps, component, conventions))
        for component in ("decoder", "encoder", "transformer")
        for case in [c for c in small_cases(spec, component) if "final_norm" in c.conventions][:4]
    ]
    verdicts = Diagnosis(spec).explain_all(judgements)
    ids = {cause for v in verdicts for match in verdicts.list_matches(v) or () for cause in match.causes}
    assert ids == {"decoder.final-norm-first", "encoder.final-norm-first"}
    said = [finding for finding in diagnose(verdicts, spec) if finding.mistakes]
    assert [finding.mistakes for finding in said] == [("decoder.final-norm-first",), ("encoder.final-norm-first",)]


def test_what_explains_the_layers_of_one_half_is_tried_there_before_any_search(spec, monkeypatch):
    layer, whole = find_made("norm-before-add").steps, "transformer"
    half = restrict_to(HALVES["encoder"], layer)
    made = {"decoder_layer": ({},), "encoder_layer": (layer,), whole: (half, TRACKED)}
    judgements = []
    for component, layers in made.items():
        book = build_textbook(*layers, only=component)
        bench = Bench(spec, Adapter.from_object(book, "mine.py", spec), "float32", "cpu")
        judgements += [judge_case(case, bench) for case in small_cases(spec, component)[:4]]
    for holder, further in ((Catalogue, "combine_near"), (Imitator, "_list_neighbours")):
        monkeypatch.setattr(holder, further, lambda *_: iter(()))
    monkeypatch.setattr(Catalogue, "place_mistakes", lambda *_: iter(()))
    said = list(diagnose(Diagnosis(spec).explain_all(judgements), spec))
    assert [f.mistakes for f in said if f.mistakes] == [("norm-before-add",)]
    assert (BECAUSE, whole) in [(f.label, f.text) for f in said]


def test_the_catalogue_leaves_time_for_neighbours_of_the_decoder_while_it_decodes(spec):
    id_ = "decoder.first-left-out"
    bench = make_bench(spec, neighbours()[id_].steps, "greedy_decode", {})
    cases = [spec.cases["greedy-two-layers"]]
    assert [f.mistakes for f in diagnose_cases(bench, cases) if f.mistakes] == [(id_,)]


def test_a_mistake_in_one_place_that_a_passing_case_rules_out_ends_no_search(spec):
    neighbour = find_neighbour("decoder_layer.edit@run_sublayer#0/weigh_keys/mask@mask:only-causal")
    cases = [case for case in small_cases(spec, "decoder_layer") if case.id.startswith("dec-ordinary-")]
    bench = make_bench(spec, neighbour.steps, "decoder_layer", {})
    judgements = [judge_case(case, bench) for case in cases]
    # Of one sample alone with padding, whatever it is masked with gives the same.
    bad = [j for j in judgements if j.verdict.bad]
    said = list(diagnose(Diagnosis(spec).explain_all([j for j in judgements if j not in bad[1:]]), spec))
    assert [(f.label, f.mistakes) for f in said if f.mistakes] == [(MISTAKE_FOUND, (neighbour.id,))]


def test_what_is_left_out_is_not_named(spec):
    id_ = "layer_norm.beta-first"
    bench = make_bench(spec, neighbours()[id_].steps, "layer_norm", {})
    judgements = [judge_case(case, bench) for case in small_cases(spec, "layer_norm")]
    said = list(diagnose(Diagnosis(spec, {id_}).explain_all(judgements), spec))
    assert all(id_ not in finding.mistakes for finding in said)
