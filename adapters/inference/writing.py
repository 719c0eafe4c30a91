"""An adapter file, written from what was read and chosen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Final, Literal

from goldformer.adapters.inference.inputs import (
    ForwardArguments,
    MaskForm,
    has_batch_axis,
    says_ignore,
    says_sequence_first,
)
from goldformer.adapters.inference.parameters import Naming
from goldformer.adapters.inference.target import Construction, Part, Target, is_device
from goldformer.adapters.layouts import Names, is_causal
from goldformer.adapters.protocol import INFERRED_FUNCTIONS
from goldformer.spec import Contract
from goldformer.spec.call import Array

#: The result of the call: only the output, or everything in our order, the output and the weights, the output first, a
#: term to add to the input, the same of a call with ids, or logits whose samples follow one another, as for a loss.
Returns = Literal["as_it_is", "pair", "first", "addend", "of_ids", "flat"]

_LINE: Final = 110

_TABLE: Final = 'params["table"]'

#: The axes of a table of positions by channels.
_TABLE_AXES: Final = 2

#: The names of the network of a model's first layer begin so.
_FIRST_NETWORK: Final = "layers.0.feed_forward."


@dataclass(frozen=True)
class Wiring:
    """Everything that an adapter of one component needs; `write` gives its text."""

    target: Target
    contract: Contract
    arguments: ForwardArguments
    construction: Construction = field(default_factory=lambda: Construction({}, {}))
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
    def local_name(self) -> str:
        """The name of the target in the file, in which the functions have those of components."""
        return f"own_{self.target.name}" if self.target.name in INFERRED_FUNCTIONS else self.target.name

    @property
    def declared(self) -> dict[str, str]:
        """Its conventions, of those that the component has."""
        hidden = {"later_tokens": "hidden_only"} if self.mask.shape == "causal" else {}
        both = {**self.naming.conventions, **self.conventions, **hidden}
        return {name: option for name, option in both.items() if name in self.contract.conventions}

    @property
    def facts(self) -> tuple[str, ...]:
        """The choices that were made, a line each."""
        return (
            *(f"{name} of the constructor: {role.replace('_', ' ')}" for name, role in self.construction.sizes.items()),
            *(
                f"{name} of the constructor: {'that of the inputs' if is_device(name) else repr(value)}"
                for name, value in {**self.construction.constants, **self.construction.others}.items()
            ),
            *(f"{name} of the constructor: {_describe_part(part)}" for name, part in self.construction.parts.items()),
            *(f"{name} of the call: {ours}" for name, ours in self.arguments.inputs.items()),
            *(f"{name} of the call: None, an empty cache" for name in self.arguments.caches),
            *(f"{name} of the call: {number}" for name, number in self.arguments.constants.items()),
            *(f"{name} of the call: {text}" for name, text in _describe_tables(self).items()),
            *(f"{name} of the call: {ours.replace('_', ' ')}" for name, ours in self.arguments.attributes.items()),
            *_describe_layout(self),
            *(f"{name}: {option}" for name, option in self.declared.items()),
            *_describe_mask(self),
        )

    @property
    def call(self) -> str:
        """The call that is made, with what each argument stands for: Attention(width=d_model)(q=query)."""
        inputs = self.arguments.inputs
        given = ", ".join(name if name == ours else f"{name}={ours}" for name, ours in inputs.items())
        sizes = ", ".join(f"{name}={role}" for name, role in self.construction.sizes.items())
        return f"{self.target.name}({sizes})({given})" if self.target.is_class else f"{self.target.name}({given})"

    @property
    def choices(self) -> tuple[str, ...]:
        """The layout of its arrays and its masks, as far as it was found out."""
        return (*_describe_layout(self), *_describe_mask(self))

    @property
    def unsaid(self) -> tuple[str, ...]:
        """The choices that a mistake would look like and that the target does not say, as `--accept` names them."""
        turned = self.sequence_first and not says_sequence_first(self.target)
        hidden = self.mask.polarity == "ignore" and not says_ignore(self.target, self.arguments)
        added = self.returns == "addend"
        choices = {"sequence-first": turned, "ignore": hidden, "addend": added}
        return tuple(name for name, is_unsaid in choices.items() if is_unsaid)

    def write(self, head: str = "", detour: str = "") -> str:
        """Return the text of the adapter file, which finds the class in the folder `detour` as seen from its own."""
        first, own = _write_target_imports(self, detour)
        documented = [f'"""{head}"""'] if head else []
        return "\n".join([*documented, *first, *_list_imports(self), *own, *_write_definitions(self)]) + "\n"

    @property
    def code(self) -> str:
        """The text of the adapter file without the import of the class."""
        return "\n".join([*_list_imports(self), *_write_definitions(self)]) + "\n"


#: The name of each array library in a file, its import, and an expression for a mask that hides nothing.
_LIBRARIES: Final = {
    "torch": ("torch", "import torch", "query.new_ones({shape}).bool()"),
    "numpy": ("np", "import numpy as np", "np.ones(({shape}), dtype=bool)"),
    "jax": ("jnp", "import jax.numpy as jnp", "jnp.ones(({shape}), dtype=bool)"),
}

#: The conversions that an adapter may need, in the order of the import line.
_LAYOUTS: Final = (
    "additive_mask", "batch_first", "drop_heads", "flatten_heads", "four_axes_mask", "ignore_mask", "is_causal",
    "join_gate_and_up", "join_projections", "key_padding", "leave_out_key_biases", "linear_weight", "map_state",
    "read_lengths", "repeat_key_heads", "require_square_projections", "rotary_tables", "separate_projections",
    "sequence_first", "split_by_head", "split_causal", "stack_heads",
)  # fmt: skip


# The file


def _write_definitions(wiring: Wiring) -> list[str]:
    """Return the lines after the imports: the declarations and the function."""
    arrays, name = wiring.target.arrays, wiring.local_name
    lines = [f"\n{name} = as_module({name})"] if wiring.target.is_plain else []
    lines += ["", f'ARRAYS = "{arrays}"']
    if wiring.declared:
        lines.append(f"CONVENTIONS = {_show_mapping(wiring.declared)}")
    if wiring.dtypes:
        lines.append(f"DTYPES = [{', '.join(map(_quote, wiring.dtypes))}]")
    if wiring.naming.names:
        lines.append(f"NAMES = {_show_mapping(_leave_out_companions(wiring.naming))}")
    return [*lines, "", "", *_write_functions(wiring)]


def _write_functions(wiring: Wiring) -> list[str]:
    """Return the lines of the functions: that of the component, and that of its masks."""
    return [*_write_hide(wiring), f"def {wiring.component}({_write_signature(wiring)}):", *_write_body(wiring)]


def _list_imports(wiring: Wiring) -> list[str]:
    """Return the imports of libraries that the functions need."""
    text = "\n".join(_write_functions(wiring))
    used = [name for name in _LAYOUTS if f"{name}(" in text]
    module, library_line, _ = _LIBRARIES[wiring.target.arrays]
    imports = [library_line] if f"{module}." in text else []
    imports += ["from types import SimpleNamespace"] if "SimpleNamespace(" in text else []
    imports += ["from torch.func import functional_call"] if "functional_call(" in text else []
    imports += _wrap(f"from goldformer.adapters.layouts import ({', '.join(used)})") if used else []
    return imports + (["from goldformer.adapters.inference import as_module"] if wiring.target.is_plain else [])


def _write_target_imports(wiring: Wiring, detour: str) -> tuple[list[str], list[str]]:
    """Return the lines that import the class and what it is built of, as those before and after other imports."""
    target, config = wiring.target, wiring.construction.config
    names = {target.name: wiring.local_name} | {part.name: part.name for part in wiring.construction.list_parts()}
    apart = []
    if config and config.kind not in (SimpleNamespace, dict):
        name = config.kind.__name__
        if target.has(config.kind):
            names[name] = name
        else:
            apart.append(f"from {config.kind.__module__} import {name}")
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


def _leave_out_companions(naming: Naming) -> Names:
    """Return the names without the biases and shifts that `map_state` finds by itself."""
    kept = {}
    for ours, theirs in naming.names.items():
        start, _, last = ours.rpartition(".")
        first = "gamma" if last == "beta" else f"w{last[1:]}"
        of_weight = naming.names.get(f"{start}.{first}" if start else first)
        follows = isinstance(of_weight, str) and of_weight.endswith("weight") and last[:2] in ("b_", "be")
        if not (follows and theirs == f"{str(of_weight).removesuffix('weight')}bias"):
            kept[ours] = theirs
    return kept


#: The optional attributes that a target may take, with what an adapter has where a call leaves them out.
_DEFAULTS: Final = {"base": "10000.0", "rotary_width": "None", "pad_id": "None"}


def _quote(value: object) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(map(_quote, value))})"
    return f'"{value}"' if isinstance(value, str) else repr(value)


def _show_mapping(mapping: Mapping[str, object]) -> str:
    items = [f"{_quote(name)}: {_quote(value)}" for name, value in mapping.items()]
    line = f"{{{', '.join(items)}}}"
    return line if len(line) <= _LINE - 10 else "{\n" + "".join(f"    {item},\n" for item in items) + "}"


def _write_signature(wiring: Wiring) -> str:
    contract = wiring.contract
    inputs = [n for n, spec in contract.inputs.items() if not spec.optional]
    inputs += [f"{name}=None" for name in contract.masks]
    taken = {*wiring.construction.sizes.values(), *wiring.arguments.attributes.values()}
    keywords = [n for n, spec in contract.attributes.items() if not spec.optional]
    taken |= {"base"} if wiring.arguments.tables else set()
    keywords += [f"{n}={default}" for n, default in _DEFAULTS.items() if n in taken]
    keywords += ["params"] if contract.takes_params else []
    return ", ".join([*inputs, *(["*"] if keywords else []), *keywords])


def _write_body(wiring: Wiring) -> list[str]:
    lines = [*_write_refusals(wiring), *_write_causal(wiring), *_write_masks_of_ids(wiring)]
    call = _write_call(wiring)
    if wiring.target.is_class:
        lines += _write_module(wiring)
    lines += _write_return(wiring, call)
    return [f"    {line}" for long in lines for line in _wrap(long)]


def _wrap(line: str) -> list[str]:
    """Return a call or an import in lines of one name each if it is too long for one."""
    if len(line) <= _LINE or "(" not in line:
        return [line.replace("import (", "import ").removesuffix(")") if line.startswith("from") else line]
    head, _, rest = line.partition("(")
    inside, _, tail = rest.rpartition(")" if not rest.endswith(".eval()") else ").to(")
    pieces: list[str] = []
    depth = 0
    for piece in inside.split(", "):
        if depth:
            pieces[-1] += f", {piece}"
        else:
            pieces.append(piece)
        depth += sum(piece.count(c) for c in "([") - sum(piece.count(c) for c in ")]")
    closing = f").to({tail}" if rest.endswith(".eval()") else f"){tail}"
    inner = [line for piece in pieces for line in _wrap(f"{piece},")]
    return [f"{head}(", *(f"    {line}" for line in inner), closing]


def _refuse(condition: str, why: str) -> list[str]:
    return [f"if {condition}:", f'    raise NotImplementedError("{why}")']


def _write_refusals(wiring: Wiring) -> list[str]:
    """Return the lines that refuse what the target does not have."""
    name, inputs, lines = wiring.target.name, wiring.arguments.inputs, []
    if wiring.axes:
        first = next(iter(wiring.contract.inputs))
        lines += _refuse(f"{first}.ndim != {wiring.axes}", f"{name} takes arrays of {wiring.axes} axes")
    if "value" in wiring.contract.inputs and "value" not in inputs.values():
        same = "key.shape != value.shape or key.requires_grad or value.requires_grad or not bool((key == value).all())"
        lines += _refuse(same, f"{name} reads keys and values from one input")
    for mask, query, key in list_masks(wiring):
        takes_none = mask not in _list_taken(wiring) or wiring.mask.shape in ("absent", "causal")
        if wiring.arguments.switch and mask != "memory_mask":
            lines.append(_write_switch(mask, query, key))
            why = f"{name} takes no mask but the causal one of as many queries as keys"
            refusal = _refuse(f"{mask} is not None and not causal", why)
            lines += refusal if takes_none else [f"{mask} = None if causal else {mask}"]
        elif wiring.mask.shape == "causal" and mask != "memory_mask":
            test = f"not is_causal({mask}, q_seq={query}.shape[-2], kv_seq={key}.shape[-2])"
            lines += _refuse(test, f"{name} always hides the future")
        elif takes_none:
            lines += _refuse(f"{mask} is not None", f"{name} takes no such mask")
    return lines


def _write_switch(mask: str, query: str, key: str) -> str:
    """Return the line that says if the switch replaces the mask, which is causal then.

    With fewer queries than keys, code differs in which keys the first query sees.
    """
    causal = f"is_causal({mask}, q_seq={query}.shape[-2], kv_seq={key}.shape[-2])"
    square = f"{query}.shape[-2] == {key}.shape[-2] and " if query != key else ""
    return f"causal = {mask} is not None and {square}{causal}"


def _list_taken(wiring: Wiring) -> set[str]:
    """Return our masks that the call takes in the form of the wiring."""
    arguments = wiring.arguments
    return {*arguments.masks, *(arguments.paddings if wiring.mask.is_split else ())}


def list_masks(wiring: Wiring) -> list[tuple[str, str, str]]:
    """Return our masks, each with the inputs that its queries and its keys come from."""
    optional = wiring.contract.masks
    if "query" in wiring.contract.inputs:
        return [(name, "query", "key") for name in optional]
    return [(name, "x", "memory" if name == "memory_mask" else "x") for name in optional]


def switches_mask(wiring: Wiring, inputs: Mapping[str, Array]) -> bool:
    """Return True if the adapter of a wiring sets the switch of the call in the place of a mask of these inputs."""
    switched = (names for names in list_masks(wiring) if names[0] != "memory_mask")
    mask, queries, keys = (inputs.get(name) for name in next(switched))
    if mask is None or queries is None or keys is None or queries.shape[-2] != keys.shape[-2]:
        return False
    return is_causal(mask, q_seq=queries.shape[-2], kv_seq=keys.shape[-2])


def _write_masks_of_ids(wiring: Wiring) -> list[str]:
    """Return the lines that make the masks of a model that takes them."""
    if "source" not in wiring.contract.inputs or not wiring.arguments.masks:
        if _has_pad(wiring) and not wiring.arguments.pad and not wiring.construction.has("pad"):
            return [*_refuse("pad_id != 0", f"{wiring.target.name} pads with id 0")]
        return []
    axes = ":, None, :" if wiring.mask.shape == "no_heads" else ":, None, None, :"
    lines = [f"memory_mask = {_turn(wiring, f'(source != pad_id)[{axes}]', _TABLE)}"]
    if "self_mask" in wiring.arguments.masks:
        causal = "torch.ones(target.shape[1], target.shape[1], dtype=torch.bool, device=target.device).tril()"
        lines += [f"causal = {causal}"]
        lines += [f"self_mask = {_turn(wiring, f'(target != pad_id)[{axes}] & causal', _TABLE)}"]
    return lines


def _write_causal(wiring: Wiring) -> list[str]:
    """Return the lines that hide later tokens of a layer that takes a mask: its model makes such a mask (BLOCK-4)."""
    if wiring.component != "decoder_only_layer" or not wiring.arguments.masks:
        return []
    return [
        "causal = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).tril()",
        "mask = causal if mask is None else mask & causal",
    ]


def _has_pad(wiring: Wiring) -> bool:
    pad = wiring.contract.attributes.get("pad_id")
    return pad is not None and not pad.optional


def _turn(wiring: Wiring, mask: str, like: str) -> str:
    """Return the expression of a mask with the target's meaning of True."""
    if wiring.mask.polarity == "added":
        return f"additive_mask({mask}, {like}.dtype)"
    return f"ignore_mask({mask})" if wiring.mask.polarity == "ignore" else mask


