"""One call of a class or a function: its arguments, its module with the parameters of the call, and its masks."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Final, Literal

from goldformer.adapters import layouts
from goldformer.adapters.array_module import find_array_module
from goldformer.adapters.inference.caches import Cache, find_output
from goldformer.adapters.inference.inputs import ForwardArguments, MaskForm, Polarity, TableForm, has_batch_axis
from goldformer.adapters.inference.parameters import Naming
from goldformer.adapters.inference.target import Construction, Target, construct
from goldformer.spec import Contract

#: The result of the call: only the output, or everything in our order, the output and the weights, the output first, a
#: term to add to the input, the same of a call with ids, or logits whose samples follow one another, as for a loss.
Returns = Literal["as_it_is", "pair", "first", "addend", "of_ids", "flat"]

#: The axes of a table of positions by channels.
_TABLE_AXES: Final = 2

#: The signs that a class with a cache is not trained.
_DETACHED: Final = re.compile(r"\bdetach\(|no_grad|inference_mode")

#: The call of a component by our names: its inputs, masks, attributes and params.
_Call = dict[str, Any]

#: An array of any library.
Array = Any


@dataclass(frozen=True)
class Calling:
    """Everything that a call of a target needs to know; `run_once` makes one."""

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
    #: True if values must be as wide as keys: others are padded with zeros, or passed in parts.
    equal_widths: bool = False
    #: How the target keeps keys and values between calls, where it is called with those of earlier ones.
    cache: Cache | None = None
    conventions: Mapping[str, str] = field(default_factory=dict)
    #: The only dtypes in which it can be called; () for all of its library.
    dtypes: tuple[str, ...] = ()

    @property
    def component(self) -> str:
        """The component that it is an adapter of."""
        return self.contract.component

    # The call

    def run_once(self, call: _Call) -> Any:
        """Call the target with the arguments of a call; NotImplementedError for one that it does not take."""
        self._refuse_axes(call)
        if "start" in self.arguments.call.values() and _DETACHED.search(self.target.text):
            traced = (*call.get("params", {}).values(), call[next(iter(self.contract.inputs))])
            why = f"{self.target.name} keeps its cache without gradients"
            _refuse(any(one.requires_grad for one in traced), why)
        masks = self._make_masks_of_ids(call) if "source" in self.contract.inputs else self.read_masks(call)
        thing, state = self.build(call) if self.target.is_class else (self.target.thing, {})
        given = self.pass_arguments(call)
        if not state:
            return self.arrange(thing(**given, **masks), call)
        functional_call = import_module("torch.func").functional_call
        return self.arrange(functional_call(thing, state, (), {**given, **masks}, strict=True), call)

    def pass_arguments(self, call: _Call) -> dict[str, Any]:
        """Return what the arguments of the target get in a call, without its masks."""
        own = {*self.arguments.all_masks, self.arguments.switch}
        return {theirs: self._pass(role, call) for theirs, role in self.arguments.call.items() if theirs not in own}

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
            first = call[next(iter(self.contract.inputs))]
            start = call.get("start", 0)
            positions = import_module("torch").arange(start, start + first.shape[1], device=first.device)
            return positions[None] if role == "positions_of_batch" else positions
        if role.startswith("rotary") and role != "rotary_width":
            return self._make_tables(role, call)
        if role not in self.contract.inputs:
            return self.find_size(role, call)
        if self.returns == "of_ids":
            torch = import_module("torch")
            return torch.ones_like(call[role][..., 0], dtype=torch.long)
        return layouts.sequence_first(call[role]) if self.sequence_first else call[role]

    def _make_tables(self, role: str, call: _Call) -> Any:
        """Return the rotary tables, or the cosines or the sines of them."""
        width = call["params"]["w_q"].shape[1] // call["num_heads"]
        form: Any = self.arguments.table_form or TableForm("halves")
        start = call.get("start", 0)
        tables = layouts.rotary_tables(call["x"], width, call["base"], form.columns, axes=form.axes, start=start)
        return tables if role == "rotary" else tables[role == "rotary_sines"]

    def find_size(self, role: str, call: _Call) -> Any:
        """Return a size of the call, or an attribute of it."""
        params, like, heads = call.get("params", {}), self.find_like(call), call.get("num_heads", 1)
        width, has_input_width = like.shape[-1], self.construction.has("input_width")

        def columns(*last: str) -> int:
            return int(next(w for name, w in params.items() if name.rpartition(".")[2] in last).shape[1])

        def find_length() -> int:
            if "length" in call:
                return int(call["length"])
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
            "start": lambda: call.get("start", 0),
            "batch": lambda: call[next(iter(self.contract.inputs))].shape[0],
            "pad": lambda: call["pad_id"],
            "words": lambda: None if call["pad_id"] is None else call["ids"] != call["pad_id"],
            "device": lambda: like.device,
            "dtype": lambda: like.dtype,
        }
        return sizes[role]() if role in sizes else call[role]

    def find_like(self, call: _Call) -> Array:
        """Return the array whose dtype and device the module gets."""
        first = next(iter(self.contract.inputs))
        return call["params"]["table"] if self.contract.inputs[first].kind == "ids" else call[first]

    def arrange(self, returned: Any, call: _Call) -> Any:
        """Return the outputs of a call in our order and layout."""
        turn = layouts.batch_first if self.sequence_first else lambda array: array
        if self.returns == "pair":
            output, weights = returned
            return {"output": turn(output), "weights": weights}
        if self.returns == "first":
            return turn(find_output(returned))
        if self.returns == "flat":
            return returned.unflatten(0, call["target"].shape)
        turned = turn(returned)
        return call[next(iter(self.contract.inputs))] + turned if self.returns in ("addend", "of_ids") else turned

    # Its module

    def build(self, call: _Call) -> tuple[Any, dict[str, Array]]:
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
        module = construct(self.target.thing, self.construction, lambda role: self.find_size(role, sized))
        module = module.to(self.find_like(call)).eval()
        if not naming.names:
            return module, {}
        params = _lay_out(params, naming, heads)
        is_fixed = bool({"w_1", "w_down"} & lasts) and not self.construction.has("inner")
        other: Literal["take", "skip"] = "take" if is_fixed else "skip"
        lines = leave_out_companions(naming)
        return module, layouts.map_state(lines, params, module, transpose=not naming.turned, other_sizes=other)

    # Its masks

    def read_masks(self, call: _Call) -> dict[str, Any]:
        """Return the masks of a call by the arguments of the target; refuse those that it does not take."""
        arguments, name = self.arguments, self.target.name
        required = {a.name for a in self.target.list_arguments() if a.is_required}
        passed: dict[str, Any] = dict.fromkeys(n for n in arguments.all_masks if n in required)
        for ours, queries, keys in list_masks(self.contract):
            mask, query, key = call[ours], call[queries], call[keys]
            taken = {*arguments.masks, *(arguments.paddings if self.mask.is_split else ())}
            takes = ours in taken and self.mask.shape not in ("absent", "causal")
            if arguments.switch and ours != "memory_mask":
                passed[arguments.switch] = switched = is_switched(mask, query, key)
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
            passed |= self.convert_mask(ours, mask, query, key, call.get("num_heads", 1)) if takes else {}
        return passed

    def convert_mask(self, ours: str, mask: Array, query: Array, key: Array, heads: int) -> dict[str, Any]:
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
        masks, pad_id, like = self.arguments.masks, call["pad_id"], self.find_like(call)
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
                mask = find_array_module(query).broadcast_to(mask, whole or (*query.shape[:-1], key.shape[-2]))
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


# Masks


def list_masks(contract: Contract) -> list[tuple[str, str, str]]:
    """Return our masks, each with the inputs that its queries and its keys come from."""
    if "query" in contract.inputs:
        return [(name, "query", "key") for name in contract.masks]
    return [(name, "x", "memory" if name == "memory_mask" else "x") for name in contract.masks]


def is_switched(mask: Array | None, query: Array, key: Array) -> bool:
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
    ones = like.new_ones(shape) if hasattr(like, "new_ones") else find_array_module(like).ones(shape)
    return ones > 0


def _make_causal(like: Array, q_seq: int, kv_seq: int) -> Array:
    """Return the causal mask, of the library and on the device of an array."""
    return find_array_module(like).tril(_make_ones(like, (q_seq, kv_seq)))


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


def leave_out_companions(naming: Naming) -> layouts.Names:
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
