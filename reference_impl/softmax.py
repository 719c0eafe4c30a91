"""Softmax over the last axis and its logarithm, written out."""

from torch import Tensor

from goldformer.reference_impl._checks import check_tensors
from goldformer.reference_impl._wide import wide


def softmax(scores: Tensor) -> Tensor:
    """Turn every row of scores into a distribution: positive numbers that sum to 1.

    Formula:  softmax(s)_j = exp(s_j) / Σ_k exp(s_k)
    Shapes:   scores (..., n) → (..., n)
    Errors:   TypeError unless scores is a floating-point tensor; ValueError for a scalar or an empty axis
    Source:   walkthrough 1, java "$softmax$"; paper, section 3.2.1, inside equation (1)

    A row of nothing but −inf has no largest score to start from and gives NaN; attention makes none.
    """
    check_tensors({"scores": (scores, "... n")})

    # exp overflows from 89 on in float32 and from 12 on in float16. Adding one number to a whole row changes
    # nothing in the formula, so the largest score is moved to 0: every exp lies in [0, 1], and the sum is at
    # least 1, never the 0 of a row that underflowed. What cancels in the formula cancels in its derivative,
    # hence detach: through the maximum there would flow a gradient of pure rounding.
    largest = scores.amax(dim=-1, keepdim=True).detach()  # (..., 1)
    exponentials = (scores - largest).exp()  # (..., n)
    total = exponentials.sum(dim=-1, keepdim=True)  # (..., 1)
    return exponentials / total  # (..., n)


def log_softmax(scores: Tensor) -> Tensor:
    """Give the logarithms of a softmax, also where the softmax itself is too small for its dtype.

    Formula:  log softmax(s)_j = s_j − log Σ_k exp(s_k)
    Shapes:   scores (..., n) → (..., n)
    Errors:   as softmax
    Source:   illustrated on the loss, by the cross-entropy it names
    """
    check_tensors({"scores": (scores, "... n")})

    # As in softmax the largest score is moved to 0. The logarithm of the quotient would be −inf where the quotient
    # is rounded to 0; the difference of the logarithms is right there too. float32 for the half types: the sum
    # of a vocabulary of 65505 words is beyond float16.
    rows = wide(scores)  # (..., n)
    moved = rows - rows.amax(dim=-1, keepdim=True).detach()  # (..., n)
    total = moved.exp().sum(dim=-1, keepdim=True)  # (..., 1)
    return (moved - total.log()).to(scores.dtype)  # (..., n)
