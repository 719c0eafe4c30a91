"""The output of a command, compared with the part of it that a page shows."""

from __future__ import annotations

import re
from collections.abc import Iterable

#: What a page leaves out: a line of its own for any lines, within a line for any characters.
GAP = "…"


def must_show(output: str, shown: Iterable[str], what: str) -> None:
    """The lines stand in the output in this order, next to one another but for the gaps."""
    got = [line.rstrip() for line in output.splitlines()]
    place, gap = 0, False
    for line in map(str.rstrip, shown):
        if line == GAP:
            gap = True
            continue
        wanted = re.compile(".*".join(map(re.escape, line.split(GAP))))
        found = next((i for i in range(place, len(got)) if wanted.fullmatch(got[i])), None)
        assert found is not None, f"{what} does not say: {line}\n{output}"
        assert gap or found == place, f"{what} says more before: {line}\n{output}"
        place, gap = found + 1, False
