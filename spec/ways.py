"""The ways of being called: a case that passed is called again in those that its id selects, and must give the same.

A way changes no value. It changes where arrays lie in memory, which objects are passed, the mode of a module, what
autograd records, or what was called before.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from goldformer.spec.load import FEWEST_CASES, Spec
from goldformer.spec.model import ArraySpec, Case, Contract
from goldformer.spec.shapes import Binder

#: How an array lies in memory.
Layout = Literal["contiguous", "transposed", "strided"]
#: The arguments of a call: its inputs, and its parameters.
Group = Literal["inputs", "params"]

#: The cases of a component that are called in one way, and those of them that have a mask.
_MOST: Final = 3
_WITH_MASK: Final = 2
#: The most numbers of a case that is called again.
_LARGEST: Final = 1 << 14

_STRIDES: Final = "Read each array by its strides, or copy it first with contiguous()."
_FORWARD: Final = "Compute the same whatever autograd records."
_KEPT: Final = "Keep nothing in self that depends on the inputs of a call."


@dataclass(frozen=True, slots=True)
class Way:
    """One way of being called; a plain call has the defaults.

    `when` ends the sentence "right, but wrong if …". Arrays of some `kinds` lie in a `layout`. It `expands` masks
    without a copy, or with one if it `copies`, `joins` equal inputs to one object, `trains` modules without dropout,
    and `repeats` a call by an object that a call with other numbers used before. Autograd `records` the inputs, the
    parameters, or both. A gradient gets a `cotangent` in a layout, or it `splits` the arguments that require one.
    """

    when: str = ""
    hint: str = ""
    layout: Layout = "contiguous"
    kinds: Collection[str] = ()
    expands: bool = False
    copies: bool = False
    joins: bool = False
    trains: bool = False
    repeats: bool = False
    records: Collection[Group] = ()
    cotangent: Layout = "contiguous"
    splits: bool = False
    #: Leave out the mask of code that always hides later tokens, where it is just the causal one.
    omits: bool = False

    def fits(self, case: Case, contract: Contract) -> bool:
        """Return True if a case has what this way changes."""
        if (self.splits or self.cotangent != "contiguous") != (case.cotangent is not None):
            return False
        inputs = {name: contract.inputs[name] for name in case.inputs}
        if self.joins or self.omits:
            later = contract.later_tokens
            is_square = later is not None and len({*later.shape.sizes(case.sizes, case.lead)[-2:]}) == 1
            return (
                bool(find_twins(case.input_arrays))
                if self.joins
                else is_square and not case.inputs.keys() & {*contract.masks}
            )
        if self.expands:
            sizes = Binder(dict(case.sizes), case.lead)
            return not contract.session and any(
                widen(spec, case.inputs[name].shape, sizes) != case.inputs[name].shape for name, spec in inputs.items()
            )
        if self.kinds:
            needed = 1 if self.layout == "strided" else 2
            shapes = [case.inputs[name].shape for name, spec in inputs.items() if spec.kind in self.kinds]
            return any(min(shape[-needed:]) > 1 for shape in shapes if len(shape) >= needed)
        if self.trains or self.records:
            # Fused code for inference and the code for training may disagree on rows without a key.
            tracked = {"inputs": any(spec.kind == "float" for spec in inputs.values()), "params": bool(case.params)}
            some = all(tracked.values()) if len(self.records) == 1 else any(tracked.values())
            return some and not _has_empty_row(case, inputs)
        return bool(inputs)

    def admits(self, contract: Contract) -> bool:
        """Return True if a call under a contract can have what this way changes."""
        inputs = contract.inputs.values()
        wide = [spec.kind for spec in inputs if len(spec.shape.axes) > (0 if self.layout == "strided" else 1)]
        floats = sum(spec.kind == "float" for spec in inputs)
        if self.splits or self.cotangent != "contiguous":
            is_float = contract.outputs[contract.first_output].kind == "float"
            return is_float and floats + contract.takes_params > self.splits
        if self.joins or self.omits:
            twins = any(sum(spec.kind == kind for spec in inputs) > 1 for kind in ("float", "ids"))
            return twins if self.joins else contract.later_tokens is not None
        if self.expands:
            return contract.session is None and any(spec.broadcast and spec.kind == "bool" for spec in inputs)
        if self.kinds:
            return not set(self.kinds).isdisjoint(wide)
        if len(self.records) == 1:
            return floats > 0 and contract.takes_params
        return bool(inputs) if self.repeats else floats > 0 or contract.takes_params

    def describe(self, finding: str) -> str:
        """Return the message about a case that is wrong in this way only."""
        return f"right, but wrong if {self.when}: {finding}"


PLAIN: Final = Way()
#: All arrays in a layout, as a property compares them.
LAYOUTS: Final[Mapping[Layout, Way]] = {
    "transposed": Way(layout="transposed", kinds=("float", "bool", "ids")),
    "strided": Way(layout="strided", kinds=("float", "bool", "ids")),
}

#: The table: each way is tried of every component with a case that it fits.
WAYS: Final[Mapping[str, Way]] = {
    "mask-transposed": Way("the mask is transposed in memory", _STRIDES, "transposed", ("bool",)),
    "mask-strided": Way("the mask is a strided view", _STRIDES, "strided", ("bool",)),
    "mask-expanded": Way("the mask is expanded without a copy", _STRIDES, expands=True),
    "inputs-transposed": Way("the arrays are transposed in memory", _STRIDES, "transposed", ("float",)),
    "inputs-strided": Way("the arrays are strided views", _STRIDES, "strided", ("float", "ids")),
    "same-object": Way("one object is passed for several inputs", "Compute the same for two equal ones.", joins=True),
    "training": Way("its module is in train(), with dropout 0", "Only dropout may differ from eval().", trains=True),
    "second-call": Way("its object was called before with other numbers", _KEPT, repeats=True),
    "recording": Way("gradients are recorded", _FORWARD, records=["inputs", "params"]),
    "recording-inputs": Way("gradients of the inputs only are recorded", _FORWARD, records=["inputs"]),
    "recording-parameters": Way("gradients of the parameters only are recorded", _FORWARD, records=["params"]),
    "cotangent-transposed": Way("the gradient of the output is transposed in memory", _STRIDES, cotangent="transposed"),
    "cotangent-strided": Way("the gradient of the output is a strided view", _STRIDES, cotangent="strided"),
    "no-mask": Way("no mask is given, as later tokens are always hidden", "Hide them without a mask too.", omits=True),
    "some-gradients": Way("only some arguments require a gradient", _FORWARD, splits=True),
}


_COTANGENTS: Final = ("cotangent-transposed", "cotangent-strided")
#: The squares of the table of ways and components that no case visits, with the reason.
EMPTY: Final[Mapping[str, tuple[Collection[str], str]]] = {
    "alibi_bias": (_COTANGENTS, "only the shape of its input counts"),
    "dropout": (_COTANGENTS, "what it drops is drawn"),
    "pad_or_truncate": (_COTANGENTS, "no clause speaks of its gradient"),
    "positional_encoding": (_COTANGENTS, "no clause speaks of its gradient"),
    "token_filter": (_COTANGENTS, "nobody differentiates the choice of a token"),
    "kl_divergence": (("same-object",), "a distribution is not its own logits"),
    "label_smoothing": (_COTANGENTS, "no clause speaks of its gradient"),
    "cached_attention": (
        (*_COTANGENTS, "some-gradients", "mask-transposed"), "a session has no gradient, and its mask has one row"
    ),
    "single_head_attention_step": ((*_COTANGENTS, "some-gradients", "same-object"), "it computes gradients itself"),
    "cached_model": (_COTANGENTS, "a session has no gradient"),
}  # fmt: skip


@lru_cache(maxsize=1 << 7)
def select_ways(component: str, spec: Spec) -> Mapping[str, tuple[str, ...]]:
    """Return the ways of each case of a component, by its id: a way takes the cases whose hash with it is smallest.

    They are cases that apply to the default options, if the way fits such.
    """
    contract, options = spec.contracts[component], {name: each.default for name, each in spec.conventions.items()}
    cases = [
        c for c in spec.cases_of(component)
        if c.error is None and c.golden is not None and c.size <= _LARGEST and not (c.random or c.shape_only)
    ]  # fmt: skip
    found: dict[str, tuple[str, ...]] = {}
    for name, way in WAYS.items():
        fitting = [case for case in cases if way.fits(case, contract)]
        fitting.sort(
            key=lambda case: (bool(case.explain_unfit(options)), blake2b(f"{name} {case.id}".encode()).digest())
        )
        masked = [case for case in fitting if not case.inputs.keys().isdisjoint(contract.masks)][:_WITH_MASK]
        for case in [*masked, *(c for c in fitting if c not in masked)][:_MOST]:
            found[case.id] = (*found.get(case.id, ()), name)
    return found


def list_empty_squares(spec: Spec) -> dict[str, list[str]]:
    """Return the ways that a contract admits and no case visits, by component, or that EMPTY lists and a case visits.

    Nothing is said to conform to a component of fewer cases.
    """
    found = {}
    for component, contract in spec.contracts.items():
        if len(spec.cases_of(component)) < FEWEST_CASES:
            continue
        visited = {name for names in select_ways(component, spec).values() for name in names}
        excused, _ = EMPTY.get(component, ((), ""))
        missing = {name for name, way in WAYS.items() if way.admits(contract)} - visited
        if missing ^ set(excused):
            found[component] = sorted(missing ^ set(excused))
    return found


def find_twins(arrays: Mapping[str, NDArray[Any]]) -> dict[str, str]:
    """Return the inputs that are equal to an earlier one, masks aside, each with that one."""
    twins, firsts = {}, dict[str, NDArray[Any]]()
    for name, array in arrays.items():
        alike = (n for n, a in firsts.items() if a.dtype == array.dtype and np.array_equal(a, array))
        if (first := next(alike, None)) is not None and array.dtype.kind != "b":
            twins[name] = first
        else:
            firsts[name] = array
    return twins


def widen(spec: ArraySpec, shape: tuple[int, ...], binder: Binder) -> tuple[int, ...]:
    """Return the shape of a mask with all of its axes, one for all heads kept; that of any other array stays."""
    if spec.kind != "bool" or not spec.broadcast:
        return shape
    sizes = spec.shape.sizes(binder.sizes, binder.lead or ())
    own = (1,) * (len(sizes) - len(shape)) + shape
    named = (None,) * (len(sizes) - len(spec.shape.axes)) + tuple(axis.symbols for axis in spec.shape.axes)
    return tuple(old if symbols == ("heads",) else new for old, new, symbols in zip(own, sizes, named, strict=True))


def _has_empty_row(case: Case, inputs: Mapping[str, ArraySpec]) -> bool:
    masks = (array for name, array in case.input_arrays.items() if inputs[name].kind == "bool")
    return "empty_row" in case.conventions or any(not mask.any(-1).all() for mask in masks)
