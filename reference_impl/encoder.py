"""The encoder: layers of self-attention and feed-forward network, one after the other."""

from collections.abc import Mapping
from typing import Any, NamedTuple, Self, Unpack

import torch
from torch import Tensor, nn

from goldformer.reference_impl._building import build, select_params
from goldformer.reference_impl._checks import (
    ENCODER_LAYER,
    check_axes,
    check_bool,
    check_choice,
    check_floating,
    check_mapping,
    check_mask,
    check_params,
    check_positive_int,
    final_norms,
    number_blocks,
)
from goldformer.reference_impl._layers import (
    LayerSettings,
    ResidualLayer,
    make_final_norm,
    make_stack,
    normalise_last,
    pick_final_norm,
    run_layers,
)
from goldformer.reference_impl._random import make_dropout, make_dropping
from goldformer.reference_impl.feed_forward import ACTIVATIONS, Activation, FeedForward
from goldformer.reference_impl.layer_norm import LayerNorm
from goldformer.reference_impl.multi_head_attention import MultiHeadAttention


class EncoderLayerResult(NamedTuple):
    """The output of a layer, the input of its feed-forward sub-layer, and the weights per head."""

    output: Tensor  # (batch, seq, d_model)
    attended: Tensor  # (batch, seq, d_model)
    weights: Tensor  # (batch, heads, seq, seq)


class EncoderResult(NamedTuple):
    """The output of a stack, and those of all its layers before any final norm."""

    output: Tensor  # (batch, seq, d_model)
    layers: Tensor  # (layers, batch, seq, d_model)


def encoder_layer(
    x: Tensor,
    mask: Tensor | None = None,
    *,
    num_heads: int,
    params: Mapping[str, Tensor],
    norm_first: bool = False,
    activation: Activation = "relu",
    dropout_rate: float | None = None,
    training: bool = True,
    seed: int | None = None,
) -> EncoderLayerResult:
    """Let the positions attend to each other, then send each through the feed-forward network.

    Formula:  attended = LN_1(x + MultiHead(x, x, x)),  output = LN_2(attended + FFN(attended));
              with norm_first a = x + MultiHead(LN_1(x), …), output = a + FFN(LN_2(a));
              in training with a dropout_rate x + dropout(…), and the feed-forward network drops too
    Shapes:   x (batch, seq, d_model), mask boolean, broadcastable to (batch, heads, seq, seq), True = may attend,
              params by name: self_attention.w_q … b_o, norm_1.gamma and beta, feed_forward.w_1 … b_2, norm_2
              → output, attended (batch, seq, d_model), weights (batch, heads, seq, seq)
    Errors:   TypeError unless all are floating-point tensors of one dtype and the mask is boolean, or for a
              parameter that is missing or unknown; ValueError for shapes and head counts that do not fit
    Source:   primer 3.1, n9 "编码层", illustrated on residuals; paper, section 3.1
    """
    check_bool("norm_first", norm_first)
    check_choice("activation", activation, ACTIVATIONS)
    check_params(params, ENCODER_LAYER, num_heads, {"x": (x, "batch seq d_model")})
    dropout = make_dropping(dropout_rate, training, seed)
    return EncoderLayer.from_params(
        params, num_heads, norm_first=norm_first, activation=activation, dropout=dropout
    ).forward(x, mask)


def encoder(
    x: Tensor,
    mask: Tensor | None = None,
    *,
    num_heads: int,
    num_layers: int,
    params: Mapping[str, Tensor],
    norm_first: bool = False,
    activation: Activation = "relu",
) -> EncoderResult:
    """Send x through the layers, each with weights of its own and all with the same mask.

    Formula:  x_0 = x,  x_i = EncoderLayer_i(x_(i−1)),  output = x_N, or LN(x_N) if there is a final norm
    Shapes:   as encoder_layer, the parameters of layer i as encoder.i.self_attention.w_q and so on, from 0,
              and those of the final norm, if there is one, as norm.gamma and norm.beta
              → output (batch, seq, d_model), layers (layers, batch, seq, d_model)
    Errors:   as encoder_layer, and ValueError for num_layers below 1
    Source:   primer 3.1, n9 "Transformer模型构建", illustrated on the encoder; paper, section 3.1
    """
    check_positive_int("num_layers", num_layers)
    check_bool("norm_first", norm_first)
    check_choice("activation", activation, ACTIVATIONS)
    check_mapping(params)
    blocks = number_blocks("encoder", ENCODER_LAYER, num_layers) | final_norms(params, "norm")
    check_params(params, blocks, num_heads, {"x": (x, "batch seq d_model")})
    return Encoder.from_params(params, num_heads, num_layers, norm_first=norm_first, activation=activation).forward(
        x, mask
    )


