"""Calls of code that always hides later tokens: the mask that they have, and the golden values that hold there too.

A row of attention depends only on the keys that it sees. So a value of a case also holds for code that is always causal
if its row sees the same keys there: the last row where there is no mask, and the last row before the padding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from goldformer.spec.shapes import Shape

Array = NDArray[Any]
Booleans = NDArray[np.bool_]

#: What happens to the mask of a call: nothing, the causal mask is joined to it, or the causal mask takes its place.
Hiding = Literal["", "too", "only"]

#: The axes of a mask that are those of samples, and of different masks of one sample.
_BATCH: Final = "batch"
_HEADS: Final = "heads"


@dataclass(frozen=True)
class LaterTokens:
    """The mask of a contract that is causal in every call under some options, with what it hides besides or without.

    `shape` is its full shape, `results` are the shapes of the outputs, and `counts` the attributes that say how many
    layers there are.
    """

    mask: str
    shape: Shape
    too_with: Mapping[str, tuple[str, ...]]
    only_with: Mapping[str, tuple[str, ...]]
    results: Mapping[str, Shape]
    counts: tuple[str, ...]

    @property
    def conventions(self) -> frozenset[str]:
        """The conventions that decide."""
        return frozenset((*self.too_with, *self.only_with))

    def find_hiding(self, options: Mapping[str, str]) -> Hiding:
        """Return what happens to the mask under these options; nothing by a convention that has no option there."""
        if any(options.get(name) in chosen for name, chosen in self.only_with.items()):
            return "only"
        return "too" if any(options.get(name) in chosen for name, chosen in self.too_with.items()) else ""

    def describe(self, options: Mapping[str, str]) -> str:
        """Return the declared options that decide."""
        return " and ".join(f"{name}: {options[name]}" for name in sorted(self.conventions & options.keys()))

    def hide(self, mask: Array | None, hiding: Hiding, sizes: Mapping[str, int], lead: tuple[int, ...]) -> Array | None:
        """Return the mask of a call, None for no mask.

        Where the numbers of queries and keys differ, they are not the same tokens, and none is later.
        """
        *_, q_seq, kv_seq = self.shape.sizes(sizes, lead)
        if not hiding or q_seq != kv_seq:
            return mask
        causal = np.tri(q_seq, kv_seq, dtype=np.bool_)
        return causal if mask is None or hiding == "only" else mask & causal

    def find_same(
        self, before: Array | None, after: Array, sizes: Mapping[str, int], lead: tuple[int, ...], layers: int
    ) -> Mapping[str, Booleans]:
        """Return, for each output, the elements that are the same under two masks, after some layers.

        From the second layer on a row is the same only if all rows that it sees are. Nothing is the same where a query
        loses its last key: its row may be NaN, and reach other rows as 0·NaN.
        """
        shape = self.shape.sizes(sizes, lead)
        old, new = (np.broadcast_to(np.True_ if mask is None else mask, shape) for mask in (before, after))
        axes = (self.shape.symbols.index(_HEADS),) if _HEADS in self.shape.symbols else ()
        loses_all = np.any(old, axis=-1) & ~np.any(new, axis=-1)
        same = np.all(old == new, axis=(*axes, -1)) & ~np.any(loses_all)
        seen = np.any(old, axis=axes)
        rows = same
        for _ in range(layers - 1):
            rows = same & np.all(rows[..., None, :] | ~seen, axis=-1)
        return {name: self._spread(rows, result, sizes, lead) for name, result in self.results.items()}

    def _spread(self, rows: Booleans, result: Shape, sizes: Mapping[str, int], lead: tuple[int, ...]) -> Booleans:
        """Return the elements of a result that stand in these rows; none of a result that has no such rows."""
        shape = result.sizes(sizes, lead)
        names = [str(axis) for axis in result.axes]
        query = str(self.shape.axes[-2])
        outer = list(range(len(lead))) if result.lead else [i for i, name in enumerate(names) if name == _BATCH]
        if query not in names or len(outer) != rows.ndim - 1:
            return np.zeros(shape, dtype=np.bool_)
        at = (len(lead) if result.lead else 0) + names.index(query)
        lengths = [size if axis in (*outer, at) else 1 for axis, size in enumerate(shape)]
        return np.broadcast_to(rows.reshape(lengths), shape)
