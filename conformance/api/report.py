"""The report of `goldformer.check`: a verdict that is true or false, text in a terminal, a card in a notebook."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from goldformer.conformance.diagnosis.finding import Finding
from goldformer.conformance.judging.verdict import Verdict
from goldformer.conformance.reports.card import Card, list_printed
from goldformer.conformance.reports.comparison import Comparison
from goldformer.conformance.reports.json_data import replace_nonfinite
from goldformer.conformance.reports.markdown import markdown
from goldformer.conformance.reports.record import IN_PYTHON, RunRecord
from goldformer.conformance.reports.record_json import as_json
from goldformer.conformance.reports.summary import summarise
from goldformer.spec import Spec


class NonConformance(AssertionError):
    """An implementation, or a result, that is not right; the text is the diagnosis."""

    def _render_traceback_(self) -> list[str]:
        """Return what IPython shows: the diagnosis, and no traceback of goldformer."""
        return [f"{type(self).__name__}: {self}"]


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Report:
    """The results of one implementation; true if it conforms: nothing is wrong, and enough cases were judged.

    `printed` is what the implementation printed while it was checked.
    """

    comparison: Comparison
    spec: Spec = field(repr=False)
    printed: str = ""

    @property
    def record(self) -> RunRecord:
        """The results in full: every verdict, the time, what is not implemented."""
        (only,) = self.comparison.records
        return only

    @property
    def conforms(self) -> bool:
        """True if enough cases of every component were judged and all of it is right."""
        return self.comparison.outcome == "conforms"

    def __bool__(self) -> bool:
        return self.conforms

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The sentences of the diagnosis, the component to fix first before all others."""
        return self.record.findings

    @property
    def failures(self) -> tuple[Verdict, ...]:
        """The verdicts on the checks that failed or errored."""
        return self.record.bad

    @property
    def partial(self) -> tuple[str, ...]:
        """The components of which too few cases were judged, if nothing fails."""
        return self.record.partial

    def raise_for_failures(self, *, allow_partial: bool = False) -> None:
        """Raise NonConformance with the diagnosis unless the implementation conforms.

        Too few judged cases raise too, as they fail `goldformer check`: a test suite would trust what nobody looked
        at. With `allow_partial`, they do not.
        """
        if not self.conforms and not (allow_partial and self.comparison.outcome == "partial"):
            raise NonConformance(str(self))

    def to_json(self) -> str:
        """Return the record as JSON, as `goldformer check --json` does."""
        return json.dumps(replace_nonfinite(as_json(self.record)), ensure_ascii=False)

    def to_markdown(self) -> str:
        """Return a summary in Markdown, as the summary page of a build shows it."""
        return markdown(self.comparison, self.spec)

    def to_html(self) -> str:
        """Return the whole report as one HTML page that loads nothing from the network."""
        from goldformer.conformance.reports.comparison_page import page  # pictures, which nothing else needs

        return page(self.comparison, self.spec)

    def __str__(self) -> str:
        found = self.record
        parts = [f"goldformer: {found.problem}"] if found.problem else []
        summary = summarise(found, self.spec, more=IN_PYTHON, each="report.failures has each")
        parts += [line.text for line in summary]
        return "\n".join([*parts, *list_printed(self.printed)])

    def __repr__(self) -> str:
        return self._card.text()

    def _repr_html_(self) -> str:
        return self._card.html()

    @property
    def _card(self) -> Card:
        return Card.of(self.record, self.comparison.request.dtypes, self.spec, self.printed)
