"""Backward passes by hand: a factor or a term left out, a sum that is a mean, the wrong forward value."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from functools import partial
from itertools import product
from typing import Any, Final

import numpy as np

from goldformer.adapters.textbook import BY_HAND
from goldformer.adapters.textbook.layers_backward import (
    multi_head_attention_gradient,
    unproject,
)
from goldformer.conformance.diagnosis.neighbours.arguments import read_argument
from goldformer.conformance.diagnosis.neighbours.neighbour import Neighbour
from goldformer.spec.formulas.attention import softmax
from goldformer.spec.formulas.backward import (
    Gradients,
    activation_gradient,
    add_rows,
    attention_backward,
    average_gradient,
    cross_entropy_gradient,
    feed_forward_gradient,
    input_gradient,
    layer_norm_gradient,
    projection_gradients,
    scaled_dot_product_attention_gradient,
    scores_gradient,
    softmax_backward,
    softmax_gradient,
    softmax_row_term,
    take_step,
    token_embedding_gradient,
    weight_gradients,
)
from goldformer.spec.formulas.checks import Array
from goldformer.spec.formulas.heads import Params, project
from goldformer.spec.formulas.layers import channel_mean, channel_variance, norm_denominator, subtract_mean
from goldformer.spec.formulas.losses import find_words
from goldformer.spec.formulas.steps import Replacements, Step, around, hold, instead
from goldformer.spec.formulas.targets import one_hot

_SDPA: Final = "scaled_dot_product_attention"


def make_backward(id_: str, component: str, title: str, hint: str, steps: Replacements) -> Neighbour:
    """Return a neighbour that is made in a backward pass."""
    return Neighbour(f"{component}.backward.{id_}", title, hint, steps, backward=True)


#: The end of the id of a backward pass that is right for right code, and so not for a forward pass with a mistake.
OF_RIGHT_CODE: Final = ".backward.of-right-code"
#: What such a formula does that shows, by component.
_DOES: Final = {"layer_norm": ", whose means divide by d_model,"}


def make_of_right_code(component: str) -> Neighbour:
    """Return the neighbour that keeps the backward pass of right code on top of a mistake; alone it does nothing."""
    title = (
        f"the backward pass has the formula of right code{_DOES.get(component, '')} and not that of this forward pass"
    )
    hint = "Once the forward pass is right, this formula is right too."
    return make_backward("of-right-code", component, title, hint, BY_HAND)


# All gradients of a component, or one of them

_GRADIENTS: Final[Mapping[Step, tuple[str, ...]]] = {
    softmax_gradient: ("scores",),
    scaled_dot_product_attention_gradient: ("query", "key", "value"),
    feed_forward_gradient: ("x", "w_1", "b_1", "w_2", "b_2"),
    layer_norm_gradient: ("x", "gamma", "beta"),
    token_embedding_gradient: ("table",),
}
#: What becomes of a gradient; a cotangent has the samples first.
_CHANGES: Final[tuple[tuple[str, str, Callable[[Array, Array], Array]], ...]] = (
    ("over-batch", "is divided by the number of samples", lambda g, c: g / c.shape[0]),
    ("over-tokens", "is averaged over samples and tokens instead of summed", lambda g, c: g * c.shape[-1] / c.size),
    ("doubled", "is doubled", lambda g, _: g + g),
    ("halved", "is halved", lambda g, _: g / 2),
    ("negated", "has the wrong sign", lambda g, _: -g),
    ("zero", "is zero", lambda g, _: g * 0),
)  # fmt: skip


def _change_gradients() -> Iterator[Neighbour]:
    for step, names in _GRADIENTS.items():
        component = step.__name__.removesuffix("_gradient")
        biases = tuple(name for name in names if name.startswith("b_"))
        groups = {"all": names, "the biases": biases} if biases else {"all": names}
        groups |= {name: (name,) for name in names} if len(names) > 1 else {}
        for group, chosen in groups.items():
            which = "every gradient" if group == "all" else f"the gradient of {group}"
            for word, says, change in _CHANGES:

                def run(
                    original: Step,
                    *args: Any,
                    step: Step = step,
                    chosen: Any = chosen,
                    change: Any = change,
                    **named: Any,
                ) -> Gradients:
                    cotangent = read_argument(step, "cotangent", (args, named))
                    found = original(*args, **named)
                    return {n: np.asarray(change(g, cotangent)) if n in chosen else g for n, g in found.items()}

                yield make_backward(
                    f"{group.replace(' ', '-')}.{word}", component, f"{which} {says}",
                    f"Check the factor of {which}: sums run over all samples and tokens.", {step: around(run)},
                )  # fmt: skip


# Attention


def _change_attention() -> Iterator[Neighbour]:
    def forget_mask(
        original: Step, forward: Mapping[str, Array], cotangent: Array, mask: Array | None, *, kept: bool
    ) -> Gradients:
        scaled = forward.get("scaled_scores")
        bare = forward if scaled is None else {**forward, "weights": softmax(scaled)}
        found: Gradients = original(bare, cotangent, mask if kept else None)
        return found

    yield make_backward(
        "weights-without-mask", _SDPA, "the backward pass has the weights of a call without the mask",
        "Keep the weights of the forward pass, or form them again with the mask.",
        {attention_backward: around(partial(forget_mask, kept=True))},
    )  # fmt: skip
    yield make_backward(
        "without-mask", _SDPA, "the backward pass has no mask",
        "Form the weights with the mask, and give hidden scores a gradient of 0.",
        {attention_backward: around(partial(forget_mask, kept=False))},
    )  # fmt: skip

    def swap(original: Step, *args: Any, **named: Any) -> Gradients:
        found = original(*args, **named)
        fits = found["query"].shape == found["key"].shape
        return {**found, "query": found["key"], "key": found["query"]} if fits else found

    yield make_backward(
        "queries-and-keys-swapped", _SDPA, "the gradients of queries and keys are swapped",
        "dQ is dS·K, dK is dSᵀ·Q.", {attention_backward: around(swap)},
    )  # fmt: skip


_OF_SCORES: Final = "dS is P·(dP − Σ dP·P), and the scores before the division by √d_k have dS/√d_k."


def _change_softmax() -> Iterator[Neighbour]:
    rows: tuple[tuple[str, str, Callable[[Array, Array], Any]], ...] = (
        ("row-term-mean", "the row term is a mean instead of a sum", lambda p, g: (g * p).mean(-1, keepdims=True)),
        ("row-term-unweighted", "the row term is the sum of dP without P", lambda _, g: g.sum(-1, keepdims=True)),
        ("row-term-of-column", "the row term is summed over another axis than the last", _sum_columns),
    )
    for word, title, term in rows:
        yield make_backward(word, "softmax", title, _OF_SCORES, {softmax_row_term: instead(term)})
    passes: tuple[tuple[str, str, Callable[[Array, Array], Any]], ...] = (
        ("diagonal", "only the diagonal of the softmax's derivative is used, P·(1 − P)", lambda p, g: p * (1 - p) * g),
        ("unweighted", "the factor P in front is left out", lambda p, g: g - (g * p).sum(-1, keepdims=True)),
        ("squared", "the factor P in front is squared", lambda p, g: p * p * (g - (g * p).sum(-1, keepdims=True))),
        (
            "row-term-in-full",
            "the row term is not multiplied by P",
            lambda p, g: p * g - (g * p).sum(-1, keepdims=True),
        ),
        (
            "row-term-weighted-late",
            "the row term is P times the sum of dP, instead of the sum of dP·P",
            lambda p, g: p * (g - p * g.sum(-1, keepdims=True)),
        ),
        ("added", "the row term is added instead of subtracted", lambda p, g: p * (g + (g * p).sum(-1, keepdims=True))),
    )
    for word, title, backward in passes:
        yield make_backward(word, "softmax", title, _OF_SCORES, {softmax_backward: instead(backward)})


def _change_scale() -> Iterator[Neighbour]:
    def scale(original: Step, scaled: Array, sizes: Mapping[str, Any], *, times: int) -> Array:
        return np.asarray(original(scaled, sizes) * np.float64(sizes["d_k"]) ** (times / 2)).astype(scaled.dtype)

    scales = ((1, "is not divided by √d_k"), (2, "is multiplied by √d_k"), (-1, "is divided by d_k instead of √d_k"))
    for times, says in scales:
        yield make_backward(
            f"scale.{times}", _SDPA, f"the gradient of the scores {says}", _OF_SCORES,
            {scores_gradient: around(partial(scale, times=times))},
        )  # fmt: skip

    def scale_one(
        original: Step, forward: Mapping[str, Array], cotangent: Array, mask: Array | None, *, name: str, times: int
    ) -> Gradients:
        found: Gradients = original(forward, cotangent, mask)
        root = math.sqrt(forward["query"].shape[-1])
        return {**found, name: np.asarray(found[name] * root**times).astype(found[name].dtype)}

    for (name, words), (times, says) in product((("query", "queries"), ("key", "keys")), scales[::2]):
        yield make_backward(
            f"{name}.scale.{times}", _SDPA, f"the gradient of the {words} {says}",
            "dQ is dS·K/√d_k, and dK is dSᵀ·Q/√d_k.",
            {attention_backward: around(partial(scale_one, name=name, times=times))},
        )  # fmt: skip


def _sum_columns(weights: Array, gradient: Array) -> Array:
    axis = -2 if weights.ndim > 1 else -1
    return np.asarray((gradient * weights).sum(axis=axis, keepdims=True))


# What the gradients of queries, keys and values are sums of

_scores: Final[ContextVar[Array]] = ContextVar("scores")


def _note_scores(original: Step, scaled: Array, sizes: Mapping[str, Any]) -> Array:
    gradient = original(scaled, sizes)
    _scores.set(gradient)
    return np.asarray(gradient)


def _change_products() -> Iterator[Neighbour]:
    slips: tuple[tuple[str, str, str, Callable[[Array, Mapping[str, Array], Array], Array]], ...] = (
        ("key", "not-transposed", "a transpose is missing in the gradient of the keys, dS·Q",
         lambda s, f, _: s @ f["query"]),
        ("query", "transposed", "the gradient of the queries has a transpose too many, dSᵀ·K",
         lambda s, f, _: s.swapaxes(-1, -2) @ f["key"]),
        ("value", "not-transposed", "a transpose is missing in the gradient of the values, P·dOut",
         lambda _, f, g: f["weights"] @ g),
        ("key", "of-keys", "the gradient of the keys is made of the keys, dSᵀ·K",
         lambda s, f, _: s.swapaxes(-1, -2) @ f["key"]),
        ("query", "of-queries", "the gradient of the queries is made of the queries, dS·Q",
         lambda s, f, _: s @ f["query"]),
        ("value", "of-scores", "the gradient of the values has those of the scores for weights",
         lambda s, _, g: s.swapaxes(-1, -2) @ g),
    )  # fmt: skip
    for name, word, title, product_ in slips:

        def run(
            original: Step, forward: Mapping[str, Array], cotangent: Array, mask: Array | None,
            name: str = name, product_: Any = product_,
        ) -> Gradients:  # fmt: skip
            found: Gradients = original(forward, cotangent, mask)
            scores = _scores.get()
            if scores.shape[-1] != scores.shape[-2]:
                return found
            return {**found, name: np.asarray(product_(scores, forward, cotangent))}

        yield make_backward(
            f"{name}.{word}", _SDPA, title, "dQ is dS·K, dK is dSᵀ·Q and dV is Pᵀ·dOut.",
            {attention_backward: around(run), scores_gradient: around(_note_scores)},
        )  # fmt: skip


_ROLES: Final = {"w_q": "queries", "w_k": "keys", "w_v": "values"}


def _change_single_head() -> Iterator[Neighbour]:
    """Yield gradients of one head, and steps against them, that treat one of the three roles in another way."""
    component, hint = "single_head_attention", "dX is dQ·W_Qᵀ + dK·W_Kᵀ + dV·W_Vᵀ, and dW_Q is Xᵀ·dQ."
    for weight, words in _ROLES.items():

        def choose(
            original: Step, projected: Gradients, params: Params, *, weight: str = weight, only: bool
        ) -> Array:  # fmt: skip
            kept = {name: g if (name == weight) is only else g * 0 for name, g in projected.items()}
            return np.asarray(original(kept, params))

        def turn(original: Step, x: Array, projected: Gradients, weight: str = weight) -> Gradients:
            found: Gradients = original(x, projected)
            return {**found, weight: found[weight].T}

        changes = (
            (f"x-without-{words}", f"the way through the {words} is missing in the gradient of the input",
             {input_gradient: around(partial(choose, only=False))}),
            (f"x-of-{words}", f"the gradient of the input has only the way through the {words}",
             {input_gradient: around(partial(choose, only=True))}),
            (f"{weight}.transposed", f"the gradient of {weight} is transposed", {weight_gradients: around(turn)}),
        )  # fmt: skip
        for word, title, steps in changes:
            yield make_backward(word, component, title, hint, steps)

        def move(original: Step, weights: Params, *args: Any, weight: str = weight, times: float) -> Any:
            gradient, moved = original(weights, *args)
            return gradient, {**moved, weight: weights[weight] + times * (moved[weight] - weights[weight])}

        ways = (("ascent", "moves along its gradient instead of against it", -1.0), ("kept", "is not moved", 0.0),
                ("twice", "moves twice as far", 2.0))  # fmt: skip
        for word, says, times in ways:
            yield Neighbour(
                f"single_head_attention_step.{weight}.{word}", f"the matrix of the {words} {says}",
                "A step is W − lr·dW, for each of the three matrices.", {take_step: around(partial(move, times=times))},
            )  # fmt: skip

    def keep_weights(projected: Gradients, params: Params) -> Array:
        return np.asarray(sum(gradient @ params[name] for name, gradient in projected.items()))

    yield make_backward(
        "x-not-transposed", component, "the matrices are not transposed in the gradient of the input", hint,
        {input_gradient: instead(keep_weights)},
    )  # fmt: skip


# The feed-forward network


def _change_feed_forward() -> Iterator[Neighbour]:
    component = "feed_forward"

    def read_inner(original: Step, x: Array, cotangent: Array, *, params: Params) -> Gradients:
        inner = project(x, params, "1")
        weight = projection_gradients(inner, cotangent, params, "2")["w_2"]
        return {**original(x, cotangent, params=params), "w_2": weight}

    yield make_backward(
        "w_2-of-inner", component, "the gradient of w_2 has the hidden layer before its ReLU",
        "dW_2 is hiddenᵀ·dOut, with the hidden layer after the ReLU.", {feed_forward_gradient: around(read_inner)},
    )  # fmt: skip

    ways: tuple[tuple[str, str, Callable[[Array, Array], Array]], ...] = (
        ("relu-of-gradient", "the ReLU's backward pass looks at the gradient instead of its input",
         lambda _, g: np.maximum(g, 0)),
        ("relu-kept", "the ReLU's backward pass multiplies by the hidden layer", lambda x, g: np.maximum(x, 0) * g),
        ("relu-reversed", "the ReLU's backward pass keeps what was 0", lambda x, g: np.where(x > 0, 0, g)),
    )  # fmt: skip
    for word, title, way in ways:
        yield make_backward(
            word, component, title, "The ReLU passes the gradient on where its input is positive.",
            {activation_gradient: instead(lambda x, g, way=way: np.asarray(way(x, g)).astype(g.dtype))},
        )  # fmt: skip


# What all projections share


def _change_projections() -> Iterator[Neighbour]:
    """Yield gradients of projections that are means, or that read the input in the wrong order."""

    def average(
        original: Step,
        x: Array,
        gradient: Array,
        params: Params,
        role: str,
        *,
        which: str,
        over: Callable[[Array], Any],
    ) -> Gradients:
        found = original(x, gradient, params, role)
        return {name: g / over(gradient) if name.startswith(which) else g for name, g in found.items()}

    def mix(original: Step, x: Array, gradient: Array, params: Params, role: str) -> Gradients:
        found = original(x, gradient, params, role)
        mixed = x.swapaxes(-1, -2).reshape(x.shape[-1], -1) @ gradient.reshape(-1, gradient.shape[-1])
        return {name: mixed.astype(g.dtype) if name.startswith("w_") else g for name, g in found.items()}

    means: tuple[tuple[str, str, Callable[[Array], Any]], ...] = (
        ("averaged", "are averaged over the tokens, not summed", lambda g: g.size / g.shape[-1]),
        ("over-batch", "are divided by the number of samples", lambda g: g.shape[0]),
    )
    # Each is judged by itself, so each has a neighbour of its own; the layers have both.
    for component in ("feed_forward", "multi_head_attention", "fused_multi_head_attention"):
        for (which, words), (word, says, over) in product((("b_", "biases"), ("w_", "weights")), means):
            if (component, words, word) == ("feed_forward", "biases", "over-batch"):
                continue  # one of the changes of its gradients
            yield make_backward(
                f"{words}-{word}", component, f"the gradients of the {words} {says}",
                f"Sum the gradients of the {words} over all tokens.",
                {projection_gradients: around(partial(average, which=which, over=over))},
            )  # fmt: skip
        yield make_backward(
            "weights-mixed", component, "the gradients of the weights mix tokens and samples of the input by a reshape",
            "dW is Xᵀ·dOut: reshape X to (tokens, channels) first, then transpose it.",
            {projection_gradients: around(mix)},
        )  # fmt: skip


def _skip_projections() -> Iterator[Neighbour]:
    """Yield attentions whose inputs get the gradients of queries, keys and values as they are."""

    def skip(original: Step, projected: Array, params: Params, role: str, *, skipped: str) -> Array:
        found = original(projected, params, role)
        return projected if role in skipped and found.shape == projected.shape else np.asarray(found)

    for roles, which in (("qkv", "queries, keys and values"), ("q", "queries"), ("k", "keys"), ("v", "values")):
        yield make_backward(
            f"{roles}-not-projected-back", "multi_head_attention",
            f"the gradient of the {which} does not go back through the projection",
            "The gradient of an input is that of its projection times the transposed matrix.",
            {unproject: around(partial(skip, skipped=roles))},
        )  # fmt: skip


#: Of which samples and tokens a gradient that should be summed over all of them is the sum.
_PARTS: Final[tuple[tuple[str, str, tuple[slice, slice]], ...]] = (
    ("first-sample", "the first sample", (slice(1), slice(None))),
    ("last-sample", "the last sample", (slice(-1, None), slice(None))),
    ("first-token", "the first token of each sample", (slice(None), slice(1))),
    ("last-token", "the last token of each sample", (slice(None), slice(-1, None))),
)


def _sum_parts() -> Iterator[Neighbour]:
    """Yield gradients of parameters that are summed over some samples or tokens only."""

    def of_projection(
        original: Step, x: Array, gradient: Array, params: Params, role: str, *, which: str, part: tuple[slice, slice]
    ) -> Gradients:
        found, some = original(x, gradient, params, role), original(x[part], gradient[part], params, role)
        return {name: some[name] if name.startswith(which) else g for name, g in found.items()}

    def of_norm(
        original: Step, x: Array, cotangent: Array, *, params: Params, which: str, part: tuple[slice, slice]
    ) -> Gradients:
        found = original(x, cotangent, params=params)
        if x.ndim < 3:
            return dict(found)
        some = original(x[part], cotangent[part], params=params)
        return {name: some[name] if name != "x" and name.startswith(which) else g for name, g in found.items()}

    groups = {"": "the gradients of the parameters are", "w_": "the gradients of the weights are"}
    groups["b_"] = "the gradients of the biases are"
    steps: tuple[tuple[str, Step, Callable[..., Gradients], tuple[str, ...]], ...] = (
        ("feed_forward", projection_gradients, of_projection, ("", "w_", "b_", "w_1", "b_1", "w_2", "b_2")),
        ("multi_head_attention", projection_gradients, of_projection, ("", "w_", "b_")),
        ("fused_multi_head_attention", projection_gradients, of_projection, ("", "w_", "b_")),
        ("layer_norm", layer_norm_gradient, of_norm, ("", "gamma", "beta")),
    )
    for component, step, change, names in steps:
        for which, (word, says, part) in product(names, _PARTS):
            title = f"{groups.get(which, f'the gradient of {which} is')} summed over {says} only"
            yield make_backward(
                f"{which.strip('_') or 'parameters'}-of-{word}", component, title,
                "Sum over all samples and tokens.", {step: around(partial(change, which=which, part=part))},
            )  # fmt: skip


def _return_through(original: Step, projected: Array, params: Params, of: str, *, role: str, other: str) -> Array:
    """Return the gradient of one role's input by the matrix of another, where it has the same shape."""
    same = params[f"w_{role}"].shape == params[f"w_{other}"].shape
    return np.asarray(original(projected, params, other if of == role and same else of))


