"""The cause of a difference, where its function or class is a component: a known mistake, or an option of one side."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator, Sequence
from typing import Any

from goldformer.adapters import Adapter, AdapterError
from goldformer.conformance.diagnosis.finding import MISTAKE_FOUND
from goldformer.conformance.judging.cases import Bench
from goldformer.conformance.judging.decision import Policy
from goldformer.conformance.loading import find_name, list_own, load_implementation
from goldformer.conformance.runner import judge_implementation
from goldformer.conformance.selection import Numerics, Selection, add_declared_cases
from goldformer.spec import Spec, load_spec


def name_causes(mine: Sequence[Any], theirs: Sequence[Any]) -> list[str]:
    """Return what `goldformer check` finds in the first of mine that is a component, and theirs has not."""
    spec = load_spec()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        for thing, other in zip(mine, theirs, strict=True):
            with _load(thing, spec) as own, _load(other, spec) as original:
                if own is None:
                    continue
                name, known = find_name(thing), dict(original.conventions) if original else {}
                options = {n: (o, known[n]) for n, o in own.conventions.items() if known.get(n, o) != o}
                facts = [f"{name}: {option} is {a}, theirs is {b}" for option, (a, b) in options.items()]
                also = _find_mistakes(original, spec) if original else {}
                facts += [
                    f"goldformer check of {name}: {text}"
                    for m, text in _find_mistakes(own, spec).items()
                    if m not in also
                ]
                if facts:
                    return facts
    return []


@contextlib.contextmanager
def _load(thing: Any, spec: Spec) -> Iterator[Adapter | None]:
    """Give the adapter of a class or a function; None for what is no component, or is not understood."""
    try:
        adapter = load_implementation(thing, spec)
    except (AdapterError, TypeError, ValueError):
        yield None
        return
    with contextlib.closing(adapter):
        yield adapter


def _find_mistakes(adapter: Adapter, spec: Spec) -> dict[tuple[str, ...], str]:
    """Return the sentences that name a known mistake, by the ids of the mistakes."""
    dtype = adapter.default_dtype
    selection = Selection((dtype,), list_own(adapter, adapter, spec))
    bench = add_declared_cases(Bench(spec, adapter, dtype, "cpu", Policy()), selection)
    with Numerics().hold(adapter.arrays):
        found = judge_implementation(bench, selection).remarks(bench.spec)
    return {finding.mistakes: finding.text for finding in found if finding.label == MISTAKE_FOUND}
