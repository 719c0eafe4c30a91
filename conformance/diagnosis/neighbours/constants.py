"""Constants that are another size of the call, or another power of ten."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import numpy as np

from goldformer.conformance.diagnosis.neighbours.arguments import Given, change_argument, change_result
from goldformer.conformance.diagnosis.neighbours.neighbour import Neighbour
from goldformer.spec.formulas.arrays import as_array
from goldformer.spec.formulas.attention import score_divisor, sum_values, weigh_keys
from goldformer.spec.formulas.checks import Array
from goldformer.spec.formulas.embedding import (
    Wave,
    angular_frequency,
    channel_waves,
    frequency_exponent,
    positional_encoding,
    token_positions,
    wavelength_base,
)
from goldformer.spec.formulas.layers import activation, layer_norm_eps, norm_denominator
from goldformer.spec.formulas.rms import rms_divisor, rms_eps
from goldformer.spec.formulas.steps import Step, around, instead
from goldformer.spec.formulas.transformer import output_logits

_SDPA: Final = "scaled_dot_product_attention"


def _measure_lead(sizes: Mapping[str, Any], place: int) -> int:
    lead = sizes["..."]
    return int(lead[place]) if len(lead) > place else 1


def _measure_axis(sizes: Mapping[str, Any], place: int, of: str = "q_seq") -> int:
    """Return the size of an axis of the queries or keys, counted from the front; the last one if there are fewer."""
    shape = (*sizes["..."], sizes[of], sizes["d_k"])
    return int(shape[min(place, len(shape) - 1)])


#: Sizes of a call of the attention, in words.
_SIZES: Final[tuple[tuple[str, str, Callable[[Mapping[str, Any]], float]], ...]] = (
    ("d_k", "d_k", lambda s: s["d_k"]),
    ("d_model", "d_model, heads times d_k", lambda s: s["d_k"] * _measure_lead(s, 1)),
    ("heads", "the number of heads", lambda s: _measure_lead(s, 1)),
    ("d_v", "d_v", lambda s: s["d_v"]),
    ("kv_seq", "the number of keys", lambda s: s["kv_seq"]),
    ("q_seq", "the number of queries", lambda s: s["q_seq"]),
    ("batch", "the number of samples", lambda s: _measure_lead(s, 0)),
    ("d_model_v", "heads times d_v", lambda s: s["d_v"] * _measure_lead(s, 1)),
    ("d_k_per_head", "d_k divided by the heads", lambda s: s["d_k"] / _measure_lead(s, 1)),
    ("twice_d_k", "2·d_k", lambda s: 2 * s["d_k"]),
    ("half_d_k", "d_k/2", lambda s: s["d_k"] / 2),
    ("d_k_minus_one", "d_k − 1", lambda s: max(s["d_k"] - 1, 1)),
    ("d_k_plus_one", "d_k + 1", lambda s: s["d_k"] + 1),
    ("axis-0", "the size of axis 0 of the queries", lambda s: _measure_axis(s, 0)),
    ("axis-1", "the size of axis 1 of the queries", lambda s: _measure_axis(s, 1)),
    ("axis-2", "the size of axis 2 of the queries", lambda s: _measure_axis(s, 2)),
    ("axis-1-of-keys", "the size of axis 1 of the keys", lambda s: _measure_axis(s, 1, "kv_seq")),
    ("axis-2-of-keys", "the size of axis 2 of the keys", lambda s: _measure_axis(s, 2, "kv_seq")),
)
_POWERS: Final[tuple[tuple[str, str, float], ...]] = (
    ("root", "the root of {}", 0.5),
    ("whole", "{}", 1.0),
    ("fourth-root", "the fourth root of {}", 0.25),
    ("square", "the square of {}", 2.0),
    ("inverse-root", "one over the root of {}", -0.5),
)


def _change_divisors() -> Iterator[Neighbour]:
    for power, form, exponent in _POWERS:
        for size, words, measure in _SIZES:
            if (size, power) == ("d_k", "root"):
                continue

            def divide(sizes: Mapping[str, Any], measure: Any = measure, exponent: float = exponent) -> float:
                return float(math.pow(measure(sizes), exponent))

            yield Neighbour(
                f"{_SDPA}.divisor.{power}.{size}", f"the scores are divided by {form.format(words)} instead of √d_k",
                "Divide the scores by the root of d_k, the width of one head's queries and keys.",
                {score_divisor: instead(divide)},
            )  # fmt: skip


#: What to do about an eps of one norm among several, or of 0.
OTHER_EPS: Final = "Add the declared eps, the same in every norm."


def _change_eps() -> Iterator[Neighbour]:
    # 1e-5, 1e-6 and 1e-12 are options of layer_norm_eps.
    values = [float(f"1e-{k}") for k in (2, 3, 4, 7, 8, 9, 10)]
    named = [(f"{value:g}", f"{value:g}", value) for value in values]
    named += [("float32", "1.19e-7, that of float32,", float(np.finfo(np.float32).eps))]
    for word, text, value in named:
        yield Neighbour(
            f"layer_norm.eps.{word}", f"the normalisation fits eps = {text}", OTHER_EPS,
            {layer_norm_eps: instead(_return_value(value))}, number=("layer_norm_eps", value),
        )  # fmt: skip
    for component, eps, divisor in (
        ("layer_norm", layer_norm_eps, norm_denominator), ("rms_norm", rms_eps, rms_divisor),
    ):  # fmt: skip
        # The code may have no place for it, so that it is no number.
        yield Neighbour(
            f"{component}.eps.zero", "eps is left out, or 0", OTHER_EPS,
            {eps: instead(_return_value(0.0)), divisor: around(_lose_zero_rows)},
        )  # fmt: skip


def _lose_zero_rows(original: Callable[[Array], Array], square: Array) -> Array:
    """Return the divisor of each row; NaN of a row of zeros, so that its gradients are NaN too."""
    root = original(square)
    return as_array(root / (square != 0).astype(root.dtype))


def _return_value(value: Any) -> Step:
    return lambda: value


_POSITIONS: Final = "positional_encoding"
_OF_ANGLES: Final = "The angle is pos/10000^(2i/d_model), for positions from 0 on."


def _change_frequencies() -> Iterator[Neighbour]:
    exponents: tuple[tuple[str, str, Callable[[float, int], float]], ...] = (
        ("no-two", "the exponent of pair i is i/d_model, without its 2", lambda i, d: i / d),
        ("index-plus-one", "the exponents begin with the second pair's", lambda i, d: 2 * (i + 1) / d),
        ("odd", "the exponent of pair i is (2i + 1)/d_model", lambda i, d: (2 * i + 1) / d),
        ("minus-two", "the exponent divides by d_model − 2", lambda i, d: 2 * i / max(d - 2, 1)),
        ("minus-one", "the exponent divides by d_model − 1", lambda i, d: 2 * i / max(d - 1, 1)),
        ("half-twice", "the exponent divides by d_model/2 twice", lambda i, d: 4 * i / d),
        ("constant", "all pairs have the exponent 0", lambda _, __: 0.0),
    )
    for word, title, exponent in exponents:
        yield Neighbour(f"{_POSITIONS}.exponent.{word}", title, _OF_ANGLES, {frequency_exponent: instead(exponent)})
    for base in (100.0, 500.0, 1e5, 1e6, 2 * math.pi * 10000):
        yield Neighbour(
            f"{_POSITIONS}.base.{base:g}", f"the base is {base:g} instead of 10000", _OF_ANGLES,
            {wavelength_base: instead(_return_value(base))},
        )  # fmt: skip
    yield Neighbour(
        f"{_POSITIONS}.frequency-inverted", "positions are multiplied by the power of 10000", _OF_ANGLES,
        {angular_frequency: change_result(lambda frequency: 1 / frequency)},
    )  # fmt: skip


def _change_positions() -> Iterator[Neighbour]:
    positions: tuple[tuple[str, str, Callable[[Array], Array]], ...] = (
        ("from-one", "positions start at 1", lambda p: p + 1),
        ("from-two", "positions start at 2", lambda p: p + 2),
        ("reversed", "positions count backwards", lambda p: p[::-1]),
        ("zero", "every token has position 0", lambda p: p * 0),
        ("shared-first", "the second token has the position of the first", lambda p: np.maximum(p - 1, 0)),
        ("halved", "positions are halved", lambda p: p / 2),
        ("scaled", "positions are divided by the length of the sequence", lambda p: p / max(len(p), 1)),
    )
    for word, title, change in positions:
        yield Neighbour(f"{_POSITIONS}.positions.{word}", title, _OF_ANGLES, {token_positions: change_result(change)})


def _change_encoded() -> Iterator[Neighbour]:
    """Yield encodings that are added to a multiple of the input."""
    inputs: tuple[tuple[str, str, Callable[[Array], Array]], ...] = (
        ("input-scaled", "the input is multiplied by √d_model before the positions are added",
         lambda x: x * math.sqrt(x.shape[-1])),
        ("input-divided", "the input is divided by √d_model before the positions are added",
         lambda x: x / math.sqrt(x.shape[-1])),
        ("input-multiplied-by-d", "the input is multiplied by d_model before the positions are added",
         lambda x: x * x.shape[-1]),
    )  # fmt: skip
    plain = "Add the encoding to the input as it is."
    scaled = (
        f"{plain} If the words are scaled here, as section 3.4 of the paper asks, let the adapter divide x by √d_model "
        "before, and declare embedding_scale: sqrt_d_model for the model."
    )
    for word, title, change in inputs:
        yield Neighbour(
            f"{_POSITIONS}.{word}", title, scaled if word == "input-scaled" else plain,
            {positional_encoding: change_argument(positional_encoding, "x", _ignore_call(change))},
        )  # fmt: skip


def _change_waves() -> Iterator[Neighbour]:
    """Yield encodings with one kind of wave, or with another exponent of one kind."""
    ways: tuple[tuple[str, str, Callable[[float, Wave], tuple[float, Wave]]], ...] = (
        ("only-cosines", "cosines stand where sines should be too", lambda pair, _: (pair, np.cos)),
        ("only-sines", "sines stand where cosines should be too", lambda pair, _: (pair, np.sin)),
        ("sines-doubled", "the exponent of the sines is doubled, that of the cosines is not",
         lambda pair, wave: (2 * pair if wave is np.sin else pair, wave)),
        ("cosines-of-next-pair", "the cosines have the angle of the next pair, the sines have their own",
         lambda pair, wave: (pair + 1 if wave is np.cos else pair, wave)),
        ("sines-of-next-pair", "the sines have the angle of the next pair, the cosines have their own",
         lambda pair, wave: (pair + 1 if wave is np.sin else pair, wave)),
        ("cosines-doubled", "the exponent of the cosines is doubled, that of the sines is not",
         lambda pair, wave: (2 * pair if wave is np.cos else pair, wave)),
    )  # fmt: skip
    for word, title, way in ways:

        def change(waves: list[tuple[float, Wave]], way: Callable[[float, Wave], tuple[float, Wave]] = way) -> Any:
            return [way(pair, wave) for pair, wave in waves]

        yield Neighbour(
            f"positional_encoding.waves.{word}", title,
            "Sine and cosine of pair i have the angle pos/10000^(2i/d_model).", {channel_waves: change_result(change)},
        )  # fmt: skip


def _ignore_call(change: Callable[[Array], Array]) -> Callable[[Array, Given], Array]:
    return lambda x, _: change(x)


#: Results that a slip scales: their step, component and words.
SCALED_RESULTS: Final[tuple[tuple[Step, str, str], ...]] = (
    (weigh_keys, _SDPA, "the weights are"),
    (sum_values, _SDPA, "the results of the attention are"),
    (activation, "feed_forward", "the activations are"),
    (output_logits, "output_probabilities", "the logits are"),
)


def generate() -> Iterator[Neighbour]:
    """Yield a neighbour for each constant of the textbook and each other size or number."""
    yield from _change_divisors()
    yield from _change_eps()
    yield from _change_frequencies()
    yield from _change_positions()
    yield from _change_encoded()
    yield from _change_waves()
