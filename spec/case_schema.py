"""The schema of the files of cases, as pydantic models.

Unknown keys are refused everywhere. Checks that need more than one file are in load.py.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag, field_validator
from pydantic_core import PydanticCustomError

from goldformer.spec.goldenfile import GoldenCaseModel
from goldformer.spec.model import Blind, Statistic
from goldformer.spec.strict import ClauseId, Id, Items, Name, Option, Param, StrictModel, Text

Nested = list[Any]


class DrawModel(StrictModel):
    """Drawn by the generator of transformer.md; `step` is a power of two such as 1/32.

    `like` names another argument, under whose name it is drawn: with one seed and one shape both are equal. `ramp` are
    the numbers that are added to the first row and to the last, and in between to the others.
    """

    draw: Literal["dyadic"]
    seed: int
    range: Annotated[list[float | int], Field(min_length=2, max_length=2)]
    step: str | int
    shape: list[int] | None = None
    like: Name | None = None
    ramp: Annotated[list[float | int], Field(min_length=2, max_length=2)] | None = None

    @field_validator("step")
    @classmethod
    def _check_step(cls, step: str | int) -> str | int:
        if isinstance(step, str) and "e" in step.lower():
            # Fraction would compute 10 to that power, digit by digit.
            raise ValueError("a step is written without an exponent, such as 1/32")
        try:
            Fraction(step)
        except ZeroDivisionError as error:
            raise ValueError("a step cannot be divided by zero") from error
        return step


class UniformModel(StrictModel):
    """Drawn by the generator of transformer.md with all bits of float64, between two ends a power of two apart.

    `like` is as for `draw: dyadic`.
    """

    draw: Literal["uniform"]
    seed: int
    range: Annotated[list[float | int], Field(min_length=2, max_length=2)]
    shape: list[int] | None = None
    like: Name | None = None


class IdsModel(StrictModel):
    """Integers drawn from range[0] to range[1], both included."""

    draw: Literal["ids"]
    seed: int
    range: Annotated[list[int], Field(min_length=2, max_length=2)]
    shape: list[int] | None = None


class ValuesModel(StrictModel):
    """Written out: nested lists, or one number."""

    values: Nested
    shape: list[int] | None = None


#: How to write an array of booleans.
BOOLEANS: Final = "{values: [[true, false], …]}, {lengths: […], shape: […]} or {causal: true, shape: […]}"


def _refuse_boolean(fill: Any) -> Any:
    if isinstance(fill, bool):
        raise PydanticCustomError("fill", f"expected a number; write booleans as {BOOLEANS}")
    return fill


class FillModel(StrictModel):
    """One number everywhere, of an array of floats."""

    fill: Annotated[float | int, BeforeValidator(_refuse_boolean)]
    shape: list[int] | None = None


class BlocksModel(StrictModel):
    """Whole blocks of `size` queries and `size` keys: `keep` has a row for each block of queries."""

    size: Annotated[int, Field(ge=1)]
    keep: Annotated[list[list[Annotated[int, Field(ge=0, le=1)]]], Field(min_length=1)]


class MaskModel(StrictModel):
    lengths: list[int] | None = None
    causal: bool = False
    blocks: BlocksModel | None = None
    shape: list[str | int]


def _tag_recipe(value: Any) -> str | None:
    if not isinstance(value, dict):
        return None
    if "draw" in value:
        return f"as:{value['draw']}" if value["draw"] in ("ids", "uniform") else "as:dyadic"
    return "as:values" if "values" in value else "as:fill" if "fill" in value else "as:mask"


RecipeModel = Annotated[
    Annotated[DrawModel, Tag("as:dyadic")]
    | Annotated[UniformModel, Tag("as:uniform")]
    | Annotated[IdsModel, Tag("as:ids")]
    | Annotated[ValuesModel, Tag("as:values")]
    | Annotated[FillModel, Tag("as:fill")]
    | Annotated[MaskModel, Tag("as:mask")],
    Discriminator(
        _tag_recipe,
        custom_error_type="recipe",
        custom_error_message="expected a mapping: write {values: …} around numbers, or {fill: …} or {draw: …}",
    ),
]


class UniformRangeModel(StrictModel):
    """The range from which a number with all bits is drawn."""

    range: Annotated[list[float | int], Field(min_length=2, max_length=2)]


class RangeModel(UniformRangeModel):
    """The range from which a number of a grid is drawn."""

    step: str | int


class AllParamsModel(DrawModel):
    """One recipe for all parameters but those in `but`; `gammas` have their own range.

    `biases: false` leaves the optional ones out.
    """

    biases: bool = True
    gammas: RangeModel | None = None
    but: dict[Param, RecipeModel] = {}


class AllUniformModel(UniformModel):
    """One recipe with all bits for all parameters, as AllParamsModel."""

    biases: bool = True
    gammas: UniformRangeModel | None = None
    but: dict[Param, RecipeModel] = {}


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


def _tag_wanted(value: Any) -> str:
    if isinstance(value, dict):
        return next(
            (f"as:{key}" for key in ("computed", "drawn", "lengths", "statistics") if key in value), "as:probes"
        )
    return "as:word"


WantedModel = Annotated[
    Annotated[Literal["all", "shape"], Tag("as:word")]
    | Annotated[ProbesModel, Tag("as:probes")]
    | Annotated[DrawnModel, Tag("as:drawn")]
    | Annotated[ComputedModel, Tag("as:computed")]
    | Annotated[RealModel, Tag("as:lengths")]
    | Annotated[StatisticsModel, Tag("as:statistics")],
    Discriminator(_tag_wanted),
]


#: A plain argument, or a list of whole numbers, which becomes a tuple.
AttributeModel = int | bool | float | Items[int]


class ErrorModel(StrictModel):
    """The argument at fault."""

    error: Param


class SourceModel(StrictModel):
    document: Id
    rows: Annotated[list[str], Field(min_length=1)]


class ChangeModel(StrictModel):
    """The one thing in which an error case differs from its base; null takes an argument away."""

    attributes: dict[Name, AttributeModel] = {}
    inputs: dict[Name, RecipeModel | None] = {}
    params: dict[Param, RecipeModel | None] = {}


def _tag_params(value: Any) -> str:
    if not (isinstance(value, dict) and isinstance(value.get("draw"), str)):
        return "as:each"
    return "as:uniform" if value["draw"] == "uniform" else "as:together"


def _tag_expect(value: Any) -> str:
    return "as:error" if isinstance(value, dict) and "error" in value else "as:outputs"


#: A case is designed to reveal few mistakes; the others that it reveals are measured.
_MOST_MEANT: Final = 3


def _check_count(ids: list[str]) -> list[str]:
    if len(ids) > _MOST_MEANT:
        message = f"names {len(ids)} mistakes: keep at most {_MOST_MEANT}, those that the case was designed to reveal"
        raise PydanticCustomError("meant_for", message)
    return ids


MeantFor = Annotated[list[Id], AfterValidator(_check_count), Field(json_schema_extra={"maxItems": _MOST_MEANT})]


def _tag_convention(value: Any) -> str:
    return "as:one" if isinstance(value, str) else "as:several"


class CaseModel(StrictModel):
    id: Id
    title: Text
    clauses: Annotated[list[ClauseId], Field(min_length=1)]
    source: SourceModel | Literal["derived"]
    meant_for: MeantFor = []
    sizes: dict[Name, int | list[int]] = {}
    equal_sizes: Text | None = None
    blind: Items[Blind] = ()
    attributes: dict[Name, AttributeModel] = {}
    inputs: dict[Name, RecipeModel] = {}
    params: Annotated[
        Annotated[AllParamsModel, Tag("as:together")]
        | Annotated[AllUniformModel, Tag("as:uniform")]
        | Annotated[dict[Param, RecipeModel], Tag("as:each")],
        Discriminator(_tag_params),
    ] = {}
    cotangent: RecipeModel | None = None
    convention: Annotated[
        Annotated[Name, Tag("as:one")] | Annotated[Items[Name], Tag("as:several")], Discriminator(_tag_convention)
    ] = ()
    only_with: dict[Name, Option] = {}
    base: Id | None = None
    change: ChangeModel | None = None
    expect: Annotated[
        Annotated[ErrorModel, Tag("as:error")] | Annotated[dict[Param, WantedModel], Tag("as:outputs")],
        Discriminator(_tag_expect),
    ]
    printed: dict[Name, Nested] = {}


class CasesFile(StrictModel):
    """A file of cases. Only a file outside the spec has `golden`: the spec's own golden values are in spec/golden."""

    component: Name
    cases: Annotated[list[CaseModel], Field(min_length=1)]
    golden: dict[Id, GoldenCaseModel] = {}
