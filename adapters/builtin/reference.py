"""The adapter of goldformer.reference_impl: every output its contract names, the default conventions.

The reference has modules. A function of one, with the parameters among its arguments, is made by of_module.
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

from goldformer import reference_impl as ref
from goldformer.reference_impl.decoder_only import normalise_heads
from goldformer.reference_impl.parts import affine, make_generator
from goldformer.reference_impl.shapes import NotNegative, Rate, Seed, Size, checked

NAME: Final = "reference"
VERSION: Final = version("goldformer")
ARRAYS: Final = "torch"

Params = Mapping[str, Tensor]
Function = Callable[..., Any]


class _Skeleton(nn.Module):
    """A module whose parameters are replaced for a call, and what is called with it."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        parts = list(module.modules())
        # Tuples, which do not register the parts a second time.
        self.heads = tuple(part for part in parts if hasattr(part, "num_heads"))
        self.dropouts = tuple(part for part in parts if isinstance(part, ref.Dropout))

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
    if isinstance(skeleton.module, ref.Transformer):
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


def of_module(
    name: str,
    kind: Callable[..., nn.Module],
    inputs: str,
    sizes: tuple[int | str, ...] = (1,),
    settings: str = "",
    *,
    read: Callable[[Params], Mapping[str, Any]] = lambda params: {},  # noqa: ARG005 - most depend on no parameter
    run: Function = nn.Module.__call__,
    drops: bool = False,
) -> Function:
    """Return the function of a component that calls a module with the parameters of the call.

    ``inputs`` are passed to the module. Of the other arguments some are ``sizes`` or ``settings`` of its constructor,
    and the rest goes to ``run``. ``read`` returns what the parameters say of its settings.
    """
    names = inputs.split()

    def call(
        *args: Any, params: Params, num_heads: Any = None, dropout_rate: Any = None, training: bool = True,
        seed: int | None = None, **named: Any,
    ) -> Any:  # fmt: skip
        arrays = [*args, *(named.pop(name, None) for name in names[len(args) :])]
        own = {**{name: named.pop(name) for name in settings.split() if name in named}, **read(params)}
        rate, generator = _drop(dropout_rate, training, seed, arrays[0])
        own |= {"dropout": rate} if drops else {}
        given = {**named, "num_heads": num_heads}
        numbers = tuple(given[size] if isinstance(size, str) else size for size in sizes)
        rest = {name: value for name, value in named.items() if name not in sizes}
        return call_with_params(
            kind, numbers, params, *arrays, run=run, settings=own, num_heads=num_heads, generator=generator, **rest
        )

    call.__name__ = name
    return call


def _has(params: Params, *names: str) -> bool:
    return isinstance(params, Mapping) and any(name in params for name in names)


def _read_stack(params: Params) -> dict[str, Any]:
    return {"dropout": 0.0, "final_norm": _has(params, "norm.gamma", "norm.beta")}


def _read_model(params: Params) -> dict[str, Any]:
    norms = (f"{stack}_norm.{part}" for stack in ("encoder", "decoder") for part in ("gamma", "beta"))
    positions = 1 if _has(params, "position_table") else None
    tied = not _has(params, "w_vocab")
    return {
        "dropout": 0.0, "pad_id": 0, "final_norm": _has(params, *norms), "tied": tied, "max_positions": positions,
    }  # fmt: skip


def _read_biases(params: Params) -> dict[str, Any]:
    del params
    return {"bias": True}


def _read_gains(params: Params) -> dict[str, Any]:
    return {**_read_biases(params), "head_width": 1, "qk_norm": True}


def _read_lm(params: Params) -> dict[str, Any]:
    return {**_read_gains(params), "tied": not _has(params, "w_vocab")}


def _run_and_embed(model: Any, source: Tensor, target: Tensor) -> dict[str, Tensor]:
    result = model(source, target)._asdict()
    return {**result, "source_embedded": model.embed(source), "target_embedded": model.embed(target)}


def _extend(model: Any, ids: Tensor, state: Any) -> tuple[Tensor, Any]:
    result, state = model.extend(ids, state)
    return result.logits, state


# Functions of the reference that are components as they are

