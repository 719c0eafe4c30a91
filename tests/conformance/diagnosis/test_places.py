"""A mistake that is made in one place alone is named, with the place; one that is made everywhere has none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from comparisons import remark_lines
from goldformer.adapters.layouts import part
from goldformer.adapters.protocol import Adapter
from goldformer.adapters.textbook.build import build_textbook
from goldformer.conformance.diagnosis.candidates import Candidate, Textbooks
from goldformer.conformance.diagnosis.diagnosed import Explained
from goldformer.conformance.diagnosis.explain import Diagnosis
from goldformer.conformance.diagnosis.mistakes import implementations
from goldformer.conformance.diagnosis.mistakes.places import PLACES, MistakePlace, can_be_made
from goldformer.conformance.diagnosis.neighbours.neighbour import EQUALS
from goldformer.conformance.diagnosis.neighbours.solved import OF_SUBLAYERS
from goldformer.conformance.diagnosis.suspects import rank_explanations
from goldformer.conformance.judging.applicability import plan
from goldformer.conformance.judging.cases import Bench, judge_case
from goldformer.spec.formulas.embedding import positional_encoding
from goldformer.spec.formulas.heads import project_attention
from goldformer.spec.formulas.layers import (
    cross_attend,
    decoder,
    decoder_layer,
    encoder,
    encoder_layer,
    feed_forward,
    final_norm,
    layer_norm,
    self_attend,
)
from goldformer.spec.formulas.options import OPTIONS
from goldformer.spec.formulas.steps import Replacements, instead
from goldformer.spec.formulas.transformer import embed, embed_target
from spoiled import Spoiled, spoil

COMPONENTS = (
    "multi_head_attention",
    "feed_forward",
    "encoder_layer",
    "decoder_layer",
    "encoder",
    "decoder",
    "transformer",
)


# Written as a mistake is, without what the diagnosis makes of places.


@spoil(around=decoder_layer)
def no_residual_around_feed_forward(
    original, x, memory, self_mask=None, memory_mask=None, *, num_heads, params, **dropout
):
    if dropout:
        raise NotImplementedError("dropout")
    attended = original(x, memory, self_mask, memory_mask, num_heads=num_heads, params=params)
    fed, _ = feed_forward(attended["crossed"], params=part(params, "feed_forward"))
    return {**attended, "output": layer_norm(fed, params=part(params, "norm_3"))}


def without_scale(params, attention, num_heads):
    """Queries grown by what the scores are divided by."""
    names = [name for name in (f"{attention}.w_q", f"{attention}.b_q") if name in params]
    root = np.sqrt(params[names[0]].shape[1] // num_heads)
    return {**params, **{name: (root * params[name]).astype(params[name].dtype) for name in names}}


@spoil(around=cross_attend)
def cross_attention_without_scale(original, x, memory, mask, *, num_heads, params, **rest):
    changed = without_scale(params, "cross_attention", num_heads)
    return original(x, memory, mask, num_heads=num_heads, params=changed, **rest)


@spoil(around=self_attend)
def self_attention_without_scale(original, x, mask, *, num_heads, params):
    changed = without_scale(params, "self_attention", num_heads)
    return original(x, mask, num_heads=num_heads, params=changed)


@spoil(instead_of=encoder)
def mask_for_the_first_layer_alone(x, mask=None, *, num_heads, num_layers, params):
    outputs = []
    for index in range(num_layers):
        mine = part(params, f"encoder.{index}")
        x = encoder_layer(x, None if index else mask, num_heads=num_heads, params=mine)["output"]
        outputs.append(x)
    return {"output": x, "layers": np.stack(outputs)}


@spoil(instead_of=embed_target)
def target_begins_at_position_one(target, pad_id, params):
    rows = params["table"][target]
    begun = np.concatenate([np.zeros_like(rows[:, :1]), rows], axis=1)
    return positional_encoding(begun)[:, 1:]


@spoil(around=cross_attend)
def no_bias_of_the_output_of_cross_attention(original, x, memory, mask, *, params, **rest):
    kept = {name: value for name, value in params.items() if name != "cross_attention.b_o"}
    return original(x, memory, mask, params=kept, **rest)


@spoil(around=encoder_layer)
def no_second_bias_in_the_encoder_layer(original, x, mask=None, *, num_heads, params, **dropout):
    kept = {name: value for name, value in params.items() if name != "feed_forward.b_2"}
    return original(x, mask, num_heads=num_heads, params=kept, **dropout)


@spoil(around=project_attention)
def no_bias_of_the_output(original, x, params, role):
    return x @ params["w_o"] if role == "o" else original(x, params, role)


@spoil(instead_of=feed_forward)
def no_bias_of_the_second_map(x, *, params):
    inner = x @ params["w_1"]
    hidden = np.maximum(inner + params["b_1"] if "b_1" in params else inner, 0)
    return hidden @ params["w_2"], hidden


@spoil(instead_of=feed_forward)
def no_biases(x, *, params):
    hidden = np.maximum(x @ params["w_1"], 0)
    return hidden @ params["w_2"], hidden


class Layers:
    """A textbook with both layers as plain functions of their parts: LN_1, attention and so on."""

    def __init__(self):
        layer: Replacements = {encoder_layer: instead(self.encode), decoder_layer: instead(self.decode)}
        vars(self).update(vars(build_textbook(layer)))

    def encode(self, x, mask=None, *, num_heads, params, **dropout):
        if dropout:
            raise NotImplementedError("dropout")
        p = Parts(params, num_heads)
        attended, weights = p.attend(x, mask)
        a, y = self.encoded(p, x, attended)
        return {"output": y, "attended": a, "weights": weights}

    def decode(self, x, memory, self_mask=None, memory_mask=None, *, num_heads, params, **dropout):
        if dropout:
            raise NotImplementedError("dropout")
        p = Parts(params, num_heads)
        attended, weights = p.attend(x, self_mask)
        looked = {}

        def look(y):
            output, looked["weights"] = p.look(y, memory, memory_mask)
            return output

        a, c, y = self.decoded(p, x, attended, look)
        return {"output": y, "attended": a, "crossed": c, "weights": weights, "cross_weights": looked["weights"]}

    def encoded(self, p, x, attended):
        a = p.ln(1, x + attended)
        return a, p.ln(2, a + p.ffn(a))

    def decoded(self, p, x, attended, look):
        a = p.ln(1, x + attended)
        c = p.ln(2, a + look(a))
        return a, c, p.ln(3, c + p.ffn(c))


class Parts:
    def __init__(self, params, num_heads):
        self.params, self.num_heads, self.book = params, num_heads, build_textbook()

    def ln(self, number, x):
        return self.book.layer_norm(x, params=part(self.params, f"norm_{number}"))

    def attend(self, x, mask):
        return self._attention("self", x, x, mask)

    def look(self, x, memory, mask):
        return self._attention("cross", x, memory, mask)

    def _attention(self, which, x, memory, mask):
        mine = {"num_heads": self.num_heads, "params": part(self.params, f"{which}_attention")}
        given = self.book.multi_head_attention(x, memory, memory, mask, **mine)
        return given["output"], given["weights"]

    def ffn(self, x):
        return self.book.feed_forward(x, params=part(self.params, "feed_forward"))[0]


class NoNorms(Layers):
    def encoded(self, p, x, attended):
        a = x + attended
        return a, a + p.ffn(a)

    def decoded(self, p, x, attended, look):
        a = x + attended
        c = a + look(a)
        return a, c, c + p.ffn(c)


class NoNormOfTheFeedForward(Layers):
    def encoded(self, p, x, attended):
        a = p.ln(1, x + attended)
        return a, a + p.ffn(a)


class NoNormOfTheCrossAttention(Layers):
    def decoded(self, p, x, attended, look):
        a = p.ln(1, x + attended)
        c = a + look(a)
        return a, c, p.ln(3, c + p.ffn(c))


class SumsRunOn(Layers):
    """Only the next sub-layer reads the normalised sum, as where the norm stands before it."""

    def encoded(self, p, x, attended):
        path = x + attended
        a = p.ln(1, path)
        return a, p.ln(2, path + p.ffn(a))

    def decoded(self, p, x, attended, look):
        path = x + attended
        a = p.ln(1, path)
        path = path + look(a)
        c = p.ln(2, path)
        return a, c, p.ln(3, path + p.ffn(c))


class SumRunsOnPastCrossAttention(Layers):
    def decoded(self, p, x, attended, look):
        path = x + attended
        a = p.ln(1, path)
        c = p.ln(2, path + look(a))
        return a, c, p.ln(3, c + p.ffn(c))


class SumRunsOnPastFeedForward(Layers):
    def decoded(self, p, x, attended, look):
        a = p.ln(1, x + attended)
        path = a + look(a)
        c = p.ln(2, path)
        return a, c, p.ln(3, path + p.ffn(c))


class NoFeedForward(Layers):
    def encoded(self, p, x, attended):
        a = p.ln(1, x + attended)
        return a, a

    def decoded(self, p, x, attended, look):
        a = p.ln(1, x + attended)
        c = p.ln(2, a + look(a))
        return a, c, c


@spoil(instead_of=encoder)
def no_feed_forward_in_the_last_layer(x, mask=None, *, num_heads, num_layers, params):
    outputs = []
    for index in range(num_layers):
        layer = (NoFeedForward if index == num_layers - 1 else Layers)().encode
        x = layer(x, mask, num_heads=num_heads, params=part(params, f"encoder.{index}"))["output"]
        outputs.append(x)
    return {"output": x, "layers": np.stack(outputs)}


class NoFeedForwardInTheDecoder(Layers):
    decoded = NoFeedForward.decoded


def normalised(x, params, mean, one=0):
    """Rows of any norm. Where a scale is 0 there is no tolerance, so that it is as narrow as what is judged."""
    centred = x - mean(x)
    normal = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    return normal * (one + params["gamma"]) + params["beta"]


class RootMeanSquare:
    def layer_norm(self, x, *, params):
        return normalised(x, params, lambda row: 0)


class OnePlusGamma:
    def layer_norm(self, x, *, params):
        return normalised(x, params, lambda row: row.mean(-1, keepdims=True), one=1)


class NormsOfTheOneBefore(Layers):
    def encoded(self, p, x, attended):
        a = p.ln(1, x + attended)
        return a, p.ln(1, a + p.ffn(a))

    def decoded(self, p, x, attended, look):
        a = p.ln(1, x + attended)
        c = p.ln(1, a + look(a))
        return a, c, p.ln(2, c + p.ffn(c))


class FirstNormAfterCrossAttention(Layers):
    def decoded(self, p, x, attended, look):
        a = p.ln(1, x + attended)
        c = p.ln(1, a + look(a))
        return a, c, p.ln(3, c + p.ffn(c))


class SecondNormAfterFeedForward(Layers):
    def decoded(self, p, x, attended, look):
        a = p.ln(1, x + attended)
        c = p.ln(2, a + look(a))
        return a, c, p.ln(2, c + p.ffn(c))


class OneAttentionForBoth(Layers):
    def decode(self, x, memory, self_mask=None, memory_mask=None, *, num_heads, params, **dropout):
        same = {f"cross_attention.{name}": p for name, p in part(params, "self_attention").items()}
        others = {name: p for name, p in params.items() if not name.startswith("cross_attention")}
        both = others | same
        return super().decode(x, memory, self_mask, memory_mask, num_heads=num_heads, params=both, **dropout)


@spoil(instead_of=encoder)
def one_encoder_layer_less(x, mask=None, *, num_heads, num_layers, params):
    for index in range(num_layers - 1):
        mine = part(params, f"encoder.{index}")
        x = encoder_layer(x, mask, num_heads=num_heads, params=mine)["output"]
    return {"output": final_norm(x, "encoder", part(params, "norm"))}


@spoil(instead_of=decoder)
def one_decoder_layer_less(x, memory, self_mask=None, memory_mask=None, *, num_heads, num_layers, params):
    for index in range(num_layers - 1):
        mine = {"num_heads": num_heads, "params": part(params, f"decoder.{index}")}
        x = decoder_layer(x, memory, self_mask, memory_mask, **mine)["output"]
    return {"output": final_norm(x, "decoder", part(params, "norm"))}


one_layer_less = Spoiled("one_layer_less", *one_encoder_layer_less.layers, *one_decoder_layer_less.layers)


@spoil(instead_of=embed)
def words_without_positions(ids, pad_id, params):
    return params["table"][ids]


@spoil(instead_of=embed_target)
def target_without_positions(target, pad_id, params):
    return params["table"][target]


EVERYWHERE: list[tuple[Any, str, str]] = [
    (RootMeanSquare, "layer_norm", "rms-for-ln"),
    (OnePlusGamma, "layer_norm", "ln-one-plus-gamma"),
    (no_biases, "feed_forward", "ffn-bias-missing"),
    (NoNorms, "encoder_layer", "norm-missing"),
    (NoNorms, "decoder_layer", "norm-missing"),
    (SumsRunOn, "encoder_layer", "residual-unnormed"),
    (SumsRunOn, "decoder_layer", "residual-unnormed"),
    (NoFeedForward, "encoder_layer", "ffn-missing"),
    (NoFeedForward, "decoder_layer", "ffn-missing"),
    (NoFeedForward, "transformer", "ffn-missing"),
    (NormsOfTheOneBefore, "encoder_layer", "wrong-ln-reused"),
    (NormsOfTheOneBefore, "decoder_layer", "wrong-ln-reused"),
    (OneAttentionForBoth, "decoder_layer", "cross-self-weights"),
    (OneAttentionForBoth, "transformer", "cross-self-weights"),
    (one_layer_less, "encoder", "layer-skipped"),
    (one_layer_less, "decoder", "layer-skipped"),
    (one_layer_less, "transformer", "layer-skipped"),
    (words_without_positions, "transformer", "pe-missing"),
]
WRITTEN: list[tuple[Any, str, str, str]] = [
    (no_residual_around_feed_forward, "decoder_layer", "residual-missing", "the decoder layer's feed-forward network"),
    (cross_attention_without_scale, "decoder_layer", "scale-missing", "the decoder layer's cross-attention"),
    (mask_for_the_first_layer_alone, "encoder", "mask-not-inplace", "every layer of the encoder but the first"),
    (target_begins_at_position_one, "transformer", "pe-start-one", "the decoder's half"),
    (
        no_bias_of_the_output_of_cross_attention,
        "decoder_layer",
        "bias-missing",
        "the projection of the output in the decoder layer's cross-attention",
    ),
    (
        no_second_bias_in_the_encoder_layer,
        "encoder_layer",
        "ffn-bias-missing",
        "the second map in the encoder layer's feed-forward network",
    ),
    (no_bias_of_the_output, "multi_head_attention", "bias-missing", "the projection of the output"),
    (no_bias_of_the_second_map, "feed_forward", "ffn-bias-missing", "the second map"),
    (NoNormOfTheFeedForward, "encoder_layer", "norm-missing", "the encoder layer's feed-forward network"),
    (NoNormOfTheCrossAttention, "decoder_layer", "norm-missing", "the decoder layer's cross-attention"),
    (SumRunsOnPastCrossAttention, "decoder_layer", "residual-unnormed", "the decoder layer's cross-attention"),
    (SumRunsOnPastFeedForward, "decoder_layer", "residual-unnormed", "the decoder layer's feed-forward network"),
    (no_feed_forward_in_the_last_layer, "encoder", "ffn-missing", "the last layer of the encoder"),
    (FirstNormAfterCrossAttention, "decoder_layer", "wrong-ln-reused", "the decoder layer's cross-attention"),
    (SecondNormAfterFeedForward, "decoder_layer", "wrong-ln-reused", "the decoder layer's feed-forward network"),
    (target_without_positions, "transformer", "pe-missing", "the decoder's half"),
]


def judged(spec, thing, *components, **conventions):
    given = {name: getattr(thing, name) for name in components or COMPONENTS}
    adapter = Adapter.from_object(SimpleNamespace(ARRAYS="numpy", CONVENTIONS=conventions, **given), "mine.py", spec)
    bench = Bench(spec, adapter, "float32", "cpu")
    return Diagnosis(spec).explain_all(judge_case(case, bench) for name in given for case in some_cases(spec, name))


def some_cases(spec, component):
    """Return a dozen cases of a component, the first and simplest: each failing one takes a while to explain."""
    cases = [case for case in plan(spec, (component,)) if not case.full_size and not case.cotangent]
    return cases[:12]


def best(spec, verdicts, component):
    found = rank_explanations(verdicts, component, spec)
    assert found, [v.check for v in verdicts if v.bad]
    return found[0]


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("made", "component", "mistake", "place"), WRITTEN, ids=[made.__name__ for made, *_ in WRITTEN]
)
@pytest.mark.parametrize("whole", [True, False], ids=["all components", "alone"])
def test_it_is_named_with_its_place(made, component, mistake, place, whole, spec):
    if whole and made is cross_attention_without_scale:
        pytest.xfail("an edit, cross-attention reads the scores before they are scaled, reproduces more of its cases")
    verdicts = judged(spec, made(), *(() if whole else (component,)))
    found = best(spec, verdicts, component)
    assert [c.id for c in found.causes] == [mistake]
    assert found.causes[0].title.endswith(f"({mistake}), only in {place}")
    # What is searched within a budget may be found at the second failing case, and explains the first as well.
    assert found.certain
    assert found.case_count >= 2
    text = " ".join(" ".join(remark_lines(verdicts, spec)).split())
    assert f"Fix first: {component}" in text
    assert f"Mistake found: {found.causes[0].heading}. It reproduces your output in " in text
    # The whole that contains the part is said to be wrong along with it, and not by anything else.
    assert "Fix too" not in text
    explained = next(e for e in map(verdicts.explain, verdicts) if e.diagnosis.matches)
    assert Explained.from_json(explained.as_json()).diagnosis.matches == explained.diagnosis.matches


@pytest.mark.sample(5)
@pytest.mark.parametrize(
    ("made", "component", "mistake"), EVERYWHERE, ids=[f"{made.__name__} {part}" for made, part, _ in EVERYWHERE]
)
def test_what_is_written_as_one_function_is_named_without_a_place(made, component, mistake, spec):
    verdicts = judged(spec, made(), component)
    found = best(spec, verdicts, component)
    assert found.causes[0].title.endswith(f"({mistake})")
    assert found.equals == found.case_count > 2
    assert f"Mistake found: {found.causes[0].heading}" in " ".join(" ".join(remark_lines(verdicts, spec)).split())


IN_A_MODEL: list[tuple[Any, str, str]] = [
    (no_residual_around_feed_forward, "residual-missing", "the decoder layer's feed-forward network"),
    (NoFeedForwardInTheDecoder, "ffn-missing", "the decoder's half"),
    (one_encoder_layer_less, "layer-skipped", "the encoder's half"),
    (one_decoder_layer_less, "layer-skipped", "the decoder's half"),
]


@pytest.mark.sample(1)
@pytest.mark.parametrize(("made", "mistake", "place"), IN_A_MODEL, ids=[made.__name__ for made, *_ in IN_A_MODEL])
def test_a_place_is_found_where_a_whole_model_is_all_there_is(made, mistake, place, spec):
    found = best(spec, judged(spec, made(), "transformer"), "transformer")
    assert found.causes[0].title.endswith(f"({mistake}), only in {place}")


def test_missing_positions_are_told_from_those_of_padding_alone_by_rows_that_are_not_judged(spec):
    # Rows of padding have no golden values, and they show whether these alone have positions.
    found = rank_explanations(judged(spec, words_without_positions(), "transformer"), "transformer", spec)
    # The mistake of padding alone fits all other cases; where one fits all, it is dropped.
    assert [e.causes[0].id for e in found] == ["pe-missing"]
    assert found[0].certain


def test_plain_layers_are_right(spec):
    assert not [v.check for v in judged(spec, Layers()) if v.bad]


def test_under_a_declared_option(spec):
    made = Spoiled("pre", OPTIONS["norm_placement", "pre"], *self_attention_without_scale.layers)
    found = best(spec, judged(spec, made(), "decoder_layer", norm_placement="pre"), "decoder_layer")
    assert found.causes[0].title.endswith("(scale-missing), only in the decoder layer's self-attention")


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("mistake", "component"),
    [("scale-missing", "decoder_layer"), ("residual-missing", "encoder"), ("mask-inverted", "transformer")],
)
def test_what_is_made_everywhere_has_no_place(mistake, component, spec):
    book = implementations()[mistake].make()
    found = best(spec, judged(spec, book, component), component)
    assert found.causes[0].title.endswith(f"({mistake})")


def test_what_nobody_knows_stays_unknown_and_is_held_against_nothing_twice(spec, monkeypatch):
    @spoil(around=self_attend)
    def damped(original, *args, **named):
        output, weights = original(*args, **named)
        return (output + 0.1 * output**3).astype(output.dtype), weights

    tried: list[Candidate] = []
    imitated = Textbooks.run

    def counted(self, candidate, failure):
        tried.append(candidate)
        return imitated(self, candidate, failure)

    monkeypatch.setattr(Textbooks, "run", counted)
    adapter = Adapter.from_object(SimpleNamespace(ARRAYS="numpy", decoder_layer=damped().decoder_layer), "m", spec)
    bench = Bench(spec, adapter, "float32", "cpu")
    verdicts = Diagnosis(spec).explain_all(judge_case(case, bench) for case in some_cases(spec, "decoder_layer"))
    assert not rank_explanations(verdicts, "decoder_layer", spec)
    # A family is tried with one number after the other, and a number is solved for in each failing case.
    placed = [c for c in tried if c.place and c.mistakes[-1] not in OF_SUBLAYERS and EQUALS not in c.mistakes[-1]]
    assert {c.place for c in placed} == {*PLACES["decoder_layer"]}
    assert len(placed) == len(set(placed)) > 100


def test_two_places_or_two_mistakes_are_not_combined():
    place = PLACES["decoder_layer"][0]
    one, other = Candidate(("scale-missing",), place=place), Candidate(("mask-inverted",))
    assert one.combine(other) is other.combine(one) is None


def test_places_are_of_components_and_their_parts_and_said_once(spec):
    for component, places in PLACES.items():
        assert component in spec.contracts
        assert len({place.words for place in places}) == len(places)
        for place in places:
            models = (*spec.list_dependencies("transformer"), *spec.list_dependencies("decoder_only_model"))
            assert place.parts <= {component, *models}, place


def test_a_backward_pass_has_no_place_and_in_a_projection_only_what_is_done_to_one_can_be_made():
    anywhere, in_projection = MistakePlace("anywhere"), MistakePlace("the projection of the keys", role="k")
    made = implementations()
    assert not can_be_made(anywhere, made["softmax-bwd"])
    assert can_be_made(in_projection, made["bias-missing"])
    assert can_be_made(anywhere, made["scale-missing"])
    assert not can_be_made(in_projection, made["scale-missing"])
