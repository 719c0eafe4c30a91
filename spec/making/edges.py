"""The edges of what a contract admits: the least sizes and numbers, and the arrays that are unlike drawn ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from goldformer.spec.load import Spec
from goldformer.spec.model import Case, Contract
from goldformer.spec.strict import Items, Name, StrictModel, Text
from goldformer.spec.yamlfile import YamlFile

#: The inputs that a softmax reads, of which a row may lie far below 0.
_SCORES: Final = ("scores", "logits")
_FAR_BELOW: Final = -1e4
#: What lies no further from a limit than this share of it, or than this where the limit is 0, is next to it.
_NEXT: Final = 0.1


_FILE: Final = Path(__file__).parents[1] / "edges.yaml"


class Excuse(StrictModel):
    """The edges of some components that no case visits, and the reason."""

    because: Text
    edges: dict[Name, Items[Text]]


class EdgesFile(StrictModel):
    """The schema of edges.yaml."""

    unvisited: Items[Excuse]


def list_edges(contract: Contract) -> Iterator[str]:
    """Yield the edges of the arguments of a contract."""
    least = {spec.size: spec.minimum for spec in contract.attributes.values() if spec.size}
    symbols = (symbol for spec in contract.inputs.values() for symbol in spec.shape.symbols)
    yield from (f"{symbol} = 1" for symbol in dict.fromkeys(symbols) if least.get(symbol, 1) == 1)
    for name, spec in contract.inputs.items():
        if spec.optional:
            yield from (f"{name} missing", f"{name} given")
        if spec.kind == "bool":
            yield from (f"{name} hides nothing", f"{name} leaves one key", f"{name} hides a row")
        elif spec.kind == "float" and not contract.depends_on:
            yield f"{name} has a row of equal numbers"
        if name in _SCORES:
            yield f"{name} has a row below {_FAR_BELOW:.0f}"
    for name, number in contract.attributes.items():
        if number.optional:
            yield from (f"{name} missing", f"{name} given")
        limits = {"least": number.minimum, "largest": number.at_most if number.maximum is None else number.maximum}
        yield from (f"{name} {which}" for which, limit in limits.items() if limit is not None)


def find_visited(case: Case, contract: Contract) -> Iterator[str]:
    """Yield the edges that a case visits."""
    yield from (f"{symbol} = 1" for symbol, size in case.sizes.items() if size == 1)
    for name, spec in contract.inputs.items():
        yield f"{name} {'given' if name in case.inputs else 'missing'}"
        if name in case.inputs and (array := case.input_arrays[name]).ndim and array.size:
            yield from (f"{name} {what}" for what in _describe(array, spec.kind))
    for name, number in contract.attributes.items():
        yield f"{name} {'given' if name in case.attributes else 'missing'}"
        if name not in case.attributes or number.kind == "ints":
            continue
        value: Any = case.attributes[name]
        largest: Any = number.maximum
        if number.at_most is not None:
            factor, _, symbol = number.at_most.rpartition("*")
            largest = int(factor or 1) * case.sizes.get(symbol, 0) or case.attributes.get(symbol)
        for which, limit in (("least", number.minimum), ("largest", largest)):
            if limit is not None and abs(value - limit) <= (_NEXT * (abs(limit) or 1) if number.kind == "float" else 0):
                yield f"{name} {which}"


def _describe(array: NDArray[Any], kind: str) -> Iterator[str]:
    if kind == "bool":
        seen = array.sum(-1)
        found = {"hides nothing": array.all(), "leaves one key": (seen == 1).any(), "hides a row": (seen == 0).any()}
    else:
        equal = array.shape[-1] > 1 and (array == array[..., :1]).all(-1).any()
        found = {
            "has a row of equal numbers": equal,
            f"has a row below {_FAR_BELOW:.0f}": (np.max(array, -1) < _FAR_BELOW).any(),
        }
    yield from (what for what, is_so in found.items() if is_so)


def list_unvisited(spec: Spec) -> dict[str, list[str]]:
    """Return by component the edges that neither a case with values nor an excuse has, or that both have."""
    excuses, found = YamlFile.read(_FILE).parse(EdgesFile).unvisited, {}
    for component, contract in spec.contracts.items():
        cases = (case for case in spec.cases_of(component) if case.golden is not None and case.error is None)
        visited = {edge for case in cases for edge in find_visited(case, contract)}
        excused = {edge for excuse in excuses for edge in excuse.edges.get(component, ())}
        if wrong := (set(list_edges(contract)) - visited) ^ excused:
            found[component] = sorted(wrong)
    return found
