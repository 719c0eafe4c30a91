"""Layer normalisation over the last axis."""

from typing import Final

import torch
from torch import Tensor, nn

from goldformer.reference_impl import _functional as functional
from goldformer.reference_impl._building import build
from goldformer.reference_impl._checks import check_positive_int, check_positive_number, check_tensors

# That of nn.LayerNorm, which n9 uses.
EPS: Final = 1e-5


def layer_norm(x: Tensor, *, gamma: Tensor, beta: Tensor, eps: float = EPS) -> Tensor:
    """Bring every position to mean 0 and variance 1 over its channels, then scale and shift each channel.

    Formula:  LN(x) = (x − mean) / √(variance + eps) · gamma + beta, with variance = Σ (x − mean)² / d_model
    Shapes:   x (..., d_model), gamma and beta (d_model,) → (..., d_model)
    Errors:   TypeError unless all are floating-point tensors of one dtype and eps is a number;
              ValueError for shapes that do not fit, or an eps that is not above 0
    Source:   n9 "编码层", whose nn.LayerNorm has this eps; primer 3.1; paper, section 3.1; Ba et al., 2016,
              Layer Normalization, arXiv:1607.06450, section 3
    """
    check_positive_number("eps", eps)
    return build(LayerNorm, gamma=gamma, beta=beta, eps=eps).forward(x)


class LayerNorm(nn.Module):
    """Layer normalisation with a scale that starts at 1 and a shift that starts at 0.

    Parameters: gamma (d_model,), beta (d_model,); weight and bias of nn.LayerNorm.
    """

    def __init__(
        self,
        d_model: int,
        eps: float = EPS,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_positive_int("d_model", d_model)
        check_positive_number("eps", eps)
        self.eps = eps
        self.gamma = nn.Parameter(torch.ones(d_model, device=device, dtype=dtype))
        self.beta = nn.Parameter(torch.zeros(d_model, device=device, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise x (..., d_model) as layer_norm does."""
        self._check_input(x)

        # float16 ends at 65504: the square of any difference from 256 on is inf there, and the row would become 0.
        # bfloat16 holds the squares, but a mean of 8 bits leaves its own rounding in every difference. So the rows of
        # both are computed in float32, and rounded to their dtype last.
        row = functional.widen(x)  # (..., d_model)
        mean = row.mean(dim=-1, keepdim=True)  # (..., 1)
        # Differences first, then squares: the mean of x² less the square of the mean cancels for rows far from 0.
        centred = row - mean  # (..., d_model)
        variance = (centred * centred).mean(dim=-1, keepdim=True)  # (..., 1), over d_model and not d_model − 1
        normalised = centred / (variance + self.eps).sqrt()  # (..., d_model)
        return (normalised * functional.widen(self.gamma) + functional.widen(self.beta)).to(x.dtype)  # (..., d_model)

    def _check_input(self, x: Tensor) -> None:
        """Refuse arguments that do not fit the parameters."""
        check_tensors({"x": (x, "... d_model"), "gamma": (self.gamma, "d_model"), "beta": (self.beta, "d_model")})
