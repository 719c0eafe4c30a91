"""Pairs of modules of two models, by equal weights, and the weights that differ."""

import difflib
import itertools
import math
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence

import torch
from torch import Tensor, nn

from goldformer.conformance.trace.passes import Call, NotComparable

#: The number of entries, and the sum of their squares to ten digits: the same for any layout.
Mark = tuple[int, str]
#: A call of mine and the call of theirs that it stands for.
Pair = tuple[Call, Call]
_NUMBER = re.compile(r"(?<![^.])\d+(?=$|[.,#])")


def list_numbers(name: str) -> list[int]:
    """Return the numbers of layers in a name."""
    return [int(part) for part in _NUMBER.findall(name)]


def generalise(name: str) -> str:
    """Return a name with * for each number of a layer."""
    return _NUMBER.sub("*", name)


def group_names(names: Iterable[str]) -> list[str]:
    """Return names, those that differ in the number of the layer only as one: blocks.0-3.attn."""
    groups: dict[str, list[list[int]]] = {}
    for name in names:
        groups.setdefault(generalise(name), []).append(list_numbers(name))
    found = []
    for name, rows in groups.items():
        words = []
        for numbers in (sorted(set(column)) for column in zip(*rows, strict=True)):
            is_range = len(numbers) == numbers[-1] - numbers[0] + 1 > 1
            words.append(f"{numbers[0]}-{numbers[-1]}" if is_range else ",".join(map(str, numbers)))
        found.append(name.replace("*", "{}").format(*words))
    return found


def mark(tensor: Tensor) -> Mark:
    """Return the mark of a parameter."""
    norm = torch.linalg.vector_norm(tensor.detach(), dtype=torch.float64)
    return tensor.numel(), f"{float(norm) ** 2:.9e}"


def pair_calls(mine: Sequence[Call], theirs: Sequence[Call]) -> list[Pair]:
    """Pair the leaves that have equal weights, then the containers around the same of them."""
    marks = {id(c.module): sorted(map(mark, c.module.parameters())) for c in (*mine, *theirs) if c.is_leaf}
    left, right = ([call for call in calls if marks.get(id(call.module))] for calls in (mine, theirs))
    size = {id(c): (math.prod(c.arrived), math.prod(c.left)) for c in (*mine, *theirs)}
    keys: list[Callable[[Call], Hashable]] = [lambda call: tuple(marks[id(call.module)])]
    keys += [lambda call: marks[id(call.module)][-1], lambda call: (marks[id(call.module)][-1][0], *size[id(call)])]
    pairs: list[Pair] = []
    for key in keys:
        pairs += _match(left, right, key)
        used = {id(call) for pair in pairs for call in pair}
        left, right = ([call for call in calls if id(call) not in used] for calls in (left, right))
    pairs += _pair_containers(mine, theirs, pairs)
    return [(one, other) for one, other in pairs if size[id(one)] == size[id(other)] and one.left]


def _match(mine: Sequence[Call], theirs: Sequence[Call], key: Callable[[Call], Hashable]) -> Iterator[Pair]:
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
    around: dict[frozenset[int], tuple[list[Call], list[Call]]] = {}
    for side, calls in enumerate((mine, theirs)):
        inside: dict[str, set[int]] = {}
        for i, pair in enumerate(leaves):
            for key in pair[side].up:
                inside.setdefault(key, set()).add(i)
        for call in calls:  # those that end first are the innermost
            if call.key in inside and call.up:
                around.setdefault(frozenset(inside[call.key]), ([], []))[side].append(call)
    return [(one[0], two[0]) for one, two in around.values() if one and two]


def compare_weights(mine: Sequence[nn.Module], theirs: Sequence[nn.Module]) -> tuple[str, ...]:
    """Say how the weights of two models differ, however they are named, fused or laid out; NotComparable if all do."""
    left, right = ({n: p.detach() for root in roots for n, p in root.named_parameters()} for roots in (mine, theirs))
    marks = {id(tensor): mark(tensor) for tensor in (*left.values(), *right.values())}
    have, want = ({marks[id(tensor)] for tensor in side.values()} for side in (left, right))
    one = {name: t for name, t in left.items() if marks[id(t)] not in want}
    other = {name: t for name, t in right.items() if marks[id(t)] not in have}
    notes: list[str] = []
    for whole, parts, whose in ((one, other, "mine"), (other, one, "theirs")):
        for name in [*whole]:
            if found := _find_parts(whole[name], parts, marks):
                notes.append(f"{name} of {whose} is {' + '.join(found)} in one")
                del whole[name]
                for part in found:
                    del parts[part]
    notes += [f"mine has no {name}" for name in group_names(other)]
    notes += [f"theirs has no {name}" for name in group_names(one)]
    constant = [name for name, t in right.items() if t.numel() == 1 or bool((t == t.flatten()[0]).all())]
    notes += [f"{name} is constant, as before training: a mistake there may not show" for name in group_names(constant)]
    equal = [name for name in right.keys() - constant if marks[id(right[name])] in have]
    if right.keys() > {*constant} and not equal:
        raise NotComparable("mine has none of the weights of theirs: load the same weights into both")
    return (f"{len(equal)} of {len(right) - len(constant)} of theirs are in mine", *notes)


def _find_parts(whole: Tensor, parts: dict[str, Tensor], marks: dict[int, Mark]) -> list[str]:
    """Return the two or three neighbours that are an array together, by size and sum of squares; or []."""
    size, squares = marks[id(whole)]
    rows = [name for name, tensor in parts.items() if tensor.dim() == whole.dim()]
    for start, count in itertools.product(range(len(rows)), (2, 3)):
        run = [marks[id(parts[name])] for name in rows[start : start + count]]
        if sum(n for n, _ in run) == size and abs(sum(float(s) for _, s in run) / float(squares) - 1) < 1e-8:
            return rows[start : start + count]
    return []


def explain_weights(mine: nn.Module, theirs: nn.Module) -> list[str]:
    """Return how the weights of two paired modules differ."""
    left, right = ({mark(p): (name, p) for name, p in module.named_parameters()} for module in (mine, theirs))
    for has, want, words in (
        (left, right, "mine has not the {} of theirs"),
        (right, left, "theirs has not the {} of mine"),
    ):
        if missing := [name for key, (name, _) in want.items() if key not in has]:
            return [words.format(" and ".join(missing))]
    moved = [name for key, (name, p) in left.items() if p.shape == right[key][1].shape and not p.equal(right[key][1])]
    return [f"{name} has the numbers of theirs in another order, perhaps transposed" for name in moved]
