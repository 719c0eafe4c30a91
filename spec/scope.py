"""The parts of today's Transformers that no clause covers, recognised by the names that code has for them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from functools import cache
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field

from goldformer.spec.strict import Id, Items, Name, StrictModel, Text
from goldformer.spec.yamlfile import YamlFile

_FILE: Final = Path(__file__).with_name("out_of_scope.yaml")


class OutOfScope(StrictModel):
    """A part that goldformer does not judge. `names` are regular expressions for names, in lower case without "_".

    `but_as` is a component that is such a part by itself: only within others it is not judged, except `within` those
    that have such a part.
    """

    id: Id
    title: Text
    names: Annotated[Items[Text], Field(min_length=1)]
    but_as: Name | None = None
    within: Items[Name] = ()


class ScopeFile(StrictModel):
    """The schema of out_of_scope.yaml."""

    out_of_scope: Items[OutOfScope]


@cache
def _read() -> tuple[tuple[OutOfScope, re.Pattern[str]], ...]:
    entries = YamlFile.read(_FILE).parse(ScopeFile).out_of_scope
    return tuple((entry, re.compile("|".join(entry.names))) for entry in entries)


def find_component_named(name: str) -> str | None:
    """Return the component that code of this name is by itself, and is not judged as within others; None for others."""
    plain = name.replace("_", "").lower()
    return next((entry.but_as for entry, pattern in _read() if pattern.search(plain)), None)


def explain_scope(names: Iterable[str], components: Collection[str] = ()) -> str:
    """Return what goldformer does not judge of code that has these names, as a sentence; "" if they show nothing.

    `components` are those that the code computes, as far as they are known.
    """
    squashed = {name: name.replace("_", "").lower() for name in sorted(names)}
    found = []
    # Most adapters have no other names, and need not wait for the file.
    for entry, pattern in _read() if squashed else ():
        if {entry.but_as, *entry.within} & {*components}:
            continue
        if hits := [name for name, plain in squashed.items() if pattern.search(plain)]:
            itself = f"; by itself it is judged as {entry.but_as}" if entry.but_as else ""
            found.append(f"{entry.title} ({hits[0]}{itself})" if hits[0] != entry.title else entry.title)
    return f"goldformer does not judge {', '.join(found)}" if found else ""
