"""The wiring of a class or a function: the data of its adapter, which calls it, and which is printed as `adapt(…)`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from importlib import import_module
from types import MappingProxyType, SimpleNamespace
from typing import Any, Final, Literal

from goldformer.adapters import layouts
from goldformer.adapters.arrays import LIBRARIES
from goldformer.adapters.inference.inputs import (
    ForwardArguments,
    MaskForm,
    MaskShape,
    Polarity,
    TableForm,
    has_batch_axis,
    says_ignore,
    says_sequence_first,
)
from goldformer.adapters.inference.numpy_classes import is_made_here
from goldformer.adapters.inference.parameters import Naming
from goldformer.adapters.inference.target import Construction, Made, Target, as_module, construct
from goldformer.adapters.protocol import INFERRED_FUNCTIONS, Adapter, AdapterError
from goldformer.spec import Contract, Spec, load_spec

#: The result of the call: only the output, or everything in our order, the output and the weights, the output first, a
#: term to add to the input, the same of a call with ids, or logits whose samples follow one another, as for a loss.
Returns = Literal["as_it_is", "pair", "first", "addend", "of_ids", "flat"]

#: The optional attributes that a target may take, with what they are where a call leaves them out.
_DEFAULTS: Final = {"base": 10000.0, "rotary_width": None, "pad_id": None}

#: The longest line of a file that is written, and the axes of a table of positions by channels.
_LINE, _TABLE_AXES = 110, 2

#: The call of a component by our names: its inputs, masks, attributes and params.
_Call = dict[str, Any]

#: An array of any library.
Array = Any


@dataclass(frozen=True)
class Wiring:
    """Everything that the adapter of one component consists of; `run` calls the target, `write` prints it."""

    target: Target
    contract: Contract
    arguments: ForwardArguments
    construction: Construction = field(default_factory=Construction)
    naming: Naming = field(default_factory=lambda: Naming({}))
    mask: MaskForm = field(default_factory=MaskForm)
    returns: Returns = "as_it_is"
    sequence_first: bool = False
    #: The only number of axes that the first input may have; 0 for any.
    axes: int = 0
    conventions: Mapping[str, str] = field(default_factory=dict)
    #: The only dtypes in which it can be called; () for all of its library.
    dtypes: tuple[str, ...] = ()

    @property
    def component(self) -> str:
        """The component that it is an adapter of."""
        return self.contract.component

    @property
    def declared(self) -> dict[str, str]:
        """Its conventions, of those that the component has."""
        hidden = {"later_tokens": "hidden_only"} if self.mask.shape == "causal" else {}
        both = {**self.naming.conventions, **self.conventions, **hidden}
        return {name: option for name, option in both.items() if name in self.contract.conventions}

    @property
    def inputs(self) -> dict[str, str]:
        """The inputs and parameters of ours that arguments of the call take, by these arguments."""
        ours = {*self.contract.inputs, *self.contract.params} - {*self.contract.masks}
        return {name: role for name, role in self.arguments.call.items() if isinstance(role, str) and role in ours}

    @property
    def call(self) -> str:
        """The call that is made, with what each argument stands for: Attention(width=d_model)(q=query)."""
        given = ", ".join(n if n == ours else f"{n}={ours}" for n, ours in self.inputs.items())
        sizes = ", ".join(f"{name}={role}" for name, role in self.construction.list_sizes())
        return f"{self.target.name}({sizes})({given})" if self.target.is_class else f"{self.target.name}({given})"

    @property
    def choices(self) -> tuple[str, ...]:
        """The layout of its arrays and its masks, as far as it was found out, in words."""
        return (*_describe_layout(self), *_describe_mask(self))

    @property
    def unsaid(self) -> tuple[str, ...]:
        """The choices that a mistake would look like and that the target does not say, as `--accept` names them."""
        turned = self.sequence_first and not says_sequence_first(self.target)
        hidden = self.mask.polarity == "ignore" and not says_ignore(self.target, self.arguments)
        added = self.returns == "addend"
        choices = {"sequence-first": turned, "ignore": hidden, "addend": added}
        return tuple(name for name, is_unsaid in choices.items() if is_unsaid)

    @functools.cached_property
    def function(self) -> Callable[..., Any]:
        """The function of the component, as an adapter has it."""
        contract = self.contract
        names = [name for name, spec in contract.inputs.items() if not spec.optional]
        required = [name for name, spec in contract.attributes.items() if not spec.optional]
        taken = {*self.construction.list_roles(), *map(str, self.arguments.call.values())}
        taken |= {"pad_id"} if "words" in taken else set()
        taken |= {"base"} if self.arguments.tables else set()
        optional: dict[str, Any] = dict.fromkeys(contract.masks)
        optional |= {name: default for name, default in _DEFAULTS.items() if name in taken - {*required}}
        required += ["params"] if contract.takes_params else []
        positional, keyword = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
        masks = [inspect.Parameter(name, positional, default=None) for name in contract.masks]
        apart = [inspect.Parameter(name, keyword) for name in required]
        apart += [inspect.Parameter(n, keyword, default=d) for n, d in optional.items() if n not in contract.masks]
        signature = inspect.Signature([*(inspect.Parameter(name, positional) for name in names), *masks, *apart])

        @functools.wraps(self.target.thing, assigned=(), updated=())
        def function(*given: Any, **named: Any) -> Any:
            return self.run({**optional, **signature.bind(*given, **named).arguments})

        function.__name__ = contract.component
        function.__signature__ = signature  # type: ignore[attr-defined]
        return function

    # The call

    def run(self, call: _Call) -> Any:
        """Call the target with the arguments of a call; NotImplementedError for one that it does not take."""
        self._refuse_axes(call)
        own = {*self.arguments.all_masks, self.arguments.switch}
        masks = self._make_masks_of_ids(call) if "source" in self.contract.inputs else self._read_masks(call)
        thing, state = self._build(call) if self.target.is_class else (self.target.thing, {})
        given = {theirs: self._pass(role, call) for theirs, role in self.arguments.call.items() if theirs not in own}
        if not state:
            return self._arrange(thing(**given, **masks), call)
        functional_call = import_module("torch.func").functional_call
        return self._arrange(functional_call(thing, state, (), {**given, **masks}, strict=True), call)

    def _refuse_axes(self, call: _Call) -> None:
        """Raise NotImplementedError for inputs that the target does not have."""
        name, first = self.target.name, call[next(iter(self.contract.inputs))]
        if self.axes:
            _refuse(first.ndim != self.axes, f"{name} takes arrays of {self.axes} axes")
        if "value" in self.contract.inputs and "value" not in self.arguments.call.values():
            key, value = call["key"], call["value"]
            differ = key.shape != value.shape or key.requires_grad or value.requires_grad
            _refuse(differ or not bool((key == value).all()), f"{name} reads keys and values from one input")

    def _pass(self, role: Any, call: _Call) -> Any:
        """Return what an argument of the call gets; a role of ours is a string, everything else a constant."""
        if not isinstance(role, str) or role in self.contract.params:
            return call["params"][role] if isinstance(role, str) else role
        if role.startswith("positions_"):
            positions = import_module("torch").arange(call["x"].shape[1], device=call["x"].device)
            return positions[None] if role == "positions_of_batch" else positions
        if role.startswith("rotary") and role != "rotary_width":
            return self._make_tables(role, call)
        if role not in self.contract.inputs:
            return self._find_size(role, call)
        if self.returns == "of_ids":
            torch = import_module("torch")
            return torch.ones_like(call[role][..., 0], dtype=torch.long)
        return layouts.sequence_first(call[role]) if self.sequence_first else call[role]

    def _make_tables(self, role: str, call: _Call) -> Any:
        """Return the rotary tables, or the cosines or the sines of them."""
        width = call["params"]["w_q"].shape[1] // call["num_heads"]
        form: Any = self.arguments.table_form or TableForm("halves")
        tables = layouts.rotary_tables(call["x"], width, call["base"], form.columns, axes=form.axes)
        return tables if role == "rotary" else tables[role == "rotary_sines"]

    def _find_size(self, role: str, call: _Call) -> Any:
        """Return a size of the call, or an attribute of it."""
        params, like, heads = call.get("params", {}), self._find_like(call), call.get("num_heads", 1)
        width, has_input_width = like.shape[-1], self.construction.has("input_width")

        def columns(*last: str) -> int:
            return int(next(w for name, w in params.items() if name.rpartition(".")[2] in last).shape[1])

        def find_length() -> int:
            if "position_table" in params:
                return int(params["position_table"].shape[0])
            if "positions" in call:
                return int(call["positions"].max()) + 1
            read = ("source", "target") if "source" in call else (next(iter(self.contract.inputs)),)
            return max(int(call[name].shape[1]) for name in read)

        sizes: dict[str, Callable[[], Any]] = {
            "width": lambda: params["w_o"].shape[0] if has_input_width else width,
            **dict.fromkeys(("input_width", "width_of_heads", "word_width"), lambda: width),
            "head_width": lambda: columns("w_q") // heads if params else width,
            "value_width": lambda: columns("w_v") // heads,
            "width_by_heads": lambda: width // heads,
            "temperature": lambda: width**0.5,
            "inner": lambda: columns("w_1", "w_gate"),
            "expansion": lambda: 1,
            "heads": lambda: heads,
            "kv_heads": lambda: call["num_kv_heads"],
            "layers": lambda: call.get("num_layers", call.get("num_encoder_layers")),
            "encoder_layers": lambda: call["num_encoder_layers"],
            "decoder_layers": lambda: call["num_decoder_layers"],
            **dict.fromkeys(("vocab", "source_vocab", "target_vocab"), lambda: params["table"].shape[0]),
            "positions": find_length,
            "capacity": lambda: find_length() if "position_table" in params else 2 * find_length(),
            "rotary_width": lambda: width if call["rotary_width"] is None else call["rotary_width"],
            "pad": lambda: call["pad_id"],
            "words": lambda: None if call["pad_id"] is None else call["ids"] != call["pad_id"],
            "device": lambda: like.device,
            "dtype": lambda: like.dtype,
        }
        return sizes[role]() if role in sizes else call[role]

    def _find_like(self, call: _Call) -> Array:
        """Return the array whose dtype and device the module gets."""
        first = next(iter(self.contract.inputs))
        return call["params"]["table"] if self.contract.inputs[first].kind == "ids" else call[first]

    def _arrange(self, returned: Any, call: _Call) -> Any:
        """Return the outputs of a call in our order and layout."""
        turn = layouts.batch_first if self.sequence_first else lambda array: array
        if self.returns == "pair":
            output, weights = returned
            return {"output": turn(output), "weights": weights}
        if self.returns == "first":
            return turn(next(iter(returned)))
        if self.returns == "flat":
            return returned.unflatten(0, call["target"].shape)
        turned = turn(returned)
        return call[next(iter(self.contract.inputs))] + turned if self.returns in ("addend", "of_ids") else turned

    # Its module

    def _build(self, call: _Call) -> tuple[Any, dict[str, Array]]:
        """Return the module of a call, and the state that gives it the parameters of the call."""
        naming, params = self.naming, dict(call.get("params", {}))
        heads, lasts = call.get("num_heads", 0), {name.rpartition(".")[2] for name in naming.names}
        if self.component == "fused_multi_head_attention":
            params = layouts.separate_projections(params, heads)
        if "b_q" in lasts and "b_k" not in lasts:
            params = layouts.leave_out_key_biases(params)
        groups = "num_kv_heads" in self.contract.attributes
        if groups and not self.construction.has("kv_heads"):
            params = layouts.repeat_key_heads(params, heads, call["num_kv_heads"])
        if heads and not self.construction.has("head_width", "input_width"):
            layouts.require_square_projections(params, *([("w_q", "w_o")] if groups else []))
        if "layers" in self.construction.list_roles() and "source" in call:
            differ = call["num_encoder_layers"] != call["num_decoder_layers"]
            _refuse(differ, "both stacks have as many layers")
        sized = {**call, "params": params}
        module = construct(self.target.thing, self.construction, lambda role: self._find_size(role, sized))
        module = module.to(self._find_like(call)).eval()
        if not naming.names:
            return module, {}
        params = _lay_out(params, naming, heads)
        is_fixed = bool({"w_1", "w_down"} & lasts) and not self.construction.has("inner")
        other: Literal["take", "skip"] = "take" if is_fixed else "skip"
        lines = _leave_out_companions(naming)
        return module, layouts.map_state(lines, params, module, transpose=not naming.turned, other_sizes=other)

    # Its masks

    def _read_masks(self, call: _Call) -> dict[str, Any]:
        """Return the masks of a call by the arguments of the target; refuse those that it does not take."""
        arguments, name = self.arguments, self.target.name
        required = {a.name for a in self.target.list_arguments() if a.is_required}
        passed: dict[str, Any] = dict.fromkeys(n for n in arguments.all_masks if n in required)
        for ours, queries, keys in list_masks(self.contract):
            mask, query, key = call[ours], call[queries], call[keys]
            taken = {*arguments.masks, *(arguments.paddings if self.mask.is_split else ())}
            takes = ours in taken and self.mask.shape not in ("absent", "causal")
            if arguments.switch and ours != "memory_mask":
                passed[arguments.switch] = switched = _is_switched(mask, query, key)
                why = "takes no mask but the causal one of as many queries as keys"
                _refuse(mask is not None and not switched and not takes, f"{name} {why}")
                mask = None if switched else mask
            elif self.mask.shape == "causal" and ours != "memory_mask":
                hides = layouts.is_causal(mask, q_seq=query.shape[-2], kv_seq=key.shape[-2])
                _refuse(not hides, f"{name} always hides the future")
            else:
                _refuse(mask is not None and not takes, f"{name} takes no such mask")
            # The model of such a layer makes its causal mask (BLOCK-4).
            if self.component == "decoder_only_layer" and arguments.masks:
                causal = _make_causal(query, query.shape[1], query.shape[1])
                mask = causal if mask is None else mask & causal
            passed |= self._convert_mask(ours, mask, query, key, call.get("num_heads", 1)) if takes else {}
        return passed

    def _convert_mask(self, ours: str, mask: Array, query: Array, key: Array, heads: int) -> dict[str, Any]:
        """Return a mask of ours by the arguments that take it, in the form that they take."""
        masks, paddings = self.arguments.masks, self.arguments.paddings
        if not self.mask.is_split:
            is_any = self.mask == MaskForm("any")
            return {masks[ours]: mask if is_any else self._hide(mask, query, key, heads)}
        padding, positions = self._split_mask(mask, query, key, heads)
        if ours not in masks:
            _refuse(positions is not None, f"{self.target.name} takes a mask of keys for its {ours}")
            return {paddings[ours]: padding}
        return {paddings[ours]: padding, masks[ours]: positions}

    def _make_masks_of_ids(self, call: _Call) -> dict[str, Any]:
        """Return the masks that a model of an encoder and a decoder takes, made of its ids."""
        masks, pad_id, like = self.arguments.masks, call["pad_id"], self._find_like(call)
        if not masks:
            reads = "pad_id" in self.arguments.call.values() or self.construction.has("pad")
            _refuse(not reads and pad_id != 0, f"{self.target.name} pads with id 0")
            return {}
        target = call["target"]

        def widen(mask: Array) -> Array:
            return mask[:, None, :] if self.mask.shape == "no_heads" else mask[:, None, None, :]

        own = widen(target != pad_id) & _make_causal(target, target.shape[1], target.shape[1])
        made = {"memory_mask": widen(call["source"] != pad_id), "self_mask": own}
        return {theirs: _turn(made[ours], self.mask.polarity, like) for ours, theirs in masks.items()}

    def _hide(self, mask: Array | None, query: Array, key: Array, heads: int) -> Any:
        """Return a mask in the form that the target takes."""
        name, form, has_axes = self.target.name, self.mask, has_batch_axis(self.contract)
        if mask is None:
            if not form.always:
                return None
            mask = _make_ones(query, (1, 1, 1, key.shape[1]) if has_axes else (1, key.shape[-2]))
        sizes = {"batch": query.shape[0], "q_seq": query.shape[1], "kv_seq": key.shape[1]} if has_axes else {}
        of_keys = {"batch": query.shape[0], "kv_seq": key.shape[1]} if has_axes else {}
        takes = ""
        match form.shape:
            case "four_axes":
                mask = layouts.four_axes_mask(mask)
            case "whole":
                whole = (sizes["batch"], heads, sizes["q_seq"], sizes["kv_seq"]) if has_axes else ()
                mask = layouts.find_array_module(query).broadcast_to(mask, whole or (*query.shape[:-1], key.shape[-2]))
            case "flat":
                mask = layouts.flatten_heads(mask, heads=heads, **sizes)
            case "no_heads":
                mask, takes = layouts.drop_heads(mask, **sizes), "one mask for all heads"
            case "keys":
                mask, takes = layouts.key_padding(mask, **of_keys), "a mask of the keys only"
            case "lengths":
                mask, takes = layouts.read_lengths(mask, **of_keys), "the number of keys of each sample"
            case "causal_keys":
                split = layouts.split_causal(mask, **sizes)
                mask, takes = split and split[0], "a mask of the keys only, and hides the future itself"
        _refuse(mask is None, f"{name} takes {takes}")
        return _turn(mask, form.polarity, query)

    def _split_mask(self, mask: Array | None, query: Array, key: Array, heads: int) -> tuple[Any, Any]:
        """Return a mask as a mask of keys and one of positions."""
        form = self.mask
        if mask is None:
            return None, None
        sizes = {"batch": query.shape[0], "q_seq": query.shape[1], "kv_seq": key.shape[1]}
        padding = layouts.key_padding(mask, batch=sizes["batch"], kv_seq=sizes["kv_seq"])
        if padding is not None:
            return _turn(padding, form.padding_polarity, query), None
        if form.shape == "split":
            return None, _turn(layouts.flatten_heads(mask, heads=heads, **sizes), form.polarity, query)
        if mask.ndim == _TABLE_AXES:
            return None, _turn(mask, form.polarity, query)
        split = layouts.split_causal(mask, **sizes)
        if split is None:
            raise NotImplementedError(f"{self.target.name} takes a mask of keys, and one of (q_seq, kv_seq)")
        causal = _make_causal(query, query.shape[1], key.shape[1]) if split[1] else None
        positions = None if causal is None else _turn(causal, form.polarity, query)
        return _turn(split[0], form.padding_polarity, query), positions

    # Its text

    def write(self, head: str, detour: str = "") -> str:
        """Return the adapter file, which finds the class in the folder `detour` as seen from its own."""
        name = f"own_{self.target.name}" if self.target.name in INFERRED_FUNCTIONS else self.target.name
        made = list(self.construction.list_made())
        first, own = _write_imports(self.target, name, [one.kind for one in made], detour)
        ours = "Made, adapt" if made else "adapt"
        lines = [f'"""{head}"""', "", *first, f"from goldformer.adapters.inference import {ours}", *own]
        lines += ["", f'ARRAYS = "{self.target.arrays}"']
        lines += [f"CONVENTIONS = {_show(self.declared)}"] if self.declared else []
        lines += [f"DTYPES = {_show(list(self.dtypes))}"] if self.dtypes else []
        given = {"build": self.construction.arguments, "call": self.arguments.call}
        given["params"] = _leave_out_companions(self.naming)
        parts = [f'{name}, "{self.component}"', *(f"{n}={_show(v, '    ')}" for n, v in given.items() if v)]
        parts += [", ".join(f"{n}={_show(v)}" for n, v in self.list_choices().items())]
        return "\n".join([*lines, "", f"{self.component} = adapt(", *(f"    {p}," for p in parts if p), ")"]) + "\n"

    def list_choices(self) -> dict[str, Any]:
        """Return the choices of layouts that are no defaults, as `adapt` takes them."""
        form, table, naming = self.mask, self.arguments.table_form or TableForm("halves"), self.naming
        chosen: dict[str, Any] = {
            "mask": form.shape,
            "polarity": form.polarity,
            "always": form.always,
            "tables": table.columns,
        }
        chosen |= {"table_axes": table.axes, "returns": self.returns, "sequence_first": self.sequence_first}
        chosen |= {"axes": self.axes, **{name: getattr(naming, name) for name in _LAYOUTS}}
        defaults = inspect.signature(adapt).parameters
        return {n: v for n, v in chosen.items() if v != (defaults[n].default if n in defaults else _LAYOUTS[n])}


#: The layouts of parameters, by the fields of a naming, with their defaults.
_LAYOUTS: Final[Mapping[str, Any]] = {
    one.name: one.default for one in fields(Naming) if one.name not in ("names", "conventions")
}


def adapt(
    thing: Any,
    component: str,
    *,
    build: Mapping[str, Any] = MappingProxyType({}),
    call: Mapping[str, Any] = MappingProxyType({}),
    params: layouts.Names = MappingProxyType({}),
    mask: MaskShape = "absent",
    polarity: Polarity = "keep",
    always: bool = False,
    tables: str = "halves",
    table_axes: int = 2,
    returns: Returns = "as_it_is",
    sequence_first: bool = False,
    axes: int = 0,
    **layout: Any,
) -> Callable[..., Any]:
    """Return the function of a component that calls a class or a function, as `goldformer infer` writes it.

    `build` says what each argument of the constructor is: a size of the call, such as "width" or "heads", a constant,
    or `Made`, an object that is built itself. `call` says it of the call: an input, a mask or an attribute of the
    component, or a constant. `params` has the name of each parameter as `map_state` takes them. `mask` and `polarity`
    are the form of the masks and what True means in them ("keep", "ignore", "added"), and `always` that the call needs
    one. `layout` says how parameters are stored, such as order="qkv" for a fused projection.
    """
    spec = load_spec()
    if component not in spec.contracts:
        raise AdapterError(f"adapt: {component!r} is no component; components are {', '.join(spec.contracts)}")
    if unknown := [name for name in layout if name not in _LAYOUTS]:
        raise AdapterError(f"adapt: no choice is called {unknown[0]!r}; choices are {', '.join(_LAYOUTS)}")
    kind = as_module(thing) if inspect.isclass(thing) else thing
    arguments = ForwardArguments(call, TableForm(tables, table_axes))
    wiring = Wiring(Target(kind, thing.__name__, ""), spec.contracts[component], arguments, Construction(build))
    naming, form = Naming(params, **layout), MaskForm(mask, polarity, always)
    return replace(wiring, naming=naming, mask=form, returns=returns, sequence_first=sequence_first, axes=axes).function


def load_wiring(wiring: Wiring, spec: Spec) -> Adapter:
    """Return the adapter that a wiring is."""
    functions = SimpleNamespace(**{wiring.component: wiring.function})
    adapter = Adapter.from_trusted(functions, wiring.target.name, spec, arrays=wiring.target.arrays)
    library = LIBRARIES["numpy"] if is_made_here(wiring.target.thing) else adapter
    dtypes = wiring.dtypes or library.dtypes
    return replace(adapter, conventions=wiring.declared, devices=library.devices, dtypes=dtypes)


# Masks


def list_masks(contract: Contract) -> list[tuple[str, str, str]]:
    """Return our masks, each with the inputs that its queries and its keys come from."""
    if "query" in contract.inputs:
        return [(name, "query", "key") for name in contract.masks]
    return [(name, "x", "memory" if name == "memory_mask" else "x") for name in contract.masks]


def switches_mask(wiring: Wiring, inputs: Mapping[str, Array]) -> bool:
    """Return True if a wiring sets the switch of the call in the place of a mask of these inputs."""
    switched = (names for names in list_masks(wiring.contract) if names[0] != "memory_mask")
    mask, queries, keys = (inputs.get(name) for name in next(switched))
    return queries is not None and keys is not None and _is_switched(mask, queries, keys)


def _is_switched(mask: Array | None, query: Array, key: Array) -> bool:
    """Return True if a mask is the causal one of as many queries as keys: with fewer, code differs in what it hides."""
    q_seq, kv_seq = query.shape[-2], key.shape[-2]
    return mask is not None and q_seq == kv_seq and layouts.is_causal(mask, q_seq=q_seq, kv_seq=kv_seq)


def _refuse(condition: object, why: str) -> None:
    if condition:
        raise NotImplementedError(why)


def _turn(mask: Array, polarity: Polarity, like: Array) -> Array:
    """Return a mask with the target's meaning of True."""
    if polarity == "added":
        return layouts.additive_mask(mask, like.dtype)
    return layouts.ignore_mask(mask) if polarity == "ignore" else mask


