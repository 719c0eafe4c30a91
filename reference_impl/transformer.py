"""The Transformer: from the ids of a source and a target to logits over the vocabulary."""

from collections.abc import Mapping
from typing import Any, NamedTuple, Self, Unpack

from torch import Tensor, nn

from goldformer.reference_impl import _functional as functional
from goldformer.reference_impl._building import build
from goldformer.reference_impl._checks import (
    DECODER_LAYER,
    ENCODER_LAYER,
    MODEL,
    Size,
    check_axes,
    check_bool,
    check_choice,
    check_floating,
    check_ids,
    check_ids_in_table,
    check_int,
    check_mapping,
    check_params,
    check_positive_int,
    check_same_device,
    check_same_dtype_and_device,
    check_special_id,
    check_word_id,
    final_norms,
    number_blocks,
    pick_params,
)
from goldformer.reference_impl._layers import (
    LayerSettings,
    make_final_norm,
    make_stack,
    normalise_last,
    pick_final_norm,
    run_layers,
)
from goldformer.reference_impl._random import make_dropout, skip_dropout, xavier_weight, zero_bias
from goldformer.reference_impl.decoder import Decoder, DecoderLayer
from goldformer.reference_impl.encoder import Encoder, EncoderLayer
from goldformer.reference_impl.feed_forward import ACTIVATIONS, Activation
from goldformer.reference_impl.token_embedding import TokenEmbedding


class TransformerResult(NamedTuple):
    """The logits of the model, the output of its encoder, and that of its decoder, both with any final norm."""

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
    activation: Activation = "relu",
    fixed_pad_row: bool = False,
) -> TransformerResult:
    """Score the next word of the target at every position, given the source and the target up to there.

    Formula:  memory = Encoder(PE(table[source])),  logits = Decoder(PE(table[target]), memory) W_vocab + b_vocab,
              without softmax; padding is hidden as a key everywhere, and later positions in the decoder's
              self-attention
    Shapes:   source (batch, source_seq), target (batch, seq), what the decoder reads: the target shifted right,
              params by name: table (vocab, d_model), w_vocab (d_model, vocab), b_vocab (vocab,), and those of
              encoder and decoder, their final norms as encoder_norm.gamma and so on; without w_vocab its place is
              taken by the transposed table, and with position_table (positions, d_model) that of PE by its rows
              → logits (batch, seq, vocab), memory (batch, source_seq, d_model), decoded (batch, seq, d_model)
    Errors:   TypeError unless ids are int64 or int32 and all parameters floating-point tensors of one dtype, or
              for a parameter that is missing or unknown; ValueError for shapes and numbers that do not fit;
              IndexError for an id outside the table (not under torch.compile)
    Source:   n9 "Transformer模型构建", with the causal mask that its example leaves out; primer 3; paper, section 3

    The rows of memory and logits where source and target are padding have no meaning. With ``fixed_pad_row`` the
    positions that hold pad_id add nothing to the gradient of the table, as with the padding_idx of nn.Embedding.
    """
    model = Transformer.from_params(
        params,
        num_heads=num_heads,
        num_encoder_layers=num_encoder_layers,
        num_decoder_layers=num_decoder_layers,
        pad_id=pad_id,
        norm_first=norm_first,
        activation=activation,
        fixed_pad_row=fixed_pad_row,
    )
    return model.forward(source, target)


