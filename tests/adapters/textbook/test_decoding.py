"""The textbook's decoding by hand, against all sentences there are, against the reference's model, and its mistakes."""

import heapq
import inspect
import math
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from arrays import UNIT_ROUNDOFF, tensors
from goldformer import reference_impl
from goldformer.adapters.builtin import reference
from goldformer.adapters.textbook.build import build_textbook
from goldformer.conformance.diagnosis.mistakes import implementations, torch_implementations
from goldformer.spec.formulas.decoding import (
    DECODING,
    decoder_input,
    has_ended,
    length_penalty,
    model_logits,
    penalty_length,
    select_best,
)
from goldformer.spec.formulas.layers import DECODER_LAYER, ENCODER_LAYER, stack_params
from goldformer.spec.formulas.losses import pick_targets
from goldformer.spec.formulas.options import OPTIONS
from goldformer.spec.formulas.steps import around, instead, replacing
from goldformer.spec.formulas.transformer import log_softmax, memory_mask, source_mask
from spoiled import Spoiled, spoil

PAD, BOS, EOS = 5, 6, 2

textbook = build_textbook()


# A model drawn at random, whose words depend much on the source and on the words before


MODEL = {name: DECODING[name] for name in ("table", "w_vocab", "b_vocab")}
MODEL |= stack_params("encoder", ENCODER_LAYER, 1) | stack_params("decoder", DECODER_LAYER, 2)
LAYERS = {"num_heads": 2, "num_encoder_layers": 1, "num_decoder_layers": 2}


def model(seed, vocab, dtype="float64"):
    """64ths of ±1, and of ±2 for the words: every dtype holds them."""
    sizes = {"vocab": vocab, "d_model": 4, "d_ff": 5, "heads*d_k": 6, "heads*d_v": 2}
    random = np.random.default_rng(seed)
    params = {}
    for name, axes in MODEL.items():
        end = 2 if name == "w_vocab" else 1
        x = random.integers(-64, 65, [sizes[axis] for axis in axes.removeprefix("? ").split()]) / 64 * end
        params[name] = (x + name.endswith("gamma")).astype(dtype)
        params[name].flags.writeable = False
    return params


# One sample writes eos_id before the others, one never; bos_id is among the words.
SOURCE = np.array([[0, 3, 1, 4], [1, 7, PAD, PAD], [4, 0, 3, PAD]])
SOURCE.flags.writeable = False
SEED = 40


def greedy_arguments(seed=SEED, dtype="float64"):
    ids = {"pad_id": PAD, "bos_id": BOS, "eos_id": EOS}
    return {"source": SOURCE, "params": model(seed, 8, dtype), "max_length": 5} | ids | LAYERS


def beam_arguments(seed=SEED, dtype="float64", beam_size=3, top_beams=3):
    return greedy_arguments(seed, dtype) | {"beam_size": beam_size, "top_beams": top_beams}


# What is right: the log-probabilities by the reference's model, and the simplest search over them


def words_after(given, sample):
    """A function from words to the log-probability of each next word, for one sample without its padding."""
    source = given["source"][sample]
    source = torch.from_numpy(source[source != given["pad_id"]])[None]
    common = tensors({name: given[name] for name in (*LAYERS, "pad_id", "params")})

    @cache
    def after(words):
        logits = reference.transformer(source, torch.tensor([[given["bos_id"], *words]]), **common)["logits"]
        return torch.log_softmax(logits[0, -1], dim=-1).tolist()

    return after


def padded(values, given, fill):
    return [*values, *[fill] * (given["max_length"] - len(values))]


def right_greedy(given):
    found = []
    for sample in range(len(given["source"])):
        after, terms = words_after(given, sample), []
        words: tuple[int, ...] = ()
        while len(words) < given["max_length"] and given["eos_id"] not in words:
            term, word = max((term, word) for word, term in enumerate(after(words)))
            words = (*words, word)
            terms.append(term)
        found.append((words, terms))
    return {
        "ids": [padded(words, given, given["pad_id"]) for words, _ in found],
        "scores": [sum(terms) for _, terms in found],
        "token_scores": [padded(terms, given, 0) for _, terms in found],
    }


