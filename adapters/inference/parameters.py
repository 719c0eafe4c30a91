"""The parameters of a module by our names: the contract gives their shapes, names decide, only the rest is permuted."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import permutations, product
from typing import Any, Final, Literal

import numpy as np

from goldformer.adapters.inference.names import GAIN, SHIFT, find_part, find_projection, says, split_words
from goldformer.adapters.inference.target import PROBE, Construction, Leaf
from goldformer.adapters.layouts import Names, join_gate_and_up, join_projections, split_by_head, stack_heads
from goldformer.spec import Contract, load_spec

_ORDERS: Final = ("qkv", "kqv", "qvk", "kvq", "vqk", "vkq")

#: Our parameters by name as arrays, of which only the shapes count.
_Arrays = Mapping[str, Any]

#: The parts of a layer that a name may say, by the blocks of the contracts; the attention of some stands in the layer.
_PARTS: Final = {"": "self", "self_attention": "self", "cross_attention": "cross", "feed_forward": "feed"}

#: The sizes of tables.
_ENDS: Final = ("vocab", "positions")

#: The parameters of a layer that inference does not look for.
_LEFT_OUT: Final = re.compile(r"gamma_[qk]$|post_norm_")


@dataclass(frozen=True, slots=True)
class Naming:
    """Our names for the parameters of a module, and what must be done with ours before they fit.

    `order` is the order of a fused projection, such as "qkv" or "kv", `per_head` says that it goes head by head.
    `head_list` is True if each head has weights of its own, `stacked` if projections have an axis for the heads,
    `flat_output` if the last one has none all the same.
    `branches` is the order of gate and up in one matrix, "gate_up" or "up_gate"; `in_turn` says that their columns
    alternate.
    `turned` is True if the class multiplies by x·Wᵀ with matrices that it made itself.
    """

    names: Names
    order: str = ""
    per_head: bool = False
    branches: Literal["", "gate_up", "up_gate"] = ""
    in_turn: bool = False
    head_list: bool = False
    stacked: bool = False
    flat_output: bool = False
    turned: bool = False
    conventions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Scope:
    """Our parameters of a layer, of a component without layers, or of a model outside of its layers.

    `blocks` are the shapes of matrices by block and by their names in it, `norms` the starts of the names of gains, and
    of shifts if the norms have any.
    """

    blocks: Mapping[str, Mapping[str, tuple[int, ...]]]
    norms: Sequence[str]
    has_shifts: bool

    @classmethod
    def of(cls, shapes: Mapping[str, tuple[int, ...]]) -> _Scope:
        """Return the scope of parameters with these names and shapes."""
        blocks: dict[str, dict[str, tuple[int, ...]]] = {}
        for name, shape in shapes.items():
            if matrix := re.fullmatch(r"(.*?)((?:heads\.\*\.)?w_\w+|table)", name):
                blocks.setdefault(matrix[1], {})[matrix[2]] = shape
        norms = [name.removesuffix("gamma") for name in shapes if name.endswith("gamma")]
        return cls(blocks, norms, any(name.endswith("beta") for name in shapes))


#: A layout in which a module may have its parameters, and our parameters in it by the start of their names: "layers.*."
#: for those of a stack, "" for the others.
_View = tuple[dict[str, Any], dict[str, _Scope]]


def name_parameters(component: str, leaves: Sequence[Leaf], construction: Construction) -> Iterator[Naming]:
    """Yield the namings of all parameters of a module for a component, the likeliest first, if they fit.

    Parameters of two names, as of a layer that stands in an nn.Sequential too, are read by the first one if need be.
    """
    namings = list(_name_all(component, leaves, construction))
    first = [leaf for leaf in leaves if leaf.path == leaf.first]
    if not namings and len(first) < len(leaves):
        namings = list(_name_all(component, first, construction))
    yield from namings


def _name_all(component: str, leaves: Sequence[Leaf], construction: Construction) -> Iterator[Naming]:
    """Yield the namings in which each parameter has a name of ours, in each layout."""
    # Separate projections are one of the layouts.
    contract = load_spec().contracts["multi_head_attention" if component == "fused_multi_head_attention" else component]
    if not contract.takes_params:
        yield from () if leaves else [Naming({})]
        return
    read = _collapse(leaves, PROBE["layers"]) if contract.layers else list(leaves)
    views = _list_views(_find_shapes(contract, leaves, construction), _list_orders(leaves))
    has_own = any(leaf.kind == "raw" and len(leaf.shape) == 2 for leaf in leaves)
    for turned, (layout, scopes) in product((False, True) if has_own else (False,), views):
        if turned and layout.get("stacked"):
            continue
        own = _collapse(read, PROBE["heads"]) if layout.get("head_list") else read
        named = (
            _name_model(own, scopes, turned=turned) if contract.layers else _name_layer(own, scopes[""], turned=turned)
        )
        for names in named:
            used = {path for place in names.values() for path in ((place,) if isinstance(place, str) else place)}
            if used == {leaf.path for leaf in own}:
                yield Naming(names, **layout, turned=turned, conventions=_find_conventions(contract, names))


def _list_orders(leaves: Sequence[Leaf]) -> Sequence[str]:
    """Return the orders of the columns of a fused projection; one if a name says it."""
    said = (re.search("|".join(_ORDERS), leaf.stem.lower()) for leaf in leaves)
    return next(((order.group(),) for order in said if order), _ORDERS)


# Our parameters


def _find_shapes(
    contract: Contract, leaves: Sequence[Leaf], construction: Construction
) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Return the shapes of our parameters in a module of probing sizes, with * for the number of a layer."""
    width, heads = PROBE["width"], PROBE["heads"]
    reads = PROBE["input_width"] if construction.has("input_width") else width
    d_k = PROBE["head_width"] if construction.has("head_width") else width // heads
    sizes: dict[str, Any] = {
        "d_model": width, "heads": heads, "d_k": d_k, "pairs": d_k / 2,
        "d_v": PROBE["value_width"] if construction.has("value_width") else d_k,
        "kv_heads": PROBE["kv_heads"] if construction.has("kv_heads") else heads,
        **dict.fromkeys(("d_query", "d_key", "d_value"), reads), **{name: PROBE[name] for name in _ENDS},
    }  # fmt: skip
    # The smallest other size of a matrix is the width inside of a network.
    queries = heads * d_k
    known = {width, reads, d_k, sizes["d_v"], queries, *map(PROBE.get, _ENDS)}
    for count in (heads, sizes["kv_heads"]):
        keys, values = count * d_k, count * sizes["d_v"]
        known |= {keys, values, keys + values, queries + keys + values}
    known = {0, *known} if "num_heads" in contract.attributes else {0, width}
    inner = (size for leaf in leaves if leaf.shape[1:] for size in leaf.shape[:2] if size not in known)
    sizes["d_ff"] = min(inner, default=width)
    own = contract.params_for(dict.fromkeys(contract.attributes, 1))
    params = {name.replace(".0.", ".*."): spec for name, spec in own.items() if not _LEFT_OUT.search(name)}
    return tuple((name, tuple(int(size) for size in spec.shape.sizes(sizes))) for name, spec in params.items())


