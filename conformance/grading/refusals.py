"""Apply the fault of a published error case to a fresh call, in whatever sizes that call has.

The reader of cases refuses a call that keeps the contract, or that breaks it at another argument: a fault that cannot
be applied in the new sizes gives no case, never a wrong one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from goldformer.conformance.grading.redraw import Raw, SeededRandom, Unfit
from goldformer.spec.model import Array, Case, read_count


def redraw_refusal(raw: Mapping[str, Any], old: Case, new: Case, random: SeededRandom) -> Raw:
    """Return an error case as it stands in a file: the fault of `raw`, whose base is `old`, in the call of `new`."""
    fault = _Fault(old, new, random)
    change = raw["change"]
    changed = {
        "attributes": {
            name: fault.change_attribute(name, value) for name, value in change.get("attributes", {}).items()
        },
        "inputs": fault.change_arrays(change.get("inputs", {}), old.input_arrays, new.input_arrays),
        "params": fault.change_arrays(change.get("params", {}), old.param_arrays, new.param_arrays),
    }
    return {
        "id": random.id, "title": f"Drawn for an assignment, like {raw['id']}", "clauses": raw["clauses"],
        "source": "derived", "base": new.id, "change": {name: made for name, made in changed.items() if made},
        "expect": raw["expect"],
    }  # fmt: skip


class _Fault:
    """A change of a published call, to be made in a fresh one."""

    def __init__(self, old: Case, new: Case, random: SeededRandom) -> None:
        self.old, self.new, self.random = old, new, random

    def change_attribute(self, name: str, value: Any) -> Any:
        """Return the wrong value of an attribute, as far from the right one as before."""
        if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
            return value
        vocab, width = self.old.sizes.get("vocab"), self.old.sizes.get("d_model")
        if name == "num_heads" and width is not None:
            d_model = self.new.sizes["d_model"]
            # A published number of heads may divide the new width.
            wrong = [d_model + value - width] if value > width else range(2, d_model)
            return self.random.choose([heads for heads in wrong if d_model % heads], "heads")
        if vocab is not None and value >= vocab and name.endswith("_id"):
            return value - vocab + self.new.sizes["vocab"]
        if isinstance(before := self.old.attributes.get(name), int):
            return value - before + read_count(self.new.attributes[name])
        return value

    def change_arrays(
        self, change: Mapping[str, Any], old: Mapping[str, Array], new: Mapping[str, Array]
    ) -> dict[str, Any]:
        """Return the recipes of changed arrays; null takes one away, as before."""
        return {
            name: None if recipe is None else self._change_array(name, recipe, old.get(name), new.get(name))
            for name, recipe in change.items()
        }

    def _change_array(self, name: str, recipe: Mapping[str, Any], old: Array | None, new: Array | None) -> Raw:
        if old is None or new is None:
            raise Unfit(f"{name} is not an argument of the base")
        if "values" in recipe:
            shape = recipe.get("shape")
            changed = np.array(recipe["values"], old.dtype).reshape(shape or np.shape(recipe["values"]))
            return self._change_values(changed, old, new)
        made = dict(recipe)
        if "shape" in recipe:
            made["shape"] = self._change_shape(tuple(recipe["shape"]), old.shape, new.shape)
        if "seed" in recipe:
            made["seed"] = self.random.number("seed", name)
        if recipe.get("lengths"):
            longest, samples = made["shape"][-1], made["shape"][0]
            made["lengths"] = [1 + self.random.number("length", i) % longest for i in range(samples)]
        return made

    def _change_values(self, changed: Array, old: Array, new: Array) -> Raw:
        """Return written-out ids with the same fault: no elements, fewer samples, no batch, or an id out of range."""
        if changed.size == 0:
            shape = self._change_shape(changed.shape, old.shape, new.shape)
            return {"values": np.empty(shape, new.dtype).tolist()} | ({"shape": shape} if shape[0] == 0 else {})
        if changed.ndim < old.ndim:
            return {"values": new[0].tolist()}
        if changed.shape != old.shape:
            return {"values": new[: changed.shape[0] - old.shape[0]].tolist()}
        value = next((int(value) for value in changed[changed != old]), 0)
        vocab = self.old.sizes.get("vocab", 0)
        made = np.array(new)
        made.flat[self.random.number("place") % made.size] = (
            value - vocab + self.new.sizes.get("vocab", 0) if value >= vocab else value
        )
        return {"values": made.tolist()}

    def _change_shape(self, changed: tuple[int, ...], old: tuple[int, ...], new: tuple[int, ...]) -> list[int]:
        """Return a shape with the same fault: every axis is as far from the right one as before."""
        if len(changed) == len(old):
            shape = [_change_size(*sizes) for sizes in zip(changed, old, new, strict=True)]
        else:
            known = {size: self.new.sizes[name] for name, size in self.old.sizes.items()}
            known |= dict(zip(self.old.lead, self.new.lead, strict=False))
            if not known.keys() >= {size for size in changed if size > 1}:
                raise Unfit("an axis has a size of its own")
            shape = [known.get(size, size) for size in changed]
        if min(shape) < 0:
            raise Unfit("an axis has no size")
        return shape


def _change_size(changed: int, old: int, new: int) -> int:
    """Return a size that is as far from `new` as the changed one from the old one."""
    if changed < 2:
        return changed
    # An axis of length 1 would broadcast, which many libraries accept.
    return new + changed - old if new + changed - old > 1 else new + old - changed