def _make_ones(like: Array, shape: tuple[int, ...]) -> Array:
    """Return a mask that hides nothing, of the library and on the device of an array."""
    ones = like.new_ones(shape) if hasattr(like, "new_ones") else layouts.find_array_module(like).ones(shape)
    return ones > 0


def _make_causal(like: Array, q_seq: int, kv_seq: int) -> Array:
    """Return the causal mask, of the library and on the device of an array."""
    return layouts.find_array_module(like).tril(_make_ones(like, (q_seq, kv_seq)))


# Parameters


def _lay_out(params: dict[str, Array], naming: Naming, heads: int) -> dict[str, Array]:
    """Return the parameters of a call in the layout in which a module stores them."""
    if naming.order:
        params = layouts.join_projections(params, heads, naming.order, per_head=naming.per_head)
    if naming.branches:
        params = layouts.join_gate_and_up(params, naming.branches, interleaved=naming.in_turn)
    if naming.head_list:
        params = layouts.split_by_head(params, heads)
    if naming.stacked:
        flat = {n: w for n, w in params.items() if n.endswith("w_o")} if naming.flat_output else {}
        params = layouts.stack_heads(params, heads) | flat
    if naming.turned:
        is_map = {name: w.ndim == _TABLE_AXES and not name.endswith("table") for name, w in params.items()}
        params = {name: layouts.linear_weight(w) if is_map[name] else w for name, w in params.items()}
    return params


