"""A person's first look at a run: the verdict, what to fix, one failure in full, and the other remarks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from goldformer.adapters.protocol import find_options
from goldformer.conformance.diagnosis.diagnosed import Explained
from goldformer.conformance.diagnosis.finding import MISTAKE_FOUND, OPTION_FOUND, RIGHT_HERE, Finding
from goldformer.conformance.diagnosis.suspects import ACCEPTED
from goldformer.conformance.reports.counting import count_noun
from goldformer.conformance.reports.record import RunRecord
from goldformer.conformance.reports.remarks import MISSING, NOTES
from goldformer.conformance.reports.text import (
    describe_failing,
    explain_verdict,
    fold_command,
    format_remarks,
    format_table,
    wrap,
)
from goldformer.spec import Spec
from goldformer.spec.edition import Edition, join_editions

#: The remarks that say nothing of why checks fail.
_BESIDE: Final = NOTES | {RIGHT_HERE}


#: The most lines of the findings of a failing run: with how many checks fail, and the command, they fit on a screen.
_SCREEN: Final = 22

#: The most calls of components that a screen shows, the words of such a note, and those of a call that is a guess.
_MOST_CALLS: Final = 1
_CALLED: Final = " is called as "
_GUESSED: Final = " by its names: "


@dataclass(frozen=True, slots=True)
class Line:
    """A line, or several, with the style that a terminal shows them in."""

    text: str
    style: str | None = None


def summarise(
    record: RunRecord,
    spec: Spec,
    *,
    brief: bool = False,
    whole: bool = False,
    more: str = "-v",
    each: str = "-v explains each",
) -> Iterator[Line]:
    """Yield the notes, then the verdict; if something fails, the notes are only counted, and the diagnosis is last.

    `whole` lists the notes in any case. `more` is what shows the reader the whole notes, and `each` says what shows the
    failures; a `brief` summary does not count them.
    """
    remarks, run = record.findings if whole else record.brief, record.run
    failing = [verdict for verdict in run if verdict.bad or verdict.is_fault]
    yield Line(record.title, "bold")
    if not failing:
        yield from list_rows(record)
        yield from list_remarks(remarks)
        yield from list_declarations(record, spec, whole=whole or more != "-v")
        if record.verdicts:
            yield make_edition_line(record.editions)
        return
    # Under --strict, what is not implemented fails.
    beside = _BESIDE - ({MISSING} if any(verdict.reason == "not-implemented" for verdict in failing) else set())
    findings = [remark for remark in remarks if remark.label not in beside]
    if whole:
        yield from list_remarks(remark for remark in remarks if remark.label in beside)
        yield from list_declarations(record, spec)
        yield make_edition_line(record.editions)
    else:
        yield from list_hints(record, whole=more != "-v")
        count = len(remarks) - len(findings) + len(record.conventions) + 1  # the edition of the spec
        yield Line(f"{count_noun(count, 'note')} ({more} lists all)", "dim")
    # An accepted bad call helps least.
    first = min(failing, key=lambda verdict: verdict.reason == ACCEPTED)
    # Where a name is found, it says more than numbers do.
    in_full = not brief and not any(finding.label in (MISTAKE_FOUND, OPTION_FOUND) for finding in findings)
    fault = next((verdict for verdict in failing if verdict.is_fault), None)
    for verdict in filter(None, (fault, first if in_full and first is not fault else None)):
        known = Explained(verdict, replace(run.about(verdict), fault=""))
        yield Line(f"\n{explain_verdict(known, spec)}\n")
    yield from list_rows(record)
    yield from list_remarks(findings if whole else shorten_findings(findings))
    if not brief:
        yield from map(Line, describe_failing(failing, first, each))
    yield Line(fold_command("Repeat: ", run.explain(first).reproduce))


def explain_all(record: RunRecord, spec: Spec) -> Iterator[Line]:
    """Yield every failure in full, also what is tolerated, then the notes, and the verdict with its diagnosis last."""
    for verdict in record.verdicts:
        if verdict.bad or verdict.is_fault or verdict.is_tolerated or record.run.get_note(verdict).fault:
            yield Line(f"{explain_verdict(record.run.explain(verdict), spec)}\n")
    yield from summarise(record, spec, brief=True, whole=True)


def shorten_findings(findings: Sequence[Finding]) -> list[Finding]:
    """Return findings that fit on a screen: whole, or whole for the first component, and a sentence for each other."""
    if len(format_remarks(findings)) <= _SCREEN:
        return list(findings)
    kept: list[Finding] = []
    heads = 0
    for finding in findings:
        heads += not finding.inner
        if not finding.inner or heads == 1:
            kept.append(finding)
        elif not kept[-1].inner:
            first, dot, _ = finding.text.partition(". ")
            kept.append(replace(finding, text=first + dot.rstrip()))
    return kept


def list_rows(record: RunRecord) -> Iterator[Line]:
    """Yield a row for each component that there is."""
    if rows := record.rows:
        heading, *lines = format_table(rows)
        yield Line(heading, "bold")
        yield from (Line(line, "red" if row.counts.bad else None) for row, line in zip(rows, lines, strict=True))


def list_remarks(remarks: Iterable[Finding]) -> Iterator[Line]:
    """Yield the remarks below the table of a run."""
    yield from map(Line, format_remarks(remarks))


def make_edition_line(editions: Iterable[Edition]) -> Line:
    """Return the line that names editions of the spec with their versions and digests, as a claim does."""
    return Line(f"Spec: {join_editions(editions)}", "dim")


def list_declarations(record: RunRecord, spec: Spec, *, whole: bool = True) -> Iterator[Line]:
    """Yield what an adapter declares, the families that do the same, and what was found out of it."""
    for text in group_declarations(record.conventions):
        yield from (Line(line, "dim") for line in wrap(text, "Declared", indent=2))
    if record.conventions and (families := _list_families(record, spec)):
        yield from map(Line, wrap(f"as in {', '.join(families)}", "Options: ", indent=2))
    yield from list_hints(record, whole=whole)


def group_declarations(conventions: Mapping[str, str]) -> Iterator[str]:
    """Yield the declared options of each component, to stand after "Declared"; those of all components first."""
    grouped: dict[str, list[str]] = {"": []}
    for name, option in conventions.items():
        component, _, convention = name.rpartition(".")
        grouped.setdefault(component, []).append(f"{convention}: {option}")
    for component, options in grouped.items():
        if options:
            yield f"{' for ' if component else ''}{component}: {', '.join(options)}"


def _list_families(record: RunRecord, spec: Spec) -> list[str]:
    """Return the families that have the components that were run, with the same options."""
    there = [row.component for row in record.rows]
    chosen = [item for name in there for item in find_options(record.conventions, name, spec).items()]
    return [
        family.id
        for family in spec.families.values()
        if {*there} <= {*family.components}
        and all(option in family.options.get(name, (spec.conventions[name].default,)) for name, option in chosen)
    ]


def list_hints(record: RunRecord, *, whole: bool) -> Iterator[Line]:
    """Yield what was found out of an adapter: how a class is called, a misspelt name, what is not checked.

    Unless `whole`, the calls of many classes that golden values prove are only counted.
    """
    called = [hint for hint in record.hints if _CALLED in hint and _GUESSED not in hint]
    folded = () if whole or len(called) <= _MOST_CALLS else called
    hints = [hint for hint in record.hints if hint not in folded]
    if folded:
        hints.append(f"golden values show how {len(folded)} components are called; -v lists it")
    for hint in hints:
        yield from map(Line, wrap(hint, "Note: ", indent=2))
