"""The schema of the files that `goldformer export` writes: each case as a plain call, which needs no other file.

Every array is a shape and its numbers, row by row, so that a reader needs no YAML, no generator and no contract.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from goldformer.spec.draw import Kind
from goldformer.spec.model import NOT_FINITE, Statistic
from goldformer.spec.strict import ClauseId, Id, Name, Option, Param, StrictModel, Text

Dtype = Literal["float64", "float32", "float16", "bfloat16"]

_ELEMENT = {"anyOf": [{"type": ["number", "boolean"]}, {"enum": list(NOT_FINITE)}]}


class DrawnNumbersModel(StrictModel):
    """Numbers that the generator of transformer.md draws from a grid, under this name."""

    draw: Literal["dyadic"]
    seed: int
    name: Param
    range: Annotated[list[float], Field(min_length=2, max_length=2)]
    step: float


class PlainArrayModel(StrictModel):
    """An array: its numbers in row-major order, the last axis fastest. Of a full-size model it has its recipe instead.

    `values` are numbers for the kind `float`, integers for `ids`, and truth values for `bool`.
    """

    kind: Kind
    shape: list[Annotated[int, Field(ge=0)]]
    values: Annotated[list[Any] | None, Field(json_schema_extra={"items": _ELEMENT})] = None
    recipe: DrawnNumbersModel | None = None


class PlainStatisticModel(StrictModel):
    """The value of a statistic, and how far chance may move it."""

    value: float
    within: float


class PlainOutputModel(StrictModel):
    """The parts of an output that are compared: its shape, and in most cases numbers.

    `values` are all of it in row-major order, or the elements `at` these places. `tolerance` is the largest absolute
    difference in each dtype in which the case is judged; 0 is equality. A random output has `statistics` instead.
    """

    kind: Kind
    shape: list[int]
    values: Annotated[list[Any] | None, Field(json_schema_extra={"items": _ELEMENT})] = None
    at: list[list[int]] | None = None
    statistics: dict[Statistic, PlainStatisticModel] | None = None
    tolerance: dict[Dtype, float] | None = None


class ExpectationModel(StrictModel):
    """The result of a call under some options: its outputs, or an error.

    It holds for an implementation whose option of each convention in `options` is among those that are listed.
    Parameters in `without` are left out of the call. `refuses` names the argument at fault, and the call must be
    refused. With `may_refuse`, the call may give any result or none.
    """

    options: dict[Name, Annotated[list[Option], Field(min_length=1)]]
    without: list[Param] = []
    outputs: dict[Param, PlainOutputModel] | None = None
    refuses: Param | None = None
    may_refuse: Literal[True] | None = None


class PlainCallModel(StrictModel):
    """One case: the arguments of a call, and what is expected of it.

    Advice is a case whose clauses are all SHOULD. With a `cotangent`, the gradient of the first output, the outputs are
    the gradients of the arguments.
    """

    id: Id
    title: Text
    clauses: Annotated[list[ClauseId], Field(min_length=1)]
    advice: Literal[True] | None = None
    attributes: dict[Name, int | bool | float | list[int]]
    inputs: dict[Name, PlainArrayModel]
    params: dict[Param, PlainArrayModel]
    cotangent: PlainArrayModel | None = None
    expect: Annotated[list[ExpectationModel], Field(min_length=1)]


class CallsFile(StrictModel):
    """All cases of one component as plain calls, with the options of the families that have it."""

    edition: str
    version: str
    digest: str
    component: Name
    number_of_cases: int
    first_output: Name
    families: dict[Id, dict[Name, Option]]
    conventions: dict[Name, list[Option]]
    cases: list[PlainCallModel]
