"""Golden cases that cannot fail: arguments without effect, and outputs whose elements are all equal.

Each argument of a case is changed, one at a time and roughly. If that moves no compared value, code that gets the
argument wrong passes; where that is the point of a case, the case says so in `blind`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np

from goldformer.spec.errors import Problem
from goldformer.spec.load import Spec
from goldformer.spec.making.plain import Changed, PlainCase
from goldformer.spec.model import PADDING, Array, ArraySpec, Case, Contract, GoldenArray, read_count
from goldformer.spec.strict import is_part

#: The least change that counts, in units of the error scale: a hundred tolerances in float32.
ENOUGH: Final = 400 * 2.0**-24

#: If all of these weights are 0 or 1, a maximum passes as well as a softmax.
_WEIGHTS: Final = frozenset({"weights", "cross_weights", "probabilities"})

#: The most names that a message lists.
_LISTED: Final = 4

#: The messages about changes without effect; the names stand in the braces.
_ZEROS: Final = "nothing that is compared moves with {} set to zero"
_REVERSED: Final = "nothing that is compared moves with {} in reverse order"
_TRANSPOSED: Final = "nothing that is compared moves with {} transposed"
_OPEN: Final = "nothing that is compared moves with {} True everywhere"
_SHUT: Final = "nothing that is compared moves with {} False everywhere"
_RAISED: Final = "nothing that is compared moves with the ids of {} raised by one"
_NO_PADDING: Final = "nothing that is compared moves with {} taken for words"
_ALIKE: Final = "{} is one value everywhere"
_SATURATED: Final = "{} is 0 or 1 everywhere"


def find_vacuous(spec: Spec) -> Iterator[Problem]:
    """Yield the golden cases that are blind to something without saying so, or say so although they are not.

    A case of full size is left out: it has hundreds of parameters, and each change of one would cost a second.
    """
    for case in spec.cases.values():
        if case.golden is None or case.full_size:
            continue
        contract = spec.contracts[case.component]
        plain = PlainCase(case, contract, spec.conventions)
        arguments = {**contract.inputs, **contract.params_for(case.attributes)}
        found: dict[str, list[str]] = {}
        for name, message, moved in _try_changes(plain):
            first = next(moved, None)
            if first is None:
                found.setdefault(message, []).append(name)
            elif name in arguments and arguments[name].blind:
                moving = {first, *moved}
                if contract.first_output in moving or case.cotangent is not None:
                    text = f"moves {', '.join(sorted(moving))}, but the contract calls {name} blind"
                    yield case.place.problem(f"{case.id}.{name}", text)
        yield from _list_unexcused(case, arguments, found)
        yield from _list_stale_excuses(case, {name for names in found.values() for name in names})


def _try_changes(plain: PlainCase) -> Iterator[tuple[str, str, Iterator[str]]]:
    """Yield for each change the argument, the message if nothing moves, and the results that move, found on demand.

    A gradient case with n arguments has n results, each computed on its own: the first that moves is mostly enough.
    """
    before = None if plain.is_random else plain.compute({})
    for name, message, changed in _list_changes(plain.case, plain.contract):
        if before is None:
            yield name, message, iter(_list_changed_laws(plain, changed))
        elif plain.case.cotangent is None:
            yield name, message, iter(_list_moved(before, plain.compute(changed), plain.golden))
        else:
            yield name, message, _find_moved_gradients(plain, name, before, changed)
    for name, array in plain.golden.items():
        if array.within is None and array.values.size > 1:
            yield name, _ALIKE, iter(() if np.all(array.values == array.values.flat[0]) else (name,))
            if name in _WEIGHTS:
                yield name, _SATURATED, iter(() if _is_saturated(array) else (name,))


def _find_moved_gradients(plain: PlainCase, name: str, before: Mapping[str, Array], changed: Changed) -> Iterator[str]:
    """Yield the gradients that a change moves.

    A gradient shows its own argument too: an argument that is only added moves no other gradient.
    """
    own = plain.golden.get(name)
    shown = own is not None and bool(np.any(np.abs(own.values) > ENOUGH * own.error_scale))
    if shown:
        yield name
    for other in plain.golden:
        if not (shown and other == name):
            after = {other: plain.slope(other, changed)}
            yield from _list_moved({other: before[other]}, after, plain.golden)


def _list_changes(case: Case, contract: Contract) -> Iterator[tuple[str, str, Changed]]:
    """Yield every change of one argument, with its name and the message for a change without effect."""
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
        yield PADDING, _NO_PADDING, {"pad_id": min(read_count(case.attributes["pad_id"]), *ids) - 1}


def _list_moved(before: Mapping[str, Array], after: Mapping[str, Array], golden: Mapping[str, GoldenArray]) -> set[str]:
    """List the outputs with an element that moved far enough."""
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


def _list_changed_laws(plain: PlainCase, changed: Changed) -> set[str]:
    """List the random outputs whose law a change alters or makes undefined."""
    try:
        after = plain.laws(changed)
    except ValueError:
        return set(plain.golden)
    return {name for name, law in plain.laws({}).items() if law != after[name]}


def _is_saturated(array: GoldenArray) -> bool:
    """Return True if every weight is 0 or 1, as far as float32 shows."""
    return bool(np.all(np.minimum(np.abs(array.values), np.abs(array.values - 1)) <= ENOUGH * array.error_scale))


def _list_unexcused(
    case: Case, arguments: Mapping[str, ArraySpec], found: Mapping[str, list[str]]
) -> Iterator[Problem]:
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


def _list_stale_excuses(case: Case, found: set[str]) -> Iterator[Problem]:
    for blind in case.blind:
        for part in blind.to:
            if shown := [name for name in case.subjects if is_part(part, name) and name not in found]:
                message = f"says that nothing shows of {part}, but {shown[0]} does: leave it out"
                yield case.place.problem(f"{case.id}.blind", message)