#: The sizes of a call, as the functions of layouts take them: for masks of keys, and for all others.
_KEYS: Final = "batch=query.shape[0], kv_seq=key.shape[1]"
_SIZES: Final = "batch=query.shape[0], q_seq=query.shape[1], kv_seq=key.shape[1]"


def _write_hide(wiring: Wiring) -> list[str]:
    """Return the function that turns our masks into those of the target."""
    form = wiring.mask
    if (
        form == MaskForm("any")
        or form.shape in ("absent", "causal")
        or "source" in wiring.contract.inputs
        or not wiring.arguments.all_masks
    ):
        return []
    heads = ", num_heads" if _reads_heads(wiring) else ""
    body = _write_two_masks(wiring) if form.is_split else _write_one_mask(wiring)
    return [f"def hide(mask, query, key{heads}):", *(f"    {line}" for line in body), "", ""]


def _write_one_mask(wiring: Wiring) -> list[str]:
    """Return the lines that turn a mask into one of the target's form."""
    name, form, missing = wiring.target.name, wiring.mask, "mask is None"
    library, _, whole = _LIBRARIES[wiring.target.arrays]
    shape = "1, 1, 1, key.shape[1]" if has_batch_axis(wiring.contract) else "1, key.shape[-2]"
    steps = {
        "any": [], "four_axes": ["mask = four_axes_mask(mask)"],
        "whole": [f"mask = {library}.broadcast_to(mask, {_write_whole(wiring.contract)})"],
        "flat": [f"mask = flatten_heads(mask, heads=num_heads, {_SIZES})"],
        "no_heads": [f"mask = drop_heads(mask, {_SIZES})", *_refuse(missing, f"{name} takes one mask for all heads")],
        "keys": [f"mask = key_padding(mask, {_KEYS})", *_refuse(missing, f"{name} takes a mask of the keys only")],
        "lengths": [
            f"mask = read_lengths(mask, {_KEYS})",
            *_refuse(missing, f"{name} takes the number of keys of each sample"),
        ],
        "causal_keys": [
            f"split = split_causal(mask, {_SIZES})",
            *_refuse("split is None", f"{name} takes a mask of the keys only, and hides the future itself"),
            "mask, _ = split",
        ],
    }[form.shape]  # fmt: skip
    return [
        f'"""Return a mask in the form that {name} takes."""',
        "if mask is None:",
        f"    mask = {whole.format(shape=shape)}" if form.always else "    return None",
        *steps,
        f"return {_turn(wiring, 'mask', 'query')}",
    ]


