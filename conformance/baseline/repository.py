"""A baseline in a git repository: how git compares and merges its files of arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from goldformer.conformance.baseline.store import ATTRIBUTES
from goldformer.spec.files import replace_file

#: The command that tells a clone to show numbers where the file of attributes says `diff=goldformer`.
CONFIGURE: Final = "git config diff.goldformer.textconv 'goldformer baseline show'"

#: Line endings are left alone, two versions are never mixed, and a clone may show the numbers.
_TEXT: Final = f"""\
# Git never mixes two versions of these files. To see numbers in git diff, tell each clone once:
#   {CONFIGURE}
*.safetensors -text -merge diff=goldformer
"""


def needs_attributes(folder: Path) -> bool:
    """Return True if a folder is in a git repository and has no file of attributes yet."""
    places = (folder.resolve(), *folder.resolve().parents)
    return not (folder / ATTRIBUTES).exists() and any((place / ".git").exists() for place in places)


def write_attributes(folder: Path) -> Path | None:
    """Write the file of attributes and return it; None if there is one already, which may say more."""
    path = folder / ATTRIBUTES
    if path.exists():
        return None
    replace_file(path, _TEXT)
    return path
