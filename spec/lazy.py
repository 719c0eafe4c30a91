"""Mappings of the spec that are read from their files on first use."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from goldformer.spec.model import Case

Entry = TypeVar("Entry")


class Table(Mapping[str, Entry]):
    """The entries of one table by their ids."""

    def __init__(self, read: Callable[[], Mapping[str, Entry]]) -> None:
        self._read = read

    @cached_property
    def _entries(self) -> Mapping[str, Entry]:
        return self._read()

    def __getitem__(self, id_: str) -> Entry:
        return self._entries[id_]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


class CaseFiles(Protocol):
    """Reads cases: one component's, one by its id, or all of them."""

    def read_component(self, component: str) -> tuple[Case, ...]:
        """Return the cases of one component in file order, from its files alone."""

    def read_case(self, id_: str) -> Case | None:
        """Return one case, from the files of its component alone; None if no file has it."""

    def read_all(self) -> Mapping[str, Case]:
        """Return all cases in the order of the components."""

    def list_killing(self, mistake: str) -> Sequence[str]:
        """Return the components whose cases may kill a mistake, without reading these."""


class Cases(Mapping[str, "Case"]):
    """The cases of a spec by their ids, followed by further ones."""

    def __init__(self, files: CaseFiles, more: Mapping[str, Case] | None = None) -> None:
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
