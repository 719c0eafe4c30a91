"""The parameters of a module by our names: names decide first, shapes next, and only what neither says is permuted."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import permutations, product
from typing import Final, Literal

from goldformer.adapters.inference.names import GAIN, SHIFT, find_part, find_projection, says, split_words
from goldformer.adapters.inference.target import PROBE, Construction, Leaf
from goldformer.adapters.layouts import Names

_ORDERS: Final = ("qkv", "kqv", "qvk", "kvq", "vqk", "vkq")


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

    def nest(self, prefix: str) -> Naming:
        """Return the naming of a part by the names of what it is a part of; "" is the whole itself."""
        return replace(self, names={f"{prefix}.{ours}".lstrip("."): theirs for ours, theirs in self.names.items()})

    def join(self, other: Naming) -> Naming | None:
        """Return both namings at once; None if they disagree on a layout."""
        if self.order and other.order and (self.order, self.per_head) != (other.order, other.per_head):
            return None
        return Naming(
            {**self.names, **other.names},
            order=self.order or other.order,
            per_head=self.per_head or other.per_head,
            branches=self.branches or other.branches,
            in_turn=self.in_turn or other.in_turn,
            head_list=self.head_list or other.head_list,
        )


@dataclass(frozen=True, slots=True)
class _Sizes:
    """The widths of a module that was built to be looked at."""

    width: int
    reads: int
    keys: int
    values: int
    heads: int
    #: The number of heads of keys and of values.
    kv_heads: int
    #: True if matrices that the class made itself are (out, in).
    turned: bool = False

    @classmethod
    def of(cls, construction: Construction, *, turned: bool) -> _Sizes:
        width, heads = PROBE["width"], PROBE["heads"]
        reads = PROBE["input_width"] if construction.has("input_width") else width
        keys = heads * PROBE["head_width"] if construction.has("head_width") else width
        values = heads * PROBE["value_width"] if construction.has("value_width") else keys
        kv_heads = PROBE["kv_heads"] if construction.has("kv_heads") else heads
        return cls(width, reads, keys, values, heads, kv_heads, turned)

    def shape(self, role: str, *, of_head: bool = False) -> tuple[int, int]:
        """Return (in, out) of a projection, or of that of one head."""
        if of_head:
            return (self.reads, (self.values if role == "v" else self.keys) // self.heads)
        own_keys, own_values = (size * self.kv_heads // self.heads for size in (self.keys, self.values))
        return {
            "q": (self.reads, self.keys), "k": (self.reads, own_keys), "v": (self.reads, own_values),
            "o": (self.values, self.width), "kv": (self.reads, own_keys + own_values),
            "qkv": (self.reads, self.keys + own_keys + own_values),
        }[role]  # fmt: skip

    def is_attention(self, leaf: Leaf) -> bool:
        """Return True if a matrix has the sizes of a projection of attention, whole or of one head."""
        some = {self.width, self.reads, self.keys, self.values, self.keys + self.values, 2 * self.keys + self.values}
        return set(leaf.shape[:2]) <= some | {self.keys // self.heads, self.values // self.heads}


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
    """Yield the namings in which each parameter has a name of ours."""
    heads = [_drop_head_axis(leaf, _Sizes.of(construction, turned=False)) for leaf in leaves]
    changed = {leaf.path for leaf, flat in zip(leaves, heads, strict=True) if flat != leaf}
    stacked = bool(changed)
    has_matrices = not stacked and any(leaf.kind == "raw" and len(leaf.shape) == 2 for leaf in leaves)
    for turned in (False, True) if has_matrices else (False,):
        sizes = _Sizes.of(construction, turned=turned)
        for naming in _NAMERS[component](heads, sizes):
            if _count(naming, leaves) == len(leaves):
                conventions = _find_conventions(component, naming)
                outputs = [theirs for ours, theirs in naming.names.items() if ours.endswith("w_o")]
                flat = stacked and not changed & {*outputs}
                yield replace(naming, turned=turned, stacked=stacked, flat_output=flat, conventions=conventions)


def _drop_head_axis(leaf: Leaf, sizes: _Sizes) -> Leaf:
    """Return a parameter that has an axis for the heads, as code that projects by einsum has it, without that axis."""
    if leaf.kind != "raw" or len(leaf.shape) < 2 or leaf.shape[0] != sizes.heads:
        return leaf
    heads, *inner, last = leaf.shape
    if not inner and last in (sizes.keys // heads, sizes.values // heads):
        return replace(leaf, shape=(heads * last,))
    if inner in ([sizes.reads], [sizes.width]):
        return replace(leaf, shape=(*inner, heads * last))
    return replace(leaf, shape=(heads * inner[0], last)) if len(inner) == 1 and last == sizes.width else leaf


def _count(naming: Naming, leaves: Sequence[Leaf]) -> int:
    """Return how many parameters have a name of ours."""
    named = {place for value in naming.names.values() for place in ((value,) if isinstance(value, str) else value)}
    patterns = [re.compile(re.escape(place).replace(r"\*", r"\d+")) for place in named]
    return sum(any(pattern.fullmatch(leaf.path) for pattern in patterns) for leaf in leaves)


# The parts


def _name_attention(leaves: list[Leaf], sizes: _Sizes) -> Iterator[Naming]:
    """Yield the namings of one attention, with a list of heads or of projections, which may be as long."""
    by_head = _collapse(leaves, sizes.heads)
    for read in [by_head, leaves] if len(by_head) < len(leaves) else [leaves]:
        weights = [leaf for leaf in read if len(leaf.shape) > 1]
        in_heads = [leaf for leaf in weights if leaf not in leaves]
        for roles in (("q", "k", "v", "o"), ("qkv", "o"), ("q", "kv", "o")):
            if in_heads and (len(roles), len(in_heads)) != (4, 3):
                continue
            shapes = {role: sizes.shape(role, of_head=bool(in_heads) and role != "o") for role in roles}
            for chosen in _assign(weights, shapes, sizes, find_projection):
                yield from _arrange(
                    _name_maps(read, chosen), chosen, {leaf.path for leaf in read if leaf not in leaves}
                )


def _arrange(naming: Naming, chosen: Mapping[str, Leaf], in_heads: Collection[str]) -> Iterator[Naming]:
    """Yield the layouts of projections that are fused or in a list of heads."""
    if in_heads:
        names = {f"heads.*.{ours}" if path in in_heads else ours: path for ours, path in naming.names.items()}
        yield Naming(names, head_list=True)
        return
    fused = next((role for role in chosen if role in ("kv", "qkv")), "")
    for order, per_head in product(_list_orders(chosen[fused]) if fused == "qkv" else (fused,), (False, True)):
        if fused or not per_head:
            names = {ours.replace("_qkv", f"_{order}"): theirs for ours, theirs in naming.names.items()}
            yield Naming(names, order, per_head)


def _list_orders(leaf: Leaf) -> tuple[str, ...]:
    """Return the orders of the columns of a fused projection; one if its name says it."""
    order = re.search(r"(?=[qkv]{3})(qkv|kqv|qvk|kvq|vqk|vkq)", leaf.stem.lower())
    return (order.group(),) if order else _ORDERS


def _name_feed_forward(leaves: list[Leaf], sizes: _Sizes) -> Iterator[Naming]:
    width, inner = sizes.width, _find_inner(leaves, sizes)
    for chosen in _assign(leaves, {"1": (width, inner), "2": (inner, width)}, sizes):
        yield _name_maps(leaves, chosen)


def _name_gated_feed_forward(leaves: list[Leaf], sizes: _Sizes) -> Iterator[Naming]:
    """Yield the namings of a gated network with three matrices, or with two, of which one makes gate and up."""
    width, inner = sizes.width, _find_inner(leaves, sizes)
    three = {"gate": (width, inner), "up": (width, inner), "down": (inner, width)}
    for chosen in _assign(leaves, three, sizes, _find_branch):
        yield _name_maps(leaves, chosen)
    orders: tuple[Literal["gate_up", "up_gate"], ...] = ("gate_up", "up_gate")
    for in_turn, order in product((False, True), orders):
        for chosen in _assign(leaves, {order: (width, 2 * inner), "down": (inner, width)}, sizes):
            yield replace(_name_maps(leaves, chosen), branches=order, in_turn=in_turn)


def _find_inner(leaves: Sequence[Leaf], sizes: _Sizes) -> int:
    """Return the width inside of a network: the smallest size of its matrices that is not the model's width, or 0."""
    return min(
        (size for leaf in leaves for size in leaf.shape[:2] if leaf.shape[1:] and size != sizes.width), default=0
    )


