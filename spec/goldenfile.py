"""Golden files: what programs write of the cases of one component, as JSON with one array a line.

Numbers are written so that YAML 1.1 reads them as JSON does, and are kept digit for digit when a file is rewritten.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import numpy as np
from pydantic import Field as Constraint
from pydantic import model_validator

from goldformer.spec.draw import Kind
from goldformer.spec.edition import Edition, EditionName, Version
from goldformer.spec.errors import Problem, SpecError
from goldformer.spec.files import replace_file
from goldformer.spec.model import (
    ANY,
    NOT_FINITE,
    Array,
    Case,
    Contract,
    Golden,
    GoldenArray,
    Statistic,
    Wanted,
    is_combination,
)
from goldformer.spec.strict import ByKeys, Id, Items, Name, Param, StrictModel
from goldformer.spec.yamlfile import Field, YamlFile

# ── the schema ──

#: For readers of the JSON Schema. pydantic accepts anything as `values`: read_golden knows the kind of the output
#: and checks each element, and a second check would double the time.
_VALUES: Final = {
    "description": "One value, or lists nested in the shape of the output.",
    "anyOf": [
        {"type": ["number", "boolean"]},
        {"enum": list(NOT_FINITE)},
        {"type": "array", "items": {"$ref": "#/$defs/Values"}},
    ],
}


#: The lines of a golden file before its cases.
_HEAD_LINES: Final = 4

#: Options of the conventions of a case, in its order, such as "pre, 1e-6".
Combination = Annotated[str, Constraint(pattern=r"^[a-z0-9][a-z0-9_.-]*(, [a-z0-9][a-z0-9_.-]*)*$")]


class GoldenArrayModel(StrictModel):
    """The values of an output: all of them, or those at the probes of the case; `at` holds probes that were drawn."""

    error_scale: float
    at: list[list[int]] | None = None
    values: Any


class GoldenStatisticModel(StrictModel):
    """The value of a statistic, and how far chance may move it."""

    value: float
    within: float


class GoldenStatisticsModel(StrictModel):
    """The statistics of a random output."""

    statistics: Annotated[dict[Statistic, GoldenStatisticModel], Constraint(min_length=1)]
    error_scale: float


GoldenOutputModel = Annotated[GoldenStatisticsModel | GoldenArrayModel, ByKeys()]


class GoldenCaseModel(StrictModel):
    """Everything that programs write of one case; a refusal has only `kills`."""

    derivation: Annotated[str, Constraint(pattern=r"^[0-9a-f]{16}$")] | None = None
    peak: float | None = None
    margin: float | None = None
    outputs: dict[Param, GoldenOutputModel] | None = None
    options: dict[Combination, dict[Param, GoldenOutputModel] | Literal["refused"]] | None = None
    kills: Items[Id] = ()

    @model_validator(mode="after")
    def _check_complete(self) -> GoldenCaseModel:
        given = {name for name in ("derivation", "peak") if getattr(self, name) is not None}
        values = [name for name in ("outputs", "options") if getattr(self, name) is not None]
        if len(given) not in (0, 2) or len(values) != len(given) // 2 or (self.margin is not None and not given):
            raise ValueError("golden values need derivation, peak and either outputs or options")
        return self


class GoldenFileModel(StrictModel):
    """Written by `goldformer derive` and `goldformer mistakes --matrix --write`; never by hand."""

    edition: EditionName
    version: Version
    component: Name
    cases: dict[Id, GoldenCaseModel]

    @classmethod
    def model_json_schema(cls, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Return the JSON Schema, with the elements of values, which pydantic does not look at."""
        schema = super().model_json_schema(*args, **kwargs)
        schema["$defs"]["GoldenArrayModel"]["properties"]["values"] = {"$ref": "#/$defs/Values"}
        schema["$defs"]["Values"] = _VALUES
        return schema


# ── reading ──


