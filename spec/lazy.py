"""Mappings of the spec that are read from their files on first use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from goldformer.spec.load import SpecFiles
    from goldformer.spec.model import Case

Entry = TypeVar("Entry")


class Table(Mapping[str, Entry]):
    """The entries of one table by their ids."""

    def __init__(self, files: SpecFiles, name: str) -> None:
        self._files = files
        self._name = name

    @cached_property
    def _entries(self) -> Mapping[str, Entry]:
        entries: Mapping[str, Entry] = getattr(self._files, self._name)
        return entries

    def __getitem__(self, id_: str) -> Entry:
        return self._entries[id_]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


class Cases(Mapping[str, "Case"]):
    """The cases of a spec by their ids, followed by further ones."""

    def __init__(self, files: SpecFiles, more: Mapping[str, Case] | None = None) -> None:
        self._files = files
        self._more = dict(more or {})

    def with_more(self, more: Mapping[str, Case]) -> Cases:
        """Return these cases, followed by further ones."""
        return Cases(self._files, {**self._more, **more})

    def of(self, component: str) -> tuple[Case, ...]:
        """Return the cases of one component."""
        further = (case for case in self._more.values() if case.component == component)
        return (*self._files.read_component(component), *further)

    def killing(self, mistake: str, first: str) -> Iterator[Case]:
        """Yield the cases that kill a mistake, those of one component first; files are read one after the other."""
        yield from (case for case in self._files.read_component(first) if mistake in case.kills)
        names = (name for name in self._files.list_killing(mistake) if name != first)
        yield from (case for name in names for case in self._files.read_component(name) if mistake in case.kills)
        yield from (case for case in self._more.values() if mistake in case.kills)

    def __getitem__(self, id_: str) -> Case:
        found = self._more.get(id_) or self._files.read_case(id_)
        if found is None:
            raise KeyError(id_)
        return found

    def __iter__(self) -> Iterator[str]:
        yield from self._files.read_all()
        yield from self._more

    def __len__(self) -> int:
        return len(self._files.read_all()) + len(self._more)
