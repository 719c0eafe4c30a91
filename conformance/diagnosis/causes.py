"""Possible causes of a failure, in words: a known mistake, or an option of a convention that was not declared."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from goldformer.conformance.judging.verdict import NONDETERMINISM
from goldformer.spec import Spec
from goldformer.spec.tables import write_number

#: The ids of causes that act together, as a `Match` names them.
Causes = tuple[str, ...]

#: What the results of a dropout are, where equal calls differ.
DROPOUT: Final = "dropout-in-evaluation"
VARYING: Final = ((NONDETERMINISM,), (DROPOUT,))
#: What a property shows by itself, whatever the results are: the first causes those after it.
SHOWN_BY_PROPERTY: Final = (
    ("uninitialised",),
    ("reads-around",),
    ("writes-around",),
    ("result-overwritten",),
    ("kept-by-address",),
    *VARYING,
)
#: The word between a mistake's id and the one place where it is made, in the causes of a `Match`.
IN: Final = " in "
#: What is said of options that are not declared, and the hint to declare them, as `write_hint` writes it.
_DECLARED: Final = re.compile(
    r" ?Declare CONVENTIONS = \{[^}]*\} in the adapter, or fix it\.| The code also has .*?, which is not declared\."
)


@dataclass(frozen=True, slots=True)
class Cause:
    """A mistake, or an option that an adapter may declare.

    `id` is the mistake's or the edit's, or as "norm_placement: pre"; `component` is where it is made, None for an
    option; `title` says what is done, with the id of a mistake in brackets; `heading` has it first; `hint` says what to
    do about it. `code` is the wrong code and the right code of a mistake in the catalogue.
    """

    id: str
    component: str | None
    title: str
    heading: str
    hint: str
    convention: str = ""
    option: str = ""
    #: True for an edit of the formula, which the catalogue does not list.
    generated: bool = False
    #: True for an edit with a number that was solved for.
    solved: bool = False
    code: tuple[str, str] | None = None


def find_cause(id_: str, spec: Spec) -> Cause:
    """Return the cause that a `Match` names."""
    made, _, place = id_.partition(IN)
    if made in spec.mistakes:
        mistake = spec.mistakes[made]
        where = f", only in {place}" if place else ""
        title, heading = f"{mistake.title} ({made}){where}", f"{made}, {mistake.title}{where}"
        return Cause(made, mistake.component, title, heading, mistake.hint, code=mistake.code)
    convention, _, option = id_.partition(": ")
    if option:
        return make_option_cause(convention, option, spec)
    from goldformer.conformance.diagnosis.generated import find_generated  # which few reports need

    edit = find_generated(made)
    if edit.number and not place and (number := write_number(edit.number[1])):
        option_cause = make_option_cause(edit.number[0], number, spec)
        return replace(option_cause, component=edit.component, generated=True, solved=edit.is_solved)
    title = f"{edit.title}, only in {place}" if place else edit.title
    # A name of the contract keeps its small letter.
    heading = title if "_" in title.split()[0] else title[0].upper() + title[1:]
    return Cause(made, edit.component, title, heading, edit.hint, generated=True, solved=edit.is_solved)


def make_option_cause(convention: str, option: str, spec: Spec) -> Cause:
    """Return an option as a cause."""
    id_ = f"{convention}: {option}"
    words = spec.conventions[convention].options.get(option)  # a number has none
    title = f"{id_} ({words})" if words else id_
    return Cause(id_, None, title, title, "", convention, option)


def write_declaration(causes: Iterable[Cause]) -> str:
    """Return the sentence that tells to declare the options among some causes; "" if there are none."""
    listed = ", ".join(f'"{c.convention}": "{c.option}"' for c in causes if c.convention)
    return f"declare CONVENTIONS = {{{listed}}} in the adapter" if listed else ""


#: What a hint tells to declare in an adapter, and what is said in its place where arguments of a call declare it.
_IN_PYTHON: Final = (
    (re.compile(r"Declare CONVENTIONS = (\{[^}]*\}) in the adapter"), r"Pass conventions=\1"),
    (re.compile(r"declare CONVENTIONS = (\{[^}]*\}) in the adapter"), r"pass conventions=\1"),
    (re.compile(r"declare DTYPES = (\([^)]*\)) in the adapter"), r"pass dtypes=\1"),
    (re.compile(r"(raise NotImplementedError) in the adapter \(a process answers −32001\)"), r"\1 in your code"),
)


def declare_in_python(text: str) -> str:
    """Return a text with hints for a reader who calls goldformer from Python, where there may be no adapter."""
    for pattern, words in _IN_PYTHON:
        text = pattern.sub(words, text)
    return text


def drop_declaration(text: str) -> str:
    """Return a text that says nothing of declarations, for readers whose adapter is not theirs to change."""
    return _DECLARED.sub("", text)


def write_hint(causes: tuple[Cause, ...]) -> str:
    """Return the hints of all causes; options are declared together."""
    hints = [c.hint for c in causes if c.hint]
    if declared := write_declaration(causes):
        hints.append(f"{declared[0].upper()}{declared[1:]}, or fix it.")
    return " ".join(hints)
