"""The frozen objects of the spec: contracts, cases and golden values."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from goldformer.spec.draw import Argument, Kind, Uniform
from goldformer.spec.later import Hiding, LaterTokens
from goldformer.spec.pairs import cover_pairs
from goldformer.spec.sessions import STATE, Session, SessionCall, drop_script
from goldformer.spec.shapes import Shape
from goldformer.spec.strict import Items, Location, Name, Option, Param, StrictModel, Text
from goldformer.spec.tables import Citation

Array = NDArray[Any]
Attribute = int | bool | float | tuple[int, ...]


def read_count(value: Attribute) -> int:
    """Return an attribute that is one whole number, such as a number of heads."""
    assert not isinstance(value, tuple), f"{value} is no count"
    return int(value)


#: The statistics of a random output: the part of it that is exactly 0, its mean, the mean of its squares, and the
#: largest absolute value.
Statistic = Literal["zeros", "mean", "mean_square", "largest"]

#: The key of the only expectation of a case that depends on no convention.
ANY = ""

#: The option that permits to refuse a call. It has no golden values.
REFUSED: Final = "refused"

#: The separator of the options of several conventions in a key, as in "pre, 1e-6".
_AND: Final = ", "

#: The option that an adapter declares for a convention that it leaves open.
UNSPECIFIED = "unspecified"

#: The words of golden files and of the protocol for numbers that JSON does not have.
NOT_FINITE: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def is_combination(key: str) -> bool:
    """Return True if a key names options of several conventions."""
    return _AND in key


#: The name by which a case says that it is blind to its padding.
PADDING = "padding"

#: The number of parameters from which a model counts as full-size.
FULL_SIZE = 1 << 22


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """An array of a contract: its kind, its symbolic shape, and whether it may be left out.

    `blind` says why no result depends on its elements; a step on the way may repeat them. `only_with` maps conventions
    to the options under which the array exists. `covers` are the sizes that its first axis must at least have.
    `causal_with` maps conventions to the options under which a mask always hides later tokens too, `only_causal_with`
    to those under which it hides nothing else. `conventions` are those that matter only where a call has the array.
    """

    name: str
    kind: Kind
    shape: Shape
    broadcast: bool = False
    optional: bool = False
    below: str | None = None
    blind: str | None = None
    only_with: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    covers: tuple[str, ...] = ()
    causal_with: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    only_causal_with: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    conventions: tuple[str, ...] = ()

    def rename(self, name: str) -> ArraySpec:
        """Return the same array under another name: a deep model has thousands, and dataclasses.replace is slow."""
        flags = (
            self.broadcast, self.optional, self.below, self.blind, self.only_with, self.covers, self.causal_with,
            self.only_causal_with, self.conventions,
        )  # fmt: skip
        return ArraySpec(name, self.kind, self.shape, *flags)

    def exists_under(self, options: Mapping[str, str]) -> bool:
        """Return True if the array exists under these options of some conventions."""
        return all(options[name] in allowed for name, allowed in self.only_with.items() if name in options)


class AttributeEntry(StrictModel):
    """A plain argument, an int, a bool, a float or several ints; `size` is the axis it fixes.

    A number is at least `minimum`, more than `above` and at most `maximum`. An id is at least 0 and less than the size
    `below`. A number is not more than `at_most`, which names an attribute or an axis, and a whole number is a multiple
    of `multiple_of`, a number or an attribute. A call that has the attribute `needed_with` needs it under the options
    of `needed_under`.
    """

    kind: Literal["int", "bool", "float", "ints"]
    minimum: int | float | None = None
    above: int | float | None = None
    maximum: int | float | None = None
    size: Name | None = None
    below: Name | None = None
    at_most: str | None = None
    multiple_of: Annotated[int, Field(ge=2)] | Name | None = None
    optional: bool = False
    needed_with: Name | None = None
    needed_under: dict[Name, Items[Option]] = {}


class AttributeSpec(AttributeEntry):
    """A plain argument of a contract."""

    name: Name

    def is_missing(self, given: Mapping[str, Attribute], options: Mapping[str, str]) -> bool:
        """Return True if a call with these attributes needs this one under the options and does not have it."""
        needed = all(options.get(name) in allowed for name, allowed in self.needed_under.items())
        return needed and self.needed_with in given and self.name not in given


@dataclass(frozen=True, slots=True)
class Layers:
    """Parameters that every layer of a stack has: `prefix.0.name`, … as many as the attribute `count` says."""

    prefix: str
    count: str
    params: Mapping[str, ArraySpec]


@dataclass(frozen=True)
class Contract:
    """The arguments and results of a component. It always has `params`; `layers` are the parameters of its stacks.

    `clauses` are those that its cases and properties show. With a `session`, a case is a script of calls.
    """

    component: str
    title: str
    formula: str
    depends_on: tuple[str, ...]
    inputs: Mapping[str, ArraySpec]
    params: Mapping[str, ArraySpec]
    attributes: Mapping[str, AttributeSpec]
    outputs: Mapping[str, ArraySpec]
    flow: tuple[str, ...]
    conventions: tuple[str, ...]
    computed_in_at_least: str | None
    edition: str
    layers: tuple[Layers, ...] = ()
    clauses: tuple[str, ...] = ()
    #: The axes whose places do not mix: an output at one place of them needs the inputs at this place only.
    free: tuple[str, ...] = ()
    #: False if arguments do not move the outputs smoothly, though these are floats: chance, choices, and gradients.
    differentiable: bool = True
    session: Session | None = None

    @property
    def has_gradients(self) -> bool:
        """True if its first output has gradients by its arguments, in one call."""
        return self.differentiable and self.session is None and self.outputs[self.first_output].kind == "float"

    @property
    def takes_params(self) -> bool:
        """True if a call has parameters at all."""
        return bool(self.params or self.layers)

    @cached_property
    def names_of_call(self) -> tuple[str, ...]:
        """The arguments of one call by name: a call of a session has a state, and not the script of the calls."""
        state, plain = ([], self.attributes) if self.session is None else ([STATE], drop_script(self.attributes))
        return (*self.inputs, *state, *plain, *(["params"] if self.takes_params else []))

    def split_session(
        self, inputs: Mapping[str, Array], attributes: Mapping[str, Attribute]
    ) -> Iterator[tuple[SessionCall, dict[str, Array]]]:
        """Yield each call of a session, with its part of the inputs."""
        assert self.session is not None, f"{self.component} is called once"
        return self.session.split(inputs, {name: spec.shape for name, spec in self.inputs.items()}, attributes)

    @cached_property
    def optional(self) -> frozenset[str]:
        """The inputs and attributes that a call may leave out."""
        inputs = {name for name, spec in self.inputs.items() if spec.optional}
        return frozenset(inputs | {name for name, spec in self.attributes.items() if spec.optional})

    @cached_property
    def masks(self) -> tuple[str, ...]:
        """The masks that a call may leave out."""
        return tuple(name for name, spec in self.inputs.items() if spec.optional and spec.kind == "bool")

    @cached_property
    def conventions_of_params(self) -> frozenset[str]:
        """The conventions whose options differ in the parameters of a call, so that these decide and no formula."""
        of_layers = (spec for stack in self.layers for spec in stack.params.values())
        return frozenset(name for spec in (*self.params.values(), *of_layers) for name in spec.only_with)

    @property
    def conventions_of_masks(self) -> frozenset[str]:
        """The conventions whose options differ in the mask of a call."""
        return self.later_tokens.conventions if self.later_tokens is not None else frozenset()

    @cached_property
    def later_tokens(self) -> LaterTokens | None:
        """The mask that always hides later tokens under some options; None if the contract has none."""
        masks = (spec for spec in self.inputs.values() if spec.causal_with or spec.only_causal_with)
        made = (LaterTokens(m.name, m.shape, m.causal_with, m.only_causal_with) for m in masks)
        return next(made, None)

    def params_under(self, attributes: Mapping[str, Any], options: Mapping[str, str]) -> Mapping[str, ArraySpec]:
        """Return the parameters that a call with these attributes has under these options of the conventions."""
        return {name: spec for name, spec in self.params_for(attributes).items() if spec.exists_under(options)}

    def params_for(self, attributes: Mapping[str, Any]) -> Mapping[str, ArraySpec]:
        """Return the parameters of a call with these attributes, those of every layer by their full names."""
        params = dict(self.params)
        for stack in self.layers:
            for index in range(int(attributes.get(stack.count, 0))):
                for name, spec in stack.params.items():
                    full = f"{stack.prefix}.{index}.{name}"
                    params[full] = spec.rename(full)
        return params

    def results_of(self, case: Case) -> Mapping[str, ArraySpec]:
        """Return the outputs, or gradients of arguments, that a case may ask for, in the order of comparison."""
        if case.cotangent is None:
            return {name: self.outputs[name] for name in self.flow}
        arguments = {**self.inputs, **self.params_for(case.attributes)}
        return {n: s for n, s in arguments.items() if s.kind == "float" and (n in case.inputs or n in case.params)}

    @property
    def first_output(self) -> str:
        """The output that a bare return value stands for."""
        return next(iter(self.outputs))


@dataclass(frozen=True, slots=True)
class Wanted:
    """The expectation for one output: all of it, its shape, some of its places, or statistics of a random one.

    `computed` is all of it as float64 gives it, when the case runs; only the values at `indices` are stored.
    """

    form: Literal["all", "computed", "shape", "probes", "statistics"]
    indices: tuple[tuple[int, ...], ...] = ()
    drawn: bool = False
    statistics: tuple[Statistic, ...] = ()


@dataclass(frozen=True, eq=False)
class GoldenArray:
    """The proven values of one output, whole or at `indices`, and how many roundoffs honest code moves.

    With `within`, the values are those of its statistics, and `within` says how far chance may move each. `rounding`
    gives the variance of the rounding error of each element of the whole output in a dtype, None if all are exact.
    """

    values: Array
    error_scale: float
    indices: tuple[tuple[int, ...], ...] | None = None
    within: Mapping[Statistic, float] | None = None
    rounding: Callable[[str], NDArray[np.float64] | None] | None = None
    #: The tolerance by dtype, once it was needed.
    limits: dict[str, Any] = field(default_factory=dict, init=False, repr=False)

    def select(self, output: Array) -> Array:
        """Return the elements of an output that are compared with these values."""
        return output if self.indices is None else output[self._places]

    @cached_property
    def _places(self) -> tuple[Array, ...]:
        """The indices by axis, as NumPy selects by them."""
        return tuple(np.array(self.indices).T)

    def select_equal(self, others: Sequence[Array]) -> GoldenArray:
        """Return the values that equal those of all other arrays, as probes."""
        same = np.ones(self.values.shape, dtype=bool)
        for other in others:
            same &= (self.values == other) | (np.isnan(self.values) & np.isnan(other))
        return self._keep(same)

    def select_finite(self) -> GoldenArray:
        """Return the values that are no NaN, as probes; itself if all are."""
        nan = np.isnan(self.values)
        return self._keep(~nan) if nan.any() else self

    def _keep(self, kept: NDArray[np.bool_]) -> GoldenArray:
        places = np.argwhere(kept) if self.indices is None else np.array(self.indices)[kept]
        return replace(self, values=self.values[kept], indices=tuple(tuple(map(int, place)) for place in places))

    @cached_property
    def magnitude(self) -> float:
        """The largest finite absolute value; 0 if no value is finite."""
        return find_magnitude(self.values)

    @cached_property
    def is_exact_zero(self) -> bool:
        """Return True if all values are 0, and without rounding."""
        floats = self.within is None and self.values.dtype.kind == "f"
        return floats and self.error_scale == 0 and not self.values.any()


def find_magnitude(values: Array) -> float:
    """Return the largest finite absolute value; 0 if no value is finite."""
    if values.dtype.kind != "f":
        return 0.0
    sizes = np.abs(values)
    largest = float(sizes.max(initial=0.0))
    return largest if math.isfinite(largest) else float(sizes[np.isfinite(sizes)].max(initial=0.0))


@dataclass(frozen=True, slots=True)
class Golden:
    """The golden values of a case, which programs write.

    `options` maps each combination of options of the case's conventions, by its key, to its outputs; a combination
    that refuses the call maps to None. `peak` is the largest number on the way, which a dtype must be able to hold.
    `margin` is the unit roundoff at which honest rounding may turn one of the decisions on the way; None without any.
    """

    derivation: str
    peak: float
    options: Mapping[str, Mapping[str, GoldenArray] | None]
    margin: float | None = None

    def select_agreed(self, keys: Iterable[str]) -> dict[str, GoldenArray]:
        """Return the values that several combinations share, as probes; outputs without any are left out."""
        first, *others = [outputs for key in keys if (outputs := self.options[key]) is not None]
        agreed = {name: golden.select_equal([o[name].values for o in others]) for name, golden in first.items()}
        return {name: golden for name, golden in agreed.items() if golden.values.size}


class Blind(StrictModel):
    """Names to which a case is blind, and the reason: parts of the names of arguments and outputs, or PADDING."""

    to: Annotated[Items[Param], Field(min_length=1)]
    because: Text


class _DrawnArrays(Mapping[str, Array]):
    """Arrays that are drawn at each access: those of a whole model take hundreds of megabytes together."""

    def __init__(self, arguments: Mapping[str, Argument]) -> None:
        self._arguments = arguments

    def __getitem__(self, name: str) -> Array:
        return self._arguments[name].build(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._arguments)

    def __len__(self) -> int:
        return len(self._arguments)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One call of a component and what to expect of it.

    `meant_for` are the mistakes that it was designed to reveal, `kills` those for which it was measured to fail.
    `conventions` are those on which its results depend, with their options: it has golden values for every combination.
    `dependent` are the parameters of its contract that exist under some options only, `later_tokens` is the mask that
    always hides later tokens under some. `whole` is the case before an option changed its call, None if this is it.
    """

    id: str
    component: str
    title: str
    place: Location
    sizes: Mapping[str, int]
    lead: tuple[int, ...]
    attributes: Mapping[str, Attribute]
    inputs: Mapping[str, Argument]
    params: Mapping[str, Argument]
    conventions: Mapping[str, tuple[str, ...]]
    clauses: tuple[str, ...] = ()
    source: Citation | None = None
    meant_for: tuple[str, ...] = ()
    kills: tuple[str, ...] = ()
    equal_sizes: str | None = None
    only_with: Mapping[str, str] = field(default_factory=dict)
    expect: Mapping[str, Wanted] = field(default_factory=dict)
    printed: Mapping[str, Any] = field(default_factory=dict)
    golden: Golden | None = None
    #: Error cases: the argument at fault, and the working case that differs only in that argument.
    error: str | None = None
    base: str | None = None
    #: Gradient cases: the gradient of the first output; `expect` then names arguments.
    cotangent: Argument | None = None
    blind: tuple[Blind, ...] = ()
    dependent: Mapping[str, ArraySpec] = field(default_factory=dict)
    later_tokens: LaterTokens | None = None
    #: What was done to its mask because later tokens are always hidden.
    hiding: Hiding = ""
    whole: Case | None = None

    def under(self, *options: Mapping[str, str]) -> Case:
        """Return the case as it is called under some options: without the parameters that do not exist under them.

        Under several choices of options, a parameter exists if it does under each, and the first choice decides on the
        mask.
        """
        whole = self.whole or self
        left_out = (whole._left_out.get((name, chosen[name]), ()) for chosen in options for name in whole.conventions)
        absent = frozenset[str]().union(*left_out)
        later = whole.later_tokens
        hiding = later.find_hiding(options[0]) if later is not None and options else ""
        key = (absent, hiding if whole.changes_mask(hiding) else "")
        if key not in whole._variants:
            mask = whole._make_mask(hiding) if key[1] else None
            masks = {later.mask: Argument.of(mask)} if later is not None and mask is not None else {}
            whole._variants[key] = replace(
                whole, whole=whole, inputs={**whole.inputs, **masks}, hiding=key[1],
                params={name: argument for name, argument in whole.params.items() if name not in absent},
                expect={name: wanted for name, wanted in whole.expect.items() if name not in absent},
            )  # fmt: skip
        return whole._variants[key]

    @cached_property
    def _variants(self) -> dict[tuple[frozenset[str], Hiding], Case]:
        return {(frozenset(), ""): self}

    def _make_mask(self, hiding: Hiding) -> Array | None:
        """Return the mask of the call where later tokens are always hidden; no bad input is changed."""
        later = self.later_tokens
        assert later is not None
        mask = self.input_arrays.get(later.mask)
        return mask if self.error in self.inputs else later.hide(mask, hiding, self.sizes, self.lead)

    def changes_mask(self, hiding: Hiding) -> bool:
        """Return True if the call has another mask where later tokens are always hidden."""
        if not hiding or self.later_tokens is None:
            return False
        before, after = self.input_arrays.get(self.later_tokens.mask), self._make_mask(hiding)
        if before is None or after is None:
            return before is not after
        both = np.broadcast_arrays(before, after)
        return not np.array_equal(both[0], both[1])

    def _loses_last_key(self, hiding: Hiding) -> bool:
        """Return True if a query that has a key has none where later tokens are always hidden."""
        later, after = self.later_tokens, self._make_mask(hiding)
        assert later is not None
        assert after is not None
        shape, before = later.shape.sizes(self.sizes, self.lead), self.input_arrays.get(later.mask)
        old, new = (np.broadcast_to(np.True_ if mask is None else mask, shape) for mask in (before, after))
        return bool(np.any(old.any(-1) & ~new.any(-1)))

    @property
    def given_inputs(self) -> Mapping[str, Array]:
        """The inputs that an implementation is given: code that joins the causal mask itself gets the other mask."""
        return self.whole.input_arrays if self.hiding == "too" and self.whole is not None else self.input_arrays

    @cached_property
    def _left_out(self) -> Mapping[tuple[str, str], frozenset[str]]:
        """The parameters of the whole case that do not exist under an option, by convention and option."""
        allowed = {name: self.dependent[name].only_with for name in self.params if name in self.dependent}
        return {
            (convention, option): frozenset(n for n, o in allowed.items() if option not in o.get(convention, (option,)))
            for convention, options in self.conventions.items()
            for option in options
        }

    def combine_options(self, chosen: Mapping[str, Iterable[str]] = MappingProxyType({})) -> list[dict[str, str]]:
        """Return every combination of the options of its conventions, or of those that are chosen.

        Options that leave out the same parameters make the same call: the first of them stands for all.
        """
        choices = (chosen.get(name, options) for name, options in self.conventions.items())
        named = zip(self.conventions, choices, strict=True)
        distinct = (dict.fromkeys(self._find_first(name, option) for option in options) for name, options in named)
        return [dict(zip(self.conventions, options, strict=True)) for options in product(*distinct)]

    def key(self, options: Mapping[str, str]) -> str:
        """Return the key of the golden values for a combination of options."""
        return _AND.join(self._find_first(name, options[name]) for name in self.conventions)

    def read_key(self, key: str) -> dict[str, str]:
        """Return the combination of options that has a key."""
        return dict(zip(self.conventions, key.split(_AND), strict=True)) if self.conventions else {}

    def has_key(self, key: str) -> bool:
        """Return True if a combination of its options has this key."""
        chosen = key.split(_AND)
        known = len(chosen) == len(self.conventions) and all(map(tuple.__contains__, self.conventions.values(), chosen))
        return known and self.key(self.read_key(key)) == key

    def _find_first(self, name: str, option: str) -> str:
        """Return the first option of a convention that makes the same call; the option itself if no parameter says."""
        absent = (self.whole or self)._left_out
        if not any(absent[name, other] for other in self.conventions[name]):
            return option
        return next(other for other in self.conventions[name] if absent[name, other] == absent[name, option])

    def combine_stored(self) -> list[dict[str, str]]:
        """Return combinations of options that show every pair of options: golden values are stored for each.

        Of a case whose values are computed it is the first one: the documents' own.
        """
        every = self.combine_options()
        if self.is_computed:
            return every[:1]
        return [every[place] for place in cover_pairs([tuple(options.values()) for options in every])]

    def refuses(self, options: Mapping[str, str]) -> bool:
        """Return True if one of these options permits to refuse the call."""
        return any(options[name] == REFUSED for name in self.conventions)

    def expects(self, options: Mapping[str, str]) -> Mapping[str, GoldenArray] | None:
        """Return the golden values for a combination of options; None if one of them refuses the call."""
        if self.golden is None:
            return {}
        key = self.key(options)
        return {} if self.is_computed and key not in self.golden.options else self.golden.options[key]

    def explain_unfit(self, options: Mapping[str, str]) -> str:
        """Return why a case does not apply to an implementation with these options, or ""."""
        for name, option in self.only_with.items():
            if options[name] != option:
                return f"only for {name}: {option}; the adapter declares {options[name]}"
        for array in self.dependent.values():
            for name, allowed in array.only_with.items():
                if reason := self._explain_unfit_array(array, name, allowed, options):
                    return reason
        return self._explain_unfit_later(options)

    def admits(self, options: Mapping[str, str]) -> bool:
        """Return True if the case applies to an implementation with these options, with the mask that it has."""
        hiding = self.later_tokens.find_hiding(options) if self.later_tokens is not None else ""
        return not (self.explain_unfit(options) or self.changes_mask(hiding))

    def _explain_unfit_later(self, options: Mapping[str, str]) -> str:
        """Return why nothing of a case holds where later tokens are always hidden, or ""."""
        whole, later = self.whole or self, self.later_tokens
        hiding = later.find_hiding(options) if later is not None else ""
        if later is None or not hiding:
            return ""
        declared = f"the adapter declares {later.describe(options)}"
        if self.error is not None:
            return f"its fault is in {later.mask}; {declared}" if self.error == later.mask else ""
        *_, q_seq, kv_seq = later.shape.sizes(self.sizes, self.lead)
        if q_seq != kv_seq:
            return f"it has {q_seq} queries and {kv_seq} keys; {declared}"
        if self.shape_only or not whole.changes_mask(hiding):
            return ""
        if whole.cotangent or whole.random:
            what = "gradients" if whole.cotangent else "chance"
            return f"it is about {what} under another mask than where later tokens are always hidden; {declared}"
        # Rows without a key are a matter of another convention, which the case is not about.
        loses = whole._loses_last_key(hiding)
        return f"a query of it has no key where later tokens are always hidden; {declared}" if loses else ""

    def _explain_unfit_array(
        self, array: ArraySpec, name: str, allowed: Collection[str], options: Mapping[str, str]
    ) -> str:
        """Return why an array that exists only under some options of a convention makes the case unfit, or ""."""
        params = (self.whole or self).params
        exists = options[name] in allowed
        if array.name in params and not exists and name not in self.conventions:
            return f"only for {name}: {' or '.join(allowed)}; the adapter declares {options[name]}"
        declared = f"the adapter declares {name}: {options[name]}"
        if array.name == self.error and not exists:
            return f"its fault is in {array.name}; {declared}"
        needed = exists and not array.optional and array.exists_under(options)
        if needed and array.name not in params and not self._has_fault_in(array):
            return f"it has no {array.name}; {declared}"
        return ""

    def _has_fault_in(self, array: ArraySpec) -> bool:
        """Return True if the array at fault is this one, or comes with this one or not at all."""
        fault = self.dependent.get(self.error or "")
        return fault is not None and fault.only_with == array.only_with

    @property
    def subjects(self) -> tuple[str, ...]:
        """The names to which it may be blind: its arrays, its results, and PADDING if it has a padding id."""
        return (*self.inputs, *self.params, *self.expect, *([PADDING] if "pad_id" in self.attributes else []))

    @cached_property
    def input_arrays(self) -> Mapping[str, Array]:
        """The inputs as float64, bool or int64 arrays."""
        return {name: argument.build(name) for name, argument in self.inputs.items()}

    @cached_property
    def param_arrays(self) -> Mapping[str, Array]:
        """The parameters as float64 arrays."""
        if self.full_size:
            return _DrawnArrays(self.params)
        return {name: argument.build(name) for name, argument in self.params.items()}

    def forget_arrays(self) -> None:
        """Forget the inputs and parameters that were drawn, under all options: the next access draws them again."""
        for variant in (self.whole or self)._variants.values():
            for name in ("input_arrays", "param_arrays"):
                variant.__dict__.pop(name, None)

    @cached_property
    def cotangent_array(self) -> Array | None:
        """The gradient of the first output, as float64."""
        return self.cotangent.build("cotangent") if self.cotangent is not None else None

    @cached_property
    def has_all_bits(self) -> bool:
        """True if numbers are drawn with all bits: those of its arrays mean themselves then, and float64 holds them."""
        arguments = (*self.inputs.values(), *self.params.values(), self.cotangent)
        return any(argument is not None and isinstance(argument.made_of, Uniform) for argument in arguments)

    @cached_property
    def full_size(self) -> bool:
        """True if the parameters are those of a whole model, many megabytes of them."""
        return sum(math.prod(argument.shape) for argument in self.params.values()) >= FULL_SIZE

    @cached_property
    def size(self) -> int:
        """The number of numbers that an implementation is given: inputs and parameters."""
        return sum(math.prod(argument.shape) for argument in (*self.inputs.values(), *self.params.values()))

    @property
    def is_computed(self) -> bool:
        """True if a whole output is judged by values that are computed when the case runs."""
        return any(wanted.form == "computed" for wanted in self.expect.values())

    @property
    def random(self) -> bool:
        """True if its results are random and judged by statistics."""
        return any(wanted.form == "statistics" for wanted in self.expect.values())

    @property
    def has_roundings(self) -> bool:
        """True unless its results have one error scale: gradients, chance, and a full-size model, which is slow."""
        return not (self.cotangent is not None or self.random or self.full_size)

    @cached_property
    def calls(self) -> dict[Hashable, Any]:
        """The calls whose values were computed, for all that ask for them again in this process."""
        return {}

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "calls"}

    @property
    def shape_only(self) -> bool:
        """True if the case asks only for shapes, so that nothing is derived."""
        return all(wanted.form == "shape" for wanted in self.expect.values())