def right_beam(given, penalty):
    found = []
    for sample in range(len(given["source"])):
        after = words_after(given, sample)
        beam: dict[tuple[int, ...], float] = {(): 0.0}
        for _ in range(given["max_length"]):
            pool = {words: total for words, total in beam.items() if given["eos_id"] in words}
            for words in beam.keys() - pool.keys():
                pool |= {(*words, word): beam[words] + term for word, term in enumerate(after(words))}
            best = heapq.nlargest(given["beam_size"], pool, key=lambda words: pool[words] / penalty(len(words)))
            beam = {words: pool[words] for words in best}
        found.append([*beam.items()][: given["top_beams"]])
    return {
        "ids": [[padded(words, given, given["pad_id"]) for words, _ in sample] for sample in found],
        "scores": [[total / penalty(len(words)) for words, total in sample] for sample in found],
    }


plain = Spoiled("plain")
mean, gnmt = (Spoiled(name, OPTIONS["length_penalty", name]) for name in ("mean", "gnmt"))
PENALTIES = [(plain, lambda n: 1), (mean, lambda n: n), (gnmt, lambda n: ((5 + n) / 6) ** 0.6)]
every_penalty = pytest.mark.parametrize(("book", "penalty"), PENALTIES, ids=["none", "mean", "gnmt"])


def agree(got, want):
    assert list(got) == list(want)
    assert got["ids"].dtype == np.int64
    assert got["ids"].tolist() == want["ids"]
    for name in want:
        np.testing.assert_allclose(got[name], want[name], rtol=0, atol=1e-13)


# Seed 13 writes pad_id: a word like any, which no later word may attend to.
@pytest.mark.parametrize("seed", [SEED, 13, 2])
def test_greedy_decoding_of_a_batch(seed):
    agree(textbook.greedy_decode(**greedy_arguments(seed)), right_greedy(greedy_arguments(seed)))


@every_penalty
@pytest.mark.parametrize("beam_size", [2, 3])
def test_beam_search_of_a_batch(beam_size, book, penalty):
    given = beam_arguments(beam_size=beam_size, top_beams=beam_size)
    agree(book().beam_search(**given), right_beam(given, penalty))


def test_a_narrower_result_of_the_same_beam():
    wide, narrow = (textbook.beam_search(**beam_arguments(beam_size=4, top_beams=top)) for top in (4, 2))
    assert all(np.array_equal(wide[name][:, :2], narrow[name]) for name in ("ids", "scores"))


@pytest.mark.parametrize("seed", [SEED, 13, 2])
def test_one_beam_is_greedy(seed):
    greedy = textbook.greedy_decode(**greedy_arguments(seed))
    beam = textbook.beam_search(**beam_arguments(seed, beam_size=1, top_beams=1))
    assert np.array_equal(beam["ids"][:, 0], greedy["ids"])
    assert np.array_equal(beam["scores"][:, 0], greedy["scores"])


# All sentences there are


def every_sentence(given, vocab, begun=()):
    """Each sentence that ends with eos_id, or else has max_length words."""
    if len(begun) == given["max_length"] or given["eos_id"] in begun:
        return [begun]
    return [words for word in range(vocab) for words in every_sentence(given, vocab, (*begun, word))]


def teacher_forced(given, sample, sentences):
    """The score of each sentence, by one call of the reference that reads them all."""
    target = np.array([[given["bos_id"], *padded(words, given, given["bos_id"])] for words in sentences])
    common = {name: given[name] for name in (*LAYERS, "pad_id", "params")}
    source = np.repeat(given["source"][[sample]], len(sentences), axis=0)
    logits = reference.transformer(**tensors({"source": source, "target": target} | common))["logits"]
    terms = torch.log_softmax(logits, dim=-1).numpy()
    return [sum(terms[i, t, word] for t, word in enumerate(words)) for i, words in enumerate(sentences)]