def _write_two_masks(wiring: Wiring) -> list[str]:
    """Return the lines that turn a mask into one of keys and one of positions."""
    name, form = wiring.target.name, wiring.mask
    flat = _turn(wiring, "mask", "query")
    padded = _turn(replace(wiring, mask=MaskForm(polarity=form.padding_polarity)), "padding", "query")
    lines = [
        f'"""Return a mask as a mask of keys and one of positions, which {name} takes."""',
        "if mask is None:",
        "    return None, None",
        f"padding = key_padding(mask, {_KEYS})",
        "if padding is not None:",
        f"    return {padded}, None",
    ]
    if form.shape == "split":
        return [*lines, f"mask = flatten_heads(mask, heads=num_heads, {_SIZES})", f"return None, {flat}"]
    return [
        *lines,
        "if mask.ndim == 2:",
        f"    return None, {flat}",
        f"split = split_causal(mask, {_SIZES})",
        *_refuse("split is None", f"{name} takes a mask of keys, and one of (q_seq, kv_seq)"),
        "padding, is_causal = split",
        "mask = torch.ones(query.shape[1], key.shape[1], dtype=torch.bool, device=query.device).tril()",
        f"return {padded}, {flat} if is_causal else None",
    ]


def _write_whole(contract: Contract) -> str:
    """Return the shape of a mask that has an element for every score."""
    if has_batch_axis(contract):
        return "(query.shape[0], num_heads, query.shape[1], key.shape[1])"
    return "(*query.shape[:-1], key.shape[-2])"


