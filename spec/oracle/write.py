"""Golden files written from derivations."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from goldformer.spec.edition import Edition
from goldformer.spec.goldenfile import Numeral, read_entries, sort_entries, write_golden_file
from goldformer.spec.model import ANY, Case, Wanted
from goldformer.spec.oracle.derive import Derived, DerivedArray

#: The keys of an entry except its kills.
_DERIVED = ("derivation", "peak", "margin", "outputs", "options")


def write_golden(
    path: Path, edition: Edition, cases: Mapping[str, Case], derived: Mapping[str, tuple[str, Derived]]
) -> bool:
    """Put derivations (by case id, with their digests) into the golden file of a component; False if nothing changes.

    `cases` are all of the component, in order. Other entries stay as they are, digit for digit; kills always do.
    """
    before = read_entries(path)
    entries: dict[str, Any] = {}
    for id_, case in cases.items():
        entry = before.get(id_, {})
        if id_ in derived:
            made = golden_entry(*derived[id_], case)
        elif case.error is None and not case.shape_only:
            made = {key: entry[key] for key in _DERIVED if key in entry}
        else:
            made = {}
        entries[id_] = made | ({"kills": entry["kills"]} if "kills" in entry else {})
    component = path.stem
    return write_golden_file(path, edition, component, sort_entries(entries, cases))


def golden_entry(digest: str, derived: Derived, case: Case) -> dict[str, Any]:
    """Return what is stored of the derivation of a case, as an entry of a golden file."""
    entry: dict[str, Any] = {"derivation": digest, "peak": Numeral(number(repr(derived.peak)))}
    if derived.margin is not None:
        entry["margin"] = Numeral(number(repr(derived.margin)))
    options = {
        key: "refused"
        if outputs is None
        else {name: _array(array, case.expect[name]) for name, array in outputs.items()}
        for key, outputs in derived.options.items()
    }
    return entry | ({"outputs": options[ANY]} if set(options) == {ANY} else {"options": options})


def _array(array: DerivedArray, wanted: Wanted) -> dict[str, Any]:
    made: dict[str, Any] = {"error_scale": Numeral(number(repr(array.error_scale)))}
    if wanted.drawn:
        made["at"] = [[Numeral(k) for k in place] for place in wanted.indices]
    if array.within is not None:
        made["statistics"] = {
            statistic: {"value": _value(value), "within": Numeral(number(repr(within)))}
            for (statistic, within), value in zip(array.within.items(), array.values, strict=True)
        }
        return made
    values = np.empty(len(array.values), dtype=object)
    values[:] = [_value(text) for text in array.values]
    made["values"] = values.reshape(array.shape).tolist()
    return made


def _value(text: str) -> Numeral | bool | str:
    """Return a derived decimal or truth value as it stands in JSON."""
    words: dict[str, bool | str] = {"true": True, "false": False, "nan": "NaN"}
    return words[text] if text in words else Numeral(number(text))


def number(text: str) -> str:
    """Return a decimal as JSON and YAML 1.1 both read a number: no trailing zeros, a point before an exponent."""
    mantissa, exponent, power = text.partition("e")
    if "." in mantissa:
        mantissa = mantissa.rstrip("0").rstrip(".")
    if not exponent:
        return mantissa
    sign = "" if power[0] in "+-" else "+"
    return f"{mantissa if '.' in mantissa else mantissa + '.0'}e{sign}{power}"
