"""The arguments of a call: which input each one takes, and the form in which masks come."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import permutations
from typing import Any, Final, Literal

from goldformer.adapters.inference.names import ARGUMENTS, SIZES, list_roles, says, split_words
from goldformer.adapters.inference.target import Argument, Target
from goldformer.spec import Contract

#: The shapes in which a mask is passed on, those that hold most masks first.
MaskShape = Literal[
    "any",
    "four_axes",
    "whole",
    "flat",
    "no_heads",
    "split",
    "split_rows",
    "keys",
    "causal_keys",
    "lengths",
    "absent",
    "causal",
]
Polarity = Literal["keep", "ignore", "added"]


@dataclass(frozen=True, slots=True)
class MaskForm:
    """The form of the masks: their shape, what True means, and whether the call needs one always."""

    shape: MaskShape = "absent"
    polarity: Polarity = "keep"
    always: bool = False

    @property
    def is_split(self) -> bool:
        """Return True if padded keys and positions come as two masks."""
        return self.shape in ("split", "split_rows")

    @property
    def padding_polarity(self) -> Polarity:
        """The meaning of True in a mask of padded keys next to this one: such a mask is never added."""
        return "ignore" if self.polarity == "added" else self.polarity


@dataclass(frozen=True, slots=True)
class TableForm:
    """The form of the rotary tables that a call takes, as `rotary_tables` of the layouts makes them."""

    columns: str
    axes: int = 2


@dataclass(frozen=True, slots=True)
class ForwardArguments:
    """The role of each argument of a call: one of ours, which is a string, or a constant such as an eps.

    A role is an input, a parameter of a function, a mask, an attribute of the contract, or one of these:
    "self_mask_of_keys" for the padded keys of a mask that have an argument of their own, "is_causal" for a boolean that
    hides later tokens in the place of a mask, "words" for a mask of words made of pad_id, "rotary_cosines",
    "rotary_sines" and "rotary" for the tables that a model makes for its layers, "positions_of_tokens" or
    "positions_of_batch" for their positions, "start" for the number of tokens that came before, and "cache" for what
    earlier calls returned. An empty cache is None.
    """

    call: Mapping[str, Any]
    table_form: TableForm | None = None

    @property
    def masks(self) -> dict[str, str]:
        """Their arguments by our masks."""
        return {role: name for name, role in self.call.items() if isinstance(role, str) and role.endswith("mask")}

    @property
    def paddings(self) -> dict[str, str]:
        """Their arguments of padded keys by our masks."""
        roles = {name: role for name, role in self.call.items() if isinstance(role, str)}
        return {r.removesuffix(OF_KEYS): name for name, r in roles.items() if r.endswith(OF_KEYS)}

    @property
    def switch(self) -> str:
        """Their boolean that hides later tokens, or ""."""
        return next((name for name, role in self.call.items() if role == "is_causal"), "")

    @property
    def tables(self) -> bool:
        """True if an argument takes rotary tables."""
        return any(str(role).startswith("rotary") and role != "rotary_width" for role in self.call.values())

    @property
    def all_masks(self) -> tuple[str, ...]:
        """Their arguments that are masks."""
        return (*self.masks.values(), *self.paddings.values())

    def leave_out_switch(self) -> ForwardArguments:
        """Return the arguments without the switch."""
        return replace(self, call={name: role for name, role in self.call.items() if name != self.switch})

    def agree(self, other: ForwardArguments) -> ForwardArguments:
        """Return the arguments with the switch and the rotary tables of others."""
        without = self if other.switch else self.leave_out_switch()
        return replace(without, table_form=other.table_form)


#: The end of the role of padded keys.
OF_KEYS: Final = "_of_keys"

#: The roles of arguments that say where a token stands.
_OF_POSITIONS: Final = ("cosines", "sines", "tables", "places")

#: The inputs of a component that are no masks, where two of them may come as one.
_ONE_CONTEXT: Final = ("query", "key")


def list_arguments(target: Target, contract: Contract) -> Iterator[ForwardArguments]:
    """Yield the inputs that the arguments of a call may take, as names say; names that say nothing in every order."""
    given = target.list_arguments()
    takes_masks = "source" in contract.inputs or bool(contract.masks)
    # An argument whose default is True or False is a switch, such as causal_mask=False.
    masks = [a for a in given if takes_masks and _is_mask(a.name, contract) and not a.is_boolean]
    # A model makes its masks of its ids.
    can_switch = takes_masks and "source" not in contract.inputs
    switch = next((a.name for a in given if can_switch and a not in masks and is_causal_switch(a)), "")
    pad = next((a.name for a in given if says(a.name, ARGUMENTS["pad"])), "")
    others: dict[str, Any] = {a.name: None for a in given if a.is_required and says(a.name, ARGUMENTS["cache"])}
    others |= {a.name: a.constant for a in given if a.is_required and type(a.constant) in (int, float)}
    others |= {a.name: role for a in given for role in list_roles(a.name, SIZES) if role in contract.attributes}
    others |= {a.name: "start" for a in given if _is_start(a)}
    tables = _name_tables(given) if contract.component == "decoder_only_layer" else {}
    tables |= {a.name: "positions_of_tokens" for a in given if a.is_required and OF_CALL.fullmatch(a.name.lower())}
    apart = {pad, switch, *others, *tables}
    others |= {pad: "pad_id"} if pad and "pad_id" in contract.attributes else {}
    others |= {switch: "is_causal"} if switch else {}
    # The targets of a language model only make a loss.
    reads_ids = "ids" in contract.inputs
    data = [
        a
        for a in given
        if a not in masks and a.name not in apart and (a.is_required or (_is_input(a) and not reads_ids))
    ]
    says_attention = {"query", "key", "value"} <= {role for a in given for role in list_roles(a.name, ARGUMENTS)[:1]}
    if says_attention and not target.is_class and "query" not in contract.inputs:
        return
    # Rotary tables that a function takes are no positions.
    if not target.is_class and any(says(a.name, ARGUMENTS[role]) for a in given for role in _OF_POSITIONS[:3]):
        return
    wanted = [name for name, spec in contract.inputs.items() if not spec.optional]
    wanted += [] if target.is_class else list(contract.params)
    named = _name_masks(masks, list(contract.masks), contract)
    if named is None:
        return
    if wanted == ["query", "key", "value"] and len(data) == 2:
        wanted = list(_ONE_CONTEXT)
    names = [a.name for a in data]
    own_masks = {theirs: ours for ours, theirs in named[0].items()}
    own_masks |= {theirs: f"{ours}{OF_KEYS}" for ours, theirs in named[1].items()}
    for inputs in _match(names, wanted) if len(data) == len(wanted) else _match_repeated(names, contract):
        roles = {**inputs, **own_masks, **others, **tables}
        in_order = {a.name: roles[a.name] for a in given if a.name in roles}
        yield from (ForwardArguments(in_order, form) for form in _list_table_forms([*tables.items()]))


#: The names of the positions of the tokens of a call, which only code with a cache takes.
OF_CALL: Final = re.compile(r"(input|cache)_?pos(itions?)?")


def _is_start(argument: Argument) -> bool:
    """Return True for the position of the first token of a call, which is 0 where no tokens came before."""
    return says(argument.name, ARGUMENTS["start"]) and (argument.is_required or argument.default == 0)


def _name_tables(given: list[Argument]) -> dict[str, str]:
    """Return the arguments of rotary tables and of their positions, with their roles."""
    named = {role: [a.name for a in given if says(a.name, ARGUMENTS[role])] for role in _OF_POSITIONS}
    pair = [*named["cosines"], *named["sines"]]
    places = {n: f"positions_of_{'batch' if n.endswith(('ids', 'id')) else 'tokens'}" for n in named["places"]}
    if len(pair) == len(_OF_POSITIONS[:2]):
        return dict(zip(pair, ("rotary_cosines", "rotary_sines"), strict=True)) | places
    return dict.fromkeys(named["tables"][:1], "rotary") | places


def _list_table_forms(roles: list[tuple[str, str]]) -> list[TableForm | None]:
    """Return the forms in which rotary tables may come, those first that their names suggest."""
    tables = [name for name, role in roles if role.startswith("rotary")]
    pairs = [TableForm(columns, axes) for columns in ("halves", "doubled", "in_turn") for axes in (2, 3, 4)]
    turns = [TableForm("turns"), TableForm("turns", 4), TableForm("stacked")]
    if len(tables) != 1:
        return [*pairs] if tables else [None]
    return [*turns, *pairs] if "freq" in tables[0].lower() else [*pairs, *turns]


def pass_padding(arguments: ForwardArguments, target: Target, contract: Contract) -> ForwardArguments | None:
    """Return the arguments of a model that reads ids, with its mask of words made of pad_id; None if it takes none."""
    if "ids" not in contract.inputs or "pad_id" not in contract.attributes:
        return None
    names = [a.name for a in target.list_arguments() if says(a.name, ARGUMENTS["mask"]) and a.default is None]
    return replace(arguments, call={**arguments.call, names[0]: "words"}) if len(names) == 1 else None


def list_forms(arguments: ForwardArguments, contract: Contract, target: Target) -> Iterator[MaskForm]:
    """Yield the forms in which the masks of a call may come, those that hold most masks first."""
    if not arguments.all_masks:
        if may_hide_future(target, arguments, contract):
            yield MaskForm("causal")
        return
    polarities: tuple[Polarity, ...] = ("keep", "ignore", "added")
    if arguments.paddings and arguments.masks.keys() <= arguments.paddings.keys():
        yield from (MaskForm("split", polarity) for polarity in polarities)
        yield from (MaskForm("split_rows", polarity) for polarity in polarities)
    if not arguments.paddings.keys() <= arguments.masks.keys():
        return
    has_axes = has_batch_axis(contract)
    shapes: tuple[MaskShape, ...] = ("any", "whole")
    if has_axes:
        shapes = ("any", "four_axes", "whole", "flat", "no_heads", "keys")
    if "source" in contract.inputs:
        shapes = ("four_axes", "no_heads")
    for shape in shapes:
        yield from (MaskForm(shape, polarity) for polarity in polarities)
    if any("len" in name.lower() for name in arguments.masks.values()):
        yield MaskForm("lengths")


def may_hide_future(target: Target, arguments: ForwardArguments, contract: Contract) -> bool:
    """Return True if the code of a target says something of a causal mask, and no argument switches it off."""
    takes_masks = "later_tokens" in contract.conventions and not arguments.switch
    return takes_masks and re.search("tril|triu|causal|arange", target.text) is not None


def makes_causal_mask(target: Target, contract: Contract) -> bool:
    """Return True if the code of a target makes a causal mask and decides nothing: it means every call to be causal.

    With any condition, the mask may belong to another use of the class; tril and triu together leave a band.
    """
    if "later_tokens" not in contract.conventions:
        return False
    nodes = target.list_nodes()
    called = _list_called(nodes)
    run = [
        n for n in nodes if isinstance(n, ast.FunctionDef) and n.name in {"__init__", "__call__", "forward", *called}
    ]
    made = {name for function in run for name in _list_called(ast.walk(function)) if name in ("tril", "triu")}
    return len(made) == 1 and not any(isinstance(node, ast.If | ast.IfExp) for node in nodes)


def _list_called(nodes: Iterable[ast.AST]) -> set[str]:
    """Return the names of what is called, without the objects that they are attributes of."""
    return {ast.unparse(node.func).rpartition(".")[2] for node in nodes if isinstance(node, ast.Call)}


def is_causal_switch(argument: Argument) -> bool:
    """Return True for a boolean that hides later tokens, such as is_causal=False or a required `causal`."""
    says_boolean = argument.is_boolean or (argument.is_required and argument.name in ("causal", "is_causal"))
    return says_boolean and "causal" in split_words(argument.name) and not _is_crossing(argument.name)


def has_batch_axis(contract: Contract) -> bool:
    """Return True if the inputs have one batch axis; False if any axes may come first."""
    return "..." not in str(contract.inputs[next(iter(contract.inputs))].shape)


#: The signs that the sequence comes before the batch: an unpacked shape, a comment, or the library's own flag.
_SEQUENCE_FIRST: Final = re.compile(
    r"\b(\w*(len|length|seq|time)|[lts])\s*,\s*(b|n|bs|bsz|batch|batch_size)\b\s*[,)=]"
    r"|\b(seq\w*|time)\W{1,3}batch\b|batch_first|sequence\W+(comes\W+)?first",
    re.IGNORECASE,
)
#: The signs that True hides a key: the name of the mask, a comment, or the library's own argument. "True = attend,
#: False = ignore" and "True where not padded" say the opposite.
_IGNORE_NAME: Final = re.compile(r"pad|ignore|attn_mask|hid|exclu|invalid|block", re.IGNORECASE)
_IGNORE_TEXT: Final = re.compile(
    r"attn_mask=|true\W+(means|is|=|where|for|marks)"
    r"((?!\bno[nt]?\b|\bun|keep|kept|attend|visible|allow|valid|false)[^.,;\n])*?(hid|ignor|pad|mask|block|exclu)",
    re.IGNORECASE,
)


def says_sequence_first(target: Target) -> bool:
    """Return True if the code of a target says that its arrays are (seq, batch, …)."""
    return _SEQUENCE_FIRST.search(target.text) is not None


def says_ignore(target: Target, arguments: ForwardArguments) -> bool:
    """Return True if a mask's name, or the code of a target, says that True hides a key."""
    named = any(_IGNORE_NAME.search(name) for name in arguments.all_masks)
    return named or _IGNORE_TEXT.search(target.text) is not None


