"""The schema of the files of cases, as pydantic models.

Unknown keys are refused everywhere. Checks that need more than one file are in load.py.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_core import PydanticCustomError

from goldformer.spec.draw import Dyadic, Ends, Fill, Ids, Mask, Uniform, Values
from goldformer.spec.goldenfile import GoldenCaseModel
from goldformer.spec.model import Blind, Statistic
from goldformer.spec.strict import ByKeys, ClauseId, Id, Items, Name, Option, Param, StrictModel, Text
from goldformer.spec.tables import Citation, write_number

Nested = list[Any]

AnyRecipe = Annotated[
    Dyadic | Uniform | Ids | Values | Fill | Mask,
    ByKeys("expected a mapping: write {values: …} around numbers, or {fill: …} or {draw: …}"),
]


class UniformRangeModel(StrictModel):
    """The range from which a number with all bits is drawn."""

    range: Ends


class RangeModel(UniformRangeModel):
    """The range from which a number of a grid is drawn."""

    step: str | int


class AllParamsModel(Dyadic):
    """One recipe for all parameters but those in `but`; `gammas` have their own range.

    `biases: false` leaves the optional ones out.
    """

    biases: bool = True
    gammas: RangeModel | None = None
    but: dict[Param, AnyRecipe] = {}


class AllUniformModel(Uniform):
    """One recipe with all bits for all parameters, as AllParamsModel."""

    biases: bool = True
    gammas: UniformRangeModel | None = None
    but: dict[Param, AnyRecipe] = {}


class ProbesModel(StrictModel):
    probes: Annotated[list[list[int]], Field(min_length=1)]


class DrawnModel(StrictModel):
    """`drawn` places drawn by the generator, one stream per axis."""

    drawn: Annotated[int, Field(ge=1, le=100_000)]
    seed: int


class ComputedModel(StrictModel):
    """All of a large output, computed in float64; the corners and `computed` drawn places are stored and proven."""

    computed: Annotated[int, Field(ge=1, le=1000)]
    seed: int


class RealModel(StrictModel):
    """As many rows of each sample as its length says, the first ones, or the last ones where padding is on the left.

    Padded rows are not compared.
    """

    lengths: Annotated[list[int], Field(min_length=1)]
    padding: Literal["left", "right"] = "right"


class StatisticsModel(StrictModel):
    """Statistics of a random output."""

    statistics: Annotated[list[Statistic], Field(min_length=1)]


WantedModel = Annotated[
    Literal["all", "shape"] | DrawnModel | ComputedModel | RealModel | StatisticsModel | ProbesModel, ByKeys()
]


#: A plain argument, or a list of whole numbers, which becomes a tuple.
AttributeModel = int | bool | float | Items[int]


class ErrorModel(StrictModel):
    """The argument at fault."""

    error: Param


class ChangeModel(StrictModel):
    """The one thing in which an error case differs from its base; null takes an argument away."""

    attributes: dict[Name, AttributeModel] = {}
    inputs: dict[Name, AnyRecipe | None] = {}
    params: dict[Param, AnyRecipe | None] = {}


#: A case is designed to reveal few mistakes; the others that it reveals are measured.
_MOST_MEANT: Final = 3


def _check_count(ids: tuple[str, ...]) -> tuple[str, ...]:
    if len(ids) > _MOST_MEANT:
        message = f"names {len(ids)} mistakes: keep at most {_MOST_MEANT}, those that the case was designed to reveal"
        raise PydanticCustomError("meant_for", message)
    return ids


MeantFor = Annotated[Items[Id], AfterValidator(_check_count), Field(json_schema_extra={"maxItems": _MOST_MEANT})]


def list_names(names: Any) -> Any:
    """Return a list of names, which a file may write as one name."""
    return (names,) if isinstance(names, str) else names


def _spell_number(option: Any) -> Any:
    """Return an option that is a number, such as an eps, in its shortest form; any other as it is."""
    return (write_number(option) or option) if isinstance(option, float) else option


class CaseModel(StrictModel):
    id: Id
    title: Text
    clauses: Annotated[Items[ClauseId], Field(min_length=1)]
    source: Citation | Literal["derived"]
    meant_for: MeantFor = ()
    sizes: dict[Name, int | list[int]] = {}
    equal_sizes: Text | None = None
    blind: Items[Blind] = ()
    attributes: dict[Name, AttributeModel] = {}
    inputs: dict[Name, AnyRecipe] = {}
    params: Annotated[AllParamsModel | AllUniformModel | dict[Param, AnyRecipe], ByKeys()] = {}
    cotangent: AnyRecipe | None = None
    convention: Annotated[Items[Name], BeforeValidator(list_names, json_schema_input_type=Name | Items[Name])] = ()
    only_with: dict[Name, Annotated[Option, BeforeValidator(_spell_number, json_schema_input_type=Option | float)]] = {}
    base: Id | None = None
    change: ChangeModel | None = None
    expect: Annotated[ErrorModel | dict[Param, WantedModel], ByKeys()]
    printed: dict[Name, Nested] = {}


class CasesFile(StrictModel):
    """A file of cases. Only a file outside the spec has `golden`: the spec's own golden values are in spec/golden."""

    component: Name
    cases: Annotated[list[CaseModel], Field(min_length=1)]
    golden: dict[Id, GoldenCaseModel] = {}
