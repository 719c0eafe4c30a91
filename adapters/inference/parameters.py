"""The parameters of a module by our names: names decide first, shapes next, and only what neither says is permuted."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
        """Return the naming of a part by the names of what it is a part of."""
        return replace(self, names={f"{prefix}.{ours}": theirs for ours, theirs in self.names.items()})

    def join(self, other: Naming) -> Naming | None:
        """Return both namings at once; None if they disagree on a layout."""
        orders = {one.order for one in (self, other) if one.order}
        if len(orders) > 1 or (self.order and other.order and self.per_head != other.per_head):
            return None
        return Naming(
            {**self.names, **other.names},
            order=self.order or other.order,
            per_head=self.per_head or other.per_head,
            head_list=self.head_list or other.head_list,
            turned=self.turned or other.turned,
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

    def shape(self, role: str) -> tuple[int, int]:
        """Return (in, out) of a projection."""
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
    """Yield the namings of one attention."""
    by_head = _collapse(leaves, sizes.heads)
    if len(by_head) < len(leaves):
        shared = {leaf.path for leaf in leaves}
        yield from _name_heads(
            [leaf for leaf in by_head if leaf.path not in shared],
            [leaf for leaf in by_head if leaf.path in shared],
            sizes,
        )
    # A list of as many modules as there are heads may be that of the projections.
    weights = [leaf for leaf in leaves if len(leaf.shape) > 1]
    for roles in (("q", "k", "v", "o"), ("qkv", "o"), ("q", "kv", "o")):
        if len(weights) != len(roles):
            continue
        for chosen in _match(weights, roles, sizes):
            named = {f"w_{role}": leaf.path for role, leaf in zip(roles, chosen, strict=True)}
            biases = _name_biases(leaves, dict(zip(roles, chosen, strict=True)))
            fused = next((role for role in roles if len(role) > 1), "")
            if fused == "qkv":
                for order, per_head in product(_list_orders(chosen[0]), (False, True)):
                    yield _rename(Naming({**named, **biases}, order, per_head), "qkv", order)
            else:
                for per_head in (False, True) if fused else (False,):
                    yield Naming({**named, **biases}, fused, per_head)


def _rename(naming: Naming, old: str, new: str) -> Naming:
    """Return a naming whose fused projection is called by the order of its columns."""
    names = {ours.replace(f"_{old}", f"_{new}"): theirs for ours, theirs in naming.names.items()}
    return replace(naming, names=names)


def _list_orders(leaf: Leaf) -> tuple[str, ...]:
    """Return the orders of the columns of a fused projection; one if its name says it."""
    order = re.search(r"(?=[qkv]{3})(qkv|kqv|qvk|kvq|vqk|vkq)", leaf.stem.lower())
    return (order.group(),) if order else _ORDERS


def _name_heads(ours: list[Leaf], others: list[Leaf], sizes: _Sizes) -> Iterator[Naming]:
    """Yield the namings of an attention whose heads have modules of their own: theirs, and what the heads share."""
    narrow = replace(sizes, keys=sizes.keys // sizes.heads, values=sizes.values // sizes.heads)
    weights = [leaf for leaf in ours if len(leaf.shape) > 1]
    outputs = [leaf for leaf in others if len(leaf.shape) > 1]
    if len(weights) != 3 or len(outputs) != 1:
        return
    for chosen in _match(weights, ("q", "k", "v"), narrow):
        roles = dict(zip(("q", "k", "v"), chosen, strict=True))
        names = {f"heads.*.w_{role}": leaf.path for role, leaf in roles.items()}
        names |= {f"heads.*.{ours_}": theirs for ours_, theirs in _name_biases(ours, roles).items()}
        names |= {"w_o": outputs[0].path} | _name_biases(others, {"o": outputs[0]})
        yield Naming(names, head_list=True)


def _name_feed_forward(leaves: list[Leaf], sizes: _Sizes) -> Iterator[Naming]:
    weights = [leaf for leaf in leaves if len(leaf.shape) > 1]
    if len(weights) != 2:
        return
    for first, second in permutations(weights):
        inward, outward = _orient(first, sizes), _orient(second, sizes)
        if inward == outward[::-1] and inward[0] == sizes.width != inward[1]:
            yield _name_maps(leaves, {"1": first, "2": second})


def _name_gated_feed_forward(leaves: list[Leaf], sizes: _Sizes) -> Iterator[Naming]:
    """Yield the namings of a gated network with three matrices, or with two, of which one makes gate and up."""
    weights = {leaf: _orient(leaf, sizes) for leaf in leaves if len(leaf.shape) > 1}
    downs = [leaf for leaf, (reads, gives) in weights.items() if reads != gives == sizes.width]
    branches = [leaf for leaf in weights if leaf not in downs]
    if len(downs) != 1:
        return
    inner = weights[downs[0]][0]
    if [weights[leaf] for leaf in branches] == [(sizes.width, inner)] * 2:
        for gate, up in _order_branches(*branches):
            yield _name_maps(leaves, {"gate": gate, "up": up, "down": downs[0]})
    elif [weights[leaf] for leaf in branches] == [(sizes.width, 2 * inner)]:
        orders: tuple[Literal["gate_up", "up_gate"], ...] = ("gate_up", "up_gate")
        for in_turn, order in product((False, True), orders):
            yield replace(_name_maps(leaves, {order: branches[0], "down": downs[0]}), branches=order, in_turn=in_turn)


def _order_branches(one: Leaf, other: Leaf) -> Iterator[tuple[Leaf, Leaf]]:
    """Yield gate and up as names say; in both orders if they say nothing."""
    words = {leaf: {*split_words(leaf.stem)} for leaf in (one, other)}
    for gate, up in ((one, other), (other, one)):
        if not ("up" in words[gate] or "gate" in words[up]):
            yield gate, up


def _name_maps(leaves: list[Leaf], roles: Mapping[str, Leaf]) -> Naming:
    return Naming({f"w_{role}": leaf.path for role, leaf in roles.items()} | _name_biases(leaves, roles))


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


def _name_layer(leaves: list[Leaf], sizes: _Sizes, attentions: Sequence[str]) -> Iterator[Naming]:
    """Yield the namings of a layer with one attention or two, a feed-forward network and its norms."""
    weights = [leaf for leaf in leaves if len(leaf.shape) > 1]
    of_attention = [leaf for leaf in weights if sizes.is_attention(leaf)]
    wide = [leaf for leaf in weights if not sizes.is_attention(leaf)]
    biases = [leaf for leaf in leaves if len(leaf.shape) == 1 and _owns_weight(leaf, weights)]
    norms = _pair_norms([leaf for leaf in leaves if len(leaf.shape) == 1 and leaf not in biases], sizes)
    groups = _split_attentions(of_attention, attentions)
    orders = _order_norms(norms, [*attentions, "feed_forward"])
    if groups is None or not orders:
        return
    parts: list[list[Naming]] = []
    for name, group in zip(attentions, groups, strict=True):
        own = [*group, *(b for b in biases if _owns_weight(b, group))]
        parts.append([naming.nest(name) for naming in _name_attention(own, sizes)])
    own = [*wide, *(b for b in biases if _owns_weight(b, wide))]
    parts.append([naming.nest("feed_forward") for naming in _name_feed_forward(own, sizes)])
    for ordered, chosen in product(orders, [*_combine(parts)]):
        names = {f"norm_{i}.{ours}": leaf.path for i, pair in enumerate(ordered, 1) for ours, leaf in pair.items()}
        joined: Naming | None = Naming(names)
        for part in chosen:
            joined = joined.join(part) if joined else None
        if joined:
            yield joined


def _name_encoder_layer(leaves: list[Leaf], sizes: _Sizes) -> Iterator[Naming]:
    yield from _name_layer(leaves, sizes, ["self_attention"])


def _name_decoder_layer(leaves: list[Leaf], sizes: _Sizes) -> Iterator[Naming]:
    yield from _name_layer(leaves, sizes, ["self_attention", "cross_attention"])


def _name_decoder_only_layer(leaves: list[Leaf], sizes: _Sizes) -> Iterator[Naming]:
    """Yield the namings of a layer with causal attention, a gated network and their two norms."""
    weights = [leaf for leaf in leaves if len(leaf.shape) > 1]
    of_attention = [leaf for leaf in weights if sizes.is_attention(leaf)]
    wide = [leaf for leaf in weights if not sizes.is_attention(leaf)]
    biases = [leaf for leaf in leaves if len(leaf.shape) == 1 and _owns_weight(leaf, weights)]
    gains = [leaf for leaf in leaves if len(leaf.shape) == 1 and leaf not in biases]
    # A norm has no shift here.
    if any(len(list(_name_rms_norm([leaf], sizes))) != 1 for leaf in gains) or len(gains) != 2:
        return
    attention, network = ([*group, *(b for b in biases if _owns_weight(b, group))] for group in (of_attention, wide))
    orders = _order_norms([{"gamma": leaf} for leaf in gains], ["self_attention", "feed_forward"])
    for norms, one, two in product(
        orders, [*_name_attention(attention, sizes)], [*_name_gated_feed_forward(network, sizes)]
    ):
        if joined := one.join(two.nest("feed_forward")):
            names = {f"norm_{i}.gamma": pair["gamma"].path for i, pair in enumerate(norms, 1)}
            yield replace(joined, names={**names, **joined.names}, branches=two.branches, in_turn=two.in_turn)


def _name_decoder_only_model(leaves: list[Leaf], sizes: _Sizes) -> Iterator[Naming]:
    """Yield the namings of a model: layers under a number each, a table, a norm and the map to the vocabulary."""
    collapsed = _collapse(leaves, PROBE["layers"])
    inside = [leaf for leaf in collapsed if "*" in leaf.path]
    rest = [leaf for leaf in collapsed if "*" not in leaf.path]
    outputs = [leaf for leaf in rest if len(leaf.shape) > 1 and leaf.kind != "table" and _says_output(leaf)]
    tables = [leaf for leaf in rest if len(leaf.shape) > 1 and leaf not in outputs]
    gains = [leaf for leaf in rest if len(leaf.shape) == 1]
    # Without a map to the vocabulary it gives hidden states, and no logits.
    if len(tables) != 1 or len(outputs) != 1 or len(gains) != 1 or gains[0].shape != (sizes.width,):
        return
    vocab, width = PROBE["vocab"], sizes.width
    if tables[0].shape != (vocab, width) or _orient(outputs[0], sizes) != (width, vocab):
        return
    is_tied = outputs[0].first == tables[0].first
    ends: dict[str, str | tuple[str, ...]] = {"table": (tables[0].path, outputs[0].path) if is_tied else tables[0].path}
    ends |= {} if is_tied else {"w_vocab": outputs[0].path}
    for naming in _name_decoder_only_layer(inside, sizes):
        yield replace(naming, names={**naming.nest("layers.*").names, **ends, "norm.gamma": gains[0].path})


def _says_output(leaf: Leaf) -> bool:
    """Return True for the map to the vocabulary: a linear map, or a matrix that its name says to be that."""
    said = {"head", "output", "out", "unembed", "unembedding", "logits", "proj", "projection", "classifier"}
    return leaf.kind == "linear" or bool(said & {*split_words(leaf.path)})


def _name_stack(
    leaves: list[Leaf], sizes: _Sizes, layer: Callable[..., Iterator[Naming]], prefix: str
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


def _name_encoder(leaves: list[Leaf], sizes: _Sizes) -> Iterator[Naming]:
    yield from _name_stack(leaves, sizes, _name_encoder_layer, "encoder")


def _name_decoder(leaves: list[Leaf], sizes: _Sizes) -> Iterator[Naming]:
    yield from _name_stack(leaves, sizes, _name_decoder_layer, "decoder")


def _name_model(leaves: list[Leaf], sizes: _Sizes) -> Iterator[Naming]:
    """Yield the namings of a whole model: two stacks, one table or two equal ones, and the output layer."""
    collapsed = _collapse(leaves, PROBE["layers"])
    inside = [leaf for leaf in collapsed if "*" in leaf.path]
    roots = sorted({leaf.path.partition("*")[0] for leaf in inside}, key=lambda root: (_is_decoder(root), root))
    rest = [leaf for leaf in collapsed if "*" not in leaf.path]
    names = _name_ends(rest, sizes)
    if len(roots) != 2 or names is None:
        return
    stacks = [[leaf for leaf in inside if leaf.path.startswith(root)] for root in roots]
    layers = [list(_name_encoder_layer(stacks[0], sizes)), list(_name_decoder_layer(stacks[1], sizes))]
    for one, two in _combine(layers):
        both = one.nest("encoder.*").join(two.nest("decoder.*"))
        if both:
            yield replace(both, names={**both.names, **names})


def _name_ends(leaves: list[Leaf], sizes: _Sizes) -> Names | None:
    """Return the names of what a model has in addition to its stacks; None if something else is there."""
    vocab, width = PROBE["vocab"], sizes.width
    outputs = [leaf for leaf in leaves if leaf.kind == "linear" and leaf.shape == (vocab, width)]
    tables = [leaf for leaf in leaves if leaf.kind != "linear" and leaf.shape == (vocab, width)]
    tied = [leaf for leaf in outputs if leaf.first in {table.first for table in tables}]
    outputs, tables = [leaf for leaf in outputs if leaf not in tied], tables + tied
    places = [leaf for leaf in leaves if leaf.shape == (PROBE["positions"], width)]
    biases = [leaf for leaf in leaves if leaf.shape == (vocab,)]
    norms = _pair_norms([leaf for leaf in leaves if leaf.shape == (width,)], sizes)
    norms.sort(key=lambda pair: _is_decoder(pair["gamma"].path))
    if not tables or len(outputs) > 1 or len(norms) not in (0, 2) or len(biases) > 1:
        return None
    names: dict[str, str | tuple[str, ...]] = {"table": tuple(t.path for t in tables) if tables[1:] else tables[0].path}
    names |= {ours: found[0].path for ours, found in (("w_vocab", outputs), ("b_vocab", biases)) if found}
    if places:
        names["position_table"] = tuple(leaf.path for leaf in places) if places[1:] else places[0].path
    for stack, pair in zip(("encoder", "decoder"), norms, strict=False):
        names |= {f"{stack}_norm.{ours}": leaf.path for ours, leaf in pair.items()}
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


def _match(weights: list[Leaf], roles: Sequence[str], sizes: _Sizes) -> Iterator[tuple[Leaf, ...]]:
    """Yield the weights in the order of roles: as names say, with those that say nothing in every order that fits."""
    found = {leaf.path: find_projection(leaf.stem) for leaf in weights}
    if len({role for role in found.values() if role in roles}) < sum(role in roles for role in found.values()):
        found = dict.fromkeys(found)  # two names mean one role, so neither decides
    for chosen in permutations(weights):
        pairs = list(zip(roles, chosen, strict=True))
        if all(found[leaf.path] in (role, None) or found[leaf.path] not in roles for role, leaf in pairs) and all(
            _orient(leaf, sizes) == sizes.shape(role) for role, leaf in pairs
        ):
            yield chosen


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


def _name_biases(leaves: Sequence[Leaf], roles: Mapping[str, Leaf]) -> dict[str, str]:
    """Return the biases of weights by our names."""
    paths = {leaf.path for leaf in leaves if len(leaf.shape) == 1}
    found = {f"b_{role}": _name_bias_of(leaf) for role, leaf in roles.items()}
    return {ours: theirs for ours, theirs in found.items() if theirs in paths}


def _pair_norms(leaves: list[Leaf], sizes: _Sizes) -> list[dict[str, Leaf]]:
    """Return the gain and the shift of each norm, in the order in which they were made; [] if they do not pair up."""
    owners: dict[str, list[Leaf]] = {}
    for leaf in leaves:
        owners.setdefault(leaf.owner, []).append(leaf)
    by_path = {leaf.path: leaf for leaf in leaves}
    pairs = []
    for group in owners.values():
        naming = next(_name_norm(group, sizes), None)
        if naming is None:
            return []
        pairs.append({ours: by_path[str(theirs)] for ours, theirs in naming.names.items()})
    return pairs


def _order_norms(norms: list[dict[str, Leaf]], parts: Sequence[str]) -> list[list[dict[str, Leaf]]]:
    """Return the orders of a layer's norms that may be that of its parts; [] if it has not one norm for each part.

    Names decide it if they say parts, and numbers if they have any. Otherwise a norm may have been made anywhere.
    """
    if len(norms) != len(parts):
        return []
    wanted = {"self_attention": "self", "cross_attention": "cross", "feed_forward": "feed"}
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
    # A model may have its stacks in classes of their own: decoder.layers.*.cross_attention.
    for depth in range(1, 6):
        groups: dict[str, list[Leaf]] = {}
        for leaf in weights:
            groups.setdefault(".".join(leaf.path.split(".")[:depth]), []).append(leaf)
        if len(groups) == len(attentions) and len({len(group) for group in groups.values()}) == 1:
            ranked = sorted(groups, key=lambda root: find_part(root) == "cross")
            return [groups[root] for root in ranked]
        # The last projection of each may stand next to it, in the same order.
        several, single = (
            [root for root, group in groups.items() if (len(group) > 1) is many] for many in (True, False)
        )
        if len(several) == len(single) == len(attentions) and len({len(groups[root]) for root in several}) == 1:
            joined = {root: [*groups[root], *groups[last]] for root, last in zip(several, single, strict=True)}
            return [joined[root] for root in sorted(joined, key=lambda root: find_part(root) == "cross")]
    # The projections may stand next to the attentions, with a number each: W_q_1 and attention_2.W_o.
    numbered: dict[str, list[Leaf]] = {}
    for leaf in weights:
        numbered.setdefault("".join(re.findall(r"\d+", leaf.path)[:1]), []).append(leaf)
    if (
        len(numbered) == len(attentions)
        and len({len(group) for group in numbered.values()}) == 1
        and "" not in numbered
    ):
        return [numbered[number] for number in sorted(numbered)]
    return None


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
    "decoder_only_model": _name_decoder_only_model,
    "encoder_layer": _name_encoder_layer,
    "decoder_layer": _name_decoder_layer,
    "encoder": _name_encoder,
    "decoder": _name_decoder,
    "transformer": _name_model,
}