def _swap_inputs() -> Iterator[Neighbour]:
    """Yield attentions whose gradients of one projection are formed with what another one kept of its forward pass."""
    inputs = {"q": "query", "k": "key", "v": "value"}

    def note(original: Step, *args: Any, **named: Any) -> Any:
        given = (args, named)
        arrays = {role: read_argument(multi_head_attention_gradient, name, given) for role, name in inputs.items()}
        with hold(_kept, arrays):
            return original(*args, **named)

    for role, other in product(inputs, repeat=2):
        if role == other:
            continue

        def form(
            original: Step, x: Array, gradient: Array, params: Params, of: str, role: str = role, other: str = other
        ) -> Gradients:
            theirs = _kept.get().get(other)
            fits = of == role and theirs is not None and theirs.shape == x.shape
            found: Gradients = original(theirs if fits else x, gradient, params, of)
            return found

        name, theirs = inputs[role], inputs[other]
        steps: Replacements = {multi_head_attention_gradient: around(note), projection_gradients: around(form)}
        yield make_backward(
            f"w_{role}.of-{theirs}", "multi_head_attention", f"the gradient of w_{role} is formed with {theirs}",
            f"dw_{role} is {name}ᵀ times the gradient of its projection.", steps,
        )  # fmt: skip
        yield make_backward(
            f"{name}.cache-of-{theirs}", "multi_head_attention",
            f"the gradients of {name} and w_{role} are formed with the input and the matrix of {theirs}",
            f"Keep {name} and w_{role} for the backward pass of this projection.",
            {**steps, unproject: around(partial(_return_through, role=role, other=other))},
        )  # fmt: skip


