"""The exact distributions of the elements of random outputs, in fractions.

Each random component has a law for its random outputs; statistics are derived only from the law.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Final

import numpy as np

from goldformer.spec.model import Array, Attribute, Case, Statistic

#: The probability that a statistic of a correct implementation lies outside its interval: one in 10¹².
FALSE_ALARM: Final = Fraction(1, 2**40)


@dataclass(frozen=True, slots=True)
class Uniform:
    """`count` independent elements, uniform between −a and a; `square` is a²."""

    count: int
    square: Fraction


@dataclass(frozen=True, slots=True)
class Discrete:
    """Independent elements in groups: their number, and the values that each may take, with their probabilities."""

    groups: tuple[tuple[int, Mapping[Fraction, Fraction]], ...]

    @property
    def count(self) -> int:
        """The number of elements."""
        return sum(number for number, _ in self.groups)

    @property
    def magnitudes(self) -> set[Fraction]:
        """The absolute values that an element may have, 0 left out."""
        return {abs(value) for _, values in self.groups for value in values if value}


Law = Uniform | Discrete


def law_of(case: Case, output: str) -> Law | None:
    """Return the law of an output of a case, or None if it is not random; ValueError if no law can judge it."""
    law = _LAWS.get(case.component)
    return law(case, output) if law is not None else None


def unfit(law: Law, statistic: Statistic) -> str | None:
    """Explain why a statistic says nothing under a law; None if it does."""
    if isinstance(law, Uniform):
        return "an element that may be any number is 0 only by rounding" if statistic == "zeros" else None
    if statistic != "largest":
        return None
    if len(law.magnitudes) != 1:
        return f"the elements have {len(law.magnitudes)} magnitudes, not one"
    nothing_left = Fraction(1)
    for count, values in law.groups:
        nothing_left *= values.get(Fraction(0), Fraction(0)) ** count
    return "there are so few elements that all may be dropped" if nothing_left > FALSE_ALARM else None


def _xavier_uniform(case: Case, output: str) -> Law | None:
    """Return the law of INIT-1; a bias is not random (INIT-3)."""
    if output == "bias":
        return None
    d_in, d_out = case.sizes["d_in"], case.sizes["d_out"]
    return Uniform(d_in * d_out, Fraction(6, d_in + d_out))


def _dropout(case: Case, output: str) -> Law | None:
    """Return the law of DROP-1 and DROP-2."""
    del output
    rate = _as_written(case.attributes["rate"])
    if not case.attributes["training"] or rate in (0, 1):
        return None
    return _drop_each(case.input_arrays["x"], rate)


def _attention(case: Case, output: str) -> Law | None:
    """Return the law of DROP-3 for equal weights, where each adds to at most one element of the output."""
    rate = _as_written(case.attributes.get("dropout_rate", 0))
    if rate in (0, 1) or output in ("scores", "scaled_scores"):
        return None
    if output == "weights":
        raise ValueError("is not specified where weights are dropped")
    value = case.input_arrays["value"]
    if case.input_arrays["query"].any() or "mask" in case.inputs or not _is_choice(value):
        raise ValueError(
            "has a known distribution where query is 0, there is no mask, and each row of value has at most one 1 and "
            "zeros elsewhere"
        )
    q_seq, kv_seq = case.sizes["q_seq"], case.sizes["kv_seq"]
    # The number of keys that each element of the output sums: the same for all queries of a sample.
    keys, counts = np.unique(value.sum(-2), return_counts=True)
    found = zip(counts.tolist(), keys.tolist(), strict=True)
    return Discrete(tuple((q_seq * n, _sum_kept([Fraction(1, kv_seq)] * int(k), rate)) for n, k in found))


def _feed_forward(case: Case, output: str) -> Law | None:
    """Return the law of DROP-4 for tokens of a few kinds, where each hidden channel adds to at most one output."""
    rate = _rate_in_training(case)
    if rate is None:
        return None
    if output == "hidden":
        raise ValueError("is not specified where hidden channels are dropped")
    params = case.param_arrays
    inner = case.input_arrays["x"] @ params["w_1"] + params.get("b_1", 0.0)
    if not _is_choice(params["w_2"]):
        raise ValueError("has a known distribution where each row of w_2 has at most one 1 and zeros elsewhere")
    return _sums(np.maximum(inner, 0.0), params["w_2"], params.get("b_2"), rate)


def _positional_encoding(case: Case, output: str) -> Law | None:
    """Return the law of DROP-5 for samples of one token: at position 0 sines are 0 and cosines 1."""
    del output
    rate = _rate_in_training(case)
    if rate is None:
        return None
    x = case.input_arrays["x"]
    if x.shape[1] != 1 or x.shape[2] % 2 or (x != x[..., :1]).any():
        raise ValueError("has a known distribution where samples have one token and an even number of equal channels")
    # Half of the channels are sines, in every layout.
    return _drop_each(np.concatenate([x[..., ::2], x[..., 1::2] + 1], axis=-1), rate)


def _multi_head_attention(case: Case, output: str) -> Law | None:
    """Return the law of DROP-3 for equal weights, where each adds to at most one element of the output."""
    rate = _rate_in_training(case)
    if rate is None or output in ("q", "k", "v", "qkv", "scaled_scores"):
        return None
    if output != "output":
        raise ValueError("is not specified where weights are dropped")
    inputs, params, heads = case.input_arrays, case.param_arrays, case.sizes["heads"]
    if "w_qkv" in params:
        fused = inputs["x"] @ params["w_qkv"] + params.get("b_qkv", 0.0)
        q, _, v = np.split(fused.reshape(*fused.shape[:-1], heads, -1), 3, axis=-1)
    else:
        q = inputs["query"] @ params["w_q"] + params.get("b_q", 0.0)
        v = inputs["value"] @ params["w_v"] + params.get("b_v", 0.0)
        v = v.reshape(*v.shape[:-1], heads, -1)
    w_o = params["w_o"].reshape(heads, -1, params["w_o"].shape[-1])
    # What a weight of each head and key adds to the output: (batch, kv_seq, heads, d_model).
    added = np.einsum("bkhd,hdo->bkho", v, w_o)
    if q.any() or "mask" in case.inputs or not _is_choice(added):
        raise ValueError(
            "has a known distribution where the projected query is 0, there is no mask, and each key of each head adds "
            "1 to at most one channel of the output"
        )
    bias = params.get("b_o", np.zeros(added.shape[-1]))
    kv_seq, q_seq = added.shape[1], q.shape[1]
    groups = []
    for sample in added.sum((1, 2)):
        for keys, shift in zip(sample.tolist(), bias.tolist(), strict=True):
            kept = _sum_kept([Fraction(1, kv_seq)] * int(keys), rate)
            groups.append((q_seq, _shift(kept, shift)))
    return Discrete(tuple(groups))


def _layer(case: Case, output: str) -> Law | None:
    """Return None where all or nothing is dropped (DROP-6); the law of a normalised sum is not known."""
    if _rate_in_training(case) is not None:
        raise ValueError(f"has a known distribution at a dropout_rate of 0 or 1 only, {output} too")
    return None


def _rate_in_training(case: Case) -> Fraction | None:
    """Return the rate at which something is dropped and something kept; None if there is no such rate."""
    rate = _as_written(case.attributes.get("dropout_rate", 0))
    return None if rate in (0, 1) or not case.attributes.get("training", True) else rate


def _drop_each(array: Array, rate: Fraction) -> Discrete:
    """Return the law of the dropped elements of an array, each independent of the others."""
    numbers, counts = np.unique(array, return_counts=True)
    found = zip(counts.tolist(), numbers.tolist(), strict=True)
    return Discrete(tuple((count, _sum_kept([_as_written(number)], rate)) for count, number in found))


def _sums(terms: Array, choice: Array, bias: Array | None, rate: Fraction) -> Discrete:
    """Return the law of dropout(terms)·choice + bias, whose elements are independent of one another."""
    rows, counts = np.unique(terms.reshape(-1, terms.shape[-1]), axis=0, return_counts=True)
    shifts = np.zeros(choice.shape[-1]) if bias is None else bias
    groups = []
    for row, count in zip(rows, counts.tolist(), strict=True):
        for column, shift in zip(choice.T, shifts.tolist(), strict=True):
            kept = _sum_kept([_as_written(term) for term in row[column == 1].tolist() if term], rate)
            groups.append((count, _shift(kept, shift)))
    return Discrete(tuple(groups))


def _shift(values: Mapping[Fraction, Fraction], by: float) -> Mapping[Fraction, Fraction]:
    """Return the distribution of a sum with a number."""
    return {value + _as_written(by): probability for value, probability in values.items()}


def _is_choice(value: Array) -> bool:
    return bool(np.isin(value, (0, 1)).all() and (value.sum(-1) <= 1).all())


def _as_written(number: Attribute) -> Fraction:
    """Return a number as it is written: 0.1 is a tenth (NUM-1)."""
    return Fraction(repr(number))


def _sum_kept(terms: Iterable[Fraction], rate: Fraction) -> Mapping[Fraction, Fraction]:
    """Return the distribution of a sum of terms, each 0 with probability `rate` and else divided by 1 − rate."""
    return _sum_kept_once(tuple(terms), rate)


# Fractions are slow, and many elements of an output have the same terms.
@lru_cache(maxsize=1 << 12)
def _sum_kept_once(terms: tuple[Fraction, ...], rate: Fraction) -> Mapping[Fraction, Fraction]:
    values = {Fraction(0): Fraction(1)}
    for term in terms:
        longer: dict[Fraction, Fraction] = {}
        for value, probability in values.items():
            for kept, chance in ((Fraction(0), rate), (term / (1 - rate), 1 - rate)):
                longer[value + kept] = longer.get(value + kept, Fraction(0)) + probability * chance
        values = longer
    return values


_LAWS: Final[Mapping[str, Callable[[Case, str], Law | None]]] = {
    "xavier_uniform": _xavier_uniform,
    "dropout": _dropout,
    "scaled_dot_product_attention": _attention,
    "feed_forward": _feed_forward,
    "positional_encoding": _positional_encoding,
    "multi_head_attention": _multi_head_attention,
    "fused_multi_head_attention": _multi_head_attention,
    "encoder_layer": _layer,
    "decoder_layer": _layer,
}