@every_penalty
@pytest.mark.parametrize("beam_size", [40, 41])
def test_a_beam_for_all_sentences_finds_the_best(beam_size, book, penalty):
    vocab, ids = 4, {"pad_id": 3, "bos_id": 0, "eos_id": 2, "max_length": 3}
    given = {"source": np.array([[0, 1, 3], [2, 0, 1]]), "params": model(4, vocab)} | ids | LAYERS
    got = book().beam_search(**given, beam_size=beam_size, top_beams=40)
    # eos_id, 3·eos_id, 3·3 words and then any of four.
    sentences = every_sentence(given, vocab)
    assert len(sentences) == 1 + 3 + 3 * 3 * 4
    for sample in range(2):
        scores = [s / penalty(len(w)) for s, w in zip(teacher_forced(given, sample, sentences), sentences, strict=True)]
        order = np.argsort(scores)[::-1]
        assert got["ids"][sample].tolist() == [padded(sentences[i], given, 3) for i in order]
        np.testing.assert_allclose(got["scores"][sample], np.array(scores)[order], rtol=0, atol=1e-13)


def test_scores_are_those_of_teacher_forcing():
    given = greedy_arguments()
    got = textbook.greedy_decode(**given)
    target = textbook.shift_right(got["ids"], bos_id=BOS)
    model = {name: given[name] for name in ("source", *LAYERS, "pad_id", "params")}
    terms = log_softmax(textbook.transformer(target=target, **model)["logits"])
    # pad_id is no word of these sentences.
    expected = np.where(got["ids"] == PAD, 0, pick_targets(terms, got["ids"]))
    np.testing.assert_allclose(got["token_scores"], expected, rtol=0, atol=1e-13)
    np.testing.assert_allclose(got["scores"], expected.sum(-1), rtol=0, atol=1e-13)


# By hand: three words, and their probabilities after each beginning

END, A, B = range(3)
AFTER = {(): (0.5, 0.4, 0.1), (A,): (0.1, 0.8, 0.1), (B,): (0.9, 0.06, 0.04), (A, A): (0.9, 0.06, 0.04)}
WORDLESS = {"table": np.zeros((3, 1)), "w_vocab": np.zeros((1, 3))}
BY_HAND: dict[str, Any] = {"source": np.array([[A]]), "params": WORDLESS, **LAYERS}
BY_HAND |= {"pad_id": 7, "bos_id": B, "eos_id": END, "max_length": 3}


@spoil(instead_of=model_logits)
def by_hand(source, target, task):
    words = tuple(target[0, 1:].tolist())
    return np.log([[AFTER.get(words, (0.2, 0.4, 0.4))]])


mean_by_hand = Spoiled("mean_by_hand", *mean.layers, *by_hand.layers)
gnmt_by_hand = Spoiled("gnmt_by_hand", *gnmt.layers, *by_hand.layers)
set_aside_by_hand = Spoiled("set_aside_by_hand", OPTIONS["beam_finish", "set_aside"], *by_hand.layers)


def two_beams(book, **changed):
    got = book().beam_search(**BY_HAND | {"beam_size": 2, "top_beams": 2} | changed)
    return got["ids"][0].tolist(), got["scores"][0]


def test_greedy_by_hand():
    got = by_hand().greedy_decode(**BY_HAND)
    assert got["ids"].tolist() == [[END, 7, 7]]
    np.testing.assert_allclose(got["scores"], [math.log(0.5)])
    np.testing.assert_allclose(got["token_scores"], [[math.log(0.5), 0, 0]])


def test_two_beams_by_hand():
    ids, scores = two_beams(by_hand)
    assert ids == [[END, 7, 7], [A, A, END]]
    np.testing.assert_allclose(scores, [math.log(0.5), math.log(0.4 * 0.8 * 0.9)])