def _is_mask(name: str, contract: Contract) -> bool:
    """Return True if a name says a mask; `m` does where no other input, such as a memory, begins with that letter."""
    return says(name, ARGUMENTS["mask"]) or (says(name, "m") and not {"memory", "source"} & contract.inputs.keys())


def _is_crossing(name: str) -> bool:
    """Return True if the name of a mask says that it is one of the memory."""
    return re.search("src|source|enc|mem|cross|context", name.lower()) is not None


def _is_input(argument: Argument) -> bool:
    """Return True for an argument that is an input although it has a default, such as context=None."""
    return argument.default is None and bool({*list_roles(argument.name, ARGUMENTS)} - {"mask", "pad", "cache"})


def _match(names: list[str], wanted: list[str]) -> Iterator[dict[str, str]]:
    """Yield the input of each argument: as names say, else in order, else in any order."""
    roles = {name: _read_role(name, wanted) for name in names}
    if len({*roles.values()} - {None}) == len(names):
        yield {name: str(role) for name, role in roles.items()}
        return
    for chosen in permutations(wanted):
        pairs = dict(zip(names, chosen, strict=True))
        if all(roles[name] in (None, role) for name, role in pairs.items()):
            yield pairs


def _match_repeated(names: list[str], contract: Contract) -> Iterator[dict[str, str]]:
    """Yield the input of each argument of a layer that is called as an attention is: with query, key and value."""
    roles = {name: next(iter(list_roles(name, ARGUMENTS)), None) for name in names}
    if contract.component == "encoder_layer" and sorted(map(str, roles.values())) == ["key", "query", "value"]:
        yield dict.fromkeys(names, "x")
    if contract.component == "decoder_layer" and {"key", "value"} < set(roles.values()) and len(names) == 3:
        yield {name: "memory" if role in ("key", "value") else "x" for name, role in roles.items()}


