"""The adapter of Hugging Face transformers: Marian, its Transformer for translation, with the numbers of the call.

Nothing is downloaded: a small configuration makes the layers and models. Attention is Marian's own ("eager"), which
gives weights; the attention that it takes by default is PyTorch's. Its table of positions, sines left and cosines
right, is a part of its checkpoints: a model is given the same numbers in the order of the spec. Its heads are
embed_dim/num_heads wide; where those of a call are not, its attentions are told so, which takes two numbers, and
channels of zeros give queries, keys and values one width.
"""

from collections.abc import Mapping
from typing import Any, Final

import torch
import transformers
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F  # noqa: N812 - the name that PyTorch's documentation gives it
from transformers import GenerationConfig, MarianConfig, MarianMTModel
from transformers.models.marian import modeling_marian as marian

from goldformer.adapters.layouts import additive_mask, four_axes, linear_weight, part
from goldformer.adapters.libraries.one_context import one_context

NAME: Final = "hugging-face"
VERSION: Final = transformers.__version__
ARRAYS: Final = "torch"

# Masks are made of the lowest number of the dtype; a sentence that ends leaves the beam.
CONVENTIONS: Final = {
    "empty_row": "uniform",
    "positional_encoding.pe_layout": "concatenated",
    "beam_finish": "set_aside",
}

Params = Mapping[str, Tensor]

_LINEAR: Final = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "out_proj"}
_NORMS: Final = {
    "encoder": ("self_attn_layer_norm", "final_layer_norm"),
    "decoder": ("self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm"),
}


def positional_encoding(x: Tensor) -> Tensor:
    """MarianSinusoidalPositionalEmbedding, added."""
    return x + _positions(x.shape[1], x.shape[2], x)


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    *,
    dropout_rate: float = 0.0,
    seed: int = 0,
) -> tuple[Tensor, Tensor]:
    """Marian's eager_attention_forward, with a mask of 0 and the lowest number: output and weights."""
    q, k, v = (four_axes(x, query.ndim) for x in (query, key, value))
    masked = None if mask is None else _additive(four_axes(mask, query.ndim), query)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        output, weights = marian.eager_attention_forward(nn.Module(), q, k, v, masked, dropout=dropout_rate)
    shape = query.shape[:-1]
    return output.transpose(1, 2).reshape(*shape, value.shape[-1]), weights.reshape(*shape, key.shape[-2])


def multi_head_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    *,
    num_heads: int,
    params: Params,
) -> tuple[Tensor, Tensor]:
    """MarianAttention, in which keys and values come of one input: output and weights."""
    context, wide = one_context(key, value, params)
    state, config = _attention_state(wide, num_heads), _config(num_heads, num_heads)
    with torch.device("meta"):
        layer = _of_width(marian.MarianAttention(num_heads, num_heads, config=config), params, num_heads)
    options = {"key_value_states": context, "attention_mask": None if mask is None else _additive(mask, query)}
    output, weights = functional_call(layer, state, (query,), options)
    return output, weights


def encoder_layer(x: Tensor, mask: Tensor | None = None, *, num_heads: int, params: Params) -> Tensor:
    """MarianEncoderLayer, which gives the output alone."""
    state = _layer_state(params, "encoder", num_heads)
    with torch.device("meta"):
        layer = _of_width(marian.MarianEncoderLayer(_config_of(params, num_heads)), params, num_heads)
    masked = None if mask is None else _additive(mask, x)
    output: Tensor = functional_call(layer, state, (x, masked))
    return output


def decoder_layer(
    x: Tensor,
    memory: Tensor,
    self_mask: Tensor | None = None,
    memory_mask: Tensor | None = None,
    *,
    num_heads: int,
    params: Params,
) -> Tensor:
    """MarianDecoderLayer, which gives the output alone."""
    state = _layer_state(params, "decoder", num_heads)
    with torch.device("meta"):
        layer = _of_width(marian.MarianDecoderLayer(_config_of(params, num_heads), layer_idx=0), params, num_heads)
    masks = [None if mask is None else _additive(mask, x) for mask in (self_mask, memory_mask)]
    output: Tensor = functional_call(layer, state, (x, masks[0], memory, masks[1]))
    return output


def transformer(
    source: Tensor,
    target: Tensor,
    *,
    num_heads: int,
    num_encoder_layers: int,
    num_decoder_layers: int,
    pad_id: int,
    params: Params,
) -> dict[str, Tensor]:
    """MarianMTModel, which makes its masks from where the ids are padding: all outputs."""
    stacks = {"encoder_layers": num_encoder_layers, "decoder_layers": num_decoder_layers}
    length = max(source.shape[1], target.shape[1])
    model, state = _model(params, num_heads, length, **stacks)
    given = {
        "input_ids": source,
        "attention_mask": source != pad_id,
        "decoder_input_ids": target,
        "decoder_attention_mask": target != pad_id,
        "output_hidden_states": True,
    }
    result = functional_call(model, state, (), given)
    return {
        "logits": result.logits,
        "memory": result.encoder_last_hidden_state,
        "decoded": result.decoder_hidden_states[-1],
        "source_embedded": result.encoder_hidden_states[0],
        "target_embedded": result.decoder_hidden_states[0],
    }


