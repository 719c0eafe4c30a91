"""The page of a class: how points are spread, which mistakes were made by whom, what was hardest, and every student."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import Final
from urllib.parse import quote

from goldformer.adapters.process.faults import printable
from goldformer.conformance.grading.model import SEVERITY, Assignment, Origin, Outcome
from goldformer.conformance.grading.results import words
from goldformer.conformance.grading.results.gradebook import by_id
from goldformer.conformance.grading.results.summaries import Line
from goldformer.conformance.reports.page import render
from goldformer.spec import Mistake, Spec

#: The histogram: so many bars from nothing to all points, in a drawing of this size.
_BARS: Final = 10
_WIDTH, _HEIGHT, _FOOT, _HEAD = 440, 190, 24, 18

#: How many of the hardest checks are listed.
_HARDEST: Final = 10


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar of the histogram: its place in the drawing, how many students, and its range in words."""

    x: float
    y: float
    height: float
    count: int
    label: str
    range: str


@dataclass(frozen=True, slots=True)
class Made:
    """A mistake, and the students whose diagnosis is certain of it, or only says that it could be."""

    mistake: Mistake
    certain: tuple[Line, ...]
    maybe: tuple[Line, ...]


@dataclass(frozen=True, slots=True)
class Asked:
    """A component in the whole class: its mean, and how many got all, some, or none of its points, or wrote nothing."""

    component: str
    title: str
    points: float
    mean: float
    full: int
    some: int
    none: int
    missing: int


@dataclass(frozen=True, slots=True)
class Hard:
    """A check, and how many students fail it of those who wrote its component."""

    check: str
    origin: Origin
    title: str
    failed: int


def class_page(lines: Iterable[Line], assignment: Assignment, spec: Spec) -> str:
    """The page, of one line for each student: for staff, as it names them. ValueError where there is none."""
    listed = by_id(lines)
    if not listed:
        raise ValueError("lines: got no student, expected at least one")
    earned = [line.earned for line in listed]
    return printable(
        render(
            "class.html",
            assignment=assignment,
            lines=listed,
            figures=_figures(earned, assignment),
            bars=list(_histogram(earned, assignment.points)),
            size=(_WIDTH, _HEIGHT, _FOOT),
            asked=list(_asked(listed, assignment, spec)),
            outcomes=_outcomes(listed),
            mistakes=list(_mistakes(listed, spec)),
            unnamed=[line for line in listed if line.outcome == "wrong" and not line.mistakes + line.maybe],
            alone=[line for line in listed if any(part.alone for part in line.parts)],
            hardest=_hardest(listed, spec),
            isolation=_isolation(listed),
            href=href,
            words=words,
        )
    )


def href(line: Line, page: str) -> str:
    """Where a student's page lies, from the class' page."""
    return f"students/{quote(line.submission, safe='', errors='replace')}/{page}"


def _figures(earned: Sequence[float], assignment: Assignment) -> dict[str, str]:
    full = sum(value >= assignment.points for value in earned)
    return {
        "students": str(len(earned)),
        "mean": words.points(mean(earned)),
        "median": words.points(median(earned)),
        "all points": str(full),
        "no points": str(sum(value <= 0 for value in earned)),
    }


def _histogram(earned: Iterable[float], points: float) -> Iterator[Bar]:
    most = points or 1.0
    counts = Counter(min(_BARS - 1, int(_BARS * value / most)) for value in earned)
    width, room = _WIDTH / _BARS, _HEIGHT - _FOOT - _HEAD
    for nth in range(_BARS):
        height = room * counts[nth] / max(counts.values())
        low, high = words.points(most * nth / _BARS), words.points(most * (nth + 1) / _BARS)
        said = f"{low} to {high}" if nth == _BARS - 1 else f"{low} to below {high}"
        yield Bar(round(width * nth, 1), round(_HEIGHT - _FOOT - height, 1), round(height, 1), counts[nth], low, said)


def _asked(lines: Sequence[Line], assignment: Assignment, spec: Spec) -> Iterator[Asked]:
    for part in assignment.parts:
        mine = [p for line in lines for p in line.parts if p.component == part.component]
        missing = [p for p in mine if p.outcome == "missing" and p.earned <= 0]
        written = [p for p in mine if p not in missing]
        full = sum(p.earned >= p.points for p in written)
        none = sum(p.earned <= 0 < p.points for p in written)
        yield Asked(
            part.component, spec.contracts[part.component].title, part.points,
            mean([p.earned for p in mine] or [0.0]), full, len(written) - full - none, none, len(missing),
        )  # fmt: skip


def _outcomes(lines: Iterable[Line]) -> list[tuple[Outcome, list[Line]]]:
    """The students by how theirs came out, the best first."""
    found: defaultdict[Outcome, list[Line]] = defaultdict(list)
    for line in lines:
        found[line.outcome].append(line)
    return sorted(found.items(), key=lambda item: SEVERITY.index(item[0]))


def _mistakes(lines: Iterable[Line], spec: Spec) -> Iterator[Made]:
    certain: defaultdict[str, list[Line]] = defaultdict(list)
    maybe: defaultdict[str, list[Line]] = defaultdict(list)
    for line in lines:
        for id_ in line.mistakes:
            certain[id_].append(line)
        for id_ in line.maybe:
            maybe[id_].append(line)
    known = sorted({*certain, *maybe} & spec.mistakes.keys())
    for id_ in sorted(known, key=lambda id_: (-len(certain[id_]), -len(maybe[id_]), id_)):
        yield Made(spec.mistakes[id_], tuple(certain[id_]), tuple(maybe[id_]))


def _hardest(lines: Iterable[Line], spec: Spec) -> list[Hard]:
    counts = Counter(key for line in lines for key in line.failed)
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:_HARDEST]
    return [Hard(check, origin, _title(check, spec), count) for (origin, check), count in ordered]


def _title(check: str, spec: Spec) -> str:
    found = spec.cases.get(check) or spec.properties.get(check)
    return found.title if found is not None else ""


def _isolation(lines: Iterable[Line]) -> list[tuple[str, int, str]]:
    """How submissions were kept apart: the level, how many, and what was not in force and why."""
    counts = Counter(
        (line.isolation.level, "; ".join(f"{name}: {why}" for name, why in sorted(line.isolation.missing.items())))
        for line in lines
    )
    return [(level, count, missing) for (level, missing), count in sorted(counts.items())]
