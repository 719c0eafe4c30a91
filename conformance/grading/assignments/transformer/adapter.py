"""Let the suite call what students write in submission.py."""

from __future__ import annotations

from collections.abc import Mapping

import submission
import torch
from torch import Tensor, nn
from torch.func import functional_call

ARRAYS = "torch"
DEVICES = ("cpu",)  # as in grading
NAME = "submission"

Params = Mapping[str, Tensor]

#: The suite's names of weights, and of the linear layers that have them, with their biases.
LAYERS = {
    "w_q": ("w_q", "b_q"), "w_k": ("w_k", "b_k"), "w_v": ("w_v", "b_v"), "w_o": ("w_o", "b_o"),
    "w_1": ("linear_1", "b_1"), "w_2": ("linear_2", "b_2"), "w_vocab": ("w_vocab", "b_vocab"),
}  # fmt: skip


def rename_parameters(params: Params) -> dict[str, Tensor]:
    """Name parameters as the modules do. nn.Linear has weights as (out, in); an absent bias is 0."""
    tensors = {}
    for name, tensor in params.items():
        prefix, dot, last = name.rpartition(".")
        if last in LAYERS:
            layer, bias = LAYERS[last]
            tensors[f"{prefix}{dot}{layer}.weight"] = tensor.T
            absent = torch.zeros_like(tensor[0])
            tensors[f"{prefix}{dot}{layer}.bias"] = params.get(f"{prefix}{dot}{bias}", absent)
        elif not last.startswith("b_"):
            tensors[name] = tensor
    return tensors


def rename_layers(tensors: Mapping[str, Tensor], *stacks: str) -> dict[str, Tensor]:
    """Rename the layers of stacks: encoder.0 becomes encoder.layers.0."""
    renamed = {}
    for name, tensor in tensors.items():
        stack, _, rest = name.partition(".")
        renamed[f"{stack}.layers.{rest}" if stack in stacks else name] = tensor
    return renamed


def run(module: nn.Module, tensors: Mapping[str, Tensor], *arguments: Tensor | None) -> Tensor:
    """Run the module with the parameters of the call, so that gradients reach them."""
    return functional_call(module, dict(tensors), arguments, strict=True)


def find_width(params: Params) -> int:
    """Return the width of the feed-forward network."""
    return next(tensor.shape[1] for name, tensor in params.items() if name.endswith("feed_forward.w_1"))


def layer_norm(x: Tensor, *, params: Params) -> Tensor:
    """Run the module."""
    return run(submission.LayerNorm(x.shape[-1]), rename_parameters(params), x)


def feed_forward(x: Tensor, *, params: Params) -> Tensor:
    """Run the module."""
    return run(submission.FeedForward(*params["w_1"].shape), rename_parameters(params), x)


def encoder_layer(x: Tensor, mask: Tensor | None = None, *, num_heads: int, params: Params) -> Tensor:
    """Run the module."""
    return run(submission.EncoderLayer(x.shape[-1], num_heads, find_width(params)), rename_parameters(params), x, mask)


def decoder_layer(
    x: Tensor,
    memory: Tensor,
    self_mask: Tensor | None = None,
    memory_mask: Tensor | None = None,
    *,
    num_heads: int,
    params: Params,
) -> Tensor:
    """Run the module."""
    if len(memory) == 1 < len(x):
        raise NotImplementedError("refusing one memory for several samples is not asked for")
    module = submission.DecoderLayer(x.shape[-1], num_heads, find_width(params))
    return run(module, rename_parameters(params), x, memory, self_mask, memory_mask)


def encoder(x: Tensor, mask: Tensor | None = None, *, num_heads: int, num_layers: int, params: Params) -> Tensor:
    """Run the module. The suite numbers its layers after the name of the stack."""
    module = submission.Encoder(x.shape[-1], num_heads, find_width(params), num_layers)
    tensors = {name.replace("encoder.", "layers.", 1): tensor for name, tensor in rename_parameters(params).items()}
    return run(module, tensors, x, mask)


def decoder(
    x: Tensor,
    memory: Tensor,
    self_mask: Tensor | None = None,
    memory_mask: Tensor | None = None,
    *,
    num_heads: int,
    num_layers: int,
    params: Params,
) -> Tensor:
    """Run the module. The suite numbers its layers after the name of the stack."""
    module = submission.Decoder(x.shape[-1], num_heads, find_width(params), num_layers)
    tensors = {name.replace("decoder.", "layers.", 1): tensor for name, tensor in rename_parameters(params).items()}
    return run(module, tensors, x, memory, self_mask, memory_mask)


def output_probabilities(x: Tensor, *, params: Params) -> Tensor:
    """Run the module."""
    return run(submission.OutputLayer(*params["w_vocab"].shape), rename_parameters(params), x)


def make_model(params: Params, num_heads: int, encoder_layers: int, decoder_layers: int, pad_id: int) -> nn.Module:
    """Make the whole model with its own parameters."""
    vocab, d_model = params["table"].shape
    return submission.Transformer(vocab, d_model, num_heads, find_width(params), encoder_layers, decoder_layers, pad_id)


def transformer(
    source: Tensor,
    target: Tensor,
    *,
    num_heads: int,
    num_encoder_layers: int,
    num_decoder_layers: int,
    pad_id: int,
    params: Params,
) -> Tensor:
    """Run the module."""
    if source.ndim == 2 and len(target) == 1 < len(source):
        raise NotImplementedError("refusing one target for several sources is not asked for")
    module = make_model(params, num_heads, num_encoder_layers, num_decoder_layers, pad_id)
    return run(module, rename_layers(rename_parameters(params), "encoder", "decoder"), source, target)


def greedy_decode(
    source: Tensor,
    *,
    num_heads: int,
    num_encoder_layers: int,
    num_decoder_layers: int,
    pad_id: int,
    bos_id: int,
    eos_id: int,
    max_length: int,
    params: Params,
) -> dict[str, Tensor]:
    """Call the function with a module that has the parameters of the call."""
    if "w_vocab" in params and params["w_vocab"].shape[-1] != len(params["table"]):
        raise NotImplementedError("refusing a vocabulary that is larger than the table is not asked for")
    module = make_model(params, num_heads, num_encoder_layers, num_decoder_layers, pad_id)
    tensors = rename_layers(rename_parameters(params), "encoder", "decoder")
    if missing := dict(module.named_parameters()).keys() - tensors.keys():
        raise KeyError(f"no parameters for {', '.join(sorted(missing))}")
    for name, tensor in tensors.items():
        owner, _, last = name.rpartition(".")
        setattr(module.get_submodule(owner), last, nn.Parameter(tensor))
    with torch.no_grad():
        ids, token_scores = submission.greedy_decode(module, source, bos_id, eos_id, max_length)
    return {"ids": ids, "token_scores": token_scores, "scores": token_scores.sum(-1)}
