"""A neighbour of the textbook: the textbook with one step changed, and its sentence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from goldformer.adapters.textbook.build import build_textbook
from goldformer.adapters.textbook.steps import Replacements
from goldformer.conformance.diagnosis.mistakes.registry import Mistaken

#: What stands between a neighbour's family and the number that was solved for, in its id.
EQUALS: Final = "="


@dataclass(frozen=True, slots=True)
class Neighbour:
    """One changed step: `title` completes "this code does otherwise:", `hint` says what to do about it.

    `component` is the one in which the step is.
    """

    id: str
    component: str
    title: str
    hint: str
    steps: Replacements
    #: True for a backward pass that is written by hand.
    backward: bool = False

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
