"""Derivation of many cases on all cores, with a cache, and the comparison with stored golden values."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import as_completed
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from goldformer.spec.casefile import derivation_digest
from goldformer.spec.families import list_stored_options
from goldformer.spec.files import replace_file
from goldformer.spec.goldenfile import golden_path
from goldformer.spec.load import Spec
from goldformer.spec.model import Case, Contract, Golden, GoldenArray
from goldformer.spec.oracle.computed import derive_case
from goldformer.spec.oracle.derive import Derived, DerivedArray, derive, derive_combination
from goldformer.spec.oracle.truth import make_call
from goldformer.spec.oracle.write import write_golden
from goldformer.spec.processes import make_pool
from goldformer.spec.yamlfile import YamlFile

#: A scale is a measurement: another machine's exp and sin may differ in the last bit.
SCALE_DRIFT = 0.02


@dataclass(frozen=True, slots=True)
class Outcome:
    """One derived case; `cached` if an earlier run derived exactly this case."""

    case: Case
    digest: str
    derived: Derived
    cached: bool


def list_derivable(spec: Spec, only: Iterable[str] = ()) -> list[Case]:
    """List the cases that have golden values; `only` narrows them to some ids."""
    wanted = set(only)
    cases = [case for case in spec.cases.values() if case.error is None and not case.shape_only]
    return [case for case in cases if not wanted or case.id in wanted]


def default_cache() -> Path:
    """Return the folder of the cache of derivations: goldformer/derivations under $XDG_CACHE_HOME or ~/.cache."""
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "goldformer" / "derivations"


def derive_all(spec: Spec, cases: Iterable[Case], *, jobs: int, cache: Path | None) -> Iterator[Outcome]:
    """Derive cases in parallel and yield each as it is done; without a cache every one is derived again."""
    digests = digest_cases(spec)
    waiting = []
    stamp = _method_stamp()
    for case in cases:
        # Advice changes what may be derived but is not part of the digest.
        kind = "-advice" if spec.is_advice(case) else ""
        place = cache / f"{digests[case.id]}-{stamp}{kind}.json" if cache else None
        if place is not None and (known := _read_cached(place)) is not None:
            yield Outcome(case, digests[case.id], known, cached=True)
        else:
            waiting.append((case, place))
    if not waiting:
        return
    with make_pool(min(jobs, len(waiting))) as pool:
        running = {
            pool.submit(derive_case, case, spec.contracts[case.component], advice=spec.is_advice(case)): (
                case,
                place,
            )
            for case, place in waiting
        }
        for future in as_completed(running):
            case, place = running[future]
            derived = future.result()
            if place is not None:
                place.parent.mkdir(parents=True, exist_ok=True)
                replace_file(place, json.dumps(derived.as_json()))
            yield Outcome(case, digests[case.id], derived, cached=False)


def _read_cached(place: Path) -> Derived | None:
    """Return the derivation that an earlier run stored, or None if there is none or it is damaged."""
    try:
        return Derived.from_json(json.loads(place.read_text(encoding="utf-8")))
    except (FileNotFoundError, ValueError, RecursionError):
        return None


def digest_cases(spec: Spec) -> dict[str, str]:
    """Return the derivation digest of every case as its file stands now."""
    digests: dict[str, str] = {}
    for path in sorted((spec.root / "cases").glob("*.yaml")):
        file = YamlFile.read(path)
        contract = spec.contracts[file.data["component"]]
        digests |= {raw["id"]: derivation_digest(raw, contract, spec.conventions) for raw in file.data["cases"]}
    return digests


#: Files of the oracle that do not influence its numbers.
_HANDLING = frozenset({"run.py", "write.py"})


def _method_stamp() -> str:
    """Return a digest of the method's source and of python-flint's version: a new method derives everything again."""
    stamp = hashlib.sha256(version("python-flint").encode())
    oracle = Path(__file__).parent
    method = sorted(path for path in oracle.glob("*.py") if path.name not in _HANDLING)
    formulas = sorted((oracle.parent / "formulas").glob("*.py"))
    for path in (*formulas, *method, oracle.parent / "laws.py", oracle.parent / "draw.py"):
        stamp.update(path.read_bytes())
    return stamp.hexdigest()[:16]


def write_all(outcomes: Iterable[Outcome], spec: Spec) -> list[Path]:
    """Put outcomes into the golden files of their components; return the files that changed."""
    by_file: dict[Path, dict[str, tuple[str, Derived]]] = {}
    components: dict[Path, str] = {}
    for outcome in outcomes:
        path = golden_path(outcome.case.place.file)
        components[path] = outcome.case.component
        keys = map(outcome.case.key, list_stored_options(outcome.case, spec))
        stored = {key: outcome.derived.options[key] for key in keys}
        by_file.setdefault(path, {})[outcome.case.id] = (outcome.digest, replace(outcome.derived, options=stored))
    return [
        path
        for path, derived in by_file.items()
        if write_golden(
            path,
            spec.edition_of(components[path]),
            {case.id: case for case in spec.cases_of(components[path])},
            derived,
        )
    ]


def describe_move(outcome: Outcome) -> str | None:
    """Describe how a case's stored golden values differ from the derivation; None if they do not."""
    golden = outcome.case.golden
    if golden is None:
        return "has no golden values, or was changed since they were derived"
    for name in ("peak", "margin"):
        stored, now = getattr(golden, name), getattr(outcome.derived, name)
        if _has_drifted(stored, now):
            return f"{name} {stored} is {now} now"
    for option in golden.options:
        stored, outputs = golden.options[option], outcome.derived.options[option]
        if stored is None or outputs is None:
            if (stored is None) != (outputs is None):
                return f"{option} is refused on one side only"
            continue
        for name, array in outputs.items():
            if (difference := _difference(stored[name], array)) is not None:
                return f"{option + ': ' if option else ''}{name}: {difference}"
    return None


