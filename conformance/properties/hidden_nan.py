"""A note on code that is right: a NaN in what a mask hides reaches the output, because 0 · NaN is NaN.

No clause forbids it, and most right code does it, so it never fails anything. Who pads with memory that nothing was
written to has to know.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from goldformer.adapters.arrays import Wire
from goldformer.conformance.judging.applicability import select_plain_cases
from goldformer.conformance.judging.invoke import Arguments, CallProblem, read_arguments
from goldformer.conformance.properties.subject import Subject, with_inputs
from goldformer.spec import Contract


def find_inputs_that_leak(subject: Subject) -> tuple[str, ...]:
    """Return the inputs in which a NaN that a mask hides reaches the output: one call for each input with tokens."""
    if subject.library.name == Wire.name:
        return ()  # a program may end at a NaN, and lose what it was to be asked next
    pairs = [(mask, name) for mask, tokens in _pair_masks(subject.contract) for name in tokens]
    return tuple(dict.fromkeys(name for mask, name in pairs if _leaks(subject, mask, name)))


def _pair_masks(contract: Contract) -> Iterator[tuple[str, list[str]]]:
    """Yield each mask of a component with the inputs whose tokens it hides: they have its last axis."""
    for name, mask in contract.inputs.items():
        if mask.kind == "bool" and mask.broadcast:
            axis = mask.shape.axes[-1]
            floats = {n: spec.shape.axes for n, spec in contract.inputs.items() if spec.kind == "float"}
            yield name, [n for n, axes in floats.items() if len(axes) > 1 and axes[-2] == axis]


def _leaks(subject: Subject, mask: str, name: str) -> bool:
    """Return True if the output is finite, and is not with NaN in what the mask hides of an input.

    The first case decides that has such tokens and that the implementation runs.
    """
    output = subject.contract.first_output
    for case in select_plain_cases(subject.component, subject.bench):
        if case.random:
            continue
        arguments = read_arguments(case)
        hidden = _find_hidden(subject.contract, arguments, mask, name)
        if hidden is None or not hidden.any():
            continue
        spoiled = with_inputs(arguments, **{name: np.where(hidden[..., None], np.nan, arguments.inputs[name])})
        with suppress(CallProblem):
            plain, changed = (
                subject.bench.call(subject.component, a).outputs[output].copy() for a in (arguments, spoiled)
            )
            spread = np.isfinite(plain) & ~np.isfinite(changed)
            if _attends_to_itself(subject.contract, mask):
                spread &= ~hidden[..., None]  # the rows of the hidden tokens themselves
            return bool(spread.any())
    return False


def _find_hidden(contract: Contract, arguments: Arguments, mask: str, name: str) -> NDArray[np.bool_] | None:
    """Return which tokens of an input a mask hides from every query; None if they have other axes, or no mask."""
    if mask not in arguments.inputs:
        return None
    binder = arguments.bind(contract)
    shape = contract.inputs[mask].shape.sizes(binder.sizes, binder.lead or ())
    seen = np.asarray(np.broadcast_to(arguments.inputs[mask], shape).any(axis=-2))
    tokens = arguments.inputs[name].shape[:-1]
    while seen.ndim > len(tokens):
        seen = np.asarray(seen.any(axis=-2))  # a token is hidden if no head sees it
    return ~seen if seen.shape == tokens else None


def _attends_to_itself(contract: Contract, mask: str) -> bool:
    axes = contract.inputs[mask].shape.axes
    return axes[-1] == axes[-2]
