"""Call an implementation, and check the arguments and the result against the contract.

CallProblem
├── NotImplementedHere   the adapter has no such component, or declines this variant: skipped
├── NotCheckable         this check is impossible here, whatever the adapter does: skipped
└── BadResult            a correct call raised, or returned what the contract forbids
"""

from __future__ import annotations

import re
import time
import traceback
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from goldformer.adapters.arrays import LIBRARIES, ArrayLibrary, Wire
from goldformer.adapters.imports import use_own_errors
from goldformer.adapters.modules import keep_objects, train_modules
from goldformer.adapters.process.faults import CallFault
from goldformer.adapters.protocol import RAISES_NOT_IMPLEMENTED, Adapter, bind_arguments, split_state
from goldformer.adapters.untrusted_text import LONGEST_TRACE, clip_text, describe_exception, quote_message
from goldformer.conformance.judging.fresh_process import Call
from goldformer.conformance.judging.host import DeviceGone, Value, run_call, run_here
from goldformer.conformance.judging.mixed_devices import find_mixed_devices
from goldformer.conformance.judging.sessions import SessionResults, list_parts, name_call, run_session
from goldformer.conformance.judging.verdict import Reason
from goldformer.spec import Case, Contract
from goldformer.spec.call import check_call
from goldformer.spec.model import ArraySpec, Attribute
from goldformer.spec.oracle.rounding import is_half
from goldformer.spec.sessions import AFTER, STATE, drop_script
from goldformer.spec.shapes import Binder
from goldformer.spec.ways import PLAIN, Way, find_twins, widen

Array = NDArray[Any]
#: The most names of parameters that a message lists.
_MOST_NAMES: Final = 12

#: The beginning of the message if the implementation prevents a property from running, although it may be right.
NOT_RUN: Final = "cannot run"

#: The files of libraries, in which the implementation's own line is not looked for.
_LIBRARY: Final = re.compile(r"site-packages|adapters[/\\]pretend_device\.py$")

#: The file that hands functions to PyTorch's transformations: its lines are not the implementation's.
_WRAPPING: Final = re.compile(r"adapters[/\\](wrapping|inference[/\\]wiring)\.py$")

#: The messages of torch about CUDA where it is missing.
_WITHOUT_CUDA: Final = re.compile("not compiled with CUDA|Found no NVIDIA driver|No CUDA GPUs are available")

#: The length, in characters, to which a list of returned names is cut.
_LONGEST: Final = 500


class CallProblem(Exception):
    """Why there is no result to compare."""


class NotImplementedHere(CallProblem):
    """The component, or this variant of it, is missing; the text is the reason."""


class NotCheckable(CallProblem):
    """The check is impossible, and nothing in the adapter could change that; the text is the reason."""


class BadResult(CallProblem):
    """The implementation raised, or broke the contract.

    `detail` is for a closer look: a text, or the exception that the implementation raised. `unreached` are the
    arguments that no gradient reaches, where that is the reason. `hint` follows the message in a verdict; two
    results with the same message have the same fault, whatever their hints.
    """

    def __init__(
        self, reason: Reason, message: str, detail: str | BaseException = "", unreached: Collection[str] = ()
    ) -> None:
        super().__init__(message)
        self.reason: Reason = reason
        self.unreached = frozenset(unreached)
        self.hint = ""
        self._detail = detail

    def __reduce__(self) -> tuple[Any, ...]:
        """Let another process make the same problem, without the exception that it was raised from."""
        return _restore, (type(self), self.reason, str(self), self.detail, self.unreached, self.hint)

    @property
    def detail(self) -> str:
        """The text for a closer look; an exception becomes its traceback only here, because that takes long."""
        if isinstance(self._detail, BaseException):
            self._detail = clip_text("".join(traceback.format_exception(self._detail)), LONGEST_TRACE)
        return self._detail


