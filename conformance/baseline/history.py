"""Several baselines in a row, such as those of versions of a library, each compared with the first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from goldformer.adapters.untrusted_text import printable
from goldformer.conformance.baseline.classify import Classifier
from goldformer.conformance.baseline.drift import Drift, explain_drift
from goldformer.conformance.baseline.drift_data import count_as_json, summarize_tally
from goldformer.conformance.baseline.model import Baseline, BaselineError
from goldformer.conformance.baseline.moves import Tally
from goldformer.conformance.baseline.record import add_drawn_cases
from goldformer.conformance.baseline.store import load
from goldformer.spec import Spec
from goldformer.spec.readme import escape, markdown_table


@dataclass(frozen=True, slots=True)
class Column:
    """One baseline: its name in tables, and what moved since the first one, None for the first itself."""

    name: str
    folder: Path
    baseline: Baseline
    drift: Drift | None

    @property
    def tallies(self) -> Mapping[str, Tally]:
        """The counts of moves, by component."""
        return self.drift.tallies if self.drift is not None else {}


@dataclass(frozen=True, slots=True)
class History:
    """Baselines in the order in which they were named."""

    columns: tuple[Column, ...]
    components: tuple[str, ...]


def read_history(folders: Sequence[Path], spec: Spec) -> History:
    """Compare each baseline with the first; BaselineError if one cannot be read, or has no case in common with it."""
    baselines = [load(folder) for folder in folders]
    first = baselines[0]
    columns = [Column(_name_column(folders, 0), folders[0], first, None)]
    for nth, baseline in enumerate(baselines[1:], 1):
        if not first.entries.keys() & baseline.entries.keys():
            raise BaselineError(f"{folders[nth]}: has no case in common with {folders[0]}: name baselines of one suite")
        classifier = Classifier(add_drawn_cases(add_drawn_cases(spec, first.request), baseline.request))
        drift = Drift(first, baseline, tuple(classifier.moves(first, baseline)), classifier.spec)
        columns.append(Column(_name_column(folders, nth), folders[nth], baseline, drift))
    found = {entry.component for baseline in baselines for entry in baseline.entries.values()}
    return History(tuple(columns), tuple(name for name in spec.components if name in found))


def _name_column(folders: Sequence[Path], nth: int) -> str:
    """Return a folder's own name, or its whole path if another folder has that name."""
    folder = folders[nth]
    unique = sum(other.resolve().name == folder.resolve().name for other in folders) == 1
    return folder.resolve().name if unique else str(folder)


def as_json(found: History) -> dict[str, Any]:
    """Return a history as plain data."""
    return {
        "baselines": [
            {
                "name": column.name,
                "folder": str(column.folder),
                "recordings": [recording.model_dump() for recording in column.baseline.recordings],
                "environment": [list(d) for d in column.drift.environment] if column.drift else [],
                "components": {name: count_as_json(tally) for name, tally in column.tallies.items()},
                "diagnosis": [f"{r.label}: {r.text}" for r in explain_drift(column.drift)] if column.drift else [],
            }
            for column in found.columns
        ]
    }


def format_cell(column: Column, component: str) -> str:
    """Return a component of a baseline in few characters."""
    if column.drift is None:
        has = any(entry.component == component for entry in column.baseline.entries.values())
        return "recorded" if has else "–"
    tally = column.tallies.get(component)
    return summarize_tally(tally) if tally is not None else "–"


def markdown(found: History) -> str:
    """Return the table and the differences from the first environment."""
    lines = [
        [f"`{name}`", *(escape(format_cell(column, name)) for column in found.columns)] for name in found.components
    ]
    parts = [f"## Drift since {escape(found.columns[0].name)}\n"]
    parts.append(markdown_table(["component", *(escape(column.name) for column in found.columns)], lines))
    parts.append("The worst class of a move since the first baseline, and the largest move ÷ tolerance.\n")
    for column in found.columns[1:]:
        assert column.drift is not None, "only the first has none"
        parts.append(f"- **{escape(column.name)}**: {escape(column.drift.environment_text)}")
        parts += [f"  - {r.label}: {escape(r.text)}" for r in explain_drift(column.drift)]
    return printable("\n".join(parts) + "\n")
