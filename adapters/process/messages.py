"""The messages of the protocol as pydantic models; `goldformer schema protocol` prints their JSON Schema.

Unknown keys are refused, and no value is converted.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, WithJsonSchema
from pydantic_core import PydanticCustomError

#: The version of the protocol.
PROTOCOL: Final = 1

# The limits of the protocol
MAX_MESSAGE: Final = 64 << 20
MAX_DEPTH: Final = 16
#: Lists and objects: a message has a few for each of its arrays, and brackets in texts count.
MAX_INNER: Final = 100_000
#: Names in objects; colons in texts count.
MAX_NAMES: Final = 1_000_000
MAX_AXES: Final = 8
MAX_ELEMENTS: Final = 1 << 24

WireDType = Literal["float64", "float32", "float16", "bfloat16", "int64", "bool"]
FloatDType = Literal["float64", "float32", "float16", "bfloat16"]
Encoding = Literal["numbers", "base64"]
ENCODINGS: Final[tuple[Encoding, ...]] = get_args(Encoding)

# JSON-RPC's own codes, and two of this protocol's.
PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603
RAISED: Final = -32000
NOT_IMPLEMENTED: Final = -32001


def _require_integer(value: Any) -> Any:
    """Return an integer; Python takes `true` and `1.0` for the literal 1."""
    if type(value) is not int:
        raise PydanticCustomError("int_type", "Input should be a valid integer")
    return value


Id = Annotated[int, Field(ge=0)]
Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]
Size = Annotated[int, Field(ge=0, le=MAX_ELEMENTS)]
#: Checked in wire.py, which checks a list of millions of numbers at once.
Data = Annotated[
    Any,
    WithJsonSchema(
        {
            "oneOf": [
                {"type": "string", "description": "base64 of the little-endian bytes", "contentEncoding": "base64"},
                {
                    "type": "array",
                    "maxItems": MAX_ELEMENTS,
                    "items": {"anyOf": [{"type": ["number", "boolean"]}, {"enum": ["NaN", "Infinity", "-Infinity"]}]},
                },
            ]
        }
    ),
]


class ProtocolObject(BaseModel):
    """An object that refuses unknown keys and converts no value."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class ArrayObject(ProtocolObject):
    """An array: its elements flat and row-major, as numbers or as base64 of their little-endian bytes."""

    dtype: WireDType
    shape: Annotated[list[Size], Field(max_length=MAX_AXES)]
    data: Data


class Hello(ProtocolObject):
    """The parameters of initialize: a description of the suite."""

    protocol: int
    suite: str


#: Only documents it: the client says which name a list has twice.
_DIFFERENT: Final = Field(json_schema_extra={"uniqueItems": True})


class Handshake(ProtocolObject):
    """The result of initialize: a description of the implementation."""

    protocol: Annotated[Literal[1], BeforeValidator(_require_integer)]
    name: Annotated[str, Field(min_length=1)]
    version: str = ""
    language: str = ""
    components: Annotated[list[Name], _DIFFERENT]
    gradients: Annotated[list[Name], _DIFFERENT] = []
    family: str = ""
    conventions: dict[str, str | float] = {}
    dtypes: Annotated[list[FloatDType], Field(min_length=1), _DIFFERENT] = ["float64", "float32"]
    encoding: Encoding = "numbers"


class ErrorObject(ProtocolObject):
    """The reason why there is no result; `data` may hold a stack trace."""

    code: int
    message: str
    data: Any = None


class Message(ProtocolObject):
    """The field of every message."""

    jsonrpc: Literal["2.0"]


class InitializeRequest(Message):
    """The first message of the suite."""

    id: Id
    method: Literal["initialize"]
    params: Hello


class CallRequest(Message):
    """One call: inputs and attributes by name, and `params`, the parameters by name."""

    id: Id
    method: Name
    params: dict[str, ArrayObject | dict[str, ArrayObject] | bool | int | float]


class ShutdownRequest(Message):
    """The last message of the suite."""

    id: Id
    method: Literal["shutdown"]
    params: Annotated[dict[str, Any], Field(max_length=0)] = {}


class InitializeReply(Message):
    """The answer to initialize."""

    id: Id
    result: Handshake


class CallReply(Message):
    """The answer to a call: outputs by name; or, of a gradient, arguments and parameters by name.

    A number stands for a state, which a later call is given.
    """

    id: Id
    result: dict[str, ArrayObject | Id]


class ShutdownReply(Message):
    """The answer to shutdown."""

    id: Id
    result: None


class ErrorReply(Message):
    """The answer in place of a result; the id is null only if the id of the request could not be read."""

    id: Id | None
    error: ErrorObject


AnyRequest = InitializeRequest | ShutdownRequest | CallRequest
AnyReply = InitializeReply | CallReply | ShutdownReply | ErrorReply


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of all messages."""
    messages = TypeAdapter[Any](AnyRequest | AnyReply).json_schema()
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"The messages of goldformer's protocol, version {PROTOCOL}",
    }
    return {**head, **messages}