def _reads_heads(wiring: Wiring) -> bool:
    """Return True if the form of a mask depends on the number of heads."""
    form = wiring.mask
    return form.shape == "flat" or form.is_split or (form.shape == "whole" and has_batch_axis(wiring.contract))


def _write_call(wiring: Wiring) -> str:
    """Return the arguments of the call, as "query=query, mask=hide(…)"."""
    turn = "sequence_first({})" if wiring.sequence_first else "{}"
    given = {theirs: turn.format(ours) for theirs, ours in wiring.arguments.inputs.items()}
    if wiring.returns == "of_ids":
        given = {theirs: f"torch.ones_like({ours}[..., 0], dtype=torch.long)" for theirs, ours in given.items()}
    masks, form = wiring.arguments.masks, wiring.mask
    if "source" in wiring.contract.inputs:
        given |= {theirs: ours for ours, theirs in masks.items()}
    elif form.is_split:
        given |= {theirs: _name_split(wiring, ours)[0] for ours, theirs in wiring.arguments.paddings.items()}
        given |= {theirs: _name_split(wiring, ours)[1] for ours, theirs in masks.items()}
    elif form.shape not in ("absent", "causal"):
        heads = ", num_heads" if _reads_heads(wiring) else ""
        mask_calls = {
            ours: ours if form == MaskForm("any") else f"hide({ours}, {query}, {key}{heads})"
            for ours, query, key in list_masks(wiring)
        }
        given |= {theirs: mask_calls[ours] for ours, theirs in masks.items()}
    required = {a.name for a in wiring.target.list_arguments() if a.is_required}
    given |= {theirs: "None" for theirs in wiring.arguments.all_masks if theirs in required and theirs not in given}
    if wiring.arguments.pad:
        given[wiring.arguments.pad] = "pad_id"
    given |= dict.fromkeys(wiring.arguments.caches, "None")
    given |= {name: repr(number) for name, number in wiring.arguments.constants.items()}
    given |= _write_tables(wiring)
    given |= {theirs: _write_size(wiring, ours) for theirs, ours in wiring.arguments.attributes.items()}
    given |= {wiring.arguments.switch: "causal"} if wiring.arguments.switch else {}
    return ", ".join(f"{theirs}={ours}" for theirs, ours in given.items())


