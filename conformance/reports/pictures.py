"""What a page draws: how far each check lies from its tolerance, windows of wrong outputs, weights and encodings."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from goldformer.conformance.judging.cases import Bench, select_plain_cases
from goldformer.conformance.judging.invoke import Arguments, CallProblem, read_arguments
from goldformer.conformance.judging.verdict import Difference, Grid, Verdict
from goldformer.conformance.reports.text import number
from goldformer.spec import Case

#: Where a strip of ratios begins and ends, in powers of ten; what lies beyond stands at its end.
_DECADES: Final = (-4, 4)
#: So many places a strip has in each power of ten.
_FINE: Final = 20
#: The largest side of a matrix that is drawn as a picture.
_SIDE: Final = 48
#: So many heads are drawn.
_HEADS: Final = 4
#: The encodings that are drawn: positions and width.
_ENCODED: Final = (48, 32)


@dataclass(frozen=True, slots=True)
class Dot:
    """Checks whose ratios are nearly one: their place on the strip, from 0 to 1, how many, and what they are."""

    at: float
    count: int
    wrong: bool
    said: str


@dataclass(frozen=True, slots=True)
class Strip:
    """The ratios of a component's checks, on a scale of powers of ten; `limit` is where 1 lies."""

    component: str
    dots: tuple[Dot, ...]
    limit: float
    said: str


@dataclass(frozen=True, slots=True)
class Spot:
    """A number of a matrix: its strength from 0 to 1, its sign or that it is none, and itself."""

    strength: float
    kind: str
    said: str


@dataclass(frozen=True, slots=True)
class Heat:
    """A matrix as it is drawn; `said` is for who does not see it."""

    title: str
    rows: tuple[tuple[Spot, ...], ...]
    said: str


@dataclass(frozen=True, slots=True)
class Picture:
    """A matrix that an implementation gave, and of what: frozen, so that it travels between processes."""

    title: str
    rows: tuple[tuple[float, ...], ...]


# ── strips ──


def strips(verdicts: Iterable[Verdict], components: Sequence[str]) -> list[Strip]:
    """A strip for each component of which some check was measured."""
    ratios: dict[str, list[tuple[float, bool]]] = {name: [] for name in components}
    for verdict in verdicts:
        if verdict.ratio is not None:
            ratios[verdict.component].append((verdict.ratio, verdict.bad))
    return [_strip(name, found) for name, found in ratios.items() if found]


def _strip(component: str, ratios: Sequence[tuple[float, bool]]) -> Strip:
    places = Counter((_place(ratio), wrong) for ratio, wrong in ratios)
    dots = tuple(Dot(at, count, wrong, _dot(at, count)) for (at, wrong), count in sorted(places.items()))
    worst = max(ratio for ratio, _ in ratios)
    return Strip(component, dots, _place(1.0), f"{component}: {_checks(len(ratios))}, the worst at {number(worst)}")


def _place(ratio: float) -> float:
    low, high = _DECADES
    power = low if ratio <= 0 else high if math.isinf(ratio) else min(max(math.log10(ratio), low), high)
    return round((power - low) * _FINE) / ((high - low) * _FINE)


def _dot(at: float, count: int) -> str:
    low, high = _DECADES
    ratio = 10 ** (low + at * (high - low))
    about = f"up to {ratio:.0e}" if at == 0 else f"{ratio:.0e} or more" if at == 1 else f"about {ratio:.2g}"
    return f"{_checks(count)}: {about}"


def _checks(count: int) -> str:
    return f"{count} check{'s' if count != 1 else ''}"


# ── windows of wrong outputs ──


def heats(difference: Difference) -> tuple[Heat, ...]:
    """What was expected, what was got, and the difference where it is beyond the tolerance."""
    return side_by_side(difference.grid, difference.tolerance, ("expected", "got"))


def side_by_side(grid: Grid | None, tolerance: float, names: tuple[str, str]) -> tuple[Heat, ...]:
    """Both matrices of a window under their names, and the second less the first where it is beyond the tolerance."""
    if grid is None:
        return ()
    expected, got = np.array(grid.expected), np.array(grid.got)
    with np.errstate(invalid="ignore"):
        off = got - expected
    off[(got == expected) | (np.isnan(got) & np.isnan(expected)) | (np.abs(off) <= tolerance)] = 0.0
    scale = _largest(expected) or _largest(got)
    return (
        heat(names[0], expected, scale),
        heat(names[1], got, scale),
        heat(f"{names[1]} − {names[0]}", off, _largest(off)),
    )


