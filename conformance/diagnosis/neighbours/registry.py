"""The registry of neighbours: the textbook with one step changed, generated from tables instead of written one by one.

A neighbour is what a slip makes of a step: it reads another array of the same shape, it is left out or done twice, it
runs along another axis, a constant is another size of the call. Its sentence is put together from the same tables. It
is tried where no mistake of the catalogue explains a failure.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from types import MappingProxyType
from typing import Final

from goldformer.conformance.diagnosis.edits.edit import Edit, is_edit, read_edit
from goldformer.conformance.diagnosis.edits.words import write_hint, write_title
from goldformer.conformance.diagnosis.mistakes import implementations
from goldformer.conformance.diagnosis.mistakes.derivatives import keep_right_derivatives
from goldformer.conformance.diagnosis.mistakes.registry import Mistaken
from goldformer.conformance.diagnosis.neighbours.neighbour import EQUALS, Neighbour
from goldformer.spec.formulas.options import EPS
from goldformer.spec.formulas.steps import Replacements

#: The modules with a function `generate`, the more common slips first: it decides between equals.
_MODULES: Final = (
    "wiring", "sublayers", "stacks", "transformer", "masks", "constants", "operations", "heads", "outputs", "targets",
    "randomness", "decoding", "blocks", "backward_layers", "backward",
)  # fmt: skip


Generate = Callable[[], Iterable[Neighbour]]


@cache
def neighbours() -> Mapping[str, Neighbour]:
    """Return all neighbours by id, the more common slips first."""
    found: dict[str, Neighbour] = {}
    for neighbour in _generate():
        if neighbour.id in found:
            raise ValueError(f"two neighbours have the id {neighbour.id}")
        found[neighbour.id] = neighbour
    return MappingProxyType(found)


@cache
def neighbours_of(component: str) -> tuple[Neighbour, ...]:
    """Return the neighbours of the steps of one component, in the same order."""
    return tuple(neighbour for neighbour in neighbours().values() if neighbour.component == component)


def _generate() -> Iterator[Neighbour]:
    for name in _MODULES:
        generate: Generate = importlib.import_module(f"goldformer.conformance.diagnosis.neighbours.{name}").generate
        yield from generate()


@cache
def find_neighbour(id_: str) -> Neighbour:
    """Return the neighbour of an id, also an edit, one that was read off arrays, or whose number is solved for."""
    from goldformer.conformance.diagnosis.neighbours.backward import OF_RIGHT_CODE, make_of_right_code
    from goldformer.conformance.diagnosis.neighbours.masks import ONLY_WHERE_MASKED, make_only_where_masked
    from goldformer.conformance.diagnosis.neighbours.results import is_read_off, make_neighbour
    from goldformer.conformance.diagnosis.neighbours.solved import families, read_trial  # made of others
    from goldformer.conformance.diagnosis.neighbours.stacks import NESTED, make_nested

    if is_edit(id_) or is_read_off(id_):
        return _make_of_edit(read_edit(id_)) if is_edit(id_) else make_neighbour(id_)
    if id_ in neighbours():
        return neighbours()[id_]
    if id_ in (special := {ONLY_WHERE_MASKED: make_only_where_masked, NESTED: make_nested}):
        return special[id_]()
    if id_.endswith(OF_RIGHT_CODE):
        return make_of_right_code(id_.removesuffix(OF_RIGHT_CODE))
    name, _, number = id_.partition(EQUALS)
    family = families()[name]
    if not number:
        return Neighbour(id_, family.title, family.hint, read_trial(family))
    value = float(number)
    title = family.title.format(f"{value:g}".replace("-", "−"))
    chosen = (family.convention, value) if family.convention else None
    return Neighbour(id_, title, family.hint, family.make(lambda: value), number=chosen)


#: The place and the change of the edits that are a number of a convention, without the number, by convention.
_NUMBERS: Final = {name: f"{step.__name__}/result@number:" for name, step in EPS.items()}


def _make_of_edit(edit: Edit) -> Neighbour:
    change = f"{edit.place}@{edit.change}"
    numbers = ((name, change.removeprefix(start)) for name, start in _NUMBERS.items() if change.startswith(start))
    chosen = next(((name, float(text)) for name, text in numbers), None)
    return Neighbour(edit.id, write_title(edit), write_hint(edit), edit.steps, number=chosen)


@cache
def find_made(id_: str) -> Mistaken:
    """Return the implementation of a mistake of the catalogue or of a neighbour."""
    catalogued = implementations().get(id_)
    return find_neighbour(id_).made if catalogued is None else catalogued


def list_layers(ids: Iterable[str]) -> list[Replacements]:
    """Return the steps that mistakes replace, a layer each, the later ones on top.

    Next to a backward pass of right code they keep the derivatives of right code.
    """
    from goldformer.conformance.diagnosis.neighbours.backward import OF_RIGHT_CODE

    listed = list(ids)
    layers = [find_made(id_).steps for id_ in listed]
    is_unaware = any(id_.endswith(OF_RIGHT_CODE) for id_ in listed)
    return [keep_right_derivatives(steps) for steps in layers] if is_unaware else layers