def _write_tables(wiring: Wiring) -> dict[str, str]:
    """Return the expressions of the rotary tables, and of the positions of which a layer makes its own."""
    arguments, form = wiring.arguments, wiring.arguments.table_form
    positions = "torch.arange(x.shape[1], device=x.device)"
    given = {name: f"{positions}[None]" if rows else positions for name, rows in arguments.places.items()}
    width = 'params["w_q"].shape[1] // num_heads'
    tables = f'rotary_tables(x, {width}, base, "{form.columns}", axes={form.axes})' if form else ""
    indices = ("", "") if len(arguments.tables) == 1 else ("[0]", "[1]")
    return given | {name: f"{tables}{index}" for name, index in zip(arguments.tables, indices, strict=False)}


def _name_split(wiring: Wiring, mask: str) -> tuple[str, str]:
    """Return the names of the two masks that one of ours becomes: of keys, and of positions."""
    start = mask.removesuffix("mask") if len(list_masks(wiring)) > 1 else ""
    return f"{start}padding", f"{start}positions"


def _write_module(wiring: Wiring) -> list[str]:
    """Return the lines that build the module and give it the parameters of the call."""
    naming, like = wiring.naming, _find_like(wiring)
    lines = []
    if wiring.component == "fused_multi_head_attention":
        lines.append("params = separate_projections(params, num_heads)")
    if "b_q" in _list_lasts(wiring) and "b_k" not in _list_lasts(wiring):
        lines.append("params = leave_out_key_biases(params)")
    groups = "num_kv_heads" in wiring.contract.attributes
    if groups and not wiring.construction.has("kv_heads"):
        lines.append("params = repeat_key_heads(params, num_heads, num_kv_heads)")
    if _has_one_width(wiring):
        shared = ', ("w_q", "w_o")' if groups else ""
        lines.append(f"require_square_projections(params{shared})")
    built = _write_building(wiring, wiring.local_name, wiring.construction)
    lines += [*_write_size_refusals(wiring), f"module = {built}.to({like}).eval()"]
    if naming.order:
        form = ", per_head=True" if naming.per_head else ""
        lines.append(f'params = join_projections(params, num_heads, "{naming.order}"{form})')
    if naming.branches:
        form = ", interleaved=True" if naming.in_turn else ""
        lines.append(f'params = join_gate_and_up(params, "{naming.branches}"{form})')
    if naming.head_list:
        lines.append("params = split_by_head(params, num_heads)")
    if naming.stacked:
        if naming.flat_output:
            lines.append('outputs = {name: w for name, w in params.items() if name.endswith("w_o")}')
        also = " | outputs" if naming.flat_output else ""
        lines.append(f"params = stack_heads(params, num_heads){also}")
    if naming.turned:
        lines.append("params = {name: linear_weight(w) if w.ndim == 2 else w for name, w in params.items()}")
    if naming.names:
        kept = ", transpose=False" if naming.turned else ""
        sizes = "take" if _fixes_inner_width(wiring) else "skip"
        lines.append(f'state = map_state(NAMES, params, module{kept}, other_sizes="{sizes}")')
    return lines