class BaseFails(BadResult):
    """The call without the fault of an error case, which has to work, fails too."""


def _restore(
    cls: type[BadResult], reason: Reason, message: str, detail: str, unreached: Collection[str], hint: str
) -> BadResult:
    made = cls(reason, message, detail, unreached)
    made.hint = hint
    return made


@dataclass(frozen=True, slots=True)
class Result:
    """The outputs given, as NumPy arrays (floats widened to float64), and the implementation's own time."""

    outputs: Mapping[str, Array]
    seconds: float
    #: True for gradients of a backward pass that the implementation wrote, at least in part.
    by_hand: bool = False

    def is_identical(self, other: Result) -> bool:
        """Return True if both have the same outputs, equal to the last bit; NaN equals NaN, and 0 equals −0."""
        return self.outputs.keys() == other.outputs.keys() and all(
            np.array_equal(array, other.outputs[name], equal_nan=array.dtype.kind == "f")
            for name, array in self.outputs.items()
        )


#: The result of a call, or the reason why there is nothing to compare.
Outcome = Result | CallProblem


@dataclass(frozen=True, slots=True)
class Arguments:
    """The arguments of one call, as the spec holds them."""

    inputs: Mapping[str, Array]
    params: Mapping[str, Array]
    attributes: Mapping[str, Attribute]
    #: Not an argument of the class: a copy with other arrays has sizes of its own.
    _bound: dict[str, Binder] = field(default_factory=dict, init=False, compare=False, repr=False)
    #: The same as arrays for another process, by component and dtype.
    sent: dict[tuple[str, str], Mapping[str, Any]] = field(default_factory=dict, init=False, compare=False, repr=False)

    def bind(self, contract: Contract) -> Binder:
        """Return the sizes of the call, solved once; ContractViolation if the arguments contradict the contract."""
        if contract.component not in self._bound:
            self._bound[contract.component] = check_call(contract, self.inputs, self.params, self.attributes)
        return self._bound[contract.component]


def mirror(arguments: Arguments) -> Arguments:
    """Return a call of the same sizes, in which every array is reversed along all of its axes."""
    inputs, params = (
        {name: np.flip(array) for name, array in group.items()} for group in (arguments.inputs, arguments.params)
    )
    return replace(arguments, inputs=inputs, params=params)


def read_arguments(case: Case, *, as_given: bool = False) -> Arguments:
    """Return the arguments of a case; with `as_given`, those of the call that an implementation gets."""
    inputs = case.given_inputs if as_given else case.input_arrays
    arguments = Arguments(inputs, case.param_arrays, case.attributes)
    # Its sizes were solved when it was read. The call of an error case contradicts the contract and has no sizes.
    if case.error is None:
        arguments._bound[case.component] = Binder(dict(case.sizes), case.lead)
    return arguments


def invoke(
    adapter: Adapter,
    contract: Contract,
    arguments: Arguments,
    dtype: str,
    device: str,
    *,
    check_inputs: bool = True,
    way: Way = PLAIN,
    outputs: Collection[str] | None = None,
) -> Result:
    """Call a component and read its outputs, or those asked for; CallProblem if there is nothing to compare.

    With `check_inputs`, check that the call did not change the caller's arrays.
    """
    invocation = partial(
        _invoke, contract=contract, arguments=arguments, dtype=dtype, device=device, check_inputs=check_inputs,
        way=way, outputs=outputs,
    )  # fmt: skip
    result: Result = run_in_host(invocation, contract.component, adapter, device)
    return result


def run_in_host(call: Call, component: str, adapter: Adapter, device: str) -> Any:
    """Make a call of a component in the process of its implementation; a device that it ends is a CallProblem."""
    with _losing_the_device():
        return run_call(call, component, adapter, device)


def run_with_own_arrays(call: Callable[[], Value], adapter: Adapter, device: str) -> Value:
    """Make a call with arrays of this process; CallProblem if it ends the device, or if calls are made elsewhere."""
    with _losing_the_device():
        return run_here(call, adapter, device)