def test_max_length_cuts_what_has_not_ended():
    ids, scores = two_beams(by_hand, max_length=2)
    assert ids == [[END, 7], [A, A]]
    np.testing.assert_allclose(scores, [math.log(0.5), math.log(0.4 * 0.8)])


def test_the_mean_prefers_the_longer_sentence():
    ids, scores = two_beams(mean_by_hand)
    assert ids == [[A, A, END], [END, 7, 7]]
    np.testing.assert_allclose(scores, [math.log(0.4 * 0.8 * 0.9) / 3, math.log(0.5)])


def test_the_penalty_of_the_paper():
    ids, scores = two_beams(gnmt_by_hand)
    assert ids == [[END, 7, 7], [A, A, END]]
    # (5 + 1)/6 is 1, and (5 + 3)/6 is 4/3.
    np.testing.assert_allclose(scores, [math.log(0.5), math.log(0.4 * 0.8 * 0.9) / (4 / 3) ** 0.6])


def test_sentences_that_are_set_aside_leave_their_places():
    # END is set aside, and B takes its place; B END is the second, so A A is never finished.
    ids, scores = two_beams(set_aside_by_hand)
    assert ids == [[END, 7, 7], [B, END, 7]]
    np.testing.assert_allclose(scores, [math.log(0.5), math.log(0.1 * 0.9)])
    ids, scores = two_beams(set_aside_by_hand, max_length=1)
    assert ids == [[END], [A]]


# Among equals the lowest id


def equal_words(*, best=()):
    """A model to which all words are equal, or all of the best."""
    params = model(SEED, 8)
    params["w_vocab"], params["b_vocab"] = np.zeros_like(params["w_vocab"]), np.isin(np.arange(8), best) * 1.0
    return {"params": params}


def test_greedy_takes_the_lowest_id_of_equals():
    got = textbook.greedy_decode(**greedy_arguments() | equal_words())
    assert got["ids"].tolist() == [[0] * 5] * 3
    np.testing.assert_allclose(got["token_scores"], np.full((3, 5), -math.log(8)))
    got = textbook.greedy_decode(**greedy_arguments() | equal_words(best=(7, 3)))
    assert got["ids"].tolist() == [[3] * 5] * 3


def test_a_beam_takes_equals_by_sentence_and_then_by_id():
    given = beam_arguments(beam_size=3, top_beams=3) | equal_words(best=(7, 4, 3)) | {"max_length": 2}
    got = textbook.beam_search(**given)
    # At first 3, 4 and 7; then all extensions of 3 by the best are kept, and none of 4 or 7.
    assert got["ids"].tolist() == [[[3, 3], [3, 4], [3, 7]]] * 3
    given |= equal_words() | {"max_length": 3}
    # 0, 1 and eos_id; eos_id stays as the best, and both others are made of 0.
    assert textbook.beam_search(**given)["ids"].tolist() == [[[2, PAD, PAD], [0, 0, 0], [0, 0, 1]]] * 3


# A batch


@pytest.mark.parametrize("sample", range(3))
def test_a_sample_alone_without_its_padding(sample):
    source = SOURCE[[sample]][:, SOURCE[sample] != PAD]
    for component, given in (("greedy_decode", greedy_arguments()), ("beam_search", beam_arguments())):
        batch, alone = (getattr(textbook, component)(**given | changed) for changed in ({}, {"source": source}))
        assert np.array_equal(alone["ids"][0], batch["ids"][sample])
        np.testing.assert_allclose(alone["scores"][0], batch["scores"][sample], rtol=0, atol=1e-13)