def _write_building(wiring: Wiring, name: str, construction: Construction) -> str:
    """Return the call of a constructor, with the calls that build the modules which it takes."""
    arguments = {name: _write_size(wiring, role) for name, role in construction.sizes.items()}
    arguments |= {
        name: _write_building(wiring, part.target.name, part.construction) for name, part in construction.parts.items()
    }
    arguments |= {name: _write_constant(wiring, name, value) for name, value in construction.constants.items()}
    given = ", ".join(f"{name}={value}" for name, value in arguments.items())
    if config := construction.config:
        held = f"{config.kind.__name__}({given})"
        beside = [f"{argument}={_write_constant(wiring, argument, value)}" for argument, value in config.others.items()]
        given = ", ".join([f"{config.argument}={held}", *beside]) if beside else held
    return f"{name}({given})"


def _write_constant(wiring: Wiring, name: str, value: object) -> str:
    """Return the expression of an argument that is no size; tables belong on the device of the call."""
    return f"{_find_like(wiring)}.device" if is_device(name) else _quote(value)


def _list_lasts(wiring: Wiring) -> set[str]:
    """Return the last words of our names of its parameters."""
    return {name.rpartition(".")[2] for name in wiring.naming.names}


def _fixes_inner_width(wiring: Wiring) -> bool:
    """Return True if the width inside is a multiple of the model's; nn.Linear does not need that."""
    return bool({"w_1", "w_down"} & {*_list_lasts(wiring)}) and not wiring.construction.has("inner")