@contextmanager
def _losing_the_device() -> Iterator[None]:
    """Turn the loss of a device into a CallProblem."""
    try:
        yield
    except CallFault as fault:
        raise BadResult("crashed", str(fault)) from fault
    except DeviceGone as gone:
        raise NotCheckable(str(gone)) from gone


def _invoke(
    adapter: Adapter,
    contract: Contract,
    arguments: Arguments,
    dtype: str,
    device: str,
    *,
    check_inputs: bool,
    way: Way,
    outputs: Collection[str] | None,
) -> Result:
    arguments.bind(contract)
    library = LIBRARIES[adapter.arrays]
    convert = partial(convert_arguments, library, contract, dtype=dtype, device=device, way=way)
    with ExitStack() as stack:
        if way.trains:
            stack.enter_context(train_modules())
        if way.repeats:
            begin_again = stack.enter_context(keep_objects(adapter.functions[contract.component], library))
            call(adapter, contract, convert(replace(mirror(arguments), params=arguments.params)))
            begin_again()
        inputs = convert(arguments)
        returned, seconds = call(adapter, contract, inputs)
    # Another process gets copies and cannot change these arrays.
    if check_inputs and adapter.arrays != Wire.name:
        check_inputs_unchanged(library, inputs, convert(arguments))
    return Result(read_outputs(library, contract, arguments, returned, dtype, device, outputs), seconds)


def read_outputs(
    library: ArrayLibrary,
    contract: Contract,
    arguments: Arguments,
    returned: Any,
    dtype: str,
    device: str,
    outputs: Collection[str] | None = None,
) -> dict[str, Array]:
    """Check what a call returned, and read all outputs or those asked for; those of a session are joined."""
    if isinstance(returned, SessionResults):
        return join_parts(contract, arguments, read_parts(library, contract, arguments, returned, dtype, device))
    binder, read = arguments.bind(contract), {}
    for name, value in name_outputs(returned, contract).items():
        if outputs is not None and name not in outputs:
            continue
        try:
            read[name] = read_array(library, contract.outputs[name], value, binder, dtype, device)
        except BadResult as bad:
            bad.hint = _hint_at_names(returned, name, contract)
            raise
    return read


def read_parts(
    library: ArrayLibrary, contract: Contract, arguments: Arguments, returned: SessionResults, dtype: str, device: str
) -> dict[str, Array]:
    """Check what the calls of a session returned, and read it by names such as "output of call 2"."""
    parts = list_parts(contract, arguments.attributes, arguments.bind(contract))
    return {
        spec.name: read_array(library, spec, returned[spec.name], sizes, dtype, device)
        for _, spec, sizes in parts
        if spec.name in returned
    }


def join_parts(contract: Contract, arguments: Arguments, parts: Mapping[str, Array]) -> dict[str, Array]:
    """Return the outputs of a session that every call returned, whole."""
    assert contract.session is not None, f"{contract.component} is called once"
    labels: dict[str, list[str]] = {}
    for output, spec, _ in list_parts(contract, arguments.attributes, arguments.bind(contract)):
        labels.setdefault(output, []).append(spec.name)
    return {
        output: contract.session.join([parts[name] for name in names], contract.outputs[output].shape)
        for output, names in labels.items()
        if parts.keys() >= set(names)
    }


def _hint_at_names(returned: Any, name: str, contract: Contract) -> str:
    """Return how to name an output that was read from a tuple, unless it is the first."""
    if isinstance(returned, Mapping) or name == contract.first_output:
        return ""
    order = ", ".join([*contract.outputs][: len(returned)])
    return f"; a tuple holds {order} in this order: return other outputs as a mapping by name"


