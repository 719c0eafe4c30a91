"""Verdicts and spec entries as plain text, for pytest, the command line and people alike."""

from __future__ import annotations

import math
import textwrap
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from goldformer.conformance.causes import cause, what_to_do
from goldformer.conformance.suspects import Explanation, Suspect, explanations, failing_roots, suspects
from goldformer.conformance.verdict import UNANSWERED, WITHHELD, Difference, Element, Status, Verdict
from goldformer.spec import Spec

_WIDTH = 100
_MOST_SUSPECTS = 3
_MOST_STDERR = 10
_ABSENT = "raise NotImplementedError in the adapter (a process answers −32001): that call is then skipped"
#: The mistake of which one property tells, and nothing else can.
_DIFFERS = "nondeterminism"
#: The label of what explains most failing cases and not all.
CLOSEST = "Closest known mistake"
#: So many names are listed before the others are counted.
_FEW = 4


def explain_verdict(verdict: Verdict, spec: Spec) -> str:
    """What went wrong, what was expected, which clause and document say so, and how to see it again."""
    lines = [
        f"{verdict.status.value.upper()}  {verdict.check}  ({verdict.component}, {verdict.dtype} on {verdict.device})",
        f"  {verdict.title}",
        *wrapped(verdict.message, "  → "),
    ]
    for difference in verdict.differences:
        lines += [f"  {line}" for line in difference_lines(difference)]
    for label, text in facts(verdict, spec):
        lines += wrapped(text, f"  {label:12}")
    if verdict.detail and (verdict.is_fault or verdict.reason in UNANSWERED):
        last = verdict.detail.splitlines()[-_MOST_STDERR:]
        label = "Traceback" if verdict.is_fault else "Stderr"
        lines += [f"  {head:12}{line}" for head, line in zip((label, *[""] * len(last)), last, strict=False)]
    # Whole, to be copied.
    lines.append(f"  Repeat      {verdict.reproduce}")
    if verdict.example:
        lines.append("  As a case   keep it in a file, which goldformer check reads with --cases FILE:")
        lines += verdict.example.splitlines()
    return "\n".join(lines)


def facts(verdict: Verdict, spec: Spec) -> Iterator[tuple[str, str]]:
    """What is known of a bad verdict beyond its numbers: what each thing is, and what it says."""
    for match in (verdict.matches or ())[:_MOST_SUSPECTS]:
        titles = " and ".join(cause(id_, spec).title for id_ in match.causes)
        yield "Equals", f"{titles}, {closeness(match.ratio)}"
    if verdict.advice:
        yield "Convention", verdict.advice
    for id_ in verdict.clauses:
        clause = spec.clauses[id_]
        yield "Clause", f"{id_} {clause.level.value}: {clause.title}"
    if verdict.kind == "case":
        yield "Source", verdict.source
    if verdict.detail.startswith("smallest input"):
        yield "Input", verdict.detail


def number(margin: float) -> str:
    """An error ÷ tolerance in few characters."""
    return "∞" if math.isinf(margin) else f"{margin:.3g}"


def headline(verdict: Verdict) -> str:
    """A bad verdict in one line."""
    return f"{verdict.status.value.upper()}  {verdict.check} ({verdict.dtype}): {verdict.message}"


def wrapped(text: str, head: str) -> list[str]:
    """A text in lines of which the first begins with a head."""
    return textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=head,
        subsequent_indent=" " * len(head),
        break_long_words=False,
        break_on_hyphens=False,
    )


def difference_lines(difference: Difference) -> list[str]:
    """How much of an output is wrong, and its first and its worst element."""
    bound = f"tolerance {difference.tolerance:.3g}" if difference.tolerance else "must be exact"
    if difference.worst is not None and not difference.worst.index:
        return [f"{difference.output}: {_element(difference.worst, difference.tolerance)} ({bound})"]
    lines = [f"{difference.output}: {difference.wrong} of {difference.compared} wrong ({bound})"]
    places = [("first", difference.first)]
    if difference.worst != difference.first:
        places.append(("worst", difference.worst))
    for word, element in places:
        if element is not None:
            lines.append(f"  {word} at {list(element.index)}: {_element(element, difference.tolerance)}")
    return lines


def _element(element: Element, tolerance: float) -> str:
    if isinstance(element.expected, bool):
        return f"expected {element.expected}, got {element.got}"
    text = f"expected {element.expected:.9g}, got {element.got:.9g}"
    error = abs(element.got - element.expected)
    return text + (f", error ÷ tolerance {error / tolerance:.3g}" if tolerance and error < float("inf") else "")


