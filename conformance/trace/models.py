"""Trace two models: each pair of modules gets theirs' input and hands on theirs' output, so each piece stands alone."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import torch
from torch import Tensor

from goldformer.conformance.trace.arrays import equals, find_factor, find_order, measure_ratio
from goldformer.conformance.trace.inside import (
    Operation,
    Piece,
    Recorder,
    describe_change,
    describe_line,
    find_source,
    meet,
    name_causes,
)
from goldformer.conformance.trace.pairing import (
    Mark,
    Pair,
    compare_weights,
    explain_weights,
    list_numbers,
    list_parameters,
    mark,
    pair_calls,
)
from goldformer.conformance.trace.passes import LOW, WHOLE, AllDouble, Call, NotComparable, Place, Visit, run_pass
from goldformer.conformance.trace.report import Finding, Item, Trace, group_items

#: The ratio below which nothing is decidable in half types: one rounding more or less gives up to 1.3.
HALF_LIMIT: Final = 3.0
#: The most kinds of pieces that are looked into, and the most findings whose function or class is checked, in seconds.
_MOST, _MOST_CHECKED = 12, 2
_SIDES: Final = {"in": "input", "out": "output"}
#: The time of a trace in runs of theirs, and from where on it is said: seconds, and bytes.
_RUNS, _LONG, _LARGE = 20, 10.0, 1 << 30


def trace(
    mine: Callable[..., Any], theirs: Callable[..., Any], *inputs: Any,
    layers: range | None = None, tell: Callable[[str], Any] | None = None,
) -> Trace:  # fmt: skip
    """Compare two models, or callables around models, piece by piece on the same inputs.

    Truth is theirs with every cast raised to float64; a ratio is the error of mine ÷ that
    of theirs, or ÷ one rounding if theirs has less. `layers` are the only ones to look into, and `tell` gets time and
    memory of a large run. NotComparable if nothing can be said.
    """
    calls = _run("mine", mine, inputs)
    kept: dict[Place, Tensor] = {}
    before = time.perf_counter()
    originals = _run("theirs", theirs, inputs, _keep(kept, layers))
    seconds, size = _RUNS * (time.perf_counter() - before), 2 * sum(tensor.nbytes for tensor in kept.values())
    if tell and (seconds > _LONG or size > _LARGE):
        tell(f"this takes about {seconds:.0f} s and {size / _LARGE:.1f} GiB; the layers 0-3 alone take less memory")
    states = [list_parameters(side) for side in (originals, calls)]
    weights = [[p.dtype for p in state.values() if p.is_floating_point()] for state in states]
    dtype, other = (max(dtypes, key=lambda d: torch.finfo(d).eps, default=torch.float32) for dtypes in weights)
    if dtype != other or dtype not in LOW:
        raise NotComparable(f"mine has weights in {other}, theirs in {dtype}: call float() on both")
    notes = compare_weights(*states[::-1])
    longest = max((max(call.arrived) for call in originals if call.arrived), default=1)
    # Sums of n numbers in another order are up to √n roundings apart.
    limit = math.sqrt(longest) if dtype == torch.float32 else HALF_LIMIT
    bench = _Bench(mine, theirs, inputs, kept, calls, originals, limit, torch.finfo(dtype).eps / 2)
    bench.require_repeatable()
    pairs = pair_calls(calls, originals)
    items = bench.measure([pair for pair in pairs if pair[0].is_leaf or pair[1].is_leaf])
    for whose, places in (("theirs", kept), ("mine", [item.place for item in items])):
        if layers is None and (WHOLE, "out") not in places:
            raise NotComparable(f"{whose} returns no tensor of floats, tuple or dictionary of them: return its logits")
    if not items:
        raise NotComparable("mine and theirs have no such layers that are paired: name others")
    if bench.list_accused(items):
        items = bench.separate(pairs)
    return Trace(str(dtype).removeprefix("torch."), limit, tuple(items), bench.explain(items), notes)


def _run(whose: str, model: Callable[..., Any], inputs: Sequence[Any], visit: Visit | None = None) -> list[Call]:
    try:
        calls = run_pass(model, inputs, visit)
    except Exception as error:
        raise NotComparable(f"{whose} raises {type(error).__name__} for these inputs: {error}") from error
    if not calls:
        raise NotComparable(f"{whose} calls no nn.Module: give the model, or a function that calls it")
    if any(call.module.training for call in calls if not call.up):
        raise NotComparable(f"{whose} is in training mode, where dropout draws random numbers: call its eval()")
    return calls


def _keep(kept: dict[Place, Tensor], layers: range | None) -> Visit:
    last: list[tuple[Tensor, object, Tensor]] = []

    def visit(place: Place, tensor: Tensor) -> None:
        if layers is None or any(number in layers for number in list_numbers(place[0].partition("#")[0])[:1]):
            version = object() if tensor.is_inference() else tensor._version  # whether that is written to is unknown
            known = next((copy for one, seen, copy in last if one is tensor and seen == version), None)
            kept[place] = tensor.detach().clone() if known is None else known
            last[:] = [(tensor, version, kept[place]), *last[:3]]

    return visit


class _Bench:
    def __init__(
        self, mine: Any, theirs: Any, inputs: Sequence[Any], kept: dict[Place, Tensor],
        calls: Sequence[Call], originals: Sequence[Call], limit: float, unit: float,
    ) -> None:  # fmt: skip
        self.mine, self.theirs, self.inputs, self.kept = mine, theirs, inputs, kept
        self.calls, self.originals = ({call.key: call for call in one} for one in (calls, originals))
        self.limit, self.unit, self.tolerance = limit, unit, limit * unit
        self.to: dict[str, Pair] = {}

    def require_repeatable(self) -> None:
        """Raise NotComparable if theirs gives other numbers when it runs again: a second run measures its errors."""
        changed: list[str] = []

        def visit(place: Place, tensor: Tensor) -> None:
            known = self.kept.get(place, tensor)
            if known.equal(tensor):
                return
            if known.shape != tensor.shape or measure_ratio(tensor, known, known * 0, self.unit) > self.limit:
                changed.append(place[0])

        _run("theirs", self.theirs, self.inputs, visit)
        if changed:
            what = f"theirs gives other numbers when it runs again, first at {changed[0]}"
            raise NotComparable(f"{what}: draw no random numbers in it, and begin each run with an empty cache")

    def list_accused(self, items: Sequence[Item]) -> list[Item]:
        return [item for item in items if item.ratio > self.limit]

    def separate(self, pairs: list[Pair]) -> list[Item]:
        """Measure with containers forced too, but for modules that are another part of the model in mine.

        Such a one, as an embedding that scales by itself or not, is wrong, and without it less is wrong elsewhere.
        """
        items = self.measure(pairs)
        for group in group_items(self.list_accused(items), self.limit)[:_MOST]:
            keys = {item.place[0] for item in group}
            fewer = [pair for pair in pairs if pair[0].key not in keys]
            wrong = {item.place for item in self.list_accused(items) if item.place[0] not in keys}
            if keys == {WHOLE} or not wrong or len(fewer) == len(pairs):
                continue
            others = self.measure(fewer)
            if {item.place for item in self.list_accused(others)} < wrong:
                pairs, items = fewer, others
        self.to = {pair[0].key: pair for pair in pairs}
        return items

    def measure(self, pairs: Sequence[Pair]) -> list[Item]:
        """Force the pairs, and return what is measured at each of them in mine's order."""
        self.to = {pair[0].key: pair for pair in pairs}
        errors = self._measure_theirs()
        items: list[Item] = []

        def visit(place: Place, tensor: Tensor) -> Tensor | None:
            theirs = self._find_theirs(place)
            if theirs is None:
                return None
            seen, new = self._force(theirs, tensor)
            ratio = measure_ratio(seen, self.kept[theirs], errors[theirs], self.unit)
            note = self._find_other(seen, theirs) if ratio > self.limit else ""
            pair = self.to.get(place[0])
            around = [key for key in pair[0].up if key in self.to] if pair and place[1] == "in" else [place[0]]
            scope, after = around[-1] if around else WHOLE, items[-1].place if items else None
            items.append(Item(place, theirs, scope, after, ratio, pair is not None and pair[0].is_leaf, note))
            return new

        run_pass(self.mine, self.inputs, visit)
        # The calls of one module are judged together: a step of one token has few rows, whose errors are uneven.
        calls: dict[tuple[str, ...], list[float]] = {}
        keys = [(*(key.partition("#")[0] for key, _ in (item.place, item.theirs)), item.place[1]) for item in items]
        for key, item in zip(keys, items, strict=True):
            calls.setdefault(key, []).append(item.ratio)
        return [
            replace(item, ratio=math.hypot(*calls[key]) / math.sqrt(len(calls[key])))
            for key, item in zip(keys, items, strict=True)
        ]

    def _find_theirs(self, place: Place) -> Place | None:
        key, side = place
        theirs: Place = (self.to[key][1].key if key in self.to else WHOLE, side)
        return theirs if (key == WHOLE or key in self.to) and theirs in self.kept else None

    def _force(self, theirs: Place, tensor: Tensor) -> tuple[Tensor, Tensor]:
        """Return a tensor of mine in theirs' order, and what replaces it: theirs' in mine's order."""
        given = self.kept[theirs]
        if tensor.numel() != given.numel():
            sizes = f"{tuple(tensor.shape)} at {theirs[0]}, theirs {tuple(given.shape)}"
            raise NotComparable(f"mine has {sizes}: give both the same inputs, and return the same output")
        if tensor.shape == given.shape and (theirs[0] == WHOLE or len(set(given.shape)) == given.dim()):
            return tensor, given.to(tensor.dtype, copy=True)
        order, new = find_order(tensor, given), torch.empty_like(tensor).flatten()
        new[order.flatten()] = given.flatten().to(tensor.dtype)
        return tensor.flatten()[order], new.reshape(tensor.shape)

    def _hand_on(self, place: Place, tensor: Tensor) -> Tensor | None:
        theirs = self._find_theirs(place)
        return self._force(theirs, tensor)[1] if theirs else None

    def _measure_theirs(self) -> dict[Place, Tensor]:
        keys = {WHOLE, *(theirs.key for _, theirs in self.to.values())}
        errors: dict[Place, Tensor] = {}

        def visit(place: Place, tensor: Tensor) -> Tensor | None:
            if place[0] not in keys or place not in self.kept:
                return None
            given = self.kept[place].double()
            errors[place] = (tensor.double() - given).float()
            return given

        default = torch.get_default_dtype()
        try:
            torch.set_default_dtype(torch.float64)
            with AllDouble():
                _run("theirs in float64", self.theirs, self.inputs, visit)
        finally:
            torch.set_default_dtype(default)
        return errors

    def _find_other(self, tensor: Tensor, theirs: Place) -> str:
        for place, given in self.kept.items():
            is_other = place != theirs and place[0] != WHOLE and given.numel() == tensor.numel()
            if is_other and equals(tensor, given, self.tolerance):
                return f"theirs' {_SIDES[place[1]]} of {place[0]}"
        factor = find_factor(tensor, self.kept[theirs], self.tolerance)
        return f"{factor:.6g} × theirs" if factor else ""

    def explain(self, items: Sequence[Item]) -> tuple[Finding, ...]:
        """Return what differs inside each kind of accused piece; kinds of one line of mine are one finding."""
        groups = group_items(self.list_accused(items), self.limit)[:_MOST]
        if not groups:
            return ()
        runs = self._record([items[0] for items in groups])
        owners = {mark(p): name for name, p in list_parameters([*self.originals.values()]).items()}
        handed = self._name_handed(runs, owners)
        pieces: dict[tuple[str, str], Piece] = {}
        found: dict[str, Finding] = {}
        for group in groups:
            first, scopes = group[0], self._find_scopes(group[0])
            if scopes not in pieces:
                sides = [run.operations[scope] for run, scope in zip(runs, scopes, strict=True)]
                pieces[scopes] = Piece(sides, [run.handed for run in runs], self.tolerance)
            finding, functions = self._explain_piece(group, pieces[scopes], runs, handed, owners)
            key = finding.mine or finding.theirs or first.label
            if key in found:
                found[key] = replace(found[key], items=(*found[key].items, *group))
                continue
            if all(functions) and len(found) < _MOST_CHECKED and not finding.facts:
                calls = self.calls.get(scopes[0]), self.originals.get(scopes[1])
                kinds = (type(call.module) if call else None for call in calls)
                is_alone = sum(each[0].label.startswith(first.scope) for each in groups) == 1
                causes = name_causes(*(operation.function for operation in functions if operation))
                finding = replace(finding, facts=tuple(causes or (name_causes(*kinds) if is_alone else [])))
            found[key] = finding
        return tuple(found.values())

    def _explain_piece(
        self, group: list[Item], piece: Piece, runs: Sequence[Recorder], handed: list[dict[int, str]],
        owners: dict[Mark, str],
    ) -> tuple[Finding, tuple[Operation | None, Operation | None]]:  # fmt: skip
        """Return the lines and the facts of a kind of piece, and the first operations that differ."""
        first, places = group[0], (group[0].place, group[0].theirs)
        own, made, names = piece.find_frontier(0, runs[0].places[places[0]])
        other, constants, other_names = piece.find_frontier(1, runs[1].places[places[1]])
        one, two = meet(own, other)
        facts = [f"the value is {first.note}"] if first.note else []
        origin = handed[1].get(runs[1].places[places[1]])
        if not other and origin not in (None, f"{_SIDES['in']} of {first.place[0]}"):
            facts.append(f"theirs takes {origin} there")
        modules = [call.module for call in self.to.get(first.place[0], ())]
        weights = explain_weights(modules[0], modules[1], owners) if first.is_leaf else []
        facts = facts + weights or describe_change(own, other, (names, other_names), handed, self.tolerance)
        source = find_source(one, made) if one and constants and not facts else None
        if source:
            buffers = {
                id(b): f"{key}.{n}" for key, c in self.calls.items() for n, b in c.module.named_buffers(recurse=False)
            }
            constant = next((buffers[i] for i in source.inputs if i in buffers), "a constant")
            facts = [f"{constant} has numbers that theirs does not use there"]
        called = [run.lines.get((place[0], "in"), "") for run, place in zip(runs, places, strict=True)]
        lines = [
            describe_line(operation.trail[0]) if operation and not weights else line
            for operation, line in zip((source or one, two), called, strict=True)
        ]
        return Finding(tuple(group), lines[0], lines[1], tuple(facts)), (one, two)

    def _name_handed(self, runs: Sequence[Recorder], owners: dict[Mark, str]) -> list[dict[int, str]]:
        """Return for each side the names of weights, and of the tensors that modules got and gave; mine's for both."""
        names = {theirs.key: key for key, (_, theirs) in self.to.items()}
        handed = [dict[int, str](), dict[int, str]()]
        for known, run in zip(handed, runs, strict=True):
            for i, place in run.handed.items():
                # What is handed on as it is has the name of its first place in theirs.
                theirs = (self.to[place[0]][1].key, place[1]) if run is runs[0] and place[0] in self.to else place
                key, side = runs[1].handed.get(runs[1].places.get(theirs, 0), theirs)
                known[i] = f"{_SIDES[side]} of {names[key]}" if key in names else "the inputs"
        for known, calls in zip(handed, (self.calls, self.originals), strict=True):
            modules = {call.module for call in calls.values() if not call.up}
            marks = {id(p): mark(p) for module in modules for p in module.parameters()}
            known.update((i, owners[seen]) for i, seen in marks.items() if seen in owners)
        return handed

    def _find_scopes(self, item: Item) -> tuple[str, str]:
        return item.scope, self.to[item.scope][1].key if item.scope in self.to else WHOLE

    def _record(self, items: Sequence[Item]) -> tuple[Recorder, Recorder]:
        one, two = (frozenset(names) for names in zip(*map(self._find_scopes, items), strict=True))
        keys = frozenset(theirs.key for _, theirs in self.to.values())
        mine, theirs = Recorder(frozenset(self.to), one), Recorder(keys, two)
        return mine.record(self.mine, self.inputs, self._hand_on), theirs.record(self.theirs, self.inputs)
