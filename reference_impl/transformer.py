"""The Transformer: from the ids of a source and a target to logits over the vocabulary."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, Unpack

from torch import Tensor, nn

from goldformer.reference_impl._checks import (
    Size,
    check_alike,
    check_axes,
    check_bool,
    check_floating,
    check_int,
    check_positive_int,
    check_same_device,
)
from goldformer.reference_impl._checks_ids import check_ids, check_ids_in_table, check_special_id
from goldformer.reference_impl._checks_params import DECODER_LAYER, ENCODER_LAYER, MODEL, check_params, numbered
from goldformer.reference_impl._layers import (
    LayerSettings,
    bind_layers,
    make_dropout,
    make_stack,
    through,
    unchanged,
)
from goldformer.reference_impl._linear import xavier_weight, zero_bias
from goldformer.reference_impl.decoder import DecoderLayer, decoder_layer
from goldformer.reference_impl.encoder import EncoderLayer, encoder_layer
from goldformer.reference_impl.masks import causal_mask, padding_mask
from goldformer.reference_impl.output_layer import logits
from goldformer.reference_impl.positional_encoding import positional_encoding
from goldformer.reference_impl.token_embedding import TokenEmbedding, token_embedding


class TransformerResult(NamedTuple):
    """What the model gives: logits, the output of its encoder, and that of its decoder."""

    logits: Tensor  # (batch, seq, vocab)
    memory: Tensor  # (batch, source_seq, d_model)
    decoded: Tensor  # (batch, seq, d_model)


def transformer(
    source: Tensor,
    target: Tensor,
    *,
    num_heads: int,
    num_encoder_layers: int,
    num_decoder_layers: int,
    pad_id: int,
    params: Mapping[str, Tensor],
    norm_first: bool = False,
) -> TransformerResult:
    """Score at every position what the next word of the target is, given the source and the target up to there.

    Formula:  memory = Encoder(PE(table[source])),  logits = Decoder(PE(table[target]), memory) W_vocab + b_vocab,
              without softmax; what is padding is hidden as a key everywhere, and what comes later in the decoder's
              self-attention
    Shapes:   source (batch, source_seq), target (batch, seq), what the decoder reads: the target shifted right,
              params by name: table (vocab, d_model), w_vocab (d_model, vocab), b_vocab (vocab,), and those of
              encoder and decoder
              → logits (batch, seq, vocab), memory (batch, source_seq, d_model), decoded (batch, seq, d_model)
    Errors:   TypeError unless ids are int64 or int32 and all parameters floating-point tensors of one dtype, or
              for a parameter that is missing or unknown; ValueError for shapes and numbers that do not fit;
              IndexError for an id outside the table (not under torch.compile)
    Source:   n9 "Transformer模型构建", with the causal mask that its example leaves out; primer 3; paper, section 3

    The rows of memory and logits where source and target are padding mean nothing.
    """
    check_positive_int("num_encoder_layers", num_encoder_layers)
    check_positive_int("num_decoder_layers", num_decoder_layers)
    check_bool("norm_first", norm_first)
    blocks = numbered("encoder", ENCODER_LAYER, num_encoder_layers)
    blocks |= numbered("decoder", DECODER_LAYER, num_decoder_layers)
    check_params(params, {"": MODEL, **blocks}, num_heads)
    table, w_vocab, b_vocab = params["table"], params["w_vocab"], params.get("b_vocab")
    _check_ids(table, pad_id, source=source, target=target)

    settings = {"num_heads": num_heads, "norm_first": norm_first}
    encoder_layers = bind_layers(encoder_layer, params, "encoder", num_encoder_layers, **settings)
    decoder_layers = bind_layers(decoder_layer, params, "decoder", num_decoder_layers, **settings)
    memory = _encode(source, encoder_layers, table, pad_id, unchanged)  # (batch, source_seq, d_model)
    decoded = _decode(target, memory, source, decoder_layers, table, pad_id, unchanged)  # (batch, seq, d_model)
    return TransformerResult(logits(decoded, w_vocab=w_vocab, b_vocab=b_vocab), memory, decoded)


def _encode(
    source: Tensor,
    layers: Iterable[Callable[..., Any]],
    table: Tensor,
    pad_id: int,
    dropout: Callable[[Tensor], Tensor],
) -> Tensor:
    mask = padding_mask(source, pad_id)  # (batch, 1, 1, source_seq)
    x = _embed(source, table, dropout)  # (batch, source_seq, d_model)
    return through(layers, x, mask)[-1]  # (batch, source_seq, d_model)


def _decode(
    target: Tensor,
    memory: Tensor,
    source: Tensor,
    layers: Iterable[Callable[..., Any]],
    table: Tensor,
    pad_id: int,
    dropout: Callable[[Tensor], Tensor],
) -> Tensor:
    seq = target.shape[1]
    # Both at once. Padding alone, as in the example of n9, shows every position the word that it is to predict.
    self_mask = causal_mask(seq, seq, device=target.device) & padding_mask(target, pad_id)  # (batch, 1, seq, seq)
    # The keys of the cross-attention are the source's, so its padding counts here and not the target's.
    memory_mask = padding_mask(source, pad_id)  # (batch, 1, 1, source_seq)
    x = _embed(target, table, dropout)  # (batch, seq, d_model)
    return through(layers, x, memory, self_mask, memory_mask)[-1]  # (batch, seq, d_model)


def _embed(ids: Tensor, table: Tensor, dropout: Callable[[Tensor], Tensor]) -> Tensor:
    # Once, before the first layer; primer has the positions added at the end of every layer.
    return dropout(positional_encoding(token_embedding(ids, table)))  # (batch, seq, d_model)


def _check_ids(table: Tensor, pad_id: Any, **named: Any) -> dict[str, tuple[Size, str]]:
    # Returns the sizes that table and ids set, for what else must agree with them.
    bound: dict[str, tuple[Size, str]] = {}
    check_axes("table", table, "vocab d_model", bound)
    for name, ids in named.items():
        check_ids(name, ids, "batch source_seq" if name == "source" else "batch seq", bound)
        check_same_device(name, ids, "table", table)
        check_special_id("pad_id", pad_id, f"pads the {name}", name, ids)
        check_ids_in_table(name, ids, table.shape[0])
    return bound


class Transformer(nn.Module):
    """The model, with n9's dropout: that of its layers, and one on the embedded and encoded sequences.

    Parameters: table (vocab, d_model), for source and target alike, w_vocab (d_model, vocab), b_vocab unless
    ``bias=False``, and those of the layers; in the state dict by the names that transformer reads, and nothing
    else: the rows of the positional encoding are formed at every call. The settings are the keywords of the layers.
    """

    def __init__(
        self,
        vocab: int,
        d_model: int,
        num_heads: int,
        num_encoder_layers: int,
        num_decoder_layers: int,
        d_ff: int,
        *,
        pad_id: int,
        **settings: Unpack[LayerSettings],
    ) -> None:
        super().__init__()
        check_int("pad_id", pad_id)
        self.pad_id = pad_id
        device, dtype = settings.get("device"), settings.get("dtype")
        self.table = TokenEmbedding(vocab, d_model, device=device, dtype=dtype).table
        self.encoder = make_stack(
            lambda: EncoderLayer(d_model, num_heads, d_ff, **settings), num_encoder_layers, "num_encoder_layers"
        )
        self.decoder = make_stack(
            lambda: DecoderLayer(d_model, num_heads, d_ff, **settings), num_decoder_layers, "num_decoder_layers"
        )
        self.w_vocab = xavier_weight(d_model, vocab, device, dtype)
        self.b_vocab = zero_bias(vocab, device, dtype) if settings.get("bias", True) else None
        self.dropout = make_dropout(settings.get("dropout", 0.1))

    def forward(self, source: Tensor, target: Tensor) -> TransformerResult:
        """Compute transformer, in training with dropout."""
        memory = self.encode(source)  # (batch, source_seq, d_model)
        decoded = self._decoded(target, memory, source)  # (batch, seq, d_model)
        return TransformerResult(self._logits(decoded), memory, decoded)

    def encode(self, source: Tensor) -> Tensor:
        """Compute the memory (batch, source_seq, d_model) of a source (batch, source_seq)."""
        _check_ids(self.table, self.pad_id, source=source)
        return _encode(source, self.encoder, self.table, self.pad_id, self.dropout)

    def decode(self, target: Tensor, memory: Tensor, source: Tensor) -> Tensor:
        """Compute the logits (batch, seq, vocab) of a target (batch, seq), given the memory that encode made.

        The source tells which rows of the memory are padding.
        """
        return self._logits(self._decoded(target, memory, source))

    def _decoded(self, target: Tensor, memory: Tensor, source: Tensor) -> Tensor:
        sizes = _check_ids(self.table, self.pad_id, source=source, target=target)
        check_floating("memory", memory)
        check_alike("memory", memory, "table", self.table)
        check_axes("memory", memory, "batch source_seq d_model", sizes)
        return _decode(target, memory, source, self.decoder, self.table, self.pad_id, self.dropout)

    def _logits(self, decoded: Tensor) -> Tensor:
        return logits(decoded, w_vocab=self.w_vocab, b_vocab=self.b_vocab)
