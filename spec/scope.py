"""The parts of today's Transformers that no clause covers, recognised by the names that code has for them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field

from goldformer.spec.strict import Id, Items, StrictModel, Text
from goldformer.spec.yamlfile import YamlFile

_FILE: Final = Path(__file__).with_name("out_of_scope.yaml")


class OutOfScope(StrictModel):
    """A part that goldformer does not judge.

    `names` are regular expressions for names, in lower case without "_". They say nothing in code of the component
    `but_in`.
    """

    id: Id
    title: Text
    names: Annotated[Items[Text], Field(min_length=1)]
    but_in: Text = ""


class ScopeFile(StrictModel):
    """The schema of out_of_scope.yaml."""

    out_of_scope: Items[OutOfScope]


@cache
def _read() -> tuple[tuple[OutOfScope, re.Pattern[str]], ...]:
    entries = YamlFile.read(_FILE).parse(ScopeFile).out_of_scope
    return tuple((entry, re.compile("|".join(entry.names))) for entry in entries)


def explain_scope(names: Iterable[str], component: str = "") -> str:
    """Return what goldformer does not judge of code of a component with these names, or "" if they show nothing."""
    squashed = {name: name.replace("_", "").lower() for name in sorted(names)}
    found = []
    # Most adapters have no other names, and need not wait for the file.
    for entry, pattern in _read() if squashed else ():
        if component and component == entry.but_in:
            continue
        if hits := [name for name, plain in squashed.items() if pattern.search(plain)]:
            found.append(f"{entry.title} ({hits[0]})" if hits[0] != entry.title else entry.title)
    return f"goldformer does not judge {', '.join(found)}" if found else ""
