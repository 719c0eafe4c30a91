"""The relations that several components keep, each written once. A property draws arguments and calls them.

Tokens lie along the last axis but one of the arrays named, and of the component's first output.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from goldformer.conformance.judging.invoke import Arguments, NotCheckable
from goldformer.conformance.properties.subject import Subject, with_all_digits, with_inputs, with_params
from goldformer.spec.model import read_count

#: The sizes of the batches whose last sample is compared with itself in a batch of one.
BATCHES: Final = (2, 4, 8)


def _draw_order(length: int, seed: int) -> NDArray[np.int64]:
    """Draw a permutation; it is the identity only if the length is 1."""
    order = np.random.default_rng(seed).permutation(length)
    return order[::-1] if np.array_equal(order, np.arange(length)) else order


def require_no_order(subject: Subject) -> None:
    """Raise NotCheckable if later tokens are always hidden: what a query sees depends on the order of the tokens."""
    if subject.hides_later:
        raise NotCheckable(
            "later tokens are always hidden, as the adapter declares, so the order of the tokens matters"
        )


def follows_order(subject: Subject, arguments: Arguments, *tokens: str, seed: int) -> None:
    """Require that permuted tokens give permuted rows."""
    require_no_order(subject)
    order = _draw_order(arguments.inputs[tokens[0]].shape[-2], seed)
    permuted = with_inputs(arguments, **{name: arguments.inputs[name][..., order, :] for name in tokens})
    plain, other = map(subject.output, (arguments, permuted))
    claim = f"with the tokens in the order {order.tolist()}, the rows of the output do not come in that order"
    subject.agree(other, plain[..., order, :], subject.bound(arguments), claim)


def ignores_order(subject: Subject, arguments: Arguments, *tokens: str, seed: int) -> None:
    """Require that permuted tokens, which something else attends to, give the same output."""
    order = _draw_order(arguments.inputs[tokens[0]].shape[-2], seed)
    permuted = with_inputs(arguments, **{name: arguments.inputs[name][..., order, :] for name in tokens})
    plain, other = map(subject.output, (arguments, permuted))
    claim = f"the output changes when the rows of {join_names(tokens)} come in the order {order.tolist()}"
    subject.agree(other, plain, subject.bound(arguments), claim)


def ignores_later(subject: Subject, arguments: Arguments, other: Arguments, *tokens: str, last: int) -> None:
    """Require that rows up to `last`, or the last but one, stay when the tokens after it are those of `other`."""
    length = arguments.inputs[tokens[0]].shape[-2]
    last = min(last, length - 2)
    keep = (np.arange(length) <= last)[:, None]
    plain, changed = map(subject.output, (arguments, _mix_tokens(arguments, other, keep, tokens)))
    bound = subject.bound(arguments)
    claim = f"the output up to position {last} changes when later rows of {join_names(tokens)} are replaced"
    subject.agree(changed[..., : last + 1, :], plain[..., : last + 1, :], bound, claim)


def ignores_hidden(
    subject: Subject, arguments: Arguments, other: Arguments, *tokens: str, keep: NDArray[np.bool_], padded_rows: bool
) -> None:
    """Require that the tokens that `keep` (batch, seq) hides may be those of `other`.

    With `padded_rows`, the rows of hidden tokens are queries themselves and are not compared.
    """
    plain, changed = map(subject.output, (arguments, _mix_tokens(arguments, other, keep[..., None], tokens)))
    if padded_rows:
        plain, changed = plain[keep], changed[keep]
    claim = f"the output changes when what the mask hides is replaced: the samples keep {keep.sum(-1).tolist()} tokens"
    subject.agree(changed, plain, subject.bound(arguments), claim)


def ignores_batch(subject: Subject, arguments: Arguments) -> None:
    """Require that the last sample gives the same by itself and in the batch; note whether it does bit for bit.

    The numbers are short, so that a counterexample is, and then have all their digits, so that rounding shows.
    """
    for batch in (arguments, with_all_digits(arguments)):
        by_itself = with_inputs(batch, **{name: array[-1:] for name, array in batch.inputs.items()})
        together, single = map(subject.output, (batch, by_itself))
        claim = "a sample gives something else in a batch than by itself"
        subject.stays(by_itself, together[-1:], single, claim, "batch size")


def ignores_padding(subject: Subject, arguments: Arguments, *tokens: str, length: int, padded_rows: bool) -> None:
    """Require that the last sample, which has `length` tokens, gives the same by itself, without the padding.

    The mask hides the padding. With `padded_rows`, the rows of the padding are queries themselves and are not compared.
    """
    for padded in (arguments, with_all_digits(arguments)):
        last = {name: array[-1:] for name, array in padded.inputs.items()}
        cut = {name: array[:, :length] for name, array in last.items() if name in tokens}
        # Some code needs a mask in every call.
        by_itself = replace(padded, inputs={**last, **cut, "mask": last["mask"][..., :length]})
        whole, single = map(subject.output, (padded, by_itself))
        rows = whole[-1:, :length] if padded_rows else whole[-1:]
        claim = "the output of a sample changes when padding follows its tokens"
        subject.stays(by_itself, rows, single, claim, "padding")


def ignores_neighbour(subject: Subject, batch: Arguments, by_itself: Arguments, *, length: int, claim: str) -> None:
    """Require that the second sample, whose `length` tokens are padded in the batch, gives the same by itself.

    The numbers have few digits and then all of them, as in ignores_batch.
    """
    for padded, single in ((batch, by_itself), (with_all_digits(batch), with_all_digits(by_itself))):
        whole, expected = map(subject.output, (padded, single))
        subject.stays(single, whole[1:, :length], expected, claim, "padding")


def gives_the_same(subject: Subject, one: Arguments, other: Arguments, claim: str) -> None:
    """Require that two calls give the same output, up to rounding."""
    plain, changed = map(subject.output, (one, other))
    bound = subject.bound(one, other)
    subject.agree(changed, plain, bound, claim)


def ignores_head_order(subject: Subject, arguments: Arguments, into: Sequence[str], *, seed: int) -> None:
    """Require that heads may change places: their columns of the parameters `into` that exist, and rows of w_o."""
    heads = read_count(arguments.attributes["num_heads"])
    order = np.roll(np.arange(heads), 1 + seed % (heads - 1))
    blocks = {name: (*array.shape[:-1], heads, -1) for name, array in arguments.params.items() if name in into}
    moved = {
        name: arguments.params[name].reshape(shape)[..., order, :].reshape(arguments.params[name].shape)
        for name, shape in blocks.items()
    }
    w_o = arguments.params["w_o"]
    moved["w_o"] = w_o.reshape(heads, -1, w_o.shape[-1])[order].reshape(w_o.shape)
    claim = f"the output changes when the heads, with their rows of w_o, come in the order {order.tolist()}"
    gives_the_same(subject, arguments, with_params(arguments, **moved), claim)


def find_shared_heads(subject: Subject, kv_heads: int, group: int) -> NDArray[np.int64]:
    """Return the head of keys that each query head reads under the option that the adapter declares (GQA-3)."""
    each = np.arange(kv_heads)
    tiles = subject.options()["gqa_groups"] == "tile"
    return np.tile(each, group) if tiles else np.repeat(each, group)


def passes_no_gradient_back(
    subject: Subject, arguments: Arguments, cotangent: NDArray[np.float64], *tokens: str, last: int
) -> None:
    """Require that the gradient of the rows up to `last`, or the last but one, by every later token is exactly 0."""
    last = min(last, cotangent.shape[-2] - 2)
    rows = np.arange(cotangent.shape[-2]) <= last
    gradients = subject.gradient(arguments, cotangent * rows[:, None], *tokens)
    for name in tokens:
        later = gradients[name][..., last + 1 :, :]
        claim = f"the gradient of the output up to position {last} by later rows of {name} is not 0"
        subject.agree(later, np.zeros_like(later), 0.0, claim, f"gradient of {name}")


def join_names(names: Sequence[str]) -> str:
    """Join names as in a sentence: query, key and value."""
    return " and ".join((", ".join(names[:-1]), names[-1])) if len(names) > 1 else names[0]


def _mix_tokens(one: Arguments, other: Arguments, keep: NDArray[np.bool_], tokens: tuple[str, ...]) -> Arguments:
    return with_inputs(one, **{name: np.where(keep, one.inputs[name], other.inputs[name]) for name in tokens})
