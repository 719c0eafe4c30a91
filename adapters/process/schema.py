"""The messages of the protocol as pydantic models; `goldformer schema protocol` prints them as a JSON Schema.

Unknown keys are refused everywhere and nothing is converted.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, WithJsonSchema

#: The version of the protocol that is spoken here.
PROTOCOL: Final = 1

# The limits of the protocol.
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

Id = Annotated[int, Field(ge=0)]
Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]
Size = Annotated[int, Field(ge=0, le=MAX_ELEMENTS)]
#: Read in wire.py: a list of millions of numbers is checked there all at once.
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


class Strict(BaseModel):
    """An object without unknown keys and without conversions."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class ArrayModel(Strict):
    """An array: its elements flat and row-major, as numbers or as base64 of their little-endian bytes."""

    dtype: WireDType
    shape: Annotated[list[Size], Field(max_length=MAX_AXES)]
    data: Data


class Hello(Strict):
    """What the suite says of itself."""

    protocol: int
    suite: str


class Handshake(Strict):
    """What an implementation says of itself."""

    protocol: Literal[1]
    name: Annotated[str, Field(min_length=1)]
    version: str = ""
    language: str = ""
    components: list[Name]
    gradients: list[Name] = []
    conventions: dict[str, str] = {}
    dtypes: Annotated[list[FloatDType], Field(min_length=1)] = ["float64", "float32"]
    encoding: Encoding = "numbers"


class ErrorObject(Strict):
    """Why there is no result; `data` may hold a traceback."""

    code: int
    message: str
    data: Any = None


class Message(Strict):
    """What every message has."""

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
    params: dict[str, ArrayModel | dict[str, ArrayModel] | bool | int | float]


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
    """The answer to a call: outputs by name; or, of a gradient, arguments and parameters by name."""

    id: Id
    result: dict[str, ArrayModel]


class ShutdownReply(Message):
    """The answer to shutdown."""

    id: Id
    result: None


class ErrorReply(Message):
    """The answer instead of a result; the id is null only where the request had none that could be read."""

    id: Id | None
    error: ErrorObject


Request = InitializeRequest | ShutdownRequest | CallRequest
Reply = InitializeReply | CallReply | ShutdownReply | ErrorReply


def json_schema() -> dict[str, Any]:
    """The JSON Schema of all messages."""
    made = TypeAdapter[Any](Request | Reply).json_schema()
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"The messages of goldformer's protocol, version {PROTOCOL}",
    }
    return {**head, **made}
