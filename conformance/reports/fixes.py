"""The findings of a run as pages show them: below each component the fix as code comes first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from goldformer.conformance.diagnosis.causes import find_cause
from goldformer.conformance.diagnosis.finding import Finding
from goldformer.spec import Mistake, Spec
from goldformer.spec.tables import find_address

#: The label of what to do, in words.
FIX: Final = "Fix"


F = TypeVar("F", bound=Finding)


@dataclass(frozen=True, slots=True)
class ShownFinding:
    """A finding, and the mistakes of the catalogue that it names with the addresses of threads."""

    label: str
    text: str
    inner: bool = True
    is_code: bool = False
    mistakes: tuple[tuple[Mistake, Mapping[str, str]], ...] = ()


def show_fixes_first(findings: Iterable[Finding], spec: Spec) -> list[ShownFinding]:
    """Return findings as they are shown, with the fix before its reasons."""
    split = [part for finding in findings for part in _split_fix(finding, spec)]
    return [_show(finding, spec) for finding in put_fixes_first(split)]


def put_fixes_first(findings: Iterable[F]) -> list[F]:
    """Order findings: below each component the code of the fix, then the fix in words, then the reasons."""
    groups: list[list[F]] = []
    for finding in findings:
        if not (finding.inner and groups):
            groups.append([])
        groups[-1].append(finding)
    return [finding for group in groups for finding in sorted(group, key=_rank)]


def _rank(finding: Finding) -> int:
    return 0 if not finding.inner else 1 if finding.is_code else 2 if finding.label == FIX else 3


def _split_fix(finding: Finding, spec: Spec) -> Iterator[Finding]:
    """Yield a finding without the hints of its mistakes, which end its text, and these as the fix in words."""
    fix = " ".join(hint for id_ in finding.mistakes if (hint := find_cause(id_, spec).hint))
    if fix and finding.text.endswith(fix):
        yield replace(finding, text=finding.text.removesuffix(fix).rstrip())
        yield Finding(FIX, fix)
    else:
        yield finding


def _show(finding: Finding, spec: Spec) -> ShownFinding:
    known = [spec.mistakes[id_] for id_ in finding.mistakes if id_ in spec.mistakes]
    seen = tuple((mistake, {place: find_address(place) for place in mistake.seen}) for mistake in known)
    return ShownFinding(finding.label, finding.text, finding.inner, finding.is_code, seen)
