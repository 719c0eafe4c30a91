"""Verdicts as plain text, for pytest and the command line."""

from __future__ import annotations

import math
import re
import shutil
import sys
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from goldformer.conformance.diagnosis.causes import find_cause
from goldformer.conformance.diagnosis.diagnosed import Explained
from goldformer.conformance.diagnosis.finding import COPIED, Finding, list_few, quote_check
from goldformer.conformance.diagnosis.findings import describe_distance
from goldformer.conformance.judging.measure import describe_values
from goldformer.conformance.judging.verdict import ERRORS, UNANSWERED, Difference, Element, Reason, Verdict
from goldformer.conformance.reports.results import ComponentResult
from goldformer.spec import Clause, Spec

#: The widest text, also where there is no terminal.
_WIDEST: Final = 100
#: The fewest digits of an expected and an actual value: those that show every float32.
_DIGITS = 9
_MOST_STDERR = 10
_MOST_MATCHES = 3
#: The fewest checks of a component with the same message that are counted, and the most messages.
_FEWEST_SAME = 5
_MOST_MESSAGES = 3

#: The clause that a result breaks, whatever the case is about, by the reason of a verdict.
_BROKEN: Final[Mapping[Reason, str]] = {
    "wrong-shape": "CALL-1",
    "wrong-dtype": "CALL-1",
    "not-an-array": "CALL-1",
    "nothing-returned": "CALL-1",
    "mutated-input": "CALL-2",
    "wrong-device": "CALL-3",
}


def explain_verdict(explained: Explained, spec: Spec) -> str:
    """Return what failed, the expected and actual values, the clause and its document, and the line that repeats it."""
    verdict = explained.verdict
    lines = [
        f"{verdict.status.value.upper()}  {verdict.check}  ({verdict.component}, {verdict.dtype} on {verdict.device})",
        f"  {verdict.title}",
        *wrap(verdict.message, "  → "),
    ]
    for difference in verdict.differences:
        lines += [f"  {line}" for line in format_difference(difference)]
    for label, text in list_facts(explained, spec):
        lines += wrap(text, f"  {label:12}")
    if verdict.detail and (verdict.is_fault or verdict.reason in UNANSWERED):
        last = verdict.detail.splitlines()[-_MOST_STDERR:]
        label = "Traceback" if verdict.is_fault else "Stderr"
        lines += [f"  {head:12}{line}" for head, line in zip((label, *[""] * len(last)), last, strict=False)]
    if explained.diagnosis.fault:
        lines += [
            "  Fault in goldformer, which ended the search for the cause:",
            *explained.diagnosis.fault.splitlines()[1:],
        ]
    lines.append(fold_command("  Repeat      ", explained.reproduce))
    return "\n".join(lines)


def list_facts(explained: Explained, spec: Spec) -> Iterator[tuple[str, str]]:
    """Yield what is known of a bad verdict beyond its numbers, each with a label."""
    verdict, diagnosis = explained
    matches = diagnosis.matches or ()
    # What equals the result by itself equals it with an option that makes no difference here, too.
    least = [m for m in matches if not any({*other.causes} < {*m.causes} for other in matches)]
    for match in least[:_MOST_MATCHES]:
        titles = " and ".join(find_cause(id_, spec).title for id_ in match.causes)
        yield "Equals", f"{titles}, {describe_distance(match.ratio)}"
    if diagnosis.advice:
        yield "Convention", diagnosis.advice
    for id_ in list_broken_clauses(verdict):
        yield "Clause", describe_clause(spec.clauses[id_])
    if verdict.kind == "case":
        yield "Source", verdict.source
    if verdict.detail.startswith("smallest input"):
        yield "Input", verdict.detail


def list_broken_clauses(verdict: Verdict) -> tuple[str, ...]:
    """Return the clauses that a failure breaks: all of its check's if values are wrong; none if there is no result."""
    if verdict.reason in ERRORS:
        return ()
    broken = _BROKEN.get(verdict.reason)
    return (broken,) if broken else verdict.clauses


def describe_clause(clause: Clause) -> str:
    """Return the id, the level and the title of a clause."""
    return f"{clause.id} {clause.level.value}: {clause.title}"


def format_ratio(margin: float) -> str:
    """Return an error ÷ tolerance in few characters."""
    return "∞" if math.isinf(margin) else f"{margin:.3g}"


def format_headline(verdict: Verdict) -> str:
    """Return a bad verdict in one line."""
    return f"{verdict.status.value.upper()}  {verdict.check} ({verdict.dtype}): {verdict.message}"


def describe_failing(failing: Sequence[Verdict], first: Verdict, each: str) -> Iterator[str]:
    """Yield how many checks fail, and the messages that many of them have, but for that of the `first` one.

    `each` says what explains each of them.
    """
    components = Counter(verdict.component for verdict in failing)
    counts = list_few(f"{count} of {component}" for component, count in components.items())
    if len(failing) > 1:
        yield from wrap(f"{counts} ({each})", f"{len(failing)} checks fail: ", indent=4)
    messages = Counter((verdict.component, verdict.message) for verdict in failing)
    del messages[first.component, first.message]
    for (component, message), count in messages.most_common(_MOST_MESSAGES):
        if count < _FEWEST_SAME:
            break
        same = f"{count} of {components[component]} in {component} say the same"
        yield from wrap(quote_check(message), f"{same}: ", indent=4)


