"""The schema of the spec's tables and contracts, as pydantic models: everything in YAML but the cases.

Unknown keys are refused everywhere. What needs more than one file to judge is judged in load.py.
"""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from goldformer.spec.schema_words import ClauseId, Id, Name, Option, Strict, Text

# ── documents.yaml, errata.yaml, conventions.yaml, mistakes.yaml, properties.yaml ──


class RowModel(Strict):
    id: Annotated[str, Field(pattern=r"^[A-Z][0-9]+$")]
    section: Text
    says: Text


class DocumentModel(Strict):
    id: Id
    title: Text
    english: Text
    kind: Literal["article", "paper"]
    about: Text
    rows: list[RowModel]


class DocumentsFile(Strict):
    documents: list[DocumentModel]


class DigitsModel(Strict):
    case: Id
    output: Name
    indices: list[list[int]]


class ErratumModel(Strict):
    id: Id
    document: Id
    rows: list[str]
    section: Text
    printed: Text
    correct: Text
    why: Text
    clauses: Annotated[list[ClauseId], Field(min_length=1)]
    proof: Annotated[list[Id], Field(min_length=1)]
    digits: list[DigitsModel] = []


class ErrataFile(Strict):
    errata: list[ErratumModel]


class ConventionModel(Strict):
    id: Name
    title: Text
    clause: ClauseId
    default: Option
    options: Annotated[dict[Option, Text], Field(min_length=2)]
    left_open: Text | None = None


class ConventionsFile(Strict):
    conventions: list[ConventionModel]


_PLACE: Final = r"^[\w.-]+/[\w.-]+(#\d+|:\S+)?( \([^()]+\))?$"
_PLACES: Final = "owner/name#12 (a thread), owner/name:path (a file) or owner/name"


def _a_place(text: str) -> str:
    if not re.fullmatch(_PLACE, text):
        raise PydanticCustomError("place", f"should be {_PLACES}, with nothing behind it but a note in parentheses")
    return text


#: A repository, a thread in it or a file of it, and what is to be said about that: owner/name#12 (claimed).
Seen = Annotated[str, AfterValidator(_a_place), Field(json_schema_extra={"pattern": _PLACE})]


class MistakeModel(Strict):
    id: Id
    component: Name
    title: Text
    does: Text
    symptom: Text
    why: Text
    hint: Text
    reveals: Text
    hides: Text
    seen: list[Seen] = []


class MistakesFile(Strict):
    mistakes: list[MistakeModel]


class PropertyModel(Strict):
    id: Id
    component: Name | Literal["*"]
    title: Text
    clauses: Annotated[list[ClauseId], Field(min_length=1)]
    catches: list[Id] = []
    needs: list[Name] = []


class PropertiesFile(Strict):
    properties: list[PropertyModel]


# ── contracts/*.yaml ──


class ArrayModel(Strict):
    kind: Literal["float", "bool", "ids"]
    shape: list[str | int] | None = None
    broadcast: list[str | int] | None = None
    optional: bool = False
    below: Name | None = None
    blind: Text | None = None


class AttributeModel(Strict):
    kind: Literal["int", "bool", "float"]
    minimum: int | float | None = None
    maximum: int | float | None = None
    size: Name | None = None
    below: Name | None = None
    at_most: Name | None = None
    optional: bool = False


class BlockModel(Strict):
    """The parameters of another component, under a prefix; with `repeat` once for each of so many layers."""

    component: Name
    sizes: dict[Name, Name] = {}
    repeat: Name | None = None


class ContractFile(Strict):
    component: Name
    title: Text
    depends_on: list[Name]
    inputs: dict[Name, ArrayModel] = {}
    params: dict[Name, ArrayModel] = {}
    blocks: dict[Name, BlockModel] = {}
    attributes: dict[Name, AttributeModel] = {}
    outputs: Annotated[dict[Name, ArrayModel], Field(min_length=1)]
    flow: list[Name] = []
    conventions: list[Name] = []
    computed_in_at_least: Literal["float32", "float64"] | None = None