@lru_cache(maxsize=256)
def _list_views(shapes: tuple[tuple[str, tuple[int, ...]], ...], orders: Sequence[str]) -> tuple[_View, ...]:
    """Return the layouts in which a module may have its parameters, each with our parameters in it."""
    params, heads = {name: np.empty(shape, np.bool_) for name, shape in shapes}, PROBE["heads"]

    def list_heads() -> _Arrays:
        return {re.sub(r"heads\.\d+", "heads.*", name): array for name, array in split_by_head(params, heads).items()}

    def keep_outputs() -> _Arrays:
        return stack_heads(params, heads) | {name: array for name, array in params.items() if name.endswith("w_o")}

    ways: list[tuple[dict[str, Any], Any]] = [({}, lambda: params)]
    if any(name.endswith("w_q") for name in params):
        ways.insert(0, ({"head_list": True}, list_heads))
        ways += [
            ({"order": order, "per_head": per_head}, partial(join_projections, params, heads, order, per_head=per_head))
            for order, per_head in product((*orders, "kv"), (False, True))
        ]
        ways += [({"stacked": True}, partial(stack_heads, params, heads))]
        ways += [({"stacked": True, "flat_output": True}, keep_outputs)]
    branches: list[dict[str, Any]] = [{}]
    if any(name.endswith("w_gate") for name in params):
        branches += [{"branches": b, "in_turn": i} for i, b in product((False, True), ("gate_up", "up_gate"))]
    views = []
    for layout, make in ways:
        with suppress(ValueError, NotImplementedError):  # these sizes have no such layout
            made = make()
            for joined in branches:
                both = join_gate_and_up(made, joined["branches"], interleaved=joined["in_turn"]) if joined else made
                views.append(({**layout, **joined}, _split_scopes(both)))
    return tuple(views)


