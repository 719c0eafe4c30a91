"""The pictures of a page: the ratio of each check to its tolerance, windows of wrong outputs, weights and encodings."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from goldformer.conformance.judging.applicability import select_plain_cases
from goldformer.conformance.judging.cases import Bench
from goldformer.conformance.judging.invoke import Arguments, CallProblem, read_arguments
from goldformer.conformance.judging.verdict import Difference, Grid, Verdict
from goldformer.conformance.reports.counting import count_noun
from goldformer.conformance.reports.text import format_ratio
from goldformer.spec import Case, Spec

#: The ends of a strip of ratios, in powers of ten; ratios beyond them are drawn at the end.
_DECADES: Final = (-4, 4)
#: The number of places of a strip in each power of ten.
_FINE: Final = 20
#: The largest side of a matrix that is drawn.
_SIDE: Final = 48
#: The most rows, and columns, of a matrix that shows its numbers.
_READABLE: Final = 8
#: The most characters of such a number.
_LABEL: Final = 8
#: Axes of contracts in the words of a course.
_AXES: Final = {"q_seq": "query", "kv_seq": "key", "seq": "position"}
#: The number of heads that are drawn.
_HEADS: Final = 4
#: The encodings that are drawn: positions and width.
_ENCODED: Final = (48, 32)


@dataclass(frozen=True, slots=True)
class StripDot:
    """Checks whose ratios are nearly equal: their place on the strip, from 0 to 1, their number, and a tooltip."""

    at: float
    count: int
    wrong: bool
    tooltip: str


@dataclass(frozen=True, slots=True)
class Strip:
    """The ratios of a component's checks, on a scale of powers of ten; `limit` is the place of 1."""

    component: str
    dots: tuple[StripDot, ...]
    limit: float
    text: str


@dataclass(frozen=True, slots=True)
class Spot:
    """A number of a matrix: its strength from 0 to 1, its sign or "odd" if it is not finite, and a tooltip.

    `label` is the number in few characters.
    """

    strength: float
    kind: str
    tooltip: str
    label: str = ""


@dataclass(frozen=True, slots=True)
class HeatMap:
    """A matrix as colours; `text` describes it for people who cannot see it.

    `axes` names its rows and its columns, and `origin` is its place in the whole matrix.
    """

    title: str
    rows: tuple[tuple[Spot, ...], ...]
    text: str
    axes: tuple[str, str] = ("", "")
    origin: tuple[int, int] = (0, 0)

    @property
    def shows_numbers(self) -> bool:
        """True if the matrix is small enough for its numbers to be printed."""
        return len(self.rows) <= _READABLE and len(self.rows[0]) <= _READABLE


@dataclass(frozen=True, slots=True)
class Picture:
    """A matrix from the output of an implementation, with a title: frozen, so that processes can exchange it."""

    title: str
    rows: tuple[tuple[float, ...], ...]


# ── strips ──


def make_strips(verdicts: Iterable[Verdict], components: Sequence[str]) -> list[Strip]:
    """Return a strip for each component that has measured checks."""
    ratios: dict[str, list[tuple[float, bool]]] = {name: [] for name in components}
    for verdict in verdicts:
        if verdict.ratio is not None:
            ratios[verdict.component].append((verdict.ratio, verdict.bad))
    return [_make_strip(name, found) for name, found in ratios.items() if found]


def _make_strip(component: str, ratios: Sequence[tuple[float, bool]]) -> Strip:
    places = Counter((_locate_ratio(ratio), wrong) for ratio, wrong in ratios)
    dots = tuple(StripDot(at, count, wrong, _describe_dot(at, count)) for (at, wrong), count in sorted(places.items()))
    worst = max(ratio for ratio, _ in ratios)
    return Strip(
        component,
        dots,
        _locate_ratio(1.0),
        f"{component}: {count_noun(len(ratios), 'check')}, the worst at {format_ratio(worst)}",
    )


def _locate_ratio(ratio: float) -> float:
    low, high = _DECADES
    power = low if ratio <= 0 else high if math.isinf(ratio) else min(max(math.log10(ratio), low), high)
    return round((power - low) * _FINE) / ((high - low) * _FINE)


def _describe_dot(at: float, count: int) -> str:
    low, high = _DECADES
    ratio = 10 ** (low + at * (high - low))
    about = f"up to {ratio:.0e}" if at == 0 else f"{ratio:.0e} or more" if at == 1 else f"about {ratio:.2g}"
    return f"{count_noun(count, 'check')}: {about}"


# ── windows of wrong outputs ──


def compare_values(difference: Difference, axes: tuple[str, str] = ("", "")) -> tuple[HeatMap, ...]:
    """Draw the expected and the actual values, and their difference where it exceeds the tolerance."""
    return draw_side_by_side(difference.grid, difference.tolerance, ("expected", "actual"), axes)


