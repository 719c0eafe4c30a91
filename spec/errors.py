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
from typing import Final

#: The most characters of a field and of a message that are shown.
_LONGEST_FIELD: Final = 400
_LONGEST_MESSAGE: Final = 8000


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong at one place."""

    file: Path
    line: int
    field: str
    message: str

    def __str__(self) -> str:
        # A key of the file may have line breaks, and build servers run commands at the start of a line.
        field = _clip(" ".join(self.field.splitlines()), _LONGEST_FIELD)
        message = _clip(self.message, _LONGEST_MESSAGE)
        return f"{self.file}:{self.line}: {field}: {message}"


def _clip(text: str, most: int) -> str:
    """Return the text, or its beginning and its end: a file may have names and values of any length."""
    return text if len(text) <= most else f"{text[: most // 2]} … {text[-(most // 2) :]}"


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
