"""A neighbour of the textbook: the textbook with one step changed, and its sentence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from goldformer.adapters.textbook.build import build_textbook
from goldformer.conformance.diagnosis.mistakes.registry import Mistaken
from goldformer.spec.formulas.steps import Replacements

#: The sign between a neighbour's family and the number that was solved for, in its id.
EQUALS: Final = "="


def find_component(id_: str) -> str:
    """Return the component with which the id of a neighbour, or of a family of them, begins."""
    return id_.partition(".")[0]


@dataclass(frozen=True, slots=True)
class Neighbour:
    """One changed step: `title` says what the code does instead, `hint` says what to do about it.

    `id` begins with the component in which the step is, and a full stop.
    """

    id: str
    title: str
    hint: str
    steps: Replacements
    #: True for a backward pass that is written by hand.
    backward: bool = False
    #: True for code in blocks, which is right, or sums nothing, in calls that are shorter than one.
    in_blocks: bool = False
    #: The convention of which it is an option, and the number.
    number: tuple[str, float] | None = None

    @property
    def component(self) -> str:
        """The component in which the step is."""
        return find_component(self.id)

    @property
    def made(self) -> Mistaken:
        """The textbook with this change, like a mistake of the catalogue."""
        return Mistaken(
            self.id, lambda: build_textbook(self.steps), (), self.steps, "gradients" if self.backward else "neighbours"
        )

    @property
    def solved(self) -> bool:
        """Return True if its number was solved for."""
        return EQUALS in self.id
