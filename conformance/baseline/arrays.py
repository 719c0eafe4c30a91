"""Arrays kept in files: each in its own dtype, bfloat16 included, and equal arrays as equal bytes.

The format is safetensors without metadata, which every library of arrays reads. Its library lays it out and refuses
files that are not whole; NumPy has no bfloat16, so it is handed plain bytes.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, TensorSpec, deserialize, serialize

from goldformer.adapters.process.arrays import round_to_dtype
from goldformer.spec import draw

Array = NDArray[Any]

#: An output of more numbers than this is kept as a digest of all of them and SAMPLED of them, at drawn places.
LARGE: Final = 1 << 16
SAMPLED: Final = 4096

#: The library reads no longer header: bytes of a file that are not numbers.
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
    """A file that is no safetensors file, or not a whole one; the text says where and what was expected."""


@dataclass(frozen=True, eq=False, slots=True)
class Kept:
    """An output as it was given.

    `values` are all of it in its shape, or, of a large one, those at `places(shape)`, and then `digest` tells all of
    its bytes. Floats are widened to float64; every NaN counts as the same.
    """

    dtype: str
    shape: tuple[int, ...]
    values: Array
    digest: str | None = None

    @classmethod
    def of(cls, values: Array, dtype: str) -> Kept:
        """Keep an output of that dtype, whose floats were widened."""
        if values.size <= LARGE:
            return cls(dtype, values.shape, values)
        digest = hashlib.sha256(_held(values, dtype).tobytes()).hexdigest()
        return cls(dtype, values.shape, sample(values), digest)

    @property
    def raw(self) -> bytes:
        """The bytes that are stored."""
        return self.held.tobytes()

    @property
    def held(self) -> Array:
        """An array of those bytes."""
        return _held(self.values, self.dtype)

    def same(self, other: Kept) -> bool:
        """Whether all bits are equal."""
        mine, theirs = (self.dtype, self.shape, self.digest), (other.dtype, other.shape, other.digest)
        return mine == theirs and self.raw == other.raw


def places(shape: tuple[int, ...]) -> NDArray[np.int64]:
    """The row-major places that a large array is sampled at, ascending; drawn as the spec draws ids."""
    return np.unique(draw.below(math.prod(shape), 1, "place", (SAMPLED,)))


def sample(values: Array) -> Array:
    """The elements of a large array that are kept."""
    kept: Array = values.ravel()[places(values.shape)]
    return kept


def size_of(dtype: str, shape: Iterable[int]) -> int:
    """Bytes of an array."""
    return math.prod(shape) * _in_numpy(dtype).itemsize


def _in_numpy(dtype: str) -> np.dtype[Any]:
    """The NumPy dtype of its bytes, little-endian."""
    return np.dtype("uint16" if dtype == "bfloat16" else dtype).newbyteorder("<")


def _held(values: Array, dtype: str) -> Array:
    """An array in its own dtype, little-endian and row by row; exact where the values are of that dtype."""
    if dtype.startswith(("float", "bfloat")):
        values = round_to_dtype(np.where(np.isnan(values), np.nan, values), dtype)
        if dtype == "bfloat16":
            values = (values.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    return np.ascontiguousarray(values.astype(_in_numpy(dtype), copy=False))


def _widened(raw: bytes | bytearray, dtype: str, shape: tuple[int, ...]) -> Array:
    """The inverse of _held."""
    values = np.frombuffer(raw, dtype=_in_numpy(dtype)).reshape(shape)
    if dtype == "bfloat16":
        return (values.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
    return values.astype(np.float64) if values.dtype.kind == "f" else values.astype(dtype)


def content_digest(arrays: Mapping[str, Kept]) -> str:
    """SHA-256 over name, dtype, shape and bytes of each array, in the order of their names."""
    digest = hashlib.sha256()
    for name, kept in sorted(arrays.items()):
        digest.update(json.dumps([name, kept.dtype, kept.values.shape]).encode())
        digest.update(kept.raw)
    return digest.hexdigest()


def written(arrays: Mapping[str, Kept]) -> bytes:
    """The file of some arrays."""
    # The library is told where the bytes lie, so they must stay there until it is done.
    held = {name: kept.held for name, kept in arrays.items()}
    return serialize(
        {
            name: TensorSpec(
                dtype=kept.dtype, shape=kept.values.shape, data_ptr=held[name].ctypes.data, data_len=held[name].nbytes
            )
            for name, kept in arrays.items()
        }
    )


def read(raw: bytes) -> dict[str, tuple[str, Array]]:
    """The dtype and the values of each array in a file, by name; BadArrays where the file is none, or not whole."""
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
            found[name] = (dtype, _widened(entry["data"], dtype, shape))
        except ValueError as error:
            raise BadArrays(f"{name}: is {dtype} of shape {list(shape)}, which no array has: {error}") from error
    return found
