"""Pairs of modules of two models, by equal weights, and the weights that differ."""

import difflib
import itertools
import math
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from goldformer.conformance.trace.passes import Call, NotComparable

#: The number of entries, and the sum of their squares to ten digits: the same for any layout.
Mark = tuple[int, str]
#: A call of mine and the call of theirs that it stands for.
Pair = tuple[Call, Call]
#: Which sides are leaves: a leaf may stand for a container.
_KINDS = ((True, True), (True, False), (False, True))
_NUMBER = re.compile(r"(?<![^.#])\d+(?=$|[.,#])")


def list_numbers(name: str) -> list[int]:
    """Return the numbers of layers and of a call in a name."""
    return [int(part) for part in _NUMBER.findall(name)]


def generalise(name: str) -> str:
    """Return a name with * for each number of a layer or a call."""
    return _NUMBER.sub("*", name)


def group_names(names: Iterable[str]) -> list[str]:
    """Return names, those that differ in the numbers of layers and calls only as one: blocks.0-3.attn."""
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
    if tensor.is_meta:
        raise NotComparable("a model is on the device meta: load its weights into both")
    numbers = tensor.detach() if tensor.is_floating_point() else tensor.detach().abs().double()
    norm = torch.linalg.vector_norm(numbers, dtype=torch.float64)
    return tensor.numel(), f"{float(norm) ** 2:.9e}"


def pair_calls(mine: Sequence[Call], theirs: Sequence[Call]) -> list[Pair]:
    """Pair the leaves that have equal weights, then the containers around the same of them.

    A leaf may stand for a container whose weights are as many and as large, however they are fused. What has no equal
    weights is paired as in other layers, then by sizes.
    """
    calls = (*mine, *theirs)
    marks = {id(p): mark(p) for call in calls for p in call.module.parameters()}
    weights = {id(call): sorted(marks[id(p)] for p in call.module.parameters()) for call in calls}
    total = {name: _add(some) for name, some in weights.items()}
    size = {id(call): (math.prod(call.arrived), math.prod(call.left)) for call in calls}
    sides = [[call for call in side if weights[id(call)]] for side in (mine, theirs)]
    pairs: list[Pair] = []

    def pair(*keys: Callable[[Call], Hashable], kinds: Sequence[tuple[bool, bool]] = _KINDS) -> None:
        for kind in kinds:
            used = [{pair[i].key for pair in pairs} for i in (0, 1)]
            kin = [[call for call in side if call.is_leaf == leaf] for side, leaf in zip(sides, kind, strict=True)]
            pairs.extend(_match(*(_list_free(kin[i], used[i], keys[i % len(keys)]) for i in (0, 1))))

    pair(lambda call: total[id(call)])
    pair(lambda call: weights[id(call)][-1] if 2 * weights[id(call)][-1][0] > total[id(call)][0] else id(call))
    known = {generalise(one.key): generalise(other.key) for one, other in pairs}
    pair(lambda call: known.get(generalise(call.key)), lambda call: generalise(call.key))
    pair(lambda call: (total[id(call)][0], *size[id(call)]))
    inside: list[dict[str, set[int]]] = [{}, {}]
    for i, both in enumerate(pairs):
        for call, sets in zip(both, inside, strict=True):
            for key in call.up[1:]:
                sets.setdefault(key, set()).add(i)
    around = [lambda call, sets=sets: frozenset(sets.get(call.key, {call.key})) for sets in inside]
    pair(*around, kinds=((False, False),))
    return [(one, other) for one, other in pairs if size[id(one)] == size[id(other)] and one.left]


def _add(marks: Sequence[Mark]) -> Mark:
    return sum(n for n, _ in marks), f"{sum(float(squares) for _, squares in marks):.7e}"


def _list_free(calls: Iterable[Call], used: set[str], key: Callable[[Call], Hashable]) -> list[tuple[Hashable, Call]]:
    """Return the calls that are in no pair; of containers around the same, the innermost."""
    free = [(key(call), call) for call in calls if not used & {call.key, *call.up}]
    around = {(same, up) for same, call in free for up in call.up}
    return [(same, call) for same, call in free if (same, call.key) not in around]


