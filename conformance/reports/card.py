"""The result of one check on a card: the verdict, the mistake that was found, its fix, and the first wrong number."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from goldformer.adapters.untrusted_text import printable
from goldformer.conformance.diagnosis.diagnosed import Explained
from goldformer.conformance.diagnosis.finding import FIRST_SEEN, FIX_FIRST, FIX_TOO, REPEAT, Finding
from goldformer.conformance.diagnosis.suspects import ACCEPTED
from goldformer.conformance.judging.verdict import Verdict
from goldformer.conformance.reports.fixes import ShownFinding, show_fixes_first
from goldformer.conformance.reports.markdown import SYMBOLS, describe_outcome, summarize_result
from goldformer.conformance.reports.page import render
from goldformer.conformance.reports.record import Outcome, RunRecord
from goldformer.conformance.reports.remarks import TOO_FEW
from goldformer.conformance.reports.results import PARTIAL
from goldformer.conformance.reports.summary import group_declarations
from goldformer.conformance.reports.text import (
    describe_clause,
    describe_element,
    explain_verdict,
    list_broken_clauses,
    wrap,
)
from goldformer.spec import Clause, Spec

#: The number of failing checks that a card lists.
_LISTED: Final = 10

#: The labels of the findings that name a component; inner findings after them are about it.
_HEADS: Final = frozenset({FIX_FIRST, FIX_TOO, TOO_FEW})


@dataclass(frozen=True, slots=True)
class Card:
    """One implementation on a card.

    `components` are a name and a few characters for each component that was judged, `first` is the check to look at
    first, and `first_wrong` its first wrong number in words. `hints` are remarks on the code, such as a misspelt name,
    and `notes` all other remarks of the run.
    """

    outcome: Outcome
    title: str
    verdict: str
    dtypes: str
    components: tuple[tuple[str, str], ...]
    findings: tuple[ShownFinding, ...]
    first: Explained | None
    first_wrong: str
    clauses: tuple[Clause, ...]
    whole_first: str
    failures: tuple[Verdict, ...]
    more: int
    hints: tuple[str, ...]
    notes: tuple[str, ...]
    printed: str

    @classmethod
    def of(cls, record: RunRecord, dtypes: Sequence[str], spec: Spec, printed: str = "") -> Card:
        """Collect what a card shows; `printed` is the output of the record."""
        remarks = record.findings
        first = _find_first(record.bad, remarks)
        explained = record.run.explain(first) if first else None
        components = {n: r for n, r in record.results.items() if r.counts.number_judged or r.state == PARTIAL}
        # With one component, its name is in the title.
        hidden = {FIRST_SEEN, REPEAT, *({FIX_FIRST} if len(components) == 1 else ())}
        shown = [r for r in remarks if (r.inner or r.label in _HEADS) and r.label not in hidden]
        notes = [f"{r.label}: {r.text}" for r in remarks if not r.inner and r.label not in _HEADS]
        notes += [f"Declared{text}" for text in group_declarations(record.conventions)]
        return cls(
            record.outcome, record.title, _describe_verdict(record), ", ".join(dtypes),
            tuple((name, summarize_result(result)) for name, result in components.items()),
            tuple(show_fixes_first(shown, spec)), explained, describe_first_wrong(first),
            tuple(spec.clauses[id_] for id_ in list_broken_clauses(first)) if first else (),
            explain_verdict(explained, spec) if explained else "",
            record.bad[:_LISTED], max(0, len(record.bad) - _LISTED), record.hints,
            tuple(notes), printable(printed),
        )  # fmt: skip

    @property
    def symbol(self) -> str:
        """The symbol of the outcome, so that no colour is needed."""
        return SYMBOLS[self.outcome]

    def html(self) -> str:
        """Return the card as a fragment of HTML, in the colours of the page around it, without scripts."""
        return render("card.html", card=self)

    def text(self) -> str:
        """Return the card as a few lines of text."""
        lines = [f"{self.symbol} {self.title}: {self.verdict} ({self.dtypes})"]
        for finding in self.findings:
            head = f"  {finding.label}: "
            lines += [head + finding.text] if finding.is_code else wrap(finding.text, head)
        if self.first:
            lines += wrap(self.first_wrong, "  First wrong: ")
            lines += [line for clause in self.clauses for line in wrap(describe_clause(clause), "  Clause: ")]
            lines.append(f"  Repeat: {self.first.reproduce}")
        lines += [line for hint in self.hints for line in wrap(hint, "  Note: ")]
        return "\n".join([*lines, *(f"  {line}" for line in list_printed(self.printed))])


def list_printed(printed: str) -> list[str]:
    """Return the first lines of what an implementation printed, under a heading; nothing if it printed nothing."""
    lines = printable(printed).splitlines()
    more = [f"  … {len(lines) - _LISTED} more lines"] if len(lines) > _LISTED else []
    return ["It printed:", *(f"  {line}" for line in lines[:_LISTED]), *more] if lines else []


def _find_first(bad: Sequence[Verdict], remarks: Iterable[Finding]) -> Verdict | None:
    """Return the first failing check of the component to fix first; one with values before a bad call accepted."""
    component = next((r.text for r in remarks if r.label == FIX_FIRST), None)
    mine = [v for v in bad if component in (None, v.component)]
    return next((v for v in mine if v.reason != ACCEPTED), mine[0] if mine else None)


def _describe_verdict(record: RunRecord) -> str:
    """Return the outcome in words; of one component that fails, how many checks pass."""
    if record.outcome == "fails" and len(record.results) == 1:
        (counts,) = (result.counts for result in record.results.values())
        return f"{counts.passed} of {counts.number_judged} checks pass"
    return describe_outcome(record)


def describe_first_wrong(verdict: Verdict | None) -> str:
    """Return the first wrong number of a check in words, or its message if no number is wrong; "" without a check."""
    if verdict is None:
        return ""
    where = f"{verdict.check}, {verdict.dtype}"
    for difference in verdict.differences:
        if difference.first is not None:
            place = str(list(difference.first.index)) if difference.first.index else ""
            return f"{difference.output}{place}: {describe_element(difference.first, difference.tolerance)} ({where})"
    return f"{verdict.message} ({where})"
