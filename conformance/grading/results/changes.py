"""Say what a run changed in the gradebook of the run before."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from goldformer.conformance.grading.results.gradebook import escape_formula
from goldformer.conformance.grading.results.words import points

_HEAD: Final = (
    "id",
    "before",
    "now",
    "difference",
    "outcome before",
    "outcome now",
    "mistakes before",
    "mistakes now",
    "why",
)


@dataclass(frozen=True, slots=True)
class GradeChange:
    """The entries of one student in two gradebooks; None if there was or is none."""

    id: str
    before: Mapping[str, Any] | None
    now: Mapping[str, Any] | None

    @property
    def why(self) -> str:
        """The reason, as far as the gradebooks show it."""
        if self.before is None or self.now is None:
            return "new" if self.before is None else "no longer there"
        same = self.before.get("key") == self.now["key"]
        return "changed by the staff" if same else "submission, assignment or goldformer changed"

    def __str__(self) -> str:
        """Return the change in one line."""
        sides = [f"{points(e['earned'])} ({e['outcome']})" if e else "–" for e in (self.before, self.now)]
        return f"{self.id}: {sides[0]} → {sides[1]}, {self.why}"


def find_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[GradeChange]:
    """Return the students whose points, outcome or mistakes differ between two gradebooks."""
    old, new = ({entry["id"]: entry for entry in book["students"]} for book in (before, now))
    compared = ("earned", "outcome", "mistakes", "components")
    return [
        GradeChange(id_, old.get(id_), new.get(id_))
        for id_ in sorted({*old, *new})
        if id_ not in old or id_ not in new or any(old[id_].get(k) != new[id_][k] for k in compared)
    ]


def changes_to_csv(changes: list[GradeChange]) -> str:
    """Return the changes as a table (RFC 4180), without formulas."""
    file = io.StringIO(newline="")
    writer = csv.writer(file, lineterminator="\r\n")
    writer.writerow(_HEAD)
    for change in changes:
        before, now = change.before, change.now
        sides = (before, now)
        earned = [points(side["earned"]) if side else "" for side in sides]
        difference = points(now["earned"] - before["earned"]) if before and now else ""
        outcomes = [side["outcome"] if side else "" for side in sides]
        mistakes = [" ".join(side["mistakes"]) if side else "" for side in sides]
        writer.writerow([escape_formula(change.id), *earned, difference, *outcomes, *mistakes, change.why])
    return file.getvalue()