def _split_scopes(params: _Arrays) -> dict[str, _Scope]:
    """Return our parameters by the stack that has them."""
    shapes: dict[str, dict[str, tuple[int, ...]]] = {"": {}}
    for name, array in params.items():
        stack = re.match(r"(?!heads\.)\w+\.\*\.", name)
        start = stack[0] if stack else ""
        shapes.setdefault(start, {})[name.removeprefix(start)] = array.shape
    return {start: _Scope.of(own) for start, own in shapes.items()}


# Layers, and what is none


def _name_layer(leaves: Sequence[Leaf], scope: _Scope, *, turned: bool) -> Iterator[dict[str, str]]:
    """Yield our names for the parameters of a layer or of a smaller component: of matrices, of biases and of norms."""
    biases = {bias for leaf in leaves if len(leaf.shape) > 1 and (bias := _name_bias_of(leaf)) != leaf.path}
    weights = [leaf for leaf in leaves if len(leaf.shape) > 1 and leaf.path not in biases]
    groups = _split_weights(weights, scope.blocks, turned=turned)
    if groups is None:
        return
    paths = {leaf.path for leaf in leaves if leaf not in weights} & biases
    norms = list(_name_norms([leaf for leaf in leaves if leaf not in weights and leaf.path not in paths], scope))
    named: list[list[dict[str, str]]] = []
    for (block, shapes), group in zip(scope.blocks.items(), groups, strict=True):
        named.append([])
        for chosen in _assign(group, shapes, turned=turned):
            own = {block + role: leaf.path for role, leaf in chosen.items()}
            shifts = {f"{block}{role.replace('w_', 'b_')}": _name_bias_of(leaf) for role, leaf in chosen.items()}
            named[-1].append(own | {ours: path for ours, path in shifts.items() if path in paths})
    attentions = [part for block, part in zip(scope.blocks, named, strict=True) if "feed" not in block]
    networks = [part for block, part in zip(scope.blocks, named, strict=True) if "feed" in block]
    for norm, attention, network in product(norms, _combine(attentions), _combine(networks)):
        yield {ours: path for part in (norm, *attention, *network) for ours, path in part.items()}


