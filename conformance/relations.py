"""The relations that several components keep, each written once; a property draws for it and calls it.

Tokens lie along the last axis but one of the arrays named, and of the component's first output.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from goldformer.conformance.invoke import Arguments
from goldformer.conformance.properties import Subject, with_inputs


def follows_order(subject: Subject, arguments: Arguments, *tokens: str, seed: int) -> None:
    """Violation unless permuted tokens give permuted rows."""
    length = arguments.inputs[tokens[0]].shape[-2]
    order = np.random.default_rng(seed).permutation(length)
    permuted = with_inputs(arguments, **{name: arguments.inputs[name][..., order, :] for name in tokens})
    output, plain, other = _both(subject, arguments, permuted)
    claim = f"tokens in the order {order.tolist()} do not give the output in that order"
    subject.agree(output, other, plain[..., order, :], subject.bound(subject.component, arguments, output), claim)


def ignores_order(subject: Subject, arguments: Arguments, *tokens: str, seed: int) -> None:
    """Violation unless permuted tokens, which something else attends to, give the same output."""
    length = arguments.inputs[tokens[0]].shape[-2]
    order = np.random.default_rng(seed).permutation(length)
    permuted = with_inputs(arguments, **{name: arguments.inputs[name][..., order, :] for name in tokens})
    output, plain, other = _both(subject, arguments, permuted)
    claim = f"the output changes when {' and '.join(tokens)} come in the order {order.tolist()}"
    subject.agree(output, other, plain, subject.bound(subject.component, arguments, output), claim)


def ignores_later(subject: Subject, arguments: Arguments, other: Arguments, *tokens: str, last: int) -> None:
    """Violation unless rows up to `last` stay when the tokens after it are those of `other`."""
    length = arguments.inputs[tokens[0]].shape[-2]
    keep = (np.arange(length) <= last)[:, None]
    output, plain, changed = _both(subject, arguments, _mixed(arguments, other, keep, tokens))
    bound = subject.bound(subject.component, arguments, output)
    claim = f"rows up to {last} change when later {' and '.join(tokens)} change"
    subject.agree(output, changed[..., : last + 1, :], plain[..., : last + 1, :], bound, claim)


def ignores_hidden(
    subject: Subject, arguments: Arguments, other: Arguments, *tokens: str, keep: NDArray[np.bool_], padded_rows: bool
) -> None:
    """Violation unless the tokens that `keep` (batch, seq) hides may be those of `other`.

    With `padded_rows`, the rows of hidden tokens are queries themselves and are not compared.
    """
    output, plain, changed = _both(subject, arguments, _mixed(arguments, other, keep[..., None], tokens))
    if padded_rows:
        plain, changed = plain[keep], changed[keep]
    claim = f"hidden tokens matter (samples keep {keep.sum(-1).tolist()} of {keep.shape[-1]})"
    subject.agree(output, changed, plain, subject.bound(subject.component, arguments, output), claim)


def alone_as_in_batch(subject: Subject, arguments: Arguments) -> None:
    """Violation unless the second sample alone is the second sample in the batch."""
    alone = with_inputs(arguments, **{name: array[1:2] for name, array in arguments.inputs.items()})
    output, batch, single = _both(subject, arguments, alone)
    bound = subject.bound(subject.component, alone, output)
    subject.agree(output, batch[1:2], single, bound, "a sample gives something else in a batch than alone")


def _both(subject: Subject, one: Arguments, other: Arguments) -> tuple[str, NDArray[np.float64], NDArray[np.float64]]:
    """The component's first output: its name, and what two calls give for it."""
    output = subject.bench.spec.contracts[subject.component].first_output
    return output, subject.call(subject.component, one)[output], subject.call(subject.component, other)[output]


def _mixed(one: Arguments, other: Arguments, keep: NDArray[np.bool_], tokens: tuple[str, ...]) -> Arguments:
    return with_inputs(one, **{name: np.where(keep, one.inputs[name], other.inputs[name]) for name in tokens})