def _find_branch(stem: str) -> str | None:
    """Return the branch of a gated network that a name says; None if it says nothing."""
    return next((word for word in split_words(stem) if word in ("gate", "up")), None)


def _name_maps(leaves: Sequence[Leaf], roles: Mapping[str, Leaf]) -> Naming:
    """Return the naming of weights and of their biases."""
    paths = {leaf.path for leaf in leaves if len(leaf.shape) == 1}
    biases = {f"b_{role}": _name_bias_of(leaf) for role, leaf in roles.items()}
    weights = {f"w_{role}": leaf.path for role, leaf in roles.items()}
    return Naming(weights | {ours: theirs for ours, theirs in biases.items() if theirs in paths})


def _name_norm(leaves: list[Leaf], sizes: _Sizes) -> Iterator[Naming]:
    if len(leaves) != 2 or any(leaf.shape != (sizes.width,) for leaf in leaves):
        return
    for gain, shift in permutations(leaves):
        matches = [says(leaf.path.rpartition(".")[2], pattern) for leaf in (gain, shift) for pattern in (GAIN, SHIFT)]
        if matches in ([True, False, False, True], [False] * 4):
            yield Naming({"gamma": gain.path, "beta": shift.path})


def _name_rms_norm(leaves: list[Leaf], sizes: _Sizes) -> Iterator[Naming]:
    if len(leaves) == 1 and leaves[0].shape == (sizes.width,) and says(leaves[0].path.rpartition(".")[2], GAIN):
        yield Naming({"gamma": leaves[0].path})


