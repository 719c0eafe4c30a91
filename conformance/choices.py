"""The choices of code that look like a mistake, apart from their search: the help of commands reads nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

#: The choices that a mistake would look like, so that code has to say them.
CHOICES: Final[Mapping[str, str]] = {
    "sequence-first": "the sequence comes before the batch",
    "ignore": "True in its mask hides a key",
    "addend": "its result still has to be added to x",
}
