"""The decoder: layers of self-attention, attention over the encoder's output and feed-forward network."""

from collections.abc import Mapping
from typing import Any, NamedTuple, Self, Unpack

import torch
from torch import Tensor, nn

from goldformer.reference_impl._building import build, select_params
from goldformer.reference_impl._checks import (
    DECODER_LAYER,
    Size,
    check_axes,
    check_bool,
    check_choice,
    check_floating,
    check_mapping,
    check_mask,
    check_params,
    check_positive_int,
    check_same_dtype_and_device,
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


class DecoderLayerResult(NamedTuple):
    """The output of a layer, the inputs of its second and third sub-layer, and the weights per head."""

    output: Tensor  # (batch, seq, d_model)
    attended: Tensor  # (batch, seq, d_model)
    crossed: Tensor  # (batch, seq, d_model)
    weights: Tensor  # (batch, heads, seq, seq)
    cross_weights: Tensor  # (batch, heads, seq, source_seq)


class DecoderResult(NamedTuple):
    """The output of a stack, and those of all its layers before any final norm."""

    output: Tensor  # (batch, seq, d_model)
    layers: Tensor  # (layers, batch, seq, d_model)


def decoder_layer(
    x: Tensor,
    memory: Tensor,
    self_mask: Tensor | None = None,
    memory_mask: Tensor | None = None,
    *,
    num_heads: int,
    params: Mapping[str, Tensor],
    norm_first: bool = False,
    activation: Activation = "relu",
    dropout_rate: float | None = None,
    training: bool = True,
    seed: int | None = None,
) -> DecoderLayerResult:
    """Let the positions attend to each other, then to the memory, and send each through the feed-forward network.

    Formula:  attended = LN_1(x + MultiHead(x, x, x)),  crossed = LN_2(attended + MultiHead(attended, memory, memory)),
              output = LN_3(crossed + FFN(crossed)); with norm_first each sub-layer f adds f(LN(y)) to its y,
              and the memory is taken as it is; in training with a dropout_rate each adds dropout(…),
              and the feed-forward network drops too
    Shapes:   x (batch, seq, d_model), memory (batch, source_seq, d_model), masks boolean, True = may attend,
              self_mask broadcastable to (batch, heads, seq, seq), memory_mask to (batch, heads, seq, source_seq),
              params by name: self_attention.w_q … b_o, norm_1.gamma and beta, cross_attention, norm_2,
              feed_forward.w_1 … b_2, norm_3
              → output, attended, crossed (batch, seq, d_model), weights (batch, heads, seq, seq),
              cross_weights (batch, heads, seq, source_seq)
    Errors:   TypeError unless all are floating-point tensors of one dtype and the masks are boolean, or for a
              parameter that is missing or unknown; ValueError for shapes and head counts that do not fit
    Source:   primer 3.2, n9 "解码层", illustrated on the decoder; paper, section 3.1

    The layer hides nothing by itself: where later positions are to be hidden, self_mask is causal.
    """
    check_bool("norm_first", norm_first)
    check_choice("activation", activation, ACTIVATIONS)
    check_params(params, DECODER_LAYER, num_heads, _inputs(x, memory))
    dropout = make_dropping(dropout_rate, training, seed)
    layer = DecoderLayer.from_params(params, num_heads, norm_first=norm_first, activation=activation, dropout=dropout)
    return layer.forward(x, memory, self_mask, memory_mask)


def decoder(
    x: Tensor,
    memory: Tensor,
    self_mask: Tensor | None = None,
    memory_mask: Tensor | None = None,
    *,
    num_heads: int,
    num_layers: int,
    params: Mapping[str, Tensor],
    norm_first: bool = False,
    activation: Activation = "relu",
) -> DecoderResult:
    """Send x through the layers, each with weights of its own and all with the same memory and masks.

    Formula:  x_0 = x,  x_i = DecoderLayer_i(x_(i−1), memory),  output = x_N, or LN(x_N) if there is a final norm
    Shapes:   as decoder_layer, the parameters of layer i as decoder.i.self_attention.w_q and so on, from 0,
              and those of the final norm, if there is one, as norm.gamma and norm.beta
              → output (batch, seq, d_model), layers (layers, batch, seq, d_model)
    Errors:   as decoder_layer, and ValueError for num_layers below 1
    Source:   primer 3.2, n9 "Transformer模型构建", illustrated on the decoder; paper, section 3.1
    """
    check_positive_int("num_layers", num_layers)
    check_bool("norm_first", norm_first)
    check_choice("activation", activation, ACTIVATIONS)
    check_mapping(params)
    blocks = number_blocks("decoder", DECODER_LAYER, num_layers) | final_norms(params, "norm")
    check_params(params, blocks, num_heads, _inputs(x, memory))
    stack = Decoder.from_params(params, num_heads, num_layers, norm_first=norm_first, activation=activation)
    return stack.forward(x, memory, self_mask, memory_mask)


def _inputs(x: Tensor, memory: Tensor) -> dict[str, tuple[Tensor, str]]:
    return {"x": (x, "batch seq d_model"), "memory": (memory, "batch source_seq d_model")}


class DecoderLayer(ResidualLayer):
    """A decoder layer, with n9's dropout: on the result of every sub-layer, and within the feed-forward network.

    Parameters: those of self_attention, norm_1, cross_attention, norm_2, feed_forward and norm_3; in the state
    dict by the names that decoder_layer reads.
    """

    blocks = DECODER_LAYER

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
        self.cross_attention = MultiHeadAttention(d_model, num_heads, bias=bias, device=device, dtype=dtype)
        self.norm_2 = LayerNorm(d_model, device=device, dtype=dtype)
        self.feed_forward = FeedForward(
            d_model, d_ff, dropout=dropout, activation=activation, bias=bias, device=device, dtype=dtype
        )
        self.norm_3 = LayerNorm(d_model, device=device, dtype=dtype)
        self.dropout = make_dropout(dropout)

    def forward(
        self, x: Tensor, memory: Tensor, self_mask: Tensor | None = None, memory_mask: Tensor | None = None
    ) -> DecoderLayerResult:
        """Compute decoder_layer, in training with dropout."""
        self._check_input(x, memory, self_mask, memory_mask)

        def attend(y: Tensor) -> Any:
            return self.self_attention(y, y, y, self_mask)

        def attend_across(y: Tensor) -> Any:
            # Queries from the decoder, keys and values from the encoder; illustrated takes the latter from the decoder.
            return self.cross_attention(y, memory, memory, memory_mask)

        attended, weights = self.add_and_norm(x, attend, self.norm_1)  # (batch, seq, d_model)
        crossed, cross_weights = self.add_and_norm(attended, attend_across, self.norm_2)  # (batch, seq, d_model)
        output, _ = self.add_and_norm(crossed, self.feed_forward, self.norm_3)  # (batch, seq, d_model)
        return DecoderLayerResult(output, attended, crossed, weights, cross_weights)

    def _check_input(self, x: Tensor, memory: Tensor, self_mask: Tensor | None, memory_mask: Tensor | None) -> None:
        """Refuse arguments that do not fit the layer."""
        bound: dict[str, tuple[Size, str]] = {"d_model": (self.d_model, "the module")}
        check_floating("x", x)
        check_axes("x", x, "batch seq d_model", bound)
        check_floating("memory", memory)
        check_same_dtype_and_device("memory", memory, "x", x)
        check_axes("memory", memory, "batch source_seq d_model", bound)
        (batch, seq, _), source_seq = x.shape, memory.shape[1]
        if self_mask is not None:
            shape = (batch, self.num_heads, seq, seq)
            check_mask("self_mask", self_mask, "batch heads seq seq", shape, "x", x)
        if memory_mask is not None:
            shape = (batch, self.num_heads, seq, source_seq)
            check_mask("memory_mask", memory_mask, "batch heads seq source_seq", shape, "x", x)


class Decoder(nn.Module):
    """A stack of ``num_layers`` decoder layers of one structure, each with weights of its own.

    Parameters: those of the layers, as decoder.0.self_attention.w_q and so on, and with ``final_norm`` those of norm,
    which follows the last layer. The settings are the keywords of
    DecoderLayer.
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
        self.decoder = make_stack(lambda: DecoderLayer(d_model, num_heads, d_ff, **settings), num_layers)
        self.norm = make_final_norm(d_model, settings) if final_norm else None

    @classmethod
    def from_params(
        cls, params: Mapping[str, Tensor], num_heads: int, num_layers: int, *, norm_first: bool, activation: Activation
    ) -> Self:
        """Build a stack from parameters that decoder has checked; it has no dropout."""
        layers = (select_params(params, f"decoder.{i}") for i in range(num_layers))
        return build(
            cls,
            decoder=[
                DecoderLayer.from_params(p, num_heads, norm_first=norm_first, activation=activation) for p in layers
            ],
            norm=pick_final_norm(params, "norm"),
        )

    def forward(
        self, x: Tensor, memory: Tensor, self_mask: Tensor | None = None, memory_mask: Tensor | None = None
    ) -> DecoderResult:
        """Compute decoder, in training with dropout."""
        outputs = run_layers(self.decoder, x, memory, self_mask, memory_mask)  # layers × (batch, seq, d_model)
        return DecoderResult(normalise_last(outputs[-1], self.norm), torch.stack(outputs))
