"""Sequences, targets and losses: words that move the wrong way, mass and sums that are shared in another way."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import numpy as np

from goldformer.conformance.diagnosis.neighbours.arguments import Given, change_argument, change_result
from goldformer.conformance.diagnosis.neighbours.neighbour import Neighbour
from goldformer.spec.formulas.arrays import as_array
from goldformer.spec.formulas.checks import Array
from goldformer.spec.formulas.losses import cross_entropy, find_words, kl_divergence, kl_terms, score_targets
from goldformer.spec.formulas.steps import Step, around, instead, replacing
from goldformer.spec.formulas.targets import label_smoothing, pad_or_truncate, shift_right
from goldformer.spec.formulas.transformer import log_softmax

# Sequences


def _move(ids: Array, bos_id: int, *, order: Callable[[Array, Array], list[Array]]) -> Array:
    first = np.full_like(ids[:, :1], bos_id)
    return np.concatenate(order(ids, first), axis=1)


def _change_sequences() -> Iterator[Neighbour]:
    orders: tuple[tuple[str, str, Callable[[Array, Array], list[Array]]], ...] = (
        ("left", "the words move to the left, and bos_id comes last", lambda ids, bos: [ids[:, 1:], bos]),
        ("overwritten", "bos_id takes the place of the first word, and nothing moves",
         lambda ids, bos: [bos, ids[:, 1:]]),
        ("by-two", "the words move by two, after two bos_id", lambda ids, bos: [bos, bos, ids[:, :-2]]),
        ("last-first", "the last word comes first instead of bos_id", lambda ids, _: [ids[:, -1:], ids[:, :-1]]),
        ("last-kept", "bos_id is put before the last words, and the first word is lost",
         lambda ids, bos: [ids[:, 1:-1], bos, ids[:, -1:]]),
        ("nothing", "nothing moves", lambda ids, _: [ids]),
    )  # fmt: skip
    for word, title, order in orders:

        def run(ids: Array, *, bos_id: int, order: Any = order) -> Array:
            return _move(ids, bos_id, order=order)[:, : ids.shape[1]]

        yield Neighbour(
            f"shift_right.{word}", title, "Put bos_id before the words and leave the last one out.",
            {shift_right: instead(run)},
        )  # fmt: skip
    cuts: tuple[tuple[str, str, Callable[[Array, int], Array]], ...] = (
        ("padded-in-front", "the zeros come before the rows instead of after them",
         lambda x, length: _pad(x[:, :length], length, in_front=True)),
        ("cut-in-front", "the first rows are cut off instead of the last",
         lambda x, length: _pad(x[:, -length:], length)),
        ("in-front", "rows are added and cut off in front instead of at the end",
         lambda x, length: _pad(x[:, -length:], length, in_front=True)),
        ("last-repeated", "the last row is repeated instead of zeros", _repeat_last),
    )  # fmt: skip
    for word, title, cut in cuts:
        yield Neighbour(
            f"pad_or_truncate.{word}", title, "Cut off rows at the end, or add zeros there.",
            {pad_or_truncate: instead(lambda x, *, length, cut=cut: as_array(cut(x, length)))},
        )  # fmt: skip


def _pad(x: Array, length: int, *, in_front: bool = False) -> Array:
    more = length - x.shape[1]
    return np.pad(x, ((0, 0), (more, 0) if in_front else (0, more), (0, 0)))


def _repeat_last(x: Array, length: int) -> Array:
    more = length - x.shape[1]
    return np.concatenate([x, np.repeat(x[:, -1:], more, axis=1)], axis=1) if more > 0 else x[:, :length]


# Label smoothing

#: What the target's own word keeps and what every other one gets, of s and the size of the vocabulary.
_SHARES: Final[tuple[tuple[str, str, Callable[[float, int], tuple[float, float]]], ...]] = (
    ("others-alone", "the other words share s, and the target's own gets nothing of it",
     lambda s, n: (1 - s, s / max(n - 1, 1))),
    ("target-left-out", "every other word gets s/vocab and the target's own nothing of it, so rows sum to less than 1",
     lambda s, n: (1 - s, s / n)),
    ("two-fewer", "s is shared among vocab − 2 words", lambda s, n: (1 - s, s / max(n - 2, 1))),
    ("two-fewer-too", "every word gets s/(vocab − 2), the target's own too, so rows sum to more than 1",
     lambda s, n: (1 - s + s / max(n - 2, 1), s / max(n - 2, 1))),
    ("shared-by-fewer", "every word gets s/(vocab − 1), the target's own too, so rows sum to more than 1",
     lambda s, n: (1 - s + s / max(n - 1, 1), s / max(n - 1, 1))),
    ("not-divided", "every word gets s itself instead of s/vocab", lambda s, _: (1 - s + s, s)),
    ("nothing-given", "the target loses s, and nobody gets it", lambda s, _: (1 - s, 0)),
    ("swapped", "the target gets s, and the others share the rest", lambda s, n: (s, (1 - s) / max(n - 1, 1))),
    ("not-reduced", "nothing is taken from the target before s/vocab is added, so rows sum to more than 1",
     lambda s, n: (1 + s / n, s / n)),
    ("ignored", "nothing is smoothed", lambda _, __: (1, 0)),
)  # fmt: skip


#: What becomes of the smoothed target where the word is the target's own, under whatever is declared.
_OWN: Final[tuple[tuple[str, str, Callable[[Array, float], Any]], ...]] = (
    ("own-whole", "the target's own word keeps 1, besides what the others get", lambda _, __: 1),
    ("own-not-reduced", "nothing is taken from the target's own word", lambda own, s: own + s),
    ("own-reduced-twice", "s is taken from the target's own word twice", lambda own, s: own - s),
)


#: The words that keep something of their probability where every other one gets s/(vocab − 2), and how much of it:
#: these differ unless a row is one-hot.
_KEPT: Final[tuple[tuple[str, str, Callable[[Array], Array], bool], ...]] = (
    ("present", "each word of the target keeps 1 − s of its probability", lambda t: t > 0, False),
    ("whole", "a word of probability 1 keeps 1 − s", lambda t: t == 1, True),
    (
        "likeliest",
        "the likeliest word gets 1 − s",
        lambda t: np.arange(t.shape[-1]) == t.argmax(-1, keepdims=True),
        True,
    ),
)


def _change_smoothing() -> Iterator[Neighbour]:
    for word, title, choose, is_one in _KEPT:

        def fill(target: Array, *, smoothing: float, choose: Any = choose, is_one: Any = is_one) -> Array:
            own = (1 - smoothing) * (np.ones_like(target) if is_one else target)
            return np.where(choose(target), own, target.dtype.type(smoothing / max(target.shape[-1] - 2, 1)))

        yield Neighbour(
            f"label_smoothing.two-fewer-{word}", f"{title}, and every other one gets s/(vocab − 2)",
            "A word gets (1 − s)·target + s/vocab, or what the declared smoothing_denominator says.",
            {label_smoothing: instead(fill)},
        )  # fmt: skip
    for word, title, change in _OWN:

        def set_own(original: Step, target: Array, *, smoothing: float, change: Any = change) -> Array:
            smoothed = original(target, smoothing=smoothing)
            return as_array(np.where(target == 1, change(smoothed, smoothing), smoothed)).astype(smoothed.dtype)

        yield Neighbour(
            f"label_smoothing.{word}", title, "The mass of a row stays 1.", {label_smoothing: around(set_own)}
        )
    for word, title, share in _SHARES:

        def run(target: Array, *, smoothing: float, share: Any = share) -> Array:
            own, other = share(smoothing, target.shape[-1])
            return as_array(target * own + (1 - target) * other)

        yield Neighbour(
            f"label_smoothing.{word}", title,
            "A word gets (1 − s)·target + s/vocab, or what the declared smoothing_denominator says.",
            {label_smoothing: instead(run)},
        )  # fmt: skip


# The losses

#: What the sum of the losses may be divided by, of logits and of what counts (batch, seq).
_DIVISORS: Final[tuple[tuple[str, str, Callable[[Array, Array], float]], ...]] = (
    ("summed", "summed over the words instead of averaged", lambda _, __: 1.0),
    ("over-places", "divided by the number of all places, padding too", lambda _, c: c.size),
    ("over-samples", "divided by the number of samples", lambda _, c: len(c)),
    ("over-length", "divided by the length of the sequences", lambda _, c: c.shape[1]),
    ("over-elements", "divided by the number of all elements of the logits", lambda z, _: z.size),
    ("over-words-and-vocab", "divided by the number of words times the vocabulary's size",
     lambda z, c: c.sum() * z.shape[-1]),
    ("over-words-and-elements", "averaged over all elements of the logits and divided by the number of words",
     lambda z, c: z.size * c.sum()),
    ("over-vocab", "divided by the vocabulary's size", lambda z, _: z.shape[-1]),
)  # fmt: skip


def _change_loss(change: Callable[[Array, Array, Array], Any]) -> Step:
    """Return the loss with another mean, made of the logits, the loss of each word, and what counts."""

    def run(original: Step, logits: Array, targets: Array, *, pad_id: int) -> dict[str, Array]:
        found = original(logits, targets, pad_id=pad_id)
        with np.errstate(all="ignore"):
            loss = change(logits, found["token_losses"], find_words(targets, pad_id))
        return {**found, "loss": as_array(loss).astype(found["loss"].dtype)}

    return run


def _divide_sum(logits: Array, losses: Array, counts: Array, *, by: Callable[[Array, Array], float]) -> Array:
    return as_array(losses.sum() / by(logits, counts))


def _shift(targets: Array, _: Given, *, by: int) -> Array:
    return np.roll(targets, by, axis=1)


def _count_padding(*outputs: str) -> Step:
    """Return the loss in which some outputs count padding too."""

    def run(original: Step, *args: Any, **named: Any) -> dict[str, Array]:
        with replacing({find_words: instead(lambda targets, _: np.ones(targets.shape, np.bool_))}):
            counted = original(*args, **named)
        return {**original(*args, **named), **{name: counted[name] for name in outputs}}

    return run


def _add_padding(original: Step, logits: Array, targets: Array, *, pad_id: int) -> dict[str, Array]:
    """Return the loss with that of padding in the sum, divided by the number of words without padding."""
    counted = _count_padding("token_losses")(original, logits, targets, pad_id=pad_id)["token_losses"]
    with np.errstate(invalid="ignore", divide="ignore"):
        loss = counted.sum() / find_words(targets, pad_id).sum()
    return {"loss": as_array(loss).astype(counted.dtype), "token_losses": counted}


def _change_cross_entropy() -> Iterator[Neighbour]:
    component, hint = "cross_entropy", "The loss is the mean of −log softmax at the target, over the words."
    changes: list[tuple[str, str, Step]] = [
        (word, f"the loss is {words}", _change_loss(partial(_divide_sum, by=by))) for word, words, by in _DIVISORS
    ]
    changes += [
        ("sample-means", "the loss is the mean of each sample's mean",
         _change_loss(lambda _, t, c: (t.sum(1) / c.sum(1)).mean())),
        ("negated", "the loss has the wrong sign", _change_loss(lambda _, t, c: -t.sum() / c.sum())),
        ("padding-in-loss", "the loss counts padding as words, and the losses of the words do not",
         _count_padding("loss")),
        ("padding-added", "padding adds to the loss, which is divided by the number of words", _add_padding),
        ("padding-in-token-losses", "padding has a loss of its own, which the mean does not count",
         _count_padding("token_losses")),
    ]  # fmt: skip
    for word, title, change in changes:
        yield Neighbour(f"{component}.{word}", title, hint, {cross_entropy: around(change)})
    scores: tuple[tuple[str, str, Callable[[Array], Array]], ...] = (
        ("base-two", "the logarithm has base 2", lambda x: x / math.log(2)),
        ("base-ten", "the logarithm has base 10", lambda x: x / math.log(10)),
        ("probability", "the probability is used instead of its logarithm", np.exp),
    )
    for word, title, rescale in scores:
        yield Neighbour(f"{component}.{word}", title, hint, {score_targets: change_result(rescale)})
    moves = (("shifted-left", "each place is compared with the next word", -1),
             ("shifted-right", "each place is compared with the word before", 1))  # fmt: skip
    for word, title, by in moves:
        yield Neighbour(
            f"{component}.{word}", title, "Compare the logits at a place with the target at that place.",
            {score_targets: change_argument(score_targets, "targets", partial(_shift, by=by))},
        )  # fmt: skip


def _take_terms(target: Array, log_q: Array, *, term: Callable[[Array, Array], Any]) -> Array:
    with np.errstate(all="ignore"):
        return as_array(np.nan_to_num(term(target, log_q), nan=0.0, posinf=np.inf, neginf=-np.inf))


def _change_divergence() -> Iterator[Neighbour]:
    component, hint = "kl_divergence", "It is Σ p·(log p − log q) over the words, p the target and q = softmax(logits)."
    terms: tuple[tuple[str, str, Callable[[Array, Array], Any]], ...] = (
        ("reversed", "target and prediction are swapped", lambda p, q: np.exp(q) * (q - np.log(p))),
        ("reversed-finite", "target and prediction are swapped, and the logarithm of a 0 in the target is taken as 0",
         lambda p, q: np.exp(q) * (q - np.log(np.where(p > 0, p, 1)))),
        ("cross-entropy", "log p is left out", lambda p, q: -p * q),
        ("unweighted", "p does not multiply the difference", lambda p, q: np.where(p > 0, np.log(p) - q, 0)),
        ("negated", "it has the wrong sign", lambda p, q: p * (q - np.log(p))),
        ("squared", "it is the sum of the squared differences", lambda p, q: np.square(p - np.exp(q))),
        ("symmetric", "it is the mean of both directions",
         lambda p, q: (p - np.exp(q)) * (np.log(p) - q) / 2),
    )  # fmt: skip
    for word, title, term in terms:
        yield Neighbour(f"{component}.{word}", title, hint, {kl_terms: instead(partial(_take_terms, term=term))})
    divisors: tuple[tuple[str, str, Callable[[Array], float]], ...] = (
        ("over-vocab", "it is divided by the vocabulary's size", lambda logits: logits.shape[-1]),
        ("over-rows", "each row is divided by the number of rows",
         lambda logits: logits.size / logits.shape[-1]),
        ("over-elements", "it is divided by the number of all elements", lambda logits: logits.size),
        ("over-samples", "it is divided by the number of samples", lambda logits: logits.shape[0]),
        ("base-two", "the logarithm has base 2", lambda _: float(np.log(2))),
    )  # fmt: skip
    for word, title, divisor in divisors:

        def divide(original: Step, target: Array, logits: Array, divisor: Any = divisor) -> Array:
            found = original(target, logits)
            return as_array(found / divisor(logits)).astype(found.dtype)

        yield Neighbour(f"{component}.{word}", title, hint, {kl_divergence: around(divide)})
    yield Neighbour(
        f"{component}.logits-as-log", "the logits are used as they are, without log softmax", hint,
        {log_softmax: instead(lambda logits: logits)},
    )  # fmt: skip


def generate() -> Iterator[Neighbour]:
    """Yield the neighbours of sequences, targets and losses."""
    yield from _change_sequences()
    yield from _change_smoothing()
    yield from _change_cross_entropy()
    yield from _change_divergence()