def _write_size_refusals(wiring: Wiring) -> list[str]:
    """Return the lines that refuse sizes which the constructor cannot be asked for."""
    lines: list[str] = []
    if "layers" in wiring.construction.sizes.values() and "source" in wiring.contract.inputs:
        lines += _refuse("num_encoder_layers != num_decoder_layers", "both stacks have as many layers")
    return lines


def _has_one_width(wiring: Wiring) -> bool:
    """Return True if the heads share the width of the model, so that all projections are square."""
    has_heads = "num_heads" in wiring.contract.attributes
    return has_heads and not wiring.construction.has("head_width", "input_width")


def _find_like(wiring: Wiring) -> str:
    """Return the array whose dtype and device the module gets."""
    first = next(iter(wiring.contract.inputs))
    return _TABLE if wiring.contract.inputs[first].kind == "ids" else first


def _write_size(wiring: Wiring, role: str) -> str:
    """Return the expression of a size of the call."""
    component, first = wiring.component, next(iter(wiring.contract.inputs))
    prefix = {"encoder_layer": "feed_forward.", "decoder_layer": "feed_forward.", "feed_forward": ""}
    stack = {"encoder": "encoder.0.feed_forward.", "transformer": "encoder.0.feed_forward."}
    gated = {"gated_feed_forward": "", "decoder_only_layer": "feed_forward.", "decoder_only_model": _FIRST_NETWORK}
    start = (prefix | stack | gated).get(component, "decoder.0.feed_forward.")
    inner = f'params["{start}{"w_gate" if component in gated else "w_1"}"].shape[1]'
    projections = start.replace("feed_forward", "self_attention") if "w_1" in _list_lasts(wiring) else ""
    projections = start.removesuffix("feed_forward.") if component in gated else projections
    of_ids = wiring.contract.inputs[first].kind == "ids"
    width = 'params["table"].shape[1]' if of_ids else f"{first}.shape[-1]"
    lengths = {"transformer": "max(source.shape[1], target.shape[1])", "rotary_embedding": "int(positions.max()) + 1"}
    length = lengths.get(component, f"{first}.shape[1]")
    if role == "width" and wiring.construction.has("input_width"):
        width = 'params["w_o"].shape[0]'
    if "position_table" in wiring.naming.names:
        length = 'params["position_table"].shape[0]'
    layers = "num_encoder_layers" if component == "transformer" else "num_layers"
    return {
        "width": width, "input_width": f"{first}.shape[-1]", "heads": "num_heads", "kv_heads": "num_kv_heads",
        "head_width": f'params["{projections}w_q"].shape[1] // num_heads' if wiring.contract.params else width,
        "value_width": f'params["{projections}w_v"].shape[1] // num_heads',
        "width_by_heads": f"{width} // num_heads", "width_of_heads": width, "word_width": width,
        "temperature": f"{width} ** 0.5", "inner": inner, "expansion": "1", "positions": length, "pad": "pad_id",
        "vocab": 'params["table"].shape[0]', "source_vocab": 'params["table"].shape[0]',
        "target_vocab": 'params["table"].shape[0]', "layers": layers, "encoder_layers": "num_encoder_layers",
        "decoder_layers": "num_decoder_layers",
        "pad_id": "None if pad_id is None else ids != pad_id",
        "base": "base", "rotary_width": f"{width} if rotary_width is None else rotary_width",
    }[role]  # fmt: skip