@dataclass(frozen=True, slots=True)
class ComponentRow:
    """One line of the summary; `skipped` counts the checks that were not judged although the component is there."""

    component: str
    passed: int
    failed: int
    absent: int
    skipped: int
    worst: float | None
    state: str

    @property
    def stands_on(self) -> str:
        """Return how many of the component's checks were judged, "" where all were or none."""
        judged = self.passed + self.failed
        return stands_on(judged, judged + self.absent + self.skipped)


def stands_on(judged: int, checks: int) -> str:
    """Return how many checks a verdict stands on, "" if it stands on all of them or on none."""
    return f"{judged} of {checks} checks apply" if 0 < judged < checks else ""


def summary(verdicts: Sequence[Verdict], spec: Spec, implemented: Collection[str]) -> list[ComponentRow]:
    """Return a row for each component that was run, roots of the dependency order first.

    `implemented` are the components that the adapter has.
    """
    roots, followers = failing_roots(verdicts, spec)
    rows = []
    for component in spec.components:
        mine = [v for v in verdicts if v.component == component]
        if not mine:
            continue
        passed, failed = sum(v.status is Status.PASSED for v in mine), sum(v.bad for v in mine)
        absent = sum(v.reason == "not-implemented" and v.status is Status.SKIPPED for v in mine)
        ratios = [v.ratio for v in mine if v.ratio is not None]
        state = "fails first" if component in roots else "fails" if component in followers else ""
        state = state or ("conforms" if passed else _not_judged(mine, implemented=component in implemented))
        skipped = len(mine) - passed - failed - absent
        rows.append(ComponentRow(component, passed, failed, absent, skipped, max(ratios, default=None), state))
    return rows


def _not_judged(verdicts: Sequence[Verdict], *, implemented: bool) -> str:
    """Return the state of a component of which no check was judged."""
    if any(v.is_fault for v in verdicts):
        return "fault in goldformer"
    if not implemented:
        return "not implemented"
    # Without the dtype or the device nothing was asked of it.
    asked = any(v.reason not in ("dtype", "device") for v in verdicts)
    return "nothing to judge" if asked else "not checked"


HEADINGS = ("component", "passed", "failed", "not impl.", "skipped", "error÷tol.", "")


def cells(row: ComponentRow) -> tuple[str, ...]:
    """A row's texts under HEADINGS."""
    worst = "–" if row.worst is None else f"{row.worst:.3g}"
    counts = (str(n) if n else "·" for n in (row.passed, row.failed, row.absent, row.skipped))
    stands_on = f" ({row.stands_on})" if row.state == "conforms" and row.stands_on else ""
    return (row.component, *counts, worst, row.state + stands_on)