def _has_drifted(stored: float | None, derived: float | None) -> bool:
    if stored is None or derived is None:
        return stored is not derived
    return abs(stored - derived) > SCALE_DRIFT * derived


def _difference(stored: GoldenArray, derived: DerivedArray) -> str | None:
    values = _values(derived, stored.values.dtype.kind)
    if not np.array_equal(values, stored.values, equal_nan=values.dtype.kind == "f"):
        return "golden values differ from those derived now"
    if stored.within != derived.within:
        return "what chance may do differs from what is derived now"
    if _has_drifted(stored.error_scale, derived.error_scale):
        return f"error scale {stored.error_scale} is {derived.error_scale} now"
    return None


def _values(derived: DerivedArray, kind: str) -> NDArray[Any]:
    """Return derived texts as an array of floats, of integers (i) or of truth values (b)."""
    readers: dict[str, Callable[[str], float]] = {"b": lambda v: v == "true", "i": int}
    dtypes = {"b": np.bool_, "i": np.int64}
    read = readers.get(kind, float)
    return np.array([read(v) for v in derived.values], dtype=dtypes.get(kind, np.float64)).reshape(derived.shape)


def derive_golden(case: Case, spec: Spec, *, held: bool = False) -> Case:
    """Return a case with its golden values as they are derived now; Unproven, and `held`, as for `derive`."""
    contract = spec.contracts[case.component]
    derived = derive_case(case, contract, advice=spec.is_advice(case), held=held)
    options = {key: _read_outputs(outputs, case, contract) for key, outputs in derived.options.items()}
    return replace(case, golden=Golden("", derived.peak, options, derived.margin))


def derive_outputs(
    case: Case, contract: Contract, options: Mapping[str, str], *, draws: bool = False
) -> Mapping[str, GoldenArray] | None:
    """Return the golden values of a case under a combination of options that was proven before, but is not stored.

    With `draws` their error scales are measured as those of stored values are, which takes longer.
    """
    if case.has_roundings and not case.refuses(options) and not draws:
        variant = case.under(options)
        call = make_call(variant, options, contract)
        # Only imitations and pictures look at the scale: the dtype matters little to them.
        scales = {name: call.find_scale(name, "float32") for name in variant.expect}
        return _read_outputs(derive_combination(variant, contract, options, scales), variant, contract)
    # Decisions between equals were allowed before, or there are none.
    ((_, outputs),) = derive(case, contract, advice=True, only=options).options.items()
    return _read_outputs(outputs, case, contract)


def _read_outputs(
    outputs: Mapping[str, DerivedArray] | None, case: Case, contract: Contract
) -> Mapping[str, GoldenArray] | None:
    """Return derived outputs as golden arrays; None if a call is refused."""
    if outputs is None:
        return None
    kinds = {name: {"bool": "b", "ids": "i"}.get(array.kind, "f") for name, array in contract.results_of(case).items()}
    return {
        name: GoldenArray(
            _values(array, kinds[name]), array.error_scale, case.expect[name].indices or None, array.within
        )
        for name, array in outputs.items()
    }