def _write_return(wiring: Wiring, call: str) -> list[str]:
    lines = []
    for mask, query, key in list_masks(wiring) if wiring.mask.is_split else ():
        padding, positions = _name_split(wiring, mask)
        lines.append(f"{padding}, {positions} = hide({mask}, {query}, {key}, num_heads)")
        if mask not in wiring.arguments.masks:
            why = f"{wiring.target.name} takes a mask of keys for its {mask}"
            lines += _refuse(f"{positions} is not None", why)
    if not wiring.target.is_class:
        called = f"{wiring.local_name}({call})"
    elif wiring.naming.names:
        lines.append(f"inputs = dict({call})")
        called = "functional_call(module, state, (), inputs, strict=True)"
    else:
        called = f"module({call})"
    turn = "batch_first({})" if wiring.sequence_first else "{}"
    if wiring.returns == "pair":
        output = turn.format("output")
        return [*lines, f"output, weights = {called}", f'return {{"output": {output}, "weights": weights}}']
    if wiring.returns == "first":
        return [*lines, f"output, *_ = {called}", f"return {turn.format('output')}"]
    if wiring.returns == "flat":
        called = f"({called}).unflatten(0, target.shape)"
    added = f"{next(iter(wiring.contract.inputs))} + " if wiring.returns in ("addend", "of_ids") else ""
    return [*lines, f"return {added}{turn.format(called)}"]


# What was chosen, in words


def _describe_part(part: Part) -> str:
    """Return the call that builds a ready module, with words for its sizes."""
    construction = part.construction
    given = [f"{name}={role.replace('_', ' ')}" for name, role in construction.sizes.items()]
    given += [f"{name}={_describe_part(inner)}" for name, inner in construction.parts.items()]
    return f"{part.target.name}({', '.join(given)})"


def _describe_tables(wiring: Wiring) -> dict[str, str]:
    """Return what the arguments for rotary positions take, in words."""
    arguments, form = wiring.arguments, wiring.arguments.table_form
    words = {
        "turns": "complex turns", "halves": "cosines and sines of each pair", "stacked": "cosine and sine of each pair",
        "doubled": "cosines and sines, the halves twice", "in_turn": "cosines and sines, each pair twice",
    }  # fmt: skip
    said = (
        f"rotary tables, {words[form.columns]}" + (f", {form.axes} axes" if form.axes > _TABLE_AXES else "")
        if form
        else ""
    )
    return dict.fromkeys(arguments.places, "positions from 0 on") | dict.fromkeys(arguments.tables, said)


def _describe_layout(wiring: Wiring) -> list[str]:
    naming, facts = wiring.naming, []
    if naming.order:
        form = "head by head" if naming.per_head else "whole blocks"
        facts.append(f"fused projection: {', '.join(naming.order)}, {form}")
    if naming.branches:
        first, second = naming.branches.split("_")
        form = "columns in turn" if naming.in_turn else "whole blocks"
        facts.append(f"fused projection: {first}, {second}, {form}")
    if naming.head_list:
        facts.append("each head has weights of its own")
    if naming.stacked:
        facts.append("its projections have an axis for the heads")
    if naming.turned:
        facts.append("its own matrices are (out, in)")
    if wiring.sequence_first:
        facts.append("sequence first: (seq, batch, …)")
    if wiring.returns in ("addend", "of_ids"):
        facts.append("its result is added to x")
    if wiring.returns == "of_ids":
        facts.append("it takes ids, of which it reads the shape")
    if wiring.returns == "flat":
        facts.append("its logits are (batch·seq, vocab)")
    if wiring.axes:
        facts.append(f"arrays of {wiring.axes} axes")
    if wiring.dtypes:
        facts.append(f"it works in {', '.join(wiring.dtypes)}, not in float64")
    return facts


def _describe_mask(wiring: Wiring) -> list[str]:
    form, switch = wiring.mask, wiring.arguments.switch
    switched = [f"{switch} of the call: True where the mask is causal, with as many queries as keys"] if switch else []
    if form.shape == "causal":
        return ["mask: none, it always hides the future"]
    if form.shape == "absent" or not wiring.arguments.all_masks:
        return switched
    shapes = {
        "any": "as it comes", "four_axes": "(batch, heads, q_seq, kv_seq)",
        "whole": "of the size of the scores", "flat": "(batch·heads, q_seq, kv_seq)",
        "no_heads": "(batch, q_seq, kv_seq)", "keys": "(batch, kv_seq)", "lengths": "(batch,), numbers of keys",
        "causal_keys": "(batch, kv_seq), next to the causal one that it makes itself",
        "split": "one of keys and one of positions", "split_rows": "one of keys and one of (q_seq, kv_seq)",
    }  # fmt: skip
    meaning = {"keep": "True = may attend", "ignore": "True = ignore", "added": "added to the scores"}[form.polarity]
    text = shapes[form.shape] if form.shape == "lengths" else f"{shapes[form.shape]}, {meaning}"
    unused = [] if form.is_split else wiring.arguments.paddings.values()
    unread = [f"{name} of the call: not used, all masks go to the other argument" for name in unused]
    return [f"mask: {text}", *switched, *unread]
