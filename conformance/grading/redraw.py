"""Draw a published case again: with other sizes, numbers, ids, masks and lengths, but with the same purpose.

Every drawn value follows from a secret by SHA-256, so that it is the same on every machine and does not reveal the
secret.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Final, TypeVar

import numpy as np

from goldformer.spec.load import Spec
from goldformer.spec.model import Array, ArraySpec, Case, Contract

Item = TypeVar("Item")
Raw = dict[str, Any]

#: Sizes by their names, and those of the leading axes.
Sizes = tuple[dict[str, int], tuple[int, ...]]

#: Gradients of more numbers than this take seconds each.
_DERIVED: Final = 450

#: The largest size of a fresh case: small cases reveal as much as large ones and are derived quickly.
_LARGEST: Final = 20

#: The most layers or beams: more of them take longer and reveal no more.
_LAYERS: Final = 2

#: Pairs of sizes whose order stays: attention within a sequence, and lengths of sequences.
_RELATED: Final = (("q_seq", "kv_seq"), ("length", "seq"))

#: Sizes that may be 1; cases with another size of 1 are published, and reveal less.
_MAY_BE_ONE: Final = frozenset({"batch", "heads", "kv_heads"})

#: Conventions that show only on inputs that are not drawn here: rows without a key, and odd widths.
_NOT_DRAWN: Final = frozenset({"empty_row", "odd_d_model"})

#: The number of tries to draw sizes that all differ.
_TRIES: Final = 100

#: Deriving a case of at most this many numbers is always cheap enough.
_SMALL: Final = 200

#: The widest model; its width is the number of heads times theirs.
_WIDEST: Final = 16

#: Sizes that stay equal to another one: the widths of one model, and of one head.
_TIED: Final = {"d_query": "d_model", "d_key": "d_model", "d_value": "d_model", "d_v": "d_k"}


class Unfit(Exception):
    """A draw or a case gives no fresh case; the message says why."""


@dataclass(frozen=True, slots=True)
class SeededRandom:
    """Random numbers that follow from a secret, an id, an attempt, and words that name their purpose."""

    secret: str
    id: str
    attempt: int = 0

    def number(self, *what: str | int) -> int:
        """Return a number of 63 bits."""
        words = "/".join(map(str, (self.secret, self.id, self.attempt, *what)))
        return int.from_bytes(hashlib.sha256(words.encode()).digest()[:8]) >> 1

    def choose(self, items: Sequence[Item], *what: str | int) -> Item:
        """Return one of some items; Unfit if there are none."""
        if not items:
            raise Unfit(f"nothing is left for {' '.join(map(str, what))}")
        return items[self.number(*what) % len(items)]


@dataclass(frozen=True, slots=True)
class Template:
    """A published case, as it was read and as it stands in its file; `declared` are the options of the assignment."""

    case: Case
    raw: Mapping[str, Any]
    contract: Contract
    declared: Mapping[str, str]

    @property
    def has_values(self) -> bool:
        """True if the file has numbers of it: they are shuffled, and the sizes stay."""
        arguments = [*self.case.inputs.values(), *self.case.params.values()]
        return any((array := arg.written) is not None and array.dtype.kind == "f" for arg in arguments)

    @property
    def kind(self) -> tuple[Any, ...]:
        """The properties in which fresh cases should differ: gradients, optional inputs, switches and sizes."""
        optional = tuple(name for name in self.case.inputs if self.contract.inputs[name].optional)
        switches = tuple(value for value in self.case.attributes.values() if isinstance(value, bool))
        signs = tuple(_compare_sizes(self.case.sizes, pair) for pair in _RELATED)
        return self.case.cotangent is not None, optional, switches, signs


def explain_unfit(template: Template, spec: Spec) -> str | None:
    """Return why a case cannot be drawn again, or None."""
    case, raw = template.case, template.raw
    expected = [form for form in raw["expect"].values() if isinstance(form, dict)]
    recipes = [*raw.get("inputs", {}).values(), *_list_recipes(raw.get("params", {}))]
    sizes = {
        size for name, size in case.sizes.items() if name not in _MAY_BE_ONE | _find_fixed_sizes(template.contract)
    }
    reasons = {
        "is an error": case.error is not None,
        "asks only for shapes": case.shape_only,
        "repeats a document": bool(case.printed),
        "is blind to something": bool(case.blind),
        "is only advised": spec.is_advice(case),
        "is for another option": bool(case.explain_unfit(choose_options(template, spec))),
        "is about a convention that shows only on some inputs": not _NOT_DRAWN.isdisjoint(case.conventions),
        "asks for certain places": any("probes" in form for form in expected),
        "has a size of 1": 1 in sizes,
        "has many layers": max((case.sizes.get(name, 0) for name in _find_fixed_sizes(template.contract)), default=0)
        > _LAYERS,
        "has gradients of many numbers": case.cotangent is not None
        and sum(math.prod(a.shape) for a in (*case.inputs.values(), *case.params.values())) > _DERIVED,
        "is large": not case.random and max((*case.sizes.values(), *case.lead), default=0) > _LARGEST,
        "has shapes of its own": any("shape" in r and not {"lengths", "causal"} & set(r) for r in recipes),
        "has parameters that are written out": any(a.written is not None for a in case.params.values()),
        "has a gradient that is written out": case.cotangent is not None and case.cotangent.written is not None,
    }
    return next((why for why, holds in reasons.items() if holds), None)


def choose_options(template: Template, spec: Spec) -> dict[str, str]:
    """Return the option of each convention of a component, and of its case, under which the assignment judges it."""
    conventions = {*template.contract.conventions, *template.case.only_with}
    return {name: template.declared.get(name, spec.conventions[name].default) for name in conventions}


#: The mistake that only extreme scores reveal.
UNSTABLE: Final = "softmax-unstable"
#: The ends and steps of inputs that make all scores of attention or of a softmax so large, and so much alike, that a
#: plain exponential overflows in every dtype while no weight vanishes; with a sign for one of them.
_RAISED: Final[Mapping[str, Mapping[str, tuple[Fraction, Fraction, Fraction]]]] = {
    "softmax": {"scores": (Fraction(1024), Fraction(1048), Fraction(8))},
    "scaled_dot_product_attention": {
        "query": (Fraction(32), Fraction(33), Fraction(1, 4)),
        "key": (Fraction(32), Fraction(65, 2), Fraction(1, 4)),
    },
}


def raise_scores(template: Template, secret: str) -> Template | None:
    """Return the template with scores that overflow a plain exponential; None if it has none that can be raised.

    The mistake that such scores reveal is stated in `meant_for`, so that the kind of a fresh case is known.
    """
    if UNSTABLE in template.case.kills and not template.has_values:
        return replace(template, raw={**template.raw, "meant_for": [UNSTABLE]})
    case, component = template.case, template.contract.component
    raised = _RAISED.get(component, {})
    recipes = template.raw.get("inputs", {})
    if not raised or case.cotangent is not None or any("range" not in recipes.get(name, {}) for name in raised):
        return None
    first = next(iter(raised))
    negative = SeededRandom(secret, case.id).number("sign") % 2 == 1
    inputs = dict(recipes)
    for name, (low, high, step) in raised.items():
        ends = (-high, -low) if negative and name == first else (low, high)
        inputs[name] = {**recipes[name], "draw": "dyadic", "range": [float(end) for end in ends], "step": str(step)}
    return replace(template, raw={**template.raw, "inputs": inputs, "meant_for": [UNSTABLE]})


def find_kind(case: Case) -> str:
    """Return the kind of a case, a key of KINDS in fresh.py."""
    if case.error is not None:
        return "refusal"
    if UNSTABLE in (*case.kills, *case.meant_for):
        return "extreme"
    return "gradient" if case.cotangent is not None else "value"


def _find_fixed_sizes(contract: Contract) -> frozenset[str]:
    """Return the sizes that stay: numbers of layers and beams decide how long a case takes, and are in no shape."""
    attributes = contract.attributes
    named = [layers.count for layers in contract.layers]
    named += [name for name, attribute in attributes.items() if attribute.at_most]
    return frozenset(size for name in named if (size := attributes[name].size))


def _list_recipes(params: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [*params.get("but", {}).values()] if "draw" in params else list(params.values())


def _compare_sizes(sizes: Mapping[str, int], pair: tuple[str, str]) -> int | None:
    """Return the sign of the difference of two sizes; None if one of them is missing."""
    if not set(pair) <= set(sizes):
        return None
    return int(np.sign(sizes[pair[0]] - sizes[pair[1]]))


def redraw_case(template: Template, random: SeededRandom) -> Raw:
    """Return the case drawn again, as it stands in a file; Unfit if this attempt gives none."""
    return _Redraw(template, random).case()


class _Redraw:
    """One attempt at one case."""

    def __init__(self, template: Template, random: SeededRandom) -> None:
        self.template, self.random = template, random
        self.old, self.contract = template.case, template.contract
        # A script cuts as many tokens as there are.
        cut = [] if self.contract.session is None else [self.contract.session.axis]
        self.fixed = _find_fixed_sizes(self.contract).union(cut)
        self.sizes, self.lead = next(filter(None, map(self._try_sizes, range(_TRIES))), None) or self._draw_sizes(
            _TRIES
        )
        self.lengths: dict[tuple[int, ...], list[int]] = {}

    def case(self) -> Raw:
        raw = self.template.raw
        specs = {**self.contract.inputs, **self.contract.params_for(self.old.attributes)}
        inputs = {name: self._draw_recipe(name, recipe, specs[name]) for name, recipe in raw.get("inputs", {}).items()}
        made: Raw = {
            "id": self.random.id, "title": f"Drawn for an assignment, like {self.old.id}", "clauses": raw["clauses"],
            "source": "derived", "sizes": self._list_sizes(), "attributes": self._redraw_attributes(), "inputs": inputs,
            "params": self._draw_params(raw.get("params", {}), specs), "expect": self._draw_expect(raw["expect"]),
        }  # fmt: skip
        if "cotangent" in raw:
            drawn = {"seed": self.random.number("cotangent")} if "draw" in raw["cotangent"] else {}
            made["cotangent"] = {**raw["cotangent"], **drawn}
        if UNSTABLE in raw.get("meant_for", ()):
            made["meant_for"] = [UNSTABLE]
        return made | self._choose_conventions(raw)

    def _choose_conventions(self, raw: Mapping[str, Any]) -> Raw:
        """Return the first convention of a case, and one option of its others: each combination takes time."""
        declared, deciding = self.template.declared, self.contract.conventions_of_params
        first = next(iter(self.old.conventions), None)
        # The documents' own option comes first.
        fixed = {
            name: declared.get(name, options[0])
            for name, options in self.old.conventions.items()
            if name != first and name not in deciding
        }
        # Without parameters that the assignment's option leaves out
        without = {name: declared[name] for name in deciding if name in declared}
        only_with = {**raw.get("only_with", {}), **fixed, **without}
        chosen = {} if first is None or first in deciding else {"convention": first}
        return chosen | ({"only_with": only_with} if only_with else {})

    def _try_sizes(self, number: int) -> Sizes | None:
        try:
            return self._draw_sizes(number)
        except Unfit:
            return None

    def _draw_sizes(self, number: int) -> Sizes:
        """Draw sizes that all differ if they may, with the same relations; Unfit if this try gives none."""
        if self.template.has_values:
            return dict(self.old.sizes), self.old.lead
        before = {**self.old.sizes, **{f"lead[{i}]": size for i, size in enumerate(self.old.lead)}}
        kept = self.fixed
        ties = {a: b for a, b in _TIED.items() if "heads" in before and a in before and before[a] == before.get(b)}
        ties |= {a: b for a, b in _RELATED if a in before and before[a] == before.get(b)}
        product = "heads" in before and before.get("d_model") == before["heads"] * before.get("d_k", 0)
        now = {name: size for name, size in before.items() if size == 1 or name in kept}
        for name, size in before.items():
            if name not in now and name not in ties and not (product and name == "d_model"):
                taken = {value for other, value in now.items() if other not in kept}
                now[name] = self._draw_size(name, size, taken, number)
        if product:
            now["d_model"] = now["heads"] * now["d_k"]
        now |= {a: now[b] for a, b in ties.items()}
        self._check_sizes(before, now, ties, equal=self._may_be_equal(number))
        lead = tuple(now.pop(f"lead[{i}]") for i in range(len(self.old.lead)))
        if self._count_elements(now, lead) > max(self._count_elements(self.old.sizes, self.old.lead), _SMALL):
            raise Unfit("deriving it would take longer than deriving the published one")
        return {name: now[name] for name in self.old.sizes}, lead

    def _count_elements(self, sizes: Mapping[str, int], lead: tuple[int, ...]) -> int:
        """Return the number of elements of all arrays, with which the cost of deriving a case grows."""
        specs = {**self.contract.inputs, **self.contract.params_for(self.old.attributes)}
        given = (*self.old.inputs, *self.old.params)
        return sum(math.prod(specs[name].shape.sizes(sizes, lead)) for name in given)

    def _draw_size(self, name: str, size: int, taken: set[int], number: int) -> int:
        """Return a size near the old one; the range grows with the attempts if all sizes in it are taken."""
        room = 2 + self.random.attempt // 16
        near = size // 8 if size > _LARGEST else room
        # Gradients are derived of every number, so they do not grow.
        further = near - 2 if self.old.cotangent is not None else near
        # Ids that attributes name stay words of the vocabulary; a narrower model decodes one word over and over.
        lowest = size if name in ("vocab", "d_model") else max(2, size - near)
        near_by = range(lowest, size + further + 1)
        free = [n for n in near_by if n not in taken or self._may_be_equal(number)]
        return self.random.choose(free, "size", name, number)

    def _may_be_equal(self, number: int) -> bool:
        """Return True if sizes may be equal: a small model has too few sizes, so the last tries allow it."""
        return self.old.equal_sizes is not None and number > _TRIES * 3 // 4

    def _check_sizes(
        self, before: Mapping[str, int], now: Mapping[str, int], ties: Mapping[str, str], *, equal: bool
    ) -> None:
        free = [size for name, size in now.items() if size > 1 and name not in ties and name not in self.fixed]
        if len(free) != len(set(free)) and not equal:
            raise Unfit("two sizes are equal")
        if any(_compare_sizes(before, pair) != _compare_sizes(now, pair) for pair in _RELATED):
            raise Unfit("the relation of two sizes has changed")
        if now.get("d_model", 0) > _WIDEST or before.get("d_model", 0) % 2 != now.get("d_model", 0) % 2:
            raise Unfit("the model is too wide, or its width has no cosine to each sine")

    def _list_sizes(self) -> Raw:
        """Return the sizes that the case states; the others follow from its arrays and attributes."""
        given = {name: self.sizes[name] for name in self.template.raw.get("sizes", {}) if name != "lead"}
        return given | ({"lead": list(self.lead)} if "lead" in self.template.raw.get("sizes", {}) else {})

    def _redraw_attributes(self) -> Raw:
        made = dict(self.template.raw.get("attributes", {}))
        for name in made:
            if size := self.contract.attributes[name].size:
                made[name] = self.sizes[size]
            elif name == "seed":
                made[name] = self.random.number("attribute", name) >> 32
        return made

    def _draw_params(self, raw: Mapping[str, Any], specs: Mapping[str, ArraySpec]) -> Raw:
        if "draw" not in raw:
            return {name: self._draw_recipe(name, recipe, specs[name]) for name, recipe in raw.items()}
        made = {**raw, "seed": self.random.number("params")}
        if "but" in raw:
            made["but"] = {name: self._draw_recipe(name, recipe, specs[name]) for name, recipe in raw["but"].items()}
        return made

    def _draw_recipe(self, name: str, raw: Mapping[str, Any], spec: ArraySpec) -> Raw:
        if "draw" in raw:
            made = {**raw, "seed": self.random.number("seed", raw.get("like", name))}
            if raw["draw"] == "ids" and spec.below:
                made["range"] = [raw["range"][0], self.sizes[spec.below] - 1]
            return made
        if "values" in raw:
            return {"values": self._draw_values(name, self.old.input_arrays[name], spec).tolist()}
        if "shape" not in raw:
            return dict(raw)
        shape = self._draw_shape(self.old.inputs[name].shape, spec)
        lengths = {"lengths": self._draw_lengths(raw["lengths"], shape[0], shape[-1])} if raw.get("lengths") else {}
        return {**raw, "shape": list(shape), **lengths}

    def _draw_shape(self, old: tuple[int, ...], spec: ArraySpec) -> tuple[int, ...]:
        """Return a shape of as many axes as before, with 1 for every axis that was 1."""
        full = spec.shape.sizes(self.sizes, self.lead)
        full = full[len(full) - len(old) :]
        return tuple(1 if before == 1 else size for before, size in zip(old, full, strict=True))

    def _draw_values(self, name: str, old: Array, spec: ArraySpec) -> Array:
        if old.dtype.kind == "f":
            return np.array(
                [self._shuffle(name, i, row) for i, row in enumerate(old.reshape(-1, old.shape[-1]))]
            ).reshape(old.shape)
        shape = self._draw_shape(old.shape, spec)
        return self._draw_mask(name, shape) if old.dtype.kind == "b" else self._draw_ids(name, old, spec, shape)

    def _shuffle(self, name: str, row: int, numbers: Array) -> Array:
        order = sorted(range(len(numbers)), key=lambda i: self.random.number("order", name, row, i))
        return numbers[order]

    def _draw_mask(self, name: str, shape: tuple[int, ...]) -> Array:
        """Hide each key with a probability of three eighths; keep at least one in every row."""
        mask = np.array([self.random.number(name, i) % 8 >= 3 for i in range(math.prod(shape))]).reshape(-1, shape[-1])
        for i, row in enumerate(mask):
            row[self.random.number(name, "kept", i) % len(row)] = True
        return mask.reshape(shape)

    def _draw_ids(self, name: str, old: Array, spec: ArraySpec, shape: tuple[int, ...]) -> Array:
        """Draw words that are no padding, and pad as the old ids were padded, at the end or anywhere."""
        pad = self.old.attributes.get("pad_id")
        low, high = (0, self.sizes[spec.below] - 1) if spec.below else (int(old.min()), int(old.max()) + 2)
        words = [word for word in range(low, high + 1) if word != pad]
        count = math.prod(shape)
        ids = np.array([self.random.choose(words, name, i) for i in range(count)]).reshape(shape)
        if pad is None or not np.any(old == pad):
            return ids
        rows = [np.flatnonzero(row != pad) for row in old]
        ends = [int(row[-1]) + 1 if row.size else 0 for row in rows]
        if any(row.size != end for row, end in zip(rows, ends, strict=True)) or 0 in ends:
            hidden = [self.random.number(name, "hidden", i) % 3 == 0 for i in range(count)]
            return np.where(np.array(hidden).reshape(shape), pad, ids)
        lengths = self._draw_lengths(ends, *shape)
        return np.where(np.arange(shape[-1]) < np.array(lengths)[:, None], ids, pad)

    def _draw_lengths(self, old: Sequence[int], samples: int, longest: int) -> list[int]:
        """Draw lengths of samples, one of them the longest; arrays with equal lengths keep equal lengths."""
        key = tuple(old)
        if key not in self.lengths:
            drawn = [1 + self.random.number("length", *key, i) % max(longest - 1, 1) for i in range(samples)]
            drawn[self.random.number("longest", *key) % samples] = longest
            self.lengths[key] = drawn
        if max(self.lengths[key]) != longest or len(self.lengths[key]) != samples:
            raise Unfit("arrays with equal lengths have different ones now")
        return self.lengths[key]

    def _draw_expect(self, raw: Mapping[str, Any]) -> Raw:
        made: Raw = {}
        for name, form in raw.items():
            made[name] = form
            if isinstance(form, dict) and "drawn" in form:
                made[name] = {**form, "seed": self.random.number("places", name)}
            elif isinstance(form, dict) and "lengths" in form:
                if tuple(form["lengths"]) not in self.lengths:
                    raise Unfit("it is not clear which rows are compared")
                made[name] = {"lengths": self.lengths[tuple(form["lengths"])]}
        return made
