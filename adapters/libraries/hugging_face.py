"""The adapter of Hugging Face transformers: Marian, its Transformer for translation, with the numbers of the call.

Nothing is downloaded: a small configuration makes the layers and models. Attention is Marian's own ("eager"), which
returns weights; its default attention is PyTorch's. Its checkpoints hold a table of positions, sines then cosines; here
a model gets the same numbers in the order of the spec. Its heads are embed_dim/num_heads wide. For heads of another
width two numbers of its attentions are replaced, and channels of zeros give queries, keys and values one width.
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

from goldformer.adapters.layouts import additive_mask, four_axes, four_axes_mask, linear_weight, part
from goldformer.adapters.libraries._joint_context import join_context

NAME: Final = "hugging-face"
VERSION: Final = transformers.__version__
ARRAYS: Final = "torch"

# It masks with the lowest number of the dtype, and a sentence that ends leaves the beam.
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
    """Add the output of MarianSinusoidalPositionalEmbedding."""
    return x + _make_positions(x.shape[1], x.shape[2], x)


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    *,
    dropout_rate: float = 0.0,
    seed: int = 0,
) -> tuple[Tensor, Tensor]:
    """Call Marian's eager_attention_forward, with a mask of 0 and the lowest number; return output and weights."""
    q, k, v, m, restore = four_axes(query, key, value, mask)
    masked = None if m is None else _make_additive(m, query)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        output, weights = marian.eager_attention_forward(nn.Module(), q, k, v, masked, dropout=dropout_rate)
    return restore(output.transpose(1, 2)), restore(weights)


def multi_head_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    *,
    num_heads: int,
    params: Params,
) -> tuple[Tensor, Tensor]:
    """Call MarianAttention, which projects keys and values from one input; return output and weights."""
    context, wide = join_context(key, value, params)
    state, config = _map_attention(wide, num_heads), _configure(num_heads, num_heads)
    with torch.device("meta"):
        layer = _set_head_width(marian.MarianAttention(num_heads, num_heads, config=config), params, num_heads)
    options = {"key_value_states": context, "attention_mask": None if mask is None else _make_additive(mask, query)}
    output, weights = functional_call(layer, state, (query,), options)
    return output, weights


def encoder_layer(x: Tensor, mask: Tensor | None = None, *, num_heads: int, params: Params) -> Tensor:
    """Call MarianEncoderLayer, which returns only the output."""
    state = _map_layer(params, "encoder", num_heads)
    with torch.device("meta"):
        layer = _set_head_width(marian.MarianEncoderLayer(_configure_layer(params, num_heads)), params, num_heads)
    masked = None if mask is None else _make_additive(mask, x)
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
    """Call MarianDecoderLayer, which returns only the output."""
    state = _map_layer(params, "decoder", num_heads)
    with torch.device("meta"):
        layer = _set_head_width(
            marian.MarianDecoderLayer(_configure_layer(params, num_heads), layer_idx=0), params, num_heads
        )
    masks = [None if mask is None else _make_additive(mask, x) for mask in (self_mask, memory_mask)]
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
    """Call MarianMTModel, which makes its masks from the padding of the ids; return all outputs."""
    stacks = {"encoder_layers": num_encoder_layers, "decoder_layers": num_decoder_layers}
    length = max(source.shape[1], target.shape[1])
    model, state = _make_model(params, num_heads, length, **stacks)
    arguments = {
        "input_ids": source,
        "attention_mask": source != pad_id,
        "decoder_input_ids": target,
        "decoder_attention_mask": target != pad_id,
        "output_hidden_states": True,
    }
    result = functional_call(model, state, (), arguments)
    return {
        "logits": result.logits,
        "memory": result.encoder_last_hidden_state,
        "decoded": result.decoder_hidden_states[-1],
        "source_embedded": result.encoder_hidden_states[0],
        "target_embedded": result.decoder_hidden_states[0],
    }


def shift_right(ids: Tensor, *, bos_id: int) -> Tensor:
    """Call shift_tokens_right, which reads -100 as padding."""
    shifted: Tensor = marian.shift_tokens_right(ids, -100, bos_id)
    return shifted


