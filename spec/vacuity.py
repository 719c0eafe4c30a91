"""What golden cases do not show: arguments that could hold anything else, and outputs that are all alike.

Each argument of a case is changed, one at a time and roughly. Where that moves no compared value, whoever gets the
argument wrong passes; where that is the point of a case, the case says so in `blind`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np

from goldformer.spec.errors import Problem
from goldformer.spec.model import PADDING, Array, ArraySpec, Case, Contract, GoldenArray, Spec, is_part
from goldformer.spec.plain import Changed, PlainCase

#: What counts as a move, in units of the error scale: a hundred tolerances in float32.
ENOUGH: Final = 400 * 2.0**-24

#: Weights of which each is 0 or 1 are those of a maximum as well as those of a softmax.
_WEIGHTS: Final = frozenset({"weights", "cross_weights", "probabilities"})

#: How many names a message lists.
_LISTED: Final = 4

#: What is said of an argument that a change shows nothing of; the names stand in the braces.
_ZEROS: Final = "nothing that is compared moves with {} set to zero"
_REVERSED: Final = "nothing that is compared moves with {} in reverse order"
_TRANSPOSED: Final = "nothing that is compared moves with {} transposed"
_OPEN: Final = "nothing that is compared moves with {} True everywhere"
_SHUT: Final = "nothing that is compared moves with {} False everywhere"
_RAISED: Final = "nothing that is compared moves with the ids of {} raised by one"
_NO_PADDING: Final = "nothing that is compared moves with {} taken for words"
_ALIKE: Final = "{} is one value everywhere"
_SATURATED: Final = "{} is 0 or 1 everywhere"


def vacuous(spec: Spec) -> Iterator[Problem]:
    """Golden cases that are blind to something without saying so, or say so although they are not.

    A case of full size is left out: it has hundreds of parameters, and each change of one would cost a second.
    """
    for case in spec.cases.values():
        if case.golden is None or case.full_size:
            continue
        contract = spec.contracts[case.component]
        plain = PlainCase(case, contract, spec.conventions)
        arguments = {**contract.inputs, **contract.params_for(case.attributes)}
        found: dict[str, list[str]] = {}
        for name, what, moved in _looked_at(plain):
            if not moved:
                found.setdefault(what, []).append(name)
            elif name in arguments and arguments[name].blind and _is_seen(plain, moved):
                message = f"moves {', '.join(sorted(moved))}, but the contract calls {name} blind"
                yield case.place.problem(f"{case.id}.{name}", message)
        yield from _unexcused(case, arguments, found)
        yield from _stale(case, {name for names in found.values() for name in names})


def _looked_at(plain: PlainCase) -> Iterator[tuple[str, str, set[str]]]:
    """What was looked at, what is to be said of it if it shows nothing, and the outputs in which it shows."""
    before = None if plain.is_random else plain.compared({})
    for name, what, changed in _changes(plain.case, plain.contract):
        moved = _redrawn(plain, changed) if before is None else _moved(before, plain.compared(changed), plain.golden)
        yield name, what, moved | _own_gradient(plain, name)
    for name, array in plain.golden.items():
        if array.within is None and array.values.size > 1:
            yield name, _ALIKE, set() if np.all(array.values == array.values.flat[0]) else {name}
            if name in _WEIGHTS:
                yield name, _SATURATED, set() if _is_saturated(array) else {name}


def _changes(case: Case, contract: Contract) -> Iterator[tuple[str, str, Changed]]:
    """Every change of one argument, with its name and what is to be said if it does not show."""
    for name, array in {**case.input_arrays, **case.param_arrays}.items():
        if array.dtype.kind == "f":
            yield name, _ZEROS, {name: np.zeros_like(array)}
        elif array.dtype.kind == "b":
            yield name, _OPEN, {name: np.ones_like(array)}
            yield name, _SHUT, {name: np.zeros_like(array)}
        else:
            below = contract.inputs[name].below
            yield name, _RAISED, {name: (array + 1) % case.sizes[below] if below else array + 1}
        if name in case.params and array.ndim == 1 and len(array) > 1:
            yield name, _REVERSED, {name: array[::-1]}
        if name in case.params and array.ndim == 2 and array.shape[0] == array.shape[1] > 1:
            yield name, _TRANSPOSED, {name: array.T}
    if "pad_id" in case.attributes:
        ids = [int(array.min()) for array in case.input_arrays.values() if array.dtype.kind == "i"]
        yield PADDING, _NO_PADDING, {"pad_id": min(int(case.attributes["pad_id"]), *ids) - 1}


def _moved(before: Mapping[str, Array], after: Mapping[str, Array], golden: Mapping[str, GoldenArray]) -> set[str]:
    """The outputs of which an element moved far enough."""
    moved = set()
    for name, old in before.items():
        new = after[name]
        if old.dtype.kind == "f":
            far = (np.abs(old - new) > ENOUGH * golden[name].error_scale) | (np.isnan(old) != np.isnan(new))
        else:
            far = old != new
        if np.any(far):
            moved.add(name)
    return moved


def _redrawn(plain: PlainCase, changed: Changed) -> set[str]:
    """The random outputs whose law a change alters, or to which it leaves none."""
    try:
        after = plain.laws(changed)
    except ValueError:
        return set(plain.golden)
    return {name for name, law in plain.laws({}).items() if law != after[name]}


def _own_gradient(plain: PlainCase, name: str) -> set[str]:
    """A case of gradients shows an argument by its own gradient too: what is only added moves no other one."""
    if plain.case.cotangent is None or name not in plain.golden:
        return set()
    array = plain.golden[name]
    return {name} if np.any(np.abs(array.values) > ENOUGH * array.error_scale) else set()


def _is_saturated(array: GoldenArray) -> bool:
    """Whether every weight is 0 or 1, as far as float32 can tell."""
    return bool(np.all(np.minimum(np.abs(array.values), np.abs(array.values - 1)) <= ENOUGH * array.error_scale))


def _is_seen(plain: PlainCase, moved: set[str]) -> bool:
    """Whether a move refutes that an argument has no effect: a step on the way may well repeat it."""
    return plain.contract.first_output in moved or plain.case.cotangent is not None


def _unexcused(case: Case, arguments: Mapping[str, ArraySpec], found: Mapping[str, list[str]]) -> Iterator[Problem]:
    excuses = [part for blind in case.blind for part in blind.to]
    for what, names in found.items():
        silent = [
            name
            for name in names
            if not any(is_part(part, name) for part in excuses) and not (name in arguments and arguments[name].blind)
        ]
        if silent:
            listed = ", ".join(silent[:_LISTED]) + (f" and {len(silent) - _LISTED} more" * (len(silent) > _LISTED))
            message = f"{what.format(listed)}: choose inputs that show it, or say why not in blind"
            yield case.place.problem(case.id, message)


def _stale(case: Case, found: set[str]) -> Iterator[Problem]:
    for blind in case.blind:
        for part in blind.to:
            if shown := [name for name in case.subjects if is_part(part, name) and name not in found]:
                message = f"says that nothing shows of {part}, but {shown[0]} does: leave it out"
                yield case.place.problem(f"{case.id}.blind", message)
