"""The implementation's side of the protocol: answer requests for an adapter, over any two streams.

Server.answer maps a line to a line, without input or output; `serve` reads and writes them.
"""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from goldformer.adapters.arrays import LIBRARIES
from goldformer.adapters.dtypes import NUMPY_DTYPES, WireArray, round_to_dtype
from goldformer.adapters.process.faults import TooLarge, WireError
from goldformer.adapters.process.messages import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    MAX_MESSAGE,
    METHOD_NOT_FOUND,
    NOT_IMPLEMENTED,
    PROTOCOL,
    RAISED,
    Encoding,
    Hello,
)
from goldformer.adapters.process.wire import (
    BadRequest,
    RpcRequest,
    decode_array,
    decode_arrays,
    decode_state,
    encode_array,
    error_line,
    read_request,
    result_line,
    validate_model,
)
from goldformer.adapters.protocol import RAISES_NOT_IMPLEMENTED, Adapter, AdapterError, bind_arguments, split_state
from goldformer.adapters.untrusted_text import LONGEST_TRACE, clip_text, describe_exception, quote_message
from goldformer.spec import Contract, Spec
from goldformer.spec.sessions import MOST_CALLS, STATE


class _ErrorReply(Exception):
    """The answer is an error."""

    def __init__(self, code: int, message: str, data: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.data = data


@dataclass
class Server:
    """Answers requests for an adapter; `ended` is True after a request to shut down."""

    adapter: Adapter
    spec: Spec
    encoding: Encoding = "base64"
    ended: bool = False
    #: Formats the stack trace of an exception.
    format_error: Callable[[BaseException], str] = lambda error: "".join(traceback.format_exception(error))

    _states: dict[int, Any] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        """Raise AdapterError for a function that cannot be called with the contract's arguments."""
        for component, why in self.adapter.broken.items():
            raise AdapterError(f"{self.adapter.origin}: {component} {why}")

    def answer(self, line: bytes) -> bytes:
        """Return the reply to any line; a line without a line break is incomplete."""
        try:
            request = read_request(line)
        except BadRequest as bad:
            return error_line(bad.id, bad.code, str(bad))
        try:
            return result_line(request.id, self._result(request))
        except _ErrorReply as refusal:
            return error_line(request.id, refusal.code, str(refusal), refusal.data)
        except TooLarge as error:
            return error_line(request.id, INTERNAL_ERROR, str(error))
        except WireError as error:
            return error_line(request.id, INVALID_PARAMS, str(error))

    def _result(self, request: RpcRequest) -> Any:
        match request.method:
            case "initialize":
                return self._make_handshake(request.params)
            case "shutdown":
                self.ended = True
                return None
        component = request.method.removesuffix("_gradient")
        gradient = component != request.method
        if component not in (self._list_gradients() if gradient else self.adapter.functions):
            raise _ErrorReply(METHOD_NOT_FOUND, f"{self.adapter.name} has no {request.method}")
        contract = self.spec.contracts[component]
        arguments = self._decode_arguments(contract, request.params, gradient=gradient)
        if gradient:
            own = self.adapter.gradients.get(component)
            returned = self._run(own, contract, arguments) if own else self._differentiate(contract, arguments)
        else:
            returned = self._run(self.adapter.functions[component], contract, arguments)
        state = {}
        if contract.session is not None:
            returned, kept = split_state(returned)
            state = {} if kept is None else {STATE: self._keep_state(kept)}
        if returned is None:
            return None
        named = _name_outputs(returned, contract)
        outputs = {str(name): self._encode_output(name, value) for name, value in named.items() if value is not None}
        return outputs | state

    def _keep_state(self, state: Any) -> int:
        """Return the number that stands for a state; the oldest one is forgotten, which no session asks for again."""
        number = next(reversed(self._states), -1) + 1
        self._states[number] = state
        if len(self._states) > MOST_CALLS:
            del self._states[next(iter(self._states))]
        return number

    def _find_state(self, value: Any) -> Any:
        """Return the state that a number stands for."""
        number = decode_state(value, f"params.{STATE}")
        if number not in self._states:
            raise WireError(f"params.{STATE} is {number}, which stands for none of the last {MOST_CALLS} states")
        return self._states[number]

    def _list_gradients(self) -> list[str]:
        """Return the components with a gradient, hand-written or by autodiff; a gradient alone is no component."""
        own = [name for name in self.adapter.gradients if name in self.adapter.functions]
        library = LIBRARIES[self.adapter.arrays]
        contracts = [self.spec.contracts[name] for name in self.adapter.functions if library.differentiates]
        once = [contract for contract in contracts if contract.session is None]
        automatic = [c.component for c in once if c.outputs[c.first_output].kind == "float"]
        return list(dict.fromkeys([*own, *automatic]))

    def _differentiate(self, contract: Contract, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the gradients of all float arguments, by the autodiff of the adapter's library."""
        params: Mapping[str, Any] = arguments.get("params", {})
        floats = {
            name: arguments[name]
            for name, spec in contract.inputs.items()
            if spec.kind == "float" and name in arguments
        }
        function, plain = self.adapter.functions[contract.component], {**arguments}
        cotangent = plain.pop("cotangent")

        def first_output(tracked: Mapping[str, Any]) -> Any:
            inner = {**plain, **{name: tracked[name] for name in floats}}
            if contract.takes_params:
                inner["params"] = {name: tracked[name] for name in params}
            returned = function(**bind_arguments(function, contract, inner))
            return _name_outputs(returned, contract).get(contract.first_output)

        def gradients(**_: Any) -> Any:
            return LIBRARIES[self.adapter.arrays].differentiate(first_output, {**floats, **params}, cotangent)

        return dict(self._run(gradients, contract, {}))

    def _run(self, function: Callable[..., Any], contract: Contract, arguments: dict[str, Any]) -> Any:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return function(**bind_arguments(function, contract, arguments))
        except NotImplementedError as error:
            what = quote_message(error) or f"{contract.component} {RAISES_NOT_IMPLEMENTED}"
            raise _ErrorReply(NOT_IMPLEMENTED, what) from error
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            code = INVALID_PARAMS if isinstance(error, (ValueError, TypeError)) else RAISED
            raise _ErrorReply(code, describe_exception(error), self._format_trace(error)) from error

    def _format_trace(self, error: BaseException) -> str:
        try:
            return clip_text(self.format_error(error), LONGEST_TRACE)
        except Exception:
            return ""  # a method of the exception fails

    def _make_handshake(self, params: Mapping[str, Any]) -> dict[str, Any]:
        hello = validate_model(Hello, params, "params")
        if hello.protocol != PROTOCOL:
            raise _ErrorReply(INVALID_PARAMS, f"params.protocol is {hello.protocol}, expected {PROTOCOL}")
        adapter = self.adapter
        return {
            "protocol": PROTOCOL,
            "name": adapter.name,
            "version": adapter.version,
            "language": "Python",
            "components": list(adapter.functions),
            "gradients": self._list_gradients(),
            "conventions": dict(adapter.conventions),
            "dtypes": list(adapter.dtypes),
            "encoding": self.encoding,
        }

    def _decode_arguments(self, contract: Contract, params: Mapping[str, Any], *, gradient: bool) -> dict[str, Any]:
        arrays = {*contract.inputs, *(("cotangent",) if gradient else ())}
        arguments: dict[str, Any] = {}
        for name, value in params.items():
            at = f"params.{name}"
            if name in arrays:
                arguments[name] = self._make_array(decode_array(value, at), at)
            elif name == "params" and contract.takes_params:
                parameters = decode_arrays(value, at)
                arguments[name] = {
                    inner: self._make_array(array, f"{at}.{inner}") for inner, array in parameters.items()
                }
            elif name == STATE and contract.session is not None:
                arguments[name] = self._find_state(value)
            elif name in contract.attributes and name in contract.names_of_call:
                if type(value) not in (int, float, bool):
                    raise WireError.at(at, value, "a number, true or false")
                arguments[name] = value
            else:
                known = {*arrays, *contract.names_of_call}
                raise WireError(f"{at} is no argument of {contract.component}, which takes {', '.join(sorted(known))}")
        needed = {*contract.names_of_call, *arrays} - contract.optional - {STATE, "params"}
        if missing := sorted(needed - arguments.keys()):
            raise WireError(f"params.{missing[0]} is missing")
        if contract.takes_params:
            arguments.setdefault("params", {})
        if contract.session is not None:
            arguments.setdefault(STATE, None)
        return arguments

    def _make_array(self, array: WireArray, at: str) -> Any:
        """Make an array of the adapter's library."""
        if array.values.dtype.kind == "f" and array.dtype not in self.adapter.dtypes:
            raise WireError.at(f"{at}.dtype", array.dtype, f"one of {', '.join(self.adapter.dtypes)}")
        return LIBRARIES[self.adapter.arrays].make(array.values, array.dtype, "cpu")

    def _encode_output(self, name: str, value: Any) -> dict[str, Any]:
        library = LIBRARIES[self.adapter.arrays]
        if not library.is_array(value):
            what = f"{name} is a {type(value).__name__}: return a {library.type_name}"
            raise _ErrorReply(INTERNAL_ERROR, what)
        try:
            dtype, values = library.dtype(value), library.numpy(value)
        except Exception as error:  # it has no values, such as on the device "meta", or a method of a subclass fails
            what = f"{name} cannot be read: {describe_exception(error)}"
            raise _ErrorReply(INTERNAL_ERROR, what, self._format_trace(error)) from error
        if dtype not in NUMPY_DTYPES:
            raise _ErrorReply(INTERNAL_ERROR, f"{name} is {dtype}, which the protocol does not have")
        held = round_to_dtype(values, dtype) if values.dtype.kind == "f" else values
        return encode_array(WireArray(dtype, held), self.encoding)


def _name_outputs(returned: Any, contract: Contract) -> dict[str, Any]:
    """Name the outputs: a single value is the first output, a tuple holds them in order, a mapping names them."""
    if isinstance(returned, Mapping):
        return dict(returned)
    values = returned if isinstance(returned, tuple) else (returned,)
    if len(values) > len(contract.outputs):
        what = f"returned {len(values)} values; the contract has {', '.join(contract.outputs)}"
        raise _ErrorReply(INTERNAL_ERROR, what)
    return dict(zip(contract.outputs, values, strict=False))


def serve(server: Server, requests: BinaryIO, replies: BinaryIO) -> None:
    """Answer lines until the requests end, one asks to shut down, or one is longer than a message may be."""
    while line := requests.readline(MAX_MESSAGE + 1):
        replies.write(server.answer(line))
        replies.flush()
        if server.ended or not line.endswith(b"\n"):
            return
