"""Steps that are left out, done twice, done along another axis, or replaced by one like them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import product
from typing import Any, Final

import numpy as np

from goldformer.conformance.diagnosis.neighbours.array_changes import (
    Change,
    take_absolute,
)
from goldformer.conformance.diagnosis.neighbours.neighbour import Neighbour
from goldformer.spec.formulas.arrays import as_array
from goldformer.spec.formulas.attention import softmax, softmax_over_keys
from goldformer.spec.formulas.checks import Array
from goldformer.spec.formulas.heads import Params
from goldformer.spec.formulas.layers import (
    activation,
    channel_variance,
    feed_forward,
    layer_norm,
    norm_denominator,
    scale_and_shift,
    subtract_mean,
)
from goldformer.spec.formulas.losses import score_targets
from goldformer.spec.formulas.steps import Step, around, instead, replacing
from goldformer.spec.formulas.targets import one_hot
from goldformer.spec.formulas.transformer import log_softmax

_SDPA: Final = "scaled_dot_product_attention"


def _apply_softmax(scores: Array, axis: int | tuple[int, ...]) -> Array:
    with np.errstate(over="ignore", invalid="ignore"):
        powers = np.exp(scores - scores.max(axis=axis, keepdims=True))
        return as_array(powers / powers.sum(axis=axis, keepdims=True))


def _subtract_array_maximum(scores: Array) -> Array:
    powers = np.exp(scores - scores.max(initial=-np.inf))
    return as_array(powers / powers.sum(axis=-1, keepdims=True))


def _divide_by_sum_over(scores: Array, axis: int | tuple[int, ...] | None) -> Array:
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return as_array(powers / powers.sum(axis=axis, keepdims=True))


def _divide_by_sum(scores: Array) -> Array:
    return as_array(scores / scores.sum(-1, keepdims=True))


def _divide_by_sum_and_one(scores: Array) -> Array:
    powers = np.exp(scores)
    return as_array(powers / (1 + powers.sum(-1, keepdims=True)))


#: The numbers that code adds so as not to divide by 0; of those to a sum of 1 or more float32 shows the first three.
_TINY: Final = (1e-5, 1e-6, 1e-7, 1e-8, 1e-9, 1e-10, 1e-12)


def _add_to_weights(scores: Array, *, eps: float) -> Array:
    return as_array(_apply_softmax(scores, -1) + scores.dtype.type(eps))


def _divide_by_more(scores: Array, *, eps: float, shifts: bool) -> Array:
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True) if shifts else scores)
    return as_array(powers / (powers.sum(axis=-1, keepdims=True) + scores.dtype.type(eps)))


def _add_tiny() -> Iterator[tuple[str, str, Change]]:
    for eps in _TINY:
        added = f"a number of {eps:g} is added to"
        yield f"plus-{eps:g}", f"{added} every weight", partial(_add_to_weights, eps=eps)
        total = f"{added} the sum of the exponentials"
        if eps in _TINY[:3]:
            yield f"sum-plus-{eps:g}", total, partial(_divide_by_more, eps=eps, shifts=True)
        unshifted = f"{total}, and no maximum is subtracted before"
        yield f"unshifted-sum-plus-{eps:g}", unshifted, partial(_divide_by_more, eps=eps, shifts=False)


def _change_softmax() -> Iterator[Neighbour]:
    last_axis = "Take the softmax over the last axis: the keys, or the words of logits."
    ways: tuple[tuple[str, str, Change], ...] = (
        ("over-queries", "the softmax runs over the last axis but one, in an attention the queries",
         lambda s: _apply_softmax(s, -2 if s.ndim > 1 else -1)),
        ("over-heads", "the softmax runs over the heads", lambda s: _apply_softmax(s, 1 if s.ndim > 3 else -1)),
        ("over-samples", "the softmax runs over the samples", lambda s: _apply_softmax(s, 0)),
        ("over-rows-and-keys", "the softmax runs over queries and keys at once",
         lambda s: _apply_softmax(s, (-2, -1) if s.ndim > 1 else -1)),
        ("sum-over-queries", "the exponentials are divided by their sum over the queries",
         lambda s: _divide_by_sum_over(s, -2 if s.ndim > 1 else -1)),
        ("sum-over-samples", "the exponentials are divided by their sum over the samples, the first axis",
         lambda s: _divide_by_sum_over(s, 0)),
        ("sum-over-heads", "the exponentials are divided by their sum over the heads",
         lambda s: _divide_by_sum_over(s, 1 if s.ndim > 3 else -1)),
        ("sum-over-heads-and-keys", "the exponentials are divided by their sum over heads and keys at once",
         lambda s: _divide_by_sum_over(s, (1, -1) if s.ndim > 3 else -1)),
        ("sum-over-all", "the exponentials are divided by the sum of all of them",
         lambda s: _divide_by_sum_over(s, None)),
        ("twice", "the softmax is applied twice", lambda s: _apply_softmax(_apply_softmax(s, -1), -1)),
        ("left-out", "the softmax is left out", lambda s: s),
        ("array-maximum", "the maximum of the whole array is subtracted, so rows far below it are 0 and become 0/0",
         _subtract_array_maximum),
        ("not-normalised", "the exponentials are not divided by their sum", np.exp),
        ("linear", "the scores are divided by their sum instead of the softmax", _divide_by_sum),
        ("sigmoid", "a sigmoid takes the place of the softmax", lambda s: 1 / (1 + np.exp(-s))),
        ("logarithm", "the logarithm of the softmax is used", lambda s: np.log(_apply_softmax(s, -1))),
        ("base-two", "the softmax has powers of 2 instead of e", lambda s: _apply_softmax(s * math.log(2), -1)),
        ("one-more", "one is added to the sum of the exponentials", _divide_by_sum_and_one),
        ("negated", "the softmax is that of the negated scores", lambda s: _apply_softmax(-s, -1)),
        ("hard", "only the largest score counts", lambda s: (s == s.max(-1, keepdims=True)).astype(s.dtype)),
        *_add_tiny(),
    )  # fmt: skip
    added = "Add nothing: after the maximum of a row is subtracted its exponentials sum to 1 or more."
    hints = {"array-maximum": "Subtract the maximum of each row, axis=-1 and keepdims=True."}
    hints |= {word: added for word, _, _ in ways if "plus-" in word}
    for word, title, way in ways:
        hint = hints.get(word, last_axis)
        for step, component in ((softmax_over_keys, _SDPA), (softmax, "softmax")):

            def run(scores: Array, way: Change = way) -> Array:
                with np.errstate(all="ignore"):
                    return as_array(way(scores))

            yield Neighbour(f"{component}.softmax.{word}", title, hint, {step: instead(run)})


def _take_log_of_softmax() -> Iterator[Neighbour]:
    """Yield losses with the logarithm of a probability that is rounded already, and may be 0."""
    for component in ("cross_entropy", "kl_divergence"):
        for eps in (0.0, 1e-5, 1e-6, 1e-7, 1e-8, 1e-9, 1e-10, 1e-12, 1e-15):

            def run(logits: Array, eps: float = eps) -> Array:
                with np.errstate(divide="ignore", over="ignore"):
                    return as_array(np.log(_apply_softmax(logits, -1) + np.asarray(eps, logits.dtype)))

            added = f" + {eps:g}" if eps else ""
            yield Neighbour(
                f"{component}.log-of-softmax.{eps:g}",
                f"the logarithm is taken of the finished softmax, log(softmax(logits){added})",
                "Use log_softmax, logits − max − log Σ exp(logits − max), which neither rounds to 0 nor adds anything.",
                {log_softmax: instead(run)},
            )  # fmt: skip

    for component, (word, axis, says) in product(
        ("cross_entropy", "kl_divergence"), (("tokens", -2, "the tokens"), ("samples", 0, "the samples"))
    ):

        def normalise(logits: Array, axis: int = axis) -> Array:
            shifted = logits - logits.max(axis=axis, keepdims=True)
            return as_array(shifted - np.log(np.exp(shifted).sum(axis=axis, keepdims=True)))

        yield Neighbour(
            f"{component}.log-softmax-over-{word}", f"the log-softmax runs over {says} instead of the vocabulary",
            "Take the log-softmax over the last axis, the vocabulary.", {log_softmax: instead(normalise)},
        )  # fmt: skip

    def multiply_one_hot(logits: Array, targets: Array) -> Array:
        with np.errstate(all="ignore"):
            logarithms = np.log(_apply_softmax(logits, -1))
            chosen = one_hot(targets, vocab=logits.shape[-1]).astype(logits.dtype)
            return as_array((logarithms * chosen).sum(-1))

    yield Neighbour(
        "cross_entropy.log-of-softmax.one-hot",
        "the logarithm is taken of the finished softmax and multiplied by the one-hot target, and 0 · log 0 is NaN",
        "Use log_softmax, logits − max − log Σ exp(logits − max), and pick the entry of each target.",
        {score_targets: instead(multiply_one_hot)},
    )  # fmt: skip


def _change_activation() -> Iterator[Neighbour]:
    functions: tuple[tuple[str, str, Change], ...] = (
        ("leaky-relu", "leaky ReLU with a slope of 0.01", lambda x: np.where(x > 0, x, 0.01 * x)),
        ("gelu-sigmoid", "GELU in its sigmoid form", lambda x: x / (1 + np.exp(-1.702 * x))),
        ("elu", "ELU", lambda x: np.where(x > 0, x, np.expm1(x))),
        ("tanh", "tanh", np.tanh),
        ("sigmoid", "a sigmoid", lambda x: 1 / (1 + np.exp(-x))),
        ("softplus", "softplus", lambda x: np.log(1 + np.exp(x))),
        ("relu6", "ReLU6", lambda x: np.clip(x, 0, 6)),
        ("absolute-value", "the absolute value", take_absolute),
        ("squared-relu", "ReLU squared", lambda x: np.square(np.maximum(x, 0))),
        ("reverse", "min(0, x)", lambda x: np.minimum(x, 0)),
        ("negative-input", "max(0, −x)", lambda x: np.maximum(-x, 0)),
        ("softmax", "a softmax", lambda x: _apply_softmax(x, -1)),
    )  # fmt: skip
    for word, words, function in functions:
        yield Neighbour(
            f"feed_forward.activation.{word}", f"the activation is {words} instead of ReLU",
            "Use ReLU, max(0, x), or declare a variant.",
            {activation: instead(lambda x, function=function: as_array(function(x)).astype(x.dtype))},
        )  # fmt: skip

    def activate_input(original: Step, x: Array, **named: Any) -> Any:
        return original(np.maximum(x, 0), **named)

    def keep_input(original: Step, x: Array, **named: Any) -> Any:
        output, hidden = original(x, **named)
        return x + output, hidden

    def activate_output(original: Step, x: Array, **named: Any) -> Any:
        with replacing({activation: instead(lambda x: x)}):
            output, hidden = original(x, **named)
        return np.maximum(output, 0), hidden

    yield Neighbour(
        "feed_forward.activation-last", "the ReLU stands after the second map instead of between the two",
        "Use ReLU between the two maps only.", {feed_forward: around(activate_output)},
    )  # fmt: skip

    yield Neighbour(
        "feed_forward.input-activated", "the input goes through ReLU too",
        "Use ReLU between the two maps only.", {feed_forward: around(activate_input)},
    )  # fmt: skip
    yield Neighbour(
        "feed_forward.residual-inside", "the network adds its input to its output",
        "Add the residual in the layer, once.", {feed_forward: around(keep_input)},
    )  # fmt: skip


_OF_NORM: Final = "It is (x − mean)/√(variance + eps)·gamma + beta, over the channels of each token."


def _change_affine() -> Iterator[Neighbour]:
    def add_first(normal: Array, params: Params) -> Array:
        return as_array((normal + params["beta"]) * params["gamma"])

    yield Neighbour(
        "layer_norm.beta-first", "beta is added before gamma multiplies", _OF_NORM,
        {scale_and_shift: instead(add_first)},
    )  # fmt: skip


def _change_statistics() -> Iterator[Neighbour]:
    """Yield normalisations with another deviation, or a mean of other numbers."""

    def average_absolute(_: Step, centred: Array) -> Array:
        return as_array(np.square(take_absolute(centred).mean(-1, keepdims=True)))

    def subtract_twice(original: Step, x: Array) -> Array:
        return as_array(2 * original(x) - x)

    def average_tokens(original: Step, x: Array) -> Array:
        return as_array(x - x.mean(axis=(-2, -1), keepdims=True) if x.ndim > 1 else original(x))

    others: tuple[tuple[str, str, Step, Step], ...] = (
        ("absolute-deviation", "the deviation is the mean of the absolute values", channel_variance, average_absolute),
        ("mean-of-tokens", "the mean subtracted is that of all tokens of a sample", subtract_mean, average_tokens),
        ("mean-twice", "the mean is subtracted twice", subtract_mean, subtract_twice),
    )
    for word, title, step, function in others:
        yield Neighbour(f"layer_norm.{word}", title, _OF_NORM, {step: around(function)})
    along = (("tokens", -2, "the tokens"), ("samples", 0, "the samples"), ("array", None, "the whole array"))
    for word, axis, says in along:
        yield Neighbour(
            f"layer_norm.variance-along-{word}",
            f"the variance runs along {says} instead of the channels, the mean along the channels", _OF_NORM,
            {layer_norm: instead(partial(_divide_by_variance_along, axis=axis))},
        )  # fmt: skip


def _divide_by_variance_along(x: Array, *, params: Mapping[str, Array], axis: int | None) -> Array:
    """Return the row minus its mean, over the deviation along another axis."""
    wide = x.astype(np.promote_types(x.dtype, np.float32))
    variance = wide.var(axis=axis if axis is None or x.ndim > 1 else -1, keepdims=True)
    return as_array(scale_and_shift(subtract_mean(wide) / norm_denominator(variance), params).astype(x.dtype))


def generate() -> Iterator[Neighbour]:
    """Yield the neighbours of single steps."""
    yield from _change_softmax()
    yield from _take_log_of_softmax()
    yield from _change_activation()
    yield from _change_affine()
    yield from _change_statistics()
