"""Calls of code that always hides later tokens: the mask that they have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from goldformer.spec.shapes import Shape

Array = NDArray[Any]

#: What happens to the mask of a call: nothing, the causal mask is joined to it, or the causal mask takes its place.
Hiding = Literal["", "too", "only"]


@dataclass(frozen=True)
class LaterTokens:
    """The mask of a contract that is causal in every call under some options, with what it hides besides or without.

    `shape` is its full shape.
    """

    mask: str
    shape: Shape
    too_with: Mapping[str, tuple[str, ...]]
    only_with: Mapping[str, tuple[str, ...]]

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