softmax, causal_mask, padding_mask = ref.softmax, ref.causal_mask, ref.padding_mask
pad_or_truncate, shift_right, one_hot = ref.pad_or_truncate, ref.shift_right, ref.one_hot
label_smoothing, cross_entropy, kl_divergence = ref.label_smoothing, ref.cross_entropy, ref.kl_divergence
dropout, rotary_embedding, sliding_window_mask = ref.dropout, ref.rotary_embedding, ref.sliding_window_mask
alibi_bias, position_ids, token_filter = ref.alibi_bias, ref.position_ids, ref.token_filter

# Modules

_DECODER: Final = "x memory self_mask memory_mask"
_LAYER: Final = "norm_first activation"
_STACKS: Final = (1, 1, 1, "num_encoder_layers", "num_decoder_layers", 1)
_MODEL: Final = "norm_first activation fixed_pad_row"
_HEADS: Final = ("num_heads", "num_kv_heads")
_SCORES: Final = "base window scale softcap"
_LAYERS: Final = (1, 1, *_HEADS, 1, "num_layers")
_LM: Final = f"{_SCORES} local_base global_every logit_softcap pad_id"

layer_norm = of_module("layer_norm", ref.LayerNorm, "x", (1,), "eps")
rms_norm = of_module("rms_norm", ref.RMSNorm, "x", (1,), "eps")
feed_forward = of_module("feed_forward", ref.FeedForward, "x", (1, 1), "activation", drops=True)
gated_feed_forward = of_module("gated_feed_forward", ref.GatedFeedForward, "x", (1, 1), "activation")
expert_feed_forward = of_module(
    "expert_feed_forward", ref.ExpertFeedForward, "x", (1, 1, "num_experts", "top_k"), read=_read_biases
)
encoder_layer = of_module("encoder_layer", ref.EncoderLayer, "x mask", (1, 1, 1), _LAYER, drops=True)
decoder_layer = of_module("decoder_layer", ref.DecoderLayer, _DECODER, (1, 1, 1), _LAYER, drops=True)
encoder = of_module("encoder", ref.Encoder, "x mask", (1, 1, 1, "num_layers"), _LAYER, read=_read_stack)
decoder = of_module("decoder", ref.Decoder, _DECODER, (1, 1, 1, "num_layers"), _LAYER, read=_read_stack)
transformer = of_module(
    "transformer", ref.Transformer, "source target", _STACKS, _MODEL, read=_read_model, run=_run_and_embed
)
greedy_decode = of_module(
    "greedy_decode", ref.Transformer, "source", _STACKS, _MODEL, read=_read_model, run=ref.greedy_decode
)
beam_search = of_module(
    "beam_search", ref.Transformer, "source", _STACKS, _MODEL, read=_read_model, run=ref.beam_search
)
decoder_only_layer = of_module(
    "decoder_only_layer", ref.DecoderOnlyLayer, "x mask", (1, *_HEADS, 1), _SCORES, read=_read_gains
)
decoder_only_model = of_module("decoder_only_model", ref.DecoderOnlyModel, "ids", _LAYERS, _LM, read=_read_lm)
cached_model = of_module("cached_model", ref.DecoderOnlyModel, "ids state", _LAYERS, _LM, read=_read_lm, run=_extend)
generate = of_module("generate", ref.DecoderOnlyModel, "ids", _LAYERS, _LM, read=_read_lm, run=ref.generate)
single_head_attention = of_module("single_head_attention", ref.SingleHeadAttention, "x", (1,), "causal")
_multi_head = of_module("multi_head_attention", ref.MultiHeadAttention, "query key value mask", (1, 1), drops=True)
_fused = of_module("fused_multi_head_attention", ref.FusedMultiHeadAttention, "x mask", (1, 1, 1), drops=True)

# What gives more than the reference returns


def positional_encoding(x: Tensor, *, dropout_rate: Any = None, training: bool = True, seed: Any = None) -> Tensor:
    """Return the sum of x and the table, with dropout in training with a rate."""
    return _make_dropout(dropout_rate, training, seed, x)(ref.positional_encoding(x))


def _make_dropout(rate: Any, training: Any, seed: Any, like: Any) -> ref.Dropout:
    part = ref.Dropout()
    part.p, part.generator = _drop(rate, training, seed, like)
    return part


