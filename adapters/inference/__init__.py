"""Proposals for the adapter of a class or a function; whether one is right is decided elsewhere."""

from goldformer.adapters.inference.inputs import (
    MaskForm,
    has_batch_axis,
    is_causal_switch,
    list_forms,
    makes_causal_mask,
    may_hide_future,
    pass_padding,
    says_ignore,
)
from goldformer.adapters.inference.packages import import_target
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
from goldformer.adapters.inference.target import (
    ChoiceError,
    InferenceError,
    MisfitError,
    Target,
    as_module,
    is_inferable,
    list_targets,
    read_target,
    split_target,
)
from goldformer.adapters.inference.writing import Returns, Wiring, switches_mask

__all__ = [
    "COMPONENTS",
    "ChoiceError",
    "InferenceError",
    "MaskForm",
    "MisfitError",
    "Returns",
    "Target",
    "Wiring",
    "as_module",
    "explain_parts",
    "explain_unbuilt",
    "find_embedding_stack",
    "find_shared_norm",
    "find_shared_projections",
    "has_batch_axis",
    "has_fixed_sizes",
    "import_target",
    "is_causal_switch",
    "is_inferable",
    "list_forms",
    "list_targets",
    "load_wiring",
    "makes_causal_mask",
    "may_hide_future",
    "pass_padding",
    "propose",
    "read_target",
    "says_ignore",
    "split_target",
    "switches_mask",
]
