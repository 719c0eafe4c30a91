"""The adapter of goldformer.reference_impl: every output its contract names, the default conventions.

The reference has modules. A function form of one, with the parameters among its arguments, is made by call_with_params.
"""

import math
import operator
import threading
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.func import functional_call

from goldformer import reference_impl
from goldformer.reference_impl.decoder_only import normalise_heads
from goldformer.reference_impl.parts import affine, make_generator
from goldformer.reference_impl.shapes import NotNegative, Rate, Seed, Size, checked

NAME: Final = "reference"
VERSION: Final = version("goldformer")
ARRAYS: Final = "torch"

softmax = reference_impl.softmax
causal_mask = reference_impl.causal_mask
padding_mask = reference_impl.padding_mask
pad_or_truncate = reference_impl.pad_or_truncate
shift_right = reference_impl.shift_right
one_hot = reference_impl.one_hot
label_smoothing = reference_impl.label_smoothing
cross_entropy = reference_impl.cross_entropy
kl_divergence = reference_impl.kl_divergence
dropout = reference_impl.dropout
rotary_embedding = reference_impl.rotary_embedding
sliding_window_mask = reference_impl.sliding_window_mask
alibi_bias = reference_impl.alibi_bias
position_ids = reference_impl.position_ids
token_filter = reference_impl.token_filter

Params = Mapping[str, Tensor]


class _Skeleton(nn.Module):
    """A module whose parameters are replaced for a call, and what is called with it."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        parts = list(module.modules())
        # Tuples, which do not register the parts a second time.
        self.heads = tuple(part for part in parts if hasattr(part, "num_heads"))
        self.dropouts = tuple(part for part in parts if isinstance(part, reference_impl.Dropout))

    def forward(self, run: Callable[..., Any], *args: Any, **keywords: Any) -> Any:
        """Run a function with the module."""
        return run(self.module, *args, **keywords)


class _Skeletons(threading.local):
    """The skeletons that a thread has made: a call changes its skeleton, so threads share none."""

    def __init__(self) -> None:
        self.made: dict[Any, _Skeleton] = {}


_SKELETONS: Final = _Skeletons()
#: A call makes one in a millisecond or a few.
_MOST_SKELETONS: Final = 256


def call_with_params(
    kind: Callable[..., nn.Module],
    sizes: tuple[int, ...],
    params: Params,
    *args: Any,
    run: Callable[..., Any] = nn.Module.__call__,
    settings: Mapping[str, Any] | None = None,
    num_heads: Any = None,
    pad_id: Any = None,
    generator: torch.Generator | None = None,
    **keywords: Any,
) -> Any:
    """Call a module with the caller's parameters: ``run(module, *args, **keywords)``.

    ``sizes`` and ``settings`` are what the module is made with. Sizes that only decide the shapes of parameters may be
    1: the parameters are made on the meta device, and replaced.
    """
    if not isinstance(params, Mapping):
        raise TypeError(
            f"params is of type {type(params).__name__} and must map names to tensors: "
            f"pass a dict, such as the state_dict of the module"
        )
    # With their types, as True equals 1.
    made_with = tuple((name, type(value), value) for name, value in (settings or {}).items())
    # A tracer may have a symbol for an int, and index makes it a number.
    numbers = (operator.index(size) if type(size) is int else size for size in sizes)
    key = (kind, tuple((type(size), size) for size in numbers), made_with, tuple(params))
    _make_skeleton(*key)
    skeleton = _SKELETONS.made[key]
    for part in skeleton.heads:
        part.num_heads = num_heads
    for part in skeleton.dropouts:
        part.generator = generator
    if isinstance(skeleton.module, reference_impl.Transformer):
        fixed = skeleton.module.fixed_id is not None
        skeleton.module.pad_id, skeleton.module.fixed_id = pad_id, pad_id if fixed else None
    tensors = {f"module.{name}": tensor for name, tensor in params.items()}
    return functional_call(skeleton, tensors, (run, *args), keywords, tie_weights=False, strict=True)


def _make_skeleton(kind: Callable[..., nn.Module], sizes: Any, settings: Any, names: tuple[str, ...]) -> bool:
    """Make the skeleton of a module, without the parameters that are not named."""
    key = (kind, sizes, settings, names)
    if key in _SKELETONS.made:
        return True
    with torch.device("meta"):
        module = kind(*(size for _, size in sizes), **{name: value for name, _, value in settings})
    module.borrows_parameters = True  # type: ignore[assignment]
    known = dict(module.named_parameters())
    for name in names:
        if name not in known:
            raise TypeError(
                f"params has {name!r} and must hold nothing that is not read: "
                f"leave it out, or fix its spelling or the number of layers"
            )
    for name in known.keys() - set(names):
        owner, _, last = name.rpartition(".")
        setattr(module.get_submodule(owner), last, None)
    if len(_SKELETONS.made) >= _MOST_SKELETONS:
        _SKELETONS.made.clear()
    _SKELETONS.made[key] = _Skeleton(module)
    return True


# A tracer runs it, and looks the skeleton up afterwards: it could not trace how parameters are made. This is what
# torch.compiler.assume_constant_result sets; that imports torch._dynamo, which takes a second.
_make_skeleton._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _drop(dropout_rate: Any, training: Any, seed: Any, like: Any) -> tuple[float, torch.Generator | None]:
    """Return the rate at which a call drops, and the random numbers that decide what, on the device of ``like``."""
    if dropout_rate is None:
        return 0.0, None
    _check_dropout(dropout_rate=dropout_rate, training=training, seed=seed)
    device = like.device if isinstance(like, Tensor) else torch.device("cpu")
    return (dropout_rate, make_generator(seed, device)) if training else (0.0, None)


@checked
def _check_dropout(*, dropout_rate: Rate, training: bool, seed: Seed) -> None:
    """Refuse a dropout that the annotations do not allow."""


def _make_dropout(dropout_rate: Any, training: Any, seed: Any, like: Any) -> Callable[[Tensor], Any]:
    if dropout_rate is None:
        return lambda x: x
    part = reference_impl.Dropout()
    part.p, part.generator = _drop(dropout_rate, training, seed, like)
    return part


def positional_encoding(
    x: Tensor, *, dropout_rate: float | None = None, training: bool = True, seed: int | None = None
) -> Tensor:
    """Return the sum of x and the table, with dropout in training with a rate."""
    output: Tensor = _make_dropout(dropout_rate, training, seed, x)(reference_impl.positional_encoding(x))
    return output


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    *,
    dropout_rate: float | None = None,
    seed: int | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return output, weights, scores and scaled_scores."""
    part = _make_dropout(dropout_rate, True, seed, query)  # noqa: FBT003 - a call with a rate is one in training
    attended = reference_impl.scaled_dot_product_attention(query, key, value, mask, part)
    return *attended, reference_impl.attention_scores(query, key), reference_impl.scaled_scores(query, key)


