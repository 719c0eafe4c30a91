"""Edits of a formula: an id makes the same edit, each has a sentence, and the textbook runs with it."""

from __future__ import annotations

import numpy as np
import pytest

from goldformer.adapters.arrays import LIBRARIES
from goldformer.adapters.textbook.build import build_textbook
from goldformer.adapters.textbook.reverse import Reverse, record_leaf, sweep_back
from goldformer.conformance.diagnosis.candidates import Candidate, Textbooks
from goldformer.conformance.diagnosis.edits.changes import relay
from goldformer.conformance.diagnosis.edits.edit import Edit, is_edit, read_edit
from goldformer.conformance.diagnosis.edits.generate import list_edits
from goldformer.conformance.diagnosis.edits.words import write_hint, write_title
from goldformer.conformance.diagnosis.failure import FailingCase
from goldformer.conformance.diagnosis.neighbours import find_neighbour
from goldformer.conformance.diagnosis.neighbours.results import Call
from goldformer.conformance.judging.invoke import Result, convert_arguments, read_arguments
from goldformer.spec.formulas.arrays import computing

CASES = [
    "rms-distinct-sizes", "glu-distinct-sizes", "rope-distinct-sizes", "gqa-six-heads-three-groups",
    "ln-distinct-sizes", "mha-distinct-sizes", "enc-distinct-sizes",
]  # fmt: skip

X = np.array([[3.0, 4.0], [6.0, 8.0], [1.0, 1.0]], np.float32)
GAMMA = np.array([2.0, 3.0], np.float32)
NORMED = X / np.sqrt((X * X).mean(-1, keepdims=True) + np.float32(1e-6))


def record_case(spec, id_):
    case = spec.cases[id_]
    contract = spec.contracts[case.component]
    options = {name: spec.conventions[name].default for name in contract.conventions}
    failure = FailingCase(case, contract, Result({}, 0.0), {}, "float32", options)
    return Textbooks(spec, None).record(Candidate(), failure), Call.of(case, contract).axes


def run(place, change, x=X, gamma=GAMMA):
    return build_textbook(Edit("rms_norm", place, change).steps).rms_norm(x, params={"gamma": gamma})


@pytest.mark.parametrize(
    ("place", "change", "wanted"),
    [
        ("rms_norm/multiply-0", "keep:0", NORMED),
        ("rms_norm/gamma", "square", NORMED * GAMMA**2),
        ("mean_square/number-0", "number:1", X / np.sqrt((X * X).sum(-1, keepdims=True) + 1e-6) * GAMMA),
        ("mean_square/result", "over:-2", X / np.sqrt((X * X).mean(-2, keepdims=True) + 1e-6) * GAMMA),
        ("mean_square/result", "over:all", X / np.sqrt((X * X).mean() + 1e-6) * GAMMA),
        ("rms_divisor/result", "skip", X / (X * X).mean(-1, keepdims=True) * GAMMA),
        ("rms_norm/result", "reversed:-1", (NORMED * GAMMA)[:, ::-1]),
        ("rms_norm/result", "times:x:-1:d_model:0.5", NORMED * GAMMA * np.sqrt(2)),
        ("rms_eps/result", "number:1", X / np.sqrt((X * X).mean(-1, keepdims=True) + 1) * GAMMA),
        ("mean_square/sum-0", "more:1", X / np.sqrt(((X * X).sum(-1, keepdims=True) + 1) / 2 + 1e-6) * GAMMA),
        ("rms_divisor/result", "give:mean_square/result", X / (X * X).mean(-1, keepdims=True) * GAMMA),
        ("no_such_step/result", "doubled", NORMED * GAMMA),
    ],
)
def test_the_textbook_runs_with_an_edit(place, change, wanted):
    made = run(place, change)
    assert made.dtype == np.float32
    np.testing.assert_allclose(made, wanted, rtol=1e-5)


