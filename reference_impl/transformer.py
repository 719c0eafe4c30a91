"""The Transformer: from the ids of a source and a target to logits over the vocabulary."""

from collections.abc import Mapping
from typing import Any, NamedTuple, Unpack

import torch
from torch import Tensor, nn

from goldformer.reference_impl._checks import check_alike, check_axes, check_floating, check_int
from goldformer.reference_impl._layers import LayerSettings, make_dropout, make_stack
from goldformer.reference_impl._linear import xavier_weight, zero_bias
from goldformer.reference_impl._model import Model, bind_model
from goldformer.reference_impl.beam_search import BeamResult, Finish, LengthPenalty, beam_search
from goldformer.reference_impl.decoder import DecoderLayer
from goldformer.reference_impl.encoder import EncoderLayer
from goldformer.reference_impl.greedy_decode import GreedyResult, greedy_decode
from goldformer.reference_impl.token_embedding import TokenEmbedding


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
    model = bind_model(
        params,
        num_heads=num_heads,
        num_encoder_layers=num_encoder_layers,
        num_decoder_layers=num_decoder_layers,
        pad_id=pad_id,
        norm_first=norm_first,
    )
    model.check_ids(source=source, target=target)

    memory = model.encode(source)  # (batch, source_seq, d_model)
    decoded = model.decode(target, memory, source)  # (batch, seq, d_model)
    return TransformerResult(model.logits(decoded), memory, decoded)


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
        self.num_heads, self.pad_id, self.norm_first = num_heads, pad_id, settings.get("norm_first", False)
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
        return TransformerResult(self._model().logits(decoded), memory, decoded)

    def encode(self, source: Tensor) -> Tensor:
        """Compute the memory (batch, source_seq, d_model) of a source (batch, source_seq)."""
        model = self._model()
        model.check_ids(source=source)
        return model.encode(source)

    def decode(self, target: Tensor, memory: Tensor, source: Tensor) -> Tensor:
        """Compute the logits (batch, seq, vocab) of a target (batch, seq), given the memory that encode made.

        The source tells which rows of the memory are padding.
        """
        return self._model().logits(self._decoded(target, memory, source))

    def _decoded(self, target: Tensor, memory: Tensor, source: Tensor) -> Tensor:
        model = self._model()
        sizes = model.check_ids(source=source, target=target)
        check_floating("memory", memory)
        check_alike("memory", memory, "table", self.table)
        check_axes("memory", memory, "batch source_seq d_model", sizes)
        return model.decode(target, memory, source)

    @torch.no_grad()
    def greedy_decode(self, source: Tensor, *, bos_id: int, eos_id: int, max_length: int) -> GreedyResult:
        """Compute greedy_decode with the parameters of the module, without gradients.

        There is no dropout in it, in training neither, and the module stays in the mode in which it is.
        """
        return greedy_decode(source, bos_id=bos_id, eos_id=eos_id, max_length=max_length, **self._as_keywords())

    @torch.no_grad()
    def beam_search(
        self,
        source: Tensor,
        *,
        bos_id: int,
        eos_id: int,
        max_length: int,
        beam_size: int,
        top_beams: int,
        finish: Finish = "in_beam",
        length_penalty: LengthPenalty = "none",
    ) -> BeamResult:
        """Compute beam_search with the parameters of the module, without gradients and, as greedy_decode, dropout."""
        return beam_search(
            source,
            bos_id=bos_id,
            eos_id=eos_id,
            max_length=max_length,
            beam_size=beam_size,
            top_beams=top_beams,
            finish=finish,
            length_penalty=length_penalty,
            **self._as_keywords(),
        )

    def _model(self) -> Model:
        return Model(
            self.encoder, self.decoder, self.table, self.w_vocab, self.b_vocab, self.pad_id, dropout=self.dropout
        )

    def _as_keywords(self) -> dict[str, Any]:
        # The functions have no dropout: so decoding needs no eval mode, which it would have to set and put back.
        return {
            "num_heads": self.num_heads,
            "num_encoder_layers": len(self.encoder),
            "num_decoder_layers": len(self.decoder),
            "pad_id": self.pad_id,
            "params": dict(self.named_parameters()),
            "norm_first": self.norm_first,
        }
