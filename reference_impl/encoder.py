"""The encoder: layers of self-attention and feed-forward network, one after the other."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, Unpack

import torch
from torch import Tensor, nn

from goldformer.reference_impl._checks import (
    check_axes,
    check_bool,
    check_floating,
    check_mask,
    check_positive_int,
)
from goldformer.reference_impl._checks_params import ENCODER_LAYER, check_params, numbered
from goldformer.reference_impl._layers import (
    LayerSettings,
    add_and_norm,
    bind_layers,
    make_dropout,
    make_stack,
    scoped,
    through,
    unchanged,
)
from goldformer.reference_impl.feed_forward import FeedForward, feed_forward
from goldformer.reference_impl.layer_norm import LayerNorm, layer_norm
from goldformer.reference_impl.multi_head_attention import MultiHeadAttention, multi_head_attention


class EncoderLayerResult(NamedTuple):
    """What a layer gives: its output, what its feed-forward sub-layer starts from, the weights per head."""

    output: Tensor  # (batch, seq, d_model)
    attended: Tensor  # (batch, seq, d_model)
    weights: Tensor  # (batch, heads, seq, seq)


class EncoderResult(NamedTuple):
    """What a stack gives: the output of its last layer, and those of all layers."""

    output: Tensor  # (batch, seq, d_model)
    layers: Tensor  # (layers, batch, seq, d_model)


def encoder_layer(
    x: Tensor,
    mask: Tensor | None = None,
    *,
    num_heads: int,
    params: Mapping[str, Tensor],
    norm_first: bool = False,
) -> EncoderLayerResult:
    """Let the positions attend to each other, then send each through the feed-forward network.

    Formula:  attended = LN_1(x + MultiHead(x, x, x)),  output = LN_2(attended + FFN(attended));
              with norm_first a = x + MultiHead(LN_1(x), …), output = a + FFN(LN_2(a))
    Shapes:   x (batch, seq, d_model), mask boolean, broadcastable to (batch, heads, seq, seq), True = may attend,
              params by name: self_attention.w_q … b_o, norm_1.gamma and beta, feed_forward.w_1 … b_2, norm_2
              → output, attended (batch, seq, d_model), weights (batch, heads, seq, seq)
    Errors:   TypeError unless all are floating-point tensors of one dtype and the mask is boolean, or for a
              parameter that is missing or unknown; ValueError for shapes and head counts that do not fit
    Source:   primer 3.1, n9 "编码层", illustrated on residuals; paper, section 3.1
    """
    _check_input(x, mask, num_heads)
    check_bool("norm_first", norm_first)
    check_params(params, ENCODER_LAYER, num_heads, {"x": (x, "batch seq d_model")})

    return _encoder_layer(
        x,
        mask,
        self_attention=partial(multi_head_attention, num_heads=num_heads, **scoped(params, "self_attention")),
        norm_1=partial(layer_norm, **scoped(params, "norm_1")),
        feed=partial(feed_forward, **scoped(params, "feed_forward")),
        norm_2=partial(layer_norm, **scoped(params, "norm_2")),
        dropout=unchanged,
        norm_first=norm_first,
    )


def _encoder_layer(
    x: Tensor,
    mask: Tensor | None,
    *,
    self_attention: Callable[..., tuple[Tensor, Tensor]],
    norm_1: Callable[[Tensor], Tensor],
    feed: Callable[[Tensor], tuple[Tensor, Tensor]],
    norm_2: Callable[[Tensor], Tensor],
    dropout: Callable[[Tensor], Tensor],
    norm_first: bool,
) -> EncoderLayerResult:
    def attend(y: Tensor) -> tuple[Tensor, Tensor]:
        return self_attention(y, y, y, mask)

    attended, weights = add_and_norm(x, attend, norm_1, dropout, norm_first)  # (batch, seq, d_model)
    output, _ = add_and_norm(attended, feed, norm_2, dropout, norm_first)  # (batch, seq, d_model)
    return EncoderLayerResult(output, attended, weights)


def encoder(
    x: Tensor,
    mask: Tensor | None = None,
    *,
    num_heads: int,
    num_layers: int,
    params: Mapping[str, Tensor],
    norm_first: bool = False,
) -> EncoderResult:
    """Send x through the layers, each with weights of its own and all with the same mask.

    Formula:  x_0 = x,  x_i = EncoderLayer_i(x_(i−1)),  output = x_N; no normalisation behind the last layer
    Shapes:   as encoder_layer, the parameters of layer i as encoder.i.self_attention.w_q and so on, from 0
              → output (batch, seq, d_model), layers (layers, batch, seq, d_model)
    Errors:   as encoder_layer, and ValueError for num_layers below 1
    Source:   primer 3.1, n9 "Transformer模型构建", illustrated on the encoder; paper, section 3.1
    """
    _check_input(x, mask, num_heads)
    check_positive_int("num_layers", num_layers)
    check_bool("norm_first", norm_first)
    check_params(params, numbered("encoder", ENCODER_LAYER, num_layers), num_heads, {"x": (x, "batch seq d_model")})

    layers = bind_layers(encoder_layer, params, "encoder", num_layers, num_heads=num_heads, norm_first=norm_first)
    outputs = through(layers, x, mask)  # layers × (batch, seq, d_model)
    return EncoderResult(outputs[-1], torch.stack(outputs))


def _check_input(x: Any, mask: Any, num_heads: Any, d_model: int | None = None) -> None:
    check_floating("x", x)
    check_axes("x", x, "batch seq d_model", {} if d_model is None else {"d_model": (d_model, "the module")})
    check_positive_int("num_heads", num_heads)
    if mask is not None:
        batch, seq, _ = x.shape
        check_mask("mask", mask, "batch heads seq seq", (batch, num_heads, seq, seq), "x", x)


class EncoderLayer(nn.Module):
    """An encoder layer, with n9's dropout: on the result of either sub-layer, and within the feed-forward network.

    Parameters: those of self_attention, norm_1, feed_forward and norm_2; in the state dict by the names that
    encoder_layer reads.
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        d_ff: int,
        *,
        dropout: float = 0.1,
        norm_first: bool = False,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_bool("norm_first", norm_first)
        self.d_model, self.num_heads, self.norm_first = d_model, num_heads, norm_first
        self.self_attention = MultiHeadAttention(d_model, num_heads, bias=bias, device=device, dtype=dtype)
        self.norm_1 = LayerNorm(d_model, device=device, dtype=dtype)
        self.feed_forward = FeedForward(d_model, d_ff, dropout=dropout, bias=bias, device=device, dtype=dtype)
        self.norm_2 = LayerNorm(d_model, device=device, dtype=dtype)
        self.dropout = make_dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> EncoderLayerResult:
        """Compute encoder_layer, in training with dropout."""
        _check_input(x, mask, self.num_heads, self.d_model)
        return _encoder_layer(
            x,
            mask,
            self_attention=self.self_attention,
            norm_1=self.norm_1,
            feed=self.feed_forward,
            norm_2=self.norm_2,
            dropout=self.dropout,
            norm_first=self.norm_first,
        )


class Encoder(nn.Module):
    """A stack of ``num_layers`` encoder layers, alike in structure and each with weights of its own.

    Parameters: those of the layers, as encoder.0.self_attention.w_q and so on. The settings are the
    keywords of EncoderLayer.
    """

    def __init__(
        self, d_model: int, num_heads: int, d_ff: int, num_layers: int, **settings: Unpack[LayerSettings]
    ) -> None:
        super().__init__()
        self.encoder = make_stack(lambda: EncoderLayer(d_model, num_heads, d_ff, **settings), num_layers)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> EncoderResult:
        """Compute encoder, in training with dropout."""
        outputs = through(self.encoder, x, mask)  # layers × (batch, seq, d_model)
        return EncoderResult(outputs[-1], torch.stack(outputs))
