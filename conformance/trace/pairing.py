"""Which weights of two models are equal, and which module of one is which of the other."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from goldformer.conformance.trace.passes import Call

#: The number of entries, and the sum of their squares to ten digits: the same for any layout.
Mark = tuple[int, str]
_NUMBER = re.compile(r"(?<![^.])\d+(?=$|[.,#])")


def group_names(names: Iterable[str]) -> list[str]:
    """Return names, those that differ in the number of the layer only as one: blocks.0-3.attn."""
    groups: dict[str, list[list[int]]] = {}
    for name in dict.fromkeys(names):
        groups.setdefault(generalise(name), []).append([int(part) for part in _NUMBER.findall(name)])
    return [_fill(name, rows) for name, rows in groups.items()]


def generalise(name: str) -> str:
    """Return a name with * for each number of a layer."""
    return _NUMBER.sub("*", name)


def _fill(name: str, rows: Sequence[Sequence[int]]) -> str:
    words = iter(_join(sorted(set(column))) for column in zip(*rows, strict=True))
    return re.sub(r"\*", lambda _: next(words), name)


def _join(numbers: Sequence[int]) -> str:
    first, last = numbers[0], numbers[-1]
    is_range = len(numbers) == last - first + 1 > 1
    return f"{first}-{last}" if is_range else ",".join(map(str, numbers))


def mark(tensor: Tensor) -> Mark:
    """Return the mark of a parameter."""
    return tensor.numel(), f"{float(tensor.detach().double().pow(2).sum()):.9e}"


@dataclass(frozen=True, slots=True)
class Pair:
    """A call of mine and the call of theirs that it stands for; a container if it calls other modules."""

    mine: Call
    theirs: Call
    is_leaf: bool


def pair_calls(mine: Sequence[Call], theirs: Sequence[Call]) -> list[Pair]:
    """Pair the leaves that have equal weights, then the containers around the same of them.

    Leaves without an equal one are paired by the largest of their weights, then by sizes; order decides among equals.
    """
    marks = {id(c.module): sorted(map(mark, c.module.parameters())) for c in (*mine, *theirs) if c.is_leaf}
    left, right = ([call for call in calls if marks.get(id(call.module))] for calls in (mine, theirs))
    found: list[tuple[Call, Call]] = []
    keys: tuple[Callable[[Call], Hashable], ...] = (
        lambda call: tuple(marks[id(call.module)]),
        lambda call: marks[id(call.module)][-1],
        lambda call: (
            marks[id(call.module)][-1][0],
            call.arrived and call.arrived.numel(),
            call.left and call.left.numel(),
        ),
    )
    for key in keys:
        found += _match(left, right, key)
        used = {id(call) for pair in found for call in pair}
        left, right = ([call for call in calls if id(call) not in used] for calls in (left, right))
    pairs = [Pair(*pair, is_leaf=True) for pair in found]
    return [pair for pair in (*pairs, *_pair_containers(mine, theirs, pairs)) if _fits(pair)]


def _match(
    mine: Sequence[Call], theirs: Sequence[Call], key: Callable[[Call], Hashable]
) -> Iterator[tuple[Call, Call]]:
    """Pair calls of equal keys: first those in the same order, then the others of a key one after the other."""
    left, right = ([key(call) for call in calls] for calls in (mine, theirs))
    blocks = difflib.SequenceMatcher(None, left, right, autojunk=False).get_matching_blocks()
    to = {block.a + i: block.b + i for block in blocks for i in range(block.size)}
    pool: dict[Hashable, list[int]] = {}
    for j in sorted({*range(len(right))} - {*to.values()}):
        pool.setdefault(right[j], []).append(j)
    for i, call in enumerate(mine):
        if i in to or pool.get(left[i]):
            yield call, theirs[to[i] if i in to else pool[left[i]].pop(0)]


def _pair_containers(mine: Sequence[Call], theirs: Sequence[Call], leaves: Sequence[Pair]) -> list[Pair]:
    """Pair the innermost containers around the same leaves."""
    around: dict[frozenset[int], tuple[list[Call], list[Call]]] = {}
    for side, calls in enumerate((mine, theirs)):
        inside: dict[str, set[int]] = {}
        for i, pair in enumerate(leaves):
            for key in (pair.mine, pair.theirs)[side].up:
                inside.setdefault(key, set()).add(i)
        for call in calls:  # those that end first are the innermost
            if call.key in inside and call.up:
                around.setdefault(frozenset(inside[call.key]), ([], []))[side].append(call)
    return [Pair(one[0], two[0], is_leaf=False) for one, two in around.values() if one and two]


def _fits(pair: Pair) -> bool:
    sizes = [tuple(shape and shape.numel() for shape in (c.arrived, c.left)) for c in (pair.mine, pair.theirs)]
    return sizes[0] == sizes[1] and sizes[0][1] is not None


# Weights


@dataclass(frozen=True, slots=True)
class Weights:
    """How many arrays of theirs mine has, of how many that are no constants, and what is to be said of the others."""

    equal: int
    total: int
    notes: tuple[str, ...]


def compare_weights(mine: Sequence[nn.Module], theirs: Sequence[nn.Module]) -> Weights:
    """Compare the weights of two models, however they are named, fused or laid out."""
    left, right = (
        {name: p.detach() for root in roots for name, p in root.named_parameters()} for roots in (mine, theirs)
    )
    marks = {id(tensor): mark(tensor) for tensor in (*left.values(), *right.values())}
    have, want = ({marks[id(tensor)] for tensor in side.values()} for side in (left, right))
    one, other = (
        {n: t for n, t in side.items() if marks[id(t)] not in has} for side, has in ((left, want), (right, have))
    )
    notes: list[str] = []
    for whole, parts, whose in ((one, other, "mine"), (other, one, "theirs")):
        fused = {name: names for name in [*whole] if (names := _find_parts(name, whole, parts, marks))}
        notes += [f"{name} of {whose}: {first} in one" for name, first in _say_once(fused)]
    apart: dict[str, str] = {}
    for name, tensor in [*one.items()]:
        same = next((n for n, t in other.items() if t.numel() == tensor.numel()), None)
        if same is not None:
            size = other.pop(same).double().reshape(tensor.shape)
            apart[name] = f"{float((one.pop(name).double() - size).norm() / size.norm()):.0e}"
    notes += [f"{name} differs from theirs by {first} of its size" for name, first in _say_once(apart)]
    notes += [f"mine has no {name}" for name in group_names(other)] + [
        f"theirs has no {name}" for name in group_names(one)
    ]
    trained = {name: t for name, t in right.items() if t.numel() > 1 and not bool((t == t.flatten()[0]).all())}
    if constant := group_names(name for name in right if name not in trained):
        notes.append(f"all entries are equal, as before training, so a mistake may not show: {', '.join(constant)}")
    return Weights(sum(marks[id(t)] in have for t in trained.values()), len(trained), tuple(notes))


def _say_once(found: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Yield names of all layers as one, with what is found for the first of them."""
    firsts = {generalise(name): text for name, text in reversed(found.items())}
    return zip(group_names(found), (firsts[name] for name in dict.fromkeys(map(generalise, found))), strict=True)


