"""One call of an implementation, checked against the contract both ways.

CallProblem
├── NotImplementedHere   the adapter lacks the component, or declines this variant: skipped
├── NotCheckable         this relation cannot be looked at here, whatever the adapter has: skipped
└── BadResult            it was called rightly and raised, or returned what the contract forbids
"""

from __future__ import annotations

import time
import traceback
import warnings
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from numpy.typing import NDArray

from goldformer.adapters.arrays import LIBRARIES, ArrayLibrary, Layout, Wire
from goldformer.adapters.process.faults import CallFault, clip_text
from goldformer.adapters.protocol import Adapter, bind_arguments
from goldformer.conformance.judging.verdict import Reason
from goldformer.spec import Case, Contract
from goldformer.spec.call import check_call
from goldformer.spec.model import ArraySpec, Attribute
from goldformer.spec.shapes import Binder

Array = NDArray[Any]
_MOST_NAMES: Final = 12

#: How much is said of the names that came back, in characters.
_LONGEST: Final = 500


class CallProblem(Exception):
    """Why there is no result to compare."""


class NotImplementedHere(CallProblem):
    """The component, or this variant of it, is not there; the text is the reason."""


class NotCheckable(CallProblem):
    """Nothing that the adapter could implement would change it; the text is the reason."""


class BadResult(CallProblem):
    """The implementation raised, or broke the contract; `detail` is for a closer look.

    `unreached` are the arguments that no gradient reaches, where that is the fault.
    """

    def __init__(self, reason: Reason, message: str, detail: str = "", unreached: Collection[str] = ()) -> None:
        super().__init__(message)
        self.reason: Reason = reason
        self.detail = detail
        self.unreached = frozenset(unreached)


@dataclass(frozen=True, slots=True)
class Result:
    """The outputs given, as NumPy arrays (floats widened to float64), and the implementation's own time."""

    outputs: Mapping[str, Array]
    seconds: float


@dataclass(frozen=True, slots=True)
class Arguments:
    """The arguments of one call, as the spec holds them."""

    inputs: Mapping[str, Array]
    params: Mapping[str, Array]
    attributes: Mapping[str, Attribute]


def arguments_of(case: Case) -> Arguments:
    """The call that a case makes."""
    return Arguments(case.input_arrays, case.param_arrays, case.attributes)


def invoke(
    adapter: Adapter,
    contract: Contract,
    arguments: Arguments,
    dtype: str,
    device: str,
    *,
    untouched: bool = True,
    layout: Layout = "contiguous",
) -> Result:
    """Call a component and read its outputs; CallProblem when there is nothing to compare.

    Without `untouched`, nobody looks whether the caller's arrays were changed.
    """
    binder = check_call(contract, arguments.inputs, arguments.params, arguments.attributes)
    library = LIBRARIES[adapter.arrays]
    handed = hand_over(library, contract, arguments, dtype, device, layout)
    returned, seconds = call(adapter, contract, handed)
    # What is sent to another process stays as it was here.
    if untouched and adapter.arrays != Wire.name:
        check_untouched(library, handed, hand_over(library, contract, arguments, dtype, device))
    named = name_outputs(returned, contract)
    outputs = {
        name: read_array(library, contract.outputs[name], value, binder, dtype, device) for name, value in named.items()
    }
    return Result(outputs, seconds)


def hand_over(
    library: ArrayLibrary,
    contract: Contract,
    arguments: Arguments,
    dtype: str,
    device: str,
    layout: Layout = "contiguous",
) -> dict[str, Any]:
    """The keyword arguments of a call: arrays of the adapter's library, `params` as one mapping."""

    def made(arrays: Mapping[str, Array]) -> dict[str, Any]:
        return {n: library.lay_out(library.make(a, dtype, device), layout) for n, a in arrays.items()}

    given = {**made(arguments.inputs), **arguments.attributes}
    return {**given, "params": made(arguments.params)} if contract.takes_params else given


def call(adapter: Adapter, contract: Contract, given: Mapping[str, Any]) -> tuple[Any, float]:
    """Run the adapter's function; what it raises becomes a CallProblem, what it warns of is its own affair."""
    component = contract.component
    function = adapter.functions.get(component)
    if function is None:
        raise NotImplementedHere(f"{adapter.name} has no {component}")
    if why := adapter.broken.get(component):
        raise BadResult("wrong-parameters", f"{component} {why}")
    try:
        given = bind_arguments(function, contract, given)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            start = time.perf_counter()
            returned = function(**given)
            return returned, time.perf_counter() - start
    except NotImplementedError as error:
        raise NotImplementedHere(str(error) or f"{component} raises NotImplementedError") from error
    except CallFault as fault:
        if fault.reason == "too-large":
            raise NotCheckable(str(fault)) from fault
        head = "raised " if fault.reason == "raised" else ""
        raise BadResult(fault.reason, f"{head}{fault}", fault.detail) from fault
    except (Exception, SystemExit) as error:
        frames = traceback.extract_tb(error.__traceback__)[1:]
        # The last line of the implementation's own, not of what it called in a library.
        frame = next((f for f in reversed(frames) if "site-packages" not in f.filename), next(iter(frames), None))
        where = f" ({frame.filename}:{frame.lineno}, {frame.name})" if frame else ""
        text = "".join(traceback.format_exception(error))
        hint = _missing_parameter(error, given.get("params"))
        raise BadResult("raised", f"raised {type(error).__name__}: {error}{where}{hint}", text) from error


