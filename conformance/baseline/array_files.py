"""Arrays in files: each in its own dtype, also bfloat16, and equal arrays as equal bytes.

The format is safetensors without metadata, which every array library reads. The safetensors library writes it and
refuses incomplete files. NumPy has no bfloat16, so the library gets plain bytes.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, TensorSpec, deserialize, serialize

from goldformer.adapters.dtypes import round_to_dtype
from goldformer.spec import draw

Array = NDArray[Any]

#: An output of more numbers than this is stored as a digest and as SAMPLED of its numbers, at random places.
LARGE: Final = 1 << 16
SAMPLED: Final = 4096

#: The longest header, in bytes, that the library reads.
HEADER_AT_MOST: Final = 100_000_000

#: The dtypes, by their names in the format.
_NAMED: Final[Mapping[str, str]] = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "BOOL": "bool",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U64": "uint64",
    "U32": "uint32",
    "U16": "uint16",
    "U8": "uint8",
}

DTYPES: Final = tuple(_NAMED.values())


class BadArrays(Exception):
    """A file that is no complete safetensors file; the message says where, and what was expected."""


@dataclass(frozen=True, eq=False, slots=True)
class StoredArray:
    """The values of an output.

    A large output is stored as a sample: `values` are those at `draw_places(shape)`, and `digest` covers all of its
    bytes. Floats are widened to float64; all NaNs are equal.
    """

    dtype: str
    shape: tuple[int, ...]
    values: Array
    digest: str | None = None

    @classmethod
    def of(cls, values: Array, dtype: str) -> StoredArray:
        """Store an output of that dtype, whose floats are widened."""
        if values.size <= LARGE:
            return cls(dtype, values.shape, values)
        digest = hashlib.sha256(_narrow(values, dtype).tobytes()).hexdigest()
        return cls(dtype, values.shape, select_sample(values), digest)

    @property
    def narrow(self) -> Array:
        """The array in its own dtype, as it is written."""
        return _narrow(self.values, self.dtype)

    @property
    def raw(self) -> bytes:
        """The bytes that are written."""
        return self.narrow.tobytes()

    def equals(self, other: StoredArray) -> bool:
        """Return True if all bits are equal."""
        mine, theirs = (self.dtype, self.shape, self.digest), (other.dtype, other.shape, other.digest)
        return mine == theirs and self.raw == other.raw


def draw_places(shape: tuple[int, ...]) -> NDArray[np.int64]:
    """Return the ascending row-major places at which a large array is sampled; they are drawn like the spec's ids."""
    return np.unique(draw.below(math.prod(shape), 1, "place", (SAMPLED,)))


def select_sample(values: Array) -> Array:
    """Return the elements of a large array that are stored."""
    sampled: Array = values.ravel()[draw_places(values.shape)]
    return sampled


def measure_size(dtype: str, shape: Iterable[int]) -> int:
    """Return the number of bytes of an array."""
    return math.prod(shape) * _find_numpy_dtype(dtype).itemsize


def _find_numpy_dtype(dtype: str) -> np.dtype[Any]:
    """Return the NumPy dtype of the bytes, little-endian."""
    return np.dtype("uint16" if dtype == "bfloat16" else dtype).newbyteorder("<")


def _narrow(values: Array, dtype: str) -> Array:
    """Return an array in its own dtype, little-endian and row by row; exact if the values fit that dtype."""
    if dtype.startswith(("float", "bfloat")):
        values = round_to_dtype(np.where(np.isnan(values), np.nan, values), dtype)
        if dtype == "bfloat16":
            values = (values.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    return np.ascontiguousarray(values.astype(_find_numpy_dtype(dtype), copy=False))


def _widen(raw: bytes | bytearray, dtype: str, shape: tuple[int, ...]) -> Array:
    """Invert _narrow."""
    values = np.frombuffer(raw, dtype=_find_numpy_dtype(dtype)).reshape(shape)
    if dtype == "bfloat16":
        return (values.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
    return values.astype(np.float64) if values.dtype.kind == "f" else values.astype(dtype)


def to_bytes(arrays: Mapping[str, StoredArray]) -> bytes:
    """Return the file of some arrays."""
    # The library gets addresses, so the arrays must live until it is done.
    narrow = {name: array.narrow for name, array in arrays.items()}
    return serialize(
        {
            name: TensorSpec(
                dtype=array.dtype,
                shape=array.values.shape,
                data_ptr=narrow[name].ctypes.data,
                data_len=narrow[name].nbytes,
            )
            for name, array in arrays.items()
        }
    )


def from_bytes(raw: bytes) -> dict[str, tuple[str, Array]]:
    """Return the dtype and the values of each array in a file, by name; BadArrays if the file is not complete."""
    try:
        entries = deserialize(raw)  # type: ignore[no-untyped-call]
    except SafetensorError as error:
        raise BadArrays(f"its {len(raw)} bytes are no whole safetensors file: {error}") from error
    found = {}
    for name, entry in entries:
        kind, shape = entry["dtype"], tuple(entry["shape"])
        if kind not in _NAMED:
            raise BadArrays(f"{name}: dtype {kind} is none of {', '.join(_NAMED)}")
        dtype = _NAMED[kind]
        try:
            found[name] = (dtype, _widen(entry["data"], dtype, shape))
        except ValueError as error:
            raise BadArrays(f"{name}: is {dtype} of shape {list(shape)}, which no array has: {error}") from error
    return found