class Transformer(nn.Module):
    """The model, with n9's dropout: that of its layers, and one on the embedded and encoded sequences.

    Parameters: table (vocab, d_model), for source and target, w_vocab (d_model, vocab) unless ``tied``, b_vocab unless
    ``bias=False``, and those of the layers; with ``final_norm`` those of encoder_norm and decoder_norm, and with
    ``max_positions`` position_table (max_positions, d_model); in the state dict by the names that transformer reads,
    and nothing else: the positional encoding is computed at every call. With ``fixed_pad_row`` the words that are
    embedded do not train the row of pad_id. The settings are the keywords of the layers.
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
        final_norm: bool = False,
        tied: bool = False,
        max_positions: int | None = None,
        fixed_pad_row: bool = False,
        **settings: Unpack[LayerSettings],
    ) -> None:
        super().__init__()
        check_int("pad_id", pad_id)
        check_bool("final_norm", final_norm)
        check_bool("tied", tied)
        check_bool("fixed_pad_row", fixed_pad_row)
        self.fixed_id = pad_id if fixed_pad_row else None
        self.num_heads, self.pad_id, self.norm_first = num_heads, pad_id, settings.get("norm_first", False)
        device, dtype = settings.get("device"), settings.get("dtype")
        self.table = TokenEmbedding(vocab, d_model, device=device, dtype=dtype).table
        self.position_table = None
        if max_positions is not None:
            check_positive_int("max_positions", max_positions)
            self.position_table = TokenEmbedding(max_positions, d_model, device=device, dtype=dtype).table
        self.encoder = make_stack(
            lambda: EncoderLayer(d_model, num_heads, d_ff, **settings), num_encoder_layers, "num_encoder_layers"
        )
        self.decoder = make_stack(
            lambda: DecoderLayer(d_model, num_heads, d_ff, **settings), num_decoder_layers, "num_decoder_layers"
        )
        self.encoder_norm = make_final_norm(d_model, settings) if final_norm else None
        self.decoder_norm = make_final_norm(d_model, settings) if final_norm else None
        self.w_vocab = None if tied else xavier_weight(d_model, vocab, device, dtype)
        self.b_vocab = zero_bias(vocab, device, dtype) if settings.get("bias", True) else None
        self.dropout = make_dropout(settings.get("dropout", 0.1))

    @classmethod
    def from_params(
        cls,
        params: Mapping[str, Tensor],
        *,
        num_heads: int,
        num_encoder_layers: int,
        num_decoder_layers: int,
        pad_id: int,
        norm_first: bool = False,
        activation: Activation = "relu",
        fixed_pad_row: bool = False,
    ) -> Self:
        """Build a model from the caller's parameters, named as in transformer; it has no dropout."""
        check_positive_int("num_encoder_layers", num_encoder_layers)
        check_positive_int("num_decoder_layers", num_decoder_layers)
        check_bool("norm_first", norm_first)
        check_choice("activation", activation, ACTIVATIONS)
        check_bool("fixed_pad_row", fixed_pad_row)
        check_mapping(params)
        blocks = final_norms(params, "encoder_norm", "decoder_norm")
        blocks |= number_blocks("encoder", ENCODER_LAYER, num_encoder_layers)
        blocks |= number_blocks("decoder", DECODER_LAYER, num_decoder_layers)
        check_params(params, {"": MODEL, **blocks}, num_heads)

        return build(
            cls,
            num_heads=num_heads,
            pad_id=pad_id,
            norm_first=norm_first,
            activation=activation,
            fixed_id=pad_id if fixed_pad_row else None,
            **pick_params(params, "", MODEL),
            encoder=Encoder.from_params(
                params, num_heads, num_encoder_layers, norm_first=norm_first, activation=activation
            ).encoder,
            decoder=Decoder.from_params(
                params, num_heads, num_decoder_layers, norm_first=norm_first, activation=activation
            ).decoder,
            encoder_norm=pick_final_norm(params, "encoder_norm"),
            decoder_norm=pick_final_norm(params, "decoder_norm"),
            dropout=skip_dropout,
        )

    def forward(self, source: Tensor, target: Tensor) -> TransformerResult:
        """Compute transformer, in training with dropout."""
        self._check_ids(source=source, target=target)

        memory = self.run_encoder(source)  # (batch, source_seq, d_model)
        decoded = self.run_decoder(target, memory, source)  # (batch, seq, d_model)
        return TransformerResult(self.score_words(decoded), memory, decoded)

    def encode(self, source: Tensor) -> Tensor:
        """Compute the memory (batch, source_seq, d_model) of a source (batch, source_seq)."""
        self._check_ids(source=source)
        return self.run_encoder(source)  # (batch, source_seq, d_model)

    def decode(self, target: Tensor, memory: Tensor, source: Tensor) -> Tensor:
        """Compute the logits (batch, seq, vocab) of a target (batch, seq), given the memory that encode made.

        The source shows which rows of the memory are padding.
        """
        sizes = self._check_ids(source=source, target=target)
        check_floating("memory", memory)
        check_same_dtype_and_device("memory", memory, "table", self.table)
        check_axes("memory", memory, "batch source_seq d_model", sizes)
        return self.score_words(self.run_decoder(target, memory, source))  # (batch, seq, vocab)

    # The steps of the model. Their arguments are checked by the methods above, and by the functions that decode.

    def embed(self, ids: Tensor) -> Tensor:
        """Look up the rows of ids (batch, seq) and add their positions: (batch, seq, d_model)."""
        # Once, before the first layer; primer has the positions added at the end of every layer.
        rows = functional.token_embedding(ids, self.table, self.fixed_id)  # (batch, seq, d_model)
        if self.position_table is None:
            placed = functional.positional_encoding(rows)  # (batch, seq, d_model)
        else:
            placed = rows + self.position_table[: ids.shape[1]]  # (batch, seq, d_model)
        embedded: Tensor = self.dropout(placed)  # (batch, seq, d_model)
        return embedded

    def run_encoder(self, source: Tensor) -> Tensor:
        """Make the memory (batch, source_seq, d_model) of a source (batch, source_seq)."""
        mask = functional.padding_mask(source, self.pad_id)  # (batch, 1, 1, source_seq)
        last = run_layers(self.encoder, self.embed(source), mask)[-1]  # (batch, source_seq, d_model)
        return normalise_last(last, self.encoder_norm)  # (batch, source_seq, d_model)

    def run_decoder(self, target: Tensor, memory: Tensor, source: Tensor) -> Tensor:
        """Make the decoder's output (batch, seq, d_model) of a target (batch, seq); the source shows its padding."""
        seq = target.shape[1]
        # Both masks. With only padding, as in the example of n9, every position sees the word that it must predict.
        causal = functional.causal_mask(seq, seq, device=target.device)  # (seq, seq)
        self_mask = causal & functional.padding_mask(target, self.pad_id)  # (batch, 1, seq, seq)
        # The keys of the cross-attention are the source's, so its padding counts here and not the target's.
        memory_mask = functional.padding_mask(source, self.pad_id)  # (batch, 1, 1, source_seq)
        last = run_layers(self.decoder, self.embed(target), memory, self_mask, memory_mask)[-1]  # (batch, seq, d_model)
        return normalise_last(last, self.decoder_norm)  # (batch, seq, d_model)

    def score_words(self, decoded: Tensor) -> Tensor:
        """Make the logits (batch, seq, vocab) of the decoder's output (batch, seq, d_model)."""
        # Tied, the logit of a word is the dot product with its own embedding: the paper's section 3.4.
        w_vocab = self.table.T if self.w_vocab is None else self.w_vocab  # (d_model, vocab)
        return functional.affine(decoded, w_vocab, self.b_vocab)  # (batch, seq, vocab)

    def next_logits(self, read: Tensor, memory: Tensor, source: Tensor) -> Tensor:
        """Make the logits (batch, vocab) of the word that comes after those read (batch, t)."""
        decoded = self.run_decoder(read, memory, source)  # (batch, t, d_model)
        return self.score_words(decoded[:, -1:])[:, 0]  # (batch, vocab)

    # Decoding, by the functions greedy_decode and beam_search

    def keywords(self) -> dict[str, Any]:
        """Return the parameters and settings as the keywords of transformer, greedy_decode and beam_search.

        These functions have no dropout, so the model may decode while it is trained.
        """
        return {
            "num_heads": self.num_heads,
            "num_encoder_layers": len(self.encoder),
            "num_decoder_layers": len(self.decoder),
            "pad_id": self.pad_id,
            "params": dict(self.named_parameters()),
            "norm_first": self.norm_first,
        }

    def check_decoding(self, source: Any, bos_id: Any, eos_id: Any, max_length: Any) -> None:
        """Refuse arguments with which decoding is impossible."""
        self._check_ids(source=source)
        check_word_id("bos_id", bos_id, "begins what the decoder reads", self.table.shape[0])
        check_word_id("eos_id", eos_id, "ends a sentence", self.table.shape[0])
        check_positive_int("max_length", max_length)
        self._check_positions("max_length", max_length)

    def _check_ids(self, **named: Any) -> dict[str, tuple[Size, str]]:
        """Refuse a source or a target that does not fit the table, and return the sizes that they set."""
        bound: dict[str, tuple[Size, str]] = {}
        check_axes("table", self.table, "vocab d_model", bound)
        for name, ids in named.items():
            check_ids(name, ids, "batch source_seq" if name == "source" else "batch seq", bound)
            check_same_device(name, ids, "table", self.table)
            check_special_id("pad_id", self.pad_id, f"pads the {name}", name, ids)
            check_ids_in_table(name, ids, self.table.shape[0])
            self._check_positions(name, ids.shape[1])
        return bound

    def _check_positions(self, name: str, tokens: int) -> None:
        """Refuse more tokens than there are learned positions."""
        if self.position_table is not None and tokens > self.position_table.shape[0]:
            raise ValueError(
                f"position_table has shape {tuple(self.position_table.shape)} and must have a row for each of the "
                f"{tokens} positions of {name}: cut {name}, or pass a longer table"
            )