@pytest.mark.parametrize(
    ("place", "change"),
    [
        ("rms_norm/multiply-0", "keep:0"), ("rms_norm/gamma", "square"), ("mean_square/result", "over:-2"),
        ("rms_divisor/result", "skip"), ("rms_norm/result", "first-zeroed:-1"), ("rms_norm/x", "reshaped:-2:-1"),
        ("rms_norm/x", "unread:-2:-1"), ("rms_norm/result", "running:-1"), ("rms_norm/x", "first:0"),
    ],
)  # fmt: skip
def test_gradients_are_those_of_the_edited_formula(place, change):
    x, gamma, cotangent = X.astype(np.float64), GAMMA.astype(np.float64), np.array([[1.0, 2.0], [0.0, 1.0], [3.0, 1.0]])
    with computing(Reverse()):
        leaf = record_leaf(x)
        gradient = sweep_back(run(place, change, leaf, gamma), cotangent, {"x": leaf})["x"]
    assert not np.allclose(gradient, _take_differences(lambda x: run("none/result", "doubled", x, gamma), x, cotangent))
    np.testing.assert_allclose(
        gradient, _take_differences(lambda x: run(place, change, x, gamma), x, cotangent), atol=1e-7
    )


def _take_differences(function, x, cotangent, step=1e-6):
    moves = step * np.eye(x.size).reshape(-1, *x.shape)
    slopes = [((function(x + move) - function(x - move)) * cotangent).sum() / (2 * step) for move in moves]
    return np.reshape(slopes, x.shape)


def attend(place, change, mask=None):
    """Return the weights of an attention of two samples, three heads, four tokens and five channels with an edit."""
    query, key, value = np.random.default_rng(1).normal(size=(3, 2, 3, 4, 5))
    book = build_textbook(Edit("scaled_dot_product_attention", place, change).steps)
    return book.scaled_dot_product_attention(query, key, value, mask)["weights"]


@pytest.mark.parametrize(
    ("word", "mask"),
    [
        ("inverted", lambda m: ~m),
        ("first-sample", lambda m: np.broadcast_to(m[:1], m.shape)),
        ("without-padding", np.ones_like),
        ("self-never", lambda m: m & ~np.eye(4, dtype=bool)),
        ("instead-causal", lambda _: np.tri(4, dtype=bool)),
    ],
)
def test_a_mask_is_used_in_another_way(word, mask):
    given = np.ones((2, 1, 4, 4), bool)
    given[1, ..., 3:] = False
    wanted = attend("no_such_step/result", "doubled", np.broadcast_to(mask(given), (2, 3, 4, 4)))
    np.testing.assert_array_equal(attend("weigh_keys/mask", f"mask:{word}", given), wanted)


def test_heads_that_are_read_in_another_order_than_they_lie():
    heads = np.arange(24).reshape(1, 2, 3, 4)  # (samples, heads, tokens, channels)
    columns = heads.swapaxes(1, 2).reshape(1, 3, 8)
    np.testing.assert_array_equal(relay(heads, "0213", "0123"), columns.reshape(1, 2, 3, 4))
    np.testing.assert_array_equal(relay(heads, "0213", "0231"), columns.reshape(1, 3, 4, 2).transpose(0, 3, 1, 2))


@pytest.mark.parametrize(
    ("place", "change", "exchanged"),
    [
        ("norm_#", "share:next", [("norm_1.gamma", "norm_2.gamma"), ("norm_1.beta", "norm_2.beta")]),
        ("norm_1", "exchange-part:norm_2", [("norm_1.gamma", "norm_2.gamma"), ("norm_1.beta", "norm_2.beta")]),
        (
            "self_attention.*_q", "exchange-part:self_attention.*_k",
            [("self_attention.w_q", "self_attention.w_k"), ("self_attention.b_q", "self_attention.b_k")],
        ),
    ],
)  # fmt: skip
def test_parameters_of_parts_change_places(place, change, exchanged, spec):
    case, contract = spec.cases["enc-ordinary-padding"], spec.contracts["encoder_layer"]
    given = convert_arguments(LIBRARIES["numpy"], contract, read_arguments(case), "float64", "cpu")
    book = build_textbook(Edit("encoder_layer", f"encoder_layer/{place}", change).steps)
    params = dict(given["params"])
    for one, two in exchanged:
        params[one], params[two] = params[two], params[one]
    wanted = build_textbook().encoder_layer(**{**given, "params": params})["output"]
    assert not np.allclose(wanted, build_textbook().encoder_layer(**given)["output"])
    np.testing.assert_allclose(book.encoder_layer(**given)["output"], wanted)


@pytest.mark.parametrize("id_", CASES)
def test_every_edit_has_an_id_and_a_sentence(id_, spec):
    graph, axes = record_case(spec, id_)
    edits = list_edits(graph, axes)
    assert len(edits) > 500
    assert len({edit.id for edit in edits}) == len(edits)
    for edit in edits:
        assert is_edit(edit.id)
        assert read_edit(edit.id) == edit
        assert " in " not in edit.id
        assert ": " not in edit.id
        title = write_title(edit)
        assert title.startswith("the code ")
        assert not title.endswith(".")
        assert write_hint(edit).endswith(".")
    assert find_neighbour(edits[0].id).title == write_title(edits[0])


