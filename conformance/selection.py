"""The checks of a selection, in order, for the command line. pytest collects the same checks by itself."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache

from threadpoolctl import threadpool_limits

from goldformer.adapters.arrays import LIBRARIES
from goldformer.conformance.judging.applicability import plan
from goldformer.conformance.judging.cases import Bench, Judgement, judge_case
from goldformer.conformance.judging.wrapped import judge_wrapped
from goldformer.conformance.properties.judge import judge_property
from goldformer.conformance.properties.registry import components_of
from goldformer.spec import Spec
from goldformer.spec.oracle.declared import AS_DECLARED, count_missing, derive_declared


@dataclass(frozen=True, slots=True)
class Selection:
    """The checks to run; empty filters mean everything."""

    dtypes: tuple[str, ...]
    components: tuple[str, ...] = ()
    cases: tuple[str, ...] = ()
    properties: tuple[str, ...] = ()


CheckCall = Callable[[], Judgement]


def add_declared_cases(bench: Bench, selection: Selection) -> Bench:
    """Return the bench with cases derived under what its adapter declares, where few stored ones fit; a hint says so.

    A selection of stored cases or of properties gets no derived cases.
    """
    if selection.properties or (selection.cases and not any(id_.endswith(AS_DECLARED) for id_ in selection.cases)):
        return bench
    adapter, spec, hints = bench.adapter, bench.spec, list(bench.adapter.hints)
    for component in filter(bench.has, selection.components or spec.components):
        options = {name: adapter.convention(name, component, spec) for name in spec.conventions}
        if not count_missing(component, options, spec):
            continue
        derived = derive_declared(component, options, spec)
        spec = spec.with_cases(derived)
        if derived:
            few = f"few stored cases of {component} fit all that the adapter declares"
            hints.append(f"{few}, so {len(derived)} more were derived for it; their ids end in {AS_DECLARED}")
    return replace(bench, spec=spec, adapter=replace(adapter, hints=tuple(hints)))


def checks(bench: Bench, selection: Selection) -> list[CheckCall]:
    """List every check of a selection: golden cases first, then properties, each by dependency, dtype by dtype.

    Nothing is listed of a component that the adapter does not have, and its files are not read, unless the bench is
    strict: then each of its checks fails.
    """
    present = list_present(bench, selection)
    listed: list[CheckCall] = []
    if not present:
        return listed
    if bench.wrapper:
        return _wrapped_checks(bench, selection, present)
    own = bench.adapter.own_dtypes
    for dtype in selection.dtypes:
        at = replace(bench, dtype=dtype)
        able = [name for name in present if dtype in own.get(name, selection.dtypes) or len(selection.dtypes) == 1]
        if not selection.properties:
            listed += [
                lambda case=case, at=at: judge_case(case, at)  # type: ignore[misc]
                for case in plan(bench.spec, able, selection.cases)
                if able
            ]
        if not selection.cases:
            listed += _property_checks(at, selection, able)
    return listed


def list_present(bench: Bench, selection: Selection) -> list[str]:
    """Return the components of a selection whose checks are listed."""
    return [name for name in _list_asked(bench.spec, selection) if bench.policy.strict or bench.has(name)]


def list_absent(bench: Bench, selection: Selection) -> list[str]:
    """Return the components of a selection that the adapter does not have.

    One case or property asks for no component in particular, as long as there is one to run it on.
    """
    asked = _list_asked(bench.spec, selection)
    if (selection.cases or selection.properties) and any(map(bench.has, asked)):
        return []
    return [name for name in asked if not bench.has(name)]


def _list_asked(spec: Spec, selection: Selection) -> list[str]:
    """Return the components that a selection asks for, in the order of the spec."""
    asked = set(selection.components or spec.components)
    if selection.cases:
        asked &= {spec.cases[id_].component for id_ in selection.cases}
    if selection.properties:
        own = {spec.properties[id_].component for id_ in selection.properties}
        asked = asked if "*" in own else asked & own
    return [name for name in spec.components if name in asked]


def _wrapped_checks(bench: Bench, selection: Selection, components: Iterable[str]) -> list[CheckCall]:
    """List the checks of wrapped functions: golden cases that ask for a result.

    Properties draw inputs of many sizes, which some transformations take one by one. A refusal is no value to compare.
    """
    cases = [case for case in plan(bench.spec, components, selection.cases) if case.error is None]
    planned = [(case, replace(bench, dtype=dtype)) for dtype in selection.dtypes for case in cases]

    @cache
    def judge_plain() -> list[Judgement]:
        # Call all functions themselves before the first wrapped one. Tracing may leave its own kind of tensors in a
        # table that a function keeps, and later calls of the function itself then fail.
        return [judge_case(case, at) for case, at in planned]

    return [lambda place=place: judge_wrapped(judge_plain()[place]) for place in range(len(planned))]  # type: ignore[misc]


def _property_checks(bench: Bench, selection: Selection, components: Iterable[str]) -> Iterator[CheckCall]:
    for name in components:
        for prop in bench.spec.properties.values():
            if selection.properties and prop.id not in selection.properties:
                continue
            if name in components_of(prop, bench.spec):
                yield lambda prop=prop, name=name: judge_property(prop, name, bench)  # type: ignore[misc]


@dataclass(frozen=True, slots=True)
class Numerics:
    """Settings of the array libraries for a run."""

    tf32: bool = False
    threads: int = 1

    def apply(self, arrays: str) -> None:
        """Apply the settings.

        TF32 keeps ten bits of a float32, so it is off by default: the suite judges float32. One thread is the default
        because the cases are small: several threads cost time, and on busy cores a hundredfold.
        """
        threadpool_limits(self.threads)
        LIBRARIES[arrays].choose_precision(tf32=self.tf32)
        if arrays == "torch":
            import torch  # only an adapter that speaks torch gets here

            torch.set_num_threads(self.threads)

    @contextlib.contextmanager
    def hold(self, arrays: str) -> Iterator[None]:
        """Apply the settings, and restore those of the caller afterwards: a notebook goes on after a check."""
        with threadpool_limits(self.threads), LIBRARIES[arrays].keep_settings():
            self.apply(arrays)
            yield
