"""The adapters of PyTorch's own layers: attention, nn.MultiheadAttention, the layers and stacks, the losses.

torch-nn                 the kernels that PyTorch picks; batch first, boolean masks, weights per head
torch-nn-pre             the same, with the layers' norm_first
torch-nn-gelu            the same, with activation="gelu"
torch-nn-sequence-first  the same kernels; sequence first, float masks of 0 and −inf
torch-nn-math            attention through the math backend of F.scaled_dot_product_attention
torch-nn-flash           attention through its flash backend, which on the CPU takes four axes and d_v = d_k
torch-nn-fast-path       the encoder's fused kernel, in torch_nn_fast_path.py
torch-nn-flex            flex_attention, in torch_nn_flex.py

There is no transformer: nn.Transformer starts from vectors, and PyTorch has no positional encoding to make them.
There is no label_smoothing: it is a part of F.cross_entropy, which returns only the loss.
"""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F  # noqa: N812 - the name that PyTorch's documentation gives it
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right

from goldformer.adapters.builtin import _torch_nn_layers as layers
from goldformer.adapters.layouts import (
    additive_mask,
    batch_first,
    linear_weight,
    sequence_first,
)

Backend = Literal["default", "math", "flash"]
Params = Mapping[str, Tensor]

# Since 2.5 F.scaled_dot_product_attention returns zeros for an empty row; before, NaN, on every backend.
# nn.MultiheadAttention calls it unless weights are requested: then it uses a plain softmax, and returns NaN.
_EMPTY_ROW: Final = "zeros" if torch.__version__ >= "2.5" else "nan"

_ATTENTIONS: Final = ("scaled_dot_product_attention", "grouped_query_attention")
_LAYERS: Final = ("encoder_layer", "decoder_layer", "encoder", "decoder")

_BACKENDS: Final = {"math": SDPBackend.MATH, "flash": SDPBackend.FLASH_ATTENTION}


