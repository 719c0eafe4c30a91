"""Textbooks that a test spoils: with a step replaced, by a function that is written where it is used."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from goldformer.adapters.textbook.build import build_textbook
from goldformer.spec.formulas.steps import Replacement, Replacements, Step
from goldformer.spec.formulas.steps import around as replacement_around
from goldformer.spec.formulas.steps import instead as replacement_instead


class Spoiled:
    """Return a function that makes textbooks with replaced steps; later layers are applied after earlier ones."""

    def __init__(self, name: str, *layers: Replacements, **declarations: Any) -> None:
        self.__name__ = name
        self.layers = layers
        self._declarations = declarations

    def __call__(self) -> SimpleNamespace:
        """Make one."""
        return build_textbook(*self.layers, **self._declarations)


def spoil(
    *, instead_of: Step | None = None, around: Step | None = None, decorating: Step | None = None
) -> Callable[[Callable[..., Any]], Spoiled]:
    """Turn a function into what makes a textbook with the function in the place of a step.

    It has the step's parameters (`instead_of`), takes the original before them (`around`), or is given the original
    and returns what takes its place (`decorating`).
    """

    def turn(function: Callable[..., Any]) -> Spoiled:
        replacement: Replacement = function
        if instead_of is not None:
            replacement = replacement_instead(function)
        elif around is not None:
            replacement = replacement_around(function)
        step = instead_of or around or decorating
        assert step is not None
        return Spoiled(function.__name__, {step: replacement})

    return turn