class Numeral(str):
    """A number as it is written, which no reading and writing changes."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class StoredGolden:
    """The entries of a golden file by the ids of their cases, and their place in the file.

    `find_lines` parses the file once more, for the lines of a problem: JSON's reader has no lines. `remedy` says what
    to do about an entry that does not fit its case.
    """

    entries: Mapping[str, GoldenCaseModel]
    find_lines: Callable[[], YamlFile]
    where: Field
    remedy: str

    def problem(self, id_: str, message: str) -> Problem:
        """Return a Problem at the entry of one case."""
        return self.find_lines().problem((*self.where, id_), message)


def golden_path(cases: Path) -> Path:
    """Return the golden file that belongs to a file of cases of the spec."""
    return cases.parent.parent / "golden" / f"{cases.stem}.json"


def read_golden_file(path: Path, component: str) -> StoredGolden:
    """Read the golden file of a component; no entries if it does not exist, SpecError if it has faults."""
    entries: Mapping[str, GoldenCaseModel] = {}
    if path.exists():
        model = _parse(path)
        if model.component != component:
            message = f"is {model.component!r} in the golden file of {component}: write {component}"
            raise SpecError([YamlFile.read(path).problem(("component",), message)])
        entries = model.cases
    return StoredGolden(entries, lambda: YamlFile.read(path), ("cases",), "run goldformer derive")


def _parse(path: Path) -> GoldenFileModel:
    try:
        data = json.loads(path.read_bytes(), object_pairs_hook=_refuse_repeated_keys, parse_constant=_refuse_constant)
        return GoldenFileModel.model_validate(data)
    except json.JSONDecodeError as error:
        raise SpecError([Problem(path, error.lineno, "file", f"is not JSON: {error.msg}")]) from error
    except (ValueError, OSError) as error:
        # JSON is YAML: its reader names the line and the field of most faults.
        YamlFile.read(path).parse(GoldenFileModel)
        raise SpecError([Problem(path, 1, "file", f"is not JSON: {error}")]) from error


def _refuse_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key is written twice")
    return found


def _refuse_constant(word: str) -> float:
    raise ValueError(f'{word} is no JSON: write "{word}"')


# ── what a case has of it ──


#: Makes the SpecError of values that are not those that a case asks for.
Refuse = Callable[[ValueError | OverflowError], SpecError]


#: The golden values of the outputs under one combination of options; None if it refuses the call.
_Outputs = Mapping[str, GoldenArray] | None


class _Combinations(Mapping[str, _Outputs]):
    """The golden values of a case by the combination of options, read on first use: a model has dozens.

    Those of a combination that is not stored are derived when it is asked for, if that is possible.
    """

    def __init__(
        self, keys: Iterable[str], read: Callable[[str], _Outputs], derive: Callable[[str], _Outputs] | None
    ) -> None:
        self._keys = tuple(keys)
        self._read = read
        self._derive = derive
        self._known: dict[str, _Outputs] = {}

    def __getitem__(self, key: str) -> _Outputs:
        if key not in self._known:
            find = self._read if key in self._keys else self._derive
            if find is None:
                raise KeyError(key)
            self._known[key] = find(key)
        return self._known[key]

    def __contains__(self, key: object) -> bool:
        return key in self._keys

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)

    def __reduce__(self) -> tuple[Any, ...]:
        """Send the values themselves: the function that reads them cannot be sent."""
        known = dict(self)
        return _Combinations, (tuple(known), known.__getitem__, self._derive)


def _derive_outputs(case: Case, contract: Contract, key: str) -> _Outputs:
    # What derives reads these files itself.
    oracle = importlib.import_module("goldformer.spec.oracle.run")
    outputs: _Outputs = oracle.derive_outputs(case, contract, case.read_key(key))
    return outputs


def read_golden(model: GoldenCaseModel, case: Case, contract: Contract, refuse: Refuse) -> Golden:
    """Return the golden values of a case; what `refuse` makes when they are not those that the case asks for."""
    combinations = {case.key(options): options for options in case.combine_stored()}
    stored = {ANY: model.outputs or {}} if model.options is None else model.options
    if not case.is_computed:
        # Those of families too, which spec/families.yaml decides.
        combinations |= {key: case.read_key(key) for key in stored if key not in combinations and case.has_key(key)}
    if set(stored) != set(combinations):
        actual, expected = (sorted(map(_name_combination, keys)) for keys in (stored, combinations))
        raise refuse(ValueError(f"has values for {actual}, the convention has {expected}"))

    def read(key: str) -> _Outputs:
        outputs = stored[key]
        if outputs == "refused":
            return None
        try:
            return _read_outputs(outputs, case.under(combinations[key]), contract)
        except (ValueError, OverflowError) as error:
            raise refuse(error) from error

    # A case without conventions has one reading, which shows its faults at once.
    outputs: Mapping[str, _Outputs] = {ANY: read(ANY)} if combinations.keys() == {ANY} else {}
    # The options of two conventions are all stored, unless any number is one.
    derive = None if case.is_computed else partial(_derive_outputs, case, contract)
    outputs = outputs or _Combinations(combinations, read, derive)
    assert model.derivation is not None, "the schema refuses values without it"
    assert model.peak is not None, "the schema refuses values without it"
    margin = None if model.margin is None else float(model.margin)
    return Golden(model.derivation, float(model.peak), outputs, margin)


def _name_combination(key: str) -> str:
    return key or "no option"


def _read_outputs(models: Any, case: Case, contract: Contract) -> dict[str, GoldenArray]:
    wanted = {name: want for name, want in case.expect.items() if want.form != "shape"}
    if set(models) != set(wanted):
        raise ValueError(f"has outputs {sorted(models)}, the case asks for {sorted(wanted)}")
    return {name: _read_array(name, models[name], want, case, contract) for name, want in wanted.items()}


def _read_array(name: str, model: Any, want: Wanted, case: Case, contract: Contract) -> GoldenArray:
    if isinstance(model, GoldenStatisticsModel) or want.form == "statistics":
        return _read_statistics(name, model, want)
    spec = contract.results_of(case)[name]
    values = _read_values(name, model.values, spec.kind)
    values.flags.writeable = False
    if want.form in ("computed", "probes"):
        # Drawn probes are stored with their values; probes that are written out are in `expect`.
        at = tuple(tuple(place) for place in model.at) if model.at is not None else want.indices
        if at != want.indices or values.shape != (len(at),):
            raise ValueError(f"{name} is given at other places than the case asks for")
        return GoldenArray(values, float(model.error_scale), at)
    shape = spec.shape.sizes(case.sizes, case.lead)
    if values.shape != shape:
        raise ValueError(f"{name} has shape {values.shape}, the contract says {shape}")
    return GoldenArray(values, float(model.error_scale))


def _read_statistics(name: str, model: Any, want: Wanted) -> GoldenArray:
    given = getattr(model, "statistics", {})
    if tuple(given) != want.statistics:
        asked = ", ".join(want.statistics) or "none"
        raise ValueError(f"{name} has the statistics {', '.join(given) or 'none'}, the case asks for {asked}")
    values = np.array([float(statistic.value) for statistic in given.values()])
    values.flags.writeable = False
    within = {statistic: float(model.within) for statistic, model in given.items()}
    return GoldenArray(values, float(model.error_scale), within=within)


def _read_values(name: str, written: Any, kind: Kind) -> Array:
    """Return the numbers or truth values of an output; nothing is converted into them but the words for no number."""
    kinds: dict[Kind, tuple[type, ...]] = {"bool": (bool,), "ids": (int,), "float": (int, float)}
    items = np.array(written, dtype=object)
    dtypes: dict[Kind, type[np.generic]] = {"bool": np.bool_, "ids": np.int64, "float": np.float64}
    if set(map(type, items.ravel().tolist())) <= set(kinds[kind]):
        return items.astype(dtypes[kind])
    for index in [index for index, item in enumerate(items.flat) if type(item) not in kinds[kind]]:
        item = items.flat[index]
        if kind != "float" or not isinstance(item, str) or item not in NOT_FINITE:
            words = " and ".join(k.__name__ for k in kinds[kind])
            raise ValueError(f"{name} holds {item!r} where only {words} can stand")
        items.flat[index] = NOT_FINITE[item]
    return items.astype(dtypes[kind])


# ── writing ──


def read_entries(path: Path) -> dict[str, Any]:
    """Return the entries of a golden file with their numbers as they are written; {} if it does not exist."""
    if not path.exists():
        return {}
    data = json.loads(path.read_text(encoding="utf-8"), parse_float=Numeral, parse_int=Numeral)
    entries: dict[str, Any] = data["cases"]
    return entries


def read_header(path: Path) -> tuple[str, str]:
    """Return the edition and the version of a golden file, from its first lines; empty words if it has none."""
    with path.open(encoding="utf-8") as stream:
        head = "".join(line for line, _ in zip(stream, range(_HEAD_LINES), strict=False))
    edition, version = (re.search(rf'^  "{key}": "([^"]*)"', head, re.MULTILINE) for key in ("edition", "version"))
    return edition[1] if edition else "", version[1] if version else ""


def write_golden_file(path: Path, edition: Edition, component: str, entries: Mapping[str, Any]) -> bool:
    """Write a golden file as a whole or not at all; False if that changes nothing."""
    before = path.read_text(encoding="utf-8") if path.exists() else None
    text = render_golden(edition.edition, edition.version, component, entries)
    if text == before or (before is None and not entries):
        return False
    path.parent.mkdir(exist_ok=True)
    replace_file(path, text)
    return True


def write_kills(
    path: Path, edition: Edition, component: str, order: Iterable[str], kills: Mapping[str, Sequence[str]]
) -> bool:
    """Put the kills of cases into the golden file of their component; False if nothing changes.

    `order` are the ids of all its cases. Everything else stays as it is, digit for digit.
    """
    entries = read_entries(path)
    for id_, killed in kills.items():
        entry = {key: value for key, value in entries.get(id_, {}).items() if key != "kills"}
        entries[id_] = entry | ({"kills": list(killed)} if killed else {})
    return write_golden_file(path, edition, component, sort_entries(entries, order))


def render_golden(edition: str, version: str, component: str, entries: Mapping[str, Any]) -> str:
    """Return the text of a golden file."""
    return render({"edition": edition, "version": version, "component": component, "cases": entries}) + "\n"


def render(value: Any, indent: str = "") -> str:
    """Return JSON with one key a line.

    Each list, each mapping that holds only numbers, and each combination of options stands in one line.
    """
    if isinstance(value, Mapping) and value and not all(isinstance(item, Numeral) for item in value.values()):
        inner = indent + "  "
        items = (f"{inner}{json.dumps(key)}: {_render_entry(key, item, inner)}" for key, item in value.items())
        return "{\n" + ",\n".join(items) + f"\n{indent}}}"
    return "".join(_render_line(value))


def _render_entry(key: str, value: Any, indent: str) -> str:
    """Return the JSON of a key's value: a model has hundreds of combinations, each a line."""
    return "".join(_render_line(value)) if is_combination(key) else render(value, indent)


def _render_line(value: Any) -> Iterator[str]:
    if isinstance(value, Numeral):
        yield value
    elif isinstance(value, Mapping):
        yield "{" + ", ".join(f"{json.dumps(key)}: {''.join(_render_line(item))}" for key, item in value.items()) + "}"
    elif isinstance(value, list | tuple):
        yield "[" + ", ".join("".join(_render_line(item)) for item in value) + "]"
    else:
        yield json.dumps(value)


def sort_entries(entries: Mapping[str, Any], order: Iterable[str]) -> dict[str, Any]:
    """Return the entries that say something, in the order of their cases; those without a case are left out."""
    return {id_: entries[id_] for id_ in order if entries.get(id_)}
