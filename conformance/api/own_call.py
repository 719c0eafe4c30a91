"""A call of one component with arrays of the caller's own, as a case whose golden values are derived on the spot."""

from __future__ import annotations

import types
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from goldformer.adapters.arrays import LIBRARIES, ArrayLibrary
from goldformer.adapters.find_arrays import find_library
from goldformer.adapters.protocol import DTYPES, Adapter
from goldformer.conformance.api.arguments import advise, explain_foreign, read_mask, require_component
from goldformer.conformance.did_you_mean import describe_unknown
from goldformer.conformance.judging.derivation import CannotDerive, derive_values, evaluate_values
from goldformer.conformance.judging.expected import round_like
from goldformer.spec import Case, Contract, Location, Spec, Wanted
from goldformer.spec.call import check_call
from goldformer.spec.draw import Argument
from goldformer.spec.laws import law_of
from goldformer.spec.model import Array
from goldformer.spec.oracle.truth import Style
from goldformer.spec.shapes import ContractViolation

#: The dtype of a call without floating-point arrays.
_DEFAULT: Final = "float32"
#: The most numbers of a call in float64 whose values are proven: only that dtype rounds as finely as their evaluation.
_MOST_PROVEN: Final = 1 << 12


@dataclass(frozen=True, slots=True)
class OwnCall:
    """A call: its case without golden values, and the library, dtype and device of its arrays.

    `adapter` declares the conventions and has no functions. `device` is that of the first array, as its library
    writes it.
    """

    case: Case
    spec: Spec
    adapter: Adapter
    dtype: str
    device: str
    style: Style = "steps"

    @classmethod
    def read(
        cls,
        component: str,
        arguments: Mapping[str, Any],
        conventions: Mapping[str, str] | None,
        spec: Spec,
        result: Any = None,
    ) -> OwnCall:
        """Read a call; TypeError or ValueError names the argument at fault.

        `result` is an array of the answer: it shows the library and the dtype if no argument is an array of floats.
        """
        __tracebackhide__ = True  # the caller's own line is at fault
        require_component(component)
        if message := describe_unknown([component], spec.components, "component"):
            raise ValueError(message)
        contract = spec.contracts[component]
        arrays, attributes = _split_arguments(arguments, contract)
        library = _find_common_library(arrays, result)
        given = {**contract.inputs, **contract.params_for(attributes)}
        floats = [name for name in arrays if name in given and given[name].kind == "float"]
        dtype = _find_common_dtype({name: arrays[name] for name in floats}, library, result)
        masks = {name for name in arrays if name in given and given[name].kind == "bool"}
        values = {n: _read_values(n, array, library, is_mask=n in masks) for n, array in arrays.items()}
        inputs = {name: array for name, array in values.items() if name in contract.inputs}
        params = {name: array for name, array in values.items() if name not in contract.inputs}
        try:
            binder = check_call(contract, inputs, params, attributes)
        except ContractViolation as violation:
            raise ValueError(f"{component}: {violation}{advise(violation, inputs, contract)}") from violation
        adapter = Adapter.from_trusted(types.SimpleNamespace(), component, spec, arrays=library.name)
        adapter = adapter.declare(conventions or {}, spec)
        if later := contract.later_tokens:
            hiding = later.find_hiding(adapter.options(component, spec))
            mask = later.hide(inputs.get(later.mask), hiding, binder.sizes, binder.lead or ())
            inputs |= {} if mask is None else {later.mask: mask}
        first = next((array for array in (*arrays.values(), result) if find_library(array) is library), None)
        options = adapter.options(component, spec)
        is_open = partial(adapter.leaves_open, component=component)
        case = Case(
            id=f"this call of {component}", component=component, title=contract.title,
            place=Location(Path(component), 1), sizes=dict(binder.sizes), lead=binder.lead or (),
            attributes=attributes, inputs=_as_arguments(inputs), params=_as_arguments(params),
            conventions={name: tuple(spec.conventions[name].options) for name in contract.conventions if is_open(name)},
            only_with={name: option for name, option in options.items() if not is_open(name)},
            dependent={name: array for name, array in given.items() if array.only_with},
        )  # fmt: skip
        if why := case.explain_unfit(options):
            advice = why.replace("the adapter declares", "the conventions say")
            raise ValueError(f"{component}: these arguments do not fit: {advice}. Pass conventions={{…}}")
        return cls(case, spec, adapter, dtype, _find_device(first, library))

    def derive(self, outputs: Collection[str] = ()) -> Case:
        """Return the case with golden values for some outputs, or for all; ValueError if they cannot be derived."""
        contract = self.spec.contracts[self.case.component]
        wanted = [name for name in contract.flow if name in outputs or not outputs]
        for name in wanted:
            _require_certain(self.case, name)
        case = replace(self.case, expect={name: Wanted("all") for name in wanted})
        searches = contract.outputs[contract.first_output].kind == "ids"
        if not searches and (self.dtype != "float64" or case.size > _MOST_PROVEN):
            return self._round(evaluate_values(case, self.spec, self.dtype))
        try:
            return derive_values(case, self.spec, held=True)
        except CannotDerive as error:
            raise ValueError(str(error)) from error

    def _round(self, case: Case) -> Case:
        """Return the case for code that rounds in the style of the call."""
        assert case.golden is not None, "it was computed"
        if self.style == "steps":
            return case
        options = {key: o and round_like(o, self.style, self.dtype) for key, o in case.golden.options.items()}
        return replace(case, golden=replace(case.golden, options=options))