def convert_arguments(
    library: ArrayLibrary,
    contract: Contract,
    arguments: Arguments,
    dtype: str,
    device: str,
    way: Way = PLAIN,
) -> dict[str, Any]:
    """Make the keyword arguments of a call: arrays of the adapter's library, `params` as one mapping.

    For a session they are those of each call, by its name.
    """
    key = (contract.component, dtype)
    # Another process gets copies and cannot change these arrays: the next call may have them too.
    if library.name == Wire.name and key in arguments.sent:
        return dict(arguments.sent[key])

    library.choose_dtype(dtype)

    def convert(arrays: Mapping[str, Array], group: str) -> dict[str, Any]:
        fresh = {name: library.make(array, dtype, device) for name, array in arrays.items()}
        if way is PLAIN:
            return fresh
        specs = contract.inputs if group == "inputs" else contract.params_for(arguments.attributes)
        twins = find_twins(arrays) if way.joins and group == "inputs" else {}
        for name, array in fresh.items():
            spec, shape = specs[name], arrays[name].shape
            if way.expands and (wide := widen(spec, shape, arguments.bind(contract))) != shape:
                fresh[name] = library.expand(array, wide, copies=way.copies)
            elif spec.kind in way.kinds:
                fresh[name] = library.lay_out(array, way.layout)
            elif group in way.records and spec.kind == "float":
                array.requires_grad_()
        return {name: fresh[twins.get(name, name)] for name in fresh}

    def make(inputs: Mapping[str, Array], attributes: Mapping[str, Any]) -> dict[str, Any]:
        params = {"params": convert(arguments.params, "params")} if contract.takes_params else {}
        return {**convert(inputs, "inputs"), **attributes, **params}

    if contract.session is None:
        given = make(arguments.inputs, arguments.attributes)
    else:
        plain, calls = drop_script(arguments.attributes), contract.split_session(arguments.inputs, arguments.attributes)
        given = {name_call(one): make(inputs, {**plain, AFTER: one.after}) for one, inputs in calls}
    if library.name == Wire.name:
        arguments.sent[key] = dict(given)
    return given


def describe_missing(adapter: Adapter, component: str) -> str:
    """Return the message that an adapter does not have the function of a component."""
    return f"{adapter.name} has no {component}"


