"""Reads the machine-written half of a case, and holds it against the half that people write."""

from __future__ import annotations

from typing import Any

import numpy as np

from goldformer.spec import schema
from goldformer.spec.model import ANY, Array, Case, Contract, Golden, GoldenArray, Kind, Wanted


def read_golden(model: schema.GoldenModel, case: Case, contract: Contract, options: tuple[str, ...]) -> Golden:
    """The golden values of a case; ValueError when they are not those that the case asks for."""
    if options:
        given = model.options or {}
        if set(given) != set(options):
            raise ValueError(f"has values for {sorted(given)}, the convention has {sorted(options)}")
        read = {
            name: None if outputs == "refused" else _outputs(outputs, case, contract) for name, outputs in given.items()
        }
    else:
        read = {ANY: _outputs(model.outputs or {}, case, contract)}
    return Golden(model.derivation, float(model.peak), read, None if model.margin is None else float(model.margin))


def _outputs(models: Any, case: Case, contract: Contract) -> dict[str, GoldenArray]:
    wanted = {name: want for name, want in case.expect.items() if want.form != "shape"}
    if set(models) != set(wanted):
        raise ValueError(f"has outputs {sorted(models)}, the case asks for {sorted(wanted)}")
    return {name: _array(name, models[name], want, case, contract) for name, want in wanted.items()}


def _array(name: str, model: Any, want: Wanted, case: Case, contract: Contract) -> GoldenArray:
    if isinstance(model, schema.GoldenStatisticsModel) or want.form == "statistics":
        return _statistics(name, model, want)
    spec = contract.results_of(case)[name]
    values = _values(name, model.values, spec.kind)
    values.flags.writeable = False
    if want.form == "probes":
        # Probes that were drawn stand beside their values; probes that were written out stand in `expect`.
        at = tuple(tuple(place) for place in model.at) if model.at is not None else want.indices
        if at != want.indices or values.shape != (len(at),):
            raise ValueError(f"{name} is given at other places than the case asks for")
        return GoldenArray(values, float(model.error_scale), at)
    shape = spec.shape.sizes(case.sizes, case.lead)
    if values.shape != shape:
        raise ValueError(f"{name} has shape {values.shape}, the contract says {shape}")
    return GoldenArray(values, float(model.error_scale))


def _statistics(name: str, model: Any, want: Wanted) -> GoldenArray:
    given = getattr(model, "statistics", {})
    if tuple(given) != want.statistics:
        asked = ", ".join(want.statistics) or "none"
        raise ValueError(f"{name} has the statistics {', '.join(given) or 'none'}, the case asks for {asked}")
    values = np.array([float(statistic.value) for statistic in given.values()])
    values.flags.writeable = False
    within = {statistic: float(model.within) for statistic, model in given.items()}
    return GoldenArray(values, float(model.error_scale), within=within)


def _values(name: str, written: Any, kind: Kind) -> Array:
    """The numbers or truth values of an output; nothing is converted into them."""
    kinds: dict[Kind, tuple[type, ...]] = {"bool": (bool,), "ids": (int,), "float": (int, float)}
    items = np.array(written, dtype=object)
    strange = [item for item in items.ravel() if type(item) not in kinds[kind]]
    if strange:
        words = " and ".join(k.__name__ for k in kinds[kind])
        raise ValueError(f"{name} holds {strange[0]!r} where only {words} can stand")
    dtypes: dict[Kind, type[np.generic]] = {"bool": np.bool_, "ids": np.int64, "float": np.float64}
    return items.astype(dtypes[kind])
