"""A record as JSON: the one form of `check --json`, of each implementation in `compare --json`, and of Python."""

from __future__ import annotations

import platform
from dataclasses import asdict, dataclass, fields
from functools import cache
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final, get_type_hints

from goldformer.conformance.diagnosis.diagnosed import CheckDiagnosis
from goldformer.conformance.judging.verdict import Verdict
from goldformer.conformance.reports.comparison import Comparison, ComparisonRequest
from goldformer.conformance.reports.record import Outcome, RunRecord
from goldformer.conformance.reports.results import ComponentResult
from goldformer.spec import Spec

if TYPE_CHECKING:
    from pydantic import BaseModel

#: JSON has no infinity and no NaN: they are words.
_NUMBER: Final = {"anyOf": [{"type": "number"}, {"enum": ["inf", "-inf", "nan"]}]}

#: The fields of a record that are written as they are; the others follow under other names, or only reports use them.
_PLAIN: Final = tuple(f.name for f in fields(RunRecord) if f.name not in ("results", "brief", "run", "pictures"))


@dataclass(frozen=True)
class VerdictFacts(CheckDiagnosis, Verdict):
    """A verdict and its diagnosis."""


def as_json(record: RunRecord) -> dict[str, Any]:
    """Return a record as data for JSON, as `goldformer schema report` describes it."""
    return {
        "goldformer": version("goldformer"),
        "python": platform.python_version(),
        **{name: getattr(record, name) for name in _PLAIN},
        "components": record.rows,
        "not_implemented": record.not_implemented,
        "verdicts": record.run.as_json(),
    }


def comparison_as_json(comparison: Comparison, spec: Spec) -> dict[str, Any]:
    """Return a comparison as data for JSON, with the whole record of each implementation."""
    return {
        "environment": comparison.environment(spec),
        **asdict(comparison.request),
        "outcome": comparison.outcome,
        "implementations": [as_json(record) for record in comparison.records],
    }


@cache
def make_report_model() -> type[BaseModel]:
    """Return the model of a record as JSON, made of the types of its fields."""
    from pydantic import ConfigDict, create_model  # only what checks a report needs it

    types = {name: kind for name, kind in get_type_hints(RunRecord).items() if name in _PLAIN}
    types |= {"goldformer": str, "python": str, "components": list[ComponentResult], "not_implemented": list[str]}
    types |= {"verdicts": list[VerdictFacts]}
    made: dict[str, Any] = {name: (kind, ...) for name, kind in types.items()}
    return create_model("Report", __config__=ConfigDict(extra="forbid"), **made)


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a report, or of several: of a comparison, or of the classes of a file."""
    from pydantic import ConfigDict, TypeAdapter, create_model

    report = make_report_model()
    types: dict[str, Any] = get_type_hints(ComparisonRequest) | {"environment": dict[str, str], "outcome": Outcome}
    made: dict[str, Any] = {name: (kind, ...) for name, kind in types.items()}
    made["implementations"] = (list[report], ...)  # type: ignore[valid-type]
    reports = create_model("Reports", __config__=ConfigDict(extra="forbid"), **made)
    schema = _allow_words(TypeAdapter(report | reports).json_schema())
    assert isinstance(schema, dict)
    return schema


def _allow_words(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_allow_words(inner) for inner in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("type") == "number":
        return {**{key: value for key, value in schema.items() if key != "type"}, **_NUMBER}
    return {key: _allow_words(inner) for key, inner in schema.items()}