def test_places_after_the_end():
    got = textbook.greedy_decode(**greedy_arguments())
    assert [row.tolist().index(EOS) if EOS in row else None for row in got["ids"]] == [3, None, 4]
    assert got["ids"][0, 4] == PAD
    assert got["token_scores"][0, 4] == 0
    assert (got["token_scores"][got["ids"] != PAD] < 0).all()


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("component", ["greedy_decode", "beam_search"])
def test_dtype_is_kept(component, dtype):
    arguments = {"greedy_decode": greedy_arguments, "beam_search": beam_arguments}[component]
    exact, rounded = (getattr(textbook, component)(**arguments(dtype=name)) for name in ("float64", dtype))
    assert np.array_equal(rounded["ids"], exact["ids"])
    assert rounded["scores"].dtype == dtype
    # Inputs are equal in all dtypes; 16 unit roundoffs of the largest, as for the model's logits.
    bound = 16 * UNIT_ROUNDOFF[dtype] * np.abs(exact["scores"]).max()
    np.testing.assert_allclose(rounded["scores"], exact["scores"], rtol=0, atol=bound)


# Refusals: what is changed of the arguments, and how it says so

REFUSED = [
    ({"source": SOURCE + 8}, "source: 8 is not in 0 … 7, the rows of table"),
    ({"source": SOURCE[0]}, r"source: shape \(4,\) is not \(batch, source_seq\)"),
    ({"source": SOURCE * 1.0}, "source: dtype float64, but ids are integers"),
    ({"source": SOURCE[:0]}, r"source: shape \(0, 4\) is empty along batch"),
    ({"bos_id": 8}, "bos_id: 8 is not in 0 … 7, the rows of table"),
    ({"bos_id": -1}, "bos_id: -1 is not in 0 … 7, the rows of table"),
    ({"bos_id": 1.0}, "bos_id: dtype float64, but ids are integers"),
    ({"eos_id": 8}, "eos_id: 8 is not in 0 … 7, the rows of table"),
    ({"eos_id": -1}, "eos_id: -1 is not in 0 … 7, the rows of table"),
    ({"max_length": 0}, "max_length: 0, but a sentence has at least one word"),
    ({"params": {}}, r"table: missing; it is \(vocab, d_model\)"),
    ({"params": {"table": np.ones((8, 4))}}, "encoder.0.self_attention.w_q: missing; it is"),
    ({"num_decoder_layers": 3}, "decoder.2.self_attention.w_q: missing"),
    ({"num_heads": 4}, "num_heads: 6 columns do not divide into 4 equal parts"),
]
REFUSED_BEAMS = [
    ({"beam_size": 0}, "beam_size: 0, but a beam keeps at least one sentence"),
    ({"top_beams": 0}, "top_beams: 0, but at least one sentence is returned"),
    ({"top_beams": 4}, r"top_beams: 4, but the beam keeps only 3 \(beam_size\)"),
    (
        {"beam_size": 9, "top_beams": 9, "max_length": 1},
        r"top_beams: 9, but of sentences of at most 1 words \(max_length\) there are only 8",
    ),
]


@pytest.mark.parametrize(("changed", "message"), REFUSED)
def test_refusals_name_the_argument(changed, message):
    for component, given in (("greedy_decode", greedy_arguments()), ("beam_search", beam_arguments())):
        with pytest.raises((ValueError, TypeError, IndexError), match=message):
            getattr(textbook, component)(**given | changed)


@pytest.mark.parametrize(("changed", "message"), REFUSED_BEAMS)
def test_refusals_of_a_beam_name_the_argument(changed, message):
    with pytest.raises(ValueError, match=message):
        textbook.beam_search(**beam_arguments() | changed)


# Every step can be replaced: a mistake is a function of a line or two


@spoil(around=decoder_input)
def last_word_alone(original, sentence, task):
    return original(sentence, task)[-1:]


def no_mask(source, pad_id):
    return None


@spoil(around=model_logits)
def decodes_without_masks(original, source, target, task):
    with replacing({source_mask: instead(no_mask), memory_mask: instead(no_mask)}):
        return original(source, target, task)


def put_ended_first(original, beam, task):
    return sorted(original(beam, task), key=lambda sentence: not has_ended(sentence, task))


