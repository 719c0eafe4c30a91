"""Every mistake of the catalogue gives the numbers of mistakes.json, which has a line for each.

A line is {case: number}. The number is the sum of all outputs, each element times a fixed random factor; a list adds
how many elements are not finite, and text is the message of a call without a result.
`python tests/conformance/diagnosis/mistakes/test_mistakes.py --write` writes the lines of new mistakes and drops those
of mistakes that are gone; `--write --all` writes every line again. A line shows that nothing moved, not that it is
right: compare a new line with the numbers of code with the mistake.
"""

from __future__ import annotations

import json
import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from goldformer.adapters import Adapter
from goldformer.conformance.diagnosis.mistakes import implementations, torch_implementations
from goldformer.conformance.judging.cases import Bench, PreparedCase
from goldformer.conformance.judging.decision import Policy
from goldformer.conformance.judging.invoke import Result
from goldformer.spec import Case, Spec, load_spec

FILE = Path(__file__).with_name("mistakes.json")
TABLE = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
#: The most numbers of a case that lists the mistake, those of another case, and how many of the others are called.
LISTED, LARGEST, MOST = 40_000, 3000, 6
#: Two orders of the same sums differ by less in each dtype, and two formulas by more.
SAME = {"float64": 1e-9, "float32": 1e-4, "float16": 0.05}

Pin = Any


def choose_cases(mistake: str, spec: Spec) -> Iterator[Case]:
    """Yield the two smallest cases that list a mistake, the smallest of gradients, and the first of its component."""
    usable = [case for case in spec.cases.values() if case.error is None and case.size <= LISTED]
    listing = [case for case in usable if mistake in (*case.meant_for, *case.kills)]
    listing.sort(key=lambda case: case.size)
    gradients = [case for case in listing if case.cotangent is not None]
    own = [c for c in usable if c.component == spec.mistakes[mistake].component and c.size <= LARGEST]
    chosen = (*listing[:2], *gradients[:1], *own[:MOST])
    yield from {case.id: case for case in chosen}.values()


@cache
def draw_factors(name: str, size: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(zlib.crc32(name.encode())).uniform(0.5, 1.5, size)


def pin(outputs: Mapping[str, Any]) -> Pin:
    """Return one number for all outputs, with how many of their elements are not finite, if some are not."""
    number, lost = 0.0, 0
    for name, array in outputs.items():
        flat = np.asarray(array, np.float64).ravel()
        finite = np.isfinite(flat)
        number += np.where(finite, flat, 0) @ draw_factors(name, flat.size)
        lost += int((~finite).sum())
    number = float(f"{number:.11g}")
    return [number, lost] if lost else number


def measure(mistake: str, cases: Iterable[Case], spec: Spec) -> dict[str, Pin]:
    made = implementations()[mistake]
    adapter = Adapter.from_object(made.make(), mistake, spec)
    bench = Bench(spec, adapter, made.find_dtype("float64"), "cpu", Policy(strict=True))
    found = {}
    for case in cases:
        prepared = PreparedCase(case, bench)
        if not prepared.skip:
            outcome = bench.call_case(prepared.case, prepared.arguments)
            found[case.id] = pin(outcome.outputs) if isinstance(outcome, Result) else str(outcome)[:80]
    return found


def is_same(one: Pin, other: Pin, rtol: float) -> bool:
    if isinstance(one, str) or isinstance(other, str | None):
        return bool(one == other)
    return np.shape(one) == np.shape(other) and np.allclose(one, other, rtol=rtol, atol=rtol / 1000)


def list_by_component(spec: Spec) -> dict[str, list[str]]:
    listed: dict[str, list[str]] = {}
    for id_ in implementations():
        listed.setdefault(spec.mistakes[id_].component, []).append(id_)
    return listed


def test_every_mistake_of_the_catalogue_is_made_once_and_pinned(spec):
    assert not implementations().keys() & torch_implementations().keys()
    assert implementations().keys() | torch_implementations().keys() == spec.mistakes.keys()
    assert [*implementations()] == [*TABLE], f"run python {Path(__file__).relative_to(Path.cwd())} --write"


@pytest.mark.parametrize("component", list_by_component(load_spec()))
def test_a_mistake_gives_the_numbers_of_code_with_it(component, spec):
    wrong = {}
    for id_ in list_by_component(spec)[component]:
        rtol = SAME[implementations()[id_].find_dtype("float64")]
        found = measure(id_, [spec.cases[case] for case in TABLE[id_] if case in spec.cases], spec)
        for case, pinned in TABLE[id_].items():
            if not is_same(pinned, found.get(case), rtol):
                wrong[id_, case] = (pinned, found.get(case))
    assert wrong == {}


def write_table(known: Mapping[str, Mapping[str, Pin]]) -> None:
    """Write a line for each mistake: those that are known stay, but for what differs from call to call."""
    spec, lines = load_spec(), []
    for id_ in implementations():
        line = known.get(id_, {})
        if id_ not in known:
            cases = [*choose_cases(id_, spec)]
            line, again = (measure(id_, cases, spec) for _ in range(2))
            line = {case: number for case, number in line.items() if is_same(number, again[case], SAME["float64"])}
        lines.append(f"{json.dumps(id_)}: {json.dumps(line)}")
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__" and "--write" in sys.argv:
    write_table({} if "--all" in sys.argv else TABLE)
