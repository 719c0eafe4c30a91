"""Proposals for the adapter of a class or a function; whether one is right is decided elsewhere."""

from goldformer.adapters.inference.inputs import MaskForm, has_batch_axis, list_forms, may_hide_future, says_ignore
from goldformer.adapters.inference.proposals import (
    COMPONENTS,
    explain_parts,
    explain_unbuilt,
    find_embedding_stack,
    find_shared_norm,
    find_shared_projections,
    has_fixed_sizes,
    load_wiring,
    propose,
)
from goldformer.adapters.inference.target import ChoiceError, InferenceError, Target, read_target
from goldformer.adapters.inference.writing import Returns, Wiring

__all__ = [
    "COMPONENTS",
    "ChoiceError",
    "InferenceError",
    "MaskForm",
    "Returns",
    "Target",
    "Wiring",
    "explain_parts",
    "explain_unbuilt",
    "find_embedding_stack",
    "find_shared_norm",
    "find_shared_projections",
    "has_batch_axis",
    "has_fixed_sizes",
    "list_forms",
    "load_wiring",
    "may_hide_future",
    "propose",
    "read_target",
    "says_ignore",
]
