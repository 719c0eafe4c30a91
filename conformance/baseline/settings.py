"""Closeness of results in other settings: in other batches, with padding, as views, on more threads.

A property that compares calls in another setting is recorded as a call. For each setting it has one output: the largest
distance ÷ tolerance, which is 0 if all results are the same bit for bit.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Final

import numpy as np

from goldformer.conformance.baseline.array_files import StoredArray
from goldformer.conformance.baseline.model import BaselineRequest, Ended, Entry, Key, Output
from goldformer.conformance.baseline.moves import Kind, Move
from goldformer.conformance.judging.cases import Bench
from goldformer.conformance.judging.verdict import Verdict
from goldformer.conformance.properties.registry import components_of
from goldformer.conformance.selection import Check, Selection, checks
from goldformer.spec import Property, Spec

#: What stands between a property and its component in a `Key`; no case has a space in its id.
_OF: Final = " of "
#: Distances are divided by the tolerance.
_TOLERANCE: Final = 1.0


def list_setting_keys(spec: Spec) -> dict[str, tuple[Property, str]]:
    """Return the properties that compare calls in other settings, each with a component, by their names in a `Key`."""
    return {
        _name_call(prop.id, component): (prop, component)
        for prop in spec.properties.values()
        if prop.settings
        for component in components_of(prop, spec)
    }


def _name_call(property_id: str, component: str) -> str:
    return f"{property_id}{_OF}{component}"


def compares_settings(key: Key) -> bool:
    """Return True if a key has a property and its component in the place of a case."""
    return _OF in key.case


def list_setting_checks(bench: Bench, request: BaselineRequest, only: Collection[str]) -> Iterator[Check]:
    """Yield the checks of a request in other settings, or only those named in `only`."""
    if not request.settings:
        return
    # Only whoever asks for equal bits waits for calls on several threads.
    bench = replace(bench, bitwise=True)
    for name, (prop, component) in list_setting_keys(bench.spec).items():
        if (not request.components or component in request.components) and (not only or name in only):
            yield from checks(bench, Selection(request.dtypes, (component,), properties=(prop.id,)))


def make_setting_entry(verdict: Verdict) -> tuple[Key, Entry] | None:
    """Return the entry of a property that holds in other settings; None if none was tried."""
    outputs: dict[str, Output] = {
        found.setting: Output(StoredArray.of(np.array(found.distance), "float64"), _TOLERANCE)
        for found in verdict.invariances
    }
    return (make_key(verdict), Entry(verdict.component, "", outputs)) if outputs else None


def make_key(verdict: Verdict) -> Key:
    """Return the call that a verdict is about."""
    check = verdict.check if verdict.kind == "case" else _name_call(verdict.check, verdict.component)
    return Key(check, verdict.dtype, verdict.device)


def judge_settings(key: Key, before: Entry, after: Entry) -> Iterator[Move]:
    """Yield a move for each setting of a property that was recorded twice."""
    if before.ended is not None or after.ended is not None:
        yield _judge_end(Move(key, before.component, "", Kind.IDENTICAL), before.ended, after.ended)
        return
    for setting, output in after.outputs.items():
        if setting in before.outputs:
            distances = (float(stored.values) for stored in (before.outputs[setting].stored, output.stored))
            yield _compare(Move(key, before.component, setting, Kind.IDENTICAL), *distances)


def _judge_end(move: Move, before: Ended | None, after: Ended | None) -> Move:
    if after is None:
        return replace(move, kind=Kind.FORM, why="holds now")
    if before is None:
        return replace(move, kind=Kind.UNEXPLAINED, why=f"does not hold any more: {after.message}")
    return move


def _compare(move: Move, then: float, now: float) -> Move:
    """Return the move of one setting from one distance to another."""
    if then == now:
        return replace(move, ratio=0.0)
    changed = replace(move, kind=Kind.ROUNDING, ratio=abs(now - then))
    if then and now:
        return changed
    how = "now bit for bit" if then else f"no longer bit for bit, up to {now:.2g} of the tolerance apart"
    return replace(changed, why=how)