#: The inputs of the attention whose gradients are formed, by role.
_kept: Final[ContextVar[Mapping[str, Array]]] = ContextVar("kept")


def _swap_matrices() -> Iterator[Neighbour]:
    """Yield attentions whose gradient of an input goes back through the matrix of another projection."""
    for (role, name), other in product((("q", "query"), ("k", "key"), ("v", "value")), "qkv"):
        if role == other:
            continue

        yield make_backward(
            f"{name}.through-w_{other}", "multi_head_attention",
            f"the gradient of {name} goes back through w_{other} instead of w_{role}",
            f"d{name} is the gradient of its projection times w_{role}ᵀ.",
            {unproject: around(partial(_return_through, role=role, other=other))},
        )  # fmt: skip


# Layer normalisation


def _differentiate_norm(x: Array, cotangent: Array, *, params: Params, change: str) -> Gradients:
    """Return the gradients with one slip."""
    wide = x.astype(np.promote_types(x.dtype, np.float32))
    centred = subtract_mean(wide)
    root = norm_denominator(channel_variance(centred))
    normal, gamma = centred / root, params["gamma"]
    if change == "normal-overwritten":
        normal = normal * gamma + params["beta"]
    gradient = cotangent if change in ("gamma-left-out", "gamma-outside") else cotangent * gamma
    of_mean = cotangent if change in ("mean-without-gamma", "means-without-gamma") else gradient
    of_variance = cotangent if change in ("variance-without-gamma", "means-without-gamma") else gradient
    mean, variance = channel_mean(of_mean), normal * channel_mean(of_variance * normal)
    flows = {"no-mean-term": variance, "no-variance-term": mean, "no-terms": 0 * mean}.get(change, mean + variance)
    if change == "summed-terms":
        flows = flows * x.shape[-1]
    through = gradient - flows
    if change == "gamma-outside":
        through = through * gamma
    found = {
        "x": through if change == "not-divided" else through / root,
        "gamma": (cotangent * {"gamma-of-centred": centred, "gamma-of-x": wide}.get(change, normal)),
        "beta": gradient if change == "beta-times-gamma" else cotangent,
    }
    if change == "variance-divided":
        found["x"] = through / np.square(root)
    if change == "gamma-times-gamma":
        found["gamma"] = found["gamma"] * gamma
    axes = tuple(range(x.ndim - 1))
    summed = {n: g if n == "x" else np.asarray(g.sum(axis=axes)) for n, g in found.items()}
    return {name: np.asarray(g).astype(x.dtype) for name, g in summed.items()}