def _leave_out_companions(naming: Naming) -> layouts.Names:
    """Return the names without the biases and shifts that `map_state` finds by itself."""
    lasts = {name.rpartition(".")[2] for name in naming.names}
    if "b_q" in lasts and "b_k" not in lasts:
        return naming.names
    kept = {}
    for ours, theirs in naming.names.items():
        start, _, last = ours.rpartition(".")
        first = "gamma" if last == "beta" else f"w{last[1:]}"
        of_weight = naming.names.get(f"{start}.{first}" if start else first)
        follows = isinstance(of_weight, str) and of_weight.endswith("weight") and last[:2] in ("b_", "be")
        if not (follows and theirs == f"{str(of_weight).removesuffix('weight')}bias"):
            kept[ours] = theirs
    return kept


# The file


def _write_imports(target: Target, local: str, kinds: Sequence[type], detour: str) -> tuple[list[str], list[str]]:
    """Return the lines that import the class and what it is built of, as those before and after other imports."""
    names, apart = {target.name: local}, list[str]()
    for kind in dict.fromkeys(kinds):
        if target.has(kind):
            names[kind.__name__] = kind.__name__
        elif kind is not dict:
            apart.append(f"from {kind.__module__} import {kind.__name__}")
    here = 'Path(__file__).resolve().parent / "{}"'
    if target.file and not target.is_importable:
        place = here.format(f"{detour}/{target.file.name}" if detour else target.file.name)
        taken = [f"{ours} = own.{theirs}" for theirs, ours in names.items()]
        before = ["from pathlib import Path", "from goldformer.adapters.find import import_file"]
        return before, ["", f"own = import_file({place})", *taken, *(f"{line}  # noqa: E402" for line in apart)]
    listed = ", ".join(theirs if theirs == ours else f"{theirs} as {ours}" for theirs, ours in names.items())
    own = [f"{target.import_line.rpartition(' import ')[0]} import {listed}", *apart]
    if not detour:
        return [], own
    path = f"sys.path.insert(0, str({here.format(detour)}))"
    return ["import sys", "from pathlib import Path"], ["", path, *(f"{line}  # noqa: E402" for line in own)]