def call(adapter: Adapter, contract: Contract, given: Mapping[str, Any]) -> tuple[Any, float]:
    """Run the adapter's function; its exceptions become a CallProblem, its warnings are ignored.

    A session runs it once for each of its calls, and returns SessionResults.
    """
    component = contract.component
    function = adapter.functions.get(component)
    if function is None:
        raise NotImplementedHere(describe_missing(adapter, component))
    if why := adapter.broken.get(component):
        raise BadResult("wrong-parameters", f"{component} {why}")
    if contract.session is None:
        return _call_once(adapter, function, contract, given)
    seconds = 0.0

    def run(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        nonlocal seconds
        try:
            returned, taken = _call_once(adapter, function, contract, arguments)
            seconds += taken
            return _name_with_state(returned, contract)
        except BadResult as bad:
            bad.hint = f", in {name} of {len(given)}{bad.hint}"
            raise

    return run_session(given, run), seconds


def _name_with_state(returned: Any, contract: Contract) -> dict[str, Any]:
    """Return what a call of a session returned by name, with its state."""
    outputs, state = split_state(returned)
    named = name_outputs(outputs, contract)
    if state is None:
        whole = f"({', '.join((*named, STATE))})"
        raise BadResult("not-an-array", f"returned no {STATE} for the calls that follow: return {whole}")
    return {**named, STATE: state}


def _call_once(
    adapter: Adapter, function: Callable[..., Any], contract: Contract, given: Mapping[str, Any]
) -> tuple[Any, float]:
    """Run a function with the arguments of one call."""
    component = contract.component
    try:
        given = bind_arguments(function, contract, given)
        with warnings.catch_warnings(), use_own_errors():
            warnings.simplefilter("ignore")
            start = time.perf_counter()
            returned = function(**given)
            return returned, time.perf_counter() - start
    except NotImplementedError as error:
        # PyTorch raises it too, where a device written in Python has no generators or kernels. Code in another process
        # never sees that device, and could say so of every call that it gets wrong.
        if adapter.arrays != Wire.name and "PrivateUse1" in quote_message(error):
            why = "which has no random generators and no kernels of its own"
            raise NotCheckable(f"{NOT_RUN} on the pretend device, {why}: {quote_message(error)}") from error
        raise NotImplementedHere(quote_message(error) or f"{component} {RAISES_NOT_IMPLEMENTED}") from error
    except CallFault as fault:
        if fault.reason == "too-large":
            raise NotCheckable(str(fault)) from fault
        head = "raised " if fault.reason == "raised" else ""
        raise BadResult(fault.reason, f"{head}{fault}", fault.detail) from fault
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        hint = _list_parameters(error, given, contract)
        message = f"raised {describe_exception(error)}{_locate_error(error)}{hint}{_explain_cuda(error)}"
        bad = BadResult("raised", message, error)
        bad.hint = _explain_mixed_devices(error, LIBRARIES[adapter.arrays], given)
        raise bad from error


def _locate_error(error: BaseException) -> str:
    """Return the last line of the implementation's own code, not of a library that it calls, in brackets."""
    frames = [(frame.f_code, line) for frame, line in traceback.walk_tb(error.__traceback__)][1:]
    lines = [place for place in frames if not _WRAPPING.search(place[0].co_filename)]
    # The pretend device is a library too, wherever goldformer is installed.
    own = (place for place in reversed(lines) if not _LIBRARY.search(place[0].co_filename))
    code, line = next(own, lines[0] if lines else (None, 0))
    return f" ({code.co_filename}:{line}, {code.co_name})" if code else ""


def _explain_cuda(error: BaseException) -> str:
    """Return what to do about a tensor that is moved to CUDA where it is missing, or ""."""
    if not _WITHOUT_CUDA.search(quote_message(error)):
        return ""
    return "; a tensor is moved to CUDA, whatever the inputs are on: use the device of an input, such as x.device"


def _explain_mixed_devices(error: BaseException, library: ArrayLibrary, given: Mapping[str, Any]) -> str:
    """Return what to do about a tensor of the CPU that meets those of another device, or ""."""
    mixed = find_mixed_devices(describe_exception(error))
    if mixed is None or not mixed.by_torch:
        return ""
    arrays = [value for value in (*given.values(), *given.get("params", {}).values()) if library.is_array(value)]
    if all(library.device(array) == "cpu" for array in arrays):
        return ""
    return f"; {mixed.words} is on the CPU: make it on the device of an input, such as x.device"


def _list_parameters(error: BaseException, given: Mapping[str, Any], contract: Contract) -> str:
    """Return the names of the parameters if the function asked for one that is missing, or "".

    If an option would add the missing parameter, the text says so first.
    """
    asked, params = error.args[0] if isinstance(error, KeyError) and error.args else None, given.get("params")
    if not isinstance(asked, str) or not isinstance(params, Mapping) or asked in params:
        return ""
    names = [*params][:_MOST_NAMES]
    more = ", …" if len(params) > _MOST_NAMES else ""
    return f"{_name_option(asked, given, contract)}; params has {', '.join(names)}{more}"


def _name_option(asked: str, given: Mapping[str, Any], contract: Contract) -> str:
    """Return the option under which a call has the parameter that was asked for, also by its last name; or ""."""
    for name, spec in contract.params_for(given).items():
        is_asked = f".{name}".endswith(f".{asked}") and name not in given["params"]
        if is_asked and spec.only_with and not spec.optional:
            convention, options = next(iter(spec.only_with.items()))
            declared = f'CONVENTIONS = {{"{convention}": "{options[0]}"}}'
            return f"; a call has {name} if the adapter declares {declared}"
    return ""


def check_inputs_unchanged(library: ArrayLibrary, inputs: Mapping[str, Any], fresh: Mapping[str, Any]) -> None:
    """Raise BadResult if the call changed an array of the caller (CALL-2)."""
    # Names added to or removed from `params` do not matter: every call gets a new mapping.
    for name, value in inputs.items():
        if name not in fresh:
            continue
        if isinstance(value, Mapping):
            check_inputs_unchanged(library, value, fresh[name])
        elif library.is_array(value) and not library.same(value, fresh[name]):
            message = f"changed the caller's {name} in place: work on a copy (CALL-2)"
            raise BadResult("mutated-input", message)


#: The outputs that code often keeps in float32 where a call is of a half type (CALL-1).
_KEPT_WIDE: Final = ("logits", "probabilities", "loss")
#: The floats with fewer bits than a dtype. No promotion leads to them.
_NARROWER: Final = {"float64": ("float32", "float16", "bfloat16"), "float32": ("float16", "bfloat16")}


def name_outputs(returned: Any, contract: Contract) -> dict[str, Any]:
    """Return the returned values by output name; BadResult if they have no such form."""
    if isinstance(returned, SessionResults):
        return dict(returned)
    names = tuple(contract.outputs)
    if isinstance(returned, list) and all(hasattr(value, "shape") for value in returned):
        # A list of arrays counts as a tuple. A list of numbers is meant as one array, and is not an array.
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
    """Check the type, shape, dtype and device of an output, and return it as a NumPy array."""
    name = spec.name
    if not library.is_array(value):
        raise BadResult("not-an-array", f"{name} is {_add_article(type(value).__name__)}: return a {library.type_name}")
    try:
        actual, got, place = tuple(value.shape), library.dtype(value), library.device(value)
    except Exception as error:
        raise _blame_value(name, error) from error
    shape = spec.shape.sizes(binder.sizes, binder.lead or ())
    if actual != shape:
        raise BadResult("wrong-shape", f"{name} has shape {actual}, must be {spec.shape} = {shape}")
    wanted = {"float": dtype, "bool": "bool", "ids": "an integer dtype"}[spec.kind]
    if got == "float32" and is_half(dtype) and name in _KEPT_WIDE:
        wanted = got
    if not (got.startswith(("int", "uint")) if spec.kind == "ids" else got == wanted):
        raise BadResult("wrong-dtype", f"{name} is {got}, must be {wanted}" + _hint_at_dtype(spec, wanted, got))
    if spec.kind == "float" and place != device.partition(":")[0]:
        raise BadResult("wrong-device", f"{name} is on {place}, the inputs are on {device}")
    try:
        return library.numpy(value)
    except Exception as error:
        raise _blame_value(name, error) from error


def _blame_value(name: str, error: Exception) -> BadResult:
    """Return the problem of an output that cannot be read: a nested tensor has no shape, and methods may fail."""
    return BadResult("not-an-array", f"{name} cannot be read: {describe_exception(error)}", error)


def _add_article(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' or noun == 'ndarray' else 'a'} {noun}"


def _hint_at_dtype(spec: ArraySpec, wanted: str, got: str) -> str:
    if spec.kind == "ids":
        return ""
    if got in _NARROWER.get(wanted, ()):
        cause = f"an intermediate value is made in or cast to {got}, keep it in {wanted}"
        return f", as the inputs are: {cause}, or declare DTYPES without {wanted}"
    if spec.kind == "float":
        cause = f"a constant of another dtype promotes the result, cast the constant to {wanted}"
        return f", as the inputs are: {cause}, or declare DTYPES without {wanted}"
    ones = f"{spec.name} != 0 if 1 means may attend"
    added = f"{spec.name} == 0 if it is added to scores, " if got.startswith(("float", "bfloat")) else ""
    return f": True means may attend; return {added}{ones}"
