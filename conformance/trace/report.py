"""The result of a trace: pieces in the order of execution, what differs first, and a verdict."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from goldformer.conformance.reports.counting import count_noun
from goldformer.conformance.reports.json_data import replace_nonfinite
from goldformer.conformance.reports.text import format_ratio, wrap
from goldformer.conformance.trace.pairing import generalise, group_names
from goldformer.conformance.trace.passes import WHOLE, Place


@dataclass(frozen=True, slots=True)
class Item:
    """A piece: a module's work, or what happens between two of them, with its error ÷ that of theirs."""

    place: Place
    theirs: Place
    scope: str
    after: Place | None
    ratio: float
    is_leaf: bool
    note: str = ""

    @property
    def label(self) -> str:
        """The place in words: blocks.0.attn, between wv and wo."""
        key, side = self.place
        if self.is_leaf and side == "out":
            return key
        scope = "" if self.scope == WHOLE and side == "in" else f"{self.scope}, "
        before = self.after[0].removeprefix(f"{self.scope}.") if self.after and self.after[0] != self.scope else ""
        if side == "out":
            return f"{scope}after {before}" if before else self.scope
        return f"{scope}{f'between {before} and' if before else 'before'} {key.removeprefix(f'{self.scope}.')}"


@dataclass(frozen=True, slots=True)
class Finding:
    """A difference, said once: its pieces, the line of each side from which on the other has no value, and facts."""

    items: tuple[Item, ...]
    mine: str
    theirs: str
    facts: tuple[str, ...]

    @property
    def ratio(self) -> float:
        """The largest ratio of its pieces."""
        return max(item.ratio for item in self.items)

    @property
    def places(self) -> str:
        """Its pieces in words."""
        return "; ".join(group_names(item.label for item in self.items))


@dataclass(frozen=True, slots=True)
class Trace:
    """The result; true if both models compute the same: nothing differs, in float32."""

    dtype: str
    limit: float
    items: tuple[Item, ...]
    findings: tuple[Finding, ...]
    weights: tuple[str, ...]

    @property
    def verdict(self) -> Literal["same", "differs", "not decidable"]:
        """The verdict; in half types a small mistake looks like rounding, so nothing is the same."""
        if any(item.ratio > self.limit for item in self.items):
            return "differs"
        return "same" if self.dtype == "float32" else "not decidable"

    def __bool__(self) -> bool:
        return self.verdict == "same"

    @property
    def rows(self) -> list[tuple[str, float, bool]]:
        """Labels, ratios, and what differs; the layers of one kind are one row, and what is equal to the bit none."""
        shown = [item for item in self.items if item.ratio or (item.is_leaf and item.place[1] == "out")]
        groups = group_items(shown, self.limit)
        worst = [(group, max(item.ratio for item in group)) for group in groups]
        return [(group_names(item.label for item in group)[0], ratio, ratio > self.limit) for group, ratio in worst]

    def __str__(self) -> str:
        lines = [line for note in self.weights for line in wrap(note, "weights: ")]
        lines.append("error÷rounding  piece, in the order of execution")
        for label, ratio, differs in self.rows:
            lines += wrap(f"{label}{'  differs' if differs else ''}", f"{format_ratio(ratio):>14}  ")
        for nth, finding in enumerate(self.findings):
            times = f"{format_ratio(finding.ratio)} times what rounding explains"
            lines += wrap(f"{finding.places}: {times}", "Differs too: " if nth else "Differs first: ", 2)
            sides = (
                ("  mine    ", finding.mine),
                ("  theirs  ", finding.theirs),
                *(("  → ", f) for f in finding.facts),
            )
            lines += [line for head, text in sides if text for line in wrap(text, head)]
        return "\n".join([*lines, *wrap(self._conclude(), "")])

    def _conclude(self) -> str:
        differ, pieces = sum(item.ratio > self.limit for item in self.items), count_noun(len(self.items), "piece")
        worst = f"the worst at {format_ratio(max(item.ratio for item in self.items))} of {self.limit:.3g}"
        if self.verdict == "not decidable":
            worst += ". A small mistake looks like rounding there: call float() on both models"
        found = f"{self.verdict}: {differ} of {pieces}" if differ else f"{self.verdict}: {pieces}"
        return f"{found} in {self.dtype}, {worst}"

    def to_json(self) -> str:
        """Return the result as JSON."""
        pieces = [{"piece": item.label, **asdict(item)} for item in self.items]
        findings = [{"places": f.places, "ratio": f.ratio, **asdict(f)} for f in self.findings]
        data = {**asdict(self), "items": pieces, "findings": findings, "goldformer": "trace", "verdict": self.verdict}
        return json.dumps(replace_nonfinite(data), ensure_ascii=False)

    def to_html(self) -> str:
        """Return a page with a picture: pieces against their ratio, on a scale of powers of ten that begins at 0.1."""
        from goldformer.conformance.reports.page import render  # the terminal needs no Jinja2

        top = math.log10(max([100.0, *(ratio for _, ratio, _ in self.rows if ratio < math.inf)])) + 1
        return render("trace.html", trace=self, top=top, log10=math.log10, conclusion=self._conclude())

    _repr_html_ = to_html


def group_items(items: Sequence[Item], limit: float) -> list[list[Item]]:
    """Return pieces of one name but for the layer together, those that differ apart from those that do not."""
    groups: dict[tuple[str, bool], list[Item]] = {}
    for item in items:
        groups.setdefault((generalise(item.label), item.ratio > limit), []).append(item)
    return [*groups.values()]