def _show(value: Any, indent: str = "") -> str:
    """Return the text of a value, a mapping in lines of its own if it is long."""
    if isinstance(value, Made):
        return f"Made({value.kind.__name__}, {_show(value.arguments, indent)})"
    if isinstance(value, Mapping):
        inner = f"{indent}    "
        items = [f"{_show(name)}: {_show(one, inner)}" for name, one in value.items()]
        line = f"{{{', '.join(items)}}}"
        lines = "".join(f"{inner}{item},\n" for item in items)
        return line if len(line) <= _LINE - 15 else f"{{\n{lines}{indent}}}"
    if isinstance(value, tuple | list):
        start, end = "()" if isinstance(value, tuple) else "[]"
        return f"{start}{', '.join(map(_show, value))}{end}"
    return f'"{value}"' if isinstance(value, str) else repr(value)


# What was chosen, in words


def _describe_layout(wiring: Wiring) -> Iterator[str]:
    naming = wiring.naming
    if naming.order:
        yield f"fused projection: {', '.join(naming.order)}, {'head by head' if naming.per_head else 'whole blocks'}"
    if naming.branches:
        form = "columns in turn" if naming.in_turn else "whole blocks"
        yield f"fused projection: {naming.branches.replace('_', ', ')}, {form}"
    said = {
        "each head has weights of its own": naming.head_list,
        "its projections have an axis for the heads": naming.stacked,
        "its own matrices are (out, in)": naming.turned,
        "sequence first: (seq, batch, …)": wiring.sequence_first,
        "its result is added to x": wiring.returns in ("addend", "of_ids"),
        "it takes ids, of which it reads the shape": wiring.returns == "of_ids",
        "its logits are (batch·seq, vocab)": wiring.returns == "flat",
        f"arrays of {wiring.axes} axes": wiring.axes,
        f"it works in {', '.join(wiring.dtypes)}, not in float64": wiring.dtypes,
    }
    yield from (text for text, holds in said.items() if holds)