def _name_embedding(leaves: list[Leaf], sizes: _Sizes) -> Iterator[Naming]:
    if len(leaves) == 1 and leaves[0].shape == (PROBE["vocab"], sizes.width):
        yield Naming({"table": leaves[0].path})


def _name_nothing(leaves: list[Leaf], sizes: _Sizes) -> Iterator[Naming]:
    del sizes
    if not leaves:
        yield Naming({})


# Layers and what is built of them


def _name_layer(
    leaves: list[Leaf], sizes: _Sizes, attentions: Sequence[str], *, gated: bool = False
) -> Iterator[Naming]:
    """Yield the namings of a layer: attentions, a network and a norm for each; gated with norms without a shift."""
    weights = [leaf for leaf in leaves if len(leaf.shape) > 1]
    of_attention = [leaf for leaf in weights if sizes.is_attention(leaf)]
    wide = [leaf for leaf in weights if leaf not in of_attention]
    biases = [leaf for leaf in leaves if len(leaf.shape) == 1 and _owns_weight(leaf, weights)]
    vectors = [leaf for leaf in leaves if len(leaf.shape) == 1 and leaf not in biases]
    groups = _split_attentions(of_attention, attentions)
    orders = _order_norms(_pair_norms(vectors, sizes, shifts=not gated), [*attentions, "feed_forward"])
    if groups is None or not orders:
        return
    owned = [[*group, *(bias for bias in biases if _owns_weight(bias, group))] for group in (*groups, wide)]
    read = [
        [naming.nest(name) for naming in _name_attention(group, sizes)]
        for name, group in zip(attentions, owned[:-1], strict=True)
    ]
    network = (_name_gated_feed_forward if gated else _name_feed_forward)(owned[-1], sizes)
    for norms, chosen, last in product(orders, [*_combine(read)], [*network]):
        joined: Naming | None = Naming(
            {f"norm_{i}.{ours}": leaf.path for i, pair in enumerate(norms, 1) for ours, leaf in pair.items()}
        )
        for part in (*chosen, last.nest("feed_forward")):
            joined = joined.join(part) if joined else None
        if joined:
            yield joined


_name_encoder_layer = partial(_name_layer, attentions=["self_attention"])
_name_decoder_layer = partial(_name_layer, attentions=["self_attention", "cross_attention"])
_name_decoder_only_layer = partial(_name_layer, attentions=[""], gated=True)


def _says_output(leaf: Leaf) -> bool:
    """Return True for the map to the vocabulary: a linear map, or a matrix that its name says to be that."""
    said = {"head", "output", "out", "unembed", "unembedding", "logits", "proj", "projection", "classifier"}
    if len(leaf.shape) == 1 or leaf.kind == "table":
        return False
    return leaf.kind == "linear" or bool(said & {*split_words(leaf.path)})