def _read_role(name: str, wanted: list[str]) -> str | None:
    """Return the one of the wanted inputs that a name says."""
    roles = list_roles(name, ARGUMENTS)
    if wanted == list(_ONE_CONTEXT):
        return "key" if {"memory", "key", "value"} & {*roles} else "query" if "query" in roles else None
    if "source" in wanted:
        return "source" if "memory" in roles else "target" if "target" in roles else None
    return next((role for role in roles if role in wanted), None)


#: The masks of a call by ours: their arguments, and those that take only padded keys.
_Masks = tuple[Mapping[str, str], Mapping[str, str]]


def _name_masks(masks: list[Argument], wanted: list[str], contract: Contract) -> _Masks | None:
    """Return their arguments for each of our masks; None if there are more than we have."""
    names = [a.name for a in masks]
    if "source" in contract.inputs:
        wanted = ["self_mask", "memory_mask"]  # a model's own, made of its ids
    if not names or not wanted or len(names) > 2 * len(wanted):
        return None if names else ({}, {})
    if len(wanted) == 1:
        # Next to a mask, a bias is another thing, and has a default.
        plain = [a.name for a in masks if a.is_required or "bias" not in split_words(a.name)]
        names = plain or names
        return _group_masks({wanted[0]: names})
    crossing = [name for name in names if _is_crossing(name)]
    if len(names) == 1:
        return {wanted[bool(crossing)]: names[0]}, {}
    if len(names) == 2:
        ranked = sorted(names, key=lambda name: name in crossing) if len(crossing) == 1 else names
        return dict(zip(wanted, ranked, strict=True)), {}
    # Padded keys have an argument of their own; a model makes its masks of ids, and needs none.
    own = [name for name in names if name not in crossing]
    return None if "source" in contract.inputs else _group_masks({wanted[0]: own, wanted[1]: crossing})


def _group_masks(groups: Mapping[str, list[str]]) -> _Masks | None:
    """Return the arguments of each of our masks, one of which may take padded keys; None if two take the same."""
    whole: dict[str, str] = {}
    paddings: dict[str, str] = {}
    for ours, names in groups.items():
        padding = [name for name in names if "pad" in name.lower()] if len(groups) > 1 or len(names) > 1 else []
        others = [name for name in names if name not in padding]
        if len(padding) > 1 or len(others) > 1:
            return None
        if padding:
            paddings[ours] = padding[0]
        if others:
            whole[ours] = others[0]
    fits = whole.keys() <= paddings.keys() or paddings.keys() <= whole.keys()
    return (whole, paddings) if fits else None