def _split_arguments(given: Mapping[str, Any], contract: Contract) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the arrays by name, those in `params` too, and the attributes; TypeError for an unknown argument."""
    __tracebackhide__ = True
    if message := explain_foreign(given, contract):
        raise TypeError(message)
    names = [*contract.inputs, *contract.attributes, *(["params"] if contract.takes_params else [])]
    if message := describe_unknown(given, names, f"{contract.component}() has no argument", every=True):
        raise TypeError(message)
    params = given.get("params", {})
    if not isinstance(params, Mapping):
        what = f"params is {type(params).__name__}"
        raise TypeError(
            f"{what}: give a mapping of names to arrays, such as {{{next(iter(contract.params), 'w')!r}: …}}"
        )
    arrays = {n: a for n, a in {**given, **params}.items() if n not in (*contract.attributes, "params")}
    read = {name: _read_attribute(given[name]) for name in contract.attributes if name in given}
    attributes = {name: value for name, value in read.items() if value is not None}
    known = contract.params_for({n: count for n, count in attributes.items() if isinstance(count, int)})
    if message := describe_unknown(params, known, f"{contract.component}() has no parameter", every=True):
        raise TypeError(message)
    return {name: array for name, array in arrays.items() if array is not None}, attributes


def _read_attribute(value: Any) -> Any:
    """Return a number of NumPy, or of an array without axes, as Python's own, and a list as a tuple."""
    if isinstance(value, list):
        return tuple(map(_read_attribute, value))
    return value.item() if hasattr(value, "item") and getattr(value, "shape", None) == () else value


def _find_common_library(arrays: Mapping[str, Any], result: Any) -> ArrayLibrary:
    """Return the library of all arrays; TypeError for what is no array, and for two libraries."""
    found: dict[str, ArrayLibrary] = {}
    for name, array in arrays.items():
        library = find_library(array)
        if library is None:
            raise TypeError(f"{name} is {type(array).__name__}: give an array of torch, numpy or jax")
        found[name] = library
    names = {library.name: name for name, library in found.items()}
    if len(names) > 1:
        both = ", ".join(f"{name} is an array of {library}" for library, name in names.items())
        raise TypeError(f"{both}: give arrays of one library")
    return next(iter(found.values()), find_library(result) or LIBRARIES["numpy"])


def _find_common_dtype(floats: Mapping[str, Any], library: ArrayLibrary, result: Any) -> str:
    """Return the dtype of all floating-point arguments, or of the result; TypeError for two, or another one."""
    # The contract refuses whole numbers where it has floats.
    found = {dtype: name for name, array in floats.items() if "float" in (dtype := library.dtype(array))}
    if len(found) > 1:
        both = ", ".join(f"{name} is {dtype}" for dtype, name in found.items())
        raise TypeError(f"{both}: give them all in one dtype")
    for dtype, name in found.items():
        if dtype not in DTYPES:
            raise TypeError(f"{name} is {dtype}: give it in one of {', '.join(DTYPES)}")
        return dtype
    own = library.dtype(result) if find_library(result) is library else _DEFAULT
    return own if own in DTYPES else _DEFAULT


def _read_values(name: str, array: Any, library: ArrayLibrary, *, is_mask: bool) -> Array:
    """Return the numbers that an array holds, each exactly; ValueError for NaN and infinity."""
    values = read_mask(library.numpy(array)) if is_mask else library.numpy(array)
    if values.dtype.kind in "iu":
        return values.astype(np.int64)
    # The contract refuses a mask of floats.
    if values.dtype.kind == "f" and not is_mask and not np.isfinite(values).all():
        place = [int(k) for k in np.argwhere(~np.isfinite(values))[0]]
        raise ValueError(f"{name}{place} is {values[tuple(place)]}: it has no proven result; give finite numbers")
    return values


def _find_device(array: Any, library: ArrayLibrary) -> str:
    if array is None:
        return "cpu"
    # A second GPU has an index, which the library writes.
    return str(array.device) if library.name == "torch" else library.device(array)


def _as_arguments(arrays: Mapping[str, Array]) -> dict[str, Argument]:
    # An argument's array becomes read-only, and the caller may go on to change the original.
    return {name: Argument.of(array.copy()) for name, array in arrays.items()}


def _require_certain(case: Case, output: str) -> None:
    """Raise ValueError if an output is random."""
    try:
        law = law_of(case, output)
    except ValueError as error:
        raise ValueError(f"{output} {error}") from error
    if law is not None:
        raise ValueError(f"{output} is random: there are no expected values; give a rate of 0, or training=False")
