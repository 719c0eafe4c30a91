"""The errors of a spec that the loader refuses.

SpecError
└── holds Problems, each with file, line, field, the fault and its fix
Refused
└── one thing wrong inside a case, which becomes a Problem where its file is known
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong at one place."""

    file: Path
    line: int
    field: str
    message: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.field}: {self.message}"


class SpecError(Exception):
    """The spec's files contradict their schema, each other or themselves."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = tuple(problems)

    def __reduce__(self) -> tuple[type[SpecError], tuple[Sequence[Problem]]]:
        """Make it again from its problems: worker processes read files of the spec too."""
        return SpecError, (self.problems,)


class Refused(Exception):
    """A problem inside one case, at a field relative to the case."""

    def __init__(self, where: tuple[str | int, ...], message: str) -> None:
        super().__init__(message)
        self.where = where
