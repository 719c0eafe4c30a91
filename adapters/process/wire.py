"""Requests, replies and arrays to bytes and back, strictly and without input or output.

The messages are JSON-RPC 2.0. A WireError names the field at fault, its value and the expected value.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import Any, Final, TypeVar

import numpy as np
import pydantic
from numpy.typing import NDArray
from pydantic_core import ErrorDetails

from goldformer.adapters.dtypes import NUMPY_DTYPES, WireArray, round_to_dtype
from goldformer.adapters.process.faults import MISSING, Stray, TooLarge, Unasked, WireError
from goldformer.adapters.process.messages import (
    INVALID_REQUEST,
    MAX_DEPTH,
    MAX_ELEMENTS,
    MAX_INNER,
    MAX_MESSAGE,
    MAX_NAMES,
    PARSE_ERROR,
    ArrayObject,
    Encoding,
    ErrorObject,
)
from goldformer.adapters.untrusted_text import abbreviate, printable

Model = TypeVar("Model", bound=pydantic.BaseModel)
Array = NDArray[Any]

_CONTAINERS: Final = frozenset({dict, list})
#: The byte layout of each dtype in base64.
_BYTES: Final = {"float64": "<f8", "float32": "<f4", "float16": "<f2", "bfloat16": "<u2", "int64": "<i8", "bool": "u1"}
_SPELT: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
#: NaN and the infinities as C, Rust and others print them; JSON has no numbers for them.
_NOT_FINITE: Final = re.compile(r"([+-]?)(nan|inf(?:inity)?)\b", re.IGNORECASE)
#: The whitespace of JSON; Python has more.
_WHITESPACE: Final = " \t\r\n"
_LONGEST_NAME: Final = 200
_NUMBER: Final = 'a number or one of "NaN", "Infinity" and "-Infinity"'


# Lines


def to_line(message: Mapping[str, Any]) -> bytes:
    """Encode a message as a line; TooLarge beyond MAX_MESSAGE."""
    return _end_line(_to_json(message))


def _to_json(value: Any) -> bytes:
    # A lone surrogate has no UTF-8; backslashreplace writes the escape that JSON reads back.
    return _ENCODER.encode(value).encode("utf-8", "backslashreplace")


def _end_line(text: bytes) -> bytes:
    if len(text) >= MAX_MESSAGE:
        size = _format_mib(len(text) + 1)
        raise TooLarge(f"the message has {size}; a message holds {_format_mib(MAX_MESSAGE)} at most")
    return text + b"\n"


def from_line(line: bytes) -> dict[str, Any]:
    """Decode the object in a line; WireError if it is not one JSON object within the limits."""
    if len(line) > MAX_MESSAGE:
        raise TooLarge(f"the message has more than {_format_mib(MAX_MESSAGE)}, the most that a message holds")
    # Count before parsing: an empty list is two bytes here and sixty bytes in memory.
    if line.count(b"[") + line.count(b"{") > MAX_INNER:
        raise WireError(f"the message has more than {MAX_INNER} lists and objects")
    if line.count(b":") > MAX_NAMES:
        raise WireError(f"the message has more than {MAX_NAMES} names")
    try:
        text = line.decode("utf-8").strip(_WHITESPACE)
    except UnicodeDecodeError as error:
        raise WireError(f"the message is not UTF-8 (byte {error.start} is {line[error.start]:#04x})") from error
    if text.startswith("\ufeff"):
        raise WireError("the message begins with a byte order mark: write UTF-8 without one")
    try:
        message = _DECODER.decode(text)
    except RecursionError as error:
        raise WireError(f"the message is nested more than {MAX_DEPTH} deep") from error
    except WireError:
        raise
    except json.JSONDecodeError as error:
        raise _explain_invalid_json(error, text) from error
    except ValueError as error:
        raise WireError(f"the message is not JSON: {error}: {abbreviate(text)}") from error
    if not isinstance(message, dict):
        raise Stray.at("the message", message, "an object")
    _refuse_deep(message)
    return message


def _explain_invalid_json(error: json.JSONDecodeError, text: str) -> WireError:
    """Return the error that says what is wrong with a line, and where."""
    if not text.startswith("{"):
        return Stray(f"the message is not JSON: {abbreviate(text)}")
    if error.pos >= len(text):
        return WireError(f"the line ends within the message: a message is one line: {abbreviate(text)}")
    if word := _NOT_FINITE.match(text, error.pos):
        name = "NaN" if word[2].lower() == "nan" else "-Infinity" if word[1] == "-" else "Infinity"
        return _not_a_number(word[0], name)
    before, here = text[max(0, error.pos - 30) : error.pos], text[error.pos : error.pos + 30]
    place = f"{printable(repr(here))} after {printable(repr(before))}"
    return WireError(f"the message is not JSON: {error.msg} at character {error.pos}: {place}")


def validate_model(model: type[Model], value: Any, field: str) -> Model:
    """Return the value as a model; WireError names the part of `field` that does not fit."""
    # Check before pydantic, which would make an error for each of a million keys.
    if isinstance(value, dict) and not value.keys() <= (known := _list_fields(model)):
        at = f"{field}.{next(name for name in value if name not in known)}"
        raise WireError(f"{abbreviate(at)[1:-1]} is not part of the protocol; {field} has {', '.join(known)}")
    try:
        return model.model_validate(value)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False)[0]
        at = field + "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in first["loc"])
        if first["type"] == "missing":
            raise WireError(f"{at} is missing") from error
        raise WireError.at(abbreviate(at)[1:-1], first["input"], _describe_expectation(first, model)) from error


@cache
def _list_fields(model: type[pydantic.BaseModel]) -> Set[str]:
    """Return the names of a model's fields; cached, because reading them takes longer than to validate an array."""
    return dict.fromkeys(model.model_fields).keys()


