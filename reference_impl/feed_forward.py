"""The position-wise feed-forward network: two linear maps with a ReLU between them."""

from typing import Final, Literal, get_args

import torch
from torch import Tensor, nn

from goldformer.reference_impl import _functional as functional
from goldformer.reference_impl._building import build
from goldformer.reference_impl._checks import check_choice, check_positive_int, check_tensors
from goldformer.reference_impl._random import make_dropout, make_dropping, xavier_weight, zero_bias

#: What may stand between the two maps.
Activation = Literal["relu", "gelu", "gelu_tanh", "silu"]
ACTIVATIONS: Final = get_args(Activation)


def feed_forward(
    x: Tensor,
    *,
    w_1: Tensor,
    w_2: Tensor,
    b_1: Tensor | None = None,
    b_2: Tensor | None = None,
    activation: Activation = "relu",
    dropout_rate: float | None = None,
    training: bool = True,
    seed: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Widen every position to d_ff channels, keep the positive ones, and come back to d_model.

    Formula:  FFN(x) = max(0, x W_1 + b_1) W_2 + b_2, at every position by itself and with the same weights;
              in training with a dropout_rate dropout(max(0, x W_1 + b_1)) W_2 + b_2;
              with an activation "gelu", "gelu_tanh" or "silu" that function in the place of max(0, ·)
    Shapes:   x (batch, seq, d_model), w_1 (d_model, d_ff), w_2 (d_ff, d_model), and to each its bias
              → output (batch, seq, d_model), hidden (batch, seq, d_ff), what w_2 reads
    Errors:   TypeError unless all are floating-point tensors of one dtype; ValueError for shapes that do not fit
              and for an unknown activation
    Source:   n9 "前馈传播", primer 3.1, illustrated on the encoder; paper, section 3.3, equation (2)
    """
    check_choice("activation", activation, ACTIVATIONS)
    dropout = make_dropping(dropout_rate, training, seed)
    return build(FeedForward, w_1=w_1, w_2=w_2, b_1=b_1, b_2=b_2, dropout=dropout, activation=activation).forward(x)


class FeedForward(nn.Module):
    """The feed-forward network, with dropout after its ReLU as in n9.

    Parameters: w_1 (d_model, d_ff), w_2 (d_ff, d_model), and b_1, b_2 unless ``bias=False``.
    """

    def __init__(
        self,
        d_model: int,
        d_ff: int,
        *,
        dropout: float = 0.1,
        activation: Activation = "relu",
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_positive_int("d_model", d_model)
        check_positive_int("d_ff", d_ff)
        check_choice("activation", activation, ACTIVATIONS)
        self.activation = activation
        self.w_1 = xavier_weight(d_model, d_ff, device, dtype)
        self.w_2 = xavier_weight(d_ff, d_model, device, dtype)
        self.b_1 = zero_bias(d_ff, device, dtype) if bias else None
        self.b_2 = zero_bias(d_model, device, dtype) if bias else None
        self.dropout = make_dropout(dropout)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Compute feed_forward, and return its output and, in training with its dropout, the hidden channels."""
        self._check_input(x)

        inner = functional.affine(x, self.w_1, self.b_1)  # (batch, seq, d_ff)
        hidden = self.dropout(functional.activate(inner, self.activation))  # (batch, seq, d_ff)
        output = functional.affine(hidden, self.w_2, self.b_2)  # (batch, seq, d_model)
        return output, hidden

    def _check_input(self, x: Tensor) -> None:
        """Refuse arguments that do not fit the parameters."""
        check_tensors(
            {"x": (x, "batch seq d_model"), "w_1": (self.w_1, "d_model d_ff"), "w_2": (self.w_2, "d_ff d_model")},
            optional={"b_1": (self.b_1, "d_ff"), "b_2": (self.b_2, "d_model")},
        )
