"""An edit of a formula: one operation or one step is changed, in every call of the step or in one.

The id of an edit holds all that makes it, such as "rms_norm.edit@mean_square/result@over:-2": the component that is
recorded, the place, and the change. A place that a call does not have is left as it is.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np

from goldformer.adapters.textbook.reverse import Recorded
from goldformer.conformance.diagnosis.edits.changes import (
    KINDS,
    OF_NODES,
    OF_PARTS,
    OF_SCOPES,
    Changes,
    read_part,
    share_parts,
)
from goldformer.conformance.diagnosis.edits.graph import Graph, Node, Value, record
from goldformer.spec.formulas import COMPONENTS
from goldformer.spec.formulas.arrays import Array
from goldformer.spec.formulas.steps import Replacements, Step, around

_EDIT: Final = ".edit@"


@dataclass(frozen=True, slots=True)
class Edit:
    """A change of the nodes of one place in the graph of a component."""

    component: str
    place: str
    change: str

    @property
    def id(self) -> str:
        """The id, from which `read_edit` makes the same edit."""
        return f"{self.component}{_EDIT}{self.place}@{self.change}"

    @property
    def steps(self) -> Replacements:
        """The replacement of the component by its formula with this edit."""
        step = COMPONENTS[self.component]
        return {step: around(partial(_run_edited, self, step))}

    @property
    def is_in_one_call(self) -> bool:
        """Return True if it is made in one of several calls of a step, which the place has a number for."""
        return "#" in self.place.rpartition("/")[0]

    @property
    def is_solved(self) -> bool:
        """Return True if its number was solved for."""
        return self.change.startswith(("solved:", "scaled:"))

    @property
    def rank(self) -> tuple[int, bool, int, int, bool, str]:
        """The key that sorts edits, the likelier first: by the kind of change, in every call, near the result."""
        tier, place = KINDS[self.change.partition(":")[0]]
        is_inner = "/result" not in self.place
        return tier, self.is_in_one_call, place, self.place.count("/") - 1, is_inner, self.id

    def apply(self, graph: Graph) -> dict[Node, Value]:
        """Return the new values of the nodes that depend on the edit."""
        with np.errstate(all="ignore"):
            return graph.run(dict(self._list_changes(graph)))

    def give_outputs(
        self, graph: Graph, names: Collection[str] | None = None, wrong: Collection[str] = ()
    ) -> dict[str, Array] | None:
        """Return the outputs of some names with the edit, floats in float64.

        None if the edit cannot be made, or does not reach all that is `wrong`.
        """
        outputs = {name: node for name, node in graph.outputs.items() if names is None or name in names}
        try:
            changes = dict(self._list_changes(graph))
            reached = graph.find_reached(changes) & outputs.keys()
            if not reached or not reached >= set(wrong):
                return None
            with np.errstate(all="ignore"):
                fresh = graph.run(changes)
        except (ArithmeticError, LookupError, TypeError, ValueError):  # a shape, or a number, that does not fit
            return None
        return {
            name: np.asarray(fresh.get(node, node.value), dtype=np.float64) if isinstance(node, Node) else node
            for name, node in outputs.items()
        }

    def _list_changes(self, graph: Graph) -> Changes:
        word, *rest = self.change.split(":")
        if word in OF_SCOPES:
            step, _, role = self.place.rpartition("/")
            for scope in graph.find_scopes(step):
                if role in scope.results:
                    yield from OF_SCOPES[word](graph, scope, scope.results[role], *rest)
            return
        if word in OF_PARTS:
            own = self.place.rpartition("/")[2]
            if word == "share":
                yield from share_parts(graph, own, rest[0])
                return
            yield from read_part(graph, own, rest[0])
            yield from read_part(graph, rest[0], own) if OF_PARTS[word] else ()
            return
        for node in graph.find(self.place):
            yield from OF_NODES[word](graph, node, *rest)


def is_edit(id_: str) -> bool:
    """Return True for the id of an edit."""
    return _EDIT in id_


def read_edit(id_: str) -> Edit:
    """Return the edit of an id."""
    component, _, rest = id_.partition(_EDIT)
    place, _, change = rest.partition("@")
    return Edit(component, place, change)


def rank_generated(id_: str) -> tuple[Any, ...]:
    """Return the key that sorts the ids of edits by their rank, after those that are an option, such as another eps."""
    return (1, *read_edit(id_).rank) if is_edit(id_) else (0, id_)


def is_in_one_call(id_: str) -> bool:
    """Return True for the id of an edit that is made in one of several calls of a step."""
    return is_edit(id_) and read_edit(id_).is_in_one_call


def _run_edited(edit: Edit, step: Step, original: Step, *args: Any, **named: Any) -> Any:
    """Run the formula of a component with an edit, on arrays of NumPy or on those that record their derivatives."""
    graph, returned = record(edit.component, step, *args, run=original, **named)
    fresh = edit.apply(graph)
    return _take_values(returned, fresh)


def _take_values(returned: Any, fresh: Mapping[Node, Value]) -> Any:
    if isinstance(returned, Node):
        value = fresh.get(returned, returned.value)
        return value if isinstance(value, Recorded) else np.asarray(value)
    if isinstance(returned, Mapping):
        return {name: _take_values(value, fresh) for name, value in returned.items()}
    return tuple(_take_values(value, fresh) for value in returned) if isinstance(returned, tuple) else returned


def note_graph(component: str, graphs: list[Graph]) -> Replacements:
    """Return the replacement of a component that also appends the graph of each of its calls to a list."""
    step = COMPONENTS[component]

    def run(original: Step, *args: Any, **named: Any) -> Any:
        graph, returned = record(component, step, *args, run=original, **named)
        graphs.append(graph)
        return _take_values(returned, {})

    return {step: around(run)}
