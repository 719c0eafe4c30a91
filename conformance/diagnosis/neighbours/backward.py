"""Slips in backward passes: a step keeps its result, and its derivative has another factor, term or way.

Tables say what flows back through one step: of its cotangent g, its result and its operands, or as that of other steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from functools import partial
from itertools import product
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from goldformer.adapters.textbook import COMPONENTS
from goldformer.conformance.diagnosis.mistakes.derivatives import (
    change_cotangent,
    cut_params,
    pass_back,
    read_numbers,
    take_derivative,
)
from goldformer.conformance.diagnosis.neighbours.arguments import read_argument
from goldformer.conformance.diagnosis.neighbours.neighbour import Neighbour
from goldformer.spec.formulas.arrays import arithmetic, multiply
from goldformer.spec.formulas.attention import (
    fill_masked,
    scaled_dot_product_attention,
    score_keys,
    softmax,
    sum_values,
)
from goldformer.spec.formulas.checks import Array
from goldformer.spec.formulas.embedding import read_rows
from goldformer.spec.formulas.heads import Params, multi_head_attention, project, project_attention
from goldformer.spec.formulas.layers import (
    activation,
    channel_mean,
    channel_variance,
    layer_norm,
    norm_denominator,
    scale_and_shift,
    subtract_mean,
)
from goldformer.spec.formulas.losses import count_targets, cross_entropy, find_words
from goldformer.spec.formulas.steps import Replacements, Step, around, hold, replacing
from goldformer.spec.formulas.targets import one_hot

_SDPA: Final = "scaled_dot_product_attention"
_MHA: Final = "multi_head_attention"
#: The end of the id of a backward pass that is right for right code, and so not for a forward pass with a mistake.
OF_RIGHT_CODE: Final = ".backward.of-right-code"
#: What such a formula does that shows, by component.
_DOES: Final = {"layer_norm": ", whose means divide by d_model,"}


def make_backward(id_: str, component: str, title: str, hint: str, steps: Replacements) -> Neighbour:
    """Return a neighbour that is made in a backward pass."""
    return Neighbour(f"{component}.backward.{id_}", title, hint, steps, backward=True)


def make_of_right_code(component: str) -> Neighbour:
    """Return the neighbour that keeps the derivatives of right code next to a mistake; by itself it does nothing."""
    does, hint = _DOES.get(component, ""), "Once the forward pass is right, this formula is right too."
    title = f"the backward pass has the formula of right code{does} and not that of this forward pass"
    return make_backward("of-right-code", component, title, hint, {})


# All gradients of a component, or one of them

_GRADIENTS: Final[Mapping[str, tuple[str, ...]]] = {
    "softmax": ("scores",), _SDPA: ("query", "key", "value"), "feed_forward": ("x", "w_1", "b_1", "w_2", "b_2"),
    "layer_norm": ("x", "gamma", "beta"), "token_embedding": ("table",),
}  # fmt: skip
#: What becomes of a gradient; a cotangent has the samples first.
_CHANGES: Final[tuple[tuple[str, str, Callable[[Array, Array], Array]], ...]] = (
    ("over-batch", "is divided by the number of samples", lambda g, c: g / c.shape[0]),
    ("over-tokens", "is averaged over samples and tokens instead of summed", lambda g, c: g * c.shape[-1] / c.size),
    ("doubled", "is doubled", lambda g, _: g + g),
    ("halved", "is halved", lambda g, _: g / 2),
    ("negated", "has the wrong sign", lambda g, _: -g),
    ("zero", "is zero", lambda g, _: g * 0),
)


def _change_gradients() -> Iterator[Neighbour]:
    def run(original: Step, *, cotangent: Array, chosen: Any, change: Any, **named: Any) -> dict[str, Array]:
        found = original(cotangent=cotangent, **named)
        return {n: np.asarray(change(g, cotangent)) if n in chosen else g for n, g in found.items()}

    for component, names in _GRADIENTS.items():
        biases = tuple(name for name in names if name.startswith("b_"))
        groups = {"all": names} | ({"the biases": biases} if biases else {})
        groups |= {name: (name,) for name in names} if len(names) > 1 else {}
        for (group, chosen), (word, says, change) in product(groups.items(), _CHANGES):
            which = "every gradient" if group == "all" else f"the gradient of {group}"
            yield make_backward(
                f"{group.replace(' ', '-')}.{word}", component, f"{which} {says}",
                f"Check the factor of {which}: sums run over all samples and tokens.",
                {COMPONENTS[f"{component}_gradient"]: around(partial(run, chosen=chosen, change=change))},
            )  # fmt: skip


# What flows back to the first operand of a step


def _sum(array: Array, axis: int = -1) -> Array:
    return np.asarray(array.sum(axis if array.ndim > 1 else -1, keepdims=True))


def _add_rows(g: Array, _: Array, table: Array, ids: Array, *, fixed: int = -1, averaged: bool = False) -> Array:
    gradient = np.zeros(table.shape, g.dtype)
    np.add.at(gradient, ids, g)
    counts = np.maximum(np.bincount(ids.ravel(), minlength=len(table)), 1)[:, None]
    gradient[fixed : fixed + 1] = 0
    return gradient / counts if averaged else gradient


def _overwrite_rows(g: Array, _: Array, table: Array, ids: Array) -> Array:
    gradient = np.zeros(table.shape, g.dtype)
    gradient[ids] = g
    return gradient


_SOFTMAX: Final = "dS is P·(dP − Σ dP·P), and the scores before the division by √d_k have dS/√d_k."
_RELU: Final = "The ReLU passes the gradient on where its input is positive."
_ROWS: Final = "Add up the gradients of all places of a word."
_FIXED: Final = (
    'If it is the row of the padding, as with padding_idx, declare CONVENTIONS = {"pad_row": "fixed"}, '
    "and pass pad_id on as padding_idx."
)
_PASSED: Final[tuple[tuple[Step, str, str, str, str, Callable[..., Any]], ...]] = (
    (softmax, "softmax", "row-term-mean", _SOFTMAX, "the row term is a mean instead of a sum",
     lambda g, p, _: p * (g - (g * p).mean(-1, keepdims=True))),
    (softmax, "softmax", "row-term-unweighted", _SOFTMAX, "the row term is the sum of dP without P",
     lambda g, p, _: p * (g - _sum(g))),
    (softmax, "softmax", "row-term-of-column", _SOFTMAX, "the row term is summed over another axis than the last",
     lambda g, p, _: p * (g - _sum(g * p, -2))),
    (softmax, "softmax", "diagonal", _SOFTMAX, "only the diagonal of the softmax's derivative is used, P·(1 − P)",
     lambda g, p, _: p * (1 - p) * g),
    (softmax, "softmax", "unweighted", _SOFTMAX, "the factor P in front is left out", lambda g, p, _: g - _sum(g * p)),
    (softmax, "softmax", "squared", _SOFTMAX, "the factor P in front is squared",
     lambda g, p, _: p * p * (g - _sum(g * p))),
    (softmax, "softmax", "row-term-in-full", _SOFTMAX, "the row term is not multiplied by P",
     lambda g, p, _: p * g - _sum(g * p)),
    (softmax, "softmax", "row-term-weighted-late", _SOFTMAX,
     "the row term is P times the sum of dP, instead of the sum of dP·P", lambda g, p, _: p * (g - p * _sum(g))),
    (softmax, "softmax", "added", _SOFTMAX, "the row term is added instead of subtracted",
     lambda g, p, _: p * (g + _sum(g * p))),
    (activation, "feed_forward", "relu-of-gradient", _RELU,
     "the ReLU's backward pass looks at the gradient instead of its input", lambda g, *_: np.maximum(g, 0)),
    (activation, "feed_forward", "relu-kept", _RELU, "the ReLU's backward pass multiplies by the hidden layer",
     lambda g, _, x: np.maximum(x, 0) * g),
    (activation, "feed_forward", "relu-reversed", _RELU, "the ReLU's backward pass keeps what was 0",
     lambda g, _, x: np.where(x > 0, 0, g)),
    (read_rows, "token_embedding", "overwritten", _ROWS, "a word that occurs twice keeps one of its gradients",
     _overwrite_rows),
    (read_rows, "token_embedding", "averaged", _ROWS, "the gradients of a word are averaged over its places",
     partial(_add_rows, averaged=True)),
    *((read_rows, "token_embedding", f"row-{row}-fixed", _FIXED, f"the row of id {row} has a gradient of 0",
       partial(_add_rows, fixed=row)) for row in (0, 1)),
)  # fmt: skip

# Scores and values: what flows back to queries and keys, each of the cotangent and the other

_PRODUCTS: Final = "dQ is dS·K, dK is dSᵀ·Q and dV is Pᵀ·dOut."
_SWAPPED: Final = "dQ is dS·K, dK is dSᵀ·Q."


def _turn(array: Array) -> Array:
    return np.asarray(array.swapaxes(-1, -2))


#: Where as many queries as keys hide which is which.
_OF_SCORES: Final[tuple[tuple[str, str, str, Callable[..., Any], Callable[..., Any]], ...]] = (
    ("key.not-transposed", "a transpose is missing in the gradient of the keys, dS·Q", _PRODUCTS,
     lambda g, _, k: g @ k, lambda g, q, _: g @ q),
    ("query.transposed", "the gradient of the queries has a transpose too many, dSᵀ·K", _PRODUCTS,
     lambda g, _, k: _turn(g) @ k, lambda g, q, _: _turn(g) @ q),
    ("key.of-keys", "the gradient of the keys is made of the keys, dSᵀ·K", _PRODUCTS,
     lambda g, _, k: g @ k, lambda g, _, k: _turn(g) @ k),
    ("query.of-queries", "the gradient of the queries is made of the queries, dS·Q", _PRODUCTS,
     lambda g, q, _: g @ q, lambda g, q, _: _turn(g) @ q),
    ("queries-and-keys-swapped", "the gradients of queries and keys are swapped", _SWAPPED,
     lambda g, q, _: _turn(g) @ q, lambda g, _, k: g @ k),
)  # fmt: skip
#: What a cotangent is multiplied by in a power of d_k.
_SCALES: Final = (
    (1, "is not divided by √d_k"),
    (2, "is multiplied by √d_k"),
    (-1, "is divided by d_k instead of √d_k"),
)


def _change_scores() -> Iterator[Neighbour]:
    def score(original: Step, query: Array, key: Array, *, ways: tuple[Callable[..., Array], ...]) -> Any:
        numbers = read_numbers(query), read_numbers(key)
        if query.shape != key.shape:
            return original(query, key)
        flows = ((x, partial(lambda way, g: way(g, *numbers), way)) for x, way in zip((query, key), ways, strict=True))
        return arithmetic().record(original(query, key), *flows)

    for id_, title, hint, *ways in _OF_SCORES:
        yield make_backward(id_, _SDPA, title, hint, {score_keys: around(partial(score, ways=tuple(ways)))})

    def scale(original: Step, *arrays: Array, of: str, times: int) -> Any:
        factor = float(arrays[0].shape[-1]) ** (times / 2)
        named = zip(("query", "key"), arrays, strict=True)
        return original(*(change_cotangent(x, lambda g: g * factor) if name in of else x for name, x in named))

    places = (("", "query key", "scores"), ("query.", "query", "queries"), ("key.", "key", "keys"))
    for (start, of, words), (times, says) in product(places, _SCALES):
        hint = "dQ is dS·K/√d_k, and dK is dSᵀ·Q/√d_k." if start else _SOFTMAX
        steps = {score_keys: around(partial(scale, of=of, times=times))}
        yield make_backward(f"{start}scale.{times}", _SDPA, f"the gradient of the {words} {says}", hint, steps)


def _change_values() -> Iterator[Neighbour]:
    def turn(original: Step, weights: Array, value: Array) -> Any:
        numbers, result = read_numbers(weights), original(weights, read_numbers(value))
        if numbers.shape[-1] != numbers.shape[-2]:
            return original(weights, value)
        return arithmetic().record(result, (result, lambda g: g), (value, lambda g: numbers @ g))

    title = "a transpose is missing in the gradient of the values, P·dOut"
    yield make_backward("value.not-transposed", _SDPA, title, _PRODUCTS, {sum_values: around(turn)})

    def forget_mask(original: Step, *arrays: Any, kept: bool, **named: Any) -> dict[str, Array]:
        def fill(_: Step, scaled: Array, mask: Array) -> Array:
            return change_cotangent(scaled, lambda g: np.where(mask, g, 0)) if kept else scaled

        found = original(*arrays, **named)
        with replacing({fill_masked: around(fill)}):
            bare = found if arithmetic().is_plain else original(*arrays, **named)
        return {**found, "output": take_derivative(found["output"], bare["output"])}

    for kept, id_, title, hint in (
        (True, "weights-without-mask", "the backward pass has the weights of a call without the mask",
         "Keep the weights of the forward pass, or form them again with the mask."),
        (False, "without-mask", "the backward pass has no mask",
         "Form the weights with the mask, and give hidden scores a gradient of 0."),
    ):  # fmt: skip
        steps = {scaled_dot_product_attention: around(partial(forget_mask, kept=kept))}
        yield make_backward(id_, _SDPA, title, hint, steps)


# The gradients of parameters, which are sums over samples and tokens

_PARTS: Final[tuple[tuple[str, str, tuple[slice, slice]], ...]] = (
    ("first-sample", "the first sample", (slice(1), slice(None))),
    ("last-sample", "the last sample", (slice(-1, None), slice(None))),
    ("first-token", "the first token of each sample", (slice(None), slice(1))),
    ("last-token", "the last token of each sample", (slice(None), slice(-1, None))),
)
_MEANS: Final[tuple[tuple[str, str, Callable[[Array], Any]], ...]] = (
    ("averaged", "are averaged over the tokens, not summed", lambda x: x.size / x.shape[-1]),
    ("over-batch", "are divided by the number of samples", len),
)
_GROUPS: Final = {
    "": "the gradients of the parameters are", "w_": "the gradients of the weights are",
    "b_": "the gradients of the biases are",
}  # fmt: skip
#: The step with the parameters of each component, and those whose gradients a slip may form.
_SUMS: Final[Mapping[str, tuple[Step, tuple[str, ...]]]] = {
    "feed_forward": (project, (*_GROUPS, "w_1", "b_1", "w_2", "b_2")),
    _MHA: (project, tuple(_GROUPS)),
    "fused_multi_head_attention": (project, tuple(_GROUPS)),
    "layer_norm": (scale_and_shift, ("", "gamma", "beta")),
}


def _sum_parts(original: Step, x: Array, params: Params, *role: str, which: str, part: tuple[slice, slice]) -> Any:
    if x.ndim < 3:
        return original(x, params, *role)
    chosen = np.zeros((*x.shape[:-1], 1), bool)
    chosen[part] = True
    return np.where(chosen, original(x, params, *role), original(x, cut_params(params, which), *role))


def _average(original: Step, x: Array, params: Params, role: str, *, which: str, over: Callable[[Array], Any]) -> Any:
    def change(array: Array) -> Array:
        return change_cotangent(array, lambda g: g / over(x))

    return original(x, {n: change(a) if n.startswith(which) else a for n, a in params.items()}, role)


def _mix(original: Step, x: Array, params: Params, role: str) -> Array:
    numbers, weight = read_numbers(x), f"w_{role}"

    def back(g: Array) -> Array:
        return multiply(numbers.swapaxes(-1, -2).reshape(numbers.shape[-1], -1), g.reshape(-1, g.shape[-1]))

    result = original(x, {**params, weight: read_numbers(params[weight])}, role)
    return arithmetic().record(result, (result, lambda g: g), (params[weight], back))


def _change_sums() -> Iterator[Neighbour]:
    for component, (step, names) in _SUMS.items():
        for which, (word, says, part) in product(names, _PARTS):
            yield make_backward(
                f"{which.strip('_') or 'parameters'}-of-{word}", component,
                f"{_GROUPS.get(which, f'the gradient of {which} is')} summed over {says} only",
                "Sum over all samples and tokens.", {step: around(partial(_sum_parts, which=which, part=part))},
            )  # fmt: skip
        if step is not project:
            continue
        for (which, words), (word, says, over) in product((("b_", "biases"), ("w_", "weights")), _MEANS):
            if (component, words, word) != ("feed_forward", "biases", "over-batch"):  # a change of its gradients
                yield make_backward(
                    f"{words}-{word}", component, f"the gradients of the {words} {says}",
                    f"Sum the gradients of the {words} over all tokens.",
                    {step: around(partial(_average, which=which, over=over))},
                )  # fmt: skip
        yield make_backward(
            "weights-mixed", component, "the gradients of the weights mix tokens and samples of the input by a reshape",
            "dW is Xᵀ·dOut: reshape X to (tokens, channels) first, then transpose it.", {step: around(_mix)},
        )  # fmt: skip


# Projections in an attention

_INPUTS: Final = {"q": "query", "k": "key", "v": "value"}
#: The inputs of the attention whose gradients are formed, by role.
_kept: Final[ContextVar[Mapping[str, Array]]] = ContextVar("kept", default=MappingProxyType({}))


def _note_inputs(original: Step, *args: Any, **named: Any) -> Any:
    given = (args, named)
    inputs = {role: read_numbers(read_argument(multi_head_attention, n, given)) for role, n in _INPUTS.items()}
    with hold(_kept, inputs):
        return original(*args, **named)


def _exchange(original: Step, x: Array, params: Params, of: str, *, role: str, matrix: str, rows: str) -> Any:
    """Let back to an input what flows through the matrix of another role, and to a matrix what flows by other rows."""
    result, other = original(x, params, of), _kept.get().get(rows)
    if of != role or other is None or other.shape != x.shape:
        return result
    right, theirs = params[f"w_{role}"], params[f"w_{matrix}"]
    if right.shape != theirs.shape:
        return result
    through = original(x, {**cut_params(params), f"w_{role}": read_numbers(theirs)}, of)
    return take_derivative(result, through, original(other, params, of))


def _skip(original: Step, x: Array, params: Params, of: str, *, roles: str) -> Any:
    result = original(x, params, of)
    if of not in roles or result.shape != x.shape:
        return result
    return take_derivative(result, x, original(read_numbers(x), params, of))


def _change_heads() -> Iterator[Neighbour]:
    for roles, which in (("qkv", "queries, keys and values"), ("q", "queries"), ("k", "keys"), ("v", "values")):
        title = f"the gradient of the {which} does not go back through the projection"
        hint = "The gradient of an input is that of its projection times the transposed matrix."
        skip = around(partial(_skip, roles=roles))
        yield make_backward(f"{roles}-not-projected-back", _MHA, title, hint, {project_attention: skip})
    for (role, name), (other, theirs) in product(_INPUTS.items(), repeat=2):
        slips = (
            (f"{name}.through-w_{other}", f"the gradient of {name} goes back through w_{other} instead of w_{role}",
             f"d{name} is the gradient of its projection times w_{role}ᵀ.", other, role),
            (f"w_{role}.of-{theirs}", f"the gradient of w_{role} is formed with {theirs}",
             f"dw_{role} is {name}ᵀ times the gradient of its projection.", role, other),
            (f"{name}.cache-of-{theirs}",
             f"the gradients of {name} and w_{role} are formed with the input and the matrix of {theirs}",
             f"Keep {name} and w_{role} for the backward pass of this projection.", other, other),
        )  # fmt: skip
        for id_, title, hint, matrix, rows in slips if role != other else ():
            exchange = around(partial(_exchange, role=role, matrix=matrix, rows=rows))
            steps: Replacements = {multi_head_attention: around(_note_inputs), project_attention: exchange}
            yield make_backward(id_, _MHA, title, hint, steps)


# Layer normalisation and the loss: the whole backward pass, with one slip


def _differentiate_norm(original: Step, x: Array, *, params: Params, change: str) -> Any:
    wide, gamma = arithmetic().widen(read_numbers(x)), read_numbers(params["gamma"])
    centred = subtract_mean(wide)
    root = norm_denominator(channel_variance(centred))
    normal = centred / root
    if change == "normal-overwritten":
        normal = normal * gamma + read_numbers(params["beta"])

    def to_x(g: Array) -> Any:
        scaled = g if change in ("gamma-left-out", "gamma-outside") else g * gamma
        of_mean = g if change in ("mean-without-gamma", "means-without-gamma") else scaled
        of_variance = g if change in ("variance-without-gamma", "means-without-gamma") else scaled
        mean, variance = channel_mean(of_mean), normal * channel_mean(of_variance * normal)
        flows = {"no-mean-term": variance, "no-variance-term": mean, "no-terms": 0}.get(change, mean + variance)
        through = scaled - flows * (x.shape[-1] if change == "summed-terms" else 1)
        through = through * gamma if change == "gamma-outside" else through
        return through / {"not-divided": 1, "variance-divided": root * root}.get(change, root)

    def to_gamma(g: Array) -> Array:
        rows = {"gamma-of-centred": centred, "gamma-of-x": wide, "gamma-times-gamma": normal * gamma}.get(
            change, normal
        )
        return np.asarray((g * rows).sum(axis=tuple(range(x.ndim - 1))))

    def to_beta(g: Array) -> Array:
        rows = g * gamma if change == "beta-times-gamma" else g
        return np.asarray(rows.sum(axis=tuple(range(x.ndim - 1))))

    ways = (x, to_x), (params["gamma"], to_gamma), (params["beta"], to_beta)
    return arithmetic().record(original(x, params=params), *ways)


_OF_NORM: Final[Mapping[str, Mapping[str, str]]] = {
    "dx is (g − mean(g) − n·mean(g·n))/√(variance + eps), with g = dOut·gamma and n the normalised row.": {
        "no-variance-term": "the gradient of x has no term through the variance",
        "no-mean-term": "the gradient of x has no term through the mean",
        "no-terms": "the gradient of x treats mean and deviation as constants",
        "summed-terms": "the means in the gradient of x are sums",
        "gamma-left-out": "the gradient of x is formed without gamma",
        "gamma-outside": "gamma multiplies the gradient of x after the means instead of before",
        "mean-without-gamma": "the mean in the gradient of x is that of dOut, without gamma",
        "variance-without-gamma": "the term through the variance in the gradient of x is formed without gamma",
        "means-without-gamma": "both means in the gradient of x are formed without gamma",
        "not-divided": "the gradient of x is not divided by the deviation",
        "variance-divided": "the gradient of x is divided by the variance instead of the deviation",
    },
    "Keep the normalised row for the backward pass: do not scale and shift it in place.": {
        "normal-overwritten": "the gradients of x and gamma read the output where the normalised row belongs",
    },
    "dgamma is Σ dOut·n, with n the normalised row.": {
        "gamma-of-centred": "the gradient of gamma has the centred row instead of the normalised one",
        "gamma-of-x": "the gradient of gamma has the row itself instead of the normalised one",
        "gamma-times-gamma": "the gradient of gamma is multiplied by gamma",
    },
    "dbeta is Σ dOut.": {"beta-times-gamma": "the gradient of beta is multiplied by gamma"},
}


def _differentiate_loss(original: Step, logits: Array, targets: Array, *, pad_id: int, change: str) -> dict[str, Array]:
    found, counts, vocab = original(logits, targets, pad_id=pad_id), find_words(targets, pad_id), logits.shape[-1]
    # Padding need not be a word.
    known = counts if change == "padding-as-0" else (targets >= 0) & (targets < vocab)
    chosen = 0 if change == "without-one-hot" else one_hot(np.where(known, targets, 0), vocab=vocab)
    kept = np.ones_like(counts) if change in ("padding-kept", "padding-as-0") else counts
    terms = np.where(kept[..., None], read_numbers(softmax(logits)) - chosen, 0) * (-1 if change == "negated" else 1)
    terms = terms / (counts.size if change == "padding-counted" else count_targets(counts))
    return {**found, "loss": arithmetic().record(found["loss"], (logits, lambda g: g * terms.astype(logits.dtype)))}


_OF_LOSS: Final = {
    "padding-kept": "padded tokens have a gradient like any other",
    "padding-as-0": "padded tokens have a gradient, as if their target were the word 0",
    "without-one-hot": "the gradient is the softmax, from which the one-hot target is not subtracted",
    "negated": "the gradient has the wrong sign",
    "padding-counted": "the gradient is divided by the number of all tokens, padding included",
}


def generate() -> Iterator[Neighbour]:
    """Yield the neighbours of backward passes."""
    yield from _change_scores()
    yield from _change_values()
    for step, component, id_, hint, title, way in _PASSED:
        yield make_backward(id_, component, title, hint, {step: around(pass_back(way))})
    yield from _change_sums()
    yield from _change_heads()
    for hint, (id_, title) in ((hint, slip) for hint, slips in _OF_NORM.items() for slip in slips.items()):
        yield make_backward(
            id_, "layer_norm", title, hint, {layer_norm: around(partial(_differentiate_norm, change=id_))}
        )
    hint = "It is (softmax − one-hot)/number of words, and 0 where a target is padding."
    for id_, title in _OF_LOSS.items():
        yield make_backward(
            id_, "cross_entropy", title, hint, {cross_entropy: around(partial(_differentiate_loss, change=id_))}
        )
    yield from _change_gradients()