def shift_right(ids: Tensor, *, bos_id: int) -> Tensor:
    """shift_tokens_right, which takes a -100 for padding."""
    shifted: Tensor = marian.shift_tokens_right(ids, -100, bos_id)
    return shifted


def greedy_decode(source: Tensor, *, bos_id: int, max_length: int, params: Params, **model: int) -> tuple[Tensor, ...]:
    """generate() with one beam: ids, scores and token scores."""
    ids, generated, running = _generate(source, params, bos_id, max_length, model)
    each = running.compute_transition_scores(generated.sequences, generated.scores, normalize_logits=True)
    # What it scores after the end is the padding that it writes there.
    ended = (ids == model["eos_id"]).cumsum(1) - (ids == model["eos_id"]).long()
    # Its scores are float32, whatever the model is in.
    each = F.pad(each, (0, max_length - each.shape[1])).masked_fill(ended > 0, 0).to(params["table"].dtype)
    return ids, each.sum(1), each


def beam_search(
    source: Tensor,
    *,
    bos_id: int,
    max_length: int,
    beam_size: int,
    top_beams: int,
    params: Params,
    **model: int,
) -> tuple[Tensor, Tensor]:
    """generate() with beams that stop when as many sentences have ended, and no length penalty: ids and scores."""
    how = {"num_beams": beam_size, "num_return_sequences": top_beams, "early_stopping": True, "length_penalty": 0.0}
    if beam_size == 1:
        raise NotImplementedError("generate() with one beam is greedy, and scores no sentence")
    ids, generated, _ = _generate(source, params, bos_id, max_length, model, **how)
    batch = len(source)
    scores = generated.sequences_scores.to(params["table"].dtype)
    return ids.reshape(batch, top_beams, max_length), scores.reshape(batch, top_beams)


class _Generation(nn.Module):
    """A model whose call is generate()."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, **given: Any) -> Any:
        """Generate."""
        return self.model.generate(**given)


def _generate(
    source: Tensor, params: Params, bos_id: int, max_length: int, model: Mapping[str, int], **how: Any
) -> tuple[Tensor, Any, Any]:
    """Return the words, filled up with padding, what generate() gave, and the model."""
    stacks = {f"{stack}_layers": model[f"num_{stack}_layers"] for stack in ("encoder", "decoder")}
    running, state = _model(params, model["num_heads"], max(source.shape[1], max_length + 1), **stacks)
    pad_id = model["pad_id"]
    config = GenerationConfig(
        max_new_tokens=max_length, decoder_start_token_id=bos_id, eos_token_id=model["eos_id"], pad_token_id=pad_id,
        do_sample=False, output_scores=True, return_dict_in_generate=True, **how,
    )  # fmt: skip
    given = {"inputs": source, "attention_mask": source != pad_id, "generation_config": config}
    generated = functional_call(_Generation(running), {f"model.{name}": x for name, x in state.items()}, (), given)
    words = generated.sequences[:, 1:]
    return F.pad(words, (0, max_length - words.shape[1]), value=pad_id), generated, running


def _model(params: Params, num_heads: int, length: int, **stacks: int) -> tuple[Any, dict[str, Tensor]]:
    """Return MarianMTModel without numbers, and its numbers."""
    vocab, d_model = params["table"].shape
    layer = part(params, "encoder.0")
    config = _config(
        num_heads, d_model, layer["feed_forward.w_1"].shape[1], vocab_size=vocab, max_position_embeddings=length,
        tie_word_embeddings=False, **stacks,
    )  # fmt: skip
    with torch.device("meta"):
        model = _of_width(MarianMTModel(config), params, num_heads)
    like = params["table"]
    bias = params.get("b_vocab")
    state = {"lm_head.weight": linear_weight(params["w_vocab"])}
    state["final_logits_bias"] = like.new_zeros(1, vocab) if bias is None else bias[None]
    state["model.shared.weight"] = like
    # Channel 2i has the sine of frequency i, channel 2i + 1 its cosine.
    order = [channel // 2 + channel % 2 * (d_model - d_model // 2) for channel in range(d_model)]
    for stack in ("encoder", "decoder"):
        state[f"model.{stack}.embed_tokens.weight"] = like
        state[f"model.{stack}.embed_positions.weight"] = _positions(length, d_model, like)[:, order]
        for index in range(stacks[f"{stack}_layers"]):
            numbers = _layer_state(part(params, f"{stack}.{index}"), stack, num_heads)
            state |= {f"model.{stack}.layers.{index}.{name}": value for name, value in numbers.items()}
    return model, state


def _positions(length: int, d_model: int, like: Tensor) -> Tensor:
    """Return Marian's table of positions, in the dtype and on the device of a tensor."""
    table = marian.MarianSinusoidalPositionalEmbedding(length, d_model).to(like.device, like.dtype)
    encoding: Tensor = table.create_weight().to(like.device)
    return encoding