def xavier_uniform(like: Tensor, *, seed: int) -> tuple[Tensor, Tensor]:
    """Return the weight, and the bias with which the modules start."""
    return reference_impl.xavier_uniform(like, seed), like.new_zeros(like.shape[1:])


def token_embedding(ids: Tensor, *, params: Params, pad_id: int | None = None) -> Tensor:
    """Return the rows of the table."""
    return reference_impl.token_embedding(ids, **params, fixed_id=pad_id)


def multi_head_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    *,
    num_heads: int,
    params: Params,
    dropout_rate: float | None = None,
    training: bool = True,
    seed: int | None = None,
) -> tuple[Tensor, ...]:
    """Return output, weights, q, k, v, scaled_scores, heads and average_weights, these three undropped."""
    rate, generator = _drop(dropout_rate, training, seed, query)
    output, weights = call_with_params(
        reference_impl.MultiHeadAttention, (1, 1), params, query, key, value, mask,
        settings={"dropout": rate}, num_heads=num_heads, generator=generator,
    )  # fmt: skip
    q, k, v = (
        reference_impl.split_heads(affine(x, params[f"w_{role}"], params.get(f"b_{role}")), num_heads)
        for role, x in (("q", query), ("k", key), ("v", value))
    )
    return output, weights, *_steps(q, k, v, mask), weights.mean(dim=1)


def fused_multi_head_attention(
    x: Tensor,
    mask: Tensor | None = None,
    *,
    num_heads: int,
    params: Params,
    dropout_rate: float | None = None,
    training: bool = True,
    seed: int | None = None,
) -> tuple[Tensor, ...]:
    """Return output, weights, qkv, q, k, v, scaled_scores, heads and average_weights, these three undropped."""
    rate, generator = _drop(dropout_rate, training, seed, x)
    output, weights, qkv = call_with_params(
        reference_impl.FusedMultiHeadAttention, (1, 1, 1), params, x, mask,
        settings={"dropout": rate}, num_heads=num_heads, generator=generator,
    )  # fmt: skip
    return output, weights, qkv, *_steps(*reference_impl.cut_fused(qkv, num_heads), mask), weights.mean(dim=1)


