"""Which published cases can be drawn anew, and where what is drawn comes from.

It follows from a secret alone, by SHA-256, so that it is the same on every machine and tells nothing of the secret.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import numpy as np

from goldformer.spec.draw import Values
from goldformer.spec.model import Case, Contract, Spec

Item = TypeVar("Item")

#: Gradients of more numbers than that take seconds each.
_DERIVED: Final = 450

#: The largest size of what is drawn anew: small cases reveal as much as large ones, and are derived in a blink.
LARGEST: Final = 20

#: The most layers or beams: more of them take longer, and show no more.
_LAYERS: Final = 2

#: Sizes that stay related as they are: attention within a sequence, what is cut and what is filled up.
RELATED: Final = (("q_seq", "kv_seq"), ("length", "seq"))

#: Sizes of which 1 is an ordinary one; cases of other sizes of 1 are published, and show less than others.
_MAY_BE_ONE: Final = frozenset({"batch", "heads"})

#: Conventions that show on inputs that are not drawn here: rows without a key, and odd widths.
_NOT_DRAWN: Final = frozenset({"empty_row", "odd_d_model"})


class Unfit(Exception):
    """A draw, or a case, that gives no fresh case; the message says why."""


@dataclass(frozen=True, slots=True)
class Chance:
    """Numbers that follow from a secret, an id and an attempt, each from the words that say what it is for."""

    secret: str
    id: str
    attempt: int = 0

    def number(self, *what: str | int) -> int:
        """63 bits."""
        words = "/".join(map(str, (self.secret, self.id, self.attempt, *what)))
        return int.from_bytes(hashlib.sha256(words.encode()).digest()[:8]) >> 1

    def choose(self, items: Sequence[Item], *what: str | int) -> Item:
        """One of some items; Unfit where there is none."""
        if not items:
            raise Unfit(f"nothing is left for {' '.join(map(str, what))}")
        return items[self.number(*what) % len(items)]


@dataclass(frozen=True, slots=True)
class Template:
    """A published case, as it was read and as it is written."""

    case: Case
    raw: Mapping[str, Any]
    contract: Contract

    @property
    def written(self) -> bool:
        """Whether numbers of it are written out: they change their places, and its sizes stay."""
        recipes = [*self.case.inputs.values(), *self.case.params.values()]
        return any(isinstance(recipe, Values) and recipe.array.dtype.kind == "f" for recipe in recipes)

    @property
    def kind(self) -> tuple[Any, ...]:
        """What cases should differ in: gradients, optional inputs, switches, and related sizes."""
        optional = tuple(name for name in self.case.inputs if self.contract.inputs[name].optional)
        switches = tuple(value for value in self.case.attributes.values() if isinstance(value, bool))
        signs = tuple(sign(self.case.sizes, pair) for pair in RELATED)
        return self.case.cotangent is not None, optional, switches, signs


def unfit(template: Template, spec: Spec) -> str | None:
    """Why a case cannot be drawn anew, or None."""
    case, raw = template.case, template.raw
    expected = [form for form in raw["expect"].values() if isinstance(form, dict)]
    recipes = [*raw.get("inputs", {}).values(), *_recipes_of(raw.get("params", {}))]
    drawn = {size for name, size in case.sizes.items() if name not in _MAY_BE_ONE | fixed(template.contract)}
    reasons = {
        "is an error": case.error is not None,
        "asks for shapes alone": case.shape_only,
        "repeats a document": bool(case.printed),
        "is blind to something": bool(case.blind),
        "is only advised": spec.is_advice(case),
        "is for another option": any(spec.conventions[n].default != option for n, option in case.only_with.items()),
        "is about a convention that shows on some inputs alone": case.convention in _NOT_DRAWN,
        "asks for certain places": any("probes" in form for form in expected),
        "has a size of 1": 1 in drawn,
        "has many layers": max((case.sizes.get(name, 0) for name in fixed(template.contract)), default=0) > _LAYERS,
        "has gradients of many numbers": case.cotangent is not None
        and sum(math.prod(recipe.shape) for recipe in (*case.inputs.values(), *case.params.values())) > _DERIVED,
        "is large": not case.random and max((*case.sizes.values(), *case.lead), default=0) > LARGEST,
        "has shapes of its own": any("shape" in r and not {"lengths", "causal"} & set(r) for r in recipes),
        "has parameters that are written out": any(isinstance(r, Values) for r in case.params.values()),
        "has a gradient that is written out": isinstance(case.cotangent, Values),
    }
    return next((why for why, holds in reasons.items() if holds), None)


def fixed(contract: Contract) -> frozenset[str]:
    """How many layers and beams there are decides how long a case takes, and is in no array's shape."""
    attributes = contract.attributes
    named = [layers.count for layers in contract.layers]
    named += [name for name, attribute in attributes.items() if attribute.at_most]
    return frozenset(size for name in named if (size := attributes[name].size))


def _recipes_of(params: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [*params.get("but", {}).values()] if "draw" in params else list(params.values())


def sign(sizes: Mapping[str, int], pair: tuple[str, str]) -> int | None:
    """Which of two sizes is the larger one: −1, 0 or 1; None where they are not both there."""
    if not set(pair) <= set(sizes):
        return None
    return int(np.sign(sizes[pair[0]] - sizes[pair[1]]))
