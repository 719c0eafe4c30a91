"""A mistake that the catalogue does not list: an edit of the recorded formula, with its sentence."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from goldformer.adapters.textbook.build import build_textbook
from goldformer.conformance.diagnosis.edits.edit import read_edit
from goldformer.conformance.diagnosis.edits.words import write_hint, write_title
from goldformer.conformance.diagnosis.mistakes import implementations
from goldformer.conformance.diagnosis.mistakes.registry import Mistaken
from goldformer.spec.formulas.options import EPS
from goldformer.spec.formulas.steps import Replacements


@dataclass(frozen=True, slots=True)
class Generated:
    """One edit: `title` says what the code does instead, `hint` says what to do about it."""

    id: str
    title: str
    hint: str
    steps: Replacements
    #: True if its number was solved for.
    is_solved: bool
    #: The convention of which it is an option, and the number.
    number: tuple[str, float] | None

    @property
    def component(self) -> str:
        """The component in which the step is, with which the id begins."""
        return self.id.partition(".")[0]


#: The convention of each place that is one of its numbers.
_NUMBERS = {f"{step.__name__}/result": name for name, step in EPS.items()}


@cache
def find_generated(id_: str) -> Generated:
    """Return the edit of an id, with its words."""
    edit = read_edit(id_)
    kind, _, number = edit.change.partition(":")
    convention = _NUMBERS.get(edit.place) if kind in ("number", "solved") else None
    chosen = (convention, float(number.partition(":")[0])) if convention else None
    return Generated(id_, write_title(edit), write_hint(edit), edit.steps, edit.is_solved, chosen)


@cache
def find_made(id_: str) -> Mistaken:
    """Return the implementation of a mistake of the catalogue or of an edit."""
    if id_ in implementations():
        return implementations()[id_]
    steps = find_generated(id_).steps
    return Mistaken(id_, lambda: build_textbook(steps), (), steps, "edits")


def list_layers(ids: Iterable[str]) -> list[Replacements]:
    """Return the steps that mistakes replace, a layer each, the later ones on top."""
    return [find_made(id_).steps for id_ in ids]
