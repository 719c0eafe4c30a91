"""The way from ids to logits, for the function, the module and the decoding of sentences alike.

The layers are callables here: modules, or plain functions that have their parameters bound to them. So the data
flow of the model is written once.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from torch import Tensor

from goldformer.reference_impl._checks import Size, check_axes, check_bool, check_positive_int, check_same_device
from goldformer.reference_impl._checks_ids import check_ids, check_ids_in_table, check_special_id, check_word_id
from goldformer.reference_impl._checks_params import DECODER_LAYER, ENCODER_LAYER, MODEL, check_params, numbered
from goldformer.reference_impl._layers import bind_layers, through, unchanged
from goldformer.reference_impl.decoder import decoder_layer
from goldformer.reference_impl.encoder import encoder_layer
from goldformer.reference_impl.masks import causal_mask, padding_mask
from goldformer.reference_impl.output_layer import logits
from goldformer.reference_impl.positional_encoding import positional_encoding
from goldformer.reference_impl.token_embedding import token_embedding


class Model(NamedTuple):
    """The parts of a Transformer, and how ids go through them."""

    encoder: Iterable[Callable[..., Any]]
    decoder: Iterable[Callable[..., Any]]
    table: Tensor  # (vocab, d_model)
    w_vocab: Tensor  # (d_model, vocab)
    b_vocab: Tensor | None  # (vocab,)
    pad_id: int
    dropout: Callable[[Tensor], Tensor]

    def encode(self, source: Tensor) -> Tensor:
        """Make the memory (batch, source_seq, d_model) of a source (batch, source_seq)."""
        mask = padding_mask(source, self.pad_id)  # (batch, 1, 1, source_seq)
        x = self.embed(source)  # (batch, source_seq, d_model)
        return through(self.encoder, x, mask)[-1]  # (batch, source_seq, d_model)

    def decode(self, target: Tensor, memory: Tensor, source: Tensor) -> Tensor:
        """Make the decoder's output (batch, seq, d_model) of a target (batch, seq); the source tells its padding."""
        seq = target.shape[1]
        # Both at once. Padding alone, as in the example of n9, shows every position the word that it is to predict.
        causal = causal_mask(seq, seq, device=target.device)  # (seq, seq)
        self_mask = causal & padding_mask(target, self.pad_id)  # (batch, 1, seq, seq)
        # The keys of the cross-attention are the source's, so its padding counts here and not the target's.
        memory_mask = padding_mask(source, self.pad_id)  # (batch, 1, 1, source_seq)
        x = self.embed(target)  # (batch, seq, d_model)
        return through(self.decoder, x, memory, self_mask, memory_mask)[-1]  # (batch, seq, d_model)

    def logits(self, decoded: Tensor) -> Tensor:
        """Make the logits (batch, seq, vocab) of the decoder's output (batch, seq, d_model)."""
        return logits(decoded, w_vocab=self.w_vocab, b_vocab=self.b_vocab)  # (batch, seq, vocab)

    def next_logits(self, read: Tensor, memory: Tensor, source: Tensor) -> Tensor:
        """Make the logits (batch, vocab) of the word that comes after those read (batch, t)."""
        decoded = self.decode(read, memory, source)  # (batch, t, d_model)
        return self.logits(decoded[:, -1:])[:, 0]  # (batch, vocab)

    def embed(self, ids: Tensor) -> Tensor:
        """Look up the rows of ids (batch, seq) and add their positions: (batch, seq, d_model)."""
        # Once, before the first layer; primer has the positions added at the end of every layer.
        return self.dropout(positional_encoding(token_embedding(ids, self.table)))  # (batch, seq, d_model)

    def check_ids(self, **named: Any) -> dict[str, tuple[Size, str]]:
        """Refuse a source or a target that does not fit the table, and return the sizes that they set."""
        bound: dict[str, tuple[Size, str]] = {}
        check_axes("table", self.table, "vocab d_model", bound)
        for name, ids in named.items():
            check_ids(name, ids, "batch source_seq" if name == "source" else "batch seq", bound)
            check_same_device(name, ids, "table", self.table)
            check_special_id("pad_id", self.pad_id, f"pads the {name}", name, ids)
            check_ids_in_table(name, ids, self.table.shape[0])
        return bound

    def check_decoding(self, source: Any, bos_id: Any, eos_id: Any, max_length: Any) -> None:
        """Refuse what sentences cannot be written with."""
        self.check_ids(source=source)
        check_word_id("bos_id", bos_id, "begins what the decoder reads", self.table.shape[0])
        check_word_id("eos_id", eos_id, "ends a sentence", self.table.shape[0])
        check_positive_int("max_length", max_length)


def bind_model(
    params: Mapping[str, Tensor],
    *,
    num_heads: int,
    num_encoder_layers: int,
    num_decoder_layers: int,
    pad_id: int,
    norm_first: bool,
) -> Model:
    """Make a model out of the plain functions and the parameters that they read, without dropout."""
    check_positive_int("num_encoder_layers", num_encoder_layers)
    check_positive_int("num_decoder_layers", num_decoder_layers)
    check_bool("norm_first", norm_first)
    blocks = numbered("encoder", ENCODER_LAYER, num_encoder_layers)
    blocks |= numbered("decoder", DECODER_LAYER, num_decoder_layers)
    check_params(params, {"": MODEL, **blocks}, num_heads)

    settings = {"num_heads": num_heads, "norm_first": norm_first}
    return Model(
        bind_layers(encoder_layer, params, "encoder", num_encoder_layers, **settings),
        bind_layers(decoder_layer, params, "decoder", num_decoder_layers, **settings),
        params["table"],
        params["w_vocab"],
        params.get("b_vocab"),
        pad_id,
        unchanged,
    )
