"""Reads the written pages: their blocks, the commands in them, and what these commands show."""

from __future__ import annotations

import re
import shlex

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
GAP = "…"


def blocks(text):
    return [(match[1], match[2]) for match in BLOCK.finditer(text)]


def commands(block):
    """Each command of a console block with its exit status and the lines shown below it."""
    first, *rest = re.split(r"^\$ ", block, flags=re.MULTILINE)
    assert not first
    for told in rest:
        line, _, shown = told.partition("\n")
        status = re.search(r"# exit status (\d)", line)
        fails = re.search(r"^(Fix first: |\S+ checks fail: )", shown, re.MULTILINE) is not None
        yield shlex.split(line, comments=True), int(status[1]) if status else int(fails), shown.splitlines()


def must_show(output, shown, what):
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