def where(output: str, grid: Grid | None) -> str:
    """Which part of an output a window shows, as in "output[0, 1, 0:12, 4:16]"; its name where that is all of it."""
    if grid is None:
        return output
    sizes = (len(grid.expected), len(grid.expected[0]))[2 - len(grid.shape) :]
    if not grid.lead and sizes == grid.shape:
        return output
    places = [str(at) for at in grid.lead]
    places += [f"{start}:{start + size}" for start, size in zip(grid.origin, sizes, strict=True)]
    return f"{output}[{', '.join(places)}]"


def heat(title: str, values: NDArray[np.float64], scale: float) -> Heat:
    """A matrix drawn on a scale that ends at ±`scale`."""
    rows = tuple(tuple(_spot(float(value), scale) for value in row) for row in values)
    finite = values[np.isfinite(values)]
    span = f"from {finite.min():.3g} to {finite.max():.3g}" if finite.size else "without a finite number"
    odd = values.size - finite.size
    also = f", {odd} of them not finite" if odd and finite.size else ""
    return Heat(title, rows, f"{title}, {len(rows)} × {len(rows[0])} numbers {span}{also}")


def _spot(value: float, scale: float) -> Spot:
    if not math.isfinite(value):
        return Spot(1.0, "odd", str(value))
    strength = min(1.0, abs(value) / scale) if scale else 0.0
    return Spot(round(strength, 3), "low" if value < 0 else "high", f"{value:.6g}")


def _largest(values: NDArray[np.float64]) -> float:
    finite = values[np.isfinite(values)]
    return float(np.abs(finite).max(initial=0.0))


# ── pictures of what an implementation gives ──


def pictures(bench: Bench) -> tuple[Picture, ...]:
    """Attention weights, of one head and of several, and positional encodings, as far as it gives them."""
    attention = (_weights(component, bench) for component in ("scaled_dot_product_attention", "multi_head_attention"))
    return (*(picture for found in attention for picture in found), *_encodings(bench))


def _weights(component: str, bench: Bench) -> Iterator[Picture]:
    """The weights of the largest case that fits into a picture."""
    if component not in bench.adapter.functions or bench.explain_unusable():
        return
    fitting = [case for case in select_plain_cases(component, bench) if 0 < _area(case) <= _SIDE**2]
    if not fitting:
        return
    case = max(fitting, key=_area)
    try:
        weights = bench.call(component, read_arguments(case)).outputs.get("weights")
    except CallProblem:
        return
    if weights is None:
        return
    matrices = weights.reshape(-1, *weights.shape[-2:])
    heads = weights.shape[-3] if weights.ndim > 3 else 1
    for nth, matrix in enumerate(matrices[: min(heads, _HEADS)]):
        which = f", head {nth}" if heads > 1 else ""
        yield Picture(f"Attention weights of {case.id}{which}: a row for each query", _rows(matrix))


def _area(case: Case) -> int:
    """How many numbers a head's weights have in a case; 0 where it does not ask for them."""
    for outputs in case.golden.options.values() if case.golden is not None and case.cotangent is None else ():
        golden = (outputs or {}).get("weights")
        if golden is not None and golden.indices is None:
            return int(golden.values.shape[-2] * golden.values.shape[-1])
    return 0


def _encodings(bench: Bench) -> Iterator[Picture]:
    component = "positional_encoding"
    if component not in bench.adapter.functions or bench.explain_unusable():
        return
    arguments = Arguments({"x": np.zeros((1, *_ENCODED))}, {}, {})
    try:
        encoded = bench.call(component, arguments).outputs["output"]
    except CallProblem:
        return
    yield Picture("Positional encoding: a row for each position", _rows(encoded[0]))


def _rows(matrix: NDArray[np.float64]) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(map(float, row)) for row in matrix.tolist())


def drawn(picture: Picture) -> Heat:
    """A picture as it is drawn."""
    values = np.array(picture.rows)
    return heat(picture.title, values, _largest(values))