@pytest.mark.parametrize("id_", CASES)
def test_an_edit_gives_the_same_on_the_graph_and_in_the_textbook(id_, spec):
    graph, axes = record_case(spec, id_)
    case = spec.cases[id_]
    contract = spec.contracts[case.component]
    options = {name: spec.conventions[name].default for name in contract.conventions}
    failure = FailingCase(case, contract, Result({}, 0.0), {}, "float32", options)
    textbooks = Textbooks(spec, None)
    edits = list_edits(graph, axes)
    compared = 0
    for edit in edits[:: len(edits) // 60]:
        outputs = edit.give_outputs(graph, None)
        made = textbooks.run(Candidate((edit.id,)), failure)
        if outputs is not None and isinstance(made, Result):
            compared += 1
            for name, value in made.outputs.items():
                np.testing.assert_array_equal(value, outputs[name], err_msg=f"{edit.id} {name}")
    assert compared > 30


@pytest.mark.parametrize(
    ("id_", "title", "hint"),
    [
        (
            "rms_norm.edit@mean_square/result@over:-2",
            "the code computes the mean of the squares of each token's channels along axis −2 instead of the last",
            "Check the step mean_square: return the mean of the squares of each token's channels, (..., 1).",
        ),
        (
            "rotary_embedding.edit@turn_pairs/result@arguments-exchanged:cosine:sine",
            "the code exchanges cosine and sine where it calls turn_pairs",
            "Check the step turn_pairs: return each pair (a, b) as (a·cos − b·sin, b·cos + a·sin), in the places that "
            "the pair had.",
        ),
        (
            "encoder_layer.edit@run_sublayer#1/layer_norm/x@read:add_residual/x",
            "the code uses `x` of add_residual instead of `x`, only in sub-layer 2",
            "Check the step layer_norm: return (x − mean)/√(variance + eps)·gamma + beta, (..., d_model).",
        ),
        (
            "scaled_dot_product_attention.edit@score_divisor/result@size:query:-1:d_k:1:-1",
            "the code uses d_k − 1 instead of √d_k",
            "Check the step score_divisor: return √d_k; `sizes` has the size of each axis, and under \"...\" the "
            "leading ones, (batch, heads).",
        ),
    ],
)  # fmt: skip
def test_a_sentence_has_the_words_of_the_step(id_, title, hint):
    edit = read_edit(id_)
    assert (write_title(edit), write_hint(edit)) == (title, hint)


@pytest.mark.parametrize(
    ("id_", "title"),
    [
        (
            "gated_feed_forward.edit@gated_feed_forward/result.up@results-exchanged:result.hidden",
            "exchanges up and hidden",
        ),
        ("layer_norm.edit@layer_norm_eps/result@number:1e-04", "uses 1e-04 in the place of 10⁻⁵"),
        ("sigmoid.edit@sigmoid/where-1@square", "uses the square of the second choice in sigmoid"),
        ("sigmoid.edit@sigmoid/where-10@square", "uses the square of the 11th choice in sigmoid"),
        ("layer_norm.edit@layer_norm/x@absolute", "uses the absolute value of `x`"),
        ("layer_norm.edit@layer_norm/x@first:0", "uses index 0 along axis 0 for every other index of `x`"),
        ("layer_norm.edit@layer_norm/x@running:-3", "uses the running sum of `x` along axis −3"),
        (
            "rms_norm.edit@rms_divisor/result@keep:0",
            "leaves out the last operation where it computes √(mean square + eps)",
        ),
        (
            "gated_feed_forward.edit@gate_activation/result@negated",
            "uses SiLU, x·σ(x) with the wrong sign",
        ),
        (
            "scaled_dot_product_attention.edit@softmax_over_keys/result@moved:share_heads/result",
            "applies softmax_over_keys to the head of keys or values that each query head reads, "
            "and not where it belongs",
        ),
        (
            "multi_head_attention.edit@merge_heads/heads@laid:2013:2103",
            "reshapes `heads` of merge_heads as if it lay in memory as [tokens, heads, samples, channels], but it lies "
            "as [tokens, samples, heads, channels]",
        ),
    ],
)
def test_a_sentence_says_what_the_code_does(id_, title):
    assert write_title(read_edit(id_)) == f"the code {title}"
