"""The words that results share: numbers, outcomes, levels, and text from outside made safe for Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from goldformer.adapters.process.faults import printable
from goldformer.conformance.grading.model import SEVERITY, Assignment, Check, Grade, Isolation, Level, Origin, Outcome

#: What a fresh case is called where its id is not told.
DRAWN: Final = "a case drawn for grading"

#: What each kind of checks is called.
ORIGINS: Final[Mapping[Origin, str]] = {
    "published": "published cases",
    "fresh": "cases drawn for grading",
    "property": "properties",
}

#: An outcome in a few words, for tables.
BRIEF: Final[Mapping[Outcome, str]] = {
    "correct": "correct",
    "wrong": "wrong values",
    "missing": "not written or not returned",
    "error": "raises an error",
    "timeout": "out of time",
    "memory": "out of memory",
    "output-limit": "prints too much",
    "killed": "ended early",
    "protocol": "no valid answer",
    "tampered": "not counted",
    "grader-error": "not graded: our fault",
}

#: What to do about an outcome, for who wrote the code; the grade's own message says what happened.
_ADVICE: Final[Mapping[Outcome, str]] = {
    "correct": "",
    "wrong": "Compare your code with the formula, one step after the other: the first step that differs is where to "
    "look.",
    "missing": "What was asked for is found by its name alone: look for a function that has another name, or that does "
    "not return everything that was asked for.",
    "error": "Where your code raised an error it earns nothing, however little was amiss. Begin with the last line of "
    "the message: it says what is wrong, and the lines above it say where.",
    "timeout": "A call may take {call:g} seconds and everything together {total:g}. The arrays are small, so look for "
    "a loop that does not end, or for code that trains or waits when it is imported.",
    "memory": "Your code may use {memory} MiB of memory. Look for an array with an axis too many, as a broadcast "
    "between shapes that do not match makes it.",
    "output-limit": "Your code may print {output} MiB. Take out the prints that you used while you wrote it.",
    "killed": "The process ended while it was asked for a result. Look for exit() or quit(), and for recursion without "
    "an end.",
    "protocol": "What came back could not be read as a result. Return arrays of numbers, of the dtype that came in.",
    "tampered": "While your code ran, something happened that no answer needs: a reply that no call had asked for, or "
    "files that changed. Such a run is not counted. If you do not know why it happened, ask whoever gave you the "
    "assignment.",
    "grader-error": "Grading broke down, and not because of your code. It costs you nothing: whoever gave you the "
    "assignment sees it and grades it again.",
}

#: What to do where nothing could be run.
UNSTARTED: Final = (
    "None of your code could be called, so there is nothing yet that could earn points. Import your file in Python: "
    "what is said below is what you will see."
)
UNREAD: Final = (
    "None of your code was run, so there is nothing yet that could earn points. Hand in submission.py, or a folder or "
    "a zip in which it is."
)

#: What is called wrong.
TOLERANCE: Final = (
    "A number is called wrong where it is further from the right one than rounding can make it. That much is the "
    "tolerance: an error of 1000 times the tolerance is no rounding."
)

#: What a level of isolation keeps apart.
LEVEL: Final[Mapping[Level, str]] = {
    "process": "in a process of its own with limits on time, memory and output",
    "files": "in a process of its own with limits, which could read only Python and your files",
    "full": "in a process of its own with limits, which could read only Python and your files, without a network and "
    "without any other process in sight",
}


def advice(outcome: Outcome, assignment: Assignment) -> str:
    """What to do about an outcome, in a sentence or two for the student, with the limits that were in force."""
    limits = assignment.limits
    given = {"call": limits.call, "total": limits.total, "memory": limits.memory, "output": limits.output}
    return _ADVICE[outcome].format(**given)


def points(value: float) -> str:
    """Points without digits that say nothing."""
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def counted(number: int, noun: str) -> str:
    """A number of things: "1 case", "2 cases"."""
    plural = re.sub(r"y$", "ie", noun)
    return f"{number} {noun}" if number == 1 else f"{number} {plural}s"


def worst(checks: Iterable[Check]) -> Outcome:
    """The worst outcome among checks; what the grader broke is said only where nothing else is bad."""
    found = {check.outcome for check in checks}
    return max(found - {"grader-error"} - {"correct"} or found, key=SEVERITY.index, default="correct")


def passed_alone(grade: Grade, component: str) -> bool:
    """Whether every published case of a component passes, and not one that was drawn for grading."""
    shares = next((part.shares for part in grade.parts if part.component == component), {})
    published, drawn = shares.get("published", (0, 0)), shares.get("fresh", (0, 0))
    return 0 < published[1] == published[0] and drawn[1] > 0 == drawn[0]


def in_force(isolation: Isolation) -> str:
    """How a submission was kept apart, in a sentence for the student."""
    return f"Your code ran {LEVEL[isolation.level]}."


# ── text from outside ──


def shortened(text: str, most: int) -> str:
    """A text of at most so many characters, with a sign where it was cut."""
    return text if len(text) <= most else text[: most - 1] + "…"


def tail(text: str, lines: int, most: int = 4000) -> str:
    """The last lines of a text, and of these the last characters."""
    last = "\n".join(printable(text).strip("\n").splitlines()[-lines:])
    return last if len(last) <= most else "…" + last[1 - most :]


def line(text: str, most: int = 500) -> str:
    """A text in one line, with nothing in it that cannot be seen."""
    return shortened(" ".join(printable(text).split()), most)


def escaped(text: str) -> str:
    """Words in one line of Markdown, where they mean nothing but themselves."""
    text = re.sub(r"([\\`*\[\]<>$|~]|(?<![^\W_])_|_(?![^\W_]))", r"\\\1", line(text, 2000).replace("&", "&amp;"))
    # What begins a heading, a list or a rule.
    return re.sub(r"^(\d*)([#+=-]|(?<=\d)[.)](?=\s|$))", r"\1\\\2", text)


def code(text: str, most: int = 500) -> str:
    """A text as it is, in one line of Markdown: longer fences than it has itself keep it from ending them."""
    shown = line(text, most)
    fence = "`" * (1 + _longest_fence(shown))
    pad = " " if shown.startswith("`") or shown.endswith("`") else ""
    return f"{fence}{pad}{shown}{pad}{fence}" if shown else ""


def block(text: str, language: str = "text") -> str:
    """Lines as they are, in Markdown."""
    fence = "`" * max(3, 1 + _longest_fence(text))
    return f"{fence}{language}\n{printable(text)}\n{fence}"


def _longest_fence(text: str) -> int:
    return max(map(len, re.findall("`+", text)), default=0)
