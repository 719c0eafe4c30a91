"""Arrays kept in files: each in its own dtype, bfloat16 included, and equal arrays as equal bytes.

The format is safetensors without metadata, which every library of arrays reads: the length of a header, the header in
JSON with the dtype, shape and place of each array, and their bytes.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from goldformer.adapters.process.arrays import rounded
from goldformer.spec import draw

Array = NDArray[Any]

#: An output of more numbers than this is kept as a digest of all of them and SAMPLED of them, at drawn places.
LARGE: Final = 1 << 16
SAMPLED: Final = 4096

_HEADER: Final = 8
_ALIGNED: Final = 8


@dataclass(frozen=True, slots=True)
class _Kind:
    """How a dtype is written: its name in the format, and the NumPy dtype of its bytes."""

    name: str
    held: str

    @property
    def size(self) -> int:
        """Bytes of one number."""
        return np.dtype(self.held).itemsize


_KINDS: Final[Mapping[str, _Kind]] = {
    "float64": _Kind("F64", "<f8"),
    "float32": _Kind("F32", "<f4"),
    "float16": _Kind("F16", "<f2"),
    "bfloat16": _Kind("BF16", "<u2"),
    "bool": _Kind("BOOL", "|b1"),
    "int64": _Kind("I64", "<i8"),
    "int32": _Kind("I32", "<i4"),
    "int16": _Kind("I16", "<i2"),
    "int8": _Kind("I8", "|i1"),
    "uint64": _Kind("U64", "<u8"),
    "uint32": _Kind("U32", "<u4"),
    "uint16": _Kind("U16", "<u2"),
    "uint8": _Kind("U8", "|u1"),
}
_NAMED: Final = {kind.name: dtype for dtype, kind in _KINDS.items()}

DTYPES: Final = tuple(_KINDS)


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
        digest = hashlib.sha256(_raw(values, dtype)).hexdigest()
        return cls(dtype, values.shape, sample(values), digest)

    @property
    def raw(self) -> bytes:
        """The bytes that are stored."""
        return _raw(self.values, self.dtype)

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


def _raw(values: Array, dtype: str) -> bytes:
    """An array's bytes in its own dtype, little-endian and row by row; exact where the values are of that dtype."""
    if dtype.startswith(("float", "bfloat")):
        values = rounded(np.where(np.isnan(values), np.nan, values), dtype)
        if dtype == "bfloat16":
            values = (values.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    return np.ascontiguousarray(values.astype(_KINDS[dtype].held, copy=False)).tobytes()


def _widened(raw: bytes, dtype: str, shape: tuple[int, ...]) -> Array:
    """The inverse of _raw."""
    values = np.frombuffer(raw, dtype=_KINDS[dtype].held).reshape(shape)
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
    header: dict[str, Any] = {}
    parts: list[bytes] = []
    end = 0
    # The widest first, so that each lies at a multiple of its size.
    for name, kept in sorted(arrays.items(), key=lambda item: (-_KINDS[item[1].dtype].size, item[0])):
        raw = kept.raw
        start, end = end, end + len(raw)
        kind = _KINDS[kept.dtype].name
        header[name] = {"dtype": kind, "shape": kept.values.shape, "data_offsets": [start, end]}
        parts.append(raw)
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-len(head) % _ALIGNED)
    return b"".join((len(head).to_bytes(_HEADER, "little"), head, *parts))


def read(raw: bytes) -> dict[str, tuple[str, Array]]:
    """The dtype and the values of each array in a file, by name; BadArrays where the file is none, or cut short."""
    if len(raw) < _HEADER:
        raise BadArrays(f"header: has {len(raw)} bytes, where its length alone takes {_HEADER}")
    length = int.from_bytes(raw[:_HEADER], "little")
    if length > len(raw) - _HEADER:
        raise BadArrays(f"header: is to have {length} bytes, and the file has {len(raw)}")
    try:
        header = json.loads(raw[_HEADER : _HEADER + length])
        entries = list(_entries(header))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadArrays(f"header: is not that of a safetensors file ({type(error).__name__}: {error})") from error
    data = memoryview(raw)[_HEADER + length :]
    found = {}
    for name, kind, shape, (start, end) in entries:
        if kind not in _NAMED:
            raise BadArrays(f"{name}: dtype {kind} is none of {', '.join(_NAMED)}")
        dtype = _NAMED[kind]
        wanted = math.prod(shape) * _KINDS[dtype].size
        if not 0 <= start <= end <= len(data):
            raise BadArrays(f"{name}: lies at bytes {start} to {end} of {len(data)}: the file was cut short")
        if end - start != wanted:
            raise BadArrays(f"{name}: has {end - start} bytes, where {dtype} of shape {shape} takes {wanted}")
        found[name] = (dtype, _widened(bytes(data[start:end]), dtype, shape))
    return found


def _entries(header: Any) -> Iterator[tuple[str, str, tuple[int, ...], tuple[int, int]]]:
    for name, entry in header.items():
        start, end = entry["data_offsets"]
        yield name, entry["dtype"], tuple(map(int, entry["shape"])), (int(start), int(end))
