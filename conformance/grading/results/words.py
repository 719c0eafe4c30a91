"""Word numbers, outcomes and levels for all results, and make untrusted text safe for Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from goldformer.adapters.untrusted_text import join_lines, printable
from goldformer.conformance.grading.model import (
    Assignment,
    CarriedMistake,
    ComponentGrade,
    ForbiddenUse,
    GradedComponent,
    Kind,
    Origin,
    Outcome,
)
from goldformer.conformance.grading.sandbox import Isolation, Level
from goldformer.conformance.grading.score import compute_kind_shares
from goldformer.conformance.reports.counting import count_noun

#: The name of a fresh case whose id is secret.
DRAWN: Final = "a case drawn for grading"

#: The name of each origin of checks.
ORIGINS: Final[Mapping[Origin, str]] = {
    "published": "published cases",
    "fresh": "cases drawn for grading",
    "property": "properties",
}

#: The name of each kind of golden cases.
_KINDS: Final[Mapping[Kind, str]] = {
    "value": "Ordinary numbers", "extreme": "Large scores", "refusal": "Calls to be refused",
}  # fmt: skip

#: An outcome in a few words, for tables.
BRIEF: Final[Mapping[Outcome, str]] = {
    "correct": "correct",
    "imprecise": "loses digits",
    "wrong": "wrong values",
    "missing": "not written or not returned",
    "error": "raises an error",
    "timeout": "out of time",
    "not-judged": "not judged: it waits",
    "memory": "out of memory",
    "output-limit": "prints too much",
    "killed": "ended early",
    "protocol": "no valid answer",
    "tampered": "not counted",
    "grader-error": "not graded: our fault",
}

#: What the author of the code can do about an outcome; the grade's own message says what happened.
_ADVICE: Final[Mapping[Outcome, str]] = {
    "correct": "",
    "imprecise": "The formula is right, and some results lose digits, which costs a quarter of each check. Look for a "
    "difference or a quotient of large numbers, which rounds away digits.",
    "wrong": "Compare your code with the formula, step by step, and look at the first step that differs.",
    "missing": "Functions are found by their names: look for a function that has another name, or that does not return "
    "everything that was asked for.",
    "error": "A call that raises an error earns nothing, however small its cause. Begin with the last line of the "
    "message: it says what is wrong, and the lines above it say where.",
    "timeout": "A call may take {call:g} seconds of processor time, and all calls of a component together {total:g} "
    "seconds. The arrays are small, so look for a loop that does not end, or for code that trains when it is imported.",
    "not-judged": "A call hardly computed for {wait:g} seconds. Look for input(), for sleep(), and for a lock, a file "
    "or another process that your code waits for. It earns nothing until the staff have looked at it.",
    "memory": "Your code may use {memory} MiB of memory. Look for an array with too many axes, such as a broadcast "
    "makes of shapes that do not match.",
    "output-limit": "Your code may print {output} MiB. Remove the prints that you used while you wrote it.",
    "killed": "The process ended while it was asked for a result. Look for exit() or quit(), and for recursion that "
    "does not end.",
    "protocol": "What came back could not be read as a result. Return arrays of numbers, of the dtype that came in.",
    "tampered": "While your code ran, something happened that no answer needs: a reply to no request, or files that "
    "changed. Such a run is not counted. If you do not know why it happened, ask whoever gave you the assignment.",
    "grader-error": "Grading broke down, and your code is not the reason. It costs you nothing: whoever gave you the "
    "assignment sees it and grades it again.",
}

#: Advice for a submission that could not be run.
UNSTARTED: Final = (
    "None of your code could be called, so it cannot earn points yet. Import your file in Python: you will see the "
    "message below."
)
UNREAD: Final = (
    "None of your code was run, so it cannot earn points yet. Hand in submission.py, or a folder or a zip that "
    "contains it."
)

#: The meaning of a wrong number.
TOLERANCE: Final = (
    "A number is wrong if it is further from the right one than rounding can explain. This distance is the tolerance: "
    "an error of 1000 times the tolerance is no rounding."
)

#: The meaning of a level of isolation.
LEVEL: Final[Mapping[Level, str]] = {
    "process": "in a process of its own with limits on time, memory and output",
    "files": "in a process of its own with limits, which could read only Python and your files",
    "full": "in a process of its own with limits, which could read only Python and your files, without a network and "
    "without any other process in sight",
}


#: The most characters of the last lines of a text.
_LONGEST_TAIL: Final = 4000


def advise(outcome: Outcome, assignment: Assignment) -> str:
    """Tell the student what to do about an outcome, with the limits that were in force."""
    limits = assignment.limits
    values = {
        "call": limits.call,
        "total": limits.total,
        "wait": limits.wait,
        "memory": limits.memory,
        "output": limits.output,
    }
    return _ADVICE[outcome].format(**values)


def points(value: float) -> str:
    """Format points without trailing zeros."""
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def describe_rule(asked: GradedComponent, part: ComponentGrade) -> tuple[str, ...]:
    """Say how the points of a component follow from its checks, if some pass and it does not earn all points."""
    found = part.earned
    if not 0 <= found < part.points or not any(passed for passed, _ in part.shares.values()):
        return ()
    sentences = [f"{points(found)} of {points(part.points)} points"]
    shares = compute_kind_shares(asked, part.kinds)
    if asked.rule == "all":
        sentences.append("The cases give points only if every case passes")
    elif not found and not part.deductions and any(share for share, _ in shares.values()):
        sentences.append("There are points only if a case of numbers passes, and a drawn one too")
    else:
        for kind in (kind for kind in _KINDS if kind in shares):
            share, weight = shares[kind]
            worth = part.points * float(weight)
            earned = f"{points(worth * float(share))} of {points(worth)} points"
            sentences.append(f"{_KINDS[kind]}: {earned}, because {_count_passed(part.kinds[kind])}")
        sentences += _describe_origins(asked, part)
    if asked.properties and "property" in part.shares:
        held, among = part.shares["property"]
        percent = 100 * asked.properties / (asked.golden + asked.properties)
        sentences.append(f"{percent:.0f} % of this is for properties, and {held} of {among} hold")
    if any(passed % 1 for counts in part.kinds.values() for passed, _ in counts.values()):
        sentences.append("A result that is right but for its last digits counts three quarters")
    if part.carried:
        sentences.append("A check that is not deducted again counts as passed here")
    return (". ".join(sentences) + ".",)


def _describe_origins(asked: GradedComponent, part: ComponentGrade) -> Iterator[str]:
    """Say how published and drawn cases are weighed, where they differ."""
    pairs = [[passed / among for passed, among in counts.values()] for counts in part.kinds.values()]
    if all(len({*shares}) < 2 for shares in pairs):
        return
    if asked.visible is None or asked.hidden is None:
        yield "Where published and drawn cases differ, the smaller share counts"
    else:
        yield f"Published cases weigh {asked.visible:g}, and drawn ones {asked.hidden:g}"


def _count_passed(counts: Mapping[Origin, tuple[float, int]]) -> str:
    """Say how many cases of a kind pass, such as "66 of 110 published cases and 6 of 12 drawn ones pass"."""
    if all(passed == among for passed, among in counts.values()):
        return "all cases pass"
    drawn = "drawn ones" if "published" in counts else "drawn cases"
    names: Mapping[Origin, str] = {"published": "published cases", "fresh": drawn}
    told = [f"{counts[o][0]:g} of {counts[o][1]} {name}" for o, name in names.items() if o in counts]
    return f"{' and '.join(told)} pass"


def describe_carried(carried: CarriedMistake, *, named: bool = True) -> str:
    """Say which failures cost nothing, because their mistake costs points in another component already."""
    mistakes = (" and ".join(carried.causes) or "lost digits") if named else "a mistake"
    fail = "fails" if carried.checks == 1 else "fail"
    why = (
        f"{count_noun(carried.checks, 'check')} {fail} only because of {mistakes} in {' and '.join(carried.components)}"
    )
    return f"Not deducted again: {why}"


def describe_forbidden(uses: Iterable[ForbiddenUse]) -> str:
    """Tell the student which lines use forbidden names, as far as reading tells; nothing if none does."""
    lines = ", ".join(f"{use.name} ({use.file}, line {use.line})" for use in uses if not use.private)
    if not lines:
        return ""
    return (
        f"This assignment forbids what your source seems to use: {lines}. Write it yourself. It was found by reading, "
        "which is no proof: whoever gave you the assignment decides about it."
    )


def describe_isolation(isolation: Isolation) -> str:
    """Tell the student how the submission was isolated."""
    return f"Your code ran {LEVEL[isolation.level]}."


def shorten(text: str, most: int) -> str:
    """Cut a text to at most `most` characters, with an ellipsis if anything is cut."""
    return text if len(text) <= most else text[: most - 1] + "…"


def tail(text: str, lines: int) -> str:
    """Return the last lines of a text, and of these the last characters."""
    last = "\n".join(printable(text).strip("\n").splitlines()[-lines:])
    return last if len(last) <= _LONGEST_TAIL else "…" + last[1 - _LONGEST_TAIL :]


def shorten_to_line(text: str, most: int = 500) -> str:
    """Join the lines of a text into one, without invisible characters."""
    return shorten(join_lines(text), most)


def escape(text: str) -> str:
    """Escape a text for one line of Markdown, so that nothing in it is markup."""
    text = re.sub(
        r"([\\`*\[\]<>$|~]|(?<![^\W_])_|_(?![^\W_]))", r"\\\1", shorten_to_line(text, 2000).replace("&", "&amp;")
    )
    # The beginning of a heading, a list or a rule.
    return re.sub(r"^(\d*)([#+=-]|(?<=\d)[.)](?=\s|$))", r"\1\\\2", text)


def code(text: str) -> str:
    """Quote a text in one line of Markdown, between fences longer than any in the text."""
    shown = shorten_to_line(text)
    fence = "`" * (1 + _longest_fence(shown))
    pad = " " if shown.startswith("`") or shown.endswith("`") else ""
    return f"{fence}{pad}{shown}{pad}{fence}" if shown else ""


def block(text: str, language: str = "text") -> str:
    """Quote lines in Markdown."""
    fence = "`" * max(3, 1 + _longest_fence(text))
    return f"{fence}{language}\n{printable(text)}\n{fence}"


def _longest_fence(text: str) -> int:
    return max(map(len, re.findall("`+", text)), default=0)