ended_first = Spoiled("ended_first", *mean.layers, {select_best: around(put_ended_first)})
MAX_LENGTH = 5
penalty_of_max_length = Spoiled(
    "penalty_of_max_length", *mean.layers, {penalty_length: instead(lambda sentence: MAX_LENGTH)}
)


# By its id in the catalogue: the component, and the first output that shows it.
MISTAKES = {
    "decode-no-feedback": ("greedy_decode", "ids"),
    "decode-inverted-mask": ("greedy_decode", "ids"),
    "decode-cache-offset": ("greedy_decode", "ids"),
    "decode-bos-kept": ("greedy_decode", "ids"),
    "greedy-no-eos": ("greedy_decode", "ids"),
    "greedy-end-forgotten": ("greedy_decode", "ids"),
    "greedy-eos-dropped": ("greedy_decode", "ids"),
    "batch-eos": ("greedy_decode", "ids"),
    "decode-max-length-off-by-one": ("greedy_decode", "ids"),
    "decode-score-probability": ("greedy_decode", "scores"),
    "decode-score-logits": ("greedy_decode", "scores"),
    "decode-score-after-end": ("greedy_decode", "scores"),
    "beam-first-step-duplicates": ("beam_search", "ids"),
    "beam-per-parent": ("beam_search", "ids"),
    "beam-parent-stale": ("beam_search", "ids"),
    "beam-batch-index": ("beam_search", "ids"),
    "beam-source-order": ("beam_search", "ids"),
    "beam-cache-stale": ("beam_search", "ids"),
    "beam-end-flags-stale": ("beam_search", "ids"),
    "beam-finished-expand": ("beam_search", "ids"),
    "beam-stop-early": ("beam_search", "ids"),
    "beam-unsorted": ("beam_search", "ids"),
    "beam-worst-kept": ("beam_search", "ids"),
    "beam-no-log-sum": ("beam_search", "ids"),
    "beam-penalty-step": ("beam_search", "ids"),
    "beam-penalty-bos-counted": ("beam_search", "ids"),
}
CATALOGUED = {id_: Spoiled(id_, implementations()[id_].steps) for id_ in MISTAKES}
# Other forms of what the catalogue names.
OTHERS = [
    ("greedy_decode", last_word_alone, "ids"),
    ("greedy_decode", decodes_without_masks, "ids"),
    ("beam_search", ended_first, "ids"),
    ("beam_search", penalty_of_max_length, "ids"),
]
# It shows only where a sentence ends while others go on.
LATER = "greedy-end-forgotten"
REPLACED = [(part, CATALOGUED[id_], shown) for id_, (part, shown) in MISTAKES.items() if id_ != LATER] + OTHERS


def test_every_mistake_of_the_catalogue_is_made(spec):
    decoding = {m.id: m.component for m in spec.mistakes.values() if m.component in ("greedy_decode", "beam_search")}
    for id_ in torch_implementations():
        decoding.pop(id_, None)
    assert decoding == {id_: component for id_, (component, _) in MISTAKES.items()}


@cache
def right(component, book):
    """Return the textbook's outputs, after a comparison with the right ones."""
    given = greedy_arguments() if component == "greedy_decode" else beam_arguments()
    got = getattr(book(), component)(**given)
    agree(got, right_greedy(given) if component == "greedy_decode" else right_beam(given, dict(PENALTIES)[book]))
    return given, got


@pytest.mark.parametrize(("component", "mistake", "shown"), REPLACED)
def test_a_replaced_step_is_a_mistake(component, mistake, shown):
    under_mean = any(length_penalty in layer for layer in mistake.layers)
    given, want = right(component, mean if under_mean else plain)
    got = getattr(mistake(), component)(**given)
    assert {name: array.shape for name, array in got.items()} == {name: array.shape for name, array in want.items()}
    if shown == "ids":
        assert (got["ids"] != want["ids"]).any()
    else:
        assert np.array_equal(got["ids"], want["ids"])
        assert np.abs(got["scores"] - want["scores"]).max() > 0.01