def _describe_expectation(error: ErrorDetails, model: type[pydantic.BaseModel]) -> str:
    context = error.get("ctx", {})
    match error["type"]:
        case "model_type":
            return f"an object of {', '.join(model.model_fields)}"
        case "too_long":
            return f"at most {context['max_length']} elements"
        case "too_short":
            return f"at least {context['min_length']} elements"
        case _:
            expected = error["msg"].removeprefix("Input should be ").replace("a valid ", "a ").replace("'", '"')
            return expected.replace("a integer", "an integer")


def _no_constant(word: str) -> Any:
    raise _not_a_number(word, word)


def _not_a_number(word: str, name: str) -> WireError:
    return WireError(f'{word} is no number in JSON: write "{name}", a string')


def _make_object_without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        ((twice, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise WireError(f"the message has the key {abbreviate(twice)} twice in one object")
    return result


#: json.dumps and json.loads would make these again for every line.
_ENCODER: Final = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False)
_DECODER: Final = json.JSONDecoder(parse_constant=_no_constant, object_pairs_hook=_make_object_without_duplicates)


def _refuse_deep(message: Any) -> None:
    level = [message]
    for _ in range(MAX_DEPTH):
        deeper: list[Any] = []
        for container in level:
            items = container.values() if type(container) is dict else container
            # The set of types skips a long list of numbers at once.
            if not _CONTAINERS.isdisjoint(map(type, items)):
                deeper += [item for item in items if type(item) in _CONTAINERS]
        if not deeper:
            return
        level = deeper
    raise WireError(f"the message is nested more than {MAX_DEPTH} deep")


# Arrays


def encode_array(array: WireArray, encoding: Encoding) -> dict[str, Any]:
    """Encode an array; TooLarge beyond MAX_ELEMENTS."""
    values = array.values
    if values.size > MAX_ELEMENTS:
        raise TooLarge(f"an array of {values.size} elements is sent; an array has {MAX_ELEMENTS} at most")
    data = _encode_base64(array) if encoding == "base64" else _encode_numbers(values)
    return {"dtype": array.dtype, "shape": list(values.shape), "data": data}


def _encode_base64(array: WireArray) -> str:
    values = np.ascontiguousarray(array.values)
    if array.dtype == "bfloat16":
        values = (values.view(np.uint32) >> np.uint32(16)).astype(_BYTES["bfloat16"])
    return base64.b64encode(values.astype(_BYTES[array.dtype], copy=False).tobytes()).decode("ascii")


def _encode_numbers(values: Array) -> list[Any]:
    if values.dtype.kind != "f":
        plain: list[Any] = values.ravel().tolist()
        return plain
    # As float64, whatever the dtype: all digits are written, so every reader gets exactly this value.
    numbers: list[Any] = values.astype(np.float64).ravel().tolist()
    if not np.isfinite(values).all():
        numbers = [_spell_number(x) for x in numbers]
    return numbers


def _spell_number(x: float) -> float | str:
    return x if math.isfinite(x) else "NaN" if math.isnan(x) else "Infinity" if x > 0 else "-Infinity"


def decode_array(value: Any, field: str) -> WireArray:
    """Decode an array; WireError if it does not follow the protocol, TooLarge if it has too many elements."""
    model = validate_model(ArrayObject, value, field)
    shape = tuple(model.shape)
    count = math.prod(shape)
    if count > MAX_ELEMENTS:
        raise TooLarge(
            f"{field}.shape is {abbreviate(model.shape)}: {count} elements, an array has {MAX_ELEMENTS} at most"
        )
    if not count and (extent := math.prod(filter(None, shape))) > MAX_ELEMENTS:
        # With an axis of 0 elements the count is 0, but NumPy still limits the product of the others.
        axes = f"its axes other than 0 span {extent} elements, at most {MAX_ELEMENTS} can be shaped"
        raise WireError(f"{field}.shape is {abbreviate(model.shape)}: {axes}")
    at = f"{field}.data"
    if isinstance(model.data, str):
        flat = _decode_base64(model.data, model.dtype, count, at)
    elif isinstance(model.data, list):
        if len(model.data) != count:
            raise WireError(f"{at} has {len(model.data)} elements, the shape {abbreviate(model.shape)} has {count}")
        flat = _decode_numbers(model.data, model.dtype, at)
    else:
        raise WireError.at(at, model.data, "a list of numbers or a string of base64")
    return WireArray(model.dtype, flat.reshape(shape))


def _decode_base64(text: str, dtype: str, count: int, at: str) -> Array:
    layout = np.dtype(_BYTES[dtype])
    try:
        raw = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise WireError(f"{at} is {abbreviate(text)}, expected base64: {error}") from error
    if len(raw) != count * layout.itemsize:
        raise WireError(f"{at} holds {len(raw)} bytes, {count} elements of {dtype} take {count * layout.itemsize}")
    # Older versions of the library accept any padding after a complete group.
    if len(text) != (length := 4 * math.ceil(len(raw) / 3)):
        raise WireError(
            f"{at} is {abbreviate(text)}, expected base64: it has {len(text)} characters, expected {length}"
        )
    values = np.frombuffer(raw, layout)
    if dtype == "bfloat16":
        return (values.astype(np.uint32) << np.uint32(16)).view(np.float32)
    if dtype == "bool" and values.size and values.max() > 1:
        raise WireError(f"{at} holds the byte {values.max()}, a bool is 0 or 1")
    return values.astype(NUMPY_DTYPES[dtype])


def _decode_numbers(data: list[Any], dtype: str, at: str) -> Array:
    if dtype == "bool":
        _refuse_other_types(data, (bool,), at, "true or false")
        return np.array(data, dtype=np.bool_)
    if dtype == "int64":
        _refuse_other_types(data, (int,), at, "an integer")
        try:
            return np.array(data, dtype=np.int64)
        except OverflowError as error:
            beyond = next(i for i, x in enumerate(data) if not -(1 << 63) <= x < 1 << 63)
            raise WireError.at(f"{at}[{beyond}]", data[beyond], "an integer of 64 bits") from error
    spelt = str in set(map(type, data))
    numbers = [_SPELT.get(x, x) if type(x) is str else x for x in data] if spelt else data
    _refuse_other_types(numbers, (float, int), at, _NUMBER)
    try:
        values = round_to_dtype(np.array(numbers, dtype=np.float64), dtype)
    except OverflowError as error:
        raise WireError(f"{at} holds a number beyond float64") from error
    for beyond in np.flatnonzero(~np.isfinite(values)).tolist():
        # JSON has no infinity, but 1e400 is read as one.
        if type(data[beyond]) is not str:
            raise WireError(f'{at}[{beyond}] is beyond {dtype}: an infinity is written "Infinity" or "-Infinity"')
    return values


def _refuse_other_types(data: list[Any], kinds: tuple[type, ...], at: str, expected: str) -> None:
    if set(map(type, data)) - set(kinds):
        odd = next(i for i, x in enumerate(data) if type(x) not in kinds)
        raise WireError.at(f"{at}[{odd}]", data[odd], expected)


def encode_arguments(arguments: Mapping[str, Any], encoding: Encoding) -> bytes:
    """Encode the arguments of a call, which are arrays, mappings of arrays, and plain numbers, as a JSON object."""
    unsent = [array for array in _list_arrays(arguments) if encoding not in array.texts]
    size = sum(array.values.size * np.dtype(_BYTES[array.dtype]).itemsize for array in unsent)
    # Check before encoding: base64 takes 4 bytes for 3, and numbers take more.
    if size * 4 // 3 > MAX_MESSAGE and encoding == "base64":
        raise TooLarge(
            f"the arrays take {_format_mib(size * 4 // 3)}; a message holds {_format_mib(MAX_MESSAGE)} at most"
        )
    for array in unsent:
        array.texts[encoding] = _to_json(encode_array(array, encoding))
    return _join_members((name, _get_text(value, encoding)) for name, value in arguments.items())


def _list_arrays(arguments: Mapping[str, Any]) -> Iterator[WireArray]:
    for value in arguments.values():
        if isinstance(value, WireArray):
            yield value
        elif isinstance(value, Mapping):
            yield from (array for array in value.values() if isinstance(array, WireArray))


def _get_text(value: Any, encoding: Encoding) -> bytes:
    """Return the JSON of an argument whose arrays have theirs already."""
    if isinstance(value, WireArray):
        return value.texts[encoding]
    if isinstance(value, Mapping):
        return _join_members((name, _get_text(array, encoding)) for name, array in value.items())
    return _to_json(value)


def _join_members(members: Iterable[tuple[str, bytes]]) -> bytes:
    """Return the JSON object of names and values that are JSON already."""
    return b"{" + b",".join(_to_key(name) + value for name, value in members) + b"}"


@cache
def _to_key(name: str) -> bytes:
    return _to_json(name) + b":"


def decode_arrays(value: Any, field: str, most: int | None = None) -> dict[str, WireArray]:
    """Decode a mapping of arrays, of at most `most` names."""
    if not isinstance(value, dict):
        raise WireError.at(field, value, "an object of arrays by name")
    if most is not None and len(value) > most:
        names = ", ".join(abbreviate(name)[1:-1] for name in islice(value, most + 1))
        raise WireError(f"{field} has {len(value)} names, expected at most {most}; the first are {names}")
    if value.keys() == _list_fields(ArrayObject):
        raise WireError(f"{field} is an array, expected an object of arrays by name, even where there is one")
    if odd := [name for name in value if not name.isprintable() or len(name) > _LONGEST_NAME]:
        raise WireError(f"{field} has the key {abbreviate(odd[0])}, which is no name")
    return {name: decode_array(array, f"{field}.{name}") for name, array in value.items()}


def decode_state(value: Any, field: str) -> int:
    """Decode the number that stands for a state."""
    if type(value) is not int or value < 0:
        raise WireError.at(field, value, "an integer of 0 or more, which stands for the state")
    return value


def _format_mib(size: int) -> str:
    return f"{size / (1 << 20):.3g} MiB"


# Requests and replies


@dataclass(frozen=True, slots=True)
class RpcRequest:
    """A decoded request."""

    id: int
    method: str
    params: Mapping[str, Any]


class BadRequest(WireError):
    """A line holds no request; `code` is that of JSON-RPC, `id` that of the request if it could be read."""

    def __init__(self, code: int, message: str, id_: int | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.id = id_


def request_line(id_: int, method: str, params: Mapping[str, Any] | bytes) -> bytes:
    """Encode a request; `params` may be encoded already."""
    text = params if isinstance(params, bytes) else _to_json(params)
    return _end_line(b'{"jsonrpc":"2.0","id":%d,"method":%b,"params":%b}' % (id_, _to_json(method), text))


def result_line(id_: int, result: Any) -> bytes:
    """Encode a reply with a result."""
    return to_line({"jsonrpc": "2.0", "id": id_, "result": result})


def error_line(id_: int | None, code: int, message: str, data: str | None = None) -> bytes:
    """Encode a reply with an error."""
    error = {"code": code, "message": message} | ({"data": data} if data else {})
    return to_line({"jsonrpc": "2.0", "id": id_, "error": error})


def read_reply(line: bytes, id_: int) -> Any | ErrorObject:
    """Return the result of the request `id_`, or its error; WireError if the line is no reply to it."""
    message = from_line(line)
    _refuse_other_version(message)
    if "error" in message and "result" in message:
        raise WireError("the reply has both a result and an error; it has one of them")
    if "error" not in message and "result" not in message:
        raise WireError(f"the reply has neither a result nor an error; it has {abbreviate(list(message))}")
    _refuse_other_keys(message, ("jsonrpc", "id", "error" if "error" in message else "result"), "reply")
    unreadable = "error" in message and message.get("id", 0) is None
    if not unreadable and (type(message.get("id")) is not int or message["id"] != id_):
        raise Unasked.at("id", message.get("id", MISSING), f"{id_}, that of the request")
    if "error" in message:
        return validate_model(ErrorObject, message["error"], "error")
    return message["result"]


def read_request(line: bytes) -> RpcRequest:
    """Decode the request in a line; BadRequest if it holds no request."""
    try:
        message = from_line(line)
    except WireError as error:
        raise BadRequest(PARSE_ERROR, str(error)) from error
    id_ = message.get("id")
    known = id_ if type(id_) is int and id_ >= 0 else None
    try:
        _refuse_other_version(message)
        _refuse_other_keys(message, ("jsonrpc", "id", "method", "params"), "request")
        if known is None:
            raise WireError.at("id", message.get("id", MISSING), "an integer of at least 0")
        method, params = message.get("method", MISSING), message.get("params", {})
        if not isinstance(method, str):
            raise WireError.at("method", method, "the name of a component, initialize or shutdown")
        if not isinstance(params, dict):
            raise WireError.at("params", params, "an object of arguments by name")
    except WireError as error:
        raise BadRequest(INVALID_REQUEST, str(error), known) from error
    return RpcRequest(known, method, params)


def _refuse_other_version(message: Mapping[str, Any]) -> None:
    if message.get("jsonrpc") != "2.0":
        raise WireError.at("jsonrpc", message.get("jsonrpc", MISSING), '"2.0"')


def _refuse_other_keys(message: Mapping[str, Any], known: tuple[str, ...], what: str) -> None:
    if other := [key for key in message if key not in known]:
        raise WireError(f"the {what} has the key {abbreviate(other[0])}; its keys are {', '.join(known)}")