@dataclass(frozen=True)
class TorchNN:
    """One way to call PyTorch's layers; its methods are the components that PyTorch has.

    With a chosen backend no weights are requested from nn.MultiheadAttention: with weights it uses no backend.
    """

    backend: Backend = "default"
    batch_first: bool = True
    additive_masks: bool = False
    norm_first: bool = False
    activation: Literal["relu", "gelu"] = "relu"

    ARRAYS = "torch"
    VERSION = torch.__version__
    DTYPES = ("float64", "float32", "float16", "bfloat16")

    @property
    def NAME(self) -> str:  # noqa: N802 - the protocol's name
        """The name in the registry."""
        variants = {"pre": self.norm_first, "gelu": self.activation == "gelu", "sequence-first": not self.batch_first}
        variant = next((name for name, is_it in variants.items() if is_it), self.backend)
        return "torch-nn" if variant == "default" else f"torch-nn-{variant}"

    @property
    def CONVENTIONS(self) -> dict[str, str]:  # noqa: N802 - the protocol's name
        """The output of an empty row, found by calling each variant in each dtype, and the options of the layers."""
        found = {f"{component}.empty_row": _EMPTY_ROW for component in (*_ATTENTIONS, *_LAYERS)}
        found["multi_head_attention.empty_row"] = "nan" if self._wants_weights else _EMPTY_ROW
        found |= {"norm_placement": "pre"} if self.norm_first else {}
        return found | ({"activation": self.activation} if self.activation != "relu" else {})

    def softmax(self, scores: Tensor) -> Tensor:
        """Call F.softmax over the last axis."""
        return F.softmax(scores, dim=-1)

    def token_embedding(self, ids: Tensor, *, params: Params, pad_id: int | None = None) -> Tensor:
        """Call F.embedding, which nn.Embedding calls; pad_id is its padding_idx."""
        return F.embedding(ids, params["table"], pad_id)

    def causal_mask(self, *, q_seq: int, kv_seq: int) -> Tensor:
        """Return True where nn.Transformer's causal mask, a square of 0 and −inf, is 0."""
        if q_seq != kv_seq:
            raise NotImplementedError("nn.Transformer.generate_square_subsequent_mask is square")
        return nn.Transformer.generate_square_subsequent_mask(q_seq) == 0

    def xavier_uniform(self, like: Tensor, *, seed: int) -> Tensor:
        """Call nn.init.xavier_uniform_ with a generator, on an empty (in, out)."""
        device = "cpu" if like.device.type in ("meta", "pretend") else like.device  # they have no generators
        generator = torch.Generator(device).manual_seed(seed)
        return nn.init.xavier_uniform_(torch.empty_like(like), generator=generator)

    def dropout(self, x: Tensor, *, rate: float, training: bool, seed: int) -> Tensor:
        """Call F.dropout, which takes no generator, under a seed of its own."""
        with layers.fork_seed(seed):
            return F.dropout(x, rate, training)

    def scaled_dot_product_attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None = None,
        *,
        dropout_rate: float = 0.0,
        seed: int | None = None,
    ) -> Tensor:
        """Call F.scaled_dot_product_attention, which returns only the output."""
        if query.ndim == 4:
            self._require_one_length(key, value)
        if dropout_rate < 0:
            raise NotImplementedError("a dropout_p below 0: some kernels refuse it, others take it for 0")
        mask = self._fit_mask(mask, query)
        with self._select_kernel(), layers.fork_seed(seed):
            return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout_rate)

    def grouped_query_attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None = None,
        bias: Tensor | None = None,
        *,
        scale: float | None = None,
    ) -> Tensor:
        """Call F.scaled_dot_product_attention with enable_gqa and, for a bias, a float mask; return only the output."""
        self._require_one_length(key, value)
        added = self._fit_mask(mask, query)
        if bias is not None:
            added = bias[None] if mask is None else bias.masked_fill(~mask, -torch.inf)
        with self._select_kernel():
            return F.scaled_dot_product_attention(query, key, value, attn_mask=added, scale=scale, enable_gqa=True)

    def cached_attention(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, state: Any = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Call F.scaled_dot_product_attention with all keys so far, under causal_lower_right."""
        if mask is not None:
            raise NotImplementedError("causal_lower_right joins no other mask")
        if state is not None:
            key, value = torch.cat([state[0], key], dim=2), torch.cat([state[1], value], dim=2)
        self._require_one_length(key, value)
        causal = causal_lower_right(query.shape[2], key.shape[2])
        with self._select_kernel():
            output = F.scaled_dot_product_attention(query, key, value, attn_mask=causal, enable_gqa=True)
        return output, (key, value)

    def multi_head_attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None = None,
        *,
        num_heads: int,
        params: Params,
        dropout_rate: float = 0.0,
        training: bool = True,
        seed: int | None = None,
    ) -> dict[str, Tensor]:
        """Call nn.MultiheadAttention; return output and, without a chosen backend, its two forms of the weights."""
        layer = layers.attention(params, num_heads=num_heads, batch_first=self.batch_first, dropout=dropout_rate)
        # Without dropout, training mode only disables the fast path, a fused kernel that ignores the backend.
        layer.train(training if dropout_rate else not self._wants_weights)
        inputs = [query, key, value]
        if not self.batch_first:
            inputs = [sequence_first(x) for x in inputs]
        options: dict[str, Any] = {"need_weights": self._wants_weights, "average_attn_weights": False}
        options |= self._make_masks(mask, query, key, num_heads)
        state = layers.map_attention(params)
        with self._select_kernel(), layers.fork_seed(seed):
            output, weights = functional_call(layer, state, tuple(inputs), options)
        outputs = {"output": output if self.batch_first else batch_first(output)}
        if not self._wants_weights:
            return outputs
        with layers.fork_seed(seed):
            _, average = functional_call(layer, state, tuple(inputs), options | {"average_attn_weights": True})
        return outputs | {"weights": weights, "average_weights": average}

    def feed_forward(
        self,
        x: Tensor,
        *,
        params: Params,
        dropout_rate: float = 0.0,
        training: bool = True,
        seed: int | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Call F.linear, F.relu or F.gelu, F.dropout and F.linear; return output and hidden."""
        activate = F.gelu if self.activation == "gelu" else F.relu
        hidden = activate(F.linear(x, linear_weight(params["w_1"]), params.get("b_1")))
        with layers.fork_seed(seed):
            kept = F.dropout(hidden, dropout_rate, training) if dropout_rate else hidden
        return F.linear(kept, linear_weight(params["w_2"]), params.get("b_2")), hidden

    def layer_norm(self, x: Tensor, *, params: Params) -> Tensor:
        """Call F.layer_norm over the last axis, with its own eps."""
        return F.layer_norm(x, x.shape[-1:], params["gamma"], params["beta"])

    def rms_norm(self, x: Tensor, *, params: Params) -> Tensor:
        """Call F.rms_norm over the last axis; its own eps depends on the dtype, and no option is that of float64."""
        return F.rms_norm(x, x.shape[-1:], params["gamma"], eps=1e-6)

    def gated_feed_forward(self, x: Tensor, *, params: Params) -> dict[str, Tensor]:
        """Call F.linear, F.silu and F.linear; return output, hidden, gate and up."""
        gate, up = (F.linear(x, linear_weight(params[f"w_{n}"]), params.get(f"b_{n}")) for n in ("gate", "up"))
        hidden = F.silu(gate) * up
        output = F.linear(hidden, linear_weight(params["w_down"]), params.get("b_down"))
        return {"output": output, "hidden": hidden, "gate": gate, "up": up}

    def encoder_layer(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        *,
        num_heads: int,
        params: Params,
        dropout_rate: float = 0.0,
        training: bool = True,
        seed: int | None = None,
    ) -> Tensor:
        """Call nn.TransformerEncoderLayer, which returns only the output."""
        layer = layers.encoder_layer(params, num_heads=num_heads, dropout=dropout_rate, **self._options)
        masks = self._make_masks(mask, x, x, num_heads, ("src_key_padding_mask", "src_mask"))
        with layers.fork_seed(seed):
            return self._run(layer, layers.map_layer(params), (x,), masks, training=training if dropout_rate else None)

    def encoder(
        self, x: Tensor, mask: Tensor | None = None, *, num_heads: int, num_layers: int, params: Params
    ) -> Tensor:
        """Call nn.TransformerEncoder, which returns only the output."""
        stack = layers.encoder(params, num_heads=num_heads, num_layers=num_layers, **self._options)
        masks = self._make_masks(mask, x, x, num_heads, ("src_key_padding_mask", "mask"))
        return self._run(stack, layers.map_stack(params, "encoder", num_layers), (x,), masks)

    def decoder_layer(
        self,
        x: Tensor,
        memory: Tensor,
        self_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        *,
        num_heads: int,
        params: Params,
        dropout_rate: float = 0.0,
        training: bool = True,
        seed: int | None = None,
    ) -> Tensor:
        """Call nn.TransformerDecoderLayer, which returns only the output."""
        layer = layers.decoder_layer(params, num_heads=num_heads, dropout=dropout_rate, **self._options)
        masks = self._make_decoder_masks(x, memory, self_mask, memory_mask, num_heads)
        with layers.fork_seed(seed):
            return self._run(
                layer, layers.map_layer(params), (x, memory), masks, training=training if dropout_rate else None
            )

    def decoder(
        self,
        x: Tensor,
        memory: Tensor,
        self_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        *,
        num_heads: int,
        num_layers: int,
        params: Params,
    ) -> Tensor:
        """Call nn.TransformerDecoder, which returns only the output."""
        stack = layers.decoder(params, num_heads=num_heads, num_layers=num_layers, **self._options)
        masks = self._make_decoder_masks(x, memory, self_mask, memory_mask, num_heads)
        return self._run(stack, layers.map_stack(params, "decoder", num_layers), (x, memory), masks)

    def pad_or_truncate(self, x: Tensor, *, length: int) -> Tensor:
        """Call F.pad on the axis of the rows, which truncates for a negative number."""
        return F.pad(x, (0, 0, 0, length - x.shape[1]))

    def shift_right(self, ids: Tensor, *, bos_id: int) -> Tensor:
        """Call F.pad, which adds an id at the front and drops the last one."""
        return F.pad(ids, (1, -1), value=bos_id)

    def one_hot(self, ids: Tensor, *, vocab: int) -> Tensor:
        """Call F.one_hot."""
        return F.one_hot(ids, vocab)

    def output_probabilities(self, x: Tensor, *, params: Params) -> tuple[Tensor, Tensor]:
        """Call F.linear and F.softmax; return probabilities and logits."""
        logits = F.linear(x, linear_weight(params["w_vocab"]), params.get("b_vocab"))
        return F.softmax(logits, dim=-1), logits

    def cross_entropy(self, logits: Tensor, targets: Tensor, *, pad_id: int) -> tuple[Tensor, Tensor]:
        """Call F.cross_entropy, whose ignore_index is the padding; return the mean, and the loss of every token."""
        words = logits.transpose(1, 2)  # it takes them on axis 1
        loss = F.cross_entropy(words, targets, ignore_index=pad_id)
        return loss, F.cross_entropy(words, targets, ignore_index=pad_id, reduction="none")

    def kl_divergence(self, target: Tensor, logits: Tensor) -> Tensor:
        """Call F.kl_div of log-probabilities, summed over the words."""
        return F.kl_div(F.log_softmax(logits, dim=-1), target, reduction="none").sum(dim=-1)

    @property
    def _wants_weights(self) -> bool:
        return self.backend == "default"

    @property
    def _options(self) -> dict[str, Any]:
        return {"batch_first": self.batch_first, "norm_first": self.norm_first, "activation": self.activation}

    def _require_one_length(self, key: Tensor, value: Tensor) -> None:
        """Raise NotImplementedError where a kernel would read past the shorter of key and value."""
        # With four axes only the math kernel checks the lengths: do not run the others.
        if key.shape[-2] != value.shape[-2] and self.backend != "math":
            raise NotImplementedError("key and value of two lengths: a read out of bounds, pytorch/pytorch#193728")

    def _run(
        self,
        module: nn.Module,
        state: Params,
        inputs: tuple[Tensor, ...],
        masks: Mapping[str, Tensor],
        *,
        training: bool | None = None,
    ) -> Tensor:
        """Return the output, batch first, of a layer or stack with the numbers of `state`; with dropout in a mode."""
        # The fast path, which evaluation takes for an even number of heads, returns NaN for an empty row; the other
        # paths return zeros. Without a mask no row is empty; with a mask training mode disables the fast path.
        module.train(bool(masks) or self.backend != "default" if training is None else training)
        ordered = inputs if self.batch_first else tuple(sequence_first(x) for x in inputs)
        with self._select_kernel():
            output: Tensor = functional_call(module, dict(state), ordered, dict(masks))
        return output if self.batch_first else batch_first(output)

    def _make_masks(
        self,
        mask: Tensor | None,
        query: Tensor,
        key: Tensor,
        num_heads: int,
        names: tuple[str, str] = ("key_padding_mask", "attn_mask"),
    ) -> dict[str, Tensor]:
        """Return the mask under one of the two names, as layers.make_masks does."""
        return layers.make_masks(mask, query, key, num_heads, names, additive=self.additive_masks)

    def _make_decoder_masks(
        self, x: Tensor, memory: Tensor, self_mask: Tensor | None, memory_mask: Tensor | None, num_heads: int
    ) -> dict[str, Tensor]:
        """Return the masks of both attentions, each under one of its two names."""
        masks = self._make_masks(self_mask, x, x, num_heads, ("tgt_key_padding_mask", "tgt_mask"))
        return masks | self._make_masks(memory_mask, x, memory, num_heads, ("memory_key_padding_mask", "memory_mask"))

    def _fit_mask(self, mask: Tensor | None, query: Tensor) -> Tensor | None:
        """Return the mask in the form that F.scaled_dot_product_attention takes.

        It documents any mask that broadcasts, but some kernels take no (kv_seq,) and no three axes.
        """
        if mask is None:
            return None
        mask = mask[(None,) * (query.ndim - mask.ndim)]
        return additive_mask(mask, query.dtype) if self.additive_masks else mask

    @contextmanager
    def _select_kernel(self) -> Iterator[None]:
        """Restrict attention to the backend; NotImplementedError, with PyTorch's reason, if it has no kernel."""
        if self.backend == "default":
            yield
            return
        # PyTorch gives the reason in warnings, and then raises without it.
        with sdpa_kernel(_BACKENDS[self.backend]), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                yield
            except RuntimeError as error:
                if "No available kernel" not in str(error):
                    raise
                reasons = [str(warning.message).partition(" (Triggered")[0] for warning in caught]
                why = " ".join(why for why in reasons if not why.endswith("because:"))
                raise NotImplementedError(f"no {self.backend} kernel: {why or 'no reason given'}") from error


torch_nn: Final = TorchNN()
torch_nn_pre: Final = TorchNN(norm_first=True)
torch_nn_gelu: Final = TorchNN(activation="gelu")
torch_nn_math: Final = TorchNN(backend="math")
torch_nn_flash: Final = TorchNN(backend="flash")
torch_nn_sequence_first: Final = TorchNN(batch_first=False, additive_masks=True)