def greedy_decode(source: Tensor, *, bos_id: int, max_length: int, params: Params, **model: int) -> tuple[Tensor, ...]:
    """Call generate() with one beam; return ids, scores and token scores."""
    ids, generated, running = _generate(source, params, bos_id, max_length, model)
    each = running.compute_transition_scores(generated.sequences, generated.scores, normalize_logits=True)
    # After the end it scores padding.
    after_end = (ids == model["eos_id"]).cumsum(1) - (ids == model["eos_id"]).long()
    # Its scores are float32, whatever the model is in.
    each = F.pad(each, (0, max_length - each.shape[1])).masked_fill(after_end > 0, 0).to(params["table"].dtype)
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
    """Call generate() with early stopping and without a length penalty; return ids and scores."""
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

    def forward(self, **arguments: Any) -> Any:
        """Call generate()."""
        return self.model.generate(**arguments)


def _generate(
    source: Tensor, params: Params, bos_id: int, max_length: int, model: Mapping[str, int], **how: Any
) -> tuple[Tensor, Any, Any]:
    """Return the words with padding, the result of generate(), and the model."""
    stacks = {f"{stack}_layers": model[f"num_{stack}_layers"] for stack in ("encoder", "decoder")}
    running, state = _make_model(params, model["num_heads"], max(source.shape[1], max_length + 1), **stacks)
    pad_id = model["pad_id"]
    config = GenerationConfig(
        max_new_tokens=max_length, decoder_start_token_id=bos_id, eos_token_id=model["eos_id"], pad_token_id=pad_id,
        do_sample=False, output_scores=True, return_dict_in_generate=True, **how,
    )  # fmt: skip
    arguments = {"inputs": source, "attention_mask": source != pad_id, "generation_config": config}
    generated = functional_call(_Generation(running), {f"model.{name}": x for name, x in state.items()}, (), arguments)
    words = generated.sequences[:, 1:]
    return F.pad(words, (0, max_length - words.shape[1]), value=pad_id), generated, running


