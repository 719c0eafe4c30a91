"""Checks of the arguments of one call against a component's contract."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from goldformer.spec.model import ArraySpec, Attribute, AttributeSpec, Contract
from goldformer.spec.sessions import check_script
from goldformer.spec.shapes import Axis, Binder, ContractViolation

Array = NDArray[Any]

_KINDS = {"float": "f", "bool": "b", "ids": "iu"}
_WORDS = {"float": "floating point", "bool": "boolean", "ids": "integer"}


def check_call(
    contract: Contract,
    inputs: Mapping[str, Array | None],
    params: Mapping[str, Array | None],
    attributes: Mapping[str, Attribute],
) -> Binder:
    """Solve the sizes of a call; ContractViolation names the arguments that contradict the contract."""
    binder = Binder()
    for attribute in contract.attributes.values():
        _check_attribute(attribute, attributes, binder)
    given = {**inputs, **params}
    arrays = {**contract.inputs, **contract.params_for(attributes)}
    for name in (*given, *attributes):
        if name not in arrays and name not in contract.attributes:
            raise ContractViolation(f"{contract.component} has no argument {name}", (name,))
    _check_together(arrays, given)
    present = [(spec, array) for spec in arrays.values() if (array := _present(spec, given)) is not None]
    _check_arrays(present, binder)
    for attribute in contract.attributes.values():
        if attribute.below is not None and attribute.name in attributes:
            _check_ids(attribute.name, np.asarray(attributes[attribute.name]), attribute.below, binder)
        if attribute.at_most is not None and attribute.name in attributes:
            _check_limit(attribute.name, attribute.at_most, contract, attributes, binder)
    if contract.session is not None:
        axis = contract.session.axis
        check_script(attributes, binder.sizes[axis], binder.fixed_by[axis])
    return binder


def _check_arrays(present: Sequence[tuple[ArraySpec, Array]], binder: Binder) -> None:
    """Solve the sizes of the arrays that a call has, and check what they hold."""
    for spec, array in present:
        if 0 in array.shape:
            raise ContractViolation(f"{spec.name} is empty: its shape is {array.shape}", (spec.name,))
        if not spec.broadcast:
            binder.fit(spec.name, spec.shape, array.shape)
    for spec, array in present:
        if spec.broadcast:
            binder.fit_broadcast(spec.name, spec.shape, array.shape)
        if spec.below is not None:
            _check_ids(spec.name, array, spec.below, binder)
        _check_rows(spec, array, binder)


def _check_together(arrays: Mapping[str, ArraySpec], given: Mapping[str, Array | None]) -> None:
    """Refuse a call with some, but not all, of the parameters that exist under the same options."""
    dependent = [spec for spec in arrays.values() if spec.only_with and not spec.optional]
    for spec in dependent:
        if given.get(spec.name) is None:
            for other in dependent:
                if other.only_with == spec.only_with and given.get(other.name) is not None:
                    message = f"{spec.name} is missing, though {other.name} is there"
                    raise ContractViolation(message, (spec.name, other.name))


def _present(spec: ArraySpec, given: Mapping[str, Array | None]) -> Array | None:
    array = given.get(spec.name)
    if array is None:
        if not (spec.optional or spec.only_with):
            raise ContractViolation(f"{spec.name} is missing", (spec.name,))
        return None
    if array.dtype.kind not in _KINDS[spec.kind]:
        raise ContractViolation(f"{spec.name} is {array.dtype}, not {_WORDS[spec.kind]}", (spec.name,))
    return array


def _check_attribute(attribute: AttributeSpec, given: Mapping[str, Attribute], binder: Binder) -> None:
    name = attribute.name
    if attribute.optional and name not in given:
        return
    value = given.get(name)
    # A whole number is a float too; True is no int.
    kinds = {"int": (int,), "bool": (bool,), "float": (int, float), "ints": (tuple,)}[attribute.kind]
    if type(value) not in kinds or (isinstance(value, tuple) and any(type(number) is not int for number in value)):
        what = "a list of ints" if attribute.kind == "ints" else f"one {attribute.kind}"
        raise ContractViolation(f"{name} is {value!r}, not {what}", (name,))
    if value is None or isinstance(value, tuple):
        return
    if attribute.minimum is not None and value < attribute.minimum:
        raise ContractViolation(f"{name} is {value}, less than {attribute.minimum}", (name,))
    if attribute.above is not None and value <= attribute.above:
        raise ContractViolation(f"{name} is {value}, not above {attribute.above}", (name,))
    if attribute.maximum is not None and value > attribute.maximum:
        raise ContractViolation(f"{name} is {value}, more than {attribute.maximum}", (name,))
    if attribute.multiple_of is not None and isinstance(value, int):
        _check_multiple(name, value, attribute.multiple_of, given)
    if attribute.size is not None:
        binder.fix(attribute.size, int(value), name)


def _check_multiple(name: str, value: int, multiple_of: int | str, given: Mapping[str, Attribute]) -> None:
    """Refuse an attribute that is no multiple of a number, or of another attribute that is a number."""
    divisor = given.get(multiple_of) if isinstance(multiple_of, str) else multiple_of
    if isinstance(divisor, int) and divisor > 0 and value % divisor:
        words, names = (
            (f"{multiple_of}, {divisor}", (name, multiple_of))
            if isinstance(multiple_of, str)
            else (f"{divisor}", (name,))
        )
        raise ContractViolation(f"{name} is {value}, no multiple of {words}", names)


def _check_limit(name: str, limit: str, contract: Contract, given: Mapping[str, Attribute], binder: Binder) -> None:
    """Refuse an attribute that is more than the attribute or the axis that limits it."""
    most, others = given.get(limit, given[name]), [limit]
    if limit not in contract.attributes:
        axis = Axis.parse(limit)
        most, others = axis.size(binder.sizes), [binder.fixed_by[symbol] for symbol in axis.symbols]
    value = given[name]
    if not isinstance(value, tuple) and not isinstance(most, tuple) and value > most:
        raise ContractViolation(f"{name} is {value}, more than {limit}, {most}", (name, *others))


def _check_rows(spec: ArraySpec, array: Array, binder: Binder) -> None:
    """Refuse an array whose first axis is shorter than a size that it covers."""
    for size in spec.covers:
        if len(array) < binder.sizes[size]:
            message = f"{spec.name} has {len(array)} rows, fewer than {size}, {binder.sizes[size]}"
            raise ContractViolation(message, (spec.name,))


def _check_ids(name: str, ids: Array, limit: str, binder: Binder) -> None:
    bad = np.argwhere((ids < 0) | (ids >= binder.sizes[limit]))
    if len(bad):
        where = tuple(int(i) for i in bad[0])
        place = list(where) if where else ""
        message = f"{name}{place} is {ids[where]}, outside 0 … {binder.sizes[limit] - 1} ({limit})"
        raise ContractViolation(message, (name,))
