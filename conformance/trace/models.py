"""Trace two models: each pair of modules gets theirs' input and hands on theirs' output, so each piece stands alone."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import torch
from torch import Tensor, nn

from goldformer.conformance.trace.causes import name_causes
from goldformer.conformance.trace.measure import equals, find_factor, find_order, measure_ratio
from goldformer.conformance.trace.operations import Recorded, describe_change, find_frontiers, record
from goldformer.conformance.trace.pairing import Pair, compare_weights, explain_weights, pair_calls
from goldformer.conformance.trace.passes import LOW, WHOLE, Call, NotComparable, Place, Visit, hold_in_double, run_pass
from goldformer.conformance.trace.report import Finding, Item, Trace, group_items

#: The ratio below which nothing is decidable in half types: one rounding more or less gives up to 1.3.
HALF_LIMIT: Final = 3.0
#: The most kinds of pieces that are looked into, and the most findings whose function or class is checked, in seconds.
_MOST, _MOST_CHECKED = 12, 2


def trace(mine: Callable[..., Any], theirs: Callable[..., Any], *inputs: Any) -> Trace:
    """Compare two models, or callables around models, piece by piece on the same inputs.

    Both have the same weights. Truth is theirs with every cast raised to float64; a ratio is the error of mine ÷ that
    of theirs, or ÷ one rounding if theirs has less. NotComparable if nothing can be said.
    """
    start = time.perf_counter()
    calls = _run("mine", mine, inputs)
    kept: dict[Place, Tensor] = {}
    originals = _run("theirs", theirs, inputs, _keep(kept))
    dtype = _find_dtype(calls, originals)
    weights = compare_weights(_list_roots(calls), _list_roots(originals))
    if weights.total and not weights.equal:
        raise NotComparable("mine has none of the weights of theirs: load the same weights into both")
    if (WHOLE, "out") not in kept:
        raise NotComparable("theirs returns no tensor of floats: return its logits, or its last hidden states")
    longest = max((max(call.arrived) for call in originals if call.arrived), default=1)
    # Sums of n numbers in another order are up to √n roundings apart.
    limit, unit = math.sqrt(longest) if dtype == "float32" else HALF_LIMIT, torch.finfo(getattr(torch, dtype)).eps / 2
    bench = _Bench(mine, theirs, inputs, kept, calls, originals, limit, unit)
    pairs = pair_calls(calls, originals)
    items = bench.measure([pair for pair in pairs if pair.is_leaf])
    if any(item.ratio > bench.limit for item in items):
        items = bench.separate(pairs) or bench.measure([pair for pair in pairs if pair.is_leaf])
    return Trace(dtype, bench.limit, tuple(items), bench.explain(items), weights, time.perf_counter() - start)


def _run(whose: str, model: Callable[..., Any], inputs: Sequence[Any], visit: Visit | None = None) -> list[Call]:
    """Run a model and return its calls; NotComparable if it raises or calls no module."""
    try:
        calls = run_pass(model, inputs, visit)
    except NotComparable as error:
        raise NotComparable(f"{whose}: {error}") from None
    except Exception as error:
        raise NotComparable(f"{whose} raises {type(error).__name__} for these inputs: {error}") from error
    if not calls:
        raise NotComparable(f"{whose} calls no nn.Module: give the model, or a function that calls it")
    return calls


def _keep(kept: dict[Place, Tensor]) -> Visit:
    """Return a visitor that keeps each tensor; one that goes from module to module is kept once."""
    last: list[tuple[Tensor, int, Tensor]] = []

    def visit(place: Place, tensor: Tensor) -> None:
        known = next((copy for one, version, copy in last if one is tensor and version == tensor._version), None)
        kept[place] = tensor.detach().clone() if known is None else known
        last[:] = [(tensor, tensor._version, kept[place]), *last[:3]]

    return visit


def _list_roots(calls: Sequence[Call]) -> list[nn.Module]:
    return list({id(call.module): call.module for call in calls if not call.up}.values())


def _find_dtype(mine: Sequence[Call], theirs: Sequence[Call]) -> str:
    """Return the coarsest dtype of the weights, the same in both models; NotComparable for other dtypes."""
    dtypes = [
        {p.dtype for r in _list_roots(calls) for p in r.parameters() if p.is_floating_point()}
        for calls in (mine, theirs)
    ]
    one, other = (max(found or {torch.float32}, key=lambda dtype: torch.finfo(dtype).eps) for found in dtypes)
    if one != other or one not in LOW:
        raise NotComparable(
            f"mine has weights in {one}, theirs in {other}: call float() on both, truth is float64 by itself"
        )
    return str(one).removeprefix("torch.")


class _Bench:
    """Both models with the tensors of theirs, ready to be forced."""

    def __init__(
        self, mine: Any, theirs: Any, inputs: Sequence[Any], kept: dict[Place, Tensor],
        calls: Sequence[Call], originals: Sequence[Call], limit: float, unit: float,
    ) -> None:  # fmt: skip
        self.mine, self.theirs, self.inputs, self.kept = mine, theirs, inputs, kept
        self.calls, self.originals = ({call.key: call for call in one} for one in (calls, originals))
        self.roots, self.limit, self.unit = _list_roots(originals), limit, unit
        self.to: dict[str, Pair] = {}

    def separate(self, pairs: Sequence[Pair]) -> list[Item]:
        """Measure with containers forced too, but for those that are another part of the model in mine.

        A container is another part if what enters or leaves it is some other tensor of theirs. Return [] if nothing is
        wrong then.
        """
        while True:
            items = self.measure(pairs)
            accused = [item for item in items if item.ratio > self.limit]
            other = {item.place[0] for item in accused if item.note.startswith("theirs") and not item.is_leaf} - {WHOLE}
            if not other:
                return items if accused else []
            pairs = [pair for pair in pairs if pair.mine.key not in other]

    def measure(self, pairs: Sequence[Pair]) -> list[Item]:
        """Force the pairs, and return what is measured at each of them in mine's order."""
        self.to = {pair.mine.key: pair for pair in pairs}
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
            around = [key for key in pair.mine.up if key in self.to] if pair and place[1] == "in" else [place[0]]
            scope, after = around[-1] if around else WHOLE, items[-1].place if items else None
            items.append(Item(place, theirs, scope, after, ratio, pair is not None and pair.is_leaf, note))
            return new

        run_pass(self.mine, self.inputs, visit)
        return items

    def _find_theirs(self, place: Place) -> Place | None:
        """Return where theirs has the tensor of a place in mine; None for a place that is not compared."""
        key, side = place
        if key != WHOLE and key not in self.to:
            return None
        theirs: Place = (self.to[key].theirs.key if key in self.to else WHOLE, side)
        return theirs if theirs in self.kept else None

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

    def _measure_theirs(self) -> dict[Place, Tensor]:
        """Return truth − theirs wherever theirs is forced, with truth in float64."""
        keys = {WHOLE, *(pair.theirs.key for pair in self.to.values())}
        errors: dict[Place, Tensor] = {}

        def visit(place: Place, tensor: Tensor) -> Tensor | None:
            if place[0] not in keys:
                return None
            given = self.kept[place].double()
            errors[place] = (tensor.double() - given).float()
            return given

        with hold_in_double(self.roots):
            run_pass(self.theirs, self.inputs, visit)
        return errors

    def _find_other(self, tensor: Tensor, theirs: Place) -> str:
        """Return which other tensor of theirs this one is, or its factor, or ""."""
        for place, given in self.kept.items():
            is_other = place != theirs and place[0] != WHOLE and given.numel() == tensor.numel()
            if is_other and equals(tensor, given, self.limit * self.unit):
                return f"theirs' {'input' if place[1] == 'in' else 'output'} of {place[0]}"
        factor = find_factor(tensor, self.kept[theirs], self.limit * self.unit)
        return f"{factor:.6g} × theirs" if factor else ""

    def explain(self, items: Sequence[Item]) -> tuple[Finding, ...]:
        """Return what differs inside each kind of accused piece; kinds of one line of mine are one finding."""
        groups = group_items([item for item in items if item.ratio > self.limit], self.limit)[:_MOST]
        if not groups:
            return ()
        mine, theirs = self._record([items[0] for items in groups])
        names = {pair.theirs.key: key for key, pair in self.to.items()}
        handed = mine.handed, {i: names[key] for i, key in theirs.handed.items() if key in names}
        found: dict[str, Finding] = {}
        for group in groups:
            first, scopes, tolerance = group[0], self._find_scopes(group[0]), self.limit * self.unit
            own, other = find_frontiers(mine, theirs, scopes, (first.place, first.theirs), tolerance)
            lines = [side[0].line if side else "" for side in (own, other)]
            key = lines[0] or lines[1] or first.label
            if key in found:
                found[key] = replace(found[key], items=(*found[key].items, *group))
                continue
            facts = [f"the value is {first.note}"] if first.note else []
            if first.is_leaf:
                pair = self.to[first.place[0]]
                facts += explain_weights(pair.mine.module, pair.theirs.module)
            facts = facts or describe_change(own, other, handed, tolerance)
            if own and len(found) < _MOST_CHECKED:
                calls = self.calls.get(scopes[0]), self.originals.get(scopes[1])
                kinds = [type(call.module) if call else None for call in calls]
                facts += name_causes((own[0].function, kinds[0]), (other[0].function if other else None, kinds[1]))
            found[key] = Finding(tuple(group), lines[0], lines[1], tuple(facts))
        return tuple(found.values())

    def _find_scopes(self, item: Item) -> tuple[str, str]:
        """Return the calls whose own operations compute a piece, in mine and in theirs."""
        return item.scope, self.to[item.scope].theirs.key if item.scope in self.to else WHOLE

    def _record(self, items: Sequence[Item]) -> tuple[Recorded, Recorded]:
        """Return the operations of some pieces, in mine and in theirs."""

        def visit(place: Place, tensor: Tensor) -> Tensor | None:
            theirs = self._find_theirs(place)
            return self._force(theirs, tensor)[1] if theirs else None

        one, two = (frozenset(names) for names in zip(*map(self._find_scopes, items), strict=True))
        originals = frozenset(pair.theirs.key for pair in self.to.values())
        return (
            record(self.mine, self.inputs, frozenset(self.to), one, visit),
            record(self.theirs, self.inputs, originals, two),
        )
