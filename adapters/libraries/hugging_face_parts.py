"""The adapter of parts of Hugging Face transformers that serve several decoder-only models.

The filters and positions of generate(), the window of Mistral, BLOOM's ALiBi, the router and the experts of Mixtral,
and the attention of gpt-oss, which always has sinks. Nothing is downloaded.
"""

from collections.abc import Mapping
from typing import Any, Final

import torch
import transformers
from torch import Tensor, nn
from torch.func import functional_call
from transformers import (
    GenerationMixin,
    LogitsProcessorList,
    MinPLogitsWarper,
    MixtralConfig,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)
from transformers.masking_utils import eager_mask, sliding_window_causal_mask_function
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.gpt_oss import modeling_gpt_oss
from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock, MixtralTopKRouter

from goldformer.adapters.layouts import additive_mask, four_axes_mask, linear_weight, part

NAME: Final = "hugging-face-parts"
VERSION: Final = transformers.__version__
ARRAYS: Final = "torch"

# A query is the last of the keys so far; generate() gives padding the position 0.
CONVENTIONS: Final = {
    "causal_corner": "bottom_right",
    "alibi_form": "key_index",
    "padded_position": "zero",
    "sample_ties": "all_equal",
    "temperature_zero": "refused",
    "biases": "none",
}

Params = Mapping[str, Tensor]


def sliding_window_mask(*, q_seq: int, kv_seq: int, window: int) -> Tensor:
    """Return True where the additive mask of eager attention is 0, under sliding_window_causal_mask_function."""
    visible = sliding_window_causal_mask_function(window)
    added = eager_mask(1, q_seq, kv_seq, q_offset=kv_seq - q_seq, mask_function=visible)
    mask: Tensor = added[0, 0] == 0
    return mask


def alibi_bias(like: Tensor) -> Tensor:
    """Call BLOOM's build_alibi_tensor, which has one row for all queries."""
    heads, q_seq, kv_seq = like.shape
    bias: Tensor = build_alibi_tensor(torch.ones(1, kv_seq, dtype=torch.long, device=like.device), heads, like.dtype)
    return bias.expand(heads, q_seq, kv_seq)


def position_ids(mask: Tensor) -> Tensor:
    """Call the method with which generate() makes positions from an attention mask."""
    made: Tensor = GenerationMixin._prepare_position_ids_for_generation(
        GenerationMixin(), mask, {"attention_mask": mask}
    )
    return made


def token_filter(
    logits: Tensor,
    previous: Tensor | None = None,
    *,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    repetition_penalty: float | None = None,
) -> Tensor:
    """Call the processors of generate() in its order, with half types in float32 as there, then softmax."""
    processors = LogitsProcessorList()
    if previous is not None and repetition_penalty is not None:
        processors.append(RepetitionPenaltyLogitsProcessor(float(repetition_penalty)))
    # They refuse an int where they want a float.
    if temperature is not None:
        processors.append(TemperatureLogitsWarper(float(temperature)))
    settings = {TopKLogitsWarper: top_k, TopPLogitsWarper: top_p, MinPLogitsWarper: min_p}
    processors += [make(value) for make, value in settings.items() if value is not None]
    scores = logits if logits.dtype == torch.float64 else logits.float()
    words = torch.empty(len(logits), 0, dtype=torch.long, device=logits.device) if previous is None else previous
    filtered: Tensor = processors(words, scores)
    return filtered.softmax(dim=-1).to(logits.dtype)


def expert_router(x: Tensor, *, top_k: int, params: Params) -> dict[str, Tensor]:
    """Call MixtralTopKRouter; return logits, and its weights at the places of the chosen experts."""
    d_model, experts = params["w_router"].shape
    config = MixtralConfig(hidden_size=d_model, num_local_experts=experts, num_experts_per_tok=top_k)
    with torch.device("meta"):
        router = MixtralTopKRouter(config)
    logits, weights, chosen = functional_call(router, {"weight": linear_weight(params["w_router"])}, (x,))
    # The weights are float32; the experts round after they have multiplied by them.
    return {"weights": torch.zeros_like(logits).scatter(-1, chosen, weights.to(logits.dtype)), "logits": logits}


def expert_feed_forward(x: Tensor, *, num_experts: int, top_k: int, params: Params) -> dict[str, Tensor]:
    """Call MixtralSparseMoeBlock, which loops over its experts ("eager"); return output, weights and logits."""
    each = [part(params, f"experts.{index}") for index in range(num_experts)]
    d_model, d_ff = each[0]["w_gate"].shape
    config = MixtralConfig(
        hidden_size=d_model, intermediate_size=d_ff, num_local_experts=num_experts, num_experts_per_tok=top_k,
        experts_implementation="eager",
    )  # fmt: skip
    with torch.device("meta"):
        block = MixtralSparseMoeBlock(config).eval()
    found: dict[str, Any] = {}
    block.gate.register_forward_hook(lambda _module, _args, made: found.update(gate=made))
    state = {
        "gate.weight": linear_weight(params["w_router"]),
        "experts.gate_up_proj": torch.stack(
            [torch.cat([linear_weight(expert[name]) for name in ("w_gate", "w_up")]) for expert in each]
        ),
        "experts.down_proj": torch.stack([linear_weight(expert["w_down"]) for expert in each]),
    }
    output = functional_call(block, state, (x,), strict=True)
    logits, weights, chosen = (made.unflatten(0, x.shape[:2]) for made in found["gate"])
    spread = torch.zeros_like(logits).scatter(-1, chosen, weights.to(logits.dtype))
    return {"output": output, "weights": spread, "logits": logits}


def grouped_query_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    sinks: Tensor | None = None,
    *,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Call gpt-oss's eager_attention_forward, which adds what it gets as a mask; return output and weights."""
    if sinks is None:
        raise NotImplementedError("gpt-oss has no attention without sinks")
    attention: Any = nn.Module().eval()
    attention.num_key_value_groups, attention.sinks = query.shape[1] // key.shape[1], sinks
    added = bias
    if mask is not None:
        lowest = additive_mask(four_axes_mask(mask), query.dtype, fill=torch.finfo(query.dtype).min)
        added = lowest if bias is None else lowest + bias
    scaling = query.shape[-1] ** -0.5 if scale is None else scale
    output, weights = modeling_gpt_oss.eager_attention_forward(attention, query, key, value, added, scaling=scaling)
    return output.transpose(1, 2), weights