def _name_stack(
    leaves: list[Leaf], sizes: _Sizes, prefix: str, layer: Callable[..., Iterator[Naming]]
) -> Iterator[Naming]:
    """Yield the namings of a stack: layers under a number each, and perhaps a norm."""
    collapsed = _collapse(leaves, PROBE["layers"])
    inside = [leaf for leaf in collapsed if "*" in leaf.path]
    norms = _pair_norms([leaf for leaf in collapsed if "*" not in leaf.path], sizes)
    if not inside or len(norms) > 1:
        return
    final = {f"norm.{ours}": leaf.path for pair in norms for ours, leaf in pair.items()}
    for naming in layer(inside, sizes):
        yield replace(naming, names={**naming.nest(f"{prefix}.*").names, **final})


def _name_model(
    leaves: list[Leaf], sizes: _Sizes, stacks: Mapping[str, Callable[..., Iterator[Naming]]], norms: Sequence[str]
) -> Iterator[Naming]:
    """Yield the namings of a whole model: its stacks, one table or two equal ones, norms and the output layer."""
    collapsed = _collapse(leaves, PROBE["layers"])
    inside = [leaf for leaf in collapsed if "*" in leaf.path]
    roots = sorted({leaf.path.partition("*")[0] for leaf in inside}, key=lambda root: (_is_decoder(root), root))
    names = _name_ends([leaf for leaf in collapsed if "*" not in leaf.path], sizes, norms)
    if len(roots) != len(stacks) or names is None:
        return
    layers = [
        [naming.nest(f"{prefix}.*") for naming in layer([leaf for leaf in inside if leaf.path.startswith(root)], sizes)]
        for root, (prefix, layer) in zip(roots, stacks.items(), strict=True)
    ]
    for chosen in _combine(layers):
        joined: Naming | None = chosen[0]
        for other in chosen[1:]:
            joined = joined.join(other) if joined else None
        if joined:
            yield replace(joined, names={**joined.names, **names})


def _name_ends(leaves: list[Leaf], sizes: _Sizes, names_of_norms: Sequence[str]) -> Names | None:
    """Return the names of what a model has in addition to its stacks; None if something else is there.

    A model of one stack is one of today: without a map to the vocabulary it gives hidden states, and no logits.
    """
    vocab, width, is_of_today = PROBE["vocab"], sizes.width, len(names_of_norms) == 1
    vectors = [leaf for leaf in leaves if leaf.shape == (width,)]
    outputs = [leaf for leaf in leaves if _says_output(leaf) and _orient(leaf, sizes) == (width, vocab)]
    tables = [leaf for leaf in leaves if leaf not in outputs and leaf.kind != "linear" and leaf.shape == (vocab, width)]
    tied = [leaf for leaf in outputs if leaf.first in {table.first for table in tables}]
    places = [leaf for leaf in leaves if leaf.shape == (PROBE["positions"], width)]
    biases = [leaf for leaf in leaves if leaf.shape == (vocab,)]
    norms = _pair_norms(vectors, sizes, shifts=not is_of_today)
    norms.sort(key=lambda pair: _is_decoder(pair["gamma"].path))
    counts = len(tables), len(outputs), len(norms), len(places) + len(biases)
    if is_of_today and counts != (1, 1, 1, 0):
        return None
    outputs, tables = [leaf for leaf in outputs if leaf not in tied], tables + tied
    if not tables or len(outputs) > 1 or len(norms) not in (0, len(names_of_norms)) or len(biases) > 1:
        return None
    names: dict[str, str | tuple[str, ...]] = {"table": tuple(t.path for t in tables) if tables[1:] else tables[0].path}
    names |= {ours: found[0].path for ours, found in (("w_vocab", outputs), ("b_vocab", biases)) if found}
    if places:
        names["position_table"] = tuple(leaf.path for leaf in places) if places[1:] else places[0].path
    for norm, pair in zip(names_of_norms, norms, strict=False):
        names |= {f"{norm}.{ours}": leaf.path for ours, leaf in pair.items()}
    return names


def _is_decoder(path: str) -> bool:
    return any(re.match(r"dec|tgt|trg|target", word) for word in split_words(path))


# What several of them need


def _combine(parts: Sequence[Sequence[Naming]]) -> Iterator[tuple[Naming, ...]]:
    """Yield a naming of each part. Parts with equally many namings are of one class, and get the same one."""
    counts = sorted({len(part) for part in parts})
    for index in range(max(counts, default=0)):
        if counts[0]:
            yield tuple(part[index % len(part)] for part in parts)