def _split_weights(
    weights: Sequence[Leaf], blocks: Mapping[str, Mapping[str, tuple[int, ...]]], *, turned: bool
) -> list[list[Leaf]] | None:
    """Return the weights of each block: by shape, then as their paths say or in the order in which they were made."""
    left, groups = list(weights), dict[str, list[Leaf]]()
    if len(weights) != sum(map(len, blocks.values())):
        return None
    for block, shapes in blocks.items():
        groups[block] = [leaf for leaf in left if any(_fits(leaf, shape, turned=turned) for shape in shapes.values())]
        if block != "self_attention." or "cross_attention." not in blocks:
            left = [leaf for leaf in left if leaf not in groups[block]]
    if "cross_attention." in groups:
        both = groups["cross_attention."]
        crossing = [leaf for leaf in both if find_part(leaf.path) == "cross"]
        crossing = crossing if 2 * len(crossing) == len(both) else both[len(both) // 2 :]
        groups["cross_attention."] = crossing
        groups["self_attention."] = [leaf for leaf in both if leaf not in crossing]
    fits = all(len(groups[block]) == len(shapes) for block, shapes in blocks.items())
    return list(groups.values()) if fits else None


def _fits(leaf: Leaf, shape: tuple[int, ...], *, turned: bool) -> bool:
    """Return True if a parameter has the shape of ours, (in, out) for a matrix; nn.Linear has (out, in)."""
    if len(shape) > 2 or shape[0] == PROBE["vocab"]:
        return leaf.shape == shape and leaf.kind in ("raw", "table")
    own = leaf.shape[:2]
    return (own[::-1] if leaf.kind == "linear" or turned else own) == shape


def _assign(
    weights: Sequence[Leaf], shapes: Mapping[str, tuple[int, ...]], *, turned: bool
) -> Iterator[dict[str, Leaf]]:
    """Yield the matrix of each role: as names and shapes say, and in every order where neither decides."""
    if {"q", "k"} <= {find_projection(leaf.stem) for leaf in weights} and not any("q" in role for role in shapes):
        return  # an attention that no component is, such as one without a map of its output
    said = {leaf.path: role for leaf in weights if (role := _find_role(leaf.stem, shapes))}
    if len({*said.values()}) < len(said):
        said = {}  # two names mean one role, so neither decides
    for chosen in permutations(weights):
        matrices = dict(zip(shapes, chosen, strict=True))
        if all(
            _fits(leaf, shapes[role], turned=turned) and said.get(leaf.path, role) == role
            for role, leaf in matrices.items()
        ):
            yield matrices


def _find_role(stem: str, shapes: Mapping[str, tuple[int, ...]]) -> str | None:
    """Return which of our matrices of a block a name says; None if it says none of them."""
    branch = next((word for word in split_words(stem) if word in ("gate", "up")), None)
    return next((name for name in shapes if name.rpartition("w_")[2] in (find_projection(stem), branch)), None)


def _combine(parts: Sequence[Sequence[dict[str, str]]]) -> Iterator[tuple[dict[str, str], ...]]:
    """Yield a naming of each part. Parts with equally many namings are of one class, and get the same one."""
    counts = {len(part) for part in parts} or {1}
    for index in range(max(counts) if min(counts) else 0):
        yield tuple(part[index % len(part)] for part in parts)


def _name_bias_of(weight: Leaf) -> str:
    """Return the name that the bias of a weight has."""
    if weight.path.endswith("weight"):
        return f"{weight.path.removesuffix('weight')}bias"
    start, dot, last = weight.path.rpartition(".")
    if last.lower() == "weights":
        return f"{start}{dot}bias"
    old, new = ("weight", "bias") if last.lower().startswith("weight") else ("w", "b")
    return f"{start}{dot}{re.sub(f'^{old}', new, last, flags=re.IGNORECASE)}"


# Norms


def _name_norms(vectors: Sequence[Leaf], scope: _Scope) -> Iterator[dict[str, str]]:
    """Yield the names of gains and shifts in the orders that may be that of a layer's parts.

    Names decide it if they say parts, and numbers if they have any. Otherwise a norm may have been made anywhere.
    """
    pairs = _pair_norms(vectors, shifts=scope.has_shifts)
    if pairs is None or len(pairs) != len(scope.norms):
        return
    for order in _order_norms(pairs, [_PARTS[block.rstrip(".")] for block in scope.blocks]):
        named = zip(scope.norms, order, strict=True)
        yield {norm + name: leaf.path for norm, pair in named for name, leaf in pair.items()}


def _order_norms(norms: Sequence[dict[str, Leaf]], parts: Sequence[str]) -> list[Sequence[dict[str, Leaf]]]:
    """Return the orders of norms that may be that of the parts of their layer."""
    owners = [pair["gamma"].owner for pair in norms]
    if [owner.rpartition(".")[2] for owner in owners] == ["input_layernorm", "post_attention_layernorm"]:
        return [norms]  # as in transformers: the second one comes after the attention, and is not its norm
    found = [find_part(owner) for owner in owners]
    missing = [part for part in parts if part not in found]
    if len(missing) == found.count(None) == 1:
        found[found.index(None)] = missing[0]
    if sorted(map(str, found)) == sorted(parts):
        return [[norms[found.index(part)] for part in parts]]
    if any(re.search(r"\d", owner.rpartition(".")[2]) for owner in owners):
        return [norms]
    return [*permutations(norms)]


def _pair_norms(vectors: Sequence[Leaf], *, shifts: bool = True) -> list[dict[str, Leaf]] | None:
    """Return the gain, and the shift if there are shifts, of each norm in the order in which they were made."""
    owners: dict[str, list[Leaf]] = {}
    for leaf in vectors:
        owners.setdefault(leaf.owner if shifts else leaf.path, []).append(leaf)
    pairs = []
    for group in owners.values():
        said = [[says(leaf.path.rpartition(".")[2], pattern) for pattern in (GAIN, SHIFT)] for leaf in group]
        if any(leaf.shape != (PROBE["width"],) for leaf in group) or len(group) != 1 + shifts:
            return None
        if shifts and said == [[False, True], [True, False]]:
            group.reverse()
        elif (shifts and said not in ([[True, False], [False, True]], [[False] * 2] * 2)) or (
            not shifts and not said[0][0]
        ):
            return None
        pairs.append(dict(zip(("gamma", "beta"), group, strict=False)))
    return pairs


# Stacks and models


def _name_model(leaves: Sequence[Leaf], scopes: Mapping[str, _Scope], *, turned: bool) -> Iterator[dict[str, Any]]:
    """Yield our names for the parameters of a model: of its stacks, and of what stands before and after them."""
    inside = [leaf for leaf in leaves if "*" in leaf.path]
    roots = sorted({leaf.path.partition("*")[0] for leaf in inside}, key=lambda root: (_is_decoder(root), root))
    stacks = [start for start in scopes if start]
    if len(roots) != len(stacks):
        return
    ends = _name_ends([leaf for leaf in leaves if leaf not in inside], scopes[""], turned=turned)
    if ends is None:
        return
    layers = []
    for root, start in zip(roots, stacks, strict=True):
        own = [leaf for leaf in inside if leaf.path.startswith(root)]
        named = _name_layer(own, scopes[start], turned=turned)
        layers.append([{start + ours: path for ours, path in names.items()} for names in named])
    for chosen in _combine(layers):
        yield {ours: path for names in (*chosen, ends) for ours, path in names.items()}


def _name_ends(leaves: Sequence[Leaf], scope: _Scope, *, turned: bool) -> dict[str, Any] | None:
    """Return the names of what a model has in addition to its stacks; None if something else is there.

    A decoder-only model without a map to the vocabulary gives hidden states, and no logits.
    """
    norms = _pair_norms([leaf for leaf in leaves if leaf.shape == (PROBE["width"],)], shifts=scope.has_shifts)
    if norms is None or len(norms) not in (0, len(scope.norms)):
        return None
    found: dict[str, list[Leaf]] = {}
    if scope.blocks:
        vocab, places = scope.blocks[""]["table"], (PROBE["positions"], PROBE["width"])
        outputs = [leaf for leaf in leaves if _says_output(leaf) and _fits(leaf, vocab[::-1], turned=turned)]
        tables = [leaf for leaf in leaves if leaf not in outputs and leaf.kind != "linear" and leaf.shape == vocab]
        if not ((outputs and norms) or scope.has_shifts):
            return None
        first = {leaf.first for leaf in tables}
        found = {"table": tables + [leaf for leaf in outputs if leaf.first in first]}
        found["w_vocab"] = [leaf for leaf in outputs if leaf.first not in first]
        found["b_vocab"] = [leaf for leaf in leaves if leaf.shape == vocab[:1]]
        found["position_table"] = [leaf for leaf in leaves if leaf.shape == places]
        if not tables or any(len(found[name]) > 1 for name in ("w_vocab", "b_vocab")):
            return None
    names = {
        name: tuple(leaf.path for leaf in some) if some[1:] else some[0].path for name, some in found.items() if some
    }
    norms.sort(key=lambda pair: _is_decoder(pair["gamma"].path))
    return names | {n + e: leaf.path for n, pair in zip(scope.norms, norms, strict=False) for e, leaf in pair.items()}


def _says_output(leaf: Leaf) -> bool:
    """Return True for the map to the vocabulary: a linear map, or a matrix that its name says to be that."""
    said = {"head", "output", "out", "unembed", "unembedding", "logits", "proj", "projection", "classifier"}
    return leaf.kind == "linear" or (leaf.kind != "table" and bool(said & {*split_words(leaf.path)}))


def _is_decoder(path: str) -> bool:
    return any(re.match(r"dec|tgt|trg|target", word) for word in split_words(path))


def _collapse(leaves: Sequence[Leaf], count: int) -> list[Leaf]:
    """Return the leaves with * for a number that runs from 0 to count − 1, each once."""
    numbers: dict[str, set[str]] = {}
    for leaf in leaves:
        pieces = leaf.path.split(".")
        for i, piece in enumerate(pieces):
            if piece.isdigit():
                numbers.setdefault(".".join(pieces[:i]), set()).add(piece)
    every = {str(i) for i in range(count)}
    collapsed: dict[str, Leaf] = {}
    for leaf in leaves:
        pieces = leaf.path.split(".")
        starred = [
            "*" if piece.isdigit() and numbers[".".join(pieces[:i])] == every else piece
            for i, piece in enumerate(pieces)
        ]
        path = ".".join(starred)
        collapsed.setdefault(path, replace(leaf, path=path))
    return list(collapsed.values())


# What parameters decide


def _find_conventions(contract: Contract, names: Iterable[str]) -> dict[str, str]:
    """Return the options under which a call has the parameters of a module: its biases, norms and output layer."""
    named = {*names}
    for name in names:
        start, kind, roles = name.replace("heads.*.", "").rpartition("b_")
        separate = [*roles] if roles in (*_ORDERS, "kv") else roles.split("_")
        named |= {f"{start}{kind}{role}" for role in separate if kind}
    own = contract.params_for(dict.fromkeys(contract.attributes, 1))
    params = {n.replace(".0.", ".*."): one for n, one in own.items() if not one.blind and not _LEFT_OUT.search(n)}
    conventions = {}
    for convention in sorted(contract.conventions_of_params - {"block_order", "qk_norm"}):
        depending = {n: one for n, one in params.items() if convention in one.only_with}
        existing = {
            option: {n for n, one in depending.items() if option in one.only_with[convention]}
            for option in load_spec().conventions[convention].options
        }
        if convention == "biases":
            # A module may have none that another convention decides, and a call none of those that a module has.
            sure = {n for n, one in depending.items() if len(one.only_with) == 1}
            fitting = [option for option, some in existing.items() if some & sure and some & sure <= named]
            conventions[convention] = fitting[0] if fitting else "none"
        else:
            conventions[convention] = [o for o, some in existing.items() if some == named & depending.keys()][-1]
    return conventions
