"""Draws a published case anew: other sizes, other numbers, ids, masks and lengths; what it is about stays."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from goldformer.conformance.grading.templates import LARGEST, RELATED, Chance, Template, Unfit, fixed, sign
from goldformer.spec.model import Array, ArraySpec

Raw = dict[str, Any]

#: Sizes by their names, and those of the leading axes.
Sizes = tuple[dict[str, int], tuple[int, ...]]

#: So often sizes are drawn that differ where they may.
_TRIES: Final = 100

#: So many numbers cost nothing.
_SMALL: Final = 200

#: The widest model; its width is the number of heads times theirs.
_WIDEST: Final = 16

#: Sizes that stay equal to another one: the widths of one model, and of one head.
_TIED: Final = {"d_query": "d_model", "d_key": "d_model", "d_value": "d_model", "d_v": "d_k"}


def redrawn(template: Template, chance: Chance) -> Raw:
    """The case as it is written, drawn anew; Unfit where this attempt gives none."""
    return _Redraw(template, chance).case()


class _Redraw:
    """One attempt at one case."""

    def __init__(self, template: Template, chance: Chance) -> None:
        self.template, self.chance = template, chance
        self.old, self.contract = template.case, template.contract
        self.sizes, self.lead = next(filter(None, map(self._tried, range(_TRIES))), None) or self._sizes(_TRIES)
        self.lengths: dict[tuple[int, ...], list[int]] = {}

    def case(self) -> Raw:
        raw = self.template.raw
        specs = {**self.contract.inputs, **self.contract.params_for(self.old.attributes)}
        inputs = {name: self._recipe(name, recipe, specs[name]) for name, recipe in raw.get("inputs", {}).items()}
        made: Raw = {
            "id": self.chance.id, "title": f"Drawn for an assignment, like {self.old.id}", "clauses": raw["clauses"],
            "source": "derived", "sizes": self._written_sizes(), "attributes": self._attributes(), "inputs": inputs,
            "params": self._params(raw.get("params", {}), specs), "expect": self._expect(raw["expect"]),
        }  # fmt: skip
        if "cotangent" in raw:
            drawn = {"seed": self.chance.number("cotangent")} if "draw" in raw["cotangent"] else {}
            made["cotangent"] = {**raw["cotangent"], **drawn}
        return made | {name: raw[name] for name in ("convention", "only_with") if name in raw}

    # ── sizes ──

    def _tried(self, number: int) -> Sizes | None:
        try:
            return self._sizes(number)
        except Unfit:
            return None

    def _sizes(self, number: int) -> Sizes:
        """Sizes that differ where they may, related as they were; Unfit where this try gives none."""
        if self.template.written:
            return dict(self.old.sizes), self.old.lead
        before = {**self.old.sizes, **{f"lead[{i}]": size for i, size in enumerate(self.old.lead)}}
        kept = fixed(self.contract)
        ties = {a: b for a, b in _TIED.items() if "heads" in before and a in before and before[a] == before.get(b)}
        ties |= {a: b for a, b in RELATED if a in before and before[a] == before.get(b)}
        product = "heads" in before and before.get("d_model") == before["heads"] * before.get("d_k", 0)
        now = {name: size for name, size in before.items() if size == 1 or name in kept}
        for name, size in before.items():
            if name not in now and name not in ties and not (product and name == "d_model"):
                taken = {value for other, value in now.items() if other not in kept}
                now[name] = self._size(name, size, taken, number)
        if product:
            now["d_model"] = now["heads"] * now["d_k"]
        now |= {a: now[b] for a, b in ties.items()}
        self._refuse(before, now, ties, equal=self._may_be_equal(number))
        lead = tuple(now.pop(f"lead[{i}]") for i in range(len(self.old.lead)))
        if self._elements(now, lead) > max(self._elements(self.old.sizes, self.old.lead), _SMALL):
            raise Unfit("deriving it would take longer than deriving the published one")
        return {name: now[name] for name in self.old.sizes}, lead

    def _elements(self, sizes: Mapping[str, int], lead: tuple[int, ...]) -> int:
        """How many numbers the arrays have: what deriving a case costs grows with them."""
        specs = {**self.contract.inputs, **self.contract.params_for(self.old.attributes)}
        given = (*self.old.inputs, *self.old.params)
        return sum(math.prod(specs[name].shape.sizes(sizes, lead)) for name in given)

    def _size(self, name: str, size: int, taken: set[int], number: int) -> int:
        """A size near the old one, which grows with the attempts where all are taken."""
        room = 2 + self.chance.attempt // 16
        near = size // 8 if size > LARGEST else room
        # Gradients are derived of every number, so they do not grow.
        further = near - 2 if self.old.cotangent is not None else near
        # Ids that attributes name stay words of the vocabulary; a narrower model decodes one word over and over.
        lowest = size if name in ("vocab", "d_model") else max(2, size - near)
        near_by = range(lowest, size + further + 1)
        free = [n for n in near_by if n not in taken or self._may_be_equal(number)]
        return self.chance.choose(free, "size", name, number)

    def _may_be_equal(self, number: int) -> bool:
        """A small model has no room for sizes that all differ; the last tries let those be equal that others are."""
        return self.old.equal_sizes is not None and number > _TRIES * 3 // 4

    def _refuse(
        self, before: Mapping[str, int], now: Mapping[str, int], ties: Mapping[str, str], *, equal: bool
    ) -> None:
        free = [
            size for name, size in now.items() if size > 1 and name not in ties and name not in fixed(self.contract)
        ]
        if len(free) != len(set(free)) and not equal:
            raise Unfit("two sizes are equal")
        if any(sign(before, pair) != sign(now, pair) for pair in RELATED):
            raise Unfit("sizes are related otherwise")
        if now.get("d_model", 0) > _WIDEST or before.get("d_model", 0) % 2 != now.get("d_model", 0) % 2:
            raise Unfit("the model is too wide, or its width has no cosine to each sine")

    def _written_sizes(self) -> Raw:
        """The sizes that the case gives; the others follow from its arrays and attributes."""
        given = {name: self.sizes[name] for name in self.template.raw.get("sizes", {}) if name != "lead"}
        return given | ({"lead": list(self.lead)} if "lead" in self.template.raw.get("sizes", {}) else {})

    def _attributes(self) -> Raw:
        made = dict(self.template.raw.get("attributes", {}))
        for name in made:
            if size := self.contract.attributes[name].size:
                made[name] = self.sizes[size]
            elif name == "seed":
                made[name] = self.chance.number("attribute", name) >> 32
        return made

    # ── arrays ──

    def _params(self, raw: Mapping[str, Any], specs: Mapping[str, ArraySpec]) -> Raw:
        if "draw" not in raw:
            return {name: self._recipe(name, recipe, specs[name]) for name, recipe in raw.items()}
        made = {**raw, "seed": self.chance.number("params")}
        if "but" in raw:
            made["but"] = {name: self._recipe(name, recipe, specs[name]) for name, recipe in raw["but"].items()}
        return made

    def _recipe(self, name: str, raw: Mapping[str, Any], spec: ArraySpec) -> Raw:
        if "draw" in raw:
            made = {**raw, "seed": self.chance.number("seed", name)}
            if raw["draw"] == "ids" and spec.below:
                made["range"] = [raw["range"][0], self.sizes[spec.below] - 1]
            return made
        if "values" in raw:
            return {"values": self._values(name, self.old.input_arrays[name], spec).tolist()}
        if "shape" not in raw:
            return dict(raw)
        shape = self._shape(self.old.inputs[name].shape, spec)
        lengths = {"lengths": self._lengths(raw["lengths"], shape[0], shape[-1])} if raw.get("lengths") else {}
        return {**raw, "shape": list(shape), **lengths}

    def _shape(self, old: tuple[int, ...], spec: ArraySpec) -> tuple[int, ...]:
        """As many axes as before, and 1 where it was broadcast."""
        full = spec.shape.sizes(self.sizes, self.lead)
        full = full[len(full) - len(old) :]
        return tuple(1 if before == 1 else size for before, size in zip(old, full, strict=True))

    def _values(self, name: str, old: Array, spec: ArraySpec) -> Array:
        if old.dtype.kind == "f":
            return np.array(
                [self._shuffled(name, i, row) for i, row in enumerate(old.reshape(-1, old.shape[-1]))]
            ).reshape(old.shape)
        shape = self._shape(old.shape, spec)
        return self._mask(name, shape) if old.dtype.kind == "b" else self._ids(name, old, spec, shape)

    def _shuffled(self, name: str, row: int, numbers: Array) -> Array:
        order = sorted(range(len(numbers)), key=lambda i: self.chance.number("order", name, row, i))
        return numbers[order]

    def _mask(self, name: str, shape: tuple[int, ...]) -> Array:
        """Each key is hidden three times in eight; every row keeps one."""
        mask = np.array([self.chance.number(name, i) % 8 >= 3 for i in range(math.prod(shape))]).reshape(-1, shape[-1])
        for i, row in enumerate(mask):
            row[self.chance.number(name, "kept", i) % len(row)] = True
        return mask.reshape(shape)

    def _ids(self, name: str, old: Array, spec: ArraySpec, shape: tuple[int, ...]) -> Array:
        """Words that are no padding; padding as the old ones had it, behind them or anywhere."""
        pad = self.old.attributes.get("pad_id")
        low, high = (0, self.sizes[spec.below] - 1) if spec.below else (int(old.min()), int(old.max()) + 2)
        words = [word for word in range(low, high + 1) if word != pad]
        count = math.prod(shape)
        ids = np.array([self.chance.choose(words, name, i) for i in range(count)]).reshape(shape)
        if pad is None or not np.any(old == pad):
            return ids
        rows = [np.flatnonzero(row != pad) for row in old]
        ends = [int(row[-1]) + 1 if row.size else 0 for row in rows]
        if any(row.size != end for row, end in zip(rows, ends, strict=True)) or 0 in ends:
            hidden = [self.chance.number(name, "hidden", i) % 3 == 0 for i in range(count)]
            return np.where(np.array(hidden).reshape(shape), pad, ids)
        lengths = self._lengths(ends, *shape)
        return np.where(np.arange(shape[-1]) < np.array(lengths)[:, None], ids, pad)

    def _lengths(self, old: Sequence[int], samples: int, longest: int) -> list[int]:
        """Lengths of samples, one of them the longest; arrays that were padded alike still are."""
        key = tuple(old)
        if key not in self.lengths:
            drawn = [1 + self.chance.number("length", *key, i) % max(longest - 1, 1) for i in range(samples)]
            drawn[self.chance.number("longest", *key) % samples] = longest
            self.lengths[key] = drawn
        if max(self.lengths[key]) != longest or len(self.lengths[key]) != samples:
            raise Unfit("what was padded alike has other lengths now")
        return self.lengths[key]

    def _expect(self, raw: Mapping[str, Any]) -> Raw:
        made: Raw = {}
        for name, form in raw.items():
            made[name] = form
            if isinstance(form, dict) and "drawn" in form:
                made[name] = {**form, "seed": self.chance.number("places", name)}
            elif isinstance(form, dict) and "lengths" in form:
                if tuple(form["lengths"]) not in self.lengths:
                    raise Unfit("it is not clear which rows are compared")
                made[name] = {"lengths": self.lengths[tuple(form["lengths"])]}
        return made
