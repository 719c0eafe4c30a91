"""Proposals for the adapter of a class or a function; whether one is right is decided elsewhere."""

from goldformer.adapters.inference.caches import Cache, Tokens, keeps_cache, propose_caches, use_cache
from goldformer.adapters.inference.calls import Returns
from goldformer.adapters.inference.inputs import (
    MaskForm,
    TableForm,
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
    has_fixed_sizes,
    propose,
)
from goldformer.adapters.inference.sessions import SESSIONS
from goldformer.adapters.inference.target import (
    ChoiceError,
    InferenceError,
    Made,
    MisfitError,
    Target,
    as_module,
    explain_others,
    is_inferable,
    list_targets,
    read_target,
    split_target,
)
from goldformer.adapters.inference.wiring import Wiring, adapt, load_wiring, switches_mask

__all__ = [
    "COMPONENTS",
    "SESSIONS",
    "Cache",
    "ChoiceError",
    "InferenceError",
    "Made",
    "MaskForm",
    "MisfitError",
    "Returns",
    "TableForm",
    "Target",
    "Tokens",
    "Wiring",
    "adapt",
    "as_module",
    "explain_others",
    "explain_parts",
    "explain_unbuilt",
    "has_batch_axis",
    "has_fixed_sizes",
    "import_target",
    "is_causal_switch",
    "is_inferable",
    "keeps_cache",
    "list_forms",
    "list_targets",
    "load_wiring",
    "makes_causal_mask",
    "may_hide_future",
    "pass_padding",
    "propose",
    "propose_caches",
    "read_target",
    "says_ignore",
    "split_target",
    "switches_mask",
    "use_cache",
]
