"""Each mistake of decoding gives by hand what it should."""

import math

import numpy as np
import pytest

from goldformer.adapters.textbook.build import build_textbook
from goldformer.conformance.diagnosis.mistakes import decoding, implementations
from goldformer.spec.formulas.decoding import model_logits
from goldformer.spec.formulas.steps import replacing
from goldformer.spec.formulas.transformer import (
    embed_source,
    embed_target,
    memory_mask,
    output_logits,
    source_mask,
    target_mask,
)
from spoiled import spoil

# By hand: three words, and their probabilities after each beginning, for the sources A and B

END, A, B, PAD, BOS = 0, 1, 2, 7, 2
AFTER = {
    A: {(): (0.3, 0.6, 0.1), (A,): (0.2, 0.1, 0.7), (A, B): (0.8, 0.1, 0.1), (A, B, END): (0.2, 0.3, 0.5)},
    B: {(): (0.1, 0.2, 0.7), (B,): (0.9, 0.06, 0.04), (B, END): (0.3, 0.4, 0.3), (B, END, A): (0.1, 0.8, 0.1)},
}
MODEL = {"params": {"table": np.zeros((3, 1)), "w_vocab": np.zeros((1, 3))}, "num_heads": 1}
MODEL |= {"num_encoder_layers": 1, "num_decoder_layers": 1, "pad_id": PAD, "bos_id": BOS, "eos_id": END}


@spoil(instead_of=model_logits)
def by_hand(source, target, task):
    # One more than the logarithms, so that a logit is not its log-probability.
    return np.log([[AFTER[source[0, 0]][tuple(target[0, 1:].tolist())]]]) + 1


def greedy(mistake, max_length=4):
    book = build_textbook(*by_hand.layers, implementations()[mistake].steps)
    return book.greedy_decode(np.array([[A], [B]]), **MODEL, max_length=max_length)


# A B END and B END; what each mistake makes of them, and the terms of its score.
GREEDY = {
    "decode-no-feedback": ([[A] * 4, [B] * 4], [[0.6] * 4, [0.7] * 4]),
    "decode-bos-kept": ([[BOS, A, B, END], [BOS, B, END, PAD]], [[0.6, 0.7, 0.8], [0.7, 0.9]]),
    "greedy-no-eos": ([[A, B, END, B], [B, END, A, A]], [[0.6, 0.7, 0.8, 0.5], [0.7, 0.9, 0.4, 0.8]]),
    "greedy-eos-dropped": ([[A, B, PAD, PAD], [B, PAD, PAD, PAD]], [[0.6, 0.7, 0.8], [0.7, 0.9]]),
    "batch-eos": ([[A, B, PAD, PAD], [B, END, PAD, PAD]], [[0.6, 0.7], [0.7, 0.9]]),
    "decode-score-after-end": (
        [[A, B, END, PAD], [B, END, PAD, PAD]],
        [[0.6, 0.7, 0.8, 0.5], [0.7, 0.9, 0.4, 0.8]],
    ),
}


@pytest.mark.parametrize("mistake", GREEDY)
def test_greedy_by_hand(mistake):
    got = greedy(mistake)
    ids, probabilities = GREEDY[mistake]
    assert got["ids"].tolist() == ids
    terms = [[*map(math.log, own), *[0] * (4 - len(own))] for own in probabilities]
    np.testing.assert_allclose(got["token_scores"], terms, rtol=1e-14, atol=1e-15)
    np.testing.assert_allclose(got["scores"], np.sum(terms, axis=-1), rtol=1e-14)


@pytest.mark.parametrize("mistake", ["decode-max-length-off-by-one", "decode-bos-kept"])
def test_bos_id_takes_a_place(mistake):
    got = greedy(mistake, max_length=3)
    kept = mistake == "decode-bos-kept"
    assert got["ids"].tolist() == ([[BOS, A, B], [BOS, B, END]] if kept else [[A, B, PAD], [B, END, PAD]])
    np.testing.assert_allclose(got["scores"], np.log([0.6 * 0.7, 0.7 * 0.9]), rtol=1e-14)


def test_what_is_summed():
    right = [[A, B, END, PAD], [B, END, PAD, PAD]]
    probabilities, logits = greedy("decode-score-probability"), greedy("decode-score-logits")
    assert probabilities["ids"].tolist() == logits["ids"].tolist() == right
    np.testing.assert_allclose(probabilities["scores"], [0.6 + 0.7 + 0.8, 0.7 + 0.9], rtol=1e-14)
    np.testing.assert_allclose(logits["scores"], [math.log(0.6 * 0.7 * 0.8) + 3, math.log(0.7 * 0.9) + 2], rtol=1e-14)


def test_the_least_probable_word_is_kept():
    book = build_textbook(*by_hand.layers, implementations()["beam-worst-kept"].steps)
    got = book.beam_search(np.array([[A], [B]]), **MODEL, max_length=1, beam_size=1, top_beams=1)
    assert got["ids"].tolist() == [[[B]], [[END]]]
    np.testing.assert_allclose(got["scores"], np.log([[0.1], [0.1]]), rtol=1e-14)


# The models that are wrong in decoding alone


def test_every_word_is_read_at_position_zero():
    params = {"table": np.arange(12.0).reshape(3, 4)}
    ids = np.array([[BOS, A, B]])
    right = embed_source(ids, PAD, params)
    with replacing(decoding.TARGET_AT_POSITION_ZERO):
        got = embed_target(ids, PAD, params)
        assert np.array_equal(embed_source(ids, PAD, params), right)
    assert np.array_equal(got, params["table"][ids] + [0, 1, 0, 1])


def test_the_masks_of_the_source_are_inverted():
    source, target = np.array([[A, B, PAD]]), np.array([[BOS, PAD]])
    right = target_mask(target, PAD).tolist()
    with replacing(decoding.INVERTED_MASKS):
        assert source_mask(source, PAD).tolist() == memory_mask(source, PAD).tolist() == [[[[False, False, True]]]]
        assert target_mask(target, PAD).tolist() == right


def test_a_mistake_in_the_model_stays_when_decoding_makes_another():
    scaled = implementations()["tied-logit-scale"].steps
    for model in (decoding.INVERTED_MASKS, decoding.TARGET_AT_POSITION_ZERO):
        x, params = np.ones((1, 1, 4)), {"w_vocab": np.ones((4, 3))}
        with replacing(scaled), replacing(model):
            assert output_logits(x, params).tolist() == [[[2, 2, 2]]]