def _missing_parameter(error: BaseException, params: Any) -> str:
    """What the mapping of parameters has, where the function asked it for something else."""
    asked = error.args[0] if isinstance(error, KeyError) and error.args else None
    if not isinstance(asked, str) or not isinstance(params, Mapping) or asked in params:
        return ""
    names = [*params][:_MOST_NAMES]
    more = ", …" if len(params) > _MOST_NAMES else ""
    return f"; params has {', '.join(names)}{more}"


def check_untouched(library: ArrayLibrary, handed: Mapping[str, Any], fresh: Mapping[str, Any]) -> None:
    """CALL-2: BadResult when an array that was handed over no longer holds what it held."""
    # What `params` gained or lost is the adapter's own affair: every call is handed a new mapping.
    for name, value in handed.items():
        if name not in fresh:
            continue
        if isinstance(value, Mapping):
            check_untouched(library, value, fresh[name])
        elif library.is_array(value) and not library.same(value, fresh[name]):
            message = f"changed the caller's {name} in place: work on a copy (CALL-2)"
            raise BadResult("mutated-input", message)


#: The floats that have fewer bits than one, which no promotion leads to.
_NARROWER: Final = {"float64": ("float32", "float16", "bfloat16"), "float32": ("float16", "bfloat16")}


def name_outputs(returned: Any, contract: Contract) -> dict[str, Any]:
    """What was returned, by output name; BadResult when it has no such form."""
    names = tuple(contract.outputs)
    if isinstance(returned, list) and all(hasattr(value, "shape") for value in returned):
        # Of arrays, in the contract's order; a list of numbers is meant as one array, and is none.
        returned = tuple(returned)
    first = returned[0] if isinstance(returned, tuple) and returned else returned
    if first is None:
        raise BadResult("nothing-returned", f"returned None: return {contract.first_output}")
    if isinstance(returned, Mapping):
        unknown = [key for key in returned if key not in names]
        if unknown or contract.first_output not in returned:
            got = clip_text(", ".join(map(str, returned)), _LONGEST) or "nothing"
            raise BadResult("not-an-array", f"returned a mapping of {got}; the contract has {', '.join(names)}")
        return {name: value for name, value in returned.items() if value is not None or name == contract.first_output}
    if isinstance(returned, tuple):
        if not 1 <= len(returned) <= len(names):
            raise BadResult("not-an-array", f"returned {len(returned)} values; the contract has {', '.join(names)}")
        return {name: value for name, value in zip(names, returned, strict=False) if value is not None}
    return {names[0]: returned}


def read_array(library: ArrayLibrary, spec: ArraySpec, value: Any, binder: Binder, dtype: str, device: str) -> Array:
    """One output as a NumPy array, once its type, shape, dtype and device are right."""
    name = spec.name
    if not library.is_array(value):
        raise BadResult("not-an-array", f"{name} is {_article(type(value).__name__)}: return a {library.type_name}")
    shape = spec.shape.sizes(binder.sizes, binder.lead or ())
    if tuple(value.shape) != shape:
        raise BadResult("wrong-shape", f"{name} has shape {tuple(value.shape)}, must be {spec.shape} = {shape}")
    wanted = {"float": dtype, "bool": "bool", "ids": "an integer dtype"}[spec.kind]
    got = library.dtype(value)
    if not (got.startswith(("int", "uint")) if spec.kind == "ids" else got == wanted):
        raise BadResult("wrong-dtype", f"{name} is {got}, must be {wanted}" + _dtype_hint(spec, wanted, got))
    if spec.kind == "float" and library.device(value) != device.partition(":")[0]:
        raise BadResult("wrong-device", f"{name} is on {library.device(value)}, the inputs are on {device}")
    return library.numpy(value)


def _article(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' or noun == 'ndarray' else 'a'} {noun}"


def _dtype_hint(spec: ArraySpec, wanted: str, got: str) -> str:
    if spec.kind == "ids":
        return ""
    if got in _NARROWER.get(wanted, ()):
        return f", as the inputs are: something on the way is made or cast to {got}, keep it in {wanted}"
    if spec.kind == "float":
        return f", as the inputs are: a constant of another dtype on the way promotes the result, cast it to {wanted}"
    return ": True means may attend"
