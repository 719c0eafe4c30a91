"""The starter of an assignment, made of a solution in which the lines of the solution are marked."""

from __future__ import annotations

import re
from typing import Final

#: Marked lines, with what a starter has in their place.
_MARKED: Final = re.compile(r"^( *)# BEGIN SOLUTION(?:: (?P<instead>.*))?\n(?:.*\n)*?^ *# END SOLUTION\n", re.MULTILINE)


def make_starter(solution: str) -> str:
    """Return a solution without its marked lines, with what `# BEGIN SOLUTION: …` says in their place."""
    return _MARKED.sub(lambda found: f"{found[1]}{found['instead']}\n" if found["instead"] else "", solution)
