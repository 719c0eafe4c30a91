"""The textbook's sequences, targets and losses by hand, against PyTorch and the reference; what they promise."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from torch.nn.functional import cross_entropy as torch_cross_entropy

from arrays import UNIT_ROUNDOFF, draw, outputs, tensors
from goldformer.adapters.builtin import reference
from goldformer.adapters.builtin import textbook as textbook_adapter
from goldformer.adapters.textbook.build import build_textbook
from goldformer.conformance.diagnosis.mistakes import implementations
from goldformer.spec.formulas.losses import cross_entropy
from goldformer.spec.formulas.targets import pad_sequence, spread_smoothing_mass
from spoiled import spoil

BATCH, SEQ, D_MODEL, VOCAB, PAD = 3, 5, 14, 19, 4
# Words and, from some place on, padding, whose id is not 0 and no word's.
TARGET = np.array([[7, 11, 5, 18, 9], [6, 8, 11, 13, PAD], [5, 17, PAD, PAD, PAD]])
# The words of the documents' example: a, am, i, thanks, student, <eos>.
A, AM, I, THANKS, STUDENT, EOS = range(6)  # noqa: E741 - the word
SENTENCE = np.array([[I, AM, A, STUDENT, EOS]])

textbook = build_textbook()


def loss_arguments(dtype="float64"):
    return {"logits": draw(1, BATCH, SEQ, VOCAB, dtype=dtype), "targets": TARGET, "pad_id": PAD}


def divergence_arguments(dtype="float64"):
    # Eighths, and some of them 0.
    target = np.zeros((BATCH, SEQ, VOCAB), dtype=dtype)
    target[..., 2], target[..., 3], target[..., 7] = 0.5, 0.125, 0.375
    return {"target": target, "logits": draw(3, BATCH, SEQ, VOCAB, dtype=dtype)}


def smoothing_arguments(dtype="float64"):
    return {"target": np.eye(VOCAB, dtype=dtype)[TARGET], "smoothing": 0.125}


def length_arguments(dtype="float64"):
    return {"x": draw(2, BATCH, SEQ, D_MODEL, dtype=dtype), "length": 8}


FLOATS: dict[str, Callable[..., dict[str, Any]]] = {
    "pad_or_truncate": length_arguments,
    "label_smoothing": smoothing_arguments,
    "cross_entropy": loss_arguments,
    "kl_divergence": divergence_arguments,
}
ARGUMENTS = FLOATS | {
    "shift_right": lambda: {"ids": TARGET, "bos_id": 1},
    "one_hot": lambda: {"ids": TARGET, "vocab": VOCAB},
}


# By hand


def test_pad_or_truncate_by_hand():
    x = np.array([[[1.0, 2], [3, 4]]])
    assert textbook.pad_or_truncate(x, length=3).tolist() == [[[1, 2], [3, 4], [0, 0]]]
    assert textbook.pad_or_truncate(x, length=1).tolist() == [[[1, 2]]]
    assert textbook.pad_or_truncate(x, length=2).tolist() == x.tolist()


@pytest.mark.parametrize("length", [1, 2, 3])
def test_pad_or_truncate_gives_no_view(length):
    x = np.ones((1, 2, 2))
    assert not np.shares_memory(textbook.pad_or_truncate(x, length=length), x)


def test_the_decoder_reads_the_sentence_shifted():
    bos = 6
    got = textbook.shift_right(SENTENCE, bos_id=bos)
    assert got.tolist() == [[bos, I, AM, A, STUDENT]]
    assert got.dtype == np.int64
    assert not np.shares_memory(got, SENTENCE)


def test_one_hot_words():
    got = textbook.one_hot(np.array([[THANKS, EOS]]), vocab=6)
    assert got.tolist() == [[[0, 0, 0, 1, 0, 0], [0, 0, 0, 0, 0, 1]]]
    assert got.dtype == np.int64


def test_smoothed_words():
    got = textbook.label_smoothing(np.eye(6)[[[THANKS]]], smoothing=0.3)
    np.testing.assert_allclose(got, [[[0.05, 0.05, 0.05, 0.75, 0.05, 0.05]]], rtol=1e-15)
    assert textbook.label_smoothing(np.eye(6)[SENTENCE], smoothing=0).tolist() == np.eye(6)[SENTENCE].tolist()
    assert textbook.label_smoothing(np.eye(4)[[[1]]], smoothing=1).tolist() == [[[0.25] * 4]]


def half_right(ids, vocab=6):
    """Logits that give each target half of the probability, and the other words the rest in equal parts."""
    return np.log(np.where(np.eye(vocab)[ids] == 1, 0.5, 0.5 / (vocab - 1)))


def test_cross_entropy_of_the_sentence():
    got = textbook.cross_entropy(half_right(SENTENCE), SENTENCE, pad_id=-1)
    np.testing.assert_allclose(got["token_losses"], [[math.log(2)] * 5], rtol=1e-15)
    assert got["loss"] == pytest.approx(math.log(2), rel=1e-15)
    assert got["loss"].shape == ()


def test_cross_entropy_of_a_model_that_knows_nothing():
    got = textbook.cross_entropy(np.zeros((1, 5, 6)), SENTENCE, pad_id=-1)
    assert got["loss"] == pytest.approx(math.log(6), rel=1e-15)


def test_cross_entropy_takes_one_softmax():
    # Two would leave log(1 + 1/e) = 0.313.
    loss = textbook.cross_entropy(np.array([[[10.0, 0]]]), np.array([[0]]), pad_id=-1)["loss"]
    assert loss == pytest.approx(math.log1p(math.exp(-10)), rel=1e-11)


def test_cross_entropy_of_unlikely_words():
    # e^−2000 is 0 in every dtype; its logarithm is not taken.
    loss = textbook.cross_entropy(np.array([[[2000.0, 0]]]), np.array([[1]]), pad_id=-1)["loss"]
    assert loss == 2000


def test_padding_counts_neither_in_the_sum_nor_in_the_number():
    pad = 6
    targets = np.array([[I, AM, A, STUDENT, EOS], [THANKS, EOS, pad, pad, pad]])
    logits = draw(5, 2, 5, 7)
    got = textbook.cross_entropy(logits, targets, pad_id=pad)
    assert got["token_losses"][1, 2:].tolist() == [0, 0, 0]
    sentence = textbook.cross_entropy(logits[:1], targets[:1], pad_id=pad)["loss"]
    thanks = textbook.cross_entropy(logits[1:, :2], targets[1:, :2], pad_id=pad)["loss"]
    assert got["loss"] == pytest.approx((5 * sentence + 2 * thanks) / 7, rel=1e-14)


def test_the_loss_of_nothing_but_padding_is_nan():
    got = textbook.cross_entropy(np.zeros((1, 2, 3)), np.array([[0, 0]]), pad_id=0)
    assert math.isnan(got["loss"])
    assert got["token_losses"].tolist() == [[0, 0]]


def test_divergence_by_hand():
    # p = (1/2, 1/2, 0) against the uniform q: log 3 − log 2.
    got = textbook.kl_divergence(np.array([0.5, 0.5, 0]), np.zeros(3))
    assert got == pytest.approx(math.log(1.5), rel=1e-15)
    assert got.shape == ()


def test_divergence_of_one_hot_targets_is_the_cross_entropy():
    logits = draw(6, 1, 5, 6)
    got = textbook.kl_divergence(np.eye(6)[SENTENCE], logits)
    expected = textbook.cross_entropy(logits, SENTENCE, pad_id=-1)["token_losses"]
    np.testing.assert_allclose(got, expected, rtol=1e-14)


def test_divergence_of_equal_distributions_is_nothing():
    logits = half_right(SENTENCE)
    np.testing.assert_allclose(textbook.kl_divergence(np.exp(logits), logits), np.zeros((1, 5)), atol=1e-15)


# PyTorch and the reference in float64


@pytest.mark.parametrize("pad_id", [PAD, -1])
def test_cross_entropy_against_torch(pad_id):
    given = loss_arguments() | {"pad_id": pad_id}
    t = tensors(given)
    expected = torch_cross_entropy(t["logits"].flatten(0, 1), t["targets"].flatten(), ignore_index=pad_id)
    assert textbook.cross_entropy(**given)["loss"] == pytest.approx(expected.item(), rel=1e-14)


def test_smoothed_cross_entropy_against_torch():
    given = divergence_arguments()
    logits, ids = given["logits"], TARGET
    smooth = textbook.label_smoothing(np.eye(VOCAB)[ids], smoothing=0.125)
    entropy = -(smooth * np.log(smooth)).sum(-1)
    got = (textbook.kl_divergence(smooth, logits) + entropy).mean()
    t = tensors({"logits": logits, "ids": ids})
    expected = torch_cross_entropy(t["logits"].flatten(0, 1), t["ids"].flatten(), label_smoothing=0.125)
    assert got == pytest.approx(expected.item(), rel=1e-14)


@pytest.mark.parametrize("component", ARGUMENTS)
def test_the_adapters_of_textbook_and_reference_agree(component):
    given = ARGUMENTS[component]()
    got = outputs(getattr(textbook_adapter, component)(**given))
    expected = outputs(getattr(reference, component)(**tensors(given)))
    for mine, other in zip(got, expected, strict=True):
        np.testing.assert_allclose(mine, other.numpy(), rtol=0, atol=1e-13)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("component", FLOATS)
def test_dtype_is_kept(component, dtype):
    # Inputs are equal in all dtypes; 16 unit roundoffs are eight times the most that was seen, 1.9.
    exact = outputs(getattr(textbook, component)(**ARGUMENTS[component]()))
    rounded = outputs(getattr(textbook, component)(**ARGUMENTS[component](dtype=dtype)))
    for want, got in zip(exact, rounded, strict=True):
        assert got.dtype == dtype
        bound = 16 * UNIT_ROUNDOFF[dtype] * max(1, np.abs(want).max())
        np.testing.assert_allclose(got, want, rtol=0, atol=bound)


# Refusals: a component, what is changed of its arguments, and how it says so

REFUSED = [
    ("pad_or_truncate", {"length": 0}, "length: 0, but a sequence has at least one row"),
    ("pad_or_truncate", {"x": np.ones((2, 3))}, r"x: shape \(2, 3\) is not \(batch, seq, d_model\)"),
    ("shift_right", {"ids": np.ones((2, 3))}, "ids: dtype float64, but ids are integers"),
    ("shift_right", {"ids": np.array([1, 2])}, r"ids: shape \(2,\) is not \(batch, seq\)"),
    ("one_hot", {"vocab": 18}, "ids: 18 is not in 0 … 17, the words of vocab"),
    ("one_hot", {"ids": np.array([[-1]])}, "ids: -1 is not in 0 … 18, the words of vocab"),
    ("one_hot", {"vocab": 0}, "vocab: 0, but a vocabulary has at least one word"),
    ("label_smoothing", {"smoothing": 1.5}, "smoothing: 1.5 is not in 0 … 1"),
    ("label_smoothing", {"target": np.ones((2, 3))}, "target: shape .* is not"),
    ("cross_entropy", {"targets": TARGET[:, :4]}, "targets: shape .* seq is 5 in logits"),
    ("cross_entropy", {"targets": TARGET + VOCAB}, "targets: .* is not in 0 … 18, the columns of logits"),
    ("kl_divergence", {"logits": np.ones((3, 5, 4))}, "logits: shape .* n is 19 in target"),
    ("kl_divergence", {"logits": np.ones((5, 19))}, r"logits: shape .* \.\.\. is \(3, 5\) in target"),
]


@pytest.mark.parametrize(("component", "changed", "message"), REFUSED)
def test_refusals_name_the_argument(component, changed, message):
    with pytest.raises((ValueError, TypeError, IndexError), match=message):
        getattr(textbook, component)(**ARGUMENTS[component]() | changed)


# Every step can be replaced: a mistake is a function of a line or two


@spoil(around=pad_sequence)
def padded_in_front(original, x, length):
    return original(x[:, ::-1], length)[:, ::-1]


@spoil(instead_of=spread_smoothing_mass)
def smoothed_among_the_others(target, smoothing):
    return (1 - target) * smoothing / (target.shape[-1] - 1)


@spoil(around=cross_entropy)
def loss_shifts_too(original, logits, targets, *, pad_id):
    return original(logits[:, :-1], targets[:, 1:], pad_id=pad_id)


# Those of the catalogue by their ids.
MISTAKES: dict[str, list[Any]] = {
    "shift_right": ["shift-missing", "shift-double"],
    "pad_or_truncate": [padded_in_front],
    "label_smoothing": ["ls-mass", smoothed_among_the_others],
    "cross_entropy": [
        "double-softmax",
        "log-softmax-missing",
        "loss-pad-counted",
        "loss-pad-denominator",
        loss_shifts_too,
    ],
    "kl_divergence": ["kl-row-mean"],
}
PAIRS = [(component, mistake) for component, mistakes in MISTAKES.items() for mistake in mistakes]


@pytest.mark.parametrize(("component", "mistake"), PAIRS)
def test_a_replaced_step_is_a_mistake(component, mistake):
    given = ARGUMENTS[component]()
    right = outputs(getattr(textbook, component)(**given))[0]
    make = implementations()[mistake].make if isinstance(mistake, str) else mistake
    wrong = outputs(getattr(make(), component)(**given))[0]
    assert wrong.shape == right.shape
    assert np.abs(wrong - right).max() > 1e-4


def test_overrides_that_take_the_logarithm_of_zero():
    forward, backward = (implementations()[id_].make() for id_ in ("ls-log-zero", "kl-reversed"))
    assert np.isnan(forward.kl_divergence(**divergence_arguments())).all()
    assert np.isposinf(backward.kl_divergence(**divergence_arguments())).all()


def test_an_override_that_swaps_the_distributions():
    # p = (1/4, 3/4), and q = (1/2, 1/2): Σ q·(log q − log p) = log(1/2) − (log(1/4) + log(3/4))/2 = log(4/3)/2.
    swapped = implementations()["kl-reversed"].make()
    assert swapped.kl_divergence(np.array([0.25, 0.75]), np.zeros(2)) == pytest.approx(math.log(4 / 3) / 2, rel=1e-14)


def test_an_override_that_takes_two_softmaxes():
    twice = implementations()["double-softmax"].make()
    loss = twice.cross_entropy(np.array([[[10.0, 0]]]), np.array([[0]]), pad_id=-1)["loss"]
    assert loss == pytest.approx(0.313, abs=5e-4)


def test_an_override_that_keeps_the_last_id():
    got = implementations()["eos-fed-in"].make().shift_right(SENTENCE, bos_id=6)
    assert got.tolist() == [[6, I, AM, A, STUDENT, EOS]]