def _orient(leaf: Leaf, sizes: _Sizes) -> tuple[int, int]:
    """Return (in, out) of a matrix."""
    first, second = leaf.shape[:2]
    return (second, first) if leaf.kind == "linear" or sizes.turned else (first, second)


def _assign(
    leaves: Sequence[Leaf],
    shapes: Mapping[str, tuple[int, int]],
    sizes: _Sizes,
    find_role: Callable[[str], str | None] | None = None,
) -> Iterator[dict[str, Leaf]]:
    """Yield the matrix of each role: as names and shapes say, and in every order where neither decides."""
    weights = [leaf for leaf in leaves if len(leaf.shape) > 1]
    said = {leaf.path: role for leaf in weights if find_role and (role := find_role(leaf.stem)) in shapes}
    if len({*said.values()}) < len(said):
        said = {}  # two names mean one role, so neither decides
    for chosen in permutations(weights) if len(weights) == len(shapes) else ():
        matrices = dict(zip(shapes, chosen, strict=True))
        if all(
            _orient(leaf, sizes) == shapes[role] and said.get(leaf.path, role) == role
            for role, leaf in matrices.items()
        ):
            yield matrices


def _owns_weight(bias: Leaf, weights: Sequence[Leaf]) -> bool:
    """Return True if a vector is the bias of one of these weights, by its name."""
    return any(_name_bias_of(leaf) == bias.path for leaf in weights)


def _name_bias_of(weight: Leaf) -> str:
    """Return the name that the bias of a weight has."""
    if weight.path.endswith("weight"):
        return f"{weight.path.removesuffix('weight')}bias"
    start, dot, last = weight.path.rpartition(".")
    old, new = ("weight", "bias") if last.lower().startswith("weight") else ("w", "b")
    return f"{start}{dot}{re.sub(f'^{old}', new, last, flags=re.IGNORECASE)}"


def _pair_norms(leaves: list[Leaf], sizes: _Sizes, *, shifts: bool = True) -> list[dict[str, Leaf]]:
    """Return the gain and the shift, if there are shifts, of each norm in the order in which they were made.

    Return [] if they do not pair up.
    """
    owners: dict[str, list[Leaf]] = {}
    for leaf in leaves:
        owners.setdefault(leaf.owner if shifts else leaf.path, []).append(leaf)
    by_path = {leaf.path: leaf for leaf in leaves}
    namings = [next((_name_norm if shifts else _name_rms_norm)(group, sizes), None) for group in owners.values()]
    pairs = [{ours: by_path[str(theirs)] for ours, theirs in naming.names.items()} for naming in namings if naming]
    return pairs if len(pairs) == len(namings) else []


def _order_norms(norms: list[dict[str, Leaf]], parts: Sequence[str]) -> list[list[dict[str, Leaf]]]:
    """Return the orders of a layer's norms that may be that of its parts; [] if it has not one norm for each part.

    Names decide it if they say parts, and numbers if they have any. Otherwise a norm may have been made anywhere.
    """
    if len(norms) != len(parts):
        return []
    wanted = {"": "self", "self_attention": "self", "cross_attention": "cross", "feed_forward": "feed"}
    owners = [pair["gamma"].owner for pair in norms]
    if [owner.rpartition(".")[2] for owner in owners] == ["input_layernorm", "post_attention_layernorm"]:
        return [norms]  # as in transformers: the second one comes after the attention, and is not its norm
    found, order = [find_part(owner) for owner in owners], [wanted[part] for part in parts]
    if sorted(map(str, found)) == sorted(order):
        return [[norms[found.index(part)] for part in order]]
    if any(re.search(r"\d", owner.rpartition(".")[2]) for owner in owners):
        return [norms]
    return [list(chosen) for chosen in permutations(norms)]


def _split_attentions(weights: list[Leaf], attentions: Sequence[str]) -> list[list[Leaf]] | None:
    """Return the weights of each attention: as their paths say, or in the order in which they were made."""
    if len(attentions) == 1:
        return [weights]
    half, odd = divmod(len(weights), 2)
    crossing = [leaf for leaf in weights if find_part(leaf.path) == "cross"]
    crossing = crossing if len(crossing) == half else weights[half:]
    return None if odd else [[leaf for leaf in weights if leaf not in crossing], crossing]


