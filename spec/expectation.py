"""The expectations of a case for each output: all of it, its shape, some of its places, or statistics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from goldformer.spec import draw, schema
from goldformer.spec.errors import Refused
from goldformer.spec.laws import law_of, unfit
from goldformer.spec.model import ArraySpec, Case, Contract, Wanted

#: In a gradient case: of every floating-point argument.
_ALL = "gradients"

#: The axes along which a sequence is padded.
_ROWS = ("seq", "q_seq", "source_seq")


def read_expectation(models: Mapping[str, Any], case: Case, contract: Contract) -> dict[str, Wanted]:
    """Read the expectation for each output, or for the gradient of each argument; Refused if it makes no sense."""
    results = contract.results_of(case)
    if case.cotangent is not None and set(models) == {_ALL}:
        models = dict.fromkeys(results, models[_ALL])
    expect = {}
    for name, model in models.items():
        if name not in results:
            raise Refused(("expect", name), f"is not among what can be asked for: {', '.join(results)}")
        expect[name] = _read_wanted(model, results[name], case)
        _check_chance(name, expect[name], case)
    if not expect:
        raise Refused(("expect",), f"asks for nothing; {contract.component} gives {', '.join(contract.outputs)}")
    for name in case.printed:
        if expect.get(name, Wanted("shape")).form != "all":
            raise Refused(("printed", name), f"needs expect: {{{name}: all}}")
    return expect


def _read_wanted(model: Any, spec: ArraySpec, case: Case) -> Wanted:
    if isinstance(model, str):
        return Wanted("all" if model == "all" else "shape")
    if isinstance(model, schema.StatisticsModel):
        return Wanted("statistics", statistics=tuple(model.statistics))
    shape = spec.shape.sizes(case.sizes, case.lead)
    indices = _list_places(model, spec, shape)
    for place in indices:
        if len(place) != len(shape) or not all(0 <= k < size for k, size in zip(place, shape, strict=True)):
            raise Refused(("expect", spec.name), f"probe {list(place)} lies outside the shape {shape}")
    return Wanted("probes", indices, drawn=isinstance(model, schema.DrawnModel))


def _list_places(model: Any, spec: ArraySpec, shape: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """List the places of an output that a case asks for."""
    if isinstance(model, schema.ProbesModel):
        return tuple(tuple(place) for place in model.probes)
    if isinstance(model, schema.DrawnModel):
        axes = [draw.below(size, model.seed, f"axis{i}", (model.drawn,)) for i, size in enumerate(shape)]
        return tuple(dict.fromkeys(tuple(int(k) for k in place) for place in zip(*axes, strict=True)))
    names = [str(axis) for axis in spec.shape.axes]
    rows = next((i for i, axis in enumerate(names) if axis in _ROWS), None)
    if rows is None or "batch" not in names or len(model.lengths) != shape[names.index("batch")]:
        raise Refused(("expect", spec.name), f"lengths {model.lengths} do not fit the shape {spec.shape} = {shape}")
    batch = names.index("batch")
    return tuple(place for place in np.ndindex(shape) if place[rows] < model.lengths[place[batch]])


def _check_chance(name: str, wanted: Wanted, case: Case) -> None:
    """Refuse statistics of an output that is not random, and numbers of one that is."""
    if wanted.form == "shape":
        return
    where = ("expect", name)
    try:
        law = law_of(case, name)
    except ValueError as error:
        raise Refused(where, str(error)) from error
    if wanted.form != "statistics":
        if law is not None:
            raise Refused(where, "is random: ask for its statistics or for its shape")
        return
    if law is None or case.cotangent is not None:
        raise Refused(where, "is not random: ask for all of it, for probes or for its shape")
    if len(set(wanted.statistics)) < len(wanted.statistics):
        raise Refused(where, f"names a statistic twice: {', '.join(wanted.statistics)}")
    for statistic in wanted.statistics:
        if why := unfit(law, statistic):
            raise Refused(where, f"has no {statistic}: {why}")