def wrap(text: str, head: str, indent: int | None = None) -> list[str]:
    """Return a text as lines; the first one begins with `head`, the others below its end or at an indent."""
    return textwrap.wrap(
        text,
        min(_WIDEST, shutil.get_terminal_size((_WIDEST, 0)).columns),
        initial_indent=head,
        subsequent_indent=" " * (len(head) if indent is None else indent),
        break_long_words=False,
        break_on_hyphens=False,
    )


def format_difference(difference: Difference) -> list[str]:
    """Return how much of an output is wrong, and its first and its worst element."""
    bound = f"tolerance {difference.tolerance:.3g}" if difference.tolerance else "must be exact"
    if difference.worst is not None and not difference.worst.index:
        return [f"{difference.output}: {describe_element(difference.worst, difference.tolerance)} ({bound})"]
    lines = [f"{difference.output}: {difference.wrong} of {difference.compared} wrong ({bound})"]
    places = [("first", difference.first)]
    if difference.worst != difference.first:
        places.append(("worst", difference.worst))
    for word, element in places:
        if element is not None:
            lines.append(f"  {word} at {list(element.index)}: {describe_element(element, difference.tolerance)}")
    return lines


def describe_element(element: Element, tolerance: float) -> str:
    """Return an element's expected and actual value, and its error ÷ tolerance."""
    text = describe_values(element, _DIGITS)
    if isinstance(element.expected, bool):
        return text
    error = abs(element.got - element.expected)
    return text + (f", error ÷ tolerance {error / tolerance:.3g}" if tolerance and error < float("inf") else "")


HEADINGS: Final = ("component", "passed", "failed", "not impl.", "skipped", "refuses", "error÷tol.", "")
#: The headings on a narrow terminal: the last column stands below the others there.
_NARROW: Final = ("component", "passed", "failed", "absent", "skipped", "refuses", "÷ tol.", "")


def format_row(row: ComponentResult) -> tuple[str, ...]:
    """Return a component's texts under HEADINGS; `refuses` are the bad inputs that it refuses, of those tried."""
    counts = row.counts
    worst = "–" if counts.worst_ratio is None else f"{counts.worst_ratio:.3g}"
    skipped = sum(counts.skipped.values()) - counts.absent
    numbers = (str(n) if n else "·" for n in (counts.passed, counts.bad, counts.absent, skipped))
    refuses = f"{counts.refused}/{counts.refusals}" if counts.refusals else "·"
    return (row.component, *numbers, refuses, worst, row.verdict)


def format_table(rows: Sequence[ComponentResult]) -> list[str]:
    """Return the heading and the rows of the summary as aligned columns; on a narrow terminal, a row is two lines."""
    cells = [format_row(row) for row in rows]
    lines = _align([HEADINGS, *cells])
    if max(map(len, lines)) <= _find_width():
        return lines
    heading, *numbers = _align([line[:-1] for line in (_NARROW, *cells)])
    return [heading, *(f"{line}\n  {row[-1]}" for line, row in zip(numbers, cells, strict=True))]


def _align(lines: Sequence[Sequence[str]]) -> list[str]:
    """Align columns: the first one, and one of words after the numbers, to the left."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    left = (0, len(HEADINGS) - 1)
    padded = [
        [cell.ljust(w) if i in left else cell.rjust(w) for i, (cell, w) in enumerate(zip(line, widths, strict=True))]
        for line in lines
    ]
    return ["  ".join(line).rstrip() for line in padded]


def _find_width() -> int:
    """Return the width of a narrow terminal; elsewhere, what is compared or copied may be as long as it is."""
    columns = shutil.get_terminal_size((_WIDEST, 0)).columns
    return columns if columns < _WIDEST else sys.maxsize


def fold_command(head: str, command: str) -> str:
    """Return a command after its head; one that is wider than the terminal is folded so that a shell still reads it."""
    if len(head) + len(command) <= _find_width() or not command.startswith("goldformer ") or "'" in command:
        return head + command
    lines = [head]
    for words in re.split(r" (?=--\w)", command):
        if len(lines[-1]) + len(words) > _find_width() - 2:
            lines.append("    ")
        lines[-1] += f"{words} "
    return "\\\n".join(lines).rstrip()


def format_remarks(remarks: Iterable[Finding]) -> list[str]:
    """Return remarks in lines; remarks on a component are indented below it."""
    lines: list[str] = []
    for remark in remarks:
        head = f"{'  ' if remark.inner else ''}{remark.label}: "
        lines += [head + remark.text] if remark.label in COPIED else wrap(remark.text, head)
    return lines
