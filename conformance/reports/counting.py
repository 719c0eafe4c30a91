"""Numbers of things in words."""

from __future__ import annotations

import re


def count_noun(number: int, noun: str) -> str:
    """Return a number of things: "1 case", "2 cases", "2 properties"."""
    plural = re.sub(r"y$", "ie", noun)
    return f"{number} {noun}" if number == 1 else f"{number} {plural}s"