class EncoderLayer(ResidualLayer):
    """An encoder layer, with n9's dropout: on the result of either sub-layer, and within the feed-forward network.

    Parameters: those of self_attention, norm_1, feed_forward and norm_2; in the state dict by the names that
    encoder_layer reads.
    """

    blocks = ENCODER_LAYER

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        d_ff: int,
        *,
        dropout: float = 0.1,
        norm_first: bool = False,
        activation: Activation = "relu",
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_bool("norm_first", norm_first)
        self.d_model, self.num_heads, self.norm_first = d_model, num_heads, norm_first
        self.self_attention = MultiHeadAttention(d_model, num_heads, bias=bias, device=device, dtype=dtype)
        self.norm_1 = LayerNorm(d_model, device=device, dtype=dtype)
        self.feed_forward = FeedForward(
            d_model, d_ff, dropout=dropout, activation=activation, bias=bias, device=device, dtype=dtype
        )
        self.norm_2 = LayerNorm(d_model, device=device, dtype=dtype)
        self.dropout = make_dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> EncoderLayerResult:
        """Compute encoder_layer, in training with dropout."""
        self._check_input(x, mask)

        def attend(y: Tensor) -> Any:
            return self.self_attention(y, y, y, mask)

        attended, weights = self.add_and_norm(x, attend, self.norm_1)  # (batch, seq, d_model)
        output, _ = self.add_and_norm(attended, self.feed_forward, self.norm_2)  # (batch, seq, d_model)
        return EncoderLayerResult(output, attended, weights)

    def _check_input(self, x: Tensor, mask: Tensor | None) -> None:
        """Refuse arguments that do not fit the layer."""
        check_floating("x", x)
        check_axes("x", x, "batch seq d_model", {"d_model": (self.d_model, "the module")})
        if mask is not None:
            batch, seq, _ = x.shape
            check_mask("mask", mask, "batch heads seq seq", (batch, self.num_heads, seq, seq), "x", x)


class Encoder(nn.Module):
    """A stack of ``num_layers`` encoder layers of one structure, each with weights of its own.

    Parameters: those of the layers, as encoder.0.self_attention.w_q and so on, and with ``final_norm`` those of norm,
    which follows the last layer. The settings are the
    keywords of EncoderLayer.
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        d_ff: int,
        num_layers: int,
        *,
        final_norm: bool = False,
        **settings: Unpack[LayerSettings],
    ) -> None:
        super().__init__()
        check_bool("final_norm", final_norm)
        self.encoder = make_stack(lambda: EncoderLayer(d_model, num_heads, d_ff, **settings), num_layers)
        self.norm = make_final_norm(d_model, settings) if final_norm else None

    @classmethod
    def from_params(
        cls, params: Mapping[str, Tensor], num_heads: int, num_layers: int, *, norm_first: bool, activation: Activation
    ) -> Self:
        """Build a stack from parameters that encoder has checked; it has no dropout."""
        layers = (select_params(params, f"encoder.{i}") for i in range(num_layers))
        return build(
            cls,
            encoder=[
                EncoderLayer.from_params(p, num_heads, norm_first=norm_first, activation=activation) for p in layers
            ],
            norm=pick_final_norm(params, "norm"),
        )

    def forward(self, x: Tensor, mask: Tensor | None = None) -> EncoderResult:
        """Compute encoder, in training with dropout."""
        outputs = run_layers(self.encoder, x, mask)  # layers × (batch, seq, d_model)
        return EncoderResult(normalise_last(outputs[-1], self.norm), torch.stack(outputs))
