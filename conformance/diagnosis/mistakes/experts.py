"""Mistakes in the router of a mixture of experts."""

from __future__ import annotations

import numpy as np

from goldformer.conformance.diagnosis.mistakes.registry import mistake
from goldformer.spec.formulas.attention import softmax
from goldformer.spec.formulas.checks import Array
from goldformer.spec.formulas.experts import leave_chosen, weigh_experts


@mistake("moe-raw-logits", instead_of=weigh_experts)
def weigh_by_logits(logits: Array, is_chosen: Array) -> Array:
    """Return the logits of the chosen experts."""
    return leave_chosen(logits, is_chosen)


@mistake("moe-softmax-axis", instead_of=weigh_experts)
def share_among_tokens(logits: Array, is_chosen: Array) -> Array:
    """Return the softmax over the tokens, 0 for experts that are not chosen."""
    return leave_chosen(np.ascontiguousarray(softmax(logits.T).T), is_chosen)