def _find_parts(name: str, whole: dict[str, Tensor], parts: dict[str, Tensor], marks: Any) -> str:
    """Return the neighbours that are an array together, by size and sum of squares, and take all out; or ""."""
    size, squares = marks[id(whole[name])]
    rows = [other for other, tensor in parts.items() if tensor.dim() == whole[name].dim()]
    for start, end in ((i, j) for i in range(len(rows)) for j in range(i + 2, min(i + 4, len(rows) + 1))):
        run = [marks[id(parts[other])] for other in rows[start:end]]
        if sum(n for n, _ in run) == size and abs(sum(float(s) for _, s in run) / float(squares) - 1) < 1e-8:
            for other in rows[start:end]:
                del parts[other]
            del whole[name]
            return " + ".join(rows[start:end])
    return ""


def explain_weights(mine: nn.Module, theirs: nn.Module) -> list[str]:
    """Return how the weights of two paired modules differ."""
    left, right = ({mark(p): (name, p) for name, p in module.named_parameters()} for module in (mine, theirs))
    if changed := [name for key, (name, _) in left.items() if key not in right and name in dict(right.values())]:
        return [f"its {', '.join(changed)} is not that of theirs"]
    for has, want, whose, others in ((left, right, "theirs", "mine"), (right, left, "mine", "theirs")):
        if missing := [name for key, (name, _) in want.items() if key not in has]:
            return [f"{whose} has a {', '.join(missing)} that {others} has not"]
    moved = [(*left[key], other) for key, (_, other) in right.items() if left[key][1].shape == other.shape]
    return [
        f"its {name} is theirs {'transposed' if one.dim() == 2 and torch.equal(one.mT, other) else 'in another order'}"
        for name, one, other in moved
        if not torch.equal(one, other)
    ]
