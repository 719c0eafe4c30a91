"""The fifth part of the textbook: the whole model, from ids to logits, probabilities and their logarithms."""

from typing import Any, Final

import numpy as np

from goldformer.adapters.textbook_backward import Gradients
from goldformer.adapters.textbook_backward_layers import TextbookLayersBackward
from goldformer.adapters.textbook_checks import Array, axis_sizes, check_ids
from goldformer.adapters.textbook_layers import TOKENS, Params

# The axes of arguments, as axis_sizes reads them.
OUTPUT_LAYER: Final = {"w_vocab": "d_model vocab", "b_vocab": "? vocab"}
TRANSFORMER: Final = {"source": "batch source_seq", "target": "batch seq", "table": "vocab d_model", **OUTPUT_LAYER}


class TextbookModel(TextbookLayersBackward):
    """The Transformer and its output layer."""

    # The whole model

    def transformer(
        self,
        source: Array,
        target: Array,
        *,
        num_heads: int,
        num_encoder_layers: int,
        num_decoder_layers: int,
        pad_id: int,
        params: Params,
    ) -> dict[str, Array]:
        """Return logits (batch, seq, vocab), memory and source_embedded, decoded and target_embedded (…, d_model)."""
        sizes = axis_sizes(TRANSFORMER, source=source, target=target, **params)
        for name, ids in (("source", source), ("target", target)):
            check_ids(name, ids, sizes["vocab"], "the rows of table")
        common: dict[str, Any] = {"num_heads": num_heads, "params": params}
        embedded = self.embedded(source, "source", pad_id, params)
        encoded = self.encoder(embedded, self.source_mask(source, pad_id), num_layers=num_encoder_layers, **common)
        target_embedded = self.embedded(target, "target", pad_id, params)
        decoded = self.decoder(
            target_embedded,
            self.memory(embedded, encoded),
            self.target_mask(target, pad_id),
            self.memory_mask(source, target, pad_id),
            num_layers=num_decoder_layers,
            **common,
        )
        logits = self.returned_logits(self.output_layer(decoded["output"], params))
        steps = {"decoded": decoded["output"], "source_embedded": embedded, "target_embedded": target_embedded}
        return {"logits": logits, "memory": encoded["output"], **steps}

    def transformer_gradient(
        self,
        source: Array,
        target: Array,
        cotangent: Array,
        *,
        num_heads: int,
        num_encoder_layers: int,
        num_decoder_layers: int,
        pad_id: int,
        params: Params,
    ) -> Gradients:
        """Return the gradients of table (vocab, d_model), of the output layer and of all layers' parameters."""
        counts: dict[str, Any] = {"num_encoder_layers": num_encoder_layers, "num_decoder_layers": num_decoder_layers}
        common: dict[str, Any] = {"num_heads": num_heads, "params": params}
        forward = self.transformer(source, target, pad_id=pad_id, **counts, **common)
        source_mask, target_mask = self.source_mask(source, pad_id), self.target_mask(target, pad_id)
        of_decoder = self.decoder_gradient(
            forward["target_embedded"],
            forward["memory"],
            cotangent @ params["w_vocab"].T,
            target_mask,
            self.memory_mask(source, target, pad_id),
            num_layers=num_decoder_layers,
            **common,
        )
        of_memory = self.encoded_gradient(of_decoder.pop("memory"))
        of_encoder = self.encoder_gradient(
            forward["source_embedded"], of_memory, source_mask, num_layers=num_encoder_layers, **common
        )
        sides = {"source": (source, of_encoder.pop("x")), "target": (target, of_decoder.pop("x"))}
        of_tables = [self.embedded_gradient(ids, gradient, params) for ids, gradient in sides.values()]
        of_logits = self.projection_gradients(forward["decoded"], cotangent, params, "vocab")
        return {"table": self.table_gradient(*of_tables), **of_logits, **of_encoder, **of_decoder}

    def encoded_gradient(self, gradient: Array) -> Array:
        """Return what flows back from the decoder into the encoder: all of the memory's gradient."""
        return gradient

    def embedded_gradient(self, ids: Array, gradient: Array, params: Params) -> Array:
        """Return the gradient of the table by one side's rows, to which the positions are only added."""
        return self.token_embedding_gradient(ids, gradient, params={"table": params["table"]})["table"]

    def table_gradient(self, of_source: Array, of_target: Array) -> Array:
        """Return the gradient of the one table that both sides read, (vocab, d_model)."""
        return of_source + of_target

    def embedded(self, ids: Array, side: str, pad_id: int, params: Params) -> Array:
        """Return the rows of the table with their positions, for the side "source" or "target", padding as any word."""
        del pad_id
        return self.positional_encoding(self.rows(ids, side, params))

    def rows(self, ids: Array, side: str, params: Params) -> Array:
        """Return the rows of the table for the side "source" or "target", (batch, tokens, d_model)."""
        return self.token_embedding(ids, params={"table": self.table(params, side)})

    def table(self, params: Params, side: str) -> Array:
        """Return the one table of both sides (MODEL-1)."""
        del side
        return params["table"]

    def words_mask(self, ids: Array, pad_id: int) -> Array:
        """Return where the ids of source or target are words and not padding, (batch, 1, 1, tokens)."""
        return self.padding_mask(ids, pad_id=pad_id)

    def source_mask(self, source: Array, pad_id: int) -> Array | None:
        """Return the mask of the encoder: padding."""
        return self.words_mask(source, pad_id)

    def target_mask(self, target: Array, pad_id: int) -> Array | None:
        """Return the mask of the decoder's self-attention: neither padding nor later positions (LAYER-5)."""
        seq = target.shape[1]
        return self.words_mask(target, pad_id) & self.causal_mask(q_seq=seq, kv_seq=seq)

    def memory_mask(self, source: Array, target: Array, pad_id: int) -> Array | None:
        """Return the mask of the cross-attention: the padding of the source, whose positions are the keys."""
        del target
        return self.words_mask(source, pad_id)

    def memory(self, embedded: Array, encoded: dict[str, Array]) -> Array:
        """Return what the decoder attends to: the last encoder layer's output (LAYER-4)."""
        del embedded
        return encoded["output"]

    def returned_logits(self, logits: Array) -> Array:
        """Return what the model gives for each position: the logits themselves (MODEL-4)."""
        return logits

    # The output layer

    def output_layer(self, x: Array, params: Params) -> Array:
        """Return logits, x·W_vocab + b_vocab."""
        return self.project(x, params, "vocab")

    def output_probabilities(self, x: Array, *, params: Params) -> dict[str, Array]:
        """Return probabilities and logits, each (batch, seq, vocab)."""
        axis_sizes({"x": TOKENS, **OUTPUT_LAYER}, x=x, **params)
        logits = self.output_layer(x, params)
        return {"probabilities": self.softmax(logits), "logits": logits}

    def output_probabilities_gradient(self, x: Array, cotangent: Array, *, params: Params) -> Gradients:
        """Return the gradients of x (batch, seq, d_model), w_vocab and b_vocab, if it is given."""
        logits = self.softmax_backward(self.output_probabilities(x, params=params)["probabilities"], cotangent)
        return {"x": logits @ params["w_vocab"].T, **self.projection_gradients(x, logits, params, "vocab")}

    def log_probabilities(self, logits: Array) -> Array:
        """Return log softmax(logits) over the last axis, as logits − max − log Σ exp(logits − max)."""
        with np.errstate(over="ignore"):
            shifted = logits - logits.max(axis=-1, keepdims=True)
        return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))
