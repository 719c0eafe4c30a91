"""Show a class: the distribution of points, the mistakes and who made them, the hardest checks, and every student."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import Final
from urllib.parse import quote

from goldformer.adapters.untrusted_text import printable
from goldformer.conformance.diagnosis.causes import find_cause
from goldformer.conformance.grading.model import SEVERITY, Assignment, Grade, Origin, Outcome
from goldformer.conformance.grading.results import words
from goldformer.conformance.grading.results.gradebook import sort_by_id
from goldformer.conformance.reports.page import render
from goldformer.spec import Spec

#: The number of bars of the histogram, and the size of its drawing.
_BARS: Final = 10
_WIDTH, _HEIGHT, _FOOT, _HEAD = 440, 190, 24, 18

#: The number of the hardest checks that are listed.
_HARDEST: Final = 10


@dataclass(frozen=True, slots=True)
class HistogramBar:
    """A bar of the histogram: its place in the drawing, its number of students, and its range in words."""

    x: float
    y: float
    height: float
    count: int
    label: str
    range: str


@dataclass(frozen=True, slots=True)
class MistakeStatistics:
    """A mistake or a neighbour, and the students whose diagnosis is certain of it, or calls it possible.

    `name` is the id of a mistake of the catalogue; a neighbour has none for readers.
    """

    id: str
    name: str
    title: str
    hint: str
    certain: tuple[Grade, ...]
    maybe: tuple[Grade, ...]


@dataclass(frozen=True, slots=True)
class ComponentStatistics:
    """A component: its mean, and the numbers of students with all, some, or none of its points, or without it."""

    component: str
    title: str
    points: float
    mean: float
    full: int
    some: int
    none: int
    missing: int


@dataclass(frozen=True, slots=True)
class CheckStatistics:
    """A check, and the number of students who fail it although they wrote its component."""

    check: str
    origin: Origin
    title: str
    failed: int


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A question of the table of students, or a component if there are no questions."""

    title: str
    points: float
    components: tuple[str, ...]

    def earned(self, line: Grade) -> float | None:
        """Return the points of a student in this column; None if there are none."""
        mine = [part.earned for part in line.parts if part.component in self.components]
        return sum(mine) if mine else None


def class_page(lines: Iterable[Grade], assignment: Assignment, spec: Spec, left_out: str = "") -> str:
    """Return the page for the staff, which names the students; ValueError if there are none.

    `left_out` is the line that says what nobody is asked for.
    """
    return _render(sort_by_id(lines), assignment, spec, left_out, anonymous=False)


def anonymous_page(lines: Iterable[Grade], assignment: Assignment, spec: Spec, left_out: str = "") -> str:
    """Return the page to show to a class: it names no student and no drawn case; ValueError if there is no student."""
    return _render(sort_by_id(lines), assignment, spec, left_out, anonymous=True)


def _render(
    listed: list[Grade],
    assignment: Assignment,
    spec: Spec,
    left_out: str,
    *,
    anonymous: bool,
) -> str:
    if not listed:
        raise ValueError("lines: no student, expected at least one")
    earned = [line.earned for line in listed]
    mistakes = list(_rate_mistakes(listed, spec))
    names = {made.id: made.name or made.title for made in mistakes}
    return printable(
        render(
            "class.html",
            assignment=assignment,
            lines=listed,
            figures=_list_figures(earned, assignment),
            bars=list(_draw_histogram(earned, assignment.points)),
            size=(_WIDTH, _HEIGHT, _FOOT),
            asked=list(_rate_components(listed, assignment, spec)),
            left_out=left_out,
            outcomes=_group_by_outcome(listed),
            mistakes=mistakes,
            names=names,
            name_all=lambda ids: ", ".join(names[id_] for id_ in ids),
            unnamed=[line for line in listed if line.outcome == "wrong" and not line.mistakes + line.maybe],
            only_published=[line for line in listed if any(part.passes_only_published for part in line.parts)],
            hardest=_find_hardest(listed, spec, fresh=not anonymous),
            anonymous=anonymous,
            columns=_list_columns(assignment),
            isolation=_count_isolation(listed),
            href=make_link,
            words=words,
        )
    )


def make_link(line: Grade, page: str) -> str:
    """Return the link from the class' page to a student's page."""
    return f"students/{quote(line.submission, safe='', errors='replace')}/{page}"


