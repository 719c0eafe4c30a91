"""The wild bench: implementations in the styles that people write, each with its adapter and with mistakes to put in.

A file of tests/wild begins with the verdict that it deserves, `# deserves: correct` or
`# deserves: variant convention=option, …`, and ends with MISTAKES: old text, new text and a sentence by name.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "wild"
_HEADER = "# deserves: "
_MISTAKES = "\nMISTAKES = "


@dataclass(frozen=True)
class Mistake:
    """A change of an implementation's text that makes it wrong."""

    old: str
    new: str
    sentence: str


@dataclass(frozen=True)
class Wild:
    """An implementation of the bench."""

    name: str
    path: Path
    #: The code and its adapter, without MISTAKES.
    source: str
    #: By convention; empty for an implementation that is correct as it is. Not every convention is one of the spec.
    variant: dict[str, str]
    mistakes: dict[str, Mistake]

    @property
    def is_correct(self) -> bool:
        """Return True if it does what the documents say under all default options."""
        return not self.variant

    def apply_mistake(self, name: str) -> str:
        """Return the source with a mistake."""
        mistake = self.mistakes[name]
        assert self.source.count(mistake.old) == 1, f"{self.path.name}: {name}: its old text is not there once"
        return self.source.replace(mistake.old, mistake.new)


def read_bench() -> list[Wild]:
    """Read every implementation of the bench."""
    return [_read(path) for path in sorted(FOLDER.glob("*.py"))]


def _read(path: Path) -> Wild:
    text = path.read_text(encoding="utf-8")
    header, _, _ = text.partition("\n")
    assert header.startswith(_HEADER), f"{path.name} begins with {header!r}: begin with {_HEADER!r}"
    source, found, mistakes = text.partition(_MISTAKES)
    assert found, f"{path.name} has no MISTAKES"
    kind, _, options = header.removeprefix(_HEADER).partition(" ")
    assert kind in ("correct", "variant"), f"{path.name} deserves {kind!r}: write correct or variant"
    variant = dict(option.split("=") for option in options.split(", ")) if kind == "variant" else {}
    listed = {name: Mistake(*entry) for name, entry in ast.literal_eval(mistakes.strip()).items()}
    return Wild(path.stem, path, source, variant, listed)
