"""The schema of golden files, as pydantic models: what programs write of each case.

Unknown keys are refused everywhere. Whether an entry fits its case is judged in goldenfile.py.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from goldformer.spec.model import NOT_FINITE, Statistic
from goldformer.spec.schema_words import Id, Name, Option, Param, Strict

#: For readers of the JSON Schema: pydantic lets `values` be anything, since read_golden knows the kind of the output
#: and judges each element, and doing that twice would take twice the time.
_VALUES: Final = {
    "description": "One value, or lists nested in the shape of the output.",
    "anyOf": [
        {"type": ["number", "boolean"]},
        {"enum": list(NOT_FINITE)},
        {"type": "array", "items": {"$ref": "#/$defs/Values"}},
    ],
}


class GoldenArrayModel(Strict):
    """The values of an output: all of them, or those at the probes of the case; `at` holds probes that were drawn."""

    error_scale: float
    at: list[list[int]] | None = None
    values: Any


class GoldenStatisticModel(Strict):
    """The value of a statistic, and how far chance may move it."""

    value: float
    within: float


class GoldenStatisticsModel(Strict):
    """The statistics of a random output."""

    error_scale: float
    statistics: Annotated[dict[Statistic, GoldenStatisticModel], Field(min_length=1)]


def _kind(value: Any) -> str:
    return "as:statistics" if isinstance(value, dict) and "statistics" in value else "as:values"


GoldenOutputModel = Annotated[
    Annotated[GoldenArrayModel, Tag("as:values")] | Annotated[GoldenStatisticsModel, Tag("as:statistics")],
    Discriminator(_kind),
]


class GoldenCaseModel(Strict):
    """Everything that programs write of one case; a refusal has only `kills`."""

    derivation: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")] | None = None
    peak: float | None = None
    margin: float | None = None
    outputs: dict[Param, GoldenOutputModel] | None = None
    options: dict[Option, dict[Param, GoldenOutputModel] | Literal["refused"]] | None = None
    kills: list[Id] = []

    @model_validator(mode="after")
    def _values_are_whole(self) -> GoldenCaseModel:
        given = {name for name in ("derivation", "peak") if getattr(self, name) is not None}
        values = [name for name in ("outputs", "options") if getattr(self, name) is not None]
        if len(given) not in (0, 2) or len(values) != len(given) // 2 or (self.margin is not None and not given):
            raise ValueError("golden values need derivation, peak and either outputs or options")
        return self


class GoldenFileModel(Strict):
    """Written by `goldformer derive` and `goldformer mistakes --matrix --write`; never by hand."""

    component: Name
    cases: dict[Id, GoldenCaseModel]

    @classmethod
    def model_json_schema(cls, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Return the JSON Schema, with the elements of values, which pydantic does not look at."""
        schema = super().model_json_schema(*args, **kwargs)
        schema["$defs"]["GoldenArrayModel"]["properties"]["values"] = {"$ref": "#/$defs/Values"}
        schema["$defs"]["Values"] = _VALUES
        return schema
