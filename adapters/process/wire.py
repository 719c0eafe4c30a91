"""Messages and arrays to bytes and back, strictly; nothing here reads or writes anything.

WireError names the field at fault, what it was and what was expected.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from collections import Counter
from collections.abc import Mapping
from itertools import islice
from typing import Any, Final, TypeVar

import numpy as np
import pydantic
from numpy.typing import NDArray
from pydantic_core import ErrorDetails

from goldformer.adapters.process.arrays import HELD_AS, WireArray, rounded
from goldformer.adapters.process.faults import Stray, TooLarge, WireError, printable, shown
from goldformer.adapters.process.schema import (
    MAX_DEPTH,
    MAX_ELEMENTS,
    MAX_INNER,
    MAX_MESSAGE,
    MAX_NAMES,
    ArrayModel,
    Encoding,
)

Model = TypeVar("Model", bound=pydantic.BaseModel)
Array = NDArray[Any]

#: How the bytes of each dtype are laid out in base64.
_BYTES: Final = {"float64": "<f8", "float32": "<f4", "float16": "<f2", "bfloat16": "<u2", "int64": "<i8", "bool": "u1"}
_SPELT: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
#: What C, Rust and others print for what JSON has no number for.
_NOT_FINITE: Final = re.compile(r"([+-]?)(nan|inf(?:inity)?)\b", re.IGNORECASE)
#: What JSON takes for space, which is less than Python does.
_SPACE: Final = " \t\r\n"
_LONGEST_NAME: Final = 200
_NUMBER: Final = 'a number or one of "NaN", "Infinity" and "-Infinity"'


# Messages


def to_line(message: Mapping[str, Any]) -> bytes:
    """One message as a line; TooLarge beyond MAX_MESSAGE."""
    text = json.dumps(message, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    # Half a surrogate pair has no UTF-8, and this escape means it in JSON.
    line = text.encode("utf-8", "backslashreplace") + b"\n"
    if len(line) > MAX_MESSAGE:
        raise TooLarge(f"the message has {_mib(len(line))}; a message holds {_mib(MAX_MESSAGE)} at most")
    return line


def from_line(line: bytes) -> dict[str, Any]:
    """The object that a line holds; WireError when it is not one JSON object within the limits."""
    if len(line) > MAX_MESSAGE:
        raise TooLarge(f"the message has more than {_mib(MAX_MESSAGE)}, the most that a message holds")
    # Before they are made: an empty list of two bytes takes sixty.
    if line.count(b"[") + line.count(b"{") > MAX_INNER:
        raise WireError(f"the message has more than {MAX_INNER} lists and objects")
    if line.count(b":") > MAX_NAMES:
        raise WireError(f"the message has more than {MAX_NAMES} names")
    try:
        text = line.decode("utf-8").strip(_SPACE)
    except UnicodeDecodeError as error:
        raise WireError(f"the message is not UTF-8 (byte {error.start} is {line[error.start]:#04x})") from error
    if text.startswith("\ufeff"):
        raise WireError("the message begins with a byte order mark: write UTF-8 without one")
    try:
        message = json.loads(text, parse_constant=_no_constant, object_pairs_hook=_unique)
    except RecursionError as error:
        raise WireError(f"the message is nested more than {MAX_DEPTH} deep") from error
    except WireError:
        raise
    except json.JSONDecodeError as error:
        raise _no_json(error, text) from error
    except ValueError as error:
        raise WireError(f"the message is not JSON: {error}: {shown(text)}") from error
    if not isinstance(message, dict):
        raise Stray.at("the message", message, "an object")
    _refuse_deep(message)
    return message


def _no_json(error: json.JSONDecodeError, text: str) -> WireError:
    """What is wrong with a line, and where."""
    if not text.startswith("{"):
        return Stray(f"the message is not JSON: {shown(text)}")
    if error.pos >= len(text):
        return WireError(f"the line ends within the message: a message is one line: {shown(text)}")
    if word := _NOT_FINITE.match(text, error.pos):
        name = "NaN" if word[2].lower() == "nan" else "-Infinity" if word[1] == "-" else "Infinity"
        return _not_a_number(word[0], name)
    before, here = text[max(0, error.pos - 30) : error.pos], text[error.pos : error.pos + 30]
    place = f"{printable(repr(here))} after {printable(repr(before))}"
    return WireError(f"the message is not JSON: {error.msg} at character {error.pos}: {place}")


def validated(model: type[Model], value: Any, field: str) -> Model:
    """The value as a model; WireError names what in `field` does not fit."""
    known = model.model_fields
    # Before pydantic, which makes an error of each of a million.
    if isinstance(value, dict) and (unknown := list(islice((name for name in value if name not in known), 1))):
        at = f"{field}.{unknown[0]}"
        raise WireError(f"{shown(at)[1:-1]} is not part of the protocol; {field} has {', '.join(known)}")
    try:
        return model.model_validate(value)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False)[0]
        at = field + "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in first["loc"])
        if first["type"] == "missing":
            raise WireError(f"{at} is missing") from error
        raise WireError.at(shown(at)[1:-1], first["input"], _expected(first, model)) from error


def _expected(error: ErrorDetails, model: type[pydantic.BaseModel]) -> str:
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


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        ((twice, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise WireError(f"the message has the key {shown(twice)} twice in one object")
    return made


def _refuse_deep(message: Any) -> None:
    level = [message]
    for _ in range(MAX_DEPTH):
        # A long list of numbers is passed over at once.
        holding = (c.values() if isinstance(c, dict) else c for c in level)
        level = [
            item
            for items in holding
            if not {dict, list}.isdisjoint(map(type, items))
            for item in items
            if isinstance(item, (dict, list))
        ]
        if not level:
            return
    raise WireError(f"the message is nested more than {MAX_DEPTH} deep")


# Arrays


def encode_array(array: WireArray, encoding: Encoding) -> dict[str, Any]:
    """An array as JSON; TooLarge beyond MAX_ELEMENTS."""
    values = array.values
    if values.size > MAX_ELEMENTS:
        raise TooLarge(f"an array of {values.size} elements is sent; an array has {MAX_ELEMENTS} at most")
    data = _as_base64(array) if encoding == "base64" else _as_numbers(values)
    return {"dtype": array.dtype, "shape": list(values.shape), "data": data}


def _as_base64(array: WireArray) -> str:
    values = np.ascontiguousarray(array.values)
    if array.dtype == "bfloat16":
        values = (values.view(np.uint32) >> np.uint32(16)).astype(_BYTES["bfloat16"])
    return base64.b64encode(values.astype(_BYTES[array.dtype], copy=False).tobytes()).decode("ascii")


def _as_numbers(values: Array) -> list[Any]:
    if values.dtype.kind != "f":
        plain: list[Any] = values.ravel().tolist()
        return plain
    # As float64, whatever the dtype: all digits are written, and every reader gets just this value.
    numbers: list[Any] = values.astype(np.float64).ravel().tolist()
    if not np.isfinite(values).all():
        numbers = [_spelling(x) for x in numbers]
    return numbers


def _spelling(x: float) -> float | str:
    return x if math.isfinite(x) else "NaN" if math.isnan(x) else "Infinity" if x > 0 else "-Infinity"


def decode_array(value: Any, field: str) -> WireArray:
    """Return the array that was sent; WireError if it is none, TooLarge if it has too many elements."""
    model = validated(ArrayModel, value, field)
    shape = tuple(model.shape)
    count = math.prod(shape)
    if count > MAX_ELEMENTS:
        raise TooLarge(f"{field}.shape is {shown(model.shape)}: {count} elements, an array has {MAX_ELEMENTS} at most")
    if (extent := math.prod(filter(None, shape))) > MAX_ELEMENTS:
        # An axis of 0 elements leaves no data to count, and NumPy no way to shape them.
        axes = f"its axes other than 0 span {extent} elements, at most {MAX_ELEMENTS} can be shaped"
        raise WireError(f"{field}.shape is {shown(model.shape)}: {axes}")
    at = f"{field}.data"
    if isinstance(model.data, str):
        flat = _from_base64(model.data, model.dtype, count, at)
    elif isinstance(model.data, list):
        if len(model.data) != count:
            raise WireError(f"{at} has {len(model.data)} elements, the shape {shown(model.shape)} has {count}")
        flat = _from_numbers(model.data, model.dtype, at)
    else:
        raise WireError.at(at, model.data, "a list of numbers or a string of base64")
    return WireArray(model.dtype, flat.reshape(shape))


def _from_base64(text: str, dtype: str, count: int, at: str) -> Array:
    layout = np.dtype(_BYTES[dtype])
    try:
        raw = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise WireError(f"{at} is {shown(text)}, expected base64: {error}") from error
    if len(raw) != count * layout.itemsize:
        raise WireError(f"{at} holds {len(raw)} bytes, {count} elements of {dtype} take {count * layout.itemsize}")
    values = np.frombuffer(raw, layout)
    if dtype == "bfloat16":
        return (values.astype(np.uint32) << np.uint32(16)).view(np.float32)
    if dtype == "bool" and values.size and values.max() > 1:
        raise WireError(f"{at} holds the byte {values.max()}, a bool is 0 or 1")
    return values.astype(HELD_AS[dtype])


def _from_numbers(data: list[Any], dtype: str, at: str) -> Array:
    if dtype == "bool":
        _only(data, (bool,), at, "true or false")
        return np.array(data, dtype=np.bool_)
    if dtype == "int64":
        _only(data, (int,), at, "an integer")
        try:
            return np.array(data, dtype=np.int64)
        except OverflowError as error:
            beyond = next(i for i, x in enumerate(data) if not -(1 << 63) <= x < 1 << 63)
            raise WireError.at(f"{at}[{beyond}]", data[beyond], "an integer of 64 bits") from error
    spelt = str in set(map(type, data))
    numbers = [_SPELT.get(x, x) if type(x) is str else x for x in data] if spelt else data
    _only(numbers, (float, int), at, _NUMBER)
    try:
        values = rounded(np.array(numbers, dtype=np.float64), dtype)
    except OverflowError as error:
        raise WireError(f"{at} holds a number beyond float64") from error
    for beyond in np.flatnonzero(~np.isfinite(values)).tolist():
        # JSON has no infinity: 1e400 is read as one.
        if type(data[beyond]) is not str:
            raise WireError(f'{at}[{beyond}] is beyond {dtype}: an infinity is written "Infinity" or "-Infinity"')
    return values


def _only(data: list[Any], kinds: tuple[type, ...], at: str, expected: str) -> None:
    if set(map(type, data)) - set(kinds):
        odd = next(i for i, x in enumerate(data) if type(x) not in kinds)
        raise WireError.at(f"{at}[{odd}]", data[odd], expected)


def encode_arguments(given: Mapping[str, Any], encoding: Encoding) -> dict[str, Any]:
    """The arguments of a call as JSON: arrays, mappings of arrays, and plain numbers as they are."""
    size = sum(array.values.size * np.dtype(_BYTES[array.dtype]).itemsize for array in _arrays(given))
    # Before it is made: base64 takes 4 bytes for 3, and numbers take more.
    if size * 4 // 3 > MAX_MESSAGE and encoding == "base64":
        raise TooLarge(f"the arrays take {_mib(size * 4 // 3)}; a message holds {_mib(MAX_MESSAGE)} at most")
    return {name: _argument(value, encoding) for name, value in given.items()}


def _arrays(given: Mapping[str, Any]) -> list[WireArray]:
    inner = [value.values() if isinstance(value, Mapping) else (value,) for value in given.values()]
    return [value for values in inner for value in values if isinstance(value, WireArray)]


def _argument(value: Any, encoding: Encoding) -> Any:
    if isinstance(value, WireArray):
        return encode_array(value, encoding)
    if isinstance(value, Mapping):
        return {name: encode_array(array, encoding) for name, array in value.items()}
    return value


def decode_arrays(value: Any, field: str) -> dict[str, WireArray]:
    """A mapping of arrays that was sent."""
    if not isinstance(value, dict):
        raise WireError.at(field, value, "an object of arrays by name")
    if value.keys() == ArrayModel.model_fields.keys():
        raise WireError(f"{field} is an array, expected an object of arrays by name, even where there is one")
    if odd := [name for name in value if not name.isprintable() or len(name) > _LONGEST_NAME]:
        raise WireError(f"{field} has the key {shown(odd[0])}, which is the name of nothing")
    return {name: decode_array(array, f"{field}.{name}") for name, array in value.items()}


def _mib(size: int) -> str:
    return f"{size / (1 << 20):.3g} MiB"