def has_shared_norm(component: str, leaves: Sequence[Leaf], construction: Construction) -> bool:
    """Return True if the parameters are those of a layer, but for one norm where a layer has two or three."""
    sizes = _Sizes.of(construction, turned=False)
    weights = [leaf for leaf in leaves if len(leaf.shape) > 1]
    norms = [leaf for leaf in leaves if len(leaf.shape) == 1 and not _owns_weight(leaf, weights)]
    if component not in ("encoder_layer", "decoder_layer") or len(_pair_norms(norms, sizes)) != 1:
        return False
    copies = [replace(leaf, path=f"copy{i}.{leaf.path}") for i in range(1, 3) for leaf in norms]
    more = copies if component == "decoder_layer" else copies[: len(norms)]
    return any(name_parameters(component, [*leaves, *more], construction))


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


def _find_conventions(component: str, naming: Naming) -> dict[str, str]:
    """Return the conventions that the parameters decide: which biases, which norms and which output layer there are."""
    lasts = [ours.rpartition(".")[2] for ours in naming.names]
    conventions = {}
    bias = {role: any(last == f"b_{role}" for last in lasts) for role in ("o", "1", "2", naming.order, "q")}
    reads = bias["q"] or bias[naming.order]
    if "w_o" in lasts or "w_1" in lasts:
        feeds = bias["1"] and bias["2"] if "w_1" in lasts else reads or bias["o"]
        conventions["biases"] = _choose_biases(reads=reads, gives=bias["o"], feeds=feeds)
        if "w_o" not in lasts:
            conventions["biases"] = "all" if bias["1"] or bias["2"] else "none"
    if component in ("decoder_only_layer", "decoder_only_model"):
        # A bias of which a call has none is 0 in it.
        conventions["biases"] = "all" if all(f"b_{role}" in lasts for role in ("q", "k", "v", "o", "down")) else "none"
        if component == "decoder_only_model":
            conventions["output_layer"] = "without_bias" if "w_vocab" in lasts else "tied"
        return conventions
    if "w_down" in lasts:
        conventions["biases"] = "all" if any(last.startswith("b_") for last in lasts) else "none"
    if component in ("encoder", "decoder", "transformer"):
        has_norm = any(ours.endswith("norm.gamma") for ours in naming.names)
        conventions["final_norm"] = "after_stack" if has_norm else "none"
    if component == "transformer":
        output = ("w_vocab" in lasts, any("vocab" in last for last in lasts if last != "w_vocab"))
        options = {(True, True): "separate", (True, False): "without_bias", (False, True): "tied_with_bias"}
        conventions["output_layer"] = options.get(output, "tied")
        conventions["positions"] = "learned" if "position_table" in lasts else "sinusoidal"
    return conventions


def _choose_biases(*, reads: bool, gives: bool, feeds: bool) -> str:
    if reads:
        return "all"
    if gives:
        return "not_in_q_k_v"
    return "not_in_attention" if feeds else "none"


_NAMERS: Final[Mapping[str, Callable[[list[Leaf], _Sizes], Iterator[Naming]]]] = {
    "multi_head_attention": _name_attention,
    "fused_multi_head_attention": _name_attention,
    "feed_forward": _name_feed_forward,
    "gated_feed_forward": _name_gated_feed_forward,
    "layer_norm": _name_norm,
    "rms_norm": _name_rms_norm,
    "token_embedding": _name_embedding,
    "rotary_embedding": _name_nothing,
    "positional_encoding": _name_nothing,
    "grouped_query_attention": _name_nothing,
    "scaled_dot_product_attention": _name_nothing,
    "softmax": _name_nothing,
    "decoder_only_layer": _name_decoder_only_layer,
    "decoder_only_model": partial(_name_model, stacks={"layers": _name_decoder_only_layer}, norms=["norm"]),
    "encoder_layer": _name_encoder_layer,
    "decoder_layer": _name_decoder_layer,
    "encoder": partial(_name_stack, prefix="encoder", layer=_name_encoder_layer),
    "decoder": partial(_name_stack, prefix="decoder", layer=_name_decoder_layer),
    "transformer": partial(
        _name_model,
        stacks={"encoder": _name_encoder_layer, "decoder": _name_decoder_layer},
        norms=["encoder_norm", "decoder_norm"],
    ),
}
