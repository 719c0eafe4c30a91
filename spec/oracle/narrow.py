"""A call cut down to the places that are asked of its outputs, along the axes whose places do not mix.

A row of attention is a function of its own query, and a row of a softmax one of itself. So few places of a large output
are proven in the time that their rows take.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from goldformer.spec.model import ArraySpec, Case, Contract, Wanted
from goldformer.spec.shapes import LEAD

Array = NDArray[Any]
#: An axis by its name in the contract, or by its distance from the first of these, if it is one of "...".
Name = str | int


@dataclass(frozen=True, slots=True)
class Narrowing:
    """The places that are kept of each axis of a call."""

    kept: Mapping[Name, NDArray[np.int64]]

    @classmethod
    def of(cls, case: Case, contract: Contract, free: Collection[str]) -> Narrowing | None:
        """Keep the places of free axes that a case asks for; None if it asks for all places of an output."""
        wanted = {name: want for name, want in case.expect.items() if want.form != "shape"}
        if not all(want.indices for want in wanted.values()):
            return None
        kept: dict[Name, set[int]] = {}
        for output, want in wanted.items():
            places = np.array(want.indices)
            for axis, name in enumerate(_name_axes(contract.outputs[output], places.shape[1])):
                if (LEAD if isinstance(name, int) else name) in free:
                    kept.setdefault(name, set()).update(places[:, axis].tolist())
        return cls({name: np.array(sorted(places)) for name, places in kept.items()})

    def cut(self, array: Array, spec: ArraySpec) -> Array:
        """Return the kept part of an argument; an axis of length 1 that is broadcast stays."""
        for axis, name in enumerate(_name_axes(spec, array.ndim)):
            if name in self.kept and array.shape[axis] > 1:
                array = array.take(self.kept[name], axis)
        return array

    def find_places(self, want: Wanted, spec: ArraySpec) -> tuple[NDArray[np.int64], ...]:
        """Return the places that are asked for, in the output of the narrowed call."""
        places = np.array(want.indices).T
        names = _name_axes(spec, len(places))
        return tuple(
            np.searchsorted(self.kept[n], p) if n in self.kept else p for n, p in zip(names, places, strict=True)
        )


def _name_axes(spec: ArraySpec, ndim: int) -> list[Name]:
    """Name the axes of an array; one that is broadcast may have fewer than its contract says."""
    core = [str(axis) for axis in spec.shape.axes][-ndim:]
    return [*range(ndim - len(core), 0, -1), *core]