def scaled_dot_product_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, *, dropout_rate: Any = None, seed: Any = None
) -> tuple[Tensor, ...]:
    """Return output, weights, scores and scaled_scores."""
    part = _make_dropout(dropout_rate, True, seed, query)  # noqa: FBT003 - a call with a rate is one in training
    attended = ref.scaled_dot_product_attention(query, key, value, mask, part)
    return *attended, ref.attention_scores(query, key), ref.scaled_scores(query, key)


def grouped_query_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Any = None, bias: Any = None, sinks: Any = None,
    gamma_q: Any = None, gamma_k: Any = None, *, scale: float | None = None, softcap: float | None = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Return output, weights, scores and scaled_scores."""
    gains = gamma_q, gamma_k
    attended = ref.grouped_query_attention(query, key, value, mask, bias, sinks, scale, softcap, *gains)
    query, key = (normalise_heads(x, gain, 1e-6) for x, gain in zip((query, key), gains, strict=True))
    scores = ref.attention_scores(query, ref.repeat_heads(key, query.shape[1]))
    return *attended, scores, scores / math.sqrt(query.shape[-1]) if scale is None else scores * scale


def cached_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, state: ref.Cache | None = None
) -> tuple[Tensor, ref.Cache]:
    """Return output and the state, a cache."""
    return ref.cached_attention(query, key, value, mask, state)


def xavier_uniform(like: Tensor, *, seed: int) -> tuple[Tensor, Tensor]:
    """Return the weight, and the bias with which the modules start."""
    return ref.xavier_uniform(like, seed), like.new_zeros(like.shape[1:])


def token_embedding(ids: Tensor, *, params: Params, pad_id: int | None = None) -> Tensor:
    """Return the rows of the table."""
    return ref.token_embedding(ids, **params, fixed_id=pad_id)


def multi_head_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    *,
    num_heads: int,
    params: Params,
    **drop: Any,
) -> tuple[Tensor, ...]:
    """Return output, weights, q, k, v, scaled_scores, heads and average_weights, these three undropped."""
    output, weights = _multi_head(query, key, value, mask, num_heads=num_heads, params=params, **drop)
    q, k, v = (
        ref.split_heads(affine(x, params[f"w_{role}"], params.get(f"b_{role}")), num_heads)
        for role, x in (("q", query), ("k", key), ("v", value))
    )
    return output, weights, *_steps(q, k, v, mask), weights.mean(dim=1)


def fused_multi_head_attention(
    x: Tensor, mask: Tensor | None = None, *, num_heads: int, params: Params, **drop: Any
) -> tuple[Tensor, ...]:
    """Return output, weights, qkv, q, k, v, scaled_scores, heads and average_weights, these three undropped."""
    output, weights, qkv = _fused(x, mask, num_heads=num_heads, params=params, **drop)
    return output, weights, qkv, *_steps(*ref.cut_fused(qkv, num_heads), mask), weights.mean(dim=1)


def _steps(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> tuple[Tensor, ...]:
    """Return q, k, v, their scaled scores, and the heads."""
    heads, _ = ref.scaled_dot_product_attention(q, k, v, mask)
    return q, k, v, ref.scaled_scores(q, k), heads


@checked
def single_head_attention_step(
    x: Tensor, output_gradient: Tensor, *, causal: bool, learning_rate: NotNegative, steps: Size, params: Params
) -> dict[str, Tensor]:
    """Return x_gradient, w_q, w_k and w_v."""
    kind = ref.SingleHeadAttention
    for _ in range(steps):
        gradient = call_with_params(
            kind, (1,), params, x, output_gradient, run=kind.gradient, settings={"causal": causal}
        )
        params = ref.move_weights(params, gradient, learning_rate)
    return {"x_gradient": gradient["x"], **params}


def expert_router(x: Tensor, *, top_k: int, params: Params) -> tuple[Tensor, Tensor]:
    """Return weights and logits."""
    return ref.expert_router(x, params["w_router"], top_k)


def output_probabilities(x: Tensor, *, params: Params) -> tuple[Tensor, Tensor]:
    """Return probabilities and logits."""
    return ref.output_probabilities(x, **params)
