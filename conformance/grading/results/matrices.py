"""Small outputs as heat maps: what was expected, what was got, and the difference, in SVG and in words."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from goldformer.conformance.text import number

#: Rows and columns that are drawn at most.
MOST: Final = 12

#: A check, its dtype and the output.
Key = tuple[str, str, str]

_CELL: Final = 26


@dataclass(frozen=True, slots=True)
class Matrices:
    """An output of at most MOST rows and columns: what it should have been, and what it was; ValueError otherwise."""

    output: str
    expected: tuple[tuple[float, ...], ...]
    got: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        shapes = {(len(rows), *{len(row) for row in rows}) for rows in (self.expected, self.got)}
        shape = shapes.pop()
        if shapes or len(shape) != 2 or not 0 < min(shape) <= max(shape) <= MOST:
            raise ValueError(
                f"{self.output}: expected and got must be two matrices of one shape, up to {MOST} × {MOST}"
            )


@dataclass(frozen=True, slots=True)
class Square:
    """A cell of a heat map: its place in the drawing, how strong and of which sign it is, and its value in words."""

    x: int
    y: int
    strength: float
    sign: str
    title: str


@dataclass(frozen=True, slots=True)
class Picture:
    """A heat map: its name, its size, its cells, and the same as rows of text."""

    name: str
    width: int
    height: int
    squares: tuple[Square, ...]
    rows: tuple[tuple[str, ...], ...]


def pictures(matrices: Matrices) -> Iterator[Picture]:
    """The three heat maps of an output; expected and got share a scale."""
    difference = tuple(
        tuple(g - e for e, g in zip(expected, got, strict=True))
        for expected, got in zip(matrices.expected, matrices.got, strict=True)
    )
    shared = _largest((*matrices.expected, *matrices.got))
    yield _picture("expected", matrices.expected, shared)
    yield _picture("got", matrices.got, shared)
    yield _picture("got − expected", difference, _largest(difference))


def _picture(name: str, rows: Sequence[Sequence[float]], largest: float) -> Picture:
    squares = tuple(
        _square(value, row, column, largest) for row, values in enumerate(rows) for column, value in enumerate(values)
    )
    texts = tuple(tuple(_text(value) for value in values) for values in rows)
    return Picture(name, _CELL * len(rows[0]), _CELL * len(rows), squares, texts)


def _square(value: float, row: int, column: int, largest: float) -> Square:
    strength = abs(value) / largest if math.isfinite(value) and largest else 0.0
    sign = "odd" if not math.isfinite(value) else "less" if value < 0 else "more"
    return Square(_CELL * column, _CELL * row, round(strength, 3), sign, f"[{row}, {column}] {_text(value)}")


def _largest(rows: Iterable[Sequence[float]]) -> float:
    return max((abs(value) for row in rows for value in row if math.isfinite(value)), default=0.0)


def _text(value: float) -> str:
    return "−∞" if value == -math.inf else "NaN" if math.isnan(value) else number(value)
