"""The spec as data: the clauses, contracts, golden cases, errata and mistakes of the Transformer."""

from goldformer.spec.errors import Problem, SpecError
from goldformer.spec.load import ROOT, load_spec
from goldformer.spec.model import Case, Contract, Spec
from goldformer.spec.tables import Clause, Convention, Erratum, Level, Mistake, Property

__all__ = [
    "ROOT",
    "Case",
    "Clause",
    "Contract",
    "Convention",
    "Erratum",
    "Level",
    "Mistake",
    "Problem",
    "Property",
    "Spec",
    "SpecError",
    "load_spec",
]