def _change_norm() -> Iterator[Neighbour]:
    of_x = "dx is (g − mean(g) − n·mean(g·n))/√(variance + eps), with g = dOut·gamma and n the normalised row."
    slips = {
        of_x: {
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
        "dbeta is Σ dOut.": {
            "beta-times-gamma": "the gradient of beta is multiplied by gamma",
        },
    }
    for hint, (word, title) in ((hint, slip) for hint, own in slips.items() for slip in own.items()):
        yield make_backward(
            word, "layer_norm", title, hint, {layer_norm_gradient: instead(partial(_differentiate_norm, change=word))}
        )


def _change_embedding() -> Iterator[Neighbour]:
    def overwrite(table: Array, ids: Array, rows: Array) -> None:
        table[ids] = rows

    def average(table: Array, ids: Array, rows: Array) -> None:
        np.add.at(table, ids, rows)
        table /= np.maximum(np.bincount(ids.ravel(), minlength=len(table)), 1)[:, None]

    def fix_row(original: Step, table: Array, ids: Array, rows: Array, row: int) -> None:
        original(table, ids, rows)
        table[row : row + 1] = 0

    add_up = "Add up the gradients of all places of a word."
    declare = (
        'If it is the row of the padding, as with padding_idx, declare CONVENTIONS = {"pad_row": "fixed"}, '
        "and pass pad_id on as padding_idx."
    )
    ways: tuple[tuple[str, str, str, Callable[[Step], Step]], ...] = (
        ("overwritten", "a word that occurs twice keeps one of its gradients", add_up, instead(overwrite)),
        ("averaged", "the gradients of a word are averaged over its places", add_up, instead(average)),
        *(
            (f"row-{row}-fixed", f"the row of id {row} has a gradient of 0", declare, around(partial(fix_row, row=row)))
            for row in (0, 1)
        ),
    )
    for word, title, hint, way in ways:
        yield make_backward(word, "token_embedding", title, hint, {add_rows: way})


def _change_losses() -> Iterator[Neighbour]:
    def differentiate(logits: Array, targets: Array, cotangent: Array, *, pad_id: int, change: str) -> Gradients:
        vocab, counts = logits.shape[-1], find_words(targets, pad_id)
        # Padding need not be a word.
        known = counts if change == "padding-as-0" else (targets >= 0) & (targets < vocab)
        words = np.where(known, targets, 0)
        errors = softmax(logits) - (0 if change == "without-one-hot" else one_hot(words, vocab=vocab))
        kept = np.ones_like(counts) if change.startswith("padding") else counts
        terms = np.where(kept[..., None], errors, 0) * (-cotangent if change == "negated" else cotangent)
        return {"logits": average_gradient(terms.astype(logits.dtype), counts)}

    slips = {
        "padding-kept": "padded tokens have a gradient like any other",
        "padding-as-0": "padded tokens have a gradient, as if their target were the word 0",
        "without-one-hot": "the gradient is the softmax, from which the one-hot target is not subtracted",
        "negated": "the gradient has the wrong sign",
    }
    for word, title in slips.items():
        yield make_backward(
            word, "cross_entropy", title, "It is (softmax − one-hot)/number of words, and 0 where a target is padding.",
            {cross_entropy_gradient: instead(partial(differentiate, change=word))},
        )  # fmt: skip
    yield make_backward(
        "padding-counted", "cross_entropy", "the gradient is divided by the number of all tokens, padding included",
        "Divide by the number of tokens that count.", {average_gradient: instead(lambda g, counts: g / counts.size)},
    )  # fmt: skip


def generate() -> Iterator[Neighbour]:
    """Yield the neighbours of backward passes."""
    yield from _change_products()
    yield from _change_single_head()
    yield from _change_attention()
    yield from _change_softmax()
    yield from _change_scale()
    yield from _change_feed_forward()
    yield from _change_projections()
    yield from _skip_projections()
    yield from _sum_parts()
    yield from _swap_matrices()
    yield from _swap_inputs()
    yield from _change_norm()
    yield from _change_embedding()
    yield from _change_losses()
    yield from _change_gradients()