def _describe_mask(wiring: Wiring) -> Iterator[str]:
    form, switch = wiring.mask, wiring.arguments.switch
    if form.shape == "causal":
        yield "mask: none, it always hides the future"
        return
    if form.shape != "absent" and wiring.arguments.all_masks:
        meaning = {"keep": "True = may attend", "ignore": "True = ignore", "added": "added to the scores"}
        yield f"mask: {_SHAPES[form.shape]}" + ("" if form.shape == "lengths" else f", {meaning[form.polarity]}")
    if switch:
        yield f"{switch} of the call: True where the mask is causal, with as many queries as keys"
    for name in () if form.is_split or form.shape == "absent" else wiring.arguments.paddings.values():
        yield f"{name} of the call: not used, all masks go to the other argument"


_SHAPES: Final = {
    "any": "as it comes", "four_axes": "(batch, heads, q_seq, kv_seq)", "whole": "of the size of the scores",
    "flat": "(batch·heads, q_seq, kv_seq)", "no_heads": "(batch, q_seq, kv_seq)", "keys": "(batch, kv_seq)",
    "lengths": "(batch,), numbers of keys", "split": "one of keys and one of positions",
    "causal_keys": "(batch, kv_seq), next to the causal one that it makes itself",
    "split_rows": "one of keys and one of (q_seq, kv_seq)",
}  # fmt: skip
