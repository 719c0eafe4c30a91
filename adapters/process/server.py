"""An implementation's side: answers the protocol's requests for an adapter, over any two streams.

Server.answer takes a line and gives a line, and does no input or output; `serve` reads and writes them.
"""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

from goldformer.adapters.arrays import LIBRARIES
from goldformer.adapters.process.arrays import WireArray, rounded
from goldformer.adapters.process.faults import TooLarge, WireError
from goldformer.adapters.process.messages import BadRequest, Request, error_line, read_request, result_line
from goldformer.adapters.process.schema import (
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
from goldformer.adapters.process.wire import decode_array, decode_arrays, encode_array, validated
from goldformer.adapters.protocol import Adapter, AdapterError, fitted
from goldformer.spec import Contract, Spec


class _Refusal(Exception):
    """An answer that is an error."""

    def __init__(self, code: int, message: str, data: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.data = data


@dataclass
class Server:
    """Answers for an adapter; `ended` once it was asked to shut down."""

    adapter: Adapter
    spec: Spec
    encoding: Encoding = "base64"
    ended: bool = False
    #: How an exception is told in full.
    told: Callable[[BaseException], str] = lambda error: "".join(traceback.format_exception(error))

    def __post_init__(self) -> None:
        """AdapterError for a function that no call could reach."""
        for component, why in self.adapter.broken.items():
            raise AdapterError(f"{self.adapter.origin}: {component} {why}")

    def answer(self, line: bytes) -> bytes:
        """The reply to one line, whatever it is; without its line break it is not complete."""
        try:
            request = read_request(line)
        except BadRequest as bad:
            return error_line(bad.id, bad.code, str(bad))
        try:
            return result_line(request.id, self._result(request))
        except _Refusal as refusal:
            return error_line(request.id, refusal.code, str(refusal), refusal.data)
        except TooLarge as error:
            return error_line(request.id, INTERNAL_ERROR, str(error))
        except WireError as error:
            return error_line(request.id, INVALID_PARAMS, str(error))

    def _result(self, request: Request) -> Any:
        match request.method:
            case "initialize":
                return self._handshake(request.params)
            case "shutdown":
                self.ended = True
                return None
        component = request.method.removesuffix("_gradient")
        gradient = component != request.method
        if component not in (self._gradients() if gradient else self.adapter.functions):
            raise _Refusal(METHOD_NOT_FOUND, f"{self.adapter.name} has no {request.method}")
        contract = self.spec.contracts[component]
        given = self._arguments(contract, request.params, gradient=gradient)
        if gradient:
            own = self.adapter.gradients.get(component)
            returned = self._run(own, contract, given) if own else self._differentiated(contract, given)
        else:
            returned = self._run(self.adapter.functions[component], contract, given)
        if returned is None:
            return None
        named = _named(returned, contract)
        return {str(name): self._encoded(name, value) for name, value in named.items() if value is not None}

    def _gradients(self) -> list[str]:
        """The components with a gradient: by hand, or by a library that differentiates."""
        own, library = self.adapter.gradients, LIBRARIES[self.adapter.arrays]
        contracts = [self.spec.contracts[name] for name in self.adapter.functions if library.differentiates]
        automatic = [c.component for c in contracts if c.outputs[c.first_output].kind == "float"]
        return list(dict.fromkeys([*own, *automatic]))

    def _differentiated(self, contract: Contract, given: dict[str, Any]) -> dict[str, Any]:
        """The gradients of every float that was given, by the adapter's library."""
        params: Mapping[str, Any] = given.get("params", {})
        floats = {name: given[name] for name, spec in contract.inputs.items() if spec.kind == "float" and name in given}
        function, plain = self.adapter.functions[contract.component], {**given}
        cotangent = plain.pop("cotangent")

        def first_output(tracked: Mapping[str, Any]) -> Any:
            inner = {**plain, **{name: tracked[name] for name in floats}}
            if contract.takes_params:
                inner["params"] = {name: tracked[name] for name in params}
            return _named(function(**fitted(function, contract, inner)), contract).get(contract.first_output)

        def gradients(**_: Any) -> Any:
            return LIBRARIES[self.adapter.arrays].differentiate(first_output, {**floats, **params}, cotangent)

        return dict(self._run(gradients, contract, {}))

    def _run(self, function: Callable[..., Any], contract: Contract, given: dict[str, Any]) -> Any:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return function(**fitted(function, contract, given))
        except NotImplementedError as error:
            what = str(error) or f"{contract.component} raises NotImplementedError"
            raise _Refusal(NOT_IMPLEMENTED, what) from error
        except (Exception, SystemExit) as error:
            code = INVALID_PARAMS if isinstance(error, (ValueError, TypeError)) else RAISED
            raise _Refusal(code, f"{type(error).__name__}: {error}", self.told(error)) from error

    def _handshake(self, params: Mapping[str, Any]) -> dict[str, Any]:
        hello = validated(Hello, params, "params")
        if hello.protocol != PROTOCOL:
            raise _Refusal(INVALID_PARAMS, f"params.protocol is {hello.protocol}, expected {PROTOCOL}")
        adapter = self.adapter
        return {
            "protocol": PROTOCOL,
            "name": adapter.name,
            "version": adapter.version,
            "language": "Python",
            "components": list(adapter.functions),
            "gradients": self._gradients(),
            "conventions": dict(adapter.conventions),
            "dtypes": list(adapter.dtypes),
            "encoding": self.encoding,
        }

    def _arguments(self, contract: Contract, params: Mapping[str, Any], *, gradient: bool) -> dict[str, Any]:
        arrays = {*contract.inputs, *(("cotangent",) if gradient else ())}
        given: dict[str, Any] = {}
        for name, value in params.items():
            at = f"params.{name}"
            if name in arrays:
                given[name] = self._made(decode_array(value, at), at)
            elif name == "params" and contract.takes_params:
                parameters = decode_arrays(value, at)
                given[name] = {inner: self._made(array, f"{at}.{inner}") for inner, array in parameters.items()}
            elif name in contract.attributes:
                if type(value) not in (int, float, bool):
                    raise WireError.at(at, value, "a number, true or false")
                given[name] = value
            else:
                known = [*arrays, *contract.attributes, *(("params",) if contract.takes_params else ())]
                raise WireError(f"{at} is no argument of {contract.component}, which takes {', '.join(sorted(known))}")
        needed = {*contract.inputs, *contract.attributes, *arrays} - contract.optional
        if missing := sorted(needed - given.keys()):
            raise WireError(f"params.{missing[0]} is missing")
        if contract.takes_params:
            given.setdefault("params", {})
        return given

    def _made(self, array: WireArray, at: str) -> Any:
        """An array of the adapter's library."""
        library = LIBRARIES[self.adapter.arrays]
        if array.values.dtype.kind != "f":
            return library.make(array.values, array.dtype, "cpu")
        if array.dtype not in self.adapter.dtypes:
            raise WireError.at(f"{at}.dtype", array.dtype, f"one of {', '.join(self.adapter.dtypes)}")
        return library.make(array.values.astype("float64"), array.dtype, "cpu")

    def _encoded(self, name: str, value: Any) -> dict[str, Any]:
        library = LIBRARIES[self.adapter.arrays]
        if not library.is_array(value):
            what = f"{name} is a {type(value).__name__}: return a {library.type_name}"
            raise _Refusal(INTERNAL_ERROR, what)
        dtype, values = library.dtype(value), library.numpy(value)
        if dtype not in ("float64", "float32", "float16", "bfloat16", "int64", "bool"):
            raise _Refusal(INTERNAL_ERROR, f"{name} is {dtype}, which the protocol does not have")
        held = rounded(values, dtype) if values.dtype.kind == "f" else values
        return encode_array(WireArray(dtype, held), self.encoding)


def _named(returned: Any, contract: Contract) -> dict[str, Any]:
    """What was returned by output name: a bare value is the first output, a tuple those in order, a mapping itself."""
    if isinstance(returned, Mapping):
        return dict(returned)
    values = returned if isinstance(returned, tuple) else (returned,)
    if len(values) > len(contract.outputs):
        what = f"returned {len(values)} values; the contract has {', '.join(contract.outputs)}"
        raise _Refusal(INTERNAL_ERROR, what)
    return dict(zip(contract.outputs, values, strict=False))


def serve(server: Server, requests: BinaryIO, replies: BinaryIO) -> None:
    """Answer line after line until the requests end, one asks to shut down, or one is longer than a message."""
    while line := requests.readline(MAX_MESSAGE + 1):
        replies.write(server.answer(line))
        replies.flush()
        if server.ended or not line.endswith(b"\n"):
            return