def _match(mine: Sequence[tuple[Hashable, Call]], theirs: Sequence[tuple[Hashable, Call]]) -> Iterator[Pair]:
    left, right = ([key for key, _ in side] for side in (mine, theirs))
    blocks = difflib.SequenceMatcher(None, left, right, autojunk=False).get_matching_blocks()
    to = {block.a + i: block.b + i for block in blocks for i in range(block.size)}
    pool: dict[Hashable, list[int]] = {}
    for j in sorted({*range(len(right))} - {*to.values()}):
        pool.setdefault(right[j], []).append(j)
    for i, (key, call) in enumerate(mine):
        if i in to or pool.get(key):
            yield call, theirs[to[i] if i in to else pool[key].pop(0)][1]


def list_parameters(calls: Sequence[Call]) -> dict[str, Tensor]:
    """Return the parameters of the models that were called, by name."""
    roots = {id(call.module): call for call in calls if not call.up}.values()
    named = ((call.key, *pair) for call in roots for pair in call.module.named_parameters())
    return {f"{key}.{name}" if len(roots) > 1 else name: p.detach() for key, name, p in named}


def compare_weights(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> tuple[str, ...]:
    """Say how the weights of two models differ, however they are named, fused or laid out; NotComparable if all do."""
    marks = {id(tensor): mark(tensor) for tensor in (*left.values(), *right.values())}
    have, want = ({marks[id(tensor)] for tensor in side.values()} for side in (left, right))
    one = {name: t for name, t in left.items() if marks[id(t)] not in want}
    other = {name: t for name, t in right.items() if marks[id(t)] not in have}
    fused: list[str] = []
    for whole, parts, whose in ((one, other, "mine"), (other, one, "theirs")):
        for name in [*whole]:
            if found := _find_parts(whole[name], parts, marks):
                fused.append(f"{name} of {whose} is {' + '.join(found)} in one")
                del whole[name]
                for part in found:
                    del parts[part]
    notes = group_names(fused)
    notes += [f"mine has no {name}" for name in group_names(other)]
    notes += [f"theirs has no {name}" for name in group_names(one)]
    constant = [name for name, t in right.items() if bool((t.flatten()[1:] == t.flatten()[:-1]).all())]
    notes += [f"{name} is constant, as before training: a mistake there may not show" for name in group_names(constant)]
    equal = right.keys() - constant - other.keys()
    if right.keys() > {*constant} and not equal:
        raise NotComparable("mine has none of the weights of theirs: load the same weights into both")
    return (f"{len(equal)} of {len(right) - len(constant)} of theirs are in mine", *notes)


def _find_parts(whole: Tensor, parts: dict[str, Tensor], marks: dict[int, Mark]) -> list[str]:
    """Return the two or three neighbours that are an array together, by size and sum of squares; or []."""
    rows = sorted(parts, key=lambda name: parts[name].dim())
    for start, count in itertools.product(range(len(rows)), (2, 3)):
        run = rows[start : start + count]
        if len(run) == count and _add([marks[id(parts[name])] for name in run]) == _add([marks[id(whole)]]):
            return run
    return []


def explain_weights(mine: nn.Module, theirs: nn.Module, owners: Mapping[Mark, str]) -> list[str]:
    """Return how the weights of two paired modules differ, as far as that is certain; `owners` names all of theirs."""
    left, right = ({mark(p): (name, p) for name, p in module.named_parameters()} for module in (mine, theirs))
    new, lost = (
        {key: name for key, (name, _) in one.items() if key not in two} for one, two in ((left, right), (right, left))
    )
    if not new or not lost:
        missing = [f"mine has not the {name} of theirs" for name in lost.values()]
        missing += [f"theirs has not the {name} of mine" for name in new.values()]
        is_same = type(mine) is type(theirs) and not missing
        moved = [(n, p, right[key][1]) for key, (n, p) in left.items() if is_same and not p.equal(right[key][1])]
        return missing + [
            f"{name} is {'the transpose of theirs' if p.dim() > 1 and p.mT.equal(other) else 'theirs in another order'}"
            for name, p, other in moved
            if p.shape == other.shape
        ]
    if sorted(n for n, _ in new) != sorted(n for n, _ in lost):
        return []  # the same numbers may be fused in another way
    return [
        f"{name} is {owners[key]} of theirs" if key in owners else f"{name} has other numbers than theirs"
        for key, name in new.items()
    ]