def _steps(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> tuple[Tensor, ...]:
    """Return q, k, v, their scaled scores, and the heads."""
    heads, _ = reference_impl.scaled_dot_product_attention(q, k, v, mask)
    return q, k, v, reference_impl.scaled_scores(q, k), heads


def single_head_attention(x: Tensor, *, causal: bool, params: Params) -> dict[str, Tensor]:
    """Return output, weights, query, key, value and scores."""
    kind, settings = reference_impl.SingleHeadAttention, {"causal": causal}
    result: dict[str, Tensor] = call_with_params(kind, (1,), params, x, settings=settings)._asdict()
    return result


@checked
def single_head_attention_step(
    x: Tensor,
    output_gradient: Tensor,
    *,
    causal: bool,
    learning_rate: NotNegative,
    steps: Size,
    params: Params,
) -> dict[str, Tensor]:
    """Return x_gradient, w_q, w_k and w_v."""
    kind, settings = reference_impl.SingleHeadAttention, {"causal": causal}
    for _ in range(steps):
        gradient = call_with_params(kind, (1,), params, x, output_gradient, run=kind.gradient, settings=settings)
        params = reference_impl.move_weights(params, gradient, learning_rate)
    return {"x_gradient": gradient["x"], **params}


def feed_forward(
    x: Tensor,
    *,
    params: Params,
    activation: str = "relu",
    dropout_rate: float | None = None,
    training: bool = True,
    seed: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Return output and hidden."""
    rate, generator = _drop(dropout_rate, training, seed, x)
    settings = {"activation": activation, "dropout": rate}
    result: tuple[Tensor, Tensor] = call_with_params(
        reference_impl.FeedForward, (1, 1), params, x, settings=settings, generator=generator
    )
    return result


def grouped_query_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    sinks: Tensor | None = None,
    gamma_q: Tensor | None = None,
    gamma_k: Tensor | None = None,
    *,
    scale: float | None = None,
    softcap: float | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return output, weights, scores and scaled_scores."""
    gains = gamma_q, gamma_k
    attended = reference_impl.grouped_query_attention(query, key, value, mask, bias, sinks, scale, softcap, *gains)
    query, key = (normalise_heads(x, gain, 1e-6) for x, gain in zip((query, key), gains, strict=True))
    scores = reference_impl.attention_scores(query, reference_impl.repeat_heads(key, query.shape[1]))
    return *attended, scores, scores / math.sqrt(query.shape[-1]) if scale is None else scores * scale


def cached_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    state: reference_impl.Cache | None = None,
) -> tuple[Tensor, reference_impl.Cache]:
    """Return output and the state, a cache."""
    return reference_impl.cached_attention(query, key, value, mask, state)


def layer_norm(x: Tensor, *, params: Params, eps: float = 1e-5) -> Tensor:
    """Return the normalised rows, with the eps of nn.LayerNorm."""
    output: Tensor = call_with_params(reference_impl.LayerNorm, (1,), params, x, settings={"eps": eps})
    return output


def rms_norm(x: Tensor, *, params: Params, eps: float = 1e-6) -> Tensor:
    """Return the rows divided by their root mean square, with the default eps of the spec."""
    output: Tensor = call_with_params(reference_impl.RMSNorm, (1,), params, x, settings={"eps": eps})
    return output


def gated_feed_forward(x: Tensor, *, params: Params, activation: str = "silu") -> reference_impl.GatedResult:
    """Return output, hidden, gate and up."""
    kind, settings = reference_impl.GatedFeedForward, {"activation": activation}
    result: reference_impl.GatedResult = call_with_params(kind, (1, 1), params, x, settings=settings)
    return result


def expert_feed_forward(x: Tensor, *, num_experts: int, top_k: int, params: Params) -> reference_impl.ExpertsResult:
    """Return output, weights and logits."""
    sizes, kind = (1, 1, num_experts, top_k), reference_impl.ExpertFeedForward
    result: reference_impl.ExpertsResult = call_with_params(kind, sizes, params, x, settings={"bias": True})
    return result


def expert_router(x: Tensor, *, top_k: int, params: Params) -> tuple[Tensor, Tensor]:
    """Return weights and logits."""
    return reference_impl.expert_router(x, params["w_router"], top_k)


def decoder_only_layer(
    x: Tensor,
    mask: Tensor | None = None,
    *,
    num_heads: int,
    num_kv_heads: int,
    base: float = 10000.0,
    window: int | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    params: Params,
) -> reference_impl.DecoderOnlyLayerResult:
    """Return output, attended and weights."""
    sizes, settings = (1, num_heads, num_kv_heads, 1), {"head_width": 1, "base": base, "bias": True, "qk_norm": True}
    scores = {"window": window, "scale": scale, "softcap": softcap}
    result: reference_impl.DecoderOnlyLayerResult = call_with_params(
        reference_impl.DecoderOnlyLayer, sizes, params, x, mask, settings={**settings, **scores}, num_heads=num_heads
    )
    return result


def _run_decoder_only(
    run: Callable[..., Any],
    params: Params,
    heads: tuple[int, int],
    num_layers: int,
    settings: Mapping[str, Any],
    *args: Any,
    **keywords: Any,
) -> Any:
    tied = isinstance(params, Mapping) and "w_vocab" not in params
    settings = {**settings, "head_width": 1, "bias": True, "qk_norm": True, "tied": tied}
    sizes, kind = (1, 1, *heads, 1, num_layers), reference_impl.DecoderOnlyModel
    return call_with_params(kind, sizes, params, *args, run=run, settings=settings, num_heads=heads[0], **keywords)


def decoder_only_model(
    ids: Tensor,
    *,
    num_heads: int,
    num_kv_heads: int,
    num_layers: int,
    params: Params,
    **settings: Any,
) -> reference_impl.DecoderOnlyModelResult:
    """Return logits, decoded and embedded."""
    result: reference_impl.DecoderOnlyModelResult = _run_decoder_only(
        nn.Module.__call__, params, (num_heads, num_kv_heads), num_layers, settings, ids
    )
    return result


def cached_model(
    ids: Tensor,
    state: reference_impl.ModelState | None = None,
    *,
    num_heads: int,
    num_kv_heads: int,
    num_layers: int,
    params: Params,
    **settings: Any,
) -> tuple[Tensor, reference_impl.ModelState]:
    """Return logits and the state."""
    run = reference_impl.DecoderOnlyModel.extend
    result, state = _run_decoder_only(run, params, (num_heads, num_kv_heads), num_layers, settings, ids, state)
    return result.logits, state


def generate(
    ids: Tensor,
    *,
    num_heads: int,
    num_kv_heads: int,
    num_layers: int,
    eos_id: int,
    max_new_tokens: int,
    params: Params,
    **settings: Any,
) -> Tensor:
    """Return the new ids."""
    run, limits = reference_impl.generate, {"eos_id": eos_id, "max_new_tokens": max_new_tokens}
    new_ids: Tensor = _run_decoder_only(run, params, (num_heads, num_kv_heads), num_layers, settings, ids, **limits)
    return new_ids


def output_probabilities(x: Tensor, *, params: Params) -> tuple[Tensor, Tensor]:
    """Return probabilities and logits."""
    return reference_impl.output_probabilities(x, **params)


def encoder_layer(
    x: Tensor,
    mask: Tensor | None = None,
    *,
    num_heads: int,
    params: Params,
    norm_first: bool = False,
    activation: str = "relu",
    dropout_rate: float | None = None,
    training: bool = True,
    seed: int | None = None,
) -> reference_impl.EncoderLayerResult:
    """Return output, attended and weights."""
    rate, generator = _drop(dropout_rate, training, seed, x)
    settings = {"norm_first": norm_first, "activation": activation, "dropout": rate}
    result: reference_impl.EncoderLayerResult = call_with_params(
        reference_impl.EncoderLayer, (1, 1, 1), params, x, mask,
        settings=settings, num_heads=num_heads, generator=generator,
    )  # fmt: skip
    return result


def decoder_layer(
    x: Tensor,
    memory: Tensor,
    self_mask: Tensor | None = None,
    memory_mask: Tensor | None = None,
    *,
    num_heads: int,
    params: Params,
    norm_first: bool = False,
    activation: str = "relu",
    dropout_rate: float | None = None,
    training: bool = True,
    seed: int | None = None,
) -> reference_impl.DecoderLayerResult:
    """Return output, attended, crossed, weights and cross_weights."""
    rate, generator = _drop(dropout_rate, training, seed, x)
    settings = {"norm_first": norm_first, "activation": activation, "dropout": rate}
    result: reference_impl.DecoderLayerResult = call_with_params(
        reference_impl.DecoderLayer, (1, 1, 1), params, x, memory, self_mask, memory_mask,
        settings=settings, num_heads=num_heads, generator=generator,
    )  # fmt: skip
    return result


def _run_stack(
    kind: Callable[..., nn.Module], params: Params, num_heads: int, num_layers: int, *args: Any, **settings: Any
) -> reference_impl.StackResult:
    final_norm = isinstance(params, Mapping) and ("norm.gamma" in params or "norm.beta" in params)
    settings = {**settings, "dropout": 0.0, "final_norm": final_norm}
    result: reference_impl.StackResult = call_with_params(
        kind, (1, 1, 1, num_layers), params, *args, settings=settings, num_heads=num_heads
    )
    return result


def encoder(
    x: Tensor,
    mask: Tensor | None = None,
    *,
    num_heads: int,
    num_layers: int,
    params: Params,
    norm_first: bool = False,
    activation: str = "relu",
) -> reference_impl.StackResult:
    """Return output and layers."""
    kind, settings = reference_impl.Encoder, {"norm_first": norm_first, "activation": activation}
    return _run_stack(kind, params, num_heads, num_layers, x, mask, **settings)


def decoder(
    x: Tensor,
    memory: Tensor,
    self_mask: Tensor | None = None,
    memory_mask: Tensor | None = None,
    *,
    num_heads: int,
    num_layers: int,
    params: Params,
    norm_first: bool = False,
    activation: str = "relu",
) -> reference_impl.StackResult:
    """Return output and layers."""
    kind, settings = reference_impl.Decoder, {"norm_first": norm_first, "activation": activation}
    return _run_stack(kind, params, num_heads, num_layers, x, memory, self_mask, memory_mask, **settings)


def _run_model(
    run: Callable[..., Any],
    params: Params,
    num_heads: int,
    num_layers: tuple[int, int],
    pad_id: int,
    *args: Any,
    settings: Mapping[str, Any],
    **keywords: Any,
) -> Any:
    names = params if isinstance(params, Mapping) else ()
    settings = {
        **settings,
        "dropout": 0.0,
        "pad_id": 0,
        "final_norm": any(
            f"{stack}_norm.{part}" in names for stack in ("encoder", "decoder") for part in ("gamma", "beta")
        ),
        "tied": "w_vocab" not in names,
        "max_positions": 1 if "position_table" in names else None,
    }
    sizes = (1, 1, 1, *num_layers, 1)
    return call_with_params(
        reference_impl.Transformer, sizes, params, *args,
        run=run, settings=settings, num_heads=num_heads, pad_id=pad_id, **keywords,
    )  # fmt: skip


def _run_and_embed(model: Any, source: Tensor, target: Tensor) -> dict[str, Tensor]:
    result = model(source, target)._asdict()
    return {**result, "source_embedded": model.embed(source), "target_embedded": model.embed(target)}


def transformer(
    source: Tensor,
    target: Tensor,
    *,
    num_heads: int,
    num_encoder_layers: int,
    num_decoder_layers: int,
    pad_id: int,
    params: Params,
    norm_first: bool = False,
    activation: str = "relu",
    fixed_pad_row: bool = False,
) -> dict[str, Tensor]:
    """Return logits, memory, decoded, source_embedded and target_embedded."""
    settings = {"norm_first": norm_first, "activation": activation, "fixed_pad_row": fixed_pad_row}
    layers = (num_encoder_layers, num_decoder_layers)
    result: dict[str, Tensor] = _run_model(
        _run_and_embed, params, num_heads, layers, pad_id, source, target, settings=settings
    )
    return result


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
    norm_first: bool = False,
    activation: str = "relu",
) -> reference_impl.GreedyResult:
    """Return ids, scores and token_scores."""
    settings, words = {"norm_first": norm_first, "activation": activation}, {"bos_id": bos_id, "eos_id": eos_id}
    layers, run = (num_encoder_layers, num_decoder_layers), reference_impl.greedy_decode
    result: reference_impl.GreedyResult = _run_model(
        run, params, num_heads, layers, pad_id, source, settings=settings, **words, max_length=max_length
    )
    return result


def beam_search(
    source: Tensor,
    *,
    num_heads: int,
    num_encoder_layers: int,
    num_decoder_layers: int,
    pad_id: int,
    bos_id: int,
    eos_id: int,
    max_length: int,
    beam_size: int,
    top_beams: int,
    params: Params,
    finish: str = "in_beam",
    length_penalty: str = "none",
    norm_first: bool = False,
    activation: str = "relu",
) -> reference_impl.BeamResult:
    """Return ids and scores."""
    settings, words = {"norm_first": norm_first, "activation": activation}, {"bos_id": bos_id, "eos_id": eos_id}
    layers, run = (num_encoder_layers, num_decoder_layers), reference_impl.beam_search
    rules = {"beam_size": beam_size, "top_beams": top_beams, "finish": finish, "length_penalty": length_penalty}
    result: reference_impl.BeamResult = _run_model(
        run, params, num_heads, layers, pad_id, source, settings=settings, **words, max_length=max_length, **rules
    )
    return result
