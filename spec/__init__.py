"""The spec as data: the clauses, contracts, golden cases, errata and mistakes of the Transformer."""

from goldformer.spec.errors import Problem, SpecError
from goldformer.spec.load import ROOT, Spec, load_own_cases, load_spec
from goldformer.spec.model import (
    ANY,
    UNSPECIFIED,
    ArraySpec,
    AttributeSpec,
    Case,
    Contract,
    Golden,
    GoldenArray,
    Wanted,
)
from goldformer.spec.strict import Location
from goldformer.spec.tables import Citation, Clause, Convention, Document, Erratum, Family, Level, Mistake, Property

__all__ = [
    "ANY",
    "ROOT",
    "UNSPECIFIED",
    "ArraySpec",
    "AttributeSpec",
    "Case",
    "Citation",
    "Clause",
    "Contract",
    "Convention",
    "Document",
    "Erratum",
    "Family",
    "Golden",
    "GoldenArray",
    "Level",
    "Location",
    "Mistake",
    "Problem",
    "Property",
    "Spec",
    "SpecError",
    "Wanted",
    "load_own_cases",
    "load_spec",
]