def _list_figures(earned: Sequence[float], assignment: Assignment) -> dict[str, str]:
    full = sum(value >= assignment.points for value in earned)
    return {
        "students": str(len(earned)),
        "mean": words.points(mean(earned)),
        "median": words.points(median(earned)),
        "all points": str(full),
        "no points": str(sum(value <= 0 for value in earned)),
    }


def _draw_histogram(earned: Iterable[float], points: float) -> Iterator[HistogramBar]:
    most = points or 1.0
    counts = Counter(min(_BARS - 1, int(_BARS * value / most)) for value in earned)
    width, space = _WIDTH / _BARS, _HEIGHT - _FOOT - _HEAD
    for nth in range(_BARS):
        height = space * counts[nth] / max(counts.values())
        low, high = words.points(most * nth / _BARS), words.points(most * (nth + 1) / _BARS)
        said = f"{low} to {high}" if nth == _BARS - 1 else f"{low} to below {high}"
        yield HistogramBar(
            round(width * nth, 1), round(_HEIGHT - _FOOT - height, 1), round(height, 1), counts[nth], low, said
        )


def _rate_components(lines: Sequence[Grade], assignment: Assignment, spec: Spec) -> Iterator[ComponentStatistics]:
    for part in assignment.parts:
        mine = [p for line in lines for p in line.parts if p.component == part.component]
        missing = [p for p in mine if p.outcome == "missing" and p.earned <= 0]
        written = [p for p in mine if p not in missing]
        full = sum(p.earned >= p.points for p in written)
        none = sum(p.earned <= 0 < p.points for p in written)
        yield ComponentStatistics(
            part.component, spec.contracts[part.component].title, part.points,
            mean([p.earned for p in mine] or [0.0]), full, len(written) - full - none, none, len(missing),
        )  # fmt: skip


def _group_by_outcome(lines: Iterable[Grade]) -> list[tuple[Outcome, list[Grade]]]:
    """Group the students by their outcomes, the best first."""
    found: defaultdict[Outcome, list[Grade]] = defaultdict(list)
    for line in lines:
        found[line.outcome].append(line)
    return sorted(found.items(), key=lambda item: SEVERITY.index(item[0]))


def _rate_mistakes(lines: Iterable[Grade], spec: Spec) -> Iterator[MistakeStatistics]:
    certain: defaultdict[str, list[Grade]] = defaultdict(list)
    maybe: defaultdict[str, list[Grade]] = defaultdict(list)
    for line in lines:
        for id_ in line.mistakes:
            certain[id_].append(line)
        for id_ in line.maybe:
            maybe[id_].append(line)
    for id_ in sorted({*certain, *maybe}, key=lambda id_: (-len(certain[id_]), -len(maybe[id_]), id_)):
        cause = find_cause(id_, spec)
        name, title = ("", cause.title) if cause.generated else (id_, spec.mistakes[id_].title)
        yield MistakeStatistics(id_, name, title, cause.hint, tuple(certain[id_]), tuple(maybe[id_]))


def _list_columns(assignment: Assignment) -> list[TableColumn]:
    points = {part.component: part.points for part in assignment.parts}
    groups = assignment.questions or {component: (component,) for component in points}
    return [TableColumn(title, sum(points[c] for c in parts), parts) for title, parts in groups.items()]


def _find_hardest(lines: Iterable[Grade], spec: Spec, *, fresh: bool) -> list[CheckStatistics]:
    counts = Counter(key for line in lines for key in line.failed if fresh or key[0] != "fresh")
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:_HARDEST]
    return [CheckStatistics(check, origin, _find_title(check, spec), count) for (origin, check), count in ordered]


def _find_title(check: str, spec: Spec) -> str:
    found = spec.cases.get(check) or spec.properties.get(check)
    return found.title if found is not None else ""


def _count_isolation(lines: Iterable[Grade]) -> list[tuple[str, int, str]]:
    """Return each level of isolation, its number of submissions, and the features that were missing and why."""
    counts = Counter(
        (line.isolation.level, "; ".join(f"{name}: {why}" for name, why in sorted(line.isolation.missing.items())))
        for line in lines
    )
    return [(level, count, missing) for (level, missing), count in sorted(counts.items())]
