"""The textbook's model and output layer, against the reference and against what they promise."""

import math

import numpy as np
import pytest

from arrays import UNIT_ROUNDOFF, drawn, outputs, tensors
from goldformer.adapters.builtin import reference
from goldformer.adapters.builtin import textbook as textbook_adapter
from goldformer.adapters.protocol import Adapter
from goldformer.adapters.textbook.build import build_textbook
from goldformer.conformance.diagnosis.mistakes import implementations
from goldformer.spec.formulas.attention import padding_mask
from goldformer.spec.formulas.embedding import positional_encoding, token_embedding
from goldformer.spec.formulas.layers import (
    DECODER_LAYER,
    ENCODER_LAYER,
    run_decoder_layer,
    run_encoder_layer,
    stack_params,
)
from goldformer.spec.formulas.steps import around
from goldformer.spec.formulas.transformer import OUTPUT_LAYER, TRANSFORMER, embed, embed_target, target_mask
from spoiled import Spoiled, spoil

# No two alike, but where one number stands for a product.
BATCH, SEQ, SOURCE_SEQ, VOCAB, PAD = 3, 5, 7, 19, 4
SIZES = {"batch": BATCH, "seq": SEQ, "source_seq": SOURCE_SEQ, "vocab": VOCAB, "d_model": 14, "d_ff": 17}
HEADS, ENCODER_LAYERS, DECODER_LAYERS = 2, 2, 3
SIZES |= {"heads*d_k": HEADS * 11, "heads*d_v": HEADS * 13}
LENGTHS, SOURCE_LENGTHS = np.array([5, 4, 2]), np.array([3, 7, 5])

textbook = build_textbook()


def padded_ids(seed, lengths, seq):
    """Words and, from each length on, padding; its id is not 0 and no word's."""
    ids = np.random.default_rng(seed).integers(PAD + 1, VOCAB, (len(lengths), seq))
    return np.where(np.arange(seq) < lengths[:, None], ids, PAD)


SOURCE, TARGET = padded_ids(1, SOURCE_LENGTHS, SOURCE_SEQ), padded_ids(2, LENGTHS, SEQ)
MODEL = {name: TRANSFORMER[name] for name in ("table", "w_vocab", "b_vocab")}
MODEL |= stack_params("encoder", ENCODER_LAYER, ENCODER_LAYERS) | stack_params("decoder", DECODER_LAYER, DECODER_LAYERS)


def model_arguments(dtype="float64"):
    layers = {"num_heads": HEADS, "num_encoder_layers": ENCODER_LAYERS, "num_decoder_layers": DECODER_LAYERS}
    params = drawn(MODEL, SIZES, seed=100, dtype=dtype, end=0.5)
    return {"source": SOURCE, "target": TARGET, "pad_id": PAD, "params": params} | layers


def output_arguments(dtype="float64"):
    return drawn({"x": "batch seq d_model"}, SIZES, dtype=dtype) | {
        "params": drawn(OUTPUT_LAYER, SIZES, 9, dtype, end=0.5)
    }


ARGUMENTS = {"transformer": model_arguments, "output_probabilities": output_arguments}


def test_every_word_keeps_some_probability():
    given = output_arguments()
    got = textbook.output_probabilities(**given)
    np.testing.assert_allclose(got["logits"], given["x"] @ given["params"]["w_vocab"] + given["params"]["b_vocab"])
    np.testing.assert_allclose(got["probabilities"].sum(-1), np.ones((BATCH, SEQ)), rtol=1e-15)
    assert (got["probabilities"] > 0).all()


# The reference in float64


@pytest.mark.parametrize("component", ARGUMENTS)
def test_the_adapters_of_textbook_and_reference_agree(component):
    given = ARGUMENTS[component]()
    got = outputs(getattr(textbook_adapter, component)(**given))
    expected = outputs(getattr(reference, component)(**tensors(given)))
    for mine, other in zip(got, expected, strict=True):
        np.testing.assert_allclose(mine, other.numpy(), rtol=0, atol=1e-13)


@pytest.mark.parametrize("name", ["textbook_adapter", "reference"])
def test_the_adapters_have_every_component(name, spec):
    adapter = Adapter.from_object(globals()[name], name, spec)
    assert [*adapter.functions] == [*spec.contracts]
    assert not adapter.broken


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("component", ARGUMENTS)
def test_dtype_is_kept(component, dtype):
    # Inputs are equal in all dtypes; 16 unit roundoffs are nearly three times the most that was seen, 5.6.
    exact = outputs(getattr(textbook, component)(**ARGUMENTS[component]()))
    rounded = outputs(getattr(textbook, component)(**ARGUMENTS[component](dtype=dtype)))
    for want, got in zip(exact, rounded, strict=True):
        assert got.dtype == dtype
        bound = 16 * UNIT_ROUNDOFF[dtype] * max(1, np.abs(want).max())
        np.testing.assert_allclose(got, want, rtol=0, atol=bound)


