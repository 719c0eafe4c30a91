"""Softmax over the last axis, and its logarithm."""

from torch import Tensor

from goldformer.reference_impl import _functional as functional
from goldformer.reference_impl._checks import check_tensors


def softmax(scores: Tensor) -> Tensor:
    """Turn every row of scores into a distribution: positive numbers that sum to 1.

    Formula:  softmax(s)_j = exp(s_j) / Σ_k exp(s_k)
    Shapes:   scores (..., n) → (..., n)
    Errors:   TypeError unless scores is a floating-point tensor; ValueError for a scalar or an empty axis
    Source:   walkthrough 1, java "$softmax$"; paper, section 3.2.1, inside equation (1)

    A row of nothing but −inf has no largest score to start from and gives NaN; attention makes no such row.
    """
    check_tensors({"scores": (scores, "... n")})
    return functional.softmax(scores)  # (..., n)


def log_softmax(scores: Tensor) -> Tensor:
    """Compute the logarithms of a softmax, also where the softmax itself is too small for its dtype.

    Formula:  log softmax(s)_j = s_j − log Σ_k exp(s_k)
    Shapes:   scores (..., n) → (..., n)
    Errors:   as softmax
    Source:   illustrated on the loss, by the cross-entropy it names
    """
    check_tensors({"scores": (scores, "... n")})
    return functional.log_softmax(scores)  # (..., n)