def test_an_end_that_is_forgotten():
    end = 4
    given = greedy_arguments() | {"eos_id": end}
    want = plain().greedy_decode(**given)
    agree(want, right_greedy(given))
    assert want["ids"][1].tolist()[1:] == [end, PAD, PAD, PAD]
    # It ends one step before the others, which have just ended when it begins again.
    got = CATALOGUED[LATER]().greedy_decode(**given)["ids"]
    assert got[1].tolist()[1:3] == [end, PAD]
    assert got[1][3] != PAD


def test_a_search_that_stops_before_the_best_sentence():
    stops_early = Spoiled("stops_early", *mean_by_hand.layers, *CATALOGUED["beam-stop-early"].layers)

    # A A END would overtake it. Without a penalty none can, and only the sentences behind the best are cut short.
    assert two_beams(stops_early)[0] == [[END, 7, 7], [A, 7, 7]]


def test_a_search_that_penalises_all_alike():
    given = beam_arguments()
    without, alike = (book().beam_search(**given) for book in (plain, penalty_of_max_length))
    assert np.array_equal(alike["ids"], without["ids"])
    np.testing.assert_allclose(alike["scores"], without["scores"] / 5, rtol=1e-15)


def test_a_search_that_penalises_by_the_step():
    by_the_step = Spoiled("by_the_step", *mean_by_hand.layers, *CATALOGUED["beam-penalty-step"].layers)

    # Both have ended after three steps, whatever max_length is.
    ids, scores = two_beams(by_the_step, max_length=5)
    assert ids == [[END, 7, 7, 7, 7], [A, A, END, 7, 7]]
    np.testing.assert_allclose(scores, [math.log(0.5) / 3, math.log(0.4 * 0.8 * 0.9) / 3])


# The same edits in an array of words, (batch, beams, t): the reference's


HIDDEN = ("cumsum(dim=-1) > 1", "cumsum(dim=-1).roll(1, -1).index_fill_(-1, torch.tensor(0), 0) > 0")
BEFORE = "beam.words.take_along_dim((best // vocab)[..., None], dim=1)"
SHARED = "memory.repeat_interleave(beams, dim=0), source.repeat_interleave(beams, dim=0)"
TILED = "(torch.arange(len(source) * beam_size) % len(source)).reshape(-1, beam_size)[:, :beams].flatten()"
EDITS = {
    "beam-parent-stale": (BEFORE, "beam.words.expand(-1, best.shape[1], -1)"),
    "beam-batch-index": (BEFORE, "beam.words.flatten(0, 1)[best // vocab]"),
    "beam-source-order": (SHARED, f"memory[{TILED}], source[{TILED}]"),
}


@cache
def edited(edit):
    """The reference's beam search with an edit of its text; behind the first eos_id it shows nothing."""
    source = Path(inspect.getsourcefile(inspect.unwrap(reference_impl.beam_search))).read_text(encoding="utf-8")
    for old, new in (HIDDEN, edit):
        assert source.count(old) == 1
        source = source.replace(old, new)
    names = {"__name__": reference_impl.beam_search.__module__}
    exec(source, names)
    return names["beam_search"]


@pytest.mark.parametrize("seed", [SEED, 3])
@pytest.mark.parametrize("id_", EDITS)
def test_a_mistake_does_what_the_edit_of_an_array_does(id_, seed, monkeypatch):
    given = beam_arguments(seed)
    got = CATALOGUED[id_]().beam_search(**given)
    monkeypatch.setattr(reference_impl, "beam_search", edited(EDITS[id_]))
    want = reference.beam_search(**tensors(given))
    assert got["ids"].tolist() == want.ids.tolist()
    np.testing.assert_allclose(got["scores"], want.scores.numpy(), rtol=0, atol=1e-13)