def table(rows: Sequence[ComponentRow]) -> str:
    """The summary as aligned columns."""
    lines = [HEADINGS, *(cells(row) for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(HEADINGS))]
    return "\n".join(
        "  ".join(
            cell.ljust(w) if i in (0, 6) else cell.rjust(w)
            for i, (cell, w) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


@dataclass(frozen=True, slots=True)
class Remark:
    """One thing that the diagnosis says; what is `inner` is said of the component named before it.

    `mistakes` are those of the catalogue that it names, by their ids.
    """

    label: str
    text: str
    inner: bool = True
    mistakes: tuple[str, ...] = ()


def closing(verdicts: Sequence[Verdict], spec: Spec) -> list[str]:
    """The diagnosis in lines."""
    return [
        line
        for remark in diagnosis(verdicts, spec)
        for line in wrapped(remark.text, f"{'  ' if remark.inner else ''}{remark.label}: ")
    ]


def diagnosis(verdicts: Sequence[Verdict], spec: Spec) -> Iterator[Remark]:
    """What to mend first, which known mistakes would look like this, and what is asked for and not there."""
    judged = {c: [v for v in verdicts if v.component == c and v.is_judged] for c in spec.components}
    absent = [c for c, mine in judged.items() if mine and all(v.reason == "not-implemented" for v in mine)]
    roots, followers = failing_roots((v for v in verdicts if v.component not in absent), spec)
    explained = {component: _explaining(verdicts, component, spec) for component in (*roots, *followers)}
    for component in roots:
        bad = [v for v in judged[component] if v.bad]
        some_pass = len(bad) < len(judged[component])
        yield Remark("Mend first", component, inner=False)
        yield Remark("First seen", f"{bad[0].check}: {bad[0].message}")
        if bad[0].reason == "raised" and some_pass:
            yield Remark("If it has no such variant", _ABSENT)
        yield from this_is(explained[component]) or _could_be(verdicts, bad, component, spec)
    known = {c.id for component in roots for e in explained[component] for c in e.causes}
    for component in followers:
        # What a part does wrong shows in the whole; a mistake of the whole's own does not go away with it.
        if any(c.id not in known for e in explained[component][:1] for c in e.causes):
            yield Remark("Mend too", component, inner=False)
            yield from this_is(explained[component])
    if followers:
        yield Remark("These fail too and may mend themselves", ", ".join(followers), inner=False)
    if absent:
        yield Remark("Not implemented", ", ".join(absent), inner=False)
    if faults := [v for v in verdicts if v.is_fault]:
        text = f"{faults[0].message}. Not judged: {few(f'{v.check} ({v.dtype})' for v in faults)}"
        yield Remark("Fault in goldformer", text, inner=False)


def _could_be(verdicts: Sequence[Verdict], bad: Sequence[Verdict], component: str, spec: Spec) -> Iterator[Remark]:
    """Say what could be behind failures that nothing known explains, or where the values first go wrong."""
    # The message of a missing output says what is wrong, and no known mistake leaves out an output.
    verdicts = [v for v in verdicts if v.reason != WITHHELD]
    bad = [v for v in bad if v.reason != WITHHELD]
    if not bad:
        return
    if differs := next((v for v in bad if v.reason == "property" and v.catches == (_DIFFERS,)), None):
        # What is another result at each call equals nothing, and its first wrong output may be any. A call that
        # raised, or broke the contract, has given no second result to compare.
        mistake = spec.mistakes[_DIFFERS]
        text = f"{mistake.title} ({_DIFFERS}): {differs.message}. {mistake.hint}"
        yield Remark("This is", text, mistakes=(_DIFFERS,))
        return
    advice = dict.fromkeys(v.advice for v in bad if v.advice)
    if not advice and any(v.matches is not None and v.differences for v in bad):
        yield Remark("Not known", "no mistake of the catalogue gives what was got; " + _first_wrong(bad))
        return
    # An exception or a wrong shape says what is wrong by itself; only wrong values hint at mistakes.
    if any(v.reason in ("wrong-value", "not-finite", "property") for v in bad):
        for suspect in _likely(suspects(verdicts, component, spec)):
            fits = f"({suspect.mistake.id}, fits {suspect.explains} of {suspect.failing} failing checks)"
            text = f"{suspect.mistake.title} {fits}. {suspect.mistake.hint}"
            yield Remark("Could be", text, mistakes=(suspect.mistake.id,))
    yield from (Remark("Convention", text) for text in advice)


def _explaining(verdicts: Sequence[Verdict], component: str, spec: Spec) -> list[Explanation]:
    """What gives what was got in half of the failing cases or more, best first."""
    return [e for e in explanations(verdicts, component, spec) if 2 * e.equals >= e.examined]


def this_is(found: Sequence[Explanation], among: str = "failing", *, was: bool = False) -> list[Remark]:
    """Return the best explanation, and those that are as good; of what `was`, there is nothing to mend.

    It is "This is" where every failing case that was examined agrees, and else the closest known one.
    """
    remarks: list[Remark] = []
    for place, e in enumerate(found[:_MOST_SUSPECTS]):
        if place and (e.equals, e.spared) != (found[0].equals, found[0].spared):
            break
        if place and e.is_other_option_of(found[0]):
            continue
        given = "recorded" if was else "got"
        seen = f"what was {given} equals that in {e.equals} of {e.examined} {among} cases, {closeness(e.ratio)}"
        seen += f"; it does not explain {few(dict.fromkeys(e.refuting))}" if e.refuting else ""
        titles = " and ".join(c.title for c in e.causes)
        head = "Or" if place else "This is" if e.certain else CLOSEST
        mistakes = tuple(c.id for c in e.causes if not c.option)
        remarks.append(
            Remark(head, f"{titles}: {seen}." + (f" {what_to_do(e.causes)}" if not was else ""), mistakes=mistakes)
        )
    return remarks


def few(names: Iterable[str]) -> str:
    """Return the first names of a list and the number of the others."""
    listed = list(names)
    more = len(listed) - _FEW
    return ", ".join(listed[:_FEW]) + (f" and {more} more" if more > 0 else "")


def _first_wrong(bad: Sequence[Verdict]) -> str:
    """Where in the flow of data it goes wrong first, over all failing cases."""
    first = Counter(v.differences[0].output for v in bad if v.differences)
    name, count = first.most_common(1)[0]
    return f"the first wrong output is {name} in {count} of {first.total()} failing cases"


def closeness(ratio: float) -> str:
    """How near what was got is to what explains it."""
    return "within a thousandth of the tolerance" if ratio < 1e-3 else f"within {ratio:.2g} of the tolerance"


def _likely(found: Sequence[Suspect]) -> Sequence[Suspect]:
    """The best few, without those that account for less than half of what fails."""
    return [s for s in found[:_MOST_SUSPECTS] if 2 * s.explains >= s.failing]


def nothing_was_checked(verdicts: Iterable[Verdict]) -> bool:
    """Whether every single check was skipped, so that a green run would mean nothing."""
    return all(v.status is Status.SKIPPED for v in verdicts)