def _make_model(params: Params, num_heads: int, length: int, **stacks: int) -> tuple[Any, dict[str, Tensor]]:
    """Return MarianMTModel without numbers, and its state."""
    vocab, d_model = params["table"].shape
    layer = part(params, "encoder.0")
    config = _configure(
        num_heads, d_model, layer["feed_forward.w_1"].shape[1], vocab_size=vocab, max_position_embeddings=length,
        tie_word_embeddings=False, **stacks,
    )  # fmt: skip
    with torch.device("meta"):
        model = _set_head_width(MarianMTModel(config), params, num_heads)
    like = params["table"]
    bias = params.get("b_vocab")
    state = {"lm_head.weight": linear_weight(params["w_vocab"])}
    state["final_logits_bias"] = like.new_zeros(1, vocab) if bias is None else bias[None]
    state["model.shared.weight"] = like
    # Channel 2i has the sine of frequency i, channel 2i + 1 its cosine.
    order = [channel // 2 + channel % 2 * (d_model - d_model // 2) for channel in range(d_model)]
    for stack in ("encoder", "decoder"):
        state[f"model.{stack}.embed_tokens.weight"] = like
        state[f"model.{stack}.embed_positions.weight"] = _make_positions(length, d_model, like)[:, order]
        for index in range(stacks[f"{stack}_layers"]):
            numbers = _map_layer(part(params, f"{stack}.{index}"), stack, num_heads)
            state |= {f"model.{stack}.layers.{index}.{name}": value for name, value in numbers.items()}
    return model, state


def _make_positions(length: int, d_model: int, like: Tensor) -> Tensor:
    """Return Marian's table of positions, in the dtype and on the device of a tensor."""
    table = marian.MarianSinusoidalPositionalEmbedding(length, d_model).to(like.device, like.dtype)
    encoding: Tensor = table.create_weight().to(like.device)
    return encoding


def _configure_layer(params: Params, num_heads: int) -> MarianConfig:
    """Return the configuration of a layer; NotImplementedError if Marian has no such layer."""
    return _configure(num_heads, *params["feed_forward.w_1"].shape)


def _configure(num_heads: int, d_model: int, d_ff: int = 1, **more: Any) -> MarianConfig:
    """Return a configuration with one width for both stacks, as in the paper, without dropout."""
    if num_heads > 0 and d_model % num_heads:
        raise NotImplementedError(f"Marian's d_model, {d_model}, must be a multiple of its heads, {num_heads}")
    both = {f"{stack}_{what}": n for stack in ("encoder", "decoder")
            for what, n in (("attention_heads", num_heads), ("ffn_dim", d_ff))}  # fmt: skip
    return MarianConfig(
        d_model=d_model, activation_function="relu", dropout=0.0, attn_implementation="eager",
        pad_token_id=None, eos_token_id=None, decoder_start_token_id=0, forced_eos_token_id=None, **both, **more,
    )  # fmt: skip


def _set_head_width(module: nn.Module, params: Params, num_heads: int) -> Any:
    """Put the module into evaluation mode, and give its heads the width of those of the parameters."""
    d_k, width = _find_widths(params, num_heads)
    for attention in module.modules():
        if isinstance(attention, marian.MarianAttention):
            attention.head_dim, attention.scaling = width, d_k**-0.5
    return module.eval()


def _make_additive(mask: Tensor, like: Tensor) -> Tensor:
    """Return the mask that Marian makes: 0 where a query may attend, the lowest number elsewhere."""
    additive: Tensor = additive_mask(four_axes_mask(mask), like.dtype, fill=torch.finfo(like.dtype).min)
    return additive


def _map_layer(params: Params, stack: str, num_heads: int) -> dict[str, Tensor]:
    """Return the parameters of a layer by the names in MarianEncoderLayer and MarianDecoderLayer."""
    blocks = {"self_attn": "self_attention"} | ({"encoder_attn": "cross_attention"} if stack == "decoder" else {})
    state = {f"{theirs}.{name}": value for theirs, mine in blocks.items()
             for name, value in _map_attention(part(params, mine), num_heads).items()}  # fmt: skip
    feed = part(params, "feed_forward")
    state |= _map_linear("fc1", feed, "1") | _map_linear("fc2", feed, "2")
    for number, theirs in enumerate(_NORMS[stack], start=1):
        state[f"{theirs}.weight"], state[f"{theirs}.bias"] = part(params, f"norm_{number}").values()
    return state


def _map_attention(params: Params, num_heads: int) -> dict[str, Tensor]:
    """Return the parameters by the names in MarianAttention, with heads of one width."""
    if params["w_q"].shape[1] != params["w_k"].shape[1]:
        raise ValueError(f"w_q and w_k have {params['w_q'].shape[1]} and {params['w_k'].shape[1]} columns")
    width = _find_widths(params, num_heads)[1]

    def pad_heads(columns: Tensor) -> Tensor:
        heads = columns.reshape(*columns.shape[:-1], num_heads, -1)
        return F.pad(heads, (0, width - heads.shape[-1])).flatten(-2)

    padded = {name: pad_heads(value) for name, value in params.items() if name[-1] in "qkv" and value is not None}
    padded["w_o"] = pad_heads(params["w_o"].mT).mT
    return {
        k: x for role, theirs in _LINEAR.items() for k, x in _map_linear(theirs, {**params, **padded}, role).items()
    }


def _find_widths(params: Params, num_heads: int) -> tuple[int, int]:
    """Return d_k, and the larger of d_k and d_v."""
    d_k, d_v = (
        next(weight for name, weight in params.items() if name.endswith(f"w_{role}")).shape[1] // num_heads
        for role in "kv"
    )
    return d_k, max(d_k, d_v)


def _map_linear(theirs: str, params: Params, name: str) -> dict[str, Tensor]:
    """Return weight and bias of an nn.Linear, which always has a bias."""
    weight, bias = linear_weight(params[f"w_{name}"]), params.get(f"b_{name}")
    return {f"{theirs}.weight": weight, f"{theirs}.bias": weight.new_zeros(len(weight)) if bias is None else bias}