def name_axes(component: str, output: str, spec: Spec) -> tuple[str, str]:
    """Return the names of the last two axes of an output; empty if the contract does not name them."""
    array = spec.contracts[component].outputs.get(output)
    names = [str(axis) for axis in array.shape.axes] if array is not None else []
    first, last = ("", "", *(_AXES.get(name, name) for name in names))[-2:]
    return first, last


def draw_side_by_side(
    grid: Grid | None, tolerance: float, names: tuple[str, str], axes: tuple[str, str] = ("", "")
) -> tuple[HeatMap, ...]:
    """Draw both matrices of a window, and the second minus the first where that exceeds the tolerance."""
    if grid is None:
        return ()
    expected, actual = np.array(grid.expected), np.array(grid.got)
    with np.errstate(invalid="ignore"):
        off = actual - expected
    off[(actual == expected) | (np.isnan(actual) & np.isnan(expected)) | (np.abs(off) <= tolerance)] = 0.0
    scale = _find_largest(expected) or _find_largest(actual)
    first, last = (0, 0, *grid.origin)[-2:]
    maps = (
        draw_matrix(names[0], expected, scale),
        draw_matrix(names[1], actual, scale),
        draw_matrix(f"{names[1]} − {names[0]}", off, _find_largest(off)),
    )
    return tuple(replace(map_, axes=axes, origin=(first, last)) for map_ in maps)


def name_window(output: str, grid: Grid | None) -> str:
    """Return the part of an output in a window, as "output[0, 1, 0:12, 4:16]"; its name if the window has all of it."""
    if grid is None:
        return output
    sizes = (len(grid.expected), len(grid.expected[0]))[2 - len(grid.shape) :]
    if not grid.lead and sizes == grid.shape:
        return output
    places = [str(at) for at in grid.lead]
    places += [f"{start}:{start + size}" for start, size in zip(grid.origin, sizes, strict=True)]
    return f"{output}[{', '.join(places)}]"


def draw_matrix(title: str, values: NDArray[np.float64], scale: float) -> HeatMap:
    """Draw a matrix on a scale that ends at ±`scale`."""
    rows = tuple(tuple(_make_spot(float(value), scale) for value in row) for row in values)
    finite = values[np.isfinite(values)]
    span = f"from {finite.min():.3g} to {finite.max():.3g}" if finite.size else "without a finite number"
    odd = values.size - finite.size
    also = f", {odd} of them not finite" if odd and finite.size else ""
    return HeatMap(title, rows, f"{title}, {len(rows)} × {len(rows[0])} numbers {span}{also}")


def _make_spot(value: float, scale: float) -> Spot:
    if not math.isfinite(value):
        return Spot(1.0, "odd", str(value), str(value))
    strength = min(1.0, abs(value) / scale) if scale else 0.0
    label = f"{value:.3g}"
    label = label if len(label) <= _LABEL else f"{value:.2g}"
    return Spot(round(strength, 3), "low" if value < 0 else "high", f"{value:.6g}", label)


def _find_largest(values: NDArray[np.float64]) -> float:
    finite = values[np.isfinite(values)]
    return float(np.abs(finite).max(initial=0.0))


# ── pictures of what an implementation gives ──


def make_pictures(bench: Bench) -> tuple[Picture, ...]:
    """Return attention weights, of one head and of several, and positional encodings, if the output has them."""
    attention = (
        _take_weights(component, bench) for component in ("scaled_dot_product_attention", "multi_head_attention")
    )
    return (*(picture for found in attention for picture in found), *_take_encodings(bench))


def _take_weights(component: str, bench: Bench) -> Iterator[Picture]:
    """Yield the weights of the largest case that fits into a picture."""
    if component not in bench.adapter.functions or bench.explain_unusable(component):
        return
    fitting = [case for case in select_plain_cases(component, bench) if 0 < _count_weights(case) <= _SIDE**2]
    if not fitting:
        return
    case = max(fitting, key=_count_weights)
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
        yield Picture(f"Attention weights of {case.id}{which}: a row for each query", _make_rows(matrix))


def _count_weights(case: Case) -> int:
    """Return the number of weights of a head in a case; 0 if the case does not check them."""
    for outputs in case.golden.options.values() if case.golden is not None and case.cotangent is None else ():
        golden = (outputs or {}).get("weights")
        if golden is not None and golden.indices is None:
            return int(golden.values.shape[-2] * golden.values.shape[-1])
    return 0


def _take_encodings(bench: Bench) -> Iterator[Picture]:
    component = "positional_encoding"
    if component not in bench.adapter.functions or bench.explain_unusable(component):
        return
    arguments = Arguments({"x": np.zeros((1, *_ENCODED))}, {}, {})
    try:
        encoded = bench.call(component, arguments).outputs["output"]
    except CallProblem:
        return
    yield Picture("Positional encoding: a row for each position", _make_rows(encoded[0]))


def _make_rows(matrix: NDArray[np.float64]) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(map(float, row)) for row in matrix.tolist())


def draw_picture(picture: Picture) -> HeatMap:
    """Draw a picture."""
    values = np.array(picture.rows)
    return draw_matrix(picture.title, values, _find_largest(values))