# The model


def test_a_later_target_changes_no_earlier_logits():
    given = model_arguments()
    changed = given["target"].copy()
    changed[0, 3] = VOCAB - 1 if changed[0, 3] != VOCAB - 1 else VOCAB - 2
    before, after = (textbook.transformer(**given | {"target": ids})["logits"] for ids in (given["target"], changed))
    assert np.array_equal(before[0, :3], after[0, :3])
    assert np.abs(before[0, 3] - after[0, 3]).max() > 0.01


def test_a_sample_alone_without_its_padding():
    given = model_arguments()
    batch = textbook.transformer(**given)
    alone = textbook.transformer(**given | {"source": SOURCE[:1, :3], "target": TARGET[:1]})
    np.testing.assert_allclose(alone["logits"][0], batch["logits"][0], rtol=0, atol=1e-13)
    np.testing.assert_allclose(alone["memory"][0], batch["memory"][0, :3], rtol=0, atol=1e-13)


# Refusals: a component, what is changed of its arguments, and how it says so

REFUSED = [
    ("transformer", {"source": SOURCE + VOCAB}, "source: 23 is not in 0 … 18, the rows of table"),
    ("transformer", {"target": -TARGET}, "target: -[0-9]+ is not in 0 … 18, the rows of table"),
    ("transformer", {"target": np.ones((3, 5))}, "target: dtype float64, but ids are integers"),
    ("transformer", {"target": TARGET[:2]}, "target: shape .* batch is 3 in source"),
    ("transformer", {"num_encoder_layers": 0}, "encoder layers: 0, but a stack has at least one"),
    ("transformer", {"num_decoder_layers": 4}, "decoder.3.self_attention.w_q: missing"),
    ("transformer", {"num_heads": 3}, "num_heads: 22 columns do not divide into 3 equal parts"),
    ("transformer", {"params": {}}, r"table: missing; it is \(vocab, d_model\)"),
    ("output_probabilities", {"params": {"w_vocab": np.ones((4, 19))}}, "w_vocab: shape .* d_model is 14 in x"),
]


@pytest.mark.parametrize(("component", "changed", "message"), REFUSED)
def test_refusals_name_the_argument(component, changed, message):
    with pytest.raises((ValueError, TypeError, IndexError), match=message):
        getattr(textbook, component)(**ARGUMENTS[component]() | changed)


# Every step can be replaced: a mistake is a function of a line or two


@spoil(instead_of=target_mask)
def causal_missing(target, pad_id):
    return padding_mask(target, pad_id=pad_id)


@spoil(around=padding_mask)
def padding_is_zero(original, ids, *, pad_id):
    return original(ids, pad_id=0)


@spoil(around=embed_target)
def tables_apart(original, target, pad_id, params):
    return original(target, pad_id, params | {"table": params["w_vocab"].T})


@spoil(around=token_embedding)
def embedding_scaled(original, ids, *, params, pad_id=None):
    return original(ids, params=params, pad_id=pad_id) * math.sqrt(params["table"].shape[1])


@spoil(around=embed)
def scaled_after_position(original, ids, pad_id, params):
    return original(ids, pad_id, params) * math.sqrt(params["table"].shape[1])


def add_position(original, x, *, index, **rest):
    return original(x if index == 0 else positional_encoding(x), index=index, **rest)


position_in_every_layer = Spoiled(
    "position_in_every_layer", {run_encoder_layer: around(add_position), run_decoder_layer: around(add_position)}
)


# Those of the catalogue by their ids.
MISTAKES = [
    "causal-in-encoder",
    "causal-in-cross",
    "cross-mask-absent",
    "tgt-pad-replaces-causal",
    "pad-from-embedding-sum",
    "pad-mask-zeroes-positions",
    "cross-raw-src",
    "memory-per-layer",
    "softmax-in-model",
    "tied-logit-scale",
    "layers-shared",
    causal_missing,
    padding_is_zero,
    tables_apart,
    embedding_scaled,
    scaled_after_position,
    position_in_every_layer,
]


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_replaced_step_is_a_mistake(mistake):
    given = model_arguments()
    right = textbook.transformer(**given)["logits"]
    make = implementations()[mistake].make if isinstance(mistake, str) else mistake
    wrong = make().transformer(**given)["logits"]
    assert wrong.shape == right.shape
    assert np.abs(wrong - right).max() > 0.01