def _config_of(params: Params, num_heads: int) -> MarianConfig:
    """Return the configuration of a layer, or raise NotImplementedError where Marian has none."""
    return _config(num_heads, *params["feed_forward.w_1"].shape)


def _config(num_heads: int, d_model: int, d_ff: int = 1, **more: Any) -> MarianConfig:
    """Return a configuration of one width for both stacks, as the paper has it, without dropout."""
    if num_heads > 0 and d_model % num_heads:
        raise NotImplementedError(f"Marian's d_model, {d_model}, must be a multiple of its heads, {num_heads}")
    both = {f"{stack}_{what}": n for stack in ("encoder", "decoder")
            for what, n in (("attention_heads", num_heads), ("ffn_dim", d_ff))}  # fmt: skip
    return MarianConfig(
        d_model=d_model, activation_function="relu", dropout=0.0, attn_implementation="eager",
        pad_token_id=None, eos_token_id=None, decoder_start_token_id=0, forced_eos_token_id=None, **both, **more,
    )  # fmt: skip


def _of_width(module: nn.Module, params: Params, num_heads: int) -> Any:
    """Return the module in evaluation, its attentions with heads as wide as those of the parameters."""
    d_k, width = _widths(params, num_heads)
    for attention in module.modules():
        if isinstance(attention, marian.MarianAttention):
            attention.head_dim, attention.scaling = width, d_k**-0.5
    return module.eval()


def _additive(mask: Tensor, like: Tensor) -> Tensor:
    """Return the mask as Marian makes it: 0 where scores may attend, the lowest number elsewhere."""
    additive: Tensor = additive_mask(four_axes(mask, 4), like.dtype, fill=torch.finfo(like.dtype).min)
    return additive


def _layer_state(params: Params, stack: str, num_heads: int) -> dict[str, Tensor]:
    """Return the parameters of a layer by the names in MarianEncoderLayer and MarianDecoderLayer."""
    blocks = {"self_attn": "self_attention"} | ({"encoder_attn": "cross_attention"} if stack == "decoder" else {})
    state = {f"{theirs}.{name}": value for theirs, mine in blocks.items()
             for name, value in _attention_state(part(params, mine), num_heads).items()}  # fmt: skip
    feed = part(params, "feed_forward")
    state |= _linear_state("fc1", feed, "1") | _linear_state("fc2", feed, "2")
    for number, theirs in enumerate(_NORMS[stack], start=1):
        state[f"{theirs}.weight"], state[f"{theirs}.bias"] = part(params, f"norm_{number}").values()
    return state


def _attention_state(params: Params, num_heads: int) -> dict[str, Tensor]:
    """Return the parameters by the names in MarianAttention, its heads of one width."""
    if params["w_q"].shape[1] != params["w_k"].shape[1]:
        raise ValueError(f"w_q and w_k have {params['w_q'].shape[1]} and {params['w_k'].shape[1]} columns")
    width = _widths(params, num_heads)[1]

    def wide(columns: Tensor) -> Tensor:
        heads = columns.reshape(*columns.shape[:-1], num_heads, -1)
        return F.pad(heads, (0, width - heads.shape[-1])).flatten(-2)

    filled = {name: wide(value) for name, value in params.items() if name[-1] in "qkv" and value is not None}
    filled["w_o"] = wide(params["w_o"].mT).mT
    return {
        k: x for role, theirs in _LINEAR.items() for k, x in _linear_state(theirs, {**params, **filled}, role).items()
    }


def _widths(params: Params, num_heads: int) -> tuple[int, int]:
    """Return d_k, and the larger of d_k and d_v."""
    d_k, d_v = (
        next(weight for name, weight in params.items() if name.endswith(f"w_{role}")).shape[1] // num_heads
        for role in "kv"
    )
    return d_k, max(d_k, d_v)


def _linear_state(theirs: str, params: Params, name: str) -> dict[str, Tensor]:
    """Return weight and bias of an nn.Linear, which always has a bias."""
    weight, bias = linear_weight(params[f"w_{name}"]), params.get(f"b_{name}")
    return {f"{theirs}.weight": weight, f"{theirs}.bias": weight.new_zeros(len(weight)) if bias is None else bias}
